// The transpose of a matrix of 8 x 8 halves that a warp holds: each lane two neighbours of a row.
#pragma once
#include "scalar.cuh"

namespace km {
namespace ptx {

KM_DEVICE unsigned transpose(unsigned a) {
    unsigned r;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}

}  // namespace ptx
}  // namespace km

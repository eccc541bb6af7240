// Products of Hopper's tensor cores: 64 rows by four warps, 16 of each from its registers, against weights in shared
// memory. They run by themselves: what they read and write is left alone until they are waited for.
#pragma once
#include "kronsparse_warp.cuh"
#include "ptx_wgmma.cuh"

namespace km {

// Rows of 32 bytes, 16 positions of k, whose halves change places in rows 4 .. 7 of every 8.
KM_DEVICE unsigned long long weights_at(unsigned address) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | 1ull << 16 | 16ull << 32 | 3ull << 62;
}

}  // namespace km

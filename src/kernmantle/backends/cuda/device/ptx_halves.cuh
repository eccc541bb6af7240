// Instructions on halves of either kind that few kernels take.
#pragma once
#include "ptx.cuh"

namespace km {
namespace ptx {

KM_DEVICE unsigned mul_f16x2(unsigned a, unsigned b) {
    unsigned r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// d (16 x 8) += a b, of 16 positions of k, by the type of the operands; the compiler may merge and move it.
template <class T>
KM_DEVICE void mma_m16n8k16_pure(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1);
template <>
__device__ __forceinline__ void mma_m16n8k16_pure<f16>(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma_m16n8k16_f16_pure(d, a, b0, b1);
}
template <>
__device__ __forceinline__ void mma_m16n8k16_pure<bf16>(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace ptx
}  // namespace km

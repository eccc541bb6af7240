// Hopper's asynchronous products (ptx_wgmma.cuh) of two operands in shared memory of which the second is contiguous along n, the first
// one along k or, across, along m.
#pragma once
#include "ptx_wgmma.cuh"

namespace km {
namespace ptx {

#define KM_D8(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
// d += a b, 64 columns, both descriptors of shared memory, b in rows of 64 halves, swizzled.
#define KM_ALONG(name, type, kind, across)                                                                      \
    KM_DEVICE void name(type, float (&d)[8][4], unsigned long long left, unsigned long long right) {  \
        asm volatile(                                                                                           \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind                                         \
            " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
            "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, " across ", 1;"                  \
            : KM_D8(0), KM_D8(2), KM_D8(4), KM_D8(6)                                                            \
            : "l"(left), "l"(right));                                                                           \
    }
KM_ALONG(wgmma_ss_along, f16, "f16", "0")
KM_ALONG(wgmma_ss_along, bf16, "bf16", "0")
KM_ALONG(wgmma_ss_across, f16, "f16", "1")
KM_ALONG(wgmma_ss_across, bf16, "bf16", "1")
#undef KM_ALONG
#undef KM_D8

}  // namespace ptx
}  // namespace km

// Hopper's asynchronous products (ptx_wgmma.cuh) of 64 columns whose second operand in shared memory is contiguous along n, in rows of 64
// halves, swizzled. The first one is there too, contiguous along k, or in registers. d = (keep ? d : 0) + a b.
#pragma once
#include "ptx_wgmma.cuh"

namespace km {
namespace ptx {

#define KM_D8(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3]), "+f"(d[i + 1][0]), "+f"(d[i + 1][1]), "+f"(d[i + 1][2]), "+f"(d[i + 1][3])
#define KM_PRODUCT(kind, keeping, operands)                                                                 \
    "{\n.reg .pred keep;\nsetp.ne.b32 keep, " keeping ", 0;\n"                                             \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind                                             \
    " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, "     \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, " operands ";\n}"
#define KM_ALONG(type, kind)                                                                                             \
    KM_DEVICE void wgmma_ss_along(type, float (&d)[8][4], unsigned long long left, unsigned long long right, int keep) { \
        asm volatile(KM_PRODUCT(kind, "%34", "%32, %33, keep, 1, 1, 0, 1")                                               \
                     : KM_D8(0), KM_D8(2), KM_D8(4), KM_D8(6)                                                            \
                     : "l"(left), "l"(right), "r"(keep));                                                                \
    }
KM_ALONG(f16, "f16")
KM_ALONG(bf16, "bf16")
#undef KM_ALONG
#define KM_ALONG(type, kind)                                                                                                       \
    KM_DEVICE void wgmma_rs_along(type, float (&d)[8][4], const unsigned (&from)[4], unsigned long long to, int keep) {           \
        asm volatile(KM_PRODUCT(kind, "%37", "{%32, %33, %34, %35}, %36, keep, 1, 1, 1")                                           \
                     : KM_D8(0), KM_D8(2), KM_D8(4), KM_D8(6)                                                                      \
                     : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "l"(to), "r"(keep));                                \
    }
KM_ALONG(f16, "f16")
KM_ALONG(bf16, "bf16")
#undef KM_ALONG
#undef KM_PRODUCT
#undef KM_D8

}  // namespace ptx
}  // namespace km

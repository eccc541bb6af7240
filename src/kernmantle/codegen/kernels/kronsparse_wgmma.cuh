// Products of Hopper's tensor cores: 64 rows by four warps, 16 of each from its registers, against weights in shared
// memory. They run by themselves: what they read and write is left alone until they are waited for.
#pragma once
#include "kronsparse_warp.cuh"

namespace km {

KM_DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KM_DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
KM_DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
// Keeps the compiler from moving what is done with an accumulator past this place.
KM_DEVICE void settle(float& a) { asm volatile("" : "+f"(a)::"memory"); }
// Makes what this thread's copies wrote visible to products.
KM_DEVICE void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Rows of 32 bytes, 16 positions of k, whose halves change places in rows 4 .. 7 of every 8.
KM_DEVICE unsigned long long weights_at(unsigned address) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | 1ull << 16 | 16ull << 32 | 3ull << 62;
}

#define KM_FOUR(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define KM_16(d, i) KM_FOUR(d, i), KM_FOUR(d, i + 1)
#define KM_32(d, i) KM_16(d, i), KM_16(d, i + 2)
#define KM_64(d, i) KM_32(d, i), KM_32(d, i + 4)
#define KM_PLACES_16 \
    "%0, %1, %2, %3, %4, %5, %6, %7"
#define KM_PLACES_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KM_PLACES_48 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23"
#define KM_PLACES_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KM_PLACES_96 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define KM_PLACES_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
// d = (keep ? d : 0) + a b.
#define KM_PRODUCT(type, kind, n, a, b, keeping, ...)                                                                   \
    KM_DEVICE void multiply_grouped(type, float (&d)[n / 8][4], const unsigned (&from)[4], unsigned long long to, int keep) { \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keeping ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." \
                     kind "." kind " {" KM_PLACES_##n "}, {" a "}, " b ", keep, 1, 1, 0;\n}"                              \
                     : __VA_ARGS__                                                                                      \
                     : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "l"(to), "r"(keep));                     \
    }
#define KM_BOTH(n, a, b, keeping, ...)                        \
    KM_PRODUCT(f16, "f16", n, a, b, keeping, __VA_ARGS__)    \
    KM_PRODUCT(bf16, "bf16", n, a, b, keeping, __VA_ARGS__)
KM_BOTH(16, "%8, %9, %10, %11", "%12", "%13", KM_16(d, 0))
KM_BOTH(32, "%16, %17, %18, %19", "%20", "%21", KM_32(d, 0))
KM_BOTH(48, "%24, %25, %26, %27", "%28", "%29", KM_32(d, 0), KM_16(d, 4))
KM_BOTH(64, "%32, %33, %34, %35", "%36", "%37", KM_64(d, 0))
KM_BOTH(96, "%48, %49, %50, %51", "%52", "%53", KM_64(d, 0), KM_32(d, 8))
KM_BOTH(128, "%64, %65, %66, %67", "%68", "%69", KM_64(d, 0), KM_64(d, 8))
#undef KM_BOTH
#undef KM_PRODUCT
#undef KM_PLACES_128
#undef KM_PLACES_96
#undef KM_PLACES_64
#undef KM_PLACES_48
#undef KM_PLACES_32
#undef KM_PLACES_16
#undef KM_64
#undef KM_32
#undef KM_16
#undef KM_FOUR

}  // namespace km

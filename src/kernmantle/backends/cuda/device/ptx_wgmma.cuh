// Hopper's asynchronous products of tensor cores: 64 rows by a warpgroup of four warps, N columns, 16 positions of k in
// halves, sums in float32. What they read and write is left alone until they are waited for: fence before the first
// one, commit after the last one, wait, and fence_operand on every accumulator that is read.
#pragma once
#include "scalar.cuh"

namespace km {
namespace ptx {

KM_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
KM_DEVICE void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
KM_DEVICE void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The larger of two magnitudes each, of numbers of float16 that accumulators become.
KM_DEVICE unsigned max_abs_f16x2(unsigned a, unsigned b) {
    unsigned r;
    asm("{.reg .b32 x, y;\nabs.f16x2 x, %1;\nabs.f16x2 y, %2;\nmax.f16x2 %0, x, y;}" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

// How rows of an operand in shared memory are swizzled: their 16-byte pieces are permuted within rows of 128, 64 or 32 bytes.
enum WgmmaSwizzle { WGMMA_PLAIN, WGMMA_SWIZZLE_128, WGMMA_SWIZZLE_64, WGMMA_SWIZZLE_32 };
// The word that tells wgmma of an operand in shared memory: pieces of 8 rows, `leading` bytes apart along k (any where they are
// swizzled) and `stride` bytes apart along the other axis.
KM_DEVICE unsigned long long wgmma_descriptor(unsigned address, unsigned leading, unsigned stride, WgmmaSwizzle swizzle) {
    return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16
           | (unsigned long long)(stride >> 4) << 32 | (unsigned long long)swizzle << 62;
}

// Accumulators as operands: D4 of d[i][0 .. 3], E8 of d[i .. i + 7], and their names in the instruction.
#define KM_D4(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define KM_D8(d, i) KM_D4(d, i), KM_D4(d, i + 1)
#define KM_D16(d, i) KM_D8(d, i), KM_D8(d, i + 2)
#define KM_D32(d, i) KM_D16(d, i), KM_D16(d, i + 4)
#define KM_D64(d) KM_D32(d, 0), KM_D32(d, 8), KM_D32(d, 16), KM_D32(d, 24)
#define KM_E8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define KM_E32(d, i) KM_E8(d, i), KM_E8(d, i + 8), KM_E8(d, i + 16), KM_E8(d, i + 24)
#define KM_NAMES_8 "%0, %1, %2, %3"
#define KM_NAMES_16 KM_NAMES_8 ", %4, %5, %6, %7"
#define KM_NAMES_24 KM_NAMES_16 ", %8, %9, %10, %11"
#define KM_NAMES_32 KM_NAMES_24 ", %12, %13, %14, %15"
#define KM_NAMES_40 KM_NAMES_32 ", %16, %17, %18, %19"
#define KM_NAMES_48 KM_NAMES_40 ", %20, %21, %22, %23"
#define KM_NAMES_56 KM_NAMES_48 ", %24, %25, %26, %27"
#define KM_NAMES_64 KM_NAMES_56 ", %28, %29, %30, %31"
#define KM_NAMES_80 KM_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define KM_NAMES_96 KM_NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define KM_NAMES_112 KM_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define KM_NAMES_128 KM_NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define KM_NAMES_192 \
    KM_NAMES_128 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define KM_NAMES_256 \
    KM_NAMES_192 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// d += a b, a in registers, b a descriptor of shared memory that is contiguous along n.
#define KM_ADD(n, a, b, ...)                                                                                                 \
    KM_DEVICE void wgmma_rs_add(float (&d)[n / 8][4], const unsigned (&from)[4], unsigned long long to) {                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" KM_NAMES_##n "}, {" a "}, " b ", 1, 1, 1, 0;" \
                     : __VA_ARGS__                                                                                           \
                     : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "l"(to));                                     \
    }
KM_ADD(8, "%4, %5, %6, %7", "%8", KM_D4(d, 0))
KM_ADD(16, "%8, %9, %10, %11", "%12", KM_D8(d, 0))
KM_ADD(32, "%16, %17, %18, %19", "%20", KM_D16(d, 0))
#undef KM_ADD

// d = (keep ? d : 0) + a b, a in registers, b a descriptor of shared memory.
#define KM_KEEPING(type, kind, n, a, b, keeping, ...)                                                                    \
    KM_DEVICE void wgmma_rs(type, float (&d)[n / 8][4], const unsigned (&from)[4], unsigned long long to, int keep) {    \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keeping ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." \
                     kind "." kind " {" KM_NAMES_##n "}, {" a "}, " b ", keep, 1, 1, 0;\n}"                              \
                     : __VA_ARGS__                                                                                       \
                     : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "l"(to), "r"(keep));                      \
    }
#define KM_BOTH(n, a, b, keeping, ...)                         \
    KM_KEEPING(f16, "f16", n, a, b, keeping, __VA_ARGS__)     \
    KM_KEEPING(bf16, "bf16", n, a, b, keeping, __VA_ARGS__)
KM_BOTH(16, "%8, %9, %10, %11", "%12", "%13", KM_D8(d, 0))
KM_BOTH(24, "%12, %13, %14, %15", "%16", "%17", KM_D8(d, 0), KM_D4(d, 2))
KM_BOTH(32, "%16, %17, %18, %19", "%20", "%21", KM_D16(d, 0))
KM_BOTH(40, "%20, %21, %22, %23", "%24", "%25", KM_D16(d, 0), KM_D4(d, 4))
KM_BOTH(48, "%24, %25, %26, %27", "%28", "%29", KM_D16(d, 0), KM_D8(d, 4))
KM_BOTH(56, "%28, %29, %30, %31", "%32", "%33", KM_D16(d, 0), KM_D8(d, 4), KM_D4(d, 6))
KM_BOTH(64, "%32, %33, %34, %35", "%36", "%37", KM_D32(d, 0))
KM_BOTH(80, "%40, %41, %42, %43", "%44", "%45", KM_D32(d, 0), KM_D8(d, 8))
KM_BOTH(96, "%48, %49, %50, %51", "%52", "%53", KM_D32(d, 0), KM_D16(d, 8))
KM_BOTH(112, "%56, %57, %58, %59", "%60", "%61", KM_D32(d, 0), KM_D16(d, 8), KM_D8(d, 12))
KM_BOTH(128, "%64, %65, %66, %67", "%68", "%69", KM_D32(d, 0), KM_D32(d, 8))
#undef KM_BOTH
#undef KM_KEEPING

// d += a b, a in registers, b a descriptor of shared memory that is contiguous along n in rows of 64 halves, swizzled.
#define KM_ALONG(type, kind, n, a, b, ...)                                                                                             \
    KM_DEVICE void wgmma_rs_along(type, float (&d)[n / 8][4], const unsigned (&from)[4], unsigned long long to) {                      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." kind "." kind " {" KM_NAMES_##n "}, {" a "}, " b ", 1, 1, 1, 1;" \
                     : __VA_ARGS__                                                                                                     \
                     : "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "l"(to));                                               \
    }
#define KM_BOTH(n, a, b, ...)                   \
    KM_ALONG(f16, "f16", n, a, b, __VA_ARGS__)  \
    KM_ALONG(bf16, "bf16", n, a, b, __VA_ARGS__)
KM_BOTH(64, "%32, %33, %34, %35", "%36", KM_D32(d, 0))
KM_BOTH(128, "%64, %65, %66, %67", "%68", KM_D32(d, 0), KM_D32(d, 8))
#undef KM_BOTH
#undef KM_ALONG

// d = (keep ? d : 0) + a b^T, both descriptors of shared memory.
#define KM_PRODUCT(n, a, b, keeping, ...)                                                                                     \
    KM_DEVICE void wgmma_ss(float (&d)[n / 2], unsigned long long left, unsigned long long right, int keep) {                 \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keeping ", 0;\n"                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" KM_NAMES_##n "}, " a ", " b ", keep, 1, 1, 0, 0;\n}" \
                     : __VA_ARGS__                                                                                            \
                     : "l"(left), "l"(right), "r"(keep));                                                                     \
    }
KM_PRODUCT(128, "%64", "%65", "%66", KM_E32(d, 0), KM_E32(d, 32))
KM_PRODUCT(192, "%96", "%97", "%98", KM_E32(d, 0), KM_E32(d, 32), KM_E32(d, 64))
#undef KM_PRODUCT

// The same of halves of either kind, accumulators by blocks of 8 columns. across: both are contiguous along m and n, in rows of 64 halves, swizzled.
#define KM_BLOCKS(name, across, type, kind, n, a, b, keeping, ...)                                                                    \
    KM_DEVICE void name(type, float (&d)[n / 8][4], unsigned long long left, unsigned long long right, int keep) {                    \
        asm volatile("{\n.reg .pred keep;\nsetp.ne.b32 keep, " keeping ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n "k16.f32." kind "." \
                     kind " {" KM_NAMES_##n "}, " a ", " b ", keep, 1, 1, " across ";\n}"                                             \
                     : __VA_ARGS__                                                                                                    \
                     : "l"(left), "l"(right), "r"(keep));                                                                             \
    }
#define KM_BOTH(n, a, b, keeping, ...)                                                 \
    KM_BLOCKS(wgmma_ss, "0, 0", f16, "f16", n, a, b, keeping, __VA_ARGS__)             \
    KM_BLOCKS(wgmma_ss, "0, 0", bf16, "bf16", n, a, b, keeping, __VA_ARGS__)           \
    KM_BLOCKS(wgmma_ss_across, "1, 1", f16, "f16", n, a, b, keeping, __VA_ARGS__)      \
    KM_BLOCKS(wgmma_ss_across, "1, 1", bf16, "bf16", n, a, b, keeping, __VA_ARGS__)
KM_BOTH(64, "%32", "%33", "%34", KM_D32(d, 0))
KM_BOTH(96, "%48", "%49", "%50", KM_D32(d, 0), KM_D16(d, 8))
KM_BOTH(128, "%64", "%65", "%66", KM_D32(d, 0), KM_D32(d, 8))
KM_BOTH(256, "%128", "%129", "%130", KM_D64(d))
#undef KM_BOTH
#undef KM_BLOCKS

#undef KM_NAMES_256
#undef KM_NAMES_192
#undef KM_NAMES_128
#undef KM_NAMES_112
#undef KM_NAMES_96
#undef KM_NAMES_80
#undef KM_NAMES_64
#undef KM_NAMES_56
#undef KM_NAMES_48
#undef KM_NAMES_40
#undef KM_NAMES_32
#undef KM_NAMES_24
#undef KM_NAMES_16
#undef KM_NAMES_8
#undef KM_E32
#undef KM_E8
#undef KM_D64
#undef KM_D32
#undef KM_D16
#undef KM_D8
#undef KM_D4

}  // namespace ptx
}  // namespace km

// What a warp does for Kronecker-sparse products: tensor-core products, joins over its lanes, waits for its copies.
#pragma once
#include "async.cuh"

namespace km {

// d += a b over 16 positions of k for 16 rows and 8 columns, accumulated in float32.
KM_DEVICE void multiply_add(f16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d = a b, of halves.
KM_DEVICE void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
KM_DEVICE void multiply_add(bf16, float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// One of the three products of halves of float32: the low half by the high one of the weights, the high by the low, both high.
KM_DEVICE void multiply_turn(
    float (&d)[4], int turn, bool begins, const unsigned (&high)[4], const unsigned (&low)[4], const uint4& weights) {
    const unsigned(&left)[4] = turn == 0 ? low : high;
    const unsigned b0 = turn == 1 ? weights.z : weights.x, b1 = turn == 1 ? weights.w : weights.y;
    if (begins)
        multiply(d, left, b0, b1);
    else
        multiply_add(f16(), d, left, b0, b1);
}

// Largest of the lanes' numbers, none negative.
KM_DEVICE unsigned lanes_max(unsigned a) {
    unsigned b;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(b) : "r"(a));
    return b;
}

// Two neighbours of a pair in float16, the first in the low half.
KM_DEVICE unsigned halves(float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
KM_DEVICE float2 of_halves(unsigned both) {
    float2 r;
    asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;}" : "=f"(r.x), "=f"(r.y) : "r"(both));
    return r;
}

// Copies issued before form a group; waits until at most PENDING groups of this thread are under way.
KM_DEVICE void copies_end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
KM_DEVICE void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// Copies of which `valid` bytes are there, the rest is zero; the whole line of 128 bytes comes into the second cache, as
// neighbours soon ask for the rest of it.
template <int BYTES>
KM_DEVICE void copy_with_line(unsigned to, const void* from, int valid) {
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid) : "memory");
    }
}
// Barrier of THREADS threads that share a number.
template <int THREADS>
KM_DEVICE void meet(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}
// The same, and whether all of them say so.
template <int THREADS>
KM_DEVICE bool meet_all(int number, bool mine) {
    int all;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %2, 0;\nbarrier.cta.red.and.pred q, %1, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(all)
                 : "r"(number), "r"((int)mine), "n"(THREADS)
                 : "memory");
    return all;
}
// The launch that follows may begin; what this one was launched behind is complete.
KM_DEVICE void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
KM_DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace km

// Sums and largest values over the lanes of a warp, and over the warps that share a tile of accumulators.
#pragma once
#include "scalar.cuh"

namespace km {

// Combines the values of lanes whose numbers differ by GAP, GAP / 2, ..., LAST; all of them get the result. By default those
// are all lanes of a warp.
template <int GAP = 16, int LAST = 1, class T, class Combine>
KM_DEVICE T warp_reduce(T a, const Combine& combine) {
#pragma unroll
    for (int gap = GAP; gap >= LAST; gap /= 2) a = combine(a, T(__shfl_xor_sync(0xffffffffu, a, gap)));
    return a;
}
template <int GAP = 16, int LAST = 1>
KM_DEVICE float warp_sum(float a) {
    return warp_reduce<GAP, LAST>(a, [](float b, float c) { return b + c; });
}
// The largest number; NaN counts for nothing.
template <int GAP = 16, int LAST = 1>
KM_DEVICE float warp_max(float a) {
    return warp_reduce<GAP, LAST>(a, [](float b, float c) { return fmaxf(b, c); });
}
template <int GAP = 16, int LAST = 1>
KM_DEVICE unsigned warp_max(unsigned a) {
    return warp_reduce<GAP, LAST>(a, [](unsigned b, unsigned c) { return c > b ? c : b; });
}
template <int GAP = 16, int LAST = 1>
KM_DEVICE int warp_or(int a) {
    return warp_reduce<GAP, LAST>(a, [](int b, int c) { return b | c; });
}
// The sum over the four lanes that share the rows of a fragment.
KM_DEVICE float quad_sum(float a) {
    a += __shfl_xor_sync(0xffffffffu, a, 1);
    return a + __shfl_xor_sync(0xffffffffu, a, 2);
}
// The largest of the finite numbers, none below 0, that the threads of WARPS warps have; `tops` has a number for each warp.
template <int WARPS>
KM_DEVICE float block_max(float top, float* tops) {
    top = __uint_as_float(ptx::redux_max(__float_as_uint(top)));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < WARPS; ++warp) top = fmaxf(top, tops[warp]);
    return top;
}

// Accumulators of mma are fragments of 16 x 8: lane l has rows l / 4 and 8 more, columns 2 (l % 4) and one more.
// Stores N fragments beside each other to a matrix whose rows are PITCH apart; `to` is the entry of this lane's first.
template <int PITCH, int N>
KM_DEVICE void store_fragments(float* to, const float (&sum)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[i / 2 * 8 * PITCH + n * 8 + i % 2] = sum[n][i];
    }
}
// The sum of what COUNT warps have stored of an entry, each in its own matrix of SIZE entries, in the order of the warps.
template <int COUNT, int SIZE>
KM_DEVICE float sum_over_warps(const float* at) {
    float total = 0.0f;
#pragma unroll
    for (int warp = 0; warp < COUNT; ++warp) total += at[warp * SIZE];
    return total;
}

}  // namespace km

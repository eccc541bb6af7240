// The dense matrix (a b d, a c d) of Kronecker-sparse weights, in one pass: zeros, and weight (i, j, k, l) in row (i, j, l) and column (i, k, l).
#pragma once
#include "ptx.cuh"
#include "scalar.cuh"

namespace km {

struct KronSparseDense {
    const void* weight;
    void* out;
    int a, b, c, d;
    i64 wi, wj, wk, wl;
};

// A thread writes 16 neighbouring bytes of a row, or what is left of it where rows are no whole vectors. BITS are those of a number.
template <class BITS, bool WHOLE>
__device__ __forceinline__ void kron_sparse_dense(const KronSparseDense& g) {
    constexpr int COUNT = WHOLE ? 16 / sizeof(BITS) : 1;
    const unsigned columns = (unsigned)g.a * g.c * g.d, own = columns / COUNT;
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (i64)g.a * g.b * g.d * own) return;
    const unsigned row = (unsigned)(at / own), column = (unsigned)(at - (i64)row * own) * COUNT;
    const int l = (int)(row % (unsigned)g.d), j = (int)(row / (unsigned)g.d % (unsigned)g.b), i = (int)(row / ((unsigned)g.d * g.b));
    Pack<BITS, COUNT> pack;
#pragma unroll
    for (int e = 0; e < COUNT; ++e) pack.v[e] = BITS(0);
    // Entries of the row are every d-th from column (i, 0, l) on.
    const int first = i * g.c * g.d, begin = (int)column - first;
    if (begin + COUNT > 0 && begin < g.c * g.d) {
        int k = begin > l ? (begin - l + g.d - 1) / g.d : 0;
        const BITS* from = (const BITS*)g.weight + i * g.wi + j * g.wj + k * g.wk + l * g.wl;
        int next = k * g.d + l - begin;
#pragma unroll
        for (int e = 0; e < COUNT; ++e)
            if (e == next && k < g.c) {
                pack.v[e] = *from;
                ++k, next += g.d, from += g.wk;
            }
    }
    typedef typename Word<sizeof(BITS) * COUNT>::type Whole;
    *(Whole*)((BITS*)g.out + (i64)row * columns + column) = bit_cast<Whole>(pack);
}

}  // namespace km

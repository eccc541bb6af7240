// Fragments of tensor cores' operands that are made of single numbers: what a lane reads lies at any stride, four entries along what is
// summed of each of 8 rows or columns, whose order both operands share. float32 is split into two halves (split_hi_lo.cuh), with a
// scale for all that the warp has read of an operand.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

// Of arrays of T, with V neighbours of every entry: an operand is [8 rows or columns][entry][neighbour].
template <class T, int V>
struct KronSparseFragments {
    typedef typename Word<sizeof(T)>::type Bits;
    typedef typename Products<T>::type H;
    static constexpr bool SPLIT = sizeof(T) == 4;

    // The scale of what the warp has read; what is infinite or NaN is left out.
    template <int COUNT>
    static KM_DEVICE HalfScale scale_of(const Bits (&v)[COUNT][4][V]) {
        auto exponent = [&](float most) {
            float top = 0.0f;
#pragma unroll
            for (int at = 0; at < COUNT; ++at)
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int l = 0; l < V; ++l) {
                        const float size = fabsf(__uint_as_float(v[at][e][l]));
                        top = fmaxf(top, most < size ? 0.0f : size);
                    }
            return ptx::redux_max(__float_as_uint(top)) >> 23;
        };
        unsigned found = exponent(__uint_as_float(0x7f800000u));
        if (found == 255) found = exponent(__uint_as_float(0x7f7fffffu));
        return HalfScale::of_exponent(found);
    }

    // Entries e, e + 1 of one neighbour as halves, or as high and low ones.
    static KM_DEVICE void word(unsigned& high, unsigned& low, const Bits (&v)[4][V], int e, int l, float scale) {
        if constexpr (SPLIT)
            split_f16x2(high, low, __uint_as_float(v[e][l]), __uint_as_float(v[e + 1][l]), scale);
        else
            high = (unsigned)v[e][l] | (unsigned)v[e + 1][l] << 16;
    }

    // Adds the products of one neighbour of p and of q, BATCH fragments of which are under way together; of float32 the products of this
    // step have accumulators of their own.
    template <int PRODUCTS, int BATCH, int M, int N>
    static KM_DEVICE void multiply(float (&sum)[M][N][4], const Bits (&p)[2 * M][4][V], const Bits (&q)[N][4][V], int l, const HalfScale& left, const HalfScale& right) {
        static_assert(N % BATCH == 0, "whole batches");
        unsigned a[M][4], a_low[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r) word(a[m][r], a_low[m][r], p[2 * m + r % 2], r / 2 * 2, l, left.scale);
#pragma unroll
        for (int t0 = 0; t0 < N; t0 += BATCH) {
            uint4 b[BATCH];
#pragma unroll
            for (int t = 0; t < BATCH; ++t) {
                word(b[t].x, b[t].z, q[t0 + t], 0, l, right.scale);
                word(b[t].y, b[t].w, q[t0 + t], 2, l, right.scale);
            }
#pragma unroll
            for (int m = 0; m < M; ++m) {
                if constexpr (SPLIT) {
                    constexpr int BEGIN = PRODUCTS == 3 ? 0 : 2;
                    float here[BATCH][4];
#pragma unroll
                    for (int term = BEGIN; term < 3; ++term)
#pragma unroll
                        for (int t = 0; t < BATCH; ++t) mma_term_f16(here[t], term, term == BEGIN, a[m], a_low[m], b[t]);
#pragma unroll
                    for (int t = 0; t < BATCH; ++t)
#pragma unroll
                        for (int r = 0; r < 4; ++r) sum[m][t0 + t][r] = fmaf(here[t][r] * left.inverse, right.inverse, sum[m][t0 + t][r]);
                } else {
#pragma unroll
                    for (int t = 0; t < BATCH; ++t) ptx::mma_m16n8k16<H>(sum[m][t0 + t], a[m], b[t].x, b[t].y);
                }
            }
        }
    }
};

}  // namespace km

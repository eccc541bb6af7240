// Squared distances of softmax-weighted sums: scores from products and squares of rows, gradients from products and sums.
#pragma once
#include "reduce.cuh"
#include "softmax.cuh"

namespace km {

// A squared distance as it is written.
template <class Body, class Args>
KM_DEVICE float squared_distance(const Args& g, const BatchEntry& p, i64 m, i64 n) {
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    const typename X::T* x = row_of<X>(g, p, m < g.size[ROLE_M] ? m : g.size[ROLE_M] - 1);
    const typename Y::T* y = row_of<Y>(g, p, n < g.size[ROLE_N] ? n : g.size[ROLE_N] - 1);
    float sum = 0.0f;
#pragma unroll 1
    for (i64 k = 0; k < g.size[ROLE_K]; k += 4) {
        float a[4], b[4];
        read_along_k<X, false>(a, x, g, k);
        read_along_k<Y, false>(b, y, g, k);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = fmaf(a[i] - b[i], a[i] - b[i], sum);
    }
    return sum;
}
// Products of rows of a thread's cells, times c, as squared distances; own: squares of its two rows, others: those of the rows
// that lie along the cells. Those of float32 that are small beside both squares lose digits and are taken as they are written;
// own_row and other are the thread's first row along OWN and its first one along the other axis.
template <class Body, bool SPLIT, int OWN, int BLOCKS, class Args>
KM_DEVICE void make_differences(
    float (&d)[BLOCKS][4], const float (&own)[2], const float* others, float c, const Args& g, const BatchEntry& p, i64 own_row, i64 other) {
    static_assert(BLOCKS <= 16, "a bit a cell");
    unsigned long long lost = 0;
    const float twice = -2.0f * c;
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        const float2 two = *(const float2*)(others + 8 * j);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float both = own[i / 2] + (i % 2 ? two.y : two.x);
            d[j][i] = fmaf(d[j][i], twice, both);
            if (SPLIT && !(d[j][i] >= CLOSE_SHARE * both)) lost |= 1ull << (4 * j + i);
            if (!SPLIT) d[j][i] = d[j][i] < 0.0f ? 0.0f : d[j][i];
        }
    }
#pragma unroll 1
    while (SPLIT && lost) {
        const int at = __ffsll((long long)lost) - 1;
        lost &= lost - 1;
        const i64 mine = own_row + 8 * (at / 2 % 2), theirs = other + at / 4 * 8 + at % 2;
        const float exact = OWN == ROLE_M ? squared_distance<Body>(g, p, mine, theirs) : squared_distance<Body>(g, p, theirs, mine);
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; ++i) d[i / 4][i % 4] = i == at ? exact : d[i / 4][i % 4];
    }
}

// What a row is less in float32: the first row of columns, but what is not finite.
template <class Body, class Args>
KM_DEVICE float origin_of(const Args& g, const BatchEntry& p, int k) {
    typedef typename Body::template Column<0> Y;
    const float first = convert<float>(load_pack<typename Y::T, 1>(row_of<Y>(g, p, 0) + k * g.stride[Y::BUFFER][ROLE_K]).v[0]);
    return is_finite(first) ? first : 0.0f;
}
template <class Body, int OWN>
struct PointsAlong {
    typedef typename Body::template Row<0> type;
};
template <class Body>
struct PointsAlong<Body, ROLE_N> {
    typedef typename Body::template Column<0> type;
};
// Gradients of squared distances by rows along OWN, two of a thread from `row` on: 2 (row sum - d), where d are the products of
// cotangents with the other rows and `sums` a lane's share of the cotangents.
template <class Body, int OWN, bool SPLIT, int BLOCKS, class Args>
KM_DEVICE void subtract_rows(float (&d)[BLOCKS][4], const float (&sums)[2], const Args& g, const BatchEntry& p, i64 row) {
    typedef typename PointsAlong<Body, OWN>::type P;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const float all = quad_sum(sums[h]);
        if (row + 8 * h >= g.size[P::TILE]) continue;
        const typename P::T* from = row_of<P>(g, p, row + 8 * h);
#pragma unroll
        for (int j = 0; j < BLOCKS; ++j)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int k = 8 * j + threadIdx.x % 4 * 2 + e;
                if (k >= g.size[ROLE_K]) continue;
                const float mine = convert<float>(load_pack<typename P::T, 1>(from + k * g.stride[P::BUFFER][ROLE_K]).v[0]);
                float& sum = d[j][2 * h + e];
                sum = 2.0f * fmaf(all, mine - (SPLIT ? origin_of<Body>(g, p, k) : 0.0f), -sum);
            }
    }
}

}  // namespace km

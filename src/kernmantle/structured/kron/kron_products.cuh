// Products of the rows of a factor with fibers that are in the registers of a warp (kron_fibers.cuh).
#pragma once
#include "kron_fibers.cuh"

namespace km {

template <int DEEP, int PRODUCTS>
struct KronSums {
    // Few products share an accumulator, the small ones first.
    static constexpr bool JOINT = PRODUCTS > 1 && DEEP <= 2;
    float small[4], large[4], total[4];
    KM_DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 4; ++i) small[i] = large[i] = total[i] = 0.0f;
    }
    KM_DEVICE void flush() {
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] += large[i], large[i] = 0.0f;
    }
    KM_DEVICE float value(int i) const {
        const float own = DEEP > 4 ? total[i] + large[i] : large[i];
        return PRODUCTS > 1 && !JOINT ? own + small[i] : own;
    }
};

// Products of 16 rows of the factor, which begin at `factor`, with all fibers: the small ones first in one accumulator.
template <class B, class F, int TILES, class Sums>
KM_DEVICE void kron_products_joint(Sums (&sum)[TILES][2], const KronFragments<B, F, TILES, float>& x, const unsigned* factor, int lane) {
    uint4 f[F::DEEP][2];
#pragma unroll
    for (int i = 0; i < 2 * F::DEEP; ++i) f[i / 2][i % 2] = *(const uint4*)(factor + i / 2 * F::WIDE * F::BLOCK + i % 2 * 128 + lane * 4);
#pragma unroll
    for (int i = 0; i < 3 * F::DEEP; ++i) {
        const int kind = i / F::DEEP, s = i % F::DEEP;
#pragma unroll
        for (int j = 0; j < 2 * TILES; ++j) {
            const int tile = j / 2, n = j % 2;
            const unsigned(&own)[4] = kind == 0 ? x.low[tile][s] : x.high[tile][s];
            const uint4 a = f[s][F::LAST ? n : kind == 1];
            if constexpr (F::LAST) {
                ptx::mma_m16n8k16<typename B::H>(sum[tile][n].large, own, kind == 1 ? a.z : a.x, kind == 1 ? a.w : a.y);
            } else {
                const unsigned rows[4] = {a.x, a.y, a.z, a.w};
                ptx::mma_m16n8k16<typename B::H>(sum[tile][n].large, rows, own[2 * n], own[2 * n + 1]);
            }
        }
    }
}
// The same, with accumulators of their own for small products, if there are any.
template <class B, class F, int TILES, class Sums>
KM_DEVICE void kron_products_apart(Sums (&sum)[TILES][2], const KronFragments<B, F, TILES, float>& x, const unsigned* factor, int lane) {
    typedef typename B::H H;
    constexpr int PRODUCTS = B::PRODUCTS;
#pragma unroll
    for (int s = 0; s < F::DEEP; ++s) {
        const unsigned* at = factor + s * F::WIDE * F::BLOCK + lane * 4;
        const uint4 a = *(const uint4*)at, b = PRODUCTS > 1 ? *(const uint4*)(at + 128) : a;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                auto& own = sum[tile][n];
                if constexpr (F::LAST) {
                    const uint4 f = n == 0 ? a : b;
                    if constexpr (PRODUCTS > 1) {
                        ptx::mma_m16n8k16<H>(own.small, x.low[tile][s], f.x, f.y);
                        ptx::mma_m16n8k16<H>(own.small, x.high[tile][s], f.z, f.w);
                        ptx::mma_m16n8k16<H>(own.large, x.high[tile][s], f.x, f.y);
                    } else {
                        ptx::mma_m16n8k16<H>(own.large, x.high[tile][s], n == 0 ? a.x : a.z, n == 0 ? a.y : a.w);
                    }
                } else {
                    const unsigned high[4] = {a.x, a.y, a.z, a.w}, low[4] = {b.x, b.y, b.z, b.w};
                    if constexpr (PRODUCTS > 1) {
                        ptx::mma_m16n8k16<H>(own.small, high, x.low[tile][s][2 * n], x.low[tile][s][2 * n + 1]);
                        ptx::mma_m16n8k16<H>(own.small, low, x.high[tile][s][2 * n], x.high[tile][s][2 * n + 1]);
                    }
                    ptx::mma_m16n8k16<H>(own.large, high, x.high[tile][s][2 * n], x.high[tile][s][2 * n + 1]);
                }
                if (s % 4 == 3 && s + 1 < F::DEEP) own.flush();
            }
        }
    }
}

// Products of one pair of halves for 32 rows of the factor, or 16 if there are no more.
template <class B, class F, int TILES, class Sums>
KM_DEVICE void kron_products_of_two(Sums (&sum)[2][TILES][2], const KronFragments<B, F, TILES, float>& x, const unsigned* factor, bool both, int lane) {
    typedef typename B::H H;
    const int next = F::WIDE % 2 && !both ? 0 : F::BLOCK;
#pragma unroll
    for (int s = 0; s < F::DEEP; ++s) {
        uint4 f[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) f[i] = *(const uint4*)(factor + s * F::WIDE * F::BLOCK + i * next + lane * 4);
#pragma unroll
        for (int i = 0; i < 4 * TILES; ++i) {
            const int w = i / (2 * TILES), tile = i / 2 % TILES, n = i % 2;
            auto& own = sum[w][tile][n].large;
            if constexpr (F::LAST) {
                ptx::mma_m16n8k16<H>(own, x.high[tile][s], n == 0 ? f[w].x : f[w].z, n == 0 ? f[w].y : f[w].w);
            } else {
                const unsigned rows[4] = {f[w].x, f[w].y, f[w].z, f[w].w};
                ptx::mma_m16n8k16<H>(own, rows, x.high[tile][s][2 * n], x.high[tile][s][2 * n + 1]);
            }
        }
    }
}

// The factor on all fibers, times `back`: give(w, tile, h, n, values) gets four neighbours of the result. For rows they are
// entries 16 w + 4 t and on of fiber 8 h + kron_row of a tile, for columns entry 16 w + 8 h + kron_row of fibers 4 t and on;
// n is 0.
template <class B, class F, int TILES, class Give>
KM_DEVICE void kron_multiply(const KronFragments<B, F, TILES, float>& x, const unsigned* factor, float back, int lane, const Give& give) {
    typedef KronSums<F::DEEP, B::PRODUCTS> Sums;
    // Rows of the factor, in 16s, that are multiplied before the first of them are given: products of halves are so short that a
    // warp would wait for each.
    constexpr int AT_ONCE = B::PRODUCTS == 1 && F::DEEP <= 4 && TILES <= 2 && F::WIDE > 1 ? 2 : 1;
#pragma unroll B::UNROLL / AT_ONCE
    for (int first = 0; first < F::WIDE; first += AT_ONCE) {
        Sums sum[AT_ONCE][TILES][2];
#pragma unroll
        for (int i = 0; i < AT_ONCE * TILES * 2; ++i) sum[i / (2 * TILES)][i / 2 % TILES][i % 2].clear();
        if constexpr (Sums::JOINT) kron_products_joint<B, F, TILES>(sum[0], x, factor + first * F::BLOCK, lane);
        else if constexpr (AT_ONCE > 1) kron_products_of_two<B, F, TILES>(sum, x, factor + first * F::BLOCK, first + 1 < F::WIDE, lane);
        else kron_products_apart<B, F, TILES>(sum[0], x, factor + first * F::BLOCK, lane);
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int w = first + i;
            if (F::WIDE % AT_ONCE && w >= F::WIDE) break;
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float value[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int n = F::LAST ? j / 2 : j % 2, r = F::LAST ? 2 * h + j % 2 : 2 * h + j / 2;
                        value[j] = sum[i][tile][n].value(r) * (back * x.back[tile][F::LAST ? 2 * h : j]);
                    }
                    give(w, tile, h, 0, value);
                }
            }
        }
    }
}

}  // namespace km

// One step of the gradients of a Kronecker product, in one pass over x and the gradient v of the product, both seen as
// lines: (…, A, WIDTH), the factor of the axis A applied to x by nobody yet. What leaves is v with that factor's transpose
// applied, and the factor's gradient, each block's share of it, to be added up in a fixed order.
//
// LAST: the trailing axis has a factor too. Then, for the tiles X and V (A, B) of one position,
//   T = X F1^T, G0 += V T^T, S = F0^T V, G1 += S^T X, and S F1 is the gradient of x.
//
// float32 is two parts of 11 bits each and three products; halves are exact in one, what comes between is rounded.
#pragma once
#include "kron_gram.cuh"

namespace km {

// How eight warps share a sum of outer products of two lines of EXTENT entries.
template <int EXTENT>
struct BackSum {
    static constexpr int DOWN = EXTENT >= 64 ? 4 : EXTENT >= 32 ? 2 : 1, ACROSS = EXTENT >= 64 ? 2 : 1, ALONG = 8 / (DOWN * ACROSS);
    static constexpr int NB = EXTENT / 8 / ACROSS, STEPS = 512 / EXTENT / ALONG, ROWS = EXTENT;
};

// Entries of the gradients of a factor of two parts, the second of extent `inner`; of all of it where that is 1.
constexpr int squares(int extent, int inner) { return extent / inner * (extent / inner) + (inner > 1 ? inner * inner : 0); }

// B: the type T, extents A and W (of the tile across), LAST, and of each factor the extent of the second of its two parts.
template <class B>
struct KronBack {
    typedef typename B::T T;
    static constexpr int THREADS = 256, A = B::A, W = B::W, LINES = 4096 / W, ITEMS = LINES / A, PITCH = W + 8, TILE = LINES * PITCH;
    static constexpr int ROWS = A < 16 ? 16 : A, FIRST_PITCH = A + 4, PITCH_LAST = W + 4;
    static constexpr int FIRST = ROWS * FIRST_PITCH, SECOND = B::LAST ? W * PITCH_LAST : 0, TILES = B::LAST ? 3 : 2;
    static constexpr int VEC = 16 / (int)sizeof(T), LOADS = LINES * W / VEC / THREADS, PARTS0 = squares(A, B::INNER0);
    static constexpr int PARTS = PARTS0 + (B::LAST ? squares(W, B::INNER1) : 0);
    static constexpr int SHARED = 4 * (TILES * TILE + FIRST + 2 * SECOND);
    static constexpr bool EXACT = sizeof(T) == 2;
    // Lines by warps: groups of 16 by 8 NB columns.
    static constexpr int NB = W >= 32 ? 4 : 2, WIDE = W / (8 * NB), UNITS = LINES / 16 * WIDE / 8;
    static constexpr int DOWN = ROWS / 16, UNITS_A = ITEMS * DOWN * WIDE / 8;
    typedef BackSum<A> Sum0;
    typedef BackSum<W> Sum1;
    static_assert(UNITS > 0 && UNITS_A > 0 && ITEMS > 0, "a tile has work for every warp");

    struct Arguments {
        const T* v;
        const T* x;
        T* out;
        float* parts;
        const T* factor[4];
        i64 stride[4][2];
        i64 lines, width;
        float slope;
    };

    template <bool GIVEN>
    static __device__ __forceinline__ void take(unsigned& high, unsigned& low, float x) {
        if (!EXACT) gram_split(high, low, x);
        else if (GIVEN) high = __float_as_uint(x);
        else asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
    }

    // The sum over STEPS of 8 terms: `left(step, a)` gives four entries, `right(step, nb, b)` two.
    template <int NB_, int STEPS, bool GIVEN_A, bool GIVEN_B, class Left, class Right>
    static __device__ __forceinline__ void multiply(float (&out)[NB_][4], Left left, Right right) {
        float small[NB_][4] = {};
#pragma unroll
        for (int n = 0; n < NB_; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) out[n][i] = 0.0f;
        }
#pragma unroll 2
        for (int step = 0; step < STEPS; ++step) {
            float a[4];
            unsigned high[4], low[4];
            left(step, a);
#pragma unroll
            for (int i = 0; i < 4; ++i) take<GIVEN_A>(high[i], low[i], a[i]);
#pragma unroll
            for (int n = 0; n < NB_; ++n) {
                float b[2];
                unsigned other[2], rest[2];
                right(step, n, b);
#pragma unroll
                for (int i = 0; i < 2; ++i) take<GIVEN_B>(other[i], rest[i], b[i]);
                if (!EXACT) {
                    gram_mma(small[n], low, other);
                    gram_mma(small[n], high, rest);
                }
                gram_mma(out[n], high, other);
            }
        }
        if (!EXACT) {
#pragma unroll
            for (int n = 0; n < NB_; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) out[n][i] += small[n][i];
            }
        }
    }

    // Entry (q, p) of a factor of two parts, the second of extent INNER.
    template <int INNER>
    static __device__ __forceinline__ float entry(const Arguments& g, int number, int q, int p) {
        const float value = convert<float>(g.factor[number][q / INNER * g.stride[number][0] + p / INNER * g.stride[number][1]]);
        if (INNER == 1) return value;
        return value * convert<float>(g.factor[number + 1][q % INNER * g.stride[number + 1][0] + p % INNER * g.stride[number + 1][1]]);
    }

    static __device__ __forceinline__ void read_factors(const Arguments& g, float* first, float* forth, float* back) {
        for (int n = threadIdx.x; n < A * A; n += THREADS) first[n / A * FIRST_PITCH + n % A] = entry<B::INNER0>(g, 0, n % A, n / A);
        if (B::LAST) {
            for (int n = threadIdx.x; n < W * W; n += THREADS) {
                const float value = entry<B::INNER1>(g, 2, n / W, n % W);
                forth[n % W * PITCH_LAST + n / W] = value;
                back[n / W * PITCH_LAST + n % W] = value;
            }
        }
    }

    static __device__ __forceinline__ void read(const Arguments& g, float* x, float* v, i64 line0, i64 column0) {
        Pack<T, VEC> held[2][LOADS];
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int at = (n * THREADS + threadIdx.x) * VEC;
            const i64 line = line0 + at / W, column = column0 + at % W;
            const bool given = line < g.lines && column < g.width;
#pragma unroll
            for (int i = 0; i < VEC; ++i) held[0][n].v[i] = held[1][n].v[i] = T{};
            if (given) {
                held[0][n] = load_pack<T, VEC>(g.x + line * g.width + column);
                held[1][n] = load_pack<T, VEC>(g.v + line * g.width + column);
            }
        }
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int at = (n * THREADS + threadIdx.x) * VEC, to = at / W * PITCH + at % W;
#pragma unroll
            for (int i = 0; i < VEC; i += 4) {
                Pack<float, 4> one, other;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    one.v[j] = convert<float>(held[0][n].v[i + j]);
                    other.v[j] = convert<float>(held[1][n].v[i + j]);
                }
                store_pack<float, 4>(x + to + i, one);
                store_pack<float, 4>(v + to + i, other);
            }
        }
    }

    static __device__ __forceinline__ void pair(float& one, float& other, const float* at) {
        const Pack<float, 2> both = load_pack<float, 2>(at);
        one = both.v[0];
        other = both.v[1];
    }

    // 16 lines from `row` on times a table (k, columns from `column` on): both parts of the trailing factor's way.
    template <bool GIVEN>
    static __device__ __forceinline__ void times_last(float (&out)[NB][4], const float* tile, const float* table, int row, int column, int g, int t) {
        multiply<NB, W / 8, GIVEN, false>(
            out,
            [&](int step, float (&a)[4]) {
                pair(a[0], a[2], tile + (row + g) * PITCH + step * 8 + 2 * t);
                pair(a[1], a[3], tile + (row + g + 8) * PITCH + step * 8 + 2 * t);
            },
            [&](int step, int n, float (&b)[2]) {
                const float* at = table + (step * 8 + 2 * t) * PITCH_LAST + column + n * 8 + g;
                b[0] = at[0];
                b[1] = at[PITCH_LAST];
            });
    }

    static __device__ __forceinline__ void keep(float* tile, const float (&value)[NB][4], int row, int column, int g, int t, bool whole) {
#pragma unroll
        for (int n = 0; n < NB; ++n) {
            float* at = tile + (row + g) * PITCH + column + n * 8 + 2 * t;
            store_pack<float, 2>(at, Pack<float, 2>{value[n][0], value[n][1]});
            if (whole) store_pack<float, 2>(at + 8 * PITCH, Pack<float, 2>{value[n][2], value[n][3]});
        }
    }

    static __device__ __forceinline__ void give_out(const Arguments& g, const float (&value)[NB][4], i64 line, i64 column, bool whole) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (line + half * 8 >= g.lines || (half == 1 && !whole)) continue;
#pragma unroll
            for (int n = 0; n < NB; ++n) {
                if (column + n * 8 >= g.width) continue;
                Pack<T, 2> pack;
#pragma unroll
                for (int i = 0; i < 2; ++i) pack.v[i] = Store<T>::from(g.slope * value[n][half * 2 + i]);
                store_pack<T, 2>(g.out + (line + half * 8) * g.width + column + n * 8, pack);
            }
        }
    }

    // G0 += V T^T over items and columns.
    static __device__ __forceinline__ void sum_first(float (&sum)[Sum0::NB][4], const float* v, const float* x, int warp, int g, int t) {
        const int wd = warp % Sum0::DOWN, wa = warp / Sum0::DOWN % Sum0::ACROSS, wk = warp / (Sum0::DOWN * Sum0::ACROSS);
        float out[Sum0::NB][4];
        const auto place = [&](int step) {
            const int k = wk + step * Sum0::ALONG;
            return k / (W / 8) * A * PITCH + k % (W / 8) * 8 + 2 * t;
        };
        multiply<Sum0::NB, Sum0::STEPS, true, !B::LAST>(
            out,
            [&](int step, float (&a)[4]) {
                const float* at = v + place(step) + (wd * 16 + g) * PITCH;
                pair(a[0], a[2], at);
                a[1] = a[3] = 0.0f;
                if (A >= 16) pair(a[1], a[3], at + 8 * PITCH);
            },
            [&](int step, int n, float (&b)[2]) { pair(b[0], b[1], x + place(step) + ((wa * Sum0::NB + n) * 8 + g) * PITCH); });
        add(sum, out);
    }
    // G1 += S^T X over lines.
    static __device__ __forceinline__ void sum_last(float (&sum)[Sum1::NB][4], const float* s, const float* x, int warp, int g, int t) {
        const int wd = warp % Sum1::DOWN, wa = warp / Sum1::DOWN % Sum1::ACROSS, wk = warp / (Sum1::DOWN * Sum1::ACROSS);
        float out[Sum1::NB][4];
        multiply<Sum1::NB, Sum1::STEPS, false, true>(
            out,
            [&](int step, float (&a)[4]) {
                const float* at = s + ((wk + step * Sum1::ALONG) * 8 + t) * PITCH + wd * 16 + g;
                a[0] = at[0];
                a[1] = at[8];
                a[2] = at[4 * PITCH];
                a[3] = at[4 * PITCH + 8];
            },
            [&](int step, int n, float (&b)[2]) {
                const float* at = x + ((wk + step * Sum1::ALONG) * 8 + t) * PITCH + (wa * Sum1::NB + n) * 8 + g;
                b[0] = at[0];
                b[1] = at[4 * PITCH];
            });
        add(sum, out);
    }
    template <int N>
    static __device__ __forceinline__ void add(float (&sum)[N][4], const float (&out)[N][4]) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[n][i] += out[n][i];
        }
    }

    // S = F0^T V: one item's rows from 16 d on, columns from `column` on.
    static __device__ __forceinline__ void times_first(float (&out)[NB][4], const float* first, const float* v, int item, int down, int column, int g, int t) {
        multiply<NB, A / 8, false, true>(
            out,
            [&](int step, float (&a)[4]) {
                const float* at = first + (down * 16 + g) * FIRST_PITCH + step * 8 + t;
                a[0] = at[0];
                a[2] = at[4];
                a[1] = a[3] = 0.0f;
                if (A >= 16) {
                    a[1] = at[8 * FIRST_PITCH];
                    a[3] = at[8 * FIRST_PITCH + 4];
                }
            },
            [&](int step, int n, float (&b)[2]) {
                const float* at = v + (item * A + step * 8 + t) * PITCH + column + n * 8 + g;
                b[0] = at[0];
                b[1] = at[4 * PITCH];
            });
    }

    // The sums of all warps to shared memory, then those of one entry to the block's share; of a factor of two parts the
    // gradients of both.
    template <class Sum, int INNER>
    static __device__ void write(const Arguments& g, float* to, const float (&sum)[Sum::NB][4], float* shared, int number, int warp, int lane) {
        constexpr int E = Sum::ROWS, ROOM = E < 16 ? 16 : E, OUTER = E / INNER;
        const int wd = warp % Sum::DOWN, wa = warp / Sum::DOWN % Sum::ACROSS, wk = warp / (Sum::DOWN * Sum::ACROSS);
        float* own = shared + (wk * ROOM + wd * 16 + lane / 4) * E + wa * Sum::NB * 8 + lane % 4 * 2;
        __syncthreads();
#pragma unroll
        for (int n = 0; n < Sum::NB; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) own[i / 2 * 8 * E + n * 8 + i % 2] = sum[n][i];
        }
        __syncthreads();
        for (int n = threadIdx.x; n < E * E; n += THREADS) {
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < Sum::ALONG; ++w) total += shared[w * ROOM * E + n];
            if (INNER == 1) to[n] = total;
            else shared[n] = total;
        }
        if (INNER == 1) return;
        __syncthreads();
        for (int n = threadIdx.x; n < OUTER * OUTER + INNER * INNER; n += THREADS) {
            const bool is_outer = n < OUTER * OUTER;
            const int mine = is_outer ? n : n - OUTER * OUTER, extent = is_outer ? OUTER : INNER, rest = is_outer ? INNER : OUTER;
            const int q = mine / extent, p = mine % extent, other = number + is_outer;
            float total = 0.0f;
            for (int i = 0; i < rest; ++i) {
                for (int j = 0; j < rest; ++j) {
                    const int at = is_outer ? (q * INNER + i) * E + p * INNER + j : (i * INNER + q) * E + j * INNER + p;
                    total = fma(shared[at], convert<float>(g.factor[other][i * g.stride[other][0] + j * g.stride[other][1]]), total);
                }
            }
            to[n] = total;
        }
    }

    static __device__ void run(const Arguments& g) {
        extern __shared__ __align__(16) float shared[];
        float* x = shared;
        float* v = x + TILE;
        float* between = v + TILE;
        float* first = shared + TILES * TILE;
        float* forth = first + FIRST;
        float* back = forth + SECOND;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, gr = lane / 4, t = lane % 4;
        const i64 across = (g.width + W - 1) / W, tiles = (g.lines + LINES - 1) / LINES * across;
        float sum0[Sum0::NB][4] = {}, sum1[Sum1::NB][4] = {};
        read_factors(g, first, forth, back);
#pragma unroll 1
        for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const i64 line0 = tile / across * LINES, column0 = tile % across * W;
            read(g, x, v, line0, column0);
            __syncthreads();
            if (B::LAST) {
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    const int unit = warp + u * 8, row = unit / WIDE * 16, column = unit % WIDE * NB * 8;
                    float out[NB][4];
                    times_last<true>(out, x, forth, row, column, gr, t);
                    keep(between, out, row, column, gr, t, true);
                }
                __syncthreads();
            }
            sum_first(sum0, v, B::LAST ? between : x, warp, gr, t);
            float held[UNITS_A][NB][4];
#pragma unroll
            for (int u = 0; u < UNITS_A; ++u) {
                const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                times_first(held[u], first, v, item, down, column, gr, t);
                if (!B::LAST) give_out(g, held[u], line0 + item * A + down * 16 + gr, column0 + column + 2 * t, A >= 16);
            }
            __syncthreads();
            if (B::LAST) {
#pragma unroll
                for (int u = 0; u < UNITS_A; ++u) {
                    const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                    keep(between, held[u], item * A + down * 16, column, gr, t, A >= 16);
                }
                __syncthreads();
                sum_last(sum1, between, x, warp, gr, t);
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    const int unit = warp + u * 8, row = unit / WIDE * 16, column = unit % WIDE * NB * 8;
                    float out[NB][4];
                    times_last<false>(out, between, back, row, column, gr, t);
                    give_out(g, out, line0 + row + gr, column0 + column + 2 * t, true);
                }
                __syncthreads();
            }
        }
        float* own = g.parts + (i64)blockIdx.x * PARTS;
        write<Sum0, B::INNER0>(g, own, sum0, shared, 0, warp, lane);
        if (B::LAST) write<Sum1, B::INNER1>(g, own + PARTS0, sum1, shared, 2, warp, lane);
    }
};

}  // namespace km

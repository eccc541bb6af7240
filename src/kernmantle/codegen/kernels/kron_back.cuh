// One step of the gradients of a Kronecker product, in one pass over x and the gradient v of the product, both seen as
// lines: (…, A, WIDTH), the factor of the axis A applied to x by nobody yet. What leaves is v with that factor's transpose
// applied, and the factor's gradient, each block's share of it, to be added up in a fixed order.
//
// LAST: the trailing axis has a factor too. Then, for the tiles X and V (A, B) of one position,
//   T = X F1^T, G0 += V T^T, S = F0^T V, G1 += S^T X, and S F1 is the gradient of x.
//
// PAIR, its extent: the same where the second axis is followed by others, W columns of them at a time.
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

// B: the type T, extents A and W (of the tile across), LAST, PAIR, and of each factor the extent of the second of its two parts.
template <class B>
struct KronBack {
    typedef typename B::T T;
    static constexpr int THREADS = 256, A = B::A, W = B::W, LINES = 4096 / W, ITEMS = LINES / A, PITCH = W + 8;
    static constexpr int PAIR = B::PAIR, SECOND_EXTENT = PAIR ? PAIR : W;
    static constexpr bool BOTH = B::LAST || PAIR;
    // From entry to entry of the axis A in a tile; lines of one entry follow each other where there is a pair.
    static constexpr int STEP = PAIR ? PAIR * PITCH + 8 : PITCH, TILE = LINES * PITCH + (PAIR ? A * 8 : 0);
    static constexpr int ROWS = A < 16 ? 16 : A, FIRST_PITCH = A + 4, PITCH_LAST = SECOND_EXTENT + 4;
    static constexpr int FIRST = ROWS * FIRST_PITCH, SECOND = BOTH ? SECOND_EXTENT * PITCH_LAST : 0, TILES = BOTH ? 3 : 2;
    static constexpr int VEC = 16 / (int)sizeof(T), LOADS = LINES * W / VEC / THREADS, PARTS0 = squares(A, B::INNER0);
    static constexpr int PARTS = PARTS0 + (BOTH ? squares(SECOND_EXTENT, B::INNER1) : 0);
    static constexpr int SHARED = 4 * (TILES * TILE + FIRST + 2 * SECOND);
    static constexpr bool EXACT = sizeof(T) == 2;
    // Lines by warps: groups of 16 by 8 NB columns.
    static constexpr int NB = W >= 32 ? 4 : 2, WIDE = W / (8 * NB), UNITS = LINES / 16 * WIDE / 8;
    static constexpr int DOWN = ROWS / 16, UNITS_A = ITEMS * DOWN * WIDE / 8;
    typedef BackSum<A> Sum0;
    typedef BackSum<SECOND_EXTENT> Sum1;
    static_assert(UNITS > 0 && UNITS_A > 0 && ITEMS > 0, "a tile has work for every warp");
    static_assert(PAIR == 0 || (PAIR == A && A == 16 && W == 16 && !B::LAST), "a pair is of 16 and 16");

    // Where a line, and the lines of one entry of all others than the axis A, begin in a tile.
    static __device__ __forceinline__ int line_at(int line) { return line * PITCH + (PAIR ? line / (PAIR ? PAIR : 1) * 8 : 0); }
    static __device__ __forceinline__ int item_at(int item) { return PAIR ? item * PITCH : item * A * PITCH; }

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
        else high = ptx::round_to_tf32(x);
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
                    ptx::mma_m16n8k8_tf32(small[n], low, other[0], other[1]);
                    ptx::mma_m16n8k8_tf32(small[n], high, rest[0], rest[1]);
                }
                ptx::mma_m16n8k8_tf32(out[n], high, other[0], other[1]);
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
        if (BOTH) {
            constexpr int E = SECOND_EXTENT;
            float* one = PAIR ? back : forth;
            float* other = PAIR ? forth : back;
            for (int n = threadIdx.x; n < E * E; n += THREADS) {
                const float value = entry<B::INNER1>(g, 2, n / E, n % E);
                one[n % E * PITCH_LAST + n / E] = value;
                other[n / E * PITCH_LAST + n % E] = value;
            }
        }
    }

    // What this thread has of both tiles, x and v, with zeros outside of them.
    static __device__ __forceinline__ void fetch(const Arguments& g, Pack<T, VEC> (&held)[2][LOADS], i64 line0, i64 column0) {
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
    }

    static __device__ __forceinline__ void read(const Arguments& g, float* x, float* v, i64 line0, i64 column0) {
        Pack<T, VEC> held[2][LOADS];
        fetch(g, held, line0, column0);
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int at = (n * THREADS + threadIdx.x) * VEC, to = line_at(at / W) + at % W;
#pragma unroll
            for (int i = 0; i < VEC; i += 4) {
                Pack<float, 4> one, other;
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    one.v[j] = convert<float>(held[0][n].v[i + j]);
                    other.v[j] = convert<float>(held[1][n].v[i + j]);
                }
                *(Pack<float, 4>*)(x + to + i) = one;
                *(Pack<float, 4>*)(v + to + i) = other;
            }
        }
    }

    static __device__ __forceinline__ void pair(float& one, float& other, const float* at) {
        const Pack<float, 2> both = *(const Pack<float, 2>*)at;
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

    // 16 lines, or 8 of them, `step` apart, to a tile from `to` on.
    static __device__ __forceinline__ void keep(float* to, const float (&value)[NB][4], int step, int g, int t, bool whole) {
#pragma unroll
        for (int n = 0; n < NB; ++n) {
            float* at = to + g * step + n * 8 + 2 * t;
            *(Pack<float, 2>*)at = Pack<float, 2>{value[n][0], value[n][1]};
            if (whole) *(Pack<float, 2>*)(at + 8 * step) = Pack<float, 2>{value[n][2], value[n][3]};
        }
    }

    // The same to memory, this thread's first line being `line`, the second `further` lines behind it.
    static __device__ __forceinline__ void give_out(const Arguments& g, const float (&value)[NB][4], i64 line, i64 column, int further, bool whole) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (line + half * further >= g.lines || (half == 1 && !whole)) continue;
#pragma unroll
            for (int n = 0; n < NB; ++n) {
                if (column + n * 8 >= g.width) continue;
                Pack<T, 2> pack;
#pragma unroll
                for (int i = 0; i < 2; ++i) pack.v[i] = Store<T>::from(g.slope * value[n][half * 2 + i]);
                store_pack<T, 2>(g.out + (line + half * further) * g.width + column + n * 8, pack);
            }
        }
    }

    // Outer products of the entries of an axis, `step` apart, summed over the other lines and columns: those of `item(n)`.
    template <class Sum, bool GIVEN_A, bool GIVEN_B, class Item>
    static __device__ __forceinline__ void sum_axis(float (&sum)[Sum::NB][4], const float* v, const float* x, int step, Item item, int warp, int g, int t) {
        const int wd = warp % Sum::DOWN, wa = warp / Sum::DOWN % Sum::ACROSS, wk = warp / (Sum::DOWN * Sum::ACROSS);
        float out[Sum::NB][4];
        const auto place = [&](int turn) {
            const int k = wk + turn * Sum::ALONG;
            return item(k / (W / 8)) + k % (W / 8) * 8 + 2 * t;
        };
        multiply<Sum::NB, Sum::STEPS, GIVEN_A, GIVEN_B>(
            out,
            [&](int turn, float (&a)[4]) {
                const float* at = v + place(turn) + (wd * 16 + g) * step;
                pair(a[0], a[2], at);
                a[1] = a[3] = 0.0f;
                if (Sum::ROWS >= 16) pair(a[1], a[3], at + 8 * step);
            },
            [&](int turn, int n, float (&b)[2]) { pair(b[0], b[1], x + place(turn) + ((wa * Sum::NB + n) * 8 + g) * step); });
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

    // A table (EXTENT, EXTENT), its rows from 16 down on, times the entries of an axis, `step` apart.
    template <int EXTENT, bool GIVEN>
    static __device__ __forceinline__ void times_axis(float (&out)[NB][4], const float* table, const float* from, int step, int down, int g, int t) {
        constexpr int PITCH_TABLE = EXTENT + 4;
        multiply<NB, EXTENT / 8, false, GIVEN>(
            out,
            [&](int turn, float (&a)[4]) {
                const float* at = table + (down * 16 + g) * PITCH_TABLE + turn * 8 + t;
                a[0] = at[0];
                a[2] = at[4];
                a[1] = a[3] = 0.0f;
                if (EXTENT >= 16) {
                    a[1] = at[8 * PITCH_TABLE];
                    a[3] = at[8 * PITCH_TABLE + 4];
                }
            },
            [&](int turn, int n, float (&b)[2]) {
                const float* at = from + (turn * 8 + t) * step + n * 8 + g;
                b[0] = at[0];
                b[1] = at[4 * step];
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
            if (BOTH) {
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    const int row = (warp + u * 8) / WIDE * 16, column = (warp + u * 8) % WIDE * NB * 8;
                    float out[NB][4];
                    if (PAIR) times_axis<SECOND_EXTENT, true>(out, forth, x + line_at(row), PITCH, 0, gr, t);
                    else times_last<true>(out, x, forth, row, column, gr, t);
                    keep(between + line_at(row) + column, out, PITCH, gr, t, true);
                }
                __syncthreads();
            }
            sum_axis<Sum0, true, !BOTH>(sum0, v, BOTH ? between : x, STEP, item_at, warp, gr, t);
            float held[UNITS_A][NB][4];
#pragma unroll
            for (int u = 0; u < UNITS_A; ++u) {
                const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                times_axis<A, true>(held[u], first, v + item_at(item) + column, STEP, down, gr, t);
                if (!BOTH) give_out(g, held[u], line0 + item * A + down * 16 + gr, column0 + column + 2 * t, 8, A >= 16);
            }
            __syncthreads();
            if (BOTH) {
#pragma unroll
                for (int u = 0; u < UNITS_A; ++u) {
                    const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                    keep(between + item_at(item) + down * 16 * STEP + column, held[u], STEP, gr, t, A >= 16);
                }
                __syncthreads();
                if (PAIR) sum_axis<Sum1, false, true>(sum1, between, x, PITCH, [](int item) { return line_at(item * PAIR); }, warp, gr, t);
                else sum_last(sum1, between, x, warp, gr, t);
#pragma unroll
                for (int u = 0; u < UNITS; ++u) {
                    const int row = (warp + u * 8) / WIDE * 16, column = (warp + u * 8) % WIDE * NB * 8;
                    float out[NB][4];
                    if (PAIR) times_axis<SECOND_EXTENT, false>(out, back, between + line_at(row), PITCH, 0, gr, t);
                    else times_last<false>(out, between, back, row, column, gr, t);
                    give_out(g, out, line0 + row + gr, column0 + column + 2 * t, 8, true);
                }
                __syncthreads();
            }
        }
        float* own = g.parts + (i64)blockIdx.x * PARTS;
        write<Sum0, B::INNER0>(g, own, sum0, shared, 0, warp, lane);
        if (BOTH) write<Sum1, B::INNER1>(g, own + PARTS0, sum1, shared, 2, warp, lane);
    }
};

}  // namespace km

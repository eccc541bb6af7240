// The gradients of two neighbouring factors of a Kronecker product, in one pass over x and the gradient v of the product.
// What leaves is v with both transposes applied, and each block's share of both gradients, to be added up in a fixed order:
// for the tiles X and V (A, B) of one position,
//   T = X F1^T, G0 += V T^T, S = F0^T V, G1 += S^T X, and S F1 is the gradient of x.
//
// JOINED, the extent of the second axis: the same where others follow it, W columns of them at a time; 0 where it is the last.
//
// Axes have room for 8, 16, 32 or 64 entries in a tile; beyond their own, Q of v and P of x, are zeros.
//
// float32 is two parts of 11 bits each and three products; halves are exact in one, what comes between is rounded.
#pragma once
#include "kron_gram.cuh"
#include "split_hi_lo.cuh"

namespace km {

// How eight warps share a sum of outer products of two lines of EXTENT entries.
template <int EXTENT>
struct BackSum {
    static constexpr int DOWN = EXTENT >= 64 ? 4 : EXTENT >= 32 ? 2 : 1, ACROSS = EXTENT >= 64 ? 2 : 1, ALONG = 8 / (DOWN * ACROSS);
    static constexpr int NB = EXTENT / 8 / ACROSS, STEPS = 512 / EXTENT / ALONG, ROWS = EXTENT;
};

// Entries of the gradients of a factor (q, p), or of both its parts, the second of (inner_q, inner_p).
constexpr int gradient_entries(int q, int p, int inner_q, int inner_p) {
    return inner_q ? q / inner_q * (p / inner_p) + inner_q * inner_p : q * p;
}

// B: the type T, room A of the axis and W of the tile across, JOINED, how many neighbours VEC a copy and how many ITEMS
// a tile takes (USED), and of each factor Q, P and those of the second of two parts, 0 where it is one.
template <class B>
struct KronBack {
    typedef typename B::T T;
    static constexpr int THREADS = 256, A = B::A, W = B::W, FIBERS = 4096 / W, ITEMS = FIBERS / A, PITCH = W + 8;
    static constexpr int JOINED = B::JOINED, INNER_FIBERS = JOINED ? JOINED : 1, SECOND_EXTENT = JOINED ? JOINED : W;
    // From entry to entry of the axis A in a tile; lines of one entry follow each other where there is a pair.
    static constexpr int STEP = JOINED ? JOINED * PITCH + 8 : PITCH, TILE = FIBERS * PITCH + (JOINED ? A * 8 : 0);
    static constexpr int ROWS = A < 16 ? 16 : A, FIRST_PITCH = A + 4, PITCH_LAST = SECOND_EXTENT + 4;
    static constexpr int FIRST = ROWS * FIRST_PITCH, SECOND = SECOND_EXTENT * PITCH_LAST, TILES = 3;
    static constexpr int VEC = B::VEC, LOADS = FIBERS * W / VEC / THREADS, STORE_WIDTH = VEC > 1 ? 2 : 1;
    static constexpr int PARTS0 = gradient_entries(B::Q0, B::P0, B::INNER_Q0, B::INNER_P0);
    static constexpr int PARTS = PARTS0 + gradient_entries(B::Q1, B::P1, B::INNER_Q1, B::INNER_P1);
    static constexpr int SHARED_BYTES = 4 * (TILES * TILE + FIRST + 2 * SECOND);
    static constexpr bool EXACT = sizeof(T) == 2;
    // Lines by warps: groups of 16 by 8 NB columns.
    static constexpr int NB = W >= 32 ? 4 : 2, WIDE = W / (8 * NB), UNITS = FIBERS / 16 * WIDE / 8;
    static constexpr int DOWN = ROWS / 16, UNITS_A = ITEMS * DOWN * WIDE / 8;
    typedef BackSum<A> Sum0;
    typedef BackSum<SECOND_EXTENT> Sum1;
    static_assert(UNITS > 0 && UNITS_A > 0 && ITEMS > 0, "a tile has work for every warp");
    static_assert(JOINED == 0 || (JOINED == A && A == 16 && W == 16), "a pair is of 16 and 16");

    // Where a line, and the lines of one entry of all others than the axis A, begin in a tile.
    static __device__ __forceinline__ int fiber_at(int fiber) { return fiber * PITCH + (JOINED ? fiber / INNER_FIBERS * 8 : 0); }
    static __device__ __forceinline__ int item_at(int item) { return JOINED ? item * PITCH : item * A * PITCH; }

    // Entries of the axis, and of the second of a pair, that v has, else x; the length of its lines.
    static constexpr int extent(bool of_v) { return of_v ? B::Q0 : B::P0; }
    static constexpr int second(bool of_v) { return of_v ? B::Q1 : B::P1; }
    template <bool OF_V, class Args>
    static __device__ __forceinline__ i64 width(const Args& g) { return JOINED ? g.width : second(OF_V); }
    // Where a column of a line of a tile is in v, else in x and in what leaves; -1 where there is none.
    template <bool OF_V, class Args>
    static __device__ __forceinline__ i64 offset_of(const Args& g, i64 item0, i64 column, int fiber) {
        constexpr int HEIGHT = extent(OF_V) * (JOINED ? second(OF_V) : 1), CAPACITY = A * INNER_FIBERS;
        i64 row = item0 * HEIGHT + fiber;
        bool inside = row < g.items * HEIGHT;
        if (HEIGHT < CAPACITY || B::USED * CAPACITY < FIBERS) {
            const int item = JOINED ? 0 : fiber / A, entry = JOINED ? fiber / INNER_FIBERS : fiber % A, other = JOINED ? fiber % INNER_FIBERS : 0;
            inside = item < B::USED && item0 + item < g.items && entry < extent(OF_V) && (!JOINED || other < second(OF_V));
            row = (item0 + item) * HEIGHT + (JOINED ? entry * second(OF_V) + other : entry);
        }
        return inside && column < width<OF_V>(g) ? row * width<OF_V>(g) + column : -1;
    }

    struct Arguments {
        const T* v;
        const T* x;
        T* out;
        float* parts;
        const T* factor[4];
        i64 stride[4][2];
        i64 items, width;
        float slope;
    };

    template <bool STORED>
    static __device__ __forceinline__ void take(unsigned& high, unsigned& low, float x) {
        if (!EXACT) split_tf32(high, low, x);
        else if (STORED) high = __float_as_uint(x);
        else high = ptx::round_to_tf32(x);
    }

    // The sum over STEPS of 8 terms: `left(step, a)` gives four entries, `right(step, nb, b)` two.
    template <int NB_, int STEPS, bool STORED_A, bool STORED_B, class Left, class Right>
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
            for (int i = 0; i < 4; ++i) take<STORED_A>(high[i], low[i], a[i]);
#pragma unroll
            for (int n = 0; n < NB_; ++n) {
                float b[2];
                unsigned other[2], rest[2];
                right(step, n, b);
#pragma unroll
                for (int i = 0; i < 2; ++i) take<STORED_B>(other[i], rest[i], b[i]);
                mma_split_tf32<!EXACT>(out[n], small[n], high, low, other, rest);
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

    // Entry (q, p) of a factor as memory that nobody writes, so that loads need not wait for what is written to shared memory.
    template <int NUMBER>
    static __device__ __forceinline__ float read(const Arguments& g, int q, int p) {
        return convert<float>(load_pack<T, 1>(g.factor[NUMBER] + q * g.stride[NUMBER][0] + p * g.stride[NUMBER][1]).v[0]);
    }
    // Entry (q, p) of factor NUMBER, 0 or 2, which may have two parts; 0 beyond it.
    template <int NUMBER>
    static __device__ __forceinline__ float entry(const Arguments& g, int q, int p) {
        constexpr int Q = NUMBER ? B::Q1 : B::Q0, P = NUMBER ? B::P1 : B::P0, INNER_Q = NUMBER ? B::INNER_Q1 : B::INNER_Q0;
        constexpr int INNER_P = NUMBER ? B::INNER_P1 : B::INNER_P0, PER_Q = INNER_Q ? INNER_Q : 1, PER_P = INNER_P ? INNER_P : 1;
        if (q >= Q || p >= P) return 0.0f;
        const float value = read<NUMBER>(g, q / PER_Q, p / PER_P);
        if (INNER_Q == 0) return value;
        return value * read<NUMBER + 1>(g, q % PER_Q, p % PER_P);
    }

    static __device__ __forceinline__ void read_factors(const Arguments& g, float* first, float* forth, float* back) {
#pragma unroll 8
        for (int n = threadIdx.x; n < A * A; n += THREADS) first[n / A * FIRST_PITCH + n % A] = entry<0>(g, n % A, n / A);
        constexpr int E = SECOND_EXTENT;
        float* one = JOINED ? back : forth;
        float* other = JOINED ? forth : back;
#pragma unroll 8
        for (int n = threadIdx.x; n < E * E; n += THREADS) {
            const float value = entry<2>(g, n / E, n % E);
            one[n % E * PITCH_LAST + n / E] = value;
            other[n / E * PITCH_LAST + n % E] = value;
        }
    }

    // What this thread has of both tiles, x and v, with zeros outside of them.
    static __device__ __forceinline__ void fetch(const Arguments& g, Pack<T, VEC> (&staged)[2][LOADS], i64 item0, i64 column0) {
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int at = (n * THREADS + threadIdx.x) * VEC;
            const i64 of_x = offset_of<false>(g, item0, column0 + at % W, at / W), of_v = offset_of<true>(g, item0, column0 + at % W, at / W);
            staged[0][n] = staged[1][n] = Pack<T, VEC>{};
            if (of_x >= 0) staged[0][n] = load_pack<T, VEC>(g.x + of_x);
            if (of_v >= 0) staged[1][n] = load_pack<T, VEC>(g.v + of_v);
        }
    }

    static __device__ __forceinline__ void read(const Arguments& g, float* x, float* v, i64 item0, i64 column0) {
        constexpr int EACH = VEC < 4 ? VEC : 4;
        Pack<T, VEC> staged[2][LOADS];
        fetch(g, staged, item0, column0);
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int at = (n * THREADS + threadIdx.x) * VEC, to = fiber_at(at / W) + at % W;
#pragma unroll
            for (int i = 0; i < VEC; i += EACH) {
                Pack<float, EACH> one, other;
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
                    one.v[j] = convert<float>(staged[0][n].v[i + j]);
                    other.v[j] = convert<float>(staged[1][n].v[i + j]);
                }
                *(Pack<float, EACH>*)(x + to + i) = one;
                *(Pack<float, EACH>*)(v + to + i) = other;
            }
        }
    }

    static __device__ __forceinline__ void load_two(float& one, float& other, const float* at) {
        const Pack<float, 2> both = *(const Pack<float, 2>*)at;
        one = both.v[0];
        other = both.v[1];
    }

    // 16 lines from `row` on times a table (k, columns from `column` on): both parts of the trailing factor's way.
    template <bool STORED>
    static __device__ __forceinline__ void times_last(float (&out)[NB][4], const float* tile, const float* table, int row, int column, int g, int t) {
        multiply<NB, W / 8, STORED, false>(
            out,
            [&](int step, float (&a)[4]) {
                load_two(a[0], a[2], tile + (row + g) * PITCH + step * 8 + 2 * t);
                load_two(a[1], a[3], tile + (row + g + 8) * PITCH + step * 8 + 2 * t);
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

    // The same to memory: line `line` of the tile, and the eighth behind it.
    static __device__ __forceinline__ void give_out(const Arguments& g, const float (&value)[NB][4], i64 item0, int fiber, i64 column) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < NB * 2; i += STORE_WIDTH) {
                const i64 to = offset_of<false>(g, item0, column + i / 2 * 8 + i % 2, fiber + half * 8);
                if (to < 0) continue;
                Pack<T, STORE_WIDTH> pack;
#pragma unroll
                for (int j = 0; j < STORE_WIDTH; ++j) pack.v[j] = Store<T>::from(g.slope * value[i / 2][half * 2 + i % 2 + j]);
                store_pack<T, STORE_WIDTH>(g.out + to, pack);
            }
        }
    }

    // Outer products of the entries of an axis, `step` apart, summed over the other lines and columns: those of `item(n)`.
    template <class Sum, bool STORED_A, bool STORED_B, class Item>
    static __device__ __forceinline__ void sum_axis(float (&sum)[Sum::NB][4], const float* v, const float* x, int step, Item item, int warp, int g, int t) {
        const int wd = warp % Sum::DOWN, wa = warp / Sum::DOWN % Sum::ACROSS, wk = warp / (Sum::DOWN * Sum::ACROSS);
        float out[Sum::NB][4];
        const auto address = [&](int chunk) {
            const int k = wk + chunk * Sum::ALONG;
            return item(k / (W / 8)) + k % (W / 8) * 8 + 2 * t;
        };
        multiply<Sum::NB, Sum::STEPS, STORED_A, STORED_B>(
            out,
            [&](int chunk, float (&a)[4]) {
                const float* at = v + address(chunk) + (wd * 16 + g) * step;
                load_two(a[0], a[2], at);
                a[1] = a[3] = 0.0f;
                if (Sum::ROWS >= 16) load_two(a[1], a[3], at + 8 * step);
            },
            [&](int chunk, int n, float (&b)[2]) { load_two(b[0], b[1], x + address(chunk) + ((wa * Sum::NB + n) * 8 + g) * step); });
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
    template <int EXTENT, bool STORED>
    static __device__ __forceinline__ void times_axis(float (&out)[NB][4], const float* table, const float* from, int step, int down, int g, int t) {
        constexpr int PITCH_TABLE = EXTENT + 4;
        multiply<NB, EXTENT / 8, false, STORED>(
            out,
            [&](int chunk, float (&a)[4]) {
                const float* at = table + (down * 16 + g) * PITCH_TABLE + chunk * 8 + t;
                a[0] = at[0];
                a[2] = at[4];
                a[1] = a[3] = 0.0f;
                if (EXTENT >= 16) {
                    a[1] = at[8 * PITCH_TABLE];
                    a[3] = at[8 * PITCH_TABLE + 4];
                }
            },
            [&](int chunk, int n, float (&b)[2]) {
                const float* at = from + (chunk * 8 + t) * step + n * 8 + g;
                b[0] = at[0];
                b[1] = at[4 * step];
            });
    }

    // The sums of all warps to shared memory, then those of one entry to the block's share; of a factor of two parts the
    // gradients of both.
    template <class Sum, int NUMBER>
    static __device__ void write(const Arguments& g, float* to, const float (&sum)[Sum::NB][4], float* shared, int warp, int lane) {
        constexpr int Q = NUMBER ? B::Q1 : B::Q0, P = NUMBER ? B::P1 : B::P0, INNER_Q = NUMBER ? B::INNER_Q1 : B::INNER_Q0;
        constexpr int INNER_P = NUMBER ? B::INNER_P1 : B::INNER_P0, OUTER_Q = INNER_Q ? Q / (INNER_Q ? INNER_Q : 1) : 0;
        constexpr int OUTER_P = INNER_P ? P / (INNER_P ? INNER_P : 1) : 0, E = Sum::ROWS, CAPACITY = E < 16 ? 16 : E;
        const int wd = warp % Sum::DOWN, wa = warp / Sum::DOWN % Sum::ACROSS, wk = warp / (Sum::DOWN * Sum::ACROSS);
        float* own = shared + (wk * CAPACITY + wd * 16 + lane / 4) * E + wa * Sum::NB * 8 + lane % 4 * 2;
        __syncthreads();
        store_fragments<E>(own, sum);
        __syncthreads();
        for (int n = threadIdx.x; n < Q * P; n += THREADS) {
            const int at = n / P * E + n % P;
            const float total = sum_over_warps<Sum::ALONG, CAPACITY * E>(shared + at);
            if (INNER_Q == 0) to[n] = total;
            else shared[at] = total;
        }
        if (INNER_Q == 0) return;
        __syncthreads();
        for (int n = threadIdx.x; n < OUTER_Q * OUTER_P + INNER_Q * INNER_P; n += THREADS) {
            const bool is_outer = n < OUTER_Q * OUTER_P;
            const int mine = is_outer ? n : n - OUTER_Q * OUTER_P, columns = is_outer ? OUTER_P : INNER_P, other = NUMBER + is_outer;
            const int q = mine / columns, p = mine % columns, down = is_outer ? INNER_Q : OUTER_Q, across = is_outer ? INNER_P : OUTER_P;
            float total = 0.0f;
            for (int i = 0; i < down; ++i) {
                for (int j = 0; j < across; ++j) {
                    const int at = is_outer ? (q * INNER_Q + i) * E + p * INNER_P + j : (i * INNER_Q + q) * E + j * INNER_P + p;
                    total = fma(shared[at], convert<float>(load_pack<T, 1>(g.factor[other] + i * g.stride[other][0] + j * g.stride[other][1]).v[0]), total);
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
        const i64 across = JOINED ? (g.width + W - 1) / W : 1, tiles = (g.items + B::USED - 1) / B::USED * across;
        float sum0[Sum0::NB][4] = {}, sum1[Sum1::NB][4] = {};
        read_factors(g, first, forth, back);
#pragma unroll 1
        for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const i64 item0 = tile / across * B::USED, column0 = tile % across * W;
            read(g, x, v, item0, column0);
            __syncthreads();
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                const int row = (warp + u * 8) / WIDE * 16, column = (warp + u * 8) % WIDE * NB * 8;
                float out[NB][4];
                if (JOINED) times_axis<SECOND_EXTENT, true>(out, forth, x + fiber_at(row), PITCH, 0, gr, t);
                else times_last<true>(out, x, forth, row, column, gr, t);
                keep(between + fiber_at(row) + column, out, PITCH, gr, t, true);
            }
            __syncthreads();
            sum_axis<Sum0, true, false>(sum0, v, between, STEP, item_at, warp, gr, t);
            float staged[UNITS_A][NB][4];
#pragma unroll
            for (int u = 0; u < UNITS_A; ++u) {
                const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                times_axis<A, true>(staged[u], first, v + item_at(item) + column, STEP, down, gr, t);
            }
            __syncthreads();
#pragma unroll
            for (int u = 0; u < UNITS_A; ++u) {
                const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                keep(between + item_at(item) + down * 16 * STEP + column, staged[u], STEP, gr, t, A >= 16);
            }
            __syncthreads();
            if (JOINED) sum_axis<Sum1, false, true>(sum1, between, x, PITCH, [](int item) { return fiber_at(item * JOINED); }, warp, gr, t);
            else sum_last(sum1, between, x, warp, gr, t);
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                const int row = (warp + u * 8) / WIDE * 16, column = (warp + u * 8) % WIDE * NB * 8;
                float out[NB][4];
                if (JOINED) times_axis<SECOND_EXTENT, false>(out, back, between + fiber_at(row), PITCH, 0, gr, t);
                else times_last<false>(out, between, back, row, column, gr, t);
                give_out(g, out, item0, row + gr, column0 + column + 2 * t);
            }
            __syncthreads();
        }
        float* own = g.parts + (i64)blockIdx.x * PARTS;
        write<Sum0, 0>(g, own, sum0, shared, warp, lane);
        write<Sum1, 2>(g, own + PARTS0, sum1, shared, warp, lane);
    }
};

}  // namespace km

// Steps of all gradients by products of halves: every number is a power of two, that of its tile, times a half and, in
// float32, a rest of 11 bits more, split once when it is written to shared memory; a sum of terms is three products, one
// where numbers are halves anyway.
//
// The largest entry of a tile comes out just below 2^14; what is less than 2^-28 of it loses bits, its last one being
// 2^-49 of the largest. What comes between is bounded by the sums of the factor's entries and needs no search.
#pragma once
#include "kron_back.cuh"

namespace km {

template <bool ACROSS>
KM_DEVICE void load_matrices(unsigned (&r)[4], const f16* at) {
    if (ACROSS)
        ptx::ldmatrix_x4_trans(r, shared_address(at));
    else
        ptx::ldmatrix_x4(r, shared_address(at));
}
// Two numbers as halves and rests, each pair in one word.
KM_DEVICE void halve(unsigned& high, unsigned& low, float x, float y) {
    high = ptx::pack_f16x2(x, y);
    const float2 rounded = ptx::unpack_f16x2(high);
    const float second = (y - rounded.y) * 2048.0f, first = (x - rounded.x) * 2048.0f;
    low = ptx::pack_f16x2(first, second);
}
// 2^n for n from -126 to 127.
KM_DEVICE float power_of_two(int n) { return __uint_as_float((unsigned)(min(n, 127) + 127) << 23); }
// The least n of -100 to 128 for which |x| < 2^n; infinity and NaN as the largest numbers.
KM_DEVICE int bound_of(float x) { return max(-100, (int)(__float_as_uint(x) >> 23 & 255u) - 126 - ((__float_as_uint(x) >> 23 & 255u) == 255u)); }

template <class B>
struct KronHalves : KronBack<B> {
    typedef KronBack<B> Base;
    typedef typename Base::Arguments Arguments;
    typedef typename Base::Sum0 Sum0;
    typedef typename Base::Sum1 Sum1;
    static constexpr int A = Base::A, W = Base::W, FIBERS = Base::FIBERS, THREADS = Base::THREADS, JOINED = Base::JOINED, E = Base::SECOND_EXTENT;
    static constexpr int NB = Base::NB, WIDE = Base::WIDE, UNITS = Base::UNITS, UNITS_A = Base::UNITS_A, DOWN = Base::DOWN, LOADS = Base::LOADS;
    // In halves: lines, entries of the axis A, and the rests behind the halves.
    static constexpr int PITCH = W + 8, STEP = JOINED ? JOINED * PITCH + 8 : PITCH, TILE = FIBERS * PITCH + (JOINED ? A * 8 : 0);
    static constexpr int PITCH_A = A + 8, PITCH_E = E + 8, FIRST = A * PITCH_A, SECOND = E * PITCH_E;
    typedef typename B::T T;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int PLANES = SPLIT ? 2 : 1, VEC = Base::VEC, TOP = 14;
    static constexpr int SHARED_BYTES = 2 * PLANES * (Base::TILES * TILE + FIRST + SECOND);
    static_assert(A >= 16, "whole fragments");

    static __device__ __forceinline__ int fiber_at(int fiber) { return fiber * PITCH + (JOINED ? fiber / (JOINED ? JOINED : 1) * 8 : 0); }
    static __device__ __forceinline__ int item_at(int item) { return JOINED ? item * PITCH : item * A * PITCH; }

    // The sum over STEPS of 16 terms of left (m, k) and right (k, n). A side begins at `a(step)`, its lines lie `pitch`
    // apart; ACROSS: the lines are those of k. The rests lie REST behind.
    template <int NB_, int STEPS, bool ACROSS_A, bool ACROSS_B, int REST_A, int REST_B, class Left, class Right>
    static __device__ __forceinline__ void multiply(float (&out)[NB_][4], Left a, int pitch_a, Right b, int pitch_b, int lane) {
        const int i = lane / 8, r = lane % 8;
        const int mine_a = ACROSS_A ? (r + i / 2 * 8) * pitch_a + i % 2 * 8 : (r + i % 2 * 8) * pitch_a + i / 2 * 8;
        const int mine_b = ACROSS_B ? (r + i % 2 * 8) * pitch_b + i / 2 * 8 : (r + i / 2 * 8) * pitch_b + i % 2 * 8;
        const int block_stride = ACROSS_B ? 16 : 16 * pitch_b;
        float small[NB_][4] = {};
#pragma unroll
        for (int n = 0; n < NB_; ++n) {
#pragma unroll
            for (int j = 0; j < 4; ++j) out[n][j] = 0.0f;
        }
#pragma unroll 2
        for (int step = 0; step < STEPS; ++step) {
            unsigned high[4], low[4];
            load_matrices<ACROSS_A>(high, a(step) + mine_a);
            if (SPLIT) load_matrices<ACROSS_A>(low, a(step) + mine_a + REST_A);
#pragma unroll
            for (int n = 0; n < NB_ / 2; ++n) {
                unsigned other[4], rest[4];
                load_matrices<ACROSS_B>(other, b(step) + mine_b + n * block_stride);
                if (SPLIT) load_matrices<ACROSS_B>(rest, b(step) + mine_b + n * block_stride + REST_B);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (SPLIT) {
                        ptx::mma_m16n8k16<f16>(small[2 * n + h], low, other[2 * h], other[2 * h + 1]);
                        ptx::mma_m16n8k16<f16>(small[2 * n + h], high, rest[2 * h], rest[2 * h + 1]);
                    }
                    ptx::mma_m16n8k16<f16>(out[2 * n + h], high, other[2 * h], other[2 * h + 1]);
                }
            }
        }
        if (!SPLIT) return;
#pragma unroll
        for (int n = 0; n < NB_; ++n) {
#pragma unroll
            for (int j = 0; j < 4; ++j) out[n][j] = fma(small[n][j], 1.0f / 2048, out[n][j]);
        }
    }

    // 16 lines, `step` apart, times `scale` to a tile from `to` on.
    static __device__ __forceinline__ void keep(f16* to, const float (&value)[NB][4], int step, float scale, int lane) {
        f16* own = to + lane / 4 * step + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < NB; ++n) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned high, low;
                halve(high, low, value[n][2 * half] * scale, value[n][2 * half + 1] * scale);
                *(unsigned*)(own + half * 8 * step + n * 8) = high;
                if (SPLIT) *(unsigned*)(own + half * 8 * step + n * 8 + TILE) = low;
            }
        }
    }

    template <int N>
    static __device__ __forceinline__ void add(float (&sum)[N][4], const float (&out)[N][4], float one, float other) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sum[n][j] = fma(out[n][j] * one, other, sum[n][j]);
        }
    }

    // A factor (q, p) as halves and rests; how large its entries are, and the sums of them over p, or over q.
    template <int EXTENT, int NUMBER, bool OVER_Q>
    static __device__ void read_factor(const Arguments& g, f16* to, float* scratch, int& bound, int& sums) {
        constexpr int P = EXTENT + 8;
        if (threadIdx.x < 2) scratch[threadIdx.x] = 0.0f;
        __syncthreads();
        // Some threads to a fiber, whose loads are all under way at once.
        constexpr int PARTS = THREADS / EXTENT;
        const int fiber = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
        float most = 0.0f, sum = 0.0f;
#pragma unroll
        for (int n = 0; n < EXTENT / PARTS; ++n) {
            const int k = part + n * PARTS;
            const float value = fabsf(OVER_Q ? Base::template entry<NUMBER>(g, k, fiber) : Base::template entry<NUMBER>(g, fiber, k));
            most = fmaxf(most, value);
            sum += value;
        }
        most = warp_max(most);
        sum = warp_max(warp_sum<PARTS / 2>(sum));
        if (threadIdx.x % 32 == 0) {
            atomicMax((int*)scratch, __float_as_int(most));
            atomicMax((int*)scratch + 1, __float_as_int(sum));
        }
        __syncthreads();
        bound = bound_of(scratch[0]);
        sums = bound_of(scratch[1]);
        const float scale = power_of_two(TOP - bound);
#pragma unroll 4
        for (int n = threadIdx.x; n < EXTENT * EXTENT / 2; n += THREADS) {
            const int q = 2 * n / EXTENT, p = 2 * n % EXTENT;
            unsigned high, low;
            halve(high, low, Base::template entry<NUMBER>(g, q, p) * scale, Base::template entry<NUMBER>(g, q, p + 1) * scale);
            *(unsigned*)(to + q * P + p) = high;
            if (SPLIT) *(unsigned*)(to + q * P + p + EXTENT * P) = low;
        }
        __syncthreads();
    }

    // Asks for both tiles, which are read later.
    static __device__ __forceinline__ void expect(const Arguments& g, i64 item0, i64 column0) {
        if (threadIdx.x % (W < 8 * VEC ? W / VEC : 8)) return;
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int at = (n * THREADS + threadIdx.x) * VEC;
            const i64 of_x = Base::template offset_of<false>(g, item0, column0 + at % W, at / W);
            const i64 of_v = Base::template offset_of<true>(g, item0, column0 + at % W, at / W);
            if (of_x >= 0) ptx::prefetch_global_l2(g.x + of_x);
            if (of_v >= 0) ptx::prefetch_global_l2(g.v + of_v);
        }
    }

    // What one copy brought, times `scale`, to a tile.
    static __device__ __forceinline__ void keep_copied(f16* tile, int to, const Pack<T, VEC>& staged, float scale) {
        constexpr int EACH = VEC > 1 ? 2 : 1;
        Pack<f16, VEC> high, low;
#pragma unroll
        for (int i = 0; i < VEC; i += EACH) {
            unsigned both, rests;
            halve(both, rests, convert<float>(staged.v[i]) * scale, convert<float>(staged.v[i + EACH - 1]) * scale);
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                high.v[i + j].bits = (unsigned short)(both >> 16 * j);
                low.v[i + j].bits = (unsigned short)(rests >> 16 * j);
            }
        }
        *(Pack<f16, VEC>*)(tile + to) = high;
        if (SPLIT) *(Pack<f16, VEC>*)(tile + to + TILE) = low;
    }

    // Both tiles, split, and the bounds of their entries.
    static __device__ __forceinline__ void read(const Arguments& g, f16* x, f16* v, float* scratch, i64 item0, i64 column0, int& bound_x, int& bound_v) {
        Pack<T, VEC> staged[2][LOADS];
        float most[2] = {0.0f, 0.0f};
        Base::fetch(g, staged, item0, column0);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
#pragma unroll
            for (int n = 0; n < LOADS; ++n) {
#pragma unroll
                for (int i = 0; i < VEC; ++i) most[side] = fmaxf(most[side], fabsf(convert<float>(staged[side][n].v[i])));
            }
            most[side] = warp_max(most[side]);
            if (threadIdx.x % 32 == 0) scratch[side * 8 + threadIdx.x / 32] = most[side];
        }
        __syncthreads();
#pragma unroll
        for (int w = 0; w < 8; ++w) {
            most[0] = fmaxf(most[0], scratch[w]);
            most[1] = fmaxf(most[1], scratch[8 + w]);
        }
        bound_x = bound_of(most[0]);
        bound_v = bound_of(most[1]);
        const float scales[2] = {power_of_two(TOP - bound_x), power_of_two(TOP - bound_v)};
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int at = (n * THREADS + threadIdx.x) * VEC, to = fiber_at(at / W) + at % W;
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                keep_copied(side ? v : x, to, staged[side][n], scales[side]);
            }
        }
        __syncthreads();
    }

    // Outer products of the entries of an axis, `step` apart, over the other lines and columns.
    template <class Sum, class Item>
    static __device__ __forceinline__ void sum_axis(float (&sum)[Sum::NB][4], const f16* v, const f16* x, int step, Item item, float one, float other, int warp, int lane) {
        const int wd = warp % Sum::DOWN, wa = warp / Sum::DOWN % Sum::ACROSS, wk = warp / (Sum::DOWN * Sum::ACROSS);
        const auto address = [&](int chunk) {
            const int k = wk + chunk * Sum::ALONG;
            return item(k / (W / 16)) + k % (W / 16) * 16;
        };
        float out[Sum::NB][4];
        multiply<Sum::NB, Sum::STEPS / 2, false, false, TILE, TILE>(
            out, [&](int chunk) { return v + address(chunk) + wd * 16 * step; }, step,
            [&](int chunk) { return x + address(chunk) + wa * Sum::NB * 8 * step; }, step, lane);
        add(sum, out, one, other);
    }
    // Those of the columns, over lines.
    static __device__ __forceinline__ void sum_last(float (&sum)[Sum1::NB][4], const f16* s, const f16* x, float one, float other, int warp, int lane) {
        const int wd = warp % Sum1::DOWN, wa = warp / Sum1::DOWN % Sum1::ACROSS, wk = warp / (Sum1::DOWN * Sum1::ACROSS);
        float out[Sum1::NB][4];
        multiply<Sum1::NB, Sum1::STEPS / 2, true, true, TILE, TILE>(
            out, [&](int chunk) { return s + (wk + chunk * Sum1::ALONG) * 16 * PITCH + wd * 16; }, PITCH,
            [&](int chunk) { return x + (wk + chunk * Sum1::ALONG) * 16 * PITCH + wa * Sum1::NB * 8; }, PITCH, lane);
        add(sum, out, one, other);
    }

    // A factor, or its transpose, along an axis whose entries lie `step` apart: 16 results from 16 down on.
    template <int EXTENT, bool BACK>
    static __device__ __forceinline__ void times_axis(float (&out)[NB][4], const f16* factor, const f16* from, int step, int down, int lane) {
        constexpr int P = EXTENT + 8;
        multiply<NB, EXTENT / 16, BACK, true, EXTENT * P, TILE>(
            out, [&](int chunk) { return factor + (BACK ? chunk * 16 * P + down * 16 : down * 16 * P + chunk * 16); }, P,
            [&](int chunk) { return from + chunk * 16 * step; }, step, lane);
    }
    // The same along the columns of 16 lines, for the columns from `column` on.
    template <bool BACK>
    static __device__ __forceinline__ void times_last(float (&out)[NB][4], const f16* factor, const f16* fibers, int column, int lane) {
        multiply<NB, E / 16, false, BACK, TILE, E * PITCH_E>(
            out, [&](int chunk) { return fibers + chunk * 16; }, PITCH,
            [&](int chunk) { return factor + (BACK ? chunk * 16 * PITCH_E + column : column * PITCH_E + chunk * 16); }, PITCH_E, lane);
    }

    static __device__ __forceinline__ void give_out(const Arguments& g, float (&value)[NB][4], float one, float other, i64 item0, int fiber, i64 column, int lane) {
#pragma unroll
        for (int n = 0; n < NB; ++n) {
#pragma unroll
            for (int j = 0; j < 4; ++j) value[n][j] = value[n][j] * one * other;
        }
        Base::give_out(g, value, item0, fiber + lane / 4, column + lane % 4 * 2);
    }

    static __device__ void run(const Arguments& g) {
        extern __shared__ __align__(16) float shared[];
        __shared__ float scratch[16];
        f16* x = (f16*)shared;
        f16* v = x + PLANES * TILE;
        f16* between = v + PLANES * TILE;
        f16* first = x + Base::TILES * PLANES * TILE;
        f16* second = first + PLANES * FIRST;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const i64 across = JOINED ? (g.width + W - 1) / W : 1, tiles = (g.items + B::USED - 1) / B::USED * across;
        int bound0, sums0, bound1, sums1;
        read_factor<A, 0, true>(g, first, scratch, bound0, sums0);
        read_factor<E, 2, false>(g, second, scratch, bound1, sums1);
        // From sums of products to what is rounded of them; the powers that the factors' entries were divided by.
        const float state0 = power_of_two(bound0 - TOP - sums0), state1 = power_of_two(bound1 - TOP - sums1);
        const float power0 = power_of_two(bound0 - TOP), power1 = power_of_two(bound1 - TOP);
        float sum0[Sum0::NB][4] = {}, sum1[Sum1::NB][4] = {};
#pragma unroll 1
        for (i64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const i64 item0 = tile / across * B::USED, column0 = tile % across * W;
            int bound_x, bound_v;
            read(g, x, v, scratch, item0, column0, bound_x, bound_v);
            if (tile + gridDim.x < tiles) expect(g, (tile + gridDim.x) / across * B::USED, (tile + gridDim.x) % across * W);
            const float power_x = power_of_two(bound_x - TOP), power_v = power_of_two(bound_v - TOP);
            const float power_t = power_x * power_of_two(sums1), power_s = power_v * power_of_two(sums0);
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                const int row = (warp + u * 8) / WIDE * 16, column = (warp + u * 8) % WIDE * NB * 8;
                float out[NB][4];
                if (JOINED) times_axis<E, false>(out, second, x + fiber_at(row), PITCH, 0, lane);
                else times_last<false>(out, second, x + fiber_at(row), column, lane);
                keep(between + fiber_at(row) + column, out, PITCH, state1, lane);
            }
            __syncthreads();
            sum_axis<Sum0>(sum0, v, between, STEP, item_at, power_v, power_t, warp, lane);
            float staged[UNITS_A][NB][4];
#pragma unroll
            for (int u = 0; u < UNITS_A; ++u) {
                const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                times_axis<A, true>(staged[u], first, v + item_at(item) + column, STEP, down, lane);
            }
            __syncthreads();
#pragma unroll
            for (int u = 0; u < UNITS_A; ++u) {
                const int unit = warp + u * 8, column = unit % WIDE * NB * 8, down = unit / WIDE % DOWN, item = unit / WIDE / DOWN;
                keep(between + item_at(item) + down * 16 * STEP + column, staged[u], STEP, state0, lane);
            }
            __syncthreads();
            if (JOINED) sum_axis<Sum1>(sum1, between, x, PITCH, [](int item) { return fiber_at(item * JOINED); }, power_s, power_x, warp, lane);
            else sum_last(sum1, between, x, power_s, power_x, warp, lane);
#pragma unroll
            for (int u = 0; u < UNITS; ++u) {
                const int row = (warp + u * 8) / WIDE * 16, column = (warp + u * 8) % WIDE * NB * 8;
                float out[NB][4];
                if (JOINED) times_axis<E, true>(out, second, between + fiber_at(row), PITCH, 0, lane);
                else times_last<true>(out, second, between + fiber_at(row), column, lane);
                give_out(g, out, power1, power_s, item0, row, column0 + column, lane);
            }
            __syncthreads();
        }
        float* own = g.parts + (i64)blockIdx.x * Base::PARTS;
        Base::template write<Sum0, 0>(g, own, sum0, shared, warp, lane);
        Base::template write<Sum1, 2>(g, own + Base::PARTS0, sum1, shared, warp, lane);
    }
};

}  // namespace km

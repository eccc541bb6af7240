// The same of float32 numbers: every number is a power of two, that of its tile, times a half and a rest of 11 bits more. Stages
// are copied as they lie; while a chunk is multiplied the next one is split into halves and rests, once for all warps. A sum of
// terms is three products of halves, those of the rests first, in one accumulator of DEEP positions.
#pragma once
#include "kron_gram.cuh"

namespace km {

// An operand: a stage as it was copied, Raw, and the same as Halves, the rests behind them.
template <class Raw_, int CAPACITY, int DEEP, int THREADS>
struct GramSplit {
    typedef Raw_ Raw;
    typedef GramTile<f16, Raw::ALONG ? GRAM_ALONG : GRAM_ROWS, CAPACITY, CAPACITY, DEEP, 1, 8, THREADS> Halves;
    static constexpr int WIDTH = Raw::ALONG ? DEEP : CAPACITY, COUNT = CAPACITY * DEEP / 4, ROUNDS = (COUNT + THREADS - 1) / THREADS;
    static constexpr int SIZE = 2 * Halves::SIZE;
    Pack<float, 4> staged[ROUNDS];
    float inverse;

    // Place of the first of four numbers in a tile of halves: neighbours of a line, or of one position that a run has apart.
    static KM_DEVICE int spot(int at) { return Raw::LIES ? at % DEEP * Halves::PITCH + at / DEEP * 4 : at / (WIDTH / 4) * Halves::PITCH + at % (WIDTH / 4) * 4; }
    // Four numbers of a stage, whose positions from `begin` on are of those l that are less than `count`.
    static KM_DEVICE Pack<float, 4> four(const float* stage, int at, i64 begin, i64 count) {
        if constexpr (!Raw::LIES) return *(const Pack<float, 4>*)(stage + at / (WIDTH / 4) * Raw::PITCH + at % (WIDTH / 4) * 4);
        Pack<float, 4> found = {};
        const int position = at % DEEP, item = position / Raw::POSITIONS, entry = at / DEEP * 4;
        const float* own = stage + Raw::shift(begin) + item * Raw::RUN + entry * Raw::POSITIONS + position % Raw::POSITIONS;
        if (item >= Raw::ITEMS || begin + item >= count) return found;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (entry + i < Raw::ENTRIES) found.v[i] = own[i * Raw::POSITIONS];
        return found;
    }

    // Reads this thread's numbers; returns the bits of their largest magnitude.
    KM_DEVICE unsigned read(const float* stage, i64 begin, i64 count) {
        float top = 0.0f;
        int mine = threadIdx.x;
        if (Raw::LIES) ptx::opaque(mine);  // places are worked out anew, which takes less registers than to keep them
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            const int at = mine + n * THREADS;
            staged[n] = Pack<float, 4>{};
            if (COUNT % THREADS == 0 || at < COUNT) staged[n] = four(stage, at, begin, count);
#pragma unroll
            for (int i = 0; i < 4; ++i) top = fmaxf(top, fabsf(staged[n].v[i]));
        }
        return __float_as_uint(top);
    }
    // Splits them; `top` is the largest of all threads.
    KM_DEVICE void write(f16* to, unsigned top) {
        const HalfScale own = HalfScale::of_exponent(top >> 23);
        inverse = own.inverse;
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            const int at = threadIdx.x + n * THREADS;
            if (COUNT % THREADS && at >= COUNT) break;
            uint2 high, rest;
            split_f16x2(high.x, rest.x, staged[n].v[0], staged[n].v[1], own.scale);
            split_f16x2(high.y, rest.y, staged[n].v[2], staged[n].v[3], own.scale);
            uint2* target = (uint2*)(to + spot(at));
            target[0] = high;
            target[Halves::SIZE / 4] = rest;
        }
    }
};

template <class B>
struct KronGramSplit {
    static constexpr int WARPS = B::WARPS_Q * B::WARPS_P * B::WARPS_K, THREADS = 32 * WARPS, MQ = B::MQ, NP = B::NP, DEEP = B::DEEP;
    static constexpr int CAPACITY_Q = 16 * MQ * B::WARPS_Q, CAPACITY_P = 8 * NP * B::WARPS_P, STEPS = DEEP / 16 / B::WARPS_K;
    typedef GramWarp<B, CAPACITY_Q, CAPACITY_P> Warp;
    typedef GramTile<float, B::ORDER, B::Q, CAPACITY_Q, DEEP, B::RIGHT, B::VEC_V, THREADS> RawLeft;
    typedef GramTile<float, B::ORDER, B::P, CAPACITY_P, DEEP, B::RIGHT, B::VEC_U, THREADS> RawRight;
    typedef GramSplit<RawLeft, CAPACITY_Q, DEEP, THREADS> Left;
    typedef GramSplit<RawRight, CAPACITY_P, DEEP, THREADS> Right;
    typedef CopyPipeline<B::STAGES> Pipeline;
    static constexpr bool FLAT = B::ORDER == GRAM_FLAT;
    static constexpr int STAGE = RawLeft::SIZE + RawRight::SIZE, RAW_BYTES = 4 * B::STAGES * STAGE;
    typedef GramApply<B, f16, typename Left::Halves, RawRight, 2, Left::Halves::SIZE> Apply;
    static constexpr int HALVES_BYTES = RAW_BYTES + 4 * (Left::SIZE + Right::SIZE), STAGES_BYTES = HALVES_BYTES + Apply::BYTES, SUMS_BYTES = 4 * B::WARPS_K * CAPACITY_Q * CAPACITY_P;
    // Bytes of shared memory: the stages, or in their place the sums of all warps.
    static constexpr int SHARED_BYTES = STAGES_BYTES > SUMS_BYTES ? STAGES_BYTES : SUMS_BYTES;
    static_assert(DEEP % (16 * B::WARPS_K) == 0 && WARPS <= 32, "whole steps, and a lane for each warp");

    // Adds the products of one stage to sums.
    static __device__ __forceinline__ void multiply(float (&sum)[MQ][NP][4], const f16* halves, float one, float other, const Warp& at) {
        const unsigned left = shared_address(halves), right = shared_address(halves + Left::SIZE);
        unsigned a[STEPS][2][MQ][4];
#pragma unroll
        for (int i = 0; i < STEPS * 2 * MQ; ++i) {
            const int s = i / (2 * MQ), rest = i / MQ % 2, m = i % MQ;
            Left::Halves::template take<true>(a[s][rest][m], left + rest * 2 * Left::Halves::SIZE, (at.wq * MQ + m) * 16, (at.wk + s * B::WARPS_K) * 16, at.lane);
        }
#pragma unroll
        for (int n = 0; n < NP / 2; ++n) {
            unsigned b[STEPS][2][4];
#pragma unroll
            for (int i = 0; i < STEPS * 2; ++i)
                Right::Halves::template take<false>(b[i / 2][i % 2], right + i % 2 * 2 * Right::Halves::SIZE, (at.wp * NP + 2 * n) * 8, (at.wk + i / 2 * B::WARPS_K) * 16, at.lane);
            float out[MQ][2][4] = {};
#pragma unroll
            for (int term = 0; term < 3 * STEPS; ++term) {
                const int kind = term / STEPS, s = term % STEPS;
#pragma unroll
                for (int m = 0; m < MQ; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h) ptx::mma_m16n8k16<f16>(out[m][h], a[s][kind == 0][m], b[s][kind == 1][2 * h], b[s][kind == 1][2 * h + 1]);
            }
#pragma unroll
            for (int i = 0; i < MQ * 8; ++i) {
                float& total = sum[i / 8][2 * n + i / 4 % 2][i % 4];
                total = fmaf(out[i / 8][i / 4 % 2][i % 4] * one, other, total);
            }
        }
    }

    static __device__ void run(const float* v, const float* u, void* out, i64 items, i64 right) {
        run(v, u, out, items, right, nullptr, 0.0f, [](int, int) { return 0.0f; });
    }
    // `applied` takes v with the transpose of `factor`, entries by (q, p), applied, times `slope`.
    template <class Factor>
    static __device__ void run(const float* v, const float* u, void* out, i64 items, i64 right, float* applied, float slope, const Factor& factor) {
        extern __shared__ __align__(16) unsigned char raw[];
        __shared__ unsigned tops[2][2][WARPS];
        float* stages = (float*)raw;
        f16* const halves = (f16*)(raw + RAW_BYTES);
        f16* const table = (f16*)(raw + HALVES_BYTES);
        float* const staged = (float*)(raw + HALVES_BYTES + Apply::TABLE_BYTES);
        const Warp at;
        const int share = at.share, shares = at.shares, lane = at.lane, warp = at.warp;
        const i64 count = FLAT ? items : items * right, chunks = (count + RawLeft::ITEMS - 1) / RawLeft::ITEMS;
        i64 ahead = share;
        const auto prefetch = [&](int slot) {
            if (ahead < chunks) {
                const GramChunk<RawLeft> own(ahead, count, right);
                float* stage = stages + slot * STAGE;
                RawLeft::fetch(stage, v, own.begin, count, right, own.l, own.r, at.q0);
                RawRight::fetch(stage + RawLeft::SIZE, u, own.begin, count, right, own.l, own.r, at.p0);
            }
            ahead += shares;
            Pipeline::commit();
        };
        Left mine;
        Right theirs;
        // Reads a stage, and what its numbers are divided by; splits what was read before that.
        const auto read = [&](int slot, int parity, i64 chunk) {
            const float* stage = stages + slot * STAGE;
            const i64 begin = chunk * RawLeft::ITEMS;
            const unsigned of_v = ptx::redux_max(mine.read(stage, begin, count)), of_u = ptx::redux_max(theirs.read(stage + RawLeft::SIZE, begin, count));
            if (lane == 0) tops[parity][0][warp] = of_v, tops[parity][1][warp] = of_u;
        };
        const auto split = [&](int parity) {
            f16* to = halves + parity * (Left::SIZE + Right::SIZE);
            mine.write(to, ptx::redux_max(tops[parity][0][lane < WARPS ? lane : 0]));
            theirs.write(to + Left::SIZE, ptx::redux_max(tops[parity][1][lane < WARPS ? lane : 0]));
        };
        if (FLAT && !RawLeft::LIES) {  // places of no number
            for (int n = threadIdx.x; n < B::STAGES * STAGE; n += THREADS) stages[n] = 0.0f;
            __syncthreads();
        }
        float sum[MQ][NP][4] = {}, scale = 0.0f;
        if constexpr (B::APPLIES) scale = slope * Apply::prepare(table, factor, tops[0][0]);
        Pipeline pipeline;
#pragma unroll 1
        for (int s = 0; s + 1 < B::STAGES; ++s) prefetch(s);
        Pipeline::wait();
        __syncthreads();
        read(0, 0, share);
        prefetch(B::STAGES - 1);
        Pipeline::wait();
        __syncthreads();
        split(0);
        read(1, 1, share + shares);
        prefetch(0);
        Pipeline::wait();
        __syncthreads();
        pipeline.advance();
        int parity = 0;
        // A chunk is multiplied while the next one is split and the one after that is read. Every other warp begins with the
        // products, so that both kinds of work are under way.
#pragma unroll 1
        for (i64 chunk = share; chunk < chunks; chunk += shares, pipeline.advance(), parity ^= 1) {
            const float one = mine.inverse, other = theirs.inverse;
            const f16* own = halves + parity * (Left::SIZE + Right::SIZE);
            const bool is_late = warp / 4 % 2 == 0;
            if constexpr (B::APPLIES)
                if (chunk != share) Apply::write(applied, staged, chunk - shares, count, right);
            if (!is_late) multiply(sum, own, one, other, at);
            split(parity ^ 1);
            read(pipeline.next(), parity, chunk + 2 * shares);
            prefetch(pipeline.stage);
            if (is_late) multiply(sum, own, one, other, at);
            if constexpr (B::APPLIES) {
                __syncthreads();
                Apply::run(staged, table, own, one, scale, chunk, warp, lane);
            }
            Pipeline::wait();
            __syncthreads();
        }
        if constexpr (B::APPLIES)
            if (share < chunks) Apply::write(applied, staged, at.last(chunks), count, right);
        ptx::cp_async_wait_all();
        __syncthreads();
        at.write(out, sum, (float*)raw);
    }
};

}  // namespace km

// Rows of few entries times many columns, on Hopper: entries by FP32 instructions in the registers from which tensor cores multiply
// them with v, both as high and low halves.
//
// A consumer warpgroup has 64 rows. It makes the entries of CHUNK columns, as they are written, brings each row's largest to 2^14 ..
// 2^15, and multiplies these; what comes out is added up in float32, as tensor cores cut what they add. Warpgroups do so one behind
// the other. Entries that are powers of 2 to squared distances are made of products and norms, without a largest one, once each row
// has had one that is not small, and of a whole tile the products are added up together.
#pragma once
#include "fragments.cuh"
#include "reduce.cuh"
#include "row_sums.cuh"

namespace km {

template <class Body, class Tile>
__device__ constexpr int apply_wide_shared_bytes() {
    return Tile::STAGES * (Tile::BYTES + wide_side<Body, Tile>() * 4 + 16);
}

template <class Body, class Tile>
struct WideRows : RowSums<Body, Tile, RowsOfGroup<Body>> {
    typedef RowSums<Body, Tile, RowsOfGroup<Body>> Base;
    typedef typename Body::Args Args;
    typedef typename Body::template Row<0> X;
    static constexpr int K = Tile::DEPTH, COLUMNS = Tile::COLUMNS, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES;
    static constexpr int CHUNK = Tile::CHUNK, STEPS = CHUNK / 16;
    static constexpr int BM = Tile::BM, BN = Tile::BN, SIDE = wide_side<Body, Tile>();
    static constexpr unsigned WHOLE = 0xffffffffu, HIGH = 64u | 1u << 30, LOW = 1u << 16;
    // The smallest entry from which on what a row adds up is large against what halves lose.
    static constexpr float LEAST = 0.00390625f;

    using Base::g, Base::group, Base::lane, Base::local_row, Base::sum, Base::product;

    const float* sides;
    unsigned tiles;
    PipelineBarriers<STAGES> barriers;
    Fragments<STEPS, true> weights;
    float x[K][2], ends[AtLeastOne<Body::ROW_ENDS>::value][2], unit[2], largest[2], level[2], factor;
    typename Body::Fixed fixed;
    bool infinite, scaled, small, seen;

    __device__ __forceinline__ WideRows(const Args& g_, unsigned char* raw)
        : Base(g_), sides((const float*)(raw + STAGES * Tile::BYTES)), infinite(false) {
        tiles = shared_address(raw);
        barriers.at = tiles + STAGES * (Tile::BYTES + SIDE * 4);
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) barriers.initialise(1, 4 * GROUPS);
        __syncthreads();
    }

    // One thread.
    __device__ __forceinline__ void produce() const {
        PipelineState<STAGES> state;
        state.phase = 1;
        Spans spans(score_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
                ptx::mbarrier_arrive_expect_tx(barriers.full(state.stage), Tile::BYTES + SIDE * 4);
                ptx::cp_async_bulk(tiles + state.stage * Tile::BYTES, g.values + (i64)t * Tile::BYTES, Tile::BYTES, barriers.full(state.stage));
                ptx::cp_async_bulk(tiles + STAGES * Tile::BYTES + state.stage * (SIDE * 4), g.columns + (i64)t * SIDE, SIDE * 4, barriers.full(state.stage));
                state.advance();
            }
        }
    }

    // Whether it is so for all threads of the warpgroup.
    __device__ __forceinline__ bool all_of_group(bool mine) const { return ptx::bar_red_and<128>(group + 1, mine); }

    // The points of the rows; `scaled`: times what products with columns are to be multiplied with.
    __device__ __forceinline__ void load_points(i64 m0) {
        const auto p = origin();
        const i64 last = g.size[ROLE_M] - 1;
        const float times = scaled ? 2.0f * factor : 1.0f;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 m = m0 + local_row() + 8 * h < last ? m0 + local_row() + 8 * h : last;
#pragma unroll
            for (int k = 0; k < K; ++k) x[k][h] = times * convert<float>(load_pack<typename X::T, 1>(row_of<X>(g, p, m) + k * g.stride[X::BUFFER][ROLE_K]).v[0]);
        }
    }
    __device__ __forceinline__ void begin(i64 m0) {
        const auto p = origin();
        scaled = false;
        load_points(m0);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 last = g.size[ROLE_M] - 1, m = m0 + local_row() + 8 * h < last ? m0 + local_row() + 8 * h : last;
            each<0, Body::ROW_ENDS>([&](auto index) {
                ends[decltype(index)::value][h] = end_value<typename Body::template RowEnd<decltype(index)::value>, float>(g, p, m, g.size[ROLE_M], ROLE_M);
            });
            if constexpr (Body::POWERS_OF_2) {
                float norm = 0.0f;
#pragma unroll
                for (int k = 0; k < K; ++k) norm = fmaf(x[k][h], x[k][h], norm);
                level[h] = -factor * norm;
                largest[h] = 0.0f;
            }
        }
        if constexpr (Body::POWERS_OF_2) {
            small = all_of_group(fminf(level[0], level[1]) >= -WIDE_ROW_REACH);
            seen = false;
        }
        Base::template flush_sums<true>(0);
    }

    // Four numbers that travel with the tile: of the columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of 16 that this thread has.
    static __device__ __forceinline__ float4 four_of(const float* side, int k) { return *(const float4*)(side + k * SCORE_ROWS); }

    // Entries of four columns in the order of a fragment.
    __device__ __forceinline__ void make_entries(const float* side, float (&entry)[8]) const {
        typename Body::Registers state[8];
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const float4 four = four_of(side, k);
            const float y[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float* a = &x[k][i / 2 % 2];
                const float* b = y + i / 4 * 2 + i % 2;
                if (k == 0 && Body::STARTS) {
                    Body::start(state[i], a, b, b, g.number);
                } else {
                    if (k == 0) Body::initial(state[i]);
                    Body::template step<EXACT>(state[i], a, b, b, b, g.number, k, 0);
                }
            }
        }
        float columns[4][AtLeastOne<Body::COLUMN_ENDS>::value];
#pragma unroll
        for (int o = 0; o < Body::COLUMN_ENDS; ++o) {
            const float4 four = four_of(side, K + o);
            columns[0][o] = four.x;
            columns[1][o] = four.y;
            columns[2][o] = four.z;
            columns[3][o] = four.w;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float rows[AtLeastOne<Body::ROW_ENDS>::value];
#pragma unroll
            for (int o = 0; o < Body::ROW_ENDS; ++o) rows[o] = ends[o][i / 2 % 2];
            entry[i] = Body::entry(fixed, g.number, rows, columns[i / 4 * 2 + i % 2], 0, state[i]);
        }
    }

    // Entries of the columns whose numbers begin at `side`, taken apart.
    __device__ __forceinline__ void fill(const float* side) {
        float entry[STEPS][8], most[2] = {0.0f, 0.0f}, scale[2];
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            make_entries(side + 16 * s + lane % 4 * 4, entry[s]);
#pragma unroll
            for (int i = 0; i < 8; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(entry[s][i]));
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            most[h] = warp_max<2>(most[h]);
            infinite |= most[h] == infinity<float>();
            const HalfScale own = HalfScale::of_largest(most[h]);
            scale[h] = own.scale;
            unit[h] = own.inverse;
            if (Body::POWERS_OF_2) largest[h] = fmaxf(largest[h], most[h]);
        }
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                split_f16x2(weights.high[s][i], weights.low[s][i], entry[s][2 * i] * scale[i % 2], entry[s][2 * i + 1] * scale[i % 2]);
    }

    // The same of powers of 2, WIDE_LIFT bits higher and without what the row gives.
    __device__ __forceinline__ void fill_powers(const float* side) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const float* own = side + 16 * s + lane % 4 * 4;
            const float4 levels = four_of(own, wide_levels<Body, Tile>() / SCORE_ROWS);
            const float of_column[4] = {levels.x, levels.y, levels.z, levels.w};
            float entry[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) entry[i] = of_column[i / 4 * 2 + i % 2];
#pragma unroll
            for (int k = 0; k < K; ++k) {
                const float4 four = four_of(own, k);
                const float y[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 8; ++i) entry[i] = fmaf(x[k][i / 2 % 2], y[i / 4 * 2 + i % 2], entry[i]);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) entry[i] = ptx::ex2_approx_ftz(entry[i]);
#pragma unroll
            for (int i = 0; i < 4; ++i) split_f16x2(weights.high[s][i], weights.low[s][i], entry[2 * i], entry[2 * i + 1]);
        }
    }

    // Products of the entries with CHUNK rows of v, small ones first, added to those before where `keep`.
    __device__ __forceinline__ void multiply(unsigned values, int keep) {
        fence_accumulators(product);
        const unsigned high = LOW + (values >> 4), low = high + (Tile::PLANE >> 4);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.high[s], (unsigned long long)HIGH << 32 | (low + 2 * s), keep || s > 0);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.low[s], (unsigned long long)HIGH << 32 | (high + 2 * s), 1);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.high[s], (unsigned long long)HIGH << 32 | (high + 2 * s), 1);
        ptx::wgmma_commit_group();
    }
    __device__ __forceinline__ void wait_products() {
        ptx::wgmma_wait_group<0>();
        fence_accumulators(product);
#pragma unroll
        for (int s = 0; s < STEPS; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                ptx::fence_operand(weights.high[s][i]);
                ptx::fence_operand(weights.low[s][i]);
            }
    }
    __device__ __forceinline__ void add() {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[j][i] = fmaf(product[j][i], unit[i / 2], sum[j][i]);
    }
    // Where CHUNK rows of v begin in a tile.
    static __device__ __forceinline__ constexpr unsigned values_at(int chunk) { return chunk * CHUNK / 64 * Tile::PIECE + chunk * CHUNK % 64 * 2; }

    // A tile by entries as they are written.
    __device__ __forceinline__ void take_tile(unsigned values, const float* side) {
#pragma unroll 1
        for (int chunk = 0; chunk < BN / CHUNK; ++chunk) {
            fill(side + chunk * CHUNK);
            multiply(values + values_at(chunk), 0);
            ptx::fence_proxy_async();
            wait_products();
            add();
        }
        if constexpr (Body::POWERS_OF_2) {
            if (small && !seen) seen = all_of_group(fminf(largest[0], largest[1]) >= LEAST);
        }
    }
    // A tile by powers of 2.
    __device__ __forceinline__ void take_powers(unsigned values, const float* side) {
#pragma unroll 1
        for (int chunk = 0; chunk < BN / CHUNK; ++chunk) {
            fill_powers(side + chunk * CHUNK);
            multiply(values + values_at(chunk), chunk > 0);
            ptx::fence_proxy_async();  // while products are under way that costs nothing
            wait_products();
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) unit[h] = ptx::ex2_approx_ftz(level[h] - WIDE_LIFT);
        add();
    }

    __device__ __forceinline__ void consume() {
        const auto p = origin();
        fixed = Body::fixed(g, p);
        if constexpr (Body::POWERS_OF_2) factor = Body::scale(fixed, g.number);
        PipelineState<STAGES> state;
        Spans spans(score_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
            const i64 m0 = (i64)spans.row * BM;
            begin(m0);
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                const unsigned values = tiles + state.stage * Tile::BYTES;
                const float* side = sides + state.stage * SIDE;
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                bool powers = false;
                if constexpr (Body::POWERS_OF_2) {
                    powers = small && seen && side[SIDE - 4] != 0.0f;
                    if (powers != scaled) {
                        scaled = powers;
                        load_points(m0);
                    }
                }
                if (powers)
                    take_powers(values, side);
                else
                    take_tile(values, side);
                // The warp has read the stage, and its reads come before later copies.
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(barriers.empty(state.stage));
                state.advance();
                if (t % SCORE_RUN == SCORE_RUN - 1) Base::template flush_sums<false>(0);
            }
            const Share share = score_share<Tile>(g);
            Base::end(m0, 0, slot_of<Body, BM>(g.work, blockIdx.x, share.slot(spans.row), g.size[ROLE_L]), share.whole(spans.row));
        }
        if (infinite) atomicMax(g.list, ALL_BY_DIFFERENCES);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void apply_wide(const typename Body::Args& g) {
    run_rows<WideRows<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

// Rows of entries made of squared distances or inner products times many columns of v, on Hopper: both products on tensor cores,
// as three products of halves each, entries in registers in between.
//
// A thread of a producer warp keeps tiles of columns and rows of v coming through the copy engine. A consumer warpgroup has 64
// rows. While tensor cores multiply the entries of one tile with v, it makes those of the next from their products (score_rows.cuh)
// and takes them apart into the fragments that are multiplied next (value_rows.cuh). Warpgroups issue products in order.
#pragma once
#include "value_rows.cuh"

namespace km {

template <class Body, class Tile>
struct ColumnRows : ValueRows<Body, Tile> {
    typedef ValueRows<Body, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Tile::Layout Layout;
    typedef typename Tile::Points Points;
    static constexpr int COLUMNS = Tile::COLUMNS, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES, STAGE = Tile::STAGE;
    static constexpr int BM = Tile::BM, BN = Tile::BN;
    using Base::SIDE, Base::TAIL, Base::FRAGMENTS, Base::STEPS;
    using Base::g, Base::group, Base::lane, Base::factor, Base::fixed, Base::infinite, Base::weights, Base::weight_unit;
    using Base::passes, Base::multiply, Base::multiply_values, Base::add_values, Base::make_all, Base::pack_entries, Base::make_powers, Base::pack_powers;

    const float* sides;
    volatile int* ended;  // by stage: set where the producer gives up, so that what it announces is no tile
    unsigned rows, stages;
    PipelineBarriers<STAGES> barriers;
    PipelineBarriers<1> row_barriers;

    __device__ __forceinline__ ColumnRows(const Args& g_, unsigned char* raw)
        : Base(g_), sides((const float*)(raw + Tile::ROWS + STAGES * STAGE)) {
        rows = shared_address(raw);
        stages = rows + Tile::ROWS;
        barriers.at = stages + STAGES * (STAGE + SIDE * 4);
        row_barriers.at = barriers.at + barriers.BYTES;
        ended = (int*)(sides + STAGES * SIDE) + 4 * STAGES + 4;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) ended[i] = 0;
            barriers.initialise(1, 128 * GROUPS);
            row_barriers.initialise(1, 128 * GROUPS);
        }
        __syncthreads();
    }

    // Starts the copies of BN columns, of BN rows of v and of what travels with them.
    __device__ __forceinline__ void copy(const PipelineState<STAGES>& state, int t, const unsigned char* values) const {
        const int tile = t / Tile::PARTS, part = t % Tile::PARTS;
        const unsigned to = stages + state.stage * STAGE, bar = barriers.full(state.stage);
        ptx::mbarrier_arrive_expect_tx(bar, STAGE + SIDE * 4);
        const unsigned char* from = g.tiles[1] + (i64)tile * Points::BYTES + part * Layout::CHUNK;
#pragma unroll
        for (int i = 0; i < Layout::CHUNKS; ++i) ptx::cp_async_bulk(to + i * Layout::CHUNK, from + i * Points::CHUNK, Layout::CHUNK, bar);
        values += (i64)tile * Tile::BYTES + part * Tile::PIECE;
#pragma unroll
        for (int plane = 0; plane < 2; ++plane)
            ptx::cp_async_bulk(to + Layout::BYTES + plane * (Tile::VALUES / 2), values + plane * Tile::PLANE, Tile::VALUES / 2, bar);
        ptx::cp_async_bulk(stages + STAGES * STAGE + state.stage * (SIDE * 4), g.columns + (i64)tile * SIDE, SIDE * 4, bar);
    }

    // One thread.
    __device__ __forceinline__ void produce() const {
        const i64 across = ceil_div(g.size[ROLE_N], SCORE_ROWS);
        PipelineState<STAGES> state;
        state.phase = 1;
        unsigned phase = 1;
        const unsigned char* values = g.values;
#pragma unroll 1
        for (int pass = passes(); pass > 0; --pass, values += across * Tile::BYTES) {
            Spans spans(score_share<Tile>(g));
            while (spans.next()) {
                if constexpr (!FRAGMENTS) {
                    ptx::mbarrier_wait_parity(row_barriers.empty(0), phase);
                    ptx::mbarrier_arrive_expect_tx(row_barriers.full(0), Tile::ROWS);
                    ptx::cp_async_bulk(rows, g.tiles[0] + (i64)spans.row * Tile::ROWS, Tile::ROWS, row_barriers.full(0));
                    phase ^= 1;
                }
#pragma unroll 1
                for (int t = spans.begin; t < spans.end; ++t) {
                    ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
                    if (t % 8 == 0 && *(volatile const int*)g.list > most_differences(g.size[ROLE_M], g.size[ROLE_N])) {
                        ended[state.stage] = 1;
                        ptx::mbarrier_arrive(barriers.full(state.stage));
                        return;
                    }
                    copy(state, t, values);
                    state.advance();
                }
            }
        }
    }

    __device__ __forceinline__ unsigned values_of(int stage) const { return stages + stage * STAGE + Layout::BYTES; }
    // Whether its entries are powers of 2 that lack what the row gives.
    __device__ __forceinline__ bool make_tile(int stage, int t, i64 m0) {
        const float *side = sides + stage * SIDE + t % Tile::PARTS * BN, *tail = sides + stage * SIDE + TAIL;
        if constexpr (Body::POWERS_OF_2) {
            if (Base::has_small_squares(tail[1])) {
                make_powers(side, tail);
                return true;
            }
        }
        make_all(side, tail, t, m0);
        return false;
    }
    __device__ __forceinline__ void multiply_points(int stage) { multiply(stages + stage * STAGE, rows + group * (64 * Points::ROW)); }

    // Every thread that has read says so, and its reads come before later copies.
    __device__ __forceinline__ void release(int stage) const {
        ptx::fence_proxy_async();
        ptx::mbarrier_arrive(barriers.empty(stage));
    }
    __device__ __forceinline__ void pass_on() const { score_pass_issue(group + 1 == GROUPS ? 0 : group + 1); }

    // Before the first tile, entries of 0 are multiplied with its rows of v.
    __device__ __forceinline__ void begin(i64 m0, i64 first) {
        Base::begin_rows(m0);
        Base::template flush_sums<true>(first);
#pragma unroll
        for (int i = 0; i < 4 * STEPS; ++i) weights.high[i / 4][i % 4] = weights.low[i / 4][i % 4] = 0;
        weight_unit[0] = weight_unit[1] = 1.0f;
    }
    // Tiles of one row block times columns of v from `first` on; whether it came to the end.
    __device__ __forceinline__ bool consume_rows(const Spans& spans, PipelineState<STAGES>& state, i64 m0, i64 first) {
        int before = state.stage;
#pragma unroll 1
        for (int t = spans.begin; t < spans.end; ++t) {
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            if (ended[state.stage]) return false;
            score_await_issue(group);
            multiply_points(state.stage);
            multiply_values(values_of(before));
            pass_on();
            ptx::wgmma_wait_group<1>();
            Base::fence_scores();
            const bool powers = make_tile(state.stage, t, m0);
            add_values();
            if (t > spans.begin) release(before);
            if (t % SCORE_RUN == 0) Base::template flush_sums<false>(first);
            if (Body::POWERS_OF_2 && powers)
                pack_powers();
            else
                pack_entries();
            before = state.stage;
            state.advance();
        }
        score_await_issue(group);
        multiply_values(values_of(before));
        pass_on();
        add_values();
        release(before);
        if (!FRAGMENTS) ptx::mbarrier_arrive(row_barriers.empty(0));
        return true;
    }

    __device__ __forceinline__ void consume() {
        const auto p = origin();
        fixed = Body::fixed(g, p);
        factor = 1.0f;
        if constexpr (Body::SCALES) factor = Body::scale(fixed, g.number);
        PipelineState<STAGES> state;
        unsigned phase = 0;
        if (group == GROUPS - 1) score_pass_issue(0);
        const int last = passes();
#pragma unroll 1
        for (int pass = 0; pass < last; ++pass) {
            Spans spans(score_share<Tile>(g));
#pragma unroll 1
            while (spans.next()) {
                const i64 m0 = (i64)spans.row * BM;
                if constexpr (!FRAGMENTS) {
                    ptx::mbarrier_wait_parity(row_barriers.full(0), phase);
                    phase ^= 1;
                }
                begin(m0, pass * COLUMNS);
                if (!consume_rows(spans, state, m0, pass * COLUMNS)) {
                    if (group == 0) score_await_issue(0);
                    return;
                }
                const Share share = score_share<Tile>(g);
                Base::end(m0, pass * COLUMNS, slot_of<Body, BM>(g.work, blockIdx.x, share.slot(spans.row), g.size[ROLE_L]), share.whole(spans.row));
            }
        }
        if (group == 0) score_await_issue(0);
        if (infinite) atomicMax(g.list, ALL_BY_DIFFERENCES);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void apply_columns(const typename Body::Args& g) {
    run_rows<ColumnRows<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

// Rows of entries made of squared distances or inner products of many numbers times columns of v, on Hopper: both products on
// tensor cores, as three products of halves each, entries in registers in between.
//
// A thread of a producer warp keeps 64 positions at a time of rows and columns coming through the copy engine, and rows of v with
// each tile of columns. A consumer warpgroup has 64 rows and adds up their products with 128 columns in float32, then makes entries
// and multiplies them with v (value_rows.cuh). The other warpgroup keeps tensor cores busy meanwhile.
#pragma once
#include "deep_split.cuh"
#include "value_rows.cuh"

namespace km {

template <class Body, class Tile>
struct DeepRows : ValueRows<Body, Tile> {
    typedef ValueRows<Body, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Tile::Layout Layout;
    static constexpr int GROUPS = Tile::GROUPS, STAGES = Tile::STAGES, STAGE = Tile::STAGE, BM = Tile::BM, CELLS = Base::CELLS;
    using Base::SIDE, Base::TAIL, Base::g, Base::group, Base::lane, Base::score, Base::factor, Base::fixed, Base::infinite;
    using Base::passes;

    const float* side;
    volatile int* ended;  // by stage: set where the producer gives up, so that what it announces is no tile
    unsigned stages, values;
    PipelineBarriers<STAGES> barriers;
    PipelineBarriers<1> value_barriers;

    __device__ __forceinline__ DeepRows(const Args& g_, unsigned char* raw) : Base(g_), side((const float*)(raw + STAGES * STAGE + Tile::VALUES)) {
        stages = shared_address(raw);
        values = stages + STAGES * STAGE;
        barriers.at = values + Tile::VALUES + SIDE * 4;
        value_barriers.at = barriers.at + barriers.BYTES;
        ended = (int*)(side + SIDE) + 4 * STAGES + 4;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) ended[i] = 0;
            barriers.initialise(1, 4 * GROUPS);
            value_barriers.initialise(1, 128 * GROUPS);
        }
        __syncthreads();
    }

    // One thread. Rows of v come behind the first stages of their tile, which are free before those of the tile before are.
    __device__ __forceinline__ void produce() const {
        const i64 across = ceil_div(g.size[ROLE_N], SCORE_ROWS);
        const int deep = (int)deep_stages<Tile>(g);
        PipelineState<STAGES> state;
        state.phase = 1;
        unsigned phase = 1;
        const unsigned char* from = g.values;
#pragma unroll 1
        for (int pass = passes(); pass > 0; --pass, from += across * Tile::BYTES) {
            Spans spans(score_share<Tile>(g));
            while (spans.next()) {
#pragma unroll 1
                for (int t = spans.begin; t < spans.end; ++t) {
#pragma unroll 1
                    for (int k = 0; k < deep; ++k) {
                        const unsigned to = stages + state.stage * STAGE, bar = barriers.full(state.stage);
                        ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
                        if (k == 0 && *(volatile const int*)g.list > most_differences(g.size[ROLE_M], g.size[ROLE_N])) {
                            ended[state.stage] = 1;
                            ptx::mbarrier_arrive(bar);
                            return;
                        }
                        ptx::mbarrier_arrive_expect_tx(bar, STAGE);
                        ptx::cp_async_bulk(to, g.tiles[0] + ((i64)spans.row * deep + k) * Layout::BYTES, Layout::BYTES, bar);
                        ptx::cp_async_bulk(to + Layout::BYTES, g.tiles[1] + ((i64)t * deep + k) * Layout::BYTES, Layout::BYTES, bar);
                        state.advance();
                        if (k != (deep < STAGES ? deep : STAGES) - 1) continue;
                        ptx::mbarrier_wait_parity(value_barriers.empty(0), phase);
                        ptx::mbarrier_arrive_expect_tx(value_barriers.full(0), Tile::VALUES + SIDE * 4);
                        ptx::cp_async_bulk(values, from + (i64)t * Tile::BYTES, Tile::VALUES, value_barriers.full(0));
                        ptx::cp_async_bulk(values + Tile::VALUES, g.columns + (i64)t * SIDE, SIDE * 4, value_barriers.full(0));
                        phase ^= 1;
                    }
                }
            }
        }
    }

    // Products of the rows with a tile of columns; whether there was one.
    __device__ __forceinline__ bool multiply_tile(PipelineState<STAGES>& state, int deep) {
        float total[CELLS];
        clear(total);
#pragma unroll 1
        for (int k = 0; k < deep; ++k) {
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            if (k == 0 && ended[state.stage]) return false;
            const unsigned rows = stages + state.stage * STAGE;
            Base::multiply(rows + Layout::BYTES, rows + group * (64 * Layout::ROW));
            Base::wait_products();
            if (lane == 0) ptx::mbarrier_arrive(barriers.empty(state.stage));
            state.advance();
#pragma unroll
            for (int i = 0; i < CELLS; ++i) total[i] += score[i];
        }
#pragma unroll
        for (int i = 0; i < CELLS; ++i) score[i] = total[i];
        return true;
    }

    __device__ __forceinline__ void consume() {
        const auto p = origin();
        const int deep = (int)deep_stages<Tile>(g), last = passes();
        fixed = Body::fixed(g, p);
        factor = 1.0f;
        if constexpr (Body::SCALES) factor = Body::scale(fixed, g.number);
        PipelineState<STAGES> state;
        unsigned phase = 0;
#pragma unroll 1
        for (int pass = 0; pass < last; ++pass) {
            Spans spans(score_share<Tile>(g));
#pragma unroll 1
            while (spans.next()) {
                const i64 m0 = (i64)spans.row * BM;
                Base::begin_rows(m0);
                Base::template flush_sums<true>(pass * Tile::COLUMNS);
#pragma unroll 1
                for (int t = spans.begin; t < spans.end; ++t, phase ^= 1) {
                    if (!multiply_tile(state, deep)) return;
                    ptx::mbarrier_wait_parity(value_barriers.full(0), phase);
                    Base::make_all(side, side + TAIL, t, m0);
                    Base::pack_entries();
                    Base::multiply_values(values);
                    Base::add_values();
                    ptx::fence_proxy_async();  // what a thread has read comes before later copies
                    ptx::mbarrier_arrive(value_barriers.empty(0));
                    if (t % SCORE_RUN == SCORE_RUN - 1) Base::template flush_sums<false>(pass * Tile::COLUMNS);
                }
                const Share share = score_share<Tile>(g);
                Base::end(m0, pass * Tile::COLUMNS, slot_of<Body, BM>(g.work, blockIdx.x, share.slot(spans.row), g.size[ROLE_L]), share.whole(spans.row));
            }
        }
        if (infinite) atomicMax(g.list, ALL_BY_DIFFERENCES);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void apply_deep(const typename Body::Args& g) {
    run_rows<DeepRows<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

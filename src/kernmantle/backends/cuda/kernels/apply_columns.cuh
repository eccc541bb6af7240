// Rows of entries made of squared distances or inner products times many columns of v, on Hopper: both products on tensor cores,
// as three products of halves each, entries in registers in between.
//
// A thread of a producer warp keeps tiles of columns and rows of v coming through the copy engine. A consumer warpgroup has 64
// rows. While tensor cores multiply the entries of one tile with v, it makes those of the next from their products (score_rows.cuh),
// brings each row's largest to 2^14 .. 2^15 and takes them apart into the fragments that are multiplied next. What comes out of a
// tile is added up in float32, as tensor cores cut what they add. Warpgroups issue products in order.
#pragma once
#include "columns_split.cuh"
#include "fragments.cuh"

namespace km {

template <class Body, class Tile>
struct ColumnRows : ScoreRows<Body, Tile> {
    typedef ScoreRows<Body, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Body::State State;
    typedef typename Tile::Layout Layout;
    typedef typename Tile::Points Points;
    static constexpr int COLUMNS = Tile::COLUMNS, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES, STAGE = Tile::STAGE;
    static constexpr int BM = Tile::BM, BN = Tile::BN, STEPS = BN / 16;
    // Many columns are multiplied in two parts, one after the other, so that their products take half of the registers.
    static constexpr int HALVES = COLUMNS > 96 ? 2 : 1, PART = COLUMNS / HALVES;
    using Base::SIDE, Base::TAIL, Base::CELLS, Base::WHOLE, Base::FRAGMENTS;
    using Base::g, Base::group, Base::warp, Base::lane, Base::score, Base::bound, Base::factor, Base::unit, Base::fixed, Base::gives_up;
    using Base::local_row, Base::multiply, Base::finish_products, Base::loses_digits, Base::correct, Base::make_entries;

    const float* sides;
    volatile int* ended;  // by stage: set where the producer gives up, so that what it announces is no tile
    unsigned rows, stages, full, empty, rows_full, rows_empty;
    float sum[COLUMNS / 8][4], product[PART / 8][4];
    Fragments<STEPS, true> weights;
    float weight_unit[2];
    bool infinite;

    __device__ __forceinline__ ColumnRows(const Args& g_, unsigned char* raw)
        : Base(g_), sides((const float*)(raw + Tile::ROWS + STAGES * STAGE)), infinite(false) {
        rows = shared_address(raw);
        stages = rows + Tile::ROWS;
        full = stages + STAGES * (STAGE + SIDE * 4);
        empty = full + 8 * STAGES;
        rows_full = empty + 8 * STAGES;
        rows_empty = rows_full + 8;
        ended = (int*)(sides + STAGES * SIDE) + 4 * STAGES + 4;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                ended[i] = 0;
                ptx::mbarrier_init(full + 8 * i, 1);
                ptx::mbarrier_init(empty + 8 * i, 4 * GROUPS);
            }
            ptx::mbarrier_init(rows_full, 1);
            ptx::mbarrier_init(rows_empty, 4 * GROUPS);
            ptx::fence_mbarrier_init();
        }
        __syncthreads();
    }

    // Number of passes over the columns of v.
    __device__ __forceinline__ int passes() const { return (int)ceil_div(g.size[ROLE_L], COLUMNS); }

    // Starts the copies of BN columns, of BN rows of v and of what travels with them.
    __device__ __forceinline__ void copy(const Stage<STAGES>& stage, int t, const unsigned char* values) const {
        const int tile = t / Tile::PARTS, part = t % Tile::PARTS;
        const unsigned to = stages + stage.at * STAGE, bar = full + 8 * stage.at;
        ptx::mbarrier_arrive_expect_tx(bar, STAGE + SIDE * 4);
        const unsigned char* from = g.tiles[1] + (i64)tile * Points::BYTES + part * Layout::CHUNK;
#pragma unroll
        for (int i = 0; i < Layout::CHUNKS; ++i) ptx::cp_async_bulk(to + i * Layout::CHUNK, from + i * Points::CHUNK, Layout::CHUNK, bar);
        values += (i64)tile * Tile::BYTES + part * Tile::PIECE;
#pragma unroll
        for (int plane = 0; plane < 2; ++plane)
            ptx::cp_async_bulk(to + Layout::BYTES + plane * (Tile::VALUES / 2), values + plane * Tile::PLANE, Tile::VALUES / 2, bar);
        ptx::cp_async_bulk(stages + STAGES * STAGE + stage.at * (SIDE * 4), g.columns + (i64)tile * SIDE, SIDE * 4, bar);
    }

    // One thread.
    __device__ __forceinline__ void produce() const {
        const i64 across = ceil_div(g.size[ROLE_N], SCORE_ROWS);
        Stage<STAGES> stage;
        stage.phase = 1;
        unsigned phase = 1;
        const unsigned char* values = g.values;
#pragma unroll 1
        for (int pass = passes(); pass > 0; --pass, values += across * Tile::BYTES) {
            Spans spans(score_share<Tile>(g));
            while (spans.next()) {
                if constexpr (!FRAGMENTS) {
                    ptx::mbarrier_wait_parity(rows_empty, phase);
                    ptx::mbarrier_arrive_expect_tx(rows_full, Tile::ROWS);
                    ptx::cp_async_bulk(rows, g.tiles[0] + (i64)spans.row * Tile::ROWS, Tile::ROWS, rows_full);
                    phase ^= 1;
                }
#pragma unroll 1
                for (int t = spans.begin; t < spans.end; ++t) {
                    ptx::mbarrier_wait_parity(empty + 8 * stage.at, stage.phase);
                    if (t % 8 == 0 && *(volatile const int*)g.list > most_differences(g.size[ROLE_M], g.size[ROLE_N])) {
                        ended[stage.at] = 1;
                        ptx::mbarrier_arrive(full + 8 * stage.at);
                        return;
                    }
                    copy(stage, t, values);
                    stage.advance();
                }
            }
        }
    }

    __device__ __forceinline__ void multiply_points(int stage) { multiply(stages + stage * STAGE, rows + group * (64 * Points::ROW)); }

    // Starts the products of the fragments with a part of the columns of rows of v, small ones first.
    __device__ __forceinline__ void multiply_values(int stage, int part) {
        const unsigned high = stages + stage * STAGE + Layout::BYTES + part * (PART * 128), low = high + Tile::VALUES / 2;
        fence_accumulators(product);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.high[s], value_matrix(low, s), s > 0);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.low[s], value_matrix(high, s), 1);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.high[s], value_matrix(high, s), 1);
        ptx::wgmma_commit_group();
    }
    static __device__ __forceinline__ unsigned long long value_matrix(unsigned plane, int step) {
        return ptx::wgmma_descriptor(plane + step / 4 * Tile::PIECE + step % 4 * 32, 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
    }
    __device__ __forceinline__ void settle_values() {
        ptx::wgmma_wait_group<0>();
        fence_accumulators(product);
    }
    __device__ __forceinline__ void add(int part) {
#pragma unroll
        for (int i = 0; i < PART / 2; ++i) {
            float& to = sum[part * (PART / 8) + i / 4][i % 4];
            to = fmaf(product[i / 4][i % 4], weight_unit[i / 2 % 2], to);
        }
    }
    // Adds the products that are under way, and those of the other columns.
    __device__ __forceinline__ void add_values(int stage) {
        settle_values();
        add(0);
        if constexpr (HALVES == 2) {
            multiply_values(stage, 1);
            settle_values();
            add(1);
        }
    }

    // Entries of a tile, in the place of its products; what lost digits there is taken by differences.
    __device__ __forceinline__ void make_all(int stage, int t, i64 m0) {
        const float* side = sides + stage * SIDE + t % Tile::PARTS * BN;
        const float2 of_tile = *(const float2*)(sides + stage * SIDE + TAIL);
        float least[2][2] = {{infinity<float>(), infinity<float>()}, {infinity<float>(), infinity<float>()}};
#pragma unroll
        for (int block = 0; block < BN / 8; ++block) finish_products(side, block, unit * of_tile.x, least);
        if (__any_sync(WHOLE, loses_digits(of_tile.y, least)) && !gives_up) correct(side, of_tile.x, m0, (i64)t * BN);
#pragma unroll
        for (int block = 0; block < BN / 8; ++block) make_entries(side, block);
    }

    // What brings the entries of both rows to halves.
    __device__ __forceinline__ void scale_entries(float (&scale)[2], float (&inverse)[2]) {
        float most[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
        for (int i = 0; i < CELLS; ++i) most[i / 2 % 2][i % 2] = fmaxf(most[i / 2 % 2][i % 2], fabsf(score[i]));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float top = fmaxf(most[h][0], most[h][1]);
            top = fmaxf(top, __shfl_xor_sync(WHOLE, top, 1));
            top = fmaxf(top, __shfl_xor_sync(WHOLE, top, 2));
            infinite |= top == infinity<float>() && bound[h] != -infinity<float>();
            const HalfScale own = HalfScale::of_largest(top);
            scale[h] = own.scale;
            inverse[h] = own.inverse;
        }
    }

    __device__ __forceinline__ void end(i64 m0, i64 first, State* slot, bool whole) const {
        const auto p = origin();
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int local = local_row() + i / 2 * 8;
                const i64 c = first + 8 * j + lane % 4 * 2 + i % 2;
                if (m0 + local >= g.size[ROLE_M] || c >= g.size[ROLE_L]) continue;
                const State mine = {sum[j][i] * HalfScale::of_largest(__int_as_float(g.list[LARGEST_AT + c])).inverse};
                if (whole)
                    write_result<Body>(g, p, m0 + local, c, mine);
                else
                    slot[c * BM + local] = mine;
            }
    }

    __device__ __forceinline__ void pass_on() const { score_pass_issue(group + 1 == GROUPS ? 0 : group + 1); }

    // Before the first tile, entries of 0 are multiplied with its rows of v.
    __device__ __forceinline__ void begin(i64 m0) {
        Base::begin_rows(m0);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sum[i / 4][i % 4] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4 * STEPS; ++i) weights.high[i / 4][i % 4] = weights.low[i / 4][i % 4] = 0;
        weight_unit[0] = weight_unit[1] = 1.0f;
    }
    // Tiles of one row block; whether it came to the end.
    __device__ __forceinline__ bool consume_rows(const Spans& spans, Stage<STAGES>& stage, i64 m0) {
        int before = stage.at;
#pragma unroll 1
        for (int t = spans.begin; t < spans.end; ++t) {
            ptx::mbarrier_wait_parity(full + 8 * stage.at, stage.phase);
            if (ended[stage.at]) return false;
            score_await_issue(group);
            multiply_points(stage.at);
            multiply_values(before, 0);
            pass_on();
            ptx::wgmma_wait_group<1>();
            Base::fence_scores();
            if constexpr (HALVES == 1) make_all(stage.at, t, m0);
            add_values(before);
            if constexpr (HALVES == 2) make_all(stage.at, t, m0);
            if (t > spans.begin && lane == 0) ptx::mbarrier_arrive(empty + 8 * before);
            float scale[2];
            scale_entries(scale, weight_unit);
            pack_fragments<f16>(weights, reinterpret_cast<const float(&)[2 * STEPS][4]>(score), scale);
            before = stage.at;
            stage.advance();
        }
        score_await_issue(group);
        multiply_values(before, 0);
        pass_on();
        add_values(before);
        if (lane == 0) {
            ptx::mbarrier_arrive(empty + 8 * before);
            if (!FRAGMENTS) ptx::mbarrier_arrive(rows_empty);
        }
        return true;
    }

    __device__ __forceinline__ void consume() {
        const auto p = origin();
        fixed = Body::fixed(g, p);
        factor = 1.0f;
        if constexpr (Body::SCALES) factor = Body::scale(fixed, g.number);
        Stage<STAGES> stage;
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
                    ptx::mbarrier_wait_parity(rows_full, phase);
                    phase ^= 1;
                }
                begin(m0);
                if (!consume_rows(spans, stage, m0)) {
                    if (group == 0) score_await_issue(0);
                    return;
                }
                const Share share = score_share<Tile>(g);
                end(m0, pass * COLUMNS, slot_of<Body, BM>(g.work, blockIdx.x, share.slot(spans.row), g.size[ROLE_L]), share.whole(spans.row));
            }
        }
        if (group == 0) score_await_issue(0);
        if (infinite) atomicMax(g.list, ALL_BY_DIFFERENCES);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void apply_columns(const typename Body::Args& g) {
    extern __shared__ __align__(1024) unsigned char raw[];
    if (__syncthreads_or(uses_differences(g.list, g.size[ROLE_M], g.size[ROLE_N]))) return;
    ColumnRows<Body, Tile> task(g, raw);
    task.prepare();
    if (task.group == Tile::GROUPS) {
        ptx::setmaxnreg_dec<PRODUCER>();
        if (threadIdx.x == 128 * Tile::GROUPS) task.produce();
    } else {
        ptx::setmaxnreg_inc<CONSUMER>();
        task.consume();
    }
}

}  // namespace km

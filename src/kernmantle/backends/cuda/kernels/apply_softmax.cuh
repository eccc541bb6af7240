// Softmax-weighted sums of the rows of v in one pass, on Hopper: scores of q and k and products of weights with v by tensor
// cores, weights in registers, with the running largest entry and sum of every row (Milakov and Gimelshein 2018; Dao 2023).
//
// A thread of a producer warp keeps tiles of columns coming through the copy engine. A consumer warpgroup has 64 rows: while
// tensor cores multiply the weights of one tile with v, the scores of the next become weights. Warpgroups issue products in
// phase, so that one multiplies while others make weights. Entries, which the exponential is taken of, are times log2(e).
#pragma once
#include "softmax_block.cuh"
#include "softmax_split.cuh"

namespace km {

template <class Body, class Tile>
using RowsBlock = SoftmaxBlock<Tile::GROUPS * Tile::QUERY, Tile::KEY + Tile::VALUE, softmax_side<Body, Tile>(), Tile::STAGES, Tile::GROUPS,
                               (softmax_side<Body, Tile>() > 0)>;

template <class Body, class Tile>
struct SoftmaxRows : RowsBlock<Body, Tile> {
    typedef RowsBlock<Body, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Tile::H H;
    static constexpr int E = Tile::E, C = Tile::C, BN = Tile::BN, BM = Tile::BM, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES;
    static constexpr int SIDE = softmax_side<Body, Tile>(), STAGE = Tile::KEY + Tile::VALUE;
    static constexpr bool SPLIT = Tile::SPLIT;
    using Base::sides, Base::own, Base::stages, Base::barriers, Base::own_barriers;
    using Base::group, Base::warp, Base::lane, Base::local_row;

    const Args& g;
    float score[BN / 8][4], sum[C / 8][4], product[SPLIT ? C / 8 : 1][4];
    Fragments<BN / 16, SPLIT> weights;
    float most[2], total[2], unit, norm[2];
    float row_ends[AtLeastOne<Body::ROW_ENDS>::value][2];
    CellRows<Body, ROLE_M, ROLE_N> cells;
    typename Body::Fixed fixed;

    __device__ __forceinline__ SoftmaxRows(const Args& g_, unsigned char* raw) : Base(raw), g(g_) {}

    __device__ __forceinline__ i64 blocks() const { return batches(g) * ceil_div(g.size[ROLE_M], BM); }

    // One thread.
    __device__ __forceinline__ void produce() const {
        const i64 across = ceil_div(g.size[ROLE_N], BN), down = ceil_div(g.size[ROLE_M], BM), all = blocks();
        PipelineState<STAGES> state;
        state.phase = 1;
        unsigned phase = 1;
#pragma unroll 1
        for (i64 t = blockIdx.x; t < all; t += gridDim.x, phase ^= 1) {
            const RowBlock b = row_block<Tile>(g, t);
            ptx::mbarrier_wait_parity(own_barriers.empty(0), phase);
            ptx::mbarrier_arrive_expect_tx(own_barriers.full(0), GROUPS * Tile::QUERY);
            ptx::cp_async_bulk(own, g.queries + (b.entry * down + b.row) * (GROUPS * Tile::QUERY), GROUPS * Tile::QUERY, own_barriers.full(0));
            const int count = columns_seen<Tile>(g, b.p.m);
            i64 at = b.entry * across;
#pragma unroll 1
            for (int n = 0; n < count; ++n, ++at)
                Base::fill(state, g.keys + at * Tile::KEY, Tile::KEY, g.values + at * Tile::VALUE, Tile::VALUE, g.sides + at * SIDE);
        }
    }

    // Products of the rows of q and k of these planes.
    __device__ __forceinline__ void multiply_scores(unsigned mine, unsigned keys, int plane_q, int plane_k, int keep) {
#pragma unroll
        for (int s = 0; s < E / 16; ++s)
            ptx::wgmma_ss(H(), score, rows_matrix(mine + plane_q * Tile::QUERY_PLANE + s / 4 * (64 * 128)) + s % 4 * 2,
                          rows_matrix(keys + plane_k * Tile::KEY_PLANE + s / 4 * (BN * 128)) + s % 4 * 2, keep | (s > 0));
    }
    __device__ __forceinline__ void start_scores(int stage) {
        const unsigned mine = own + group * Tile::QUERY, keys = stages + stage * STAGE;
        fence_accumulators(score);
        ptx::wgmma_fence();
        if (SPLIT) {
            multiply_scores(mine, keys, 0, 1, 0);
            multiply_scores(mine, keys, 1, 0, 1);
        }
        multiply_scores(mine, keys, 0, 0, SPLIT);
        ptx::wgmma_commit_group();
    }

    // Products of the weights with the rows of v: added to the sums, or, of float32, alone, as tensor cores cut what they add.
    __device__ __forceinline__ void start_sums(int stage) {
        const unsigned values = stages + stage * STAGE + Tile::KEY;
        if constexpr (SPLIT) {
            fence_accumulators(product);
            ptx::wgmma_fence();
#pragma unroll
            for (int s = 0; s < BN / 16; ++s) ptx::wgmma_rs(H(), product, weights.high[s], rows_matrix(values + Tile::VALUE_PLANE + s / 4 * (C * 128)) + s % 4 * 2, s > 0);
#pragma unroll
            for (int s = 0; s < BN / 16; ++s) ptx::wgmma_rs(H(), product, weights.low[s], rows_matrix(values + s / 4 * (C * 128)) + s % 4 * 2, 1);
#pragma unroll
            for (int s = 0; s < BN / 16; ++s) ptx::wgmma_rs(H(), product, weights.high[s], rows_matrix(values + s / 4 * (C * 128)) + s % 4 * 2, 1);
        } else {
            fence_accumulators(sum);
            ptx::wgmma_fence();
#pragma unroll
            for (int s = 0; s < BN / 16; ++s) ptx::wgmma_rs(H(), sum, weights.high[s], rows_matrix(values + s / 4 * (C * 128)) + s % 4 * 2, 1);
        }
        ptx::wgmma_commit_group();
    }
    // What was multiplied, and the stage it came from, which is free then.
    __device__ __forceinline__ void finish_sums(int stage) {
        if constexpr (SPLIT) {
            const float one[2] = {1.0f, 1.0f};
            fence_accumulators(product);
            add_by_columns(sum, product, sides + stage * SIDE + BN * (Body::COLUMN_ENDS + Body::DIFFERENCES) + lane % 4 * 2, one);
        } else {
            fence_accumulators(sum);
        }
        Base::release(stage);
    }

    // Entries of tile n in the place of scores, then weights: `left` columns of the two rows count; `scale`: of their sums
    // so far.
    __device__ __forceinline__ void weigh(int stage, int n, const RowBlock& b, const int (&left)[2], float (&scale)[2]) {
        const float* side = sides + stage * SIDE;
        float c = 1.0f;
        if (SPLIT) c = unit * side[SIDE - 4];
        if constexpr (Body::DIFFERENCES)
            make_differences<Body, SPLIT, ROLE_M>(
                score, norm, side + BN * Body::COLUMN_ENDS + lane % 4 * 2, c, g, b.p, b.p.m + local_row(), n * BN + lane % 4 * 2);
        each_entry<Body, false, SPLIT && !Body::DIFFERENCES, BN>(
            score, row_ends, side + lane % 4 * 2, c, cells, g, n * BN + lane % 4 * 2,
            [&](int j, int i, const float* rows, const float* columns, const float* cell, const typename Body::Registers& s) {
                score[j][i] = Body::entry(fixed, g.number, rows, columns, cell, s);
            });
        const int zero[2] = {0, 0};
        if (left[0] < BN || left[1] < BN) hide_columns(score, zero, left, -infinity<float>());
        const float lift[2] = {LIFT<H>, LIFT<H>};
        make_weights(score, most, total, scale, lift);
    }
    __device__ __forceinline__ void begin(const RowBlock& b) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            most[h] = -infinity<float>();
            total[h] = 0.0f;
            each<0, Body::ROW_ENDS>([&](auto index) {
                row_ends[decltype(index)::value][h] =
                    end_value<typename Body::template RowEnd<decltype(index)::value>, float>(g, b.p, b.p.m + local_row() + 8 * h, g.size[ROLE_M], ROLE_M);
            });
        }
        const float* side = g.query_units + ((b.entry * ceil_div(g.size[ROLE_M], BM) + b.row) * GROUPS + group) * query_side<Body>();
        if (SPLIT) unit = *side;
        if constexpr (Body::DIFFERENCES) {
#pragma unroll
            for (int h = 0; h < 2; ++h) norm[h] = side[QUERY_NORMS + 16 * warp + lane / 4 + 8 * h];
        }
        fixed = Body::fixed(g, b.p);
        cells.begin(g, b.p, b.p.m + local_row());
        clear(sum);
    }
    // Results, and the logarithms of the rows' sums.
    __device__ __forceinline__ void end(const RowBlock& b) const {
        typedef typename Body::Result R;
        typedef typename R::T T;
        const i64* s = g.stride[R::BUFFER];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float all = quad_sum(total[h]);
            const i64 m = b.p.m + local_row() + 8 * h;
            if (m >= g.size[ROLE_M]) continue;
            const float inverse = write_total<typename Body::Statistic>(g, b.p, m, all, most[h], LIFT<H>);
            T* to = (T*)g.pointer[R::BUFFER] + batch_offset(g, R::BUFFER, b.p) + m * s[ROLE_M];
#pragma unroll
            for (int j = 0; j < C / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int c = 8 * j + lane % 4 * 2 + e;
                    if (c < g.size[ROLE_L]) to[c * s[ROLE_L]] = Store<T>::from(sum[j][2 * h + e] * inverse);
                }
        }
    }

    __device__ __forceinline__ void consume() {
        PipelineState<STAGES> state;
        unsigned phase = 0;
        const i64 all = blocks();
        if (group == GROUPS - 1) score_pass_issue(0);
#pragma unroll 1
        for (i64 t = blockIdx.x; t < all; t += gridDim.x, phase ^= 1) {
            const RowBlock b = row_block<Tile>(g, t);
            begin(b);
            const int count = columns_seen<Tile>(g, b.p.m);
            const float none[2] = {1.0f, 1.0f};
            float scale[2];
            int left[2];
            ptx::mbarrier_wait_parity(own_barriers.full(0), phase);
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            score_await_issue(group);
            start_scores(state.stage);
            score_pass_issue(group + 1 == GROUPS ? 0 : group + 1);
            ptx::wgmma_wait_group<0>();
            fence_accumulators(score);
            columns_left<Tile>(left, g, b.p.m + local_row(), 0);
            weigh(state.stage, 0, b, left, scale);
            pack_fragments<H>(weights, score, none);
            int before = state.stage;
            state.advance();
#pragma unroll 1
            for (int n = 1; n < count; ++n) {
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                score_await_issue(group);
                start_scores(state.stage);
                start_sums(before);
                score_pass_issue(group + 1 == GROUPS ? 0 : group + 1);
                ptx::wgmma_wait_group<1>();
                fence_accumulators(score);
                columns_left<Tile>(left, g, b.p.m + local_row(), n * BN);
                weigh(state.stage, n, b, left, scale);
                ptx::wgmma_wait_group<0>();
                finish_sums(before);
#pragma unroll
                for (int i = 0; i < C / 2; ++i) sum[i / 4][i % 4] *= scale[i / 2 % 2];
                pack_fragments<H>(weights, score, none);
                before = state.stage;
                state.advance();
            }
            Base::release_own();
            start_sums(before);
            ptx::wgmma_wait_group<0>();
            finish_sums(before);
            end(b);
        }
        if (group == 0) score_await_issue(0);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void apply_softmax(const typename Body::Args& g) {
    run_specialized<SoftmaxRows<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

// Tangents of softmax-weighted sums on Hopper, without the weights: scores and their tangents are made by tensor cores, tile
// after tile, as in apply_softmax.cuh, and the sums with them, where they are not there yet.
//
// With weights p, results o and tangents dq, dk and dv a score has the tangent d = dq k + q dk, times the slope of its entry,
// and the result sum p (d v + dv) - (sum p d) o; of squared distances d is the tangent of both squares less 2 d. Both sums are of the same rounded p d, so that what is rounded counts by the
// distance of v from o. Where the logarithms of the rows' sums are known nothing runs ahead; else weights are of the largest
// entry so far, as in apply_softmax.cuh.
#pragma once
#include "jvp_softmax_split.cuh"
#include "softmax_block.cuh"

namespace km {

template <class Body, class Tile>
using SoftmaxJvpBlock = SoftmaxBlock<Tile::OWN, Tile::STAGE, jvp_column_side<Body, Tile>(), Tile::STAGES, Tile::GROUPS, (jvp_column_side<Body, Tile>() > 0)>;

template <class Body, class Tile>
struct SoftmaxJvp : SoftmaxJvpBlock<Body, Tile> {
    typedef SoftmaxJvpBlock<Body, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Tile::H H;
    static constexpr int E = Tile::E, C = Tile::C, BN = 64, BM = Tile::BM, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES;
    static constexpr bool SPLIT = Tile::SPLIT, LIFTED = Tile::LIFTED, IN_REGISTERS = Tile::IN_REGISTERS, BOTH = Tile::BOTH;
    static constexpr int KEY = Tile::KEY, VALUE = Tile::VALUE, STAGE = Tile::STAGE, SIDE = jvp_column_side<Body, Tile>(), OWN_SIDE = jvp_row_side<Body>();
    static constexpr float LN2 = 0.693147181f, LIFTED_BY = 1 << LIFT<H>;

    using Base::sides, Base::own, Base::stages, Base::barriers, Base::own_barriers;
    using Base::group, Base::warp, Base::lane, Base::local_row;

    const Args& g;
    float score[BN / 8][4], slope[BN / 8][4], sum[C / 8][4];
    float part[SPLIT ? BN / 8 : 1][4], result[BOTH ? C / 8 : 1][4];
    unsigned rows[IN_REGISTERS ? E / 16 : 1][4], moves[IN_REGISTERS ? E / 16 : 1][4];
    Fragments<BN / 16, SPLIT> weights, slopes;
    float own_unit[2], row_unit[2], moved[2], log[2], norm[2], norm_moved[2];
    float most[2], total[2], scale[2];  // of both
    float lift[2];  // of weights and slopes of halves, in bits
    float ends[AtLeastOne<Body::ROW_ENDS>::value][2];
    CellRows<Body, ROLE_M, ROLE_N> cells;
    typename Body::Fixed fixed;

    __device__ __forceinline__ SoftmaxJvp(const Args& g_, unsigned char* raw) : Base(raw), g(g_) {}

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
            if (!IN_REGISTERS) {
                ptx::mbarrier_wait_parity(own_barriers.empty(0), phase);
                ptx::mbarrier_arrive_expect_tx(own_barriers.full(0), Tile::OWN);
                ptx::cp_async_bulk(own, g.queries + (b.entry * down + b.row) * (GROUPS * 2 * KEY), Tile::OWN, own_barriers.full(0));
            }
            const int count = columns_seen<Tile>(g, b.p.m);
            i64 at = b.entry * across;
#pragma unroll 1
            for (int n = 0; n < count; ++n, ++at)
                Base::fill(state, g.keys + at * (2 * KEY), 2 * KEY, g.values + at * (2 * VALUE), 2 * VALUE, g.column_sides + at * SIDE);
        }
    }

    // d = (keep ? d : 0) + own rows times the rows of a stage.
    __device__ __forceinline__ void multiply_rows(float (&d)[BN / 8][4], const unsigned (&fragments)[IN_REGISTERS ? E / 16 : 1][4], unsigned mine, unsigned theirs, int keep) {
        constexpr int PLANE = Tile::KEY_PLANE;
#pragma unroll
        for (int product = SPLIT ? 0 : 2; product < 3; ++product)
#pragma unroll
            for (int s = 0; s < E / 16; ++s) {
                const unsigned at = s / 4 * (64 * 128);
                const unsigned long long to = rows_matrix(theirs + (product == 0 ? PLANE : 0) + at) + s % 4 * 2;
                const int added = keep | (s > 0 || (SPLIT && product > 0));
                if constexpr (IN_REGISTERS)
                    ptx::wgmma_rs(H(), d, fragments[s], to, added);
                else
                    ptx::wgmma_ss(H(), d, rows_matrix(mine + (product == 1 ? PLANE : 0) + at) + s % 4 * 2, to, added);
            }
    }
    // Scores, then their tangents; those of float32 in two parts, which have other units.
    __device__ __forceinline__ void start_scores(int stage) {
        const unsigned mine = own + group * (2 * KEY), theirs = stages + stage * STAGE;
        fence_accumulators(score);
        fence_accumulators(slope);
        if constexpr (SPLIT) fence_accumulators(part);
        ptx::wgmma_fence();
        multiply_rows(score, rows, mine, theirs, 0);
        ptx::wgmma_commit_group();
        multiply_rows(slope, moves, mine + KEY, theirs, 0);
        if constexpr (SPLIT) {
            ptx::wgmma_commit_group();
            multiply_rows(part, rows, mine, theirs + KEY, 0);
        } else {
            multiply_rows(slope, rows, mine, theirs + KEY, 1);
        }
        ptx::wgmma_commit_group();
    }

    // d += fragments times the columns of a stage.
    template <int BLOCKS>
    __device__ __forceinline__ void multiply_columns(float (&d)[BLOCKS][4], const unsigned (&from)[BN / 16][4], unsigned theirs, int keep) {
#pragma unroll
        for (int s = 0; s < BN / 16; ++s) ptx::wgmma_rs(H(), d, from[s], rows_matrix(theirs) + s * 2, keep | (s > 0));
    }
    __device__ __forceinline__ void fence_sums() {
        fence_accumulators(sum);
        if constexpr (BOTH) fence_accumulators(result);
    }
    // Of halves: adds to the sums, which are under way then.
    __device__ __forceinline__ void start_sums(int stage) {
        const unsigned values = stages + stage * STAGE + 2 * KEY;
        fence_sums();
        ptx::wgmma_fence();
        if constexpr (BOTH) multiply_columns(result, weights.high, values, 1);
        multiply_columns(sum, weights.high, values + VALUE, 1);
        multiply_columns(sum, slopes.high, values, 1);
        ptx::wgmma_commit_group();
    }
    // Of float32: products of high and low halves from zero, of 64 columns at a time, then added in float32, as tensor cores
    // cut what they add.
    __device__ __forceinline__ void add_product(const Fragments<BN / 16, SPLIT>& from, unsigned values, const float* units, const float (&scale)[2]) {
#pragma unroll
        for (int piece = 0; piece < C / 64; ++piece) {
            fence_accumulators(part);
            ptx::wgmma_fence();
            multiply_columns(part, from.high, values + Tile::VALUE_PLANE + piece * (64 * 128), 0);
            if constexpr (SPLIT) multiply_columns(part, from.low, values + piece * (64 * 128), 1);
            multiply_columns(part, from.high, values + piece * (64 * 128), 1);
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group<0>();
            fence_accumulators(part);
            add_by_columns(reinterpret_cast<float(&)[8][4]>(sum[8 * piece]), part, units + 64 * piece + lane % 4 * 2, scale);
        }
    }
    __device__ __forceinline__ void add_sums(int stage) {
        const float* units = sides + stage * SIDE + 64 * (Body::COLUMN_ENDS + 2 * Body::DIFFERENCES);
        const unsigned values = stages + stage * STAGE + 2 * KEY;
        const float unlifted[2] = {1.0f / LIFTED_BY, 1.0f / LIFTED_BY};
        add_product(weights, values + VALUE, units + C, unlifted);
        add_product(slopes, values, units, row_unit);
    }

    // Weights of tile n in the place of scores, their tangents in the place of those of scores, in two steps: `settled` is
    // called between them.
    template <class Settled>
    __device__ __forceinline__ void make_tile(int stage, int n, const RowBlock& b, const Settled& settled) {
        const float* side = sides + stage * SIDE;
        const int none[2] = {0, 0};
        int left[2];
        columns_left<Tile>(left, g, b.p.m + local_row(), n * BN);
        fence_accumulators(score);
        float c = 1.0f, factor = LN2, steep[BN / 8][Body::CONSTANT_SLOPE ? 1 : 4];
        if (SPLIT) c = own_unit[0] * side[SIDE - 4];
        if constexpr (Body::CONSTANT_SLOPE) factor *= Body::constant_slope(fixed, g.number);
        const float* norms = side + 64 * Body::COLUMN_ENDS + lane % 4 * 2;
        if constexpr (Body::DIFFERENCES) make_differences<Body, SPLIT, ROLE_M>(score, norm, norms, c, g, b.p, b.p.m + local_row(), n * BN + lane % 4 * 2);
        each_entry<Body, false, SPLIT && !Body::DIFFERENCES, 64>(
            score, ends, side + lane % 4 * 2, c, cells, g, n * BN + lane % 4 * 2,
            [&](int j, int i, const float* mine, const float* columns, const float* cell, const typename Body::Registers& s) {
                const float entry = Body::entry(fixed, g.number, mine, columns, cell, s);
                if constexpr (!Body::CONSTANT_SLOPE) steep[j][i] = Body::slope(fixed, g.number, mine, columns, cell, s);
                score[j][i] = BOTH ? entry : ptx::ex2_approx_ftz(entry - log[i / 2]);
            });
        const bool whole = left[0] >= BN && left[1] >= BN;
        if (!whole) hide_columns(score, none, left, BOTH ? -infinity<float>() : 0.0f);
        if constexpr (BOTH) make_weights(score, most, total, scale, lift);
        settled();
        fence_accumulators(slope);
        if constexpr (SPLIT) fence_accumulators(part);
        float first = 1.0f, second = 1.0f;
        if (SPLIT) {
            first = own_unit[1] * side[SIDE - 4];
            second = own_unit[0] * side[SIDE - 3];
        }
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) {
            float& mine = slope[i / 4][i % 4];
            if (SPLIT) mine = fmaf(mine, first, part[SPLIT ? i / 4 : 0][i % 4] * second);
            if constexpr (Body::DIFFERENCES) mine = fmaf(-2.0f, mine, norm_moved[i / 2 % 2] + norms[64 + i / 4 * 8 + i % 2]);
            mine = score[i / 4][i % 4] * (factor * mine);
            if constexpr (!Body::CONSTANT_SLOPE) mine *= steep[i / 4][i % 4];
        }
        if (!whole) hide_columns(slope, none, left, 0.0f);
    }
    // Sums so far are of smaller weights where a larger entry was found, which is seldom.
    __device__ __forceinline__ void scale_sums() {
        if constexpr (BOTH) {
            if (!__any_sync(0xffffffffu, scale[0] != 1.0f || scale[1] != 1.0f)) return;
#pragma unroll
            for (int i = 0; i < C / 2; ++i) {
                sum[i / 4][i % 4] *= scale[i / 2 % 2];
                result[i / 4][i % 4] *= scale[i / 2 % 2];
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) moved[h] *= scale[h];
        }
    }
    __device__ __forceinline__ void pack_all() {
        const float by[2] = {SPLIT ? LIFTED_BY : 1.0f, SPLIT ? LIFTED_BY : 1.0f};
        pack_fragments<H>(weights, score, by);
        if constexpr (SPLIT)
            pack_by_rows<H>(slopes, row_unit, slope);
        else
            pack_fragments<H>(slopes, slope, by);
        if (LIFTED && are_large(slopes.high)) lower();
        add_rows<H>(moved, slopes, slope);
    }
    // Lifts rows less whose slopes are too large, with what was added up.
    __device__ __forceinline__ void lower() {
        const float one[2] = {1.0f, 1.0f};
        float factor[2];
        largest_of_rows(factor, slope);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            factor[h] = factor[h] < infinity<float>() ? fminf(spacious_scale(factor[h]).scale, 1.0f) : 1.0f;
            const float bits = 127 - (int)(__float_as_uint(factor[h]) >> 23);
            lift[h] -= bits;
            if (!BOTH) log[h] += bits;
            moved[h] *= factor[h];
            total[h] *= factor[h];
        }
        multiply_rows_by(score, factor);
        multiply_rows_by(slope, factor);
        multiply_rows_by(sum, factor);
        if constexpr (BOTH) multiply_rows_by(result, factor);
        pack_fragments<H>(weights, score, one);
        pack_fragments<H>(slopes, slope, one);
    }

    __device__ __forceinline__ void begin(const RowBlock& b) {
        const i64 at = (b.entry * ceil_div(g.size[ROLE_M], BM) + b.row) * GROUPS + group;
        const float* side = g.row_sides + at * OWN_SIDE;
        if (SPLIT) {
            own_unit[0] = side[OWN_SIDE - 4];
            own_unit[1] = side[OWN_SIDE - 3];
        }
        if constexpr (IN_REGISTERS) {
            load_rows(rows, g.queries + at * (2 * KEY));
            load_rows(moves, g.queries + at * (2 * KEY) + KEY);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = 16 * warp + lane / 4 + 8 * h;
#pragma unroll
            for (int o = 0; o < Body::ROW_ENDS; ++o) ends[o][h] = side[64 * (1 + o) + row];
            if constexpr (Body::DIFFERENCES) {
                norm[h] = side[64 * (1 + Body::ROW_ENDS) + row];
                norm_moved[h] = side[64 * (2 + Body::ROW_ENDS) + row];
            }
            lift[h] = LIFTED ? LIFT<H> : 0;
            if (!BOTH) log[h] = side[row] - lift[h];
            moved[h] = total[h] = 0.0f;
            most[h] = -infinity<float>();
        }
        fixed = Body::fixed(g, b.p);
        cells.begin(g, b.p, b.p.m + local_row());
        clear(sum);
        if constexpr (BOTH) clear(result);
    }

    __device__ __forceinline__ void end(const RowBlock& b) const {
        typedef typename Body::Result R;
        typedef typename Body::Tangent P;
        typedef typename P::T T;
        const i64 *r = g.stride[R::BUFFER], *s = g.stride[P::BUFFER];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float all = quad_sum(moved[h]), weight = BOTH ? quad_sum(total[h]) : 1.0f;
            const i64 m = b.p.m + local_row() + 8 * h;
            if (m >= g.size[ROLE_M]) continue;
            typename R::T* own = (typename R::T*)g.pointer[R::BUFFER] + batch_offset(g, R::BUFFER, b.p) + m * r[ROLE_M];
            float inverse = LIFTED ? __uint_as_float((unsigned)(127 - (int)lift[h]) << 23) : 1.0f;
            if constexpr (BOTH) inverse = write_total<typename Body::Statistic>(g, b.p, m, weight, most[h], lift[h]);
            T* to = (T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, b.p) + m * s[ROLE_M];
#pragma unroll
            for (int j = 0; j < C / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int c = 8 * j + lane % 4 * 2 + e;
                    if (c >= g.size[ROLE_L]) continue;
                    float mine;
                    if constexpr (BOTH) {
                        mine = result[j][2 * h + e] * inverse;
                        own[c * r[ROLE_L]] = Store<typename R::T>::from(mine);
                    } else {
                        mine = convert<float>(load_pack<typename R::T, 1>(own + c * r[ROLE_L]).v[0]);
                    }
                    to[c * s[ROLE_L]] = Store<T>::from(fmaf(-all, mine, sum[j][2 * h + e]) * inverse);
                }
        }
    }

    __device__ __forceinline__ void consume() {
        PipelineState<STAGES> state;
        unsigned phase = 0;
        const i64 all = blocks();
        const int next = group + 1 == GROUPS ? 0 : group + 1;
        if (GROUPS > 1 && group == GROUPS - 1) score_pass_issue(0);
#pragma unroll 1
        for (i64 t = blockIdx.x; t < all; t += gridDim.x, phase ^= 1) {
            const RowBlock b = row_block<Tile>(g, t);
            begin(b);
            const int count = columns_seen<Tile>(g, b.p.m);
            int before = 0;
            if (!IN_REGISTERS) ptx::mbarrier_wait_parity(own_barriers.full(0), phase);
            if constexpr (!SPLIT) {
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                start_scores(state.stage);
                ptx::wgmma_wait_group<0>();
                make_tile(state.stage, 0, b, [] {});  // the sums are still zero
                pack_all();
                before = state.stage;
                state.advance();
            }
#pragma unroll 1
            for (int n = SPLIT ? 0 : 1; n < count; ++n) {
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                if (GROUPS > 1) score_await_issue(group);
                start_scores(state.stage);
                if constexpr (SPLIT) {
                    if (GROUPS > 1) score_pass_issue(next);
                    ptx::wgmma_wait_group<2>();
                    make_tile(state.stage, n, b, [] { ptx::wgmma_wait_group<0>(); });
                    pack_all();
                    add_sums(state.stage);
                    before = state.stage;
                } else {
                    start_sums(before);
                    if (GROUPS > 1) score_pass_issue(next);
                    ptx::wgmma_wait_group<2>();
                    make_tile(state.stage, n, b, [] { ptx::wgmma_wait_group<1>(); });
                    ptx::wgmma_wait_group<0>();
                    fence_sums();
                    scale_sums();
                }
                Base::release(before);
                if constexpr (!SPLIT) pack_all();
                before = state.stage;
                state.advance();
            }
            if (!IN_REGISTERS) Base::release_own();
            if constexpr (!SPLIT) {
                start_sums(before);
                ptx::wgmma_wait_group<0>();
                fence_sums();
                Base::release(before);
            }
            end(b);
        }
        if (GROUPS > 1 && group == 0) score_await_issue(0);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void jvp_softmax(const typename Body::Args& g) {
    run_specialized<SoftmaxJvp<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

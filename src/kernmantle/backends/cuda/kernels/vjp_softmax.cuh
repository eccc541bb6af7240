// Gradients of softmax-weighted sums by q, k and v on Hopper, without the weights: scores and cotangents of weights are made
// again by tensor cores, tile after tile, as in apply_softmax.cuh.
//
// With weights p, results o and their cotangents g a score has the cotangent p (g v - g o) times the slope of its entry.
// One kernel has rows of q and g and passes over those of k and v, for the gradient by q; the other has rows of k and v and
// passes over those of q and g, for the gradients by k and v, of wide rows one after the other, as registers do not hold both:
// all add up in registers, always in the same order. Of squared distances, whose slope by q is 2 (q - k), the cotangents of a
// row's scores are added up beside their product with k.
#pragma once
#include "vjp_softmax_split.cuh"
#include "softmax_block.cuh"

namespace km {

template <class Body, class Tile>
using SoftmaxVjpBlock = SoftmaxBlock<Tile::OWN, Tile::FIRST + Tile::SECOND, Tile::OF_COLUMNS ? row_side<Body>() : column_side<Body>(), Tile::STAGES, Tile::GROUPS,
                               (Tile::OF_COLUMNS || Tile::SPLIT || Body::COLUMN_ENDS + Body::DIFFERENCES > 0)>;

template <class Body, class Tile>
struct SoftmaxVjp : SoftmaxVjpBlock<Body, Tile> {
    typedef SoftmaxVjpBlock<Body, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Tile::H H;
    static constexpr int E = Tile::E, C = Tile::C, BN = 64, BM = Tile::BM, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES;
    static constexpr bool SPLIT = Tile::SPLIT, LIFTED = Tile::LIFTED, IN_REGISTERS = Tile::IN_REGISTERS, OF_COLUMNS = Tile::OF_COLUMNS;
    static constexpr bool BY_FIRST = Tile::BY_FIRST, BY_SECOND = Tile::BY_SECOND, DIFFERENCES = Body::DIFFERENCES;
    static constexpr int SIDE = OF_COLUMNS ? row_side<Body>() : column_side<Body>(), STAGE = Tile::FIRST + Tile::SECOND;
    static constexpr int OWN_SIDE = OF_COLUMNS ? column_side<Body>() : row_side<Body>();
    static constexpr int OWN_ENDS = OF_COLUMNS ? Body::COLUMN_ENDS : Body::ROW_ENDS, ENDS = OF_COLUMNS ? Body::ROW_ENDS : Body::COLUMN_ENDS;
    static constexpr int OWN_ENDS_AT = OF_COLUMNS ? 0 : 2, ENDS_AT = OF_COLUMNS ? 2 : 0;
    static constexpr int OWN_ROLE = OF_COLUMNS ? ROLE_N : ROLE_M, ROLE = OF_COLUMNS ? ROLE_M : ROLE_N;
    static constexpr float LN2 = 0.693147181f, LIFTED_BY = 1 << LIFT<H>;

    using Base::sides, Base::own, Base::stages, Base::barriers, Base::own_barriers;
    using Base::group, Base::warp, Base::lane, Base::local_row;

    const Args& g;
    float score[BN / 8][4], slope[BY_FIRST ? BN / 8 : 1][4];
    float by_first[BY_FIRST ? E / 8 : 1][4], by_second[BY_SECOND ? C / 8 : 1][4];
    float part[SPLIT ? (E > C ? E : C) / 8 : 1][4];
    unsigned first[IN_REGISTERS ? E / 16 : 1][4], second[IN_REGISTERS ? C / 16 : 1][4];
    Fragments<BN / 16, SPLIT> weights, slopes;
    float own_unit[2], row_unit[2], norm[2], moved[2];
    HalfScale power[2];  // of slopes where LIFTED
    float ends[AtLeastOne<OWN_ENDS>::value][2], log[2], inner[2];
    CellRows<Body, OWN_ROLE, ROLE> cells;
    typename Body::Fixed fixed;

    __device__ __forceinline__ SoftmaxVjp(const Args& g_, unsigned char* raw) : Base(raw), g(g_) {}

    // Blocks of own rows, pieces of 64 rows of a batch entry, and the pieces that a block passes over.
    __device__ __forceinline__ i64 own_blocks() const { return ceil_div(g.size[OWN_ROLE], BM); }
    __device__ __forceinline__ i64 pieces() const { return ceil_div(g.size[ROLE], BM) * GROUPS; }
    __device__ __forceinline__ int begin_of(i64 row) const {
        const i64 seen = row * BM / 64, all = ceil_div(g.size[ROLE], 64);
        return OF_COLUMNS && Tile::CAUSAL ? (int)(seen < all ? seen : all) : 0;
    }
    __device__ __forceinline__ int end_of(i64 row) const {
        const i64 all = ceil_div(g.size[ROLE], 64), seen = (row + 1) * GROUPS;
        return (int)(!OF_COLUMNS && Tile::CAUSAL && seen < all ? seen : all);
    }
    struct Block {
        BatchEntry p;
        i64 entry, row;
    };
    __device__ __forceinline__ Block block_at(i64 t) const {
        Block b;
        const i64 blocks = own_blocks();
        b.entry = quotient(t, blocks);
        b.row = t - b.entry * blocks;
        if (Tile::CAUSAL && !OF_COLUMNS) b.row = blocks - 1 - b.row;
        b.p = entry_at(g, b.entry);
        return b;
    }

    // One thread.
    __device__ __forceinline__ void produce() const {
        const i64 all = batches(g) * own_blocks(), across = pieces();
        PipelineState<STAGES> state;
        state.phase = 1;
        unsigned phase = 1;
        const unsigned char* const one = OF_COLUMNS ? g.queries : g.keys;
        const unsigned char* const two = OF_COLUMNS ? g.cotangents : g.values;
        const float* const side = OF_COLUMNS ? g.row_sides : g.column_sides;
#pragma unroll 1
        for (i64 t = blockIdx.x; t < all; t += gridDim.x, phase ^= 1) {
            const Block b = block_at(t);
            if (!IN_REGISTERS) {
                const i64 at = (b.entry * own_blocks() + b.row) * GROUPS;
                ptx::mbarrier_wait_parity(own_barriers.empty(0), phase);
                ptx::mbarrier_arrive_expect_tx(own_barriers.full(0), GROUPS * STAGE);
                ptx::cp_async_bulk(own, (OF_COLUMNS ? g.keys : g.queries) + at * Tile::FIRST, GROUPS * Tile::FIRST, own_barriers.full(0));
                ptx::cp_async_bulk(own + GROUPS * Tile::FIRST, (OF_COLUMNS ? g.values : g.cotangents) + at * Tile::SECOND, GROUPS * Tile::SECOND, own_barriers.full(0));
            }
            const int end = end_of(b.row);
#pragma unroll 1
            for (int n = begin_of(b.row); n < end; ++n) {
                const i64 at = b.entry * across + n;
                Base::fill(state, one + at * Tile::FIRST, Tile::FIRST, two + at * Tile::SECOND, Tile::SECOND, side + at * SIDE);
            }
        }
    }

    // d = own rows times the rows of a stage, over WIDTH positions.
    template <int WIDTH>
    __device__ __forceinline__ void multiply_rows(float (&d)[BN / 8][4], const unsigned (&fragments)[IN_REGISTERS ? WIDTH / 16 : 1][4], unsigned mine, unsigned theirs) {
        constexpr int PLANE = WIDTH * 128;
        fence_accumulators(d);
        ptx::wgmma_fence();
#pragma unroll
        for (int product = SPLIT ? 0 : 2; product < 3; ++product)
#pragma unroll
            for (int s = 0; s < WIDTH / 16; ++s) {
                const unsigned at = s / 4 * (64 * 128);
                const unsigned long long to = rows_matrix(theirs + (product == 0 ? PLANE : 0) + at) + s % 4 * 2;
                const int keep = s > 0 || (SPLIT && product > 0);
                if constexpr (IN_REGISTERS)
                    ptx::wgmma_rs(H(), d, fragments[s], to, keep);
                else
                    ptx::wgmma_ss(H(), d, rows_matrix(mine + (product == 1 ? PLANE : 0) + at) + s % 4 * 2, to, keep);
            }
        ptx::wgmma_commit_group();
    }
    __device__ __forceinline__ void start_scores(int stage) {
        multiply_rows<E>(score, first, own + group * Tile::FIRST, stages + stage * STAGE);
        if constexpr (BY_FIRST) multiply_rows<C>(slope, second, own + GROUPS * Tile::FIRST + group * Tile::SECOND, stages + stage * STAGE + Tile::FIRST);
    }

    __device__ __forceinline__ void fence_slopes() {
        if constexpr (BY_FIRST) fence_accumulators(slope);
    }

    // d += fragments times the rows of a stage, of WIDTH columns.
    template <int WIDTH>
    __device__ __forceinline__ void multiply_columns(float (&d)[WIDTH / 8][4], const unsigned (&from)[BN / 16][4], unsigned theirs) {
#pragma unroll
        for (int s = 0; s < BN / 16; ++s) ptx::wgmma_rs_along(H(), d, from[s], columns_matrix<64>(theirs + s * (16 * 128)));
    }
    __device__ __forceinline__ void fence_gradients() {
        if constexpr (BY_FIRST) fence_accumulators(by_first);
        if constexpr (BY_SECOND) fence_accumulators(by_second);
    }
    // Of halves: adds to the gradients, which are under way then.
    __device__ __forceinline__ void start_gradients(int stage) {
        const unsigned one = stages + stage * STAGE, two = one + Tile::FIRST;
        fence_gradients();
        ptx::wgmma_fence();
        if constexpr (BY_SECOND) multiply_columns<C>(by_second, weights.high, two);
        if constexpr (BY_FIRST) multiply_columns<E>(by_first, slopes.high, one);
        ptx::wgmma_commit_group();
    }
    // Of float32: a product of high and low halves from zero, then added in float32, as tensor cores cut what they add.
    template <int WIDTH>
    __device__ __forceinline__ void start_product(const Fragments<BN / 16, SPLIT>& from, unsigned theirs) {
        float(&d)[WIDTH / 8][4] = reinterpret_cast<float(&)[WIDTH / 8][4]>(part);
        clear(d);
        fence_accumulators(d);
        ptx::wgmma_fence();
        multiply_columns<WIDTH>(d, from.high, theirs + WIDTH * 128);
        if constexpr (SPLIT) multiply_columns<WIDTH>(d, from.low, theirs);
        multiply_columns<WIDTH>(d, from.high, theirs);
        ptx::wgmma_commit_group();
    }
    template <int WIDTH>
    __device__ __forceinline__ void add_product(float (&sum)[WIDTH / 8][4], const float (&unit)[2]) {
        float(&d)[WIDTH / 8][4] = reinterpret_cast<float(&)[WIDTH / 8][4]>(part);
        ptx::wgmma_wait_group<0>();
        fence_accumulators(d);
#pragma unroll
        for (int i = 0; i < WIDTH / 2; ++i) sum[i / 4][i % 4] = fmaf(d[i / 4][i % 4], unit[i / 2 % 2], sum[i / 4][i % 4]);
    }
    __device__ __forceinline__ void start_first(int stage) { start_product<E>(slopes, stages + stage * STAGE); }
    __device__ __forceinline__ void add_first(int stage) {
        const float own = sides[stage * SIDE + SIDE - 4];
        const float unit[2] = {row_unit[0] * own, row_unit[1] * own};
        add_product<E>(by_first, unit);
    }
    __device__ __forceinline__ void add_gradients(int stage) {
        if constexpr (BY_SECOND) {
            const float own = sides[stage * SIDE + SIDE - 3] * (1.0f / LIFTED_BY), unit[2] = {own, own};
            start_product<C>(weights, stages + stage * STAGE + Tile::FIRST);
            add_product<C>(by_second, unit);
        }
        if constexpr (BY_FIRST) {
            start_first(stage);
            add_first(stage);
        }
    }

    // Weights of piece n in the place of scores, cotangents of scores in the place of those of weights, in two steps:
    // `settled` is called between them. from, to: the columns of the tile that the two rows see.
    template <class Settled>
    __device__ __forceinline__ void make_slopes(int stage, int n, const Block& b, const int (&from)[2], const int (&to)[2], const Settled& settled) {
        const float* side = sides + stage * SIDE;
        float c = 1.0f, d = 1.0f;
        if (SPLIT) {
            c = own_unit[0] * side[SIDE - 4];
            d = own_unit[1] * side[SIDE - 3];
        }
        if constexpr (DIFFERENCES)
            make_differences<Body, SPLIT, OWN_ROLE>(
                score, norm, side + 64 * (ENDS_AT + ENDS) + lane % 4 * 2, c, g, b.p, b.row * BM + local_row(), n * BN + lane % 4 * 2);
        constexpr bool STEEP = BY_FIRST && !Body::CONSTANT_SLOPE;
        float steep[BN / 8][STEEP ? 4 : 1];
        float logs[2] = {log[0], log[1]};
        each_entry<Body, OF_COLUMNS, SPLIT && !DIFFERENCES, 64>(
            score, ends, side + ENDS_AT * 64 + lane % 4 * 2, c, cells, g, n * BN + lane % 4 * 2,
            [&](int j, int i, const float* rows, const float* columns, const float* cell, const typename Body::Registers& s) {
                if (OF_COLUMNS && i == 0) {
                    const float2 two = *(const float2*)(side + 8 * j + lane % 4 * 2);
                    logs[0] = two.x;
                    logs[1] = two.y;
                }
                const float entry = Body::entry(fixed, g.number, rows, columns, cell, s);
                if constexpr (STEEP) steep[j][i] = Body::slope(fixed, g.number, rows, columns, cell, s);
                score[j][i] = ptx::ex2_approx_ftz(entry - logs[OF_COLUMNS ? i % 2 : i / 2]);
            });
        const bool whole = from[0] <= 0 && from[1] <= 0 && to[0] >= BN && to[1] >= BN;
        if (!whole) hide_columns(score, from, to, 0.0f);
        settled();
        if constexpr (BY_FIRST) {
            make_cotangents(side, d, steep);
            if (!whole) hide_columns(slope, from, to, 0.0f);
        }
    }
    template <int STEEP>
    __device__ __forceinline__ void make_cotangents(const float* side, float d, const float (&steep)[BN / 8][STEEP]) {
#pragma unroll
        for (int j = 0; j < BN / 8; ++j) {
            const int at = 8 * j + lane % 4 * 2;
            float inners[2] = {inner[0], inner[1]};
            if (OF_COLUMNS) {
                const float2 two = *(const float2*)(side + 64 + at);
                inners[0] = two.x;
                inners[1] = two.y;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float &mine = slope[j][i], own_inner = inners[OF_COLUMNS ? i % 2 : i / 2];
                mine = score[j][i] * (SPLIT ? fmaf(mine, d, -own_inner) : mine - own_inner);
                if constexpr (STEEP > 1) mine *= steep[j][i];
            }
        }
    }
    __device__ __forceinline__ void pack_all() {
        const float lift[2] = {SPLIT ? LIFTED_BY : 1.0f, SPLIT ? LIFTED_BY : 1.0f};
        if constexpr (BY_SECOND) pack_fragments<H>(weights, score, lift);
        if constexpr (BY_FIRST && SPLIT) pack_by_rows<H>(slopes, row_unit, slope);
        if constexpr (BY_FIRST && !SPLIT) pack_slopes();
        if constexpr (BY_FIRST && DIFFERENCES) add_rows<H>(moved, slopes, slope);
    }
    // Of halves: as they are, or times the powers of their rows, which come down where one is too large, with what was added up.
    __device__ __forceinline__ void pack_slopes() {
        const float scale[2] = {LIFTED ? power[0].scale : 1.0f, LIFTED ? power[1].scale : 1.0f};
        pack_fragments<H>(slopes, slope, scale);
        if (!LIFTED || !are_large(slopes.high)) return;
        float factor[2];
        largest_of_rows(factor, slope);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const HalfScale own = spacious_scale(factor[h]);
            factor[h] = 1.0f;
            if (own.scale < power[h].scale) {
                factor[h] = own.scale * power[h].inverse;
                power[h] = own;
            }
            moved[h] *= factor[h];
        }
        multiply_rows_by(by_first, factor);
        const float lower[2] = {power[0].scale, power[1].scale};
        pack_fragments<H>(slopes, slope, lower);
    }

    __device__ __forceinline__ void begin(const Block& b) {
        const i64 at = (b.entry * own_blocks() + b.row) * GROUPS + group;
        const float* side = (OF_COLUMNS ? g.column_sides : g.row_sides) + at * OWN_SIDE;
        own_unit[0] = side[OWN_SIDE - 4];
        own_unit[1] = side[OWN_SIDE - 3];
        if constexpr (IN_REGISTERS) {
            load_rows(first, (OF_COLUMNS ? g.keys : g.queries) + at * Tile::FIRST);
            if (BY_FIRST) load_rows(second, (OF_COLUMNS ? g.values : g.cotangents) + at * Tile::SECOND);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = 16 * warp + lane / 4 + 8 * h;
#pragma unroll
            for (int o = 0; o < OWN_ENDS; ++o) ends[o][h] = side[64 * (OWN_ENDS_AT + o) + row];
            if (DIFFERENCES) norm[h] = side[64 * (OWN_ENDS_AT + OWN_ENDS) + row];
            moved[h] = 0.0f;
            power[h] = HalfScale::of_largest(0.0f);
            log[h] = OF_COLUMNS ? 0.0f : side[row];
            inner[h] = OF_COLUMNS ? 0.0f : side[64 + row];
        }
        fixed = Body::fixed(g, b.p);
        cells.begin(g, b.p, b.row * BM + local_row());
        if constexpr (BY_FIRST) clear(by_first);
        if constexpr (BY_SECOND) clear(by_second);
    }
    __device__ __forceinline__ void see(const Block& b, int n, int (&from)[2], int (&to)[2]) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int own_row = (int)b.row * BM + local_row() + 8 * h, seen = own_row - n * BN;
            from[h] = OF_COLUMNS && Tile::CAUSAL ? seen : 0;
            to[h] = (int)g.size[ROLE] - n * BN;
            if (!OF_COLUMNS && Tile::CAUSAL && seen + 1 < to[h]) to[h] = seen + 1;
        }
    }

    template <class P, int WIDTH>
    __device__ __forceinline__ void write(const Block& b, const float (&sum)[WIDTH / 8][4], const float (&factor)[2], int role) const {
        typedef typename P::T T;
        const i64* s = g.stride[P::BUFFER];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 row = b.row * BM + local_row() + 8 * h;
            if (row >= g.size[OWN_ROLE]) continue;
            T* to = (T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, b.p) + row * s[OWN_ROLE];
#pragma unroll
            for (int j = 0; j < WIDTH / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int c = 8 * j + lane % 4 * 2 + e;
                    if (c < g.size[role]) to[c * s[role]] = Store<T>::from(sum[j][2 * h + e] * factor[h]);
                }
        }
    }
    __device__ __forceinline__ void end(const Block& b) {
        if constexpr (BY_FIRST && DIFFERENCES) subtract_rows<Body, OWN_ROLE, SPLIT>(by_first, moved, g, b.p, b.row * BM + local_row());
        float factor[2], unlifted[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            unlifted[h] = LIFTED ? 1.0f / LIFTED_BY : 1.0f;
            factor[h] = LIFTED ? LN2 / LIFTED_BY * power[h].inverse : LN2;
            if constexpr (Body::CONSTANT_SLOPE) factor[h] *= Body::constant_slope(fixed, g.number);
        }
        if constexpr (BY_SECOND) write<typename Body::ByWeight, C>(b, by_second, unlifted, ROLE_L);
        if constexpr (BY_FIRST && OF_COLUMNS) write<typename Body::ByColumn, E>(b, by_first, factor, ROLE_K);
        if constexpr (BY_FIRST && !OF_COLUMNS) write<typename Body::ByRow, E>(b, by_first, factor, ROLE_K);
    }

    __device__ __forceinline__ void consume() {
        PipelineState<STAGES> state;
        unsigned phase = 0;
        const i64 all = batches(g) * own_blocks();
        if (GROUPS > 1 && group == GROUPS - 1) score_pass_issue(0);
#pragma unroll 1
        for (i64 t = blockIdx.x; t < all; t += gridDim.x, phase ^= 1) {
            const Block b = block_at(t);
            begin(b);
            const int first_piece = begin_of(b.row), end_piece = end_of(b.row);
            int from[2], to[2], before = 0;
            if (!IN_REGISTERS) ptx::mbarrier_wait_parity(own_barriers.full(0), phase);
            if (first_piece < end_piece) {
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                start_scores(state.stage);
                ptx::wgmma_wait_group<0>();
                fence_accumulators(score);
                see(b, first_piece, from, to);
                make_slopes(state.stage, first_piece, b, from, to, [&] { fence_slopes(); });
                pack_all();
                before = state.stage;
                state.advance();
            }
#pragma unroll 1
            for (int n = first_piece + 1; n < end_piece; ++n) {
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                if (GROUPS > 1) score_await_issue(group);
                if constexpr (SPLIT && !OF_COLUMNS && E <= 64) {
                    start_scores(state.stage);
                    start_first(before);
                    if (GROUPS > 1) score_pass_issue(group + 1 == GROUPS ? 0 : group + 1);
                    ptx::wgmma_wait_group<1>();
                    fence_accumulators(score);
                    see(b, n, from, to);
                    make_slopes(state.stage, n, b, from, to, [&] { fence_slopes(); });
                    add_first(before);
                } else if constexpr (SPLIT) {
                    add_gradients(before);
                    start_scores(state.stage);
                    if (GROUPS > 1) score_pass_issue(group + 1 == GROUPS ? 0 : group + 1);
                    ptx::wgmma_wait_group<BY_FIRST ? 1 : 0>();
                    fence_accumulators(score);
                    see(b, n, from, to);
                    make_slopes(state.stage, n, b, from, to, [&] {
                        ptx::wgmma_wait_group<0>();
                        fence_slopes();
                    });
                } else {
                    start_scores(state.stage);
                    start_gradients(before);
                    if (GROUPS > 1) score_pass_issue(group + 1 == GROUPS ? 0 : group + 1);
                    ptx::wgmma_wait_group<BY_FIRST ? 2 : 1>();
                    fence_accumulators(score);
                    see(b, n, from, to);
                    make_slopes(state.stage, n, b, from, to, [&] {
                        ptx::wgmma_wait_group<1>();
                        fence_slopes();
                    });
                    ptx::wgmma_wait_group<0>();
                    fence_gradients();
                }
                Base::release(before);
                pack_all();
                before = state.stage;
                state.advance();
            }
            if (!IN_REGISTERS) Base::release_own();
            if (first_piece < end_piece) {
                if constexpr (SPLIT) {
                    add_gradients(before);
                } else {
                    start_gradients(before);
                    ptx::wgmma_wait_group<0>();
                    fence_gradients();
                }
                Base::release(before);
            }
            end(b);
        }
        if (GROUPS > 1 && group == 0) score_await_issue(0);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void vjp_softmax(const typename Body::Args& g) {
    run_specialized<SoftmaxVjp<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

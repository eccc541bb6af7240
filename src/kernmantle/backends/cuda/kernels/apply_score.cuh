// Rows of a matrix whose entries are made of squared distances or inner products, on Hopper: score tiles by products of
// halves on tensor cores, entries and what is reduced of them in registers.
//
// A thread of a producer warp keeps tiles of columns coming through the copy engine. Each consumer warpgroup holds 64 rows
// as fragments, multiplies them by 128 columns (small products first) and makes entries of what comes out, while others
// multiply. Where products take longest, a group issues its own when the group before it has.
//
// A squared distance that is small against both norms loses digits: the thread that has such takes them by differences.
// Where these are too many, the kernel that knows nothing but differences runs instead: `uses_differences`.
#pragma once
#include "score_rows.cuh"

namespace km {

template <class Body, class Tile>
struct Score : ScoreRows<Body, Tile> {
    typedef ScoreRows<Body, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Body::State State;
    typedef typename Tile::Layout Layout;
    static constexpr int GROUPS = Tile::GROUPS, STAGES = Tile::STAGES, SIDES = Tile::SIDES, GROUP = Body::GROUP;
    static_assert(SIDES % SCORE_FREED == 0 && SIDES > SCORE_FREED, "tiles that are freed at once while others are read");
    static constexpr int BM = Tile::BM, BN = Tile::BN, V = SCORE_ROWS * (1 + Body::COLUMN_ENDS);
    // One column of v leaves two sums a row, so that they do not wait for each other.
    static constexpr int CHAINS = GROUP > 1 ? 1 : 2;
    using Base::SIDE, Base::TAIL, Base::AHEAD, Base::WHOLE;
    using Base::g, Base::group, Base::lane, Base::score, Base::factor, Base::unit, Base::norm, Base::bound, Base::fixed, Base::gives_up;
    using Base::any_of_group, Base::local_row, Base::load_points, Base::wait_products, Base::finish_products, Base::loses_digits;
    using Base::correct, Base::four_of, Base::make_entries;

    float* sides;
    volatile int* ended;  // by stage: set where the producer gives up, so that what it announces is no tile
    unsigned tiles, sides_empty;
    PipelineBarriers<STAGES> barriers;
    State total[GROUP][2], sum[GROUP][2];  // of the last tiles, and of those before where these are summed
    int spans_row;
    float slope;  // of a linear entry to the base 2

    __device__ __forceinline__ Score(const Args& g_, unsigned char* raw) : Base(g_), sides((float*)(raw + STAGES * Layout::BYTES)) {
        tiles = shared_address(raw);
        barriers.at = tiles + STAGES * Layout::BYTES + SIDES * SIDE * 4;
        sides_empty = barriers.at + barriers.BYTES;
        ended = (int*)(sides + SIDES * SIDE) + 4 * STAGES + 2 * SIDES;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) ended[i] = 0;
            for (int i = 0; i < SIDES / SCORE_FREED; ++i) ptx::mbarrier_init(sides_empty + 8 * i, 128 * GROUPS);
            barriers.initialise(1, 4 * GROUPS);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void begin(i64 m0) {
        Base::begin_rows(m0);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int q = 0; q < GROUP; ++q) {
                Body::begin(total[q][h]);
                if (Body::SUMS) Body::begin(sum[q][h]);
            }
    }
    __device__ __forceinline__ void multiply(int stage) { Base::multiply(tiles + stage * Layout::BYTES); }
    static __device__ __forceinline__ void begin_chains(State (&part)[GROUP][2][CHAINS]) {
#pragma unroll
        for (int q = 0; q < GROUP; ++q)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < CHAINS; ++e) Body::begin(part[q][h][e]);
    }

    // Entries of a tile and what is reduced of them, as one stream whose stages lie AHEAD blocks of columns apart, so that
    // the few warps there are do not wait for results. FINISHED: the accumulators are finished, columns behind the last are
    // left out. Whether some lose digits, in which case nothing of it counts.
    template <bool FINISHED>
    __device__ __forceinline__ bool reduce(const float* side, int left, State (&part)[GROUP][2][CHAINS]) {
        const float2 tail = *(const float2*)(side + TAIL);
        const float c = unit * tail.x;
        typename Base::Smallest least;
        begin_chains(part);
        float4 v[GROUP];
#pragma unroll
        for (int block = 0; block < 16 + 2 * AHEAD; ++block) {
            if (!FINISHED && block < 16) finish_products(side, block, c, least);
            if (block >= AHEAD && block < 16 + AHEAD) make_entries(side, block - AHEAD);
            if (block < 2 * AHEAD) continue;
            const int from = block - 2 * AHEAD;
            if (Body::WEIGHTED && from % 2 == 0) {
#pragma unroll
                for (int q = 0; q < GROUP; ++q) v[q] = four_of(side, V + SCORE_ROWS * q, from / 2);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (FINISHED && from * 8 + lane % 4 * 2 + i % 2 >= left) continue;
#pragma unroll
                for (int q = 0; q < GROUP; ++q) {
                    const float weight = !Body::WEIGHTED ? 1.0f : from % 2 ? (i % 2 ? v[q].w : v[q].z) : (i % 2 ? v[q].y : v[q].x);
                    Body::take(part[q][i / 2][i % CHAINS], score[4 * from + i], weight);
                }
            }
        }
        return !FINISHED && loses_digits(tail.y, least);
    }

    // The same for sums of exponentials, of finished accumulators: the tile's largest entry first. An infinite one is taken
    // as the largest number, by which all sums come out right.
    __device__ __forceinline__ bool add_exponentials(const float* side, int left, State (&part)[GROUP][2][CHAINS]) {
        constexpr float MOST = 3.402823466e38f;
        float most[2][2] = {{-MOST, -MOST}, {-MOST, -MOST}}, sum[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
        for (int block = 0; block < 16; ++block) {
            make_entries(side, block);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& w = score[4 * block + i];
                if (block * 8 + lane % 4 * 2 + i % 2 >= left) w = -infinity<float>();
                most[i / 2][i % 2] = fmaxf(most[i / 2][i % 2], w);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) most[h][0] = fminf(fmaxf(most[h][0], most[h][1]), MOST);
#pragma unroll
        for (int i = 0; i < 64; ++i) sum[i / 2 % 2][i % 2] += ptx::ex2_approx_ftz((score[i] - most[i / 2 % 2][0]) * LOG2_E);
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < CHAINS; ++e) {
                part[0][h][e].r0 = most[h][0];
                part[0][h][e].r1 = sum[h][e];
            }
        return false;
    }

    // Largest sum relative to an entry; most bits of an exponent of which a log-sum-exp loses none where it counts.
    static constexpr float CAPACITY = 1.1258999e15f, LOG_SUM_BITS = 64.0f;
    __device__ __forceinline__ float largest_before(int h) const { return fminf(fmaxf(total[0][h].r0, -MOST_LEVEL), MOST_LEVEL); }

    // The same in one stream, relative to the largest entry of the tiles before: right until a sum is 2^50 times as large, in
    // which case, as in the first tile, nothing of it counts.
    __device__ __forceinline__ bool stream_exponentials(const float* side, State (&part)[GROUP][2][CHAINS]) {
        const float2 tail = *(const float2*)(side + TAIL);
        const float c = unit * tail.x;
        typename Base::Smallest least;
        float sum[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}, from[2], shift[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            from[h] = largest_before(h);
            shift[h] = -from[h] * LOG2_E;
        }
#pragma unroll
        for (int block = 0; block < 16 + 2 * AHEAD; ++block) {
            if (block < 16) finish_products(side, block, c, least);
            if (block >= AHEAD && block < 16 + AHEAD) make_entries(side, block - AHEAD);
            if (block < 2 * AHEAD) continue;
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i / 2][i % 2] += ptx::ex2_approx_ftz(fmaf(score[4 * (block - 2 * AHEAD) + i], LOG2_E, shift[i / 2]));
        }
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < CHAINS; ++e) {
                part[0][h][e].r0 = from[h];
                part[0][h][e].r1 = sum[h][e];
            }
        const bool exceeds = fmaxf(fmaxf(sum[0][0], sum[0][1]), fmaxf(sum[1][0], sum[1][1])) > CAPACITY;
        return exceeds || loses_digits(tail.y, least);
    }

    // Whether norms are so small that the digits which a sum loses are none of its entry's, for all rows of a warp.
    __device__ __forceinline__ bool are_small(const float4& tail) const {
        if constexpr (!Body::LINEAR) return Base::has_small_squares(tail.y);
        return __all_sync(WHOLE, fabsf(slope) * (fmaxf(bound[0], bound[1]) + tail.y) <= LOG_SUM_BITS * Tile::SHARE);
    }
    // The same for such entries: 2 to the power of what products give, with the level of the column, which lies between 2^-126 and
    // 2^64; what a row gives comes last.
    __device__ __forceinline__ bool add_powers(const float* side, const float4& tail, State (&part)[GROUP][2][CHAINS]) {
        const float c = slope * unit * tail.x;
        float sum[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float4 four = four_of(side, score_levels<Body>(), j);
            const float level[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i / 2 % 2][i % 2] += ptx::ex2_approx_ftz(fmaf(score[8 * j + i], c, level[i / 4 * 2 + i % 2]));
        }
        bool exceeds = false;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float from = largest_before(h), level = fmaf(from, -LOG2_E, tail.z);
            const float factor = ptx::ex2_approx_ftz(Body::DIFFERENCES ? fmaf(slope, norm[h], level) : level);
#pragma unroll
            for (int e = 0; e < CHAINS; ++e) {
                part[0][h][e].r0 = from;
                part[0][h][e].r1 = sum[h][e] * factor;
            }
            exceeds |= !(part[0][h][0].r1 + part[0][h][1].r1 <= CAPACITY);
        }
        return exceeds;
    }

    // Sums of exponentials of such entries: what products and a column give lies between 2^-8 and 2^8.
    __device__ __forceinline__ bool sum_powers(const float* side, const float4& tail, State (&part)[GROUP][2][CHAINS]) {
        const float c = -unit * tail.x;
        begin_chains(part);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float4 four = four_of(side, score_levels<Body>(), j);
            const float level[4] = {four.x, four.y, four.z, four.w};
            float v[GROUP][4];
#pragma unroll
            for (int q = 0; q < GROUP; ++q) {
                const float4 own = Body::WEIGHTED ? four_of(side, V + SCORE_ROWS * q, j) : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
                v[q][0] = own.x, v[q][1] = own.y, v[q][2] = own.z, v[q][3] = own.w;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int column = i / 4 * 2 + i % 2;
                const float entry = ptx::ex2_approx_ftz(fmaf(score[8 * j + i], c, level[column]));
#pragma unroll
                for (int q = 0; q < GROUP; ++q) Body::take(part[q][i / 2 % 2][i % CHAINS], entry, v[q][column]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float of_row = ptx::ex2_approx_ftz(-norm[h]);
#pragma unroll
            for (int q = 0; q < GROUP; ++q)
#pragma unroll
                for (int e = 0; e < CHAINS; ++e) part[q][h][e].r0 *= of_row;
        }
        return false;
    }

    template <bool FINISHED>
    __device__ __forceinline__ bool reduce_tile(const float* side, int left, State (&part)[GROUP][2][CHAINS]) {
        if constexpr (Body::LOG_SUMS && !FINISHED)
            return stream_exponentials(side, part);
        else if constexpr (Body::LOG_SUMS)
            return add_exponentials(side, left, part);
        else
            return reduce<FINISHED>(side, left, part);
    }

    // What is reduced of a tile whose products are under way, and whether nothing of it counts.
    __device__ __forceinline__ bool wait_and_reduce(const float* side, State (&part)[GROUP][2][CHAINS]) {
        if constexpr (Body::LINEAR || Body::POWERS_OF_2) {
            const float4 tail = *(const float4*)(side + TAIL);
            if (are_small(tail)) {
                wait_products();
                if constexpr (Body::LINEAR)
                    return add_powers(side, tail, part);
                else
                    return sum_powers(side, tail, part);
            }
        }
        wait_products();
        return reduce_tile<false>(side, BN, part);
    }

    // The tile once more, with what lost digits taken by differences; also the last tile, of fewer columns.
    __device__ __forceinline__ void reduce_with_care(int stage, const float* side, int t, int left, State (&part)[GROUP][2][CHAINS]) {
        const i64 first = (i64)spans_row * BM;
        multiply(stage);
        wait_products();
        i64 where = (i64)side;
        ptx::opaque(where);
        side = (const float*)where;
        const float2 tail = *(const float2*)(side + TAIL);
        typename Base::Smallest least;
#pragma unroll
        for (int block = 0; block < 16; ++block) finish_products(side, block, unit * tail.x, least);
        if (__any_sync(WHOLE, loses_digits(tail.y, least)) && !gives_up) correct(side, tail.x, first, (i64)t * BN);
        load_points(first);  // anew: they take no registers meanwhile
        reduce_tile<true>(side, left, part);
    }

    static __device__ __forceinline__ void join_lanes(State& mine) {
        Body::join(mine, shuffle_xor(mine, 1));
        Body::join(mine, shuffle_xor(mine, 2));
    }

    // Adds the sums of the last tiles to those of all before, so that rounding does not add up with all tiles.
    __device__ __forceinline__ void flush() {
#pragma unroll
        for (int q = 0; q < GROUP; ++q)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                Body::join(sum[q][h], total[q][h]);
                Body::begin(total[q][h]);
            }
    }

    // Joins the four lanes of a row and writes it, or what is to be joined later.
    __device__ __forceinline__ void end(i64 m0, i64 c, State* slot, bool whole) {
        const auto p = origin();
#pragma unroll
        for (int q = 0; q < GROUP; ++q)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                State& mine = total[q][h];
                if (Body::SUMS) Body::join(mine, sum[q][h]);
                join_lanes(mine);
                const int local = local_row() + 8 * h;
                if (lane % 4 != 0 || m0 + local >= g.size[ROLE_M] || (Body::WEIGHTED && c + q >= g.size[ROLE_L])) continue;
                if (whole)
                    write_result<Body>(g, p, m0 + local, c + q, mine);
                else
                    slot[(c + q) * BM + local] = mine;
            }
    }

    // Sums of exponentials relative to the same entry, as most are, need no other ones.
    static __device__ __forceinline__ void add(State& to, const State& from) {
        if constexpr (Body::LOG_SUMS) {
            if (to.r0 == from.r0) {
                to.r1 += from.r1;
                return;
            }
        }
        Body::join(to, from);
    }

    // Waits until the group before has issued its products, and lets the next one issue.
    __device__ __forceinline__ void await_issue(int of) const {
        if (Tile::IN_ORDER) score_await_issue(of);
    }
    __device__ __forceinline__ void pass_issue(int to) const {
        if (Tile::IN_ORDER) score_pass_issue(to);
    }
    // Frees what came with the tiles before this one, some at a time: every thread says so, and its reads come before later copies.
    // While products are under way that costs nothing.
    __device__ __forceinline__ void free_sides(int side_at, bool& reads) const {
        if (side_at % SCORE_FREED == 0 && reads) {
            ptx::fence_proxy_async();
            ptx::mbarrier_arrive(sides_empty + 8 * ((side_at ? side_at : SIDES) / SCORE_FREED - 1));
        }
        reads = true;
    }

    __device__ __forceinline__ void consume() {
        const auto p = origin();
        fixed = Body::fixed(g, p);
        factor = 1.0f;
        if constexpr (Body::SCALES) factor = Body::scale(fixed, g.number);
        if constexpr (Body::LINEAR) slope = LOG2_E * Body::constant_slope(fixed, g.number);
        PipelineState<STAGES> tile;
        int side_at = 0;
        bool reads = false;
        if (group == GROUPS - 1) pass_issue(0);
#pragma unroll 1
        for (int c = 0; c < (Body::WEIGHTED ? (int)g.size[ROLE_L] : 1); c += GROUP) {
            Spans spans(score_share<Tile>(g));
#pragma unroll 1
            while (spans.next()) {
                begin((i64)spans.row * BM);
#pragma unroll 1
                for (int& t = spans.begin; t < spans.end; ++t) {
                    ptx::mbarrier_wait_parity(barriers.full(tile.stage), tile.phase);
                    if (t % SCORE_CHECK == 0 && ended[tile.stage]) {
                        if (group == 0) await_issue(0);
                        return;
                    }
                    await_issue(group);
                    multiply(tile.stage);
                    pass_issue(group + 1 == GROUPS ? 0 : group + 1);
                    free_sides(side_at, reads);
                    const float* side = sides + side_at * SIDE;
                    const i64 left = g.size[ROLE_N] - (i64)t * BN;
                    State part[GROUP][2][CHAINS];
                    if (any_of_group(wait_and_reduce(side, part) || left < BN)) {
                        spans_row = spans.row;
                        reduce_with_care(tile.stage, side, t, left < BN ? (int)left : BN, part);
                    }
#pragma unroll
                    for (int q = 0; q < GROUP; ++q)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int e = 0; e < CHAINS; ++e) add(total[q][h], part[q][h][e]);
                    if (lane == 0) ptx::mbarrier_arrive(barriers.empty(tile.stage));
                    tile.advance();
                    if (++side_at == SIDES) side_at = 0;
                    if (Body::SUMS && t % SCORE_RUN == SCORE_RUN - 1) flush();
                }
                const Share share = score_share<Tile>(g);
                end((i64)spans.row * BM, c, slot_of<Body, BM>(g.work, blockIdx.x, share.slot(spans.row), g.size[ROLE_L]), share.whole(spans.row));
            }
        }
        if (group == 0) await_issue(0);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void apply_score(const typename Body::Args& g) {
    extern __shared__ __align__(1024) unsigned char raw[];
    if (sampled_differences(g.list)) return;
    Score<Body, Tile> task(g, raw);
    task.prepare();
    if (task.group == Tile::GROUPS) {
        ptx::setmaxnreg_dec<PRODUCER>();
        if (threadIdx.x == 128 * Tile::GROUPS) score_produce<Body, Tile>(g, task.tiles, task.barriers, task.sides_empty, task.ended);
    } else {
        ptx::setmaxnreg_inc<CONSUMER>();
        task.consume();
    }
}

}  // namespace km

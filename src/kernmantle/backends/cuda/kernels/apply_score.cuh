// Rows of a matrix whose entries are made of squared distances or inner products, on Hopper: score tiles by products of
// halves on tensor cores, entries and what is reduced of them in registers.
//
// A thread of a producer warp keeps tiles of columns coming through the copy engine. Each consumer warpgroup holds 64 rows
// as fragments, multiplies them by 128 columns (small products first) and releases the tile before it makes entries. It
// issues products when the group before it has issued its own, so that one multiplies while others make entries.
//
// A squared distance that is small against both norms loses digits: the thread that has such takes them by differences.
// Where these are too many, the kernel that knows nothing but differences runs instead: `uses_differences`.
#pragma once
#include "score_split.cuh"

namespace km {

template <class Body, class Tile>
struct Score {
    typedef typename Body::Args Args;
    typedef typename Body::State State;
    typedef typename Tile::Layout Layout;
    static constexpr int D = Tile::D, KS = Tile::KS, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES, SIDES = Tile::SIDES;
    static constexpr int BM = Tile::BM, BN = Tile::BN, SIDE = score_side<Body>(), GROUP = Body::GROUP;
    static constexpr int ENDS = SCORE_ROWS, V = SCORE_ROWS * (1 + Body::COLUMN_ENDS), TAIL = SIDE - 4;
    // One column of v leaves two sums a row, so that they do not wait for each other.
    static constexpr int CHAINS = GROUP > 1 ? 1 : 2, AHEAD = 2;
    static constexpr unsigned WHOLE = 0xffffffffu;

    const Args& g;
    float* sides;
    volatile int* ended;  // by stage: set where the producer gives up, so that what it announces is no tile
    unsigned tiles, full, tiles_empty, sides_empty;
    int group, warp, lane;
    float score[64];
    unsigned x[2][KS][4];
    float norm[2], bound[2], factor, unit;
    float row_ends[AtLeastOne<Body::ROW_ENDS>::value][2];
    typename Body::Fixed fixed;
    State total[GROUP][2];
    bool gives_up;
    int spans_row;

    __device__ __forceinline__ Score(const Args& g_, unsigned char* raw)
        : g(g_), sides((float*)(raw + STAGES * Layout::BYTES)), group(threadIdx.x / 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32), gives_up(false) {
        tiles = shared_address(raw);
        full = tiles + STAGES * Layout::BYTES + SIDES * SIDE * 4;
        tiles_empty = full + 8 * STAGES;
        sides_empty = tiles_empty + 8 * STAGES;
        ended = (int*)(sides + SIDES * SIDE) + 4 * STAGES + 2 * SIDES;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                ended[i] = 0;
                ptx::mbarrier_init(full + 8 * i, 1);
                ptx::mbarrier_init(tiles_empty + 8 * i, 4 * GROUPS);
            }
            for (int i = 0; i < SIDES; ++i) ptx::mbarrier_init(sides_empty + 8 * i, 4 * GROUPS);
            ptx::fence_mbarrier_init();
        }
        __syncthreads();
    }

    // Whether it is so for any thread of the warpgroup.
    __device__ __forceinline__ bool any_of_group(bool mine) const { return !ptx::bar_red_and<128>(group + 1 + GROUPS, !mine); }

    // First of the two rows, eight apart, that a thread holds of the block's.
    __device__ __forceinline__ int local_row() const { return 64 * group + 16 * warp + lane / 4; }

    __device__ __forceinline__ void load_points(i64 m0) {
        const i64 piece = m0 / 64 + group;
        const unsigned char* from = g.tiles[0] + piece / 2 * Layout::BYTES;
        const int row = (int)(piece % 2) * 64 + 16 * warp + lane / 4;
#pragma unroll
        for (int plane = 0; plane < 2; ++plane)
#pragma unroll
            for (int s = 0; s < KS; ++s) {
                const int k = plane * D + 16 * s + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < 4; ++i) x[plane][s][i] = *(const unsigned*)(from + Layout::at(row + i % 2 * 8, k + i / 2 * 8));
            }
    }

    __device__ __forceinline__ void begin(i64 m0) {
        load_points(m0);
        const auto p = origin();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 m = m0 + local_row() + 8 * h;
            const float2 row = g.rows[m];
            // rows behind the last are never taken by differences, those that are not finite always
            const float share = is_finite(row.x) ? fmaf(Tile::SHARE, row.x, fmaf(row.y, row.y, LEAST_SQUARE)) : infinity<float>();
            bound[h] = m < g.size[ROLE_M] ? factor * share : -infinity<float>();
            norm[h] = factor * row.x;
            unit = Body::DIFFERENCES ? -2.0f * factor * row.y : row.y;
            each<0, Body::ROW_ENDS>([&](auto index) {
                row_ends[decltype(index)::value][h] = end_value<typename Body::template RowEnd<decltype(index)::value>, float>(g, p, m, g.size[ROLE_M], ROLE_M);
            });
#pragma unroll
            for (int q = 0; q < GROUP; ++q) Body::begin(total[q][h]);
        }
    }

    __device__ __forceinline__ void multiply(int stage) {
        const unsigned b = Layout::LOW + ((tiles + stage * Layout::BYTES) >> 4);
#pragma unroll
        for (int i = 0; i < 64; ++i) ptx::fence_operand(score[i]);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < KS; ++s) score_multiply(score, x[0][s], b + Layout::step(D + 16 * s), Layout::HIGH, s > 0);
#pragma unroll
        for (int s = 0; s < KS; ++s) score_multiply(score, x[1][s], b + Layout::step(16 * s), Layout::HIGH, 1);
#pragma unroll
        for (int s = 0; s < KS; ++s) score_multiply(score, x[0][s], b + Layout::step(16 * s), Layout::HIGH, 1);
        ptx::wgmma_commit_group();
    }
    __device__ __forceinline__ void settle() {
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < 64; ++i) ptx::fence_operand(score[i]);
    }

    // From products to accumulators of entries (times the scale, where there is one) for a block of 8 columns; `least`: the
    // smallest so far of both rows, of even and odd columns.
    __device__ __forceinline__ void finish_products(const float* side, int block, float c, float (&least)[2][2]) {
        if constexpr (!Body::DIFFERENCES) {
#pragma unroll
            for (int i = 0; i < 4; ++i) score[4 * block + i] *= c;
        } else {
            const float4 four = four_of(side, 0, block / 2);
            const float column[2] = {block % 2 ? four.z : four.x, block % 2 ? four.w : four.y};
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float& s = score[4 * block + i];
                const float sum = Body::SCALES ? fmaf(column[i % 2], factor, norm[i / 2]) : column[i % 2] + norm[i / 2];
                s = fmaf(s, c, sum);
                least[i / 2][i % 2] = fminf(least[i / 2][i % 2], s);
            }
        }
    }
    // Whether some accumulators of the tile may have lost digits.
    __device__ __forceinline__ bool loses_digits(float bound_of_columns, const float (&least)[2][2]) const {
        const float other = factor * bound_of_columns;
        bool loses = false;
#pragma unroll
        for (int h = 0; h < 2; ++h)
            loses |= Body::DIFFERENCES ? !(fminf(least[h][0], least[h][1]) > bound[h] + other) : !(bound[h] + other < infinity<float>());
        return loses;
    }

    // Takes by differences what loses digits, each thread its own, as long as that is rare. What a NaN takes part in is NaN
    // and an infinite point is infinitely far from finite ones: that needs no numbers.
    __device__ __forceinline__ void correct(const float* side, i64 m0, i64 n0) {
        i64 where = (i64)side;  // read anew: what is rare must not take registers
        ptx::opaque(where);
        side = (const float*)where;
        const float unit_of_columns = side[TAIL];
        unsigned lost[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 64; ++i) {
            const int h = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2, slot = i / 8 * 16 + lane % 4 * 4 + i / 4 % 2 * 2 + i % 2;
            const float theirs = side[slot], own = bound[h];
            bool loses;
            if constexpr (Body::DIFFERENCES)
                loses = !(score[i] > own + factor * fmaf(Tile::SHARE, theirs, unit_of_columns * unit_of_columns));
            else
                loses = !is_finite(own + theirs);
            if (!loses || own == -infinity<float>() || n0 + column >= g.size[ROLE_N]) continue;
            const bool nan = norm[h] != norm[h] || theirs != theirs;
            const bool far = Body::DIFFERENCES && (norm[h] == -infinity<float>()) != (theirs == -infinity<float>());
            if (nan || far)
                score[i] = nan ? not_a_number<float>() : infinity<float>();
            else
                lost[i / 32] |= 1u << i % 32;
        }
        const int mine = __popc(lost[0]) + __popc(lost[1]), rounds = __reduce_max_sync(WHOLE, mine);
        int before = 0;
        if (lane == 0 && rounds > 0) before = atomicAdd(g.list, rounds);
        gives_up = __shfl_sync(WHOLE, before, 0) > most_differences(g.size[ROLE_M], g.size[ROLE_N]);
        if (gives_up) return;
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
            const int bit = lost[0] ? __ffs(lost[0]) - 1 : lost[1] ? 31 + __ffs(lost[1]) : -1;
            float found = 0.0f;
            if (bit >= 0) found = score_directly<Body>(g, m0 + local_row() + bit / 2 % 2 * 8, n0 + bit / 4 * 8 + lane % 4 * 2 + bit % 2);
            if (Body::SCALES) found *= factor;
#pragma unroll
            for (int i = 0; i < 64; ++i) score[i] = i == bit ? found : score[i];
            if (lost[0])
                lost[0] &= lost[0] - 1;
            else
                lost[1] &= lost[1] - 1;
        }
    }

    __device__ __forceinline__ float entry(int i, const float (&columns)[AtLeastOne<Body::COLUMN_ENDS>::value]) const {
        float rows[AtLeastOne<Body::ROW_ENDS>::value];
#pragma unroll
        for (int o = 0; o < Body::ROW_ENDS; ++o) rows[o] = row_ends[o][i / 2 % 2];
        typename Body::Registers s;
        s.r0 = score[i];
        if constexpr (Body::SCALES)
            return Body::scaled_entry(fixed, g.number, rows, columns, 0, s);
        else
            return Body::entry(fixed, g.number, rows, columns, 0, s);
    }

    // Four numbers of columns that travel with the tile: of those that block j of 16 has for this thread.
    __device__ __forceinline__ float4 four_of(const float* side, int offset, int j) const { return *((const float4*)(side + offset) + 4 * j + lane % 4); }

    // Entries, in the place of the accumulators of the block of 8 columns.
    __device__ __forceinline__ void make_entries(const float* side, int block) {
        float ends[4][AtLeastOne<Body::COLUMN_ENDS>::value];
#pragma unroll
        for (int o = 0; o < Body::COLUMN_ENDS; ++o) {
            const float4 four = four_of(side, ENDS + SCORE_ROWS * o, block / 2);
            ends[0][o] = block % 2 ? four.z : four.x;
            ends[1][o] = block % 2 ? four.w : four.y;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) score[4 * block + i] = entry(4 * block + i, ends[i % 2]);
    }

    // Entries of a tile and what is reduced of them, as one stream whose stages lie AHEAD blocks of columns apart, so that
    // the few warps there are do not wait for results. FINISHED: the accumulators are finished, columns behind the last are
    // left out. Whether some lose digits, in which case nothing of it counts.
    template <bool FINISHED>
    __device__ __forceinline__ bool reduce(const float* side, int left, State (&part)[GROUP][2][CHAINS]) {
        const float2 tail = *(const float2*)(side + TAIL);
        const float c = unit * tail.x;
        float least[2][2] = {{infinity<float>(), infinity<float>()}, {infinity<float>(), infinity<float>()}};
#pragma unroll
        for (int q = 0; q < GROUP; ++q)
#pragma unroll
            for (int h = 0; h < 2; ++h)
#pragma unroll
                for (int e = 0; e < CHAINS; ++e) Body::begin(part[q][h][e]);
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
        constexpr float LOG2_E = 1.44269504f, MOST = 3.402823466e38f;
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

    // The same in one stream, relative to the largest entry of the tiles before: right until a sum is 2^50 times as large, in
    // which case, as in the first tile, nothing of it counts.
    __device__ __forceinline__ bool stream_exponentials(const float* side, State (&part)[GROUP][2][CHAINS]) {
        constexpr float LOG2_E = 1.44269504f, MOST = 1e38f, ROOM = 1.1258999e15f;
        const float2 tail = *(const float2*)(side + TAIL);
        const float c = unit * tail.x;
        float least[2][2] = {{infinity<float>(), infinity<float>()}, {infinity<float>(), infinity<float>()}};
        float sum[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}}, from[2], shift[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            from[h] = fminf(fmaxf(total[0][h].r0, -MOST), MOST);
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
        const bool exceeds = fmaxf(fmaxf(sum[0][0], sum[0][1]), fmaxf(sum[1][0], sum[1][1])) > ROOM;
        return exceeds || loses_digits(tail.y, least);
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

    // The tile once more, with what lost digits taken by differences; also the last tile, of fewer columns.
    __device__ __forceinline__ void reduce_with_care(int stage, const float* side, int t, int left, State (&part)[GROUP][2][CHAINS]) {
        const i64 first = (i64)spans_row * BM;
        multiply(stage);
        settle();
        i64 where = (i64)side;
        ptx::opaque(where);
        side = (const float*)where;
        const float2 tail = *(const float2*)(side + TAIL);
        float least[2][2] = {{infinity<float>(), infinity<float>()}, {infinity<float>(), infinity<float>()}};
#pragma unroll
        for (int block = 0; block < 16; ++block) finish_products(side, block, unit * tail.x, least);
        if (__any_sync(WHOLE, loses_digits(tail.y, least)) && !gives_up) correct(side, first, (i64)t * BN);
        load_points(first);  // anew: they take no registers meanwhile
        reduce_tile<true>(side, left, part);
    }

    // Joins the four lanes of a row and writes it, or what is to be joined later.
    __device__ __forceinline__ void end(i64 m0, i64 c, State* slot, bool whole) {
        const auto p = origin();
#pragma unroll
        for (int q = 0; q < GROUP; ++q)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                State& mine = total[q][h];
                Body::join(mine, shuffle_xor(mine, 1));
                Body::join(mine, shuffle_xor(mine, 2));
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

    __device__ __forceinline__ void consume() {
        const auto p = origin();
        fixed = Body::fixed(g, p);
        factor = 1.0f;
        if constexpr (Body::SCALES) factor = Body::scale(fixed, g.number);
        Stage<STAGES> tile;
        int side_at = 0;
        if (group == GROUPS - 1) score_pass_issue(0);
#pragma unroll 1
        for (int c = 0; c < (Body::WEIGHTED ? (int)g.size[ROLE_L] : 1); c += GROUP) {
            Spans spans(score_share<Tile>(g));
#pragma unroll 1
            while (spans.next()) {
                begin((i64)spans.row * BM);
#pragma unroll 1
                for (int& t = spans.begin; t < spans.end; ++t) {
                    ptx::mbarrier_wait_parity(full + 8 * tile.at, tile.phase);
                    if (ended[tile.at]) {
                        if (group == 0) score_await_issue(0);
                        return;
                    }
                    score_await_issue(group);
                    multiply(tile.at);
                    score_pass_issue(group + 1 == GROUPS ? 0 : group + 1);
                    settle();
                    const float* side = sides + side_at * SIDE;
                    const i64 left = g.size[ROLE_N] - (i64)t * BN;
                    State part[GROUP][2][CHAINS];
                    if (any_of_group(reduce_tile<false>(side, BN, part) || left < BN)) {
                        spans_row = spans.row;
                        reduce_with_care(tile.at, side, t, left < BN ? (int)left : BN, part);
                    }
#pragma unroll
                    for (int q = 0; q < GROUP; ++q)
#pragma unroll
                        for (int h = 0; h < 2; ++h)
#pragma unroll
                            for (int e = 0; e < CHAINS; ++e) add(total[q][h], part[q][h][e]);
                    if (lane == 0) ptx::mbarrier_arrive(tiles_empty + 8 * tile.at);
                    tile.advance();
                    __syncwarp();
                    if (lane == 0) ptx::mbarrier_arrive(sides_empty + 8 * side_at);
                    if (++side_at == SIDES) side_at = 0;
                }
                const Share share = score_share<Tile>(g);
                end((i64)spans.row * BM, c, slot_of<Body, BM>(g.work, blockIdx.x, share.slot(spans.row), g.size[ROLE_L]), share.whole(spans.row));
            }
        }
        if (group == 0) score_await_issue(0);
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
        if (threadIdx.x == 128 * Tile::GROUPS) score_produce<Body, Tile>(g, task.tiles, task.full, task.tiles_empty, task.sides_empty, task.ended);
    } else {
        ptx::setmaxnreg_inc<CONSUMER>();
        task.consume();
    }
}

}  // namespace km

// Rows of score tiles in registers: products of halves become accumulators of entries, those that lost digits are taken by
// differences, and entries are made in the place of their accumulators.
#pragma once
#include "score_split.cuh"

namespace km {

// The smallest accumulators of both rows of a thread, of even and odd columns. BY_BITS: as integers, of which three are compared at
// once; those of a negative number are negative.
template <bool BY_BITS>
struct Least {
    float of[2][2] = {{infinity<float>(), infinity<float>()}, {infinity<float>(), infinity<float>()}};
    KM_DEVICE void take(int h, float even, float odd) {
        of[h][0] = fminf(of[h][0], even);
        of[h][1] = fminf(of[h][1], odd);
    }
    KM_DEVICE float row(int h) const { return fminf(of[h][0], of[h][1]); }
};
template <>
struct Least<true> {
    int of[2] = {0x7f800000, 0x7f800000};
    KM_DEVICE void take(int h, float even, float odd) { of[h] = min(min(of[h], __float_as_int(even)), __float_as_int(odd)); }
    KM_DEVICE float row(int h) const { return __int_as_float(of[h]); }
};

// What a consumer warpgroup knows of its 64 rows, and the accumulators of these and Tile::BN columns. Where Tile::FRAGMENTS, the
// points of the rows are in registers too.
template <class Body, class Tile>
struct ScoreRows : RowsOfGroup<Body> {
    typedef typename Body::Args Args;
    typedef typename Tile::Layout Layout;
    static constexpr int D = Tile::D, KS = Tile::KS, GROUPS = Tile::GROUPS, BM = Tile::BM, BN = Tile::BN, CELLS = BN / 2;
    static constexpr int SIDE = score_side<Body>(), ENDS = SCORE_ROWS, TAIL = SIDE - 4, AHEAD = 2;
    static constexpr bool FRAGMENTS = Tile::FRAGMENTS, PACKED = score_is_packed(D, KS);
    static constexpr int PLANES = PACKED ? 1 : 2;
    // Three warpgroups with few fragments are compiled without spilling otherwise.
    typedef Least<Body::MANY || (KS > 2)> Smallest;
    static constexpr unsigned WHOLE = 0xffffffffu;

    typedef RowsOfGroup<Body> OfGroup;
    using OfGroup::g, OfGroup::group, OfGroup::warp, OfGroup::lane, OfGroup::local_row;

    float score[CELLS];
    unsigned x[FRAGMENTS ? PLANES : 1][FRAGMENTS ? KS : 1][4];
    float norm[2], bound[2], factor, unit;
    float row_ends[AtLeastOne<Body::ROW_ENDS>::value][2];
    typename Body::Fixed fixed;
    bool gives_up;

    __device__ __forceinline__ ScoreRows(const Args& g_) : OfGroup(g_), gives_up(false) {}

    // Whether it is so for any thread of the warpgroup.
    __device__ __forceinline__ bool any_of_group(bool mine) const { return !ptx::bar_red_and<128>(group + 1 + GROUPS, !mine); }

    __device__ __forceinline__ void load_points(i64 m0) {
        typedef ScoreLayout<D> Rows;
        const i64 piece = m0 / 64 + group;
        const unsigned char* from = g.tiles[0] + piece / 2 * Rows::BYTES;
        const int row = (int)(piece % 2) * 64 + 16 * warp + lane / 4;
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane)
#pragma unroll
            for (int s = 0; s < KS; ++s) {
                const int k = plane * D + 16 * s + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < 4; ++i) x[plane][s][i] = *(const unsigned*)(from + Rows::at(row + i % 2 * 8, k + i / 2 * 8));
            }
    }

    __device__ __forceinline__ void begin_rows(i64 m0) {
        if constexpr (FRAGMENTS) load_points(m0);
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
        }
    }

    __device__ __forceinline__ void fence_scores() {
#pragma unroll
        for (int i = 0; i < CELLS; ++i) ptx::fence_operand(score[i]);
    }
    // What is the same for all threads of a warp, so that the compiler knows it to be.
    static __device__ __forceinline__ unsigned uniform(unsigned a) { return __shfl_sync(WHOLE, a, 0); }

    // Products of a plane of the rows with one of columns in shared memory, where the rows are too unless FRAGMENTS.
    __device__ __forceinline__ void multiply_planes(int plane, unsigned columns, int plane_of_columns, unsigned rows, bool keep) {
        typedef ScoreLayout<D> Rows;
#pragma unroll
        for (int s = 0; s < KS; ++s) {
            const unsigned b = Layout::LOW + (columns >> 4) + Layout::step(plane_of_columns * D + 16 * s);
            if constexpr (FRAGMENTS)
                score_multiply(score, x[plane][s], b, Layout::HIGH, keep || s > 0);
            else
                score_multiply(score, Rows::LOW + (rows >> 4) + Rows::step(plane * D + 16 * s), Rows::HIGH, b, Layout::HIGH, keep || s > 0);
        }
    }
    // Starts the products of the rows with a tile of columns, small ones first.
    __device__ __forceinline__ void multiply(unsigned columns, unsigned rows = 0) {
        columns = uniform(columns);
        if constexpr (!FRAGMENTS) rows = uniform(rows);
        fence_scores();
        ptx::wgmma_fence();
        multiply_planes(0, columns, PLANES - 1, rows, false);
        if constexpr (!PACKED) {
            multiply_planes(1, columns, 0, rows, true);
            multiply_planes(0, columns, 0, rows, true);
        }
        ptx::wgmma_commit_group();
    }
    __device__ __forceinline__ void wait_products() {
        ptx::wgmma_wait_group<0>();
        fence_scores();
    }

    // From products to accumulators of entries (times the scale, where there is one) for a block of 8 columns; `least`: the
    // smallest so far of both rows.
    __device__ __forceinline__ void finish_products(const float* side, int block, float c, Smallest& least) {
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
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) least.take(h, score[4 * block + 2 * h], score[4 * block + 2 * h + 1]);
        }
    }
    // Whether some accumulators of the tile may have lost digits.
    __device__ __forceinline__ bool loses_digits(float bound_of_columns, const Smallest& least) const {
        const float other = factor * bound_of_columns;
        bool loses = false;
#pragma unroll
        for (int h = 0; h < 2; ++h)
            loses |= Body::DIFFERENCES ? !(least.row(h) > bound[h] + other) : !(bound[h] + other < infinity<float>());
        return loses;
    }

    // Most bits of an exponent of which a sum loses none where it counts.
    static constexpr float SUM_BITS = 4.0f;
    // Whether squares are so small, for all rows of a warp, that powers of 2 are made of products, a factor and the column's level.
    __device__ __forceinline__ bool has_small_squares(float bound_of_columns) const {
        return __all_sync(WHOLE, fmaf(factor, bound_of_columns, fmaxf(bound[0], bound[1])) <= SUM_BITS * Tile::SHARE);
    }

    // Takes by differences what loses digits, each thread its own, as long as that is rare. What a NaN takes part in is NaN
    // and an infinite point is infinitely far from finite ones: that needs no numbers.
    __device__ __forceinline__ void correct(const float* side, float unit_of_columns, i64 m0, i64 n0) {
        i64 where = (i64)side;  // read anew: what is rare must not take registers
        ptx::opaque(where);
        side = (const float*)where;
        unsigned lost[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < CELLS; ++i) {
            const int h = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2, slot = i / 8 * 16 + lane % 4 * 4 + i / 4 % 2 * 2 + i % 2;
            const float theirs = side[slot], own = bound[h];
            bool loses;
            if constexpr (Body::DIFFERENCES)
                loses = !(score[i] > own + factor * fmaf(Tile::SHARE, theirs, unit_of_columns * unit_of_columns));
            else
                loses = !is_finite(own + theirs);
            if (!loses || own == -infinity<float>() || (!Body::MANY && n0 + column >= g.size[ROLE_N])) continue;
            const bool nan = norm[h] != norm[h] || theirs != theirs;
            const bool far = Body::DIFFERENCES && (norm[h] == -infinity<float>()) != (theirs == -infinity<float>());
            if (nan || far)
                score[i] = nan ? not_a_number<float>() : infinity<float>();
            else
                lost[i / 32] |= 1u << i % 32;
        }
        const int mine = __popc(lost[0]) + __popc(lost[1]);
        const int rounds = Tile::PATIENCE > 1 ? __reduce_add_sync(WHOLE, mine) : __reduce_max_sync(WHOLE, mine);
        if (exceeds_patience(rounds, m0, n0)) return;
        if constexpr (Tile::PATIENCE > 1)
            correct_together(lost, m0, n0);
        else
            correct_alone(lost, rounds, m0, n0);
    }

    // Counts pairs taken by differences, by rounds of a warp or, where these are taken together, in one of PATIENCE tiles. Whether they
    // are too many.
    __device__ __forceinline__ bool exceeds_patience(int rounds, i64 m0, i64 n0) {
        int before = 0;
        if (lane == 0 && rounds > 0) {
            if (Tile::PATIENCE == 1 || (m0 / BM + n0 / BN) % Tile::PATIENCE == 0)
                before = atomicAdd(g.list, rounds);
            else
                before = *(volatile const int*)g.list;
        }
        gives_up = __shfl_sync(WHOLE, before, 0) > most_differences(g.size[ROLE_M], g.size[ROLE_N]);
        return gives_up;
    }

    static __device__ __forceinline__ int first_of(const unsigned (&lost)[2]) {
        return lost[0] ? __ffs(lost[0]) - 1 : lost[1] ? 31 + __ffs(lost[1]) : -1;
    }
    static __device__ __forceinline__ void drop_first(unsigned (&lost)[2]) {
        if (lost[0])
            lost[0] &= lost[0] - 1;
        else
            lost[1] &= lost[1] - 1;
    }
    __device__ __forceinline__ i64 column_of(int bit, int of_lane, i64 n0) const {
        const i64 n = n0 + bit / 4 * 8 + of_lane % 4 * 2 + bit % 2;
        return Body::MANY && n >= g.size[ROLE_N] ? g.size[ROLE_N] - 1 : n;
    }
    __device__ __forceinline__ void replace(int bit, float found) {
        if (Body::SCALES) found *= factor;
#pragma unroll
        for (int i = 0; i < CELLS; ++i) score[i] = i == bit ? found : score[i];
    }

    __device__ __forceinline__ void correct_alone(unsigned (&lost)[2], int rounds, i64 m0, i64 n0) {
#pragma unroll 1
        for (int round = 0; round < rounds; ++round) {
            const int bit = first_of(lost);
            float found = 0.0f;
            if (bit >= 0) found = score_directly<1, Body>(g, m0 + local_row() + bit / 2 % 2 * 8, column_of(bit, lane, n0));
            replace(bit, found);
            drop_first(lost);
        }
    }
    __device__ __forceinline__ void correct_together(unsigned (&lost)[2], i64 m0, i64 n0) {
#pragma unroll 1
        while (const unsigned lanes = __ballot_sync(WHOLE, (lost[0] | lost[1]) != 0)) {
            const int from = __ffs(lanes) - 1, bit = __shfl_sync(WHOLE, first_of(lost), from);
            const i64 m = m0 + local_row() + (from / 4 - lane / 4) + bit / 2 % 2 * 8;
            const float found = score_directly<32, Body>(g, m, column_of(bit, from, n0));
            if (lane != from) continue;
            replace(bit, found);
            drop_first(lost);
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

};

}  // namespace km

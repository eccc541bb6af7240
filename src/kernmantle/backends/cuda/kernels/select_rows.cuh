// The nearest columns of a row from the minima of its groups, a warp a row.
//
// The 32 groups of smallest minima are compared by differences in float32, which leaves a distance that the k nearest do
// not exceed. Wherever another group may hold a column as nearest, by the bound of its minimum, all minima are read again
// and such groups compared too. So the result is that of all differences, whatever the points; where too much is compared
// again the kernel ends and one that knows nothing but differences runs instead.
#pragma once
#include "lanes.cuh"
#include "select_gate.cuh"
#include "select_split.cuh"

namespace km {

template <class Body, class Tile>
struct Nearest {
    typedef typename Body::Args Args;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    static constexpr unsigned WHOLE = 0xffffffffu;
    static constexpr u64 NONE = ~0ull;
    static constexpr int LANES = Tile::LANES, TOGETHER = 32 / LANES, EACH = GROUP_COLUMNS / TOGETHER, BATCH = 512;
    static constexpr int AHEAD = EACH < 8 ? EACH : 8;
    static constexpr float LEAST = 1e-33f;
    static_assert(EACH == LANES / 2, "pairs of lanes are left with a column");

    const Args& g;
    const i64 row;
    const int lane, count, groups;
    const float* minima;
    u64* queue;
    // Share of both norms by which an accumulator may be wrong: tensor cores cut each of 17 terms to 24 bits at every
    // step; norms are sums of one rounded term a step, or of fewer than 20.
    const float rounding;
    float norm, radius, limit;
    float x[4];
    u64 nearest;

    __device__ __forceinline__ Nearest(const Args& g_, i64 band_row, u64* queue_)
        : g(g_), row(g_.first + band_row), lane(threadIdx.x % 32), count((int)g_.size[ROLE_L]),
          groups((int)ceil_div(g_.size[ROLE_N], Tile::BN) * (Tile::BN / GROUP_COLUMNS)), minima((const float*)g_.work + band_row * groups),
          queue(queue_), rounding((2.1f * Tile::steps(g_.size[ROLE_K]) + 3.0f) * 1e-6f), limit(infinity<float>()), nearest(NONE) {
        const float4 own = g.rows[row];
        norm = own.x;
        radius = own.y;
        read_along_k<X, false>(x, row_of<X>(g, origin(), row), g, lane % LANES * 4);
    }

    // Of all columns.
    __device__ __forceinline__ float largest_radius() const { return __int_as_float(*(volatile const int*)(g.list + LARGEST_RADIUS)); }
    __device__ __forceinline__ float largest_norm() const { return __int_as_float(*(volatile const int*)(g.list + LARGEST_NORM)); }
    // A distance that the columns of a group with this minimum have at least. The nearest so far are not further than the
    // limit, a little more than their distance, infinite while there is none.
    __device__ __forceinline__ float bound_of(float least, float radius_of_columns, float norm_of_columns) const {
        const float error = fmaf(rounding, norm + norm_of_columns, LEAST);
        return sqrtf(fmaxf(least + norm - error, 0.0f)) - (radius + radius_of_columns);
    }
    __device__ __forceinline__ float bound_of(float least, int group) const {
        const float2 most = __ldg(g.groups + group);
        return bound_of(least, most.x, most.y);
    }
    // A minimum that groups with columns within this distance do not exceed, whatever the group, but for outliers.
    __device__ __forceinline__ float minimum_at(float distance, float radius_of_columns, float norm_of_columns) const {
        const float error = fmaf(1.1f * rounding, norm + norm_of_columns, LEAST);
        distance += radius + radius_of_columns;
        const float reach = fmaf(distance * distance, 1.0001f, error - norm);
        return reach < MOST_SQUARE ? reach : infinity<float>();
    }
    // A minimum that groups of the nearest do not exceed, from one that `count` of them do not, but for outliers.
    __device__ __forceinline__ float reach_of(float least, float radius_of_columns, float norm_of_columns) const {
        const float error = fmaf(rounding, norm + norm_of_columns, LEAST);
        const float distance = sqrtf(fmaxf(least + norm + error, 0.0f)) + radius + radius_of_columns;
        return minimum_at(distance, radius_of_columns, norm_of_columns);
    }

    // Columns of a group by differences; lanes 0 .. 15 and 16 .. 31 get the same keys.
    __device__ __forceinline__ u64 compare(int group) const {
        const auto p = origin();
        const i64 first = (i64)(group / TILE_GROUPS) * SCORE_ROWS, last = g.size[ROLE_N] - 1;
        const int part = lane % LANES, which = lane / LANES;
        float s[EACH];
#pragma unroll
        for (int start = 0; start < EACH; start += AHEAD) {
            typename Body::Registers sum[AHEAD];
            auto add = [&](const float (&own)[4], i64 k) {
                float y[AHEAD][4];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    const i64 n = first + group_column(group % TILE_GROUPS, (start + i) * TOGETHER + which);
                    read_along_k<Y, false>(y[i], row_of<Y>(g, p, n < last ? n : last), g, k);
                }
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) add_four<Body>(sum[i], own, y[i], g, k);
            };
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) Body::initial(sum[i]);
            add(x, 4 * part);
            if constexpr (Tile::DEEP) {
#pragma unroll 1
                for (i64 k = 4 * part + 4 * LANES; k < g.size[ROLE_K]; k += 4 * LANES) {
                    float own[4];
                    read_along_k<X, false>(own, row_of<X>(g, p, row), g, k);
                    add(own, k);
                }
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) s[start + i] = sum[i].r0;
        }
        // while a lane has several columns it gives half of them away
#pragma unroll
        for (int left = EACH / 2; left > 0; left /= 2) {
            const bool upper = part & 2 * left;
#pragma unroll
            for (int i = 0; i < left; ++i) {
                const float give = upper ? s[i] : s[i + left], keep = upper ? s[i + left] : s[i];
                s[i] = keep + __shfl_xor_sync(WHOLE, give, 2 * left);
            }
        }
        s[0] += __shfl_xor_sync(WHOLE, s[0], 1);
        const i64 n = first + group_column(group % TILE_GROUPS, part / 2 * TOGETHER + which);
        const unsigned bits = s[0] != s[0] ? 0x7fffffffu : __float_as_uint(s[0]);
        const u64 key = n <= last ? (u64)bits << 32 | (unsigned)n : NONE;
        return __shfl_sync(WHOLE, key, lane * 2 % 32);
    }

    // Takes the groups of the first lanes' candidates, those that are not too far.
    __device__ __forceinline__ void take(u64 candidates, int candidates_left) {
        const bool mine = lane < candidates_left;
        const float bound = bound_of(from_ordered_bits((unsigned)(candidates >> 32)), mine ? (int)(unsigned)candidates : 0);
#pragma unroll 1
        for (int c = 0; c < candidates_left; c += 2) {
            u64 fresh = NONE;
#pragma unroll 1
            for (int f = 0; f < 2; ++f) {
                const int group = __shfl_sync(WHOLE, (int)(unsigned)candidates, (c + f) % 32);
                const float distance = __shfl_sync(WHOLE, bound, (c + f) % 32);
                if (c + f >= candidates_left || distance > limit) continue;
                const u64 keys = compare(group);
                if (lane / 16 == f) fresh = keys;
            }
            const u64 worst = __shfl_sync(WHOLE, nearest, count - 1);
            if (!__any_sync(WHOLE, fresh < worst)) continue;
            nearest = merge_lanes(nearest, fresh, lane);
            const float square = __uint_as_float((unsigned)(__shfl_sync(WHOLE, nearest, count - 1) >> 32));
            if (square < MOST_SQUARE && norm <= MOST_ROW_NORM) limit = fmaf(sqrtf(square), 1.00002f, 1e-18f);
        }
    }

    // Minima of four groups; what is behind the last, and NaN, is infinite.
    __device__ __forceinline__ float4 minima_of(int group) const {
        const float most = infinity<float>();
        if (group >= groups) return make_float4(most, most, most, most);
        const float4 v = __ldcs((const float4*)(minima + group));
        return make_float4(fminf(v.x, most), fminf(v.y, most), fminf(v.z, most), fminf(v.w, most));
    }
    static __device__ __forceinline__ u64 candidate(float least, int group) { return (u64)ordered_bits(least) << 32 | (unsigned)group; }

    // Puts the candidates of some lanes into the queue.
    __device__ __forceinline__ int put(bool mine, u64 key, int waiting) {
        const unsigned all = __ballot_sync(WHOLE, mine);
        if (mine) queue[waiting + __popc(all & ((1u << lane) - 1))] = key;
        return waiting + __popc(all);
    }
    // Takes up to 32 from its end.
    __device__ __forceinline__ u64 take_from_queue(int& waiting) {
        __syncwarp();
        const int left = waiting > 32 ? waiting - 32 : 0;
        const u64 key = left + lane < waiting ? queue[left + lane] : NONE;
        __syncwarp();
        waiting = left;
        return key;
    }

    // The 32 groups of smallest minima up to `reach`, ascending.
    __device__ __forceinline__ u64 smallest(float& reach, float radius_of_columns, float norm_of_columns) {
        u64 best = NONE;
        int waiting = 0;
#pragma unroll 1
        for (int base = 0; base < groups; base += BATCH) {
            float4 w[BATCH / 128];
#pragma unroll
            for (int f = 0; f < BATCH / 128; ++f) w[f] = minima_of(base + 128 * f + 4 * lane);
            if (base == 0) {
                const float least = fminf(fminf(w[0].x, w[0].y), fminf(w[0].z, w[0].w));
                const u64 lowest = __shfl_sync(WHOLE, sort_lanes<false>(candidate(least, lane), lane), count - 1);
                reach = reach_of(from_ordered_bits((unsigned)(lowest >> 32)), radius_of_columns, norm_of_columns);
            }
#pragma unroll
            for (int f = 0; f < BATCH / 128; ++f) {
                const float each[4] = {w[f].x, w[f].y, w[f].z, w[f].w};
                if (!__any_sync(WHOLE, fminf(fminf(each[0], each[1]), fminf(each[2], each[3])) <= reach)) continue;
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    waiting = put(each[e] <= reach && each[e] < infinity<float>(), candidate(each[e], base + 128 * f + 4 * lane + e), waiting);
            }
#pragma unroll 1
            while (waiting >= 32 || (base + BATCH >= groups && waiting > 0)) {
                best = merge_lanes(best, take_from_queue(waiting), lane);
                const u64 last = __shfl_sync(WHOLE, best, count - 1);
                if (last != NONE) reach = fminf(reach, reach_of(from_ordered_bits((unsigned)(last >> 32)), radius_of_columns, norm_of_columns));
            }
        }
        return best != NONE && from_ordered_bits((unsigned)(best >> 32)) <= reach ? best : NONE;
    }

    // Compares every group behind `cut` that is not too far; false if that is too much for all rows together.
    __device__ __forceinline__ bool repeat(u64 cut) {
        int waiting = 0;
#pragma unroll 1
        for (int base = 0; base < groups; base += BATCH) {
            const float reach = minimum_at(limit, largest_radius(), largest_norm());
            float4 w[BATCH / 128];
#pragma unroll
            for (int f = 0; f < BATCH / 128; ++f) w[f] = minima_of(base + 128 * f + 4 * lane);
#pragma unroll
            for (int f = 0; f < BATCH / 128; ++f) {
                const float each[4] = {w[f].x, w[f].y, w[f].z, w[f].w};
                // what is not a number is reached
                if (__all_sync(WHOLE, fminf(fminf(each[0], each[1]), fminf(each[2], each[3])) > reach)) continue;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int group = base + 128 * f + 4 * lane + e;
                    const u64 key = candidate(each[e], group);
                    const bool reached = group < groups && key > cut && !(each[e] > reach);
                    waiting = put(reached && !(bound_of(each[e], group) > limit), key, waiting);
                }
            }
#pragma unroll 1
            while (waiting >= 32 || (base + BATCH >= groups && waiting > 0)) {
                int before = 0;
                const int now = waiting < 32 ? waiting : 32;
                if (lane == 0) before = atomicAdd(g.list + REPEATED, now);
                if (__shfl_sync(WHOLE, before, 0) > most_repeated(g.size[ROLE_M])) return false;
                take(take_from_queue(waiting), now);
            }
        }
        return true;
    }

    __device__ __forceinline__ void run() {
        if (norm != norm) {
            nearest = (u64)0x7fffffffu << 32 | (unsigned)lane;
        } else {
            float reach = infinity<float>();
            const u64 best = smallest(reach, largest_radius(), largest_norm());
            take(best, __popc(__ballot_sync(WHOLE, best != NONE)));
            const u64 last = __shfl_sync(WHOLE, best, 31), beyond = ((u64)ordered_bits(infinity<float>()) << 32) - 1;
            u64 cut = last != NONE ? last : (u64)ordered_bits(reach) << 32 | 0xffffffffu;
            cut = cut < beyond ? cut : beyond;
            const float left = bound_of(from_ordered_bits((unsigned)(cut >> 32)), largest_radius(), largest_norm());
            if (!(left > limit) && !repeat(cut)) return;
        }
        if (lane >= count) return;
        const auto p = origin();
        typename Body::Registers sum;
        sum.r0 = __uint_as_float((unsigned)(nearest >> 32));
        const float none[1] = {0.0f}, value = Body::entry(Body::fixed(g, p), g.number, none, none, none, sum);
        write_result<Body>(g, p, row, lane, Ranked<float>{Body::LARGEST ? -value : value, (i64)(unsigned)nearest});
    }
};

template <class Body, class Tile>
__device__ __forceinline__ void select_rows(const typename Body::Args& g) {
    typedef Nearest<Body, Tile> N;
    __shared__ u64 queues[8][N::BATCH + 32];
    if (selects_by_differences(g.list, g.size[ROLE_M])) return;
    const i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32;
    if (row < g.count) N(g, row, queues[threadIdx.x / 32]).run();
}

}  // namespace km

// The nearest columns of every row by any entry, from the smallest entry of each group of columns.
//
// The threads that make the entries of a tile write the smallest of the columns that they have of a row (apply_tile.cuh). A column among
// the `count` nearest lies in one of the `count` groups of smallest minima; a warp a row finds these, computes their entries again
// in the order of k in which they were made, and keeps the nearest, of equal ones those of lower index.
#pragma once
#include "apply_scan.cuh"
#include "apply_pipelined.cuh"
#include "lanes.cuh"

namespace km {

template <class Body, class Tile>
struct Groups {
    typedef typename Body::Args Args;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    typedef typename Tile::template ReducerLayout<Body> ReducerLayout;
    static constexpr unsigned WHOLE = 0xffffffffu;
    static constexpr u64 NONE = ~0ull;
    static constexpr int BATCH = 512, EACH = ReducerLayout::TN, TOGETHER = 32 / EACH;
    static_assert(TOGETHER * EACH == 32, "lanes have a column each");

    const Args& g;
    const i64 row;
    const int lane, count, groups;
    const float* minima;
    u64* queue;

    __device__ __forceinline__ Groups(const Args& g_, i64 row_, u64* queue_)
        : g(g_), row(row_), lane(threadIdx.x % 32), count((int)g_.size[ROLE_L]), groups((int)ceil_div(g_.size[ROLE_N], ReducerLayout::BN) * 8),
          minima((const float*)g_.work + row_ * groups), queue(queue_) {}

    // The groups of smallest minima, ascending.
    __device__ __forceinline__ u64 smallest() const {
        u64 best = NONE;
        int waiting = 0;
#pragma unroll 1
        for (int base = 0; base < groups; base += BATCH) {
            float4 w[BATCH / 128];
#pragma unroll
            for (int f = 0; f < BATCH / 128; ++f) {
                const int at = base + 128 * f + 4 * lane;
                if (at < groups) w[f] = __ldcs((const float4*)(minima + at));
            }
            const u64 worst = __shfl_sync(WHOLE, best, count - 1);
#pragma unroll
            for (int f = 0; f < BATCH / 128; ++f) {
                const int at = base + 128 * f + 4 * lane;
                const float each[4] = {w[f].x, w[f].y, w[f].z, w[f].w};
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const u64 key = at < groups ? ranked_key(each[e], at + e) : NONE;
                    const unsigned all = __ballot_sync(WHOLE, key < worst);
                    if (key < worst) queue[waiting + __popc(all & ((1u << lane) - 1))] = key;
                    waiting += __popc(all);
                }
            }
            __syncwarp();
#pragma unroll 1
            while (waiting >= 32 || (base + BATCH >= groups && waiting > 0)) {
                const int left = waiting > 32 ? waiting - 32 : 0;
                best = merge_lanes(best, left + lane < waiting ? queue[left + lane] : NONE, lane);
                waiting = left;
            }
            __syncwarp();
        }
        return best;
    }

    // The key of one column, by one lane.
    __device__ __forceinline__ u64 compute(const Coord& p, i64 n) const {
        const typename X::T* x = row_of<X>(g, p, row);
        const typename Y::T* y = row_of<Y>(g, p, n);
        const i64 depth = g.size[ROLE_K];
        typename Body::Registers s;
        Body::initial(s);
        auto add = [&](const float (&a)[4], const float (&b)[4], i64 k, int count) {
#pragma unroll
            for (int v = 0; v < 4; ++v) {
                if (v >= count) continue;
                float c[AtLeastOne<Body::VECTORS>::value];
                read_vectors<Body>(c, g, p, k + v);
                Body::template step<EXACT>(s, a + v, b + v, c, a, g.number, k + v, 0);
            }
        };
        i64 k = 0;
#pragma unroll 1
        for (; k + 16 <= depth; k += 16) {
            float a[4][4], b[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                read_along_k<X, true>(a[i], x, g, k + 4 * i);
                read_along_k<Y, true>(b[i], y, g, k + 4 * i);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) add(a[i], b[i], k + 4 * i, 4);
        }
#pragma unroll 1
        for (; k < depth; k += 4) {
            float a[4], b[4];
            read_along_k<X, false>(a, x, g, k);
            read_along_k<Y, false>(b, y, g, k);
            add(a, b, k, (int)(depth - k));
        }
        return entry_key<Body>(g, p, row, n, s);
    }

    __device__ __forceinline__ void run() const {
        const Coord p = {0, 0, 0, 0, 0, 0};
        const u64 best = smallest();
        u64 nearest = NONE;
#pragma unroll 1
        for (int c = 0; c < count; c += TOGETHER) {
            const int from = c + lane / EACH;
            const u64 mine = __shfl_sync(WHOLE, best, from % 32);
            const int group = (int)(unsigned)mine;
            const i64 n = (i64)(group / 8) * ReducerLayout::BN + ReducerLayout{}.column_of(lane % EACH, group % 8);
            const bool inside = from < count && mine != NONE && n < g.size[ROLE_N];
            u64 fresh = NONE;
            if (inside) fresh = compute(p, n);
            nearest = merge_lanes(nearest, fresh, lane);
        }
        if (lane >= count) return;
        write_result<Body>(g, p, row, lane, Ranked<float>{from_ordered_bits((unsigned)(nearest >> 32)), (i64)(unsigned)nearest});
    }
};

template <class Body, class Tile>
__device__ __forceinline__ void select_groups(const typename Body::Args& g) {
    typedef Groups<Body, Tile> G;
    __shared__ u64 queues[8][G::BATCH + 32];
    const i64 row = (i64)blockIdx.x * 8 + threadIdx.x / 32;
    if (row < g.size[ROLE_M]) G(g, row, queues[threadIdx.x / 32]).run();
}

}  // namespace km

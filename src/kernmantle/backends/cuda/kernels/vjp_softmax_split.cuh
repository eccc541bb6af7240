// Packs what gradients of softmax-weighted sums are made of: rows of q, of cotangents, of k and of v.
#pragma once
#include "reduce.cuh"
#include "softmax_split.cuh"

namespace km {

// Packed rows of q, g, k and v in pieces of 64, and what goes with 64 rows of q and g (logarithms of sums, g o, what entries
// read of rows, squares, units) or of k and v (what entries read of columns, squares, units).
template <class A>
struct SoftmaxVjpArguments : A {
    unsigned char *queries, *cotangents, *keys, *values;
    float *row_sides, *column_sides;
};

// OF_COLUMNS: the kernel that has rows of k and v; BY_SECOND: it makes gradients by v, BY_FIRST: by k, or by q.
template <class H_, int PLANES_, int E_, int C_, int GROUPS_, int STAGES_, bool CAUSAL_, bool OF_COLUMNS_, bool BY_FIRST_, bool BY_SECOND_>
struct VjpTile {
    typedef H_ H;
    static constexpr int PLANES = PLANES_, E = E_, C = C_, GROUPS = GROUPS_, STAGES = STAGES_, BN = 64;
    static constexpr bool CAUSAL = CAUSAL_, OF_COLUMNS = OF_COLUMNS_, BY_FIRST = BY_FIRST_, BY_SECOND = BY_SECOND_, SPLIT = PLANES == 2;
    // Whether the rows that a warpgroup has stay in registers.
    static constexpr bool IN_REGISTERS = !SPLIT && E <= 64 && C <= 64;
    static constexpr int BM = 64 * GROUPS, THREADS = 128 * (GROUPS + 1);
    static constexpr int FIRST_PLANE = E * 128, SECOND_PLANE = C * 128;
    static constexpr int FIRST = PLANES * FIRST_PLANE, SECOND = PLANES * SECOND_PLANE;
    static constexpr int OWN = IN_REGISTERS ? 0 : GROUPS * (FIRST + SECOND);
    // Whether slopes are multiplied by powers of two that rows keep until one is too large: those of float32 have one a tile.
    static constexpr bool LIFTED = LIFT<H> > 0 && !SPLIT;
    static_assert(E % 64 == 0 && C % 64 == 0, "whole pieces");
};
template <class Body>
__device__ constexpr int row_side() {
    return 64 * (2 + Body::ROW_ENDS + Body::DIFFERENCES) + 4;
}
template <class Body>
__device__ constexpr int column_side() {
    return 64 * (Body::COLUMN_ENDS + Body::DIFFERENCES) + 4;
}
template <class Body, class Tile>
__device__ constexpr int vjp_softmax_shared_bytes() {
    constexpr int SIDE = Tile::OF_COLUMNS ? row_side<Body>() : column_side<Body>();
    return Tile::OWN + Tile::STAGES * (Tile::FIRST + Tile::SECOND + SIDE * 4 + 16) + 16;
}

template <class Body, class Tile>
struct SoftmaxVjpSplit {
    typedef typename Body::Args Args;
    typedef SoftmaxSplit<Body, Tile> S;
    static constexpr int THREADS = 256;

    // Of 64 rows: logarithms to the base 2 of their sums, infinite where nothing was weighed, and g o. Those of float16 lift weights.
    static __device__ void put_statistics(const Args& g, const BatchEntry& p, i64 first, float* side) {
        typedef typename Body::Result R;
        typedef typename Body::Cotangent G;
        typedef typename Body::Statistic L;
        const int row = threadIdx.x / 4;
        const i64 m = first + row;
        float sum = 0.0f;
        if (m < g.size[ROLE_M]) {
            const i64 *r = g.stride[R::BUFFER], *t = g.stride[G::BUFFER];
            const typename R::T* o = (const typename R::T*)g.pointer[R::BUFFER] + batch_offset(g, R::BUFFER, p) + m * r[ROLE_M];
            const typename G::T* c = (const typename G::T*)g.pointer[G::BUFFER] + batch_offset(g, G::BUFFER, p) + m * t[ROLE_M];
            for (i64 l = threadIdx.x % 4; l < g.size[ROLE_L]; l += 4)
                sum = fmaf(convert<float>(load_pack<typename R::T, 1>(o + l * r[ROLE_L]).v[0]), convert<float>(load_pack<typename G::T, 1>(c + l * t[ROLE_L]).v[0]), sum);
        }
        sum = quad_sum(sum);
        if (threadIdx.x % 4 != 0) return;
        const float log = end_value<L, float>(g, p, m, g.size[ROLE_M], ROLE_M) * 1.44269504f;
        side[row] = m < g.size[ROLE_M] && log != -infinity<float>() ? log - (Tile::LIFTED ? LIFT<typename Tile::H> : 0) : infinity<float>();
        side[64 + row] = sum;
    }

    // Blocks: of every batch entry first 64 rows of q and g each, then 64 rows of k and v each.
    static __device__ void put(const Args& g) {
        const i64 down = ceil_div(g.size[ROLE_M], Tile::BM) * Tile::GROUPS, across = ceil_div(g.size[ROLE_N], Tile::BM) * Tile::GROUPS;
        const i64 entry = quotient(blockIdx.x, down + across), mine = blockIdx.x - entry * (down + across);
        const BatchEntry p = entry_at(g, entry);
        const bool is_row = mine < down;
        const i64 first = (is_row ? mine : mine - down) * 64, at = is_row ? entry * down + mine : entry * across + mine - down;
        float* side = is_row ? g.row_sides + at * row_side<Body>() : g.column_sides + at * column_side<Body>();
        float units[2];
        if (is_row) {
            units[0] = S::template put_rows<typename Body::template Row<0>, 64>(g, p, first, g.queries + at * Tile::FIRST, side + 64 * (2 + Body::ROW_ENDS));
            units[1] = S::template put_array<typename Body::Cotangent, ROLE_M, ROLE_L, 64>(g, p, first, g.cotangents + at * Tile::SECOND);
            put_statistics(g, p, first, side);
            if (threadIdx.x < 64) {
                each<0, Body::ROW_ENDS>([&](auto index) {
                    side[64 * (2 + decltype(index)::value) + threadIdx.x] =
                        end_value<typename Body::template RowEnd<decltype(index)::value>, float>(g, p, first + threadIdx.x, g.size[ROLE_M], ROLE_M);
                });
            }
            side += row_side<Body>();
        } else {
            units[0] = S::template put_rows<typename Body::template Column<0>, 64>(g, p, first, g.keys + at * Tile::FIRST, side + 64 * Body::COLUMN_ENDS);
            units[1] = S::template put_array<typename Body::Weight, ROLE_N, ROLE_L, 64>(g, p, first, g.values + at * Tile::SECOND);
            if (threadIdx.x < 64) {
                each<0, Body::COLUMN_ENDS>([&](auto index) {
                    side[64 * decltype(index)::value + threadIdx.x] =
                        end_value<typename Body::template ColumnEnd<decltype(index)::value>, float>(g, p, first + threadIdx.x, g.size[ROLE_N], ROLE_N);
                });
            }
            side += column_side<Body>();
        }
        if (threadIdx.x < 4) side[(int)threadIdx.x - 4] = threadIdx.x < 2 ? units[threadIdx.x % 2] : 0.0f;
    }
};
template <class Body, class Tile>
__device__ __forceinline__ void split_vjp(const typename Body::Args& g) {
    SoftmaxVjpSplit<Body, Tile>::put(g);
}


}  // namespace km

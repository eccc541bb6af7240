// Packs what tangents of softmax-weighted sums are made of: rows of q, k and v, each with those of its tangent behind them.
#pragma once
#include "reduce.cuh"
#include "softmax_split.cuh"

namespace km {

// Packed rows of q and k in pieces of 64, of v transposed, and what goes with 64 rows (logarithms of sums, what entries read
// of rows, squares and their tangents, units of q and of its tangent) or columns (what entries read of columns, squares and
// their tangents, units of the columns of v, of those of its tangent, of k and of its tangent).
template <class A>
struct SoftmaxJvpArguments : A {
    unsigned char *queries, *keys, *values;
    float *row_sides, *column_sides;
};

// BOTH: the sums are made too, as nobody has made them before.
template <class H_, int PLANES_, int E_, int C_, int GROUPS_, int STAGES_, bool CAUSAL_, bool BOTH_>
struct SoftmaxJvpTile {
    typedef H_ H;
    static constexpr int PLANES = PLANES_, E = E_, C = C_, GROUPS = GROUPS_, STAGES = STAGES_, BN = 64;
    static constexpr bool CAUSAL = CAUSAL_, SPLIT = PLANES == 2, BOTH = BOTH_;
    // Whether the rows that a warpgroup has stay in registers.
    static constexpr bool IN_REGISTERS = !SPLIT && E <= 64;
    static constexpr int BM = 64 * GROUPS, THREADS = 128 * (GROUPS + 1);
    static constexpr int KEY_PLANE = E * 128, VALUE_PLANE = C * 128, KEY = PLANES * KEY_PLANE, VALUE = PLANES * VALUE_PLANE;
    static constexpr int OWN = IN_REGISTERS ? 0 : GROUPS * 2 * KEY, STAGE = 2 * (KEY + VALUE);
    // Whether weights and slopes are lifted alike, less where a slope is too large: those of float32 have a power a tile.
    static constexpr bool LIFTED = LIFT<H> > 0 && !SPLIT;
    static_assert(E % 64 == 0 && C % 64 == 0, "whole pieces");
    static_assert(!BOTH || IN_REGISTERS, "halves alone");
};
template <class Body>
__device__ constexpr int jvp_row_side() {
    return 64 * (1 + Body::ROW_ENDS + 2 * Body::DIFFERENCES) + 4;
}
template <class Body, class Tile>
__device__ constexpr int jvp_column_side() {
    return 64 * (Body::COLUMN_ENDS + 2 * Body::DIFFERENCES) + (Tile::SPLIT ? 2 * Tile::C + 4 : 0);
}
template <class Body, class Tile>
__device__ constexpr int jvp_softmax_shared_bytes() {
    return Tile::OWN + Tile::STAGES * (Tile::STAGE + jvp_column_side<Body, Tile>() * 4 + 16) + 16;
}

template <class Body, class Tile>
struct SoftmaxJvpSplit {
    typedef typename Body::Args Args;
    typedef SoftmaxSplit<Body, Tile> S;

    // Logarithms to the base 2 of the sums of 64 rows, infinite where nothing was weighed, and what entries read of rows.
    static __device__ void put_row_side(const Args& g, const BatchEntry& p, i64 first, float* side) {
        if (threadIdx.x >= 64) return;
        const i64 m = first + threadIdx.x;
        if constexpr (!Tile::BOTH) {
            const float log = end_value<typename Body::Statistic, float>(g, p, m, g.size[ROLE_M], ROLE_M) * 1.44269504f;
            side[threadIdx.x] = m < g.size[ROLE_M] && log != -infinity<float>() ? log : infinity<float>();
        }
        each<0, Body::ROW_ENDS>([&](auto index) {
            side[64 * (1 + decltype(index)::value) + threadIdx.x] =
                end_value<typename Body::template RowEnd<decltype(index)::value>, float>(g, p, m, g.size[ROLE_M], ROLE_M);
        });
    }
    static __device__ void put_column_side(const Args& g, const BatchEntry& p, i64 first, float* side) {
        if (threadIdx.x >= 64) return;
        each<0, Body::COLUMN_ENDS>([&](auto index) {
            side[64 * decltype(index)::value + threadIdx.x] =
                end_value<typename Body::template ColumnEnd<decltype(index)::value>, float>(g, p, first + threadIdx.x, g.size[ROLE_N], ROLE_N);
        });
    }

    // Tangents of the squares of 64 rows.
    template <class P, class D>
    static __device__ void put_moves(const Args& g, const BatchEntry& p, i64 first, float* to) {
        typedef typename D::T T;
        const i64 row = first + threadIdx.x / 4;
        const i64* s = g.stride[D::BUFFER];
        float sum = 0.0f;
        if (row < g.size[P::TILE]) {
            const T* move = (const T*)g.pointer[D::BUFFER] + batch_offset(g, D::BUFFER, p) + row * s[P::TILE];
            for (i64 k = threadIdx.x % 4 * 8; k < g.size[ROLE_K]; k += 32) {
                float v[8];
                S::template read_eight<P>(v, row_of<P>(g, p, row), g, p, k);
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (k + i < g.size[ROLE_K]) sum = fmaf(2.0f * v[i], convert<float>(load_pack<T, 1>(move + (k + i) * s[ROLE_K]).v[0]), sum);
            }
        }
        sum = quad_sum(sum);
        if (threadIdx.x % 4 == 0) to[threadIdx.x / 4] = sum;
    }

    // Blocks: of every batch entry first 64 rows of q each, then 64 rows of k and v each.
    static __device__ void put(const Args& g) {
        const i64 down = ceil_div(g.size[ROLE_M], Tile::BM) * Tile::GROUPS, across = ceil_div(g.size[ROLE_N], 64);
        const i64 entry = quotient(blockIdx.x, down + across), mine = blockIdx.x - entry * (down + across);
        const BatchEntry p = entry_at(g, entry);
        float units[2], *side;
        if (mine < down) {
            const i64 at = entry * down + mine, first = mine * 64;
            unsigned char* to = g.queries + at * (2 * Tile::KEY);
            side = g.row_sides + at * jvp_row_side<Body>();
            float* norms = side + 64 * (1 + Body::ROW_ENDS);
            units[0] = S::template put_rows<typename Body::template Row<0>, 64>(g, p, first, to, norms);
            if constexpr (Body::DIFFERENCES) put_moves<typename Body::template Row<0>, typename Body::RowTangent>(g, p, first, norms + 64);
            units[1] = S::template put_array<typename Body::RowTangent, ROLE_M, ROLE_K, 64>(g, p, first, to + Tile::KEY);
            put_row_side(g, p, first, side);
            side += jvp_row_side<Body>();
        } else {
            const i64 at = entry * across + mine - down, first = (mine - down) * 64;
            unsigned char *keys = g.keys + at * (2 * Tile::KEY), *values = g.values + at * (2 * Tile::VALUE);
            side = g.column_sides + at * jvp_column_side<Body, Tile>();
            float* norms = side + 64 * Body::COLUMN_ENDS;
            units[0] = S::template put_rows<typename Body::template Column<0>, 64>(g, p, first, keys, norms);
            if constexpr (Body::DIFFERENCES) put_moves<typename Body::template Column<0>, typename Body::ColumnTangent>(g, p, first, norms + 64);
            units[1] = S::template put_array<typename Body::ColumnTangent, ROLE_N, ROLE_K, 64>(g, p, first, keys + Tile::KEY);
            put_column_side(g, p, first, side);
            float* own = side + 64 * (Body::COLUMN_ENDS + 2 * Body::DIFFERENCES);
            S::template put_values<typename Body::Weight>(g, p, first, values, own);
            __syncthreads();
            S::template put_values<typename Body::WeightTangent>(g, p, first, values + Tile::VALUE, own + Tile::C);
            side += jvp_column_side<Body, Tile>();
        }
        if (Tile::SPLIT && threadIdx.x < 4) side[(int)threadIdx.x - 4] = threadIdx.x < 2 ? units[threadIdx.x % 2] : 0.0f;
    }
};
template <class Body, class Tile>
__device__ __forceinline__ void split_jvp(const typename Body::Args& g) {
    SoftmaxJvpSplit<Body, Tile>::put(g);
}

}  // namespace km

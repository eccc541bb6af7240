// Brings rows of q, k and v into the order in which tensor cores read them, float32 taken apart into halves.
#pragma once
#include "reduce.cuh"
#include "softmax_distances.cuh"

namespace km {

template <class Body, class Tile>
struct SoftmaxSplit {
    typedef typename Body::Args Args;
    static constexpr int THREADS = 256, BN = Tile::BN, C = Tile::C, SIDE = softmax_side<Body, Tile>();

    // The largest of a block's magnitudes.
    static __device__ float largest(float mine) {
        __shared__ float tops[THREADS / 32];
        __syncthreads();
        return block_max<THREADS / 32>(mine, tops);
    }

    // Eight numbers of a row of an operand over k, of distances of float32 less those of the first row of columns: nothing else
    // changes what these are less.
    template <class P>
    static __device__ void read_eight(float (&v)[8], const typename P::T* row, const Args& g, const BatchEntry& p, i64 k) {
        read_along_k<P, false>(v, row, g, k);
        if constexpr (Body::DIFFERENCES && Tile::SPLIT) {
            typedef typename Body::template Column<0> Y;
            float origin[8];
            read_along_k<Y, false>(origin, row_of<Y>(g, p, 0), g, k);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[i] -= is_finite(origin[i]) ? origin[i] : 0.0f;
        }
    }
    // ROWS rows of an operand over k from `first` on; returns the inverse of what they were multiplied by. norms: their squares,
    // where there are distances.
    template <class P, int ROWS>
    static __device__ float put_rows(const Args& g, const BatchEntry& p, i64 first, unsigned char* to, float* norms) {
        constexpr int PIECES = Tile::E / 8, PASSES = ROWS * PIECES / THREADS;
        const i64 rows = g.size[P::TILE];
        float v[PASSES][8], top = 0.0f;
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            const int e = threadIdx.x + THREADS * s, k = e % PIECES * 8;
            const i64 row = first + e / PIECES;
            clear(v[s]);
            if (row < rows && k < g.size[ROLE_K]) read_eight<P>(v[s], row_of<P>(g, p, row), g, p, k);
            if constexpr (Body::DIFFERENCES) {
                float norm = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; ++i) norm = fmaf(v[s][i], v[s][i], norm);
                norm = warp_sum<PIECES / 2>(norm);
                if (e % PIECES == 0) norms[e / PIECES] = norm;
            }
            if (Tile::SPLIT) {
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (is_finite(v[s][i])) top = fmaxf(top, fabsf(v[s][i]));
            }
        }
        HalfScale unit = {1.0f, 1.0f};
        if (Tile::SPLIT) unit = HalfScale::of_largest(largest(top));
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            const int e = threadIdx.x + THREADS * s;
            put_eight<Tile>(to + piece_at<ROWS>(e / PIECES, e % PIECES * 8), ROWS * Tile::E * 2, v[s], unit.scale);
        }
        return unit.inverse;
    }

    // ROWS rows along OWN of an array over ALONG; returns the inverse of what they were multiplied by.
    template <class P, int OWN, int ALONG, int ROWS>
    static __device__ float put_array(const Args& g, const BatchEntry& p, i64 first, unsigned char* to) {
        typedef typename P::T T;
        constexpr int WIDTH = ALONG == ROLE_K ? Tile::E : C, PIECES = WIDTH / 8, PASSES = ROWS * PIECES / THREADS;
        const i64* s = g.stride[P::BUFFER];
        const T* from = (const T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
        float v[PASSES][8], top = 0.0f;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int e = threadIdx.x + THREADS * pass, c = e % PIECES * 8;
            const i64 row = first + e / PIECES;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const bool inside = row < g.size[OWN] && c + i < g.size[ALONG];
                v[pass][i] = inside ? convert<float>(load_pack<T, 1>(from + row * s[OWN] + (c + i) * s[ALONG]).v[0]) : 0.0f;
                if (Tile::SPLIT && is_finite(v[pass][i])) top = fmaxf(top, fabsf(v[pass][i]));
            }
        }
        HalfScale unit = {1.0f, 1.0f};
        if (Tile::SPLIT) unit = HalfScale::of_largest(largest(top));
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int e = threadIdx.x + THREADS * pass;
            put_eight<Tile>(to + piece_at<ROWS>(e / PIECES, e % PIECES * 8), ROWS * WIDTH * 2, v[pass], unit.scale);
        }
        return unit.inverse;
    }

    // BN rows of an operand over n and l, transposed; `units` of its columns.
    template <class W>
    static __device__ void put_values(const Args& g, const BatchEntry& p, i64 first, unsigned char* to, float* units) {
        typedef typename W::T T;
        constexpr int PASSES = C * BN / 8 / THREADS, STEP = THREADS / C;
        __shared__ int tops[C], kinds[C];
        static_assert(THREADS % C == 0 && PASSES * THREADS == C * BN / 8, "whole passes");
        const i64* s = g.stride[W::BUFFER];
        const int c = threadIdx.x % C;
        const T* from = (const T*)g.pointer[W::BUFFER] + batch_offset(g, W::BUFFER, p) + c * s[ROLE_L];
        float v[PASSES][8], top = 0.0f;
        int kind = 0;
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const i64 n = first + (threadIdx.x / C + STEP * pass) * 8 + i;
                const bool inside = n < g.size[ROLE_N] && c < g.size[ROLE_L];
                float& mine = v[pass][i];
                mine = inside ? convert<float>(load_pack<T, 1>(from + n * s[ROLE_N]).v[0]) : 0.0f;
                if (Tile::SPLIT) {
                    if (is_finite(mine))
                        top = fmaxf(top, fabsf(mine));
                    else
                        kind |= mine != mine ? 1 : mine > 0.0f ? 2 : 4;
                }
            }
        float scale = 1.0f;
        if (Tile::SPLIT) {
            if (threadIdx.x < C) tops[threadIdx.x] = kinds[threadIdx.x] = 0;
            __syncthreads();
            atomicMax(tops + c, __float_as_int(top));
            if (kind) atomicOr(kinds + c, kind);
            __syncthreads();
            const HalfScale unit = HalfScale::of_largest(__int_as_float(tops[c]));
            kind = kinds[c];
            scale = unit.scale;
            if (threadIdx.x < C) units[c] = kind == 0 ? unit.inverse : kind == 2 ? infinity<float>() : kind == 4 ? -infinity<float>() : not_a_number<float>();
        }
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int row = (threadIdx.x / C + STEP * pass) * 8;
            if (Tile::SPLIT && kind) {
#pragma unroll
                for (int i = 0; i < 8; ++i) v[pass][i] = is_finite(v[pass][i]) ? 0.0f : 1.0f;
                scale = 1.0f;
            }
            put_eight<Tile>(to + row / 64 * (C * 128) + c * 128 + swizzle_128(c, row % 64 / 8), Tile::VALUE_PLANE, v[pass], scale);
        }
    }

    // Blocks: of every batch entry first 64 rows of q each, then BN rows of k and v each.
    static __device__ void put(const Args& g) {
        const i64 down = ceil_div(g.size[ROLE_M], Tile::BM) * Tile::GROUPS, across = ceil_div(g.size[ROLE_N], BN);
        const i64 entry = quotient(blockIdx.x, down + across), mine = blockIdx.x - entry * (down + across);
        const BatchEntry p = entry_at(g, entry);
        if (mine < down) {
            const i64 at = entry * down + mine;
            float* side = g.query_units + at * query_side<Body>();
            const float unit = put_rows<typename Body::template Row<0>, 64>(g, p, mine * 64, g.queries + at * Tile::QUERY, side + QUERY_NORMS);
            if (Tile::SPLIT && threadIdx.x == 0) *side = unit;
            return;
        }
        const i64 tile = mine - down, at = entry * across + tile;
        float* side = g.sides + at * SIDE;
        const float unit = put_rows<typename Body::template Column<0>, BN>(g, p, tile * BN, g.keys + at * Tile::KEY, side + BN * Body::COLUMN_ENDS);
        if (Tile::SPLIT && threadIdx.x < 4) side[SIDE - 4 + threadIdx.x] = threadIdx.x == 0 ? unit : 0.0f;
        put_values<typename Body::Weight>(g, p, tile * BN, g.values + at * Tile::VALUE, side + BN * (Body::COLUMN_ENDS + Body::DIFFERENCES));
        if (threadIdx.x < BN) {
            each<0, Body::COLUMN_ENDS>([&](auto index) {
                side[decltype(index)::value * BN + threadIdx.x] =
                    end_value<typename Body::template ColumnEnd<decltype(index)::value>, float>(g, p, tile * BN + threadIdx.x, g.size[ROLE_N], ROLE_N);
            });
        }
    }
};

template <class Body, class Tile>
__device__ __forceinline__ void split_softmax(const typename Body::Args& g) {
    SoftmaxSplit<Body, Tile>::put(g);
}

}  // namespace km

// Splits points for score tiles into halves and samples how many pairs lose digits as products.
#pragma once
#include "reduce.cuh"
#include "score.cuh"

namespace km {

// The kernel that splits. Source: the Body with the arguments of this kernel, for Split.
template <class Body, class Source, class Tile>
struct ScoreSplit {
    typedef typename Body::Args Args;
    typedef Split<Source, SplitTile<2, false>> S;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    typedef ScoreLayout<Tile::D> Layout;
    static constexpr int D = Tile::D, WARPS = S::WARPS, THREADS = S::THREADS, EACH = SCORE_ROWS / WARPS;
    // Lanes that share a row, eight positions each, and how often a warp's lanes pass over its rows.
    static constexpr int LANES = D <= 16 ? 2 : D <= 32 ? 4 : D <= 64 ? 8 : 16, PASSES = EACH * LANES / 32;

    // Counts pairs that would be taken by differences, one a thread, of PATIENCE threads by one; pairs of equal index are not counted.
    static __device__ void count(const Args& g, const float* centre, int block) {
        __shared__ int found;
        if (threadIdx.x == 0) found = 0;
        __syncthreads();
        const unsigned long long draw = ((unsigned long long)block * THREADS + threadIdx.x + 1) * 0x9e3779b97f4a7c15ull;
        const i64 m = (i64)((draw >> 20) % (unsigned long long)g.size[ROLE_M]);
        i64 n = (i64)(((draw ^ draw >> 29) * 0xbf58476d1ce4e5b9ull >> 20) % (unsigned long long)g.size[ROLE_N]);
        if (n == m) n = n + 1 < g.size[ROLE_N] ? n + 1 : 0;
        const auto p = origin();
        float norms = 0.0f;
#pragma unroll 1
        for (i64 k = 0; k < g.size[ROLE_K]; k += 8) {
            float x[8], y[8];
            S::template centred<X>(x, row_of<X>(g, p, m), g, p, centre, k);
            S::template centred<Y>(y, row_of<Y>(g, p, n), g, p, centre, k);
#pragma unroll
            for (int i = 0; i < 8; ++i) norms = fmaf(x[i], x[i], fmaf(y[i], y[i], norms));
        }
        const bool direct = Body::DIFFERENCES ? !(score_directly<1, Body>(g, m, n) > fmaf(Tile::SHARE, norms, LEAST_SQUARE)) : !is_finite(norms);
        if (direct && threadIdx.x % Tile::PATIENCE == 0) atomicAdd(&found, 1);
        __syncthreads();
        if (threadIdx.x != 0) return;
        if constexpr (Body::SCALES) {
            if (block == 0 && !(Body::scale(Body::fixed(g, p), g.number) > 0.0f)) found = THREADS * SAMPLERS;
        }
        g.list[SAMPLED_AT + block] = found;
        if (block == 0 && !Body::MANY) g.list[0] = 0;
    }

    // NaN of points that have one (4), -inf of infinite ones (2), +inf of those that are taken by differences anyway (1).
    static __device__ __forceinline__ float norm_of(float norm, int kind) {
        if (!kind) return norm;
        return Source::WEIGHTED || kind & 1 ? infinity<float>() : kind & 4 ? not_a_number<float>() : -infinity<float>();
    }

    static constexpr bool PACKED = score_is_packed(D, Tile::KS);
    // High and low halves of a tile's points where three of each number are to lie in a row.
    static __device__ __forceinline__ f16 (&halves())[SCORE_ROWS][2][PACKED ? D : 8] {
        __shared__ __align__(16) f16 tile[SCORE_ROWS][2][PACKED ? D : 8];
        return tile;
    }
    // Writes a tile of points of `length` numbers, three halves of each, which lie `length` positions apart; 0 behind them.
    static __device__ void put_packed(unsigned char* to, int operand, int length) {
        constexpr int PIECES = 2 * D / 8;
#pragma unroll 1
        for (int j = threadIdx.x; j < SCORE_ROWS * PIECES; j += THREADS) {
            const int row = j / PIECES, first = j % PIECES * 8;
            Pack<f16, 8> piece;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int position = first + i, product = (position >= length) + (position >= 2 * length), k = position - product * length;
                piece.v[i] = k < length ? halves()[row][product == 1 - operand][k] : Store<f16>::from(0.0f);
            }
            *(Pack<f16, 8>*)(to + Layout::at(row, first)) = piece;
        }
    }

    // One tile of points of operand 0 (rows) or 1 (columns): its unit is the power of two that brings its largest value to
    // 2^14 .. 2^15.
    template <class P>
    static __device__ void split(const Args& g, const float* centre, int operand, i64 tile, int warp, int lane) {
        __shared__ float tops[WARPS], norms[SCORE_ROWS];
        const i64 points = g.size[P::TILE];
        const int k = lane % LANES * 8, first = warp * EACH + lane / LANES;
        const auto p = origin();
        float v[PASSES][8], top = 0.0f;
        bool rooted[PASSES];
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            i64 point = tile * SCORE_ROWS + first + s * (EACH / PASSES);
            if (Body::MANY && operand == 1 && point >= points) point = points - 1;
            rooted[s] = true;
            clear(v[s]);
            if (point < points && k < D) rooted[s] = S::template centred<P>(v[s], row_of<P>(g, p, point), g, p, centre, k);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (is_finite(v[s][i])) top = fmaxf(top, fabsf(v[s][i]));
        }
        top = block_max<WARPS>(top, tops);
        const HalfScale power = HalfScale::of_largest(top);
        const float scale = power.scale, unit = power.inverse;
        unsigned char* to = g.tiles[operand] + tile * Layout::BYTES;
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            const int row = first + s * (EACH / PASSES);
            Pack<f16, 8> high, low;
            float sum[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float u = v[s][i] * scale;
                high.v[i] = Store<f16>::from(u);
                const float h = convert<float>(high.v[i]);
                low.v[i] = Store<f16>::from(is_finite(h) ? u - h : 0.0f);
                const float whole = h + convert<float>(low.v[i]);
                sum[i % 2] = fmaf(whole, whole, sum[i % 2]);
            }
            if (k < D) {
                *(Pack<f16, 8>*)(PACKED ? (unsigned char*)&halves()[row][0][k] : to + Layout::at(row, k)) = high;
                *(Pack<f16, 8>*)(PACKED ? (unsigned char*)&halves()[row][1][k] : to + Layout::at(row, D + k)) = low;
            }
            float norm = Body::DIFFERENCES || Body::LINEAR ? (sum[0] + sum[1]) * unit * unit : 0.0f;
            if (!Body::DIFFERENCES) norm = fminf(norm, 1e30f);
            int kind = rooted[s] ? 0 : 1;
#pragma unroll
            for (int i = 0; i < 8; ++i) kind |= v[s][i] != v[s][i] ? 4 : is_finite(v[s][i]) ? 0 : 2;
            kind = warp_or<LANES / 2>(kind);
            norm = norm_of(warp_sum<LANES / 2>(norm), kind);
            if (lane % LANES == 0) {
                norms[row] = norm;
                if (operand == 0) g.rows[tile * SCORE_ROWS + row] = make_float2(norm, unit);
            }
        }
        if (PACKED || operand == 1) __syncthreads();
        if constexpr (PACKED) put_packed(to, operand, (int)g.size[ROLE_K]);
        if (operand == 0) return;
        constexpr int GROUP = score_weights<Body>();
        for (i64 part = 0; part < (GROUP > 0 ? ceil_div(g.size[ROLE_L], GROUP > 0 ? GROUP : 1) : 1); ++part)
            put_columns(g, g.columns + (part * ceil_div(points, SCORE_ROWS) + tile) * score_side<Body>(), norms, unit, tile, part * GROUP);
    }

    // What travels with a tile of columns; columns behind the last are far away, or the last one where v is 0 for them.
    static __device__ __forceinline__ void put_columns(const Args& g, float* to, const float* norms, float unit, i64 tile, i64 c) {
        const int slot = threadIdx.x % SCORE_ROWS, local = score_column(slot);
        i64 n = tile * SCORE_ROWS + local;
        const bool inside = Body::MANY || n < g.size[ROLE_N];
        if (Body::MANY && n >= g.size[ROLE_N]) n = g.size[ROLE_N] - 1;
        const auto p = origin();
        float level = 0.0f;
        if constexpr (Body::POWERS_OF_2 && !Body::MANY) {
            if (threadIdx.x < SCORE_ROWS) to[score_levels<Body>() + slot] = inside ? -Body::scale(Body::fixed(g, p), g.number) * norms[local] : -infinity<float>();
        }
        if constexpr (Body::LINEAR) level = put_levels(g, to, inside ? norms[local] : infinity<float>(), n, slot);
        if (threadIdx.x < SCORE_ROWS) {
            to[slot] = inside ? norms[local] : 1e30f;
        } else {
            float* at = to + SCORE_ROWS + slot;
            each<0, Body::COLUMN_ENDS>([&](auto index) {
                at[decltype(index)::value * SCORE_ROWS] = end_value<typename Body::template ColumnEnd<decltype(index)::value>, float>(g, p, n, g.size[ROLE_N], ROLE_N);
            });
            if constexpr (score_weights<Body>() > 0) {
                typedef typename Body::Weight W;
                typedef typename W::T T;
                const i64* s = g.stride[W::BUFFER];
#pragma unroll
                for (int q = 0; q < score_weights<Body>(); ++q) {
                    const bool there = inside && c + q < g.size[ROLE_L];
                    at[(Body::COLUMN_ENDS + q) * SCORE_ROWS] = there ? convert<float>(load_pack<T, 1>((const T*)g.pointer[W::BUFFER] + n * s[ROLE_N] + (c + q) * s[ROLE_L]).v[0]) : 0.0f;
                }
            }
        }
        if (threadIdx.x < 32) {
            float most = 0.0f;
#pragma unroll
            for (int i = 0; i < SCORE_ROWS / 32; ++i)
                if (tile * SCORE_ROWS + threadIdx.x + 32 * i < g.size[ROLE_N]) most = fmaxf(most, is_finite(norms[threadIdx.x + 32 * i]) ? norms[threadIdx.x + 32 * i] : infinity<float>());
            most = warp_max(most);
            float* end = to + score_side<Body>() - 4;
            if (threadIdx.x < 4) end[threadIdx.x] = threadIdx.x == 0 ? unit : threadIdx.x == 1 ? fmaf(Tile::SHARE, most, unit * unit) : threadIdx.x == 2 ? level : 0.0f;
        }
    }

    // Writes what a linear entry, to the base 2, has of a column alone, relative to the largest of the tile, which is returned.
    static __device__ __forceinline__ float put_levels(const Args& g, float* to, float norm, i64 n, int slot) {
        __shared__ float tops[THREADS / 32];
        const auto p = origin();
        float ends[AtLeastOne<Body::COLUMN_ENDS>::value], rows[1] = {0.0f};
        each<0, Body::COLUMN_ENDS>([&](auto index) {
            ends[decltype(index)::value] = end_value<typename Body::template ColumnEnd<decltype(index)::value>, float>(g, p, n, g.size[ROLE_N], ROLE_N);
        });
        const typename Body::Fixed fixed = Body::fixed(g, p);
        typename Body::Registers s;
        s.r0 = 0.0f;
        const float alone = Body::entry(fixed, g.number, rows, ends, 0, s);
        const float level = LOG2_E * (Body::DIFFERENCES ? fmaf(Body::constant_slope(fixed, g.number), norm, alone) : alone);
        float top = warp_max(level);
        if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < THREADS / 32; ++w) top = fmaxf(top, tops[w]);
        top = fminf(fmaxf(top, -MOST_LEVEL), MOST_LEVEL);
        if (threadIdx.x < SCORE_ROWS) to[score_levels<Body>() + slot] = level - top;
        return top;
    }
};

template <class Body, class Source, class Tile>
__device__ __forceinline__ void split_scores(const typename Body::Args& g) {
    typedef ScoreSplit<Body, Source, Tile> S;
    __shared__ float centre[SCORE_ROWS];
    if (Body::DIFFERENCES) {
        S::S::find_centre(g, centre);
    } else {
        if (threadIdx.x < SCORE_ROWS) centre[threadIdx.x] = 0.0f;
        __syncthreads();
    }
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 rows = ceil_div(ceil_div(g.size[ROLE_M], Tile::BM) * Tile::BM, SCORE_ROWS), tile = (i64)blockIdx.x - SAMPLERS;
    if (tile < 0)
        S::count(g, centre, blockIdx.x);
    else if (tile < rows)
        S::template split<typename S::X>(g, centre, 0, tile, warp, lane);
    else
        S::template split<typename S::Y>(g, centre, 1, tile - rows, warp, lane);
}

}  // namespace km

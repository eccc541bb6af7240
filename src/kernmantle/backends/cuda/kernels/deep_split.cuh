// What the kernels of score tiles of deep points hand to each other: a tile of 128 points is a row of score tiles of 64 positions
// each (score.cuh), one contiguous copy a time.
#pragma once
#include "columns_split.cuh"
#include "reduce.cuh"

namespace km {

// Shape: COLUMNS of v at a time, two warpgroups of 64 rows, 64 positions of a point in a stage.
template <int COLUMNS_, int STAGES_>
struct DeepTile {
    static constexpr int D = 64, KS = D / 16, COLUMNS = COLUMNS_, GROUPS = 2, BN = SCORE_ROWS, STAGES = STAGES_;
    static constexpr bool FRAGMENTS = false;
    static constexpr int PATIENCE = 256, BM = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), DEEPEST = 4096;
    // Products are added up in float32 after every stage.
    static constexpr float SHARE = score_share_of_norms(KS);
    typedef ScoreLayout<D> Layout;
    static constexpr int PIECE = COLUMNS * 128, PLANE = 2 * PIECE, BYTES = 2 * PLANE, VALUES = BYTES, STAGE = 2 * Layout::BYTES;
};
template <class Body, class Tile>
__device__ constexpr int apply_deep_shared_bytes() {
    return Tile::STAGES * (Tile::STAGE + 20) + Tile::VALUES + score_side<Body>() * 4 + 16;
}
// Stages of a point.
template <class Tile, class Args>
KM_DEVICE i64 deep_stages(const Args& g) {
    return ceil_div(g.size[ROLE_K], Tile::D);
}

// One tile of points of operand 0 (rows) or 1 (columns): first its unit, the power of two that brings its largest value to
// 2^14 .. 2^15, then halves and norms.
template <class Body, class Source, class Tile>
struct DeepSplit : ScoreSplit<Body, Source, Tile> {
    typedef ScoreSplit<Body, Source, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Base::S S;
    typedef typename Tile::Layout Layout;
    static constexpr int D = Tile::D, WARPS = S::WARPS, LANES = 8, PASSES = SCORE_ROWS / WARPS * LANES / 32;

    template <class P>
    static __device__ void split(const Args& g, const float* centre, int operand, i64 tile) {
        __shared__ float tops[WARPS], norms[SCORE_ROWS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const i64 points = g.size[P::TILE], stages = deep_stages<Tile>(g);
        const int first = warp * (SCORE_ROWS / WARPS) + lane / LANES;
        const auto p = origin();
        float top = 0.0f;
#pragma unroll 1
        for (int s = 0; s < PASSES; ++s) {
            const i64 point = clamped(tile * SCORE_ROWS + first + s * (32 / LANES), points, operand);
            if (point >= points) continue;
            const auto* row = row_of<P>(g, p, point);
#pragma unroll 2
            for (i64 k = lane % LANES * 8; k < g.size[ROLE_K]; k += D) {
                float v[8];
                S::template centred<P>(v, row, g, p, centre, k);
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (is_finite(v[i])) top = fmaxf(top, fabsf(v[i]));
            }
        }
        top = block_max<WARPS>(top, tops);
        const HalfScale scale = HalfScale::of_largest(top);
#pragma unroll 1
        for (int s = 0; s < PASSES; ++s) {
            const int local = first + s * (32 / LANES);
            const i64 point = clamped(tile * SCORE_ROWS + local, points, operand);
            const bool inside = point < points;
            const auto* row = row_of<P>(g, p, inside ? point : 0);
            float sum[2] = {0.0f, 0.0f};
            int kind = 0;
            unsigned char* to = g.tiles[operand] + tile * stages * Layout::BYTES;
#pragma unroll 2
            for (i64 stage = 0; stage < stages; ++stage, to += Layout::BYTES) {
                const int k = lane % LANES * 8;
                float v[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
                if (inside) kind |= S::template centred<P>(v, row, g, p, centre, stage * D + k) ? 0 : 1;
                Pack<f16, 8> high, low;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const float u = v[i] * scale.scale;
                    high.v[i] = Store<f16>::from(u);
                    const float h = convert<float>(high.v[i]);
                    low.v[i] = Store<f16>::from(is_finite(h) ? u - h : 0.0f);
                    const float whole = h + convert<float>(low.v[i]);
                    sum[i % 2] = fmaf(whole, whole, sum[i % 2]);
                    kind |= v[i] != v[i] ? 4 : is_finite(v[i]) ? 0 : 2;
                }
                *(Pack<f16, 8>*)(to + Layout::at(local, k)) = high;
                *(Pack<f16, 8>*)(to + Layout::at(local, D + k)) = low;
            }
            float norm = Body::DIFFERENCES ? (sum[0] + sum[1]) * scale.inverse * scale.inverse : 0.0f;
            kind = warp_or<LANES / 2>(kind);
            norm = Base::norm_of(warp_sum<LANES / 2>(norm), kind);
            if (lane % LANES == 0) {
                norms[local] = norm;
                if (operand == 0) g.rows[tile * SCORE_ROWS + local] = make_float2(norm, scale.inverse);
            }
        }
        if (operand == 0) return;
        __syncthreads();
        Base::put_columns(g, g.columns + tile * score_side<Body>(), norms, scale.inverse, tile, 0);
    }
    // Columns behind the last are the last, for which v is 0.
    static __device__ __forceinline__ i64 clamped(i64 point, i64 points, int operand) {
        return operand == 1 && point >= points ? points - 1 : point;
    }
};

// Blocks that sample pairs and split points come first, then one for each tile and pass of v.
template <class Body, class Source, class Tile>
__device__ __forceinline__ void split_deep_points_and_columns(const typename Body::Args& g) {
    typedef DeepSplit<Body, Source, Tile> S;
    __shared__ float centre[Tile::DEEPEST];
    const i64 across = ceil_div(g.size[ROLE_N], SCORE_ROWS), down = ceil_div(g.size[ROLE_M], SCORE_ROWS);
    const i64 tile = (i64)blockIdx.x - SAMPLERS, values = tile - down - across;
    if (values >= 0) {
        split_values<Body, Tile>(g, values % across, values / across * Tile::COLUMNS, g.values + values * Tile::BYTES);
        return;
    }
    if (Body::DIFFERENCES) {
        S::S::find_centre(g, centre);
    } else {
        for (i64 k = threadIdx.x; k < g.size[ROLE_K]; k += blockDim.x) centre[k] = 0.0f;
        __syncthreads();
    }
    if (tile < 0)
        S::count(g, centre, blockIdx.x);
    else if (tile < down)
        S::template split<typename S::X>(g, centre, 0, tile);
    else
        S::template split<typename S::Y>(g, centre, 1, tile - down);
}

}  // namespace km

// Points of many numbers for selections by score tiles: a tile of 128 points is a row of tiles of 64 positions each, one contiguous
// copy a time (select_split.cuh).
#pragma once
#include "select_split.cuh"

namespace km {

// Shape: two warpgroups of 64 rows, two tiles of columns at once, STAGES of 64 positions on their way. The first RESIDENT times 64
// positions of the rows stay in shared memory, which are all of them; where RESIDENT is 0 those of a stage come with the columns.
template <int RESIDENT_, int STAGES_, int SIDES_>
struct DeepSelectTile {
    static constexpr int POSITIONS = 64, KS = POSITIONS / 16, GROUPS = 2, RESIDENT = RESIDENT_, STAGES = STAGES_, SIDES = SIDES_;
    static constexpr int BM = 64 * GROUPS, BN = 2 * SCORE_ROWS, THREADS = 128 * (GROUPS + 1), LANES = 32, DEEPEST = 4096;
    static constexpr bool DEEP = true;
    typedef ScoreLayout<POSITIONS / 2> Layout;
    static constexpr int STAGE = (RESIDENT ? 2 : 3) * Layout::BYTES;
    static __device__ __forceinline__ int stages(i64 depth) { return (int)ceil_div(depth, POSITIONS); }
    static __device__ __forceinline__ int steps(i64 depth) { return KS * stages(depth); }
};

// One tile of points of operand 0 (rows) or 1 (columns): first its unit, then halves, norms and radii.
template <class Body, class Source, class Tile>
struct DeepSelectSplit : SelectSplit<Body, Source, Tile> {
    typedef SelectSplit<Body, Source, Tile> Base;
    typedef typename Body::Args Args;
    typedef typename Base::S S;
    typedef typename Tile::Layout Layout;
    static constexpr int POSITIONS = Tile::POSITIONS, WARPS = S::WARPS, EACH = Base::EACH, LANES = Base::LANES, PASSES = Base::PASSES;

    template <class P>
    static __device__ void split(const Args& g, const float* centre, int operand, i64 tile) {
        __shared__ float tops[WARPS], norms[SCORE_ROWS], radii[SCORE_ROWS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp * EACH + lane / LANES;
        const i64 points = g.size[P::TILE], stages = Tile::stages(g.size[ROLE_K]), own = lane % LANES * 8;
        const auto p = origin();
        float size[PASSES], top = 0.0f;
        bool rooted = true;
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            const i64 point = tile * SCORE_ROWS + first + s * (EACH / PASSES);
            float sum[2] = {0.0f, 0.0f}, most = 0.0f;
#pragma unroll 2
            for (i64 k = own; point < points && k < g.size[ROLE_K]; k += POSITIONS) {
                float v[8];
                rooted = S::template centred<P>(v, row_of<P>(g, p, point), g, p, centre, k) && rooted;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    sum[i % 2] = fmaf(v[i], v[i], sum[i % 2]);
                    most = fmaxf(most, fabsf(v[i]));
                }
            }
            size[s] = warp_sum<LANES / 2>(sum[0] + sum[1]);
            if (size[s] <= MOST_NORM) top = fmaxf(top, most);
        }
        if (!rooted) atomicMax(g.list + UNSUITED, 1);
        top = block_max<WARPS>(top, tops);
        const HalfScale power = HalfScale::of_largest(top);
        const float scale = power.scale, unit = power.inverse;
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            const int row = first + s * (EACH / PASSES);
            const i64 point = tile * SCORE_ROWS + row;
            const bool multiplied = size[s] <= MOST_NORM;
            float norm[2] = {0.0f, 0.0f}, rest[2] = {0.0f, 0.0f};
            unsigned char* to = g.tiles[operand] + tile * stages * Layout::BYTES + Layout::at(row, (int)own);
#pragma unroll 2
            for (i64 stage = 0; stage < stages; ++stage, to += Layout::BYTES) {
                float v[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
                if (point < points) S::template centred<P>(v, row_of<P>(g, p, point), g, p, centre, stage * POSITIONS + own);
                Pack<f16, 8> high;
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const float u = multiplied ? v[i] * scale : 0.0f;
                    high.v[i] = Store<f16>::from(u);
                    const float h = convert<float>(high.v[i]);
                    norm[i % 2] = fmaf(h, h, norm[i % 2]);
                    rest[i % 2] = fmaf(u - h, u - h, rest[i % 2]);
                }
                *(Pack<f16, 8>*)to = high;
            }
            const float moved = warp_sum<LANES / 2>(rest[0] + rest[1]), rounded = warp_sum<LANES / 2>(norm[0] + norm[1]) * unit * unit;
            const float radius = Base::radius_of(moved, unit, size[s]);
            const float bound = Base::norm_of(operand, multiplied, rounded, size[s]);
            if (lane % LANES == 0) {
                norms[row] = bound;
                radii[row] = multiplied ? radius : 0.0f;
                if (operand == 0) g.rows[tile * SCORE_ROWS + row] = make_float4(bound, radius, unit, 0.0f);
            }
        }
        if (operand == 0) return;
        __syncthreads();
        Base::put_columns(g, norms, radii, unit, tile);
    }
};

template <class Body, class Source, class Tile>
__device__ __forceinline__ void split_deep_candidates(const typename Body::Args& g) {
    typedef DeepSelectSplit<Body, Source, Tile> S;
    __shared__ float centre[Tile::DEEPEST];
    S::S::find_centre(g, centre);
    S::check_order(g);
    const i64 rows = ceil_div(g.size[ROLE_M], Tile::BM) * Tile::BM / SCORE_ROWS, tile = blockIdx.x;
    if (tile < rows)
        S::template split<typename S::X>(g, centre, 0, tile);
    else
        S::template split<typename S::Y>(g, centre, 1, tile - rows);
}

}  // namespace km

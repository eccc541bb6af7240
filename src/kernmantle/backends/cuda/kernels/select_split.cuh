// Points for selections by score tiles: one half each, how far rounding moved them, and the counts that decide whether
// products are right for them.
//
// Of a squared distance one product of halves makes a lower bound: with x and y less the centre, both rounded,
// |x - y| >= |x' - y'| - |x - x'| - |y - y'|. The radius of a point is the last of these, so large that it holds the
// rounding of the centred point too. Columns are grouped by the thread that has them: 8 groups of 16 a tile.
#pragma once
#include "score.cuh"
#include "split_hi_lo.cuh"

namespace km {

constexpr int GROUP_COLUMNS = 16, TILE_GROUPS = SCORE_ROWS / GROUP_COLUMNS;
// Squared norms above these are not multiplied (columns) or their rows are compared with all columns.
constexpr float MOST_NORM = 1e37f, MOST_ROW_NORM = 1e35f, MOST_SQUARE = 1e36f;

// Position in the tile of member i of a group.
KM_DEVICE int group_column(int group, int i) { return group % 2 * 64 + i / 2 * 8 + group / 2 * 2 + i % 2; }

// rows: squared norm of the rounded point (NaN of a row with a NaN, infinite where it is not multiplied), radius, unit of
// its tile. columns: norms in the order of score_column, then the unit. groups: largest radius and norm. The work space
// holds the minima of the rows [first, first + count): [row][group].
template <class A>
struct Candidates : A {
    int* list;
    unsigned char* tiles[2];
    float4* rows;
    float* columns;
    float2* groups;
    i64 first, count;
};

// Shape of the kernels: POSITIONS are stored, of which KS steps of 16 are multiplied; a consumer warpgroup has PIECES of 64
// rows.
template <int POSITIONS_, int KS_, int GROUPS_, int PIECES_, int STAGES_, int SIDES_>
struct SelectTile {
    static constexpr int POSITIONS = POSITIONS_, KS = KS_, GROUPS = GROUPS_, PIECES = PIECES_, STAGES = STAGES_, SIDES = SIDES_;
    static constexpr int BM = 64 * GROUPS * PIECES, BN = SCORE_ROWS, THREADS = 128 * (GROUPS + 1);
    // Lanes of the kernel that selects which read a column together.
    static constexpr int LANES = POSITIONS / 4;
    static constexpr bool DEEP = false;
    typedef ScoreLayout<POSITIONS / 2> Layout;
    // Steps of 16 positions that products add up.
    static __device__ __forceinline__ int steps(i64) { return KS; }
};
constexpr int SELECT_SIDE = SCORE_ROWS + 4;

// What a block of these rows takes of the tiles.
template <class Tile, class Args>
KM_DEVICE Share select_share(const Args& g) {
    const i64 columns = ceil_div(g.size[ROLE_N], Tile::BN);
    return Share(blockIdx.x, gridDim.x, ceil_div(g.count, Tile::BM) * columns, columns);
}

// The list: groups that were compared beyond those of the first pass, bits of the largest radius and norm of a column,
// and whether the operands have no such bounds at all.
enum { REPEATED, LARGEST_RADIUS, LARGEST_NORM, UNSUITED };

// The kernel that splits. Source: the Body with the arguments of this kernel, for Split.
template <class Body, class Source, class Tile>
struct SelectSplit {
    typedef typename Body::Args Args;
    typedef Split<Source, SplitTile<2, false>> S;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    typedef typename Tile::Layout Layout;
    static constexpr int POSITIONS = Tile::POSITIONS, WARPS = S::WARPS, EACH = SCORE_ROWS / WARPS;
    // Lanes that share a row, eight positions each, and how often a warp's lanes pass over its rows.
    static constexpr int LANES = POSITIONS / 8, PASSES = EACH * LANES / 32;
    static_assert(PASSES >= 2 && LANES <= 16, "a warp has several rows at once");

    // The radius of a point of squared norm `size` whose numbers moved by the root of `moved`, in units of its tile: a centred
    // value is within 2^-24 relative, one times the root of a weight within 2^-22.
    static __device__ __forceinline__ float radius_of(float moved, float unit, float size) {
        return fmaf(sqrtf(moved), 1.00001f * unit, (Source::WEIGHTED ? 4e-7f : 1e-7f) * sqrtf(size));
    }
    static __device__ __forceinline__ float norm_of(int operand, bool multiplied, float rounded, float size) {
        return multiplied ? rounded : operand == 0 && size != size ? size : infinity<float>();
    }
    // Where a factor turns the order around, products select the wrong columns.
    static __device__ __forceinline__ void check_order(const Args& g) {
        if (blockIdx.x == 0 && threadIdx.x == 0 && !Body::ordered(Body::fixed(g, origin()), g.number)) atomicMax(g.list + UNSUITED, 1);
    }

    template <class P>
    static __device__ void split(const Args& g, const float* centre, int operand, i64 tile, int warp, int lane) {
        __shared__ float tops[WARPS], norms[SCORE_ROWS], radii[SCORE_ROWS];
        const i64 points = g.size[P::TILE];
        const int k = lane % LANES * 8, first = warp * EACH + lane / LANES;
        const auto p = origin();
        float v[PASSES][8], size[PASSES], top = 0.0f;
        bool rooted = true;
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            const i64 point = tile * SCORE_ROWS + first + s * (EACH / PASSES);
#pragma unroll
            for (int i = 0; i < 8; ++i) v[s][i] = 0.0f;
            if (point < points) rooted = S::template centred<P>(v[s], row_of<P>(g, p, point), g, p, centre, k) && rooted;
            float sum[2] = {0.0f, 0.0f}, most = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                sum[i % 2] = fmaf(v[s][i], v[s][i], sum[i % 2]);
                most = fmaxf(most, fabsf(v[s][i]));
            }
            size[s] = warp_sum<LANES / 2>(sum[0] + sum[1]);
            if (size[s] <= MOST_NORM) top = fmaxf(top, most);
        }
        if (!rooted) atomicMax(g.list + UNSUITED, 1);
        top = block_max<WARPS>(top, tops);
        const HalfScale power = HalfScale::of_largest(top);
        const float scale = power.scale, unit = power.inverse;
        unsigned char* to = g.tiles[operand] + tile * Layout::BYTES;
#pragma unroll
        for (int s = 0; s < PASSES; ++s) {
            const int row = first + s * (EACH / PASSES);
            const bool multiplied = size[s] <= MOST_NORM;
            Pack<f16, 8> high;
            float norm[2] = {0.0f, 0.0f}, rest[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float u = multiplied ? v[s][i] * scale : 0.0f;
                high.v[i] = Store<f16>::from(u);
                const float h = convert<float>(high.v[i]);
                norm[i % 2] = fmaf(h, h, norm[i % 2]);
                rest[i % 2] = fmaf(u - h, u - h, rest[i % 2]);
            }
            *(Pack<f16, 8>*)(to + Layout::at(row, k)) = high;
            const float moved = warp_sum<LANES / 2>(rest[0] + rest[1]), rounded = warp_sum<LANES / 2>(norm[0] + norm[1]) * unit * unit;
            const float radius = radius_of(moved, unit, size[s]), bound = norm_of(operand, multiplied, rounded, size[s]);
            if (lane % LANES == 0) {
                norms[row] = bound;
                radii[row] = multiplied ? radius : 0.0f;
                if (operand == 0) g.rows[tile * SCORE_ROWS + row] = make_float4(bound, radius, unit, 0.0f);
            }
        }
        if (operand == 0) return;
        __syncthreads();
        put_columns(g, norms, radii, unit, tile);
    }

    // What travels with a tile of columns and what is known of its groups; columns behind the last are infinitely far.
    static __device__ __forceinline__ void put_columns(const Args& g, const float* norms, const float* radii, float unit, i64 tile) {
        const i64 left = g.size[ROLE_N] - tile * SCORE_ROWS;
        float* to = g.columns + tile * SELECT_SIDE;
        if (threadIdx.x < SCORE_ROWS) {
            const int local = score_column(threadIdx.x);
            to[threadIdx.x] = local < left ? norms[local] : infinity<float>();
        } else if (threadIdx.x < SELECT_SIDE) {
            to[threadIdx.x] = threadIdx.x == SCORE_ROWS ? unit : 0.0f;
        } else if (threadIdx.x >= S::THREADS - 32) {
            const int group = threadIdx.x % 32;
            float2 most = make_float2(0.0f, 0.0f);
            if (group < TILE_GROUPS) {
#pragma unroll
                for (int i = 0; i < GROUP_COLUMNS; ++i) {
                    const int local = group_column(group, i);
                    if (local >= left || !(norms[local] <= MOST_NORM)) continue;
                    most = make_float2(fmaxf(most.x, radii[local]), fmaxf(most.y, norms[local]));
                }
                g.groups[tile * TILE_GROUPS + group] = most;
            }
            most = make_float2(warp_max(most.x), warp_max(most.y));
            if (group == 0) {
                atomicMax(g.list + LARGEST_RADIUS, __float_as_int(most.x));
                atomicMax(g.list + LARGEST_NORM, __float_as_int(most.y));
            }
        }
    }
};

template <class Body, class Source, class Tile>
__device__ __forceinline__ void split_candidates(const typename Body::Args& g) {
    typedef SelectSplit<Body, Source, Tile> S;
    __shared__ float centre[SCORE_ROWS];
    S::S::find_centre(g, centre);
    S::check_order(g);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 rows = ceil_div(g.size[ROLE_M], Tile::BM) * Tile::BM / SCORE_ROWS, tile = blockIdx.x;
    if (tile < rows)
        S::template split<typename S::X>(g, centre, 0, tile, warp, lane);
    else
        S::template split<typename S::Y>(g, centre, 1, tile - rows, warp, lane);
}

}  // namespace km

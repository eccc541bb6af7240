// What the kernels of score tiles times many columns of v hand to each other: points as score tiles have them, and columns of v
// in halves as wide_split.cuh has them, by passes of Tile::COLUMNS.
#pragma once
#include "score_rows.cuh"
#include "wide_split.cuh"

namespace km {

template <class A>
struct Columns : A {
    int* list;
    unsigned char* tiles[2];
    float2* rows;
    float* columns;
    unsigned char* values;
};

// Shape: D positions of a point, of which KS steps of 16 are multiplied, COLUMNS of v at a time, GROUPS warpgroups of 64 rows,
// BN columns of the matrix at a time. The points of rows are in registers (FRAGMENTS) or in shared memory.
template <int D_, int KS_, int COLUMNS_, int GROUPS_, int BN_, int STAGES_, bool FRAGMENTS_>
struct ColumnsTile {
    static constexpr int D = D_, KS = KS_, COLUMNS = COLUMNS_, GROUPS = GROUPS_, BN = BN_, STAGES = STAGES_;
    static constexpr bool FRAGMENTS = FRAGMENTS_;
    static constexpr int PATIENCE = 1, BM = 64 * GROUPS, THREADS = 128 * (GROUPS + 1), PARTS = SCORE_ROWS / BN;
    static constexpr float SHARE = score_share_of_norms(score_is_packed(D, KS) ? KS / 2 : KS);
    typedef ScoreLayout<D> Points;
    typedef ScoreLayout<D, BN> Layout;
    // 64 rows of v in one plane, a plane of a tile, and both planes.
    static constexpr int PIECE = COLUMNS * 128, PLANE = 2 * PIECE, BYTES = 2 * PLANE;
    // In shared memory: the points of the rows; of a stage those of BN columns, and BN rows of v.
    static constexpr int ROWS = FRAGMENTS ? 0 : Points::BYTES, VALUES = 2 * BN / 64 * PIECE, STAGE = Layout::BYTES + VALUES;
    static_assert(BN == 64 || BN == 128, "whole pieces");
    static_assert(FRAGMENTS || GROUPS == 2, "rows in shared memory are one tile of points");
};
template <class Body, class Tile>
__device__ constexpr int apply_columns_shared_bytes() {
    return Tile::ROWS + Tile::STAGES * (Tile::STAGE + score_side<Body>() * 4 + 20) + 16;
}

// Blocks that sample pairs and split points come first, then one for each tile and pass of v.
template <class Body, class Source, class Tile>
__device__ __forceinline__ void split_points_and_columns(const typename Body::Args& g) {
    const i64 across = ceil_div(g.size[ROLE_N], SCORE_ROWS), down = ceil_div(ceil_div(g.size[ROLE_M], Tile::BM) * Tile::BM, SCORE_ROWS);
    const i64 own = (i64)blockIdx.x - (SAMPLERS + down + across);
    if (own < 0)
        split_scores<Body, Source, Tile>(g);
    else
        split_values<Body, Tile>(g, own % across, own / across * Tile::COLUMNS, g.values + own * Tile::BYTES);
}

}  // namespace km

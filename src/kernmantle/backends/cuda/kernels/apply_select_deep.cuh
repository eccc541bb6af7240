// Minima for selections among points of many numbers (apply_select.cuh), on Hopper: both operands of the products in shared memory.
//
// A thread of a producer warp keeps 64 positions at a time of two tiles of columns coming through the copy engine, and with them those
// of the rows unless these stay. A consumer warpgroup multiplies its 64 rows with 256 columns, all positions into the same
// accumulators, as bounds take their rounding into account; the other one keeps tensor cores busy while it compares.
#pragma once
#include "select_deep_split.cuh"
#include "select_rows.cuh"
#include "specialized.cuh"

namespace km {

template <class Body, class Tile>
__device__ constexpr int apply_select_shared_bytes() {
    return Tile::RESIDENT * Tile::Layout::BYTES + Tile::STAGES * (Tile::STAGE + 16) + Tile::SIDES * (2 * SELECT_SIDE * 4 + 8) + 16;
}

template <class Body, class Tile>
struct DeepMinima : RowsOfGroup<Body> {
    typedef typename Body::Args Args;
    typedef typename Tile::Layout Layout;
    static constexpr int KS = Tile::KS, GROUPS = Tile::GROUPS, RESIDENT = Tile::RESIDENT, STAGES = Tile::STAGES, SIDES = Tile::SIDES;
    static constexpr int BM = Tile::BM, BN = Tile::BN, SIDE = 2 * SELECT_SIDE, STAGE = Tile::STAGE, PIECE = Layout::BYTES;
    using RowsOfGroup<Body>::g, RowsOfGroup<Body>::group, RowsOfGroup<Body>::lane, RowsOfGroup<Body>::local_row;

    const float* sides;
    unsigned rows, tiles, sides_empty;
    PipelineBarriers<STAGES> barriers;
    PipelineBarriers<1> row_barriers;
    float score[BN / 2];

    __device__ __forceinline__ DeepMinima(const Args& g_, unsigned char* raw)
        : RowsOfGroup<Body>(g_), sides((const float*)(raw + RESIDENT * PIECE + STAGES * STAGE)) {
        rows = shared_address(raw);
        tiles = rows + RESIDENT * PIECE;
        barriers.at = tiles + STAGES * STAGE + SIDES * SIDE * 4;
        sides_empty = barriers.at + barriers.BYTES;
        row_barriers.at = sides_empty + 8 * SIDES;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < SIDES; ++i) ptx::mbarrier_init(sides_empty + 8 * i, 4 * GROUPS);
            row_barriers.initialise(1, 4 * GROUPS);
            barriers.initialise(1, 4 * GROUPS);
        }
        __syncthreads();
    }

    // One thread. What travels with the columns comes with the first stage of their tiles.
    __device__ __forceinline__ void produce() const {
        const i64 deep = Tile::stages(g.size[ROLE_K]);
        PipelineState<STAGES> tile;
        PipelineState<SIDES> side;
        tile.phase = side.phase = 1;
        unsigned phase = 1;
        Spans spans(select_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
            const unsigned char* of_rows = g.tiles[0] + (g.first / SCORE_ROWS + spans.row) * deep * PIECE;
            if constexpr (RESIDENT > 0) {
                ptx::mbarrier_wait_parity(row_barriers.empty(0), phase);
                phase ^= 1;
                ptx::mbarrier_arrive_expect_tx(row_barriers.full(0), RESIDENT * PIECE);
                ptx::cp_async_bulk(rows, of_rows, RESIDENT * PIECE, row_barriers.full(0));
            }
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                const unsigned char* from = g.tiles[1] + 2 * t * deep * PIECE;
                ptx::mbarrier_wait_parity(sides_empty + 8 * side.stage, side.phase);
#pragma unroll 1
                for (int k = 0; k < deep; ++k) {
                    const unsigned to = tiles + tile.stage * STAGE, bar = barriers.full(tile.stage);
                    ptx::mbarrier_wait_parity(barriers.empty(tile.stage), tile.phase);
                    ptx::mbarrier_arrive_expect_tx(bar, STAGE + (k == 0 ? SIDE * 4 : 0));
                    ptx::cp_async_bulk(to, from + k * PIECE, PIECE, bar);
                    ptx::cp_async_bulk(to + PIECE, from + (deep + k) * PIECE, PIECE, bar);
                    if constexpr (RESIDENT == 0) ptx::cp_async_bulk(to + 2 * PIECE, of_rows + k * PIECE, PIECE, bar);
                    if (k == 0) ptx::cp_async_bulk(tiles + STAGES * STAGE + side.stage * (SIDE * 4), g.columns + (i64)t * SIDE, SIDE * 4, bar);
                    tile.advance();
                }
                side.advance();
            }
        }
    }

    // Products of 64 positions, added to those before or instead of them.
    __device__ __forceinline__ void multiply(unsigned columns, unsigned points, int add) {
        const unsigned a = Layout::LOW + (points >> 4), b = Layout::LOW + (columns >> 4);
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) ptx::fence_operand(score[i]);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < KS; ++s)
            score_multiply(score, a + Layout::step(16 * s), Layout::HIGH, b + Layout::step(16 * s), Layout::HIGH, add || s > 0);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int i = 0; i < BN / 2; ++i) ptx::fence_operand(score[i]);
    }

    // The smallest |y|^2 - 2 x y of both groups that the thread has of each of its two rows, of tile `half` of both.
    __device__ __forceinline__ void reduce(const float* side, int half, float unit, float* to, i64 pitch) const {
        side += half * SELECT_SIDE;
        const float c = unit * side[SCORE_ROWS];
        float least[2][2];
#pragma unroll
        for (int block = 0; block < 16; block += 2) {
            const float4 norm = *((const float4*)side + 2 * block + lane % 4);
            const float* s = score + 64 * half + 4 * block;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float low = fminf(fmaf(s[2 * h], c, norm.x), fmaf(s[2 * h + 1], c, norm.y));
                const float high = fminf(fmaf(s[2 * h + 4], c, norm.z), fmaf(s[2 * h + 5], c, norm.w));
                float& mine = least[h][block / 8];
                mine = block % 8 ? fminf(mine, fminf(low, high)) : fminf(low, high);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) __stcs((float2*)(to + half * TILE_GROUPS + h * 8 * pitch), make_float2(least[h][0], least[h][1]));
    }

    __device__ __forceinline__ void consume() {
        const i64 pitch = ceil_div(g.size[ROLE_N], BN) * (2 * TILE_GROUPS);
        const int deep = Tile::stages(g.size[ROLE_K]);
        PipelineState<STAGES> tile;
        int side_at = 0;
        unsigned phase = 0;
        Spans spans(select_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
            const i64 m0 = (i64)spans.row * BM;
            const float unit = -2.0f * g.rows[g.first + m0].z;
            float* to = (float*)g.work + (m0 + local_row()) * pitch + lane % 4 * 2;
            if constexpr (RESIDENT > 0) {
                ptx::mbarrier_wait_parity(row_barriers.full(0), phase);
                phase ^= 1;
            }
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
#pragma unroll 1
                for (int k = 0; k < deep; ++k) {
                    const unsigned from = tiles + tile.stage * STAGE;
                    ptx::mbarrier_wait_parity(barriers.full(tile.stage), tile.phase);
                    multiply(from, (RESIDENT > 0 ? rows + k * PIECE : from + 2 * PIECE) + group * (64 * Layout::ROW), k > 0);
                    if (lane == 0) ptx::mbarrier_arrive(barriers.empty(tile.stage));
                    tile.advance();
                }
                const float* side = sides + side_at * SIDE;
#pragma unroll
                for (int half = 0; half < 2; ++half) reduce(side, half, unit, to + t * (2 * TILE_GROUPS), pitch);
                ptx::fence_proxy_async();  // reads come before later copies
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(sides_empty + 8 * side_at);
                if (++side_at == SIDES) side_at = 0;
            }
            if (RESIDENT > 0 && lane == 0) ptx::mbarrier_arrive(row_barriers.empty(0));
        }
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void find_deep_minima(const typename Body::Args& g) {
    if (selects_by_differences(g.list, g.size[ROLE_M])) return;
    run_specialized<DeepMinima<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

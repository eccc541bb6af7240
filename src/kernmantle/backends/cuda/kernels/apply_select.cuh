// The nearest columns of every row by squared distances, on Hopper, the same as by differences alone.
//
// One product of halves on tensor cores leaves a lower bound of every squared distance in registers. Of every 16 columns
// that a thread has of a row only the smallest is written, a sixteenth of the matrix for as many rows as the work space
// holds; there is no branch and no order in it. Then a warp a row reads the minima (select_rows.cuh).
#pragma once
#include "select_rows.cuh"
#include "specialized.cuh"

namespace km {

template <class Body, class Tile>
__device__ constexpr int apply_select_shared_bytes() {
    return Tile::STAGES * (Tile::Layout::BYTES + 16) + Tile::SIDES * (SELECT_SIDE * 4 + 8);
}

template <class Body, class Tile>
struct Minima {
    typedef typename Body::Args Args;
    typedef typename Tile::Layout Layout;
    static constexpr int KS = Tile::KS, GROUPS = Tile::GROUPS, PIECES = Tile::PIECES, STAGES = Tile::STAGES, SIDES = Tile::SIDES;
    static constexpr int BM = Tile::BM, BN = Tile::BN;

    const Args& g;
    const float* sides;
    unsigned tiles, sides_empty;
    PipelineBarriers<STAGES> barriers;
    const int group, warp, lane;
    float score[PIECES][64];
    unsigned x[PIECES][KS][4];
    float unit[PIECES];

    __device__ __forceinline__ Minima(const Args& g_, unsigned char* raw)
        : g(g_), sides((const float*)(raw + STAGES * Layout::BYTES)), group(threadIdx.x / 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {
        tiles = shared_address(raw);
        barriers.at = tiles + STAGES * Layout::BYTES + SIDES * SELECT_SIDE * 4;
        sides_empty = barriers.at + barriers.BYTES;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < SIDES; ++i) ptx::mbarrier_init(sides_empty + 8 * i, 4 * GROUPS);
            barriers.initialise(1, 4 * GROUPS);
        }
        __syncthreads();
    }

    // One thread.
    __device__ __forceinline__ void produce() const {
        PipelineState<STAGES> tile;
        PipelineState<SIDES> side;
        tile.phase = side.phase = 1;
        Spans spans(select_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                ptx::mbarrier_wait_parity(barriers.empty(tile.stage), tile.phase);
                ptx::mbarrier_wait_parity(sides_empty + 8 * side.stage, side.phase);
                ptx::mbarrier_arrive_expect_tx(barriers.full(tile.stage), Layout::BYTES + SELECT_SIDE * 4);
                ptx::cp_async_bulk(tiles + tile.stage * Layout::BYTES, g.tiles[1] + (i64)t * Layout::BYTES, Layout::BYTES, barriers.full(tile.stage));
                ptx::cp_async_bulk(tiles + STAGES * Layout::BYTES + side.stage * (SELECT_SIDE * 4), g.columns + (i64)t * SELECT_SIDE, SELECT_SIDE * 4, barriers.full(tile.stage));
                tile.advance();
                side.advance();
            }
        }
    }

    // First row of a piece in the row block, and of the two rows, eight apart, that a thread holds of it.
    __device__ __forceinline__ int first_row(int piece) const { return 64 * (group * PIECES + piece); }
    __device__ __forceinline__ int local_row(int piece) const { return first_row(piece) + 16 * warp + lane / 4; }

    __device__ __forceinline__ void load_points(i64 m0) {
#pragma unroll
        for (int r = 0; r < PIECES; ++r) {
            const i64 start = g.first + m0 + first_row(r), tile = start / SCORE_ROWS;
            const unsigned char* from = g.tiles[0] + tile * Layout::BYTES;
            const int row = (int)(start % SCORE_ROWS) + 16 * warp + lane / 4;
            unit[r] = -2.0f * g.rows[start].z;
#pragma unroll
            for (int s = 0; s < KS; ++s) {
                const int k = 16 * s + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < 4; ++i) x[r][s][i] = *(const unsigned*)(from + Layout::at(row + i % 2 * 8, k + i / 2 * 8));
            }
        }
    }

    __device__ __forceinline__ void multiply(int stage) {
        const unsigned b = Layout::LOW + ((tiles + stage * Layout::BYTES) >> 4);
#pragma unroll
        for (int r = 0; r < PIECES; ++r)
#pragma unroll
            for (int i = 0; i < 64; ++i) ptx::fence_operand(score[r][i]);
        ptx::wgmma_fence();
#pragma unroll
        for (int r = 0; r < PIECES; ++r)
#pragma unroll
            for (int s = 0; s < KS; ++s) score_multiply(score[r], x[r][s], b + Layout::step(16 * s), Layout::HIGH, s > 0);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int r = 0; r < PIECES; ++r)
#pragma unroll
            for (int i = 0; i < 64; ++i) ptx::fence_operand(score[r][i]);
    }

    // The smallest |y|^2 - 2 x y of both groups that the thread has of each of its rows.
    __device__ __forceinline__ void reduce(const float* side, float* to, i64 pitch) const {
        const float theirs = side[SCORE_ROWS];
        float least[PIECES][2][2];
#pragma unroll
        for (int block = 0; block < 16; block += 2) {
            const float4 norm = *((const float4*)side + 2 * block + lane % 4);
#pragma unroll
            for (int r = 0; r < PIECES; ++r) {
                const float c = unit[r] * theirs;
                const float* s = score[r] + 4 * block;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float low = fminf(fmaf(s[2 * h], c, norm.x), fmaf(s[2 * h + 1], c, norm.y));
                    const float high = fminf(fmaf(s[2 * h + 4], c, norm.z), fmaf(s[2 * h + 5], c, norm.w));
                    float& mine = least[r][h][block / 8];
                    mine = block % 8 ? fminf(mine, fminf(low, high)) : fminf(low, high);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < PIECES; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) __stcs((float2*)(to + (r * 64 + h * 8) * pitch), make_float2(least[r][h][0], least[r][h][1]));
    }

    __device__ __forceinline__ void consume() {
        const i64 pitch = ceil_div(g.size[ROLE_N], BN) * TILE_GROUPS;
        PipelineState<STAGES> tile;
        int side_at = 0;
        Spans spans(select_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
            const i64 m0 = (i64)spans.row * BM;
            load_points(m0);
            float* to = (float*)g.work + (m0 + local_row(0)) * pitch + lane % 4 * 2;
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                ptx::mbarrier_wait_parity(barriers.full(tile.stage), tile.phase);
                multiply(tile.stage);
                if (lane == 0) ptx::mbarrier_arrive(barriers.empty(tile.stage));
                tile.advance();
                reduce(sides + side_at * SELECT_SIDE, to + t * TILE_GROUPS, pitch);
                ptx::fence_proxy_async();  // reads come before later copies
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(sides_empty + 8 * side_at);
                if (++side_at == SIDES) side_at = 0;
            }
        }
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void find_minima(const typename Body::Args& g) {
    if (selects_by_differences(g.list, g.size[ROLE_M])) return;
    run_specialized<Minima<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

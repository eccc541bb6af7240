// What the kernels of a score tile hand to each other: points split into halves, facts of their rows, the counts that
// decide whether products are right for them.
//
// A tile of 128 points is one contiguous copy: rows of D high halves, then D low ones, or three halves of each number (see
// score_is_packed), in chunks of 128 bytes a row (64 where D is an odd multiple of 16) whose 16-byte pieces are permuted as
// tensor cores read them. With each tile of columns travel, permuted as the threads of a warp read them, norms, the operands
// that entries read of a column and columns of v.
#pragma once
#include "apply.cuh"
#include "pipeline.cuh"
#include "ptx_wgmma.cuh"
#include "reduce.cuh"
#include "score_gate.cuh"
#include "split.cuh"

namespace km {

constexpr int SCORE_ROWS = 128;
// Tiles whose results are added up in registers before they are added to those before: rounding grows with the root of this.
constexpr int SCORE_RUN = 32;

// Of 128 points, or of some of a tile's where fewer are in shared memory.
template <int D, int POINTS = SCORE_ROWS>
struct ScoreLayout {
    static constexpr int ROW = D % 32 ? 64 : 128, CHUNK = POINTS * ROW, CHUNKS = 4 * D / ROW, BYTES = CHUNKS * CHUNK;
    static constexpr int SHIFT = ROW == 128 ? 0 : 1, MASK = ROW / 16 - 1;
    // Upper word of a descriptor, and its lower word without the address.
    static constexpr unsigned HIGH = (8 * ROW >> 4) | (ROW == 128 ? 1u : 2u) << 30, LOW = 1u << 16;
    static_assert(D % 16 == 0, "whole chunks");

    // Byte of position p of a row: high halves are 0 .. D - 1, low ones D .. 2 D - 1.
    static __device__ __forceinline__ constexpr int at(int row, int p) {
        return p * 2 / ROW * CHUNK + row * ROW + (((p * 2 % ROW / 16) ^ ((row >> SHIFT) & MASK)) << 4) + p % 8 * 2;
    }
    // Offset of 16 positions in units of a descriptor.
    static __device__ __forceinline__ constexpr unsigned step(int p) { return (p * 2 / ROW * CHUNK + p * 2 % ROW) >> 4; }
};

// Order of a tile's columns in what travels with it: a thread reads 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of every 16 at once.
KM_DEVICE int score_column(int slot) { return (slot & ~15) + (slot / 2 % 2) * 8 + slot / 4 % 4 * 2 + slot % 2; }

template <class A>
struct Scored : A {
    int* list;
    unsigned char* tiles[2];
    float2* rows;
    float* columns;
};

// Squared distances below this share of both norms are taken by differences: tensor cores round towards zero, by up to 2^-23 of
// the norms at every step.
__device__ constexpr float score_share_of_norms(int steps) { return steps <= 4 ? 0.0625f : 0.125f; }

// Tiles between two checks of whether products still suit the points, and tiles of which what travels with them is freed at once,
// since every thread says so.
constexpr int SCORE_CHECK = 8, SCORE_FREED = 4;

// Whether three halves of each number lie in a row, so that the three products are one of KS steps: high, low, high ones of a row
// of the matrix, low, high, high ones of a column.
__device__ constexpr bool score_is_packed(int positions, int steps) { return 16 * steps > positions; }

// Shape of the main kernel: D positions are stored, of which KS steps of 16 are multiplied. PATIENCE: how many times as many pairs
// may be taken by differences; above 1 a warp takes each together.
template <int D_, int KS_, int GROUPS_, int STAGES_, int SIDES_>
struct ScoreTile {
    static constexpr int D = D_, KS = KS_, GROUPS = GROUPS_, STAGES = STAGES_, SIDES = SIDES_;
    static constexpr int BM = 64 * GROUPS, BN = SCORE_ROWS, THREADS = 128 * (GROUPS + 1);
    static constexpr bool FRAGMENTS = true;
    static constexpr int PATIENCE = 1;
    static constexpr bool PACKED = score_is_packed(D, KS);
    static constexpr float SHARE = score_share_of_norms(PACKED ? KS / 2 : KS);
    // Whether warpgroups issue products in order: where these take longer than entries do (decision 0047; NVIDIA H200).
    static constexpr bool IN_ORDER = (PACKED ? 1 : 3) * KS > 10;
    typedef ScoreLayout<D> Layout;
};

// Columns of v that travel with a tile of columns: none where they are multiplied on tensor cores too.
template <class Body>
__device__ constexpr int score_weights() {
    return Body::WEIGHTED && !Body::MANY ? Body::GROUP : 0;
}
// Floats that travel with a tile of columns: norms, ends, v, levels of entries that have such, then the tile's unit, its bound and
// its level.
template <class Body>
__device__ constexpr int score_side() {
    return SCORE_ROWS * (1 + Body::COLUMN_ENDS + score_weights<Body>() + (Body::LINEAR || (Body::POWERS_OF_2 && !Body::MANY))) + 4;
}
// Where levels lie among them.
template <class Body>
__device__ constexpr int score_levels() {
    return SCORE_ROWS * (1 + Body::COLUMN_ENDS + score_weights<Body>());
}
constexpr float MOST_LEVEL = 1e38f;
// Powers of 2 that become halves are as many bits higher.
constexpr float SCORE_LIFT = 10.0f;

template <class Body, class Tile>
__device__ constexpr int apply_score_shared_bytes() {
    return Tile::STAGES * Tile::Layout::BYTES + Tile::SIDES * (score_side<Body>() * 4 + 8) + 20 * Tile::STAGES;
}

// Where the only matrix begins, and the smallest square that float32 takes well.
KM_DEVICE Coord origin() { return Coord{0, 0, 0, 0, 0, 0}; }
constexpr float LEAST_SQUARE = 7.8886091e-31f;

// Adds four neighbours along k from a multiple of four on, exactly as it is written; those behind the end are 0.
template <class Body, class Args>
KM_DEVICE void add_four(typename Body::Registers& s, const float (&a)[4], const float (&b)[4], const Args& g, i64 k) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
        float c[AtLeastOne<Body::VECTORS>::value];
        if (Body::VECTORS > 0 && k + v >= g.size[ROLE_K]) continue;
        read_vectors<Body>(c, g, origin(), k + v);
        Body::template step<EXACT>(s, a + v, b + v, c, a, g.number, k + v, 0);
    }
}

// One entry's accumulator by LANES threads together, each four neighbours along k at a time, exactly as it is written.
template <int LANES, class Body, class Args>
KM_DEVICE float score_directly(const Args& g, i64 m, i64 n) {
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    const Coord p = origin();
    const typename X::T* x = row_of<X>(g, p, m);
    const typename Y::T* y = row_of<Y>(g, p, n);
    typename Body::Registers s;
    Body::initial(s);
#pragma unroll(LANES == 1 ? 1 : 2)
    for (i64 k = LANES == 1 ? 0 : threadIdx.x % LANES * 4; k < g.size[ROLE_K]; k += 4 * LANES) {
        float a[4], b[4];
        read_along_k<X, false>(a, x, g, k);
        read_along_k<Y, false>(b, y, g, k);
        add_four<Body>(s, a, b, g, k);
    }
    return warp_sum<LANES / 2>(s.r0);
}

// Order in which warpgroups issue products.
KM_DEVICE void score_await_issue(int group) { ptx::bar_sync<256>(group + 1); }
KM_DEVICE void score_pass_issue(int group) { ptx::bar_arrive<256>(group + 1); }

// d = (add ? d : 0) + a b^T over 16 positions by a warpgroup: a in registers or by the two words of its descriptor, as b is.
template <int CELLS>
KM_DEVICE void score_multiply(float (&d)[CELLS], const unsigned (&a)[4], unsigned low, unsigned high, int add) {
    ptx::wgmma_rs(f16(), reinterpret_cast<float (&)[CELLS / 4][4]>(d), a, (unsigned long long)high << 32 | low, add);
}
template <int CELLS>
KM_DEVICE void score_multiply(float (&d)[CELLS], unsigned low_a, unsigned high_a, unsigned low, unsigned high, int add) {
    ptx::wgmma_ss(f16(), reinterpret_cast<float (&)[CELLS / 4][4]>(d), (unsigned long long)high_a << 32 | low_a, (unsigned long long)high << 32 | low, add);
}

// Which of a block's rows a thread has.
template <class Body>
struct RowsOfGroup {
    const typename Body::Args& g;
    const int group, warp, lane;

    __device__ __forceinline__ RowsOfGroup(const typename Body::Args& g_) : g(g_), group(threadIdx.x / 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {}
    // First of the two rows, eight apart, that a thread holds of the block's.
    __device__ __forceinline__ int local_row() const { return 64 * group + 16 * warp + lane / 4; }
};

// The runs of tiles of one row block each that a block works through, begun where a row block begins (see Walk).
struct Spans {
    int next_tile, stop, first, columns, row, begin, end;

    __device__ __forceinline__ Spans(const Share& share) : first((int)share.first), columns((int)share.columns), row(0), begin(0), end(0) {
        stop = (int)share.last;
        next_tile = (first + columns - 1) / columns * columns;
        if (next_tile >= stop) next_tile = first;
        if (next_tile == first) first = stop;
    }
    // `first`: of the tiles that are left for the end, the end of the run where there are none
    __device__ __forceinline__ bool next() {
        if (next_tile >= stop) {
            if (first >= stop) return false;
            next_tile = first;
            stop = (first + columns - 1) / columns * columns;
            first = stop;
        }
        row = next_tile / columns;
        const int start = row * columns, after = start + columns < stop ? start + columns : stop;
        begin = next_tile - start;
        end = after - start;
        next_tile = after;
        return true;
    }
};
// The run of a block, worked out where it is needed so that it takes no registers in between.
template <class Tile, class Args>
KM_DEVICE Share score_share(const Args& g) {
    int block = blockIdx.x;
    ptx::opaque(block);
    const i64 columns = ceil_div(g.size[ROLE_N], Tile::BN);
    return Share(block, gridDim.x, ceil_div(g.size[ROLE_M], Tile::BM) * columns, columns);
}

// Where a block adds up what it has of a row block: memory of row blocks that are written at once.
template <class Body, int BM, class Args>
KM_DEVICE typename Body::State* score_slot(const Args& g) {
    return slot_of<Body, BM>(g.work, blockIdx.x, 2, g.size[ROLE_L]);
}

// Keeps tiles of columns coming, by one thread.
template <class Body, class Tile, class Args>
KM_DEVICE void score_produce(const Args& g, unsigned tiles, PipelineBarriers<Tile::STAGES> barriers, unsigned sides_empty, volatile int* ended) {
    typedef typename Tile::Layout Layout;
    constexpr int BN = Tile::BN, GROUP = Body::GROUP, SIDE = score_side<Body>(), STAGES = Tile::STAGES, SIDES = Tile::SIDES;
    const i64 tile_columns = ceil_div(g.size[ROLE_N], BN);
    PipelineState<STAGES> tile;
    PipelineState<SIDES> side;
    tile.phase = side.phase = 1;
    const float* columns = g.columns;
#pragma unroll 1
    for (i64 c = 0; c < (Body::WEIGHTED ? g.size[ROLE_L] : 1); c += GROUP, columns += tile_columns * SIDE) {
        Spans spans(score_share<Tile>(g));
        while (spans.next()) {
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                if (t % SCORE_CHECK == 0 && *(volatile const int*)g.list > most_differences(g.size[ROLE_M], g.size[ROLE_N])) {
                    ptx::mbarrier_wait_parity(barriers.empty(tile.stage), tile.phase);
                    ended[tile.stage] = 1;
                    ptx::mbarrier_arrive(barriers.full(tile.stage));
                    return;
                }
                ptx::mbarrier_wait_parity(barriers.empty(tile.stage), tile.phase);
                if (side.stage % SCORE_FREED == 0) ptx::mbarrier_wait_parity(sides_empty + 8 * (side.stage / SCORE_FREED), side.phase);
                ptx::mbarrier_arrive_expect_tx(barriers.full(tile.stage), Layout::BYTES + SIDE * 4);
                ptx::cp_async_bulk(tiles + tile.stage * Layout::BYTES, g.tiles[1] + (i64)t * Layout::BYTES, Layout::BYTES, barriers.full(tile.stage));
                ptx::cp_async_bulk(tiles + STAGES * Layout::BYTES + side.stage * (SIDE * 4), columns + (i64)t * SIDE, SIDE * 4, barriers.full(tile.stage));
                tile.advance();
                side.advance();
            }
        }
    }
}

}  // namespace km

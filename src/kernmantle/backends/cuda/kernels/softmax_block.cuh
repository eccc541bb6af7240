// A block of softmax-weighted sums, their gradients or tangents: its own rows, stages of tiles of the other side, which one
// thread fills, and entries and fragments that consumers make of scores.
#pragma once
#include "reduce.cuh"
#include "softmax.cuh"

namespace km {

// OWN bytes of rows that stay, STAGES of STAGE bytes of tiles and SIDE numbers that go with them, for GROUPS warpgroups. READS:
// threads read of a stage by themselves, not by products alone.
template <int OWN, int STAGE, int SIDE, int STAGES, int GROUPS, bool READS>
struct SoftmaxBlock {
    const float* sides;
    unsigned own, stages;
    PipelineBarriers<STAGES> barriers;
    PipelineBarriers<1> own_barriers;
    const int group, warp, lane;

    __device__ __forceinline__ SoftmaxBlock(unsigned char* raw)
        : sides((const float*)(raw + OWN + STAGES * STAGE)), group(threadIdx.x / 128), warp(threadIdx.x / 32 % 4), lane(threadIdx.x % 32) {
        own = shared_address(raw);
        stages = own + OWN;
        barriers.at = stages + STAGES * (STAGE + SIDE * 4);
        own_barriers.at = barriers.at + barriers.BYTES;
    }
    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            barriers.initialise(1, (READS ? 128 : 4) * GROUPS);
            own_barriers.initialise(1, 4 * GROUPS);
        }
        __syncthreads();
    }

    // By the thread that fills: bytes of both arrays of a tile, and its side.
    __device__ __forceinline__ void fill(
        PipelineState<STAGES>& state, const unsigned char* one, int first, const unsigned char* two, int second, const float* side) const {
        const unsigned to = stages + state.stage * STAGE, bar = barriers.full(state.stage);
        ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
        ptx::mbarrier_arrive_expect_tx(bar, STAGE + SIDE * 4);
        ptx::cp_async_bulk(to, one, first, bar);
        ptx::cp_async_bulk(to + first, two, second, bar);
        if (SIDE > 0) ptx::cp_async_bulk(stages + STAGES * STAGE + state.stage * (SIDE * 4), side, SIDE * 4, bar);
        state.advance();
    }

    // By all consumers. The copy engine may write a stage that is free: reads by threads come before that by a fence alone, as a
    // barrier does not order what it writes behind them.
    __device__ __forceinline__ void release(int stage) const {
        if constexpr (READS) {
            ptx::fence_proxy_async();
            ptx::mbarrier_arrive(barriers.empty(stage));
        } else {
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(barriers.empty(stage));
        }
    }
    __device__ __forceinline__ void release_own() const {
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(own_barriers.empty(0));
    }

    // First of the two rows, eight apart, that a thread holds of the block's.
    __device__ __forceinline__ int local_row() const { return 64 * group + 16 * warp + lane / 4; }
};

// Calls use(j, i, rows, columns, cell, s) for the cells of a thread: what entries read of their row, column and their own, and their
// sums, scores times c. others: of what goes with the tile, PITCH numbers an end, from the thread's first column on; own: ends of
// its two rows, which are those of columns OF_COLUMNS.
template <class Body, bool OF_COLUMNS, bool SCALES, int PITCH, int OWN_ENDS, int BLOCKS, class Cells, class Args, class Use>
KM_DEVICE void each_entry(
    const float (&score)[BLOCKS][4], const float (&own)[OWN_ENDS][2], const float* others, float c, const Cells& cells, const Args& g, int other, const Use& use) {
    constexpr int OWN = OF_COLUMNS ? Body::COLUMN_ENDS : Body::ROW_ENDS, ENDS = OF_COLUMNS ? Body::ROW_ENDS : Body::COLUMN_ENDS;
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        float theirs[2][AtLeastOne<ENDS>::value];
#pragma unroll
        for (int o = 0; o < ENDS; ++o) {
            const float2 two = *(const float2*)(others + o * PITCH + 8 * j);
            theirs[0][o] = two.x;
            theirs[1][o] = two.y;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float mine[OWN_ENDS], cell[AtLeastOne<Body::CELL_ENDS>::value];
#pragma unroll
            for (int o = 0; o < OWN; ++o) mine[o] = own[o][i / 2];
            typename Body::Registers s;
            s.r0 = SCALES ? score[j][i] * c : score[j][i];
            cells.read(cell, g, i / 2, other + 8 * j + i % 2);
            if constexpr (OF_COLUMNS)
                use(j, i, theirs[i % 2], mine, cell, s);
            else
                use(j, i, mine, theirs[i % 2], cell, s);
        }
    }
}

// How many of the columns from `from` on the two rows from `row` on see.
template <class Tile, class Args>
KM_DEVICE void columns_left(int (&left)[2], const Args& g, i64 row, int from) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        left[h] = (int)g.size[ROLE_N] - from;
        const int seen = (int)row + 8 * h + 1 - from;
        if (Tile::CAUSAL && seen < left[h]) left[h] = seen;
    }
}

// The largest magnitudes of a thread's two rows.
template <int BLOCKS>
KM_DEVICE void largest_of_rows(float (&top)[2], const float (&from)[BLOCKS][4]) {
    top[0] = top[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], fabsf(from[i / 4][i % 4]));
#pragma unroll
    for (int h = 0; h < 2; ++h) top[h] = warp_max<2>(top[h]);
}
// Fragments of cells of float32 by the power of two that suits each row, whose inverse is its unit.
template <class H, int STEPS>
KM_DEVICE void pack_by_rows(Fragments<STEPS, true>& to, float (&unit)[2], const float (&from)[2 * STEPS][4]) {
    float scale[2];
    largest_of_rows(scale, from);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const HalfScale own = HalfScale::of_largest(scale[h]);
        scale[h] = own.scale;
        unit[h] = own.inverse;
    }
    pack_fragments<H>(to, from, scale);
}

// Whether numbers of float16 are 2^15 or more, next to what these cannot hold, in any thread of a warp.
template <int STEPS>
KM_DEVICE bool are_large(const unsigned (&halves)[STEPS][4]) {
    unsigned top = 0;
#pragma unroll
    for (int i = 0; i < 4 * STEPS; ++i) top = ptx::max_abs_f16x2(top, halves[i / 4][i % 4]);
    return __any_sync(0xffffffffu, (top + 0x08000800u & 0x80008000u) != 0);
}
// The power of two that brings a magnitude to 2^10 .. 2^11, so that what comes after it may be as large as 2^15.
KM_DEVICE HalfScale spacious_scale(float magnitude) { return HalfScale::of_exponent((__float_as_uint(magnitude) >> 23) + 4); }
// Multiplies two rows.
template <int BLOCKS>
KM_DEVICE void multiply_rows_by(float (&d)[BLOCKS][4], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; ++i) d[i / 4][i % 4] *= factor[i / 2 % 2];
}

// sum += product, a thread's cells, times the units of their columns, from `units` on.
template <int BLOCKS>
KM_DEVICE void add_by_columns(float (&sum)[BLOCKS][4], float (&product)[BLOCKS][4], const float* units, const float (&scale)[2]) {
#pragma unroll
    for (int j = 0; j < BLOCKS; ++j) {
        const float2 two = *(const float2*)(units + 8 * j);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[j][i] = fmaf(product[j][i] * scale[i / 2], i % 2 ? two.y : two.x, sum[j][i]);
    }
}

}  // namespace km

// Sums of squared differences on Hopper, warp-specialized: a producer warp fills stages of shared memory through the copy engine,
// and two consumer warpgroups compute 64 rows each by wgmma, which reads both operands from shared memory. The producer is
// part of a warpgroup of its own, because only whole warpgroups can give registers to others.
//
// A stage holds the high or the low halves of 64 positions of k. Accumulators of tensor cores round towards zero, so the small
// products come first, where that loses nothing, and after every 64 positions the accumulators are added to sums in float32.
#pragma once
#include "pipeline.cuh"
#include "ptx_wgmma.cuh"
#include "squares.cuh"

namespace km {

template <int BN_, int STAGES_, int PLANES_, bool SYMMETRIC_>
struct WgmmaTile {
    static constexpr int BM = 128, BN = BN_, STAGES = STAGES_, PLANES = PLANES_;
    static constexpr bool SYMMETRIC = SYMMETRIC_;
    static constexpr int MF = 1, NF = BN / 8, CONSUMERS = 8, THREADS = 32 * (CONSUMERS + 4), BAND = 16, ROUNDS = 16;
    static constexpr int SLOT = (BM + BN) / BLOCK * BLOCK_BYTES;
};
template <class Body, class Tile>
__device__ constexpr int wgmma_shared_bytes() {
    return 1024 + Tile::STAGES * Tile::SLOT + PipelineBarriers<Tile::STAGES>::BYTES;
}

// The two warpgroups issue their products in turn, so that one has work queued while the other adds up.
KM_DEVICE void await_issue(int group) { ptx::bar_sync<256>(group + 1); }
KM_DEVICE void pass_issue(int group) { ptx::bar_arrive<256>(2 - group); }

// Matrix of 64 positions of k in rows of 128 bytes, swizzled (layout.cuh).
KM_DEVICE unsigned long long wgmma_matrix(unsigned address) { return ptx::wgmma_descriptor(address, 16, 8 * 128, ptx::WGMMA_SWIZZLE_128); }

template <class Body, class Tile>
struct Wgmma {
    typedef typename Body::Args Args;
    typedef Squares<Body, Tile> S;
    typedef PipelineState<Tile::STAGES> State;
    typedef PipelineBarriers<Tile::STAGES> Barriers;
    static constexpr int BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, CELLS = S::CELLS, SLOT = Tile::SLOT;

    // A lane for each block of 64 rows.
    static __device__ void produce(const Args& g, unsigned shared, const Barriers& barriers, int products, int lane) {
        const i64 tiles = S::count(g), across = ceil_div(g.size[ROLE_K], BLOCK);
        const int operand = lane >= BM / BLOCK, mine = operand ? lane - BM / BLOCK : lane;
        const int planes = products > 1 ? 2 : 1;
        State state;
        state.phase = 1;
#pragma unroll 1
        for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
            const Coord p = S::coord(g, t);
            if (S::is_empty(g, p)) continue;
            const unsigned char* from = operand ? S::blocks_of(g, 1, plane_of<Body, typename S::Y>(g, p), p.n + mine * BLOCK, g.size[ROLE_N])
                                                : S::blocks_of(g, 0, plane_of<Body, typename S::X>(g, p), p.m + mine * BLOCK, g.size[ROLE_M]);
#pragma unroll 1
            for (i64 k = 0; k < across; ++k, from += Tile::PLANES * BLOCK_BYTES) {
#pragma unroll 1
                for (int plane = planes - 1; plane >= 0; --plane) {
                    ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
                    if (lane == 0) ptx::mbarrier_arrive_expect_tx(barriers.full(state.stage), SLOT);
                    __syncwarp();
                    if (lane < (BM + BN) / BLOCK)
                        ptx::cp_async_bulk(shared + state.stage * SLOT + lane * BLOCK_BYTES, from + plane * BLOCK_BYTES, BLOCK_BYTES, barriers.full(state.stage));
                    state.advance();
                }
            }
        }
    }

    // Sums products of halves over all of k; LOW: of both halves, without the product of the low ones.
    template <bool LOW>
    static __device__ __forceinline__ void multiply(float (&sum)[CELLS], unsigned shared, const Barriers& barriers, i64 across, State& state, int group, int lane) {
        float part[CELLS];
#pragma unroll
        for (int i = 0; i < CELLS; ++i) sum[i] = part[i] = 0.0f;
#pragma unroll 1
        for (i64 k = 0; k < across; ++k) {
            const State low = state;
            if (LOW) {
                ptx::mbarrier_wait_parity(barriers.full(low.stage), low.phase);
                state.advance();
            }
            const State high = state;
            ptx::mbarrier_wait_parity(barriers.full(high.stage), high.phase);
            state.advance();
            const unsigned long long high_a = wgmma_matrix(shared + high.stage * SLOT + group * BLOCK_BYTES);
            const unsigned long long high_b = wgmma_matrix(shared + high.stage * SLOT + BM / BLOCK * BLOCK_BYTES);
            const unsigned long long low_a = wgmma_matrix(shared + low.stage * SLOT + group * BLOCK_BYTES);
            const unsigned long long low_b = wgmma_matrix(shared + low.stage * SLOT + BM / BLOCK * BLOCK_BYTES);
            await_issue(group);
#pragma unroll
            for (int i = 0; i < CELLS; ++i) ptx::fence_operand(part[i]);
            ptx::wgmma_fence();
            if (LOW) {
#pragma unroll
                for (int i = 0; i < 4; ++i) ptx::wgmma_ss(part, high_a + 2 * i, low_b + 2 * i, i > 0);
#pragma unroll
                for (int i = 0; i < 4; ++i) ptx::wgmma_ss(part, low_a + 2 * i, high_b + 2 * i, 1);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) ptx::wgmma_ss(part, high_a + 2 * i, high_b + 2 * i, LOW || i > 0);
            ptx::wgmma_commit_group();
            pass_issue(group);
            ptx::wgmma_wait_group<0>();
#pragma unroll
            for (int i = 0; i < CELLS; ++i) ptx::fence_operand(part[i]);
            if (lane == 0) {
                if (LOW) ptx::mbarrier_arrive(barriers.empty(low.stage));
                ptx::mbarrier_arrive(barriers.empty(high.stage));
            }
#pragma unroll
            for (int i = 0; i < CELLS; ++i) sum[i] += part[i];
        }
    }

    static __device__ void consume(const Args& g, unsigned shared, const Barriers& barriers, int* left, int products, int warp, int lane) {
        const i64 tiles = S::count(g), across = ceil_div(g.size[ROLE_K], BLOCK);
        State state;
        int ordinal = 0;
        if (warp >= 4) pass_issue(1);
#pragma unroll 1
        for (i64 t = blockIdx.x; t < tiles; t += gridDim.x, ++ordinal) {
            if (S::is_empty(g, S::coord(g, t))) continue;
            float sum[CELLS];
            if (Tile::PLANES == 2 && (!has_halves<Body>() || products > 1)) {
                multiply<true>(sum, shared, barriers, across, state, warp / 4, lane);
            } else {
                multiply<false>(sum, shared, barriers, across, state, warp / 4, lane);
            }
            // worked out anew, so that it takes no registers in between
            ptx::opaque(t);
            S::finish(g, S::coord(g, t), 16 * warp, 0, sum, left, ordinal, lane);
        }
        if (warp < 4) await_issue(0);
    }
};

template <class Body, class Tile>
__device__ __forceinline__ void wgmma(const typename Body::Args& g) {
    typedef Wgmma<Body, Tile> W;
    extern __shared__ __align__(1024) unsigned char raw[];
    __shared__ int left[Tile::ROUNDS];
    const unsigned shared = (shared_address(raw) + 1023) / 1024 * 1024;
    const typename W::Barriers barriers = {shared + Tile::STAGES * W::SLOT};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (W::S::left_all(g, Tile::THREADS)) return;
    if (threadIdx.x < Tile::ROUNDS) left[threadIdx.x] = -1;
    if (threadIdx.x == 0) barriers.initialise(1, Tile::CONSUMERS);
    __syncthreads();
    const int products = g.scratch.list[LIST_PRODUCTS];
    if (warp >= Tile::CONSUMERS) {
        ptx::setmaxnreg_dec<40>();
        if (warp == Tile::CONSUMERS) W::produce(g, shared, barriers, products, lane);
    } else {
        ptx::setmaxnreg_inc<232>();
        W::consume(g, shared, barriers, left, products, warp, lane);
    }
}

}  // namespace km

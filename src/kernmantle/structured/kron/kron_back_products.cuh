// Products by wgmma for the gradients of one axis or two of a Kronecker product (kron_back_axis.cuh, kron_back_wgmma.cuh): factors in shared
// memory, products of tiles that are split, and sums of a block. GROUPS of four warps multiply, two sets of LOADERS load.
#pragma once
#include "kron_back_tile.cuh"
#include "pipeline.cuh"
#include "ptx_wgmma_along.cuh"

namespace km {

template <class B, int GROUPS>
struct KronBackProducts : KronBackTile<B> {
    typedef KronBackTile<B> Tile;
    typedef typename Tile::Arguments Arguments;
    using Tile::halves_of, Tile::larger, Tile::scale_of, Tile::spot;
    static constexpr bool SPLIT = Tile::SPLIT;
    static constexpr int SET = Tile::SET, MULTIPLYING = GROUPS * SET, LOADERS = Tile::LOADERS, THREADS = MULTIPLYING + 2 * LOADERS, STEPS = 4;
    // Bytes of a stage, which has x and v.
    static constexpr int MATRIX = Tile::MATRIX, PLANES = Tile::PLANES, STAGE = 2 * PLANES * MATRIX, OF_V = PLANES * MATRIX;
    typedef PipelineState<B::STAGES> State;
    typedef PipelineBarriers<B::STAGES> Barriers;

    static KM_DEVICE unsigned long long matrix(unsigned at) {
        return ptx::wgmma_descriptor(__shfl_sync(0xffffffffu, at, 0), 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
    }
    static KM_DEVICE unsigned long long at(unsigned long long matrix, int bytes) { return matrix + (bytes >> 4); }

    // ---- Factors, repeated along the diagonal, and their power of two.
    template <int Q, int P, int SLOT, int COUNT, class Entry>
    static __device__ HalfScale stored(unsigned char* to, float* tops, const Entry& factor) {
        constexpr int WORDS = 64 * 64 / 2, EACH = (WORDS + THREADS - 1) / THREADS;
        float value[EACH][2], top = 0.0f;
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int word = threadIdx.x + n * THREADS, row = word / 32, q = row % SLOT;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int column = word % 32 * 2 + h, p = column % SLOT;
                const bool inside = word < WORDS && row / SLOT == column / SLOT && row / SLOT < COUNT && q < Q && p < P;
                value[n][h] = inside ? factor(q, p) : 0.0f;
                top = larger(top, value[n][h]);
            }
        }
        __syncthreads();  // others may still read the tops of another factor
        top = block_max<THREADS / 32>(top, tops);
        const HalfScale scale = scale_of(__float_as_uint(top));
#pragma unroll
        for (int n = 0; n < EACH; ++n) {
            const int word = threadIdx.x + n * THREADS;
            if (word >= WORDS) continue;
            unsigned high, low;
            halves_of(high, low, value[n][0], value[n][1], scale.scale);
            unsigned char* const own = to + spot(word / 32, word % 32 * 2);
            *(unsigned*)own = high;
            if (SPLIT) *(unsigned*)(own + MATRIX) = low;
        }
        return scale;
    }

    // ---- Multiplying.
    static KM_DEVICE void fence(float (&d)[8][4]) {
#pragma unroll
        for (int i = 0; i < 32; ++i) ptx::fence_operand(d[i / 4][i % 4]);
    }
    template <int PENDING = 0>
    static KM_DEVICE void await(float (&d)[8][4]) {
        ptx::wgmma_wait_group<PENDING>();
        fence(d);
    }
    // d = (keep ? d : 0) + the three products of two splits, small ones first: for each step of 16, `multiply(low left, low right, step, keep)`.
    template <class Multiply>
    static KM_DEVICE void terms(float (&d)[8][4], int keep, const Multiply& multiply) {
        fence(d);
        ptx::wgmma_fence();
#pragma unroll
        for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) multiply(term == 0, term == 1, s, term > (SPLIT ? 0 : 2) || s > 0 ? 1 : keep);
        }
        ptx::wgmma_commit_group();
    }
    // What the lane reads that says later that a stage is free.
    static KM_DEVICE float of_first_lane(const float* at) {
        float own = 0.0f;
        if (threadIdx.x % 32 == 0) own = *at;
        return __shfl_sync(0xffffffffu, own, 0);
    }
    static KM_DEVICE void release(unsigned barrier) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier);
    }

    // Where sums stand in shared memory, where few lanes that write together meet in a bank.
    static KM_DEVICE int of_sum(int row, int column) { return row * 64 + (column ^ row % 4 * 8); }
    template <class Each>
    static KM_DEVICE void each_two(const Each& each) {
        const int row = threadIdx.x % SET / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 32; i += 2) each(i / 4, i % 4, row + i % 4 / 2 * 8, i / 4 * 8 + column);
    }

    // What is on the diagonal of sums is added up, and left where they were.
    template <int Q, int P, int SLOT, int COUNT>
    static __device__ void join(float* sums) {
        constexpr int ENTRIES = Q * P, EACH = (ENTRIES + MULTIPLYING - 1) / MULTIPLYING;
        float total[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int n = threadIdx.x + i * MULTIPLYING;
            total[i] = 0.0f;
            if (n >= ENTRIES) continue;
#pragma unroll 4
            for (int k = 0; k < COUNT; ++k) total[i] += sums[of_sum(k * SLOT + n / P, k * SLOT + n % P)];
        }
        ptx::bar_sync<MULTIPLYING>(1);
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (threadIdx.x + i * MULTIPLYING < ENTRIES) sums[threadIdx.x + i * MULTIPLYING] = total[i];
        }
    }
};

}  // namespace km

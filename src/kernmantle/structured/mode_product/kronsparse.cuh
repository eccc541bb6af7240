// Kronecker-sparse products on tensor cores: y[n, i, j, l] = f(sum over k of w[i, j, k, l] x[n, i, k, l] + bias[i, j, l]).
//
// A block computes TILE_N columns j and TILE_L neighbouring l of one i, for every `slots`-th tile of rows n. Each warp computes
// WARP_M rows, and WARP_L values of l of them. x is copied to shared memory by pipelines of stages, one for the warps that
// share rows, and is read from there into registers as the left operand of mma or wgmma. The order of the 16 positions of k in
// one product is free, so a thread takes positions that are neighbours in memory. The weights were packed in the order in
// which they are read (kronsparse_pack.cuh); a block holds them for all of k (RESIDENT) or reads them chunk by chunk.
//
// float32 is split into two halves (split_hi_lo.cuh), with one scale for the rows of a warp and a chunk of k, and one for each
// column of the weights. Accumulators of tensor cores round towards zero, so every chunk has its own, which are added in
// float32. Rows of x that hold an infinity, and columns whose weights are not finite, are computed by FMA instructions.
#pragma once
#include "kronsparse_store.cuh"
#include "pipeline.cuh"

namespace km {

template <class P>
struct KronSparseBlock : KronSparseWriter<P> {
    typedef KronSparseWriter<P> Own;
    typedef typename Own::Sums Sums;
    typedef CopyPipeline<P::STAGES> Pipeline;
    static constexpr int MMA_M = P::MMA_M, WARP_L = P::WARP_L, MMA_N = P::MMA_N, WARP_M = P::WARP_M;
    using Own::g, Own::chunks, Own::x_smem, Own::weights_smem, Own::scales, Own::lane, Own::pipeline_index, Own::part;

    __device__ __forceinline__ KronSparseBlock(const KronSparse& arguments, unsigned char* shared) : Own(arguments, shared) {}

    __device__ __forceinline__ void run() {
        const int slot = blockIdx.x / (gridDim.x / (unsigned)g.slots);
        const PipelineBarriers<P::STAGES> barriers = {shared_address(weights_smem + P::STAGES * P::CHUNK + P::PIPELINE_BYTES)};
        unsigned filled_phase = 1, used_phase = 0;  // of barriers: every stage is empty at first
        if constexpr (P::BULK) {
            if (threadIdx.x == 0) barriers.initialise(1, P::WARPS);
            __syncthreads();
        }
        if (!P::RESIDENT) ptx::griddepcontrol_wait();
        int next_tile = slot, next_chunk = 0;
        Pipeline filled, used;
        auto issue = [&] {
            if (next_tile < g.tiles) {
                const i64 n0 = (i64)next_tile * P::TILE_M + pipeline_index * WARP_M;
                if (n0 < g.count) Own::fetch_x(n0, next_chunk, filled.stage);
                if constexpr (P::BULK) {
                    if (threadIdx.x == 0) {
                        ptx::mbarrier_wait_parity(barriers.empty(filled.stage), filled_phase);
                        Own::copy_weights(next_chunk, filled.stage, barriers.full(filled.stage));
                    }
                    if (filled.next() == 0) filled_phase ^= 1;
                } else if (!P::RESIDENT) {
                    Own::fetch_weights(next_chunk, filled.stage);
                }
                if (++next_chunk == chunks) {
                    next_chunk = 0;
                    next_tile += g.slots;
                }
                filled.advance();
            }
            Pipeline::commit();
        };
#pragma unroll
        for (int s = 0; s < P::STAGES - 1; ++s) issue();
        if (P::RESIDENT) {
            ptx::griddepcontrol_wait();
            for (int at = 0; at < chunks; ++at) Own::fetch_weights(at, at);
            Pipeline::commit();
        }
        Own::fill_table();
        Pipeline::template wait<P::RESIDENT ? 0 : P::STAGES - 2>();
        if (P::GROUPED) ptx::fence_proxy_async();
        __syncthreads();
        const bool usual = !P::SPLIT || columns_are_finite();
#pragma unroll 1
        for (int tile = slot; tile < g.tiles; tile += g.slots) {
            const i64 n0 = (i64)tile * P::TILE_M + pipeline_index * WARP_M;
            Sums sum;
            clear(sum);
            bool finite = usual;
            int last = 0;
            auto arrive = [&] {
                Pipeline::wait();
                if (!P::RESIDENT && !P::BULK)
                    __syncthreads();
                else if (P::PIPELINE_THREADS > 32)
                    ptx::bar_sync<P::PIPELINE_THREADS>(1 + pipeline_index);
                else
                    __syncwarp();
                issue();
                if constexpr (P::BULK) {
                    ptx::mbarrier_wait_parity(barriers.full(used.stage), used_phase);
                    if (used.next() == 0) used_phase ^= 1;
                }
                last = used.stage;
                used.advance();
                return last;
            };
            if constexpr (P::AHEAD) {
                Own::add_ahead(sum, arrive);
            } else {
#pragma unroll 1
                for (int chunk = 0; chunk < chunks; ++chunk) {
                    const int stage_used = arrive();
                    const unsigned char* from = weights_smem + (P::RESIDENT ? chunk : stage_used) * P::CHUNK;
                    if (P::GROUPED || n0 < g.count) finite = Own::add(sum, x_smem + stage_used * P::STAGE, from) && finite;
                    if (P::BULK && lane == 0) ptx::mbarrier_arrive(barriers.empty(stage_used));
                }
            }
            if (n0 >= g.count) continue;
            if (P::STAGED || (P::STORE_RUNS && P::PIPELINE_THREADS > 32)) finite = ptx::bar_red_and<P::PIPELINE_THREADS>(1 + pipeline_index, finite);
            if (finite)
                Own::store(sum, n0, x_smem + last * P::STAGE);
            else
                Own::recompute_rows(n0);
        }
    }

    // Whether the weights of all of this warp's columns are finite.
    __device__ __forceinline__ bool columns_are_finite() const {
        bool fine = true;
        for (int at = lane; at < WARP_L * P::TILE_N; at += 32) {
            const float inverse = scales[part * WARP_L * P::TILE_N + at];
            fine = fine && inverse == inverse;
        }
        return __all_sync(0xffffffffu, fine);
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse(const KronSparse& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseBlock<P>(g, shared).run();
}

}  // namespace km

// Kronecker-sparse products on tensor cores: y[n, i, j, l] = f(sum over k of w[i, j, k, l] x[n, i, k, l] + bias[i, j, l]).
//
// A block owns one i, LT neighbouring l, NJ columns j and every so many tiles of rows n; its warps own rows, and of each
// row L values of l. X goes through rings of stages in shared memory, one for the WS warps that share rows, and is read
// from there into registers as the left operand; any order of the 16 positions of k in a product is as good as another,
// so a thread takes those that lie together. The weights come in the order in which they are read (kronsparse_prepare),
// for all of k at once (RESIDENT) or a chunk at a time.
//
// float32 is taken apart into two float16 after scaling by a power of two, one for the rows of a warp and a chunk of k and
// one for each column; accumulators of tensor cores round towards zero, so every chunk has its own and is added in float32.
// Rows with an infinity, and columns whose weights are not finite, are computed without tensor cores.
#pragma once
#include "kronsparse_store.cuh"

namespace km {

template <class P>
struct KronSparseBlock : KronSparseWriter<P> {
    typedef KronSparseWriter<P> Own;
    typedef typename Own::Sums Sums;
    static constexpr int MT = P::MT, L = P::L, NT = P::NT, ROWS = P::ROWS;
    using Own::g, Own::chunks, Own::ring, Own::held, Own::scales, Own::lane, Own::ring_of, Own::part;

    __device__ __forceinline__ KronSparseBlock(const KronSparse& given, unsigned char* shared) : Own(given, shared) {}

    __device__ __forceinline__ void run() {
        const int slot = blockIdx.x / (gridDim.x / (unsigned)g.slots);
        if (!P::RESIDENT) ptx::griddepcontrol_wait();
        int next_tile = slot, next_chunk = 0, next_stage = 0;
        auto issue = [&] {
            if (next_tile < g.tiles) {
                const i64 n0 = (i64)next_tile * P::BM + ring_of * ROWS;
                if (n0 < g.count) Own::fetch_x(n0, next_chunk, next_stage);
                if (!P::RESIDENT) Own::fetch_weights(next_chunk, next_stage);
                if (++next_chunk == chunks) {
                    next_chunk = 0;
                    next_tile += g.slots;
                }
                next_stage = next_stage + 1 == P::STAGES ? 0 : next_stage + 1;
            }
            ptx::cp_async_commit_group();
        };
#pragma unroll
        for (int s = 0; s < P::STAGES - 1; ++s) issue();
        if (P::RESIDENT) {
            ptx::griddepcontrol_wait();
            for (int at = 0; at < chunks; ++at) Own::fetch_weights(at, at);
            ptx::cp_async_commit_group();
        }
        Own::fill_table();
        ptx::cp_async_wait_group<P::RESIDENT ? 0 : P::STAGES - 2>();
        if (P::GROUPED) ptx::fence_proxy_async();
        __syncthreads();
        const bool usual = !P::SPLIT || columns_finite();
        int stage = 0;
#pragma unroll 1
        for (int tile = slot; tile < g.tiles; tile += g.slots) {
            const i64 n0 = (i64)tile * P::BM + ring_of * ROWS;
            Sums sum;
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int l = 0; l < L; ++l)
#pragma unroll
                    for (int t = 0; t < NT; ++t)
#pragma unroll
                        for (int r = 0; r < 4; ++r) sum[m][l][t][r] = 0.0f;
            bool finite = usual;
            int last = 0;
            auto arrive = [&] {
                ptx::cp_async_wait_group<P::STAGES - 2>();
                if (P::GROUPED && !P::RESIDENT) ptx::fence_proxy_async();
                if (!P::RESIDENT)
                    __syncthreads();
                else if (P::SHARERS > 32)
                    ptx::bar_sync<P::SHARERS>(1 + ring_of);
                else
                    __syncwarp();
                issue();
                const int place = last = stage;
                stage = stage + 1 == P::STAGES ? 0 : stage + 1;
                return place;
            };
            if constexpr (P::AHEAD) {
                Own::add_ahead(sum, arrive);
            } else {
#pragma unroll 1
                for (int chunk = 0; chunk < chunks; ++chunk) {
                    const int place = arrive();
                    const unsigned char* from = held + (P::RESIDENT ? chunk : place) * P::CHUNK;
                    if (P::GROUPED || n0 < g.count) finite = Own::add(sum, ring + place * P::STAGE, from) && finite;
                }
            }
            if (n0 >= g.count) continue;
            if (P::SPREAD) finite = ptx::bar_red_and<P::SHARERS>(1 + ring_of, finite);
            if (finite)
                Own::store(sum, n0, ring + last * P::STAGE);
            else
                Own::directly(n0);
        }
    }

    // Whether the weights of all of this warp's columns are finite.
    __device__ __forceinline__ bool columns_finite() const {
        bool fine = true;
        for (int at = lane; at < L * P::NJ; at += 32) {
            const float undo = scales[part * L * P::NJ + at];
            fine = fine && undo == undo;
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

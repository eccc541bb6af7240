// Gradients of the weights of Kronecker-sparse products on tensor cores, of halves over transposed rows (kronsparse_transpose.cuh):
//   out[i, j, k, l] = sum over n of grad[n, i, l, j] x[n, i, l, k],
// where j and k are contiguous, in whole vectors, of one group and in one part: strides are those of l, xg and yg, and of rows. See
// kronsparse_sums.cuh.
//
// A block computes TILE_J columns j by TILE_K positions k of one i and all l, GROUP_L of them after the other: their rows are copied
// DEPTH at a time to a ring of stages, from where fragments are read transposed. The sums of all l are brought together in shared
// memory in the order of weights, and all positions of a column are written at once by the copy engine.
#pragma once
#include "kronsparse_sums.cuh"

namespace km {

// The tile of a kernel, from a struct of its parameters:
//   T, OUT               type of x and grad, and of the sums
//   TILE_L               the pattern's d
//   WARP_L, WARPS_L      values of l of a warp, whose sums are written together, and warps of others
//   MMA_M, WARPS_J       fragments of 16 columns j of a warp, and warps of others
//   MMA_N, WARPS_K       fragments of 8 positions k of a warp, an even number, and warps of others
//   STEPS, STAGES        products of 16 rows of a stage, and stages of the ring
template <class Traits>
struct KronSparseBlockSumTile : KronSparseSumTile<Traits> {
    using Base = KronSparseSumTile<Traits>;
    using Base::TILE_L, Base::TILE_J, Base::TILE_K, Base::STAGES, Base::SIZE, Traits::WARP_L, Traits::WARPS_L;
    static constexpr int DEPTH = 16 * Traits::STEPS, GROUP_L = WARP_L * WARPS_L, GROUPS = (TILE_L + GROUP_L - 1) / GROUP_L;
    // Bytes from a row of a stage to the next one of the same l, which begins four banks further.
    static constexpr int Y_PITCH = TILE_J * SIZE + 16, X_PITCH = TILE_K * SIZE + 16;
    static constexpr int Y_STAGE = GROUP_L * DEPTH * Y_PITCH, STAGE = Y_STAGE + GROUP_L * DEPTH * X_PITCH;
    static constexpr int SHARED_BYTES = STAGES * STAGE + Base::ROWS_BYTES;
    static_assert(SIZE == 2 && Traits::MMA_N % 2 == 0 && TILE_L % WARP_L == 0, "halves, pairs of fragments and whole accesses");
};

template <class P>
struct KronSparseBlockSumBlock : KronSparseSumBlock<P, KronSparseBlockSumBlock<P>> {
    typedef KronSparseSumBlock<P, KronSparseBlockSumBlock<P>> Base;
    typedef typename P::T T;
    typedef typename Products<T>::type H;
    static constexpr int M = P::MMA_M, N = P::MMA_N, WARP_L = P::WARP_L;
    using Base::g, Base::shared, Base::lane, Base::warp_l, Base::warp_j, Base::warp_k;
    float sum[WARP_L][M][N][4];

    __device__ __forceinline__ KronSparseBlockSumBlock(const KronSparseSums& arguments, unsigned char* memory)
        : Base(arguments, memory, threadIdx.x / 32 % P::WARPS_L) {}

    // What is copied next: the tile of an item, its l from l0 on, and a chunk of the batch.
    struct Cursor {
        unsigned item;
        KronSparseSumOrigin at;
        int l0, chunk;
    };

    // Copies the rows of a stage of one operand, from the first of its `extent` columns, whole vectors, on.
    template <int COLUMNS, int PITCH>
    __device__ __forceinline__ void copy(unsigned char* to, const T* from, i64 l_apart, i64 n_apart, int extent, int first, const Cursor& at) const {
        constexpr int PIECES = COLUMNS / 8, ALL = P::GROUP_L * P::DEPTH * PIECES;
        const i64 n0 = (i64)at.chunk * P::DEPTH;
#pragma unroll 2
        for (int e = threadIdx.x; e < ALL; e += P::THREADS) {
            const int piece = e % PIECES, l = e / PIECES % P::GROUP_L, n = e / (PIECES * P::GROUP_L);
            const bool inside = n0 + n < g.count && at.l0 + l < P::TILE_L && first + 8 * piece < extent;
            const T* const source = inside ? from + (n0 + n) * n_apart + (at.l0 + l) * l_apart + (first + 8 * piece) : from;
            ptx::cp_async<16>(shared_address(to + (l * P::DEPTH + n) * PITCH + 16 * piece), source, inside ? 16 : 0);
        }
    }

    __device__ __forceinline__ void issue(unsigned char* to, const Cursor& at) const {
        const int wide = (g.c + 7) / 8 * 8, high = (g.b + 7) / 8 * 8;
        const T* const grad = (const T*)g.grad + (i64)at.at.i * P::TILE_L * g.yg;
        const T* const x = (const T*)g.x + (i64)at.at.i * P::TILE_L * g.xg;
        copy<P::TILE_J, P::Y_PITCH>(to, grad, g.yg, g.ys, high, at.at.j, at);
        copy<P::TILE_K, P::X_PITCH>(to + P::Y_STAGE, x, g.xg, g.xs, wide, at.at.k, at);
    }

    // Adds the products of the rows of a stage.
    __device__ __forceinline__ void multiply(const unsigned char* stage) {
        const int row = lane % 8, odd = lane / 8 % 2, high = lane / 16;
#pragma unroll
        for (int w = 0; w < WARP_L; ++w) {
            const unsigned char* const y = stage + (warp_l * WARP_L + w) * P::DEPTH * P::Y_PITCH;
            const unsigned char* const x = stage + P::Y_STAGE + (warp_l * WARP_L + w) * P::DEPTH * P::X_PITCH;
#pragma unroll
            for (int step = 0; step < P::STEPS; ++step) {
                unsigned a[M][4], b[N / 2][4];
#pragma unroll
                for (int m = 0; m < M; ++m)
                    ptx::ldmatrix_x4_trans(a[m], shared_address(y + (16 * step + 8 * high + row) * P::Y_PITCH + 2 * (warp_j * P::WARP_J + 16 * m + 8 * odd)));
#pragma unroll
                for (int t = 0; t < N / 2; ++t)
                    ptx::ldmatrix_x4_trans(b[t], shared_address(x + (16 * step + 8 * odd + row) * P::X_PITCH + 2 * (warp_k * P::WARP_K + 16 * t + 8 * high)));
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int t = 0; t < N; ++t) ptx::mma_m16n8k16<H>(sum[w][m][t], a[m], b[t / 2][t % 2 * 2], b[t / 2][t % 2 * 2 + 1]);
            }
        }
    }

    // Puts the sums of l from l0 on where columns of the tile are written from.
    __device__ __forceinline__ void put(const KronSparseSumOrigin& at, int l0) const {
        const int l = l0 + warp_l * WARP_L;
        if (P::TILE_L % P::GROUP_L != 0 && l >= P::TILE_L) return;
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_j * P::WARP_J + 16 * m + 8 * half + lane / 4;
                unsigned char* const to = Base::column_at(at, row);
#pragma unroll
                for (int t = 0; t < N; ++t)
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        float own[WARP_L];
#pragma unroll
                        for (int w = 0; w < WARP_L; ++w) own[w] = sum[w][m][t][2 * half + r];
                        Base::put_run(to, warp_k * P::WARP_K + 8 * t + 2 * (lane % 4) + r, l, own);
                    }
            }
    }

    __device__ __forceinline__ void run() {
        const unsigned items = (unsigned)Base::tiles();
        const int chunks = (int)((g.count + P::DEPTH - 1) / P::DEPTH);
        typename Base::Pipeline filled, used;
        Cursor next = {blockIdx.x, Base::origin_of(blockIdx.x), 0, 0};
        auto issue_next = [&] {
            if (next.item < items) {
                issue(shared + filled.stage * P::STAGE, next);
                filled.advance();
                if (++next.chunk == chunks) next.chunk = 0, next.l0 += P::GROUP_L;
                if (next.l0 >= P::TILE_L) next.item += gridDim.x, next.at = Base::origin_of(next.item), next.l0 = 0;
            }
            Base::Pipeline::commit();
        };
#pragma unroll 1
        for (int s = 0; s < P::STAGES - 1; ++s) issue_next();
#pragma unroll 1
        for (unsigned item = blockIdx.x; item < items; item += gridDim.x) {
            const KronSparseSumOrigin at = Base::origin_of(item);
            ptx::cp_async_bulk_wait_group_read<0>();
#pragma unroll 1
            for (int l0 = 0; l0 < P::TILE_L; l0 += P::GROUP_L) {
                clear(sum);
#pragma unroll 1
                for (int chunk = 0; chunk < chunks; ++chunk) {
                    Base::Pipeline::wait();
                    __syncthreads();
                    issue_next();
                    multiply(shared + used.stage * P::STAGE);
                    used.advance();
                }
                put(at, l0);
            }
            Base::write_columns(at);
        }
        ptx::cp_async_bulk_wait_group_read<0>();
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_block_sums(const KronSparseSums& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseBlockSumBlock<P>(g, shared).run();
}

}  // namespace km

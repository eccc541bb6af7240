// Gradients of the weights of Kronecker-sparse products on tensor cores, where the features of x and grad lie together in memory:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// see kronsparse_sums.cuh.
//
// A block computes TILE_J columns j by TILE_K positions k of one i and TILE_L neighbouring l. Rows are copied as they lie, DEPTH at a
// time, to a ring of stages, those that begin anywhere (SHIFTED) with the aligned 16 bytes around them; a warp reads its operands from
// there, WARP_L neighbouring l in one access, and takes two rows to a register. The order of rows in one product is free, so a lane
// takes those whose banks no other lane reads. float32 is split into two halves (split_hi_lo.cuh), with a scale for the warp's part of
// x and of grad in a stage, whose products have their own accumulators.
#pragma once
#include "kronsparse_sums.cuh"

namespace km {

// The tile of a kernel, from a struct of its parameters:
//   T                    type of x and grad
//   OUT                  type of the sums
//   FULL                 TILE_L is the pattern's d
//   WARP_L, WARPS_L      values of l of a warp, and warps of others
//   MMA_M, WARPS_J       fragments of 16 columns j of a warp, and warps of others
//   MMA_N, WARPS_K       fragments of 8 positions k of a warp, and warps of others
//   STEPS, STAGES        products of 16 rows of a stage, and stages of the ring
//   SHIFTED              rows of a tile, which is FULL, begin anywhere
//   X_BYTES, Y_BYTES     bytes of a copy of x and of grad where rows are not shifted
//   WRITE_N              fragments of k that are written at once
//   ALONE                a block has one tile
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
template <class Traits>
struct KronSparseRowSumTile : KronSparseSumTile<Traits> {
    using Base = KronSparseSumTile<Traits>;
    using Base::TILE_L, Base::TILE_J, Base::TILE_K, Base::STAGES, Base::SIZE, Traits::WARP_L, Traits::STEPS, Traits::SHIFTED;
    static constexpr int DEPTH = 16 * STEPS;
    // Bytes of an access of a lane, the accesses between neighbouring columns, and whether a lane's rows are apart as 0, 1, 4, 5.
    static constexpr int ACCESS = WARP_L * SIZE, APART = TILE_L / WARP_L;
    static constexpr bool CROSSED = ACCESS == 16 && APART % 2 == 0;
    // Rows begin so many bytes apart modulo 128, by which the lanes that are served together read different banks.
    static constexpr int SKEW_BYTES = ACCESS < 16 ? 32 : CROSSED ? 16 : 32, SHIFT_BYTES = SHIFTED ? 16 : 0;
    static constexpr int pitch(int columns) { return (columns * TILE_L * SIZE + SHIFT_BYTES + 127 - SKEW_BYTES) / 128 * 128 + SKEW_BYTES; }
    static constexpr int X_PITCH = pitch(TILE_K), Y_PITCH = pitch(TILE_J), Y_STAGE = DEPTH * Y_PITCH, STAGE = DEPTH * (X_PITCH + Y_PITCH);
    static constexpr int SHARED_BYTES = Base::shared_bytes(STAGES * STAGE);
    // The column, or position of k, of a warp that is f-th of a fragment of 8.
    static KM_DEVICE int column_of(int fragment, int f) { return 8 * fragment + f; }
    static KM_DEVICE int position_of(int fragment, int f) { return 8 * fragment + f; }
    static_assert(TILE_L % WARP_L == 0 && (Traits::FULL || !SHIFTED), "whole accesses, and runs of all l where rows are shifted");
};

template <class P>
struct KronSparseRowSumBlock : KronSparseSumBlock<P, KronSparseRowSumBlock<P>> {
    typedef KronSparseSumBlock<P, KronSparseRowSumBlock<P>> Base;
    typedef typename P::T T;
    typedef KronSparseFragments<T, P::WARP_L> Fragments;
    typedef typename Fragments::Bits Bits;
    static constexpr int MMA_M = P::MMA_M, MMA_N = P::MMA_N, WARP_L = P::WARP_L, TILE_L = P::TILE_L, SIZE = P::SIZE;
    using Base::g, Base::lane, Base::warp_l, Base::warp_j, Base::warp_k;
    float sum[WARP_L][MMA_M][MMA_N][4];
    // Bytes before the first column in a lane's rows of x and of grad, of every other row.
    int x_shift[2], y_shift[2];

    __device__ __forceinline__ KronSparseRowSumBlock(const KronSparseSums& arguments, unsigned char* shared)
        : Base(arguments, shared, threadIdx.x / 32 % P::WARPS_L) {}

    __device__ __forceinline__ const T* x_begin(const KronSparseSumOrigin& at) const {
        return (const T*)g.x + at.group * g.xg + ((i64)at.i * g.c + at.k) * g.d + at.l;
    }
    __device__ __forceinline__ const T* y_begin(const KronSparseSumOrigin& at) const {
        return (const T*)g.grad + at.group * g.yg + ((i64)at.i * g.b + at.j) * g.d + at.l;
    }

    // Copies a stage's rows of one operand, from row n0 on. `extent` columns are inside from the block's first one on, and `deep` values
    // of l; INSIDE: no edge is reached.
    template <bool INSIDE, int BYTES, int COLUMNS, int PITCH>
    __device__ __forceinline__ void copy_rows(unsigned char* to, const T* from, i64 apart, i64 n0, int extent, int deep) const {
        constexpr int EACH = BYTES / SIZE, PIECES = COLUMNS * TILE_L / EACH, LANES = common(PIECES, P::THREADS), ROWS_AT_ONCE = P::THREADS / LANES;
        const int row0 = threadIdx.x / LANES, position0 = threadIdx.x % LANES * EACH;
        const T* source = from + (n0 + row0) * apart;
#pragma unroll
        for (int row = 0; row < P::DEPTH; row += ROWS_AT_ONCE, source += ROWS_AT_ONCE * apart) {
            if (P::DEPTH % ROWS_AT_ONCE != 0 && row0 + row >= P::DEPTH) break;
#pragma unroll
            for (int piece = 0; piece < PIECES; piece += LANES) {
                const int position = position0 + piece * EACH;
                const i64 along = P::FULL ? position : (i64)(position / TILE_L) * g.d + position % TILE_L;
                int valid = EACH;
                if (!INSIDE) {
                    int left = P::FULL ? extent * TILE_L - position : position / TILE_L < extent ? deep - position % TILE_L : 0;
                    if (n0 + row0 + row >= g.count) left = 0;
                    valid = left <= 0 ? 0 : left < EACH ? left : EACH;
                }
                unsigned char* const put = to + (row0 + row) * PITCH + position * SIZE;
                const T* const at = INSIDE || valid ? source + along : from;
                if constexpr (BYTES < 4)
                    *(unsigned short*)put = valid ? *(const unsigned short*)at : 0;
                else if constexpr (INSIDE)
                    ptx::cp_async<BYTES>(shared_address(put), at);
                else
                    ptx::cp_async<BYTES>(shared_address(put), at, valid * SIZE);
            }
        }
    }

    // The same of rows that begin anywhere. A thread copies the same 16 bytes of rows.
    template <int COLUMNS, int PITCH>
    __device__ __forceinline__ void copy_shifted(unsigned char* to, const T* from, i64 apart, i64 n0, int extent) const {
        constexpr int PIECES = COLUMNS * TILE_L * SIZE / 16 + 1, ALONG = PIECES < P::THREADS ? PIECES : P::THREADS, AT_ONCE = P::THREADS / ALONG;
        const int row0 = threadIdx.x / ALONG, bytes = (extent < COLUMNS ? extent : COLUMNS) * TILE_L * SIZE;
        const int inside = n0 + P::DEPTH <= g.count ? P::DEPTH : (int)(g.count - n0);
        if (row0 >= AT_ONCE) return;
        const i64 step = (i64)AT_ONCE * apart * SIZE;
#pragma unroll 1
        for (int piece = threadIdx.x % ALONG; piece < PIECES; piece += ALONG) {
            const unsigned char* source = (const unsigned char*)(from + (n0 + row0) * apart) + 16 * piece;
#pragma unroll 4
            for (int row = row0; row < P::DEPTH; row += AT_ONCE, source += step) {
                const int shift = (int)((size_t)source & 15), left = row < inside ? bytes - 16 * piece + shift : 0;
                const void* const valid = left > 0 ? source - shift : (const unsigned char*)((size_t)from & ~(size_t)15);
                ptx::cp_async<16>(shared_address(to + row * PITCH + 16 * piece), valid, left <= 0 ? 0 : left < 16 ? left : 16);
            }
        }
    }

    template <int BYTES, int COLUMNS, int PITCH>
    __device__ __forceinline__ void copy(unsigned char* to, const T* from, i64 apart, i64 n0, int extent, int deep) const {
        if constexpr (P::SHIFTED)
            copy_shifted<COLUMNS, PITCH>(to, from, apart, n0, extent);
        else if (n0 + P::DEPTH <= g.count && extent >= COLUMNS && (P::FULL || deep >= TILE_L))
            copy_rows<true, BYTES, COLUMNS, PITCH>(to, from, apart, n0, extent, deep);
        else
            copy_rows<false, BYTES, COLUMNS, PITCH>(to, from, apart, n0, extent, deep);
    }

    // Copies chunk `n` of a tile to a stage.
    __device__ __forceinline__ void issue(unsigned char* to, const KronSparseSumOrigin& at, i64 n) const {
        copy<P::Y_BYTES, P::TILE_J, P::Y_PITCH>(to, y_begin(at), g.ys, n * P::DEPTH, g.b - at.j, g.d - at.l);
        copy<P::X_BYTES, P::TILE_K, P::X_PITCH>(to + P::Y_STAGE, x_begin(at), g.xs, n * P::DEPTH, g.c - at.k, g.d - at.l);
    }

    // The row of 16 that a lane takes e-th.
    __device__ __forceinline__ int row_of(int e) const {
        const int quad = lane % 4;
        return P::CROSSED ? quad % 2 + 4 * (quad / 2) + 2 * (e % 2) + 8 * (e / 2) : quad + 4 * e;
    }

    // Begins a tile.
    __device__ __forceinline__ void begin(const KronSparseSumOrigin& at) {
        clear(sum);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            x_shift[e] = P::SHIFTED ? (int)((size_t)(x_begin(at) + row_of(e) * g.xs) & 15) : 0;
            y_shift[e] = P::SHIFTED ? (int)((size_t)(y_begin(at) + row_of(e) * g.ys) & 15) : 0;
        }
    }

    // What a lane reads of column `column` of an operand's stage: [e][l], rows in an order that both operands share.
    __device__ __forceinline__ void read(Bits (&v)[4][WARP_L], const unsigned char* stage, int pitch, const int (&shift)[2], int step, int column) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const unsigned char* const row = stage + (16 * step + row_of(e)) * pitch + (P::SHIFTED ? shift[e % 2] : 0);
            const Pack<Bits, WARP_L> pack = read_pack<Bits, WARP_L>(row + (column * TILE_L + warp_l * WARP_L) * SIZE);
#pragma unroll
            for (int l = 0; l < WARP_L; ++l) v[e][l] = pack.v[l];
        }
    }

    // Adds the products of 16 rows of a stage.
    __device__ __forceinline__ void multiply(const unsigned char* stage, int step) {
        Bits p[2 * MMA_M][4][WARP_L], q[MMA_N][4][WARP_L];
#pragma unroll
        for (int m = 0; m < 2 * MMA_M; ++m) read(p[m], stage, P::Y_PITCH, y_shift, step, warp_j * P::WARP_J + 8 * m + lane / 4);
#pragma unroll
        for (int t = 0; t < MMA_N; ++t) read(q[t], stage + P::Y_STAGE, P::X_PITCH, x_shift, step, warp_k * P::WARP_K + 8 * t + lane / 4);
        HalfScale left = {1.0f, 1.0f}, right = {1.0f, 1.0f};
        if constexpr (P::SPLIT) left = Fragments::scale_of(p), right = Fragments::scale_of(q);
#pragma unroll
        for (int l = 0; l < WARP_L; ++l) Fragments::template multiply<P::PRODUCTS, P::BATCH>(sum[l], p, q, l, left, right);
    }

    // The sums of fragment (m, t), of the warp's l: columns that are lane / 4-th of 8, positions 2 (lane % 4) (+ 1)-th.
    template <class Put>
    __device__ __forceinline__ void each(int m, int t, Put put) const {
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int l = 0; l < WARP_L; ++l) put(r, warp_l * WARP_L + l, sum[l][m][t][r]);
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_row_sums(const KronSparseSums& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseRowSumBlock<P>(g, shared).run();
}

}  // namespace km

// Gradients of the weights of Kronecker-sparse products on tensor cores, where the batch of x and of grad lies together in memory:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// see kronsparse_sums.cuh.
//
// A block computes TILE_J columns j by TILE_K positions k of one i and TILE_L neighbouring l, each warp of one l. PIECE bytes of each
// feature are copied as they lie to a stage of a ring. The order of entries in one product is free. Where features begin at
// multiples of 16 bytes, a lane takes four neighbours of a feature in one access; every second or fourth feature has its parts in
// another order, so that no two lanes meet in a bank. Where they do not (SHIFTED), the aligned 16 bytes that cover a piece are
// copied, and a lane reads words from where its features begin, which is alike for features eight apart. float32 is split into
// two halves (split_hi_lo.cuh), with a scale for the warp's part of x and of grad in a product, which has its own accumulators.
#pragma once
#include "kronsparse_sums.cuh"

namespace km {

// The tile of a kernel, from a struct of its parameters:
//   T                    type of x and grad
//   OUT                  type of the sums
//   TILE_L               values of l of a block, each of warps of its own
//   MMA_M, WARPS_J       fragments of 16 columns j of a warp, and warps of others
//   MMA_N, WARPS_K       fragments of 8 positions k of a warp, and warps of others
//   PIECE, STAGES        bytes of a feature that a stage has, and stages of the ring
//   SHIFTED              features begin anywhere
//   ALONE                a block has one tile
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
template <class Traits>
struct KronSparseColumnSumTile : KronSparseSumTile<Traits> {
    using Base = KronSparseSumTile<Traits>;
    using typename Base::T;
    using Base::TILE_L, Base::TILE_J, Base::TILE_K, Base::STAGES, Base::SIZE, Traits::PIECE, Traits::SHIFTED;
    // A stage has DEPTH entries for STEPS products of PART bytes; features are PITCH bytes apart.
    static constexpr int DEPTH = PIECE / SIZE, STEPS = DEPTH / 16, PART = 16 * SIZE, PITCH = SHIFTED ? PIECE + 16 : PIECE;
    static constexpr int Y_STAGE = TILE_L * TILE_J * PITCH, STAGE = Y_STAGE + TILE_L * TILE_K * PITCH;
    static constexpr int SHARED_BYTES = Base::shared_bytes(STAGES * STAGE);
    // The column, or position of k, of a warp that is f-th of a fragment of 8. Numbers of float32 that begin anywhere do so alike in
    // every fourth feature, which a fragment has where there are 32, so that lanes of different features meet in no bank.
    static constexpr bool SPREAD_J = SHIFTED && Base::SPLIT && Base::MMA_M % 2 == 0, SPREAD_K = SHIFTED && Base::SPLIT && Base::MMA_N % 4 == 0;
    static KM_DEVICE int column_of(int fragment, int f) { return SPREAD_J ? fragment / 4 * 32 + 4 * f + fragment % 4 : 8 * fragment + f; }
    static KM_DEVICE int position_of(int fragment, int f) { return SPREAD_K ? fragment / 4 * 32 + 4 * f + fragment % 4 : 8 * fragment + f; }
    // Where a byte of a feature lies in a stage whose features are not shifted.
    static KM_DEVICE int offset_of(int feature, int at) { return feature * PITCH + (at / PART ^ feature % STEPS) * PART + at % PART; }
};

template <class P>
struct KronSparseColumnSumBlock : KronSparseSumBlock<P, KronSparseColumnSumBlock<P>> {
    typedef KronSparseSumBlock<P, KronSparseColumnSumBlock<P>> Base;
    typedef typename P::T T;
    typedef KronSparseFragments<T, 1> Fragments;
    typedef typename Fragments::Bits Bits;
    static constexpr int MMA_M = P::MMA_M, MMA_N = P::MMA_N, TILE_L = P::TILE_L, SIZE = P::SIZE;
    using Base::g, Base::lane, Base::warp_l, Base::warp_j, Base::warp_k;
    float sum[MMA_M][MMA_N][4];
    // Bytes before the first entry of the lane's features of x and of grad, by the rest of their fragment.
    int x_shift[4], y_shift[4];

    __device__ __forceinline__ KronSparseColumnSumBlock(const KronSparseSums& arguments, unsigned char* shared)
        : Base(arguments, shared, threadIdx.x / 32 % TILE_L) {}

    __device__ __forceinline__ i64 x_begin(const KronSparseSumOrigin& at) const { return at.group * g.xg + (((i64)at.i * g.c + at.k) * g.d + at.l) * g.xs; }
    __device__ __forceinline__ i64 y_begin(const KronSparseSumOrigin& at) const { return at.group * g.yg + (((i64)at.i * g.b + at.j) * g.d + at.l) * g.ys; }

    // Copies a stage's features of one operand, from entry n0 on. `extent` columns are inside from the block's first one on, and
    // `deep` values of l; INSIDE: no edge is reached. A thread copies the same 16 bytes of features of one l.
    template <bool INSIDE, int COLUMNS>
    __device__ __forceinline__ void copy_stage(unsigned char* to, const T* from, i64 apart, i64 n0, int extent, int deep) const {
        constexpr int PIECES = P::PITCH / 16, AT_ONCE = P::THREADS / PIECES / TILE_L;
        const int piece = threadIdx.x % PIECES, feature = threadIdx.x / PIECES, l = feature % TILE_L, column0 = feature / TILE_L;
        if (column0 >= AT_ONCE) return;
        const i64 left0 = (g.count - n0) * SIZE - 16 * piece, step = (i64)AT_ONCE * g.d * apart * SIZE;
        const int left = left0 < P::PITCH ? (int)left0 : P::PITCH;
        const unsigned char* source = (const unsigned char*)(from + ((i64)column0 * g.d + l) * apart + n0) + 16 * piece;
#pragma unroll 4
        for (int column = column0; column < COLUMNS; column += AT_ONCE, source += step) {
            const int own = l * COLUMNS + column, shift = P::SHIFTED ? (int)((size_t)source & 15) : 0;
            unsigned char* const put = to + (P::SHIFTED ? own * P::PITCH + 16 * piece : P::offset_of(own, 16 * piece));
            if constexpr (INSIDE) {
                ptx::cp_async<16>(shared_address(put), source - shift);
            } else {
                int bytes = left + shift < 16 ? left + shift : 16;
                if (column >= extent || l >= deep || (P::SHIFTED && shift == 0 && piece == PIECES - 1)) bytes = 0;
                ptx::cp_async<16>(shared_address(put), bytes > 0 ? source - shift : (const unsigned char*)((size_t)from & ~(size_t)15), bytes > 0 ? bytes : 0);
            }
        }
    }

    template <int COLUMNS>
    __device__ __forceinline__ void copy(unsigned char* to, const T* from, i64 apart, i64 n0, int extent, int deep) const {
        if (n0 + P::DEPTH + 16 / SIZE <= g.count && extent >= COLUMNS && deep >= TILE_L)
            copy_stage<true, COLUMNS>(to, from, apart, n0, extent, deep);
        else
            copy_stage<false, COLUMNS>(to, from, apart, n0, extent, deep);
    }

    // Copies chunk `n` of a tile to a stage.
    __device__ __forceinline__ void issue(unsigned char* to, const KronSparseSumOrigin& at, i64 n) const {
        copy<P::TILE_J>(to, (const T*)g.grad + y_begin(at), g.ys, n * P::DEPTH, g.b - at.j, g.d - at.l);
        copy<P::TILE_K>(to + P::Y_STAGE, (const T*)g.x + x_begin(at), g.xs, n * P::DEPTH, g.c - at.k, g.d - at.l);
    }

    // Begins a tile.
    __device__ __forceinline__ void begin(const KronSparseSumOrigin& at) {
        clear(sum);
        if constexpr (P::SHIFTED)
#pragma unroll
            for (int rest = 0; rest < 4; ++rest) {
                x_shift[rest] = (int)((size_t)((const T*)g.x + x_begin(at) + ((i64)P::position_of(rest, lane / 4) * g.d + warp_l) * g.xs) & 15);
                y_shift[rest] = (int)((size_t)((const T*)g.grad + y_begin(at) + ((i64)P::column_of(rest, lane / 4) * g.d + warp_l) * g.ys) & 15);
            }
    }

    // The four entries that a lane takes of a feature in a product: neighbours, or of each quarter one, of halves of each half two.
    __device__ __forceinline__ void read(Bits (&v)[4][1], const unsigned char* stage, int shift, int feature, int step) const {
        const int quad = lane % 4;
        if constexpr (!P::SHIFTED) {
            const Pack<Bits, 4> pack = read_pack<Bits, 4>(stage + P::offset_of(feature, step * P::PART + quad * 4 * SIZE));
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e][0] = pack.v[e];
        } else {
            const unsigned* const words = (const unsigned*)(stage + feature * P::PITCH + step * P::PART + (shift & 12)) + quad;
            if constexpr (P::SPLIT) {
#pragma unroll
                for (int e = 0; e < 4; ++e) v[e][0] = words[4 * e];
            } else {
#pragma unroll
                for (int e = 0; e < 4; e += 2) {
                    const unsigned both = __funnelshift_r(words[2 * e], words[2 * e + 1], 8 * (shift & 2));
                    v[e][0] = (Bits)both, v[e + 1][0] = (Bits)(both >> 16);
                }
            }
        }
    }

    // Adds one of a stage's products.
    __device__ __forceinline__ void multiply(const unsigned char* stage, int step) {
        Bits p[2 * MMA_M][4][1], q[MMA_N][4][1];
#pragma unroll
        for (int m = 0; m < 2 * MMA_M; ++m) read(p[m], stage, P::SHIFTED ? y_shift[P::SPREAD_J ? m % 4 : 0] : 0, warp_l * P::TILE_J + warp_j * P::WARP_J + P::column_of(m, lane / 4), step);
#pragma unroll
        for (int t = 0; t < MMA_N; ++t) read(q[t], stage + P::Y_STAGE, P::SHIFTED ? x_shift[P::SPREAD_K ? t % 4 : 0] : 0, warp_l * P::TILE_K + warp_k * P::WARP_K + P::position_of(t, lane / 4), step);
        HalfScale left = {1.0f, 1.0f}, right = {1.0f, 1.0f};
        if constexpr (P::SPLIT) left = Fragments::scale_of(p), right = Fragments::scale_of(q);
        Fragments::template multiply<P::PRODUCTS, P::BATCH>(sum, p, q, 0, left, right);
    }

    // The sums of fragment (m, t), of the warp's l: columns that are lane / 4-th of 8, positions 2 (lane % 4) (+ 1)-th.
    template <class Put>
    __device__ __forceinline__ void each(int m, int t, Put put) const {
#pragma unroll
        for (int r = 0; r < 4; ++r) put(r, warp_l, sum[m][t][r]);
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_column_sums(const KronSparseSums& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseColumnSumBlock<P>(g, shared).run();
}

}  // namespace km

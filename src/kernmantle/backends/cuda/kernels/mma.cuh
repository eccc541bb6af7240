// Sums of squared differences on the tensor cores of sm_80 and later: eight warps compute 32 x 32 cells each, from stages of 64
// positions of k that asynchronous copies fill (pipeline.cuh).
//
// Accumulators of tensor cores round towards zero: the small products have accumulators of their own, and the large ones are
// added to sums in float32 after every stage.
#pragma once
#include "pipeline.cuh"
#include "squares.cuh"

namespace km {

template <int STAGES_, int PLANES_, bool SYMMETRIC_>
struct MmaTile {
    static constexpr int BM = 128, BN = 64, STAGES = STAGES_, PLANES = PLANES_;
    static constexpr bool SYMMETRIC = SYMMETRIC_;
    static constexpr int MF = 2, NF = 4, THREADS = 256, BAND = 16, ROUNDS = 4;
    static constexpr int HALF_STAGE = (BM + BN) / BLOCK * BLOCK_BYTES;
};
template <class Body, class Tile>
__device__ constexpr int mma_shared_bytes() {
    return Tile::STAGES * Tile::PLANES * Tile::HALF_STAGE;
}

template <class Body, class Tile>
struct Mma {
    typedef typename Body::Args Args;
    typedef Squares<Body, Tile> S;
    typedef CopyPipeline<Tile::STAGES> Pipeline;
    static constexpr int BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES, MF = Tile::MF, NF = Tile::NF, CELLS = S::CELLS;
    static constexpr int HALF = Tile::HALF_STAGE, STAGE = Tile::PLANES * HALF, BLOCKS = (BM + BN) / BLOCK;
    static constexpr int PIECES = BLOCK_BYTES / 16 / Tile::THREADS;

    // A stage has the high halves of all blocks, then the low ones.
    static __device__ __forceinline__ void fetch(const unsigned char* const (&from)[BLOCKS], unsigned stage, i64 k, int planes) {
#pragma unroll
        for (int plane = 0; plane < Tile::PLANES; ++plane) {
            if (plane >= planes) break;
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
                for (int i = 0; i < PIECES; ++i) {
                    const int at = (threadIdx.x + i * Tile::THREADS) * 16;
                    ptx::cp_async<16>(stage + plane * HALF + b * BLOCK_BYTES + at, from[b] + (k * Tile::PLANES + plane) * BLOCK_BYTES + at);
                }
            }
        }
    }

    // Adds the products of one stage; LOW: of both halves, without the product of the low ones.
    template <bool LOW>
    static __device__ __forceinline__ void multiply(float (&high)[CELLS], float (&low)[CELLS], unsigned stage, int m1, int n1, int lane) {
        const int row = m1 + lane % 16, column = n1 + lane % 8 + lane / 16 * 8;
        const unsigned a = stage + row * 128, b = stage + (BM + column) * 128;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned to_a = swizzle_128(row, 2 * i + lane / 16), to_b = swizzle_128(column, 2 * i + lane / 8 % 2);
            unsigned hb[NF / 2][4], lb[NF / 2][4];
#pragma unroll
            for (int j = 0; j < NF / 2; ++j) {
                ptx::ldmatrix_x4(hb[j], b + to_b + j * 16 * 128);
                if (LOW) ptx::ldmatrix_x4(lb[j], b + to_b + j * 16 * 128 + HALF);
            }
#pragma unroll
            for (int f = 0; f < MF; ++f) {
                unsigned ha[4], la[4];
                ptx::ldmatrix_x4(ha, a + to_a + f * 16 * 128);
                if (LOW) ptx::ldmatrix_x4(la, a + to_a + f * 16 * 128 + HALF);
#pragma unroll
                for (int j = 0; j < NF; ++j) {
                    const int cell = (f * NF + j) * 4;
                    ptx::mma_m16n8k16<f16>(high + cell, ha, hb[j / 2][j % 2 * 2], hb[j / 2][j % 2 * 2 + 1]);
                    if (LOW) {
                        ptx::mma_m16n8k16<f16>(low + cell, ha, lb[j / 2][j % 2 * 2], lb[j / 2][j % 2 * 2 + 1]);
                        ptx::mma_m16n8k16<f16>(low + cell, la, hb[j / 2][j % 2 * 2], hb[j / 2][j % 2 * 2 + 1]);
                    }
                }
            }
        }
    }

    static __device__ __forceinline__ void tile(const Args& g, i64 t, unsigned shared, int* left, int products, int ordinal, int warp, int lane) {
        const Coord p = S::coord(g, t);
        if (S::is_empty(g, p)) return;
        const i64 across = ceil_div(g.size[ROLE_K], BLOCK);
        const int planes = products > 1 ? 2 : 1, m1 = warp / 2 * 32, n1 = warp % 2 * 32;
        const unsigned char* from[BLOCKS];
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b)
            from[b] = b < BM / BLOCK ? S::blocks_of(g, 0, plane_of<Body, typename S::X>(g, p), p.m + b * BLOCK, g.size[ROLE_M])
                                     : S::blocks_of(g, 1, plane_of<Body, typename S::Y>(g, p), p.n + b * BLOCK - BM, g.size[ROLE_N]);
        float sum[CELLS], low[CELLS];
#pragma unroll
        for (int i = 0; i < CELLS; ++i) sum[i] = low[i] = 0.0f;
        __syncthreads();
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (s < across) fetch(from, shared + s * STAGE, s, planes);
            Pipeline::commit();
        }
        Pipeline pipeline;
#pragma unroll 1
        for (i64 k = 0; k < across; ++k, pipeline.advance()) {
            Pipeline::wait();
            __syncthreads();
            if (k + STAGES - 1 < across) fetch(from, shared + pipeline.previous() * STAGE, k + STAGES - 1, planes);
            Pipeline::commit();
            float high[CELLS];
            clear(high);
            if (Tile::PLANES == 2 && (!has_halves<Body>() || planes == 2))
                multiply<true>(high, low, shared + pipeline.stage * STAGE, m1, n1, lane);
            else
                multiply<false>(high, low, shared + pipeline.stage * STAGE, m1, n1, lane);
#pragma unroll
            for (int i = 0; i < CELLS; ++i) sum[i] += high[i];
        }
#pragma unroll
        for (int i = 0; i < CELLS; ++i) sum[i] += low[i];
        S::finish(g, p, m1, n1, sum, left, ordinal, lane);
    }
};

template <class Body, class Tile>
__device__ __forceinline__ void mma(const typename Body::Args& g) {
    typedef Mma<Body, Tile> M;
    extern __shared__ __align__(1024) unsigned char raw[];
    __shared__ int left[Tile::ROUNDS];
    if (M::S::left_all(g, Tile::THREADS)) return;
    if (threadIdx.x < Tile::ROUNDS) left[threadIdx.x] = -1;
    __syncthreads();
    const int products = g.scratch.list[LIST_PRODUCTS];
    const i64 tiles = M::S::count(g);
    int ordinal = 0;
#pragma unroll 1
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x, ++ordinal)
        M::tile(g, t, shared_address(raw), left, products, ordinal, threadIdx.x / 32, threadIdx.x % 32);
}

}  // namespace km

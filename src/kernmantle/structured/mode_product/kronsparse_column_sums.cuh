// Gradients of the weights of Kronecker-sparse products on tensor cores, where the batch of x and of grad lies together in memory:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// in parts of the batch (split-K) that are added later.
//
// A block computes TILE_J columns j by TILE_K positions k of one i and TILE_L neighbouring l, each warp of one l. 128 bytes of each
// feature are copied as they lie to a stage of a ring. The order of entries in one product is free, so a lane takes four
// neighbours of a feature in one access; every second or fourth feature has its parts in another order, so that no two lanes meet
// in a bank. float32 is split into two halves (split_hi_lo.cuh), with a scale for the warp's part of x and of grad in a product,
// which has its own accumulators.
#pragma once
#include "kronsparse_tile.cuh"
#include "pipeline.cuh"

namespace km {

struct KronSparseColumnSums {
    const void *x, *grad;
    float* out;
    i64 count;
    int groups, a, b, c, d, slots;
    i64 xg, xf, yg, yf;
};

// The tile of a kernel, from a struct of its parameters:
//   T                    type of x and grad
//   TILE_L               values of l of a block, each of warps of its own
//   MMA_M, WARPS_J       fragments of 16 columns j of a warp, and warps of others
//   MMA_N, WARPS_K       fragments of 8 positions k of a warp, and warps of others
//   STAGES               stages of the ring
//   X_BYTES, Y_BYTES     bytes of a copy of x and of grad
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
template <class Traits>
struct KronSparseColumnSumTile : Traits {
    using typename Traits::T;
    using Traits::TILE_L, Traits::MMA_M, Traits::WARPS_J, Traits::MMA_N, Traits::WARPS_K, Traits::STAGES;
    static constexpr bool SPLIT = sizeof(T) == 4;
    // PIECE bytes are what a stage has of a feature, DEPTH entries for STEPS products of PART bytes.
    static constexpr int SIZE = sizeof(T), PIECE = 128, DEPTH = PIECE / SIZE, STEPS = DEPTH / 16, PART = 16 * SIZE;
    static constexpr int WARPS = TILE_L * WARPS_J * WARPS_K, THREADS = 32 * WARPS;
    static constexpr int WARP_J = 16 * MMA_M, WARP_K = 8 * MMA_N, TILE_J = WARP_J * WARPS_J, TILE_K = WARP_K * WARPS_K;
    static constexpr int Y_STAGE = TILE_L * TILE_J * PIECE, STAGE = Y_STAGE + TILE_L * TILE_K * PIECE, SHARED_BYTES = STAGES * STAGE;
    // Fragments of k whose products are under way together.
    static constexpr int BATCH = MMA_N < 4 ? MMA_N : 4;
    static_assert(MMA_N % BATCH == 0, "whole batches");
    // Where a byte of a feature lies in a stage.
    static KM_DEVICE int offset_of(int feature, int at) { return feature * PIECE + (at / PART ^ feature % STEPS) * PART + at % PART; }
};

template <class P>
struct KronSparseColumnSumBlock {
    typedef typename P::T T;
    typedef typename Word<sizeof(T)>::type Bits;
    typedef typename Products<T>::type H;
    typedef CopyPipeline<P::STAGES> Pipeline;
    static constexpr int MMA_M = P::MMA_M, MMA_N = P::MMA_N, TILE_L = P::TILE_L, SIZE = P::SIZE, BATCH = P::BATCH;
    const KronSparseColumnSums& g;
    unsigned char* shared;
    const T *x, *y;
    int k0, j0, l0, lane, warp_l, warp_j, warp_k;

    // Copies a stage's features of one operand, from entry n0 on. `extent` columns are inside from the block's first one on; INSIDE: no
    // edge is reached.
    template <bool INSIDE, int BYTES, int COLUMNS>
    __device__ __forceinline__ void copy_stage(unsigned char* to, const T* from, i64 apart, i64 n0, int extent) const {
        constexpr int EACH = BYTES / SIZE, PIECES = P::PIECE / BYTES, COUNT = TILE_L * COLUMNS * PIECES, UNROLL = BYTES < 8 ? 4 : 16;
#pragma unroll UNROLL
        for (int begin = 0; begin < COUNT; begin += P::THREADS) {
            const int at = begin + threadIdx.x, feature = at / PIECES, piece = at % PIECES, l = feature / COLUMNS, column = feature % COLUMNS;
            if (COUNT % P::THREADS != 0 && at >= COUNT) break;
            const bool inside = INSIDE || (column < extent && l0 + l < g.d && n0 + piece * EACH < g.count);
            unsigned char* const put = to + P::offset_of(feature, piece * BYTES);
            const T* const source = inside ? from + ((i64)column * g.d + l) * apart + n0 + piece * EACH : from;
            if constexpr (BYTES < 4)
                *(unsigned short*)put = inside ? *(const unsigned short*)source : 0;
            else if constexpr (INSIDE)
                ptx::cp_async<BYTES>(shared_address(put), source);
            else
                ptx::cp_async<BYTES>(shared_address(put), source, inside ? BYTES : 0);
        }
    }

    template <int BYTES, int COLUMNS>
    __device__ __forceinline__ void copy(unsigned char* to, const T* from, i64 apart, i64 n0, int extent) const {
        if (n0 + P::DEPTH <= g.count && extent >= COLUMNS && l0 + TILE_L <= g.d)
            copy_stage<true, BYTES, COLUMNS>(to, from, apart, n0, extent);
        else
            copy_stage<false, BYTES, COLUMNS>(to, from, apart, n0, extent);
    }

    // The four neighbours that a lane takes of a feature in a product.
    __device__ __forceinline__ void read(Bits (&v)[4], const unsigned char* stage, int feature, int step) const {
        const Pack<Bits, 4> pack = read_pack<Bits, 4>(stage + P::offset_of(feature, step * P::PART + lane % 4 * 4 * SIZE));
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] = pack.v[e];
    }

    // The scale of what the warp has read; what is infinite or NaN is left out.
    template <int COUNT>
    static __device__ __forceinline__ HalfScale scale_of(const Bits (&v)[COUNT][4]) {
        auto exponent = [&](float most) {
            float top = 0.0f;
#pragma unroll
            for (int at = 0; at < COUNT; ++at)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float size = fabsf(__uint_as_float(v[at][e]));
                    top = fmaxf(top, most < size ? 0.0f : size);
                }
            return ptx::redux_max(__float_as_uint(top)) >> 23;
        };
        unsigned found = exponent(__uint_as_float(0x7f800000u));
        if (found == 255) found = exponent(__uint_as_float(0x7f7fffffu));
        return HalfScale::of_exponent(found);
    }

    // Two neighbours e, e + 1, as halves, or as high and low ones.
    static __device__ __forceinline__ void word(unsigned& high, unsigned& low, const Bits (&v)[4], int e, float scale) {
        if constexpr (P::SPLIT)
            split_f16x2(high, low, __uint_as_float(v[e]), __uint_as_float(v[e + 1]), scale);
        else
            high = (unsigned)v[e] | (unsigned)v[e + 1] << 16;
    }

    // Adds one of a stage's products.
    __device__ __forceinline__ void multiply(float (&sum)[MMA_M][MMA_N][4], const unsigned char* stage, int step) const {
        Bits p[2 * MMA_M][4], q[MMA_N][4];
#pragma unroll
        for (int m = 0; m < 2 * MMA_M; ++m) read(p[m], stage, warp_l * P::TILE_J + warp_j * P::WARP_J + 8 * m + lane / 4, step);
#pragma unroll
        for (int t = 0; t < MMA_N; ++t) read(q[t], stage + P::Y_STAGE, warp_l * P::TILE_K + warp_k * P::WARP_K + 8 * t + lane / 4, step);
        HalfScale left = {1.0f, 1.0f}, right = {1.0f, 1.0f};
        if constexpr (P::SPLIT) left = scale_of(p), right = scale_of(q);
        unsigned a[MMA_M][4], a_low[MMA_M][4];
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r) word(a[m][r], a_low[m][r], p[2 * m + r % 2], r / 2 * 2, left.scale);
#pragma unroll
        for (int t0 = 0; t0 < MMA_N; t0 += BATCH) {
            uint4 b[BATCH];
#pragma unroll
            for (int t = 0; t < BATCH; ++t) {
                word(b[t].x, b[t].z, q[t0 + t], 0, right.scale);
                word(b[t].y, b[t].w, q[t0 + t], 2, right.scale);
            }
#pragma unroll
            for (int m = 0; m < MMA_M; ++m) {
                if constexpr (P::SPLIT) {
                    constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
                    float here[BATCH][4];
#pragma unroll
                    for (int term = BEGIN; term < 3; ++term)
#pragma unroll
                        for (int t = 0; t < BATCH; ++t) mma_term_f16(here[t], term, term == BEGIN, a[m], a_low[m], b[t]);
#pragma unroll
                    for (int t = 0; t < BATCH; ++t)
#pragma unroll
                        for (int r = 0; r < 4; ++r) sum[m][t0 + t][r] = fmaf(here[t][r] * left.inverse, right.inverse, sum[m][t0 + t][r]);
                } else {
#pragma unroll
                    for (int t = 0; t < BATCH; ++t) ptx::mma_m16n8k16<H>(sum[m][t0 + t], a[m], b[t].x, b[t].y);
                }
            }
        }
    }

    __device__ __forceinline__ void run() {
        const int across = (g.c + P::TILE_K - 1) / P::TILE_K, down = (g.b + P::TILE_J - 1) / P::TILE_J, deep = (g.d + TILE_L - 1) / TILE_L;
        const int own = blockIdx.x % (gridDim.x / (unsigned)g.slots), slot = blockIdx.x / (gridDim.x / (unsigned)g.slots);
        const int i = own / (across * down * deep) % g.a, group = own / (across * down * deep * g.a), warp = threadIdx.x / 32;
        k0 = own % across * P::TILE_K, j0 = own / across % down * P::TILE_J, l0 = own / (across * down) % deep * TILE_L;
        lane = threadIdx.x % 32, warp_l = warp % TILE_L, warp_j = warp / TILE_L % P::WARPS_J, warp_k = warp / (TILE_L * P::WARPS_J);
        x = (const T*)g.x + group * g.xg + (((i64)i * g.c + k0) * g.d + l0) * g.xf;
        y = (const T*)g.grad + group * g.yg + (((i64)i * g.b + j0) * g.d + l0) * g.yf;
        const i64 chunks = (g.count + P::DEPTH - 1) / P::DEPTH, each = (chunks + g.slots - 1) / g.slots;
        const i64 begin = slot * each, end = begin + each < chunks ? begin + each : chunks;
        float sum[MMA_M][MMA_N][4];
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][t][r] = 0.0f;
        Pipeline filled, used;
        i64 next = begin;
        auto issue = [&] {
            if (next < end) {
                unsigned char* const to = shared + filled.stage * P::STAGE;
                copy<P::Y_BYTES, P::TILE_J>(to, y, g.yf, next * P::DEPTH, g.b - j0);
                copy<P::X_BYTES, P::TILE_K>(to + P::Y_STAGE, x, g.xf, next * P::DEPTH, g.c - k0);
                ++next;
                filled.advance();
            }
            Pipeline::commit();
        };
#pragma unroll
        for (int s = 0; s < P::STAGES - 1; ++s) issue();
#pragma unroll 1
        for (i64 chunk = begin; chunk < end; ++chunk) {
            Pipeline::wait();
            __syncthreads();
            issue();
#pragma unroll 1
            for (int step = 0; step < P::STEPS; ++step) multiply(sum, shared + used.stage * P::STAGE, step);
            used.advance();
        }
        float* const out = g.out + (((i64)slot * g.groups + group) * g.a + i) * g.b * g.c * g.d;
        const int l = l0 + warp_l;
        if (l >= g.d) return;
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const int j = j0 + warp_j * P::WARP_J + 16 * m + lane / 4 + r / 2 * 8, k = k0 + warp_k * P::WARP_K + 8 * t + 2 * (lane % 4) + r % 2;
                    if (j < g.b && k < g.c) out[((i64)j * g.c + k) * g.d + l] = sum[m][t][r];
                }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_column_sums(const KronSparseColumnSums& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseColumnSumBlock<P> block{g, shared};
    block.run();
}

}  // namespace km

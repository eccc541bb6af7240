// Gradients of the weights of Kronecker-sparse products on tensor cores, where the features of x and grad lie together in memory:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// in parts of the batch (split-K) that are added later.
//
// A block computes TILE_J columns j by TILE_K positions k of one i and TILE_L neighbouring l. Rows are copied as they lie, DEPTH at a
// time, to a ring of stages; a warp reads its operands from there, WARP_L neighbouring l in one access, and takes two rows to a
// register. The order of rows in one product is free, so a lane takes those whose banks no other lane reads. float32 is split into
// two halves (split_hi_lo.cuh), with a scale for the warp's part of x and of grad in a stage, whose products have their own
// accumulators.
#pragma once
#include "kronsparse_tile.cuh"
#include "pipeline.cuh"

namespace km {

struct KronSparseRowSums {
    const void *x, *grad;
    float* out;
    i64 count;
    int groups, a, b, c, d, slots;
    i64 xg, xn, yg, yn;
};

// The tile of a kernel, from a struct of its parameters:
//   T                    type of x and grad
//   FULL                 TILE_L is the pattern's d
//   WARP_L, WARPS_L      values of l of a warp, and warps of others
//   MMA_M, WARPS_J       fragments of 16 columns j of a warp, and warps of others
//   MMA_N, WARPS_K       fragments of 8 positions k of a warp, and warps of others
//   STEPS, STAGES        products of 16 rows of a stage, and stages of the ring
//   X_BYTES, Y_BYTES     bytes of a copy of x and of grad
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
template <class Traits>
struct KronSparseRowSumTile : Traits {
    using typename Traits::T;
    using Traits::WARP_L, Traits::WARPS_L, Traits::MMA_M, Traits::WARPS_J, Traits::MMA_N, Traits::WARPS_K, Traits::STEPS, Traits::STAGES;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int SIZE = sizeof(T), DEPTH = 16 * STEPS, WARPS = WARPS_L * WARPS_J * WARPS_K, THREADS = 32 * WARPS;
    static constexpr int TILE_L = WARP_L * WARPS_L, WARP_J = 16 * MMA_M, WARP_K = 8 * MMA_N, TILE_J = WARP_J * WARPS_J, TILE_K = WARP_K * WARPS_K;
    // Bytes of an access of a lane, the accesses between neighbouring columns, and whether a lane's rows are apart as 0, 1, 4, 5.
    static constexpr int ACCESS = WARP_L * SIZE, APART = TILE_L / WARP_L;
    static constexpr bool CROSSED = ACCESS == 16 && APART % 2 == 0;
    // Rows begin so many bytes apart modulo 128, by which the lanes that are served together read different banks.
    static constexpr int SKEW_BYTES = ACCESS < 16 ? 32 : CROSSED ? 16 : 32;
    static constexpr int pitch(int columns) { return (columns * TILE_L * SIZE + 127 - SKEW_BYTES) / 128 * 128 + SKEW_BYTES; }
    static constexpr int X_PITCH = pitch(TILE_K), Y_PITCH = pitch(TILE_J), Y_STAGE = DEPTH * Y_PITCH, STAGE = DEPTH * (X_PITCH + Y_PITCH);
    static constexpr int SHARED_BYTES = STAGES * STAGE;
    // Fragments of k whose products are under way together.
    static constexpr int BATCH = MMA_N < 4 ? MMA_N : 4;
    static_assert(MMA_N % BATCH == 0 && TILE_L % WARP_L == 0, "whole batches");
};

template <class P>
struct KronSparseRowSumBlock {
    typedef typename P::T T;
    typedef typename Word<sizeof(T)>::type Bits;
    typedef typename Products<T>::type H;
    typedef CopyPipeline<P::STAGES> Pipeline;
    static constexpr int MMA_M = P::MMA_M, MMA_N = P::MMA_N, WARP_L = P::WARP_L, TILE_L = P::TILE_L, SIZE = P::SIZE, BATCH = P::BATCH;
    const KronSparseRowSums& g;
    unsigned char* shared;
    const T *x, *y;
    int k0, j0, l0, lane, warp_l, warp_j, warp_k;

    // Copies a stage's rows of one operand, from row n0 on. `extent` columns are inside from the block's first one on; INSIDE: no
    // edge is reached.
    template <bool INSIDE, int BYTES, int COLUMNS, int PITCH>
    __device__ __forceinline__ void copy_rows(unsigned char* to, const T* from, i64 apart, i64 n0, int extent) const {
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
                    int left = P::FULL ? extent * TILE_L - position : position / TILE_L < extent ? g.d - l0 - position % TILE_L : 0;
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

    template <int BYTES, int COLUMNS, int PITCH>
    __device__ __forceinline__ void copy(unsigned char* to, const T* from, i64 apart, i64 n0, int extent) const {
        if (n0 + P::DEPTH <= g.count && extent >= COLUMNS && (P::FULL || l0 + TILE_L <= g.d))
            copy_rows<true, BYTES, COLUMNS, PITCH>(to, from, apart, n0, extent);
        else
            copy_rows<false, BYTES, COLUMNS, PITCH>(to, from, apart, n0, extent);
    }

    // What a lane reads of column `column` of an operand's stage: [e][l], rows in an order that both operands share.
    __device__ __forceinline__ void read(Bits (&v)[4][WARP_L], const unsigned char* stage, int pitch, int first, int column) const {
        const int quad = lane % 4;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int row = first + (P::CROSSED ? quad % 2 + 4 * (quad / 2) + 2 * (e % 2) + 8 * (e / 2) : quad + 4 * e);
            const Pack<Bits, WARP_L> pack = read_pack<Bits, WARP_L>(stage + row * pitch + (column * TILE_L + warp_l * WARP_L) * SIZE);
#pragma unroll
            for (int l = 0; l < WARP_L; ++l) v[e][l] = pack.v[l];
        }
    }

    // The scale of what the warp has read; what is infinite or NaN is left out.
    template <int COUNT>
    static __device__ __forceinline__ HalfScale scale_of(const Bits (&v)[COUNT][4][WARP_L]) {
        auto exponent = [&](float most) {
            float top = 0.0f;
#pragma unroll
            for (int at = 0; at < COUNT; ++at)
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int l = 0; l < WARP_L; ++l) {
                        const float size = fabsf(__uint_as_float(v[at][e][l]));
                        top = fmaxf(top, most < size ? 0.0f : size);
                    }
            return ptx::redux_max(__float_as_uint(top)) >> 23;
        };
        unsigned found = exponent(__uint_as_float(0x7f800000u));
        if (found == 255) found = exponent(__uint_as_float(0x7f7fffffu));
        return HalfScale::of_exponent(found);
    }

    // Two rows e, e + 1 of one l, as halves, or as high and low ones.
    static __device__ __forceinline__ void word(unsigned& high, unsigned& low, const Bits (&v)[4][WARP_L], int e, int l, float scale) {
        if constexpr (P::SPLIT)
            split_f16x2(high, low, __uint_as_float(v[e][l]), __uint_as_float(v[e + 1][l]), scale);
        else
            high = (unsigned)v[e][l] | (unsigned)v[e + 1][l] << 16;
    }

    // Adds the products of 16 rows of a stage, from row `first` on.
    __device__ __forceinline__ void multiply(float (&sum)[WARP_L][MMA_M][MMA_N][4], const unsigned char* stage, int first) const {
        Bits p[2 * MMA_M][4][WARP_L], q[MMA_N][4][WARP_L];
#pragma unroll
        for (int m = 0; m < 2 * MMA_M; ++m) read(p[m], stage, P::Y_PITCH, first, warp_j * P::WARP_J + 8 * m + lane / 4);
#pragma unroll
        for (int t = 0; t < MMA_N; ++t) read(q[t], stage + P::Y_STAGE, P::X_PITCH, first, warp_k * P::WARP_K + 8 * t + lane / 4);
        HalfScale left = {1.0f, 1.0f}, right = {1.0f, 1.0f};
        if constexpr (P::SPLIT) left = scale_of(p), right = scale_of(q);
#pragma unroll
        for (int l = 0; l < WARP_L; ++l) {
            unsigned a[MMA_M][4], a_low[MMA_M][4];
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) word(a[m][r], a_low[m][r], p[2 * m + r % 2], r / 2 * 2, l, left.scale);
#pragma unroll
            for (int t0 = 0; t0 < MMA_N; t0 += BATCH) {
                uint4 b[BATCH];
#pragma unroll
                for (int t = 0; t < BATCH; ++t) {
                    word(b[t].x, b[t].z, q[t0 + t], 0, l, right.scale);
                    word(b[t].y, b[t].w, q[t0 + t], 2, l, right.scale);
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
                            for (int r = 0; r < 4; ++r)
                                sum[l][m][t0 + t][r] = fmaf(here[t][r] * left.inverse, right.inverse, sum[l][m][t0 + t][r]);
                    } else {
#pragma unroll
                        for (int t = 0; t < BATCH; ++t) ptx::mma_m16n8k16<H>(sum[l][m][t0 + t], a[m], b[t].x, b[t].y);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void run() {
        const int across = (g.c + P::TILE_K - 1) / P::TILE_K, down = (g.b + P::TILE_J - 1) / P::TILE_J, deep = (g.d + TILE_L - 1) / TILE_L;
        const int own = blockIdx.x % (gridDim.x / (unsigned)g.slots), slot = blockIdx.x / (gridDim.x / (unsigned)g.slots);
        const int i = own / (across * down * deep) % g.a, group = own / (across * down * deep * g.a), warp = threadIdx.x / 32;
        k0 = own % across * P::TILE_K, j0 = own / across % down * P::TILE_J, l0 = own / (across * down) % deep * TILE_L;
        lane = threadIdx.x % 32, warp_l = warp % P::WARPS_L, warp_j = warp / P::WARPS_L % P::WARPS_J, warp_k = warp / (P::WARPS_L * P::WARPS_J);
        x = (const T*)g.x + group * g.xg + ((i64)i * g.c + k0) * g.d + l0;
        y = (const T*)g.grad + group * g.yg + ((i64)i * g.b + j0) * g.d + l0;
        const i64 chunks = (g.count + P::DEPTH - 1) / P::DEPTH, each = (chunks + g.slots - 1) / g.slots;
        const i64 begin = slot * each, end = begin + each < chunks ? begin + each : chunks;
        float sum[WARP_L][MMA_M][MMA_N][4];
#pragma unroll
        for (int l = 0; l < WARP_L; ++l)
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                    for (int r = 0; r < 4; ++r) sum[l][m][t][r] = 0.0f;
        Pipeline filled, used;
        i64 next = begin;
        auto issue = [&] {
            if (next < end) {
                unsigned char* const to = shared + filled.stage * P::STAGE;
                copy<P::Y_BYTES, P::TILE_J, P::Y_PITCH>(to, y, g.yn, next * P::DEPTH, g.b - j0);
                copy<P::X_BYTES, P::TILE_K, P::X_PITCH>(to + P::Y_STAGE, x, g.xn, next * P::DEPTH, g.c - k0);
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
            for (int step = 0; step < P::STEPS; ++step) multiply(sum, shared + used.stage * P::STAGE, 16 * step);
            used.advance();
        }
        float* const out = g.out + (((i64)slot * g.groups + group) * g.a + i) * g.b * g.c * g.d;
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const int j = j0 + warp_j * P::WARP_J + 16 * m + lane / 4 + r / 2 * 8, k = k0 + warp_k * P::WARP_K + 8 * t + 2 * (lane % 4) + r % 2;
#pragma unroll
                    for (int l = 0; l < WARP_L; ++l) {
                        const int at = l0 + warp_l * WARP_L + l;
                        if (j < g.b && k < g.c && at < g.d) out[((i64)j * g.c + k) * g.d + at] = sum[l][m][t][r];
                    }
                }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_row_sums(const KronSparseRowSums& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseRowSumBlock<P> block{g, shared};
    block.run();
}

}  // namespace km

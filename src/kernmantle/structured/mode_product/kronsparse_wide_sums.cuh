// Gradients of the weights of Kronecker-sparse products with wide blocks by wgmma:
//   out[slot, g, i, l, j, k] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// in parts of the batch (split-K) that are added later, blocks of (j, k) each in whole vectors.
//
// A block has TILE_J columns j by TILE_K positions k of one i and one l. Warps that load bring DEPTH entries of the batch at a time
// through registers to a stage in shared memory, each 32 features (of halves that lie together half of the entries of 64), and ask for
// the next ones meanwhile. Neighbours in memory go to neighbouring lanes, eight that are apart to one lane, which makes them a piece of
// 16 bytes of a swizzled row of 128: so wgmma reads operands that are contiguous along the batch where features lie together in memory,
// and along features where the batch does, wherever rows begin. float32 is split into two halves (split_hi_lo.cuh) on the way, once for
// the block, with a scale for a stage's part of eight features or of one, and the products of a stage have accumulators of their own.
#pragma once
#include "kronsparse_sums.cuh"
#include "layout.cuh"
#include "ptx_wgmma.cuh"

namespace km {

// The tile of a kernel, from a struct of its parameters:
//   T, OUT               type of x and grad, and of the sums
//   FIRST                features lie together, and d is 1; else the batch does
//   SHIFTED              rows of halves begin between words
//   GROUPS               groups of warps that multiply 64 columns j each
//   TILE_K, STAGES       positions of k of a block, and stages of the ring
//   EACH                 blocks that share a multiprocessor
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
template <class Traits>
struct KronSparseWideSumTile : Traits {
    using typename Traits::T;
    using Traits::FIRST, Traits::GROUPS, Traits::TILE_K, Traits::STAGES, Traits::EACH;
    typedef typename Products<T>::type H;
    static constexpr bool SPLIT = sizeof(T) == 4, SHIFTED = Traits::SHIFTED && !SPLIT;
    static constexpr int SIZE = sizeof(T), DEPTH = 128 / SIZE, STEPS = DEPTH / 16, TILE_J = 64 * GROUPS;
    // What wgmma reads of so many features, by BLOCK of them.
    static constexpr int BLOCK = FIRST && SPLIT ? 32 : 64;
    static constexpr int whole(int features) { return (features + BLOCK - 1) / BLOCK * BLOCK; }
    static constexpr int Y_OPERAND = 128 * TILE_J, X_OPERAND = 128 * whole(TILE_K);
    // The inverses of the scales of all features, behind the operands.
    static constexpr int FEATURES = TILE_J + whole(TILE_K), STAGE = Y_OPERAND + X_OPERAND, INVERSES = STAGES * STAGE;
    static constexpr int BARRIERS = INVERSES + (SPLIT ? STAGES * FEATURES * 4 : 0), SHARED_BYTES = BARRIERS + PipelineBarriers<STAGES>::BYTES;
    // Warps that load, as many as have 32 features each, and threads.
    static constexpr int Y_WARPS = 2 * GROUPS, X_WARPS = FIRST && !SPLIT ? whole(TILE_K) / 32 : (TILE_K + 31) / 32;
    static constexpr int LOADING = (Y_WARPS + X_WARPS + 3) / 4 * 128, MULTIPLYING = 128 * GROUPS, THREADS = MULTIPLYING + LOADING;
    // Registers of a thread that loads, and of one that multiplies.
    static constexpr int OWN_REGISTERS = 65536 / EACH / THREADS / 8 * 8, LOADING_REGISTERS = OWN_REGISTERS < 128 ? (SPLIT ? 72 : 96) : (SPLIT ? 88 : 104);
    static constexpr int MOST_REGISTERS = (OWN_REGISTERS * THREADS - LOADING_REGISTERS * LOADING) / MULTIPLYING / 8 * 8;
    static constexpr int REGISTERS = MOST_REGISTERS < 232 ? MOST_REGISTERS : 232;
    // Numbers from a block of sums to the next one: whole vectors of the type of x, or whole sectors (transpose_plan.padded).
    static KM_DEVICE i64 pitch_of(i64 count, int d) { return d == 1 || count * SIZE % 16 == 0 ? count : (count + 32 / SIZE - 1) / (32 / SIZE) * (32 / SIZE); }
};

template <class P>
struct KronSparseWideSums {
    typedef typename P::T T;
    typedef PipelineState<P::STAGES> State;
    static constexpr int SIZE = P::SIZE, DEPTH = P::DEPTH, FRAGMENTS = P::TILE_K / 8;
    const KronSparseSums& g;
    unsigned char* const shared;
    PipelineBarriers<P::STAGES> barriers;
    i64 begin, count;  // of the entries of the part
    int i, j, k, l, group, slot, lane;

    // Tiles of neighbouring l follow each other, so that what they read and write meets in the second-level cache.
    __device__ __forceinline__ KronSparseWideSums(const KronSparseSums& arguments, unsigned char* memory)
        : g(arguments), shared(memory), barriers{shared_address(memory + P::BARRIERS)}, lane(threadIdx.x % 32) {
        const unsigned across = (g.c + P::TILE_K - 1) / P::TILE_K, down = (g.b + P::TILE_J - 1) / P::TILE_J;
        unsigned item = blockIdx.x;
        l = (int)(item % (unsigned)g.d), item /= (unsigned)g.d;
        k = (int)(item % across) * P::TILE_K, item /= across;
        j = (int)(item % down) * P::TILE_J, item /= down;
        i = (int)(item % (unsigned)g.a), item /= (unsigned)g.a;
        group = (int)(item % (unsigned)g.groups), slot = (int)(item / (unsigned)g.groups);
        const i64 chunks = (g.count + DEPTH - 1) / DEPTH, each = (chunks + g.slots - 1) / g.slots * DEPTH;
        begin = slot * each;
        count = g.count - begin < each ? g.count - begin : each;
    }

    // ---- Loading. A warp's part of an operand: lanes are neighbours in memory, of halves two each, which are `there` if they are less than
    // an extent; each has four times eight rows.
    struct Part {
        const unsigned char* at;  // the lane's first numbers of the chunk
        i64 apart, onwards;       // bytes between rows, and from a chunk to the next one
        int features, row, lanes_from, shift[2];  // bytes between the beginning of even rows, and of odd ones, and the word before it
        bool left;
    };

    __device__ __forceinline__ Part part_of(int warp) const {
        Part p;
        p.left = warp < P::Y_WARPS;
        const int own = p.left ? warp : warp - P::Y_WARPS;
        const int first = p.left ? j : k, extent = p.left ? g.b : g.c, tile = p.left ? P::TILE_J : P::TILE_K;
        const i64 outside = p.left ? g.yg : g.xg, stride = p.left ? g.ys : g.xs;
        p.features = extent - first < tile ? extent - first : tile;
        p.row = P::FIRST ? (P::SPLIT ? 0 : own % 2 * 32) : 32 * own;
        p.lanes_from = P::FIRST ? (P::SPLIT ? 32 * own : own / 2 * 64) : 0;
        p.apart = (P::FIRST ? stride : g.d * stride) * SIZE;
        p.onwards = P::FIRST ? DEPTH * p.apart : DEPTH * SIZE;
        const i64 feature = ((i64)i * extent + first) * g.d + l;
        const T* const from = (const T*)(p.left ? g.grad : g.x) + group * outside + (P::FIRST ? begin * stride + feature : feature * stride + begin);
        p.at = (const unsigned char*)(from + p.lanes_from) + p.row * p.apart + 4 * lane;
        p.shift[0] = P::SHIFTED ? (int)((size_t)p.at & 2) : 0;
        p.shift[1] = P::SHIFTED ? (int)((size_t)(p.at + p.apart) & 2) : 0;
        return p;
    }
    // The extents of the rows, and of the numbers along a row, of which entries from n on are there.
    __device__ __forceinline__ int rows_of(const Part& p, i64 n) const { return (P::FIRST ? entries_of(n) : p.features) - p.row; }
    __device__ __forceinline__ int along_of(const Part& p, i64 n) const { return (P::FIRST ? p.features : entries_of(n)) - p.lanes_from; }
    __device__ __forceinline__ int entries_of(i64 n) const { return count - n < DEPTH ? (int)(count - n) : DEPTH; }

    // Asks for the numbers of entries from n on; `next` is the word behind a warp's words of the lane's row where rows are shifted.
    template <bool INSIDE>
    __device__ __forceinline__ void load(unsigned (&v)[32], unsigned& next, const Part& p, int rows, int along) const {
        const int own = 4 * lane / SIZE;  // the lane's first number, before which another one is read where a row is shifted
        const unsigned char* at = p.at;
        i64 apart = p.apart;
        ptx::opaque(apart);  // or its multiples would be kept in registers
#pragma unroll
        for (int r = 0; r < 32; ++r, at += apart) {
            const int shift = p.shift[r % 2];
            v[r] = INSIDE || (r < rows && own - shift / 2 < along) ? *(const unsigned*)(at - shift) : 0;
        }
        if constexpr (P::SHIFTED) {
            const unsigned char* const row = p.at + lane * p.apart + 4 * (32 - lane);
            next = lane < rows && 63 < along && ((size_t)row & 2) ? *(const unsigned*)(row - 2) : 0;
        }
    }
    __device__ __forceinline__ void load(unsigned (&v)[32], unsigned& next, const Part& p, i64 n) const {
        const int rows = rows_of(p, n), along = along_of(p, n);
        if (rows >= 32 && along >= 128 / SIZE) load<true>(v, next, p, rows, along);
        else load<false>(v, next, p, rows, along);
    }

    // The scale of some numbers of a lane, or of a warp; what is infinite or NaN is left out.
    template <int COUNT>
    static __device__ __forceinline__ HalfScale scale_of(const unsigned* v) {
        auto exponent = [&](float most) {
            float top = 0.0f;
#pragma unroll
            for (int e = 0; e < COUNT; ++e) {
                const float size = fabsf(__uint_as_float(v[e]));
                top = fmaxf(top, most < size ? 0.0f : size);
            }
            return (P::FIRST ? __float_as_uint(top) : ptx::redux_max(__float_as_uint(top))) >> 23;
        };
        unsigned found = exponent(__uint_as_float(0x7f800000u));
        if (found == 255) found = exponent(__uint_as_float(0x7f7fffffu));
        return HalfScale::of_exponent(found);
    }

    // Where a piece of eight rows lies, of the lane's numbers that are e-th: features and entries, or the other way round.
    static KM_DEVICE unsigned char* piece_at(unsigned char* operand, const Part& p, int along, int row) {
        const int position = (P::FIRST ? p.lanes_from : row / 64 * DEPTH) + along;
        return operand + position * 128 + swizzle_128(position, row / 8 % 8);
    }

    // Puts a part in a stage.
    __device__ __forceinline__ void put(const unsigned (&v)[32], unsigned next, const Part& p, i64 n, unsigned char* stage, float* inverses) const {
        unsigned char* const operand = p.left ? stage : stage + P::Y_OPERAND;
        if constexpr (P::SPLIT) {
            // From high halves to low ones: the pieces behind those of 32 entries, or the rows behind those of all features.
            const int plane = p.left ? P::Y_OPERAND / 2 : P::X_OPERAND / 2;
            float* const inverse = inverses + (p.left ? 0 : P::TILE_J) + (P::FIRST ? p.lanes_from : p.row);
            HalfScale scale;
            if constexpr (P::FIRST) {
                scale = scale_of<32>(v);
                inverse[lane] = scale.inverse;
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                if constexpr (!P::FIRST) {
                    scale = scale_of<8>(v + 8 * e);
                    if (lane < 8) inverse[8 * e + lane] = scale.inverse;
                }
                unsigned high[4], low[4];
#pragma unroll
                for (int h = 0; h < 4; ++h) split_f16x2(high[h], low[h], __uint_as_float(v[8 * e + 2 * h]), __uint_as_float(v[8 * e + 2 * h + 1]), scale.scale);
                *(uint4*)piece_at(operand, p, lane, p.row + 8 * e) = make_uint4(high[0], high[1], high[2], high[3]);
                *(uint4*)(P::FIRST ? piece_at(operand, p, lane, p.row + 8 * e + 32) : piece_at(operand, p, lane, p.row + 8 * e) + plane) = make_uint4(low[0], low[1], low[2], low[3]);
            }
        } else {
            const int along = along_of(p, n);
            const unsigned inside = (2 * lane < along ? 0xffffu : 0) | (2 * lane + 1 < along ? 0xffff0000u : 0);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                unsigned w[8], low[4], high[4];
#pragma unroll
                for (int r = 0; r < 8; ++r) {
                    w[r] = v[8 * e + r];
                    if constexpr (P::SHIFTED) {
                        const unsigned after = __shfl_down_sync(0xffffffffu, w[r], 1), last = __shfl_sync(0xffffffffu, next, 8 * e + r);
                        w[r] = __funnelshift_r(w[r], lane < 31 ? after : last, 8 * p.shift[r % 2]);
                    }
                    w[r] &= inside;
                }
#pragma unroll
                for (int h = 0; h < 4; ++h) low[h] = __byte_perm(w[2 * h], w[2 * h + 1], 0x5410), high[h] = __byte_perm(w[2 * h], w[2 * h + 1], 0x7632);
                *(uint4*)piece_at(operand, p, 2 * lane, p.row + 8 * e) = make_uint4(low[0], low[1], low[2], low[3]);
                *(uint4*)piece_at(operand, p, 2 * lane + 1, p.row + 8 * e) = make_uint4(high[0], high[1], high[2], high[3]);
            }
        }
    }

    __device__ __forceinline__ void load_all(int warp) const {
        Part p = part_of(warp);
        // Of features that are outside nothing is read, and no sum that they are part of is written.
        const bool none = warp >= P::Y_WARPS + P::X_WARPS || (P::FIRST ? p.lanes_from : p.row) >= p.features;
        State filled;
        filled.phase = 1;
        unsigned v[32], next = 0;
        if (!none && count > 0) load(v, next, p, 0);
#pragma unroll 1
        for (i64 n = 0; n < count; n += DEPTH) {
            ptx::mbarrier_wait_parity(barriers.empty(filled.stage), filled.phase);
            if (!none) put(v, next, p, n, shared + filled.stage * P::STAGE, (float*)(shared + P::INVERSES) + filled.stage * P::FEATURES);
            ptx::mbarrier_arrive(barriers.full(filled.stage));
            filled.advance();
            p.at += p.onwards;
            if (!none && n + DEPTH < count) load(v, next, p, n + DEPTH);
        }
    }

    // ---- Multiplying.
    static KM_DEVICE unsigned long long matrix(const unsigned char* at) {
        return ptx::wgmma_descriptor(__shfl_sync(0xffffffffu, shared_address(at), 0), P::FIRST ? 16 : DEPTH * 128, 8 * 128, ptx::WGMMA_SWIZZLE_128);
    }

    // Begins the products of a stage; KEEP: they are added to what the accumulators have.
    template <bool KEEP>
    static __device__ __forceinline__ void multiply(float (&d)[FRAGMENTS][4], const unsigned char* stage, int group) {
        // Bytes from a step of 16 entries to the next one, and from high halves to low ones, as descriptors have them.
        constexpr int STEP = (P::FIRST ? 32 : 16 * 128) >> 4, Y_LOW = (P::FIRST ? 64 : P::Y_OPERAND / 2) >> 4, X_LOW = (P::FIRST ? 64 : P::X_OPERAND / 2) >> 4;
        const unsigned long long a = matrix(stage + group * (P::FIRST ? 64 : DEPTH) * 128), b = matrix(stage + P::Y_OPERAND);
        constexpr int BEGIN = P::SPLIT && P::PRODUCTS == 3 ? 0 : 2;
#pragma unroll
        for (int t = 0; t < FRAGMENTS; ++t)
#pragma unroll
            for (int r = 0; r < 4; ++r) ptx::fence_operand(d[t][r]);
        ptx::wgmma_fence();
#pragma unroll
        for (int term = BEGIN; term < 3; ++term)
#pragma unroll
            for (int step = 0; step < P::STEPS; ++step) {
                const unsigned long long left = a + step * STEP + (term == 0 ? Y_LOW : 0), right = b + step * STEP + (term == 1 ? X_LOW : 0);
                const int keep = KEEP || term > BEGIN || step > 0;
                if constexpr (P::FIRST) ptx::wgmma_ss(typename P::H(), d, left, right, keep);
                else ptx::wgmma_ss_across(typename P::H(), d, left, right, keep);
            }
        ptx::wgmma_commit_group();
    }
    template <int PENDING>
    static __device__ __forceinline__ void wait(float (&d)[FRAGMENTS][4]) {
        ptx::wgmma_wait_group<PENDING>();
#pragma unroll
        for (int t = 0; t < FRAGMENTS; ++t)
#pragma unroll
            for (int r = 0; r < 4; ++r) ptx::fence_operand(d[t][r]);
    }

    __device__ __forceinline__ void multiply_all(float (&sum)[FRAGMENTS][4], int warp) const {
        State used, before;
        float here[P::SPLIT ? FRAGMENTS : 1][4];
#pragma unroll 1
        for (i64 n = 0; n < count; n += DEPTH) {
            ptx::mbarrier_wait_parity(barriers.full(used.stage), used.phase);
            ptx::fence_proxy_async();
            const unsigned char* const stage = shared + used.stage * P::STAGE;
            if constexpr (P::SPLIT) {
                multiply<false>(here, stage, warp / 4);
                const float* const inverses = (const float*)(shared + P::INVERSES) + used.stage * P::FEATURES;
                const float *const rows = inverses + 16 * warp + lane / 4, *const columns = inverses + P::TILE_J + 2 * (lane % 4);
                const float by[2] = {rows[0], rows[8]};
                wait<0>(here);
#pragma unroll
                for (int t = 0; t < FRAGMENTS; ++t) {
                    const float2 across = *(const float2*)(columns + 8 * t);
#pragma unroll
                    for (int r = 0; r < 4; ++r) sum[t][r] = fmaf(here[t][r] * by[r / 2], r % 2 ? across.y : across.x, sum[t][r]);
                }
                ptx::mbarrier_arrive(barriers.empty(used.stage));
            } else {
                multiply<true>(sum, stage, warp / 4);
                if (n > 0) {
                    wait<1>(sum);
                    ptx::mbarrier_arrive(barriers.empty(before.stage));
                    before.advance();
                }
            }
            used.advance();
        }
        if constexpr (!P::SPLIT) wait<0>(sum);
    }

    __device__ __forceinline__ void write(const float (&sum)[FRAGMENTS][4], int warp) const {
        typedef typename P::OUT Out;
        const int row = 16 * warp + lane / 4, column = k + 2 * (lane % 4);
        Out* const to = (Out*)g.out + (((slot * (i64)g.groups + group) * g.a + i) * g.d + l) * P::pitch_of((i64)g.b * g.c, g.d) + column;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (j + row + 8 * half >= g.b) continue;
            Out* const own = to + (j + row + 8 * half) * (i64)g.c;
#pragma unroll
            for (int t = 0; t < FRAGMENTS; ++t) {
                const Pack<Out, 2> pack = {{Store<Out>::from(sum[t][2 * half]), Store<Out>::from(sum[t][2 * half + 1])}};
                if (g.c % 2 == 0 && column + 8 * t < g.c) {
                    *(Pack<Out, 2>*)(own + 8 * t) = pack;
                } else {
                    if (column + 8 * t < g.c) own[8 * t] = pack.v[0];
                    if (column + 8 * t + 1 < g.c) own[8 * t + 1] = pack.v[1];
                }
            }
        }
    }

    __device__ __forceinline__ void run() const {
        if (threadIdx.x == 0) barriers.initialise(P::LOADING, P::MULTIPLYING);
        __syncthreads();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x >= P::MULTIPLYING) {
            ptx::setmaxnreg_dec<P::LOADING_REGISTERS>();
            load_all(warp - P::MULTIPLYING / 32);
        } else {
            ptx::setmaxnreg_inc<P::REGISTERS>();
            float sum[FRAGMENTS][4];
            clear(sum);
            multiply_all(sum, warp);
            write(sum, warp);
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_wide_sums(const KronSparseSums& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseWideSums<P>(g, shared).run();
}

}  // namespace km

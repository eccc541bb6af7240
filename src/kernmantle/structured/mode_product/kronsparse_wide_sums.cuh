// Gradients of the weights of Kronecker-sparse products with wide blocks by wgmma:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// in parts of the batch (split-K) that are added later.
//
// A block has TILE_J columns j by TILE_K positions k of one i and one l. One group of four warps copies DEPTH entries of the batch at a
// time to a ring of stages; each of the others multiplies 64 columns. Halves whose rows begin at multiples of 16 bytes are copied to where
// wgmma reads them, in swizzled rows of 128 bytes. What is SHIFTED is copied with the aligned 16 bytes around it and moved there by those
// that multiply, and float32 is split into two halves (split_hi_lo.cuh) on the way, once for the block, with a scale for every eight
// features of a stage, which is as fine as accumulators tell columns apart; one stage is prepared while another one is multiplied.
#pragma once
#include "kronsparse_sums.cuh"
#include "layout.cuh"
#include "ptx_wgmma.cuh"

namespace km {

// The tile of a kernel, from a struct of its parameters:
//   T, OUT               type of x and grad, and of the sums
//   FIRST                features lie together, and d is 1; else the batch does
//   SHIFTED              rows begin anywhere
//   GROUPS               groups of warps that multiply 64 columns j each
//   TILE_K, STAGES       positions of k of a block, and stages of the ring
//   EACH                 blocks that share a multiprocessor
//   BLOCKS               the sums are blocks [slot, g, i, l, j, k], each in whole vectors
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
template <class Traits>
struct KronSparseWideSumTile : Traits {
    using typename Traits::T;
    using Traits::FIRST, Traits::SHIFTED, Traits::GROUPS, Traits::TILE_K, Traits::STAGES;
    typedef typename Products<T>::type H;
    static constexpr bool SPLIT = sizeof(T) == 4, PREPARED = SPLIT || SHIFTED;
    static constexpr int SIZE = sizeof(T), DEPTH = 128 / SIZE, STEPS = DEPTH / 16, TILE_J = 64 * GROUPS;
    static constexpr int MULTIPLYING = 128 * GROUPS, THREADS = MULTIPLYING + 128;
    // Registers of a thread that copies, and of one that multiplies.
    static constexpr int COPYING_REGISTERS = 56, REGISTERS = (512 / Traits::EACH - COPYING_REGISTERS) / GROUPS / 8 * 8;
    // What wgmma reads of so many features: rows of 128 bytes, of a feature its entries, high halves and low ones side by side; or of an
    // entry 64 features, high halves first.
    static constexpr int whole(int features) { return FIRST ? (features + 63) / 64 * 64 : features; }
    static constexpr int operand(int features) { return 128 * whole(features); }
    static constexpr int Y_OPERAND = operand(TILE_J), OPERANDS = Y_OPERAND + operand(TILE_K);
    // The rows of a stage, of a feature or of an entry, and their bytes; those that are prepared begin in different banks.
    static constexpr int SPARE = SHIFTED ? 16 : 0, SKEW = SHIFTED || !FIRST ? 16 : 32;
    static constexpr int row_bytes(int features) { return (FIRST ? SIZE * features : 128) + SPARE; }
    static constexpr int pitch(int features) { return (row_bytes(features) + 127 - SKEW) / 128 * 128 + SKEW; }
    static constexpr int staged(int features) { return PREPARED ? (FIRST ? DEPTH : features) * pitch(features) : operand(features); }
    static constexpr int Y_STAGE = staged(TILE_J), STAGE = Y_STAGE + staged(TILE_K);
    // Sets of eight features of grad, then of x, that are prepared together.
    static constexpr int Y_SETS = TILE_J / 8, SETS = Y_SETS + TILE_K / 8;
    static constexpr int STAGES_AT = PREPARED ? 2 * OPERANDS : 0, INVERSES = STAGES_AT + STAGES * STAGE;
    static constexpr int BARRIERS = INVERSES + (SPLIT ? 8 * SETS : 0), SHARED_BYTES = BARRIERS + PipelineBarriers<STAGES>::BYTES;
    // Numbers from a block of sums to the next one: whole vectors of the type of x, or whole sectors (transpose_plan.padded).
    static KM_DEVICE i64 pitch_of(i64 count) { return count * SIZE % 16 == 0 ? count : (count + 32 / SIZE - 1) / (32 / SIZE) * (32 / SIZE); }
    static_assert(TILE_K % 16 == 0 && REGISTERS <= 232, "pairs of sets, and registers that a thread may have");
};

template <class P>
struct KronSparseWideSums {
    typedef typename P::T T;
    typedef PipelineState<P::STAGES> State;
    static constexpr int SIZE = P::SIZE, DEPTH = P::DEPTH, SETS = P::SETS, FRAGMENTS = P::TILE_K / 8;
    const KronSparseSums& g;
    unsigned char* const shared;
    PipelineBarriers<P::STAGES> barriers;
    const T *x, *grad;  // the first feature of the block's tile, of its first entry
    i64 out, count;     // where the tile's sums begin, and the entries of its part
    int j, k, lane;

    // Tiles of neighbouring l follow each other, so that what they write meets in the second-level cache.
    __device__ __forceinline__ KronSparseWideSums(const KronSparseSums& arguments, unsigned char* memory)
        : g(arguments), shared(memory), barriers{shared_address(memory + P::BARRIERS)}, lane(threadIdx.x % 32) {
        const unsigned across = (g.c + P::TILE_K - 1) / P::TILE_K, down = (g.b + P::TILE_J - 1) / P::TILE_J;
        unsigned item = blockIdx.x;
        const int l = (int)(item % (unsigned)g.d);
        item /= (unsigned)g.d;
        k = (int)(item % across) * P::TILE_K, item /= across;
        j = (int)(item % down) * P::TILE_J, item /= down;
        const int i = (int)(item % (unsigned)g.a);
        item /= (unsigned)g.a;
        const int group = (int)(item % (unsigned)g.groups), slot = (int)(item / (unsigned)g.groups);
        const i64 chunks = (g.count + DEPTH - 1) / DEPTH, each = (chunks + g.slots - 1) / g.slots * DEPTH, begin = slot * each;
        count = g.count - begin < each ? g.count - begin : each;
        const i64 x_feature = ((i64)i * g.c + k) * g.d + l, y_feature = ((i64)i * g.b + j) * g.d + l;
        x = (const T*)g.x + group * g.xg + (P::FIRST ? begin * g.xs + x_feature : x_feature * g.xs + begin);
        grad = (const T*)g.grad + group * g.yg + (P::FIRST ? begin * g.ys + y_feature : y_feature * g.ys + begin);
        const i64 row = (slot * (i64)g.groups + group) * g.a + i, first = (i64)j * g.c + k;
        out = P::BLOCKS ? (row * g.d + l) * P::pitch_of((i64)g.b * g.c) + first : (row * g.b * g.c + first) * g.d + l;
    }

    // Bytes between rows of an operand in memory, whose stride is given: of features or of entries.
    __device__ __forceinline__ i64 apart(i64 stride) const { return (P::FIRST ? stride : g.d * stride) * SIZE; }

    // ---- Copying, by four warps. A thread copies the same 16 bytes of rows; INSIDE: all of them are there.
    template <bool INSIDE, int FEATURES>
    __device__ __forceinline__ void copy_rows(unsigned char* to, const unsigned char* from, i64 step, int rows, int bytes) const {
        constexpr int ROWS = P::FIRST ? DEPTH : FEATURES, PIECES = P::row_bytes(FEATURES) / 16, AT_ONCE = 128 / PIECES, UNROLL = INSIDE ? 16 : 4;
        const int thread = threadIdx.x - P::MULTIPLYING, row0 = thread / PIECES, piece = thread % PIECES;
        const unsigned char* source = from + row0 * step + 16 * piece;
        if (row0 >= AT_ONCE) return;
#pragma unroll UNROLL
        for (int i = 0; i * AT_ONCE < ROWS; ++i, source += AT_ONCE * step) {
            const int row = row0 + i * AT_ONCE, shift = P::SHIFTED ? (int)((size_t)source & 15) : 0;
            if (ROWS % AT_ONCE != 0 && row >= ROWS) break;
            const int at = P::PREPARED ? row * P::pitch(FEATURES) + 16 * piece : (P::FIRST ? piece / 8 * DEPTH + row : row) * 128 + swizzle_128(row, piece % 8);
            const int here = INSIDE ? 16 : row < rows ? bytes + shift - 16 * piece : 0;
            if constexpr (INSIDE && !P::SHIFTED)
                ptx::cp_async<16>(shared_address(to + at), source);
            else if constexpr (INSIDE)
                ptx::cp_async<16>(shared_address(to + at), source - shift, piece == PIECES - 1 ? shift : 16);
            else
                ptx::cp_async<16>(shared_address(to + at), here > 0 ? source - shift : (const unsigned char*)((size_t)from & ~(size_t)15), here <= 0 ? 0 : here < 16 ? here : 16);
        }
    }

    // `extent`: features that are inside.
    template <int FEATURES>
    __device__ __forceinline__ void copy(unsigned char* to, const T* from, i64 stride, i64 n0, int extent) const {
        const i64 left = count - n0, step = apart(stride);
        const int entries = left < DEPTH ? (int)left : DEPTH, features = extent < FEATURES ? extent : FEATURES;
        const unsigned char* const begin = (const unsigned char*)(from + (P::FIRST ? n0 * stride : n0));
        if (entries == DEPTH && features == FEATURES)
            copy_rows<true, FEATURES>(to, begin, step, 0, 0);
        else
            copy_rows<false, FEATURES>(to, begin, step, P::FIRST ? entries : features, (P::FIRST ? features : entries) * SIZE);
    }

    // A stage is full when a later one has been asked for, so that another one is at hand while its copies begin.
    __device__ __forceinline__ void copy_all() const {
        constexpr int LATER = P::STAGES > 2 ? P::STAGES - 2 : 0;
        State filled, done;
        filled.phase = 1;
#pragma unroll 1
        for (i64 n = 0; n < count + LATER * DEPTH; n += DEPTH) {
            if (n < count) {
                ptx::mbarrier_wait_parity(barriers.empty(filled.stage), filled.phase);
                unsigned char* const to = shared + P::STAGES_AT + filled.stage * P::STAGE;
                copy<P::TILE_J>(to, grad, g.ys, n, g.b - j);
                copy<P::TILE_K>(to + P::Y_STAGE, x, g.xs, n, g.c - k);
                filled.advance();
            }
            ptx::cp_async_commit_group();
            if (n >= LATER * DEPTH && n - LATER * DEPTH < count) {
                ptx::cp_async_wait_group<LATER>();
                ptx::mbarrier_arrive(barriers.full(done.stage));
                done.advance();
            }
        }
        ptx::cp_async_wait_all();
    }

    // ---- Preparing. What a lane has of a set: of float32 eight numbers, of halves eight words.
    // Where features lie together, these are of two rows four words each; else of one feature, neighbours where it begins at 16 bytes, or
    // every fourth word, as the order of entries is free.
    __device__ __forceinline__ int row_of(int half) const { return P::SPLIT ? 16 * half + lane / 2 : 32 * half + lane; }

    template <int FEATURES>
    __device__ __forceinline__ void read(unsigned (&v)[8], const unsigned char* stage, const T* from, i64 stride, int set) const {
        const unsigned step = (unsigned)apart(stride), first = (unsigned)(size_t)from;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = P::FIRST ? row_of(half) : 8 * set + lane / 4;
            const unsigned shift = P::SHIFTED ? first + row * step & 15 : 0;
            const unsigned char* const line = stage + row * P::pitch(FEATURES) + (P::FIRST ? 8 * SIZE * set + (P::SPLIT ? lane % 2 * 16 : 0) : P::SHIFTED ? 0 : 32 * (lane % 4) + 16 * half);
            if constexpr (P::SHIFTED) {
                constexpr int NEXT = P::FIRST ? 1 : 4;
                const unsigned* const words = (const unsigned*)(line + (shift & 12)) + (P::FIRST ? 0 : lane % 4 + 16 * half);
#pragma unroll
                for (int e = 0; e < 4; ++e) v[4 * half + e] = P::SPLIT ? words[NEXT * e] : __funnelshift_r(words[NEXT * e], words[NEXT * e + 1], 8 * (shift & 2));
            } else {
                const uint4 words = *(const uint4*)line;
                v[4 * half] = words.x, v[4 * half + 1] = words.y, v[4 * half + 2] = words.z, v[4 * half + 3] = words.w;
            }
        }
    }

    // The scale of the numbers of a set; what is infinite or NaN is left out.
    static __device__ __forceinline__ HalfScale scale_of(const unsigned (&v)[8]) {
        auto exponent = [&](float most) {
            float top = 0.0f;
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const float size = fabsf(__uint_as_float(v[e]));
                top = fmaxf(top, most < size ? 0.0f : size);
            }
            return ptx::redux_max(__float_as_uint(top)) >> 23;
        };
        unsigned found = exponent(__uint_as_float(0x7f800000u));
        if (found == 255) found = exponent(__uint_as_float(0x7f7fffffu));
        return HalfScale::of_exponent(found);
    }

    // Puts a set where wgmma reads it.
    __device__ __forceinline__ void put(unsigned char* to, int plane, int set, const unsigned (&v)[8], float* inverse) const {
        if constexpr (!P::SPLIT) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = P::FIRST ? row_of(half) : 8 * set + lane / 4, piece = P::FIRST ? set % 8 : 2 * (lane % 4) + half;
                *(uint4*)(to + ((P::FIRST ? set / 8 * DEPTH : 0) + row) * 128 + swizzle_128(row, piece)) = make_uint4(v[4 * half], v[4 * half + 1], v[4 * half + 2], v[4 * half + 3]);
            }
        } else {
            const HalfScale scale = scale_of(v);
            unsigned high[4], low[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) split_f16x2(high[e], low[e], __uint_as_float(v[2 * e]), __uint_as_float(v[2 * e + 1]), scale.scale);
            if (lane == 0) *inverse = scale.inverse;
            if constexpr (P::FIRST) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned char* const at = to + (set / 8 * DEPTH + row_of(half)) * 128 + swizzle_128(row_of(half), set % 8) + lane % 2 * 8;
                    *(uint2*)at = make_uint2(high[2 * half], high[2 * half + 1]);
                    *(uint2*)(at + plane) = make_uint2(low[2 * half], low[2 * half + 1]);
                }
            } else {
                // Lanes of odd features begin with the low halves, so that eight lanes together meet in no bank.
                const int feature = lane / 4, odd = feature % 2;
                unsigned char* const row = to + (8 * set + feature) * 128;
                uint4 one = make_uint4(high[0], high[1], high[2], high[3]), other = make_uint4(low[0], low[1], low[2], low[3]);
                if (odd) {
                    const uint4 first = one;
                    one = other, other = first;
                }
                *(uint4*)(row + swizzle_128(feature, lane % 4 + 4 * odd)) = one;
                *(uint4*)(row + swizzle_128(feature, lane % 4 + 4 - 4 * odd)) = other;
            }
        }
    }

    // Prepares a stage, two sets of a warp at a time.
    __device__ __forceinline__ void prepare(const unsigned char* stage, unsigned char* to, float* inverses, int warp) const {
#pragma unroll 1
        for (int pair = warp; pair < SETS / 2; pair += 4 * P::GROUPS) {
            const bool left = pair < P::Y_SETS / 2;
            unsigned v[2][8];
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                if (left) read<P::TILE_J>(v[s], stage, grad, g.ys, 2 * pair + s);
                else read<P::TILE_K>(v[s], stage + P::Y_STAGE, x, g.xs, 2 * pair + s - P::Y_SETS);
            }
#pragma unroll
            for (int s = 0; s < 2; ++s)
                put(left ? to : to + P::Y_OPERAND, (left ? P::Y_OPERAND : P::OPERANDS - P::Y_OPERAND) / 2, left ? 2 * pair + s : 2 * pair + s - P::Y_SETS, v[s], inverses + 2 * pair + s);
        }
    }

    // ---- Multiplying.
    static KM_DEVICE unsigned long long matrix(const unsigned char* at) {
        return ptx::wgmma_descriptor(__shfl_sync(0xffffffffu, shared_address(at), 0), P::FIRST ? DEPTH * 128 : 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
    }

    // Begins the products of a stage; KEEP: they are added to what the accumulators have.
    template <bool KEEP>
    __device__ __forceinline__ void multiply(float (&d)[FRAGMENTS][4], const unsigned char* operands, int group) const {
        // Bytes from a step of 16 entries to the next one, and from high halves to low ones, as descriptors have them.
        constexpr int STEP = (P::FIRST ? 16 * 128 : 32) >> 4, Y_LOW = (P::FIRST ? P::Y_OPERAND / 2 : 64) >> 4, X_LOW = (P::FIRST ? (P::OPERANDS - P::Y_OPERAND) / 2 : 64) >> 4;
        const unsigned long long a = matrix(operands + group * 64 * 128 / (P::FIRST && P::SPLIT ? 2 : 1)), b = matrix(operands + P::Y_OPERAND);
        constexpr int BEGIN = P::SPLIT && P::PRODUCTS == 3 ? 0 : 2;
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r) ptx::fence_operand(d[i][r]);
        ptx::wgmma_fence();
#pragma unroll
        for (int term = BEGIN; term < 3; ++term)
#pragma unroll
            for (int step = 0; step < P::STEPS; ++step) {
                const unsigned long long left = a + step * STEP + (term == 0 ? Y_LOW : 0), right = b + step * STEP + (term == 1 ? X_LOW : 0);
                const int keep = KEEP || term > BEGIN || step > 0;
                if constexpr (P::FIRST) ptx::wgmma_ss_across(typename P::H(), d, left, right, keep);
                else ptx::wgmma_ss(typename P::H(), d, left, right, keep);
            }
        ptx::wgmma_commit_group();
    }
    template <int PENDING>
    static __device__ __forceinline__ void wait(float (&d)[FRAGMENTS][4]) {
        ptx::wgmma_wait_group<PENDING>();
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r) ptx::fence_operand(d[i][r]);
    }

    // Of halves as they lie.
    __device__ __forceinline__ void sum_stages(float (&sum)[FRAGMENTS][4], int group) const {
        State used, before;
#pragma unroll 1
        for (i64 n = 0; n < count; n += DEPTH) {
            ptx::mbarrier_wait_parity(barriers.full(used.stage), used.phase);
            ptx::fence_proxy_async();
            multiply<true>(sum, shared + used.stage * P::STAGE, group);
            used.advance();
            if (n > 0) {
                wait<1>(sum);
                ptx::mbarrier_arrive(barriers.empty(before.stage));
                before.advance();
            }
        }
        wait<0>(sum);
    }

    // Of what is prepared: one stage while the products of another are under way.
    __device__ __forceinline__ void sum_prepared(float (&sum)[FRAGMENTS][4], int group, int warp) const {
        State used;
        float here[P::SPLIT ? FRAGMENTS : 1][4];
        float* const inverses = (float*)(shared + P::INVERSES);
        auto prepare_next = [&](int buffer) {
            ptx::mbarrier_wait_parity(barriers.full(used.stage), used.phase);
            prepare(shared + P::STAGES_AT + used.stage * P::STAGE, shared + buffer * P::OPERANDS, inverses + buffer * SETS, warp);
            ptx::mbarrier_arrive(barriers.empty(used.stage));
            used.advance();
        };
        if (count > 0) prepare_next(0);
        int buffer = 0;
#pragma unroll 1
        for (i64 n = 0; n < count; n += DEPTH, buffer ^= 1) {
            ptx::fence_proxy_async();
            ptx::bar_sync<P::MULTIPLYING>(1);
            const unsigned char* const operands = shared + buffer * P::OPERANDS;
            if constexpr (P::SPLIT) multiply<false>(here, operands, group);
            else multiply<true>(sum, operands, group);
            if (n + DEPTH < count) prepare_next(buffer ^ 1);
            if constexpr (P::SPLIT) {
                wait<0>(here);
                const float *const left = inverses + buffer * SETS + 2 * warp, *const right = inverses + buffer * SETS + P::Y_SETS;
                const float by[2] = {left[0], left[1]};
#pragma unroll
                for (int t = 0; t < FRAGMENTS; ++t) {
                    const float across = right[t];
#pragma unroll
                    for (int r = 0; r < 4; ++r) sum[t][r] = fmaf(here[t][r] * by[r / 2], across, sum[t][r]);
                }
            } else {
                wait<0>(sum);
            }
        }
    }

    __device__ __forceinline__ void write(const float (&sum)[FRAGMENTS][4], int warp) const {
        typedef typename P::OUT Out;
        const int row = 16 * warp + lane / 4, column = 2 * (lane % 4), apart = P::BLOCKS ? 1 : g.d;
        Out* const to = (Out*)g.out + out;
        const bool pairs = apart == 1 && g.c % 2 == 0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (j + row + 8 * half >= g.b) continue;
            Out* const own = to + (row + 8 * half) * (i64)g.c * apart;
#pragma unroll
            for (int t = 0; t < FRAGMENTS; ++t) {
                const int at = 8 * t + column;
                const Pack<Out, 2> pack = {{Store<Out>::from(sum[t][2 * half]), Store<Out>::from(sum[t][2 * half + 1])}};
                if (pairs && k + at < g.c) {
                    *(Pack<Out, 2>*)(own + at) = pack;
                } else {
#pragma unroll
                    for (int r = 0; r < 2; ++r)
                        if (k + at + r < g.c) own[(i64)(at + r) * apart] = pack.v[r];
                }
            }
        }
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) barriers.initialise(128, P::MULTIPLYING);
        __syncthreads();
        const int warp = threadIdx.x / 32;
        if (threadIdx.x >= P::MULTIPLYING) {
            ptx::setmaxnreg_dec<P::COPYING_REGISTERS>();
            copy_all();
        } else {
            ptx::setmaxnreg_inc<P::REGISTERS>();
            float sum[FRAGMENTS][4];
            clear(sum);
            if constexpr (P::PREPARED) sum_prepared(sum, warp / 4, warp);
            else sum_stages(sum, warp / 4);
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

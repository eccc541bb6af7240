// Passes over the last two factors of a Kronecker product by wgmma, of SIZE x SIZE, 64 or 128, for arrays whose rows lie in order.
//
// Eight warps load: they bring pieces of x to shared memory as halves. float32 is two halves of 11 bits, scaled by a power of two
// for every set of fibers, and three products; halves are copied as they lie. Two groups of four warps multiply, 64 rows of the
// result each. Of a tile of SIZE x SIZE the last axis comes first, transposed, v[j, i] = sum_k last[j, k] x[i, k], so that its sums
// are the operand of the other one in registers, out[j, i'] = sum_i v[j, i] first[i', i], and leave from registers, 64 bytes beside
// each other, or by rows from shared memory.
#pragma once
#include "kron_rows.cuh"
#include "kron_scheduler.cuh"
#include "layout.cuh"
#include "pipeline.cuh"
#include "ptx_wgmma.cuh"
#include "reduce.cuh"
#include "split_hi_lo.cuh"

namespace km {

// What a piece in shared memory has beside its entries: the inverses of what eight warps multiplied theirs by, and where the
// results of both groups go, -1 for nowhere.
struct KronPiece {
    float inverse[8];
    i64 out[2];
};

// Two numbers as an operand of tensor cores.
KM_DEVICE unsigned kron_pack(f16, float a, float b) { return ptx::pack_f16x2(a, b); }
KM_DEVICE unsigned kron_pack(bf16, float a, float b) { return ptx::pack_bf16x2(a, b); }

// The parameters of a pass, members of B (tensor_emit.py):
//   T, H                 type of x and the result, and of the operands of tensor cores
//   SIZE                 rows and columns of both factors, 64 or 128
//   STAGES, SETS         pieces in shared memory, and sets of warps that load one each
//   LOADER_REGISTERS     of a thread that loads
//   PREFETCH             x comes to the second-level cache ahead
//   down, entry          whether neighbouring rows of a factor follow each other in memory, and one of its entries
template <class B, class Args>
struct KronWgmma {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int SIZE = B::SIZE, STEPS = SIZE / 16, STAGES = B::STAGES, LOADING = 256, THREADS = 256 + LOADING;
    static constexpr int PARTS = SPLIT ? 2 : 1, PART = 1 << 14, PIECE = PARTS * PART, FACTOR = SIZE * SIZE * 2;
    // Fibers of a piece, of one or two tiles; pieces of a tile.
    static constexpr int FIBERS = 8192 / SIZE, PIECES = SIZE == 128 ? 2 : 1;
    // Whether each group has a tile of its own.
    static constexpr bool APART = SIZE == 64;
    // Sets of warps that load a piece each, while others wait for memory; vectors of 16 bytes by a thread, VECTOR numbers each.
    static constexpr int SETS = B::SETS, LOADERS = 8 / SETS, SET = LOADING / SETS, VECTOR = 16 / (int)sizeof(T), LOADS = 8192 / VECTOR / SET;
    // Registers of threads that load, of the 256 of one of each kind.
    static constexpr int LOADER_REGISTERS = B::LOADER_REGISTERS;
    // Whether results leave by rows of 256 bytes from shared memory, not from registers: two factors of 64 of float32 take 557 us so and
    // 572 else, two of 128 of bfloat16 885 and 744.
    static constexpr bool STAGED = SPLIT && APART;
    // Bytes from row to row of results in shared memory, in which lanes that write together meet in no bank.
    static constexpr int OUT_PITCH = 64 * (int)sizeof(T) + 16, OUT = 64 * OUT_PITCH;
    static constexpr int RESULTS = 2 * PARTS * FACTOR + STAGES * PIECE, BARRIERS = RESULTS + (STAGED ? 2 * OUT : 0), NOTES = BARRIERS + PipelineBarriers<STAGES>::BYTES;
    static constexpr int TOPS = NOTES + STAGES * (int)sizeof(KronPiece), SHARED_BYTES = TOPS + THREADS / 32 * 4;
    typedef KronTileScheduler<1, 1> Scheduler;
    typedef PipelineState<STAGES> State;
    // By which v is multiplied so that it is less than the largest half: its bound is 2^15 times 2^15 times SIZE.
    static constexpr float LESS = SIZE == 128 ? 0x1p-22f : 0x1p-21f;

    // Where eight halves of a fiber begin in a part: rows of 128 bytes, swizzled, those of the first 64 columns of all fibers first.
    static KM_DEVICE int spot(int fiber, int column) { return column / 64 * (FIBERS * 128) + fiber * 128 + swizzle_128(fiber, column % 64 / 8) + column % 8 * 2; }
    static KM_DEVICE unsigned long long matrix(unsigned at) {
        return ptx::wgmma_descriptor(__shfl_sync(0xffffffffu, at, 0), 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
    }
    // The same, so many bytes further.
    static KM_DEVICE unsigned long long at(unsigned long long matrix, int bytes) { return matrix + (bytes >> 4); }

    // The power of two of a factor in float32, which comes to less than 2^TOP, by the largest entries of all threads, which are finite.
    template <int TOP>
    static __device__ HalfScale scale_of(float top, float* tops) {
        if (!SPLIT) return {1.0f, 1.0f};
        __syncthreads();  // others may still read the tops of another factor
        top = block_max<THREADS / 32>(top, tops);
        return kron_scale_below<TOP>(__float_as_uint(top) >> 23);
    }
    static KM_DEVICE float larger(float top, float a) { return fabsf(a) < infinity<float>() ? fmaxf(top, fabsf(a)) : top; }
    template <int TOP = 15, class Entry>
    static __device__ HalfScale measured(float* tops, bool down, const Entry& entry) {
        float top = 0.0f;
        if (SPLIT) {
#pragma unroll 4
            for (int i = threadIdx.x; i < SIZE * SIZE; i += THREADS) top = larger(top, down ? entry(i % SIZE, i / SIZE) : entry(i / SIZE, i % SIZE));
        }
        return scale_of<TOP>(top, tops);
    }
    static KM_DEVICE void halves_of(unsigned& high, unsigned& low, float a, float b, const HalfScale& scale) {
        if constexpr (SPLIT) split_f16x2(high, low, a, b, scale.scale);
        else high = kron_pack(H(), a, b);
    }
    // A factor to shared memory, its rows as those of a piece: high parts, then low ones. All entries are asked for at once.
    template <int TOP = 15, class Entry>
    static __device__ float stored(unsigned char* to, float* tops, bool down, const Entry& entry) {
        constexpr int COUNT = SIZE * SIZE / 2 / THREADS;
        float v[COUNT][2], top = 0.0f;
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            const int i = threadIdx.x + n * THREADS, row = down ? i % SIZE : i / (SIZE / 2), column = 2 * (down ? i / SIZE : i % (SIZE / 2));
            v[n][0] = entry(row, column);
            v[n][1] = entry(row, column + 1);
        }
#pragma unroll
        for (int n = 0; n < COUNT; ++n) top = larger(larger(top, v[n][0]), v[n][1]);
        const HalfScale scale = scale_of<TOP>(top, tops);
#pragma unroll
        for (int n = 0; n < COUNT; ++n) {
            const int i = threadIdx.x + n * THREADS, row = down ? i % SIZE : i / (SIZE / 2), column = 2 * (down ? i / SIZE : i % (SIZE / 2));
            unsigned high, low;
            halves_of(high, low, v[n][0], v[n][1], scale);
            unsigned char* const own = to + column / 64 * (SIZE * 128) + row * 128 + swizzle_128(row, column % 64 / 8) + column % 8 * 2;
            *(unsigned*)own = high;
            if (SPLIT) *(unsigned*)(own + FACTOR) = low;
        }
        return scale.inverse;
    }

    // ---- Loading. Vectors of the next piece are asked for behind the fence of the one before, which would wait for them.
    static KM_DEVICE float largest_of(float top, const uint4& v) {
        const float4 f = bit_cast<float4>(v);
        return fmaxf(fmaxf(top, fmaxf(fabsf(f.x), fabsf(f.y))), fmaxf(fabsf(f.z), fabsf(f.w)));
    }
    static KM_DEVICE float finite_of(float top, const uint4& v) {
        const float4 f = bit_cast<float4>(v);
        return larger(larger(larger(larger(top, f.x), f.y), f.z), f.w);
    }
    static __device__ void load(const Args& g, unsigned char* stages, KronPiece* pieces, PipelineBarriers<STAGES> barriers, int tiles) {
        const int set = (threadIdx.x - 256) / SET, lane = threadIdx.x % 32, warp = threadIdx.x % SET / 32;
        constexpr int ROW = SIZE / VECTOR, DOWN = 32 / ROW, SKIP = SETS > PIECES ? SETS / PIECES : 1;
        static_assert((SETS % PIECES == 0 || SETS == 1) && STAGES % SETS == 0, "a set has one part of every tile, or all, and stages of its own");
        // Line and column of the first vector; the others are DOWN lines apart.
        const int fiber = warp * (FIBERS / LOADERS) + lane / ROW, column = VECTOR * (lane % ROW);
        const int own = APART ? fiber / SIZE : 0, at_once = APART ? 2 : 1, apart = (int)gridDim.x * at_once * SKIP;
        int number = ((int)blockIdx.x + set / PIECES * (int)gridDim.x) * at_once + own, part = set % PIECES;
        Scheduler tile(g, g.x_stride, number, apart, false);
        // A warp asks for 512 bytes at a time; where those of 128 begin that a lane brings into the second-level cache a piece earlier.
        const int early = lane % 4 * 8, early_fiber = warp * (FIBERS / LOADERS) + early / ROW;
        const int early_column = VECTOR * (early % ROW);
        uint4 v[LOADS];
        i64 out;
        const auto ask = [&]() {
            const bool there = number < tiles;
            const T* const from = (const T*)g.x + (there ? tile.at : 0) + (i64)(part * FIBERS + fiber - own * SIZE) * SIZE + column;
            out = there ? tile.offset(g.out_stride) : -1;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) v[i] = *(const uint4*)(from + i * DOWN * SIZE);
            if (SETS % PIECES == 0 || ++part == PIECES) {
                if (SETS % PIECES) part = 0;
                tile.advance();
                number += apart;
            }
            if constexpr (B::PREFETCH) {
                if (number >= tiles) return;
                const T* const after = (const T*)g.x + tile.at + (i64)(part * FIBERS + early_fiber - own * SIZE) * SIZE + early_column;
#pragma unroll
                for (int i = 0; i < LOADS; i += 8) ptx::prefetch_global_l2(after + (i + lane / 4) * DOWN * SIZE);
            }
        };
        State state;
        state.phase = 1;
        for (int i = 0; i < set; ++i) state.advance();
        int left = steps(tiles) * PIECES - set;
        if (left > 0) ask();
#pragma unroll 1
        for (; left > 0; left -= SETS) {
            HalfScale scale[LOADS / 8];
            if constexpr (SPLIT) {
#pragma unroll
                for (int n = 0; n < LOADS / 8; ++n) {
                    float top = 0.0f;
#pragma unroll
                    for (int i = 0; i < 8; ++i) top = largest_of(top, v[8 * n + i]);
                    // An infinity is none that the others are to be scaled by, for they need not depend on it.
                    if (top == infinity<float>()) {
                        top = 0.0f;
#pragma unroll
                        for (int i = 0; i < 8; ++i) top = finite_of(top, v[8 * n + i]);
                    }
                    scale[n] = HalfScale::of_exponent(ptx::redux_max(__float_as_uint(top)) >> 23);
                }
            }
            ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
            unsigned char* const to = stages + state.stage * PIECE;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                unsigned char* const there = to + spot(fiber + i * DOWN, column);
                if constexpr (SPLIT) {
                    const float4 f = bit_cast<float4>(v[i]);
                    const float by = scale[i / 8].scale;
                    uint2 high, low;
                    split_f16x2(high.x, low.x, f.x, f.y, by);
                    split_f16x2(high.y, low.y, f.z, f.w, by);
                    *(uint2*)there = high;
                    *(uint2*)(there + PART) = low;
                } else {
                    *(uint4*)there = v[i];
                }
            }
            if (lane == 0) {
                KronPiece& piece = pieces[state.stage];
                if (SPLIT) {
#pragma unroll
                    for (int n = 0; n < LOADS / 8; ++n) piece.inverse[warp * (LOADS / 8) + n] = scale[n].inverse;
                }
                if (APART ? fiber % SIZE == 0 : warp == 0) piece.out[own] = out;
            }
            ptx::fence_proxy_async();
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(barriers.full(state.stage));
            if (left > SETS) ask();
#pragma unroll
            for (int i = 0; i < SETS; ++i) state.advance();
        }
    }

    // How many steps a block takes.
    static KM_DEVICE int steps(int tiles) {
        const int all = APART ? (tiles + 1) / 2 : tiles;
        return (int)blockIdx.x < all ? (all - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x : 0;
    }

    // ---- Multiplying.
    template <int N>
    static KM_DEVICE void fence(float (&d)[N][4]) {
#pragma unroll
        for (int i = 0; i < 4 * N; ++i) ptx::fence_operand(d[i / 4][i % 4]);
    }
    // What the lane reads that says later that a piece is free.
    template <class A>
    static KM_DEVICE A of_first_lane(const A* at) {
        A own = 0;
        if (threadIdx.x % 32 == 0) own = *at;
        return __shfl_sync(0xffffffffu, own, 0);
    }
    // d = rows of the last factor times lines of a piece, the small products first.
    static KM_DEVICE void multiply_fibers(float (&d)[8][4], unsigned long long last, unsigned long long fibers) {
#pragma unroll
        for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const int in_row = s % 4 * 32;
                ptx::wgmma_ss(H(), d, at(last, (term == 0) * FACTOR + s / 4 * (SIZE * 128) + in_row),
                              at(fibers, (term == 1) * PART + s / 4 * (FIBERS * 128) + in_row), s > 0 || term > (SPLIT ? 0 : 2));
            }
        }
    }
    // Sums of one set of lines as operands of the next product.
    static KM_DEVICE void operands_of(unsigned (&high)[STEPS][4], unsigned (&low)[SPLIT ? STEPS : 1][4], const float (&d)[8][4], int first, const float* by, float less) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            const float own = SPLIT ? by[n] * less : 1.0f;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int s = first + n / 2, r = n % 2 * 2 + h;
                if constexpr (SPLIT) split_f16x2(high[s][r], low[s][r], d[n][2 * h] * own, d[n][2 * h + 1] * own);
                else high[s][r] = kron_pack(H(), d[n][2 * h], d[n][2 * h + 1]);
            }
        }
    }
    // Which row of the last factor row m of a product is: two of a lane are neighbours where results leave from registers.
    static KM_DEVICE int row_of(int m) { return STAGED ? m : m / 16 * 16 + m % 8 * 2 + m / 8 % 2; }
    // d = v times the rows of the first factor.
    template <int N>
    static KM_DEVICE void multiply_operands(float (&d)[N][4], const unsigned (&high)[STEPS][4], const unsigned (&low)[SPLIT ? STEPS : 1][4], unsigned long long first) {
#pragma unroll
        for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const auto& own = term == 0 ? low[SPLIT ? s : 0] : high[s];
                ptx::wgmma_rs(H(), d, own, at(first, (term == 1) * FACTOR + s / 4 * (SIZE * 128) + s % 4 * 32), s > 0 || term > (SPLIT ? 0 : 2));
            }
        }
    }

    // Results in shared memory leave it: 64 rows of 64 numbers.
    static KM_DEVICE void store(const Args& g, const unsigned char* results, i64 to, int group) {
        constexpr int ROW = 64 / VECTOR, DOWN = 128 / ROW;
        ptx::bar_sync<128>(1 + group);
        if (to < 0) return;
        const int row = threadIdx.x % 128 / ROW, column = threadIdx.x % ROW;
        T* const there = (T*)g.out + to + row * SIZE + column * VECTOR;
        const unsigned char* const from = results + row * OUT_PITCH + column * 16;
#pragma unroll
        for (int i = 0; i < 64 / DOWN; ++i) *(uint4*)(there + i * DOWN * SIZE) = *(const uint4*)(from + i * DOWN * OUT_PITCH);
    }

    static __device__ void multiply(const Args& g, const unsigned char* factors, const unsigned char* stages, unsigned char* results, const KronPiece* pieces, PipelineBarriers<STAGES> barriers, float back, int tiles) {
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const unsigned long long first = matrix(shared_address(factors)), last = at(matrix(shared_address(factors + PARTS * FACTOR)), APART ? 0 : group * (64 * 128));
        const unsigned long long fibers = at(matrix(shared_address(stages)), APART ? group * (64 * 128) : 0);
        State state;
#pragma unroll 1
        for (int left = steps(tiles); left > 0; --left) {
            float v[PIECES][8][4], by[PIECES][8], top = 0.0f;
            i64 out;
            int own[PIECES];
#pragma unroll
            for (int i = 0; i < PIECES; ++i, state.advance()) {
                own[i] = state.stage;
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                fence(v[i]);
                ptx::wgmma_fence();
                multiply_fibers(v[i], last, at(fibers, state.stage * PIECE));
                ptx::wgmma_commit_group();
                const KronPiece& piece = pieces[state.stage];
                out = of_first_lane(&piece.out[APART ? group : 0]);
                if (SPLIT) {
#pragma unroll
                    for (int n = 0; n < 8; ++n) {
                        by[i][n] = APART && n % 2 ? by[i][n - 1] : of_first_lane(&piece.inverse[APART ? 4 * group + n / 2 : n]);
                        top = fmaxf(top, by[i][n]);
                    }
                }
            }
            unsigned high[STEPS][4], low[SPLIT ? STEPS : 1][4];
            const float less = SPLIT ? LESS / top : 1.0f;
            if constexpr (PIECES == 2) {
                ptx::wgmma_wait_group<1>();
                fence(v[0]);
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(barriers.empty(own[0]));
                operands_of(high, low, v[0], 0, by[0], less);
            }
            ptx::wgmma_wait_group<0>();
            fence(v[PIECES - 1]);
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(barriers.empty(own[PIECES - 1]));
            operands_of(high, low, v[PIECES - 1], STEPS - 4, by[PIECES - 1], less);
            float d[SIZE / 8][4];
            fence(d);
            ptx::wgmma_fence();
            multiply_operands(d, high, low, first);
            ptx::wgmma_commit_group();
            ptx::wgmma_wait_group<0>();
            fence(d);
            const float more = SPLIT ? back * top : back;
            if constexpr (STAGED) {
                unsigned char* const to = results + group * OUT + (16 * warp + lane / 4) * (int)sizeof(T);
                ptx::bar_sync<128>(1 + group);
#pragma unroll
                for (int i = 0; i < 32; ++i)
                    *(T*)(to + (i / 4 * 8 + 2 * (lane % 4) + i % 2) * OUT_PITCH + i / 2 % 2 * 8 * (int)sizeof(T)) = Store<T>::from(d[i / 4][i % 4] * more);
                store(g, results + group * OUT, out, group);
            } else if (out >= 0) {
                T* const to = (T*)g.out + out + (APART ? 0 : 64 * group) + 16 * warp + lane / 4 * 2 + lane % 4 * 2 * SIZE;
#pragma unroll
                for (int i = 0; i < SIZE / 4; ++i) {
                    Pack<T, 2> two;
                    two.v[0] = Store<T>::from(d[i / 2][i % 2] * more);
                    two.v[1] = Store<T>::from(d[i / 2][i % 2 + 2] * more);
                    *(Pack<T, 2>*)(to + (i / 2 * 8 + i % 2) * SIZE) = two;
                }
            }
        }
    }

    static __device__ void run(const Args& g) {
        extern __shared__ __align__(1024) unsigned char raw[];
        float* const tops = (float*)(raw + TOPS);
        KronPiece* const pieces = (KronPiece*)(raw + NOTES);
        unsigned char* const factors = raw;
        unsigned char* const stages = raw + 2 * PARTS * FACTOR;
        unsigned char* const results = raw + RESULTS;
        const PipelineBarriers<STAGES> barriers{shared_address(raw + BARRIERS)};
        const int tiles = (int)kron_tiles<1, 1>(g);
        if (threadIdx.x == 0) barriers.initialise(LOADERS, 8);
        float back = (float)g.alpha;
        kron_wait_for_factors(g.is_later);
        back *= stored(factors, tops, B::template down<0>(g), [&](int row, int column) { return B::template entry<0>(g, row, column); });
        back *= stored(factors + PARTS * FACTOR, tops, B::template down<1>(g), [&](int row, int column) { return B::template entry<1>(g, row_of(row), column); });
        if (SPLIT) back /= LESS;
        ptx::fence_proxy_async();
        __syncthreads();
        kron_wait();
        if (threadIdx.x >= 256) {
            ptx::setmaxnreg_dec<LOADER_REGISTERS>();
            load(g, stages, pieces, barriers, tiles);
        } else {
            ptx::setmaxnreg_inc<256 - LOADER_REGISTERS>();
            multiply(g, factors, stages, results, pieces, barriers, back, tiles);
        }
    }
};

}  // namespace km

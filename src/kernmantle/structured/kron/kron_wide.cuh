// Passes of Kronecker products over one wide factor by wgmma whose right operand is the factor, in shared memory, and whose left one is x,
// from registers: a row of it is a position beside the axis, so that x may begin anywhere and anything may lie beside the axis.
//
// GROUPS of four warps take tiles of up to 64 positions in turns: all SPAN of ITEMS entries of the batch, which are columns to the
// right of the axis or rows to its left. These may be the axis of a SMALL factor, which is applied to results before they leave. A group
// copies tiles as they lie in memory, stages ahead; results leave by the copy engine, from where x was if they are OVERLAYS.
// SHARING blocks have the rows of a factor of float32 between them.
#pragma once
#include "kron_scheduler.cuh"
#include "layout.cuh"
#include "pipeline.cuh"
#include "ptx_wgmma.cuh"
#include "reduce.cuh"
#include "split_hi_lo.cuh"

namespace km {

// The parameters of a pass, members of B (tensor_emit.py):
//   T, H                 type of x and the result, and of the operands of tensor cores
//   ROWS, COLUMNS        of the factor; `down` says whether its neighbouring rows follow each other in memory, `entry` gives one
//   SHARING, WIDE        blocks that share its rows, and how many of them each has, a multiple of 16
//   GROUPS, STAGES       groups of warps, and tiles that each has in shared memory
//   ITEMS, SPAN        entries of the batch in a tile, and positions of each
//   LEFT, SMALL          these lie to the left of the axis, and are the axis of a small factor, of which `small` gives an entry
//   APART                numbers in shared memory from one entry of the batch to the next
//   DENSE, MERGES        where they are so in memory, x of a tile is copied as one run, and its results leave as one
//   OUT_RUN              numbers from one run of results to the next where they are several
//   STAGE, OUT           numbers of a tile in shared memory, and of its results
//   OVERLAYS             results take the place of x in its only stage
//   SPREAD               entries along the axis that lie between those of neighbouring lanes
//   SCALED               the factor is multiplied by a power of two
template <class B, class Args>
struct KronWide {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr int SPAN = B::SPAN;
    static constexpr bool LEFT = B::LEFT, SMALL = B::SMALL, SPLIT = sizeof(T) == 4;
    static constexpr int RIGHT = SMALL ? 1 : SPAN;
    typedef KronTileScheduler<B::ITEMS, RIGHT> Scheduler;
    static constexpr int ROWS = B::ROWS, COLUMNS = B::COLUMNS, GROUPS = B::GROUPS, STAGES = B::STAGES, ITEMS = B::ITEMS, THREADS = 128 * GROUPS;
    static constexpr int EACH = 16 / (int)sizeof(T), STEPS = (COLUMNS + 15) / 16, CHUNKS = (STEPS + 3) / 4, APART = B::APART, STAGE = B::STAGE;
    // Rows of the factor in a block: those of the first instruction, and of the second.
    static constexpr int WIDE = B::WIDE, SHARING = B::SHARING, FIRST = WIDE < 128 ? WIDE : 128, SECOND = WIDE - FIRST;
    static constexpr int PLANE = 128 * WIDE, FACTOR = CHUNKS * PLANE, PARTS = SPLIT ? 2 : 1;
    // Numbers between entries along the axis, and between positions; the same of the result, in memory and where it is one run.
    static constexpr int PITCH = LEFT ? 1 : SPAN, STEP = LEFT ? COLUMNS : 1, OUT_STEP = LEFT ? ROWS : 1;
    static constexpr int LENGTH = COLUMNS * SPAN;
    // Where results are no one run, each position has one if its numbers are neighbours, else each entry.
    static constexpr bool BY_POSITION = LEFT || SPAN == 1;
    // Columns of an even small factor would meet in a few banks as they lie in memory: results are turned round on their way there.
    static constexpr bool TRANSPOSED = SMALL && !LEFT && SPAN % 2 == 0, IN_ROWS = BY_POSITION || TRANSPOSED;
    static constexpr int OUT_RUN = B::OUT_RUN, SMALL_PITCH = (SPAN + 3) / 4 * 4;
    static constexpr bool OVERLAYS = B::OVERLAYS;
    static constexpr int OWN = STAGES * STAGE + (OVERLAYS ? 0 : B::OUT), SHARED_BYTES = PARTS * FACTOR + GROUPS * OWN * (int)sizeof(T);
    static_assert(!OVERLAYS || (STAGES == 1 && B::OUT <= STAGE), "results lie where x was");
    static_assert(WIDE % 16 == 0 && ITEMS * SPAN <= 64, "tiles of instructions");

    // Which of 16 entries along the axis is the column of an operand, whose lanes have columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.
    static KM_DEVICE int along(int column) {
        const int t = column % 8 / 2, i = column % 2 + column / 8 * 2;
        return B::SPREAD == 1 ? t + 4 * i : B::SPREAD == 2 ? column : 4 * t + i;
    }
    static KM_DEVICE int shift_of(const T* at) { return (int)((unsigned long long)at % 16) / (int)sizeof(T); }
    static KM_DEVICE int first_row() { return (int)blockIdx.x % SHARING * WIDE; }

    static KM_DEVICE HalfScale measured(const Args& g, float* tops) {
        if (!B::SCALED) return {1.0f, 1.0f};
        const bool down = B::down(g);
        const float top = kron_largest<ROWS * COLUMNS, THREADS, 32>(threadIdx.x, [&](int i) {
            return fabsf(down ? B::entry(g, i % ROWS, i / ROWS) : B::entry(g, i / COLUMNS, i % COLUMNS));
        });
        return HalfScale::of_largest(block_max<THREADS / 32>(top, tops));
    }
    static KM_DEVICE unsigned operand(f16, float a, float b) { return ptx::pack_f16x2(a, b); }
    static KM_DEVICE unsigned operand(bf16, float a, float b) { return ptx::pack_bf16x2(a, b); }
    // Brings the rows of the block to shared memory, in planes of 64 columns: a lane has 16 columns of a row at a time.
    static KM_DEVICE void prepare(const Args& g, unsigned char* to, float scale) {
        constexpr int DOWN = (WIDE + 31) / 32;
#pragma unroll 2
        for (int n = threadIdx.x / 32; n < DOWN * STEPS; n += THREADS / 32) {
            const int row = n % DOWN * 32 + threadIdx.x % 32, step = n / DOWN, q = first_row() + row;
            float v[16];
            unsigned high[8], low[8];
#pragma unroll
            for (int c = 0; c < 16; ++c) v[c] = B::entry(g, min(q, ROWS - 1), min(16 * step + along(c), COLUMNS - 1));
#pragma unroll
            for (int c = 0; c < 16; ++c) v[c] = q < ROWS && 16 * step + along(c) < COLUMNS ? v[c] * scale : 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if constexpr (SPLIT) split_f16x2(high[i], low[i], v[2 * i], v[2 * i + 1]);
                else high[i] = operand(H(), v[2 * i], v[2 * i + 1]);
            }
            if (row >= WIDE) continue;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                unsigned char* const own = to + step / 4 * PLANE + row * 128 + swizzle_128(row, step % 4 * 2 + h);
                *(uint4*)own = uint4{high[4 * h], high[4 * h + 1], high[4 * h + 2], high[4 * h + 3]};
                if constexpr (SPLIT) *(uint4*)(own + FACTOR) = uint4{low[4 * h], low[4 * h + 1], low[4 * h + 2], low[4 * h + 3]};
            }
        }
    }

    // Starts the copy of a run by the copy engine: whole vectors of 16 bytes, but for the one in which x ends.
    static KM_DEVICE void copy(const T* own, int length, const T* end, T* to, unsigned barrier) {
        const int shift = shift_of(own), filled = shift + length, all = (filled + EACH - 1) / EACH;
        const T* const from = own - shift;
        const int whole = EACH * (from + all * EACH <= end ? all : all - 1);
#pragma unroll 1
        for (int at = max(whole, shift); at < filled; ++at) to[at] = from[at];
        ptx::mbarrier_arrive_expect_tx(barrier, whole * (int)sizeof(T));
        if (whole > 0) ptx::cp_async_bulk(shared_address(to), from, whole * (int)sizeof(T), barrier);
    }
    static KM_DEVICE void fetch(const Args& g, const Scheduler& p, const T* end, T* stage, unsigned barrier, bool is_dense, int thread) {
        const int items = p.items();
        const T* const own = (const T*)g.x + p.at;
        if (is_dense) {
            if (thread == 0) copy(own, items * LENGTH, end, stage, barrier);
        } else if (thread < ITEMS) {
            if (thread < items) copy(own + thread * g.x_stride[KRON_C], LENGTH, end, stage + thread * APART, barrier);
            else ptx::mbarrier_arrive(barrier);
        }
    }

    typedef float First[FIRST / 8][4];
    typedef float Second[SECOND > 0 ? SECOND / 8 : 1][4];
    template <int N>
    static KM_DEVICE void fence(float (&d)[N][4]) {
#pragma unroll
        for (int i = 0; i < 4 * N; ++i) ptx::fence_operand(d[i / 4][i % 4]);
    }
    struct Operand {
        unsigned high[4], low[4];
    };
    // 16 entries along the axis of a lane's two positions.
    static KM_DEVICE Operand read(const T* stage, const int (&at)[2], int step, int four, const float (&by)[2]) {
        Operand found;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            T v[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int k = 16 * step + along(2 * four + r / 2 * 8 + i);
                v[i] = 16 * step + 16 <= COLUMNS || k < COLUMNS ? stage[at[r % 2] + k * PITCH] : T{};
            }
            if constexpr (SPLIT) split_f16x2(found.high[r], found.low[r], v[0] * by[r % 2], v[1] * by[r % 2]);
            else found.high[r] = (unsigned)*(const unsigned short*)&v[0] | (unsigned)*(const unsigned short*)&v[1] << 16;
        }
        return found;
    }
    // The powers of two of a lane's two positions, whose entries four lanes have.
    static KM_DEVICE void scales_of(const T* stage, const int (&at)[2], int four, float (&by)[2], float (&inverse)[2]) {
        if constexpr (SPLIT) {
            float top[2] = {};
#pragma unroll 8
            for (int k = four; k < COLUMNS; k += 4) {
                top[0] = fmaxf(top[0], fabsf(stage[at[0] + k * PITCH]));
                top[1] = fmaxf(top[1], fabsf(stage[at[1] + k * PITCH]));
            }
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
                top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
                const HalfScale found = HalfScale::of_largest(top[h]);
                by[h] = found.scale, inverse[h] *= found.inverse;
            }
        }
    }

    // Applies the small factor to results in shared memory, of which a thread has those of one row of the wide one. `origins` say where
    // positions are.
    static KM_DEVICE void apply_small(T* out, const float* factor, const int* origins, int items, int rows, int thread) {
        constexpr int UNROLL = SPAN <= 8 ? SPAN : 1;
#pragma unroll 1
        for (int i = thread; i < items * WIDE; i += 128) {
            const int item = i / WIDE, row = i % WIDE;
            if (row >= rows) continue;
            T* const own = out + origins[item * SPAN] + row * (IN_ROWS ? 1 : SPAN);
            const auto at = [&](int k) { return IN_ROWS ? out + origins[item * SPAN + k] + row : own + k; };
            float v[SMALL_PITCH];
#pragma unroll
            for (int k = 0; k < SMALL_PITCH; ++k) v[k] = k < SPAN ? convert<float>(*at(k)) : 0.0f;
#pragma unroll(UNROLL)
            for (int q = 0; q < SPAN; ++q) {
                float sum[2] = {};  // two, as each addition waits for the one before
#pragma unroll
                for (int k = 0; k < SMALL_PITCH; k += 4) {
                    const Pack<float, 4> f = *(const Pack<float, 4>*)(factor + q * SMALL_PITCH + k);
#pragma unroll
                    for (int j = 0; j < 4; ++j) sum[j % 2] = fmaf(f.v[j], v[k + j], sum[j % 2]);
                }
                *at(q) = Store<T>::from(sum[0] + sum[1]);
            }
        }
    }

    // Results leave shared memory, where each run lies as far behind 16 bytes as in memory: whole vectors by the copy engine.
    template <class Run>
    static KM_DEVICE void store(const T* out, int runs, int length, const Run& run_of, int thread) {
        if (thread < runs) {
            int at;
            T* const to = run_of(thread, at);
            const int shift = shift_of(to), first = shift > 0 ? EACH : 0, last = (shift + length) / EACH * EACH;
            if (last > first) ptx::cp_async_bulk_store(to - shift + first, shared_address(out + at + first), (last - first) * (int)sizeof(T));
        }
        ptx::cp_async_bulk_commit_group();
        // What is no whole vector at either end.
#pragma unroll 2
        for (int n = thread; n < runs * 2 * EACH; n += 128) {
            int begin;
            const int e = n % (2 * EACH);
            T* const to = run_of(n / (2 * EACH), begin);
            const int shift = shift_of(to), end = shift + length, last = end / EACH * EACH, at = e < EACH ? e : last + e - EACH;
            if (e < EACH ? shift > 0 && at >= shift && at < end : at < end && (shift == 0 || end >= EACH)) to[at - shift] = out[begin + at];
        }
    }

    static __device__ void run(const Args& g) {
        extern __shared__ __align__(1024) unsigned char raw[];
        __shared__ float tops[THREADS / 32];
        __shared__ __align__(16) float small[SMALL ? SPAN * SMALL_PITCH : 1];
        __shared__ int tables[GROUPS][64];
        __shared__ unsigned long long barriers[GROUPS * STAGES];
        kron_wait_for_factors(g.is_later);
        const HalfScale scale = measured(g, tops);
        prepare(g, raw, scale.scale);
        if constexpr (SMALL)
            for (int i = threadIdx.x; i < SPAN * SMALL_PITCH; i += THREADS) small[i] = i % SMALL_PITCH < SPAN ? B::small(g, i / SMALL_PITCH, i % SMALL_PITCH) : 0.0f;
        const i64 x_apart = g.x_stride[KRON_C], out_apart = g.out_stride[KRON_C];
        const bool is_dense = B::DENSE && x_apart == LENGTH;
        if (threadIdx.x == 0) {
#pragma unroll
            for (int n = 0; n < GROUPS * STAGES; ++n) ptx::mbarrier_init(shared_address(barriers + n), is_dense ? 1 : ITEMS);
            ptx::fence_mbarrier_init();
        }
        ptx::fence_proxy_async();
        __syncthreads();
        kron_wait();
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp = thread / 32, four = lane % 4;
        const int blocks = (int)gridDim.x / SHARING, block = (int)blockIdx.x / SHARING, apart = blocks * GROUPS, tiles = (int)kron_tiles<ITEMS, RIGHT>(g);
        const int begin = block + group * blocks;
        if (block >= blocks || begin >= tiles) return;
        const float back = scale.inverse * (float)g.alpha;
        const T* const end = kron_end_of<T>(g);
        T* const stages = (T*)(raw + PARTS * FACTOR) + group * OWN;
        int* const origins = tables[group];
        const unsigned factor = __shfl_sync(0xffffffffu, shared_address(raw), 0);
        const unsigned long long rows = ptx::wgmma_descriptor(factor, 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
        const bool is_one = B::MERGES && out_apart == ROWS * SPAN;
        const int there_rows = min(WIDE, ROWS - first_row()), length = there_rows * (BY_POSITION ? 1 : SPAN);
        Scheduler here(g, g.out_stride, begin, apart, false), ahead(g, g.x_stride, begin, apart, false), now(g, g.x_stride, begin, apart, false);
        const unsigned full = shared_address(barriers + group * STAGES);
        PipelineState<STAGES> used;
        int next = begin;
        const auto prefetch = [&](int to) {
            if (next < tiles) fetch(g, ahead, end, stages + to * STAGE, full + 8 * to, is_dense, thread);
            next += apart;
            ahead.advance();
        };
#pragma unroll 1
        for (int s = 0; s < STAGES; ++s) prefetch(s);
#pragma unroll 1
        for (int t = begin; t < tiles; t += apart) {
            ptx::mbarrier_wait_parity(full + 8 * used.stage, used.phase);
            ptx::bar_sync<128>(1 + group);  // what lanes copied of the end of x
            T* const own = stages + used.stage * STAGE;
            T* const out = OVERLAYS ? own : stages + STAGES * STAGE;
            T* const to = (T*)g.out + here.at + first_row() * (BY_POSITION ? 1 : SPAN);
            const int items = now.items(), there = items * SPAN;
            int at[2];
            float by[2] = {1.0f, 1.0f}, inverse[2] = {back, back};
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int position = min(16 * warp + lane / 4 + 8 * h, there - 1), item = position / SPAN;
                at[h] = item * (is_dense ? LENGTH : APART) + position % SPAN * STEP + shift_of((const T*)g.x + now.at + (is_dense ? 0 : item * x_apart));
            }
            // Where results of a position begin in shared memory.
            const auto run_of = [&](int run, int& begins) {
                T* const there_to = is_one ? to : BY_POSITION ? to + run / SPAN * out_apart + run % SPAN * OUT_STEP : to + run * out_apart;
                begins = run * OUT_RUN;
                return there_to;
            };
            if (thread < ITEMS * SPAN) {
                int begins;
                const int item = thread / SPAN, step = thread % SPAN * OUT_STEP;
                const int shift = shift_of(run_of(is_one ? 0 : BY_POSITION ? thread : item, begins));
                origins[thread] = TRANSPOSED ? thread * OUT_RUN : shift + (is_one ? item * (ROWS * SPAN) + step : begins + (BY_POSITION ? 0 : step));
            }
            scales_of(own, at, four, by, inverse);
            First d, total;
            Second e, rest;
            Operand x[SPLIT ? 1 : 2][4];
            constexpr int BUFFERS = SPLIT ? 1 : 2;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                if (!SPLIT && c > 1) ptx::wgmma_wait_group<1>();
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    if (4 * c + s < STEPS) x[c % BUFFERS][s] = read(own, at, 4 * c + s, four, by);
                if (SPLIT || c == 0) {
                    fence(d);
                    fence(e);
                }
                ptx::wgmma_fence();
#pragma unroll
                for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
                    for (int s = 0; s < 4; ++s) {
                        if (4 * c + s >= STEPS) continue;
                        const unsigned long long right = rows + (((term == 1) * FACTOR + c * PLANE + 32 * s) >> 4);
                        const bool keeps = (!SPLIT && c > 0) || s > 0 || (SPLIT && term > 0);
                        const unsigned(&left)[4] = term == 0 ? x[c % BUFFERS][s].low : x[c % BUFFERS][s].high;
                        ptx::wgmma_rs(H(), d, left, right, keeps);
                        if constexpr (SECOND > 0) ptx::wgmma_rs(H(), e, left, right + (128 * 128 >> 4), keeps);
                    }
                }
                ptx::wgmma_commit_group();
                if (SPLIT) {
                    ptx::wgmma_wait_group<0>();
                    fence(d);
                    fence(e);
#pragma unroll
                    for (int i = 0; i < FIRST / 2; ++i) total[i / 4][i % 4] = c == 0 ? d[i / 4][i % 4] : total[i / 4][i % 4] + d[i / 4][i % 4];
#pragma unroll
                    for (int i = 0; i < SECOND / 2; ++i) rest[i / 4][i % 4] = c == 0 ? e[i / 4][i % 4] : rest[i / 4][i % 4] + e[i / 4][i % 4];
                }
            }
            if (!OVERLAYS) ptx::cp_async_bulk_wait_group_read<0>();
            // All have read the tile, and results of the one before have left.
            ptx::bar_sync<128>(1 + group);
            if (!OVERLAYS) prefetch(used.stage);
            if (!SPLIT) {
                ptx::wgmma_wait_group<0>();
                fence(d);
                fence(e);
            }
            constexpr int ROW_STEP = IN_ROWS ? 1 : SPAN;
            T* target[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) target[h] = out + origins[min(16 * warp + lane / 4 + 8 * h, ITEMS * SPAN - 1)] + 2 * four * ROW_STEP;
#pragma unroll
            for (int m = 0; m < WIDE; m += 8) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (16 * warp + lane / 4 + 8 * h >= there) continue;
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const float value = m < 128 ? (SPLIT ? total : d)[m / 8 % (FIRST / 8)][2 * h + i] : (SPLIT ? rest : e)[SECOND > 0 ? (m - 128) / 8 % (SECOND > 0 ? SECOND / 8 : 1) : 0][2 * h + i];
                        if (m + 8 <= ROWS - (SHARING - 1) * WIDE || m + 2 * four + i < there_rows) target[h][(m + i) * ROW_STEP] = Store<T>::from(value * inverse[h]);
                    }
                }
            }
            if constexpr (SMALL) {
                ptx::bar_sync<128>(1 + group);
                apply_small(out, small, origins, items, there_rows, thread);
            }
            if (!TRANSPOSED) ptx::fence_proxy_async();
            ptx::bar_sync<128>(1 + group);
            if constexpr (TRANSPOSED) {
#pragma unroll 1
                for (int item = 0; item < items; ++item) {
                    T* const own_to = to + item * out_apart;
                    const T* const from = out + item * (SPAN * OUT_RUN);
#pragma unroll 8
                    for (int n = thread; n < length; n += 128) own_to[n] = from[n % SPAN * OUT_RUN + n / SPAN];
                }
            } else store(out, is_one ? 1 : BY_POSITION ? there : items, is_one ? there * ROWS : length, run_of, thread);
            if (OVERLAYS) {
                ptx::cp_async_bulk_wait_group_read<0>();
                ptx::bar_sync<128>(1 + group);
                prefetch(0);
            }
            used.advance();
            here.advance();
            now.advance();
        }
        ptx::cp_async_bulk_wait_group_read<0>();
    }
};

}  // namespace km

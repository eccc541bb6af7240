// Passes of Kronecker products over two factors whose entries lie in one run of memory, x[p1, p2] -> out[q1, q2], by warps that go their
// own way: what comes between the two products stays in registers.
//
// The first product is between[q2, p1] = sum_k last[q2, k] x[p1, k], with rows of the factor as rows of an operand of 16 x 16 and rows of
// x as columns of 8. Two of its results side by side are, rounded, the other operand of out[q1, q2] = sum_k first[q1, k] between[q2, k].
// A lane has four neighbours of a row of x, and of the result, whichever entries of the factor these are multiplied by.
//
// GROUP warps share a tile of ITEMS entries of the batch, which follow each other in memory; few tiles go to as many blocks. Each takes
// BLOCKS times 16 q2 of TOGETHER entries at a time. The copy engine brings tiles as they lie, stages ahead, and takes results away, also
// what comes between the products, between[p1, q2], where gradients find it: a lane has four neighbours of a row of that, too, once the
// operand is transposed.
//
// float32 is two halves of 11 bits and three products (kron_fibers.cuh), scaled by a power of two for each factor and each entry of the
// batch; what comes between by that of its largest possible value.
#pragma once
#include "kron_fibers.cuh"
#include "kron_leave.cuh"
#include "kron_scheduler.cuh"
#include "pipeline.cuh"
#include "ptx_transpose.cuh"

namespace km {

// The parameters of a pass, members of B (tensor_emit.py):
//   T, H, C              type of x and the result, of the operands of tensor cores, and of sums
//   First, Last          the factors, KronFactor, and `prepare`, which brings both to shared memory as operands
//   WARPS, GROUP         warps of a block, and those that share a tile
//   ITEMS, STAGES, OUTS  entries of the batch in a tile, tiles that are copied ahead, tiles of results that leave meanwhile
//   BLOCKS, TOGETHER     rows of the last factor, in 16s, and entries of the batch that a warp takes at a time
//   AT_ONCE              columns of the first factor, in 16s, whose products are under way at once
//   VECTOR, VECTOR_OUT   neighbours of x in one access, and of the result
//   PITCH, STAGE, OUT_STAGE   numbers from row to row of a tile, of a tile, and of its results
//   SAVES, VECTOR_SAVED, SAVED_STAGE   what comes between is written to y; neighbours in one access, and numbers of a tile of it
//   LAST_STAYS, FIRST_STAYS   a warp keeps the factor in registers
//   FITS                 of halves: the last factor was not multiplied by a power of two
template <class B, class Args>
struct KronTwoAxis {
    typedef typename B::T T;
    typedef typename B::H H;
    typedef typename B::Last Last;
    typedef typename B::First First;
    typedef KronTileScheduler<B::ITEMS, 1> Scheduler;
    typedef PipelineState<B::STAGES> State;
    static constexpr int P1 = First::COLUMNS, Q1 = First::ROWS, P2 = Last::COLUMNS, Q2 = Last::ROWS;
    static constexpr int DEEP1 = First::DEEP, DEEP2 = Last::DEEP, WIDE1 = First::WIDE, WIDE2 = Last::WIDE;
    static constexpr int GROUPS = B::WARPS / B::GROUP, GROUP_THREADS = 32 * B::GROUP, EACH = 16 / (int)sizeof(T);
    static constexpr bool SPLIT = sizeof(T) == 4;
    // 16 q2 at a time, how many such there are, and what warps take in turns.
    static constexpr int BLOCKS = B::BLOCKS, PARTS = (WIDE2 + BLOCKS - 1) / BLOCKS, TOGETHER = B::TOGETHER, UNITS = B::ITEMS / TOGETHER * PARTS;
    // Whether each warp takes one of them at most, so that what comes between leaves while the second product is under way.
    static constexpr bool ONCE = UNITS <= B::GROUP;
    // 16 p1 of all entries of a unit, and those whose products are under way at once.
    static constexpr int STEPS = TOGETHER * DEEP1, AT_ONCE = B::AT_ONCE;
    // Numbers of a tile and of its results; whether its rows come apart, whole vectors each.
    static constexpr int COUNT = B::ITEMS * P1 * P2, RESULTS = B::ITEMS * Q1 * Q2;
    static constexpr bool SAVES = B::SAVES, APART = B::PITCH != P2, LAST_STAYS = B::LAST_STAYS, FIRST_STAYS = B::FIRST_STAYS;
    // Small products have a sum of their own where they cannot come first; large ones are added up after 64 positions.
    static constexpr bool SMALL = SPLIT, FLUSHED = SPLIT && DEEP2 > 4;
    static constexpr int FACTOR_WORDS = Last::WORDS + First::WORDS, OWN = B::STAGES * B::STAGE + B::OUTS * B::OUT_STAGE + B::SAVED_STAGE;
    static constexpr int SHARED_BYTES = 4 * FACTOR_WORDS + GROUPS * OWN * (int)sizeof(T);

    // What the first sums of float32 are multiplied by, so that the largest possible one is 2^15.
    static constexpr float LESS = [] {
        float found = 1.0f / 32768;
        for (int n = 1; n < P2; n *= 2) found /= 2;
        return found;
    }();

    static KM_DEVICE void wait_for_group(int group) {
        if (B::GROUP == 1) __syncwarp();
        else if (B::GROUP == B::WARPS) __syncthreads();
        else ptx::bar_sync<GROUP_THREADS>(group + 1);
    }
    // By how many numbers an address is behind a multiple of 16 bytes.
    static KM_DEVICE int shift_of(const T* at) { return (int)((unsigned long long)at % 16) / (int)sizeof(T); }

    // Starts the copies of a tile by the copy engine, which reads whole vectors: as far as 15 bytes before and behind what is there, but for
    // what lies in the vector in which x ends, at `end`, and is read by lanes.
    static KM_DEVICE void fetch(const Args& g, const Scheduler& p, const T* end, T* stage, unsigned barrier, int thread) {
        const T* const from = (const T*)g.x + p.at;
        const int count = p.items() * P1 * P2;
        if constexpr (APART) {
            if (thread == 0) ptx::mbarrier_arrive_expect_tx(barrier, count * (int)sizeof(T));
            for (int n = thread; n < p.items() * P1; n += GROUP_THREADS)
                ptx::cp_async_bulk(shared_address(stage + n * B::PITCH), from + n * P2, P2 * (int)sizeof(T), barrier);
        } else {
            const int shift = B::VECTOR == EACH ? 0 : shift_of(from), filled = shift + count, all = (filled + EACH - 1) / EACH * EACH;
            const int whole = B::VECTOR < EACH && from - shift + all > end ? all - EACH : all;
            if (thread == 0) {
                if (B::VECTOR < EACH) *(unsigned short*)(stage + B::STAGE - EACH) = shift;
                ptx::mbarrier_arrive_expect_tx(barrier, whole * (int)sizeof(T));
                if (whole > 0) ptx::cp_async_bulk(shared_address(stage), from - shift, whole * (int)sizeof(T), barrier);
            }
            if (B::VECTOR < EACH && whole < filled && thread < EACH) {
                const int at = whole + thread;
                if (at >= shift && at < filled) stage[at] = from[at - shift];
            }
        }
    }

    // A number's high halves, and what is left of them.
    struct Operand {
        unsigned high[2], low[SPLIT ? 2 : 1];
    };
    // Four neighbours of a row, which begins `at` numbers behind the beginning of a stage; of the last ones `left` are there.
    template <bool RAGGED>
    static KM_DEVICE Operand neighbours(const T* stage, unsigned at, int constant, int left, bool is_there, float by) {
        Operand found;
        if constexpr (SPLIT) {
            float v[4];
            constexpr int V = B::VECTOR;
#pragma unroll
            for (int i = 0; i < 4; i += V) {
                const Pack<T, V> own = read_pack<T, V>(stage + at + constant + i);
#pragma unroll
                for (int n = 0; n < V; ++n) v[i + n] = own.v[n];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) v[i] = (!RAGGED || i < left) && is_there ? v[i] * by : 0.0f;
#pragma unroll
            for (int i = 0; i < 2; ++i) kron_split<H, 3>(found.high[i], found.low[i], v[2 * i], v[2 * i + 1]);
        } else {
            if constexpr (B::VECTOR >= 4) {
                const uint2 own = *(const uint2*)(stage + at + constant);
                found.high[0] = own.x, found.high[1] = own.y;
            } else {
                const unsigned* const own = (const unsigned*)stage + at / 2 + constant / 2;
                const int shift = at % 2 * 16;
                found.high[0] = B::VECTOR == 2 ? own[0] : __funnelshift_r(own[0], own[1], shift);
                found.high[1] = B::VECTOR == 2 ? own[1] : __funnelshift_r(own[1], own[2], shift);
            }
            if (RAGGED) {
                found.high[0] &= left > 1 ? 0xffffffffu : left > 0 ? 0xffffu : 0u;
                found.high[1] &= left > 3 ? 0xffffffffu : left > 2 ? 0xffffu : 0u;
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) found.high[i] = is_there ? found.high[i] : 0u;
        }
        return found;
    }

    // The block of 16 x 16 of a factor as an operand, in the order of its registers.
    struct Block {
        unsigned high[4], low[4];
        KM_DEVICE void read(const unsigned* at) {
            const uint4 a = *(const uint4*)at;
            high[0] = a.x, high[1] = a.y, high[2] = a.z, high[3] = a.w;
            if constexpr (SPLIT) {
                const uint4 b = *(const uint4*)(at + 128);
                low[0] = b.x, low[1] = b.y, low[2] = b.z, low[3] = b.w;
            }
        }
    };
    struct LastBlocks {
        Block own[LAST_STAYS ? DEEP2 : 1][BLOCKS];
    };
    struct FirstBlocks {
        Block own[FIRST_STAYS ? WIDE1 : 1][DEEP1];
    };

    // Up to `rest` neighbours of a result to shared memory.
    static KM_DEVICE void keep(T* to, int rest, const float (&value)[4]) {
        if constexpr (SPLIT) {
            constexpr int V = B::VECTOR_OUT < 4 ? B::VECTOR_OUT : 4;
#pragma unroll
            for (int i = 0; i < 4; i += V) {
                Pack<T, V> pack;
#pragma unroll
                for (int n = 0; n < V; ++n) pack.v[n] = value[i + n];
                if (rest > i) *(Pack<T, V>*)(to + i) = pack;
            }
            return;
        }
        kron_keep<B::VECTOR_OUT>(to, rest, KronHalf<H>::pack(value[0], value[1]), KronHalf<H>::pack(value[2], value[3]));
    }

    // The power of two of an entry of the batch, of float32.
    static KM_DEVICE KronScale scale_of(const T* stage, int at, int lane) {
        KronScale found;
        if constexpr (SPLIT) {
            float top = 0.0f;
            constexpr int MANY = P1 * P2;
#pragma unroll 8
            for (int n = 0; n < MANY; n += 32)
                if (n + 32 <= MANY || n + lane < MANY) top = fmaxf(top, fabsf(read_pack<T, 1>(stage + at + n + lane).v[0]));
            found = KronScale(__uint_as_float(ptx::redux_max(__float_as_uint(top))));
        }
        return found;
    }

    // Multiplies BLOCKS times 16 q2 of TOGETHER entries: x in a stage, results to shared memory, and what comes between to `saved`. Calls
    // `halfway` before the first result.
    template <class Halfway>
    static KM_DEVICE void multiply(const T* stage, int shift, T* out, int shift_out, T* saved, const unsigned* last, const unsigned* first, const LastBlocks& lasts, const FirstBlocks& firsts, float back_last, float back, int unit, int lane, const Halfway& halfway) {
        const int entry = unit / PARTS * TOGETHER, block = PARTS == 1 ? 0 : unit % PARTS * BLOCKS, row = lane / 4, four = lane % 4 * 4;
        // How many of a lane's four neighbours of the last 16 are there.
        const int left = P2 - 16 * (DEEP2 - 1) - four;
        KronScale scale[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) scale[i] = scale_of(stage, shift + (entry + i) * P1 * B::PITCH, lane);
        unsigned high[STEPS][2 * BLOCKS][2], low[SPLIT ? STEPS : 1][2 * BLOCKS][2];
#pragma unroll
        for (int begin = 0; begin < STEPS; begin += AT_ONCE) {
            float sum[AT_ONCE][2][BLOCKS][4], small[SMALL ? AT_ONCE : 1][2][BLOCKS][4], total[FLUSHED ? AT_ONCE : 1][2][BLOCKS][4];
#pragma unroll
            for (int i = 0; i < AT_ONCE * 2 * BLOCKS * 4; ++i) {
                sum[i / (8 * BLOCKS)][i / (4 * BLOCKS) % 2][i / 4 % BLOCKS][i % 4] = 0.0f;
                if (SMALL) small[SMALL ? i / (8 * BLOCKS) : 0][i / (4 * BLOCKS) % 2][i / 4 % BLOCKS][i % 4] = 0.0f;
                if (FLUSHED) total[FLUSHED ? i / (8 * BLOCKS) : 0][i / (4 * BLOCKS) % 2][i / 4 % BLOCKS][i % 4] = 0.0f;
            }
            int at[AT_ONCE][2];
            bool is_there[AT_ONCE][2];
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const int step = begin + j, down = step % DEEP1 * 16, own = row + 8 * n;
                    const int there = down + 16 > P1 ? max(0, min(own, P1 - 1 - down)) : own;
                    at[j][n] = shift + ((entry + step / DEEP1) * P1 + there) * B::PITCH + four;
                    is_there[j][n] = down + 8 * n + 8 <= P1 || own + down < P1;
                }
            }
#pragma unroll
            for (int s = 0; s < DEEP2; ++s) {
                Block factor[BLOCKS];
#pragma unroll
                for (int b = 0; b < BLOCKS; ++b) {
                    if constexpr (LAST_STAYS) factor[b] = lasts.own[s][b];
                    else factor[b].read(last + (s * WIDE2 + (PARTS * BLOCKS == WIDE2 ? block + b : min(block + b, WIDE2 - 1))) * Last::BLOCK + lane * 4);
                }
                Operand own[AT_ONCE][2];
#pragma unroll
                for (int j = 0; j < 2 * AT_ONCE; ++j) {
                    const int step = begin + j / 2, down = step % DEEP1 * 16;
                    if (step >= STEPS || down + 8 * (j % 2) >= P1) continue;
                    own[j / 2][j % 2] = neighbours<(P2 % 16 > 0)>(stage, at[j / 2][j % 2], down * B::PITCH + 16 * s, s + 1 == DEEP2 ? left : 4, is_there[j / 2][j % 2], scale[step / DEEP1].by);
                }
                // The small products first, each after those of other sums.
#pragma unroll
                for (int kind = SPLIT ? 0 : 2; kind < 3; ++kind) {
#pragma unroll
                    for (int j = 0; j < 2 * AT_ONCE; ++j) {
                        const int step = begin + j / 2;
                        if (step >= STEPS || step % DEEP1 * 16 + 8 * (j % 2) >= P1) continue;
                        const Operand& x = own[j / 2][j % 2];
#pragma unroll
                        for (int b = 0; b < BLOCKS; ++b) {
                            if (SPLIT && kind == 0) ptx::mma_m16n8k16<H>(small[SMALL ? j / 2 : 0][j % 2][b], factor[b].low, x.high[0], x.high[1]);
                            if (SPLIT && kind == 1) ptx::mma_m16n8k16<H>(small[SMALL ? j / 2 : 0][j % 2][b], factor[b].high, x.low[0], x.low[SPLIT ? 1 : 0]);
                            if (kind == 2) ptx::mma_m16n8k16<H>(sum[j / 2][j % 2][b], factor[b].high, x.high[0], x.high[1]);
                        }
                    }
                }
                if (FLUSHED && s % 4 == 3 && s + 1 < DEEP2) {
#pragma unroll
                    for (int i = 0; i < AT_ONCE * 8 * BLOCKS; ++i) {
                        float& own = sum[i / (8 * BLOCKS)][i / (4 * BLOCKS) % 2][i / 4 % BLOCKS][i % 4];
                        total[FLUSHED ? i / (8 * BLOCKS) : 0][i / (4 * BLOCKS) % 2][i / 4 % BLOCKS][i % 4] += own, own = 0.0f;
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; ++j) {
                if (begin + j >= STEPS) continue;
#pragma unroll
                for (int b = 0; b < 2 * BLOCKS; ++b) {
#pragma unroll
                    for (int n = 0; n < 2; ++n) {
                        float own[2];
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const int r = b % 2 * 2 + i;
                            own[i] = sum[j][n][b / 2][r];
                            if (FLUSHED) own[i] += total[FLUSHED ? j : 0][n][b / 2][r];
                            if (SMALL) own[i] += small[SMALL ? j : 0][n][b / 2][r];
                            if constexpr (SAVES && SPLIT) {
                                const int p1 = (begin + j) % DEEP1 * 16 + 8 * n + lane % 4 * 2 + i, q2 = 16 * (block + b / 2) + row / 2 * 4 + row % 2 + b % 2 * 2;
                                if (p1 < P1 && q2 < Q2) saved[((entry + (begin + j) / DEEP1) * P1 + p1) * Q2 + q2] = own[i] * (back_last * scale[(begin + j) / DEEP1].back);
                            }
                            if (SPLIT) own[i] *= LESS;
                            else if (!B::FITS) own[i] *= back_last;
                        }
                        kron_split<H, SPLIT ? 3 : 1>(high[begin + j][b][n], low[SPLIT ? begin + j : 0][b][n], own[0], own[1]);
                    }
                }
                if constexpr (SAVES && !SPLIT) {
                    const int down = (begin + j) % DEEP1 * 16;
#pragma unroll
                    for (int n = 0; n < 2; ++n) {
                        if (down + 8 * n >= P1) continue;
                        const bool is_row = down + 8 * n + 8 <= P1 || down + 8 * n + row < P1;
                        T* const to = saved + ((entry + (begin + j) / DEEP1) * P1 + down + 8 * n + row) * Q2 + 16 * block + four;
#pragma unroll
                        for (int b = 0; b < BLOCKS; ++b) {
                            const unsigned one = ptx::transpose(high[begin + j][2 * b][n]), other = ptx::transpose(high[begin + j][2 * b + 1][n]);
                            kron_keep<B::VECTOR_SAVED>(to + 16 * b, is_row ? Q2 - 16 * (block + b) - four : 0, one, other);
                        }
                    }
                }
            }
        }
        halfway();
        // One by one: of several, instructions would come sum by sum, each of which waits for the one before.
#pragma unroll(FIRST_STAYS ? WIDE1 : 1)
        for (int w = 0; w < WIDE1; ++w) {
            float sum[TOGETHER][2 * BLOCKS][4], total[SPLIT && DEEP1 > 4 ? TOGETHER : 1][2 * BLOCKS][4];
#pragma unroll
            for (int i = 0; i < TOGETHER * BLOCKS * 8; ++i) sum[i / (8 * BLOCKS)][i / 4 % (2 * BLOCKS)][i % 4] = 0.0f;
            // Small products come first.
#pragma unroll
            for (int n = SPLIT ? 0 : 2 * DEEP1; n < 3 * DEEP1; ++n) {
                const int kind = n / DEEP1, k = n % DEEP1;
                Block factor;
                if constexpr (FIRST_STAYS) factor = firsts.own[w][k];
                else factor.read(first + (k * WIDE1 + w) * First::BLOCK + lane * 4);
#pragma unroll
                for (int i = 0; i < TOGETHER * 2 * BLOCKS; ++i) {
                    const int b = i % (2 * BLOCKS);
                    const unsigned(&own)[2] = kind == 1 ? low[SPLIT ? i / (2 * BLOCKS) * DEEP1 + k : 0][b] : high[i / (2 * BLOCKS) * DEEP1 + k][b];
                    ptx::mma_m16n8k16<H>(sum[i / (2 * BLOCKS)][b], SPLIT && kind == 0 ? factor.low : factor.high, own[0], own[1]);
                }
                if (SPLIT && DEEP1 > 4 && kind == 2 && (k % 4 == 3 || k + 1 == DEEP1)) {
#pragma unroll
                    for (int i = 0; i < TOGETHER * 8 * BLOCKS; ++i) {
                        float& own = sum[i / (8 * BLOCKS)][i / 4 % (2 * BLOCKS)][i % 4];
                        float& all = total[SPLIT && DEEP1 > 4 ? i / (8 * BLOCKS) : 0][i / 4 % (2 * BLOCKS)][i % 4];
                        all = k < 4 ? own : all + own;
                        own = k + 1 < DEEP1 ? 0.0f : all;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                const float by = SPLIT ? back * scale[i].back : back;
                if (SPLIT || by != 1.0f) {
#pragma unroll
                    for (int n = 0; n < 8 * BLOCKS; ++n) sum[i][n / 4][n % 4] *= by;
                }
                const int begins = shift_out + (entry + i) * Q1 * Q2;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int q1 = 16 * w + 8 * h + row;
                    const int to = begins + q1 * Q2 + 16 * block + four;
#pragma unroll
                    for (int b = 0; b < BLOCKS; ++b) {
                        // How many of a lane's four results are there.
                        const int there = PARTS == 1 && 16 * b + 16 <= Q2 ? 4 : Q2 - 16 * (block + b) - four;
                        const int rest = 16 * w + 8 * h + 8 <= Q1 || q1 < Q1 ? there : 0;
                        float value[4];
#pragma unroll
                        for (int n = 0; n < 4; ++n) value[n] = sum[i][2 * b + n / 2][2 * h + n % 2];
                        keep(out + to + 16 * b, rest, value);
                    }
                }
            }
        }
    }

    static __device__ void run(const Args& g) {
        kron_wait();  // most passes of this kind are the first ones
        extern __shared__ __align__(128) unsigned char raw[];
        __shared__ float tops[2 * B::WARPS];
        __shared__ float backs[2];
        __shared__ unsigned long long barriers[GROUPS * B::STAGES];
        unsigned* const last = (unsigned*)raw;
        unsigned* const first = last + Last::WORDS;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / B::GROUP, own = warp % B::GROUP, thread = threadIdx.x % GROUP_THREADS;
        T* const stages = (T*)(last + FACTOR_WORDS) + group * OWN;
        T* const outs = stages + B::STAGES * B::STAGE;
        const unsigned full = shared_address(barriers + group * B::STAGES);
        const int tiles = (int)kron_tiles<B::ITEMS, 1>(g), apart = gridDim.x * GROUPS, begin = group * gridDim.x + blockIdx.x;
        Scheduler here(g, g.out_stride, begin, apart, false), ahead(g, g.x_stride, begin, apart, false);
        const T* const end = kron_end_of<T>(g);
        int left = begin < tiles ? (tiles - begin + apart - 1) / apart : 0;
        if (threadIdx.x == 0) {
#pragma unroll
            for (int n = 0; n < GROUPS * B::STAGES; ++n) ptx::mbarrier_init(shared_address(barriers + n), 1);
            ptx::fence_mbarrier_init();
        }
        __syncthreads();
        State filled, used;
        const auto prefetch = [&]() {
            if (left > 0) {
                fetch(g, ahead, end, stages + filled.stage * B::STAGE, full + 8 * filled.stage, thread);
                ahead.advance();
                --left;
            }
            filled.advance();
        };
#pragma unroll 1
        for (int s = 0; s < B::STAGES; ++s) prefetch();
        B::prepare(last, first, backs, tops, g);
        __syncthreads();
        const float back_last = backs[0], back = SPLIT ? backs[1] * backs[0] / LESS * (float)g.alpha : backs[1] * (float)g.alpha;
        LastBlocks lasts;
        FirstBlocks firsts;
#pragma unroll
        for (int i = 0; i < (LAST_STAYS ? DEEP2 * BLOCKS : 0); ++i) lasts.own[LAST_STAYS ? i / BLOCKS : 0][i % BLOCKS].read(last + (i / BLOCKS * WIDE2 + i % BLOCKS) * Last::BLOCK + lane * 4);
#pragma unroll
        for (int i = 0; i < (FIRST_STAYS ? WIDE1 * DEEP1 : 0); ++i) firsts.own[FIRST_STAYS ? i / DEEP1 : 0][i % DEEP1].read(first + (i % DEEP1 * WIDE1 + i / DEEP1) * First::BLOCK + lane * 4);
        int slot = 0;
#pragma unroll 1
        for (int t = begin; t < tiles; t += apart, here.advance()) {
            T* const to = (T*)g.out + here.at;
            T* const rows = outs + slot * B::OUT_STAGE;
            const int shift_out = B::VECTOR_OUT == EACH ? 0 : shift_of(to);
            // What is saved lies in one piece.
            T* const between = (T*)g.y + (i64)t * (B::ITEMS * P1 * Q2);
            T* const saved = outs + B::OUTS * B::OUT_STAGE;
            const int shift_saved = !SAVES || B::VECTOR_SAVED == EACH ? 0 : shift_of(between);
            const auto leave = [&]() {
                kron_leave<B::VECTOR_SAVED>(saved, between, shift_saved, here.items() * P1 * Q2, thread);
                if (thread == 0) ptx::cp_async_bulk_commit_group();
            };
            // The results before leave at most until those of this tile are there, which begin halfway.
            const auto halfway = [&]() {
                if constexpr (SAVES && ONCE) {
                    ptx::fence_proxy_async();
                    if (thread == 0) ptx::cp_async_bulk_wait_group_read<0>();
                    wait_for_group(group);
                    leave();
                }
            };
            if (thread == 0) ptx::cp_async_bulk_wait_group_read<SAVES && !ONCE ? 0 : SAVES ? 1 : B::OUTS - 1>();
            wait_for_group(group);
            ptx::mbarrier_wait_parity(full + 8 * used.stage, used.phase);
            const T* const stage = stages + used.stage * B::STAGE;
            const int shift = B::VECTOR == EACH ? 0 : *(const unsigned short*)(stage + B::STAGE - EACH);
#pragma unroll 1
            for (int unit = own; unit < UNITS; unit += B::GROUP) multiply(stage, shift, rows, shift_out, saved + shift_saved, last, first, lasts, firsts, back_last, back, unit, lane, halfway);
            if (own >= UNITS) halfway();
            ptx::fence_proxy_async();
            wait_for_group(group);
            prefetch();
            used.advance();
            kron_leave<B::VECTOR_OUT>(rows, to, shift_out, here.items() * Q1 * Q2, thread);
            if (thread == 0) ptx::cp_async_bulk_commit_group();
            if constexpr (SAVES && !ONCE) leave();
            slot = slot + 1 < B::OUTS ? slot + 1 : 0;
        }
        if (thread == 0) ptx::cp_async_bulk_wait_group_read<0>();
    }
};

}  // namespace km

// The gradient of a factor of a Kronecker product, a product with a long sum:
//   out[q, p] = sum over l and r of v[l, q, r] u[l, p, r].
// Every block sums its share of the positions (l, r) on tensor cores (split-K); shares are added up in a fixed order by
// another kernel, unless there is only one.
//
// A kernel that APPLIES the factor also writes v with its transpose applied, applied[l, p, r] = sum over q of factor[q, p] v[l, q, r],
// from the same read of v.
//
// Halves are exact in one product; float32 is split (kron_gram_split.cuh). Accumulators of tensor cores round towards zero: those
// of halves are added to sums in shared memory after FLUSH stages.
#pragma once
#include "pipeline.cuh"
#include "reduce.cuh"
#include "split_hi_lo.cuh"

namespace km {

// How entries and positions lie in memory and in a stage. ROWS: right = 1, a position's entries follow each other. ALONG: so do
// positions, by long runs, and a stage has them beside each other. FLAT: the entries of one l, RIGHT positions each, are copied
// as they follow each other and are separated on the way.
enum GramOrder { GRAM_ROWS, GRAM_ALONG, GRAM_FLAT };

// One operand (count, EXTENT, right): CAPACITY of its axis by DEEP positions in a stage, VEC neighbours a copy.
template <class T, int ORDER, int EXTENT, int CAPACITY, int DEEP, int RIGHT, int VEC, int THREADS>
struct GramTile {
    static constexpr bool ALONG = ORDER == GRAM_ALONG, FLAT = ORDER == GRAM_FLAT;
    static constexpr int BYTES = VEC * (int)sizeof(T);
    // Asynchronous copies take 4 bytes or more, to where they can stay; others go through registers, a stage ahead.
    static constexpr bool ASYNC = FLAT ? sizeof(T) == 4 : BYTES >= 4;
    static constexpr int PITCH = ALONG ? DEEP + 16 / (int)sizeof(T) : CAPACITY + 8, APART = PITCH * (ALONG ? CAPACITY : DEEP);
    // Entries of l that a stage takes, and neighbours of one l.
    static constexpr int ITEMS = FLAT ? DEEP / RIGHT : DEEP, RUN = (EXTENT < CAPACITY ? EXTENT : CAPACITY) * RIGHT;
    // Runs of float32 that are copied as they lie, by 16 bytes, and set apart when they are read.
    static constexpr bool LIES = FLAT && ASYNC && VEC == 4;
    static constexpr int SIZE = LIES ? (ITEMS * RUN + 6) / 4 * 4 : APART;
    static constexpr int WIDTH = FLAT && ASYNC ? 1 : VEC;
    static constexpr int ACROSS = (ALONG ? DEEP : CAPACITY) / WIDTH;
    static constexpr int COPIES = FLAT ? ITEMS * RUN / WIDTH : CAPACITY * DEEP / WIDTH, ROUNDS = (COPIES + THREADS - 1) / THREADS;
    static constexpr int ENTRIES = EXTENT, POSITIONS = RIGHT;
    typedef Pack<T, WIDTH> Taken;
    static_assert(FLAT || THREADS % ACROSS == 0, "a thread copies from one column");
    static_assert(!FLAT || RUN % WIDTH == 0, "no copy has entries of two l");
    static_assert(!LIES || EXTENT <= CAPACITY, "what a stage takes lies in one piece");

    // Where a stage has an entry and a position.
    static __device__ __forceinline__ int spot(int entry, int position) { return ALONG ? entry * PITCH + position : position * PITCH + entry; }

    // Calls give(n, where in memory, whether it is there, place in the stage or first number of its run) for the copies of
    // this thread; l and r are of its column where positions follow each other.
    template <class Give>
    static __device__ __forceinline__ void each(const T* from, i64 begin, i64 count, i64 right, i64 l, i64 r, int first, const Give& give) {
        if (FLAT) {
            const T* own = from + begin * (EXTENT * RIGHT) + first * RIGHT;
            int mine = threadIdx.x;
            ptx::opaque(mine);  // places are worked out anew, which takes less registers than to keep them
#pragma unroll
            for (int n = 0; n < ROUNDS; ++n) {
                const int copy = mine + n * THREADS, item = copy * WIDTH / RUN, along = copy * WIDTH % RUN;
                if (COPIES % THREADS && copy >= COPIES) break;
                const bool valid = begin + item < count && (EXTENT <= CAPACITY || along < (EXTENT - first) * RIGHT);
                give(n, own + item * (EXTENT * RIGHT) + along, valid, copy * WIDTH);
            }
            return;
        }
        const int along = threadIdx.x % ACROSS * WIDTH, down = threadIdx.x / ACROSS, at = down * PITCH + along;
        int entry = first + (ALONG ? down : along);
        i64 position = begin + (ALONG ? along : down);
        const T* own = from + (ALONG ? (l * EXTENT + entry) * right + r : position * EXTENT + entry);
        const i64 step = THREADS / ACROSS * (ALONG ? right : EXTENT);
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            if (COPIES % THREADS && threadIdx.x + n * THREADS >= COPIES) break;
            give(n, own, entry < EXTENT && position < count, at + n * (THREADS / ACROSS) * PITCH);
            own += step;
            if (ALONG) entry += THREADS / ACROSS;
            else position += THREADS / ACROSS;
        }
    }
    // Place of a number of a run of neighbours, the entries of some l.
    static __device__ __forceinline__ int separated(int number) {
        const int along = number % RUN;
        return spot(along / RIGHT, number / RUN * RIGHT + along % RIGHT);
    }

    // How many numbers of the first 16 bytes of a run do not belong to it.
    static __device__ __forceinline__ int shift(i64 begin) { return (int)(begin * RUN) & 3; }
    static __device__ __forceinline__ void fetch_run(T* to, const T* from, i64 begin, i64 count) {
        const int before = shift(begin), length = before + (int)min((i64)ITEMS, count - begin) * RUN;
        const T* own = from + begin * RUN - before;
#pragma unroll 2
        for (int at = threadIdx.x * 4; at < length / 4 * 4; at += THREADS * 4) ptx::cp_async<16>(shared_address(to + at), own + at, 16);
        const int last = length / 4 * 4 + threadIdx.x;
        if (last < length) ptx::cp_async<4>(shared_address(to + last), own + last, 4);
    }
    static __device__ __forceinline__ void fetch(T* to, const T* from, i64 begin, i64 count, i64 right, i64 l, i64 r, int first) {
        if constexpr (LIES) {
            fetch_run(to, from, begin, count);
            return;
        }
        each(from, begin, count, right, l, r, first, [&](int, const T* own, bool valid, int at) {
            constexpr int WIDE = ASYNC ? WIDTH * (int)sizeof(T) : 4;
            ptx::cp_async<WIDE>(shared_address(to + (FLAT ? separated(at) : at)), valid ? own : from, valid ? WIDE : 0);
        });
    }
    static __device__ __forceinline__ void load(Taken (&staged)[ROUNDS], const T* from, i64 begin, i64 count, i64 right, i64 l, i64 r, int first) {
        each(from, begin, count, right, l, r, first, [&](int n, const T* own, bool valid, int) {
            staged[n] = Taken{};
            if (valid) staged[n] = load_pack<T, WIDTH>(own);
        });
    }
    static __device__ __forceinline__ void store(T* to, const Taken (&staged)[ROUNDS]) {
        int mine = threadIdx.x;
        ptx::opaque(mine);
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            const int copy = mine + n * THREADS;
            if (COPIES % THREADS && copy >= COPIES) break;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) to[FLAT ? separated(copy * WIDTH + i) : copy / ACROSS * PITCH + copy % ACROSS * WIDTH + i] = staged[n].v[i];
        }
    }
    // Positions of a stage that no l has.
    static __device__ void clear(T* to) {
        constexpr int USED = ITEMS * RIGHT;
        if constexpr (FLAT && USED < DEEP)
            for (int n = threadIdx.x; n < (DEEP - USED) * PITCH; n += THREADS) to[USED * PITCH + n] = T{};
    }

    // 16 x 16 entries and positions from there on as a left operand, or 16 entries as two right operands of 8.
    template <bool LEFT>
    static __device__ __forceinline__ void take(unsigned (&to)[4], unsigned tile, int entry, int position, int lane) {
        const int low = lane % 16, high = lane / 16 * 8, inner = lane % 8, outer = lane / 8 % 2 * 8;
        if (ALONG) {
            const int e = entry + (LEFT ? low : inner + high), k = position + (LEFT ? high : outer);
            ptx::ldmatrix_x4(to, tile + 2 * (e * PITCH + k));
        } else {
            const int e = entry + (LEFT ? outer : high), k = position + (LEFT ? inner + high : low);
            ptx::ldmatrix_x4_trans(to, tile + 2 * (k * PITCH + e));
        }
    }
};

// Where the positions of a chunk begin, and l and r of this thread's column of either operand where positions follow each other.
template <class Tile>
struct GramChunk {
    i64 begin, l = 0, r = 0;
    KM_DEVICE GramChunk(i64 chunk, i64 count, i64 right) : begin(chunk * Tile::ITEMS) {
        if (!Tile::ALONG) return;
        const i64 mine = begin + threadIdx.x % Tile::ACROSS * Tile::WIDTH;
        l = count < 0x7fffffffll ? (unsigned)mine / (unsigned)right : mine / right;
        r = mine - l * right;
    }
};

// A warp's part of its block's tile of the result, that tile's first row and column, and the block's share of the chunks.
template <class B, int CAPACITY_Q, int CAPACITY_P>
struct GramWarp {
    static constexpr int DOWN = (B::Q + CAPACITY_Q - 1) / CAPACITY_Q, ACROSS = (B::P + CAPACITY_P - 1) / CAPACITY_P;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int wq = warp % B::WARPS_Q, wp = warp / B::WARPS_Q % B::WARPS_P, wk = warp / (B::WARPS_Q * B::WARPS_P);
    const int tile = blockIdx.x % (DOWN * ACROSS), share = blockIdx.x / (DOWN * ACROSS), shares = gridDim.x / (DOWN * ACROSS);
    const int q0 = tile / ACROSS * CAPACITY_Q, p0 = tile % ACROSS * CAPACITY_P;

    // The last chunk of the share.
    KM_DEVICE i64 last(i64 chunks) const { return share + (chunks - 1 - share) / shares * shares; }
    // The sums of all warps to shared memory as (WARPS_K, CAPACITY_Q, CAPACITY_P), then those of one entry to the result, in float32
    // where it is one of several shares.
    KM_DEVICE void write(void* out, const float (&sum)[B::MQ][B::NP][4], float* shared) const {
        typedef typename B::T T;
        constexpr int THREADS = 32 * B::WARPS_Q * B::WARPS_P * B::WARPS_K;
#pragma unroll
        for (int m = 0; m < B::MQ; ++m)
            store_fragments<CAPACITY_P>(shared + (wk * CAPACITY_Q + (wq * B::MQ + m) * 16 + lane / 4) * CAPACITY_P + wp * B::NP * 8 + lane % 4 * 2, sum[m]);
        __syncthreads();
        float* own = (float*)out + (shares > 1 ? (i64)share * B::Q * B::P : 0);
        for (int n = threadIdx.x; n < CAPACITY_Q * CAPACITY_P; n += THREADS) {
            const int q = q0 + n / CAPACITY_P, p = p0 + n % CAPACITY_P;
            const float total = sum_over_warps<B::WARPS_K, CAPACITY_Q * CAPACITY_P>(shared + n);
            if (q >= B::Q || p >= B::P) continue;
            if (shares > 1) own[q * B::P + p] = total;
            else ((T*)own)[q * B::P + p] = Store<T>::from(total);
        }
    }
};

// The factor's transpose applied to a chunk of v: the factor as left operands of type H, in PLANES parts, and the results of a chunk as
// Right has its operand in a stage. V has v in a stage, its rests REST numbers behind.
template <class B, class H, class V, class Right, int PLANES, int REST>
struct GramApply {
    typedef typename B::T T;
    static constexpr int WARPS = B::WARPS_Q * B::WARPS_P * B::WARPS_K, THREADS = 32 * WARPS;
    static constexpr int DOWN = (B::P + 15) / 16, STEPS = (B::Q + 15) / 16, PITCH = 16 * STEPS + 8, PLANE = 16 * DOWN * PITCH;
    static constexpr int UNITS = DOWN * (B::DEEP / 16), ROUNDS = (UNITS + WARPS - 1) / WARPS;
    static constexpr bool LIES = Right::LIES;
    // Bytes of shared memory.
    static constexpr int TABLE_BYTES = B::APPLIES ? 2 * PLANES * PLANE : 0, BYTES = TABLE_BYTES + (B::APPLIES ? (int)sizeof(T) * (LIES ? Right::SIZE : Right::APART) : 0);

    // The factor to a table; returns what its entries were divided by.
    template <class Factor>
    static __device__ float prepare(H* table, const Factor& factor, unsigned* tops) {
        const auto entry = [&](int n) { return n % PITCH < B::Q && n / PITCH < B::P ? factor(n % PITCH, n / PITCH) : 0.0f; };
        if constexpr (PLANES == 1) {
            for (int n = threadIdx.x; n < PLANE; n += THREADS) table[n] = Store<H>::from(entry(n));
            return 1.0f;
        } else {
            float top = 0.0f;
            for (int n = threadIdx.x; n < PLANE; n += THREADS) top = fmaxf(top, fabsf(entry(n)));
            const unsigned of_warp = ptx::redux_max(__float_as_uint(top)), lane = threadIdx.x % 32;
            if (lane == 0) tops[threadIdx.x / 32] = of_warp;
            __syncthreads();
            const HalfScale own = HalfScale::of_exponent(ptx::redux_max(tops[lane < WARPS ? lane : 0]) >> 23);
            for (int n = 2 * threadIdx.x; n < PLANE; n += 2 * THREADS) {
                unsigned high, rest;
                split_f16x2(high, rest, entry(n), entry(n + 1), own.scale);
                *(unsigned*)(table + n) = high;
                *(unsigned*)(table + PLANE + n) = rest;
            }
            return own.inverse;
        }
    }

    // The results of a chunk, times two numbers.
    static __device__ __forceinline__ void run(T* to, const H* table, const H* v, float one, float other, i64 chunk, int warp, int lane) {
        const int i = lane / 8, r = lane % 8;
        const unsigned a_at = shared_address(table + (r + i % 2 * 8) * PITCH + i / 2 * 8);
        const unsigned b_at = shared_address(v + (V::ALONG ? (r + i % 2 * 8) * V::PITCH + i / 2 * 8 : (r + i / 2 * 8) * V::PITCH + i % 2 * 8));
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
            const int unit = warp + round * WARPS, m = unit % DOWN * 16, position = unit / DOWN * 16;
            if (UNITS % WARPS && unit >= UNITS) break;
            float out[2][4] = {};
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                unsigned a[PLANES][4], b[PLANES][4];
#pragma unroll
                for (int plane = 0; plane < PLANES; ++plane) {
                    ptx::ldmatrix_x4(a[plane], a_at + 2 * (plane * PLANE + m * PITCH + step * 16));
                    const unsigned from = b_at + 2 * (plane * REST + (V::ALONG ? step * 16 * V::PITCH + position : position * V::PITCH + step * 16));
                    if (V::ALONG) ptx::ldmatrix_x4_trans(b[plane], from);
                    else ptx::ldmatrix_x4(b[plane], from);
                }
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (PLANES == 2) {
                        ptx::mma_m16n8k16<H>(out[h], a[PLANES - 1], b[0][2 * h], b[0][2 * h + 1]);
                        ptx::mma_m16n8k16<H>(out[h], a[0], b[PLANES - 1][2 * h], b[PLANES - 1][2 * h + 1]);
                    }
                    ptx::mma_m16n8k16<H>(out[h], a[0], b[0][2 * h], b[0][2 * h + 1]);
                }
            }
#pragma unroll
            for (int n = 0; n < 8; n += 2) {
                const int entry = m + lane / 4 + n / 2 % 2 * 8, column = position + n / 4 * 8 + lane % 4 * 2;
                const float first = out[n / 4][n % 4] * one * other, second = out[n / 4][n % 4 + 1] * one * other;
                if constexpr (LIES) {
                    const int before = Right::shift(chunk * Right::ITEMS);
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int item = (column + j) / Right::POSITIONS, r = (column + j) % Right::POSITIONS;
                        if (item < Right::ITEMS && entry < B::P) to[before + item * Right::RUN + entry * Right::POSITIONS + r] = Store<T>::from(j ? second : first);
                    }
                } else if (Right::ALONG) {
                    *(Pack<T, 2>*)(to + Right::spot(entry, column)) = Pack<T, 2>{Store<T>::from(first), Store<T>::from(second)};
                } else {
                    to[Right::spot(entry, column)] = Store<T>::from(first);
                    to[Right::spot(entry, column + 1)] = Store<T>::from(second);
                }
            }
        }
    }

    // Those of a chunk to memory.
    static __device__ __forceinline__ void write(T* applied, const T* from, i64 chunk, i64 count, i64 right) {
        if constexpr (LIES) {
            const i64 begin = chunk * Right::ITEMS;
            const int before = Right::shift(begin), length = before + (int)min((i64)Right::ITEMS, count - begin) * Right::RUN;
            T* own = applied + begin * Right::RUN - before;
            for (int at = threadIdx.x * 4; at < length; at += THREADS * 4) {
                if (at >= before && at + 4 <= length) store_pack<T, 4>(own + at, *(const Pack<T, 4>*)(from + at));
                else
                    for (int i = max(at, before); i < min(at + 4, length); ++i) own[i] = from[i];
            }
            return;
        }
        const GramChunk<Right> own(chunk, count, right);
        Right::each(applied, own.begin, count, right, own.l, own.r, 0, [&](int, const T* to, bool valid, int at) {
            typename Right::Taken pack;
            if (Right::FLAT) {
#pragma unroll
                for (int i = 0; i < Right::WIDTH; ++i) pack.v[i] = from[Right::separated(at + i)];
            } else {
                pack = *(const typename Right::Taken*)(from + at);
            }
            if (valid) store_pack<T, Right::WIDTH>((T*)to, pack);
        });
    }
};

// B: the type T, extents Q and P, warps in each direction and 16 rows (MQ) and 8 columns (NP) of each, DEEP and STAGES of the
// tile, ORDER, RIGHT (1 unless runs are copied as they lie), how wide copies are and whether it APPLIES the factor, of one tile then.
template <class B>
struct KronGram {
    typedef typename B::T T;
    static constexpr int THREADS = 32 * B::WARPS_Q * B::WARPS_P * B::WARPS_K, MQ = B::MQ, NP = B::NP, DEEP = B::DEEP;
    static constexpr int CAPACITY_Q = 16 * MQ * B::WARPS_Q, CAPACITY_P = 8 * NP * B::WARPS_P;
    typedef GramWarp<B, CAPACITY_Q, CAPACITY_P> Warp;
    typedef GramTile<T, B::ORDER, B::Q, CAPACITY_Q, DEEP, B::RIGHT, B::VEC_V, THREADS> Left;
    typedef GramTile<T, B::ORDER, B::P, CAPACITY_P, DEEP, B::RIGHT, B::VEC_U, THREADS> Right;
    typedef CopyPipeline<B::STAGES> Pipeline;
    static constexpr bool FLAT = B::ORDER == GRAM_FLAT;
    static constexpr int STAGE = Left::SIZE + Right::SIZE;
    // Bytes of shared memory: the stages, and the sums of all warps.
    static constexpr int STAGES_BYTES = B::STAGES * STAGE * (int)sizeof(T), SUMS_BYTES = B::WARPS_K * CAPACITY_Q * CAPACITY_P * 4;
    typedef GramApply<B, T, Left, Right, 1, 0> Apply;
    static constexpr int SHARED_BYTES = STAGES_BYTES + SUMS_BYTES + Apply::BYTES;
    static constexpr int FLUSH = 32;

    // Adds the products of one stage of halves to sums.
    static __device__ __forceinline__ void multiply(float (&sum)[MQ][NP][4], const T* stage, const Warp& at) {
        const unsigned left = shared_address(stage), right = shared_address(stage + Left::SIZE);
#pragma unroll
        for (int s = 0; s < DEEP / 16 / B::WARPS_K; ++s) {
            const int k = (at.wk + s * B::WARPS_K) * 16;
            unsigned a[MQ][4], b[NP / 2][4];
#pragma unroll
            for (int m = 0; m < MQ; ++m) Left::template take<true>(a[m], left, (at.wq * MQ + m) * 16, k, at.lane);
#pragma unroll
            for (int n = 0; n < NP / 2; ++n) Right::template take<false>(b[n], right, (at.wp * NP + 2 * n) * 8, k, at.lane);
#pragma unroll
            for (int m = 0; m < MQ; ++m)
#pragma unroll
                for (int n = 0; n < NP; ++n) ptx::mma_m16n8k16<T>(sum[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
    // Moves sums of halves to this thread's in shared memory, which they are added to unless they are the FIRST; LAST: back.
    static __device__ __forceinline__ void flush(float (&sum)[MQ][NP][4], float* flushed, bool first, bool last) {
#pragma unroll
        for (int i = 0; i < MQ * NP * 4; ++i) {
            float& own = sum[i / (4 * NP)][i / 4 % NP][i % 4];
            float& other = flushed[i * THREADS + threadIdx.x];
            const float total = first ? own : own + other;
            if (!last) other = total;
            own = last ? total : 0.0f;
        }
    }
    static __device__ void run(const T* v, const T* u, void* out, i64 items, i64 right) {
        run(v, u, out, items, right, nullptr, 0.0f, [](int, int) { return 0.0f; });
    }
    // `applied` takes v with the transpose of `factor`, entries by (q, p), applied, times `slope`.
    template <class Factor>
    static __device__ void run(const T* v, const T* u, void* out, i64 items, i64 right, T* applied, float slope, const Factor& factor) {
        extern __shared__ __align__(16) unsigned char raw[];
        T* stages = (T*)raw;
        T* const table = (T*)(raw + STAGES_BYTES + SUMS_BYTES);
        T* const staged = (T*)(raw + STAGES_BYTES + SUMS_BYTES + Apply::TABLE_BYTES);
        const Warp at;
        const int share = at.share, shares = at.shares;
        const i64 count = FLAT ? items : items * right, chunks = (count + Left::ITEMS - 1) / Left::ITEMS;
        i64 ahead = share;
        const auto prefetch = [&](int slot) {
            if (ahead < chunks) {
                const GramChunk<Left> own(ahead, count, right);
                T* stage = stages + slot * STAGE;
                if constexpr (Left::ASYNC) Left::fetch(stage, v, own.begin, count, right, own.l, own.r, at.q0);
                if constexpr (Right::ASYNC) Right::fetch(stage + Left::SIZE, u, own.begin, count, right, own.l, own.r, at.p0);
            }
            ahead += shares;
            Pipeline::commit();
        };
        typename Left::Taken of_v[Left::ROUNDS];
        typename Right::Taken of_u[Right::ROUNDS];
        const auto load = [&](i64 chunk) {
            if (!(Left::ASYNC && Right::ASYNC) && chunk < chunks) {
                const GramChunk<Left> own(chunk, count, right);
                if constexpr (!Left::ASYNC) Left::load(of_v, v, own.begin, count, right, own.l, own.r, at.q0);
                if constexpr (!Right::ASYNC) Right::load(of_u, u, own.begin, count, right, own.l, own.r, at.p0);
            }
        };
        const auto store = [&](T* stage) {
            if constexpr (!Left::ASYNC) Left::store(stage, of_v);
            if constexpr (!Right::ASYNC) Right::store(stage + Left::SIZE, of_u);
        };
        if constexpr (B::APPLIES) {
            Apply::prepare(table, factor, nullptr);
            if (FLAT)  // places of no number
                for (int n = threadIdx.x; n < B::STAGES * STAGE; n += THREADS) stages[n] = T{};
            __syncthreads();
        }
        float sum[MQ][NP][4] = {};
#pragma unroll 1
        for (int s = 0; s < B::STAGES; ++s) {
            Left::clear(stages + s * STAGE);
            Right::clear(stages + s * STAGE + Left::SIZE);
        }
        load(share);
#pragma unroll 1
        for (int s = 0; s + 1 < B::STAGES; ++s) prefetch(s);
        if (share < chunks) store(stages);
        Pipeline pipeline;
        float* flushed = (float*)(raw + STAGES_BYTES);
        int taken = 0;
        bool is_first = true;
#pragma unroll 1
        for (i64 chunk = share; chunk < chunks; chunk += shares, pipeline.advance()) {
            Pipeline::wait();
            __syncthreads();
            prefetch(pipeline.previous());
            load(chunk + shares);
            const T* stage = stages + pipeline.stage * STAGE;
            if constexpr (B::APPLIES)
                if (chunk != share) Apply::write(applied, staged, chunk - shares, count, right);
            multiply(sum, stage, at);
            if constexpr (B::APPLIES) {
                __syncthreads();
                Apply::run(staged, table, stage, slope, 1.0f, chunk, at.warp, at.lane);
            }
            if (chunk + shares < chunks) store(stages + pipeline.next() * STAGE);
            if (++taken == FLUSH) {
                flush(sum, flushed, is_first, false);
                taken = 0;
                is_first = false;
            }
        }
        if (!is_first) flush(sum, flushed, false, true);
        ptx::cp_async_wait_all();
        __syncthreads();
        if constexpr (B::APPLIES)
            if (share < chunks) Apply::write(applied, staged, at.last(chunks), count, right);
        at.write(out, sum, (float*)raw);
    }
};

// The sum over shares of each of `size` entries, 32 of them by a block of 1024 threads: a warp has every 32nd share. `target` says
// where an entry goes.
template <class T, class Target>
KM_DEVICE void kron_gram_total(const float* parts, T* out, int shares, int size, const Target& target) {
    __shared__ float sums[32][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, entry = blockIdx.x * 32 + lane;
    float total = 0.0f;
    if (entry < size) {
#pragma unroll 8
        for (int share = warp; share < shares; share += 32) total += __ldg(parts + (i64)share * size + entry);
    }
    sums[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && entry < size) out[target(entry)] = Store<T>::from(sum_over_warps<32, 32>(&sums[0][lane]));
}

}  // namespace km

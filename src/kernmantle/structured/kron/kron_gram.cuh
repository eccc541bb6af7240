// The gradient of a factor of a Kronecker product, a product with a long sum:
//   out[q, p] = sum over l and r of v[l, q, r] u[l, p, r].
// Every block sums its share of the positions (l, r) on tensor cores (split-K); shares are added up in a fixed order by
// another kernel, unless there is only one.
//
// Halves are exact in one product; float32 is split (kron_gram_split.cuh). Accumulators of tensor cores round towards zero: those
// of halves are added to sums in shared memory after FLUSH stages.
#pragma once
#include "pipeline.cuh"
#include "reduce.cuh"

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
    static constexpr int PITCH = ALONG ? DEEP + 16 / (int)sizeof(T) : CAPACITY + 8;
    static constexpr int SIZE = PITCH * (ALONG ? CAPACITY : DEEP);
    // Entries of l that a stage takes, and neighbours of one l.
    static constexpr int ITEMS = FLAT ? DEEP / RIGHT : DEEP, RUN = (EXTENT < CAPACITY ? EXTENT : CAPACITY) * RIGHT;
    static constexpr int WIDTH = FLAT && ASYNC ? 1 : VEC;
    static constexpr int ACROSS = (ALONG ? DEEP : CAPACITY) / WIDTH;
    static constexpr int COPIES = FLAT ? ITEMS * RUN / WIDTH : CAPACITY * DEEP / WIDTH, ROUNDS = (COPIES + THREADS - 1) / THREADS;
    typedef Pack<T, WIDTH> Taken;
    static_assert(FLAT || THREADS % ACROSS == 0, "a thread copies from one column");
    static_assert(!FLAT || RUN % WIDTH == 0, "no copy has entries of two l");

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

    static __device__ __forceinline__ void fetch(T* to, const T* from, i64 begin, i64 count, i64 right, i64 l, i64 r, int first) {
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

// The sums of all warps to shared memory as (WARPS_K, CAPACITY_Q, CAPACITY_P), then those of one entry to the result, in
// float32 where it is one of several shares.
template <class B, int CAPACITY_Q, int CAPACITY_P>
KM_DEVICE void kron_gram_write(void* to, const float (&sum)[B::MQ][B::NP][4], float* shared, int wq, int wp, int wk, int lane, int q0, int p0, bool is_share) {
    typedef typename B::T T;
    constexpr int THREADS = 32 * B::WARPS_Q * B::WARPS_P * B::WARPS_K;
#pragma unroll
    for (int m = 0; m < B::MQ; ++m)
        store_fragments<CAPACITY_P>(shared + (wk * CAPACITY_Q + (wq * B::MQ + m) * 16 + lane / 4) * CAPACITY_P + wp * B::NP * 8 + lane % 4 * 2, sum[m]);
    __syncthreads();
    for (int n = threadIdx.x; n < CAPACITY_Q * CAPACITY_P; n += THREADS) {
        const int q = q0 + n / CAPACITY_P, p = p0 + n % CAPACITY_P;
        const float total = sum_over_warps<B::WARPS_K, CAPACITY_Q * CAPACITY_P>(shared + n);
        if (q >= B::Q || p >= B::P) continue;
        if (is_share) ((float*)to)[q * B::P + p] = total;
        else ((T*)to)[q * B::P + p] = Store<T>::from(total);
    }
}

// B: the type T, extents Q and P, warps in each direction and 16 rows (MQ) and 8 columns (NP) of each, DEEP and STAGES of the
// tile, ORDER, RIGHT (1 unless runs are copied as they lie) and how wide copies are.
template <class B>
struct KronGram {
    typedef typename B::T T;
    static constexpr int THREADS = 32 * B::WARPS_Q * B::WARPS_P * B::WARPS_K, MQ = B::MQ, NP = B::NP, DEEP = B::DEEP;
    static constexpr int CAPACITY_Q = 16 * MQ * B::WARPS_Q, CAPACITY_P = 8 * NP * B::WARPS_P;
    static constexpr int DOWN = (B::Q + CAPACITY_Q - 1) / CAPACITY_Q, ACROSS = (B::P + CAPACITY_P - 1) / CAPACITY_P;
    typedef GramTile<T, B::ORDER, B::Q, CAPACITY_Q, DEEP, B::RIGHT, B::VEC_V, THREADS> Left;
    typedef GramTile<T, B::ORDER, B::P, CAPACITY_P, DEEP, B::RIGHT, B::VEC_U, THREADS> Right;
    typedef CopyPipeline<B::STAGES> Pipeline;
    static constexpr bool FLAT = B::ORDER == GRAM_FLAT;
    static constexpr int STAGE = Left::SIZE + Right::SIZE;
    // Bytes of shared memory: the stages, and the sums of all warps.
    static constexpr int STAGES_BYTES = B::STAGES * STAGE * (int)sizeof(T), SUMS_BYTES = B::WARPS_K * CAPACITY_Q * CAPACITY_P * 4;
    static constexpr int SHARED_BYTES = STAGES_BYTES + SUMS_BYTES;
    static constexpr int FLUSH = 32;

    // Adds the products of one stage of halves to sums.
    static __device__ __forceinline__ void multiply(float (&sum)[MQ][NP][4], const T* stage, int wq, int wp, int wk, int lane) {
        const unsigned left = shared_address(stage), right = shared_address(stage + Left::SIZE);
#pragma unroll
        for (int s = 0; s < DEEP / 16 / B::WARPS_K; ++s) {
            const int k = (wk + s * B::WARPS_K) * 16;
            unsigned a[MQ][4], b[NP / 2][4];
#pragma unroll
            for (int m = 0; m < MQ; ++m) Left::template take<true>(a[m], left, (wq * MQ + m) * 16, k, lane);
#pragma unroll
            for (int n = 0; n < NP / 2; ++n) Right::template take<false>(b[n], right, (wp * NP + 2 * n) * 8, k, lane);
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
        extern __shared__ __align__(16) unsigned char raw[];
        T* stages = (T*)raw;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int wq = warp % B::WARPS_Q, wp = warp / B::WARPS_Q % B::WARPS_P, wk = warp / (B::WARPS_Q * B::WARPS_P);
        const int tile = blockIdx.x % (DOWN * ACROSS), share = blockIdx.x / (DOWN * ACROSS), shares = gridDim.x / (DOWN * ACROSS);
        const int q0 = tile / ACROSS * CAPACITY_Q, p0 = tile % ACROSS * CAPACITY_P;
        const i64 count = FLAT ? items : items * right, chunks = (count + Left::ITEMS - 1) / Left::ITEMS;
        i64 ahead = share;
        const auto prefetch = [&](int slot) {
            if (ahead < chunks) {
                const GramChunk<Left> own(ahead, count, right);
                T* stage = stages + slot * STAGE;
                if constexpr (Left::ASYNC) Left::fetch(stage, v, own.begin, count, right, own.l, own.r, q0);
                if constexpr (Right::ASYNC) Right::fetch(stage + Left::SIZE, u, own.begin, count, right, own.l, own.r, p0);
            }
            ahead += shares;
            Pipeline::commit();
        };
        typename Left::Taken of_v[Left::ROUNDS];
        typename Right::Taken of_u[Right::ROUNDS];
        const auto load = [&](i64 chunk) {
            if (!(Left::ASYNC && Right::ASYNC) && chunk < chunks) {
                const GramChunk<Left> own(chunk, count, right);
                if constexpr (!Left::ASYNC) Left::load(of_v, v, own.begin, count, right, own.l, own.r, q0);
                if constexpr (!Right::ASYNC) Right::load(of_u, u, own.begin, count, right, own.l, own.r, p0);
            }
        };
        const auto store = [&](T* stage) {
            if constexpr (!Left::ASYNC) Left::store(stage, of_v);
            if constexpr (!Right::ASYNC) Right::store(stage + Left::SIZE, of_u);
        };
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
            multiply(sum, stage, wq, wp, wk, lane);
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
        const i64 offset = shares > 1 ? (i64)share * B::Q * B::P : 0;
        kron_gram_write<B, CAPACITY_Q, CAPACITY_P>((float*)out + offset, sum, (float*)raw, wq, wp, wk, lane, q0, p0, shares > 1);
    }
};

// The sum over shares of each of `size` entries, 32 of them by a block of 256 threads: a warp has every eighth share. `target`
// says where an entry goes.
template <class T, class Target>
KM_DEVICE void kron_gram_total(const float* parts, T* out, int shares, int size, const Target& target) {
    __shared__ float sums[8][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, entry = blockIdx.x * 32 + lane;
    float total = 0.0f;
    if (entry < size) {
#pragma unroll 8
        for (int share = warp; share < shares; share += 8) total += __ldg(parts + (i64)share * size + entry);
    }
    sums[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && entry < size) out[target(entry)] = Store<T>::from(sum_over_warps<8, 32>(&sums[0][lane]));
}

}  // namespace km

// The same of halves whose runs are short and of an odd number. What a stage takes is copied as it lies, by 16 bytes that begin before
// it, and is set apart in shared memory while the stage before it is multiplied.
#pragma once
#include "kron_gram.cuh"

namespace km {

// What a stage takes: that many l from l on.
struct GramPart {
    i64 l;
    int length;
};

// One operand: EXTENT entries of an axis, B::RUN positions of each l, and the Tile to which they are moved.
template <class B, class Tile, int EXTENT, int THREADS>
struct GramApart {
    typedef typename B::T T;
    static constexpr int DEEP = B::DEEP, RUN = B::RUN, PITCH = Tile::PITCH;
    // A stage as it is copied: all entries of ITEMS l.
    static constexpr int ITEMS = DEEP / RUN, SIZE = (ITEMS * EXTENT * RUN + 14) / 8 * 8;

    // The first number of a stage in memory.
    static KM_DEVICE i64 first(const GramPart& part) { return part.l * (EXTENT * RUN); }
    static KM_DEVICE void fetch(T* to, const T* from, const GramPart& part, i64 count) {
        const i64 total = count * EXTENT * (i64)RUN;
#pragma unroll 2
        for (int n = threadIdx.x; n < SIZE / 8; n += THREADS) {
            const int piece = n * 8;
            const i64 begin = first(part), at = begin / 8 * 8 + piece;
            if (at >= begin + part.length * (EXTENT * RUN)) continue;
            T* own = to + piece;
            if (at + 8 <= total) ptx::cp_async<16>(shared_address(own), from + at, 16);
            else
                for (int i = 0; at + i < total; ++i) own[i] = from[at + i];
        }
    }

    // Moves what was copied to a tile, two numbers at a time; those of no position are zeros.
    static KM_DEVICE void move(T* tile, const T* stage, const GramPart& part) {
        if constexpr (RUN > 1) {
            // Lines of positions: a thread has the same two positions of every line.
            constexpr int WORDS = DEEP / 2;
            const int position = threadIdx.x % WORDS * 2;
            const T* own = stage + ((int)first(part) & 7);
            int offset[2];
            bool there[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int item = (position + i) / RUN;
                there[i] = item < ITEMS && item < part.length;
                offset[i] = there[i] ? item * (EXTENT * RUN) + (position + i) % RUN : 0;
            }
            for (int row = threadIdx.x / WORDS; row < EXTENT; row += THREADS / WORDS) {
                const unsigned low = there[0] ? own[offset[0] + row * RUN].bits : 0, high = there[1] ? own[offset[1] + row * RUN].bits : 0;
                *(unsigned*)(tile + row * PITCH + position) = low | high << 16;
            }
        } else {
            // Lines of entries.
            constexpr int WORDS = (EXTENT + 1) / 2;
            const int shift = (int)first(part) & 7;
            for (int n = threadIdx.x; n < DEEP * WORDS; n += THREADS) {
                const int position = n / WORDS, entry = n % WORDS * 2;
                const int left = position < part.length ? EXTENT - entry : 0;
                *(unsigned*)(tile + position * PITCH + entry) = two(stage, shift + position * EXTENT + entry, left);
            }
        }
    }
    // Two neighbours, of which so many are there.
    static KM_DEVICE unsigned two(const T* from, int at, int there) {
        if (there <= 0) return 0;
        const unsigned* words = (const unsigned*)from + at / 2;
        if (there == 1) return at % 2 ? words[0] >> 16 : words[0] & 0xffffu;
        return at % 2 ? __funnelshift_r(words[0], words[1], 16) : words[0];
    }
};

template <class B>
struct KronGramApart : KronGram<B> {
    typedef KronGram<B> Base;
    typedef typename B::T T;
    typedef typename Base::Left Left;
    typedef typename Base::Right Right;
    typedef typename Base::Warp Warp;
    typedef typename Base::Pipeline Pipeline;
    static constexpr int THREADS = Base::THREADS, MQ = Base::MQ, NP = Base::NP, STAGE = Base::STAGE;
    typedef GramApart<B, Left, B::Q, THREADS> LeftRun;
    typedef GramApart<B, Right, B::P, THREADS> RightRun;
    static constexpr int COPIED = LeftRun::SIZE + RightRun::SIZE, COPIED_BYTES = B::STAGES * COPIED * (int)sizeof(T);
    // Bytes of shared memory: the stages, two tiles, and the sums of all warps.
    static constexpr int TILES_BYTES = COPIED_BYTES + 2 * STAGE * (int)sizeof(T), SHARED_BYTES = TILES_BYTES + Base::SUMS_BYTES;
    static_assert(Warp::DOWN * Warp::ACROSS == 1, "one tile of the result");

    static __device__ void run(const T* v, const T* u, void* out, i64 count, i64) {
        extern __shared__ __align__(16) unsigned char raw[];
        T* stages = (T*)raw;
        T* tiles = (T*)(raw + COPIED_BYTES);
        float* flushed = (float*)(raw + TILES_BYTES);
        const Warp at;
        const int share = at.share, shares = at.shares;
        const i64 chunks = (count + LeftRun::ITEMS - 1) / LeftRun::ITEMS;
        const auto part = [&](i64 chunk) {
            GramPart own = {chunk * LeftRun::ITEMS, 0};
            own.length = (int)min((i64)LeftRun::ITEMS, count - own.l);
            return own;
        };
        i64 ahead = share;
        const auto prefetch = [&](int slot) {
            if (ahead < chunks) {
                const GramPart own = part(ahead);
                LeftRun::fetch(stages + slot * COPIED, v, own, count);
                RightRun::fetch(stages + slot * COPIED + LeftRun::SIZE, u, own, count);
            }
            ahead += shares;
            Pipeline::commit();
        };
        const auto move = [&](int slot, int parity, i64 chunk) {
            if (chunk >= chunks) return;
            const GramPart own = part(chunk);
            LeftRun::move(tiles + parity * STAGE, stages + slot * COPIED, own);
            RightRun::move(tiles + parity * STAGE + Left::SIZE, stages + slot * COPIED + LeftRun::SIZE, own);
        };
        for (int n = threadIdx.x; n < 2 * STAGE; n += THREADS) tiles[n] = T{};  // entries beyond those of the axes
#pragma unroll 1
        for (int s = 0; s < B::STAGES; ++s) prefetch(s);
        Pipeline::template wait<B::STAGES - 1>();
        __syncthreads();
        move(0, 0, share);
        Pipeline::wait();
        __syncthreads();
        float sum[MQ][NP][4] = {};
        Pipeline pipeline;
        int taken = 0, parity = 0;
        bool is_first = true;
#pragma unroll 1
        for (i64 chunk = share; chunk < chunks; chunk += shares, pipeline.advance(), parity ^= 1) {
            prefetch(pipeline.stage);
            Base::multiply(sum, tiles + parity * STAGE, at);
            move(pipeline.next(), parity ^ 1, chunk + shares);
            if (++taken == Base::FLUSH) {
                Base::flush(sum, flushed, is_first, false);
                taken = 0;
                is_first = false;
            }
            Pipeline::wait();
            __syncthreads();
        }
        if (!is_first) Base::flush(sum, flushed, false, true);
        ptx::cp_async_wait_all();
        __syncthreads();
        at.write(out, sum, (float*)raw);
    }
};

}  // namespace km

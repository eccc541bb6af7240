// The gradient of a factor of a Kronecker product, a product with a long sum:
//   out[q, p] = sum over l and r of v[l, q, r] u[l, p, r].
// Every block sums its share of the positions (l, r) on tensor cores (split-K) and writes it; shares are added up in a fixed
// order by whoever launched it.
//
// float32 is split into two tf32 numbers, of which three products are taken; halves are exact in one. Accumulators of tensor
// cores round towards zero: after DEEP positions they are added to sums in float32, the small products in accumulators of
// their own.
#pragma once
#include "pipeline.cuh"
#include "reduce.cuh"
#include "split_hi_lo.cuh"

namespace km {

// Tiles of one operand (count, EXTENT, right): ROOM of its axis by DEEP positions, VEC neighbours a copy. ALONG: positions
// follow each other in memory, else (right = 1) the axis does.
template <class T, bool ALONG, int EXTENT, int CAPACITY, int DEEP, int VEC, int THREADS>
struct GramTile {
    static constexpr int PITCH = ALONG ? DEEP + 16 / (int)sizeof(T) : CAPACITY + 32 / (int)sizeof(T), SIZE = PITCH * (ALONG ? CAPACITY : DEEP);
    static constexpr int ACROSS = (ALONG ? DEEP : CAPACITY) / VEC, COUNT = CAPACITY * DEEP / VEC;
    static_assert(THREADS % ACROSS == 0, "a thread copies from one column");

    // Starts the copies of positions from `begin` on and of entries from `first` on; l and r are of this thread's column.
    static __device__ __forceinline__ void fetch(T* to, const T* from, i64 begin, i64 positions, i64 right, i64 l, i64 r, int first) {
        const int along = threadIdx.x % ACROSS * VEC;
#pragma unroll
        for (int n = threadIdx.x / ACROSS; n < COUNT / ACROSS; n += THREADS / ACROSS) {
            const int entry = first + (ALONG ? n : along);
            const i64 position = begin + (ALONG ? along : n);
            const bool valid = entry < EXTENT && position < positions;
            const T* own = from + (ALONG ? (l * EXTENT + entry) * right + r : position * EXTENT + entry);
            ptx::cp_async<VEC * (int)sizeof(T)>(shared_address(to + n * PITCH + along), valid ? own : from, valid ? VEC * (int)sizeof(T) : 0);
        }
    }
    static __device__ __forceinline__ float at(const T* tile, int entry, int position) {
        return convert<float>(tile[ALONG ? entry * PITCH + position : position * PITCH + entry]);
    }
};

// B: the type T, extents Q and P, warps in each direction, the tile's DEEP and STAGES, ALONG and how wide copies are.
template <class B>
struct KronGram {
    typedef typename B::T T;
    static constexpr int THREADS = 32 * B::WARPS_Q * B::WARPS_P * B::WARPS_K, NB = B::TILES_P, DEEP = B::DEEP;
    static constexpr int CAPACITY_Q = 16 * B::WARPS_Q, CAPACITY_P = 8 * NB * B::WARPS_P;
    static constexpr int DOWN = (B::Q + CAPACITY_Q - 1) / CAPACITY_Q, ACROSS = (B::P + CAPACITY_P - 1) / CAPACITY_P;
    typedef GramTile<T, B::ALONG, B::Q, CAPACITY_Q, DEEP, B::VEC_V, THREADS> Left;
    typedef CopyPipeline<B::STAGES> Pipeline;
    typedef GramTile<T, B::ALONG, B::P, CAPACITY_P, DEEP, B::VEC_U, THREADS> Right;
    static constexpr bool EXACT = sizeof(T) == 2;
    static constexpr int STAGE = Left::SIZE + Right::SIZE;
    // Bytes of shared memory: the stages, or in their place the sums of all warps.
    static constexpr int STAGES_BYTES = B::STAGES * STAGE * (int)sizeof(T), SUMS_BYTES = B::WARPS_K * CAPACITY_Q * CAPACITY_P * 4;
    static constexpr int SHARED_BYTES = STAGES_BYTES > SUMS_BYTES ? STAGES_BYTES : SUMS_BYTES;

    static __device__ __forceinline__ void take(unsigned& high, unsigned& low, float x) {
        if (EXACT) high = __float_as_uint(x);
        else split_tf32(high, low, x);
    }

    // Adds the products of one stage to sums.
    static __device__ __forceinline__ void multiply(float (&sum)[NB][4], const T* stage, int wq, int wp, int wk, int lane) {
        const T* left = stage;
        const T* right = stage + Left::SIZE;
        const int g = lane / 4, t = lane % 4;
        float large[NB][4] = {}, small[NB][4] = {};
#pragma unroll
        for (int s = 0; s < DEEP / 8 / B::WARPS_K; ++s) {
            const int k = (wk + s * B::WARPS_K) * 8 + t;
            unsigned high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) take(high[i], low[i], Left::at(left, wq * 16 + g + i % 2 * 8, k + i / 2 * 4));
#pragma unroll
            for (int nb = 0; nb < NB; ++nb) {
                unsigned other[2], rest[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) take(other[i], rest[i], Right::at(right, (wp * NB + nb) * 8 + g, k + i * 4));
                mma_split_tf32<!EXACT>(large[nb], small[nb], high, low, other, rest);
            }
        }
#pragma unroll
        for (int nb = 0; nb < NB; ++nb) {
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[nb][i] += EXACT ? large[nb][i] : large[nb][i] + small[nb][i];
        }
    }

    // The sums of all warps to shared memory as (WARPS_K, ROOM_Q, ROOM_P), then those of one entry to the result.
    static __device__ void write(float* to, const float (&sum)[NB][4], float* shared, int wq, int wp, int wk, int lane, int q0, int p0) {
        store_fragments<CAPACITY_P>(shared + (wk * CAPACITY_Q + wq * 16 + lane / 4) * CAPACITY_P + wp * NB * 8 + lane % 4 * 2, sum);
        __syncthreads();
        for (int n = threadIdx.x; n < CAPACITY_Q * CAPACITY_P; n += THREADS) {
            const int q = q0 + n / CAPACITY_P, p = p0 + n % CAPACITY_P;
            const float total = sum_over_warps<B::WARPS_K, CAPACITY_Q * CAPACITY_P>(shared + n);
            if (q < B::Q && p < B::P) to[q * B::P + p] = total;
        }
    }

    static __device__ void run(const T* v, const T* u, float* out, i64 count, i64 right) {
        extern __shared__ __align__(16) unsigned char raw[];
        T* stages = (T*)raw;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int wq = warp % B::WARPS_Q, wp = warp / B::WARPS_Q % B::WARPS_P, wk = warp / (B::WARPS_Q * B::WARPS_P);
        const int tile = blockIdx.x % (DOWN * ACROSS), share = blockIdx.x / (DOWN * ACROSS), shares = gridDim.x / (DOWN * ACROSS);
        const int q0 = tile / ACROSS * CAPACITY_Q, p0 = tile % ACROSS * CAPACITY_P;
        const i64 positions = count * right, chunks = (positions + DEEP - 1) / DEEP;
        i64 ahead = share;
        const auto prefetch = [&](int slot) {
            if (ahead < chunks) {
                const i64 begin = ahead * DEEP, mine = begin + threadIdx.x % Left::ACROSS * B::VEC_V;
                i64 l = 0, r = 0;
                if (B::ALONG) {
                    l = positions < 0x7fffffffll ? (unsigned)mine / (unsigned)right : mine / right;
                    r = mine - l * right;
                }
                T* stage = stages + slot * STAGE;
                Left::fetch(stage, v, begin, positions, right, l, r, q0);
                Right::fetch(stage + Left::SIZE, u, begin, positions, right, l, r, p0);
            }
            ahead += shares;
            Pipeline::commit();
        };
        float sum[NB][4] = {};
#pragma unroll 1
        for (int s = 0; s + 1 < B::STAGES; ++s) prefetch(s);
        Pipeline pipeline;
#pragma unroll 1
        for (i64 chunk = share; chunk < chunks; chunk += shares, pipeline.advance()) {
            Pipeline::wait();
            __syncthreads();
            prefetch(pipeline.previous());
            multiply(sum, stages + pipeline.stage * STAGE, wq, wp, wk, lane);
        }
        ptx::cp_async_wait_all();
        __syncthreads();
        write(out + (i64)share * B::Q * B::P, sum, (float*)raw, wq, wp, wk, lane, q0, p0);
    }
};

}  // namespace km

// Sums of outer products along an axis: out[q, p] = sum over l and r of v[l, q, r] u[l, p, r], the gradient of a factor.
// Every block sums its share of the positions (l, r) on tensor cores and writes it, to be added up in a fixed order.
//
// float32 is two parts of 11 bits each and three products; halves are exact in one. Accumulators of tensor cores round
// towards zero: after DEEP positions they go to sums in float32, small products by themselves.
#pragma once
#include "scalar.cuh"

namespace km {

KM_DEVICE void gram_split(unsigned& high, unsigned& low, float x) {
    high = ptx::round_to_tf32(x);
    low = ptx::round_to_tf32(x - __uint_as_float(high));
}

// Tiles of one operand (count, EXTENT, right): ROOM of its axis by DEEP positions, VEC neighbours a copy. ALONG: positions
// follow each other in memory, else (right = 1) the axis does.
template <class T, bool ALONG, int EXTENT, int ROOM, int DEEP, int VEC, int THREADS>
struct GramTile {
    static constexpr int PITCH = ALONG ? DEEP + 16 / (int)sizeof(T) : ROOM + 32 / (int)sizeof(T), SIZE = PITCH * (ALONG ? ROOM : DEEP);
    static constexpr int ACROSS = (ALONG ? DEEP : ROOM) / VEC, COUNT = ROOM * DEEP / VEC;
    static_assert(THREADS % ACROSS == 0, "a thread copies from one column");

    // Starts the copies of positions from `begin` on and of entries from `first` on; l and r are of this thread's column.
    static __device__ __forceinline__ void fetch(T* to, const T* from, i64 begin, i64 positions, i64 right, i64 l, i64 r, int first) {
        const int along = threadIdx.x % ACROSS * VEC;
#pragma unroll
        for (int n = threadIdx.x / ACROSS; n < COUNT / ACROSS; n += THREADS / ACROSS) {
            const int entry = first + (ALONG ? n : along);
            const i64 position = begin + (ALONG ? along : n);
            const bool given = entry < EXTENT && position < positions;
            const T* own = from + (ALONG ? (l * EXTENT + entry) * right + r : position * EXTENT + entry);
            ptx::cp_async<VEC * (int)sizeof(T)>(shared_address(to + n * PITCH + along), given ? own : from, given ? VEC * (int)sizeof(T) : 0);
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
    static constexpr int ROOM_Q = 16 * B::WARPS_Q, ROOM_P = 8 * NB * B::WARPS_P;
    static constexpr int DOWN = (B::Q + ROOM_Q - 1) / ROOM_Q, ACROSS = (B::P + ROOM_P - 1) / ROOM_P;
    typedef GramTile<T, B::ALONG, B::Q, ROOM_Q, DEEP, B::VEC_V, THREADS> Left;
    typedef GramTile<T, B::ALONG, B::P, ROOM_P, DEEP, B::VEC_U, THREADS> Right;
    static constexpr bool EXACT = sizeof(T) == 2;
    static constexpr int STAGE = Left::SIZE + Right::SIZE;

    static __device__ __forceinline__ void take(unsigned& high, unsigned& low, float x) {
        if (EXACT) high = __float_as_uint(x);
        else gram_split(high, low, x);
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
                if (!EXACT) {
                    ptx::mma_m16n8k8_tf32(small[nb], low, other[0], other[1]);
                    ptx::mma_m16n8k8_tf32(small[nb], high, rest[0], rest[1]);
                }
                ptx::mma_m16n8k8_tf32(large[nb], high, other[0], other[1]);
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
        float* own = shared + (wk * ROOM_Q + wq * 16 + lane / 4) * ROOM_P + wp * NB * 8 + lane % 4 * 2;
#pragma unroll
        for (int nb = 0; nb < NB; ++nb) {
#pragma unroll
            for (int i = 0; i < 4; ++i) own[i / 2 * 8 * ROOM_P + nb * 8 + i % 2] = sum[nb][i];
        }
        __syncthreads();
        for (int n = threadIdx.x; n < ROOM_Q * ROOM_P; n += THREADS) {
            const int q = q0 + n / ROOM_P, p = p0 + n % ROOM_P;
            float total = 0.0f;
#pragma unroll
            for (int w = 0; w < B::WARPS_K; ++w) total += shared[w * ROOM_Q * ROOM_P + n];
            if (q < B::Q && p < B::P) to[q * B::P + p] = total;
        }
    }

    static __device__ void run(const T* v, const T* u, float* out, i64 count, i64 right) {
        extern __shared__ __align__(16) unsigned char raw[];
        T* ring = (T*)raw;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int wq = warp % B::WARPS_Q, wp = warp / B::WARPS_Q % B::WARPS_P, wk = warp / (B::WARPS_Q * B::WARPS_P);
        const int tile = blockIdx.x % (DOWN * ACROSS), share = blockIdx.x / (DOWN * ACROSS), shares = gridDim.x / (DOWN * ACROSS);
        const int q0 = tile / ACROSS * ROOM_Q, p0 = tile % ACROSS * ROOM_P;
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
                T* stage = ring + slot * STAGE;
                Left::fetch(stage, v, begin, positions, right, l, r, q0);
                Right::fetch(stage + Left::SIZE, u, begin, positions, right, l, r, p0);
            }
            ahead += shares;
            ptx::cp_async_commit_group();
        };
        float sum[NB][4] = {};
#pragma unroll 1
        for (int s = 0; s + 1 < B::STAGES; ++s) prefetch(s);
        int slot = 0;
#pragma unroll 1
        for (i64 chunk = share; chunk < chunks; chunk += shares) {
            ptx::cp_async_wait_group<B::STAGES - 2>();
            __syncthreads();
            prefetch(slot == 0 ? B::STAGES - 1 : slot - 1);
            multiply(sum, ring + slot * STAGE, wq, wp, wk, lane);
            slot = slot + 1 == B::STAGES ? 0 : slot + 1;
        }
        ptx::cp_async_wait_all();
        __syncthreads();
        write(out + (i64)share * B::Q * B::P, sum, (float*)raw, wq, wp, wk, lane, q0, p0);
    }
};

}  // namespace km

// The gradient of a factor of few entries by additions: a thread keeps the sums of all of them in registers and reads positions
// beside those of its neighbours, so that it takes as long as what is read.
#pragma once
#include "reduce.cuh"

namespace km {

// B: the type T, extents Q and P, whether positions are ROWS whose entries follow each other, how many positions (VEC) or else
// entries (VEC_V, VEC_U) one access takes, and THREADS.
template <class B>
struct KronGramRegisters {
    typedef typename B::T T;
    static constexpr int Q = B::Q, P = B::P, VEC = B::VEC, WARPS = B::THREADS / 32, SHARED_BYTES = 4 * WARPS * Q * P;

    // The entries of an axis at VEC positions.
    template <int EXTENT, int WIDTH>
    static __device__ __forceinline__ void load(float (&to)[EXTENT][VEC], const T* from, i64 right) {
#pragma unroll
        for (int entry = 0; entry < EXTENT; entry += B::ROWS ? WIDTH : 1) {
            constexpr int WIDE = B::ROWS ? WIDTH : VEC;
            const Pack<T, WIDE> pack = load_pack<T, WIDE>(from + (B::ROWS ? entry : entry * right));
#pragma unroll
            for (int i = 0; i < WIDE; ++i) to[entry + (B::ROWS ? i : 0)][B::ROWS ? 0 : i] = convert<float>(pack.v[i]);
        }
    }

    static __device__ void run(const T* v, const T* u, void* out, i64 count, i64 right) {
        extern __shared__ __align__(16) float shared[];
        const i64 across = B::ROWS ? 1 : right / VEC, first = (i64)blockIdx.x * B::THREADS + threadIdx.x, step = (i64)gridDim.x * B::THREADS;
        const i64 step_l = step / across, step_r = step % across;
        i64 l = first / across, r = first % across;
        float sum[Q][P] = {};
#pragma unroll 1
        while (l < count) {
            float left[Q][VEC], here[P][VEC];
            load<Q, B::VEC_V>(left, v + l * Q * right + r * VEC, right);
            load<P, B::VEC_U>(here, u + l * P * right + r * VEC, right);
#pragma unroll
            for (int i = 0; i < Q * P * VEC; ++i) {
                float& own = sum[i / VEC / P][i / VEC % P];
                own = fmaf(left[i / VEC / P][i % VEC], here[i / VEC % P][i % VEC], own);
            }
            l += step_l;
            r += step_r;
            if (r >= across) r -= across, ++l;
        }
#pragma unroll
        for (int i = 0; i < Q * P; ++i) {
            const float total = warp_sum(sum[i / P][i % P]);
            if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32 * Q * P + i] = total;
        }
        __syncthreads();
        if (threadIdx.x >= Q * P) return;
        const float total = sum_over_warps<WARPS, Q * P>(shared + threadIdx.x);
        if (gridDim.x > 1) ((float*)out)[(i64)blockIdx.x * Q * P + threadIdx.x] = total;
        else ((T*)out)[threadIdx.x] = Store<T>::from(total);
    }
};

}  // namespace km

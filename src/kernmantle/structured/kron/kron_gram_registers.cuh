// The gradient of a factor of few entries by additions: a thread keeps the sums of all of them in registers and reads positions
// beside those of its neighbours, so that it takes as long as what is read. Where it says so the factor's transpose is applied to v on
// the way, so that v is read once for both.
#pragma once
#include "reduce.cuh"

namespace km {

// B: the type T, extents Q and P, whether positions are ROWS whose entries follow each other, how many positions (VEC) or else
// entries (VEC_V, VEC_U) one access takes, THREADS, and whether it APPLIES the factor.
template <class B>
struct KronGramRegisters {
    typedef typename B::T T;
    static constexpr int Q = B::Q, P = B::P, VEC = B::VEC, WARPS = B::THREADS / 32, PITCH = B::APPLIES ? (Q + 3) / 4 * 4 : 0;
    // Bytes of shared memory: the sums of all warps, and columns of the factor.
    static constexpr int SHARED_BYTES = 4 * (WARPS * Q * P + PITCH * P);

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

    // The entries of v times columns of the factor, WIDTH of them in one access where entries follow each other.
    static __device__ __forceinline__ void apply(T* to, const float (&left)[Q][VEC], const float* table, i64 right) {
        constexpr int WIDTH = B::ROWS ? B::VEC_U : 1, WIDE = B::ROWS ? WIDTH : VEC;
#pragma unroll
        for (int p = 0; p < P; p += WIDTH) {
            float sum[WIDE] = {};
#pragma unroll
            for (int own = 0; own < WIDTH; ++own)
#pragma unroll
                for (int q = 0; q < PITCH; q += 4) {
                    const Pack<float, 4> four = *(const Pack<float, 4>*)(table + (p + own) * PITCH + q);
#pragma unroll
                    for (int i = 0; i < 4 && q + i < Q; ++i)
#pragma unroll
                        for (int j = 0; j < VEC; ++j) sum[own + j] = fmaf(four.v[i], left[q + i][j], sum[own + j]);
                }
            Pack<T, WIDE> pack;
#pragma unroll
            for (int i = 0; i < WIDE; ++i) pack.v[i] = Store<T>::from(sum[i]);
            store_pack<T, WIDE>(to + (B::ROWS ? p : p * right), pack);
        }
    }

    static __device__ void run(const T* v, const T* u, void* out, i64 count, i64 right) {
        run(v, u, out, count, right, nullptr, 0.0f, [](int, int) { return 0.0f; });
    }
    // `applied` takes v with the transpose of `factor`, entries by (q, p), applied, times `slope`.
    template <class Factor>
    static __device__ void run(const T* v, const T* u, void* out, i64 count, i64 right, T* applied, float slope, const Factor& factor) {
        extern __shared__ __align__(16) float shared[];
        float* table = shared + WARPS * Q * P;
        if (B::APPLIES) {
            for (int n = threadIdx.x; n < PITCH * P; n += B::THREADS) table[n] = n % PITCH < Q ? slope * factor(n % PITCH, n / PITCH) : 0.0f;
            __syncthreads();
        }
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
            if constexpr (B::APPLIES) apply(applied + l * P * right + r * VEC, left, table, right);
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

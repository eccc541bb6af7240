// An activation of whole vectors of 16 bytes, or a gradient times its slope, which may be written where it is read.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

constexpr int ACTIVATION_VECTORS = 4;  // of a thread

template <int ACTIVATION>
KM_DEVICE float times_slope(float grad, float v) {
    if (ACTIVATION == 1) return v <= 0.0f ? 0.0f : grad;
    if (ACTIVATION == 2) return grad * (0.5f * (1.0f + erff(v * 0.70710678118654752f)) + v * 0.39894228040143268f * expf(-0.5f * v * v));
    const float share = 1.0f / (1.0f + expf(-v));
    return grad * share * (1.0f + v * (1.0f - share));
}

template <class T, int ACTIVATION, bool SLOPE>
__device__ __forceinline__ void kron_sparse_activation(const void* value, const void* grad, void* out, i64 vectors) {
    constexpr int COUNT = 16 / sizeof(T);
    const i64 first = (i64)blockIdx.x * blockDim.x * ACTIVATION_VECTORS + threadIdx.x;
    Pack<T, COUNT> values[ACTIVATION_VECTORS], grads[ACTIVATION_VECTORS];
#pragma unroll
    for (int u = 0; u < ACTIVATION_VECTORS; ++u) {
        const i64 at = first + (i64)u * blockDim.x;
        if (at >= vectors) break;
        values[u] = load_pack<T, COUNT>((const T*)value + at * COUNT);
        if (SLOPE) grads[u] = load_pack<T, COUNT>((const T*)grad + at * COUNT);
    }
#pragma unroll
    for (int u = 0; u < ACTIVATION_VECTORS; ++u) {
        const i64 at = first + (i64)u * blockDim.x;
        if (at >= vectors) break;
        Pack<T, COUNT> found;
#pragma unroll
        for (int e = 0; e < COUNT; ++e) {
            const float own = convert<float>(values[u].v[e]);
            found.v[e] = Store<T>::from(SLOPE ? times_slope<ACTIVATION>(convert<float>(grads[u].v[e]), own) : activated<ACTIVATION>(own));
        }
        store_pack<T, COUNT>((T*)out + at * COUNT, found);
    }
}

}  // namespace km

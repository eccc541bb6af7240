// Derivatives of products with a matrix that is never stored, by points of few numbers: for each row of one set of points
// sum_n (sum_c g[m, c] v[n, c]) slope(sum_k map(x[m, k], y[n, k])) partial(x[m, k], y[n, k]), for every k.
//
// A thread has a row and its K sums in registers; rows of the other set and of v pass through shared memory. Blocks take parts of the
// columns, whose sums are added up in order afterwards. `gate`: 0 there if somebody else has made the result, or null.
#pragma once
#include "apply.cuh"

namespace km {

constexpr int VJP_THREADS = 256, VJP_STAGE = 128;

template <class Body, int K, int C>
__device__ __forceinline__ void vjp_rows(
    const float* own, const float* other, const float* g, const float* v, float* out, const int* gate, i64 rows, i64 columns, i64 parts,
    const typename Body::Numbers& number) {
    constexpr int PITCH = (K + C + 3) / 4 * 4;
    __shared__ float4 stage[VJP_STAGE * PITCH / 4];
    if (gate != nullptr && *gate == 0) return;
    const i64 part = blockIdx.x % parts, row = blockIdx.x / parts * VJP_THREADS + threadIdx.x, at = row < rows ? row : rows - 1;
    const i64 first = columns * part / parts, last = columns * (part + 1) / parts;
    float a[K], cotangent[C], sum[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        a[k] = own[at * K + k];
        sum[k] = 0.0f;
    }
#pragma unroll
    for (int c = 0; c < C; ++c) cotangent[c] = g[at * C + c];
#pragma unroll 1
    for (i64 n = first; n < last; n += VJP_STAGE) {
        const int here = last - n < VJP_STAGE ? (int)(last - n) : VJP_STAGE;
        __syncthreads();
#pragma unroll 4
        for (int e = threadIdx.x; e < here * PITCH; e += VJP_THREADS) {
            const int row_index = e / PITCH, q = e % PITCH;
            float value = 0.0f;
            if (q < K)
                value = other[(n + row_index) * K + q];
            else if (q < K + C)
                value = v[(n + row_index) * C + q - K];
            ((float*)stage)[e] = value;
        }
        __syncthreads();
#pragma unroll 2
        for (int row_index = 0; row_index < here; ++row_index) {
            float b[PITCH];
#pragma unroll
            for (int q = 0; q < PITCH; q += 4) *(float4*)(b + q) = stage[(row_index * PITCH + q) / 4];
            float s = 0.0f, weight = 0.0f;
#pragma unroll
            for (int k = 0; k < K; ++k) s += Body::map(a[k], b[k], number);
#pragma unroll
            for (int c = 0; c < C; ++c) weight = fmaf(cotangent[c], b[K + c], weight);
            weight *= Body::slope(s, number);
#pragma unroll
            for (int k = 0; k < K; ++k) sum[k] = fmaf(weight, Body::partial(a[k], b[k], number), sum[k]);
        }
    }
    if (row >= rows) return;
#pragma unroll
    for (int k = 0; k < K; ++k) out[(part * rows + row) * K + k] = sum[k];
}

}  // namespace km

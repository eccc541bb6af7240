// Transposes matrices that lie in rows of memory: y[n, i, l, k] = x[n, i, k, l].
//
// A thread transposes a square whose edge is 16 bytes, in registers. DOWN lanes write neighbouring 16 bytes, and the 32 / DOWN
// groups of a warp read neighbouring 16 bytes.
#pragma once
#include "scalar.cuh"

namespace km {

struct KronSparseTranspose {
    const void* x;
    void* y;
    i64 count;
    int a, high, wide;
    i64 xn, yn;
};

// Turns a square of N numbers of 4 or 2 bytes each way.
KM_DEVICE void transpose(uint4 (&v)[4]) {
    unsigned* const p = (unsigned*)v;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < i; ++j) {
            const unsigned swapped = p[4 * i + j];
            p[4 * i + j] = p[4 * j + i];
            p[4 * j + i] = swapped;
        }
}
KM_DEVICE void transpose(uint4 (&v)[8]) {
    uint4 out[8];
    const unsigned* const from = (const unsigned*)v;
    unsigned* const to = (unsigned*)out;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            to[4 * (2 * i) + j] = __byte_perm(from[4 * (2 * j) + i], from[4 * (2 * j + 1) + i], 0x5410);
            to[4 * (2 * i + 1) + j] = __byte_perm(from[4 * (2 * j) + i], from[4 * (2 * j + 1) + i], 0x7632);
        }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = out[i];
}

template <int SIZE, int DOWN>
__device__ __forceinline__ void kron_sparse_transpose(const KronSparseTranspose& g) {
    constexpr int N = 16 / SIZE, ALONG = 32 / DOWN;
    const int down = (g.high + N * DOWN - 1) / (N * DOWN), across = (g.wide + N * ALONG - 1) / (N * ALONG), lane = threadIdx.x % 32;
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32, matrix = warp / (down * across);
    const int tile = (int)(warp % (down * across)), k = (tile / across * DOWN + lane % DOWN) * N;
    const int l = (tile % across * ALONG + lane / DOWN) * N;
    const i64 n = matrix / g.a, own = matrix % g.a * g.high * g.wide;
    if (n >= g.count || k >= g.high || l >= g.wide) return;
    const unsigned char* from = (const unsigned char*)g.x + (n * g.xn + own + (i64)k * g.wide + l) * SIZE;
    unsigned char* to = (unsigned char*)g.y + (n * g.yn + own + (i64)l * g.high + k) * SIZE;
    uint4 v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = __ldcs((const uint4*)(from + (i64)i * g.wide * SIZE));
    transpose(v);
#pragma unroll
    for (int i = 0; i < N; ++i) *(uint4*)(to + (i64)i * g.high * SIZE) = v[i];
}

}  // namespace km

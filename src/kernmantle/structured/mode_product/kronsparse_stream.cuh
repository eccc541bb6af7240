// Kronecker-sparse products of a batch so small that the weights are nearly all that is moved: they are read once, where they
// lie, and nothing is rearranged before. Products and sums are FMA instructions in float32.
//
// Threads of a block are COLUMNS x wide along the neighbours (k, l) of the weights in memory, and DEPTH along j. They share
// the sum of an output through shared memory: those of different k, or where the weights are of the transposed matrix those
// of different rows of it.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

constexpr int STREAM_THREADS = 256;

// The coordinates of a thread: its l, and those along and across neighbours in memory.
struct StreamThread {
    int wide, tiles_l, columns, depth, l, along, across;

    KM_DEVICE StreamThread(int d, int columns, int depth) : columns(columns), depth(depth) {
        tiles_l = (d + STREAM_THREADS - 1) / STREAM_THREADS;
        wide = (d + tiles_l - 1) / tiles_l;
        const int t = threadIdx.x;
        l = t % wide;
        along = t / wide % columns;
        across = t / (wide * columns);
    }
};

// Takes the index along the fastest axis off a combined index.
KM_DEVICE int split_off(unsigned& at, int size) {
    const int own = (int)(at % (unsigned)size);
    at /= (unsigned)size;
    return own;
}

// The parameters of a kernel, members of P:
//   T                    type of arrays
//   ROWS, OWN, STEPS     rows of the batch and outputs j of a thread, and positions of k that it reads at once
//   ALONG                k lies along neighbours in memory, else j does
//   BIAS, ACTIVATION     what is done with a sum before it is stored
// `tiles` and `slots` of the arguments are COLUMNS and DEPTH.
template <class P>
__device__ __forceinline__ void kron_sparse_stream(const KronSparse& g) {
    typedef typename P::T T;
    __shared__ float parts[P::ROWS * STREAM_THREADS];
    const StreamThread own(g.d, g.tiles, g.slots);
    const int count = (int)g.count, outputs = (P::ALONG ? own.depth : own.columns) * P::OWN;
    unsigned at = blockIdx.x;
    const int n0 = split_off(at, (count + P::ROWS - 1) / P::ROWS) * P::ROWS;
    const int tile = split_off(at, (g.b + outputs - 1) / outputs);
    const int l = split_off(at, own.tiles_l) * own.wide + own.l;
    const int i = split_off(at, g.a), group = (int)at;
    const bool active = own.across < own.depth && l < g.d;
    const int part = P::ALONG ? own.along : own.across, sharing = P::ALONG ? own.columns : own.depth;
    const int j0 = P::ALONG ? (tile * own.depth + own.across) * P::OWN : tile * outputs + own.along, j_step = P::ALONG ? 1 : own.columns;
    float sum[P::OWN][P::ROWS];
#pragma unroll
    for (int o = 0; o < P::OWN; ++o)
#pragma unroll
        for (int n = 0; n < P::ROWS; ++n) sum[o][n] = 0.0f;
    if (active) {
        const T* const x = (const T*)g.x + group * g.xg + n0 * g.xn + ((i64)i * g.c * g.d + l) * g.xf;
        const T* const weight = (const T*)g.weight + group * g.wg + i * g.wi + l * g.wl;
        int w_at[P::OWN], x_at[P::ROWS];
        const int wk = (int)g.wk, xk = (int)(g.d * g.xf);
#pragma unroll
        for (int o = 0; o < P::OWN; ++o) w_at[o] = min(j0 + o * j_step, g.b - 1) * (int)g.wj;
#pragma unroll
        for (int n = 0; n < P::ROWS; ++n) x_at[n] = min(n, count - 1 - n0) * (int)g.xn;
#pragma unroll 1
        for (int k = part; k < g.c; k += sharing * P::STEPS) {
            T w[P::STEPS][P::OWN], in[P::STEPS][P::ROWS];
#pragma unroll
            for (int s = 0; s < P::STEPS; ++s) {
                const int k_now = k + s * sharing;
                const bool inside = k_now < g.c;
#pragma unroll
                for (int o = 0; o < P::OWN; ++o) w[s][o] = inside ? weight[w_at[o] + k_now * wk] : T();
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n) in[s][n] = inside ? x[x_at[n] + k_now * xk] : T();
            }
#pragma unroll
            for (int s = 0; s < P::STEPS; ++s)
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n)
#pragma unroll
                    for (int o = 0; o < P::OWN; ++o) sum[o][n] = fmaf(convert<float>(w[s][o]), convert<float>(in[s][n]), sum[o][n]);
        }
    }
    const int apart = P::ALONG ? own.wide : own.wide * own.columns;
    // Whether those who share a sum are the lanes of a warp, each l a power of two apart.
    const bool within = P::ALONG && own.wide * own.columns == 32 && (own.wide & (own.wide - 1)) == 0;
    if (within) {
#pragma unroll
        for (int o = 0; o < P::OWN; ++o)
#pragma unroll
            for (int n = 0; n < P::ROWS; ++n)
                for (int gap = 16; gap >= own.wide; gap /= 2) sum[o][n] += __shfl_xor_sync(0xffffffffu, sum[o][n], gap);
    } else if (sharing > 1)
#pragma unroll
        for (int o = 0; o < P::OWN; ++o) {
            if (o > 0) __syncthreads();
#pragma unroll
            for (int n = 0; n < P::ROWS; ++n) parts[n * STREAM_THREADS + threadIdx.x] = sum[o][n];
#pragma unroll 1
            for (int left = sharing; left > 1;) {
                const int half = (left + 1) / 2;
                __syncthreads();
                if (active && part < left - half)
#pragma unroll
                    for (int n = 0; n < P::ROWS; ++n)
                        parts[n * STREAM_THREADS + threadIdx.x] += parts[n * STREAM_THREADS + threadIdx.x + half * apart];
                left = half;
            }
            if (part == 0)
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n) sum[o][n] = parts[n * STREAM_THREADS + threadIdx.x];
        }
    if (!active || part > 0) return;
    T* const y = (T*)g.y + group * g.yg + n0 * g.yn;
    const T* const bias = (const T*)g.bias + group * g.bg;
#pragma unroll
    for (int o = 0; o < P::OWN; ++o) {
        const int j = j0 + o * j_step;
        if (j >= g.b) continue;
        const i64 feature = ((i64)i * g.b + j) * g.d + l;
#pragma unroll
        for (int n = 0; n < P::ROWS; ++n) {
            if (n0 + n >= count) continue;
            const float total = sum[o][n] + (P::BIAS ? convert<float>(bias[feature]) : 0.0f);
            y[n * g.yn + feature * g.yf] = Store<T>::from(activated<P::ACTIVATION>(total));
        }
    }
}

// The gradient of the weights, (groups, a, b, c, d) without gaps: sums over the batch, each of one thread.
struct KronSparseStreamSum {
    const void *x, *grad;
    void* out;
    i64 count;
    int a, b, c, d, columns, depth;
    i64 xg, xn, xf, yg, yn, yf;
};

// The parameters of a kernel, members of P:
//   T                    type of arrays
//   OWN_J, OWN_K, STEPS  entries of a thread along both axes, and rows that it reads at once
template <class P>
__device__ __forceinline__ void kron_sparse_stream_sum(const KronSparseStreamSum& g) {
    typedef typename P::T T;
    const StreamThread own(g.d, g.columns, g.depth);
    const int count = (int)g.count, high = own.depth * P::OWN_J, span = own.columns * P::OWN_K;
    unsigned at = blockIdx.x;
    const int k0 = split_off(at, (g.c + span - 1) / span) * span + own.along;
    const int j0 = split_off(at, (g.b + high - 1) / high) * high + own.across * P::OWN_J;
    const int l = split_off(at, own.tiles_l) * own.wide + own.l;
    const int i = split_off(at, g.a), group = (int)at;
    if (own.across >= own.depth || l >= g.d) return;
    const T* const x = (const T*)g.x + group * g.xg;
    const T* const grad = (const T*)g.grad + group * g.yg;
    int x_at[P::OWN_K], y_at[P::OWN_J];
#pragma unroll
    for (int q = 0; q < P::OWN_K; ++q) x_at[q] = ((i * g.c + min(k0 + q * own.columns, g.c - 1)) * g.d + l) * (int)g.xf;
#pragma unroll
    for (int p = 0; p < P::OWN_J; ++p) y_at[p] = ((i * g.b + min(j0 + p, g.b - 1)) * g.d + l) * (int)g.yf;
    float sum[P::OWN_J][P::OWN_K];
#pragma unroll
    for (int p = 0; p < P::OWN_J; ++p)
#pragma unroll
        for (int q = 0; q < P::OWN_K; ++q) sum[p][q] = 0.0f;
#pragma unroll 1
    for (int n = 0; n < count; n += P::STEPS) {
        T in[P::STEPS][P::OWN_K], out[P::STEPS][P::OWN_J];
#pragma unroll
        for (int s = 0; s < P::STEPS; ++s) {
            const bool inside = n + s < count;
#pragma unroll
            for (int q = 0; q < P::OWN_K; ++q) in[s][q] = inside ? x[(n + s) * (int)g.xn + x_at[q]] : T();
#pragma unroll
            for (int p = 0; p < P::OWN_J; ++p) out[s][p] = inside ? grad[(n + s) * (int)g.yn + y_at[p]] : T();
        }
#pragma unroll
        for (int s = 0; s < P::STEPS; ++s)
#pragma unroll
            for (int p = 0; p < P::OWN_J; ++p)
#pragma unroll
                for (int q = 0; q < P::OWN_K; ++q) sum[p][q] = fmaf(convert<float>(out[s][p]), convert<float>(in[s][q]), sum[p][q]);
    }
    T* const to = (T*)g.out + ((i64)group * g.a + i) * g.b * g.c * g.d + l;
#pragma unroll
    for (int p = 0; p < P::OWN_J; ++p)
#pragma unroll
        for (int q = 0; q < P::OWN_K; ++q) {
            const int j = j0 + p, k = k0 + q * own.columns;
            if (j < g.b && k < g.c) to[((i64)j * g.c + k) * g.d] = Store<T>::from(sum[p][q]);
        }
}

}  // namespace km

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
template <int D, int COLUMNS>
struct StreamThread {
    static constexpr int TILES_L = (D + STREAM_THREADS - 1) / STREAM_THREADS, WIDE = (D + TILES_L - 1) / TILES_L;
    int l, along, across;

    KM_DEVICE StreamThread() {
        const int t = threadIdx.x;
        l = t % WIDE;
        along = t / WIDE % COLUMNS;
        across = t / (WIDE * COLUMNS);
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
//   A, B, C, D           the pattern
//   ROWS, OWN, STEPS     rows of the batch and outputs j of a thread, and positions of k that it reads at once
//   COLUMNS, DEPTH       threads of a block along neighbours and across them
//   ALONG                k lies along neighbours in memory, else j does
//   X_ROW                numbers from a row of x to the next one; features lie together
//   LAST                 rows of the batch lie together in y: what a block has of them is stored in their order
//   BIAS, ACTIVATION     what is done with a sum before it is stored
template <class P>
__device__ __forceinline__ void kron_sparse_stream(const KronSparse& g) {
    typedef typename P::T T;
    typedef StreamThread<P::D, P::COLUMNS> Thread;
    constexpr int OUTPUTS = (P::ALONG ? P::DEPTH : P::COLUMNS) * P::OWN, SHARING = P::ALONG ? P::COLUMNS : P::DEPTH;
    constexpr int J_STEP = P::ALONG ? 1 : P::COLUMNS, W_J = P::ALONG ? P::C * P::D : P::D, W_K = P::ALONG ? P::D : P::B * P::D;
    constexpr int STRIDE = SHARING * P::STEPS, WHOLE = P::C / STRIDE * STRIDE;
    // Odd from thread to thread, so that neither rows nor threads meet in a bank.
    constexpr int STAGED = P::ROWS | 1, STAGED_THREADS = Thread::WIDE * (P::ALONG ? P::DEPTH : P::COLUMNS);
    __shared__ float parts[(P::LAST ? STAGED : P::ROWS) * STREAM_THREADS];
    const Thread own;
    const int count = (int)g.count;
    unsigned at = blockIdx.x;
    const int n0 = split_off(at, (count + P::ROWS - 1) / P::ROWS) * P::ROWS;
    const int tile = split_off(at, (P::B + OUTPUTS - 1) / OUTPUTS);
    const int l0 = split_off(at, Thread::TILES_L) * Thread::WIDE, l = l0 + own.l;
    const int i = split_off(at, P::A), group = (int)at;
    const bool active = own.across < P::DEPTH && l < P::D;
    const int part = P::ALONG ? own.along : own.across;
    const int j0 = P::ALONG ? (tile * P::DEPTH + own.across) * P::OWN : tile * OUTPUTS + own.along;
    float sum[P::OWN][P::ROWS];
#pragma unroll
    for (int o = 0; o < P::OWN; ++o)
#pragma unroll
        for (int n = 0; n < P::ROWS; ++n) sum[o][n] = 0.0f;
    if (active) {
        const T* const x = (const T*)g.x + group * g.xg + (i64)n0 * P::X_ROW + (i64)i * P::C * P::D + l;
        const T* const weight = (const T*)g.weight + group * g.wg + i * g.wi + l;
        const T* w_at[P::OWN];
        const T* x_at[P::ROWS];
#pragma unroll
        for (int o = 0; o < P::OWN; ++o) w_at[o] = weight + min(j0 + o * J_STEP, P::B - 1) * W_J + part * W_K;
#pragma unroll
        for (int n = 0; n < P::ROWS; ++n) x_at[n] = x + (i64)min(n, count - 1 - n0) * P::X_ROW + part * P::D;
        auto add = [&](int k, bool whole) {
            T w[P::STEPS][P::OWN], in[P::STEPS][P::ROWS];
#pragma unroll
            for (int s = 0; s < P::STEPS; ++s) {
                const bool inside = whole || k + s * SHARING + part < P::C;
#pragma unroll
                for (int o = 0; o < P::OWN; ++o) w[s][o] = inside ? w_at[o][s * SHARING * W_K] : T();
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n) in[s][n] = inside ? x_at[n][s * SHARING * P::D] : T();
            }
#pragma unroll
            for (int s = 0; s < P::STEPS; ++s)
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n)
#pragma unroll
                    for (int o = 0; o < P::OWN; ++o) sum[o][n] = fmaf(convert<float>(w[s][o]), convert<float>(in[s][n]), sum[o][n]);
#pragma unroll
            for (int o = 0; o < P::OWN; ++o) w_at[o] += STRIDE * W_K;
#pragma unroll
            for (int n = 0; n < P::ROWS; ++n) x_at[n] += STRIDE * P::D;
        };
#pragma unroll 1
        for (int k = 0; k < WHOLE; k += STRIDE) add(k, true);
        if (WHOLE < P::C) add(WHOLE, false);
    }
    constexpr int APART = P::ALONG ? Thread::WIDE : Thread::WIDE * P::COLUMNS;
    // Whether those who share a sum are the lanes of a warp, each l a power of two apart.
    constexpr bool WITHIN = P::ALONG && Thread::WIDE * P::COLUMNS == 32 && (Thread::WIDE & (Thread::WIDE - 1)) == 0;
    if constexpr (WITHIN) {
#pragma unroll
        for (int o = 0; o < P::OWN; ++o)
#pragma unroll
            for (int n = 0; n < P::ROWS; ++n)
#pragma unroll
                for (int gap = 16; gap >= Thread::WIDE; gap /= 2) sum[o][n] += __shfl_xor_sync(0xffffffffu, sum[o][n], gap);
    } else if constexpr (SHARING > 1) {
#pragma unroll
        for (int o = 0; o < P::OWN; ++o) {
            if (o > 0) __syncthreads();
#pragma unroll
            for (int n = 0; n < P::ROWS; ++n) parts[n * STREAM_THREADS + threadIdx.x] = sum[o][n];
#pragma unroll 1
            for (int left = SHARING; left > 1;) {
                const int half = (left + 1) / 2;
                __syncthreads();
                if (active && part < left - half)
#pragma unroll
                    for (int n = 0; n < P::ROWS; ++n)
                        parts[n * STREAM_THREADS + threadIdx.x] += parts[n * STREAM_THREADS + threadIdx.x + half * APART];
                left = half;
            }
            if (part == 0)
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n) sum[o][n] = parts[n * STREAM_THREADS + threadIdx.x];
        }
    }
    T* const y = (T*)g.y + group * g.yg + n0 * g.yn;
    const T* const bias = (const T*)g.bias + group * g.bg;
    if constexpr (P::LAST) {
        // The thread of sums of (j, l) has the rank of its l behind that of its j.
        const int rank = own.l + Thread::WIDE * (P::ALONG ? own.across : own.along), rows = min(P::ROWS, count - n0);
#pragma unroll
        for (int o = 0; o < P::OWN; ++o) {
            const int j = j0 + o * J_STEP;
            __syncthreads();
            if (active && part == 0 && j < P::B) {
                const float offset = P::BIAS ? convert<float>(bias[((i64)i * P::B + j) * P::D + l]) : 0.0f;
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n) parts[rank * STAGED + n] = activated<P::ACTIVATION>(sum[o][n] + offset);
            }
            __syncthreads();
#pragma unroll 1
            for (int e = threadIdx.x; e < STAGED_THREADS * rows; e += STREAM_THREADS) {
                const int from = e / rows, n = e - from * rows, own_l = l0 + from % Thread::WIDE;
                const int own_j = tile * OUTPUTS + (P::ALONG ? from / Thread::WIDE * P::OWN : from / Thread::WIDE) + o * J_STEP;
                if (own_l < P::D && own_j < P::B)
                    y[n * g.yn + (((i64)i * P::B + own_j) * P::D + own_l) * g.yf] = Store<T>::from(parts[from * STAGED + n]);
            }
        }
        return;
    }
    if (!active || part > 0) return;
#pragma unroll
    for (int o = 0; o < P::OWN; ++o) {
        const int j = j0 + o * J_STEP;
        if (j >= P::B) continue;
        const i64 feature = ((i64)i * P::B + j) * P::D + l;
#pragma unroll
        for (int n = 0; n < P::ROWS; ++n) {
            if (n0 + n >= count) continue;
            const float total = sum[o][n] + (P::BIAS ? convert<float>(bias[feature]) : 0.0f);
            y[n * g.yn + feature * g.yf] = Store<T>::from(activated<P::ACTIVATION>(total));
        }
    }
}

}  // namespace km

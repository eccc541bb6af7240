// Kronecker-sparse products of a batch so small that the weights are nearly all that is moved: they are read where they lie, once
// for each part of the batch, and nothing is rearranged before. Products and sums are FMA instructions in float32.
//
// Threads of a block are COLUMNS x wide along the neighbours (k, l) of the weights in memory, and DEPTH along j; where the weights
// are of the transposed matrix, along (j, l) and k. Those of different k share the sum of an output through shared memory. The
// last tile along an axis begins early enough to be whole.
#pragma once
#include "kronsparse_tile.cuh"
#include "reduce.cuh"

namespace km {

// The parameters of a kernel, members of P:
//   T                    type of arrays
//   A, B, C, D           the pattern
//   THREADS              threads of a block
//   ROWS, OWN, VECTOR    rows of the batch, outputs j and neighbouring l of a thread
//   STEPS                positions of k that a thread reads while it multiplies those before
//   COLUMNS, DEPTH       threads of a block along neighbours and across them
//   ALONG                k lies along neighbours in memory, else j does
//   X_ROW                numbers from a row of x to the next one; features lie together
//   LAST                 rows of the batch lie together in y: what a block has of them is stored in their order
//   BIAS, ACTIVATION     what is done with a sum before it is stored
template <class P>
struct KronSparseStream {
    typedef typename P::T T;
    static constexpr int V = P::VECTOR, J = P::OWN, R = P::ROWS, S = P::STEPS;
    static constexpr int TILES_L = (P::D / V + P::THREADS - 1) / P::THREADS, WIDE = (P::D / V + TILES_L - 1) / TILES_L;
    static constexpr int OUTPUTS = (P::ALONG ? P::DEPTH : P::COLUMNS) * J, SHARING = P::ALONG ? P::COLUMNS : P::DEPTH;
    static constexpr int J_STEP = P::ALONG ? P::DEPTH : P::COLUMNS, W_J = P::ALONG ? P::C * P::D : P::D, W_K = P::ALONG ? P::D : P::B * P::D;
    static constexpr int TILES_J = (P::B + OUTPUTS - 1) / OUTPUTS;
    // Those who share a sum are APART threads from each other; or lanes of one warp, each l a power of two apart.
    static constexpr int APART = P::ALONG ? WIDE : WIDE * P::COLUMNS;
    static constexpr bool WITHIN = P::ALONG && WIDE * P::COLUMNS == 32 && (WIDE & (WIDE - 1)) == 0;
    // Odd from thread to thread, so that neither rows nor threads meet in a bank.
    static constexpr int STAGED = R | 1, STAGED_THREADS = WIDE * (P::ALONG ? P::DEPTH : P::COLUMNS);
    static constexpr int FLOATS = P::LAST ? STAGED * P::THREADS : SHARING > 1 && !WITHIN ? R * P::THREADS : 1;
    static_assert(P::D % V == 0 && OUTPUTS <= P::B && WIDE * P::COLUMNS * P::DEPTH <= P::THREADS, "tiles are whole");

    struct Numbers {
        Pack<T, V> w[S][J], x[S][R];
    };
    float sum[V][J][R];

    // Takes the index along the fastest axis off a combined index.
    static KM_DEVICE int split_off(unsigned& at, int size) {
        const int own = (int)(at % (unsigned)size);
        at /= (unsigned)size;
        return own;
    }

    // Reads STEPS positions of k, of which those less than `left` from here are inside.
    template <bool WHOLE>
    static KM_DEVICE void read(Numbers& to, const T* w, const T* x, int left) {
#pragma unroll
        for (int s = 0; s < S; ++s) {
            const bool inside = WHOLE || s * SHARING < left;
#pragma unroll
            for (int o = 0; o < J; ++o) to.w[s][o] = inside ? load_pack<T, V>(w + (s * SHARING * W_K + o * J_STEP * W_J)) : Pack<T, V>();
#pragma unroll
            for (int n = 0; n < R; ++n) to.x[s][n] = inside ? load_pack<T, V>(x + ((i64)n * P::X_ROW + s * SHARING * P::D)) : Pack<T, V>();
        }
    }

    KM_DEVICE void multiply(const Numbers& from) {
#pragma unroll
        for (int s = 0; s < S; ++s)
#pragma unroll
            for (int v = 0; v < V; ++v) {
                float w[J];
#pragma unroll
                for (int o = 0; o < J; ++o) w[o] = convert<float>(from.w[s][o].v[v]);
#pragma unroll
                for (int n = 0; n < R; ++n) {
                    const float x = convert<float>(from.x[s][n].v[v]);
#pragma unroll
                    for (int o = 0; o < J; ++o) sum[v][o][n] = fmaf(w[o], x, sum[v][o][n]);
                }
            }
    }

    // Adds the products of every SHARING-th of the next `left` positions of k.
    KM_DEVICE void add(const T* w, const T* x, int left) {
        constexpr int STRIDE = S * SHARING;
        Numbers own, next;
        auto ahead = [&](Numbers& to) {
            if ((S - 1) * SHARING < left) read<true>(to, w, x, left);
            else if (left > 0) read<false>(to, w, x, left);
            left -= STRIDE, w += STRIDE * W_K, x += STRIDE * P::D;
        };
        ahead(own);
#pragma unroll 1
        for (int due = left + STRIDE; due > 0; due -= 2 * STRIDE) {
            ahead(next);
            multiply(own);
            if (due <= STRIDE) break;
            ahead(own);
            multiply(next);
        }
    }

    // Adds the sums of those who share them; the first of them has the whole.
    KM_DEVICE void add_shared(float (&own)[R], float* parts, int part, bool active) {
        if constexpr (WITHIN) {
#pragma unroll
            for (int n = 0; n < R; ++n) own[n] = warp_sum<16, WIDE>(own[n]);
        } else {
            __syncthreads();
#pragma unroll
            for (int n = 0; n < R; ++n) parts[n * P::THREADS + threadIdx.x] = own[n];
#pragma unroll 1
            for (int left = SHARING; left > 1;) {
                const int half = (left + 1) / 2;
                __syncthreads();
                if (active && part < left - half)
#pragma unroll
                    for (int n = 0; n < R; ++n) parts[n * P::THREADS + threadIdx.x] += parts[n * P::THREADS + threadIdx.x + half * APART];
                left = half;
            }
            if (part == 0)
#pragma unroll
                for (int n = 0; n < R; ++n) own[n] = parts[n * P::THREADS + threadIdx.x];
        }
    }

    // Stores the rows of a block for one output and l of each thread in the order of the batch.
    static KM_DEVICE void store_last(const KronSparse& g, T* y, float* parts, const float (&own)[R], int i, int tile, int o, int l0, bool stores) {
        const int t = threadIdx.x;
        __syncthreads();
        // The thread of sums of (j, l) has the rank of its l behind that of its j.
        if (stores)
#pragma unroll
            for (int n = 0; n < R; ++n) parts[(t % WIDE + WIDE * (P::ALONG ? t / (WIDE * P::COLUMNS) : t / WIDE % P::COLUMNS)) * STAGED + n] = own[n];
        __syncthreads();
#pragma unroll 1
        for (int e = t; e < STAGED_THREADS * R; e += P::THREADS) {
            const int from = e / R, n = e % R, j = tile + from / WIDE + o * J_STEP;
            y[n * g.yn + (((i64)i * P::B + j) * P::D + l0 + from % WIDE * V) * g.yf] = Store<T>::from(parts[from * STAGED + n]);
        }
    }

    KM_DEVICE void run(const KronSparse& g, float* parts) {
        const int t = threadIdx.x, of_l = t % WIDE, along = t / WIDE % P::COLUMNS, across = t / (WIDE * P::COLUMNS);
        const int count = (int)g.count, part = P::ALONG ? along : across;
        const bool active = across < P::DEPTH;
        unsigned at = blockIdx.x;
        auto tile_of = [&](int tiles, int extent, int size) { return min(split_off(at, tiles) * size, extent - size); };
        const int n0 = tile_of((count + R - 1) / R, count, R), tile = tile_of(TILES_J, P::B, OUTPUTS);
        const int l0 = tile_of(TILES_L, P::D / V, WIDE) * V, l = l0 + of_l * V;
        const int i = split_off(at, P::A), group = (int)at;
        const int j0 = tile + (P::ALONG ? across : along);  // neighbouring threads have neighbouring outputs
        clear(sum);
        if (active)
            add((const T*)g.weight + group * g.wg + i * g.wi + (j0 * W_J + part * W_K + l),
                (const T*)g.x + group * g.xg + (i64)n0 * P::X_ROW + ((i64)i * P::C + part) * P::D + l, P::C - part);
        T* const y = (T*)g.y + group * g.yg + n0 * g.yn;
        const T* const bias = (const T*)g.bias + group * g.bg;
        const bool stores = active && part == 0;
#pragma unroll
        for (int o = 0; o < J; ++o) {
            const i64 feature = ((i64)i * P::B + j0 + o * J_STEP) * P::D + l;
#pragma unroll
            for (int v = 0; v < V; ++v) {
                if constexpr (SHARING > 1) add_shared(sum[v][o], parts, part, active);
                const float offset = P::BIAS && stores ? convert<float>(bias[feature + v]) : 0.0f;
#pragma unroll
                for (int n = 0; n < R; ++n) sum[v][o][n] = activated<P::ACTIVATION>(sum[v][o][n] + offset);
                if constexpr (P::LAST) store_last(g, y, parts, sum[v][o], i, tile, o, l0 + v, stores);
            }
            if (!P::LAST && stores)
#pragma unroll
                for (int n = 0; n < R; ++n) {
                    Pack<T, V> pack;
#pragma unroll
                    for (int v = 0; v < V; ++v) pack.v[v] = Store<T>::from(sum[v][o][n]);
                    *(Pack<T, V>*)(y + n * g.yn + feature * g.yf) = pack;
                }
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_stream(const KronSparse& g) {
    __shared__ float parts[KronSparseStream<P>::FLOATS];
    KronSparseStream<P>().run(g, parts);
}

}  // namespace km

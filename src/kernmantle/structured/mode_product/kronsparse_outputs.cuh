// Kronecker-sparse products whose blocks have a few columns, by FMA instructions: what is read is far less than what is written, in
// whole sectors, whatever the alignment.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

constexpr int OUTPUT_THREADS = 256;

// The parameters of a kernel, members of P:
//   T                    type of arrays
//   C, D                 the pattern's c, and its d where features lie together
//   VECTOR               neighbours in memory that a thread writes at once
//   ROWS                 rows, or vectors of rows where the batch is last, that a thread has at a time
//   WIDE                 warps with an l of their own (batch last)
//   COLUMNS              columns j of a block (batch last)
//   BIAS, ACTIVATION     what is done with a sum before it is stored

// Features together: a thread has VECTOR outputs (j, l) and their weights in registers, and iterates over rows, of which it reads
// x through the first-level cache.
template <class P>
__device__ __forceinline__ void kron_sparse_outputs(const KronSparse& g) {
    typedef typename P::T T;
    constexpr int V = P::VECTOR, C = P::C, D = P::D, R = P::ROWS;
    const int block = g.b * D, wide = g.a * block, ranges = (wide + OUTPUT_THREADS * V - 1) / (OUTPUT_THREADS * V);
    const int slot = blockIdx.x % (unsigned)g.slots, rest = blockIdx.x / (unsigned)g.slots, group = rest / ranges;
    const int first = (rest % ranges * OUTPUT_THREADS + threadIdx.x) * V;
    if (first >= wide) return;
    float weight[V][C], bias[V];
    const T* from[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const int i = (first + v) / block, l = (first + v) % D, j = (first + v) % block / D;
        const T* const w = (const T*)g.weight + group * g.wg + i * g.wi + j * g.wj + l * g.wl;
#pragma unroll
        for (int k = 0; k < C; ++k) weight[v][k] = convert<float>(w[k * g.wk]);
        bias[v] = P::BIAS ? convert<float>(((const T*)g.bias)[group * g.bg + first + v]) : 0.0f;
        from[v] = (const T*)g.x + group * g.xg + (i64)i * C * D + l;
    }
    T* const y = (T*)g.y + group * g.yg + first;
    auto rows = [&](i64 n, int count) {
        T in[R][V][C];
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int v = 0; v < V; ++v)
#pragma unroll
                for (int k = 0; k < C; ++k) in[r][v][k] = r < count ? load_pack<T, 1>(from[v] + (n + (i64)r * g.slots) * g.xn + k * D).v[0] : T();
#pragma unroll
        for (int r = 0; r < R; ++r) {
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; ++v) {
                float sum = bias[v];
#pragma unroll
                for (int k = 0; k < C; ++k) sum = fmaf(weight[v][k], convert<float>(in[r][v][k]), sum);
                pack.v[v] = Store<T>::from(activated<P::ACTIVATION>(sum));
            }
            if (r < count) store_pack<T, V>(y + (n + (i64)r * g.slots) * g.yn, pack);
        }
    };
    i64 n = slot;
#pragma unroll 1
    for (; n + (R - 1) * (i64)g.slots < g.count; n += R * (i64)g.slots) rows(n, R);
    if (n < g.count) rows(n, (int)((g.count - n + g.slots - 1) / g.slots));
}

// The batch last: a thread has the numbers of x of its rows in registers and iterates over columns j, whose weights are in shared
// memory as float32; lanes lie along the batch.
template <class P>
__device__ __forceinline__ void kron_sparse_outputs_last(const KronSparse& g) {
    typedef typename P::T T;
    constexpr int V = P::VECTOR, C = P::C, R = P::ROWS, WIDE = P::WIDE, COLUMNS = P::COLUMNS, STEP = 32 * V;
    constexpr int TILE_N = OUTPUT_THREADS / WIDE * V * R, PADDED = C <= 2 ? C : (C + 3) / 4 * 4, PIECE = PADDED < 4 ? PADDED : 4;
    __shared__ __align__(16) float weights[WIDE][COLUMNS][PADDED];
    __shared__ float biases[P::BIAS ? WIDE : 1][P::BIAS ? COLUMNS : 1];
    unsigned at = blockIdx.x;
    auto split_off = [&](int size) {
        const int own = (int)(at % (unsigned)size);
        at /= (unsigned)size;
        return own;
    };
    const int j0 = split_off((g.b + COLUMNS - 1) / COLUMNS) * COLUMNS, columns = min(COLUMNS, g.b - j0);
    const i64 tile = split_off((int)((g.count + TILE_N - 1) / TILE_N));
    const int l0 = split_off((g.d + WIDE - 1) / WIDE) * WIDE, i = split_off(g.a), group = (int)at;
    const int warp = threadIdx.x / 32, own = warp % WIDE, l = l0 + own;
    const i64 n = tile * TILE_N + (warp / WIDE * R * 32 + threadIdx.x % 32) * V, left = (g.count - n + STEP - 1) / STEP;
    const int rows = l >= g.d || left <= 0 ? 0 : left < R ? (int)left : R;
    const T* const x = (const T*)g.x + group * g.xg + ((i64)i * C * g.d + l) * g.xf + n;
    Pack<T, V> in[C][R];
#pragma unroll
    for (int k = 0; k < C; ++k)
#pragma unroll
        for (int r = 0; r < R; ++r) in[k][r] = r < rows ? load_pack<T, V>(x + (i64)k * g.d * g.xf + r * STEP) : Pack<T, V>();
    const T* const w = (const T*)g.weight + group * g.wg + i * g.wi;
#pragma unroll 8
    for (int e = threadIdx.x; e < WIDE * C * columns; e += OUTPUT_THREADS) {
        const int of_l = e % WIDE, k = e / WIDE % C, j = e / (WIDE * C);
        weights[of_l][j][k] = l0 + of_l < g.d ? convert<float>(w[(j0 + j) * g.wj + k * g.wk + (l0 + of_l) * g.wl]) : 0.0f;
    }
    if constexpr (P::BIAS)
        for (int e = threadIdx.x; e < WIDE * columns; e += OUTPUT_THREADS)
            biases[e % WIDE][e / WIDE] = l0 + e % WIDE < g.d ? convert<float>(((const T*)g.bias)[group * g.bg + ((i64)i * g.b + j0 + e / WIDE) * g.d + l0 + e % WIDE]) : 0.0f;
    __syncthreads();
    float numbers[C][R][V];
#pragma unroll
    for (int k = 0; k < C; ++k)
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int v = 0; v < V; ++v) numbers[k][r][v] = convert<float>(in[k][r].v[v]);
    T* y = (T*)g.y + group * g.yg + (((i64)i * g.b + j0) * g.d + l) * g.yf + n;
#pragma unroll 2
    for (int j = 0; j < columns; ++j, y += g.d * g.yf) {
        float weight[PADDED];
#pragma unroll
        for (int k = 0; k < PADDED; k += PIECE) {
            const Pack<float, PIECE> pack = read_pack<float, PIECE>(&weights[own][j][k]);
#pragma unroll
            for (int u = 0; u < PIECE; ++u) weight[k + u] = pack.v[u];
        }
        const float bias = P::BIAS ? biases[P::BIAS ? own : 0][P::BIAS ? j : 0] : 0.0f;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; ++v) {
                float sum = bias;
#pragma unroll
                for (int k = 0; k < C; ++k) sum = fmaf(weight[k], numbers[k][r][v], sum);
                pack.v[v] = Store<T>::from(activated<P::ACTIVATION>(sum));
            }
            if (r < rows) store_pack<T, V>(y + r * STEP, pack);
        }
    }
}

}  // namespace km

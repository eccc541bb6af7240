// Kronecker-sparse products by FMA instructions, for blocks of so few rows or columns that their bytes take longer than their
// products. Lanes lie along what is contiguous in x and y, l (FIRST) or the batch, so that arrays of any alignment are read and
// written in whole sectors. Weights are read where they lie, through the first-level cache.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

constexpr int FMA_THREADS = 256;

// The parameters of a kernel, members of P:
//   T                    type of arrays
//   FIRST                features lie together in memory, else the batch does
//   D                    the pattern's d (FIRST)
//   WIDE                 threads along l (FIRST), else warps of a block with an l of their own
//   OUTPUTS, ROWS        columns and rows of a thread
//   VECTOR               neighbours of l (FIRST) or of the batch that a thread reads and stores at once
//   STEPS                positions of k that a thread reads before it multiplies
//   BIAS, ACTIVATION     what is done with a sum before it is stored
template <class P>
struct KronSparseFma {
    typedef typename P::T T;
    static constexpr bool FIRST = P::FIRST;
    static constexpr int J = P::OUTPUTS, R = P::ROWS, V = P::VECTOR, S = P::STEPS, WIDE = P::WIDE;
    static constexpr int OWN = FIRST ? V : 1, TILE_L = WIDE * OWN, SHARES = FIRST ? FMA_THREADS / WIDE : FMA_THREADS / 32 / WIDE;
    // Rows of a block, and from one row of a thread to its next one.
    static constexpr int TILE_N = SHARES * R * (FIRST ? 1 : 32 * V), N_STEP = FIRST ? SHARES : 32 * V;

    const KronSparse& g;
    int i, group, l, j0, rows;
    const T* x;
    T* y;
    i64 x_k, x_n, y_j, y_n;

    static KM_DEVICE int ceil_div(i64 p, int q) { return (int)((p + q - 1) / q); }
    // Takes the index along the fastest axis off a combined index.
    static KM_DEVICE int split_off(unsigned& at, int size) {
        const int own = (int)(at % (unsigned)size);
        at /= (unsigned)size;
        return own;
    }

    KM_DEVICE KronSparseFma(const KronSparse& arguments) : g(arguments) {
        unsigned at = blockIdx.x;
        const int tiles = ceil_div(g.count, TILE_N);
        j0 = split_off(at, ceil_div(g.b, J)) * J;
        int tile = FIRST ? 0 : split_off(at, tiles);
        const int l0 = split_off(at, ceil_div(g.d, TILE_L)) * TILE_L;
        i = split_off(at, g.a);
        if (FIRST) tile = split_off(at, tiles);
        group = (int)at;
        const int thread = threadIdx.x, share = FIRST ? thread / WIDE : thread / 32 / WIDE;
        l = l0 + (FIRST ? thread % WIDE : thread / 32 % WIDE) * OWN;
        const i64 n = (i64)tile * TILE_N + (FIRST ? share : (share * R * 32 + thread % 32) * V);
        const i64 left = (g.count - n + N_STEP - 1) / N_STEP;
        rows = l >= g.d || share >= SHARES || left <= 0 ? 0 : left < R ? (int)left : R;
        x_k = FIRST ? P::D : g.d * g.xf;
        x_n = FIRST ? SHARES * g.xn : 32 * V;
        y_j = FIRST ? P::D : g.d * g.yf;
        y_n = FIRST ? SHARES * g.yn : 32 * V;
        x = (const T*)g.x + group * g.xg + n * g.xn + ((i64)i * g.c * g.d + l) * g.xf;
        y = (T*)g.y + group * g.yg + n * g.yn + (((i64)i * g.b + j0) * g.d + l) * g.yf;
    }

    // Numbers of x of positions of k from one on, of which so many are left; zeros behind them and beyond the batch.
    KM_DEVICE void read(Pack<T, V> (&to)[S][R], const T* from, int left) const {
#pragma unroll
        for (int s = 0; s < S; ++s)
#pragma unroll
            for (int r = 0; r < R; ++r) to[s][r] = s < left && r < rows ? load_pack<T, V>(from + s * x_k + r * x_n) : Pack<T, V>();
    }

    // Weights of positions of k from one on; those of columns beyond the edge are of the last one, whose sums are not stored.
    KM_DEVICE void read_weights(T (&to)[S][J][OWN], int k0) const {
        const T* const w = (const T*)g.weight + group * g.wg + i * g.wi + min(l, g.d - OWN) * g.wl;
#pragma unroll
        for (int s = 0; s < S; ++s)
#pragma unroll
            for (int j = 0; j < J; ++j)
#pragma unroll
                for (int v = 0; v < OWN; ++v) to[s][j][v] = k0 + s < g.c ? w[min(j0 + j, g.b - 1) * g.wj + (k0 + s) * g.wk + v * g.wl] : T();
    }

    KM_DEVICE void store(const float (&sum)[J][R][V]) const {
        const T* const bias = (const T*)g.bias + group * g.bg + ((i64)i * g.b + j0) * g.d + l;
#pragma unroll
        for (int j = 0; j < J; ++j) {
            if (j0 + j >= g.b) break;
            float offset[OWN];
#pragma unroll
            for (int v = 0; v < OWN; ++v) offset[v] = P::BIAS && rows > 0 ? convert<float>(bias[j * g.d + v]) : 0.0f;
#pragma unroll
            for (int r = 0; r < R; ++r) {
                Pack<T, V> pack;
#pragma unroll
                for (int v = 0; v < V; ++v) pack.v[v] = Store<T>::from(activated<P::ACTIVATION>(sum[j][r][v] + offset[FIRST ? v : 0]));
                if (r < rows) store_pack<T, V>(y + j * y_j + r * y_n, pack);
            }
        }
    }

    KM_DEVICE void run() const {
        const T* from = x;
        float sum[J][R][V] = {};
#pragma unroll 1
        for (int k = 0; k < g.c; k += S, from += S * x_k) {
            Pack<T, V> in[S][R];
            T weight[S][J][OWN];
            read(in, from, g.c - k);
            read_weights(weight, k);
#pragma unroll
            for (int s = 0; s < S; ++s)
#pragma unroll
                for (int r = 0; r < R; ++r)
#pragma unroll
                    for (int v = 0; v < V; ++v) {
                        const float number = convert<float>(in[s][r].v[v]);
#pragma unroll
                        for (int j = 0; j < J; ++j) sum[j][r][v] = fmaf(number, convert<float>(weight[s][j][FIRST ? v : 0]), sum[j][r][v]);
                    }
        }
        store(sum);
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_fma(const KronSparse& g) {
    KronSparseFma<P>(g).run();
}

}  // namespace km

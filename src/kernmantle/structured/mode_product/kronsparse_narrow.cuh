// Kronecker-sparse products whose blocks have a few rows and columns, above all butterflies. A thread holds the weights of one
// block in registers and iterates over the batch, so every number of x and y is moved once, which is nearly all of the time.
#pragma once
#include "kronsparse.cuh"

namespace km {

// The parameters of a kernel, members of P:
//   T, C                 type of arrays, and type of sums
//   FIRST                features lie together in memory, else the batch does
//   ROWS, COLUMNS        extents of a block
//   VECTOR               neighbours that are read and stored at once, of l where FIRST, else of the batch
//   TOGETHER             d is 1, and the numbers of x and of y of a block lie together
//   BIAS, ACTIVATION     what is done with a sum before it is stored
template <class P>
struct KronSparseThread {
    typedef typename P::T T;
    typedef typename P::C C;
    static constexpr int B = P::ROWS, K = P::COLUMNS, V = P::VECTOR, OWN = P::FIRST ? V : 1;
    C weight[B][K][OWN], bias[B][OWN];

    __device__ __forceinline__ void load(const KronSparse& g, i64 group, i64 i, i64 l) {
        const T* w = (const T*)g.weight + group * g.wg + i * g.wi + l * g.wl;
#pragma unroll
        for (int j = 0; j < B; ++j)
#pragma unroll
            for (int v = 0; v < OWN; ++v) {
#pragma unroll
                for (int k = 0; k < K; ++k) weight[j][k][v] = convert<C>(w[j * g.wj + k * g.wk + v * g.wl]);
                bias[j][v] = P::BIAS ? convert<C>(((const T*)g.bias)[group * g.bg + (i * B + j) * g.d + l + v]) : C(0);
            }
    }

    __device__ __forceinline__ T finished(C sum, int j, int v) const {
        const C own = sum + bias[j][P::FIRST ? v : 0];
        if constexpr (sizeof(C) == 4)
            return Store<T>::from(activated<P::ACTIVATION>(own));
        else
            return Store<T>::from(activated_double<P::ACTIVATION>(own));
    }

    // Lines of K vectors of V numbers at x, `across` apart, to B at y.
    __device__ __forceinline__ void apply(const T* x, i64 x_across, T* y, i64 y_across) const {
        C in[K][V];
        if constexpr (P::TOGETHER) {
            const Pack<T, K> pack = load_pack<T, K>(x);
#pragma unroll
            for (int k = 0; k < K; ++k) in[k][0] = convert<C>(pack.v[k]);
        } else {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                const Pack<T, V> pack = load_pack<T, V>(x + k * x_across);
#pragma unroll
                for (int v = 0; v < V; ++v) in[k][v] = convert<C>(pack.v[v]);
            }
        }
        Pack<T, P::TOGETHER ? B : 1> whole;
#pragma unroll
        for (int j = 0; j < B; ++j) {
            Pack<T, V> pack;
#pragma unroll
            for (int v = 0; v < V; ++v) {
                C sum = C(0);
#pragma unroll
                for (int k = 0; k < K; ++k) sum = fma(weight[j][k][P::FIRST ? v : 0], in[k][v], sum);
                pack.v[v] = finished(sum, j, v);
            }
            if constexpr (P::TOGETHER)
                whole.v[j] = pack.v[0];
            else
                store_pack<T, V>(y + j * y_across, pack);
        }
        if constexpr (P::TOGETHER) store_pack<T, B>(y, whole);
    }
};

// A block of threads takes neighbouring blocks of the pattern (FIRST) or entries of the batch; `slots` share the rest.
template <class P>
__device__ __forceinline__ void kron_sparse_narrow(const KronSparse& g) {
    typedef typename P::T T;
    constexpr int V = P::VECTOR;
    KronSparseThread<P> own;
    const i64 wide = P::FIRST ? (i64)g.a * (g.d / V) : g.count / V;
    const i64 ranges = (wide + blockDim.x - 1) / blockDim.x, slot = blockIdx.x % g.slots, rest = blockIdx.x / g.slots;
    if (P::FIRST) {
        const i64 group = rest / ranges, index = rest % ranges * blockDim.x + threadIdx.x;
        if (index >= wide) return;
        const i64 i = index / (g.d / V), l = index % (g.d / V) * V;
        own.load(g, group, i, l);
        const T* x = (const T*)g.x + group * g.xg + (i * P::COLUMNS * g.d + l);
        T* y = (T*)g.y + group * g.yg + (i * P::ROWS * g.d + l);
#pragma unroll 4
        for (i64 n = slot; n < g.count; n += g.slots) own.apply(x + n * g.xn, g.d, y + n * g.yn, g.d);
    } else {
        const i64 l = rest % g.d, i = rest / g.d % g.a, group = rest / g.d / g.a;
        own.load(g, group, i, l);
        const T* x = (const T*)g.x + group * g.xg + (i * P::COLUMNS * g.d + l) * g.xf;
        T* y = (T*)g.y + group * g.yg + (i * P::ROWS * g.d + l) * g.yf;
#pragma unroll 4
        for (i64 n = slot * blockDim.x + threadIdx.x; n < wide; n += (i64)g.slots * blockDim.x)
            own.apply(x + n * V, g.d * g.xf, y + n * V, g.d * g.yf);
    }
}

}  // namespace km

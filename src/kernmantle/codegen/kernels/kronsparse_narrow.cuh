// Kronecker-sparse products with blocks of a few rows and columns, butterflies above all: a thread holds one block's
// weights in registers and walks along the batch, so the numbers of x and y are moved once and little else is.
#pragma once
#include "kronsparse.cuh"

namespace km {

// T is stored, C computed in. B x K block; V neighbours at once, of l (FIRST) or of the batch; TOGETHER: d is 1, and the
// K numbers of x lie together as the B of y do.
template <class T_, class C_, bool FIRST_, int B_, int K_, int V_, bool TOGETHER_, bool BIAS_, int ACTIVATION_>
struct KronSparseNarrow {
    typedef T_ T;
    typedef C_ C;
    static constexpr bool FIRST = FIRST_, TOGETHER = TOGETHER_, BIAS = BIAS_;
    static constexpr int B = B_, K = K_, V = V_, ACTIVATION = ACTIVATION_, OWN = FIRST ? V : 1;
};

template <class P>
struct KronSparseThread {
    typedef typename P::T T;
    typedef typename P::C C;
    static constexpr int B = P::B, K = P::K, V = P::V, OWN = P::OWN;
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
    constexpr int V = P::V;
    KronSparseThread<P> own;
    const i64 wide = P::FIRST ? (i64)g.a * (g.d / V) : g.count / V;
    const i64 ranges = (wide + blockDim.x - 1) / blockDim.x, slot = blockIdx.x % g.slots, rest = blockIdx.x / g.slots;
    if (P::FIRST) {
        const i64 group = rest / ranges, place = rest % ranges * blockDim.x + threadIdx.x;
        if (place >= wide) return;
        const i64 i = place / (g.d / V), l = place % (g.d / V) * V;
        own.load(g, group, i, l);
        const T* x = (const T*)g.x + group * g.xg + (i * P::K * g.d + l);
        T* y = (T*)g.y + group * g.yg + (i * P::B * g.d + l);
#pragma unroll 4
        for (i64 n = slot; n < g.count; n += g.slots) own.apply(x + n * g.xn, g.d, y + n * g.yn, g.d);
    } else {
        const i64 l = rest % g.d, i = rest / g.d % g.a, group = rest / g.d / g.a;
        own.load(g, group, i, l);
        const T* x = (const T*)g.x + group * g.xg + (i * P::K * g.d + l) * g.xf;
        T* y = (T*)g.y + group * g.yg + (i * P::B * g.d + l) * g.yf;
#pragma unroll 4
        for (i64 n = slot * blockDim.x + threadIdx.x; n < wide; n += (i64)g.slots * blockDim.x)
            own.apply(x + n * V, g.d * g.xf, y + n * V, g.d * g.yf);
    }
}

}  // namespace km

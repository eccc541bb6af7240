// Gradients of matrices from that of their Kronecker product: for each of their entries a block, or a warp where that has few
// terms, sums the products of the joint gradient with the entries of all other matrices.
#pragma once
#include "kron_begin.cuh"
#include "reduce.cuh"

namespace km {

// What a pass gets that finds gradients: the gradient v of the product, x, its own result, each block's share of the gradients, how many
// entries stand before its axes and how many columns behind, whether another kernel of the same gradients is launched ahead of it, and by
// what the result is multiplied.
template <class T>
struct KronPass {
    const T* v;
    const T* x;
    T* out;
    float* parts;
    i64 items, width;
    bool is_later;
    float slope;
};

// A matrix in memory.
template <class T>
struct KronMatrix {
    const T* at;
    i64 row, column;
    KM_DEVICE T entry(int r, int c) const { return load_pack<T, 1>(at + r * row + c * column).v[0]; }
};

// B has the types T of matrices and C of the joint gradient, how many (COUNT) there are and the extents of each, rows(m) and
// columns(m), the ENTRIES and COLUMNS of the joint gradient, and THREADS.
template <class B>
struct KronSeparate {
    typedef typename B::T T;
    typedef typename B::C C;
    static constexpr int WARPS = B::THREADS / 32;

    // Terms of an entry of matrix K, and whether a warp sums them.
    static __device__ constexpr int terms(int k) { return B::ENTRIES / (B::rows(k) * B::columns(k)); }
    static __device__ constexpr bool by_warp(int k) { return terms(k) <= B::SHORT; }

    // What this thread adds to entry (row, column) of the gradient of matrix K, every `apart`-th term from `first` on.
    template <int K>
    static __device__ __forceinline__ C sum(const C* joint, const KronMatrix<T> (&matrices)[B::COUNT], int row, int column, int first, int apart) {
        C total = 0;
#pragma unroll 4
        for (int n = first; n < terms(K); n += apart) {
            int rest = n, i = 0, j = 0, high = 1, wide = 1;
            C product = 1;
#pragma unroll
            for (int m = B::COUNT - 1; m >= 0; --m) {
                int r = row, c = column;
                if (m != K) {
                    c = rest % B::columns(m);
                    rest /= B::columns(m);
                    r = rest % B::rows(m);
                    rest /= B::rows(m);
                    product *= convert<C>(matrices[m].entry(r, c));
                }
                i += r * high;
                j += c * wide;
                high *= B::rows(m);
                wide *= B::columns(m);
            }
            total = fma(product, joint[i * B::COLUMNS + j], total);
        }
        return warp_reduce(total, [](C a, C b) { return a + b; });
    }

    // Matrix K and those behind it: of the gradients, one behind the other, this block writes its share from K on.
    template <int K>
    static __device__ __forceinline__ void run(const C* joint, const KronMatrix<T> (&matrices)[B::COUNT], T* out, int block) {
        constexpr int SIZE = B::rows(K) * B::columns(K), BLOCKS = by_warp(K) ? (SIZE + WARPS - 1) / WARPS : SIZE;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (block >= BLOCKS) {
            if constexpr (K + 1 < B::COUNT) run<K + 1>(joint, matrices, out + SIZE, block - BLOCKS);
        } else if constexpr (by_warp(K)) {
            const int entry = block * WARPS + warp;
            if (entry >= SIZE) return;
            const C total = sum<K>(joint, matrices, entry / B::columns(K), entry % B::columns(K), lane, 32);
            if (lane == 0) out[entry] = Store<T>::from(total);
        } else {
            __shared__ C sums[WARPS];
            const C own = sum<K>(joint, matrices, block / B::columns(K), block % B::columns(K), threadIdx.x, B::THREADS);
            if (lane == 0) sums[warp] = own;
            __syncthreads();
            if (threadIdx.x > 0) return;
            C total = 0;
            for (int w = 0; w < WARPS; ++w) total += sums[w];
            out[block] = Store<T>::from(total);
        }
    }
};

// The gradients of the matrices of B from that of their product in shared memory, one behind the other: a warp for each entry.
template <class B, int K = 0>
static __device__ __forceinline__ void kron_separate_all(float* to, const float* joint, const KronMatrix<typename B::T> (&matrices)[B::COUNT]) {
    constexpr int SIZE = B::rows(K) * B::columns(K);
    for (int entry = threadIdx.x / 32; entry < SIZE; entry += B::THREADS / 32) {
        const float total = KronSeparate<B>::template sum<K>(joint, matrices, entry / B::columns(K), entry % B::columns(K), threadIdx.x % 32, 32);
        if (threadIdx.x % 32 == 0) to[entry] = total;
    }
    if constexpr (K + 1 < B::COUNT) kron_separate_all<B, K + 1>(to + SIZE, joint, matrices);
}

}  // namespace km

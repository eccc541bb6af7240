// Gradients of matrices from that of their Kronecker product: a block for each of their entries sums the products of the joint
// gradient with the entries of all other matrices.
#pragma once
#include "reduce.cuh"

namespace km {

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

    // Entry (row, column) of the gradient of matrix K, in the first thread.
    template <int K>
    static __device__ __forceinline__ C sum(const C* joint, const KronMatrix<T> (&matrices)[B::COUNT], int row, int column) {
        constexpr int OTHERS = B::ENTRIES / (B::rows(K) * B::columns(K));
        C total = 0;
#pragma unroll 4
        for (int n = threadIdx.x; n < OTHERS; n += B::THREADS) {
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
        __shared__ C sums[WARPS];
        total = warp_reduce(total, [](C a, C b) { return a + b; });
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = total;
        __syncthreads();
        total = 0;
        for (int warp = 0; warp < WARPS; ++warp) total += sums[warp];
        return total;
    }

    // Matrix K and those behind it: of the gradients, one behind the other, this block writes entry `block` from K on.
    template <int K>
    static __device__ __forceinline__ void run(const C* joint, const KronMatrix<T> (&matrices)[B::COUNT], T* out, int block) {
        constexpr int SIZE = B::rows(K) * B::columns(K);
        if (block < SIZE) {
            const C total = sum<K>(joint, matrices, block / B::columns(K), block % B::columns(K));
            if (threadIdx.x == 0) out[block] = Store<T>::from(total);
        } else if constexpr (K + 1 < B::COUNT) {
            run<K + 1>(joint, matrices, out + SIZE, block - SIZE);
        }
    }
};

}  // namespace km

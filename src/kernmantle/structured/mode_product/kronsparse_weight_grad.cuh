// Gradients of the weights of Kronecker-sparse products on tensor cores, in parts of the batch (split-K) that are added later:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l].
//
// A block computes 64 columns j by 64 positions k of one i and L neighbouring l over a part of the batch, in chunks of 32 entries.
// Four warps share one l, a quarter of the tile each. The next chunk is loaded into registers while tensor cores multiply the
// current one in shared memory, where the batch is the contiguous axis. float32 is split into two halves (split_hi_lo.cuh), with
// one scale for the block's part of x and one for its part of grad; every chunk has its own accumulators.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

struct KronSparseWeightGrad {
    const void *x, *grad;
    float* out;
    i64 count;
    int groups, a, b, c, d, slots;
    i64 xg, xn, xf, yg, yn, yf;
};

// The tile of a kernel, from a struct of its parameters:
//   T                    type of x and grad
//   X_FIRST, Y_FIRST     features of x and grad lie together in memory, else the batch does
//   L                    neighbouring l of a block
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
template <class Traits>
struct KronSparseWeightGradTile : Traits {
    using typename Traits::T;
    using Traits::L;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int EDGE = 64, DEPTH = 32, THREADS = 128 * L, WARPS = 4 * L;
    // Lines of a plane are 80 bytes apart, so that eight of them meet in no bank, those of another l 64 bytes further.
    static constexpr int PITCH = 40, L_STRIDE = EDGE * PITCH + (L > 1 ? 32 : 0), PLANE = L * L_STRIDE, PLANES = SPLIT ? 2 : 1;
    // A thread holds ROUNDS pairs of neighbours along the batch of each operand.
    static constexpr int WORDS = DEPTH / 2, ROUNDS = L * EDGE * WORDS / THREADS;
    // Both operands, then the largest magnitudes of both of all warps.
    static constexpr int SHARED_BYTES = 2 * (2 * PLANES * PLANE) + 2 * 4 * WARPS;
};

// One operand of a block: what a thread reads of it, and where that goes.
template <class P, bool FIRST>
struct KronSparseWeightGradOperand {
    typedef typename P::T T;
    typedef typename Word<sizeof(T)>::type Bits;
    const T* from;
    i64 along, across;
    int left, deep;
    Bits raw[P::ROUNDS][2];

    // Line (l, feature) and pair that this thread takes in a round.
    static __device__ __forceinline__ void element_of(int round, int& l, int& feature, int& couple) {
        if (FIRST) {
            const int at = threadIdx.x % (P::L * P::EDGE);
            l = at % P::L, feature = at / P::L;
            couple = threadIdx.x / (P::L * P::EDGE) * P::ROUNDS + round;  // neighbours, which are written together
        } else {
            const int at = threadIdx.x / P::WORDS + P::THREADS / P::WORDS * round;
            l = at / P::EDGE, feature = at % P::EDGE;
            couple = threadIdx.x % P::WORDS;
        }
    }

    __device__ __forceinline__ void read(i64 n0, i64 count, int d) {
#pragma unroll
        for (int round = 0; round < P::ROUNDS; ++round) {
            int l, feature, couple;
            element_of(round, l, feature, couple);
            const bool inside = feature < left && l < deep;
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                const i64 n = n0 + 2 * couple + u;
                raw[round][u] = inside && n < count ? *(const Bits*)(from + n * along + ((i64)feature * d + l) * across) : Bits(0);
            }
        }
    }

    // Bits of the largest finite size.
    __device__ __forceinline__ unsigned top() const {
        unsigned most = 0;
#pragma unroll
        for (int round = 0; round < P::ROUNDS; ++round)
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                const unsigned size = (unsigned)raw[round][u] & 0x7fffffffu;
                most = size > most && size < 0x7f800000u ? size : most;
            }
        return most;
    }

    // What a round has, and if float32 its rest.
    __device__ __forceinline__ void part(int round, float scale, unsigned (&word)[2]) const {
        if constexpr (P::SPLIT) {
            const float p = __uint_as_float(raw[round][0]), q = __uint_as_float(raw[round][1]);
            split_f16x2(word[0], word[1], p, q, scale);
        } else {
            word[0] = (unsigned)raw[round][0] | (unsigned)raw[round][1] << 16;
        }
    }

    __device__ __forceinline__ void write(unsigned short* to, float scale) const {
        constexpr int TOGETHER = FIRST ? 4 : 1;
#pragma unroll
        for (int begin = 0; begin < P::ROUNDS; begin += TOGETHER) {
            int l, feature, couple;
            element_of(begin, l, feature, couple);
            unsigned word[TOGETHER][2];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) part(begin + i, scale, word[i]);
            unsigned short* const row = to + l * P::L_STRIDE + feature * P::PITCH + 2 * couple;
#pragma unroll
            for (int plane = 0; plane < P::PLANES; ++plane) {
                unsigned* const put = (unsigned*)(row + plane * P::PLANE);
                if constexpr (FIRST)
                    *(uint4*)put = make_uint4(word[0][plane], word[1][plane], word[2][plane], word[3][plane]);
                else
                    *put = word[0][plane];
            }
        }
    }
};

template <class P>
struct KronSparseWeightGradBlock {
    typedef typename P::T T;
    typedef typename Products<T>::type H;
    const KronSparseWeightGrad& g;
    unsigned short *left, *right;
    unsigned* tops;
    int lane, warp;

    __device__ __forceinline__ KronSparseWeightGradBlock(const KronSparseWeightGrad& arguments, unsigned char* shared) : g(arguments) {
        left = (unsigned short*)shared;
        right = left + P::PLANES * P::PLANE;
        tops = (unsigned*)(right + P::PLANES * P::PLANE);
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
    }

    // The scale of one operand, by the largest number that any thread of the block has of it.
    __device__ __forceinline__ HalfScale scale_of(int operand) const {
        return HalfScale::of_exponent(ptx::redux_max(lane < P::WARPS ? tops[operand * P::WARPS + lane] : 0u) >> 23);
    }

    static __device__ __forceinline__ void fragment(unsigned (&to)[4], const unsigned short* from) {
        ptx::ldmatrix_x4(to, shared_address(from));
    }

    static __device__ __forceinline__ void fragments(unsigned (&to)[2][4], const unsigned short* from) {
#pragma unroll
        for (int m = 0; m < 2; ++m) fragment(to[m], from + 16 * m * P::PITCH);
    }
    static __device__ __forceinline__ void multiply(float (&here)[2][4][4], const unsigned (&p)[2][4], const unsigned (&q)[2][4]) {
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int t = 0; t < 4; ++t) ptx::mma_m16n8k16<H>(here[m][t], p[m], q[t / 2][t % 2 * 2], q[t / 2][t % 2 * 2 + 1]);
    }

    __device__ __forceinline__ void multiply_chunk(float (&sum)[2][4][4], float inverse_left, float inverse_right) const {
        const int row = warp / 4 * P::L_STRIDE, j = warp % 4 / 2 * 32, k = warp % 2 * 32;
        const unsigned short* const rows = left + row + (j + lane % 16) * P::PITCH + lane / 16 * 8;
        const unsigned short* const columns = right + row + (k + lane / 16 * 8 + lane % 8) * P::PITCH + lane / 8 % 2 * 8;
        float here[2][4][4];
        clear(here);
#pragma unroll
        for (int step = 0; step < P::DEPTH / 16; ++step) {
            unsigned p[2][4], q[2][4];
            fragments(q, columns + 16 * step);
            if constexpr (P::SPLIT && P::PRODUCTS == 3) {
                fragments(p, rows + P::PLANE + 16 * step);
                multiply(here, p, q);
                unsigned rest[2][4];
                fragments(p, rows + 16 * step);
                fragments(rest, columns + P::PLANE + 16 * step);
                multiply(here, p, rest);
            } else {
                fragments(p, rows + 16 * step);
            }
            multiply(here, p, q);
        }
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int t = 0; t < 4; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][t][r] = fmaf(here[m][t][r] * inverse_left, inverse_right, sum[m][t][r]);
    }

    __device__ __forceinline__ void run() {
        const int across = (g.c + P::EDGE - 1) / P::EDGE, down = (g.b + P::EDGE - 1) / P::EDGE, deep = (g.d + P::L - 1) / P::L;
        const int own = blockIdx.x % (gridDim.x / (unsigned)g.slots), slot = blockIdx.x / (gridDim.x / (unsigned)g.slots);
        const int k0 = own % across * P::EDGE, j0 = own / across % down * P::EDGE, l0 = own / (across * down) % deep * P::L;
        const int i = own / (across * down * deep) % g.a, group = own / (across * down * deep * g.a);
        KronSparseWeightGradOperand<P, P::X_FIRST> x;
        KronSparseWeightGradOperand<P, P::Y_FIRST> y;
        x.from = (const T*)g.x + group * g.xg + (((i64)i * g.c + k0) * g.d + l0) * g.xf;
        y.from = (const T*)g.grad + group * g.yg + (((i64)i * g.b + j0) * g.d + l0) * g.yf;
        x.along = g.xn, x.across = g.xf, x.left = g.c - k0, x.deep = g.d - l0;
        y.along = g.yn, y.across = g.yf, y.left = g.b - j0, y.deep = g.d - l0;
        const i64 chunks = (g.count + P::DEPTH - 1) / P::DEPTH, each = (chunks + g.slots - 1) / g.slots;
        const i64 begin = slot * each, end = begin + each < chunks ? begin + each : chunks;
        float sum[2][4][4];
        clear(sum);
        if (begin < end) {
            x.read(begin * P::DEPTH, g.count, g.d);
            y.read(begin * P::DEPTH, g.count, g.d);
        }
#pragma unroll 1
        for (i64 chunk = begin; chunk < end; ++chunk) {
            if constexpr (P::SPLIT) {
                const unsigned of_y = ptx::redux_max(y.top()), of_x = ptx::redux_max(x.top());
                if (lane == 0) tops[warp] = of_y, tops[P::WARPS + warp] = of_x;
            }
            __syncthreads();
            HalfScale scale_y = {1.0f, 1.0f}, scale_x = {1.0f, 1.0f};
            if constexpr (P::SPLIT) scale_y = scale_of(0), scale_x = scale_of(1);
            y.write(left, scale_y.scale);
            x.write(right, scale_x.scale);
            __syncthreads();
            if (chunk + 1 < end) {
                x.read((chunk + 1) * P::DEPTH, g.count, g.d);
                y.read((chunk + 1) * P::DEPTH, g.count, g.d);
            }
            multiply_chunk(sum, scale_y.inverse, scale_x.inverse);
        }
        float* const out = g.out + ((i64)slot * g.groups + group) * g.a * g.b * g.c * g.d;
        const int l = l0 + warp / 4;
        if (l >= g.d) return;
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int t = 0; t < 4; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const int j = j0 + warp % 4 / 2 * 32 + 16 * m + lane / 4 + r / 2 * 8;
                    const int k = k0 + warp % 2 * 32 + 8 * t + 2 * (lane % 4) + r % 2;
                    if (j < g.b && k < g.c) out[(((i64)i * g.b + j) * g.c + k) * g.d + l] = sum[m][t][r];
                }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_weight_grad(const KronSparseWeightGrad& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseWeightGradBlock<P>(g, shared).run();
}

}  // namespace km

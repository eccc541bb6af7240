// Gradients of the weights of Kronecker-sparse products on tensor cores, in parts of the batch that are added later:
// out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l].
//
// A block owns one i, L neighbouring l, 64 columns j, 64 positions k and a run of the batch, 32 entries at a time; four
// warps have one l, a quarter of the tile each. What is next comes into registers while the tensor cores work, and from
// there into shared memory, with the batch along its lines. float32 is taken apart into two float16 after scaling by
// powers of two, one for what a block has of x and one for what it has of grad; every chunk has its own accumulators.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

struct KronSparseSum {
    const void *x, *grad;
    float* out;
    i64 count;
    int groups, a, b, c, d, slots;
    i64 xg, xn, xf, yg, yn, yf;
};

// FIRST: features lie together, else the batch does.
template <class T_, bool X_FIRST_, bool Y_FIRST_, int L_, int PRODUCTS_>
struct KronSparseSumTile {
    typedef T_ T;
    static constexpr bool X_FIRST = X_FIRST_, Y_FIRST = Y_FIRST_, SPLIT = sizeof(T) == 4;
    static constexpr int L = L_, PRODUCTS = PRODUCTS_, EDGE = 64, DEPTH = 32, THREADS = 128 * L, WARPS = 4 * L;
    // Lines of a plane are 80 bytes apart, so that eight of them meet in no bank, those of another l 64 bytes further.
    static constexpr int PITCH = 40, EACH_L = EDGE * PITCH + (L > 1 ? 32 : 0), PLANE = L * EACH_L, PLANES = SPLIT ? 2 : 1;
    // A thread holds ROUNDS pairs of neighbours along the batch of each operand.
    static constexpr int PAIRS = DEPTH / 2, ROUNDS = L * EDGE * PAIRS / THREADS;
};

// One operand of a block: what a thread reads of it, and where that goes.
template <class P, bool FIRST>
struct KronSparseSide {
    typedef typename P::T T;
    typedef typename Word<sizeof(T)>::type Bits;
    const T* from;
    i64 along, across;
    int left, deep;
    Bits raw[P::ROUNDS][2];

    // Line (l, feature) and pair that this thread takes in a round.
    static __device__ __forceinline__ void place(int round, int& l, int& feature, int& pair) {
        if (FIRST) {
            const int at = threadIdx.x % (P::L * P::EDGE);
            l = at % P::L, feature = at / P::L;
            pair = threadIdx.x / (P::L * P::EDGE) * P::ROUNDS + round;  // neighbours, which are written together
        } else {
            const int at = threadIdx.x / P::PAIRS + P::THREADS / P::PAIRS * round;
            l = at / P::EDGE, feature = at % P::EDGE;
            pair = threadIdx.x % P::PAIRS;
        }
    }

    __device__ __forceinline__ void read(i64 n0, i64 count, int d) {
#pragma unroll
        for (int round = 0; round < P::ROUNDS; ++round) {
            int l, feature, pair;
            place(round, l, feature, pair);
            const bool inside = feature < left && l < deep;
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                const i64 n = n0 + 2 * pair + u;
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
            word[0] = ptx::pack_f16x2(p * scale, q * scale);
            const float2 kept = ptx::unpack_f16x2(word[0]);
            word[1] = ptx::pack_f16x2(fmaf(p, scale, -kept.x), fmaf(q, scale, -kept.y));
        } else {
            word[0] = (unsigned)raw[round][0] | (unsigned)raw[round][1] << 16;
        }
    }

    __device__ __forceinline__ void write(unsigned short* to, float scale) const {
        constexpr int TOGETHER = FIRST ? 4 : 1;
#pragma unroll
        for (int begin = 0; begin < P::ROUNDS; begin += TOGETHER) {
            int l, feature, pair;
            place(begin, l, feature, pair);
            unsigned word[TOGETHER][2];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) part(begin + i, scale, word[i]);
            unsigned short* const line = to + l * P::EACH_L + feature * P::PITCH + 2 * pair;
#pragma unroll
            for (int plane = 0; plane < P::PLANES; ++plane) {
                unsigned* const put = (unsigned*)(line + plane * P::PLANE);
                if constexpr (FIRST)
                    *(uint4*)put = make_uint4(word[0][plane], word[1][plane], word[2][plane], word[3][plane]);
                else
                    *put = word[0][plane];
            }
        }
    }
};

template <class P>
struct KronSparseSumBlock {
    typedef typename P::T T;
    typedef typename Products<T>::type H;
    const KronSparseSum& g;
    unsigned short *left, *right;
    unsigned* tops;
    int lane, warp;

    __device__ __forceinline__ KronSparseSumBlock(const KronSparseSum& given, unsigned char* shared) : g(given) {
        left = (unsigned short*)shared;
        right = left + P::PLANES * P::PLANE;
        tops = (unsigned*)(right + P::PLANES * P::PLANE);
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
    }

    // Exponent of the largest number that any thread of the block has of one operand.
    __device__ __forceinline__ int exponent(int operand) const {
        const int found = (int)(ptx::redux_max(lane < P::WARPS ? tops[operand * P::WARPS + lane] : 0u) >> 23);
        return found < 14 ? 14 : found;
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

    __device__ __forceinline__ void multiply_chunk(float (&sum)[2][4][4], float back_left, float back_right) const {
        const int line = warp / 4 * P::EACH_L, j = warp % 4 / 2 * 32, k = warp % 2 * 32;
        const unsigned short* const rows = left + line + (j + lane % 16) * P::PITCH + lane / 16 * 8;
        const unsigned short* const columns = right + line + (k + lane / 16 * 8 + lane % 8) * P::PITCH + lane / 8 % 2 * 8;
        float here[2][4][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int t = 0; t < 4; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) here[m][t][r] = 0.0f;
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
                for (int r = 0; r < 4; ++r) sum[m][t][r] = fmaf(here[m][t][r] * back_left, back_right, sum[m][t][r]);
    }

    __device__ __forceinline__ void run() {
        const int across = (g.c + P::EDGE - 1) / P::EDGE, down = (g.b + P::EDGE - 1) / P::EDGE, deep = (g.d + P::L - 1) / P::L;
        const int own = blockIdx.x % (gridDim.x / (unsigned)g.slots), slot = blockIdx.x / (gridDim.x / (unsigned)g.slots);
        const int k0 = own % across * P::EDGE, j0 = own / across % down * P::EDGE, l0 = own / (across * down) % deep * P::L;
        const int i = own / (across * down * deep) % g.a, group = own / (across * down * deep * g.a);
        KronSparseSide<P, P::X_FIRST> x;
        KronSparseSide<P, P::Y_FIRST> y;
        x.from = (const T*)g.x + group * g.xg + (((i64)i * g.c + k0) * g.d + l0) * g.xf;
        y.from = (const T*)g.grad + group * g.yg + (((i64)i * g.b + j0) * g.d + l0) * g.yf;
        x.along = g.xn, x.across = g.xf, x.left = g.c - k0, x.deep = g.d - l0;
        y.along = g.yn, y.across = g.yf, y.left = g.b - j0, y.deep = g.d - l0;
        const i64 chunks = (g.count + P::DEPTH - 1) / P::DEPTH, each = (chunks + g.slots - 1) / g.slots;
        const i64 begin = slot * each, end = begin + each < chunks ? begin + each : chunks;
        float sum[2][4][4];
#pragma unroll
        for (int m = 0; m < 2; ++m)
#pragma unroll
            for (int t = 0; t < 4; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][t][r] = 0.0f;
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
            float scale_y = 1.0f, scale_x = 1.0f, back_y = 1.0f, back_x = 1.0f;
            if constexpr (P::SPLIT) {
                const int of_y = exponent(0), of_x = exponent(1);
                scale_y = __uint_as_float((unsigned)(267 - of_y) << 23), back_y = __uint_as_float((unsigned)(of_y - 13) << 23);
                scale_x = __uint_as_float((unsigned)(267 - of_x) << 23), back_x = __uint_as_float((unsigned)(of_x - 13) << 23);
            }
            y.write(left, scale_y);
            x.write(right, scale_x);
            __syncthreads();
            if (chunk + 1 < end) {
                x.read((chunk + 1) * P::DEPTH, g.count, g.d);
                y.read((chunk + 1) * P::DEPTH, g.count, g.d);
            }
            multiply_chunk(sum, back_y, back_x);
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
__device__ __forceinline__ void kron_sparse_sum(const KronSparseSum& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseSumBlock<P>(g, shared).run();
}

}  // namespace km

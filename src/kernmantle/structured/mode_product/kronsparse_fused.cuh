// Two Kronecker-sparse products back to back: the result of the first stays in shared memory.
//
// The first factor has p = a1 / a2 blocks of rank * inner columns for each of the second factor's a2 blocks; the second has
// inner = d2 / d1 blocks of p * rank columns for each of the first factor's d1. No other blocks meet. A block of threads owns
// one of the a2, one of the d1, `slice` of the inner, `columns` of the second's b2, and TILE_M rows. Its warps first compute
// what these need of the first product, 16 columns at a time, and store it in shared memory, the positions of each inner
// together; then they multiply it by the second factor. Packed weights (kronsparse_pack.cuh) are read from global memory
// straight into registers, because each is used once: copying the second factor's to shared memory during the first product
// was no faster. Where neighbours in a row of the result come from different inner, the rows are collected in shared memory
// before they are stored (Y_RUN).
//
// float32 is split as in kronsparse.cuh. Sums that are not finite are computed again by FMA instructions from the weights
// themselves.
#pragma once
#include "kronsparse_pack.cuh"

namespace km {

struct KronSparseFused {
    const void *x, *first, *second, *first_packed, *second_packed, *bias;
    const float *first_scale, *second_scale;
    void* y;
    i64 count;
    int p, c, rank, inner, b, a, d, slice, columns;
    i64 xn, xf, yn, yf;
};

// The tile of a kernel, from a struct of its parameters:
//   Weights              the KronSparseTile that the weights are packed for, of 16 columns and 16 positions
//   X_FIRST, Y_FIRST     features of x and y lie together in memory, else the batch does
//   MMA_M, WARPS         fragments of 16 rows of a block, and its warps
//   VECTOR               4 numbers of x may be read at once
//   ACROSS               the first factor's columns are packed in their own order, not those of each inner together
//   Y_RUN                numbers of y that are stored at once from rows collected in shared memory, 0 if they are not
//   BIAS, ACTIVATION     what is done with a sum before it is stored
template <class Traits>
struct KronSparseFusedTile : Traits {
    typedef typename Traits::Weights Weights;
    typedef typename Weights::T T;
    static constexpr bool SPLIT = Weights::SPLIT;
    static constexpr int PRODUCTS = Weights::PRODUCTS, CHUNK = Weights::CHUNK;
    static constexpr int TILE_M = 16 * Traits::MMA_M, THREADS = 32 * Traits::WARPS, MMA_K = 4 / Traits::MMA_M, WORDS = SPLIT ? 2 : 1;

    // Numbers from row to row of what the first factor gives, for so many inner of so many steps of 16 positions each, and
    // from row to row of the result in shared memory.
    static __device__ __forceinline__ constexpr int pitch(int slice, int steps) { return 16 * (slice * steps | 1); }
    static __device__ __forceinline__ constexpr int row_pitch(int columns, int inner) {
        return Traits::Y_RUN ? (columns * inner + 7) / 8 * 8 + 16 / (int)sizeof(T) : 0;
    }
    static __device__ constexpr int shared_bytes(int slice, int steps, int columns, int inner) {
        return TILE_M * (pitch(slice, steps) + row_pitch(columns, inner)) * (int)sizeof(T);
    }
};

template <class P>
struct KronSparseFusedBlock {
    typedef typename P::T T;
    typedef typename Products<T>::type H;
    typedef typename Word<sizeof(T)>::type Bits;
    static constexpr int MMA_M = P::MMA_M, MMA_K = P::MMA_K, WORDS = P::WORDS, CHUNK = P::CHUNK;
    typedef float Sums[MMA_M][2][4];
    typedef Bits Numbers[MMA_M][2][4];

    const KronSparseFused& g;
    T *middle, *rows;
    int lane, quad, warp, i, l, inner0, inners, j0, tiles, deep, pitch, row_pitch;
    i64 n0;

    static __device__ __forceinline__ int ceil_div(int p, int q) { return (p + q - 1) / q; }

    __device__ __forceinline__ KronSparseFusedBlock(const KronSparseFused& arguments, unsigned char* shared) : g(arguments) {
        const int slices = ceil_div(g.inner, g.slice), parts = ceil_div(g.b, g.columns);
        int own = blockIdx.x;
        j0 = own % parts * g.columns;
        own /= parts;
        inner0 = own % slices * g.slice;
        own /= slices;
        l = own % g.d;
        own /= g.d;
        i = own % g.a;
        n0 = (i64)(own / g.a) * P::TILE_M;
        inners = g.inner - inner0 < g.slice ? g.inner - inner0 : g.slice;
        tiles = ceil_div(g.b - j0 < g.columns ? g.b - j0 : g.columns, 16);
        lane = threadIdx.x % 32;
        quad = lane % 4;
        warp = threadIdx.x / 32;
        deep = ceil_div(g.p * g.rank, 16);
        pitch = P::pitch(g.slice, deep);
        middle = (T*)shared;
        rows = middle + P::TILE_M * pitch;
        row_pitch = P::row_pitch(g.columns, g.inner);
    }

    // Row of the tile that accumulators 0, 1 (half 0) or 2, 3 (half 1) of m belong to; its line in the middle.
    __device__ __forceinline__ int row_of(int m, int half) const {
        return P::X_FIRST && P::Y_FIRST ? tile_row(m, half) : 2 * MMA_M * (lane / 4) + 2 * m + half;
    }
    __device__ __forceinline__ int tile_row(int m, int half) const { return 16 * m + 8 * half + lane / 4; }

    // 16 positions of k of a block of the first factor.
    __device__ __forceinline__ void read_x(Numbers& v, const T* x, int step) const {
        const int k = 16 * step + 4 * quad;
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const i64 n = n0 + row_of(m, half);
                const T* from = x + n * g.xn + (i64)k * g.d * g.xf;
                if (P::VECTOR) {
                    Pack<T, 4> pack = {};
                    if (n < g.count && k < g.c) pack = load_pack<T, 4>(from);
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[m][half][e] = bits_of(pack.v[e]);
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        v[m][half][e] = n < g.count && k + e < g.c ? bits_of(load_pack<T, 1>(from + (i64)e * g.d * g.xf).v[0]) : Bits(0);
                }
            }
    }
    static __device__ __forceinline__ unsigned bits_of(float a) { return __float_as_uint(a); }
    static __device__ __forceinline__ unsigned short bits_of(f16 a) { return a.bits; }
    static __device__ __forceinline__ unsigned short bits_of(bf16 a) { return a.bits; }

    // The same of the middle.
    __device__ __forceinline__ void read_middle(Numbers& v, int own, int step) const {
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Pack<Bits, 4> pack = read_pack<Bits, 4>(middle + tile_row(m, half) * pitch + 16 * (own * deep + step) + 4 * quad);
#pragma unroll
                for (int e = 0; e < 4; ++e) v[m][half][e] = pack.v[e];
            }
    }

    // Products with 16 columns; false if a number was infinite.
    template <class Read>
    __device__ __forceinline__ bool multiply_all(Sums& sum, const unsigned char* packed, int steps, Read read) const {
        bool finite = true;
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][t][r] = 0.0f;
#pragma unroll 1
        for (int begin = 0; begin < steps; begin += MMA_K) {
            Numbers v[MMA_K];
            uint4 w[MMA_K][WORDS];
#pragma unroll
            for (int u = 0; u < MMA_K; ++u) {
                if (begin + u < steps) {
                    read(v[u], begin + u);
#pragma unroll
                    for (int t = 0; t < WORDS; ++t) w[u][t] = *(const uint4*)(packed + (i64)(begin + u) * CHUNK + (32 * t + lane) * 16);
                } else {
#pragma unroll
                    for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                        for (int half = 0; half < 2; ++half)
#pragma unroll
                            for (int e = 0; e < 4; ++e) v[u][m][half][e] = 0;
#pragma unroll
                    for (int t = 0; t < WORDS; ++t) w[u][t] = make_uint4(0, 0, 0, 0);
                }
            }
            if constexpr (P::SPLIT)
                finite = add_split(sum, v, w) && finite;
            else
                add_halves(sum, v, w);
        }
        return finite;
    }

    __device__ __forceinline__ void add_halves(Sums& sum, const Numbers (&v)[MMA_K], const uint4 (&w)[MMA_K][WORDS]) const {
#pragma unroll
        for (int u = 0; u < MMA_K; ++u)
#pragma unroll
            for (int m = 0; m < MMA_M; ++m) {
                unsigned left[4];
#pragma unroll
                for (int r = 0; r < 4; ++r) left[r] = (unsigned)v[u][m][r % 2][r / 2 * 2] | (unsigned)v[u][m][r % 2][r / 2 * 2 + 1] << 16;
                ptx::mma_m16n8k16<H>(sum[m][0], left, w[u][0].x, w[u][0].y);
                ptx::mma_m16n8k16<H>(sum[m][1], left, w[u][0].z, w[u][0].w);
            }
    }

    __device__ __forceinline__ bool add_split(Sums& sum, const Numbers (&v)[MMA_K], const uint4 (&w)[MMA_K][WORDS]) const {
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float top = 0.0f;
#pragma unroll
        for (int u = 0; u < MMA_K; ++u)
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    top = fmaxf(top, fmaxf(fabsf(__uint_as_float(v[u][m][0][e])), fabsf(__uint_as_float(v[u][m][1][e]))));
        const int found = (int)(ptx::redux_max(__float_as_uint(top)) >> 23);
        const HalfScale scale = HalfScale::of_exponent(found);
        float here[MMA_M][2][4];
#pragma unroll
        for (int u = 0; u < MMA_K; ++u) {
            unsigned high[MMA_M][4], low[MMA_M][4];
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const float p = __uint_as_float(v[u][m][r % 2][r / 2 * 2]), q = __uint_as_float(v[u][m][r % 2][r / 2 * 2 + 1]);
                    split_f16x2(high[m][r], low[m][r], p, q, scale.scale);
                }
#pragma unroll
            for (int term = BEGIN; term < 3; ++term)
#pragma unroll
                for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                    for (int t = 0; t < 2; ++t)
                        mma_term_f16(here[m][t], term, u == 0 && term == BEGIN, high[m], low[m], w[u][P::WORDS == 2 ? t : 0]);
        }
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][t][r] = fmaf(here[m][t][r], scale.inverse, sum[m][t][r]);
        return found < 255;
    }

    __device__ __forceinline__ i64 second_block(int own) const { return ((i64)i * g.inner + inner0 + own) * g.d + l; }
    __device__ __forceinline__ const unsigned char* second_packed(int own, int tile) const {
        return (const unsigned char*)g.second_packed + (second_block(own) * ceil_div(g.b, 16) + j0 / 16 + tile) * deep * CHUNK;
    }

    // What this block needs of the first product.
    __device__ __forceinline__ void fill() const {
        const int width = P::ACROSS ? g.rank * g.inner : g.rank, begin = P::ACROSS && g.slice < g.inner ? inner0 : 0;
        const int wide = ceil_div(width, 16), sets = P::ACROSS ? 1 : inners, some = P::ACROSS && g.slice < g.inner ? ceil_div(inners, 16) : wide;
        const int steps = ceil_div(g.c, 16), items = g.p * sets * some;
#pragma unroll 1
        for (int item = warp; item < items; item += P::WARPS) {
            const int tile = item % some, set = item / some % sets, block = item / (some * sets), v0 = begin + 16 * tile;
            const i64 at = (i64)i * g.p + block;
            const i64 unit = P::ACROSS ? at * g.d + l : (at * g.inner + inner0 + set) * g.d + l;
            const T* x = (const T*)g.x + (at * g.c * g.d + l) * g.xf;
            Sums sum;
            const bool finite = multiply_all(
                sum, (const unsigned char*)g.first_packed + (unit * wide + v0 / 16) * steps * CHUNK, steps,
                [&](Numbers& v, int step) { read_x(v, x, step); });
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int column = v0 + 8 * t + 2 * quad + e;
                    const int s = P::ACROSS ? column / g.inner : column, own = P::ACROSS ? column % g.inner - inner0 : set;
                    if (column >= width || own < 0 || own >= inners) continue;
                    const float inverse = P::SPLIT ? g.first_scale[unit * wide * 16 + column] : 1.0f;
                    const int j = s * g.inner + inner0 + own;
#pragma unroll
                    for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            float value = sum[m][t][2 * half + e];
                            if (P::SPLIT) value = finite && inverse == inverse ? value * inverse : recompute_first(x, at, j, n0 + row_of(m, half));
                            middle[tile_row(m, half) * pitch + own * 16 * deep + block * g.rank + s] = Store<T>::from(value);
                        }
                }
        }
        const int used = g.p * g.rank, left = 16 * deep - used;
        for (int at = threadIdx.x; at < P::TILE_M * inners * left; at += P::THREADS)
            middle[at / (inners * left) * pitch + at / left % inners * 16 * deep + used + at % left] = Store<T>::from(0.0f);
    }
    __device__ __forceinline__ float recompute_first(const T* x, i64 at, int j, i64 n) const {
        const T* w = (const T*)g.first + (at * g.rank * g.inner + j) * g.c * g.d + l;
        return n < g.count ? recompute(x + n * g.xn, g.d * g.xf, w, g.d, g.c) : 0.0f;
    }
    static __device__ __noinline__ float recompute(const T* x, i64 apart, const T* w, i64 step, int count) {
        float total = 0.0f;
#pragma unroll 1
        for (int k = 0; k < count; ++k) total = fmaf(convert<float>(x[k * apart]), convert<float>(w[k * step]), total);
        return total;
    }

    // The second product, of the middle.
    __device__ __forceinline__ void finish() const {
        const int items = inners * tiles;
#pragma unroll 1
        for (int item = warp; item < items; item += P::WARPS) {
            const int tile = item % tiles, own = item / tiles;
            Sums sum;
            const bool finite = multiply_all(sum, second_packed(own, tile), deep, [&](Numbers& v, int step) { read_middle(v, own, step); });
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = j0 + 16 * tile + 8 * t + 2 * quad + e, l2 = (inner0 + own) * g.d + l;
                    if (j >= g.b) continue;
                    const float inverse = P::SPLIT ? g.second_scale[second_block(own) * ceil_div(g.b, 16) * 16 + j] : 1.0f;
                    const i64 feature = ((i64)i * g.b + j) * g.inner * g.d + l2;
                    const float offset = P::BIAS ? convert<float>(((const T*)g.bias)[feature]) : 0.0f;
#pragma unroll
                    for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const i64 n = n0 + row_of(m, half);
                            if (n >= g.count) continue;
                            float value = sum[m][t][2 * half + e];
                            if (P::SPLIT) value = finite && inverse == inverse ? value * inverse : recompute_second(own, j, l2, tile_row(m, half));
                            const T result = Store<T>::from(activated<P::ACTIVATION>(value + offset));
                            if (P::Y_RUN)
                                rows[row_of(m, half) * row_pitch + (j - j0) * g.inner + own] = result;
                            else
                                ((T*)g.y)[n * g.yn + feature * g.yf] = result;
                        }
                }
        }
    }
    __device__ __forceinline__ float recompute_second(int own, int j, int l2, int row) const {
        const T* w = (const T*)g.second + ((i64)i * g.b + j) * g.p * g.rank * g.inner * g.d + l2;
        return recompute(middle + row * pitch + own * 16 * deep, 1, w, g.inner * g.d, g.p * g.rank);
    }

    // Whole rows, or parts of them, to memory.
    __device__ __forceinline__ void write() const {
        constexpr int RUN = P::Y_RUN ? P::Y_RUN : 1;
        const int wide = (g.b - j0 < g.columns ? g.b - j0 : g.columns) * g.inner / RUN;
        const int left = g.count - n0 < P::TILE_M ? (int)(g.count - n0) : P::TILE_M;
        T* y = (T*)g.y + n0 * g.yn + ((i64)i * g.b + j0) * g.inner;
        for (int row = warp; row < left; row += P::WARPS)
#pragma unroll 4
            for (int at = lane; at < wide; at += 32)
                store_pack<T, RUN>(y + row * g.yn + RUN * at, *(const Pack<T, RUN>*)(rows + row * row_pitch + RUN * at));
    }

    __device__ __forceinline__ void run() const {
        ptx::griddepcontrol_launch_dependents();
        ptx::griddepcontrol_wait();
        fill();
        __syncthreads();
        finish();
        if (P::Y_RUN) {
            __syncthreads();
            write();
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_fused(const KronSparseFused& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseFusedBlock<P>(g, shared).run();
}

}  // namespace km

// Two Kronecker-sparse products as one: what the first gives stays in shared memory.
//
// The first factor has p = a1 / a2 blocks of rank * inner columns for each of the second's a2 blocks, the second inner =
// d2 / d1 blocks of p * rank columns for each of the first's d1: nothing else meets. A block of threads owns one of the
// a2, one of the d1, `slice` of the inner, `columns` of the second's b2 and ROWS rows. First its warps multiply what
// those need of the first factor, 16 columns at a time, and leave it in shared memory, the positions of each inner
// together; then they multiply that. Weights come as kronsparse_prepare leaves them, straight from memory to
// registers, as each is used but once: copies of the second's to shared memory while the first is multiplied were no
// quicker. Where neighbours in a row of the result come from different inner, the rows are put together in shared memory
// first (RUN).
//
// float32 is taken apart as in kronsparse.cuh. What that makes no number of is computed again from the weights given.
#pragma once
#include "kronsparse_prepare.cuh"

namespace km {

struct KronSparsePair {
    const void *x, *first, *second, *first_image, *second_image, *bias;
    const float *first_scale, *second_scale;
    void* y;
    i64 count;
    int p, c, rank, inner, b, a, d, slice, columns;
    i64 xn, xf, yn, yf;
};

// Tile is what the weights were prepared for, 16 columns and 16 positions at a time. VECTOR: 4 numbers of x may be read at
// once. ACROSS: the first factor's columns are prepared in their own order, not those of each inner together. RUN: numbers of
// y that are written at once from rows put together, 0 if they are not.
template <class Tile_, bool X_FIRST_, bool Y_FIRST_, int MT_, int WARPS_, bool VECTOR_, bool ACROSS_, int RUN_, bool BIAS_, int ACTIVATION_>
struct KronSparsePairTile : Tile_ {
    typedef Tile_ Tile;
    static constexpr bool X_FIRST = X_FIRST_, Y_FIRST = Y_FIRST_, VECTOR = VECTOR_, ACROSS = ACROSS_, BIAS = BIAS_;
    static constexpr int MT = MT_, WARPS = WARPS_, ACTIVATION = ACTIVATION_, ROWS = 16 * MT, THREADS = 32 * WARPS;
    static constexpr int RUN = RUN_, STEPS = 4 / MT, WORDS = Tile::SPLIT ? 2 : 1;
};

template <class P>
struct KronSparsePairBlock {
    typedef typename P::T T;
    typedef typename Products<T>::type H;
    typedef typename Word<sizeof(T)>::type Bits;
    static constexpr int MT = P::MT, STEPS = P::STEPS, WORDS = P::WORDS, CHUNK = P::Tile::CHUNK;
    typedef float Sums[MT][2][4];
    typedef Bits Numbers[MT][2][4];

    const KronSparsePair& g;
    T *middle, *rows;
    int lane, quad, warp, i, l, inner0, inners, j0, tiles, deep, pitch, row_pitch;
    i64 n0;

    static __device__ __forceinline__ int ceil_div(int p, int q) { return (p + q - 1) / q; }

    __device__ __forceinline__ KronSparsePairBlock(const KronSparsePair& given, unsigned char* shared) : g(given) {
        const int slices = ceil_div(g.inner, g.slice), parts = ceil_div(g.b, g.columns);
        int own = blockIdx.x;
        j0 = own % parts * g.columns;
        own /= parts;
        inner0 = own % slices * g.slice;
        own /= slices;
        l = own % g.d;
        own /= g.d;
        i = own % g.a;
        n0 = (i64)(own / g.a) * P::ROWS;
        inners = g.inner - inner0 < g.slice ? g.inner - inner0 : g.slice;
        tiles = ceil_div(g.b - j0 < g.columns ? g.b - j0 : g.columns, 16);
        lane = threadIdx.x % 32;
        quad = lane % 4;
        warp = threadIdx.x / 32;
        deep = ceil_div(g.p * g.rank, 16);
        pitch = 16 * (g.slice * deep | 1);
        middle = (T*)shared;
        rows = middle + P::ROWS * pitch;
        row_pitch = P::RUN ? (g.columns * g.inner + 7) / 8 * 8 + 16 / (int)sizeof(T) : 0;
    }

    // Row of the tile that accumulators 0, 1 (half 0) or 2, 3 (half 1) of m belong to; its line in the middle.
    __device__ __forceinline__ int row_of(int m, int half) const {
        return P::X_FIRST && P::Y_FIRST ? line_of(m, half) : 2 * MT * (lane / 4) + 2 * m + half;
    }
    __device__ __forceinline__ int line_of(int m, int half) const { return 16 * m + 8 * half + lane / 4; }

    static __device__ __forceinline__ Pack<Bits, 4> take(const T* from) {
        union {
            typename Word<4 * sizeof(T)>::type word;
            Pack<Bits, 4> pack;
        } both;
        both.word = *(const typename Word<4 * sizeof(T)>::type*)from;
        return both.pack;
    }

    // 16 positions of k of a block of the first factor.
    __device__ __forceinline__ void read_x(Numbers& v, const T* x, int step) const {
        const int k = 16 * step + 4 * quad;
#pragma unroll
        for (int m = 0; m < MT; ++m)
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
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Pack<Bits, 4> pack = take(middle + line_of(m, half) * pitch + 16 * (own * deep + step) + 4 * quad);
#pragma unroll
                for (int e = 0; e < 4; ++e) v[m][half][e] = pack.v[e];
            }
    }

    // Products with 16 columns; false if a number was infinite.
    template <class Read>
    __device__ __forceinline__ bool multiply_all(Sums& sum, const unsigned char* image, int steps, Read read) const {
        bool finite = true;
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][t][r] = 0.0f;
#pragma unroll 1
        for (int begin = 0; begin < steps; begin += STEPS) {
            Numbers v[STEPS];
            uint4 w[STEPS][WORDS];
#pragma unroll
            for (int u = 0; u < STEPS; ++u) {
                if (begin + u < steps) {
                    read(v[u], begin + u);
#pragma unroll
                    for (int t = 0; t < WORDS; ++t) w[u][t] = *(const uint4*)(image + (i64)(begin + u) * CHUNK + (32 * t + lane) * 16);
                } else {
#pragma unroll
                    for (int m = 0; m < MT; ++m)
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

    __device__ __forceinline__ void add_halves(Sums& sum, const Numbers (&v)[STEPS], const uint4 (&w)[STEPS][WORDS]) const {
#pragma unroll
        for (int u = 0; u < STEPS; ++u)
#pragma unroll
            for (int m = 0; m < MT; ++m) {
                unsigned left[4];
#pragma unroll
                for (int r = 0; r < 4; ++r) left[r] = (unsigned)v[u][m][r % 2][r / 2 * 2] | (unsigned)v[u][m][r % 2][r / 2 * 2 + 1] << 16;
                ptx::mma_m16n8k16<H>(sum[m][0], left, w[u][0].x, w[u][0].y);
                ptx::mma_m16n8k16<H>(sum[m][1], left, w[u][0].z, w[u][0].w);
            }
    }

    __device__ __forceinline__ bool add_split(Sums& sum, const Numbers (&v)[STEPS], const uint4 (&w)[STEPS][WORDS]) const {
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float top = 0.0f;
#pragma unroll
        for (int u = 0; u < STEPS; ++u)
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    top = fmaxf(top, fmaxf(fabsf(__uint_as_float(v[u][m][0][e])), fabsf(__uint_as_float(v[u][m][1][e]))));
        const int found = (int)(ptx::redux_max(__float_as_uint(top)) >> 23), exponent = found < 14 ? 14 : found;
        const float scale = __uint_as_float((unsigned)(267 - exponent) << 23), back = __uint_as_float((unsigned)(exponent - 13) << 23);
        float here[MT][2][4];
#pragma unroll
        for (int u = 0; u < STEPS; ++u) {
            unsigned high[MT][4], low[MT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const float p = __uint_as_float(v[u][m][r % 2][r / 2 * 2]), q = __uint_as_float(v[u][m][r % 2][r / 2 * 2 + 1]);
                    const unsigned both = ptx::pack_f16x2(p * scale, q * scale);
                    const float2 kept = ptx::unpack_f16x2(both);
                    high[m][r] = both;
                    low[m][r] = ptx::pack_f16x2(fmaf(p, scale, -kept.x), fmaf(q, scale, -kept.y));
                }
#pragma unroll
            for (int turn = BEGIN; turn < 3; ++turn)
#pragma unroll
                for (int m = 0; m < MT; ++m)
#pragma unroll
                    for (int t = 0; t < 2; ++t)
                        multiply_turn(here[m][t], turn, u == 0 && turn == BEGIN, high[m], low[m], w[u][P::WORDS == 2 ? t : 0]);
        }
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][t][r] = fmaf(here[m][t][r], back, sum[m][t][r]);
        return found < 255;
    }

    __device__ __forceinline__ i64 second_block(int own) const { return ((i64)i * g.inner + inner0 + own) * g.d + l; }
    __device__ __forceinline__ const unsigned char* second_image(int own, int tile) const {
        return (const unsigned char*)g.second_image + (second_block(own) * ceil_div(g.b, 16) + j0 / 16 + tile) * deep * CHUNK;
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
                sum, (const unsigned char*)g.first_image + (unit * wide + v0 / 16) * steps * CHUNK, steps,
                [&](Numbers& v, int step) { read_x(v, x, step); });
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int column = v0 + 8 * t + 2 * quad + e;
                    const int s = P::ACROSS ? column / g.inner : column, own = P::ACROSS ? column % g.inner - inner0 : set;
                    if (column >= width || own < 0 || own >= inners) continue;
                    const float undo = P::SPLIT ? g.first_scale[unit * wide * 16 + column] : 1.0f;
                    const int j = s * g.inner + inner0 + own;
#pragma unroll
                    for (int m = 0; m < MT; ++m)
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            float value = sum[m][t][2 * half + e];
                            if (P::SPLIT) value = finite && undo == undo ? value * undo : first_directly(x, at, j, n0 + row_of(m, half));
                            middle[line_of(m, half) * pitch + own * 16 * deep + block * g.rank + s] = Store<T>::from(value);
                        }
                }
        }
        const int used = g.p * g.rank, left = 16 * deep - used;
        for (int at = threadIdx.x; at < P::ROWS * inners * left; at += P::THREADS)
            middle[at / (inners * left) * pitch + at / left % inners * 16 * deep + used + at % left] = Store<T>::from(0.0f);
    }
    __device__ __forceinline__ float first_directly(const T* x, i64 at, int j, i64 n) const {
        const T* w = (const T*)g.first + (at * g.rank * g.inner + j) * g.c * g.d + l;
        return n < g.count ? directly(x + n * g.xn, g.d * g.xf, w, g.d, g.c) : 0.0f;
    }
    static __device__ __noinline__ float directly(const T* x, i64 apart, const T* w, i64 step, int count) {
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
            const bool finite = multiply_all(sum, second_image(own, tile), deep, [&](Numbers& v, int step) { read_middle(v, own, step); });
#pragma unroll
            for (int t = 0; t < 2; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = j0 + 16 * tile + 8 * t + 2 * quad + e, l2 = (inner0 + own) * g.d + l;
                    if (j >= g.b) continue;
                    const float undo = P::SPLIT ? g.second_scale[second_block(own) * ceil_div(g.b, 16) * 16 + j] : 1.0f;
                    const i64 feature = ((i64)i * g.b + j) * g.inner * g.d + l2;
                    const float offset = P::BIAS ? convert<float>(((const T*)g.bias)[feature]) : 0.0f;
#pragma unroll
                    for (int m = 0; m < MT; ++m)
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const i64 n = n0 + row_of(m, half);
                            if (n >= g.count) continue;
                            float value = sum[m][t][2 * half + e];
                            if (P::SPLIT) value = finite && undo == undo ? value * undo : second_directly(own, j, l2, line_of(m, half));
                            const T result = Store<T>::from(activated<P::ACTIVATION>(value + offset));
                            if (P::RUN)
                                rows[row_of(m, half) * row_pitch + (j - j0) * g.inner + own] = result;
                            else
                                ((T*)g.y)[n * g.yn + feature * g.yf] = result;
                        }
                }
        }
    }
    __device__ __forceinline__ float second_directly(int own, int j, int l2, int line) const {
        const T* w = (const T*)g.second + ((i64)i * g.b + j) * g.p * g.rank * g.inner * g.d + l2;
        return directly(middle + line * pitch + own * 16 * deep, 1, w, g.inner * g.d, g.p * g.rank);
    }

    // Whole rows, or parts of them, to memory.
    __device__ __forceinline__ void write() const {
        constexpr int RUN = P::RUN ? P::RUN : 1;
        const int wide = (g.b - j0 < g.columns ? g.b - j0 : g.columns) * g.inner / RUN;
        const int left = g.count - n0 < P::ROWS ? (int)(g.count - n0) : P::ROWS;
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
        if (P::RUN) {
            __syncthreads();
            write();
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_pair(const KronSparsePair& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparsePairBlock<P>(g, shared).run();
}

}  // namespace km

// What the kernels of products with many columns hand to each other: columns of v in halves, transposed, and the columns
// of the matrix.
//
// A column of v has one power of two, which brings its largest value to 2^14 .. 2^15. Of 128 rows of v the high halves of
// all columns, then the low ones, are two pieces of 64 rows: [column][64 halves], permuted as tensor cores read them.
#pragma once
#include "layout.cuh"
#include "score.cuh"
#include "specialized.cuh"
#include "split_hi_lo.cuh"

namespace km {

// columns: by tile [operand over k, then ends][slot], slots in the order of score_column.
template <class A>
struct Wide : A {
    int* list;
    unsigned char* values;
    float* columns;
};
// Where the list holds the largest values of columns of v, as bits; what comes before it is that of score_gate.cuh.
constexpr int LARGEST_AT = 256, ALL_BY_DIFFERENCES = 1 << 30;

// Shape: DEPTH numbers a point, COLUMNS of v, entries of CHUNK columns of the matrix at a time.
template <int DEPTH_, int COLUMNS_, int GROUPS_, int STAGES_, int CHUNK_>
struct WideTile {
    static constexpr int DEPTH = DEPTH_, COLUMNS = COLUMNS_, GROUPS = GROUPS_, STAGES = STAGES_, CHUNK = CHUNK_;
    static constexpr int BM = 64 * GROUPS, BN = SCORE_ROWS, THREADS = 128 * (GROUPS + 1);
    static constexpr int PIECE = COLUMNS * 128, PLANE = 2 * PIECE, BYTES = 2 * PLANE;
};
// Floats that travel with a tile of columns: their numbers, ends, levels where entries are powers of 2, then whether these are small.
template <class Body, class Tile>
__device__ constexpr int wide_side() {
    return SCORE_ROWS * (Tile::DEPTH + Body::COLUMN_ENDS + Body::POWERS_OF_2) + 4 * Body::POWERS_OF_2;
}
template <class Body, class Tile>
__device__ constexpr int wide_levels() {
    return SCORE_ROWS * (Tile::DEPTH + Body::COLUMN_ENDS);
}
// Powers of 2 that become halves are that many bits higher. The largest squares of rows, which such powers lack, and of columns of
// which they are made, in bits of the exponent: halves are below 2^16.
constexpr float WIDE_LIFT = 6.0f, WIDE_ROW_REACH = 8.0f, WIDE_REACH = 16.0f;

// The largest value of every column of v; an infinite one cannot be taken apart.
template <class Body, class Tile>
__device__ __forceinline__ void scale_columns(const typename Body::Args& g) {
    typedef typename Body::Weight W;
    typedef typename W::T T;
    const i64* s = g.stride[W::BUFFER];
    const i64 rows_at_once = (i64)gridDim.x * (blockDim.x / Tile::COLUMNS);
    bool infinite = false;
    for (i64 c = threadIdx.x % Tile::COLUMNS; c < g.size[ROLE_L]; c += Tile::COLUMNS) {
        float most = 0.0f;
#pragma unroll 4
        for (i64 n = (i64)blockIdx.x * (blockDim.x / Tile::COLUMNS) + threadIdx.x / Tile::COLUMNS; n < g.size[ROLE_N]; n += rows_at_once) {
            const float v = fabsf(convert<float>(load_pack<T, 1>((const T*)g.pointer[W::BUFFER] + n * s[ROLE_N] + c * s[ROLE_L]).v[0]));
            infinite |= v == infinity<float>();
            most = fmaxf(most, v);
        }
        if (most > 0.0f) atomicMax(g.list + LARGEST_AT + c, __float_as_int(most));
    }
    if (infinite) atomicMax(g.list, ALL_BY_DIFFERENCES);
}

// One tile of rows of v, of the columns from `first` on; what is behind the last of either is 0.
template <class Body, class Tile>
__device__ __forceinline__ void split_values(const typename Body::Args& g, i64 tile, i64 first, unsigned char* to) {
    typedef typename Body::Weight W;
    typedef typename W::T T;
    const i64* s = g.stride[W::BUFFER];
    for (int e = threadIdx.x; e < SCORE_ROWS / 8 * Tile::COLUMNS; e += blockDim.x) {
        const int own = e % Tile::COLUMNS, row = e / Tile::COLUMNS * 8;
        const i64 c = first + own;
        const bool there = c < g.size[ROLE_L];
        const float scale = there ? HalfScale::of_largest(__int_as_float(g.list[LARGEST_AT + c])).scale : 0.0f;
        Pack<f16, 8> high, low;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const i64 n = tile * SCORE_ROWS + row + i;
            const bool inside = there && n < g.size[ROLE_N];
            const float v = inside ? scale * convert<float>(load_pack<T, 1>((const T*)g.pointer[W::BUFFER] + n * s[ROLE_N] + c * s[ROLE_L]).v[0]) : 0.0f;
            high.v[i] = Store<f16>::from(v);
            low.v[i] = Store<f16>::from(v - convert<float>(high.v[i]));
        }
        unsigned char* at = to + row / 64 * Tile::PIECE + own * 128 + swizzle_128(own, row % 64 / 8);
        *(Pack<f16, 8>*)at = high;
        *(Pack<f16, 8>*)(at + Tile::PLANE) = low;
    }
}

// What the columns of a tile contribute to exponents of powers of 2, and whether that is little for all of them.
template <class Body, class Tile>
__device__ __forceinline__ void put_levels(const typename Body::Args& g, float* to) {
    const float factor = Body::scale(Body::fixed(g, origin()), g.number);
    __syncthreads();
    bool small = factor > 0.0f;
    if (threadIdx.x < SCORE_ROWS) {
        float norm = 0.0f;
#pragma unroll
        for (int k = 0; k < Tile::DEPTH; ++k) norm = fmaf(to[k * SCORE_ROWS + threadIdx.x], to[k * SCORE_ROWS + threadIdx.x], norm);
        small = small && factor * norm <= WIDE_REACH;
        to[wide_levels<Body, Tile>() + threadIdx.x] = fmaf(-factor, norm, WIDE_LIFT);
    }
    small = __syncthreads_and(small);
    if (threadIdx.x == 0) *(float4*)(to + wide_side<Body, Tile>() - 4) = make_float4(small, 0.0f, 0.0f, 0.0f);
}

// One tile of columns; those behind the last are the last, times 0.
template <class Body, class Tile>
__device__ __forceinline__ void split_columns(const typename Body::Args& g) {
    typedef typename Body::template Column<0> Y;
    const auto p = origin();
    const i64 first = (i64)blockIdx.x * SCORE_ROWS, last = g.size[ROLE_N] - 1;
    float* to = g.columns + blockIdx.x * (i64)wide_side<Body, Tile>();
    for (int e = threadIdx.x; e < SCORE_ROWS * Tile::DEPTH; e += blockDim.x) {
        const int slot = e % SCORE_ROWS, k = e / SCORE_ROWS;
        const i64 n = first + score_column(slot) < last ? first + score_column(slot) : last;
        to[e] = convert<float>(load_pack<typename Y::T, 1>(row_of<Y>(g, p, n) + k * g.stride[Y::BUFFER][ROLE_K]).v[0]);
    }
    if (threadIdx.x < SCORE_ROWS) {
        const i64 n = first + score_column(threadIdx.x) < last ? first + score_column(threadIdx.x) : last;
        each<0, Body::COLUMN_ENDS>([&](auto index) {
            to[(Tile::DEPTH + decltype(index)::value) * SCORE_ROWS + threadIdx.x] = end_value<typename Body::template ColumnEnd<decltype(index)::value>, float>(g, p, n, g.size[ROLE_N], ROLE_N);
        });
    }
    if constexpr (Body::POWERS_OF_2) put_levels<Body, Tile>(g, to);
    split_values<Body, Tile>(g, blockIdx.x, 0, g.values + blockIdx.x * (i64)Tile::BYTES);
}

// A block of rows times many columns of v: a thread that keeps tiles coming, warpgroups that consume them. Where the points do not
// suit products, or v does not, another kernel runs.
template <class Rows, class Tile, int PRODUCER, int CONSUMER, class Args>
__device__ __forceinline__ void run_rows(const Args& g) {
    if (__syncthreads_or(uses_differences(g.list, g.size[ROLE_M], g.size[ROLE_N]))) return;
    run_specialized<Rows, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

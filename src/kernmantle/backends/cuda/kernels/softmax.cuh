// What the kernels of softmax-weighted sums hand to each other: rows of q, k and v in halves as tensor cores read them.
//
// Everything lies in pieces of 64 halves a row, 128 bytes whose 16-byte pieces are permuted (layout.cuh): of 64 rows of q
// [plane][piece][row], of BN rows of k [plane][piece][row], of BN rows of v, transposed, [plane][64 rows][column]. Halves
// have one plane; of float32 there are high and low halves and powers of two by which they were multiplied: one for 64 rows
// of q, one for BN of k, one for each column of v in BN rows. Squared distances are |q|^2 + |k|^2 - 2 q k, of float32 less the
// first row of k: the squares travel with the rows. A column of v that is not finite has that as its unit and ones
// where it stands, so that it gets to what it takes part in.
#pragma once
#include "fragments.cuh"
#include "layout.cuh"
#include "reduce.cuh"
#include "score.cuh"
#include "specialized.cuh"

namespace km {

typedef Coord BatchEntry;

// Bits by which weights are lifted before they are halves: as they are at most 1, float16, and the low halves of float32, are
// normal numbers down to 2^-28 then. bfloat16 has the exponents of float32.
template <class H>
constexpr int LIFT = 14;
template <>
constexpr int LIFT<bf16> = 0;

// first: by batch entry and 64 rows. Sides: by batch entry and tile of columns, what entries read of columns, then units.
template <class A>
struct Weighing : A {
    unsigned char *queries, *keys, *values;
    float *query_units, *sides;
};

// Shape: halves H in PLANES, E numbers a row of q and k, C of v, GROUPS warpgroups of 64 rows, BN columns at a time.
template <class H_, int PLANES_, int E_, int C_, int GROUPS_, int BN_, int STAGES_, bool CAUSAL_>
struct SoftmaxTile {
    typedef H_ H;
    static constexpr int PLANES = PLANES_, E = E_, C = C_, GROUPS = GROUPS_, BN = BN_, STAGES = STAGES_;
    static constexpr bool CAUSAL = CAUSAL_, SPLIT = PLANES == 2;
    static constexpr int BM = 64 * GROUPS, THREADS = 128 * (GROUPS + 1);
    static constexpr int QUERY_PLANE = E / 64 * 64 * 128, KEY_PLANE = E / 64 * BN * 128, VALUE_PLANE = BN / 64 * C * 128;
    static constexpr int QUERY = PLANES * QUERY_PLANE, KEY = PLANES * KEY_PLANE, VALUE = PLANES * VALUE_PLANE;
    static_assert(E % 64 == 0 && C % 16 == 0 && BN % 64 == 0, "whole pieces");
};
// Numbers that go with 64 rows of q: their unit, and squares of the rows from QUERY_NORMS on.
constexpr int QUERY_NORMS = 4;
template <class Body>
__device__ constexpr int query_side() {
    return Body::DIFFERENCES ? QUERY_NORMS + 64 : 1;
}
template <class Body, class Tile>
__device__ constexpr int softmax_side() {
    return Tile::BN * (Body::COLUMN_ENDS + Body::DIFFERENCES) + (Tile::SPLIT ? Tile::C + 4 : 0);
}
template <class Body, class Tile>
__device__ constexpr int apply_softmax_shared_bytes() {
    return Tile::GROUPS * Tile::QUERY + Tile::STAGES * (Tile::KEY + Tile::VALUE + softmax_side<Body, Tile>() * 4 + 16) + 16;
}

// Byte of position p of a row among ROWS rows.
template <int ROWS>
KM_DEVICE int piece_at(int row, int p) {
    return p / 64 * (ROWS * 128) + row * 128 + swizzle_128(row, p % 64 / 8) + p % 8 * 2;
}

// Tiles of columns that 64 GROUPS rows from m0 on see.
template <class Tile, class Args>
KM_DEVICE int columns_seen(const Args& g, i64 m0) {
    const i64 end = Tile::CAUSAL && m0 + Tile::BM < g.size[ROLE_N] ? m0 + Tile::BM : g.size[ROLE_N];
    return (int)ceil_div(end, Tile::BN);
}
// Where a batch entry lies.
template <class Args>
KM_DEVICE BatchEntry entry_at(const Args& g, i64 entry) {
    BatchEntry p = {0, 0, 0, 0, 0, 0};
    p.c = entry % g.size[ROLE_C];
    entry /= g.size[ROLE_C];
    p.b = entry % g.size[ROLE_B];
    p.a = entry / g.size[ROLE_B];
    return p;
}
// Batch entry and rows of the t-th block of rows; the last rows, which see most, come first where not all see the same.
struct RowBlock {
    BatchEntry p;
    i64 entry, row;
};
template <class Tile, class Args>
KM_DEVICE RowBlock row_block(const Args& g, i64 t) {
    const i64 blocks = ceil_div(g.size[ROLE_M], Tile::BM);
    RowBlock b;
    b.entry = quotient(t, blocks);
    b.row = t - b.entry * blocks;
    if (Tile::CAUSAL) b.row = blocks - 1 - b.row;
    b.p = entry_at(g, b.entry);
    b.p.m = b.row * Tile::BM;
    return b;
}

// Words that tell wgmma of pieces of rows: as they lie, and the other way round, so that the 64 positions of a row lie along
// the columns of the product and the next 64 are ROWS rows further on.
KM_DEVICE unsigned long long rows_matrix(unsigned address) { return ptx::wgmma_descriptor(address, 16, 8 * 128, ptx::WGMMA_SWIZZLE_128); }
template <int ROWS>
KM_DEVICE unsigned long long columns_matrix(unsigned address) {
    return ptx::wgmma_descriptor(address, ROWS * 128, 8 * 128, ptx::WGMMA_SWIZZLE_128);
}

// The rows that a thread has of 64, from memory.
template <int STEPS>
KM_DEVICE void load_rows(unsigned (&to)[STEPS][4], const unsigned char* piece) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) to[s][i] = *(const unsigned*)(piece + piece_at<64>(row + i % 2 * 8, 16 * s + lane % 4 * 2 + i / 2 * 8));
}
// Writes the logarithm of the sum of a row's exponentials, by one of its threads, where weights are 2^(lift - most) times these and
// `total` together; returns the inverse of that, 0 where nothing was weighed.
template <class P, class Args>
KM_DEVICE float write_total(const Args& g, const BatchEntry& p, i64 m, float total, float most, float lift) {
    if (threadIdx.x % 4 == 0) {
        float* at = (float*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + m * g.stride[P::BUFFER][ROLE_M];
        *at = total == 0.0f ? -infinity<float>() : 0.693147181f * (most - lift + log2f(total));
    }
    return total == 0.0f ? 0.0f : 1.0f / total;
}
// Leaves of two rows the columns from `from` up to `to`.
template <int BLOCKS>
KM_DEVICE void hide_columns(float (&d)[BLOCKS][4], const int (&from)[2], const int (&to)[2], float hidden) {
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; ++i) {
        const int at = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        if (at < from[i / 2 % 2] || at >= to[i / 2 % 2]) d[i / 4][i % 4] = hidden;
    }
}

// Entries of two rows as weights, at most 2^lift, given the largest entries and sums so far, which they join; scale: of sums
// so far.
template <int BLOCKS>
KM_DEVICE void make_weights(float (&d)[BLOCKS][4], float (&most)[2], float (&total)[2], float (&scale)[2], const float (&lift)[2]) {
    float top[2] = {-infinity<float>(), -infinity<float>()};
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], d[i / 4][i % 4]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        top[h] = fmaxf(warp_max<2>(top[h]), most[h]);
        const float from = top[h] == -infinity<float>() ? 0.0f : top[h];
        scale[h] = ptx::ex2_approx_ftz(most[h] - from);
        most[h] = top[h];
        top[h] = from - lift[h];
    }
    float part[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; ++i) {
        float& w = d[i / 4][i % 4];
        w = ptx::ex2_approx_ftz(w - top[i / 2 % 2]);
        part[i / 2 % 2][i % 2] += w;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) total[h] = fmaf(total[h], scale[h], part[h][0] + part[h][1]);
}

// What entries read of their own, by a thread that has two rows, eight apart, along OWN; the last one stands for those
// behind it, which count for nothing.
template <class Body, int OWN, int ROLE>
struct CellRows {
    static constexpr int COUNT = AtLeastOne<Body::CELL_ENDS>::value;
    const void* at[COUNT][2];

    template <class Args>
    KM_DEVICE void begin(const Args& g, const BatchEntry& p, i64 row) {
        each<0, Body::CELL_ENDS>([&](auto index) {
            typedef typename Body::template CellEnd<decltype(index)::value> P;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const i64 own = row + 8 * h < g.size[OWN] ? row + 8 * h : g.size[OWN] - 1;
                at[decltype(index)::value][h] = (const typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + own * g.stride[P::BUFFER][OWN];
            }
        });
    }
    template <class Args>
    KM_DEVICE void read(float (&to)[COUNT], const Args& g, int h, int other) const {
        const int last = (int)g.size[ROLE] - 1, column = other < last ? other : last;
        each<0, Body::CELL_ENDS>([&](auto index) {
            typedef typename Body::template CellEnd<decltype(index)::value> P;
            const typename P::T* from = (const typename P::T*)at[decltype(index)::value][h] + column * g.stride[P::BUFFER][ROLE];
            to[decltype(index)::value] = convert<float>(load_pack<typename P::T, 1>(from).v[0]);
        });
    }
};

// Eight numbers as halves of one or two planes.
template <class Tile>
KM_DEVICE void put_eight(unsigned char* to, int plane, const float (&v)[8], float scale) {
    typedef typename Tile::H H;
    Pack<H, 8> high, low;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float u = Tile::SPLIT ? v[i] * scale : v[i];
        high.v[i] = Store<H>::from(u);
        if (Tile::SPLIT) {
            const float h = convert<float>(high.v[i]);
            low.v[i] = Store<H>::from(is_finite(h) ? u - h : 0.0f);
        }
    }
    *(Pack<H, 8>*)to = high;
    if (Tile::SPLIT) *(Pack<H, 8>*)(to + plane) = low;
}

}  // namespace km

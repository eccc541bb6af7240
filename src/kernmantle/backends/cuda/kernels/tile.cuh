// Shared by all tiled kernels: arguments, the order in which blocks take tiles, and the reading of operands.
#pragma once
#include "scalar.cuh"

namespace km {

enum Role { ROLE_A, ROLE_B, ROLE_C, ROLE_M, ROLE_N, ROLE_K, ROLE_L, SPLITS };
// How a step takes its power: as pow does, or, for tame operands, by special functions or by table.
enum Method { EXACT, BY_UNIT, BY_TABLE };
constexpr int TABLE_BYTES = 8192;
enum Run { ALONG_K, ALONG_TILE };

// A pair of numbers that travels as one argument of 8 bytes.
struct alignas(8) Two {
    float a, b;
};
// Extents by role and, for each buffer, its strides by role in elements.
template <int BUFFERS, class Numbers>
struct Arguments {
    void* pointer[BUFFERS];
    i64 size[8];
    i64 stride[BUFFERS][7];
    Numbers number;
};

// Coord of one output tile.
struct Coord {
    i64 a, b, c, m, n, split;
};

KM_DEVICE i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// Row and column of the t-th tile of the lower triangle, row by row: t = i (i + 1) / 2 + j with j <= i.
KM_DEVICE void triangle(i64 t, i64& i, i64& j) {
    i = (i64)((::sqrt(8.0 * (double)t + 1.0) - 1.0) * 0.5);
    while (i * (i + 1) / 2 > t) --i;
    while ((i + 1) * (i + 2) / 2 <= t) ++i;
    j = t - i * (i + 1) / 2;
}

// The t-th tile. Bands of GROUP tile rows are walked column by column, so that tiles in flight share operands.
template <int BM, int BN, int GROUP, bool SYMMETRIC, class Args>
KM_DEVICE Coord coord_of(const Args& g, i64 t) {
    Coord p;
    const i64 gm = ceil_div(g.size[ROLE_M], BM), gn = ceil_div(g.size[ROLE_N], BN);
    const i64 tiles = SYMMETRIC ? gm * (gm + 1) / 2 : gm * gn;
    // extents that are 1 are literals: nothing is divided where there is one matrix
    const bool single = g.size[SPLITS] * g.size[ROLE_A] * g.size[ROLE_B] * g.size[ROLE_C] == 1;
    i64 batch = single ? 0 : t / tiles;
    t -= batch * tiles;
    p.split = batch % g.size[SPLITS];
    batch /= g.size[SPLITS];
    p.c = batch % g.size[ROLE_C];
    batch /= g.size[ROLE_C];
    p.b = batch % g.size[ROLE_B];
    p.a = batch / g.size[ROLE_B];
    if (SYMMETRIC) {
        triangle(t, p.m, p.n);
    } else {
        const i64 band = t / (GROUP * gn), first = band * GROUP, rest = t - band * GROUP * gn;
        const i64 rows = gm - first < GROUP ? gm - first : GROUP;
        p.n = rest / rows;
        p.m = first + rest - p.n * rows;
    }
    p.m *= BM;
    p.n *= BN;
    return p;
}

template <bool SYMMETRIC, int BM, int BN, class Args>
KM_DEVICE i64 count_tiles(const Args& g) {
    const i64 gm = ceil_div(g.size[ROLE_M], BM), gn = ceil_div(g.size[ROLE_N], BN);
    const i64 tiles = SYMMETRIC ? gm * (gm + 1) / 2 : gm * gn;
    return tiles * g.size[SPLITS] * g.size[ROLE_A] * g.size[ROLE_B] * g.size[ROLE_C];
}

// The tiles of a block: every gridDim-th, or a contiguous run, begun where a row block begins, so that blocks which run at
// the same time read the same columns.
template <bool RUNS>
struct Walk {
    i64 tile, end, step;

    __device__ __forceinline__ Walk(i64 tiles, i64) : tile(blockIdx.x), end(tiles), step(gridDim.x) {}
    __device__ __forceinline__ bool more() const { return tile < end; }
    __device__ __forceinline__ void next() { tile += step; }
};
template <>
struct Walk<true> {
    i64 tile, first, end, left;
    int row, column, columns;

    __device__ __forceinline__ Walk(i64 tiles, i64 columns_)
        : first(blockIdx.x * tiles / gridDim.x), end((blockIdx.x + 1ll) * tiles / gridDim.x), left(end - first), columns((int)columns_) {
        tile = ceil_div(first, columns_) * columns_;
        if (tile >= end) tile = first;
        locate();
    }
    __device__ __forceinline__ void locate() {
        row = (int)(tile / columns);
        column = (int)(tile - (i64)row * columns);
    }
    __device__ __forceinline__ bool more() const { return left > 0; }
    __device__ __forceinline__ int parity() const { return left & 1; }
    __device__ __forceinline__ void next() {
        --left;
        if (++column == columns) {
            column = 0;
            ++row;
        }
        if (++tile == end) {
            tile = first;
            locate();
        }
    }
};

// Batch entry and first row of a row block.
template <int BM, class Args>
KM_DEVICE Coord row_coord(const Args& g, i64 row) {
    Coord p;
    const bool single = g.size[ROLE_A] * g.size[ROLE_B] * g.size[ROLE_C] == 1;
    const i64 blocks = ceil_div(g.size[ROLE_M], BM);
    i64 batch = single ? 0 : row / blocks;
    p.m = (row - batch * blocks) * BM;
    p.n = 0;
    p.split = 0;
    p.c = batch % g.size[ROLE_C];
    batch /= g.size[ROLE_C];
    p.b = batch % g.size[ROLE_B];
    p.a = batch / g.size[ROLE_B];
    return p;
}

template <class Tile, class Args>
KM_DEVICE Coord walk_coord(const Args& g, const Walk<false>& walk) {
    return coord_of<Tile::BM, Tile::BN, Tile::BAND, Tile::SYMMETRIC>(g, walk.tile);
}
template <class Tile, class Args>
KM_DEVICE Coord walk_coord(const Args& g, const Walk<true>& walk) {
    Coord p = row_coord<Tile::BM>(g, walk.row);
    p.n = (i64)walk.column * Tile::BN;
    return p;
}

// Offset of a buffer's first element of a tile's batch entry.
template <class Args>
KM_DEVICE i64 batch_offset(const Args& g, int buffer, const Coord& p) {
    return p.a * g.stride[buffer][ROLE_A] + p.b * g.stride[buffer][ROLE_B] + p.c * g.stride[buffer][ROLE_C];
}

// One element of a buffer that has no reduced axis.
template <class C, class T, int BUFFER, class Args>
KM_DEVICE C load_at(const Args& g, const Coord& p, i64 m, i64 n) {
    const T* base = (const T*)g.pointer[BUFFER] + batch_offset(g, BUFFER, p);
    return convert<C>(load_pack<T, 1>(base + m * g.stride[BUFFER][ROLE_M] + n * g.stride[BUFFER][ROLE_N]).v[0]);
}

// Elements of a (SPAN x DEPTH) piece of one operand on their way from global to shared memory. P tells the storage
// type T, the place BUFFER among the buffers, the role of its tile axis TILE, along which axis its elements RUN
// contiguously and how many of them make one access.
template <class P, class C, int SPAN, int DEPTH, int THREADS, bool QUICK>
struct Fetch {
    typedef typename P::T T;
    static constexpr int VEC = P::VEC < (P::RUN == ALONG_K ? DEPTH : SPAN) ? P::VEC : (P::RUN == ALONG_K ? DEPTH : SPAN);
    static constexpr int SLOTS = SPAN * DEPTH / VEC;
    static constexpr int COUNT = (SLOTS + THREADS - 1) / THREADS;
    // Accesses that make a line; where the threads cover whole lines, a thread's accesses lie HOP lines apart.
    static constexpr int PIECES = (P::RUN == ALONG_K ? DEPTH : SPAN) / VEC, HOP = THREADS / PIECES;
    static constexpr bool REGULAR = QUICK && THREADS % PIECES == 0 && SLOTS % THREADS == 0;
    Pack<T, VEC> staged[COUNT];
    const T* from;
    int to;

    static __device__ __forceinline__ void where(int slot, int& tile, int& depth) {
        const int along = slot % PIECES * VEC, across = slot / PIECES;
        tile = P::RUN == ALONG_K ? across : along;
        depth = P::RUN == ALONG_K ? along : across;
    }

    // Where its first access lies in shared memory. Small tiles hold it in a register: the compiler would work it out at
    // every stage.
    template <int PITCH>
    __device__ __forceinline__ void locate(int thread) {
        int tile = 0, depth = 0;
        if (REGULAR) where(thread, tile, depth);
        to = depth * PITCH + tile;
        if (REGULAR && COUNT == 1) ptx::opaque(to);
    }

    // Goes to the piece that starts there.
    __device__ __forceinline__ void seek(const T* start, i64 tile_stride, i64 depth_stride, int thread) {
        int tile = 0, depth = 0;
        if (REGULAR) where(thread, tile, depth);
        from = start + tile * tile_stride + depth * depth_stride;
    }

    // Reads what lies inside (tiles, depths) of it; the rest is zero and must never be reduced.
    __device__ __forceinline__ void read(i64 tile_stride, i64 depth_stride, int thread, i64 tiles, i64 depths) {
        if (REGULAR && tiles >= SPAN && depths >= DEPTH) {
            const T* at = from;
            const i64 hop = HOP * (P::RUN == ALONG_K ? tile_stride : depth_stride);
#pragma unroll
            for (int i = 0; i < COUNT; ++i, at += hop) staged[i] = load_pack<T, VEC>(at);
            return;
        }
        int first_tile = 0, first_depth = 0;
        if (REGULAR) where(thread, first_tile, first_depth);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int slot = thread + i * THREADS;
            int tile, depth;
            where(slot, tile, depth);
            const bool mine = SLOTS % THREADS == 0 || slot < SLOTS;
            const T* at = from + (tile - first_tile) * tile_stride + (depth - first_depth) * depth_stride;
            const int last_tile = P::RUN == ALONG_K ? tile : tile + VEC - 1;
            const int last_depth = P::RUN == ALONG_K ? depth + VEC - 1 : depth;
            if (mine && last_tile < tiles && last_depth < depths) {
                staged[i] = load_pack<T, VEC>(at);
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    const int t = P::RUN == ALONG_K ? tile : tile + v, d = P::RUN == ALONG_K ? depth + v : depth;
                    const i64 step = P::RUN == ALONG_K ? depth_stride : tile_stride;
                    staged[i].v[v] = T();
                    if (mine && t < tiles && d < depths) staged[i].v[v] = load_pack<T, 1>(at + v * step).v[0];
                }
            }
        }
    }

    // Whether a difference of these can be infinite, NaN or subnormal (GUARD 2), or they themselves not finite (GUARD 1).
    __device__ __forceinline__ bool is_wild() const {
        bool wild = false;
        if (P::GUARD == 0) return false;
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                const float value = convert<float>(staged[i].v[v]);
                wild |= P::GUARD == 2 ? !is_moderate(value) : !is_finite(value);
            }
        return wild;
    }

    // Writes them transposed: [depth][tile], rows PITCH apart.
    template <int PITCH>
    __device__ __forceinline__ void write(C* shared, int thread) const {
        constexpr bool WHOLE = P::RUN != ALONG_K && VEC > 1 && PITCH % VEC == 0 && VEC * sizeof(C) <= 16;
        constexpr int STEP = HOP * (P::RUN == ALONG_K ? 1 : PITCH), ACROSS = P::RUN == ALONG_K ? PITCH : 1;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int slot = thread + i * THREADS;
            if (SLOTS % THREADS != 0 && slot >= SLOTS) continue;
            int tile, depth;
            where(slot, tile, depth);
            C* at = shared + (REGULAR ? to + i * STEP : depth * PITCH + tile);
            Pack<C, VEC> wide;
#pragma unroll
            for (int v = 0; v < VEC; ++v) wide.v[v] = convert<C>(staged[i].v[v]);
            if constexpr (WHOLE) {
                *(Pack<C, VEC>*)at = wide;
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v) at[v * ACROSS] = wide.v[v];
            }
        }
    }
};

}  // namespace km

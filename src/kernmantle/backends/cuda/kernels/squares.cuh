// Sums of squared differences from products on tensor cores: |x|^2 + |y|^2 - 2 x.y, of the halves that split.cuh made.
//
// Entries that are small against the two norms lose digits; the warp that computed them computes them again by differences. Where
// more than one entry in sixteen is such, the tile is listed for a later kernel, which is faster then. If the probes found
// near pairs in half of the tiles that they sampled, every tile is listed.
#pragma once
#include "log_rows.cuh"
#include "scratch.cuh"

namespace km {

// What both ways of multiplying share. A warp has MF x NF pieces of 16 x 8 cells; of a piece a thread has rows
// lane / 4 and 8 more, columns 2 (lane % 4) and one more.
template <class Body, class Tile>
struct Squares {
    typedef typename Body::Args Args;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    static constexpr int BM = Tile::BM, BN = Tile::BN, MF = Tile::MF, NF = Tile::NF;
    static constexpr int CELLS = 4 * MF * NF, WORDS = (CELLS + 31) / 32, MANY = 2 * CELLS;
    static constexpr bool SYMMETRIC = Tile::SYMMETRIC, LOGS = takes_logarithms<Body>(0);
    // Tile rows and columns of the smallest square: the lower triangle is made of such.
    static constexpr int WIDE = BN % BM == 0 ? BN / BM : BM % BN == 0 ? 1 : 3, HIGH = WIDE * BM / BN;
    static_assert(WIDE * BM == HIGH * BN, "tiles make a square");

    static __device__ __forceinline__ i64 count(const Args& g) {
        if (!SYMMETRIC) return count_tiles<false, BM, BN>(g);
        const i64 squares = ceil_div(g.size[ROLE_M], WIDE * BM);
        return squares * (squares + 1) / 2 * (WIDE * HIGH) * g.size[ROLE_A] * g.size[ROLE_B] * g.size[ROLE_C];
    }
    static __device__ __forceinline__ Coord coord(const Args& g, i64 t) {
        if (!SYMMETRIC) return coord_of<BM, BN, Tile::BAND, false>(g, t);
        const i64 squares = ceil_div(g.size[ROLE_M], WIDE * BM), tiles = squares * (squares + 1) / 2 * (WIDE * HIGH);
        Coord p;
        i64 batch = t / tiles;
        t -= batch * tiles;
        p.c = batch % g.size[ROLE_C];
        batch /= g.size[ROLE_C];
        p.b = batch % g.size[ROLE_B];
        p.a = batch / g.size[ROLE_B];
        p.split = 0;
        triangle(t / (WIDE * HIGH), p.m, p.n);
        const int part = (int)(t % (WIDE * HIGH));
        p.m = (p.m * WIDE + part % WIDE) * BM;
        p.n = (p.n * HIGH + part / WIDE) * BN;
        return p;
    }
    // Whether a tile lies outside or above the diagonal.
    static __device__ __forceinline__ bool is_empty(const Args& g, const Coord& p) {
        return SYMMETRIC && (p.m >= g.size[ROLE_M] || p.n >= g.size[ROLE_N] || p.n >= p.m + BM);
    }

    // Leaves a tile to the kernel that follows.
    static __device__ __forceinline__ void leave(const Args& g, const Coord& p) {
        const int slot = atomicAdd(g.scratch.list, 1);
        const int batch = (int)((p.a * g.size[ROLE_B] + p.b) * g.size[ROLE_C] + p.c);
        if (slot < count(g)) ((int4*)(g.scratch.list + LIST_TILES))[slot] = make_int4((int)(p.m / BLOCK), (int)(p.n / BLOCK), batch, 0);
    }
    // Whether all tiles are left, which is then done.
    static __device__ __forceinline__ bool left_all(const Args& g, int threads) {
        const unsigned close = __ballot_sync(0xffffffffu, g.scratch.list[LIST_PROBES + threadIdx.x % PROBE_BLOCKS] > 0);
        if (__popc(close) < CLOSE_BLOCKS) return false;
        for (i64 t = blockIdx.x + (i64)gridDim.x * threadIdx.x; t < count(g); t += (i64)gridDim.x * threads) {
            const Coord p = coord(g, t);
            if (!is_empty(g, p)) leave(g, p);
        }
        return true;
    }

    static __device__ __forceinline__ i64 padded(i64 rows) { return ceil_div(rows, BLOCK) * BLOCK; }
    // First block of an operand's rows from `row` on that exists.
    static __device__ __forceinline__ const unsigned char* blocks_of(const Args& g, int operand, i64 plane, i64 row, i64 rows) {
        const i64 across = ceil_div(g.size[ROLE_K], BLOCK), last = ceil_div(rows, BLOCK) - 1, mine = row / BLOCK;
        return g.scratch.plane[operand] + (plane * (last + 1) + (mine < last ? mine : last)) * across * (Tile::PLANES * BLOCK_BYTES);
    }

    // How many columns from n0 on a thread has to write in each of its rows.
    static __device__ __forceinline__ void limits(const Args& g, i64 m0, i64 n0, int (&limit)[2 * MF]) {
#pragma unroll
        for (int i = 0; i < 2 * MF; ++i) {
            i64 end = g.size[ROLE_N];
            if (SYMMETRIC && m0 + 8 * i < end) end = m0 + 8 * i + 1;
            limit[i] = m0 + 8 * i < g.size[ROLE_M] && n0 < end ? (int)(end - n0 < BN ? end - n0 : BN) : 0;
        }
    }

    // Turns products into squared distances, or logarithms of sums; a bit for each that loses digits.
    static __device__ __forceinline__ void squared(const Args& g, const Coord& p, i64 m0, i64 n0, const int (&limit)[2 * MF], float (&v)[CELLS], unsigned (&close)[WORDS]) {
        const i64 rows = g.size[ROLE_M], columns = g.size[ROLE_N];
        const float2* row_norms = g.scratch.row[0] + plane_of<Body, X>(g, p) * padded(rows);
        const float2* column_norms = g.scratch.row[1] + plane_of<Body, Y>(g, p) * padded(columns) + n0;
        const int last = padded(columns) - 2 - n0 < BN ? (int)(padded(columns) - 2 - n0) : BN;
        float2 row[2 * MF];
#pragma unroll
        for (int i = 0; i < 2 * MF; ++i) {
            row[i] = row_norms[m0 + 8 * i < rows ? m0 + 8 * i : rows - 1];
            if (!LOGS) row[i].y *= -2.0f;
        }
#pragma unroll
        for (int w = 0; w < WORDS; ++w) close[w] = 0;
#pragma unroll
        for (int j = 0; j < NF; ++j) {
            const float4 column = *(const float4*)(column_norms + (8 * j < last ? 8 * j : last));
#pragma unroll
            for (int i = 0; i < 2 * MF; ++i) {
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int cell = (i / 2 * NF + j) * 4 + i % 2 * 2 + e;
                    const float norms = row[i].x + (e ? column.z : column.x);
                    if constexpr (LOGS) {
                        const float sum = v[cell] * (1.0f / (EXPONENTIAL_SCALE * EXPONENTIAL_SCALE));
                        v[cell] = fmaf(ptx::lg2_approx_ftz(sum), 0.693147182f, row[i].y + (e ? column.w : column.y));
                        if (8 * j + e < limit[i] && loses_digits(sum, norms)) close[cell / 32] |= 1u << cell % 32;
                        continue;
                    }
                    v[cell] = fmaf(v[cell] * row[i].y, e ? column.w : column.y, norms);
                    if (8 * j + e < limit[i] && is_close(v[cell], norms)) close[cell / 32] |= 1u << cell % 32;
                }
            }
        }
    }

    static __device__ __forceinline__ typename Body::Registers accumulator(float distance) {
        typename Body::Registers s;
        s.r0 = distance;
        if constexpr (LOGS) s.r1 = 1.0f;
        return s;
    }
    // Writes the cells that are not near.
    static __device__ __forceinline__ void store(const Args& g, const Coord& p, i64 m0, i64 n0, const int (&limit)[2 * MF], const float (&v)[CELLS], const unsigned (&close)[WORDS]) {
        each<0, Body::OUTS>([&](auto index) {
            typedef typename Body::template Out<decltype(index)::value> P;
            typedef typename P::T T;
            const i64 down = g.stride[P::BUFFER][ROLE_M], along = P::UNIT ? 1 : g.stride[P::BUFFER][ROLE_N];
            T* base = (T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
            T* at = base + m0 * down + n0 * along;
            T* mirror = base + n0 * down + m0 * along;
#pragma unroll
            for (int i = 0; i < 2 * MF; ++i, at += 8 * down) {
                T* twin = mirror + 8 * i * along;
#pragma unroll
                for (int j = 0; j < NF; ++j, twin += 8 * down) {
                    const int cell = (i / 2 * NF + j) * 4 + i % 2 * 2;
                    bool write[2];
                    Pack<T, 2> pack;
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        write[e] = !(close[cell / 32] >> (cell % 32 + e) & 1) && 8 * j + e < limit[i];
                        if (write[e]) pack.v[e] = P::of(Body::outputs(g, p, m0 + 8 * i, n0 + 8 * j + e, accumulator(v[cell + e])));
                    }
                    const bool both = P::VECTOR && write[0] && write[1];
                    if constexpr (P::VECTOR) {
                        if (both) store_pack<T, 2>(at + 8 * j, pack);
                    }
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        if (write[e] && !both) at[(8 * j + e) * along] = pack.v[e];
                        if (SYMMETRIC && write[e] && n0 + 8 * j + e != m0 + 8 * i) twin[e * down] = pack.v[e];
                    }
                }
            }
        });
    }
    // Computes the cells that are near, one after another, by the whole warp.
    static __device__ __forceinline__ void mend(const Args& g, const Coord& p, i64 m0, i64 n0, const unsigned (&close)[WORDS], int lane) {
#pragma unroll 1
        for (int w = 0; w < WORDS; ++w) {
            unsigned rest = close[0];
#pragma unroll
            for (int v = 1; v < WORDS; ++v) rest = v == w ? close[v] : rest;
#pragma unroll 1
            for (unsigned lanes = __ballot_sync(0xffffffffu, rest != 0); lanes != 0; lanes = __ballot_sync(0xffffffffu, rest != 0)) {
                const int leader = __ffs(lanes) - 1, cell = 32 * w + __shfl_sync(0xffffffffu, __ffs(rest) - 1, leader);
                const i64 m = __shfl_sync(0xffffffffu, m0, leader) + cell / (4 * NF) * 16 + cell / 2 % 2 * 8;
                const i64 n = __shfl_sync(0xffffffffu, n0, leader) + cell / 4 % NF * 8 + cell % 2;
                const typename Body::Registers s = directly<Body>(g, p, m, n, lane);
                if (lane == leader) {
                    rest &= rest - 1;
                    each<0, Body::OUTS>([&](auto index) {
                        typedef typename Body::template Out<decltype(index)::value> P;
                        const i64 down = g.stride[P::BUFFER][ROLE_M], along = g.stride[P::BUFFER][ROLE_N];
                        typename P::T* base = (typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
                        const typename P::T value = P::of(Body::outputs(g, p, m, n, s));
                        base[m * down + n * along] = value;
                        if (SYMMETRIC && n < m) base[n * down + m * along] = value;
                    });
                }
            }
        }
    }

    // From products to outputs; m1, n1 is the warp's first cell, turn counts the block's tiles.
    static __device__ __forceinline__ void finish(const Args& g, const Coord& p, int m1, int n1, float (&v)[CELLS], int* left, int ordinal, int lane) {
        const i64 m0 = p.m + m1 + lane / 4, n0 = p.n + n1 + lane % 4 * 2;
        int limit[2 * MF], count = 0;
        unsigned close[WORDS];
        limits(g, m0, n0, limit);
        squared(g, p, m0, n0, limit, v, close);
#pragma unroll
        for (int w = 0; w < WORDS; ++w) count += __popc(close[w]);
        const bool found = __any_sync(0xffffffffu, count > 0);
        if (found && __reduce_add_sync(0xffffffffu, count) > MANY) {
            if (lane == 0 && atomicExch(left + ordinal % Tile::ROUNDS, ordinal) != ordinal) leave(g, p);
            return;
        }
        store(g, p, m0, n0, limit, v, close);
        if (found) mend(g, p, m0, n0, close, lane);
    }
};

}  // namespace km

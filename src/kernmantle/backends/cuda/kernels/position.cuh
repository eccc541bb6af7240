// Positions of the smallest or largest mapped value, in the warp-specialized form of pipelined.cuh.
//
// Comparing and choosing for every pair would take twice the instructions of the extreme alone. So eight positions of k are reduced to
// their extreme first, and where that beats a cell's, the cell keeps it and which eight they were. At the end of a tile every
// cell's eight values are computed again to find the first that is the extreme. Where a value is NaN all of them are.
//
// The largest is found, for the smallest of negated values. Once all cells of a warp have a positive one, no other is larger as a
// float than it is as an integer, of which three are compared at once; NaN is larger than any.
#pragma once
#include "pipelined.cuh"
#include "scratch.cuh"

namespace km {

template <int WARPS_M_, int WARPS_N_, int TM_, int TN_, int STAGES_, bool SYMMETRIC_>
struct PositionTile : StagedTile<WARPS_M_, WARPS_N_, TM_, TN_, STAGES_, SYMMETRIC_> {
    static_assert(!SYMMETRIC_, "every cell is computed");
};
template <class Body, class Tile>
__device__ constexpr int position_shared_bytes() {
    return staged_shared_bytes<Body, Tile>();
}

template <class Body, class Tile>
struct Positions : StagedReduction<Body, Tile> {
    typedef StagedReduction<Body, Tile> R;
    typedef typename R::Args Args;
    typedef typename R::X X;
    typedef typename R::Y Y;
    typedef typename R::State State;
    typedef typename R::Barriers Barriers;
    static constexpr int TM = R::TM, TN = R::TN, BM = R::BM, BN = R::BN, STAGE = R::STAGE, EIGHT = 8;
    static constexpr int VECTORS = AtLeastOne<Body::VECTORS>::value;

    static constexpr unsigned WHOLE = 0xffffffffu;
    // Positions of k from which on a second form is worth its instructions.
    static constexpr int LONG = 256;

    struct Cells {
        float best[TM][TN];
        int eighth[TM][TN];
    };

    // Whether every cell of the warp has a positive value, or NaN.
    static __device__ __forceinline__ bool are_positive(const Cells& cells) {
        int least = __float_as_int(cells.best[0][0]);
#pragma unroll
        for (int c = 1; c < TM * TN; ++c) least = min(least, __float_as_int(cells.best[c % TM][c / TM]));
        return __all_sync(WHOLE, least > 0);
    }

    static __device__ __forceinline__ void consume(const Args& g, const unsigned char* raw, const Barriers& barriers, int warp, int lane) {
        const int wm = warp % Tile::WARPS_M, wn = warp / Tile::WARPS_M;
        const int row = (Tile::WARPS_M > 1 ? wm / 2 * (8 * TM) + wm % 2 * 4 : 0) + lane / 8, column = wn * (8 * TN) + lane % 8;
        const int at_a = row * 128 + swizzle_128(row, 0), at_b = BM * 128 + column * 128 + swizzle_128(column, 0);
        Walk<false> walk(count_tiles<false, BM, BN>(g), 0);
        const i64 depth = g.size[ROLE_K];
        State pipeline;
        Cells cells;
#pragma unroll 1
        for (; walk.more(); walk.next()) {
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    cells.best[i][j] = negative_infinity<float>();
                    cells.eighth[i][j] = 0;
                }
            bool by_bits = false;
#pragma unroll 1
            for (i64 k = 0; k < depth; k += 32) {
                ptx::mbarrier_wait_parity(barriers.full(pipeline.stage), pipeline.phase);
                const int stage = pipeline.stage * STAGE, here = depth - k < 32 ? (int)(depth - k) : 32;
                const float* vectors = (const float*)(raw + stage + (BM + BN) * 128);
                if (by_bits) {
#pragma unroll 1
                    for (int eight = 0; eight < here / EIGHT; ++eight) reduce<true>(cells, g, raw, stage + at_a, stage + at_b, vectors, eight, (int)(k / EIGHT) + eight);
                } else {
#pragma unroll 1
                    for (int eight = 0; eight < here / EIGHT; ++eight) reduce<false>(cells, g, raw, stage + at_a, stage + at_b, vectors, eight, (int)(k / EIGHT) + eight);
                    // looked at after 1, 2, 4, ... stages
                    const int stages = (int)(k / 32) + 1;
                    if (Body::BY_BITS && depth >= LONG && (stages & (stages - 1)) == 0) by_bits = are_positive(cells);
                }
#pragma unroll 1
                for (int kk = here / EIGHT * EIGHT; kk < here; ++kk) single(cells, g, raw, stage + at_a, stage + at_b, vectors, kk, (int)(k / EIGHT) + kk / EIGHT);
                ptx::mbarrier_arrive(barriers.empty(pipeline.stage));
                pipeline.advance();
            }
            finish(g, walk.tile, cells, row, column);
        }
    }

    template <bool BY_BITS>
    static __device__ __forceinline__ void reduce(
        Cells& cells, const Args& g, const unsigned char* raw, int at_a, int at_b, const float* vectors, int eight, int which) {
        float a[EIGHT][TM], c[EIGHT][VECTORS];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const unsigned char* pa = raw + (at_a ^ ((2 * eight + h) << 4));
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const float4 v = *(const float4*)(pa + i * 1024);
                a[4 * h][i] = v.x, a[4 * h + 1][i] = v.y, a[4 * h + 2][i] = v.z, a[4 * h + 3][i] = v.w;
            }
        }
#pragma unroll
        for (int q = 0; q < EIGHT; ++q)
#pragma unroll
            for (int o = 0; o < Body::VECTORS; ++o) c[q][o] = vectors[o * 32 + eight * EIGHT + q];
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            float b[EIGHT];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float4 v = *(const float4*)(raw + (at_b ^ ((2 * eight + h) << 4)) + j * 1024);
                b[4 * h] = v.y, b[4 * h + 1] = v.x, b[4 * h + 2] = v.w, b[4 * h + 3] = v.z;
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                float& best = cells.best[i][j];
                if constexpr (BY_BITS) {
                    const int before = __float_as_int(best);
                    int found = before;
#pragma unroll
                    for (int q = 0; q < EIGHT; q += 2)
                        found = max(max(found, __float_as_int(Body::ranked(&a[q][i], &b[q], c[q], g.number))), __float_as_int(Body::ranked(&a[q + 1][i], &b[q + 1], c[q + 1], g.number)));
                    if (found != before) cells.eighth[i][j] = which;
                    best = __int_as_float(found);
                } else {
                    float found = Body::ranked(&a[0][i], &b[0], c[0], g.number);
#pragma unroll
                    for (int q = 1; q < EIGHT; ++q) found = max(found, Body::ranked(&a[q][i], &b[q], c[q], g.number));
                    if (found > best) cells.eighth[i][j] = which;
                    best = max(best, found);
                }
            }
        }
    }

    // One position of k, behind the last whole eight.
    static __device__ __forceinline__ void single(
        Cells& cells, const Args& g, const unsigned char* raw, int at_a, int at_b, const float* vectors, int kk, int which) {
        const int swizzle = kk / 4 << 4;
        const unsigned char* pa = raw + (at_a ^ swizzle) + kk % 4 * 4;
        const unsigned char* pb = raw + (at_b ^ swizzle) + (kk % 4 ^ 1) * 4;
        float a[TM], c[VECTORS];
#pragma unroll
        for (int i = 0; i < TM; ++i) a[i] = *(const float*)(pa + i * 1024);
#pragma unroll
        for (int o = 0; o < Body::VECTORS; ++o) c[o] = vectors[o * 32 + kk];
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            const float b = *(const float*)(pb + j * 1024);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const float found = Body::ranked(&a[i], &b, c, g.number);
                if (found > cells.best[i][j]) cells.eighth[i][j] = which;
                cells.best[i][j] = max(cells.best[i][j], found);
            }
        }
    }

    static __device__ __forceinline__ float value_at(const Args& g, const Coord& p, const float* x, const float* y, i64 k) {
        float c[VECTORS];
        read_vectors<Body>(c, g, p, k);
        return Body::ranked(x, y, c, g.number);
    }
    // The position of the first NaN of a cell.
    static __device__ __noinline__ i64 first_nan(const Args& g, const Coord& p, const typename X::T* x, const typename Y::T* y) {
        i64 k = 0;
#pragma unroll 1
        for (; k < g.size[ROLE_K]; ++k) {
            const float a = convert<float>(load_pack<typename X::T, 1>(x + k * g.stride[X::BUFFER][ROLE_K]).v[0]);
            const float b = convert<float>(load_pack<typename Y::T, 1>(y + k * g.stride[Y::BUFFER][ROLE_K]).v[0]);
            const float value = value_at(g, p, &a, &b, k);
            if (value != value) break;
        }
        return k;
    }
    static __device__ __forceinline__ i64 found_at(const Args& g, const Coord& p, i64 m, i64 n, float best, int eighth) {
        const typename X::T* x = row_of<X>(g, p, m);
        const typename Y::T* y = row_of<Y>(g, p, n);
        if (best != best) return first_nan(g, p, x, y);
        const i64 first = (i64)eighth * EIGHT;
        float a[EIGHT], b[EIGHT];
        read_along_k<X, false>(a, x, g, first);
        read_along_k<Y, false>(b, y, g, first);
        float found = value_at(g, p, &a[0], &b[0], first);
        i64 at = first;
#pragma unroll
        for (int q = 1; q < EIGHT; ++q) {
            if (first + q >= g.size[ROLE_K]) continue;
            const float value = value_at(g, p, &a[q], &b[q], first + q);
            if (value > found) at = first + q;
            found = max(found, value);
        }
        return at;
    }

    static __device__ __forceinline__ void finish(const Args& g, i64 t, const Cells& cells, int row, int column) {
        const Coord p = coord_of<BM, BN, Tile::BAND, false>(g, t);
        // to local memory, where a loop finds them: in place for every cell this is 50 KB of code
        float best[TM * TN];
        int eighth[TM * TN];
#pragma unroll
        for (int c = 0; c < TM * TN; ++c) {
            best[c] = cells.best[c % TM][c / TM];
            eighth[c] = cells.eighth[c % TM][c / TM];
        }
#pragma unroll 4
        for (int c = 0; c < TM * TN; ++c) {
            const i64 m = p.m + row + c % TM * 8, n = p.n + column + c / TM * 8;
            if (m >= g.size[ROLE_M] || n >= g.size[ROLE_N]) continue;
            typename Body::Registers s;
            s.r0 = Body::LEAST ? -best[c] : best[c];
            s.r1 = found_at(g, p, m, n, best[c], eighth[c]);
            const typename Body::Outs out = Body::outputs(g, p, m, n, s);
            each<0, Body::OUTS>([&](auto index) {
                typedef typename Body::template Out<decltype(index)::value> P;
                const i64* step = g.stride[P::BUFFER];
                typename P::T* base = (typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
                base[m * step[ROLE_M] + n * (P::UNIT ? 1 : step[ROLE_N])] = P::of(out);
            });
        }
    }
};

template <class Body, class Tile, int PRODUCER_REGISTERS, int CONSUMER_REGISTERS>
__device__ __forceinline__ void position(const typename Body::Args& g) {
    run_pipelined<Positions<Body, Tile>, Tile, PRODUCER_REGISTERS, CONSUMER_REGISTERS>(g);
}

}  // namespace km

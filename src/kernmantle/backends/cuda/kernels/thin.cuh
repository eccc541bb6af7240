// The gram schedule for a few positions of k, where storing the result takes nearly all of the time. It uses no shared memory: the
// rows of a block stay in registers, and every warp stores whole lines of four neighbouring columns a thread.
#pragma once
#include "gram.cuh"

namespace km {

template <int ROWS_, int ROUNDS_, int THREADS_, int DEPTH_>
struct ThinTile {
    static constexpr int TM = ROWS_, TN = 4, ROUNDS = ROUNDS_, THREADS = THREADS_, DEPTH = DEPTH_;
    static constexpr int BM = TM, BN = THREADS * TN * ROUNDS, BAND = 1;
};
template <class Body, class Tile>
__device__ constexpr int thin_shared_bytes() {
    return 0;
}

// DEPTH values of COUNT neighbours along the tile, [position of k][neighbour].
template <class P, class C, int COUNT, int DEPTH, class Args>
__device__ __forceinline__ void read_thin(C (&to)[DEPTH][COUNT], const Args& g, const Coord& p, i64 first, i64 end) {
    typedef typename P::T T;
    const T* base = (const T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
    const i64 tile = g.stride[P::BUFFER][P::TILE], along = g.stride[P::BUFFER][ROLE_K];
    if constexpr (P::DENSE && COUNT == 4 && sizeof(T) == 4) {
        if (first + COUNT <= end) {
            T flat[DEPTH * COUNT];
#pragma unroll
            for (int i = 0; i < DEPTH * COUNT; i += 4) {
                const Pack<T, 4> pack = load_pack<T, 4>(base + first * DEPTH + i);
#pragma unroll
                for (int v = 0; v < 4; ++v) flat[i + v] = pack.v[v];
            }
#pragma unroll
            for (int i = 0; i < DEPTH * COUNT; ++i) to[i % DEPTH][i / DEPTH] = convert<C>(flat[i]);
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i)
#pragma unroll
        for (int k = 0; k < DEPTH; ++k)
            to[k][i] = first + i < end ? convert<C>(load_pack<T, 1>(base + (first + i) * tile + k * along).v[0]) : C(0);
}

template <class Body, class Tile>
__device__ __forceinline__ void thin(const typename Body::Args& g) {
    typedef typename Body::C C;
    constexpr int TM = Tile::TM, TN = Tile::TN, DEPTH = Tile::DEPTH;
    const i64 tiles = count_tiles<false, Tile::BM, Tile::BN>(g);
    const i64 rows = g.size[ROLE_M], columns = g.size[ROLE_N];
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Coord p = coord_of<Tile::BM, Tile::BN, Tile::BAND, false>(g, t);
        C a[DEPTH][TM], c[DEPTH][AtLeastOne<Body::VECTORS>::value];
        read_thin<typename Body::template Row<0>, C, TM, DEPTH>(a, g, p, p.m, rows);
        each<0, Body::VECTORS>([&](auto index) {
            C vector[DEPTH][1];
            read_thin<typename Body::template Vector<decltype(index)::value>, C, 1, DEPTH>(vector, g, p, 0, 1);
#pragma unroll
            for (int k = 0; k < DEPTH; ++k) c[k][decltype(index)::value] = vector[k][0];
        });
#pragma unroll 1
        for (int step = 0; step < Tile::ROUNDS; ++step) {
            const i64 n = p.n + (step * Tile::THREADS + (int)threadIdx.x) * TN;
            if (n >= columns) break;
            C b[DEPTH][TN];
            read_thin<typename Body::template Column<0>, C, TN, DEPTH>(b, g, p, n, columns);
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                if (p.m + i < rows) {
                    typename Body::Outs out[TN];
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        typename Body::Registers state;
                        Body::initial(state);
#pragma unroll
                        for (int k = 0; k < DEPTH; ++k) Body::template step<EXACT>(state, &a[k][i], &b[k][j], c[k], c[k], g.number, k, 0);
                        if (n + j < columns) out[j] = Body::outputs(g, p, p.m + i, n + j, state);
                    }
                    each<0, Body::OUTS>([&](auto index) {
                        typedef typename Body::template Out<decltype(index)::value> P;
                        typedef typename P::T T;
                        const i64 along = P::UNIT ? 1 : g.stride[P::BUFFER][ROLE_N];
                        T* at = (T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + (p.m + i) * g.stride[P::BUFFER][ROLE_M] + n * along;
                        const bool whole = P::VECTOR && n + TN <= columns;
                        if constexpr (P::VECTOR) {
                            if (whole) {
                                Pack<T, TN> pack;
#pragma unroll
                                for (int j = 0; j < TN; ++j) pack.v[j] = P::of(out[j]);
                                store_pack<T, TN>(at, pack);
                            }
                        }
#pragma unroll
                        for (int j = 0; j < TN; ++j)
                            if (!whole && n + j < columns) at[j * along] = P::of(out[j]);
                    });
                }
            }
        }
    }
}

}  // namespace km

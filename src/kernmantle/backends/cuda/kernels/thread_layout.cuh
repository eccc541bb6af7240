// How the cells of a thread lie in a tile, and the pieces of several operands on their way to shared memory.
#pragma once
#include "tile.cuh"

namespace km {

template <class C, int SPAN>
struct Pitch {
    static constexpr int VW = 16 / sizeof(C) < 4 ? 16 / sizeof(C) : 4;
    static constexpr int value = SPAN % VW ? SPAN : SPAN + VW;
};

// How the TM rows of a thread lie in the tile: runs of WIDTH neighbours, THREADS * WIDTH apart.
template <class C, int COUNT, int THREADS>
struct ThreadLayout {
    static constexpr int VW = 16 / sizeof(C) < 4 ? 16 / sizeof(C) : 4;
    static constexpr int WIDTH = COUNT % VW == 0 ? VW : (COUNT % 2 == 0 && VW >= 2 ? 2 : 1);
    static __device__ __forceinline__ int at(int i, int thread) {
        return hop(i) + thread * WIDTH;
    }
    static __device__ __forceinline__ int hop(int i) { return i / WIDTH * (THREADS * WIDTH) + i % WIDTH; }
    static __device__ __forceinline__ void read(C* to, const C* row, int thread) {
#pragma unroll
        for (int i = 0; i < COUNT; i += WIDTH) {
            const Pack<C, WIDTH> p = *(const Pack<C, WIDTH>*)(row + at(i, thread));
#pragma unroll
            for (int v = 0; v < WIDTH; ++v) to[i + v] = p.v[v];
        }
    }
};

template <int N>
struct AtLeastOne {
    static constexpr int value = N > 0 ? N : 1;
};

// Compile-time loop: f(Index<0>()), ..., f(Index<N - 1>()).
template <int I>
struct Index {
    static constexpr int value = I;
};
template <int I, int N, class F>
KM_DEVICE void each(F&& f) {
    if constexpr (I < N) {
        f(Index<I>());
        each<I + 1, N>(f);
    }
}


template <template <int> class Buffer, int I, int N, class C, int SPAN, int DEPTH, int THREADS, bool QUICK>
struct FetchList {
    Fetch<Buffer<I>, C, SPAN, DEPTH, THREADS, QUICK> head;
    FetchList<Buffer, I + 1, N, C, SPAN, DEPTH, THREADS, QUICK> tail;

    template <int PITCH>
    __device__ __forceinline__ void locate(int thread) {
        head.template locate<PITCH>(thread);
        tail.template locate<PITCH>(thread);
    }
    template <class Args>
    __device__ __forceinline__ void seek(const Args& g, const Coord& p, i64 tile, i64 k, i64 l, int thread) {
        typedef Buffer<I> P;
        const i64* s = g.stride[P::BUFFER];
        const typename P::T* start = (const typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + l * s[ROLE_L]
                                     + k * s[ROLE_K] + tile * s[P::TILE];
        head.seek(start, s[P::TILE], s[ROLE_K], thread);
        tail.seek(g, p, tile, k, l, thread);
    }
    template <class Args>
    __device__ __forceinline__ void read(const Args& g, int thread, i64 tiles, i64 depths) {
        head.read(g.stride[Buffer<I>::BUFFER][Buffer<I>::TILE], g.stride[Buffer<I>::BUFFER][ROLE_K], thread, tiles, depths);
        tail.read(g, thread, tiles, depths);
    }
    template <class Args>
    __device__ __forceinline__ void advance(const Args& g) {
        head.from += DEPTH * g.stride[Buffer<I>::BUFFER][ROLE_K];
        tail.advance(g);
    }
    __device__ __forceinline__ bool is_wild() const { return head.is_wild() | tail.is_wild(); }
    template <int PITCH>
    __device__ __forceinline__ void write(C* shared, int thread) const {
        head.template write<PITCH>(shared, thread);
        tail.template write<PITCH>(shared + DEPTH * PITCH, thread);
    }
};
template <template <int> class Buffer, int N, class C, int SPAN, int DEPTH, int THREADS, bool QUICK>
struct FetchList<Buffer, N, N, C, SPAN, DEPTH, THREADS, QUICK> {
    template <int PITCH>
    __device__ __forceinline__ void locate(int) {}
    template <class Args>
    __device__ __forceinline__ void seek(const Args&, const Coord&, i64, i64, i64, int) {}
    template <class Args>
    __device__ __forceinline__ void read(const Args&, int, i64, i64) {}
    template <class Args>
    __device__ __forceinline__ void advance(const Args&) {}
    __device__ __forceinline__ bool is_wild() const { return false; }
    template <int PITCH>
    __device__ __forceinline__ void write(C*, int) const {}
};

}  // namespace km

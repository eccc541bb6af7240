// The warp-specialised template of gram, whose consumers reduce their entries instead of storing them. They fetch the rows of v
// that go with a tile before its first stage, into one of two buffers in turn; what is kept of rows lies behind these.
#pragma once
#include "apply_tile.cuh"
#include "ring.cuh"

namespace km {

template <int WARPS_M_, int WARPS_N_, int TM_, int TN_, int STAGES_>
struct ApplyRing : RingTile<WARPS_M_, WARPS_N_, TM_, TN_, STAGES_, false> {
    typedef RingTile<WARPS_M_, WARPS_N_, TM_, TN_, STAGES_, false> Base;
    static_assert(WARPS_N_ == 1, "all columns of a row lie in one warp");
    static constexpr int BAND = 1;
    static constexpr bool RUNS = true;

    struct Layout {
        static constexpr int TM = TM_, TN = TN_, BM = Base::BM, BN = Base::BN, THREADS = 32 * Base::CONSUMERS;
        int first_row, first_column;
        __device__ __forceinline__ int row(int i) const { return first_row + 8 * i; }
        __device__ __forceinline__ int column(int j) const { return first_column + 8 * j; }
        __device__ __forceinline__ int column_of(int j, int lane) const { return lane + 8 * j; }
        __device__ __forceinline__ int thread() const { return threadIdx.x; }
        static __device__ __forceinline__ void sync() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
    };
    template <class Body>
    using V = Weights<Body, Base::BN, Layout::THREADS>;

    template <class Body>
    static __device__ __forceinline__ typename Body::C* buffer(const unsigned char* raw, int turn) {
        return (typename Body::C*)((unsigned char*)raw + ring_shared_bytes<Body, ApplyRing>() + turn * V<Body>::BYTES);
    }
    template <class Body>
    static __device__ __forceinline__ void begin(const typename Body::Args& g, i64 t, const unsigned char* raw, int turn) {
        const Place p = place_of<Base::BM, Base::BN, BAND, false>(g, t);
        V<Body>::stage(buffer<Body>(raw, turn), g, p, 0, threadIdx.x);
    }
    template <class Body>
    static __device__ __forceinline__ void end(
        const typename Body::Args& g, i64 t, const typename Body::Registers (&state)[TM_][TN_], int row, int column, const unsigned char* raw, int turn) {
        const Place p = place_of<Base::BM, Base::BN, BAND, false>(g, t);
        if (Body::WEIGHTED) {
            V<Body>::wait();
            Layout::sync();
        }
        const Reducer<Body, Layout> reducer(g, p, Layout{row, column}, state);
        reducer.end(g.work, t, ceil_div(g.size[ROLE_N], Base::BN), buffer<Body>(raw, turn), buffer<Body>(raw, 2));
    }
};
template <class Body, class Tile>
__device__ constexpr int apply_ring_shared_bytes() {
    return ring_shared_bytes<Body, Tile>() + 2 * Tile::template V<Body>::BYTES + held_bytes<Body, Tile::BM>();
}

}  // namespace km

// The warp-specialized kernel of gram (pipelined.cuh), whose consumers reduce their entries instead of storing them. Before the first
// stage of a tile they load the rows of v that belong to it, into one of two buffers alternately or, where v is 16 columns wide,
// into a single one, which leaves shared memory for one more stage, and what entries read of its columns, alternately too. Partial
// results of rows lie after the buffers.
#pragma once
#include "apply_tile.cuh"
#include "pipelined.cuh"

namespace km {

template <int WARPS_M_, int WARPS_N_, int TM_, int TN_, int STAGES_>
struct ApplyPipelined : PipelinedTile<WARPS_M_, WARPS_N_, TM_, TN_, STAGES_, false> {
    typedef PipelinedTile<WARPS_M_, WARPS_N_, TM_, TN_, STAGES_, false> Base;
    static_assert(WARPS_N_ == 1, "all columns of a row lie in one warp");
    static constexpr int BAND = 1;
    static constexpr bool RUNS = true;

    struct Layout {
        static constexpr int TM = TM_, TN = TN_, BM = Base::BM, BN = Base::BN, THREADS = 32 * Base::CONSUMERS;
        static constexpr bool ENDS_ARE_STAGED = true;
        int first_row, first_column;
        __device__ __forceinline__ int row(int i) const { return first_row + 8 * i; }
        __device__ __forceinline__ int column(int j) const { return first_column + 8 * j; }
        __device__ __forceinline__ int column_of(int j, int lane) const { return lane + 8 * j; }
        __device__ __forceinline__ int thread() const { return threadIdx.x; }
        static __device__ __forceinline__ void sync() { ptx::bar_sync<THREADS>(1); }
    };
    template <class Body>
    using ReducerLayout = Layout;
    template <class Body>
    using V = Weights<Body, Base::BN, Layout::THREADS>;
    template <class Body>
    using Ends = ColumnEnds<Body, Base::BN, Layout::THREADS>;
    template <class Body>
    static constexpr int BUFFERS = Body::GROUP == 16 ? 1 : 2;

    template <class Body>
    static __device__ __forceinline__ typename Body::C* buffer(const unsigned char* raw, int parity) {
        return (typename Body::C*)((unsigned char*)raw + pipelined_shared_bytes<Body, ApplyPipelined>() + parity * V<Body>::BYTES);
    }
    template <class Body>
    static __device__ __forceinline__ typename Body::C* ends(const unsigned char* raw, int parity) {
        return (typename Body::C*)((unsigned char*)buffer<Body>(raw, BUFFERS<Body>) + parity * Ends<Body>::BYTES);
    }
    template <class Body>
    static __device__ __forceinline__ void begin(const typename Body::Args& g, const Walk<true>& walk, const unsigned char* raw) {
        const Coord p = walk_coord<ApplyPipelined>(g, walk);
        if (Body::WEIGHTED && BUFFERS<Body> == 1) Layout::sync();
        V<Body>::stage(buffer<Body>(raw, walk.parity() % BUFFERS<Body>), g, p, 0, threadIdx.x);
        Ends<Body>::stage(ends<Body>(raw, walk.parity()), g, p, threadIdx.x);
    }
    template <class Body>
    static __device__ __forceinline__ void end(
        const typename Body::Args& g, const Walk<true>& walk, const typename Body::Registers (&state)[TM_][TN_], int row, int column, const unsigned char* raw) {
        const Coord p = walk_coord<ApplyPipelined>(g, walk);
        if (Body::WEIGHTED || Body::COLUMN_ENDS > 0) {
            V<Body>::wait();
            Layout::sync();
        }
        Reducer<Body, Layout> reducer(g, p, Layout{row, column}, state, ends<Body>(raw, walk.parity()));
        reducer.end(g.work, walk, buffer<Body>(raw, walk.parity() % BUFFERS<Body>), ends<Body>(raw, 2));
    }
};
template <class Body, class Tile>
__device__ constexpr int apply_pipelined_shared_bytes() {
    return pipelined_shared_bytes<Body, Tile>() + Tile::template BUFFERS<Body> * Tile::template V<Body>::BYTES
           + 2 * Tile::template Ends<Body>::BYTES + state_bytes<Body, Tile::BM>();
}

}  // namespace km

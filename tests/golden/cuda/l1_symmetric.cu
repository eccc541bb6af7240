// pipelined sm_90 tile 128x128x32 (8x16 a thread, 128 threads) access [x0 4k, x1 4k, out0 4t] symmetric f32 ieee
#include "pipelined.cuh"

struct Body {
    typedef float C;
    static constexpr int ROWS = 1, COLUMNS = 1, VECTORS = 0, CELLS = 0, OUTS = 1;
    static constexpr bool OUTER_LOOP = false;
    static constexpr bool MODERATE = false;
    static constexpr bool HALVES = false;
    static constexpr bool POWERS = false;
    static constexpr bool PACKED2 = false;
    static constexpr int SHARE = 0;
    struct Numbers {
    };
    typedef km::Arguments<3, Numbers> Args;
    struct Registers {
        C r0;
    };
    struct Outs {
        C o0;
    };
    static __device__ __forceinline__ void initial(Registers& s) {
        s.r0 = C(0);
    }
    template <km::Method METHOD>
    static __device__ __forceinline__ void step(Registers& s, const C* a, const C* b, const C* c, const C* d, const Numbers& number, km::i64 position, const float* scale) {
        const C t0 = a[0] - b[0];
        const C t1 = km::abs(t0);
        const C u0_0 = s.r0 + t1;
        s.r0 = u0_0;
    }
    static __device__ __forceinline__ void merge(Registers& s, const Registers& r) {
        const C u0_0 = s.r0 + r.r0;
        s.r0 = u0_0;
    }
    static __device__ __forceinline__ Outs outputs(const Args& g, const km::Coord& p, km::i64 m, km::i64 n, const Registers& s) {
        const Numbers& number = g.number;
        Outs o;
        o.o0 = s.r0;
        return o;
    }
    template <int I> struct Row;
    template <int I> struct Column;
    template <int I> struct Vector;
    template <int I> struct Cell;
    template <int I> struct Out;
};
template <> struct Body::Row<0> {  // x0
    typedef float T;
    static constexpr int PORT = 0, TILE = km::ROLE_M, VEC = 4;
    static constexpr km::Run RUN = km::ALONG_K;
    static constexpr bool VARIES = true;
    static constexpr int GUARD = 0;
    static constexpr bool DENSE = false;
};
template <> struct Body::Column<0> {  // x1
    typedef float T;
    static constexpr int PORT = 1, TILE = km::ROLE_N, VEC = 4;
    static constexpr km::Run RUN = km::ALONG_K;
    static constexpr bool VARIES = true;
    static constexpr int GUARD = 0;
    static constexpr bool DENSE = false;
};
template <> struct Body::Out<0> {  // out0
    typedef float T;
    static constexpr int PORT = 2;
    static constexpr bool UNIT = true;
    static constexpr bool VECTOR = true;
    static __device__ __forceinline__ T of(const Outs& o) {
        return km::Store<T>::from(Body::C(o.o0));
    }
};

typedef km::PipelinedTile<4, 1, 8, 16, 3, true> Tile;
static_assert(km::pipelined_shared_bytes<Body, Tile>() <= 98352, "shared memory");

extern "C" __global__ void __launch_bounds__(256, 2) kernmantle_kernel(
    void* p0, void* p1, void* p2, km::i64 i3, km::i64 i4, km::i64 i5, km::i64 i11, km::i64 i13, km::i64 i19, km::i64 i20, km::i64 i25, km::i64 i26) {
    const Body::Args g = {
        {p0, p1, p2}, {1, 1, 1, i3, i4, i5, 1, 1},
        {{0, 0, 0, i11, 0, i13, 0}, {0, 0, 0, 0, i19, i20, 0}, {0, 0, 0, i25, i26, 0, 0}},
        {}};
    km::pipelined<Body, Tile, 56, 200>(g);
}

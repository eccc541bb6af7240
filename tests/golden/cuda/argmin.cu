// position sm_90 tile 128x32x32 (8x4 a thread, 128 threads) access [x0 4k, x1 4k, out0 1t] f32 ieee
#include "position.cuh"

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
        km::i64 r1;
    };
    struct Outs {
        km::i64 o0;
    };
    static __device__ __forceinline__ void initial(Registers& s) {
        s.r0 = km::infinity<C>();
        s.r1 = km::i64(0);
    }
    template <km::Method METHOD>
    static __device__ __forceinline__ void step(Registers& s, const C* a, const C* b, const C* c, const C* d, const Numbers& number, km::i64 position, const float* scale) {
        const C t0 = a[0] - b[0];
        const C t1 = km::abs(t0);
        const bool u0_0 = t1 < s.r0;
        const bool u0_1 = t1 != t1;
        const bool u0_2 = s.r0 == s.r0;
        const bool u0_3 = u0_1 && u0_2;
        const bool u0_4 = u0_0 || u0_3;
        const C u0_5 = u0_4 ? t1 : s.r0;
        const km::i64 u0_6 = u0_4 ? position : s.r1;
        const C w0_0 = u0_5;
        const km::i64 w0_1 = u0_6;
        s.r0 = w0_0;
        s.r1 = w0_1;
    }
    static constexpr bool LEAST = true, BY_BITS = false;
    static __device__ __forceinline__ C ranked(const C* a, const C* b, const C* c, const Numbers& number) {
        const C t0 = a[0] - b[0];
        const C t1 = km::abs(t0);
        const C t2 = -t1;
        return t2;
    }
    static __device__ __forceinline__ void merge(Registers& s, const Registers& r) {
        const bool u0_0 = r.r0 < s.r0;
        const bool u0_1 = r.r0 != r.r0;
        const bool u0_2 = s.r0 == s.r0;
        const bool u0_3 = u0_1 && u0_2;
        const bool u0_4 = u0_0 || u0_3;
        const C u0_5 = u0_4 ? r.r0 : s.r0;
        const km::i64 u0_6 = u0_4 ? r.r1 : s.r1;
        const C w0_0 = u0_5;
        const km::i64 w0_1 = u0_6;
        s.r0 = w0_0;
        s.r1 = w0_1;
    }
    static __device__ __forceinline__ Outs outputs(const Args& g, const km::Coord& p, km::i64 m, km::i64 n, const Registers& s) {
        const Numbers& number = g.number;
        Outs o;
        o.o0 = s.r1;
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
    typedef km::i64 T;
    static constexpr int PORT = 2;
    static constexpr bool UNIT = true;
    static constexpr bool VECTOR = false;
    static __device__ __forceinline__ T of(const Outs& o) {
        return km::Store<T>::from(km::i64(o.o0));
    }
};

typedef km::PositionTile<4, 1, 8, 4, 3, false> Tile;
static_assert(km::position_shared_bytes<Body, Tile>() <= 61488, "shared memory");

extern "C" __global__ void __launch_bounds__(256, 2) kernmantle_kernel(
    void* p0, void* p1, void* p2, km::i64 i3, km::i64 i4, km::i64 i5, km::i64 i11, km::i64 i13, km::i64 i19, km::i64 i20, km::i64 i25, km::i64 i26) {
    const Body::Args g = {
        {p0, p1, p2}, {1, 1, 1, i3, i4, i5, 1, 1},
        {{0, 0, 0, i11, 0, i13, 0}, {0, 0, 0, 0, i19, i20, 0}, {0, 0, 0, i25, i26, 0, 0}},
        {}};
    km::position<Body, Tile, 56, 200>(g);
}

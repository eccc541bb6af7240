// gram sm_90 tile 64x64x16 (4x4 a thread, 256 threads) access [x0 4k, x1 4k, out0 4t] f32 ieee
#include "gram.cuh"

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
        C v0;  // p0
        C v1;  // p1
        C v2;  // p2
        C v3;  // p3
        C v4;  // c0
        C v5;  // c1
    };
    typedef km::Arguments<3, Numbers> Args;
    struct Registers {
        C r0;
        C r1;
    };
    struct Outs {
        C o0;
    };
    static __device__ __forceinline__ void initial(Registers& s) {
        s.r0 = C(0);
        s.r1 = C(0);
    }
    template <km::Method METHOD>
    static __device__ __forceinline__ void step(Registers& s, const C* a, const C* b, const C* c, const C* d, const Numbers& number, km::i64 position, const float* scale) {
        const C t0 = a[0] - b[0];
        const C t1 = t0 * t0;
        const C t2 = a[0] * b[0];
        const C u0_0 = s.r0 + t1;
        s.r0 = u0_0;
        const C u1_0 = s.r1 + t2;
        s.r1 = u1_0;
    }
    static __device__ __forceinline__ void merge(Registers& s, const Registers& r) {
        const C u0_0 = s.r0 + r.r0;
        s.r0 = u0_0;
        const C u1_0 = s.r1 + r.r1;
        s.r1 = u1_0;
    }
    static __device__ __forceinline__ Outs outputs(const Args& g, const km::Coord& p, km::i64 m, km::i64 n, const Registers& s) {
        const Numbers& number = g.number;
        const C t0 = number.v0 + s.r1;
        const C t1 = number.v4 / number.v1;
        const C t2 = km::sqrt(s.r0);
        const C t3 = t1 * t2;
        const C t4 = t3 + C(1);
        const C t5 = t3 * t3;
        const C t6 = t5 / number.v5;
        const C t7 = t4 + t6;
        const C t8 = -t3;
        const C t9 = km::exp(t8);
        const C t10 = t7 * t9;
        const C t11 = t0 * t10;
        const C t12 = t2 / number.v3;
        const C t13 = -t12;
        const C t14 = km::exp(t13);
        const C t15 = number.v2 * t14;
        const C t16 = t11 + t15;
        Outs o;
        o.o0 = t16;
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

typedef km::GramTile<16, 16, 4, 4, 16, 1, 8, false> Tile;
static_assert(km::gram_shared_bytes<Body, Tile>() <= 17408, "shared memory");

extern "C" __global__ void __launch_bounds__(256, 2) kernmantle_kernel(
    void* p0, void* p1, void* p2, km::i64 i3, km::i64 i4, km::i64 i5, km::i64 i11, km::i64 i13, km::i64 i19, km::i64 i20, km::i64 i25, km::i64 i26, double v0, double v1, double v2, double v3, double v4, double v5) {
    const Body::Args g = {
        {p0, p1, p2}, {1, 1, 1, i3, i4, i5, 1, 1},
        {{0, 0, 0, i11, 0, i13, 0}, {0, 0, 0, 0, i19, i20, 0}, {0, 0, 0, i25, i26, 0, 0}},
        {Body::C(v0), Body::C(v1), Body::C(v2), Body::C(v3), Body::C(v4), Body::C(v5)}};
    km::gram<Body, Tile>(g);
}

// gram sm_90 tile 64x64x16 (4x4 a thread, 256 threads) access [x0 4k, x1 4k, out0 4t] f32 powers to 2e-6
#include "gram.cuh"

struct Body {
    typedef float C;
    static constexpr int ROWS = 1, COLUMNS = 1, VECTORS = 0, CELLS = 0, OUTS = 1;
    static constexpr bool OUTER_LOOP = false;
    static constexpr bool MODERATE = true;
    static constexpr bool HALVES = false;
    static constexpr bool POWERS = true;
    static constexpr bool PACKED2 = false;
    static constexpr int SHARE = 8;
    struct Numbers {
        C v0;  // p
        float good, q1, q2, q3, q4, s0, s1, s2, s3;
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
        const C t2 = METHOD == km::BY_TABLE ? km::power_table(t0, scale, number.q1, number.q2, number.q3) : METHOD == km::BY_UNIT ? km::power_unit(t0, number.v0) : km::power_fast(t1, number.v0);
        const C u0_0 = s.r0 + t2;
        s.r0 = u0_0;
    }
    static __device__ __forceinline__ float exponent(const Numbers& number) {
        return number.v0;
    }
    static __device__ __forceinline__ void octave(float* scale, int biased, float size, const Numbers& number) {
        km::fill_octave(scale, biased, size, number.s0, number.s1, number.s2, number.s3);
    }
    static __device__ __forceinline__ bool good(const Numbers& number) {
        return number.good != 0.0f;
    }
    static __device__ __forceinline__ void merge(Registers& s, const Registers& r) {
        const C u0_0 = s.r0 + r.r0;
        s.r0 = u0_0;
    }
    static __device__ __forceinline__ Outs outputs(const Args& g, const km::Coord& p, km::i64 m, km::i64 n, const Registers& s) {
        const Numbers& number = g.number;
        const C t0 = C(1) / number.v0;
        const C t1 = km::apart::pow(s.r0, t0);
        Outs o;
        o.o0 = t1;
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
    static constexpr int GUARD = 2;
    static constexpr bool DENSE = false;
};
template <> struct Body::Column<0> {  // x1
    typedef float T;
    static constexpr int PORT = 1, TILE = km::ROLE_N, VEC = 4;
    static constexpr km::Run RUN = km::ALONG_K;
    static constexpr bool VARIES = true;
    static constexpr int GUARD = 2;
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
static_assert(km::gram_shared_bytes<Body, Tile>() <= 25600, "shared memory");

extern "C" __global__ void __launch_bounds__(256, 4) kernmantle_kernel(
    void* p0, void* p1, void* p2, km::i64 i3, km::i64 i4, km::i64 i5, km::i64 i11, km::i64 i13, km::i64 i19, km::i64 i20, km::i64 i25, km::i64 i26, double v0, double good, km::Two q0, km::Two q1, km::Two q2, km::Two q3) {
    const Body::Args g = {
        {p0, p1, p2}, {1, 1, 1, i3, i4, i5, 1, 1},
        {{0, 0, 0, i11, 0, i13, 0}, {0, 0, 0, 0, i19, i20, 0}, {0, 0, 0, i25, i26, 0, 0}},
        {Body::C(v0), float(good), q0.a, q0.b, q1.a, q1.b, q2.a, q2.b, q3.a, q3.b}};
    km::gram<Body, Tile>(g);
}

// apply logsumexp by 1 thin, of thin sm_90 tile 4096x1024x3 (8x1024 a thread, 512 threads) access [x0 1k, x1 1k, w 1k] f32 ieee, entries to 1e-6
#include "apply_thin.cuh"

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
        C v1;  // u0
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
        const C t0 = s.r0 * number.v1;
        const C t1 = km::exp2(t0);
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
    static constexpr int PORT = 0, TILE = km::ROLE_M, VEC = 1;
    static constexpr km::Run RUN = km::ALONG_K;
    static constexpr bool VARIES = true;
    static constexpr int GUARD = 0;
    static constexpr bool DENSE = false;
};
template <> struct Body::Column<0> {  // x1
    typedef float T;
    static constexpr int PORT = 1, TILE = km::ROLE_N, VEC = 1;
    static constexpr km::Run RUN = km::ALONG_K;
    static constexpr bool VARIES = true;
    static constexpr int GUARD = 0;
    static constexpr bool DENSE = false;
};
template <> struct Body::Out<0> {  // w
    typedef float T;
    static constexpr int PORT = 2;
    static constexpr bool UNIT = false;
    static constexpr bool VECTOR = false;
    static __device__ __forceinline__ T of(const Outs& o) {
        return km::Store<T>::from(Body::C(o.o0));
    }
};

struct Apply : Body {
    typedef km::Working<km::Arguments<4, Numbers>> Args;
    static constexpr bool SUMS_EXPONENTIALS = true;
    static constexpr int EXPANDS = 0;
    static constexpr bool SUMS = false;
    static constexpr bool STARTS = true;
    static __device__ __forceinline__ void start(Registers& s, const C* a, const C* b, const C* c, const Numbers& number) {
        const C t0 = a[0] - b[0];
        const C t1 = km::abs(t0);
        s.r0 = t1;
    }
    struct Fixed {
    };
    static __device__ __forceinline__ Fixed fixed(const Args& g, const km::Coord& p) {
        const Numbers& number = g.number;
        Fixed f;
        return f;
    }
    static __device__ __forceinline__ C entry(const Fixed& fixed, const Numbers& number, const C* rows, const C* columns, const C* cells, const Registers& s) {
        const C t0 = s.r0 * number.v1;
        const C t1 = km::exp2_fast(t0);
        return t1;
    }
    static constexpr bool SCALES = true;
    static __device__ __forceinline__ C scale(const Fixed& fixed, const Numbers& number) {
        const C f = -number.v1;
        return f > C(0) && f < C(1e30) ? f : C(0);
    }
    static __device__ __forceinline__ C scaled_entry(const Fixed& fixed, const Numbers& number, const C* rows, const C* columns, const C* cells, const Registers& s) {
        const C t0 = -s.r0;
        const C t1 = km::exp2_fast(t0);
        return t1;
    }
    static constexpr bool SELECTS = false;
    static constexpr bool LARGEST = false;
    static constexpr bool WEIGHTED = false;
    static constexpr int GROUP = 1;
    struct Running {
        C r0;
        C r1;
    };
    static __device__ __forceinline__ void begin(Running& k) {
        k.r0 = km::negative_infinity<C>();
        k.r1 = C(0);
    }
    static __device__ __forceinline__ void take(Running& k, C w, C v) {
        const C t0 = km::max(k.r0, w);
        const bool t1 = w == k.r0;
        const C t2 = k.r1 + C(1);
        const C t3 = w - k.r0;
        const bool t4 = t3 > C(0);
        const C t5 = km::abs(t3);
        const C t6 = -t5;
        const C t7 = km::exp(t6);
        const C t8 = k.r1 * t7;
        const C t9 = t8 + C(1);
        const C t10 = C(1) * t7;
        const C t11 = k.r1 + t10;
        const C t12 = t4 ? t9 : t11;
        const C t13 = t1 ? t2 : t12;
        const C n0 = t0;
        const C n1 = t13;
        k.r0 = n0;
        k.r1 = n1;
    }
    static __device__ __forceinline__ void join(Running& k, const Running& o) {
        const C t0 = km::max(k.r0, o.r0);
        const bool t1 = o.r0 == k.r0;
        const C t2 = k.r1 + o.r1;
        const C t3 = o.r0 - k.r0;
        const bool t4 = t3 > C(0);
        const C t5 = km::abs(t3);
        const C t6 = -t5;
        const C t7 = km::exp(t6);
        const C t8 = k.r1 * t7;
        const C t9 = t8 + o.r1;
        const C t10 = o.r1 * t7;
        const C t11 = k.r1 + t10;
        const C t12 = t4 ? t9 : t11;
        const C t13 = t1 ? t2 : t12;
        const C n0 = t0;
        const C n1 = t13;
        k.r0 = n0;
        k.r1 = n1;
    }
    static __device__ __forceinline__ C finish(const Running& k) {
        const C t0 = km::log(k.r1);
        const C t1 = k.r0 + t0;
        return t1;
    }
    static constexpr int ROW_ENDS = 0, COLUMN_ENDS = 0, CELL_ENDS = 0;
    template <int I> struct RowEnd;
    template <int I> struct ColumnEnd;
    template <int I> struct CellEnd;
    struct Result {
        typedef float T;
        static constexpr int PORT = 3;
    };
};

typedef km::ApplyThin<512, 8, 3, 1024, 8> Tile;
static_assert(km::apply_thin_shared_bytes<Apply, Tile>() <= 49152, "shared memory");

extern "C" __global__ void __launch_bounds__(512, 1) kernmantle_kernel(
    void* p0, void* p1, void* p3, void* work, km::i64 i3, km::i64 i4, km::i64 i5, km::i64 i6, km::i64 i11, km::i64 i13, km::i64 i19, km::i64 i20, km::i64 i32, double v0, double v1) {
    const Apply::Args g = {{
        {p0, p1, 0, p3}, {1, 1, 1, i3, i4, i5, i6, 1},
        {{0, 0, 0, i11, 0, i13, 0}, {0, 0, 0, 0, i19, i20, 0}, {0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, i32, 0, 0, 0}},
        {Body::C(v0), Body::C(v1)}}, work};
    km::apply_thin<Apply, Tile>(g);
}

extern "C" __global__ void __launch_bounds__(256) kernmantle_join(
    void* p0, void* p1, void* p3, void* work, km::i64 i3, km::i64 i4, km::i64 i5, km::i64 i6, km::i64 i11, km::i64 i13, km::i64 i19, km::i64 i20, km::i64 i32, double v0, double v1, km::i64 blocks, km::i64 tiles, km::i64 columns) {
    const Apply::Args g = {{
        {p0, p1, 0, p3}, {1, 1, 1, i3, i4, i5, i6, 1},
        {{0, 0, 0, i11, 0, i13, 0}, {0, 0, 0, 0, i19, i20, 0}, {0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, i32, 0, 0, 0}},
        {Body::C(v0), Body::C(v1)}}, work};
    km::join_runs<Apply, Tile::BM>(g, blocks, tiles, columns);
}

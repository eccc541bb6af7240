// What a Kronecker-sparse product is launched with, the parameters of its tiles, and where the numbers of a tile lie.
#pragma once
#include "kronsparse_warp.cuh"

namespace km {

// Extents, strides in elements and pointers of one launch. The group g is outside everything.
struct KronSparse {
    const void *x, *weight, *image, *bias;
    const float* scale;
    void* y;
    i64 count;
    int a, b, c, d, tiles, slots;
    i64 xg, xn, xf, yg, yn, yf, wg, wi, wj, wk, wl, bg;
};

template <class T>
struct Products {
    typedef T type;
};
template <>
struct Products<float> {
    typedef f16 type;
};

// T type of x, y and the weights; FIRST: features lie together, else the batch does; FULL: LT is d; GROUPED: four warps
// multiply together, as Hopper has it; AHEAD: while they do, the numbers of their next products are made ready.
template <
    class T_, bool X_FIRST_, bool Y_FIRST_, bool FULL_, int L_, int WS_, int MT_, int NJ_, int KC_, int STAGES_, int WARPS_,
    bool RESIDENT_, bool GROUPED_, int X_BYTES_, int Y_RUN_, int PRODUCTS_, bool BIAS_, int ACTIVATION_, bool AHEAD_ = false, int SIDES_ = 1>
struct KronSparseTile {
    typedef T_ T;
    static constexpr bool X_FIRST = X_FIRST_, Y_FIRST = Y_FIRST_, FULL = FULL_, RESIDENT = RESIDENT_, GROUPED = GROUPED_;
    static constexpr bool BIAS = BIAS_, AHEAD = AHEAD_;
    static_assert(!AHEAD || (GROUPED && RESIDENT && sizeof(T) == 2), "of halves, while their weights stay");
    static constexpr int L = L_, WS = WS_, MT = MT_, NJ = NJ_, KC = KC_, STAGES = STAGES_, WARPS = WARPS_, X_BYTES = X_BYTES_;
    static constexpr int Y_RUN = Y_RUN_, PRODUCTS = PRODUCTS_, ACTIVATION = ACTIVATION_, SIDES = SIDES_;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int SIZE = sizeof(T), LT = L * WS, ROWS = 16 * MT, RINGS = WARPS / (WS * SIDES), BM = RINGS * ROWS, STEPS = KC / 16;
    static constexpr int THREADS = 32 * WARPS, SHARERS = 32 * WS * SIDES, NT = NJ / 8 / SIDES, Q = 2 * MT;
    // Values of l that a warp reads at once.
    static constexpr int G = L * SIZE > 16 && L >= 8 ? 16 / SIZE : L;
    // Whether a thread takes 4 neighbouring k with all their l; else every fourth k.
    static constexpr bool TOGETHER = X_FIRST && L < 4 && WS == 1;
    // Tiles of 8 columns over which a thread's columns lie together.
    static constexpr int CT = !Y_FIRST || L >= 4 || WS > 1 ? 1 : L == 2 ? (SPLIT ? 1 : 2) : (SPLIT ? 2 : 4);
    static_assert(NT % CT == 0 && (SPLIT || GROUPED || NT % 2 == 0), "a thread's columns belong to its own tile");
    // Tiles of columns whose products are under way together.
    static constexpr int BUNCH = MT == 1 && NT % 4 == 0 && L * NT < 32 ? 4 : 2;
    // Whether the rows of a thread are neighbours.
    static constexpr bool ROWS_TOGETHER = !X_FIRST || !Y_FIRST;
    // Numbers that a thread reads at once, and bytes from there to where its neighbour reads.
    static constexpr int COUNT = !X_FIRST ? Q : TOGETHER ? 4 * L : G;
    static constexpr int ACCESS = COUNT * SIZE % 16 == 0 ? 16 : COUNT * SIZE % 8 == 0 ? 8 : 4, STEP = (TOGETHER ? 4 * L : LT) * SIZE;
    // Lines of a stage, rows (X_FIRST) or positions of k, lie so that lanes served together meet in no bank: APART
    // modulo LAP bytes from each other, or all in place with their bytes permuted in turns, SAME lines alike.
    static constexpr int RUN = X_FIRST ? KC * LT * SIZE : ROWS * SIZE;
    static constexpr int LAP = X_FIRST && ACCESS == 16 && STEP == 32 ? 32 : 128;
    static constexpr int APART = LAP == 32 ? 16 : X_FIRST && ACCESS == 16 ? 64 : 32;
    static constexpr bool PAIRED = !X_FIRST && RUN == 64, PERMUTED = RUN % LAP == 0 || PAIRED;
    static constexpr int TURNS = PAIRED ? 2 : LAP / APART, SAME = PAIRED ? 2 : 1;
    // Whether the values of l of warps that share rows are 32 or 64 bytes together: those of 8 lanes lie in all banks.
    static constexpr bool WOVEN = X_FIRST && WS > 1 && (LT * SIZE == 32 || LT * SIZE == 64);
    static constexpr int PITCH = PERMUTED ? RUN : (RUN + LAP - 1 - APART) / LAP * LAP + APART;
    static constexpr int STAGE = (X_FIRST ? ROWS : KC) * PITCH;
    static constexpr int CHUNK = KC * LT * NJ * (SPLIT ? 4 : 2);
    static constexpr int RING_BYTES = RINGS * STAGES * STAGE;
    static constexpr int TABLE_BYTES = ((BIAS ? 8 : 4) * LT * NJ + 255) / 256 * 256;
    // Whether a thread has all l of a column.
    static constexpr bool ALONE = FULL && WS == 1;
    // Whether two lanes write the 32 bytes of one or two columns together.
    static constexpr bool SECTORS = Y_FIRST && Y_RUN * SIZE == 16 && (L * SIZE == 32 || (ALONE && L * SIZE == 16));
    // A thread's 48 neighbouring bytes, of which lanes that are neighbours write neighbouring 16 at a time.
    static constexpr bool BY_THREES = X_FIRST && Y_FIRST && FULL && L == 3 && Y_RUN * SIZE == 16;
    // Whether warps that share rows bring their values of l together before they are written.
    static constexpr bool SPREAD = WOVEN && Y_FIRST && SIDES == 1 && Y_RUN * SIZE == 16;
    static constexpr int DESK = 8 * 192, DESKS_BYTES = BY_THREES ? WARPS * DESK : 0;
    // Bytes of 16 positions of k of one l: the weights, or their high and their low halves.
    static constexpr int PLANES = SPLIT ? 2 : 1, PLANE = 32 * NJ;
};

// Largest common divisor.
__device__ constexpr int common(int a, int b) { return b ? common(b, a % b) : a; }

// Column of a block's tile `t` of 8 columns, `n` in 0 .. 7.
template <class P>
KM_DEVICE int column_of(int t, int n) {
    return 8 * P::CT * (t / P::CT) + 2 * P::CT * (n / 2) + 2 * (t % P::CT) + n % 2;
}
// Bytes to a place of a line in a stage.
template <class P>
KM_DEVICE int place_of(int line, int bytes) {
    if (P::WOVEN) return line * P::PITCH + (bytes ^ (P::LT * P::SIZE == 64 ? bytes / 128 % 2 + line % 2 * 2 : line % 2) * 16);
    return line * P::PITCH + (P::PERMUTED ? bytes ^ line / P::SAME % P::TURNS * P::APART : bytes);
}
// Position of k among 16 that thread `t` of a quad takes e-th.
template <class P>
KM_DEVICE int position_of(int t, int e) {
    return P::TOGETHER ? 4 * t + e : t + 4 * e;
}

template <int ACTIVATION>
KM_DEVICE float activated(float v) {
    if (ACTIVATION == 1) return max(v, 0.0f);
    if (ACTIVATION == 2) return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
    if (ACTIVATION == 3) return v / (1.0f + expf(-v));
    return v;
}

template <int ACTIVATION>
KM_DEVICE double activated_double(double v) {
    if (ACTIVATION == 1) return max(v, 0.0);
    if (ACTIVATION == 2) return 0.5 * v * (1.0 + ::erf(v * 0.70710678118654752440));
    if (ACTIVATION == 3) return v / (1.0 + ::exp(-v));
    return v;
}

}  // namespace km

// The arguments of a Kronecker-sparse launch, the tile of its kernel, and the layout of a stage in shared memory.
#pragma once
#include "split_hi_lo.cuh"

namespace km {

// Extents, strides in elements and pointers of one launch. The group g is outside everything.
struct KronSparse {
    const void *x, *weight, *packed, *bias;
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

// Largest common divisor.
__device__ constexpr int common(int a, int b) { return b ? common(b, a % b) : a; }

// The tile of a kernel, from a struct of its parameters:
//   T                    type of x, y and the weights
//   X_FIRST, Y_FIRST     features of x and y lie together in memory, else the batch does
//   FULL                 TILE_L is the pattern's d
//   WARP_L, WARPS_L      values of l of a warp, and warps that share rows, each with its own l
//   MMA_M                fragments of 16 rows of a warp
//   TILE_N, WARPS_N      columns j of a block, and warps that share rows and l, each with its own columns
//   TILE_K, STAGES       positions of k in a stage, and stages of a ring
//   WARPS                warps of a block
//   RESIDENT             the weights of all of k stay in shared memory, else they come with each stage
//   GROUPED              four warps multiply together by wgmma, else each for itself by mma
//   AHEAD                a warp prepares its next operands while wgmma runs
//   X_BYTES, Y_RUN       bytes of a copy of x, and numbers of y that are stored at once
//   PRODUCTS             3 products of halves for float32, or 1 in one pass
//   BIAS, ACTIVATION     what is done with a sum before it is stored
template <class Traits>
struct KronSparseTile : Traits {
    using typename Traits::T;
    using Traits::X_FIRST, Traits::Y_FIRST, Traits::FULL, Traits::RESIDENT, Traits::GROUPED, Traits::BIAS, Traits::AHEAD;
    using Traits::WARP_L, Traits::WARPS_L, Traits::MMA_M, Traits::TILE_N, Traits::WARPS_N, Traits::TILE_K, Traits::STAGES;
    using Traits::WARPS, Traits::X_BYTES, Traits::Y_RUN;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static_assert(!AHEAD || (GROUPED && RESIDENT && sizeof(T) == 2), "AHEAD takes halves whose weights are resident");
    static constexpr int SIZE = sizeof(T), TILE_L = WARP_L * WARPS_L, WARP_M = 16 * MMA_M, WARPS_M = WARPS / (WARPS_L * WARPS_N);
    static constexpr int TILE_M = WARPS_M * WARP_M, MMA_N = TILE_N / 8 / WARPS_N, MMA_K = TILE_K / 16;
    static constexpr int THREADS = 32 * WARPS, PIPELINE_THREADS = 32 * WARPS_L * WARPS_N, THREAD_M = 2 * MMA_M;
    // Whether a thread takes 4 neighbouring k with all their l, which are few or no power of two; else it takes every fourth k.
    static constexpr bool K_VECTOR = X_FIRST && WARPS_L == 1 && (WARP_L < 4 || (FULL && (WARP_L & (WARP_L - 1)) != 0));
    // Values of l that a warp reads at once.
    static constexpr int L_VECTOR = !K_VECTOR && WARP_L * SIZE > 16 && WARP_L >= 8 ? 16 / SIZE : WARP_L;
    // Fragments of 8 columns over which a thread's columns are neighbours.
    static constexpr int N_VECTOR = !Y_FIRST || WARP_L >= 4 || WARPS_L > 1 ? 1 : WARP_L == 2 ? (SPLIT ? 1 : 2) : (SPLIT ? 2 : 4);
    static_assert(MMA_N % N_VECTOR == 0 && (SPLIT || GROUPED || MMA_N % 2 == 0), "the columns of a thread belong to its own tile");
    // Fragments of columns whose products are under way together.
    static constexpr int MMA_BATCH = MMA_M == 1 && MMA_N % 4 == 0 && WARP_L * MMA_N < 32 ? 4 : 2;
    // Whether the compiler is told that a warp's number is the same for all its lanes: what follows of it needs no registers of threads,
    // but tiles that are short of them spill more (decisions 0098 and 0149).
    static constexpr bool UNIFORM = GROUPED && (X_FIRST || FULL) && (!SPLIT || MMA_K <= 2 || WARP_L == 1);
    // Whether the rows of a thread are neighbours.
    static constexpr bool M_VECTOR = !X_FIRST || !Y_FIRST;
    // Numbers that a thread reads at once, the bytes of one access, and the bytes from one lane's to the next one's.
    static constexpr int COUNT = !X_FIRST ? THREAD_M : K_VECTOR ? 4 * WARP_L : L_VECTOR;
    static constexpr int ACCESS = COUNT * SIZE % 16 == 0 ? 16 : COUNT * SIZE % 8 == 0 ? 8 : 4, LANE_BYTES = (K_VECTOR ? 4 * WARP_L : TILE_L) * SIZE;
    // A stage consists of rows of shared memory: rows of x where features lie together, else positions of k. Lanes that are served together
    // must read different banks. Rows therefore begin SKEW_BYTES modulo BANK_BYTES apart or, where their length leaves no
    // such gap, are swizzled: the offset in a row is exclusive-ored with SKEW_BYTES times one of SWIZZLE_STEPS numbers, the
    // same for SWIZZLE_ROWS neighbouring rows.
    // Rows of halves that begin between words are SHIFTED: copied from the word of 4 bytes before on, to one more word, and moved
    // as they are read.
    static constexpr bool SHIFTED = X_BYTES < 4 && (!X_FIRST || FULL);
    static constexpr int ROW = X_FIRST ? TILE_K * TILE_L : WARP_M, ROW_BYTES = ROW * SIZE + (SHIFTED ? 4 : 0);
    static constexpr int BANK_BYTES = X_FIRST && ACCESS == 16 && LANE_BYTES == 32 ? 32 : 128;
    static constexpr int SKEW_BYTES = BANK_BYTES == 32 ? 16 : X_FIRST && ACCESS == 16 ? 64 : 32;
    static constexpr bool SHORT_ROWS = !X_FIRST && ROW_BYTES == 64, SWIZZLED = ROW_BYTES % BANK_BYTES == 0 || SHORT_ROWS;
    static constexpr int SWIZZLE_STEPS = SHORT_ROWS ? 2 : BANK_BYTES / SKEW_BYTES, SWIZZLE_ROWS = SHORT_ROWS ? 2 : 1;
    // Whether warps that share rows read 32 or 64 neighbouring bytes together, of which 8 lanes cover all banks.
    static constexpr bool INTERLEAVED = X_FIRST && !SHIFTED && WARPS_L > 1 && (TILE_L * SIZE == 32 || TILE_L * SIZE == 64);
    static constexpr int SHIFTED_PITCH = X_FIRST ? (ROW_BYTES + 15) / 32 * 32 + 16 : (ROW_BYTES + 31) / 64 * 64 + 32;
    static constexpr int PITCH = SHIFTED ? SHIFTED_PITCH : SWIZZLED ? ROW_BYTES : (ROW_BYTES + BANK_BYTES - 1 - SKEW_BYTES) / BANK_BYTES * BANK_BYTES + SKEW_BYTES;
    static constexpr int STAGE = (X_FIRST ? WARP_M : TILE_K) * PITCH;
    // Bytes of 16 positions of k of one l: the weights, or their high halves and then their low ones.
    static constexpr int PLANES = SPLIT ? 2 : 1, PLANE = 32 * TILE_N;
    static constexpr int CHUNK = TILE_K * TILE_L * TILE_N * (SPLIT ? 4 : 2);
    static constexpr int PIPELINE_BYTES = WARPS_M * STAGES * STAGE;
    // Whether the copy engine fills stages of weights, which barriers say are full and empty, so that warps need not go in step.
    static constexpr bool BULK = GROUPED && !RESIDENT;
    static constexpr int BARRIER_BYTES = BULK ? 16 * STAGES : 0;
    static constexpr int TABLE_BYTES = ((BIAS ? 8 : 4) * TILE_L * TILE_N + 255) / 256 * 256;
    // Whether a thread has all l of a column.
    static constexpr bool WHOLE_COLUMN = FULL && WARPS_L == 1;
    // Whether two lanes store the 32 bytes of one or two columns together, as whole sectors.
    static constexpr bool SECTORS = Y_FIRST && Y_RUN * SIZE == 16 && (WARP_L * SIZE == 32 || (WHOLE_COLUMN && WARP_L * SIZE == 16));
    // Whether warps that share rows collect their values of l in a stage before they store them.
    static constexpr bool STAGED = INTERLEAVED && Y_FIRST && WARPS_N == 1 && Y_RUN * SIZE == 16;
    // Whether the warps that have all l of a column, no power of two or no whole vectors, collect neighbouring columns of 8 rows in
    // a stage, and so many fragments of columns at a time. A thread writes PUT_BYTES there at once; rows begin RUN_SKEW_BYTES
    // modulo 128 apart, where there is room, by which lanes that are served together write different banks.
    static constexpr bool STORE_RUNS = X_FIRST && Y_FIRST && FULL && (WARPS_L == 1 ? (K_VECTOR && WARP_L > 2) || Y_RUN * SIZE < 16 : (TILE_L & (TILE_L - 1)) != 0);
    static constexpr int PUT_BYTES = WARPS_L == 1 ? common(2 * WARP_L * SIZE, 16) : common(WARP_L * SIZE, common(TILE_L * SIZE, 16));
    static constexpr int RUN_SKEW_BYTES = PUT_BYTES < 16 ? 4 * PUT_BYTES : 2 * TILE_L * SIZE / 16 % 2 ? 64 : 16;
    static constexpr int RUN_PITCH_BYTES(int fragments) {
        const int bytes = 8 * fragments * TILE_L * SIZE, skewed = (bytes + 127 - RUN_SKEW_BYTES) / 128 * 128 + RUN_SKEW_BYTES;
        return fragments > N_VECTOR || 8 * WARPS_N * skewed <= STAGE ? skewed : bytes;
    }
    static constexpr bool RUN_FITS(int fragments) { return MMA_N % fragments == 0 && fragments % N_VECTOR == 0 && 8 * WARPS_N * RUN_PITCH_BYTES(fragments) <= STAGE; }
    static constexpr int RUN_N = RUN_FITS(MMA_N) ? MMA_N : MMA_N % 2 == 0 && RUN_FITS(MMA_N / 2) ? MMA_N / 2 : N_VECTOR;
    // Whether a warp collects columns of halves that begin between words in a stage, and writes them in words.
    static constexpr bool STORE_WORDS = !Y_FIRST && Y_RUN * SIZE < 4 && WARP_L == 1 && PIPELINE_THREADS == 32;
    // Bytes of shared memory of a block that holds so many chunks of weights: its table, the weights, its rings, and barriers.
    static __device__ constexpr int shared_bytes(int chunks) { return TABLE_BYTES + chunks * CHUNK + PIPELINE_BYTES + BARRIER_BYTES; }
};

// Column of a block's tile `t` of 8 columns, `n` in 0 .. 7.
template <class P>
KM_DEVICE int column_of(int t, int n) {
    return 8 * P::N_VECTOR * (t / P::N_VECTOR) + 2 * P::N_VECTOR * (n / 2) + 2 * (t % P::N_VECTOR) + n % 2;
}
// Offset in a stage of a byte of one of its rows.
template <class P>
KM_DEVICE int stage_offset(int row, int bytes) {
    if (P::INTERLEAVED) return row * P::PITCH + (bytes ^ (P::TILE_L * P::SIZE == 64 ? bytes / 128 % 2 + row % 2 * 2 : row % 2) * 16);
    return row * P::PITCH + (P::SWIZZLED ? bytes ^ row / P::SWIZZLE_ROWS % P::SWIZZLE_STEPS * P::SKEW_BYTES : bytes);
}
// Position of k among 16 that thread `t` of a quad takes e-th.
template <class P>
KM_DEVICE int k_of(int t, int e) {
    return P::K_VECTOR ? 4 * t + e : t + 4 * e;
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

// Brings the entries of every block of a Kronecker-sparse product together: y[n, i, l, k] = x[n, i, k, l], k padded by zeros to a
// pitch of whole vectors, or back again without the padding. Rows of x may begin anywhere; those of the padded array are aligned.
//
// A warp moves a tile of TILE_K positions of k and TILE_L of l, of UNITS neighbouring matrices (n, i), through shared memory.
// The unpadded side is read and written along l, in runs of TILE_K * L numbers where TILE_L is all of L; the padded side in
// vectors of 16 bytes along k, of which 8 l stand side by side in a warp.
#pragma once
#include "scalar.cuh"

namespace km {

struct KronSparseTranspose {
    const void* x;
    void* y;
    i64 count;
    int a, high, pitch;
    i64 xn, yn;
};

// The parameters of a kernel, members of P:
//   T                    unsigned integer of the size of a number
//   L, TILE_L            extent of l, and of a tile
//   TILE_K, UNITS        positions of k of a tile, and matrices that it has; more than one lie in one piece on both sides
//   HIGH                 extent of k where a tile has several matrices
//   WARPS                warps of a block
//   PADS                 x is brought into the padded order, else back
template <class P>
struct KronSparseTransposer {
    typedef typename P::T T;
    static constexpr int SIZE = sizeof(T), VECTOR = 16 / SIZE, L = P::L, TILE_L = P::TILE_L, TILE_K = P::TILE_K, UNITS = P::UNITS;
    static constexpr bool WHOLE = TILE_L == L;
    static_assert(UNITS == 1 || (WHOLE && P::HIGH <= TILE_K), "several matrices lie in a tile whole");
    // Entries of a row of shared memory. Whole matrices lie there as on the unpadded side, one piece that is moved in words; else
    // rows are odd, so that neither rows nor columns meet in a bank.
    static constexpr int ROW = WHOLE ? L : TILE_L | 1, MATRIX = UNITS > 1 ? P::HIGH * L : TILE_K * ROW;
    static constexpr int TILE = (UNITS * MATRIX + 15) / 8 * 8;
    static constexpr int VECTORS = TILE_K / VECTOR, BESIDE = TILE_L < 8 ? TILE_L : 8, GROUPS = (TILE_L + BESIDE - 1) / BESIDE;
    // Numbers of 4 bytes that a lane moves at once on the unpadded side.
    static constexpr int WORD_VALUES = 4 / SIZE;
    static_assert(TILE_K % VECTOR == 0, "tiles of whole vectors");
    static constexpr int SHARED_BYTES = P::WARPS * TILE * SIZE;

    const KronSparseTranspose& g;
    T* tile;
    // Entries by which a run begins behind a word.
    int lane, k0, l0, units, shift;
    i64 plain, padded;

    // Rows of the unpadded side in this tile.
    KM_DEVICE int high() const { return min(TILE_K, g.high - k0); }

    // Moves the unpadded side, word by word of 4 bytes; `each` gets a place in memory, one in the tile, and which numbers of
    // the word are there.
    template <class Each>
    KM_DEVICE void along(T* base, const Each& each) const {
        if constexpr (WHOLE) {
            T* const from = base + plain + (i64)k0 * L;
            const int length = UNITS > 1 ? units * MATRIX : high() * L;
#pragma unroll 8
            for (int e = WORD_VALUES * lane - shift; e < length; e += 32 * WORD_VALUES) each(from + e, e + shift, e >= 0, e + 1 < length);
        } else {
            constexpr int WORDS = TILE_L / WORD_VALUES + (WORD_VALUES > 1);
            const int count = high() * WORDS, wide = min(TILE_L, L - l0);
#pragma unroll 8
            for (int at = lane; at < count; at += 32) {
                const int k = at / WORDS;
                T* const from = base + plain + (i64)(k0 + k) * L + l0;
                const int e = at % WORDS * WORD_VALUES - shift_of(from);
                if (e < wide) each(from + e, k * ROW + e, e >= 0, e + 1 < wide);
            }
        }
    }
    static KM_DEVICE int shift_of(const T* from) { return WORD_VALUES == 1 ? 0 : (int)((size_t)from / SIZE % WORD_VALUES); }

    // Moves the padded side, vector by vector.
    template <class Each>
    KM_DEVICE void across(unsigned char* base, const Each& each) const {
        constexpr int EACH = BESIDE * VECTORS * GROUPS;
        const int wide = WHOLE ? TILE_L : min(TILE_L, L - l0), vectors = min(VECTORS, (g.pitch - k0) / VECTOR);
        unsigned char* const own = base + padded * SIZE;
#pragma unroll 4
        for (int at = lane; at < units * EACH; at += 32) {
            const int u = UNITS == 1 ? 0 : at / EACH, e = UNITS == 1 ? at : at % EACH;
            const int l = e % BESIDE + BESIDE * (e / (BESIDE * VECTORS)), k = e / BESIDE % VECTORS * VECTOR;
            if (l < wide && k < vectors * VECTOR)
                each((uint4*)(own + ((i64)(u * L + l0 + l) * g.pitch + k0 + k) * SIZE), (WHOLE ? shift : 0) + u * MATRIX + k * ROW + l, k0 + k);
        }
    }

    KM_DEVICE void pad() const {
        along((T*)g.x, [&](const T* from, int at, bool has_first, bool has_second) {
            if (WORD_VALUES == 1) {
                tile[at] = *from;
            } else if (has_first && has_second) {
                const unsigned word = *(const unsigned*)from;
                if (WHOLE) {
                    *(unsigned*)(tile + at) = word;
                } else {
                    tile[at] = (T)word;
                    tile[at + 1] = (T)(word >> 16);
                }
            } else {
                if (has_first) tile[at] = *from;
                if (has_second) tile[at + 1] = from[1];
            }
        });
        __syncwarp();
        across((unsigned char*)g.y, [&](uint4* to, int at, int k) {
            union {
                T v[VECTOR];
                uint4 word;
            } pack;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) pack.v[i] = k + i < g.high ? tile[at + i * ROW] : T(0);
            *to = pack.word;
        });
        __syncwarp();
    }

    KM_DEVICE void unpad() const {
        across((unsigned char*)g.x, [&](const uint4* from, int at, int k) {
            union {
                T v[VECTOR];
                uint4 word;
            } pack;
            pack.word = __ldcs(from);
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                if (!WHOLE || k + i < g.high) tile[at + i * ROW] = pack.v[i];
        });
        __syncwarp();
        along((T*)g.y, [&](T* to, int at, bool has_first, bool has_second) {
            if (WORD_VALUES == 1) {
                *to = tile[at];
            } else if (has_first && has_second) {
                *(unsigned*)to = WHOLE ? *(const unsigned*)(tile + at) : (unsigned)tile[at] | (unsigned)tile[at + 1] << 16;
            } else {
                if (has_first) *to = tile[at];
                if (has_second) to[1] = tile[at + 1];
            }
        });
        __syncwarp();
    }

    KM_DEVICE void run_all(T* shared) {
        const int down = ((P::PADS ? g.pitch : g.high) + TILE_K - 1) / TILE_K, wide = (L + TILE_L - 1) / TILE_L, warp = threadIdx.x / 32;
        const i64 matrices = g.count * g.a, sets = (matrices + UNITS - 1) / UNITS, tiles = sets * down * wide;
        lane = threadIdx.x % 32;
        tile = shared + warp * TILE;
#pragma unroll 1
        for (i64 t = (i64)blockIdx.x * P::WARPS + warp; t < tiles; t += (i64)gridDim.x * P::WARPS) {
            const i64 set = t / (down * wide), first = set * UNITS;
            const int index = (int)(t - set * (down * wide));
            k0 = index / wide * TILE_K;
            l0 = index % wide * TILE_L;
            units = (int)(matrices - first < UNITS ? matrices - first : UNITS);
            const i64 n = first / g.a, i = first - n * g.a;
            plain = n * (P::PADS ? g.xn : g.yn) + i * g.high * L;
            padded = n * (P::PADS ? g.yn : g.xn) + i * L * g.pitch;
            shift = shift_of((const T*)(P::PADS ? g.x : g.y) + plain + (i64)k0 * L);
            if (P::PADS) pad();
            else unpad();
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_transpose(const KronSparseTranspose& g) {
    extern __shared__ __align__(16) unsigned char shared[];
    KronSparseTransposer<P> own = {g};
    own.run_all((typename P::T*)shared);
}

// Transposes a square of numbers of 4 or 2 bytes whose edge is 16 bytes.
KM_DEVICE void transpose(uint4 (&v)[4]) {
    unsigned* const p = (unsigned*)v;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < i; ++j) {
            const unsigned swapped = p[4 * i + j];
            p[4 * i + j] = p[4 * j + i];
            p[4 * j + i] = swapped;
        }
}
KM_DEVICE void transpose(uint4 (&v)[8]) {
    uint4 out[8];
    const unsigned* const from = (const unsigned*)v;
    unsigned* const to = (unsigned*)out;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            to[4 * (2 * i) + j] = __byte_perm(from[4 * (2 * j) + i], from[4 * (2 * j + 1) + i], 0x5410);
            to[4 * (2 * i + 1) + j] = __byte_perm(from[4 * (2 * j) + i], from[4 * (2 * j + 1) + i], 0x7632);
        }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = out[i];
}

// The same where every extent is whole vectors and all is aligned: a thread transposes a square whose edge is 16 bytes, in
// registers. DOWN lanes write neighbouring 16 bytes, and the 32 / DOWN groups of a warp read neighbouring 16 bytes.
template <int SIZE, int DOWN>
__device__ __forceinline__ void kron_sparse_transpose_squares(const KronSparseTranspose& g) {
    constexpr int N = 16 / SIZE, ALONG = 32 / DOWN;
    const int down = (g.high + N * DOWN - 1) / (N * DOWN), across = (g.pitch + N * ALONG - 1) / (N * ALONG), lane = threadIdx.x % 32;
    const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32, matrix = warp / (down * across);
    const int tile = (int)(warp % (down * across)), k = (tile / across * DOWN + lane % DOWN) * N;
    const int l = (tile % across * ALONG + lane / DOWN) * N;
    const i64 n = matrix / g.a, own = matrix % g.a * g.high * g.pitch;
    if (n >= g.count || k >= g.high || l >= g.pitch) return;
    const unsigned char* from = (const unsigned char*)g.x + (n * g.xn + own + (i64)k * g.pitch + l) * SIZE;
    unsigned char* to = (unsigned char*)g.y + (n * g.yn + own + (i64)l * g.high + k) * SIZE;
    uint4 v[N];
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = __ldcs((const uint4*)(from + (i64)i * g.pitch * SIZE));
    transpose(v);
#pragma unroll
    for (int i = 0; i < N; ++i) *(uint4*)(to + (i64)i * g.high * SIZE) = v[i];
}

}  // namespace km

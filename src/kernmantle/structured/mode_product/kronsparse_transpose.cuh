// Brings the entries of every block of a Kronecker-sparse product together: y[n, i, l, k] = x[n, i, k, l], k padded by zeros to a
// pitch of whole vectors, or back again without the padding. Rows of x may begin anywhere; those of the padded array are aligned.
//
// A block moves a tile of TILE_K positions of k and TILE_L of l, of UNITS neighbouring matrices (n, i), through shared memory.
// Both sides are read and written in vectors of 16 bytes. On the unpadded side numbers that lie together are a run: the whole tile
// where TILE_L is all of L, else a row. A run lies in shared memory as far behind a vector as in memory.
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

// Adds a bias of type B, of the features, to numbers in float32; void is no bias.
template <class B>
struct KronSparseOffset {
    template <class T>
    static KM_DEVICE T added(T value, const void* bias, i64 at) {
        return bit_cast<T>(Store<B>::from(convert<float>(bit_cast<B>(value)) + convert<float>(((const B*)bias)[at])));
    }
    static KM_DEVICE void add(uint4& word, const void* bias, i64 at) {
        constexpr int N = 16 / sizeof(B);
        auto v = bit_cast<Pack<B, N>>(word);
        const auto own = load_pack<B, N>((const B*)bias + at);
#pragma unroll
        for (int i = 0; i < N; ++i) v.v[i] = Store<B>::from(convert<float>(v.v[i]) + convert<float>(own.v[i]));
        word = bit_cast<uint4>(v);
    }
};
template <>
struct KronSparseOffset<void> {
    template <class T>
    static KM_DEVICE T added(T value, const void*, i64) {
        return value;
    }
    static KM_DEVICE void add(uint4&, const void*, i64) {}
};

// The parameters of a kernel, members of P:
//   T                    unsigned integer of the size of a number
//   L, TILE_L            extent of l, and of a tile
//   TILE_K, UNITS        positions of k of a tile, and matrices that it has; more than one lie in one piece on both sides
//   HIGH                 extent of k where a tile has several matrices
//   LANES_L               neighbouring l of which a warp moves vectors along k; so many that columns do not meet in a bank
//   WARPS                warps of a block
//   PADS                 x is brought into the padded order, else back
// and B the type of a bias that is added on the way back, of the features of y
template <class P, class B = void>
struct KronSparseTransposer {
    typedef typename P::T T;
    static constexpr int SIZE = sizeof(T), VECTOR = 16 / SIZE, L = P::L, TILE_L = P::TILE_L, TILE_K = P::TILE_K, UNITS = P::UNITS;
    static constexpr int THREADS = 32 * P::WARPS, LANES_L = P::LANES_L, VECTORS = TILE_K / VECTOR, BATCH = 4;
    static constexpr bool WHOLE = TILE_L == L;
    static_assert(UNITS == 1 || (WHOLE && P::HIGH <= TILE_K), "several matrices lie in a tile whole");
    static_assert(TILE_K % VECTOR == 0, "tiles of whole vectors");
    static constexpr int MATRIX = (UNITS > 1 ? P::HIGH : TILE_K) * L, RUNS = WHOLE ? 1 : TILE_K, RUN = WHOLE ? UNITS * MATRIX : TILE_L;
    // Numbers from one k to the next in shared memory, and from one run to the next.
    static constexpr int SPACE = (RUN + 2 * VECTOR - 2) / VECTOR * VECTOR, ROW = WHOLE ? L : SPACE;
    static constexpr int SHARED_BYTES = RUNS * SPACE * SIZE;

    const KronSparseTranspose& g;
    const void* bias;
    T* tile;
    int k0, l0, units, i0;
    i64 plain, padded;

    // Rows of the unpadded side in this tile.
    KM_DEVICE int high() const { return min(TILE_K, g.high - k0); }
    KM_DEVICE int wide() const { return WHOLE ? L : min(TILE_L, L - l0); }

    // Entries by which a place begins behind a vector.
    static KM_DEVICE int misalignment(const T* at) { return (int)((size_t)at / SIZE % VECTOR); }
    // Where run r begins in memory, and how long a run is.
    KM_DEVICE const T* run_at(const void* base, int r) const { return (const T*)base + plain + (i64)(k0 + r) * L + l0; }
    KM_DEVICE int runs() const { return WHOLE ? 1 : high(); }
    KM_DEVICE int length() const { return WHOLE ? (UNITS > 1 ? units * MATRIX : high() * L) : wide(); }

    // Moves the unpadded side: `each` gets a vector of memory, one of the tile, and which of its numbers belong to the run.
    template <class Each>
    KM_DEVICE void along(const void* base, int thread, const Each& each) const {
        const int length = this->length(), most = (length + 2 * VECTOR - 2) / VECTOR, count = runs() * most;
#pragma unroll 4
        for (int e = thread; e < count; e += THREADS) {
            const int r = WHOLE ? 0 : e / most, v = WHOLE ? e : e - r * most;
            const T* const from = run_at(base, r);
            const int shift = misalignment(from), first = v ? 0 : shift, last = min(VECTOR, shift + length - v * VECTOR);
            if (last > 0) each(from - shift + v * VECTOR, tile + r * SPACE + v * VECTOR, first, last);
        }
    }

    // Moves the padded side: `each` gets a vector of memory, a place in the tile, k, and the feature of its first number.
    static constexpr int EACH = LANES_L * VECTORS;
    KM_DEVICE int items() const { return ((UNITS > 1 ? units * L : wide()) + LANES_L - 1) / LANES_L * EACH; }
    template <class Each>
    KM_DEVICE void across(const void* base, int item, const Each& each) const {
        const int row = item % LANES_L + LANES_L * (item / EACH), k = item / LANES_L % VECTORS * VECTOR;
        const int u = UNITS > 1 ? row / L : 0, l = UNITS > 1 ? row % L : row;
        if (row < (UNITS > 1 ? units * L : wide()) && k0 + k < g.pitch)
            each((uint4*)((T*)base + padded + (i64)(u * L + l0 + l) * g.pitch + k0 + k), u * MATRIX + k * ROW + l, k0 + k,
                 ((i64)((i0 + u) % g.a) * g.high + k0 + k) * L + l0 + l);
    }
    // Entries by which a number of row k lies behind that of an aligned tile.
    KM_DEVICE int shift_of(int start, int k) const { return WHOLE ? start : (start + k * (L % VECTOR)) % VECTOR; }

    KM_DEVICE void read_plain(int thread) const {
        along(g.x, thread, [&](const T* from, T* to, int, int last) {
            if (last == VECTOR) ptx::cp_async<16>(shared_address(to), from);
        });
        // Memory may end where a run does: numbers of its last vector one by one.
        const int length = this->length(), count = runs() * VECTOR;
#pragma unroll 1
        for (int e = thread; e < count; e += THREADS) {
            const int r = e / VECTOR;
            const T* const from = run_at(g.x, r);
            const int shift = misalignment(from), end = shift + length, at = end / VECTOR * VECTOR + e % VECTOR;
            if (at >= shift && at < end) tile[r * SPACE + at] = from[at - shift];
        }
    }
    KM_DEVICE void write_padded(int thread) const {
        const int start = misalignment(run_at(g.x, 0)), items = this->items();
#pragma unroll 2
        for (int item = thread; item < items; item += THREADS)
            across(g.y, item, [&](uint4* to, int at, int k, i64) {
                union {
                    T v[VECTOR];
                    uint4 word;
                } pack;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) pack.v[i] = k + i < g.high ? tile[at + i * ROW + shift_of(start, k - k0 + i)] : T(0);
                *to = pack.word;
            });
    }

    KM_DEVICE void read_padded(int thread) const {
        const int start = misalignment(run_at(g.y, 0)), items = this->items();
#pragma unroll 1
        for (int item = thread; item < items; item += BATCH * THREADS) {
            uint4 words[BATCH];
#pragma unroll
            for (int own = 0; own < BATCH; ++own)
                if (item + own * THREADS < items)
                    across(g.x, item + own * THREADS, [&](const uint4* from, int, int, i64) { words[own] = __ldcs(from); });
#pragma unroll
            for (int own = 0; own < BATCH; ++own)
                if (item + own * THREADS < items)
                    across(g.x, item + own * THREADS, [&](const uint4*, int at, int k, i64 feature) {
                        union {
                            T v[VECTOR];
                            uint4 word;
                        } pack;
                        pack.word = words[own];
#pragma unroll
                        for (int i = 0; i < VECTOR; ++i)
                            if (k + i < g.high)
                                tile[at + i * ROW + shift_of(start, k - k0 + i)] =
                                    KronSparseOffset<B>::added(pack.v[i], bias, feature + (i64)i * L);
                    });
        }
    }
    KM_DEVICE void write_plain(int thread) const {
        along(g.y, thread, [&](const T* to, const T* from, int first, int last) {
            if (first == 0 && last == VECTOR) {
                *(uint4*)to = *(const uint4*)from;
            } else {
#pragma unroll 1
                for (int i = first; i < last; ++i) ((T*)to)[i] = from[i];
            }
        });
    }

    KM_DEVICE void locate(i64 block) {
        const int down = ((P::PADS ? g.pitch : g.high) + TILE_K - 1) / TILE_K, wide = (L + TILE_L - 1) / TILE_L;
        const i64 set = block / (down * wide), first = set * UNITS, matrices = g.count * g.a;
        const int index = (int)(block - set * (down * wide));
        k0 = index / wide * TILE_K;
        l0 = index % wide * TILE_L;
        units = (int)(matrices - first < UNITS ? matrices - first : UNITS);
        const i64 n = first / g.a, i = first - n * g.a;
        i0 = (int)i;
        plain = n * (P::PADS ? g.xn : g.yn) + i * g.high * L;
        padded = n * (P::PADS ? g.yn : g.xn) + i * L * g.pitch;
    }
};

template <class P, class B = void>
__device__ __forceinline__ void kron_sparse_transpose(const KronSparseTranspose& g, const void* bias = nullptr) {
    extern __shared__ __align__(16) unsigned char shared[];
    KronSparseTransposer<P, B> own = {g, bias, (typename P::T*)shared};
    own.locate(blockIdx.x);
    if (P::PADS) {
        own.read_plain(threadIdx.x);
        ptx::cp_async_wait_all();
        __syncthreads();
        own.write_padded(threadIdx.x);
    } else {
        own.read_padded(threadIdx.x);
        __syncthreads();
        own.write_plain(threadIdx.x);
    }
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
// registers. DOWN lanes write neighbouring 16 bytes, and the 32 / DOWN groups of a warp read neighbouring 16 bytes. A bias of
// type B, of the features of y, is added to every row.
template <int SIZE, int DOWN, class B = void>
__device__ __forceinline__ void kron_sparse_transpose_squares(const KronSparseTranspose& g, const void* bias = nullptr) {
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
    for (int i = 0; i < N; ++i) {
        KronSparseOffset<B>::add(v[i], bias, own + (i64)(l + i) * g.high + k);
        *(uint4*)(to + (i64)i * g.high * SIZE) = v[i];
    }
}

}  // namespace km

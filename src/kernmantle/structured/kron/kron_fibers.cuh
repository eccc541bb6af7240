// Fibers of a Kronecker product on tensor cores, 16 TILES at a time by a warp. A fiber has the entries along the axis of
// the factor, which one entry of the result sums: a row of memory where that axis is the last, else a column.
//
// float32 is two halves of 11 bits, scaled by a power of two for each fiber and for each factor, and three products.
// Accumulators of tensor cores round towards zero: the small products have their own, and the large ones are added to a
// sum in float32 after 64 positions.
#pragma once
#include "kron.cuh"
#include "reduce.cuh"

namespace km {

// Which row of eight the lanes of a group of four have, so that neither reads nor writes of 16 bytes meet in a bank.
KM_DEVICE int kron_row(int lane) {
    const int g = lane / 4;
    return (g & 4) | (g & 1) << 1 | (g >> 1 & 1);
}

template <class H>
struct KronHalf;
template <>
struct KronHalf<f16> {
    static constexpr bool SCALED = true;
    static __device__ __forceinline__ unsigned pack(float a, float b) {
        return ptx::pack_f16x2(a, b);
    }
};
template <>
struct KronHalf<bf16> {
    static constexpr bool SCALED = false;
    static __device__ __forceinline__ unsigned pack(float a, float b) {
        return ptx::pack_bf16x2(a, b);
    }
};

// The power of two that brings a largest value to 2^14 .. 2^15, and its inverse.
struct KronScale {
    float by, back;
    KM_DEVICE explicit KronScale(float top) {
        unsigned exponent = __float_as_uint(top) >> 23;
        exponent = exponent < 20 ? 20 : exponent;
        by = __uint_as_float((268 - exponent) << 23);
        back = __uint_as_float((exponent - 14) << 23);
    }
    KM_DEVICE KronScale() : by(1.0f), back(1.0f) {}
};

// Two scaled neighbours as high halves and, for several products, what is left of them as low ones.
template <class H, int PRODUCTS>
KM_DEVICE void kron_split(unsigned& high, unsigned& low, float a, float b) {
    high = KronHalf<H>::pack(a, b);
    if constexpr (PRODUCTS > 1) {
        const float2 staged = ptx::unpack_f16x2(high);
        low = KronHalf<H>::pack(a - staged.x, b - staged.y);
    }
}

// An entry of a factor in memory.
template <class T, class C, class Args>
KM_DEVICE C kron_entry(const Args& g, int number, int row, int column) {
    const i64(&s)[5] = g.factor_stride[number];
    return convert<C>(load_pack<T, 1>((const T*)g.factor[number] + row * s[0] + column * s[1]).v[0]);
}

// The largest finite magnitude of the entries of a factor of ROWS x COLUMNS that a warp takes: its threads every APART-th of them, or of
// the vectors of a factor that lies in one piece.
template <class T, int ROWS, int COLUMNS, int APART, class Args>
KM_DEVICE float kron_largest_entry(const Args& g, int number) {
    constexpr int COUNT = ROWS * COLUMNS, VECTOR = COUNT % (16 / (int)sizeof(T)) ? 1 : 16 / (int)sizeof(T);
    const T* const from = (const T*)g.factor[number];
    const i64(&s)[5] = g.factor_stride[number];
    const bool is_whole = ((s[0] == 1 && s[1] == ROWS) || (s[1] == 1 && s[0] == COLUMNS)) && (unsigned long long)from % (VECTOR * sizeof(T)) == 0;
    const int first = threadIdx.x % APART;
    const auto of_vector = [&](int n) {
        const Pack<T, VECTOR> own = load_pack<T, VECTOR>(from + n * VECTOR);
        float top = 0.0f;
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) {
            const float entry = fabsf(convert<float>(own.v[v]));
            top = entry < infinity<float>() ? fmaxf(top, entry) : top;
        }
        return top;
    };
    const auto of_entry = [&](int n) { return fabsf(convert<float>(load_pack<T, 1>(from + n / COLUMNS * s[0] + n % COLUMNS * s[1]).v[0])); };
    return warp_max(is_whole ? kron_largest<COUNT / VECTOR, APART, VECTOR == 1 ? 8 : 4>(first, of_vector) : kron_largest<COUNT, APART, 8>(first, of_entry));
}
// The largest entries that a warp found to shared memory.
KM_DEVICE void kron_keep_largest(float* tops, float top) {
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = fminf(top, __uint_as_float(0x7f7fffff));
}

// A factor of ROWS x COLUMNS as the tensor cores take it, in blocks of 16 x 16; LAST: for the last axis; CHAINED: as operands of
// 16 rows, of what lies in rows of memory (LAST) or is a product in registers, as that lies there.
template <bool LAST_, int ROWS_, int COLUMNS_, int PRODUCTS_, bool CHAINED = false>
struct KronFactor {
    static constexpr bool LAST = LAST_;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, PRODUCTS = PRODUCTS_;
    static constexpr int DEEP = (COLUMNS + 15) / 16, WIDE = (ROWS + 15) / 16, BLOCK = PRODUCTS > 1 ? 256 : 128, WORDS = DEEP * WIDE * BLOCK;
    // Lanes of all blocks, and for how many of them a thread reads the entries before it uses the first.
    static constexpr int LANES = DEEP * WIDE * 32;
    template <class B>
    static constexpr int AHEAD = LANES > B::THREADS ? 2 : 1;

    static __device__ __forceinline__ int row(int lane, int r) {
        const int g = lane / 4;
        return LAST ? 4 * (g / 2) + 2 * (CHAINED ? r % 2 : r / 2) + g % 2 : 8 * (r % 2) + (CHAINED ? g : kron_row(lane));
    }
    static __device__ __forceinline__ int column(int lane, int r, int second) {
        const int t = lane % 4;
        return LAST ? 4 * t + 2 * (CHAINED ? r / 2 : r % 2) + second : CHAINED ? 2 * t + 8 * (r / 2) + second : t + 8 * (r / 2) + 4 * second;
    }
    // A lane's registers of a block to shared memory: both parts of one instruction's operand are 16 bytes.
    static __device__ __forceinline__ void put(unsigned* to, const unsigned (&high)[4], const unsigned (&low)[4]) {
        constexpr bool MIXED = PRODUCTS > 1 && LAST && !CHAINED;
        *(uint4*)to = MIXED ? uint4{high[0], high[1], low[0], low[1]} : uint4{high[0], high[1], high[2], high[3]};
        if (PRODUCTS > 1) *(uint4*)(to + 128) = MIXED ? uint4{high[2], high[3], low[2], low[3]} : uint4{low[0], low[1], low[2], low[3]};
    }

    // The eight entries of a lane of a block, in two rows and four columns, whose offsets they share. value(q, p) is an entry; outside are
    // those of the last row and column.
    template <class Value>
    static KM_DEVICE void read(float (&v)[4][2], int n, const Value& value) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int q = n / 32 % WIDE * 16 + row(n % 32, i / 2), p = n / 32 / WIDE * 16 + column(n % 32, i / 2, i % 2);
            v[i / 2][i % 2] = value(min(q, ROWS - 1), min(p, COLUMNS - 1));
        }
    }
    // `tops` has the largest entries that each warp found. FITS: an entry is a value of the half type already.
    template <class B, bool FITS, class Value>
    static __device__ void prepare(unsigned* to, float* back, const float* tops, const Value& value) {
        typedef typename B::H H;
        KronScale scale;
        if (KronHalf<H>::SCALED && !FITS) {
            float top = 0.0f;
#pragma unroll
            for (int w = 0; w < B::WARPS; ++w) top = fmaxf(top, tops[w]);
            scale = KronScale(top);
        }
#pragma unroll 1
        for (int begin = threadIdx.x; begin < LANES; begin += AHEAD<B> * B::THREADS) {
            float v[AHEAD<B>][4][2];
#pragma unroll
            for (int j = 0; j < AHEAD<B>; ++j) read(v[j], min(begin + j * B::THREADS, LANES - 1), value);
#pragma unroll
            for (int j = 0; j < AHEAD<B>; ++j) {
                const int n = begin + j * B::THREADS, lane = n % 32, q = n / 32 % WIDE * 16, p = n / 32 / WIDE * 16;
                if (n >= LANES) break;
                unsigned high[4], low[4] = {};
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    float own[2];
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        own[i] = q + row(lane, r) < ROWS && p + column(lane, r, i) < COLUMNS ? v[j][r][i] * scale.by : 0.0f;
                    kron_split<H, PRODUCTS>(high[r], low[r], own[0], own[1]);
                }
                put(to + n / 32 * BLOCK + lane * 4, high, low);
            }
        }
        if (threadIdx.x == 0) *back = scale.back;
    }
};

// 16 TILES fibers of 16 DEEP entries in the registers of a warp, as one operand of its instructions.
template <class B, class F, int TILES, class C = typename B::C>
struct KronFragments {
    typedef typename B::H H;
    static constexpr int DEEP = F::DEEP, PRODUCTS = B::PRODUCTS;
    unsigned high[TILES][DEEP][4], low[PRODUCTS > 1 ? TILES : 1][PRODUCTS > 1 ? DEEP : 1][4];
    float back[TILES][4];

    KM_DEVICE void split(int tile, int s, int r, float a, float b) {
        if constexpr (PRODUCTS > 1) kron_split<H, PRODUCTS>(high[tile][s][r], low[tile][s][r], a, b);
        else kron_split<H, 1>(high[tile][s][r], high[tile][s][r], a, b);
    }

    // Rows of a multiple of 16 entries; `at` says where one begins. SWIZZLED: in rows 2, 3 of every 4 neighbouring halves
    // of 32 entries have changed places.
    template <bool SWIZZLED, class At>
    KM_DEVICE void read_rows(const float* from, const At& at, int lane) {
        const int chunk = SWIZZLED && DEEP % 2 == 0 ? lane / 4 % 2 * 16 : 0;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float* own = from + at(16 * tile + 8 * h + kron_row(lane)) + lane % 4 * 4;
                float v[DEEP][4], top = 0.0f;
#pragma unroll
                for (int s = 0; s < DEEP; ++s) {
                    const Pack<float, 4> pack = *(const Pack<float, 4>*)(own + 16 * s + (s % 2 ? -chunk : chunk));
#pragma unroll
                    for (int i = 0; i < 4; ++i) v[s][i] = pack.v[i], top = fmaxf(top, fabsf(pack.v[i]));
                }
                split_row(tile, h, v, top);
            }
        }
    }
    // What a lane has of a row, whose largest magnitude among them is `top`.
    KM_DEVICE void split_row(int tile, int h, const float (&v)[DEEP][4], float top) {
        KronScale scale;
        if (KronHalf<H>::SCALED) scale = KronScale(warp_max<2, 1>(top));
        back[tile][2 * h] = back[tile][2 * h + 1] = scale.back;
#pragma unroll
        for (int s = 0; s < DEEP; ++s) {
            split(tile, s, h, v[s][0] * scale.by, v[s][1] * scale.by);
            split(tile, s, 2 + h, v[s][2] * scale.by, v[s][3] * scale.by);
        }
    }
    template <bool SWIZZLED, class At>
    KM_DEVICE void read_rows(const H* from, const At& at, int lane) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const H* own = from + at(16 * tile + 8 * h + kron_row(lane)) + lane % 4 * 4;
                back[tile][2 * h] = back[tile][2 * h + 1] = 1.0f;
                // Both words of a load lie beside each other, where an operand has others between them: a sum with 0 moves them once,
                // which would be done before every product otherwise.
                const unsigned none = blockDim.y - 1;
#pragma unroll
                for (int s = 0; s < DEEP; ++s) {
                    const uint2 pack = *(const uint2*)(own + 16 * s);
                    high[tile][s][h] = pack.x + none;
                    high[tile][s][2 + h] = pack.y + none;
                }
            }
        }
    }
    // Columns, 16 beside each other in each tile, of which a lane has two; their entries are PITCH apart. `at` says where
    // one of a tile is.
    template <int PITCH, class At>
    KM_DEVICE void read_columns(const float* from, const At& at, int lane) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const float* own = from + at(tile, lane / 4 * 2) + lane % 4 * PITCH;
            float v[DEEP][4][2], top[2] = {0.0f, 0.0f}, inverse[2];
#pragma unroll
            for (int s = 0; s < DEEP; ++s) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const bool inside = 16 * (s + 1) <= F::COLUMNS || 16 * s + 4 * e + lane % 4 < F::COLUMNS;
                    const Pack<float, 2> pack = inside ? *(const Pack<float, 2>*)(own + (16 * s + 4 * e) * PITCH) : Pack<float, 2>{};
#pragma unroll
                    for (int i = 0; i < 2; ++i) v[s][e][i] = pack.v[i], top[i] = fmaxf(top[i], fabsf(pack.v[i]));
                }
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                KronScale scale;
                if (KronHalf<H>::SCALED) scale = KronScale(warp_max<2, 1>(top[i]));
                inverse[i] = scale.back;
#pragma unroll
                for (int s = 0; s < DEEP; ++s) {
                    split(tile, s, 2 * i, v[s][0][i] * scale.by, v[s][1][i] * scale.by);
                    split(tile, s, 2 * i + 1, v[s][2][i] * scale.by, v[s][3][i] * scale.by);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j)
                back[tile][j] = KronHalf<H>::SCALED ? __shfl_sync(0xffffffffu, inverse[j % 2], 8 * (lane % 4) + 4 * (j / 2)) : 1.0f;
        }
    }
    template <int PITCH, class At>
    KM_DEVICE void read_columns(const H* from, const At& at, int lane) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const H* own = from + at(tile, lane / 4 * 2) + lane % 4 * PITCH;
#pragma unroll
            for (int s = 0; s < DEEP; ++s) {
                unsigned v[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const bool inside = 16 * (s + 1) <= F::COLUMNS || 16 * s + 4 * e + lane % 4 < F::COLUMNS;
                    v[e] = inside ? *(const unsigned*)(own + (16 * s + 4 * e) * PITCH) : 0;
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    high[tile][s][2 * i] = __byte_perm(v[0], v[1], i == 0 ? 0x5410 : 0x7632);
                    high[tile][s][2 * i + 1] = __byte_perm(v[2], v[3], i == 0 ? 0x5410 : 0x7632);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) back[tile][j] = 1.0f;
        }
    }

    // The same of halves as they lie in memory: every row or entry begins `shift` halves behind a multiple of 16 bytes, of which
    // `shifts` are those of all rows.
    template <int PITCH>
    KM_DEVICE void read_shifted_rows(const H* from, const unsigned short* shifts, int lane) {
        read_rows_at(from, [&](int row) { return row * PITCH + shifts[row]; }, lane);
    }
    // The same of rows that follow each other, the first of which begins `shift` halves behind the beginning.
    template <int PITCH>
    KM_DEVICE void read_dense_rows(const H* from, int shift, int lane) {
        read_rows_at(from, [&](int row) { return row * PITCH + shift; }, lane);
    }
    template <class At>
    KM_DEVICE void read_rows_at(const H* from, const At& at, int lane) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int shift = at(16 * tile + 8 * h + kron_row(lane));
                const unsigned* own = (const unsigned*)from + shift / 2 + lane % 4 * 2;
                back[tile][2 * h] = back[tile][2 * h + 1] = 1.0f;
#pragma unroll
                for (int s = 0; s < DEEP; ++s) {
                    const unsigned a = own[8 * s], b = own[8 * s + 1], c = own[8 * s + 2];
                    unsigned first = __funnelshift_r(a, b, shift % 2 * 16), second = __funnelshift_r(b, c, shift % 2 * 16);
                    if (16 * (s + 1) > F::COLUMNS) {
                        const int left = F::COLUMNS - 16 * s - lane % 4 * 4;
                        first &= left > 1 ? 0xffffffffu : left > 0 ? 0xffffu : 0u;
                        second &= left > 3 ? 0xffffffffu : left > 2 ? 0xffffu : 0u;
                    }
                    high[tile][s][h] = first;
                    high[tile][s][2 + h] = second;
                }
            }
        }
    }
    template <int PITCH>
    KM_DEVICE void read_shifted_columns(const H* from, const unsigned short* shifts, int lane) {
        // Of every eighth entry the shift is the same, and that of the fourth between them is as odd.
        const int shift[2] = {shifts[lane % 4], shifts[lane % 4 + 4]};
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const H* own = from + 16 * tile + lane / 4 * 2 + lane % 4 * PITCH;
#pragma unroll
            for (int s = 0; s < DEEP; ++s) {
                unsigned v[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const bool inside = 16 * (s + 1) <= F::COLUMNS || 16 * s + 4 * e + lane % 4 < F::COLUMNS;
                    const unsigned* at = (const unsigned*)(own + (16 * s + 4 * e) * PITCH) + shift[e % 2] / 2;
                    v[e] = inside ? __funnelshift_r(at[0], at[1], shift[e % 2] % 2 * 16) : 0;
                }
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    high[tile][s][2 * i] = __byte_perm(v[0], v[1], i == 0 ? 0x5410 : 0x7632);
                    high[tile][s][2 * i + 1] = __byte_perm(v[2], v[3], i == 0 ? 0x5410 : 0x7632);
                }
            }
#pragma unroll
            for (int j = 0; j < 4; ++j) back[tile][j] = 1.0f;
        }
    }
};

}  // namespace km

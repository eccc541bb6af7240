// Three factors of 32 x 32 in one pass, for arrays whose rows lie in order. A block has a row of 32 tiles of 32 x 32.
//
// A warp applies the last two factors to a tile in registers, and the first one to columns of all tiles, which come from shared memory
// and leave from registers by vectors of 16 bytes, four of them beside each other.
//
// The left operand of both products over rows is a factor; their sums are the left operand of the product by columns. Lanes have
// neighbours by the order of columns, which both products share, and of positions of k. float32 is two halves of 11 bits and three
// products. A tile comes to less than 2^8 by a power of two, factors to less than 2^2, so that sums are less than 2^15 and need no
// other one. By the largest results of all tiles columns come to less than 2^8 too.
#pragma once
#include "kron_fibers.cuh"
#include "kron_rows.cuh"

namespace km {

// The parameters of a pass, members of B (tensor_emit.py):
//   T, H                 type of x and the result, and of the operands of tensor cores
//   WARPS                of a block, which has a row of x
//   PREFETCH             x comes to the second-level cache ahead
//   down, entry          whether neighbouring rows of a factor follow each other in memory, and one of its entries
template <class B, class Args>
struct KronCube {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int WARPS = B::WARPS, THREADS = 32 * WARPS, SIDE = 32, TILE = SIDE * SIDE, PARTS = SPLIT ? 2 : 1;
    // Numbers of 16 bytes; columns that a warp takes at once, and how often.
    static constexpr int EACH = 16 / (int)sizeof(T), COLUMNS = 8 * EACH, GROUPS = TILE / COLUMNS;
    // Words of a factor as fragments: high parts of all lanes, then low ones.
    static constexpr int FACTOR = PARTS * 512, TILE_BYTES = TILE * (int)sizeof(T), TABLE = SIDE * TILE_BYTES, FACTORS = TABLE + (SPLIT ? SIDE * 8 : 0), SHARED_BYTES = FACTORS + 3 * FACTOR * 4;
    static_assert(SIDE % WARPS == 0 && GROUPS % WARPS == 0, "warps share tiles and columns evenly");
    static constexpr int TOP = 8, FACTOR_TOP = 2;

    // Two steps of 16 positions of k of N blocks of 8 columns.
    template <int N>
    struct Right {
        unsigned high[2][N][2], low[2][SPLIT ? N : 1][2];
    };
    // Four neighbours of a row of x, as words where they are halves.
    typedef typename Word<4 * sizeof(T)>::type Four;

    static KM_DEVICE float larger(float top, float a) { return fabsf(a) < infinity<float>() ? fmaxf(top, fabsf(a)) : top; }
    // The factors as fragments, by all threads, and the product of the inverses of what they were multiplied by. All entries are
    // asked for at once: first those by which the powers of two are found.
    static __device__ float prepare(const Args& g, unsigned* to, float* tops) {
        HalfScale scale[3] = {{1.0f, 1.0f}, {1.0f, 1.0f}, {1.0f, 1.0f}};
        if constexpr (SPLIT) {
            constexpr int OWN = TILE / THREADS;
            float v[3][OWN];
#pragma unroll
            for (int i = 0; i < OWN; ++i) {
                const int n = threadIdx.x + i * THREADS, high = n / SIDE, low = n % SIDE;
                v[0][i] = B::template down<0>(g) ? B::template entry<0>(g, low, high) : B::template entry<0>(g, high, low);
                v[1][i] = B::template down<1>(g) ? B::template entry<1>(g, low, high) : B::template entry<1>(g, high, low);
                v[2][i] = B::template down<2>(g) ? B::template entry<2>(g, low, high) : B::template entry<2>(g, high, low);
            }
#pragma unroll
            for (int f = 0; f < 3; ++f) {
                float top = 0.0f;
#pragma unroll
                for (int i = 0; i < OWN; ++i) top = larger(top, v[f][i]);
                top = __uint_as_float(ptx::redux_max(__float_as_uint(top)));
                if (threadIdx.x % 32 == 0) tops[f * WARPS + threadIdx.x / 32] = top;
            }
            __syncthreads();
#pragma unroll
            for (int f = 0; f < 3; ++f) {
                float top = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; ++w) top = fmaxf(top, tops[f * WARPS + w]);
                scale[f] = kron_scale_below<FACTOR_TOP>(__float_as_uint(top) >> 23);
            }
        }
#pragma unroll
        for (int n = threadIdx.x; n < 512; n += THREADS) {
            fragment<0>(g, to, n, scale[0].scale);
            fragment<1>(g, to + FACTOR, n, scale[1].scale);
            fragment<2>(g, to + 2 * FACTOR, n, scale[2].scale);
        }
        return scale[0].inverse * scale[1].inverse * scale[2].inverse;
    }
    // Word i of a factor.
    template <int NUMBER>
    static KM_DEVICE void fragment(const Args& g, unsigned* to, int i, float scale) {
        const int r = i % 4, lane = i / 4 % 32, row = lane / 4, t = lane % 4, n = i / 128;
        int q, p;
        if constexpr (NUMBER < 2) q = n / 2 * 16 + row + r % 2 * 8, p = n % 2 * 16 + r / 2 * 8 + t;
        else q = row / 2 * 8 + n % 2 * 4 + r / 2 * 2 + row % 2, p = 8 * t + n / 2 * 2 + r % 2;
        const float a = B::template entry<NUMBER>(g, q, p), b = B::template entry<NUMBER>(g, q, p + 4);
        if constexpr (SPLIT) split_f16x2(to[i], to[512 + i], a, b, scale);
        else to[i] = KronHalf<H>::pack(a, b);
    }

    // Sums of 32 rows by N blocks of 8 columns: the rows of a factor by x.
    template <int N>
    static KM_DEVICE void multiply_rows(float (&z)[2][N][4], const unsigned* factor, const Right<N>& x) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 8 * N; ++i) z[i / (4 * N)][i / 4 % N][i % 4] = 0.0f;
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            unsigned high[2][4], low[2][4];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                *(uint4*)high[m] = *(const uint4*)(factor + (2 * m + s) * 128 + 4 * lane);
                if constexpr (SPLIT) *(uint4*)low[m] = *(const uint4*)(factor + 512 + (2 * m + s) * 128 + 4 * lane);
            }
#pragma unroll
            for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
                for (int i = 0; i < 2 * N; ++i) {
                    const int m = i % 2, n = i / 2;
                    const auto& b = SPLIT && term == 1 ? x.low[s][SPLIT ? n : 0] : x.high[s][n];
                    ptx::mma_m16n8k16_pure<H>(z[m][n], term == 0 ? low[m] : high[m], b[0], b[1]);
                }
            }
        }
    }
    // Sums of such a product by the rows of the last factor.
    static KM_DEVICE void multiply_columns(float (&z)[2][4][4], const float (&d)[2][4][4], const unsigned* factor) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < 32; ++i) z[i / 16][i / 4 % 4][i % 4] = 0.0f;
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            unsigned high[2][4], low[2][4];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int m = i / 4, r = i % 4;
                const float* const own = d[m][2 * s + r / 2] + r % 2 * 2;
                if constexpr (SPLIT) split_f16x2(high[m][r], low[m][r], own[0], own[1]);
                else high[m][r] = KronHalf<H>::pack(own[0], own[1]);
            }
            unsigned b[PARTS][4][2];
#pragma unroll
            for (int i = 0; i < 2 * PARTS; ++i) {
                const uint4 four = *(const uint4*)(factor + i / 2 * 512 + (2 * s + i % 2) * 128 + 4 * lane);
                b[i / 2][i % 2 * 2][0] = four.x, b[i / 2][i % 2 * 2][1] = four.y;
                b[i / 2][i % 2 * 2 + 1][0] = four.z, b[i / 2][i % 2 * 2 + 1][1] = four.w;
            }
#pragma unroll
            for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int m = i % 2, n = i / 2, part = SPLIT && term == 1;
                    ptx::mma_m16n8k16_pure<H>(z[m][n], term == 0 ? low[m] : high[m], b[part][n][0], b[part][n][1]);
                }
            }
        }
    }

    // ---- Tiles. A lane asks for four neighbours of every fourth row.
    static KM_DEVICE void ask(Four (&v)[8], const T* from) {
        const int lane = threadIdx.x % 32;
        from += lane % 4 * SIDE + lane / 4 * 4;
#pragma unroll
        for (int k = 0; k < 8; ++k) v[k] = __ldg((const Four*)(from + k * 4 * SIDE));
    }
    // Entry n of two rows as one operand.
    template <int N, class V>
    static KM_DEVICE unsigned packed_of(const V& a, const V& b, int n) {
        const unsigned* const u = (const unsigned*)&a;
        const unsigned* const w = (const unsigned*)&b;
        return __byte_perm(u[n / 2], w[n / 2], n % 2 ? 0x7632 : 0x5410);
    }
    static KM_DEVICE void fragments_of(Right<4>& x, const Four (&v)[8], float& inverse) {
        if constexpr (SPLIT) {
            float top = 0.0f;
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const float4 f = bit_cast<float4>(v[k]);
                top = fmaxf(fmaxf(top, fmaxf(fabsf(f.x), fabsf(f.y))), fmaxf(fabsf(f.z), fabsf(f.w)));
            }
            const HalfScale scale = kron_scale_below<TOP>(ptx::redux_max(__float_as_uint(top)) >> 23);
            inverse = scale.inverse;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int s = i / 8, n = i / 2 % 4, b = i % 2, k = 4 * s + 2 * b;
                split_f16x2(x.high[s][n][b], x.low[s][n][b], ((const float*)&v[k])[n], ((const float*)&v[k + 1])[n], scale.scale);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const int s = i / 8, n = i / 2 % 4, b = i % 2, k = 4 * s + 2 * b;
                x.high[s][n][b] = packed_of<4>(v[k], v[k + 1], n);
            }
        }
    }
    // Where 16 bytes of a tile's results are in shared memory: lanes that write or read together meet in no bank.
    static KM_DEVICE int spot(int tile, int piece) { return tile * TILE_BYTES + ((piece ^ tile % 4 ^ (SPLIT ? piece / 8 % 2 : 0)) << 4); }
    static KM_DEVICE void keep(unsigned char* shared, const float (&z)[2][4][4], int tile) {
        const int lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int m = i / 2, h = i % 2, q = 16 * m + 8 * h + row;
            if constexpr (SPLIT) {
#pragma unroll
                for (int c = 0; c < 2; ++c)
                    *(float4*)(shared + spot(tile, 8 * q + 2 * t + c)) = make_float4(z[m][2 * c][2 * h], z[m][2 * c][2 * h + 1], z[m][2 * c + 1][2 * h], z[m][2 * c + 1][2 * h + 1]);
            } else {
                unsigned w[4];
#pragma unroll
                for (int n = 0; n < 4; ++n) w[n] = KronHalf<H>::pack(z[m][n][2 * h], z[m][n][2 * h + 1]);
                *(uint4*)(shared + spot(tile, 4 * q + t)) = make_uint4(w[0], w[1], w[2], w[3]);
            }
        }
    }

    // ---- Columns. A lane has pieces of the tiles t, t + 4 and on.
    static KM_DEVICE float powers_of(float (&by)[8], const float2* table) {
        float top = 0.0f;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const float2 own = table[4 * k];
            by[k] = own.x;
            top = fmaxf(top, own.y);
        }
        top = fminf(__uint_as_float(ptx::redux_max(__float_as_uint(top))), 0x1p127f);
        const float less = __uint_as_float((254u << 23) - __float_as_uint(top));
#pragma unroll
        for (int k = 0; k < 8; ++k) by[k] = by[k] * less * (1 << TOP);
        return top / (1 << TOP);
    }
    // The inverse of what a tile was multiplied by, and a power of two that its results are less than.
    static KM_DEVICE float2 bound_of(const float (&z)[2][4][4], float inverse) {
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < 32; ++i) top = fmaxf(top, fabsf(z[i / 16][i / 4 % 4][i % 4]));
        const unsigned biased = ptx::redux_max(__float_as_uint(top)) >> 23;
        return make_float2(inverse, inverse * __uint_as_float(::min(biased + 1, 254u) << 23));
    }
    static KM_DEVICE void multiply_group(T* out, const unsigned char* shared, const unsigned* factor, const float (&by)[8], float back, int group) {
        const int lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
        Right<EACH> x;
        {
            uint4 v[8];
#pragma unroll
            for (int k = 0; k < 8; ++k) v[k] = *(const uint4*)(shared + spot(4 * k + t, 8 * group + row / 2 + row % 2 * 4));
#pragma unroll
            for (int i = 0; i < 4 * EACH; ++i) {
                const int s = i / (2 * EACH), n = i / 2 % EACH, b = i % 2, k = 4 * s + 2 * b;
                if constexpr (SPLIT) split_f16x2(x.high[s][n][b], x.low[s][n][b], ((const float*)&v[k])[n] * by[k], ((const float*)&v[k + 1])[n] * by[k + 1]);
                else x.high[s][n][b] = packed_of<EACH>(v[k], v[k + 1], n);
            }
        }
        float z[2][EACH][4];
        multiply_rows(z, factor, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int m = i / 4, h = i / 2 % 2, e = i % 2;
            uint4 v;
            if constexpr (SPLIT) {
                v = bit_cast<uint4>(make_float4(z[m][0][2 * h + e] * back, z[m][1][2 * h + e] * back, z[m][2][2 * h + e] * back, z[m][3][2 * h + e] * back));
            } else {
                unsigned w[4];
#pragma unroll
                for (int n = 0; n < 4; ++n) w[n] = KronHalf<H>::pack(z[m][2 * n][2 * h + e] * back, z[m][2 * n + 1][2 * h + e] * back);
                v = make_uint4(w[0], w[1], w[2], w[3]);
            }
            ptx::st_global_cs_v4(out + (16 * m + 8 * h) * TILE + group * COLUMNS + 4 * e * EACH, v);
        }
    }

    static __device__ void run(const Args& g) {
        kron_wait();
        extern __shared__ __align__(1024) unsigned char shared[];
        unsigned* const factors = (unsigned*)(shared + FACTORS);
        float2* const table = (float2*)(shared + TABLE);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int tiles = (int)kron_tiles<1, 1>(g), apart = (int)gridDim.x;
        int number = blockIdx.x;
        Four next[8];
        // The tile that a warp begins with.
        const T* following = (const T*)g.x + kron_row_offset(g, g.x_stride, number) + warp * TILE;
        if (number < tiles) ask(next, following);
        // Largest entries lie where results of the first row come later.
        const float more = (float)g.alpha * prepare(g, factors, (float*)shared);
        __syncthreads();
#pragma unroll 1
        while (number < tiles) {
            const T* from = following;
            const int present = number;
            number += apart;
            if (number < tiles) following = (const T*)g.x + kron_row_offset(g, g.x_stride, number) + warp * TILE;
#pragma unroll 1
            for (int tile = warp; tile < SIDE; tile += WARPS) {
                Right<4> x;
                float inverse = 1.0f;
                fragments_of(x, next, inverse);
                from = tile + WARPS < SIDE ? from + WARPS * TILE : following;
                ask(next, from);
                if constexpr (B::PREFETCH) {
                    const T* const after = tile + 2 * WARPS < SIDE ? from + WARPS * TILE : following + (tile + WARPS < SIDE ? 0 : WARPS * TILE);
                    if (SPLIT || lane < 16) ptx::prefetch_global_l2((const char*)after + lane * 128);
                }
                float d[2][4][4], z[2][4][4];
                multiply_rows(d, factors + FACTOR, x);
                multiply_columns(z, d, factors + 2 * FACTOR);
                // Others may still read the results of the row before.
                if (tile == warp) __syncthreads();
                if constexpr (SPLIT) {
                    const float2 own = bound_of(z, inverse);
                    if (lane == 0) table[tile] = own;
                }
                keep(shared, z, tile);
            }
            __syncthreads();
            float by[8], back = more;
            if constexpr (SPLIT) back *= powers_of(by, table + lane % 4);
            T* const out = (T*)g.out + kron_row_offset(g, g.out_stride, present) + lane / 4 * TILE + lane % 4 * EACH;
#pragma unroll 1
            for (int group = warp; group < GROUPS; group += WARPS) multiply_group(out, shared, factors, by, back, group);
        }
    }
};

}  // namespace km

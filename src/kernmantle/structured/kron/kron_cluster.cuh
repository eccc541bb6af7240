// Four factors of 16 x 16 in one pass by clusters of blocks, for arrays whose rows lie in order.
//
// A row of x is 256 x 256: its first two axes by its last two. Each of CLUSTER blocks reads its share of the 256 tiles of 16 x 16 that
// lie in order, applies the last two factors in registers, and pushes the results to the blocks that own their columns, whose barriers
// count the bytes. Then a block applies the first two factors to its columns, in their place, and stores whole sectors of them.
// Several blocks share a multiprocessor, so that one reads while others multiply or store.
//
// Two factors are chained in registers: x is the right operand of the first product, whose sums are the left operand of the second
// one, with positions of k in an order that both operands share. float32 is two halves of 11 bits and three products. Tiles that a
// warp takes together are multiplied by a power of two and come to less than 2^9, factors to less than 2^2, so that sums are less than
// 2^15 and need no other one. Of the second two products the powers of all tiles are a bound, by which these columns come to less than
// 2^9 too.
#pragma once
#include "kron_fibers.cuh"
#include "kron_rows.cuh"
#include "ptx_cluster.cuh"

namespace km {

// The parameters of a pass, members of B (tensor_emit.py):
//   T, H                 type of x and the result, and of the operands of tensor cores
//   CLUSTER, WARPS       blocks that share a row of x, and warps of a block
//   AT_ONCE              tiles that a warp takes together
//   PREFETCH             x comes to the second-level cache ahead
//   down, entry          whether neighbouring rows of a factor follow each other in memory, and one of its entries
template <class B, class Args>
struct KronCluster {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int CLUSTER = B::CLUSTER, WARPS = B::WARPS, THREADS = 32 * WARPS, AT_ONCE = B::AT_ONCE;
    static constexpr int SIDE = 256, PARTS = SPLIT ? 2 : 1;
    // Tiles and columns of a block, bytes of its columns of one tile; columns that a warp takes at once, 16 bytes.
    static constexpr int TILES = SIDE / CLUSTER, OWN = SIDE / CLUSTER, OWN_BYTES = OWN * (int)sizeof(T);
    static constexpr int COLUMNS = 16 / (int)sizeof(T);
    static constexpr int STEPS = TILES / (WARPS * AT_ONCE), GROUPS = OWN / (COLUMNS * WARPS);
    // Bytes that are pushed to a block: its columns, and powers of two of all tiles.
    static constexpr int COLUMN_BYTES = SIDE * OWN_BYTES, TABLE_BYTES = SPLIT ? SIDE * 4 : 0, BYTES = COLUMN_BYTES + TABLE_BYTES;
    // Words of a factor as fragments: high parts of all lanes, then low ones.
    static constexpr int FACTOR = PARTS * 128;
    static constexpr int FACTORS = BYTES, BARRIERS = FACTORS + 4 * FACTOR * 4, SHARED_BYTES = BARRIERS + 16;
    static_assert(STEPS * WARPS * AT_ONCE == TILES && GROUPS * COLUMNS * WARPS == OWN, "warps share tiles and columns evenly");
    static_assert(WARPS >= 4, "a warp prepares a factor");
    static_assert(AT_ONCE * CLUSTER <= 32 && SIDE % AT_ONCE == 0, "lanes push the powers of two of a warp's tiles");
    // Exponents of what tiles and factors are less than, and what brings sums over 16 x 16 positions back to it.
    static constexpr int TOP = 9, FACTOR_TOP = 2;
    static constexpr float LESS = 1.0f / (1 << (2 * FACTOR_TOP + 8));

    // A part of an operand: the registers of a left one, or two of each of two right ones.
    struct Fragment {
        unsigned high[4], low[SPLIT ? 4 : 1];
    };

    static KM_DEVICE unsigned rounded(float a, float b) { return KronHalf<H>::pack(a, b); }

    // ---- Factors.
    static KM_DEVICE float larger(float top, float a) { return fabsf(a) < infinity<float>() ? fmaxf(top, fabsf(a)) : top; }
    // A factor as fragments, by a warp; the inverse of what it was multiplied by. The first of two is a left operand, whose
    // position of k is the same for both of a register's halves but for 4; the second one a right operand.
    template <int NUMBER>
    static __device__ float prepare(const Args& g, unsigned* to) {
        constexpr bool LEFT = NUMBER % 2 == 0;
        HalfScale scale{1.0f, 1.0f};
        if constexpr (SPLIT) {
            float top = 0.0f;
#pragma unroll
            for (int i = 0; i < SIDE / 32; ++i) top = larger(top, B::template entry<NUMBER>(g, (threadIdx.x % 32 + 32 * i) / 16, (threadIdx.x % 32 + 32 * i) % 16));
            scale = kron_scale_below<FACTOR_TOP>(ptx::redux_max(__float_as_uint(top)) >> 23);
        }
#pragma unroll 1
        for (int i = threadIdx.x % 32; i < 128; i += 32) {
            const int r = i % 4, lane = i / 4, row = lane / 4, t = lane % 4;
            int q, p, apart;
            if constexpr (LEFT) q = row + r % 2 * 8, p = t + r / 2 * 8, apart = 4;
            else if constexpr (NUMBER == 3) q = row / 2 * 4 + r / 2 * 2 + row % 2, p = 4 * t + r % 2, apart = 2;
            else q = row / 2 + row % 2 * 4 + r / 2 * 8, p = 2 * t + r % 2 * 8, apart = 1;
            const float a = B::template entry<NUMBER>(g, q, p), b = B::template entry<NUMBER>(g, q, p + apart);
            if constexpr (SPLIT) split_f16x2(to[i], to[128 + i], a, b, scale.scale);
            else to[i] = rounded(a, b);
        }
        return scale.inverse;
    }
    template <int NUMBER>
    static __device__ void prepared(const Args& g, unsigned* factors, float* inverses) {
        const float inverse = prepare<NUMBER>(g, factors + NUMBER * FACTOR);
        if (threadIdx.x % 32 == 0) inverses[NUMBER] = inverse;
    }
    static KM_DEVICE void load_factor(Fragment& to, const unsigned* from, int lane) {
        *(uint4*)to.high = *(const uint4*)(from + 4 * lane);
        if constexpr (SPLIT) *(uint4*)to.low = *(const uint4*)(from + 128 + 4 * lane);
    }

    // ---- Products.
    // N operands times two factors, values of register i of z as the two products have them.
    template <int N>
    static KM_DEVICE void multiply(float (&z)[N][8], const Fragment (&x)[N], const Fragment& first, const Fragment& second) {
        float d[N][8];
#pragma unroll
        for (int i = 0; i < 8 * N; ++i) d[i / 8][i % 8] = z[i / 8][i % 8] = 0.0f;
#pragma unroll
        for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
            for (int i = 0; i < 2 * N; ++i) {
                const auto& own = x[i / 2];
                const int at = i % 2 * 2;
                if constexpr (SPLIT) {
                    const unsigned(&b)[4] = term == 1 ? own.low : own.high;
                    ptx::mma_m16n8k16_pure<H>(d[i / 2] + i % 2 * 4, term == 0 ? first.low : first.high, b[at], b[at + 1]);
                } else {
                    ptx::mma_m16n8k16_pure<H>(d[i / 2] + i % 2 * 4, first.high, own.high[at], own.high[at + 1]);
                }
            }
        }
        Fragment v[N];
#pragma unroll
        for (int i = 0; i < 4 * N; ++i) {
            const float a = d[i / 4][i % 4 * 2], b = d[i / 4][i % 4 * 2 + 1];
            if constexpr (SPLIT) split_f16x2(v[i / 4].high[i % 4], v[i / 4].low[i % 4], a, b);
            else v[i / 4].high[i % 4] = rounded(a, b);
        }
#pragma unroll
        for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
            for (int i = 0; i < 2 * N; ++i) {
                const int at = i % 2 * 2;
                if constexpr (SPLIT) {
                    const unsigned(&b)[4] = term == 1 ? second.low : second.high;
                    ptx::mma_m16n8k16_pure<H>(z[i / 2] + i % 2 * 4, term == 0 ? v[i / 2].low : v[i / 2].high, b[at], b[at + 1]);
                } else {
                    ptx::mma_m16n8k16_pure<H>(z[i / 2] + i % 2 * 4, v[i / 2].high, second.high[at], second.high[at + 1]);
                }
            }
        }
    }
    // ---- Tiles.
    // What a lane has of a tile: two neighbours of each of four rows. Numbers of 16 bits by themselves would have a register each.
    typedef typename Word<2 * sizeof(T)>::type Two;
    struct Tile {
        Two v[4];
    };
    static KM_DEVICE void ask(Tile (&to)[AT_ONCE], const T* from) {
        const int lane = threadIdx.x % 32;
        from += lane % 4 * 16 + lane / 4 * 2;
#pragma unroll
        for (int i = 0; i < 4 * AT_ONCE; ++i) to[i / 4].v[i % 4] = __ldg((const Two*)(from + i / 4 * SIDE + i % 4 * 64));
    }
    // An infinity spoils its row whatever its scale is.
    static KM_DEVICE void fragments_of(Fragment (&to)[AT_ONCE], const Tile (&x)[AT_ONCE], float& inverse) {
        if constexpr (SPLIT) {
            float top = 0.0f;
#pragma unroll
            for (int i = 0; i < 4 * AT_ONCE; ++i) {
                const float2 two = bit_cast<float2>(x[i / 4].v[i % 4]);
                top = fmaxf(top, fmaxf(fabsf(two.x), fabsf(two.y)));
            }
            const HalfScale scale = kron_scale_below<TOP>(ptx::redux_max(__float_as_uint(top)) >> 23);
            inverse = scale.inverse;
#pragma unroll
            for (int i = 0; i < 4 * AT_ONCE; ++i) {
                const int m = i % 4 / 2, r = i % 2 * 2;
                const float2 a = bit_cast<float2>(x[i / 4].v[r]), b = bit_cast<float2>(x[i / 4].v[r + 1]);
                split_f16x2(to[i / 4].high[i % 4], to[i / 4].low[i % 4], m ? a.y : a.x, m ? b.y : b.x, scale.scale);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 2 * AT_ONCE; ++i) {
                const unsigned a = x[i / 2].v[i % 2 * 2], b = x[i / 2].v[i % 2 * 2 + 1];
                to[i / 2].high[i % 2] = __byte_perm(a, b, 0x5410);
                to[i / 2].high[2 + i % 2] = __byte_perm(a, b, 0x7632);
            }
        }
    }

    // By which pieces of 16 bytes of a tile's columns change places: neither lanes that push or read whole tiles nor those that have
    // four neighbours of one axis and two of the other one meet in a bank.
    static KM_DEVICE int swizzle(int i, int j) { return (i % 2 | j % 2 * 2 | (i / 2 + j / 2) % 2 * 4) << 4; }
    static KM_DEVICE int swizzle(int tile) { return swizzle(tile / 16, tile % 16); }

    // ---- Columns.
    // By which the numbers of lane (row, t) are multiplied, tiles (t + 4 k, row + 8 m), and what undoes it.
    static KM_DEVICE float powers_of(float (&by)[8], const unsigned char* shared) {
        const int lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
        const float* const table = (const float*)(shared + COLUMN_BYTES) + t * 16 + row;
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            by[i] = table[i / 2 * 64 + i % 2 * 8];
            top = fmaxf(top, by[i]);
        }
        top = __uint_as_float(ptx::redux_max(__float_as_uint(top)));
        const float less = __uint_as_float((254u << 23) - __float_as_uint(top));
#pragma unroll
        for (int i = 0; i < 8; ++i) by[i] = by[i] * less * LESS;
        return top;
    }

    // The first two factors on columns in shared memory, which the results replace.
    static KM_DEVICE void multiply_columns(unsigned char* shared, int begin, const unsigned* factors, const float (&by)[8], float more) {
        int lane = threadIdx.x % 32;
        ptx::opaque(lane);
        const int row = lane / 4, t = lane % 4;
        constexpr int EACH = 4 / (int)sizeof(T), N = 2;
        alignas(16) unsigned v[8][4];
        const int at = begin * (int)sizeof(T);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int tile = (t + i / 2 * 4) * 16 + row + i % 2 * 8;
            *(uint4*)v[i] = *(const uint4*)(shared + tile * OWN_BYTES + (at ^ swizzle(t, row)));
        }
        Fragment first, second;
        load_factor(first, factors, lane);
        load_factor(second, factors + FACTOR, lane);
#pragma unroll
        for (int c = 0; c < 4; c += N / EACH) {
            Fragment x[N];
            float z[N][8];
#pragma unroll
            for (int i = 0; i < 4 * N; ++i) {
                const int n = i / 4, m = i % 4 / 2, r = i % 2 * 4 + m;
                if constexpr (SPLIT) {
                    split_f16x2(x[n].high[i % 4], x[n].low[i % 4], __uint_as_float(v[r][c + n]) * by[r], __uint_as_float(v[r + 2][c + n]) * by[r + 2]);
                } else {
                    x[n].high[i % 4] = __byte_perm(v[r][c], v[r + 2][c], n ? 0x7632 : 0x5410);
                }
            }
            multiply(z, x, first, second);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                if constexpr (SPLIT) {
#pragma unroll
                    for (int n = 0; n < N; ++n) v[i][c + n] = __float_as_uint(z[n][i] * more);
                } else {
                    v[i][c] = rounded(z[0][i] * more, z[1][i] * more);
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int tile = (row + i / 2 % 2 * 8) * 16 + t + i % 2 * 4 + i / 4 * 8;
            *(uint4*)(shared + tile * OWN_BYTES + (at ^ swizzle(row, t))) = *(const uint4*)v[i];
        }
    }
    // The columns of a block from shared memory to `to`.
    static KM_DEVICE void store(T* to, const unsigned char* shared) {
        constexpr int PIECES = OWN_BYTES / 16, DOWN = THREADS / PIECES, AHEAD = 8;
        const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        // Pieces change places by each bit of a tile's number for itself.
        int own = row * OWN_BYTES + (piece * 16 ^ swizzle(row));
        // Without this addresses are worked out before the first row and kept in local memory.
        ptx::opaque(own);
        to += row * SIDE + piece * COLUMNS;
#pragma unroll
        for (int begin = 0; begin < SIDE / DOWN; begin += AHEAD) {
            uint4 v[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) v[i] = *(const uint4*)(shared + (own ^ swizzle((begin + i) * DOWN)) + (begin + i) * DOWN * OWN_BYTES);
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) ptx::st_global_cs_v4(to + (begin + i) * DOWN * SIDE, v[i]);
        }
    }

    static __device__ void run(const Args& g) {
        kron_wait();
        extern __shared__ __align__(128) unsigned char shared[];
        unsigned* const factors = (unsigned*)(shared + FACTORS);
        const unsigned full = shared_address(shared + BARRIERS), empty = full + 8;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = (int)blockIdx.x % CLUSTER;
        const int tiles = (int)kron_tiles<1, 1>(g), apart = (int)gridDim.x / CLUSTER;
        int number = (int)blockIdx.x / CLUSTER;
        if (threadIdx.x == 0) {
            ptx::mbarrier_init(full, 1);
            ptx::mbarrier_init(empty, CLUSTER * WARPS);
            ptx::fence_mbarrier_init();
        }
        Tile next[AT_ONCE];
        // The tile that a warp begins with, of those of its block.
        const int begin = rank * TILES + warp * AT_ONCE;
        const T* following = (const T*)g.x + kron_row_offset(g, g.x_stride, number) + begin * SIDE;
        if (number < tiles) ask(next, following);
        // A warp prepares each factor, and notes what it was multiplied by where columns come later.
        float* const inverses = (float*)shared;
        if (warp == 0) prepared<0>(g, factors, inverses);
        if (warp == 1) prepared<1>(g, factors, inverses);
        if (warp == 2) prepared<2>(g, factors, inverses);
        if (warp == 3) prepared<3>(g, factors, inverses);
        __syncthreads();
        const float more = (float)g.alpha * (SPLIT ? inverses[0] * inverses[1] * inverses[2] * inverses[3] / LESS : 1.0f);
        ptx::cluster_arrive();
        ptx::cluster_wait();
        unsigned parity = 0;
#pragma unroll 1
        for (bool later = false; number < tiles; later = true, parity ^= 1) {
            const T* from = following;
            const int present = number;
            number += apart;
            if (number < tiles) following = (const T*)g.x + kron_row_offset(g, g.x_stride, number) + begin * SIDE;
            if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(full, BYTES);
            {
                // Where this lane pushes the results of the rows row and row + 8 of its tiles, and their powers of two.
                const int row = lane / 4;
                unsigned to[2], count[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const unsigned owner = (row + 8 * h) / (16 / CLUSTER);
                    to[h] = ptx::mapa(shared_address(shared), owner);
                    count[h] = ptx::mapa(full, owner);
                }
                const unsigned table = ptx::mapa(shared_address(shared + COLUMN_BYTES), lane % CLUSTER), counts = ptx::mapa(full, lane % CLUSTER);
                Fragment left, right;
                load_factor(left, factors + 2 * FACTOR, lane);
                load_factor(right, factors + 3 * FACTOR, lane);
#pragma unroll 1
                for (int step = 0; step < STEPS; ++step) {
                    constexpr int APART = WARPS * AT_ONCE, N = 2;
                    Fragment x[AT_ONCE];
                    float inverse = 1.0f;
                    // Where the lane's columns of the first of these tiles are in a block.
                    const int first_tile = begin + step * APART;
                    const unsigned at = first_tile * OWN_BYTES + ((lane / 4 % (16 / CLUSTER) * 16 + lane % 4 * 4) * (int)sizeof(T) ^ swizzle(first_tile));
                    fragments_of(x, next, inverse);
                    from = step + 1 == STEPS ? following : from + APART * SIDE;
                    ask(next, from);
                    if constexpr (B::PREFETCH) {
                        const T* const after = step + 2 == STEPS ? following : from + APART * SIDE;
                        if (lane * 128 < AT_ONCE * SIDE * (int)sizeof(T)) ptx::prefetch_global_l2((const char*)after + lane * 128);
                    }
#pragma unroll
                    for (int i = 0; i < AT_ONCE; i += N) {
                        float z[N][8];
                        multiply(z, *(const Fragment(*)[N])&x[i], left, right);
                        if (i == 0 && step == 0 && later) ptx::mbarrier_wait_parity(empty, parity ^ 1);
                        if (SPLIT && i == 0 && lane < CLUSTER * AT_ONCE) ptx::st_async(table + (begin + step * APART + lane / CLUSTER) * 4, __float_as_uint(inverse), counts);
#pragma unroll
                        for (int n = 0; n < 2 * N; ++n) {
                            const int tile = i + n / 2, h = n % 2;
                            const unsigned there = to[h] + ((at ^ swizzle(tile)) + tile * OWN_BYTES);
                            const float* const v = z[n / 2] + 2 * h;
                            if constexpr (SPLIT) ptx::st_async_v4(there, __float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[4]), __float_as_uint(v[5]), count[h]);
                            else ptx::st_async_v2(there, rounded(v[0], v[1]), rounded(v[4], v[5]), count[h]);
                        }
                    }
                }
            }
            ptx::mbarrier_wait_parity(full, parity);
            float by[8], back = more;
            if constexpr (SPLIT) back *= powers_of(by, shared);
#pragma unroll 1
            for (int group = 0; group < GROUPS; ++group) multiply_columns(shared, (group * WARPS + warp) * COLUMNS, factors, by, back);
            __syncthreads();
            store((T*)g.out + kron_row_offset(g, g.out_stride, present) + rank * OWN, shared);
            __syncwarp();
            if (lane < CLUSTER) ptx::mbarrier_arrive_cluster(ptx::mapa(empty, lane));
        }
        // Blocks stay until none pushes to them.
        ptx::cluster_arrive();
        ptx::cluster_wait();
    }
};

}  // namespace km

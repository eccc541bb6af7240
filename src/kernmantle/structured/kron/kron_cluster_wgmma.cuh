// Three factors of 64 x 64 in one pass by clusters of blocks, for arrays whose rows lie in order.
//
// A row of x is 64 x 64 x 64. Each block of a cluster has 64 / CLUSTER tiles (i) of 64 x 64 of it: eight warps load them as halves, two
// groups of four warps apply the factor of the second axis, d1[q2, k3] = sum_k2 second[q2, k2] x[k2, k3], and in registers that of the
// last one, d2[q2, q3] = sum_k3 d1[q2, k3] last[q3, k3]. The rows q2 go, as halves, to the blocks that own them, whose barrier counts
// the bytes. There a piece (q2) is 64 x 64, by i and q3, and out[q1, q3] = sum_i first[q1, i] piece[i, q3].
//
// float32 is two halves of 11 bits and three products. A tile is multiplied by a power of two of its own, by which the entries of the
// first factor are divided. Tiles and the other factors come to less than 2, so that sums are less than 2^15 and need no other one.
#pragma once
#include "kron_wgmma.cuh"
#include "ptx_cluster.cuh"
#include "reduce.cuh"

namespace km {

// The parameters of a pass, members of B: those of KronWgmma, with SIZE = 64, and
//   CLUSTER              blocks that share a row of x
template <class B, class Args>
struct KronClusterWgmma : KronWgmma<B, Args> {
    typedef KronWgmma<B, Args> Base;
    typedef typename B::T T;
    typedef typename B::H H;
    typedef typename Base::State State;
    static constexpr bool SPLIT = Base::SPLIT;
    static constexpr int CLUSTER = B::CLUSTER, SIZE = 64, STEPS = 4, STAGES = B::STAGES, THREADS = 512, PARTS = Base::PARTS, VECTOR = Base::VECTOR;
    // Tiles of a block, pieces that it owns; bytes of one part of a tile or piece.
    static constexpr int TILES = SIZE / CLUSTER, PIECES = SIZE / CLUSTER, PART = SIZE * SIZE * 2, TILE = PARTS * PART, FACTOR = Base::FACTOR;
    static constexpr int ROW = SIZE * SIZE * SIZE, LOADS = SIZE * SIZE / VECTOR / 128;
    static constexpr unsigned BYTES = PIECES * TILE + (SPLIT ? SIZE * 4 : 0);
    // The exchanged pieces, the last factor, the first one as fragments, stages; inverses of exchanged tiles and of stages, largest
    // entries, barriers.
    static constexpr int LAST = PIECES * TILE, FIRST = LAST + TILE, TILES_AT = FIRST + TILE, TABLE = TILES_AT + STAGES * TILE;
    static constexpr int INVERSES = TABLE + SIZE * 4, TOPS = INVERSES + STAGES * 4, BARRIERS = TOPS + THREADS / 32 * 4;
    static constexpr int SHARED_BYTES = BARRIERS + PipelineBarriers<STAGES>::BYTES + 16;
    static constexpr int TOP = 1;
    static_assert(Base::FACTOR == PART && STAGES % 4 == 0, "two groups have stages of their own");

    struct Fragments {
        unsigned high[STEPS][4], low[SPLIT ? STEPS : 1][4];
    };

    template <int NUMBER>
    struct Entry {
        const Args& g;
        KM_DEVICE float operator()(int row, int column) const { return B::template entry<NUMBER>(g, row, column); }
    };

    static __device__ void load_tiles(const Args& g, unsigned char* shared, PipelineBarriers<STAGES> barriers, int number, int tiles, int apart) {
        const int set = (threadIdx.x - 256) / 128, thread = threadIdx.x % 128, lane = threadIdx.x % 32, warp = thread / 32;
        const int row = thread * VECTOR / SIZE, column = thread * VECTOR % SIZE, rank = (int)blockIdx.x % CLUSTER;
        float* const tops = (float*)(shared + TOPS);
        float* const inverses = (float*)(shared + INVERSES);
        const int own = (rank * TILES + set) * SIZE * SIZE + thread * VECTOR;
        const int rows = number < tiles ? (tiles - number + apart - 1) / apart : 0;
        const T* from = (const T*)g.x + kron_row_offset(g, g.x_stride, number) + own;
        uint4 v[LOADS];
        int step = 0;
        const auto next = [&]() {
            if (++step < TILES / 2) return from + 2 * SIZE * SIZE;
            step = 0;
            number += apart;
            return number < tiles ? (const T*)g.x + kron_row_offset(g, g.x_stride, number) + own : from;
        };
        const auto ask = [&]() {
#pragma unroll
            for (int i = 0; i < LOADS; ++i) v[i] = *(const uint4*)(from + i * 128 * VECTOR);
            from = next();
            if constexpr (B::PREFETCH) {
                const char* const ahead = (const char*)(from - thread * VECTOR);
                if (SPLIT || thread < 64) ptx::prefetch_global_l2(ahead + thread * 128);
            }
        };
        State state;
        state.phase = 1;
        if (set) state.advance();
        int left = rows * (TILES / 2);
        if (left > 0) ask();
#pragma unroll 1
        for (int parity = 0; left > 0; --left, parity ^= 1) {
            HalfScale scale{1.0f, 1.0f};
            if constexpr (SPLIT) {
                float top = 0.0f;
#pragma unroll
                for (int i = 0; i < LOADS; ++i) top = Base::largest_of(top, v[i]);
                unsigned largest = ptx::redux_max(__float_as_uint(top));
                float* const others = tops + (2 * set + parity) * 4;
                if (lane == 0) others[warp] = __uint_as_float(largest);
                ptx::bar_sync<128>(3 + set);
#pragma unroll
                for (int w = 0; w < 4; ++w) largest = ::max(largest, __float_as_uint(others[w]));
                scale = kron_scale_below<TOP>(largest >> 23);
            }
            ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
            unsigned char* const to = shared + TILES_AT + state.stage * TILE + row * 128 + swizzle_128(row, column / 8) + column % 8 * 2;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                unsigned char* const there = to + i * (128 * VECTOR / SIZE * 128);
                if constexpr (SPLIT) {
                    const float4 f = bit_cast<float4>(v[i]);
                    uint2 high, low;
                    split_f16x2(high.x, low.x, f.x, f.y, scale.scale);
                    split_f16x2(high.y, low.y, f.z, f.w, scale.scale);
                    *(uint2*)there = high;
                    *(uint2*)(there + PART) = low;
                } else {
                    *(uint4*)there = v[i];
                }
            }
            if (SPLIT && thread == 0) inverses[state.stage] = scale.inverse;
            ptx::fence_proxy_async();
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(barriers.full(state.stage));
            if (left > 1) ask();
            state.advance();
            state.advance();
        }
    }

    // Which column of a row of results position c of a product is: a lane has 16 bytes of neighbours.
    static KM_DEVICE int column_of(int c) {
        const int n = c / 8, t = c % 8 / 2, e = c % 2;
        if constexpr (SPLIT) return n / 2 * 16 + 4 * t + n % 2 * 2 + e;
        else return n / 4 * 32 + 8 * t + n % 4 * 2 + e;
    }
    // Which position of a piece column m of the second product goes to.
    static KM_DEVICE int position_of(int m) { return m % 8 / 2 * 8 + m / 32 * 32 + m / 8 % 4 * 2 + m % 2; }
    struct LastEntry {
        const Args& g;
        KM_DEVICE float operator()(int row, int column) const { return B::template entry<2>(g, column_of(position_of(row)), column); }
    };

    // Sums of the first product as operands of the second one.
    static KM_DEVICE void operands_of(unsigned (&high)[STEPS][4], unsigned (&low)[SPLIT ? STEPS : 1][4], const float (&d)[8][4]) {
#pragma unroll
        for (int i = 0; i < 4 * STEPS; ++i) {
            const int s = i / 4, r = i % 4, n = 2 * s + r / 2;
            if constexpr (SPLIT) split_f16x2(high[s][r], low[s][r], d[n][r % 2 * 2], d[n][r % 2 * 2 + 1]);
            else high[s][r] = kron_pack(H(), d[n][r % 2 * 2], d[n][r % 2 * 2 + 1]);
        }
    }

    // Half of a tile's rows to its owner, `to` being where this lane's row begins there: lanes that write together meet in no bank.
    static KM_DEVICE void push(const float (&d)[8][4], int h, unsigned to, unsigned count, int tile) {
        const int lane = threadIdx.x % 32, row = lane / 4, t = lane % 4;
        unsigned high[8], low[8];
#pragma unroll
        for (int n = 0; n < 8; ++n) {
            if constexpr (SPLIT) split_f16x2(high[n], low[n], d[n][2 * h], d[n][2 * h + 1]);
            else high[n] = kron_pack(H(), d[n][2 * h], d[n][2 * h + 1]);
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            const unsigned* const w = part ? low : high;
            const bool second = row % 2;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const bool upper = second != (c > 0);
                const unsigned there = to + part * PART + swizzle_128(tile, t + (upper ? 4 : 0));
                ptx::st_async_v4(there, upper ? w[4] : w[0], upper ? w[5] : w[1], upper ? w[6] : w[2], upper ? w[7] : w[3], count);
            }
        }
    }

    // 64 x 64 results, their rows 4096 apart.
    static KM_DEVICE void store_piece(T* to, const float (&d)[8][4], float more) {
        const int t = threadIdx.x % 4;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            T* const own = to + h * 8 * SIZE * SIZE;
            if constexpr (SPLIT) {
#pragma unroll
                for (int n = 0; n < 8; n += 2)
                    *(float4*)(own + 8 * n + 4 * t) = make_float4(d[n][2 * h] * more, d[n][2 * h + 1] * more, d[n + 1][2 * h] * more, d[n + 1][2 * h + 1] * more);
            } else {
                unsigned w[8];
#pragma unroll
                for (int n = 0; n < 8; ++n) w[n] = kron_pack(T(), d[n][2 * h] * more, d[n][2 * h + 1] * more);
                *(uint4*)(own + 8 * t) = make_uint4(w[0], w[1], w[2], w[3]);
                *(uint4*)(own + 8 * t + 32) = make_uint4(w[4], w[5], w[6], w[7]);
            }
        }
    }

    static KM_DEVICE void along(float (&d)[8][4], const Fragments& a, unsigned long long b) {
#pragma unroll
        for (int i = 0; i < 32; ++i) d[i / 4][i % 4] = 0.0f;
        Base::fence(d);
        ptx::wgmma_fence();
#pragma unroll
        for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs_along(H(), d, term == 0 ? a.low[SPLIT ? s : 0] : a.high[s], Base::at(b, (term == 1) * PART + s * (16 * 128)));
        }
        ptx::wgmma_commit_group();
    }

    // The first factor for a row: by the powers of two of its tiles, of which the largest is the result.
    static KM_DEVICE float first_fragments(Fragments& to, const unsigned char* shared) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, t = lane % 4;
        const uint4* const from = (const uint4*)(shared + FIRST) + warp * STEPS * 32 + lane;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            *(uint4*)to.high[s] = from[s * 32];
            if constexpr (SPLIT) *(uint4*)to.low[s] = from[(s + 4 * STEPS) * 32];
        }
        float top = 1.0f;
        if constexpr (SPLIT) {
            const float2* const table = (const float2*)(shared + TABLE) + t;
            top = 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * STEPS; ++i) top = fmaxf(top, fmaxf(table[4 * i].x, table[4 * i].y));
            top = warp_max<2>(top);
            const float by = 1.0f / top;
#pragma unroll
            for (int i = 0; i < 2 * STEPS; ++i) {
                const unsigned ratio = ptx::pack_f16x2(table[4 * i].x * by, table[4 * i].y * by);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    to.high[i / 2][i % 2 * 2 + r] = ptx::mul_f16x2(to.high[i / 2][i % 2 * 2 + r], ratio);
                    to.low[i / 2][i % 2 * 2 + r] = ptx::mul_f16x2(to.low[i / 2][i % 2 * 2 + r], ratio);
                }
            }
        }
        return top;
    }

    static __device__ void multiply_rows(
        const Args& g, unsigned char* shared, PipelineBarriers<STAGES> barriers, unsigned full, unsigned empty, const HalfScale& scale, float back,
        int number, int tiles, int apart) {
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, row = lane / 4, t = lane % 4, rank = (int)blockIdx.x % CLUSTER;
        Fragments second;
#pragma unroll
        for (int i = 0; i < 4 * STEPS; ++i) {
            const int s = i / 4, r = i % 4, q = 16 * warp + row + r % 2 * 8, p = 16 * s + 2 * t + r / 2 * 8;
            Base::halves_of(second.high[s][r], second.low[SPLIT ? s : 0][r], B::template entry<1>(g, q, p), B::template entry<1>(g, q, p + 1), scale);
        }
        const unsigned long long last = Base::matrix(shared_address(shared + LAST));
        const unsigned long long stages = Base::matrix(shared_address(shared + TILES_AT)), pieces = Base::matrix(shared_address(shared));
        unsigned to[2], count[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int q2 = 16 * warp + 8 * h;
            to[h] = ptx::mapa(shared_address(shared), q2 / PIECES) + (q2 % PIECES + row) * TILE;
            count[h] = ptx::mapa(full, q2 / PIECES);
        }
        const unsigned table = ptx::mapa(shared_address(shared + TABLE), lane % CLUSTER), counts = ptx::mapa(full, lane % CLUSTER);
        const unsigned freed = ptx::mapa(empty, lane % CLUSTER);
        const float* const inverses = (const float*)(shared + INVERSES);
        State state;
        if (group) state.advance();
        unsigned parity = 0;
#pragma unroll 1
        for (bool later = false; number < tiles; number += apart, later = true, parity ^= 1) {
            if (threadIdx.x == 0) ptx::mbarrier_arrive_expect_tx(full, BYTES);
            float d[8][4], e[8][4];
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            along(d, second, Base::at(stages, state.stage * TILE));
            // Unrolled, so that the first product of the next tile runs while results of this one are pushed.
#pragma unroll
            for (int step = 0; step < TILES / 2; ++step) {
                const int tile = rank * TILES + 2 * step + group;
                const float inverse = SPLIT ? Base::of_first_lane(inverses + state.stage) : 1.0f;
                ptx::wgmma_wait_group<0>();
                Base::fence(d);
                __syncwarp();
                if (lane == 0) ptx::mbarrier_arrive(barriers.empty(state.stage));
                state.advance();
                state.advance();
                unsigned high[STEPS][4], low[SPLIT ? STEPS : 1][4];
                operands_of(high, low, d);
                Base::fence(e);
                ptx::wgmma_fence();
                Base::multiply_operands(e, high, low, last);
                ptx::wgmma_commit_group();
                if (step + 1 < TILES / 2) {
                    ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                    along(d, second, Base::at(stages, state.stage * TILE));
                    ptx::wgmma_wait_group<1>();
                } else {
                    ptx::wgmma_wait_group<0>();
                }
                Base::fence(e);
                if (step == 0 && later) ptx::mbarrier_wait_parity(empty, parity ^ 1);
                if (SPLIT && warp == 0 && lane < CLUSTER) ptx::st_async(table + tile * 4, __float_as_uint(inverse), counts);
                push(e, 0, to[0] + tile * 128, count[0], tile);
                push(e, 1, to[1] + tile * 128, count[1], tile);
            }
            ptx::mbarrier_wait_parity(full, parity);
            ptx::fence_proxy_async();
            Fragments first;
            const float more = first_fragments(first, shared) * back;
            T* const out = (T*)g.out + kron_row_offset(g, g.out_stride, number) + (16 * warp + row) * SIZE * SIZE + rank * PIECES * SIZE;
#pragma unroll 1
            for (int i = 0; i < PIECES / 2; ++i) {
                const int piece = 2 * i + group;
                float d[8][4];
                along(d, first, Base::at(pieces, piece * TILE));
                ptx::wgmma_wait_group<0>();
                Base::fence(d);
                if (i + 1 == PIECES / 2) {
                    __syncwarp();
                    if (lane < CLUSTER) ptx::mbarrier_arrive_cluster(freed);
                }
                store_piece(out + piece * SIZE, d, more);
            }
        }
    }

    static __device__ void run(const Args& g) {
        kron_wait();
        extern __shared__ __align__(1024) unsigned char shared[];
        const PipelineBarriers<STAGES> barriers{shared_address(shared + BARRIERS)};
        const unsigned full = barriers.at + PipelineBarriers<STAGES>::BYTES, empty = full + 8;
        const int tiles = (int)kron_tiles<1, 1>(g), number = (int)blockIdx.x / CLUSTER, apart = (int)gridDim.x / CLUSTER;
        float* const tops = (float*)(shared + TOPS);
        if (threadIdx.x == 0) {
            ptx::mbarrier_init(full, 1);
            ptx::mbarrier_init(empty, CLUSTER * 8);
            barriers.initialise(4, 4);
        }
        const HalfScale first = Base::measured(tops, B::template down<0>(g), Entry<0>{g}), second = Base::template measured<TOP>(tops, B::template down<1>(g), Entry<1>{g});
        float back = (float)g.alpha * Base::template stored<TOP>(shared + LAST, tops, B::template down<2>(g), LastEntry{g});
        {
            const int lane = threadIdx.x % 32, i = threadIdx.x / 32, q = i / STEPS * 16 + lane / 4, p = i % STEPS * 16 + lane % 4 * 2;
            unsigned high[4], low[4];
#pragma unroll
            for (int r = 0; r < 4; ++r)
                Base::halves_of(high[r], low[r], B::template entry<0>(g, q + r % 2 * 8, p + r / 2 * 8), B::template entry<0>(g, q + r % 2 * 8, p + r / 2 * 8 + 1), first);
            uint4* const to = (uint4*)(shared + FIRST) + threadIdx.x;
            *to = *(uint4*)high;
            if (SPLIT) to[THREADS] = *(uint4*)low;
        }
        if (SPLIT) back *= first.inverse * second.inverse;
        ptx::fence_proxy_async();
        __syncthreads();
        ptx::cluster_arrive();
        ptx::cluster_wait();
        if (threadIdx.x >= 256) {
            ptx::setmaxnreg_dec<B::LOADER_REGISTERS>();
            load_tiles(g, shared, barriers, number, tiles, apart);
        } else {
            ptx::setmaxnreg_inc<256 - B::LOADER_REGISTERS>();
            multiply_rows(g, shared, barriers, full, empty, second, back, number, tiles, apart);
        }
        // Blocks stay until none pushes to them.
        ptx::cluster_arrive();
        ptx::cluster_wait();
    }
};

}  // namespace km

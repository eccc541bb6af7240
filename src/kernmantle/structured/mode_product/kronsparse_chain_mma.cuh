// Two factors of a chain for few rows of halves, as kronsparse_chain.cuh, by tensor cores: up to 16 rows of the batch are those of an mma,
// its columns neighbouring l of the first factor and rows j of the second one. What a lane reads of both operands along k lies together,
// as their order is free: nothing but what lies between the factors goes through shared memory, where a barrier counts what comes.
// For more rows each factor has a launch of its own, and what lies between goes through global memory, as (l / 8, k, row, l % 8).
#pragma once
#include "kronsparse_chain.cuh"

namespace km {

// Parameters are those of KronSparseChainTile, the second factor's A2, the WARPS of a block, the BLOCKS that share the second k, and what
// a launch takes: BOTH, FIRST or SECOND. ROWS are 8 or 16: more blocks take the next ones.
template <class P>
struct KronSparseChainMma : P {
    using typename P::T;
    static constexpr int LANES_L = 8, BLOCKS = P::BLOCKS, WARPS = P::WARPS, THREADS = 32 * WARPS, HALVES = P::ROWS / 8;
    static constexpr bool FIRST = P::FIRST, SECOND = P::SECOND, BOTH = FIRST && SECOND;
    static_assert(sizeof(T) == 2 && P::D2 % LANES_L == 0 && P::B1 % LANES_L == 0 && P::C1 % 8 == 0, "whole vectors of l and of k");
    static constexpr int OWN_K = (P::C2 + BLOCKS - 1) / BLOCKS, OWN_J = (P::B2 + BLOCKS * P::SPLIT - 1) / (BLOCKS * P::SPLIT);
    // Each warp has neighbouring k of what lies between, of which so many are under way at once, each in chunks of 32 of the first k.
    static constexpr int EACH = (OWN_K + WARPS - 1) / WARPS, CHUNKS = (P::C1 + 31) / 32, DEEP = CHUNKS < 4 ? CHUNKS : 4;
    static constexpr int TOGETHER = EACH * DEEP <= 8 ? EACH : 8 / DEEP;
    // Neighbouring k that read the same numbers of x, which are then loaded once.
    static constexpr bool SAME_X = P::B1 % (P::D2 * TOGETHER) == 0 && P::C2 * P::D2 % P::B1 == 0 && OWN_K % EACH == 0 && EACH % TOGETHER == 0;
    // Warps share the second k in SETS, in steps of 16, and tiles of 8 rows j; weights of up to four of these are read beforehand.
    static constexpr int STEPS = (P::C2 + 15) / 16, SETS = STEPS < WARPS ? STEPS : WARPS, SIDES = WARPS / SETS;
    static constexpr int TILES = (OWN_J + 7) / 8, OWN_TILES = (TILES + SIDES - 1) / SIDES, OWN_STEPS = (STEPS + SETS - 1) / SETS;
    static constexpr bool READS_AHEAD = OWN_TILES * OWN_STEPS <= (BOTH ? 4 : 3), IN_ONCE = !BOTH && OWN_STEPS == 1;
    // Vectors of l in shared memory from one k to the next, so that the lanes of a load meet in no bank.
    static constexpr int PITCH = P::ROWS + 2, SUMS_OF_L = 8 * P::ROWS + 4, SUMS_OF_SET = LANES_L * SUMS_OF_L, AT_ONCE = SIDES < TILES ? SIDES : TILES;
    static constexpr int SUMS_AT = BOTH ? 16 * P::C2 * PITCH : 0, BARRIER_AT = SUMS_AT + 4 * AT_ONCE * SETS * SUMS_OF_SET;
    static constexpr int SHARED_BYTES = !SECOND ? 0 : BOTH ? BARRIER_AT + 16 : BARRIER_AT;

    const KronSparseChain& g;
    unsigned char* shared;
    const T* x;
    T* y;
    uint4* apart;  // what lies between, of this block's l and from its first row on
    int rank, split, i, l0, rows, warp, row, column;  // row and column: of a lane's part of an operand

    static KM_DEVICE uint4 zeros() { return make_uint4(0, 0, 0, 0); }
    static KM_DEVICE unsigned halves(float a, float b) {
        Pack<T, 2> found;
        found.v[0] = Store<T>::from(a), found.v[1] = Store<T>::from(b);
        return *(const unsigned*)&found;
    }
    KM_DEVICE uint4* between() const { return BOTH ? (uint4*)shared : apart; }
    KM_DEVICE int pitch() const { return BOTH ? PITCH : (int)g.count; }
    KM_DEVICE float* sums() const { return (float*)(shared + SUMS_AT); }
    KM_DEVICE unsigned barrier() const { return shared_address(shared + BARRIER_AT); }
    KM_DEVICE int first_j() const { return (split * BLOCKS + rank) * OWN_J; }

    // What lies between both factors, of this warp's k. Weights that no launch writes any more are read while one still makes x.
    KM_DEVICE void multiply_first() const {
#pragma unroll 1
        for (int begin = 0; begin < EACH; begin += TOGETHER) {
            float sum[TOGETHER][2][4] = {};
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; chunk += DEEP) {
                uint4 weight[TOGETHER][DEEP], of_rows[SAME_X ? 1 : TOGETHER][DEEP][HALVES];
                auto feature = [&](int e) { return (i * P::C2 + min(rank * OWN_K + warp * EACH + begin + e, P::C2 - 1)) * P::D2 + l0; };
                auto at = [&](int c) { return (chunk + c) * 32 + 8 * column; };
#pragma unroll
                for (int e = 0; e < TOGETHER; ++e)
#pragma unroll
                    for (int c = 0; c < DEEP; ++c)
                        weight[e][c] = at(c) < P::C1 ? *(const uint4*)((const T*)g.first + (i64)(feature(e) + row) * P::C1 + at(c)) : zeros();
                ptx::griddepcontrol_wait();
                if (!BOTH) ptx::griddepcontrol_launch_dependents();  // whose reads of weights then follow all writes of these
#pragma unroll
                for (int e = 0; e < (SAME_X ? 1 : TOGETHER); ++e)
#pragma unroll
                    for (int c = 0; c < DEEP; ++c)
#pragma unroll
                        for (int h = 0; h < HALVES; ++h) {
                            const bool inside = at(c) < P::C1 && row + 8 * h < rows;
                            const T* const from = x + (row + 8 * h) * g.xn + feature(e) / P::B1 * P::C1 + at(c);
                            of_rows[e][c][h] = inside ? *(const uint4*)from : zeros();
                        }
#pragma unroll
                for (int e = 0; e < TOGETHER; ++e)
#pragma unroll
                    for (int c = 0; c < DEEP; ++c) {
                        const uint4(&in)[HALVES] = of_rows[SAME_X ? 0 : e][c];
                        const uint4 up = in[0], down = HALVES == 2 ? in[HALVES - 1] : zeros(), own = weight[e][c];
                        const unsigned low[4] = {up.x, down.x, up.y, down.y}, high[4] = {up.z, down.z, up.w, down.w};
                        ptx::mma_m16n8k16_pure<T>(sum[e][0], low, own.x, own.y);
                        ptx::mma_m16n8k16_pure<T>(sum[e][1], high, own.z, own.w);
                    }
            }
#pragma unroll
            for (int e = 0; e < TOGETHER; ++e) {
                const int own = warp * EACH + begin + e, k = rank * OWN_K + own;
                if (begin + e >= EACH || own >= OWN_K || k >= P::C2) break;
                const auto& found = sum[e];
#pragma unroll
                for (int h = 0; h < HALVES; ++h)
                    if (BOTH || row + 8 * h < rows)
                        ((unsigned*)(between() + k * pitch() + row + 8 * h))[column] =
                            halves(found[0][2 * h] + found[1][2 * h], found[0][2 * h + 1] + found[1][2 * h + 1]);
            }
        }
    }

    // Stores what this warp has of both factors' numbers into the other blocks of the cluster, whose barriers count the bytes.
    KM_DEVICE void share_with_others(int lane) const {
        __syncwarp();
#pragma unroll 1
        for (int begin = 0; begin < EACH; begin += TOGETHER)
#pragma unroll
            for (int e = lane; e < TOGETHER * P::ROWS * BLOCKS; e += 32) {
                const int target = e % BLOCKS, n = e / BLOCKS % P::ROWS, each = begin + e / BLOCKS / P::ROWS, own = warp * EACH + each;
                const int k = rank * OWN_K + own;
                if (target == rank || n >= rows || each >= EACH || own >= OWN_K || k >= P::C2) continue;
                uint4* const at = between() + k * PITCH + n;
                const uint4 v = *at;
                ptx::st_async_v4(ptx::mapa(shared_address(at), target), v.x, v.y, v.z, v.w, ptx::mapa(barrier(), target));
            }
    }

    // The second factor's weights of a step along k and a tile of rows j: eight l of each of four k.
    KM_DEVICE void read_second(uint4 (&weights)[4], int tile, int step) const {
        const int own = 8 * tile + row, j = first_j() + own;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int k = 16 * step + column + 4 * e;
            const bool inside = own < OWN_J && j < P::B2 && k < P::C2;
            weights[e] = inside ? *(const uint4*)((const T*)g.second + (((i64)i * P::B2 + j) * P::C2 + k) * P::D2 + l0) : zeros();
        }
    }

    // What lies between, of a step along k: eight l of each of four k and two rows.
    KM_DEVICE void read_between(uint4 (&in)[4][2], int step) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int k = 16 * step + column + 4 * e;
#pragma unroll
            for (int h = 0; h < 2; ++h) in[e][h] = h < HALVES && k < P::C2 && row + 8 * h < rows ? between()[k * pitch() + row + 8 * h] : zeros();
        }
    }

    // Adds the products of a step for each l, of which every register of a vector has two.
    KM_DEVICE void multiply_step(float (&sum)[LANES_L][4], const uint4 (&weights)[4], const uint4 (&in)[4][2]) const {
        auto word = [](const uint4& v, int w) { return w == 0 ? v.x : w == 1 ? v.y : w == 2 ? v.z : v.w; };
#pragma unroll
        for (int l = 0; l < LANES_L; ++l) {
            auto both = [&](const uint4& a, const uint4& b) { return __byte_perm(word(a, l / 2), word(b, l / 2), l % 2 ? 0x7632 : 0x5410); };
            const unsigned a[4] = {both(in[0][0], in[1][0]), both(in[0][1], in[1][1]), both(in[2][0], in[3][0]), both(in[2][1], in[3][1])};
            ptx::mma_m16n8k16_pure<T>(sum[l], a, both(weights[0], weights[1]), both(weights[2], weights[3]));
        }
    }

    // Sums over this warp's part of k, for the rows j of one of its tiles, to shared memory.
    KM_DEVICE void multiply_tile(int own, uint4 (&weights)[READS_AHEAD ? OWN_TILES * OWN_STEPS : 1][4], uint4 (&in)[IN_ONCE ? OWN_STEPS : 1][4][2]) const {
        const int side = warp / SETS, tile = side + own * SIDES;
        if (tile >= TILES) return;
        float sum[LANES_L][4] = {};
#pragma unroll
        for (int s = 0; s < OWN_STEPS; ++s) {
            const int step = warp % SETS + s * SETS;
            if (!READS_AHEAD) read_second(weights[0], tile, step);
            if (!IN_ONCE) read_between(in[0], step);
            multiply_step(sum, weights[READS_AHEAD ? own * OWN_STEPS + s : 0], in[IN_ONCE ? s : 0]);
        }
        float* const to = sums() + (side * SETS + warp % SETS) * SUMS_OF_SET;
#pragma unroll
        for (int l = 0; l < LANES_L; ++l)
#pragma unroll
            for (int h = 0; h < HALVES; ++h)
                *(float2*)(to + l * SUMS_OF_L + (row + 8 * h) * 8 + 2 * column) = make_float2(sum[l][2 * h], sum[l][2 * h + 1]);
    }

    // Adds the sums of all parts of k for tiles that were made at once, and stores four neighbouring l at once.
    KM_DEVICE void store_tiles(int own) const {
        constexpr int ENTRIES = 8 * P::ROWS;
#pragma unroll 1
        for (int e = threadIdx.x; e < 2 * ENTRIES * AT_ONCE; e += THREADS) {
            const int entry = e / 2 % ENTRIES, l = e % 2 * 4, side = e / 2 / ENTRIES, n = entry / 8;
            const int at = 8 * (side + own * SIDES) + entry % 8, j = first_j() + at;
            if (n >= rows || at >= OWN_J || j >= P::B2) continue;
            float total[4] = {};
#pragma unroll
            for (int s = 0; s < SETS; ++s)
#pragma unroll
                for (int o = 0; o < 4; ++o) total[o] += sums()[(side * SETS + s) * SUMS_OF_SET + (l + o) * SUMS_OF_L + entry];
            const int feature = (i * P::B2 + j) * P::D2 + l0 + l;
#pragma unroll
            for (int o = 0; o < 4; ++o) {
                if (P::BIAS) total[o] += convert<float>(((const T*)g.bias)[feature + o]);
                total[o] = activated<P::ACTIVATION>(total[o]);
            }
            *(uint2*)(y + n * g.yn + feature) = make_uint2(halves(total[0], total[1]), halves(total[2], total[3]));
        }
    }

    KM_DEVICE void run() {
        const int lane = threadIdx.x % 32;
        warp = threadIdx.x / 32, row = lane / 4, column = lane % 4;
        unsigned at = blockIdx.x;
        rank = at % BLOCKS;
        at /= BLOCKS;
        split = at % P::SPLIT;
        at /= P::SPLIT;
        l0 = at % (P::D2 / LANES_L) * LANES_L;
        at /= P::D2 / LANES_L;
        i = at % P::A2;
        const int first_row = at / P::A2 * P::ROWS;
        rows = min((int)g.count - first_row, P::ROWS);
        x = (const T*)g.x + first_row * g.xn;
        y = (T*)g.y + first_row * g.yn;
        apart = (uint4*)(SECOND ? g.x : g.y) + ((i64)i * (P::D2 / LANES_L) + l0 / LANES_L) * P::C2 * g.count + first_row;
        if (BOTH) {
            if (threadIdx.x == 0) {
                ptx::mbarrier_init(barrier(), 1);
                ptx::fence_mbarrier_init();
                const int own = min(OWN_K, max(0, P::C2 - rank * OWN_K));
                ptx::mbarrier_arrive_expect_tx(barrier(), 16 * rows * (P::C2 - own));
            }
            ptx::cluster_arrive_relaxed();
        }
        if (SECOND) ptx::griddepcontrol_launch_dependents();
        if (FIRST && !g.is_made) ptx::griddepcontrol_wait();
        uint4 weights[READS_AHEAD ? OWN_TILES * OWN_STEPS : 1][4];
        if (SECOND && READS_AHEAD)
#pragma unroll
            for (int each = 0; each < OWN_TILES * OWN_STEPS; ++each)
                read_second(weights[READS_AHEAD ? each : 0], warp / SETS + each / OWN_STEPS * SIDES, warp % SETS + each % OWN_STEPS * SETS);
        if (FIRST) multiply_first();
        if (!SECOND) return;
        if (BOTH) {
            ptx::cluster_wait();  // all blocks have begun, so that their memory and barriers are theirs
            share_with_others(lane);
            __syncthreads();
            ptx::mbarrier_wait_parity(barrier(), 0);
        } else {
            ptx::griddepcontrol_wait();
        }
        uint4 in[IN_ONCE ? OWN_STEPS : 1][4][2];
        if (IN_ONCE)
#pragma unroll
            for (int s = 0; s < OWN_STEPS; ++s) read_between(in[s], warp % SETS + s * SETS);
#pragma unroll
        for (int own = 0; own < OWN_TILES; ++own) {
            if (own > 0) __syncthreads();
            multiply_tile(own, weights, in);
            __syncthreads();
            store_tiles(own);
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_chain_mma(const KronSparseChain& g) {
    extern __shared__ __align__(16) unsigned char shared[];
    KronSparseChainMma<P> own = {{}, g, shared};
    own.run();
}

}  // namespace km

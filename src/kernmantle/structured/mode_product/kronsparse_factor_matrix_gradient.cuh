// Gradients of two Kronecker-sparse factors (kronsparse_factor_matrix.cuh) from that of their matrix, in one launch of clusters of
// blocks: a cluster has one block o of the first factor. For halves.
#pragma once
#include "kronsparse_factor_matrix.cuh"
#include "ptx_cluster.cuh"

namespace km {

// What is made of a tile of the matrix's gradient in shared memory.
template <class P>
struct KronSparseFactorMatrixTile : KronSparseFactorMatrix<P> {
    typedef KronSparseFactorMatrix<P> M;
    using typename M::T;
    using M::L, M::RANK, M::BLOCKS, M::B, M::EDGE, M::WARPS, M::THREADS, M::TILE_J, M::WIDE, M::PITCH;
    using M::row_at, M::first_at, M::halves_of;

    // The second factor's gradient: a warp has 16 rows j of one l, and all r.
    static KM_DEVICE void multiply_second(unsigned char* to, unsigned rows, unsigned first) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, l = warp % L, j = warp / L * 16;
        float sum[RANK / 8][4];
        clear(sum);
#pragma unroll
        for (int step = 0; step < EDGE / 16; ++step) {
            unsigned left[4];
            ptx::ldmatrix_x4(left, rows + row_at(j + lane % 16, l, 2 * step + lane / 16));
#pragma unroll
            for (int t = 0; t < RANK / 8; t += 2) {
                unsigned right[4];
                ptx::ldmatrix_x4(right, first + first_at(8 * t + lane / 16 * 8 + lane % 8, l, 2 * step + lane / 8 % 2));
                ptx::mma_m16n8k16<T>(sum[t], left, right[0], right[1]);
                ptx::mma_m16n8k16<T>(sum[t + 1], left, right[2], right[3]);
            }
        }
#pragma unroll
        for (int t = 0; t < RANK / 8; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int row = j + lane / 4 + e / 2 * 8, r = 8 * t + lane % 4 * 2 + e % 2;
                *(T*)(to + row * PITCH + (r * L + l) * 2) = Store<T>::from(sum[t][e]);
            }
    }

    // Adds to the first factor's: a warp has 16 of r, one l and half of the columns.
    static constexpr int UNITS = WIDE / 64, FRAGMENTS = 4, SUM_PITCH = EDGE + 8;
    typedef float FirstSums[UNITS][FRAGMENTS][4];
    static KM_DEVICE void multiply_first(FirstSums& sum, unsigned rows, const unsigned char* second) {
        typedef unsigned short Bits;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const int unit = warp % 4 + 4 * u, l = unit % L, r = unit / L * 16 + lane / 4;
#pragma unroll
            for (int step = 0; step < TILE_J / 16; ++step) {
                unsigned left[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const unsigned char* const at = second + (16 * step + lane % 4 * 2 + e / 2 * 8) * PITCH + ((r + e % 2 * 8) * L + l) * 2;
                    left[e] = (unsigned)*(const Bits*)at | (unsigned)*(const Bits*)(at + PITCH) << 16;
                }
#pragma unroll
                for (int t = 0; t < FRAGMENTS; t += 2) {
                    unsigned right[4];
                    ptx::ldmatrix_x4_trans(right, rows + row_at(16 * step + lane % 16, l, warp / 4 * FRAGMENTS + t + lane / 16));
                    ptx::mma_m16n8k16<T>(sum[u][t], left, right[0], right[1]);
                    ptx::mma_m16n8k16<T>(sum[u][t + 1], left, right[2], right[3]);
                }
            }
        }
    }

    static KM_DEVICE void store_second(void* of_second, const unsigned char* from, int tile, int o) {
        for (int i = threadIdx.x; i < TILE_J * (WIDE / 8); i += THREADS) {
            const int row = i / (WIDE / 8), piece = i % (WIDE / 8), j = tile * TILE_J + row;
            if (j < B) *(uint4*)((T*)of_second + ((i64)j * BLOCKS + o) * WIDE + piece * 8) = *(const uint4*)(from + row * PITCH + piece * 16);
        }
    }

    // Adds the sums of a cluster, each block some rows of them.
    static constexpr int CLUSTER = 8;
    static KM_DEVICE void store_first(void* of_first, const FirstSums& sum, unsigned char* shared, int rank, int o) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float* const own = (float*)shared;
        const unsigned base = shared_address(shared);
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const int unit = warp % 4 + 4 * u, l = unit % L, r = unit / L * 16 + lane / 4;
#pragma unroll
            for (int t = 0; t < FRAGMENTS; ++t)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    *(float2*)(own + ((r + 8 * half) * L + l) * SUM_PITCH + warp / 4 * 8 * FRAGMENTS + 8 * t + lane % 4 * 2) = make_float2(sum[u][t][2 * half], sum[u][t][2 * half + 1]);
        }
        ptx::cluster_arrive();
        ptx::cluster_wait();
        for (int i = threadIdx.x; i < WIDE / CLUSTER * 16; i += THREADS) {
            const int row = rank * (WIDE / CLUSTER) + i / 16, piece = i % 16;
            const unsigned at = base + (row * SUM_PITCH + piece * 4) * 4;
            uint4 found[CLUSTER];
#pragma unroll
            for (int other = 0; other < CLUSTER; ++other) found[other] = ptx::ld_shared_cluster_v4(ptx::mapa(at, other));
            float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int other = 0; other < CLUSTER; ++other) {
                total[0] += __uint_as_float(found[other].x), total[1] += __uint_as_float(found[other].y);
                total[2] += __uint_as_float(found[other].z), total[3] += __uint_as_float(found[other].w);
            }
            *(uint2*)((T*)of_first + ((i64)o * WIDE + row) * EDGE + piece * 4) = make_uint2(halves_of(total[0], total[1]), halves_of(total[2], total[3]));
        }
        ptx::cluster_arrive();  // others may still read what this block has
        ptx::cluster_wait();
    }

    // Sums of 64 columns of an array (count, FEATURES) by a cluster, each block some of the rows.
    static KM_DEVICE void sum_rows(const void* summed, void* sums, i64 count, i64 apart, int cluster, int rank, unsigned char* shared) {
        constexpr int LANES = THREADS / 8, ROUNDS = 8;
        const int lane = threadIdx.x / 8, column = cluster * EDGE + threadIdx.x % 8 * 8;
        const i64 each = (count + CLUSTER - 1) / CLUSTER, begin = rank * each, end = begin + each < count ? begin + each : count;
        const T* const from = (const T*)summed + column;
        float sum[8];
        clear(sum);
        if (column < M::FEATURES)
#pragma unroll 1
            for (i64 row = begin + lane; row < end; row += LANES * ROUNDS) {
                Pack<T, 8> found[ROUNDS];
#pragma unroll
                for (int u = 0; u < ROUNDS; ++u) {
                    const i64 n = row + LANES * u;
                    found[u] = n < end ? load_pack<T, 8>(from + n * apart) : Pack<T, 8>();
                }
#pragma unroll
                for (int u = 0; u < ROUNDS; ++u)
#pragma unroll
                    for (int e = 0; e < 8; ++e) sum[e] += convert<float>(found[u].v[e]);
            }
        float* const all = (float*)shared;
        float* const own = all + LANES * EDGE;
#pragma unroll
        for (int e = 0; e < 8; ++e) all[lane * EDGE + threadIdx.x % 8 * 8 + e] = sum[e];
        __syncthreads();
        if (threadIdx.x < EDGE) {
            float total = 0.0f;
#pragma unroll 8
            for (int other = 0; other < LANES; ++other) total += all[other * EDGE + threadIdx.x];
            own[threadIdx.x] = total;
        }
        ptx::cluster_arrive();
        ptx::cluster_wait();
        const int first = cluster * EDGE + threadIdx.x * 4;
        if (rank == 0 && threadIdx.x < EDGE / 4 && first < M::FEATURES) {
            const unsigned at = shared_address(own + threadIdx.x * 4);
            float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int other = 0; other < CLUSTER; ++other) {
                const uint4 part = ptx::ld_shared_cluster_v4(ptx::mapa(at, other));
                total[0] += __uint_as_float(part.x), total[1] += __uint_as_float(part.y);
                total[2] += __uint_as_float(part.z), total[3] += __uint_as_float(part.w);
            }
            *(uint2*)((T*)sums + first) = make_uint2(halves_of(total[0], total[1]), halves_of(total[2], total[3]));
        }
        ptx::cluster_arrive();  // others may still read what this block has
        ptx::cluster_wait();
    }
};

struct FactorMatrixGradientArguments {
    const void *first, *second, *matrix;
    void *of_first, *of_second;
    const void* summed;
    void* sums;
    i64 count, apart;
};

// Gradients of both factors from that of the matrix. A cluster of eight blocks has one o: each block takes some tiles of 128 rows of
// the matrix, whose part of the second factor's gradient it finishes, and adds up a part of the first factor's, which the cluster
// adds through distributed shared memory. Blocks behind them sum rows of another array (count, FEATURES). Further parameters:
//   STAGES                tiles that are under way together
//   FIRST, SECOND, SUMS   what is asked for
template <class P>
struct KronSparseFactorMatrixGradient : KronSparseFactorMatrixTile<P> {
    typedef KronSparseFactorMatrixTile<P> M;
    using typename M::T;
    using M::L, M::RANK, M::BLOCKS, M::B, M::EDGE, M::TILE, M::TILE_J, M::TILES, M::THREADS, M::WARPS, M::WIDE, M::FEATURES, M::COLUMNS;
    using M::ROWS_BYTES, M::FIRST_BYTES, M::SECOND_BYTES, M::PITCH;
    using M::CLUSTER, M::SUM_PITCH;
    static constexpr int STAGES = P::STAGES;
    static_assert(M::DEPTH == EDGE && WIDE % 64 == 0, "a tile has all columns of a block, and warps have whole fragments");
    static constexpr int STAGE_BYTES = ROWS_BYTES + SECOND_BYTES, STAGES_AT = FIRST_BYTES, OUT_AT = STAGES_AT + STAGES * STAGE_BYTES;
    static constexpr int SHARED_BYTES = OUT_AT + SECOND_BYTES;
    static_assert(WIDE * SUM_PITCH * 4 <= SHARED_BYTES, "sums of a block take the place of its stages");

    const FactorMatrixGradientArguments& g;
    unsigned char* shared;
    unsigned base;
    int rank, o;

    KM_DEVICE unsigned stage_at(int number) const { return STAGES_AT + number % STAGES * STAGE_BYTES; }

    KM_DEVICE void fetch(int number) const {
        const int tile = number * CLUSTER + rank, f0 = tile * TILE;
        if (tile >= TILES) return;
        const T* const from = (const T*)g.matrix + (i64)o * EDGE;
        const unsigned to = base + stage_at(number);
#pragma unroll
        for (int i = threadIdx.x; i < TILE * 8; i += THREADS) {
            const int row = i / 8, piece = i % 8, f = min(f0 + row, FEATURES - 1);
            ptx::cp_async<16>(to + M::row_at(row / L, row % L, piece), from + (i64)f * COLUMNS + piece * 8, f0 + row < FEATURES ? 16 : 0);
        }
        M::fetch_second(to + ROWS_BYTES, g.second, tile * TILE_J, o);
    }

    KM_DEVICE void run() {
        rank = blockIdx.x % CLUSTER, o = blockIdx.x / CLUSTER;
        ptx::griddepcontrol_launch_dependents();
        ptx::griddepcontrol_wait();
        if (P::SUMS && o >= BLOCKS) return M::sum_rows(g.summed, g.sums, g.count, g.apart, o - BLOCKS, rank, shared);
        if (P::SECOND) M::fetch_first(base, g.first, o, 0);
#pragma unroll
        for (int number = 0; number < STAGES; ++number) {
            fetch(number);
            CopyPipeline<STAGES>::commit();
        }
        typename M::FirstSums sum = {};
#pragma unroll 1
        for (int number = 0; number * CLUSTER + rank < TILES; ++number) {
            CopyPipeline<STAGES>::template wait<STAGES - 1>();
            __syncthreads();
            const unsigned stage = stage_at(number);
            if (P::SECOND) M::multiply_second(shared + OUT_AT, base + stage, base);
            if (P::FIRST) M::multiply_first(sum, base + stage, shared + stage + ROWS_BYTES);
            __syncthreads();
            fetch(number + STAGES);
            CopyPipeline<STAGES>::commit();
            if (P::SECOND) M::store_second(g.of_second, shared + OUT_AT, number * CLUSTER + rank, o);
        }
        ptx::cp_async_wait_all();
        __syncthreads();
        if (P::FIRST) M::store_first(g.of_first, sum, shared, rank, o);
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_factor_matrix_gradient(const FactorMatrixGradientArguments& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseFactorMatrixGradient<P> own = {{}, g, shared, shared_address(shared)};
    own.run();
}

}  // namespace km

// Kronecker-sparse products of a few rows of the batch on tensor cores, where the values of l interleave: weights are copied to stages of
// shared memory as they lie, once for each part of the batch, and nothing is rearranged before.
//
// A block has TILE_J outputs j of one i and TILE_L neighbouring l; each of its warps has some of these l, and reads its fragments from a
// stage at the stride of l. Blocks of a cluster share the positions of k, and add their sums through shared memory. Where a block has
// fewer outputs or rows than its tile, what a stage has of others is left from before, and so are their sums, which no one stores.
#pragma once
#include "kronsparse_fragments.cuh"
#include "pipeline.cuh"
#include "ptx_cluster.cuh"

namespace km {

// The parameters of a kernel, members of P:
//   T                    type of arrays, of 2 bytes
//   A, B, C, D           the pattern
//   TILE_L, WARP_L       values of l of a block, and those that a lane reads in one access
//   WARPS_L, WARPS_J     warps that share the values of l, and warps of other outputs
//   MMA_M, MMA_N         fragments of 16 outputs of a warp, and of 8 rows of the batch
//   STAGES, CLUSTER      stages of 16 positions of k, and blocks that share these positions
//   ORDER                the order of k in a product, so that lanes meet in few banks: what a lane takes is 1, 4 or 1 and 8 apart
//   W_SKEW, X_SKEW       bytes that rows of a stage have beside what they need, for the same
//   BULK                 stages whose positions are all inside, and that others follow, are filled by the copy engine, a run a copy
//   ALONG                k lies along neighbours in memory, else j does
//   LAST                 rows of the batch lie together in y
//   BIAS, ACTIVATION     what is done with a sum before it is stored
template <class Traits>
struct KronSparseStreamMmaTile : Traits {
    using typename Traits::T;
    using Traits::D, Traits::TILE_L, Traits::WARP_L, Traits::WARPS_L, Traits::WARPS_J, Traits::MMA_M, Traits::MMA_N, Traits::STAGES, Traits::ALONG;
    static constexpr int SIZE = sizeof(T), WARPS = WARPS_L * WARPS_J, THREADS = 32 * WARPS, DEPTH = 16;
    static constexpr bool FULL = TILE_L == D;
    static constexpr int TILE_J = 16 * MMA_M * WARPS_J, ROWS = 8 * MMA_N, UNITS = TILE_L / WARP_L, OWN_L = (UNITS + WARPS_L - 1) / WARPS_L;
    static_assert(SIZE == 2 && TILE_L % WARP_L == 0 && D % WARP_L == 0, "halves, by whole accesses");
    // A stage has runs of neighbours in memory, with the aligned 16 bytes around them: of all l of neighbouring positions (FULL), or of some.
    static constexpr int run_bytes(int positions) { return ((FULL ? positions * D : TILE_L) * SIZE + 15) / 16 * 16 + 16; }
    static constexpr int step(int) { return FULL ? D * SIZE : run_bytes(1); }
    static constexpr int pitch(int positions, int skew) { return (FULL ? run_bytes(positions) : positions * run_bytes(1)) + skew; }
    static constexpr int W_ROWS = ALONG ? TILE_J : DEPTH, W_POSITIONS = ALONG ? DEPTH : TILE_J;
    static constexpr int W_PITCH = pitch(W_POSITIONS, Traits::W_SKEW), X_PITCH = pitch(DEPTH, Traits::X_SKEW), STEP = step(0);
    static constexpr int W_STAGE = W_ROWS * W_PITCH, STAGE = W_STAGE + ROWS * X_PITCH;
    // Fragments of rows whose products are under way together.
    static constexpr int BATCH = MMA_N % 4 == 0 ? 4 : MMA_N % 3 == 0 ? 3 : MMA_N % 2 == 0 ? 2 : MMA_N;
    static constexpr int SUMS = TILE_J * TILE_L * ROWS;
    // Whether sums leave registers for results directly; else they have memory of their own, behind the stages.
    static constexpr bool DIRECT = Traits::LAST && Traits::CLUSTER == 1;
    static constexpr int USED_BYTES = STAGES * STAGE + (DIRECT ? 0 : 4 * SUMS), SHARED_BYTES = USED_BYTES + (Traits::BULK ? 8 * STAGES : 0);
    static_assert(!Traits::BULK || FULL, "runs of several positions");
    static constexpr int TILES_J = (Traits::B + TILE_J - 1) / TILE_J, TILES_L = (D + TILE_L - 1) / TILE_L, CHUNKS = (Traits::C + DEPTH - 1) / DEPTH;
    // The copy engine copies whole vectors of 16 bytes: chunks behind a run have as many, so that the end of an array is none of them.
    static constexpr int FOLLOWING = (Traits::C - (CHUNKS - 1) * DEPTH) * D * SIZE < 16 ? 2 : 1;
};

template <class P>
struct KronSparseStreamMma {
    typedef typename P::T T;
    typedef KronSparseFragments<T, P::WARP_L> Fragments;
    typedef typename Fragments::Bits Bits;
    static constexpr int V = P::WARP_L, M = P::MMA_M, N = P::MMA_N, SIZE = P::SIZE;
    // From a row of weights in memory to the next, and from a position in a row.
    static constexpr int W_ROW = (P::ALONG ? P::C : P::B) * P::D;

    const KronSparse& g;
    unsigned char* shared;
    float sum[P::OWN_L][V][M][N][4];
    // Where a lane's e-th position of k of its first fragment of weights, and of x, begins in a stage.
    int w_at[4], x_at[4];

    // Copies runs of a box of `rows` by POSITIONS positions that begin at `from`, rows `apart` entries from each other: of so many of them
    // `inside` and of so many values of l; what is outside becomes 0.
    template <int ROWS, int POSITIONS, int PITCH>
    static KM_DEVICE void copy(unsigned char* to, const T* from, i64 apart, int rows, int inside, int deep) {
        constexpr int RUNS = P::FULL ? 1 : POSITIONS, PIECES = P::run_bytes(POSITIONS) / 16, ALL = ROWS * RUNS * PIECES;
#pragma unroll 4
        for (int e = threadIdx.x; e < ALL; e += P::THREADS) {
            const int piece = e % PIECES, run = e / PIECES, row = run / RUNS, position = run % RUNS;
            const unsigned char* const source = (const unsigned char*)(from + (row * apart + position * P::D)) + 16 * piece;
            const int shift = (int)((size_t)source & 15), entries = P::FULL ? (inside < POSITIONS ? inside : POSITIONS) * P::D : deep;
            int left = row < rows && (P::FULL || position < inside) ? entries * SIZE - 16 * piece + shift : 0;
            left = left < 0 ? 0 : left < 16 ? left : 16;
            const void* const valid = left > 0 ? source - shift : (const unsigned char*)((size_t)from & ~(size_t)15);
            ptx::cp_async<16>(shared_address(to + row * PITCH + position * P::STEP * !P::FULL + 16 * piece), valid, left);
        }
    }

    // The position of 16 that a lane takes e-th.
    static KM_DEVICE int k_of(int quad, int e) { return P::ORDER == 1 ? quad + 4 * e : P::ORDER == 4 ? 4 * quad + e : 2 * quad + e % 2 + 8 * (e / 2); }

    // What a lane reads of some l of a fragment of 8 outputs or rows.
    static KM_DEVICE void read(Bits (&v)[4][V], const unsigned char* stage, const int (&at)[4], int beyond) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const Pack<Bits, V> pack = read_pack<Bits, V>(stage + at[e] + beyond);
#pragma unroll
            for (int l = 0; l < V; ++l) v[e][l] = pack.v[l];
        }
    }

    // Adds the products of a stage for one of the warp's accesses along l.
    KM_DEVICE void multiply(float (&to)[V][M][N][4], const unsigned char* stage, int unit, int warp_j) const {
        constexpr int NEXT = 8 * (P::ALONG ? P::W_PITCH : P::STEP);
        Bits p[2 * M][4][V], q[N][4][V];
#pragma unroll
        for (int m = 0; m < 2 * M; ++m) read(p[m], stage, w_at, (2 * M * warp_j + m) * NEXT + unit * V * SIZE);
#pragma unroll
        for (int t = 0; t < N; ++t) read(q[t], stage + P::W_STAGE, x_at, 8 * t * P::X_PITCH + unit * V * SIZE);
#pragma unroll
        for (int l = 0; l < V; ++l) Fragments::template multiply<1, P::BATCH>(to[l], p, q, l, HalfScale{1.0f, 1.0f}, HalfScale{1.0f, 1.0f});
    }

    // The index of a sum in shared memory, in the order in which results are stored.
    static KM_DEVICE int index_of(int n, int j, int l) { return P::LAST ? (j * P::TILE_L + l) * P::ROWS + n : (n * P::TILE_J + j) * P::TILE_L + l; }

    // Whether the positions of a chunk are copied by the copy engine, whose last 16 bytes may have what follows them.
    static KM_DEVICE bool by_engine(int chunk) { return P::BULK && chunk + P::FOLLOWING < P::CHUNKS; }

    KM_DEVICE unsigned full(int stage) const { return shared_address(shared + P::USED_BYTES + 8 * stage); }

    // Copies runs of weights and x as they lie, with the aligned 16 bytes around them.
    KM_DEVICE void copy_runs(unsigned char* to, const T* w, const T* x, int w_rows, int x_rows, int outputs, unsigned barrier) const {
        constexpr int RUN = P::DEPTH * P::D * SIZE;
#pragma unroll 1
        for (int at = threadIdx.x; at < w_rows + x_rows; at += P::THREADS) {
            const bool of_w = at < w_rows;
            const int row = of_w ? at : at - w_rows;
            const unsigned char* const from = (const unsigned char*)(of_w ? w + (i64)row * W_ROW : x + row * g.xn);
            const int shift = (int)((size_t)from & 15), bytes = (P::ALONG || !of_w ? RUN : outputs * P::D * SIZE) + shift;
            const unsigned whole = (unsigned)(bytes + 15) / 16 * 16;
            ptx::mbarrier_arrive_expect_tx(barrier, whole);
            ptx::cp_async_bulk(shared_address(to + (of_w ? row * P::W_PITCH : P::W_STAGE + row * P::X_PITCH)), from - shift, whole, barrier);
        }
    }

    KM_DEVICE void run() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, quad = lane % 4, warp_l = warp % P::WARPS_L, warp_j = warp / P::WARPS_L;
        unsigned block = blockIdx.x;
        auto next_of = [&](unsigned size) {
            const int own = (int)(block % size);
            block /= size;
            return own;
        };
        const int rank = next_of(P::CLUSTER), n0 = next_of(((unsigned)g.count + P::ROWS - 1) / P::ROWS) * P::ROWS, j0 = next_of(P::TILES_J) * P::TILE_J;
        const int l0 = next_of(P::TILES_L) * P::TILE_L, i = next_of(P::A), group = (int)block;
        const int rows = min((int)g.count - n0, P::ROWS), outputs = min(P::B - j0, P::TILE_J), deep = min(P::D - l0, P::TILE_L);
        const T* const w = (const T*)g.weight + group * g.wg + i * g.wi + (P::ALONG ? (i64)j0 * W_ROW : (i64)j0 * P::D) + l0;
        const T* const x = (const T*)g.x + group * g.xg + n0 * g.xn + (i64)i * P::C * P::D + l0;
        const int w_rows = P::ALONG ? outputs : P::DEPTH;
        ptx::griddepcontrol_launch_dependents();
        if constexpr (P::BULK) {
            if (threadIdx.x < P::STAGES) ptx::mbarrier_init(full(threadIdx.x), w_rows + rows);
            ptx::fence_mbarrier_init();
            __syncthreads();
        }
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int k = k_of(quad, e), own = lane / 4;
            const int row = P::ALONG ? own : k, position = P::ALONG ? k : own;
            // Runs of positions 8 and 16 further begin alike in their 16 bytes.
            const int w_shift = (int)((size_t)(w + (row * W_ROW + (P::FULL ? 0 : position * P::D))) & 15);
            const int x_shift = (int)((size_t)(x + (own * g.xn + (P::FULL ? 0 : k * P::D))) & 15);
            w_at[e] = row * P::W_PITCH + position * P::STEP + w_shift;
            x_at[e] = own * P::X_PITCH + k * P::STEP + x_shift;
        }
        clear(sum);
        ptx::griddepcontrol_wait();
        CopyPipeline<P::STAGES> filled;
        PipelineState<P::STAGES> used;
        int chunk = rank;
        auto issue = [&] {
            if (chunk < P::CHUNKS) {
                unsigned char* const to = shared + filled.stage * P::STAGE;
                const int k = chunk * P::DEPTH, left = P::C - k;
                const T *const from = w + (P::ALONG ? (i64)k * P::D : (i64)k * W_ROW), *const x_from = x + k * P::D;
                if (by_engine(chunk)) {
                    copy_runs(to, from, x_from, w_rows, rows, outputs, full(filled.stage));
                } else {
                    copy<P::W_ROWS, P::W_POSITIONS, P::W_PITCH>(to, from, W_ROW, P::ALONG ? outputs : left, P::ALONG ? left : outputs, deep);
                    copy<P::ROWS, P::DEPTH, P::X_PITCH>(to + P::W_STAGE, x_from, g.xn, rows, left, deep);
                }
                filled.advance();
                chunk += P::CLUSTER;
            }
            filled.commit();
        };
#pragma unroll 1
        for (int s = 0; s < P::STAGES - 1; ++s) issue();
#pragma unroll 1
        for (int due = rank; due < P::CHUNKS; due += P::CLUSTER) {
            if (by_engine(due)) ptx::mbarrier_wait_parity(full(used.stage), used.phase);
            filled.wait();
            __syncthreads();
            issue();
#pragma unroll
            for (int q = 0; q < P::OWN_L; ++q) {
                const int unit = warp_l + q * P::WARPS_L;
                if (P::UNITS % P::WARPS_L == 0 || unit < P::UNITS) multiply(sum[q], shared + used.stage * P::STAGE, unit, warp_j);
            }
            used.advance();
        }
        T* const y = (T*)g.y + group * g.yg + n0 * g.yn;
        const T* const bias = (const T*)g.bias + group * g.bg;
        const i64 begin = ((i64)i * P::B + j0) * P::D + l0;
        if constexpr (P::DIRECT) {
            const bool paired = g.yn == 1 && ((size_t)y | (size_t)(g.yf * SIZE)) % (2 * SIZE) == 0;
            each_sum(warp_l, warp_j, [&](int n, int j, int l, float one, float other) {
                if (j >= outputs || l >= deep || n >= rows) return;
                const i64 feature = begin + j * P::D + l;
                const float offset = P::BIAS ? convert<float>(bias[feature]) : 0.0f;
                T* const to = y + n * g.yn + feature * g.yf;
                const Pack<T, 2> both = {{Store<T>::from(activated<P::ACTIVATION>(one + offset)), Store<T>::from(activated<P::ACTIVATION>(other + offset))}};
                if (paired && n + 1 < rows) {
                    *(Pack<T, 2>*)to = both;
                } else {
                    to[0] = both.v[0];
                    if (n + 1 < rows) to[g.yn] = both.v[1];
                }
            });
        } else {
            float* const sums = (float*)(shared + P::STAGES * P::STAGE);
            each_sum(warp_l, warp_j, [&](int n, int j, int l, float one, float other) { sums[index_of(n, j, l)] = one, sums[index_of(n + 1, j, l)] = other; });
            if constexpr (P::CLUSTER > 1) {
                __syncwarp();
                ptx::cluster_arrive();
                ptx::cluster_wait();
            } else {
                __syncthreads();
            }
            store(sums, y, bias, rank, rows, outputs, deep, begin);
            if constexpr (P::CLUSTER > 1) {
                __syncwarp();
                ptx::cluster_arrive();
                ptx::cluster_wait();  // others may still read what this block has
            }
        }
    }

    // Gives the sums of this lane: of rows n and n + 1, output j and value l of the block.
    template <class Put>
    KM_DEVICE void each_sum(int warp_l, int warp_j, Put put) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int q = 0; q < P::OWN_L; ++q) {
            const int unit = warp_l + q * P::WARPS_L;
            if (P::UNITS % P::WARPS_L != 0 && unit >= P::UNITS) continue;
#pragma unroll
            for (int l = 0; l < V; ++l)
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int t = 0; t < N; ++t)
#pragma unroll
                        for (int half = 0; half < 2; ++half)
                            put(8 * t + 2 * (lane % 4), 16 * (M * warp_j + m) + lane / 4 + 8 * half, unit * V + l, sum[q][l][m][t][2 * half], sum[q][l][m][t][2 * half + 1]);
        }
    }

    // The sum of all blocks of the cluster.
    static KM_DEVICE float total_of(const float* sum) {
        if constexpr (P::CLUSTER == 1) return *sum;
        float total = 0.0f;
#pragma unroll
        for (int other = 0; other < P::CLUSTER; ++other) total += ptx::ld_shared_cluster(ptx::mapa(shared_address(sum), other));
        return total;
    }

    // Stores this block's share of the results.
    KM_DEVICE void store(const float* sums, T* y, const T* bias, int rank, int rows, int outputs, int deep, i64 begin) const {
        auto put = [&](const float* sum, int n, int at) {
            const int j = P::FULL ? 0 : at / P::TILE_L, l = P::FULL ? at : at % P::TILE_L;
            if (!P::FULL && l >= deep) return;
            const i64 feature = begin + j * P::D + l;
            const float offset = P::BIAS ? convert<float>(bias[feature]) : 0.0f;
            y[n * g.yn + feature * g.yf] = Store<T>::from(activated<P::ACTIVATION>(total_of(sum) + offset));
        };
        const int features = outputs * P::TILE_L;
        if constexpr (P::LAST) {
#pragma unroll 4
            for (int e = rank * P::THREADS + threadIdx.x; e < features * P::ROWS; e += P::CLUSTER * P::THREADS)
                if (e % P::ROWS < rows) put(sums + e, e % P::ROWS, e / P::ROWS);
        } else {
#pragma unroll 1
            for (int n = rank; n < rows; n += P::CLUSTER)
#pragma unroll 4
                for (int at = threadIdx.x; at < features; at += P::THREADS) put(sums + (n * P::TILE_J * P::TILE_L + at), n, at);
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_stream_mma(const KronSparse& g) {
    extern __shared__ __align__(128) unsigned char stages[];
    KronSparseStreamMma<P> own = {g, stages};
    own.run();
}

}  // namespace km

// Gradients of the weights of Kronecker-sparse products, sums over the batch in tiles of the weights:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// in parts of the batch (split-K) that are added later.
//
// A block takes one tile after the other, and copies the first stages of the next while it multiplies what is left of one; where
// sums are long it has one tile (ALONE). The sums of a tile are brought together in shared memory, so that neighbours in memory are
// written together.
#pragma once
#include "kronsparse_fragments.cuh"
#include "pipeline.cuh"

namespace km {

// Pointers and extents of a launch, and strides: of groups, and of what is copied as it lies, rows or features.
struct KronSparseSums {
    const void *x, *grad;
    void* out;
    i64 count;
    int groups, a, b, c, d, slots;
    i64 xg, xs, yg, ys;
};

// The extents of a tile, from a struct of its parameters: see kronsparse_column_sums.cuh, kronsparse_row_sums.cuh and kronsparse_block_sums.cuh.
template <class Traits>
struct KronSparseSumTile : Traits {
    using typename Traits::T;
    using Traits::TILE_L, Traits::MMA_M, Traits::WARPS_J, Traits::MMA_N, Traits::WARPS_K, Traits::STAGES;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int SIZE = sizeof(T), WARPS = Traits::WARPS_L * WARPS_J * WARPS_K, THREADS = 32 * WARPS;
    static constexpr int WARP_J = 16 * MMA_M, WARP_K = 8 * MMA_N, TILE_J = WARP_J * WARPS_J, TILE_K = WARP_K * WARPS_K;
    // Fragments of k whose products are under way together.
    static constexpr int BATCH = MMA_N < 4 ? MMA_N : 4;
    static_assert(MMA_N % BATCH == 0, "whole batches");
    // The sums of 16 columns and WRITE_N fragments of every warp before they are written, in rows that begin in different banks.
    static constexpr int WRITE_K = 8 * Traits::WRITE_N, RUN = WARPS_K * WRITE_K * TILE_L, RUN_PITCH = RUN + 1;
    static constexpr int WRITTEN_BYTES = (16 * WARPS_J * RUN_PITCH * 4 + 15) / 16 * 16;
    // Bytes between columns of sums of a tile as the copy engine writes them, which begin in their 16 bytes as in memory, and in different
    // banks, and those of all.
    static constexpr int ROW_PITCH = (TILE_K * TILE_L * (int)sizeof(typename Traits::OUT) + 127) / 128 * 128 + 16, ROWS_BYTES = TILE_J * ROW_PITCH;
    // Bytes of shared memory beside a ring of so many, and where sums are before they are written.
    static constexpr int shared_bytes(int staged) { return Traits::ALONE ? (staged < WRITTEN_BYTES ? WRITTEN_BYTES : staged) : staged + WRITTEN_BYTES; }
    static constexpr int written_at(int staged) { return Traits::ALONE ? 0 : staged; }
};

// Where a tile begins.
struct KronSparseSumOrigin {
    int group, i, j, k, l, slot;
};

// What a block does for one tile after the other; Own copies (issue), begins a tile (begin), multiplies (multiply) and has its sums (each).
template <class P, class Own>
struct KronSparseSumBlock {
    typedef CopyPipeline<P::STAGES> Pipeline;
    const KronSparseSums& g;
    unsigned char* shared;
    int lane, warp_l, warp_j, warp_k;

    __device__ __forceinline__ KronSparseSumBlock(const KronSparseSums& arguments, unsigned char* memory, int l)
        : g(arguments), shared(memory), lane(threadIdx.x % 32), warp_l(l) {
        const int warp = threadIdx.x / 32;
        warp_j = warp / P::WARPS_L % P::WARPS_J, warp_k = warp / (P::WARPS_L * P::WARPS_J);
    }

    __device__ __forceinline__ int tiles() const {
        const int across = (g.c + P::TILE_K - 1) / P::TILE_K, down = (g.b + P::TILE_J - 1) / P::TILE_J, deep = (g.d + P::TILE_L - 1) / P::TILE_L;
        return g.groups * g.a * across * down * deep;
    }

    // Where the tile of an item begins; items are the tiles of the first part of the batch, then those of the next.
    __device__ __forceinline__ KronSparseSumOrigin origin_of(unsigned item) const {
        const unsigned across = (g.c + P::TILE_K - 1) / P::TILE_K, down = (g.b + P::TILE_J - 1) / P::TILE_J, deep = (g.d + P::TILE_L - 1) / P::TILE_L;
        KronSparseSumOrigin at;
        at.k = (int)(item % across) * P::TILE_K, item /= across;
        at.j = (int)(item % down) * P::TILE_J, item /= down;
        at.l = (int)(item % deep) * P::TILE_L, item /= deep;
        at.i = (int)(item % (unsigned)g.a), item /= (unsigned)g.a;
        at.group = (int)(item % (unsigned)g.groups), at.slot = (int)(item / (unsigned)g.groups);
        return at;
    }

    // Writes the sums of a tile, 16 columns and WRITE_N fragments of k of every warp at a time.
    __device__ __forceinline__ void write(const KronSparseSumOrigin& at, const Own& own) const {
        typedef typename P::OUT Out;
        // A thread has neighbours of some rows, and these of as many rows as come round.
        constexpr int ALONG = P::RUN < P::THREADS ? P::RUN : P::THREADS, ROWS_AT_ONCE = P::THREADS / ALONG;
        float* const rows = (float*)(shared + P::written_at(P::STAGES * P::STAGE));
        Out* const out = (Out*)g.out + (((i64)at.slot * g.groups + at.group) * g.a + at.i) * g.b * g.c * g.d;
        const int first = threadIdx.x / ALONG, apart = g.c * g.d;
        if (P::ALONE) __syncthreads();
#pragma unroll
        for (int m = 0; m < P::MMA_M; ++m)
#pragma unroll
            for (int t0 = 0; t0 < P::MMA_N; t0 += P::WRITE_N) {
#pragma unroll
                for (int t = 0; t < P::WRITE_N; ++t)
                    own.each(m, t0 + t, [&](int r, int l, float value) {
                        const int row = 16 * warp_j + lane / 4 + r / 2 * 8, k = warp_k * P::WRITE_K + P::position_of(t, 2 * (lane % 4) + r % 2);
                        rows[row * P::RUN_PITCH + k * P::TILE_L + l] = value;
                    });
                __syncthreads();
#pragma unroll 1
                for (int begin = 0; begin < P::RUN; begin += ALONG) {
                    const int along = begin + threadIdx.x % ALONG, own_k = along / P::TILE_L, l = at.l + along % P::TILE_L;
                    const int k = at.k + own_k / P::WRITE_K * P::WARP_K + 8 * t0 + own_k % P::WRITE_K;
                    if (first >= ROWS_AT_ONCE || along >= P::RUN || k >= g.c || l >= g.d) continue;
                    Out* const to = out + ((i64)k * g.d + l);
#pragma unroll 4
                    for (int row = first; row < 16 * P::WARPS_J; row += ROWS_AT_ONCE) {
                        const int j = at.j + row / 16 * P::WARP_J + P::column_of(2 * m + row / 8 % 2, row % 8);
                        if (j < g.b) to[(i64)j * apart] = Store<Out>::from(rows[row * P::RUN_PITCH + along]);
                    }
                }
                __syncthreads();
            }
    }

    // The sums of the first position of a tile's column `row` in memory, and in shared memory before they are written there.
    __device__ __forceinline__ typename P::OUT* column_of(const KronSparseSumOrigin& at, int row) const {
        return (typename P::OUT*)g.out + (((((i64)at.slot * g.groups + at.group) * g.a + at.i) * g.b + at.j + row) * g.c + at.k) * g.d;
    }
    __device__ __forceinline__ unsigned char* column_at(const KronSparseSumOrigin& at, int row) const {
        return shared + P::STAGES * P::STAGE + row * P::ROW_PITCH + ((size_t)column_of(at, row) & 15);
    }

    // Puts neighbouring l of position k of a column there.
    template <int COUNT>
    static __device__ __forceinline__ void put_run(unsigned char* column, int k, int l, const float (&own)[COUNT]) {
        typedef typename P::OUT Out;
        constexpr int EACH = 16 / sizeof(Out), VECTOR = COUNT < EACH ? COUNT : EACH;
#pragma unroll
        for (int begin = 0; begin < COUNT; begin += VECTOR) {
            Pack<Out, VECTOR> pack;
#pragma unroll
            for (int e = 0; e < VECTOR; ++e) pack.v[e] = Store<Out>::from(own[begin + e]);
            *(Pack<Out, VECTOR>*)(column + (k * P::TILE_L + l + begin) * (int)sizeof(Out)) = pack;
        }
    }

    // Writes the columns of a tile by the copy engine, all positions k at once; what is no whole 16 bytes, by threads.
    __device__ __forceinline__ void write_columns(const KronSparseSumOrigin& at) const {
        typedef typename P::OUT Out;
        constexpr int EACH = 16 / sizeof(Out);
        ptx::fence_proxy_async();
        __syncthreads();
        const int columns = g.b - at.j < P::TILE_J ? g.b - at.j : P::TILE_J, positions = g.c - at.k < P::TILE_K ? g.c - at.k : P::TILE_K;
        const int bytes = positions * P::TILE_L * (int)sizeof(Out);
#pragma unroll 1
        for (int row = threadIdx.x / 32; row < columns; row += P::WARPS) {
            unsigned char* const to = (unsigned char*)column_of(at, row);
            const unsigned char* const from = column_at(at, row);
            const int space = -(int)(size_t)to & 15, head = space < bytes ? space : bytes, body = bytes - head & ~15;
            if (lane == 0 && body > 0) ptx::cp_async_bulk_store(to + head, shared_address(from + head), body);
            const int end = lane < EACH ? lane * (int)sizeof(Out) : head + body + (lane - EACH) * (int)sizeof(Out);
            if (lane < EACH ? end < head : lane < 2 * EACH && end < bytes) *(Out*)(to + end) = *(const Out*)(from + end);
        }
        ptx::cp_async_bulk_commit_group();
    }

    __device__ __forceinline__ void run() {
        Own& own = static_cast<Own&>(*this);
        const unsigned items = (unsigned)(tiles() * g.slots);
        const i64 chunks = (g.count + P::DEPTH - 1) / P::DEPTH, each = (chunks + g.slots - 1) / g.slots;
        auto end_of = [&](int slot) { return (slot + 1) * each < chunks ? (slot + 1) * each : chunks; };
        Pipeline filled, used;
        unsigned ahead = blockIdx.x;
        KronSparseSumOrigin to_fill = origin_of(ahead);
        i64 next = to_fill.slot * each, last = end_of(to_fill.slot);
        auto issue = [&] {
            if (P::ALONE && next >= last) ahead = items;
            while (!P::ALONE && next >= last && ahead < items) {
                ahead += gridDim.x;
                to_fill = origin_of(ahead);
                next = to_fill.slot * each, last = end_of(to_fill.slot);
            }
            if (ahead < items) {
                own.issue(shared + filled.stage * P::STAGE, to_fill, next);
                ++next;
                filled.advance();
            }
            Pipeline::commit();
        };
#pragma unroll 1
        for (int s = 0; s < P::STAGES - 1; ++s) issue();
#pragma unroll 1
        for (unsigned item = blockIdx.x; item < items; item = P::ALONE ? items : item + gridDim.x) {
            const KronSparseSumOrigin at = origin_of(item);
            own.begin(at);
            const i64 end = end_of(at.slot);
#pragma unroll 1
            for (i64 chunk = at.slot * each; chunk < end; ++chunk) {
                Pipeline::wait();
                __syncthreads();
                issue();
#pragma unroll 1
                for (int step = 0; step < P::STEPS; ++step) own.multiply(shared + used.stage * P::STAGE, step);
                used.advance();
            }
            write(at, own);
        }
    }
};

}  // namespace km

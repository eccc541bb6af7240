// The part of a Kronecker-sparse product that a block and a warp compute, and the copies of its operands to shared memory.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

template <class P>
struct KronSparseOperands {
    typedef typename P::T T;
    static constexpr int TILE_L = P::TILE_L, WARP_M = P::WARP_M, SIZE = P::SIZE;
    static __device__ __forceinline__ int ceil_div(int p, int q) { return (p + q - 1) / q; }

    const KronSparse& g;
    int chunks, i, j0, l0, group;
    const T* x;
    T* y;
    unsigned char *x_smem, *weights_smem;
    float *scales, *biases;
    int lane, pipeline_index, part, side, member;

    __device__ __forceinline__ KronSparseOperands(const KronSparse& arguments, unsigned char* shared) : g(arguments) {
        const int across = ceil_div(g.b, P::TILE_N), deep = ceil_div(g.d, TILE_L), own = blockIdx.x % (gridDim.x / (unsigned)g.slots);
        chunks = ceil_div(g.c, P::TILE_K);
        j0 = own % across * P::TILE_N;
        l0 = own / across % deep * TILE_L;
        i = own / (across * deep) % g.a;
        group = own / (across * deep * g.a);
        lane = threadIdx.x % 32;
        const int warp = P::UNIFORM ? __shfl_sync(0xffffffffu, threadIdx.x / 32, 0) : threadIdx.x / 32, in = P::GROUPED ? 4 : 1;
        const int share = warp / in % (P::WARPS_L * P::WARPS_N);
        part = share % P::WARPS_L;
        side = share / P::WARPS_L;
        pipeline_index = warp % in + warp / in / (P::WARPS_L * P::WARPS_N) * in;
        // Of the thread's number, not the uniform one of the warp: addresses of a sum of both take more registers (decision 0149).
        member = 32 * (threadIdx.x / (32 * in) % (P::WARPS_L * P::WARPS_N)) + lane;
        scales = (float*)shared;
        biases = scales + TILE_L * P::TILE_N;
        weights_smem = shared + P::TABLE_BYTES;
        x_smem = weights_smem + (P::RESIDENT ? chunks : P::STAGES) * P::CHUNK + pipeline_index * P::STAGES * P::STAGE;
        x = (const T*)g.x + group * g.xg + ((i64)i * g.c * g.d + l0) * g.xf;
        y = (T*)g.y + group * g.yg + ((i64)i * g.b * g.d + l0) * g.yf;
    }

    // Copies BYTES of which `valid` are there.
    template <int BYTES>
    static __device__ __forceinline__ void copy(unsigned char* to, const T* from, int valid) {
        if (BYTES >= 4) {
            ptx::cp_async_l2_128<BYTES < 4 ? 4 : BYTES>(shared_address(to), from, valid);
        } else {
            *(unsigned short*)to = valid ? *(const unsigned short*)from : 0;
        }
    }

    // How many halves of a word are before that of row n and position k of x, and of column j and l of the result.
    __device__ __forceinline__ int before_x(int n, int k) const {
        return (int)((size_t)x / SIZE + (unsigned)n * (unsigned)g.xn + (unsigned)k * (unsigned)(g.d * g.xf)) & 1;
    }
    __device__ __forceinline__ int before_y(int n, int j, int l) const {
        return (int)((size_t)y / SIZE + (unsigned)n * (unsigned)g.yn + (unsigned)(j * g.d + l) * (unsigned)g.yf) & 1;
    }

    // Rows n0 .. and chunk `at` of k to a stage.
    __device__ __forceinline__ void fetch_x(i64 n0, int at, int stage) const {
        const int k0 = at * P::TILE_K;
        if (n0 + WARP_M <= g.count && k0 + P::TILE_K <= g.c && (P::FULL || !P::X_FIRST || l0 + TILE_L <= g.d))
            copy_rows<true>(n0, k0, stage);
        else
            copy_rows<false>(n0, k0, stage);
    }

    // Copies a stage, whose rows are rows of x (X_FIRST) or positions of k; LANES lanes share one. INSIDE: no edge is reached.
    template <bool INSIDE>
    __device__ __forceinline__ void copy_rows(i64 n0, int k0, int stage) const {
        constexpr int BYTES = P::SHIFTED ? 4 : P::X_BYTES, EACH = BYTES / SIZE, PIECES = (P::X_FIRST ? P::TILE_K * TILE_L : WARP_M) / EACH, STAGE_ROWS = P::X_FIRST ? WARP_M : P::TILE_K;
        constexpr int LANES = common(PIECES, P::PIPELINE_THREADS), ROWS_AT_ONCE = P::PIPELINE_THREADS / LANES;
        const int row0 = member / LANES, position0 = member % LANES * EACH;
        const i64 apart = P::X_FIRST ? g.xn : g.d * g.xf;
        const T* from = x + (P::X_FIRST ? n0 * g.xn + (i64)k0 * g.d : n0 + (i64)k0 * g.d * g.xf) + row0 * apart;
        unsigned char* const to = x_smem + stage * P::STAGE;
#pragma unroll
        for (int row = 0; row < STAGE_ROWS; row += ROWS_AT_ONCE, from += ROWS_AT_ONCE * apart) {
            if (STAGE_ROWS % ROWS_AT_ONCE != 0 && row0 + row >= STAGE_ROWS) break;
            const int shift = P::SHIFTED ? shift_of(row0 + row) : 0;
#pragma unroll
            for (int piece = 0; piece < PIECES; piece += LANES) {
                const int position = position0 + piece * EACH, along = P::X_FIRST && !P::FULL ? position / TILE_L * g.d + position % TILE_L : position;
                unsigned char* const put = to + stage_offset<P>(row0 + row, position * SIZE);
                if (INSIDE) {
                    copy<BYTES>(put, from + along - shift, BYTES);
                } else {
                    const int left = edge(n0, k0, row0 + row, position, shift), valid = left <= 0 ? 0 : left < EACH ? left : EACH;
                    copy<BYTES>(put, valid ? from + along - shift : x - (P::SHIFTED ? before_x(0, 0) : 0), valid * SIZE);
                }
            }
        }
        if constexpr (P::SHIFTED) {
            // The last number of a row that begins between words.
            constexpr int LAST = P::ROW - 1;
            const T* const last = x + (P::X_FIRST ? n0 * g.xn + (i64)k0 * g.d : n0 + (i64)k0 * g.d * g.xf) + LAST;
            for (int row = member; row < STAGE_ROWS; row += P::PIPELINE_THREADS)
                if (shift_of(row)) {
                    const bool valid = INSIDE || edge(n0, k0, row, LAST, 0) > 0;
                    copy<4>(to + stage_offset<P>(row, P::ROW * SIZE), valid ? last + row * apart : x - before_x(0, 0), valid ? SIZE : 0);
                }
        }
    }

    // The same of a row of the stage; stages begin at even rows of x and positions of k.
    __device__ __forceinline__ int shift_of(int row) const { return P::X_FIRST ? before_x(row, 0) : before_x(0, row); }

    // How many numbers of a row of the stage, from `shift` before an index on, are inside the array.
    __device__ __forceinline__ int edge(i64 n0, int k0, int row, int position, int shift) const {
        const int rows = g.count - n0 < WARP_M ? (int)(g.count - n0) : WARP_M;
        if (!P::X_FIRST) return k0 + row < g.c ? rows - position + shift : 0;
        if (P::FULL) return row < rows ? (g.c - k0) * TILE_L - position + shift : 0;
        return row < rows && k0 + position / TILE_L < g.c ? g.d - l0 - position % TILE_L + shift : 0;
    }

    // Where a chunk of weights is.
    __device__ __forceinline__ const unsigned char* packed(int at) const {
        const unsigned own = blockIdx.x % (gridDim.x / (unsigned)g.slots);
        return (const unsigned char*)g.packed + ((i64)own * chunks + at) * P::CHUNK;
    }
    // A chunk to a place of the held ones, by all threads.
    __device__ __forceinline__ void fetch_weights(int at, int position) const {
        const unsigned char* from = packed(at);
#pragma unroll 4
        for (int to = 16 * threadIdx.x; to < P::CHUNK; to += 16 * P::THREADS) ptx::cp_async<16>(shared_address(weights_smem + position * P::CHUNK + to), from + to);
    }

    // The same by one thread, which the barrier counts.
    __device__ __forceinline__ void copy_weights(int at, int position, unsigned full) const {
        ptx::mbarrier_arrive_expect_tx(full, P::CHUNK);
        ptx::cp_async_bulk(shared_address(weights_smem + position * P::CHUNK), packed(at), P::CHUNK, full);
    }

    // Power of two that undoes the scale of each column (NaN: its weights are not finite), and the bias.
    __device__ __forceinline__ void fill_table() {
        const int padded = ceil_div(g.b, P::TILE_N) * P::TILE_N, deep = ceil_div(g.d, TILE_L) * TILE_L;
        for (int at = threadIdx.x; at < TILE_L * P::TILE_N; at += P::THREADS) {
            const int l = at / P::TILE_N, j = j0 + at % P::TILE_N;
            const bool inside = j < g.b && l0 + l < g.d;
            scales[at] = !P::SPLIT ? 1.0f : g.scale[(((i64)group * g.a + i) * deep + l0 + l) * padded + j];
            if (P::BIAS) biases[at] = inside ? convert<float>(((const T*)g.bias)[group * g.bg + ((i64)i * g.b + j) * g.d + l0 + l]) : 0.0f;
        }
    }
};

}  // namespace km

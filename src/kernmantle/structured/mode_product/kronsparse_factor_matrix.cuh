// The matrix of two Kronecker-sparse factors, (BLOCKS, WIDE, DEPTH, 1) and then (1, B, BLOCKS RANK, L) with WIDE = RANK L:
//   matrix[(j, l), (o, c)] = sum over r of second[j, o RANK + r, l] first[o, r L + l, c].
// A block makes a tile of 128 rows and 64 columns. For halves.
#pragma once
#include "kronsparse_tile.cuh"
#include "layout.cuh"
#include "pipeline.cuh"

namespace km {

// What both kernels share, for tiles of 16 rows a warp, from a struct of parameters:
//   T                          type of arrays
//   B, BLOCKS, RANK, L, DEPTH  as above
template <class P>
struct KronSparseFactorMatrix : P {
    using typename P::T;
    using P::L, P::RANK, P::BLOCKS, P::B, P::DEPTH;
    static constexpr int WARPS = 8, THREADS = 32 * WARPS, TILE = 16 * WARPS, EDGE = 64, WIDE = RANK * L, TILE_J = TILE / L;
    static constexpr int FEATURES = B * L, COLUMNS = BLOCKS * DEPTH, TILES = (B + TILE_J - 1) / TILE_J;
    static_assert((L == 1 || L == 2 || L == 4) && RANK % 16 == 0 && DEPTH % EDGE == 0 && FEATURES % 8 == 0, "whole fragments");
    // Bytes of 64 columns of a block of the first factor, of the second factor's rows of a tile with their pitch, and of 128
    // rows of 64 halves.
    static constexpr int PITCH = 2 * WIDE + 16, FIRST_BYTES = WIDE * 128, SECOND_BYTES = TILE_J * PITCH, ROWS_BYTES = TILE * 128;
    static constexpr int SHARED_BYTES = ROWS_BYTES + FIRST_BYTES + SECOND_BYTES;

    // Where a lane finds the piece of a row of the first factor, and of one of rows j whose l lie next to one another.
    static KM_DEVICE int first_at(int r, int l, int piece) { return (r * L + l) * 128 + swizzle_128(r, piece); }
    static KM_DEVICE int row_at(int j, int l, int piece) { return (j * L + l) * 128 + swizzle_128(j, piece); }

    static KM_DEVICE void fetch_first(unsigned to, const void* first, int o, int c) {
        const T* const from = (const T*)first + (i64)o * WIDE * DEPTH + c;
#pragma unroll 1
        for (int i = threadIdx.x; i < WIDE * 8; i += THREADS) {
            const int row = i / 8, piece = i % 8;
            ptx::cp_async<16>(to + first_at(row / L, row % L, piece), from + row * DEPTH + piece * 8);
        }
    }
    static KM_DEVICE void fetch_second(unsigned to, const void* second, int j, int o) {
        const T* const from = (const T*)second + (i64)o * WIDE;
#pragma unroll 1
        for (int i = threadIdx.x; i < TILE_J * (WIDE / 8); i += THREADS) {
            const int row = i / (WIDE / 8), piece = i % (WIDE / 8), there = min(j + row, B - 1);
            ptx::cp_async<16>(to + row * PITCH + piece * 16, from + (i64)there * BLOCKS * WIDE + piece * 8, j + row < B ? 16 : 0);
        }
    }
    // Neighbours r and r + 1 of one l.
    static KM_DEVICE unsigned second_word(const unsigned char* row, int r, int l) {
        const unsigned char* const at = row + r * L * 2;
        if constexpr (L == 1) return *(const unsigned*)at;
        if constexpr (L == 2) {
            const uint2 both = *(const uint2*)at;
            return __byte_perm(both.x, both.y, l ? 0x7632 : 0x5410);
        } else {
            const uint4 all = *(const uint4*)at;
            return __byte_perm(l < 2 ? all.x : all.y, l < 2 ? all.z : all.w, l % 2 ? 0x7632 : 0x5410);
        }
    }
    static KM_DEVICE unsigned halves_of(float low, float high) {
        return (unsigned)Store<T>::from(low).bits | (unsigned)Store<T>::from(high).bits << 16;
    }
    // A tile of the matrix in shared memory: a warp has 16 rows j of one l.
    static KM_DEVICE void make(unsigned char* to, unsigned first, const unsigned char* second) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, l = warp % L, j = warp / L * 16 + lane / 4;
#pragma unroll 1
        for (int begin = 0; begin < 8; begin += 4) {
            float sum[4][4];
            clear(sum);
#pragma unroll
            for (int step = 0; step < RANK / 16; ++step) {
                unsigned left[4];
#pragma unroll
                for (int e = 0; e < 4; ++e) left[e] = second_word(second + (j + e % 2 * 8) * PITCH, step * 16 + e / 2 * 8 + lane % 4 * 2, l);
#pragma unroll
                for (int t = 0; t < 4; t += 2) {
                    unsigned right[4];
                    ptx::ldmatrix_x4_trans(right, first + first_at(step * 16 + lane % 16, l, begin + t + lane / 16));
                    ptx::mma_m16n8k16<T>(sum[t], left, right[0], right[1]);
                    ptx::mma_m16n8k16<T>(sum[t + 1], left, right[2], right[3]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned char* const own = to + ((j + 8 * half) * L + l) * 128 + lane % 4 * 4;
#pragma unroll
                for (int t = 0; t < 4; ++t) *(unsigned*)(own + swizzle_128(lane / 4, begin + t)) = halves_of(sum[t][2 * half], sum[t][2 * half + 1]);
            }
        }
    }
    // Stores it as 128 rows from f on, 64 columns from c on.
    static KM_DEVICE void store_tile(void* matrix, const unsigned char* from, int f, int c) {
        const int first = threadIdx.x / 8, piece = threadIdx.x % 8;  // rows 32 apart have their pieces in one order
        const unsigned char* const own = from + first * 128 + swizzle_128(first / L, piece);
        T* const to = (T*)matrix + (i64)(f + first) * COLUMNS + c + piece * 8;
#pragma unroll
        for (int row = 0; row < TILE; row += THREADS / 8)
            if (f + first + row < FEATURES) *(uint4*)(to + (i64)row * COLUMNS) = *(const uint4*)(own + row * 128);
    }
};

// The matrix alone: a block has a tile.
template <class P>
__device__ __forceinline__ void kron_sparse_factor_matrix(const void* first, const void* second, void* matrix) {
    typedef KronSparseFactorMatrix<P> M;
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned base = shared_address(shared);
    const int tile = blockIdx.x % M::TILES, c = blockIdx.x / M::TILES * M::EDGE, o = c / M::DEPTH;
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
    M::fetch_first(base + M::ROWS_BYTES, first, o, c % M::DEPTH);
    M::fetch_second(base + M::ROWS_BYTES + M::FIRST_BYTES, second, tile * M::TILE_J, o);
    ptx::cp_async_wait_all();
    __syncthreads();
    M::make(shared, base + M::ROWS_BYTES, shared + M::ROWS_BYTES + M::FIRST_BYTES);
    __syncthreads();
    M::store_tile(matrix, shared, tile * M::TILE, c);
}

}  // namespace km

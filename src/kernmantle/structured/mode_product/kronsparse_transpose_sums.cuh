// Transposes squares of rows as kron_sparse_transpose_squares does, and sums the rows on the way: the gradient of a bias costs no pass
// of its own over the gradient of a product.
//
// A warp keeps its squares of a row and goes through rows, so that a thread sums 16 bytes by 16 bytes of them in registers. Warps of a
// block that have the same squares add their sums in shared memory, in the order of their rows; a block writes one row of sums.
#pragma once
#include "kronsparse_transpose.cuh"

namespace km {

// The parameters of a kernel, members of P:
//   T                  type of a number, of 2 or 4 bytes
//   DOWN               lanes that write neighbouring 16 bytes
//   WARPS, TILES       warps of a block, and neighbouring tiles of squares that they have; TILES divides WARPS
template <class P>
struct KronSparseTransposeSums {
    typedef typename P::T T;
    static constexpr int N = 16 / sizeof(T), DOWN = P::DOWN, ALONG = 32 / DOWN, ROWS = P::WARPS / P::TILES, SLOT = 32 * N;
    static_assert(P::WARPS % P::TILES == 0, "warps of a block have as many rows each");
    static constexpr int SHARED_BYTES = ROWS > 1 ? P::WARPS * SLOT * 4 : 0;

    static KM_DEVICE void run(const KronSparseTranspose& g, float* sums) {
        extern __shared__ __align__(16) unsigned char shared[];
        float* const slots = (float*)shared;
        const int down = (g.high + N * DOWN - 1) / (N * DOWN), across = (g.pitch + N * ALONG - 1) / (N * ALONG);
        const int tiles = g.a * down * across, sets = (tiles + P::TILES - 1) / P::TILES;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, set = blockIdx.x % sets, part = blockIdx.x / sets;
        const int index = set * P::TILES + warp % P::TILES, tile = index % (down * across);
        const int k = (tile / across * DOWN + lane % DOWN) * N, l = (tile % across * ALONG + lane / DOWN) * N;
        const bool present = index < tiles && k < g.high && l < g.pitch;
        const i64 own = (i64)(index / (down * across)) * g.high * g.pitch, from = own + (i64)k * g.pitch + l;
        const i64 to = own + (i64)l * g.high + k, step = (i64)(gridDim.x / sets) * ROWS;
        float total[N][N] = {};
        if (present)
#pragma unroll 1
            for (i64 n = (i64)part * ROWS + warp / P::TILES; n < g.count; n += step) {
                uint4 v[N];
#pragma unroll
                for (int i = 0; i < N; ++i) v[i] = __ldcs((const uint4*)((const T*)g.x + n * g.xn + from + (i64)i * g.pitch));
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    const auto numbers = bit_cast<Pack<T, N>>(v[i]);
#pragma unroll
                    for (int j = 0; j < N; ++j) total[i][j] += convert<float>(numbers.v[j]);
                }
                transpose(v);
#pragma unroll
                for (int i = 0; i < N; ++i) *(uint4*)((T*)g.y + n * g.yn + to + (i64)i * g.high) = v[i];
            }
        float* const result = sums + (i64)part * g.a * g.high * g.pitch + from;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (ROWS > 1) {
                if (i) __syncthreads();
#pragma unroll
                for (int j = 0; j < N; ++j) slots[warp * SLOT + j * 32 + lane] = total[i][j];
                __syncthreads();
                if (warp < P::TILES)
#pragma unroll
                    for (int row = 1; row < ROWS; ++row)
#pragma unroll
                        for (int j = 0; j < N; ++j) total[i][j] += slots[(warp + row * P::TILES) * SLOT + j * 32 + lane];
            }
            if (present && warp < P::TILES)
#pragma unroll
                for (int j = 0; j < N; j += 4)
                    *(float4*)(result + (i64)i * g.pitch + j) =
                        make_float4(total[i][j], total[i][j + 1], total[i][j + 2], total[i][j + 3]);
        }
    }
};

}  // namespace km

// Multiplies a chunk of k and adds the products to the sums of a warp: by mma, each warp for itself, or by wgmma, four warps
// together, while the operands of the next products are prepared.
#pragma once
#include "kronsparse_read.cuh"
#include "ptx_wgmma.cuh"

namespace km {

template <class P>
struct KronSparseAdder : KronSparseReader<P> {
    typedef KronSparseReader<P> Own;
    typedef typename Own::Sums Sums;
    typedef typename Own::Bits Bits;
    typedef typename Products<typename P::T>::type H;
    static constexpr int MMA_M = P::MMA_M, WARP_L = P::WARP_L, TILE_L = P::TILE_L, MMA_N = P::MMA_N, MMA_K = P::MMA_K, L_VECTOR = P::L_VECTOR;
    using Own::chunks, Own::x_smem, Own::weights_smem, Own::lane, Own::part, Own::side;
    using Own::read, Own::read_all, Own::join, Own::split_numbers;

    __device__ __forceinline__ KronSparseAdder(const KronSparse& arguments, unsigned char* shared) : Own(arguments, shared) {}

    __device__ __forceinline__ uint4 weights(const unsigned char* from, int step, int l, int t) const {
        return *(const uint4*)(from + (((step * TILE_L + part * WARP_L + l) * (P::SPLIT ? MMA_N : MMA_N / 2) + t) * 32 + lane) * 16);
    }

    // The descriptor of the weights of 16 positions of k and one l.
    __device__ __forceinline__ unsigned long long grouped(const unsigned char* from, int step, int l, int plane) const {
        // Rows of 32 bytes, 16 positions of k, whose halves change places in rows 4 .. 7 of every 8.
        const unsigned address = shared_address(from) + ((step * TILE_L + part * WARP_L + l) * P::PLANES + plane) * P::PLANE + side * 256 * MMA_N;
        return ptx::wgmma_descriptor(address, 16, 256, ptx::WGMMA_SWIZZLE_32);
    }

    // Adds the products of one chunk; false if a number of x was infinite.
    __device__ __forceinline__ bool add(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
        if constexpr (P::SPLIT)
            return add_split(sum, stage, from);
        else if constexpr (P::GROUPED)
            add_halves_grouped(sum, stage, from);
        else
            add_halves(sum, stage, from);
        return true;
    }

    __device__ __forceinline__ void add_halves_grouped(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
#pragma unroll
        for (int l0 = 0; l0 < WARP_L; l0 += L_VECTOR) {
            unsigned left[MMA_K][L_VECTOR][MMA_M][4];
            begin_halves(sum, left, stage, from, l0);
            end_halves(sum);
        }
    }

    // AHEAD: waits for the products that were begun before only after the operands of the next ones are in registers.
    __device__ __forceinline__ void begin_halves(
        Sums& sum, unsigned (&left)[MMA_K][L_VECTOR][MMA_M][4], const unsigned char* stage, const unsigned char* from, int l0 = 0) const {
#pragma unroll
        for (int step = 0; step < MMA_K; ++step) {
            Bits v[MMA_M][2][4][L_VECTOR];
            read(v, stage, step, l0);
#pragma unroll
            for (int l = 0; l < L_VECTOR; ++l) join(left[step][l], v, l);
        }
        if (P::AHEAD) ptx::wgmma_wait_group<0>();
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < MMA_K; ++step)
#pragma unroll
            for (int l = 0; l < L_VECTOR; ++l)
#pragma unroll
                for (int m = 0; m < MMA_M; ++m) ptx::wgmma_rs(H(), sum[m][l0 + l], left[step][l][m], grouped(from, step, l0 + l, 0), 1);
        ptx::wgmma_commit_group();
    }

    __device__ __forceinline__ void end_halves(Sums& sum) const {
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int l = 0; l < WARP_L; ++l)
#pragma unroll
                for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                    for (int r = 0; r < 4; ++r) ptx::fence_operand(sum[m][l][t][r]);
    }

    __device__ __forceinline__ void add_halves(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
#pragma unroll
        for (int step = 0; step < MMA_K; ++step) {
            Bits v[MMA_M][2][4][WARP_L];
            read(v, stage, step, 0);
#pragma unroll
            for (int l = 0; l < WARP_L; ++l) {
                unsigned left[MMA_M][4];
                join(left, v, l);
#pragma unroll
                for (int t = 0; t < MMA_N / 2; ++t) {
                    const uint4 w = weights(from, step, l, t);
#pragma unroll
                    for (int m = 0; m < MMA_M; ++m) {
                        ptx::mma_m16n8k16<H>(sum[m][l][2 * t], left[m], w.x, w.y);
                        ptx::mma_m16n8k16<H>(sum[m][l][2 * t + 1], left[m], w.z, w.w);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ bool add_split(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
        int top = 0;
#pragma unroll
        for (int l0 = 0; l0 < WARP_L; l0 += L_VECTOR) {
            Bits v[MMA_K][MMA_M][2][4][L_VECTOR];
            const int found = read_all(v, stage, l0);
            const HalfScale scale = HalfScale::of_exponent(found);
            top = max(top, found);
#pragma unroll
            for (int l = 0; l < L_VECTOR; ++l) {
                unsigned high[MMA_K][MMA_M][4], low[MMA_K][MMA_M][4];
                split_numbers(high, low, v, l, scale.scale);
                if constexpr (P::GROUPED) {
                    add_grouped(sum, high, low, from, l0 + l, scale.inverse);
                } else {
#pragma unroll
                    for (int t = 0; t < MMA_N; t += P::MMA_BATCH) add_batch(sum, high, low, from, l0 + l, t, scale.inverse);
                }
            }
        }
        return top < 255;
    }

    // Adds one l: the small products first, while the sum is small and loses least of them.
    __device__ __forceinline__ void add_grouped(
        Sums& sum, const unsigned (&high)[MMA_K][MMA_M][4], const unsigned (&low)[MMA_K][MMA_M][4], const unsigned char* from, int l,
        float inverse) const {
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float here[MMA_M][MMA_N][4];
        ptx::wgmma_fence();
#pragma unroll
        for (int term = BEGIN; term < 3; ++term)
#pragma unroll
            for (int step = 0; step < MMA_K; ++step)
#pragma unroll
                for (int m = 0; m < MMA_M; ++m)
                    ptx::wgmma_rs(
                        f16(), here[m], term == 0 ? low[step][m] : high[step][m], grouped(from, step, l, term == 1), term > BEGIN || step > 0);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    ptx::fence_operand(here[m][t][r]);
                    sum[m][l][t][r] = fmaf(here[m][t][r], inverse, sum[m][l][t][r]);
                }
    }

    // Adds all chunks of a tile, each prepared while the products of the one before run.
    template <class Arrive>
    __device__ __forceinline__ void add_ahead(Sums& sum, Arrive arrive) const {
        unsigned even[MMA_K][L_VECTOR][MMA_M][4], odd[MMA_K][L_VECTOR][MMA_M][4];
        auto one = [&](unsigned(&first)[MMA_K][L_VECTOR][MMA_M][4], unsigned(&second)[MMA_K][L_VECTOR][MMA_M][4], int at) {
            const unsigned char *stage = x_smem + arrive() * P::STAGE, *from = weights_smem + at * P::CHUNK;
#pragma unroll
            for (int l0 = 0; l0 < WARP_L; l0 += 2 * L_VECTOR) {
                begin_halves(sum, first, stage, from, l0);
                if (l0 + L_VECTOR < WARP_L) begin_halves(sum, second, stage, from, l0 + L_VECTOR);
            }
        };
        int chunk = 0;
#pragma unroll 1
        for (; chunk + 1 < chunks; chunk += 2) {
            one(even, odd, chunk);
            one(WARP_L == L_VECTOR ? odd : even, WARP_L == L_VECTOR ? even : odd, chunk + 1);
        }
        if (chunk < chunks) one(even, odd, chunk);
        end_halves(sum);
    }

    // Adds MMA_BATCH fragments of columns by mma.
    __device__ __forceinline__ void add_batch(
        Sums& sum, const unsigned (&high)[MMA_K][MMA_M][4], const unsigned (&low)[MMA_K][MMA_M][4], const unsigned char* from,
        int l, int t, float inverse) const {
        constexpr int MMA_BATCH = P::MMA_BATCH;
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float here[MMA_BATCH][MMA_M][4];
#pragma unroll
        for (int step = 0; step < MMA_K; ++step) {
            uint4 w[MMA_BATCH];
#pragma unroll
            for (int u = 0; u < MMA_BATCH; ++u) w[u] = weights(from, step, l, t + u);
#pragma unroll
            for (int term = BEGIN; term < 3; ++term)
#pragma unroll
                for (int u = 0; u < MMA_BATCH; ++u)
#pragma unroll
                    for (int m = 0; m < MMA_M; ++m)
                        mma_term_f16(here[u][m], term, step == 0 && term == BEGIN, high[step][m], low[step][m], w[u]);
        }
#pragma unroll
        for (int u = 0; u < MMA_BATCH; ++u)
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][l][t + u][r] = fmaf(here[u][m][r], inverse, sum[m][l][t + u][r]);
    }
};

}  // namespace km

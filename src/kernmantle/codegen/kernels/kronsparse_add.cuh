// Products of a chunk of k, added to the sums of a warp: by the warp for itself, or by four together while they get the
// next numbers ready.
#pragma once
#include "kronsparse_read.cuh"
#include "kronsparse_wgmma.cuh"

namespace km {

template <class P>
struct KronSparseAdder : KronSparseReader<P> {
    typedef KronSparseReader<P> Own;
    typedef typename Own::Sums Sums;
    typedef typename Own::Bits Bits;
    typedef typename Products<typename P::T>::type H;
    static constexpr int MT = P::MT, L = P::L, LT = P::LT, NT = P::NT, STEPS = P::STEPS, G = P::G;
    using Own::chunks, Own::ring, Own::held, Own::lane, Own::part, Own::side;
    using Own::read, Own::read_all, Own::join, Own::take_apart;

    __device__ __forceinline__ KronSparseAdder(const KronSparse& given, unsigned char* shared) : Own(given, shared) {}

    __device__ __forceinline__ uint4 weights(const unsigned char* from, int step, int l, int t) const {
        return *(const uint4*)(from + (((step * LT + part * L + l) * (P::SPLIT ? NT : NT / 2) + t) * 32 + lane) * 16);
    }

    // Place of the weights of 16 positions of k and one l among those held for products of four warps.
    __device__ __forceinline__ unsigned long long grouped(const unsigned char* from, int step, int l, int plane) const {
        return weights_at(shared_address(from) + ((step * LT + part * L + l) * P::PLANES + plane) * P::PLANE + side * 256 * NT);
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
        for (int l0 = 0; l0 < L; l0 += G) {
            unsigned left[STEPS][G][MT][4];
            begin_halves(sum, left, stage, from, l0);
            end_halves(sum);
        }
    }

    // AHEAD: what was begun before comes to its end once the numbers are here.
    __device__ __forceinline__ void begin_halves(
        Sums& sum, unsigned (&left)[STEPS][G][MT][4], const unsigned char* stage, const unsigned char* from, int l0 = 0) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            Bits v[MT][2][4][G];
            read(v, stage, step, l0);
#pragma unroll
            for (int l = 0; l < G; ++l) join(left[step][l], v, l);
        }
        if (P::AHEAD) ptx::wgmma_wait_group<0>();
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int l = 0; l < G; ++l)
#pragma unroll
                for (int m = 0; m < MT; ++m) ptx::wgmma_rs(H(), sum[m][l0 + l], left[step][l][m], grouped(from, step, l0 + l, 0), 1);
        ptx::wgmma_commit_group();
    }

    __device__ __forceinline__ void end_halves(Sums& sum) const {
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int l = 0; l < L; ++l)
#pragma unroll
                for (int t = 0; t < NT; ++t)
#pragma unroll
                    for (int r = 0; r < 4; ++r) ptx::fence_operand(sum[m][l][t][r]);
    }

    __device__ __forceinline__ void add_halves(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            Bits v[MT][2][4][L];
            read(v, stage, step, 0);
#pragma unroll
            for (int l = 0; l < L; ++l) {
                unsigned left[MT][4];
                join(left, v, l);
#pragma unroll
                for (int t = 0; t < NT / 2; ++t) {
                    const uint4 w = weights(from, step, l, t);
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
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
        for (int l0 = 0; l0 < L; l0 += G) {
            Bits v[STEPS][MT][2][4][G];
            const int found = read_all(v, stage, l0), exponent = found < 14 ? 14 : found;
            const float scale = __uint_as_float((unsigned)(267 - exponent) << 23), back = __uint_as_float((unsigned)(exponent - 13) << 23);
            top = max(top, found);
#pragma unroll
            for (int l = 0; l < G; ++l) {
                unsigned high[STEPS][MT][4], low[STEPS][MT][4];
                take_apart(high, low, v, l, scale);
                if constexpr (P::GROUPED) {
                    add_grouped(sum, high, low, from, l0 + l, back);
                } else {
#pragma unroll
                    for (int t = 0; t < NT; t += P::BUNCH) add_bunch(sum, high, low, from, l0 + l, t, back);
                }
            }
        }
        return top < 255;
    }

    // Adds one l: the small products first, which a sum that starts at 0 keeps best.
    __device__ __forceinline__ void add_grouped(
        Sums& sum, const unsigned (&high)[STEPS][MT][4], const unsigned (&low)[STEPS][MT][4], const unsigned char* from, int l,
        float back) const {
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float here[MT][NT][4];
        ptx::wgmma_fence();
#pragma unroll
        for (int turn = BEGIN; turn < 3; ++turn)
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int m = 0; m < MT; ++m)
                    ptx::wgmma_rs(
                        f16(), here[m], turn == 0 ? low[step][m] : high[step][m], grouped(from, step, l, turn == 1), turn > BEGIN || step > 0);
        ptx::wgmma_commit_group();
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int t = 0; t < NT; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    ptx::fence_operand(here[m][t][r]);
                    sum[m][l][t][r] = fmaf(here[m][t][r], back, sum[m][l][t][r]);
                }
    }

    // All chunks of a tile, each made ready while the products of the one before run.
    template <class Arrive>
    __device__ __forceinline__ void add_ahead(Sums& sum, Arrive arrive) const {
        unsigned even[STEPS][G][MT][4], odd[STEPS][G][MT][4];
        auto one = [&](unsigned(&first)[STEPS][G][MT][4], unsigned(&second)[STEPS][G][MT][4], int at) {
            const unsigned char *stage = ring + arrive() * P::STAGE, *from = held + at * P::CHUNK;
#pragma unroll
            for (int l0 = 0; l0 < L; l0 += 2 * G) {
                begin_halves(sum, first, stage, from, l0);
                if (l0 + G < L) begin_halves(sum, second, stage, from, l0 + G);
            }
        };
        int chunk = 0;
#pragma unroll 1
        for (; chunk + 1 < chunks; chunk += 2) {
            one(even, odd, chunk);
            one(L == G ? odd : even, L == G ? even : odd, chunk + 1);
        }
        if (chunk < chunks) one(even, odd, chunk);
        end_halves(sum);
    }

    // The same of BUNCH tiles of columns by each warp for itself.
    __device__ __forceinline__ void add_bunch(
        Sums& sum, const unsigned (&high)[STEPS][MT][4], const unsigned (&low)[STEPS][MT][4], const unsigned char* from,
        int l, int t, float back) const {
        constexpr int BUNCH = P::BUNCH;
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float here[BUNCH][MT][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            uint4 w[BUNCH];
#pragma unroll
            for (int u = 0; u < BUNCH; ++u) w[u] = weights(from, step, l, t + u);
#pragma unroll
            for (int turn = BEGIN; turn < 3; ++turn)
#pragma unroll
                for (int u = 0; u < BUNCH; ++u)
#pragma unroll
                    for (int m = 0; m < MT; ++m)
                        multiply_turn(here[u][m], turn, step == 0 && turn == BEGIN, high[step][m], low[step][m], w[u]);
        }
#pragma unroll
        for (int u = 0; u < BUNCH; ++u)
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][l][t + u][r] = fmaf(here[u][m][r], back, sum[m][l][t + u][r]);
    }
};

}  // namespace km

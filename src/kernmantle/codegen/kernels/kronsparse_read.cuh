// What a warp of a Kronecker-sparse product reads of a stage: its numbers, whole or taken apart into halves.
#pragma once
#include "kronsparse_fetch.cuh"

namespace km {

template <class P>
struct KronSparseReader : KronSparseOperands<P> {
    static constexpr int MT = P::MT, L = P::L, LT = P::LT, NT = P::NT, STEPS = P::STEPS, SIZE = P::SIZE, G = P::G;
    typedef KronSparseOperands<P> Own;
    typedef float Sums[MT][L][NT][4];
    typedef typename Word<SIZE>::type Bits;
    using Own::lane, Own::part;

    __device__ __forceinline__ KronSparseReader(const KronSparse& given, unsigned char* shared) : Own(given, shared) {}

    // Offset of the row of accumulators 0, 1 (half 0) or 2, 3 (half 1) of tile m.
    __device__ __forceinline__ int row_of(int m, int half) const {
        return P::ROWS_TOGETHER ? P::Q * (lane / 4) + 2 * m + half : 16 * m + 8 * half + lane / 4;
    }

    // What this thread takes of 16 positions of k: bits of [tile][half][position][l].
    template <int EACH>
    static __device__ __forceinline__ Pack<Bits, EACH> take(const unsigned char* from) {
        union {
            typename Word<SIZE * EACH>::type word;
            Pack<Bits, EACH> pack;
        } both;
        both.word = *(const typename Word<SIZE * EACH>::type*)from;
        return both.pack;
    }
    __device__ __forceinline__ void read(Bits (&v)[MT][2][4][G], const unsigned char* stage, int step, int l0) const {
        const int quad = lane % 4;
        if constexpr (P::X_FIRST) {
            constexpr int EACH = P::ACCESS / SIZE;
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int e = 0; e < (P::TOGETHER ? 1 : 4); ++e) {
                        const int k = 16 * step + position_of<P>(quad, e);
#pragma unroll
                        for (int s = 0; s < P::COUNT; s += EACH) {
                            const Pack<Bits, EACH> pack = take<EACH>(stage + place_of<P>(row_of(m, half), (k * LT + part * L + l0 + s) * SIZE));
#pragma unroll
                            for (int u = 0; u < EACH; ++u) v[m][half][e + (s + u) / G][(s + u) % G] = pack.v[u];
                        }
                    }
        } else {
            constexpr int EACH = P::ACCESS / SIZE;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int k = 16 * step + position_of<P>(quad, e);
#pragma unroll
                for (int s = 0; s < P::Q; s += EACH) {
                    const Pack<Bits, EACH> pack = take<EACH>(stage + place_of<P>(k, (P::Q * (lane / 4) + s) * SIZE));
#pragma unroll
                    for (int u = 0; u < EACH; ++u) v[(s + u) / 2][(s + u) % 2][e][0] = pack.v[u];
                }
            }
        }
    }

    // Halves as the left operands of products.
    __device__ __forceinline__ void join(unsigned (&left)[MT][4], const Bits (&v)[MT][2][4][G], int l) const {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r) left[m][r] = (unsigned)v[m][r % 2][r / 2 * 2][l] | (unsigned)v[m][r % 2][r / 2 * 2 + 1][l] << 16;
    }

    // Numbers of a chunk, and the exponent of the largest of those of the warp's rows.
    __device__ __forceinline__ int read_all(Bits (&v)[STEPS][MT][2][4][G], const unsigned char* stage, int l0) const {
        float top = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            read(v[step], stage, step, l0);
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int l = 0; l < G; ++l)
                        top = fmaxf(top, fmaxf(fabsf(__uint_as_float(v[step][m][0][e][l])), fabsf(__uint_as_float(v[step][m][1][e][l]))));
        }
        return (int)(ptx::redux_max(__float_as_uint(top)) >> 23);
    }

    // One l of them in two halves.
    __device__ __forceinline__ void take_apart(
        unsigned (&high)[STEPS][MT][4], unsigned (&low)[STEPS][MT][4], const Bits (&v)[STEPS][MT][2][4][G], int l, float scale) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const float p = __uint_as_float(v[step][m][r % 2][r / 2 * 2][l]), q = __uint_as_float(v[step][m][r % 2][r / 2 * 2 + 1][l]);
                    const unsigned both = ptx::pack_f16x2(p * scale, q * scale);
                    const float2 kept = ptx::unpack_f16x2(both);
                    high[step][m][r] = both;
                    low[step][m][r] = ptx::pack_f16x2(fmaf(p, scale, -kept.x), fmaf(q, scale, -kept.y));
                }
    }
};

}  // namespace km

// Reads a warp's operands of a Kronecker-sparse product from a stage into registers, as halves or split into two.
#pragma once
#include "kronsparse_fetch.cuh"

namespace km {

template <class P>
struct KronSparseReader : KronSparseOperands<P> {
    static constexpr int MMA_M = P::MMA_M, WARP_L = P::WARP_L, TILE_L = P::TILE_L, MMA_N = P::MMA_N, MMA_K = P::MMA_K, SIZE = P::SIZE, L_VECTOR = P::L_VECTOR;
    typedef KronSparseOperands<P> Own;
    typedef float Sums[MMA_M][WARP_L][MMA_N][4];
    typedef typename Word<SIZE>::type Bits;
    using Own::lane, Own::part;

    __device__ __forceinline__ KronSparseReader(const KronSparse& arguments, unsigned char* shared) : Own(arguments, shared) {}

    // Offset of the row of accumulators 0, 1 (half 0) or 2, 3 (half 1) of tile m.
    __device__ __forceinline__ int row_of(int m, int half) const {
        return P::M_VECTOR ? P::THREAD_M * (lane / 4) + 2 * m + half : 16 * m + 8 * half + lane / 4;
    }

    // What this thread takes of 16 positions of k: bits of [tile][half][position][l].
    __device__ __forceinline__ void read(Bits (&v)[MMA_M][2][4][L_VECTOR], const unsigned char* stage, int step, int l0) const {
        const int quad = lane % 4;
        if constexpr (P::X_FIRST && P::SHIFTED) {
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int e = 0; e < (P::K_VECTOR ? 1 : 4); ++e) {
                        const int row = row_of(m, half), k = 16 * step + k_of<P>(quad, e);
                        const int shift = 16 * Own::before_x(row, 0);
                        const unsigned* const from = (const unsigned*)(stage + stage_offset<P>(row, (k * TILE_L + part * WARP_L + l0) * SIZE));
                        unsigned word = from[0];
#pragma unroll
                        for (int s = 0; s < P::COUNT; s += 2) {
                            const unsigned next = from[s / 2 + 1], both = __funnelshift_r(word, next, shift);
                            v[m][half][e + s / L_VECTOR][s % L_VECTOR] = (Bits)both;
                            v[m][half][e + (s + 1) / L_VECTOR][(s + 1) % L_VECTOR] = (Bits)(both >> 16);
                            word = next;
                        }
                    }
        } else if constexpr (P::X_FIRST) {
            constexpr int EACH = P::ACCESS / SIZE;
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int e = 0; e < (P::K_VECTOR ? 1 : 4); ++e) {
                        const int k = 16 * step + k_of<P>(quad, e);
#pragma unroll
                        for (int s = 0; s < P::COUNT; s += EACH) {
                            const Pack<Bits, EACH> pack = read_pack<Bits, EACH>(stage + stage_offset<P>(row_of(m, half), (k * TILE_L + part * WARP_L + l0 + s) * SIZE));
#pragma unroll
                            for (int u = 0; u < EACH; ++u) v[m][half][e + (s + u) / L_VECTOR][(s + u) % L_VECTOR] = pack.v[u];
                        }
                    }
        } else if constexpr (P::SHIFTED) {
            const int shift = 16 * Own::before_x(0, quad);  // of all its positions, 4 apart
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const unsigned char* const from = stage + stage_offset<P>(16 * step + k_of<P>(quad, e), P::THREAD_M * (lane / 4) * SIZE);
                const Pack<unsigned, MMA_M> words = read_pack<unsigned, MMA_M>(from);
                const unsigned next = *(const unsigned*)(from + 4 * MMA_M);
#pragma unroll
                for (int m = 0; m < MMA_M; ++m) {
                    const unsigned both = __funnelshift_r(words.v[m], m + 1 < MMA_M ? words.v[m + 1] : next, shift);
                    v[m][0][e][0] = (Bits)both;
                    v[m][1][e][0] = (Bits)(both >> 16);
                }
            }
        } else {
            constexpr int EACH = P::ACCESS / SIZE;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int k = 16 * step + k_of<P>(quad, e);
#pragma unroll
                for (int s = 0; s < P::THREAD_M; s += EACH) {
                    const Pack<Bits, EACH> pack = read_pack<Bits, EACH>(stage + stage_offset<P>(k, (P::THREAD_M * (lane / 4) + s) * SIZE));
#pragma unroll
                    for (int u = 0; u < EACH; ++u) v[(s + u) / 2][(s + u) % 2][e][0] = pack.v[u];
                }
            }
        }
    }

    // Halves as the left operands of products.
    __device__ __forceinline__ void join(unsigned (&left)[MMA_M][4], const Bits (&v)[MMA_M][2][4][L_VECTOR], int l) const {
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r) left[m][r] = (unsigned)v[m][r % 2][r / 2 * 2][l] | (unsigned)v[m][r % 2][r / 2 * 2 + 1][l] << 16;
    }

    // Numbers of a chunk, and the exponent of the largest of those of the warp's rows.
    __device__ __forceinline__ int read_all(Bits (&v)[MMA_K][MMA_M][2][4][L_VECTOR], const unsigned char* stage, int l0) const {
        float top = 0.0f;
#pragma unroll
        for (int step = 0; step < MMA_K; ++step) {
            read(v[step], stage, step, l0);
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int l = 0; l < L_VECTOR; ++l)
                        top = fmaxf(top, fmaxf(fabsf(__uint_as_float(v[step][m][0][e][l])), fabsf(__uint_as_float(v[step][m][1][e][l]))));
        }
        return (int)(ptx::redux_max(__float_as_uint(top)) >> 23);
    }

    // One l of them in two halves.
    __device__ __forceinline__ void split_numbers(
        unsigned (&high)[MMA_K][MMA_M][4], unsigned (&low)[MMA_K][MMA_M][4], const Bits (&v)[MMA_K][MMA_M][2][4][L_VECTOR], int l, float scale) const {
#pragma unroll
        for (int step = 0; step < MMA_K; ++step)
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    const float p = __uint_as_float(v[step][m][r % 2][r / 2 * 2][l]), q = __uint_as_float(v[step][m][r % 2][r / 2 * 2 + 1][l]);
                    split_f16x2(high[step][m][r], low[step][m][r], p, q, scale);
                }
    }
};

}  // namespace km

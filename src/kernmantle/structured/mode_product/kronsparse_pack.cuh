// Packs the weights of a Kronecker-sparse product in the order in which the lanes of kronsparse.cuh read them, with zeros past
// every edge.
//
// The warps of a block share the k of a tile of 8 columns of one l, or of two tiles where weights are not split. float32 is split
// into two halves (split_hi_lo.cuh) with a scale for each column, whose largest weight comes to 2^14 .. 2^15.
#pragma once
#include "kronsparse.cuh"
#include "reduce.cuh"

namespace km {

struct KronSparseWeights {
    const void* weight;
    void* packed;
    float* scale;
    int groups, a, b, c, d;
    i64 wg, wi, wj, wk, wl;
};

template <class P>
struct KronSparsePacker {
    typedef typename P::T T;
    static constexpr int TILES = P::SPLIT || P::GROUPED ? 1 : 2, N_STEPS = P::TILE_N / 8 / TILES, WARPS = 4;
    const KronSparseWeights& g;
    unsigned* tops;
    int chunks, quad;
    const T* from[TILES];
    bool inside[TILES];

    __device__ __forceinline__ T at(int tile, int k) const {
        return inside[tile] && k < g.c ? load_pack<T, 1>(from[tile] + k * g.wk).v[0] : T();
    }

    __device__ __forceinline__ void run(i64 unit) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int across = (g.b + P::TILE_N - 1) / P::TILE_N, deep = (g.d + P::TILE_L - 1) / P::TILE_L;
        chunks = (g.c + P::TILE_K - 1) / P::TILE_K;
        quad = lane % 4;
        const int n_step = unit % N_STEPS, l = unit / N_STEPS % P::TILE_L, own = unit / (N_STEPS * P::TILE_L);
        const int j0 = own % across * P::TILE_N, l0 = own / across % deep * P::TILE_L;
        const int i = own / (across * deep) % g.a, group = own / (across * deep * g.a);
        int j = 0;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            j = j0 + column_of<P>(TILES * n_step + tile, lane / 4);
            inside[tile] = j < g.b && l0 + l < g.d;
            from[tile] = (const T*)g.weight + (inside[tile] ? group * g.wg + i * g.wi + j * g.wj + (l0 + l) * g.wl : 0);
        }
        float scale = 1.0f;
        if constexpr (P::SPLIT) {
            const float inverse = measure(scale, lane, warp);
            if (quad == 0 && warp == 0) g.scale[(((i64)group * g.a + i) * deep * P::TILE_L + l0 + l) * across * P::TILE_N + j] = inverse;
        }
        unsigned char* to = (unsigned char*)g.packed + (i64)own * chunks * P::CHUNK;
        to += P::GROUPED ? l * P::PLANES * P::PLANE + (8 * n_step + lane / 4) * 32 + quad * 4 : ((l * N_STEPS + n_step) * 32 + lane) * 16;
#pragma unroll 4
        for (int step = warp; step < chunks * P::MMA_K; step += WARPS) write(to + (i64)step * P::TILE_L * P::PLANES * P::PLANE, 16 * step, scale, lane / 16);
    }

    // Finds the scale of this lane's column and returns its inverse, NaN if a weight is not finite.
    __device__ __forceinline__ float measure(float& scale, int lane, int warp) const {
        unsigned top = 0;
#pragma unroll 16
        for (int k = 4 * warp + quad; k < g.c; k += 4 * WARPS) {
            const unsigned size = __float_as_uint(convert<float>(at(0, k))) & 0x7fffffffu;
            top = size > top ? size : top;
        }
        top = warp_max<2, 1>(top);
        if (quad == 0) tops[8 * warp + lane / 4] = top;
        __syncthreads();
#pragma unroll
        for (int one = 0; one < WARPS; ++one) {
            const unsigned other = tops[8 * one + lane / 4];
            top = other > top ? other : top;
        }
        if (top >= 0x7f800000u) {
            scale = 0.0f;
            return not_a_number<float>();
        }
        const HalfScale own = HalfScale::of_exponent(top >> 23);
        scale = own.scale;
        return own.inverse;
    }

    // This lane's bytes of 16 positions of k; `turned`: the two halves of its row change places.
    __device__ __forceinline__ void write(unsigned char* to, int k0, float scale, int swapped) const {
        uint4 word;
        if constexpr (P::SPLIT) {
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] = at(0, k0 + k_of<P>(quad, e)) * scale;
            split_f16x2(word.x, word.z, v[0], v[1]);
            split_f16x2(word.y, word.w, v[2], v[3]);
        } else {
            unsigned v[2][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int e = 0; e < 4; ++e) v[tile][e] = at(tile, k0 + k_of<P>(quad, e)).bits;
            if (TILES == 1) v[1][0] = v[1][1] = v[1][2] = v[1][3] = 0;
            word = make_uint4(v[0][0] | v[0][1] << 16, v[0][2] | v[0][3] << 16, v[1][0] | v[1][1] << 16, v[1][2] | v[1][3] << 16);
        }
        if (P::GROUPED) {
            *(unsigned*)(to + 16 * swapped) = word.x;
            *(unsigned*)(to + 16 - 16 * swapped) = word.y;
            if (P::SPLIT) *(unsigned*)(to + P::PLANE + 16 * swapped) = word.z;
            if (P::SPLIT) *(unsigned*)(to + P::PLANE + 16 - 16 * swapped) = word.w;
        } else {
            *(uint4*)to = word;
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_pack(const KronSparseWeights& g) {
    const i64 across = (g.b + P::TILE_N - 1) / P::TILE_N, deep = (g.d + P::TILE_L - 1) / P::TILE_L;
    const i64 units = (i64)g.groups * g.a * deep * across * P::TILE_L * KronSparsePacker<P>::N_STEPS;
    ptx::griddepcontrol_launch_dependents();
    __shared__ unsigned tops[8 * KronSparsePacker<P>::WARPS];
    KronSparsePacker<P> own{g, tops};
    if (blockIdx.x < units) own.run(blockIdx.x);
}

}  // namespace km

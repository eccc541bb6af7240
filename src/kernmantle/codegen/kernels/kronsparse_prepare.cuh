// Weights in the order in which the lanes of a Kronecker-sparse product read them, zero behind every edge.
//
// The warps of a block share the k of a tile of 8 columns of one l, or of two where they are not taken apart. float32
// becomes two float16 after scaling by the power of two that brings the column's largest weight to 2^13 .. 2^14.
#pragma once
#include "kronsparse.cuh"

namespace km {

struct KronSparseWeights {
    const void* weight;
    void* image;
    float* scale;
    int groups, a, b, c, d;
    i64 wg, wi, wj, wk, wl;
};

template <class P>
struct KronSparsePreparing {
    typedef typename P::T T;
    static constexpr int TILES = P::SPLIT || P::GROUPED ? 1 : 2, BUNCHES = P::NJ / 8 / TILES, WARPS = 4;
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
        const int across = (g.b + P::NJ - 1) / P::NJ, deep = (g.d + P::LT - 1) / P::LT;
        chunks = (g.c + P::KC - 1) / P::KC;
        quad = lane % 4;
        const int bunch = unit % BUNCHES, l = unit / BUNCHES % P::LT, own = unit / (BUNCHES * P::LT);
        const int j0 = own % across * P::NJ, l0 = own / across % deep * P::LT;
        const int i = own / (across * deep) % g.a, group = own / (across * deep * g.a);
        int j = 0;
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            j = j0 + column_of<P>(TILES * bunch + tile, lane / 4);
            inside[tile] = j < g.b && l0 + l < g.d;
            from[tile] = (const T*)g.weight + (inside[tile] ? group * g.wg + i * g.wi + j * g.wj + (l0 + l) * g.wl : 0);
        }
        float scale = 1.0f;
        if constexpr (P::SPLIT) {
            const float undo = measure(scale, lane, warp);
            if (quad == 0 && warp == 0) g.scale[(((i64)group * g.a + i) * deep * P::LT + l0 + l) * across * P::NJ + j] = undo;
        }
        unsigned char* to = (unsigned char*)g.image + (i64)own * chunks * P::CHUNK;
        to += P::GROUPED ? l * P::PLANES * P::PLANE + (8 * bunch + lane / 4) * 32 + quad * 4 : ((l * BUNCHES + bunch) * 32 + lane) * 16;
#pragma unroll 4
        for (int step = warp; step < chunks * P::STEPS; step += WARPS) write(to + (i64)step * P::LT * P::PLANES * P::PLANE, 16 * step, scale, lane / 16);
    }

    // Scale of this lane's column and what undoes it, NaN if a weight is not finite.
    __device__ __forceinline__ float measure(float& scale, int lane, int warp) const {
        unsigned top = 0;
#pragma unroll 16
        for (int k = 4 * warp + quad; k < g.c; k += 4 * WARPS) {
            const unsigned size = __float_as_uint(convert<float>(at(0, k))) & 0x7fffffffu;
            top = size > top ? size : top;
        }
#pragma unroll
        for (int gap = 1; gap < 4; gap *= 2) {
            const unsigned other = __shfl_xor_sync(0xffffffffu, top, gap);
            top = other > top ? other : top;
        }
        if (quad == 0) tops[8 * warp + lane / 4] = top;
        __syncthreads();
#pragma unroll
        for (int one = 0; one < WARPS; ++one) {
            const unsigned other = tops[8 * one + lane / 4];
            top = other > top ? other : top;
        }
        const unsigned exponent = top >> 23 < 14 ? 14 : top >> 23;
        if (exponent == 255) {
            scale = 0.0f;
            return __uint_as_float(0x7fffffffu);
        }
        scale = __uint_as_float((267 - exponent) << 23);
        return __uint_as_float((exponent - 13) << 23);
    }

    // This lane's bytes of 16 positions of k; `turned`: the two halves of its row change places.
    __device__ __forceinline__ void write(unsigned char* to, int k0, float scale, int turned) const {
        uint4 word;
        if constexpr (P::SPLIT) {
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] = at(0, k0 + position_of<P>(quad, e)) * scale;
            word.x = ptx::pack_f16x2(v[0], v[1]);
            word.y = ptx::pack_f16x2(v[2], v[3]);
            const float2 p = ptx::unpack_f16x2(word.x), q = ptx::unpack_f16x2(word.y);
            word.z = ptx::pack_f16x2(v[0] - p.x, v[1] - p.y);
            word.w = ptx::pack_f16x2(v[2] - q.x, v[3] - q.y);
        } else {
            unsigned v[2][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int e = 0; e < 4; ++e) v[tile][e] = at(tile, k0 + position_of<P>(quad, e)).bits;
            if (TILES == 1) v[1][0] = v[1][1] = v[1][2] = v[1][3] = 0;
            word = make_uint4(v[0][0] | v[0][1] << 16, v[0][2] | v[0][3] << 16, v[1][0] | v[1][1] << 16, v[1][2] | v[1][3] << 16);
        }
        if (P::GROUPED) {
            *(unsigned*)(to + 16 * turned) = word.x;
            *(unsigned*)(to + 16 - 16 * turned) = word.y;
            if (P::SPLIT) *(unsigned*)(to + P::PLANE + 16 * turned) = word.z;
            if (P::SPLIT) *(unsigned*)(to + P::PLANE + 16 - 16 * turned) = word.w;
        } else {
            *(uint4*)to = word;
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_prepare(const KronSparseWeights& g) {
    const i64 across = (g.b + P::NJ - 1) / P::NJ, deep = (g.d + P::LT - 1) / P::LT;
    const i64 units = (i64)g.groups * g.a * deep * across * P::LT * KronSparsePreparing<P>::BUNCHES;
    ptx::griddepcontrol_launch_dependents();
    __shared__ unsigned tops[8 * KronSparsePreparing<P>::WARPS];
    KronSparsePreparing<P> own{g, tops};
    if (blockIdx.x < units) own.run(blockIdx.x);
}

}  // namespace km

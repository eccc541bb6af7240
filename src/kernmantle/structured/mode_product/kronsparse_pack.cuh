// Packs the weights of a Kronecker-sparse product in the order in which the lanes of kronsparse.cuh read them, with zeros past
// every edge.
//
// The warps of a block share the k of a tile of 8 columns, or of two tiles where weights are not split, of one l; or, where
// neighbours of l, or blocks i, lie together in memory, of 32 of these, whose weights go through shared memory and whose positions of
// k several blocks may share. float32 is split into two halves (split_hi_lo.cuh) with a scale for each column, whose largest weight comes to 2^14 .. 2^15.
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
        to += offset(n_step, l, lane);
#pragma unroll 4
        for (int step = warp; step < chunks * P::MMA_K; step += WARPS) {
            T v[TILES][4];
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                for (int e = 0; e < 4; ++e) v[tile][e] = at(tile, 16 * step + k_of<P>(quad, e));
            write(to + (i64)step * P::TILE_L * P::PLANES * P::PLANE, v, scale, lane / 16);
        }
    }

    // Where a lane's bytes of tile n_step and value l are among those of 16 positions of k.
    static __device__ __forceinline__ int offset(int n_step, int l, int lane) {
        return P::GROUPED ? l * P::PLANES * P::PLANE + (8 * n_step + lane / 4) * 32 + lane % 4 * 4 : ((l * N_STEPS + n_step) * 32 + lane) * 16;
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

    // This lane's bytes of 16 positions of k; `swapped`: the two halves of its row change places.
    static __device__ __forceinline__ void write(unsigned char* to, const T (&v)[TILES][4], float scale, int swapped) {
        uint4 word;
        if constexpr (P::SPLIT) {
            split_f16x2(word.x, word.z, v[0][0] * scale, v[0][1] * scale);
            split_f16x2(word.y, word.w, v[0][2] * scale, v[0][3] * scale);
        } else {
            constexpr int LAST = TILES - 1;
            auto both = [](T low, T high) { return (unsigned)low.bits | (unsigned)high.bits << 16; };
            word = make_uint4(both(v[0][0], v[0][1]), both(v[0][2], v[0][3]), both(v[LAST][0], v[LAST][1]), both(v[LAST][2], v[LAST][3]));
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

// Packs weights of 32 neighbours: values of l of one i, or blocks i of one l.
template <class P>
struct KronSparseNeighbourPacker {
    typedef typename P::T T;
    typedef KronSparsePacker<P> One;
    static constexpr int TILES = One::TILES, N_STEPS = One::N_STEPS, WARPS = One::WARPS, COLUMNS = 8 * TILES, NEIGHBOURS = 32;
    // Numbers from a position of k, and from a column, to the next one in shared memory: lanes that read a neighbour read different banks.
    static constexpr int PITCH = NEIGHBOURS + 1, COLUMN = 16 * PITCH + (P::K_VECTOR ? 1 : 4);
    struct Shared {
        T numbers[COLUMNS * COLUMN];
        unsigned tops[P::SPLIT ? WARPS : 1][8][NEIGHBOURS];
        float scales[P::SPLIT ? 8 : 1][NEIGHBOURS];
    };
    const KronSparseWeights& g;
    Shared& shared;

    KM_DEVICE void run(int sharing) const {
        i64 unit = blockIdx.x / sharing;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int across = (g.b + P::TILE_N - 1) / P::TILE_N, deep = (g.d + P::TILE_L - 1) / P::TILE_L, chunks = (g.c + P::TILE_K - 1) / P::TILE_K;
        const int steps = chunks * P::MMA_K, part = (int)(blockIdx.x % sharing);
        auto split_off = [&](int size) {
            const int own = (int)(unit % size);
            unit /= size;
            return own;
        };
        const bool along_l = g.d > 1;
        const int n_step = split_off(N_STEPS), across_at = split_off(across);
        const int first = split_off(((along_l ? deep * P::TILE_L : g.a) + NEIGHBOURS - 1) / NEIGHBOURS) * NEIGHBOURS;
        const int other = split_off(along_l ? g.a : deep * P::TILE_L), group = (int)unit;
        auto i_of = [&](int neighbour) { return along_l ? other : first + neighbour; };
        auto l_of = [&](int neighbour) { return along_l ? first + neighbour : other; };
        auto j_of = [&](int column) { return across_at * P::TILE_N + column_of<P>(TILES * n_step + column / 8, column % 8); };
        const bool inside = i_of(lane) < g.a && l_of(lane) < g.d;
        const T* const from = (const T*)g.weight + (inside ? group * g.wg + i_of(lane) * g.wi + l_of(lane) * g.wl : 0);
        auto at = [&](int j, int k) { return inside && j < g.b && k < g.c ? load_pack<T, 1>(from + j * g.wj + k * g.wk).v[0] : T(); };
        if constexpr (P::SPLIT) {
            unsigned top[8] = {};
#pragma unroll 4
            for (int k = warp; k < g.c; k += WARPS)
#pragma unroll
                for (int column = 0; column < 8; ++column) {
                    const unsigned size = __float_as_uint(convert<float>(at(j_of(column), k))) & 0x7fffffffu;
                    top[column] = size > top[column] ? size : top[column];
                }
#pragma unroll
            for (int column = 0; column < 8; ++column) shared.tops[warp][column][lane] = top[column];
            __syncthreads();
            for (int column = warp; column < 8; column += WARPS) {
                unsigned most = 0;
#pragma unroll
                for (int one = 0; one < WARPS; ++one) {
                    const unsigned size = shared.tops[one][column][lane];
                    most = size > most ? size : most;
                }
                const HalfScale own = HalfScale::of_exponent(most >> 23);
                const bool finite = most < 0x7f800000u;
                shared.scales[column][lane] = finite ? own.scale : 0.0f;
                if (part == 0 && i_of(lane) < g.a && l_of(lane) < deep * P::TILE_L)
                    g.scale[(((i64)group * g.a + i_of(lane)) * deep * P::TILE_L + l_of(lane)) * across * P::TILE_N + j_of(column)] = finite ? own.inverse : not_a_number<float>();
            }
        }
        // The next positions are on their way while these are written.
        T loaded[COLUMNS / WARPS][16];
        auto hold = [&](int step) {
#pragma unroll
            for (int own = 0; own < COLUMNS / WARPS; ++own)
#pragma unroll
                for (int k = 0; k < 16; ++k) loaded[own][k] = at(j_of(WARPS * own + warp), 16 * step + k);
        };
        const int end = (int)((i64)steps * (part + 1) / sharing);
        int step = (int)((i64)steps * part / sharing);
        hold(step);
#pragma unroll 1
        for (; step < end; ++step) {
            __syncthreads();
#pragma unroll
            for (int own = 0; own < COLUMNS / WARPS; ++own)
#pragma unroll
                for (int k = 0; k < 16; ++k) shared.numbers[(WARPS * own + warp) * COLUMN + k * PITCH + lane] = loaded[own][k];
            __syncthreads();
            if (step + 1 < end) hold(step + 1);
#pragma unroll 2
            for (int neighbour = warp; neighbour < NEIGHBOURS; neighbour += WARPS) {
                const int i = i_of(neighbour), l = l_of(neighbour);
                if (i >= g.a || l >= deep * P::TILE_L) break;
                const i64 own = (((i64)group * g.a + i) * deep + l / P::TILE_L) * across + across_at;
                unsigned char* to = (unsigned char*)g.packed + own * chunks * P::CHUNK + (i64)step * P::TILE_L * P::PLANES * P::PLANE;
                to += One::offset(n_step, l % P::TILE_L, lane);
                T v[TILES][4];
#pragma unroll
                for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[tile][e] = shared.numbers[(8 * tile + lane / 4) * COLUMN + k_of<P>(lane % 4, e) * PITCH + neighbour];
                One::write(to, v, P::SPLIT ? shared.scales[P::SPLIT ? lane / 4 : 0][neighbour] : 1.0f, lane / 16);
            }
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

// The same where so many blocks share the positions of k of 32 neighbours.
template <class P>
__device__ __forceinline__ void kron_sparse_pack_neighbours(const KronSparseWeights& g, int sharing) {
    ptx::griddepcontrol_launch_dependents();
    __shared__ typename KronSparseNeighbourPacker<P>::Shared shared;
    KronSparseNeighbourPacker<P>{g, shared}.run(sharing);
}

}  // namespace km

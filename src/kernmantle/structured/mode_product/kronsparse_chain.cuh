// Two factors of a chain of Kronecker-sparse products for a few rows, in one launch. An output of the second factor reads what
// the first one has for its own i and l alone: a cluster of blocks has some neighbouring l of one i, and computes what lies
// between both factors for these once. Blocks share it through distributed shared memory and have rows j of the second factor.
#pragma once
#include "kronsparse_tile.cuh"
#include "ptx_cluster.cuh"
#include "reduce.cuh"

namespace km {

struct KronSparseChain {
    const void *x, *first, *second, *bias;
    void* y;
    i64 count, xn, yn;
    i64 is_made;  // whether no launch before this one writes the weights
};

// The parameters of a kernel, members of P:
//   T                        type of arrays
//   B1, C1                   rows and columns of the first factor's blocks, whose entries along k lie together
//   B2, C2, D2               the second factor's pattern but its a
//   ROWS                     rows of the batch, at most
//   SPLIT                    clusters that share the j of the second factor, each for all of its k
//   BIAS, ACTIVATION         what is done with a sum before it is stored
template <class P>
struct KronSparseChainTile : P {
    using typename P::T;
    static constexpr int SIZE = sizeof(T), VECTOR = 16 / SIZE, BLOCKS = 8, WARPS = 8, THREADS = 32 * WARPS, LANES_L = VECTOR;
    static_assert(P::D2 % LANES_L == 0 && P::B1 % LANES_L == 0 && P::C1 % VECTOR == 0, "whole vectors of l and of k");
    // Lanes that share a sum along the first k, and how often they go along it; sums of a warp at once.
    static constexpr int lanes_along(int vectors) {
        int lanes = LANES_L;
        while (lanes < 32 && lanes < vectors) lanes *= 2;
        return lanes;
    }
    static constexpr int GROUP = lanes_along(P::C1 / VECTOR), CHUNKS = (P::C1 / VECTOR + GROUP - 1) / GROUP, SUMS = 32 / GROUP;
    static constexpr int OWN_K = (P::C2 + BLOCKS - 1) / BLOCKS, OWN_J = (P::B2 + BLOCKS * P::SPLIT - 1) / (BLOCKS * P::SPLIT);
    static constexpr int STEPS = (P::C2 + 31) / 32;
    static constexpr bool READS_AHEAD = P::ROWS <= 4 && STEPS <= 8;  // the second factor's weights, in registers meanwhile
    // Vectors of l in shared memory from one k to the next: odd, so that lanes of neighbouring k do not meet in a bank.
    static constexpr int PITCH = P::ROWS | 1, SHARED_BYTES = P::C2 * PITCH * 16;
    typedef Pack<T, VECTOR> Vector;

    const KronSparseChain& g;
    Vector* between;
    int rank, split, i, l0, rows;

    // Adds over LANES lanes, each with sums of all neighbouring l: a lane gets that of the l it is among.
    template <int LANES>
    static KM_DEVICE float share(float (&sum)[LANES_L], int lane) {
#pragma unroll
        for (int half = LANES_L / 2, apart = LANES / 2; half > 0; half /= 2, apart /= 2) {
            const bool is_upper = lane & apart;
#pragma unroll
            for (int e = 0; e < half; ++e) {
                const float sent = is_upper ? sum[e] : sum[e + half], own = is_upper ? sum[e + half] : sum[e];
                sum[e] = own + __shfl_xor_sync(0xffffffffu, sent, apart);
            }
        }
        return warp_sum<LANES / LANES_L / 2>(sum[0]);
    }

    // The numbers between both factors of this block's k.
    KM_DEVICE void multiply_first(int warp, int lane) const {
        const int along = lane % GROUP;
#pragma unroll 1
        for (int begin = warp * SUMS; begin < OWN_K; begin += WARPS * SUMS) {
            const int own = begin + lane / GROUP, k = rank * OWN_K + own, feature = (i * P::C2 + min(k, P::C2 - 1)) * P::D2 + l0;
            const T* const weight = (const T*)g.first + (i64)feature * P::C1;
            const T* const x = (const T*)g.x + feature / P::B1 * P::C1;
            float total[P::ROWS];
            clear(total);
#pragma unroll 1
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
                const int at = (chunk * GROUP + along) * VECTOR;
                const bool inside = at < P::C1;
                Vector weights[LANES_L];
#pragma unroll
                for (int l = 0; l < LANES_L; ++l) weights[l] = inside ? load_pack<T, VECTOR>(weight + l * P::C1 + at) : Vector();
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n) {
                    const Vector in = inside && n < rows ? load_pack<T, VECTOR>(x + n * g.xn + at) : Vector();
                    float sum[LANES_L];
                    clear(sum);
#pragma unroll
                    for (int e = 0; e < VECTOR; ++e)
#pragma unroll
                        for (int l = 0; l < LANES_L; ++l) sum[l] = fmaf(convert<float>(weights[l].v[e]), convert<float>(in.v[e]), sum[l]);
                    total[n] += share<GROUP>(sum, along);
                }
            }
            if (own < OWN_K && k < P::C2 && along % (GROUP / LANES_L) == 0)
#pragma unroll
                for (int n = 0; n < P::ROWS; ++n) between[k * PITCH + n].v[along / (GROUP / LANES_L)] = Store<T>::from(total[n]);
        }
    }

    // Stores what this warp has of both factors' numbers into the other blocks of the cluster.
    KM_DEVICE void share_with_others(int warp, int lane) const {
        __syncwarp();
#pragma unroll 1
        for (int begin = warp * SUMS; begin < OWN_K; begin += WARPS * SUMS)
#pragma unroll
            for (int e = lane; e < SUMS * P::ROWS * BLOCKS; e += 32) {
                const int target = e % BLOCKS, n = e / BLOCKS % P::ROWS, own = begin + e / BLOCKS / P::ROWS, k = rank * OWN_K + own;
                if (target == rank || n >= rows || own >= OWN_K || k >= P::C2) continue;
                Vector* const at = between + k * PITCH + n;
                ptx::st_shared_cluster_v4(ptx::mapa(shared_address(at), target), *(const uint4*)at);
            }
    }

    // The second factor's weights of a row j, which begin at `own` among this block's.
    KM_DEVICE void read_second(Vector (&weights)[STEPS], int own, int lane) const {
        const int j = (split * BLOCKS + rank) * OWN_J + own;
        if (own >= OWN_J || j >= P::B2) return;
        const T* const weight = (const T*)g.second + ((i64)i * P::B2 + j) * P::C2 * P::D2 + l0;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int k = 32 * s + lane;
            weights[s] = k < P::C2 ? load_pack<T, VECTOR>(weight + k * P::D2) : Vector();
        }
    }

    // `weights` are those of the warp's first row j, read beforehand if READS_AHEAD.
    KM_DEVICE void multiply_second(Vector (&weights)[STEPS], int warp, int lane) const {
        T* const y = (T*)g.y;
        const T* const bias = (const T*)g.bias;
#pragma unroll 1
        for (int own = warp; own < OWN_J; own += WARPS) {
            const int j = (split * BLOCKS + rank) * OWN_J + own;
            if (j >= P::B2) break;
            if (!READS_AHEAD || own != warp) read_second(weights, own, lane);
            const int l = lane / (32 / LANES_L), feature = (i * P::B2 + j) * P::D2 + l0 + l;
#pragma unroll 1
            for (int n = 0; n < rows; ++n) {
                float sum[LANES_L];
                clear(sum);
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    const int k = 32 * s + lane;
                    const Vector in = k < P::C2 ? between[k * PITCH + n] : Vector();
#pragma unroll
                    for (int e = 0; e < LANES_L; ++e) sum[e] = fmaf(convert<float>(weights[s].v[e]), convert<float>(in.v[e]), sum[e]);
                }
                float total = share<32>(sum, lane);
                if (lane % (32 / LANES_L) == 0) {
                    if (P::BIAS) total += convert<float>(bias[feature]);
                    y[n * g.yn + feature] = Store<T>::from(activated<P::ACTIVATION>(total));
                }
            }
        }
    }

    KM_DEVICE void run() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        unsigned at = blockIdx.x;
        rank = at % BLOCKS;
        at /= BLOCKS;
        split = at % P::SPLIT;
        at /= P::SPLIT;
        l0 = at % (P::D2 / LANES_L) * LANES_L;
        i = at / (P::D2 / LANES_L);
        rows = (int)g.count;
        ptx::cluster_arrive();
        ptx::griddepcontrol_launch_dependents();
        ptx::griddepcontrol_wait();
        Vector weights[STEPS];
        if (READS_AHEAD) read_second(weights, warp, lane);
        multiply_first(warp, lane);
        ptx::cluster_wait();  // all blocks have begun, so that their memory is theirs
        share_with_others(warp, lane);
        ptx::cluster_arrive();
        ptx::cluster_wait();
        multiply_second(weights, warp, lane);
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_chain(const KronSparseChain& g) {
    extern __shared__ __align__(16) unsigned char shared[];
    KronSparseChainTile<P> own = {{}, g, (typename KronSparseChainTile<P>::Vector*)shared};
    own.run();
}

}  // namespace km

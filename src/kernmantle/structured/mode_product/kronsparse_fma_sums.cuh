// Gradients of the weights of Kronecker-sparse products by FMA instructions in float32, where l interleave or blocks are small:
//   out[slot, g, i, j, k, l] = sum over n of grad[g, n, i, j, l] x[g, n, i, k, l],
// in parts of the batch (split-K) that are added later.
//
// A thread has OWN_J columns j and OWN_K positions k, COLUMNS apart, and reads what is next while it multiplies. Lanes lie along
// what is contiguous in memory, with VECTOR neighbours each: along l where features lie together (FIRST), so that sums are written
// as they lie too, else along the batch, whose sums are added in the end. The last tile along an axis begins early enough to be whole.
#pragma once
#include "kronsparse_tile.cuh"
#include "reduce.cuh"

namespace km {

struct KronSparseFmaSums {
    const void *x, *grad;
    void* out;
    i64 count;
    int groups, slots;
    i64 xg, xs, yg, ys;
};

// The parameters of a kernel, members of P:
//   T, OUT               type of x and grad, and of the sums
//   A, B, C, D           the pattern
//   FIRST                features lie together, else the batch does
//   WIDE                 threads (FIRST), or warps, of a block along l
//   OWN_J, OWN_K         sums of a thread
//   DEPTH, COLUMNS       threads (FIRST), or warps, of a block along j and along k
//   SHARE                threads, or warps, of a block that share the batch
//   VECTOR, ROWS         neighbours that a thread reads in one access, and such accesses at once
template <class Traits>
struct KronSparseFmaSumTile : Traits {
    using Traits::A, Traits::B, Traits::C, Traits::D, Traits::WIDE, Traits::OWN_J, Traits::OWN_K, Traits::DEPTH, Traits::COLUMNS;
    using Traits::SHARE, Traits::FIRST, Traits::VECTOR;
    // Values of l of a thread.
    static constexpr int OWN_L = FIRST ? VECTOR : 1;
    static constexpr int TILE_J = OWN_J * DEPTH, TILE_K = OWN_K * COLUMNS, TILE_L = OWN_L * WIDE;
    static constexpr int TILES_J = (B + TILE_J - 1) / TILE_J, TILES_K = (C + TILE_K - 1) / TILE_K, TILES_L = (D + TILE_L - 1) / TILE_L;
    // Threads, or warps, of one share of the batch.
    static constexpr int OWNERS = WIDE * COLUMNS * DEPTH, THREADS = FIRST ? (OWNERS * SHARE + 31) / 32 * 32 : 32 * OWNERS * SHARE;
    static constexpr int SHARED_BYTES = 4 * SHARE * OWNERS * (FIRST ? (SHARE > 1 ? OWN_K * OWN_L : 0) : OWN_J * OWN_K);
    static_assert(TILE_J <= B && TILE_K <= C && TILE_L <= D && D % OWN_L == 0, "tiles are whole");
};

template <class P>
struct KronSparseFmaSumBlock {
    typedef typename P::T T;
    static constexpr int OWN_J = P::OWN_J, OWN_K = P::OWN_K, OWN_L = P::OWN_L, WIDE = P::WIDE, ROWS = P::ROWS, VECTOR = P::VECTOR;
    typedef Pack<T, VECTOR> Access;
    struct Rows {
        Access x[ROWS][OWN_K], y[ROWS][OWN_J];
    };
    float sum[OWN_L][OWN_J][OWN_K];

    // Reads ROWS accesses `apart` entries from each other, of entries of which `left` are inside.
    template <bool WHOLE>
    static __device__ __forceinline__ void read(Rows& to, const T* x, const T* y, i64 x_own, i64 y_own, i64 xs, i64 ys, int apart, int left) {
#pragma unroll
        for (int u = 0; u < ROWS; ++u) {
            const bool inside = WHOLE || u * apart < left;
#pragma unroll
            for (int q = 0; q < OWN_K; ++q) to.x[u][q] = inside ? load_pack<T, VECTOR>(x + u * xs + q * x_own) : Access();
#pragma unroll
            for (int p = 0; p < OWN_J; ++p) to.y[u][p] = inside ? load_pack<T, VECTOR>(y + u * ys + p * y_own) : Access();
        }
    }

    __device__ __forceinline__ void multiply(const Rows& from) {
#pragma unroll
        for (int u = 0; u < ROWS; ++u)
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) {
                float x[OWN_K], y[OWN_J];
#pragma unroll
                for (int q = 0; q < OWN_K; ++q) x[q] = convert<float>(from.x[u][q].v[v]);
#pragma unroll
                for (int p = 0; p < OWN_J; ++p) y[p] = convert<float>(from.y[u][p].v[v]);
#pragma unroll
                for (int p = 0; p < OWN_J; ++p)
#pragma unroll
                    for (int q = 0; q < OWN_K; ++q) sum[v % OWN_L][p][q] = fmaf(y[p], x[q], sum[v % OWN_L][p][q]);
            }
    }

    // Adds entries `apart` from each other while they are among the next `left`; those of the batch are xs and ys numbers apart, and
    // features of a thread x_own and y_own.
    __device__ __forceinline__ void add(const T* x, const T* y, i64 x_own, i64 y_own, i64 xs, i64 ys, int apart, int left) {
        Rows own, next;
        auto ahead = [&](Rows& to) {
            if ((ROWS - 1) * apart < left) read<true>(to, x, y, x_own, y_own, xs, ys, apart, left);
            else if (left > 0) read<false>(to, x, y, x_own, y_own, xs, ys, apart, left);
            left -= ROWS * apart, x += ROWS * xs, y += ROWS * ys;
        };
        ahead(own);
#pragma unroll 1
        for (int due = left + ROWS * apart; due > 0; due -= 2 * ROWS * apart) {
            ahead(next);
            multiply(own);
            if (due <= ROWS * apart) break;
            ahead(own);
            multiply(next);
        }
    }

    __device__ __forceinline__ void run(const KronSparseFmaSums& g, float* shared) {
        typedef typename P::OUT Out;
        const int lane = threadIdx.x % 32, at_thread = P::FIRST ? threadIdx.x : threadIdx.x / 32, own = at_thread % P::OWNERS, share = at_thread / P::OWNERS;
        const int l = own % WIDE, along = own / WIDE % P::COLUMNS, across = own / (WIDE * P::COLUMNS);
        unsigned at = blockIdx.x;
        auto tile_of = [&](int tiles, int extent, int size) {
            const int tile = (int)(at % (unsigned)tiles) * size;
            at /= (unsigned)tiles;
            return tile < extent - size ? tile : extent - size;
        };
        const int k0 = tile_of(P::TILES_K, P::C, P::TILE_K), j0 = tile_of(P::TILES_J, P::B, P::TILE_J), l0 = tile_of(P::TILES_L, P::D, P::TILE_L);
        const int i = (int)(at % P::A), group = (int)(at / P::A % (unsigned)g.groups), slot = (int)(at / (P::A * (unsigned)g.groups));
        // Parts begin at whole accesses.
        constexpr int UNIT = VECTOR / OWN_L;
        const i64 each = (g.count + g.slots * UNIT - 1) / (g.slots * UNIT) * UNIT, begin = slot * each;
        const int count = (int)(begin + each < g.count ? each : g.count - begin);
#pragma unroll
        for (int v = 0; v < OWN_L; ++v)
#pragma unroll
            for (int p = 0; p < OWN_J; ++p)
#pragma unroll
                for (int q = 0; q < OWN_K; ++q) sum[v][p][q] = 0.0f;
        const i64 x_feature = ((i64)i * P::C + k0 + along) * P::D + l0 + l * OWN_L, y_feature = ((i64)i * P::B + j0 + across * OWN_J) * P::D + l0 + l * OWN_L;
        const T* const x = (const T*)g.x + group * g.xg;
        const T* const y = (const T*)g.grad + group * g.yg;
        if constexpr (P::FIRST) {
            if (share < P::SHARE)
                add(x + (begin + share) * g.xs + x_feature, y + (begin + share) * g.ys + y_feature, P::COLUMNS * P::D, P::D,
                    P::SHARE * g.xs, P::SHARE * g.ys, P::SHARE, count - share);
        } else {
            constexpr int STEP = 32 * VECTOR * P::SHARE;
            const int first = (32 * share + lane) * VECTOR;
            add(x + x_feature * g.xs + begin + first, y + y_feature * g.ys + begin + first, P::COLUMNS * P::D * g.xs, P::D * g.ys, STEP, STEP, STEP,
                count - first);
        }
        Out* const out = (Out*)g.out + ((((i64)slot * g.groups + group) * P::A + i) * P::B + j0) * P::C * P::D;
        // Where the sums (p, q) of a thread, or warp, begin.
        auto at_of = [&](int p, int q, int one) {
            const int l = one % WIDE, along = one / WIDE % P::COLUMNS, across = one / (WIDE * P::COLUMNS);
            return out + ((i64)(across * OWN_J + p) * P::C + k0 + along + q * P::COLUMNS) * P::D + l0 + l * OWN_L;
        };
        if constexpr (!P::FIRST) {
#pragma unroll
            for (int p = 0; p < OWN_J; ++p)
#pragma unroll
                for (int q = 0; q < OWN_K; ++q) {
                    const float value = warp_sum(sum[0][p][q]);
                    if (lane == 0) shared[((p * OWN_K + q) * P::SHARE + share) * P::OWNERS + own] = value;
                }
            __syncthreads();
#pragma unroll 1
            for (int e = threadIdx.x; e < OWN_J * OWN_K * P::OWNERS; e += P::THREADS) {
                const int sums = e / P::OWNERS, one = e % P::OWNERS;
                float total = 0.0f;
#pragma unroll
                for (int s = 0; s < P::SHARE; ++s) total += shared[(sums * P::SHARE + s) * P::OWNERS + one];
                *at_of(sums / OWN_K, sums % OWN_K, one) = Store<Out>::from(total);
            }
        } else if constexpr (P::SHARE == 1) {
            if (share > 0) return;
#pragma unroll
            for (int p = 0; p < OWN_J; ++p)
#pragma unroll
                for (int q = 0; q < OWN_K; ++q) {
                    Pack<Out, OWN_L> values;
#pragma unroll
                    for (int v = 0; v < OWN_L; ++v) values.v[v] = Store<Out>::from(sum[v][p][q]);
                    *(Pack<Out, OWN_L>*)at_of(p, q, own) = values;
                }
        } else {
#pragma unroll
            for (int p = 0; p < OWN_J; ++p) {
                __syncthreads();
                if (share < P::SHARE)
#pragma unroll
                    for (int q = 0; q < OWN_K; ++q)
#pragma unroll
                        for (int v = 0; v < OWN_L; ++v) shared[((q * P::SHARE + share) * OWN_L + v) * P::OWNERS + own] = sum[v][p][q];
                __syncthreads();
#pragma unroll 1
                for (int e = threadIdx.x; e < OWN_K * OWN_L * P::OWNERS; e += P::THREADS) {
                    const int v = e % OWN_L, one = e / OWN_L % P::OWNERS, q = e / (OWN_L * P::OWNERS);
                    float total = 0.0f;
#pragma unroll
                    for (int s = 0; s < P::SHARE; ++s) total += shared[((q * P::SHARE + s) * OWN_L + v) * P::OWNERS + one];
                    at_of(p, q, one)[v] = Store<Out>::from(total);
                }
            }
        }
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse_fma_sums(const KronSparseFmaSums& g) {
    extern __shared__ __align__(16) float fma_sums[];
    KronSparseFmaSumBlock<P>().run(g, fma_sums);
}

}  // namespace km

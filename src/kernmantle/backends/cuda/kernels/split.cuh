// Splits operands for sums of squared differences on tensor cores: a common centre is subtracted, and each row is multiplied by a
// power of two and split into a high and a low half (split_hi_lo.cuh).
//
// The centre is the median of a few rows. It only serves to make norms small beside distances, so any value is right, but all
// blocks must find the same. Operands that are halves already are not centred, and one product suffices for them, unless most of
// their magnitude is a common offset. The first blocks probe pairs from all over the result for near ones.
#pragma once
#include "log_rows.cuh"
#include "scratch.cuh"
#include "split_hi_lo.cuh"

namespace km {

template <int PLANES_, bool SYMMETRIC_>
struct SplitTile {
    static constexpr int PLANES = PLANES_, BM = 128, BN = 128;
    static constexpr bool SYMMETRIC = SYMMETRIC_;
    static constexpr int WARPS = 8, THREADS = 32 * WARPS, SAMPLES = 4, DEEPEST = 8192;
};
template <class Body, class Tile>
__device__ constexpr int split_shared_bytes() {
    return Tile::DEEPEST * 4;
}

template <class Body, class Tile>
struct Split {
    typedef typename Body::Args Args;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    static constexpr int WARPS = Tile::WARPS, THREADS = Tile::THREADS, SAMPLES = Tile::SAMPLES, PLANES = Tile::PLANES;
    static constexpr bool HALVES = PLANES == 2 && has_halves<Body>();

    // Row number `row` of all planes of an operand.
    template <class P>
    static __device__ __forceinline__ const typename P::T* any_row(const Args& g, i64 row) {
        const i64 rows = g.size[P::TILE];
        return row_of<P>(g, entry_of<Body, P>(g, row / rows), row % rows);
    }

    // Fills `centre`; returns how many products are taken.
    static __device__ int find_centre(const Args& g, float* centre) {
        __shared__ const typename X::T* from_x[SAMPLES];
        __shared__ const typename Y::T* from_y[SAMPLES];
        __shared__ float2 parts[WARPS];
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const i64 rows = count_planes<Body, X>(g) * g.size[ROLE_M], columns = count_planes<Body, Y>(g) * g.size[ROLE_N];
        if (threadIdx.x < SAMPLES) {
            from_x[threadIdx.x] = any_row<X>(g, (2 * threadIdx.x + 1) * rows / (2 * SAMPLES));
            from_y[threadIdx.x] = any_row<Y>(g, threadIdx.x * columns / SAMPLES);
        }
        __syncthreads();
        const i64 depth = g.size[ROLE_K], xs = g.stride[X::BUFFER][ROLE_K], ys = g.stride[Y::BUFFER][ROLE_K];
        float offsets = 0.0f, squares = 0.0f;
        for (i64 k = threadIdx.x; k < depth; k += THREADS) {
            float value[2 * SAMPLES], middle = 0.0f, square = 0.0f;
#pragma unroll
            for (int s = 0; s < SAMPLES; ++s) {
                value[s] = convert<float>(load_pack<typename X::T, 1>(from_x[s] + k * xs).v[0]);
                value[s + SAMPLES] = convert<float>(load_pack<typename Y::T, 1>(from_y[s] + k * ys).v[0]);
            }
#pragma unroll
            for (int i = 0; i < 2 * SAMPLES; ++i) {
                int rank = 0;
#pragma unroll
                for (int j = 0; j < 2 * SAMPLES; ++j) rank += j < i ? value[j] <= value[i] : value[j] < value[i];
                if (rank == SAMPLES - 1 || rank == SAMPLES) middle = fmaf(0.5f, value[i], middle);
                if (is_finite(value[i])) square = fmaf(value[i], value[i], square);
            }
            centre[k] = is_finite(middle) ? middle : 0.0f;
            offsets = fmaf(centre[k], centre[k], offsets);
            squares += square / (2 * SAMPLES);
        }
        bool keep = false;
        if constexpr (HALVES) {
            const float2 mine = make_float2(warp_sum(offsets), warp_sum(squares));
            if (lane == 0) parts[warp] = mine;
            __syncthreads();
            float2 sum = make_float2(0.0f, 0.0f);
            for (int w = 0; w < WARPS; ++w) sum = make_float2(sum.x + parts[w].x, sum.y + parts[w].y);
            keep = 2.0f * sum.x <= sum.y;
            if (keep)
                for (i64 k = threadIdx.x; k < depth; k += THREADS) centre[k] = 0.0f;
        }
        __syncthreads();
        return keep || PLANES == 1 ? 1 : 3;
    }

    // Eight values of a row less the centre, and times the root of the weight; false if that has no root.
    template <class P>
    static __device__ __forceinline__ bool centred(float (&v)[8], const typename P::T* row, const Args& g, const Coord& p, const float* centre, i64 k) {
        bool rooted = true;
        read_along_k<P, false>(v, row, g, k);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (k + i >= g.size[ROLE_K]) continue;
            v[i] -= centre[k + i];
            if constexpr (Body::WEIGHTED) {
                float c[AtLeastOne<Body::VECTORS>::value];
                read_vectors<Body>(c, g, p, k + i);
                const float weight = Body::weight(c, g.number);
                rooted = rooted && weight >= 0.0f;
                v[i] *= __fsqrt_rn(weight);
            }
        }
        return rooted;
    }

    // One row of an operand by a warp; rows behind the last are 0.
    template <class P>
    static __device__ void split_row(const Args& g, const float* centre, int products, int operand, i64 row_index, int lane) {
        const i64 depth = g.size[ROLE_K], blocks = ceil_div(depth, BLOCK), rows = ceil_div(g.size[P::TILE], BLOCK) * BLOCK;
        const i64 plane = row_index / rows, m = row_index % rows, base = plane * (rows / BLOCK) + m / BLOCK;
        const Coord p = entry_of<Body, P>(g, plane);
        const bool inside = m < g.size[P::TILE];
        const typename P::T* row = row_of<P>(g, p, inside ? m : 0);
        float top = 0.0f;
        bool rooted = true;
        for (i64 k = 8 * lane; inside && k < depth; k += 256) {
            float v[8];
            rooted = centred<P>(v, row, g, p, centre, k) && rooted;
#pragma unroll
            for (int i = 0; i < 8; ++i) top = fmaxf(top, fabsf(v[i]));
        }
        top = warp_max(top);
        rooted = __all_sync(0xffffffffu, rooted);
        const HalfScale scale = HalfScale::of_largest(top);
        float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (i64 k = 8 * lane; k < blocks * BLOCK; k += 256) {
            float v[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
            if (inside) centred<P>(v, row, g, p, centre, k);
            Pack<f16, 8> high, low;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float u = v[i] * scale.scale;
                high.v[i] = Store<f16>::from(u);
                const float h = convert<float>(high.v[i]), rest = PLANES == 2 && fabsf(u) <= 65504.0f ? u - h : 0.0f;
                low.v[i] = Store<f16>::from(rest);
                const float term = products == 1 ? h : h + convert<float>(low.v[i]);
                sum[i % 4] = fmaf(term, term, sum[i % 4]);
            }
            unsigned char* to = g.scratch.plane[operand] + (base * blocks + k / BLOCK) * (PLANES * BLOCK_BYTES) + m % BLOCK * 128
                                + swizzle_128((int)m % 8, (int)(k / 8) % 8);
            *(Pack<f16, 8>*)to = high;
            if (PLANES == 2 && products > 1) *(Pack<f16, 8>*)(to + BLOCK_BYTES) = low;
        }
        const float norm = warp_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) * scale.inverse * scale.inverse;
        if (lane == 0) g.scratch.row[operand][row_index] = make_float2(rooted ? norm : infinity<float>(), scale.inverse);
    }

    // How many of a few pairs of some tile are near.
    static __device__ void probe_points(const Args& g, const float* centre, int block, int lane, int warp) {
        __shared__ int found;
        if (threadIdx.x == 0) found = 0;
        __syncthreads();
        const unsigned long long draw = (block + 1) * 0x9e3779b97f4a7c15ull;
        const i64 tiles = count_tiles<false, Tile::BM, Tile::BN>(g);
        Coord p = coord_of<Tile::BM, Tile::BN, 16, false>(g, (i64)((draw >> 16) % (unsigned long long)tiles));
#pragma unroll 1
        for (int probe = warp; probe < PROBES; probe += WARPS) {
            const unsigned random = (probe + 1) * 0x9e3779b9u + (unsigned)(draw >> 40);
            i64 m = p.m + (random >> 8) % Tile::BM, n = p.n + (random >> 16) % Tile::BN;
            m = m < g.size[ROLE_M] ? m : g.size[ROLE_M] - 1;
            n = n < g.size[ROLE_N] ? n : g.size[ROLE_N] - 1;
            float norms = 0.0f;
            for (i64 k = 8 * lane; k < g.size[ROLE_K]; k += 256) {
                float x[8], y[8];
                centred<X>(x, row_of<X>(g, p, m), g, p, centre, k);
                centred<Y>(y, row_of<Y>(g, p, n), g, p, centre, k);
#pragma unroll
                for (int i = 0; i < 8; ++i) norms = fmaf(x[i], x[i], fmaf(y[i], y[i], norms));
            }
            norms = warp_sum(norms);
            const float distance = directly<Body>(g, p, m, n, lane).r0;
            if (lane == 0 && is_close(distance, norms)) atomicAdd(&found, 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) g.scratch.list[LIST_PROBES + block] = found;
    }
};

template <class Body, class Tile>
__device__ __forceinline__ void split(const typename Body::Args& g) {
    typedef Split<Body, Tile> S;
    extern __shared__ __align__(16) unsigned char raw[];
    float* centre = (float*)raw;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr bool LOGS = takes_logarithms<Body>(0);
    int products = 3;
    if constexpr (!LOGS) products = S::find_centre(g, centre);
    if (blockIdx.x < PROBE_BLOCKS) {
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            g.scratch.list[0] = 0;
            g.scratch.list[LIST_PRODUCTS] = products;
        }
        if constexpr (LOGS)
            g.scratch.list[LIST_PROBES + blockIdx.x] = 0;
        else
            S::probe_points(g, centre, blockIdx.x, lane, warp);
        return;
    }
    const i64 rows = count_planes<Body, typename S::X>(g) * ceil_div(g.size[ROLE_M], BLOCK) * BLOCK;
    const i64 columns = Tile::SYMMETRIC ? 0 : count_planes<Body, typename S::Y>(g) * ceil_div(g.size[ROLE_N], BLOCK) * BLOCK;
    const i64 step = (i64)(gridDim.x - PROBE_BLOCKS) * S::WARPS;
#pragma unroll 1
    for (i64 row_index = (i64)(blockIdx.x - PROBE_BLOCKS) * S::WARPS + warp; row_index < rows + columns; row_index += step) {
        if constexpr (LOGS) {
            if (row_index < rows)
                split_exponentials<Body, typename S::X, true>(g, 0, row_index, lane);
            else
                split_exponentials<Body, typename S::Y, false>(g, 1, row_index - rows, lane);
        } else if (row_index < rows)
            S::template split_row<typename S::X>(g, centre, products, 0, row_index, lane);
        else
            S::template split_row<typename S::Y>(g, centre, products, 1, row_index - rows, lane);
    }
}

}  // namespace km

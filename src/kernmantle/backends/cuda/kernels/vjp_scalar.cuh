// VJPs of a contraction for one or a few outputs, by FMA instructions. A thread holds RM points by RN columns in
// registers, with the operands of those points, and reads both operands of a row from shared memory 16 bytes at a time.
//
// The rows were prepared with columns contiguous (vjp_passes.cuh) and are copied asynchronously (pipeline.cuh). Weights are read
// along whichever axis is contiguous, multiplied by the coefficients of the outputs once, and stored with points contiguous.
#pragma once
#include "pipeline.cuh"
#include "vjp.cuh"

namespace km {

template <int RM_, int RN_, int OUTPUTS_, int DEPTH_, int STAGES_>
struct ScalarTile {
    static constexpr int RM = RM_, RN = RN_, BM = 16 * RM, BN = 16 * RN, BL = OUTPUTS_, KC = DEPTH_, STAGES = STAGES_;
    static constexpr int THREADS = 256;
    static constexpr bool TENSOR = false, SPLIT = false;
};
template <class Body, class Tile>
__device__ constexpr int scalar_shared_bytes() {
    return Tile::STAGES * Tile::KC * (Tile::BM * Tile::BL + Tile::BN) * 4;
}

template <class Body, class Tile>
struct Scalar {
    typedef typename Body::Args Args;
    typedef CopyPipeline<Tile::STAGES> Pipeline;
    static constexpr int RM = Tile::RM, RN = Tile::RN, BM = Tile::BM, BN = Tile::BN, BL = Tile::BL, KC = Tile::KC;
    static constexpr int STAGES = Tile::STAGES, THREADS = Tile::THREADS, STAGE = KC * (BM * BL + BN);
    // Groups of four weights: neighbours along the points or along the rows, always of the same points for a thread.
    static constexpr bool ALONG_POINTS = Body::WEIGHT_RUN == ALONG_TILE;
    static constexpr int GROUPS = KC * BM / 4 / THREADS, ACROSS = ALONG_POINTS ? 1 : 4;
    static_assert(KC * BM % (4 * THREADS) == 0 && KC * BN % (4 * THREADS) == 0 && THREADS % (BM / 4) == 0 && THREADS % BM == 0, "tile");
    static constexpr int COPIES = KC * BN / 4 / THREADS;
    // Rows written out one after another: all 16 leave the instruction cache, 102 ms against 41 for an exponential on an H200.
    static constexpr int UNROLL = BL == 4 && Body::KIND != PLAIN ? KC : BL == 2 || Body::KIND == PLAIN ? 4 : 8;

    static constexpr int HOP = ALONG_POINTS ? THREADS / (BM / 4) : THREADS / BM * 4;

    const Args& g;
    const Patch t;
    float* shared;
    int thread;
    const float* from;
    i64 wide, weight_at[AtLeastOne<Body::WEIGHTS>::value], factor_at[AtLeastOne<Body::FACTORS>::value];
    int left, points;
    float weights[GROUPS][AtLeastOne<Body::WEIGHTS>::value][4], factors[GROUPS][AtLeastOne<Body::FACTORS>::value][BL][ACROSS];

    __device__ __forceinline__ Scalar(const Args& g_, const Patch& t_, float* shared_) : g(g_), t(t_), shared(shared_), thread(threadIdx.x) {
        const i64 high = padded(g.size[ROLE_K], KC);
        wide = padded(g.size[ROLE_N], BN);
        constexpr int PIECES = BN / 4;
        from = g.rows + plane_of<Body>(g, t.p) * high * wide + (t.first + thread / PIECES) * wide + t.n + thread % PIECES * 4;
        const i64 k = t.first + group_k(), m = t.m + group_m();
        left = (int)(t.end - k);
        points = g.size[ROLE_M] - m < 4 ? (int)(g.size[ROLE_M] - m) : 4;
        each<0, Body::WEIGHTS>([&](auto i) {
            typedef typename Body::template WeightBuffer<decltype(i)::value> P;
            weight_at[decltype(i)::value] = (i64)(origin<P>(g, t.p) + m * g.stride[P::BUFFER][ROLE_M] + k * g.stride[P::BUFFER][ROLE_K]);
        });
        each<0, Body::FACTORS>([&](auto i) {
            typedef typename Body::template FactorBuffer<decltype(i)::value> P;
            factor_at[decltype(i)::value] = (i64)(origin<P>(g, t.p) + t.l * g.stride[P::BUFFER][ROLE_L] + k * g.stride[P::BUFFER][ROLE_K]);
        });
    }

    // A thread's place in the grid of threads: a warp covers 4 x 8.
    __device__ __forceinline__ int row_of() const { return (thread / 64 * 4 + thread % 32 / 8) * 4; }
    __device__ __forceinline__ int column_of() const { return (thread / 32 % 2 * 8 + thread % 8) * 4; }
    static __device__ __forceinline__ int hop(int i) { return i / 4 * 64 + i % 4; }

    __device__ __forceinline__ void copy(int stage) {
        constexpr int ROWS = THREADS / (BN / 4);
        const unsigned to = shared_address(shared) + (stage * STAGE + KC * BM * BL + thread * 4) * 4;
        const float* at = from;
#pragma unroll
        for (int i = 0; i < COPIES; ++i, at += ROWS * wide) ptx::cp_async<16>(to + i * THREADS * 16, at);
        from += KC * wide;
    }

    __device__ __forceinline__ int group_k() const { return ALONG_POINTS ? thread / (BM / 4) : thread / BM * 4; }
    __device__ __forceinline__ int group_m() const { return ALONG_POINTS ? thread % (BM / 4) * 4 : thread % BM; }

    // Weights and coefficients of the next chunk, as they lie in memory: they are first looked at when it is written.
    __device__ __forceinline__ void read() {
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            const int rest = left - i * HOP;
            each<0, Body::WEIGHTS>([&](auto index) {
                typedef typename Body::template WeightBuffer<decltype(index)::value> P;
                typedef typename P::T T;
                const i64 sm = g.stride[P::BUFFER][ROLE_M], sk = g.stride[P::BUFFER][ROLE_K];
                const T* at = (const T*)weight_at[decltype(index)::value] + i * HOP * sk;
                float(&w)[4] = weights[i][decltype(index)::value];
                if (P::VEC == 4 && (ALONG_POINTS ? points == 4 && rest > 0 : points > 0 && rest >= 4)) {
                    const Pack<T, P::VEC> pack = load_pack<T, P::VEC>(at);
#pragma unroll
                    for (int v = 0; v < 4; ++v) w[v] = convert<float>(pack.v[v % P::VEC]);
                } else {
#pragma unroll
                    for (int v = 0; v < 4; ++v) {
                        const bool inside = ALONG_POINTS ? v < points && rest > 0 : points > 0 && v < rest;
                        w[v] = inside ? take<P>(at + v * (ALONG_POINTS ? sm : sk)) : 0.0f;
                    }
                }
            });
            each<0, Body::FACTORS>([&](auto index) {
                typedef typename Body::template FactorBuffer<decltype(index)::value> P;
                const i64* s = g.stride[P::BUFFER];
                const typename P::T* at = (const typename P::T*)factor_at[decltype(index)::value] + i * HOP * s[ROLE_K];
#pragma unroll
                for (int o = 0; o < BL; ++o)
#pragma unroll
                    for (int v = 0; v < ACROSS; ++v) {
                        const bool inside = (BL == 1 || t.l + o < g.size[ROLE_L]) && v < rest;
                        factors[i][decltype(index)::value][o][v] = inside ? take<P>(at + v * s[ROLE_K] + o * s[ROLE_L]) : 0.0f;
                    }
            });
        }
        each<0, Body::WEIGHTS>([&](auto i) { forward<typename Body::template WeightBuffer<decltype(i)::value>>(weight_at[decltype(i)::value]); });
        each<0, Body::FACTORS>([&](auto i) { forward<typename Body::template FactorBuffer<decltype(i)::value>>(factor_at[decltype(i)::value]); });
        left -= KC;
    }
    template <class P>
    __device__ __forceinline__ void forward(i64& at) const {
        at += KC * g.stride[P::BUFFER][ROLE_K] * (i64)sizeof(typename P::T);
    }
    // Weights times coefficients of the chunk read last, 0 behind the end, whatever a weight of nothing would be.
    __device__ __forceinline__ void write(int stage) {
        float* at = shared + stage * STAGE + group_k() * BM + group_m();
#pragma unroll
        for (int i = 0; i < GROUPS; ++i)
#pragma unroll
            for (int o = 0; o < BL; ++o) {
                float products[4];
#pragma unroll
                for (int v = 0; v < 4; ++v) {
                    float w[AtLeastOne<Body::WEIGHTS>::value], c[AtLeastOne<Body::FACTORS>::value];
#pragma unroll
                    for (int q = 0; q < Body::WEIGHTS; ++q) w[q] = weights[i][q][v];
#pragma unroll
                    for (int q = 0; q < Body::FACTORS; ++q) c[q] = factors[i][q][o][v % ACROSS];
                    const bool inside = (ALONG_POINTS ? 0 : v) < left + KC - i * HOP;
                    products[v] = inside ? Body::weight(w, g.number) * Body::coefficient(c, g.number) : 0.0f;
                }
                float* plane = at + (o * KC + i * HOP) * BM;
                if (ALONG_POINTS) {
                    *(float4*)plane = make_float4(products[0], products[1], products[2], products[3]);
                } else {
#pragma unroll
                    for (int v = 0; v < 4; ++v) plane[v * BM] = products[v];
                }
            }
    }

    __device__ __forceinline__ void run(const float* table) {
        float acc[BL][RM][RN];
        float of_mn[AtLeastOne<Body::MN_OPERANDS>::value][RM][RN], of_m[AtLeastOne<Body::M_OPERANDS>::value][RM];
        float of_n[AtLeastOne<Body::N_OPERANDS>::value][RN], scalar[AtLeastOne<Body::SCALARS>::value];
        const i64 last_point = g.size[ROLE_M] - 1, last_column = g.size[ROLE_N] - 1;
#pragma unroll
        for (int i = 0; i < RM; ++i)
#pragma unroll
            for (int j = 0; j < RN; ++j) {
                const i64 m = t.m + row_of() + hop(i), n = t.n + column_of() + hop(j);
                const Operands<Body, Args> c(g, t.p, m < last_point ? m : last_point, n < last_column ? n : last_column);
#pragma unroll
                for (int q = 0; q < Body::MN_OPERANDS; ++q) of_mn[q][i][j] = c.of_mn[q];
#pragma unroll
                for (int q = 0; q < Body::M_OPERANDS; ++q) of_m[q][i] = c.of_m[q];
#pragma unroll
                for (int q = 0; q < Body::N_OPERANDS; ++q) of_n[q][j] = c.of_n[q];
#pragma unroll
                for (int q = 0; q < Body::SCALARS; ++q) scalar[q] = c.scalar[q];
#pragma unroll
                for (int o = 0; o < BL; ++o) acc[o][i][j] = 0.0f;
            }
        const int chunks = (int)ceil_div(t.end - t.first, KC);
        const unsigned bits = Body::KIND == POWERS ? __float_as_uint(table[512]) : 0;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (t.first + s * KC < t.end) copy(s);
            Pipeline::commit();
            read();
            write(s);
        }
        // Of scalar point and output, in the order of the accumulators: where all differences are 0 so is the result.
        static_assert(Body::KIND != SIGNS || BM * BL <= THREADS, "totals");
        float total = 0.0f;
        Pipeline pipeline;
        i64 ahead = t.first + (STAGES - 1) * KC;
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk, ahead += KC, pipeline.advance()) {
            Pipeline::wait();
            __syncthreads();
            const int filled = pipeline.previous();
            if (ahead < t.end) copy(filled);
            Pipeline::commit();
            read();
            if (Body::KIND == SIGNS && thread < BM * BL) {
                const float* mine = shared + pipeline.stage * STAGE + thread / BM * (KC * BM) + thread % BM;
#pragma unroll
                for (int k = 0; k < KC; ++k) total += mine[k * BM];
            }
            const float* w = shared + pipeline.stage * STAGE + row_of();
            const float* x = shared + pipeline.stage * STAGE + KC * BM * BL + column_of();
#pragma unroll UNROLL
            for (int k = 0; k < KC; ++k) {
                float a[BL][RM], b[RN];
#pragma unroll
                for (int o = 0; o < BL; ++o)
#pragma unroll
                    for (int i = 0; i < RM; i += 4) *(float4*)(a[o] + i) = *(const float4*)(w + (o * KC + k) * BM + i / 4 * 64);
#pragma unroll
                for (int j = 0; j < RN; j += 4) *(float4*)(b + j) = *(const float4*)(x + k * BN + j / 4 * 64);
#pragma unroll
                for (int i = 0; i < RM; ++i)
#pragma unroll
                    for (int j = 0; j < RN; ++j) {
                        float c[AtLeastOne<Body::MN_OPERANDS>::value], p[AtLeastOne<Body::M_OPERANDS>::value], l[AtLeastOne<Body::N_OPERANDS>::value];
#pragma unroll
                        for (int q = 0; q < Body::MN_OPERANDS; ++q) c[q] = of_mn[q][i][j];
#pragma unroll
                        for (int q = 0; q < Body::M_OPERANDS; ++q) p[q] = of_m[q][i];
#pragma unroll
                        for (int q = 0; q < Body::N_OPERANDS; ++q) l[q] = of_n[q][j];
                        constexpr Method UNIT = Body::KIND == PLAIN ? EXACT : BY_UNIT;
                        const bool by_table = Body::KIND == POWERS && (i * RN + j) % Body::MIX == 0;
                        const float slope = by_table ? Body::template slope<BY_TABLE>(c, p, l, scalar, b[j], g.number, table, bits)
                                                     : Body::template slope<UNIT>(c, p, l, scalar, b[j], g.number, table, bits);
#pragma unroll
                        for (int o = 0; o < BL; ++o) acc[o][i][j] = fmaf(a[o][i], slope, acc[o][i][j]);
                    }
            }
            write(filled);
        }
        Pipeline::template wait<0>();
        if (Body::KIND == SIGNS) {
            __syncthreads();
            if (thread < BM * BL) shared[thread] = total;
            __syncthreads();
        }
        store(acc);
    }

    __device__ __forceinline__ void store(const float (&acc)[BL][RM][RN]) {
        // places are worked out anew, so that they take no registers in the loop above
        ptx::opaque(thread);
        bool fine = true;
        float* part = t.range < 0 ? (float*)0 : part_of<Tile>(g, t, t.range) + row_of() * BN + column_of();
        const i64 m = t.m + row_of(), n = t.n + column_of();
        const int rows = (int)least(g.size[ROLE_M] - m, BM), columns = (int)least(g.size[ROLE_N] - n, BN), outputs = (int)least(g.size[ROLE_L] - t.l, BL);
#pragma unroll
        for (int o = 0; o < BL; ++o)
#pragma unroll
            for (int i = 0; i < RM; ++i) {
                const float total = Body::KIND == SIGNS ? shared[o * BM + row_of() + hop(i)] : 0.0f;
                if (part) {
#pragma unroll
                    for (int j = 0; j < RN; ++j) part[(o * BM + hop(i)) * BN + hop(j)] = result(acc[o][i][j], total);
                } else if (hop(i) < rows && o < outputs) {
#pragma unroll
                    for (int j = 0; j < RN; ++j)
                        if (hop(j) < columns) fine = store_result<Body>(g, t.p, m + hop(i), n + hop(j), t.l + o, result(acc[o][i][j], total)) && fine;
                }
            }
        if (!fine) g.dirty[t.tile] = 1;
    }
    static __device__ __forceinline__ float result(float sum, float total) { return Body::KIND == SIGNS ? 2.0f * sum - total : sum; }
};

template <class Body, class Tile>
KM_DEVICE void scalar_main(const typename Body::Args& g) {
    extern __shared__ __align__(16) unsigned char raw[];
    __shared__ float table[Body::KIND == POWERS ? POWER_WORDS : 1];
    if (Body::KIND == POWERS) fill_table(table, Body::exponent(g.number), 0, Tile::THREADS);
    Scalar<Body, Tile> work(g, patch_of<Tile>(g, blockIdx.x), (float*)raw);
    work.run(table);
}

}  // namespace km

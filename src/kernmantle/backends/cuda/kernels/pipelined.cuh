// The gram schedule for Hopper and later in float32, warp-specialized: a producer warpgroup fills stages of shared memory, and
// consumer warps do nothing but read 16 bytes and reduce.
//
// A stage holds 32 positions of k of both operands in rows of 128 bytes, swizzled (layout.cuh) so that no two rows of a quarter
// warp share a bank. Registers have two banks, even and odd, and a 16-byte load fixes a register's number modulo 4; neighbouring
// k of the columns are therefore exchanged in shared memory, so that the two sources of a step never share a bank. There is
// one loop body only: a longer one would not fit the instruction cache.
#pragma once
#include "gram.cuh"
#include "layout.cuh"
#include "pipeline.cuh"

namespace km {

template <int WARPS_M_, int WARPS_N_, int TM_, int TN_, int STAGES_, bool SYMMETRIC_>
struct PipelinedTile {
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_, TM = TM_, TN = TN_, STAGES = STAGES_;
    static constexpr int BM = WARPS_M * 4 * TM, BN = WARPS_N * 8 * TN, DEPTH = 32;
    static constexpr int CONSUMERS = WARPS_M * WARPS_N, PRODUCERS = 4, THREADS = 32 * (CONSUMERS + PRODUCERS);
    static constexpr int BAND = 16;
    static constexpr bool SYMMETRIC = SYMMETRIC_, RUNS = false;
};

template <class Body, class Tile>
__device__ constexpr int pipelined_stage_bytes() {
    return (Tile::BM + Tile::BN + Body::VECTORS) * 128;
}
template <class Body, class Tile>
__device__ constexpr int pipelined_shared_bytes() {
    return Tile::STAGES * pipelined_stage_bytes<Body, Tile>() + PipelineBarriers<Tile::STAGES>::BYTES;
}

// Fills a (SPAN x 32) piece of a stage; all 128 producers take part. EXCHANGE swaps neighbouring k.
template <class P, int SPAN, bool EXCHANGE>
struct Feed {
    typedef typename P::T T;
    static constexpr bool ASYNC = Same<T, float>::value || Same<T, packed2>::value;
    // A piece of float32 that is exchanged goes through registers, for it would be four copies of 4 bytes.
    static constexpr bool DIRECT = ASYNC && !(EXCHANGE && Same<T, float>::value);
    static constexpr bool ROWWISE = P::RUN == ALONG_K;
    static constexpr bool WHOLE = ROWWISE && P::VEC >= 4;

    unsigned to;      // where this thread's first piece goes, from the start of a stage
    const T* from;    // and where it comes from; both walk 16 rows at a time
    i64 step;
    i64 row_stride, k_stride;

    // Eight lanes take the pieces of one row; single elements go lane by lane along the contiguous axis.
    __device__ __forceinline__ Feed(const T* base, i64 row_stride_, i64 k_stride_, int offset, int thread)
        : row_stride(row_stride_), k_stride(k_stride_) {
        const int piece = thread % 8, row = thread / 8;
        to = offset + (WHOLE ? row * 128 + swizzle_128(row, piece) : 0);
        from = WHOLE ? base + row * row_stride + piece * 4 : base;
        step = 16 * row_stride;
    }

    static __device__ __forceinline__ void put(unsigned at, const Pack<T, 4>& p) {
        const float a = convert<float>(p.v[0]), b = convert<float>(p.v[1]), c = convert<float>(p.v[2]), d = convert<float>(p.v[3]);
        ptx::st_shared_v4(at, EXCHANGE ? b : a, EXCHANGE ? a : b, EXCHANGE ? d : c, EXCHANGE ? c : d);
    }

    // A stage that lies wholly inside, in 16-byte pieces.
    __device__ __forceinline__ void issue_inside(unsigned stage) const {
        unsigned at = stage + to;
        const T* source = from;
        if (DIRECT) {
#pragma unroll
            for (int i = 0; i < SPAN / 16; ++i, source += step) {
                if (EXCHANGE) {
#pragma unroll
                    for (int v = 0; v < 4; ++v) ptx::cp_async<4>(at + i * 2048 + (v ^ 1) * 4, source + v);
                } else {
                    ptx::cp_async<16>(at + i * 2048, source);
                }
            }
        } else {
            constexpr int AHEAD = SPAN < 64 ? SPAN / 16 : 4;
#pragma unroll
            for (int half = 0; half < SPAN / 16; half += AHEAD) {
                Pack<T, 4> staged[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i, source += step) staged[i] = load_pack<T, 4>(source);
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) put(at + (half + i) * 2048, staged[i]);
            }
        }
    }

    // The last stage of rows that are all there: pieces as far as k goes. What lies behind is never read.
    __device__ __forceinline__ void issue_tail(unsigned stage, int thread, i64 depths) const {
        const int left = (int)depths - thread % 8 * 4;
        unsigned at = stage + to;
        const T* source = from;
#pragma unroll 4
        for (int i = 0; i < SPAN / 16; ++i, at += 2048, source += step) {
            if (!EXCHANGE && left >= 4) {
                ptx::cp_async<16>(at, source);
            } else {
#pragma unroll
                for (int v = 0; v < 4; ++v)
                    if (v < left) ptx::cp_async<4>(at + (EXCHANGE ? v ^ 1 : v) * 4, source + v);
            }
        }
    }

    // Any stage, element by element.
    __device__ __forceinline__ void issue_edge(unsigned stage, int thread, i64 rows, i64 depths) const {
        const int lane = thread % 32, warp = thread / 32, piece = thread % 8;
        const unsigned start = stage + to;
        if (WHOLE) {
#pragma unroll 1
            for (int i = 0; i < SPAN / 4; ++i) {
                const int r = thread / 8 + 16 * (i / 4), v = i % 4;
                const bool inside = r < rows && piece * 4 + v < depths;
                if (inside) single(start + i / 4 * 2048 + (EXCHANGE ? v ^ 1 : v) * 4, from + i / 4 * step + v);
            }
        } else {
#pragma unroll 1
            for (int block = 0; block < SPAN / 4; block += 8) {
                float staged[8];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int row = row_of(block + i, lane, warp), k = k_of(block + i, lane, warp);
                    const bool inside = row < rows && k < depths;
                    staged[i] = inside ? convert<float>(load_pack<T, 1>(from + row * row_stride + k * k_stride).v[0]) : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int row = row_of(block + i, lane, warp), k = k_of(block + i, lane, warp);
                    const unsigned at = start + row * 128 + swizzle_128(row, k / 4) + ((EXCHANGE ? k ^ 1 : k) % 4) * 4;
                    ptx::st_shared(at, staged[i]);
                }
            }
        }
    }
    static __device__ __forceinline__ int row_of(int i, int lane, int warp) {
        return ROWWISE ? warp + 4 * i : lane + 32 * (i % (SPAN / 32));
    }
    static __device__ __forceinline__ int k_of(int i, int lane, int warp) { return ROWWISE ? lane : warp + 4 * (i / (SPAN / 32)); }
    static __device__ __forceinline__ void single(unsigned at, const T* source) {
        if constexpr (ASYNC) {
            ptx::cp_async<4>(at, source);
        } else {
            const float value = convert<float>(load_pack<T, 1>(source).v[0]);
            ptx::st_shared(at, value);
        }
    }

    // Single elements of a stage that lies wholly inside.
    __device__ __forceinline__ void issue_single(unsigned stage, int thread) const {
        const int lane = thread % 32, warp = thread / 32;
        if (ROWWISE) {
            const T* source = from + warp * row_stride + lane * k_stride;
            const i64 hop = 4 * row_stride;
#pragma unroll 8
            for (int i = 0; i < SPAN / 4; ++i, source += hop) {
                const int row = warp + 4 * i;
                single(stage + to + row * 128 + swizzle_128(row, lane / 4) + ((EXCHANGE ? lane ^ 1 : lane) % 4) * 4, source);
            }
        } else {
#pragma unroll 1
            for (int r = 0; r < SPAN; r += 32) {
                const int row = r + lane;
                const T* source = from + row * row_stride + warp * k_stride;
                const unsigned at = stage + to + row * 128 + ((EXCHANGE ? warp ^ 1 : warp) % 4) * 4;
                const i64 hop = 4 * k_stride;
#pragma unroll
                for (int i = 0; i < 8; ++i, source += hop) single(at + swizzle_128(row, i), source);
            }
        }
    }

    __device__ __forceinline__ void issue(unsigned stage, int thread, bool inside, i64 rows, i64 depths) {
        if (!inside && WHOLE && ASYNC && rows >= SPAN)
            issue_tail(stage, thread, depths);
        else if (!inside)
            issue_edge(stage, thread, rows, depths);
        else if (WHOLE)
            issue_inside(stage);
        else
            issue_single(stage, thread);
        from += WHOLE ? 32 : 32 * k_stride;
    }
};

template <class Body, class Tile>
struct Pipelined {
    typedef typename Body::C C;
    typedef typename Body::Args Args;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    static constexpr int TM = Tile::TM, TN = Tile::TN, BM = Tile::BM, BN = Tile::BN, STAGES = Tile::STAGES;
    static constexpr int STAGE = pipelined_stage_bytes<Body, Tile>();

    typedef PipelineState<STAGES> State;
    typedef PipelineBarriers<STAGES> Barriers;

    // Weights along k, one a lane of the first warp.
    static __device__ __forceinline__ void vectors(const Args& g, const Coord& p, unsigned stage, i64 k, int thread) {
        each<0, Body::VECTORS>([&](auto index) {
            typedef typename Body::template Vector<decltype(index)::value> P;
            typedef typename P::T T;
            if (thread < 32 && k + thread < g.size[ROLE_K]) {
                const T* from = (const T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + (k + thread) * g.stride[P::BUFFER][ROLE_K];
                const float value = convert<float>(load_pack<T, 1>(from).v[0]);
                const unsigned to = stage + (BM + BN + decltype(index)::value) * 128 + thread * 4;
                ptx::st_shared(to, value);
            }
        });
    }

    typedef Feed<X, BM, false> FeedX;
    typedef Feed<Y, BN, true> FeedY;
    // What a producer stores and what it copies arrive apart.
    static constexpr int ARRIVALS = FeedX::DIRECT && FeedY::DIRECT ? 1 : 2;

    static __device__ void produce(const Args& g, unsigned shared, const Barriers& barriers, int thread) {
        Walk<Tile::RUNS> walk(count_tiles<Tile::SYMMETRIC, BM, BN>(g), ceil_div(g.size[ROLE_N], BN));
        const i64 depth = g.size[ROLE_K];
        State pipeline;
        pipeline.phase = 1;
#pragma unroll 1
        for (; walk.more(); walk.next()) {
            const Coord p = walk_coord<Tile>(g, walk);
            const i64* xs = g.stride[X::BUFFER];
            const i64* ys = g.stride[Y::BUFFER];
            const i64 rows = g.size[ROLE_M] - p.m, columns = g.size[ROLE_N] - p.n;
            FeedX x((const typename X::T*)g.pointer[X::BUFFER] + batch_offset(g, X::BUFFER, p) + p.m * xs[ROLE_M], xs[ROLE_M], xs[ROLE_K], 0, thread);
            FeedY y((const typename Y::T*)g.pointer[Y::BUFFER] + batch_offset(g, Y::BUFFER, p) + p.n * ys[ROLE_N], ys[ROLE_N], ys[ROLE_K], BM * 128, thread);
            const bool even_x = rows >= BM, even_y = columns >= BN;
            const i64 whole = depth / 32, stages = (depth + 31) / 32;
#pragma unroll 1
            for (i64 i = 0; i < stages; ++i) {
                ptx::mbarrier_wait_parity(barriers.empty(pipeline.stage), pipeline.phase);
                const unsigned stage = shared + pipeline.stage * STAGE;
                const bool inside = i < whole;
                x.issue(stage, thread, inside && even_x, rows, depth - 32 * i);
                y.issue(stage, thread, inside && even_y, columns, depth - 32 * i);
                vectors(g, p, stage, 32 * i, thread);
                const bool even = even_x && even_y;
                if (FeedX::ASYNC && FeedY::ASYNC && FeedX::WHOLE && FeedY::WHOLE && Body::VECTORS == 0 && even) {
                    ptx::cp_async_mbarrier_arrive_noinc(barriers.full(pipeline.stage));
                } else {
                    ptx::cp_async_wait_all();
                    ptx::mbarrier_arrive(barriers.full(pipeline.stage));
                }
                if (ARRIVALS == 2) ptx::mbarrier_arrive(barriers.full(pipeline.stage));
                pipeline.advance();
            }
        }
    }

    typedef typename Body::Registers Registers;

    static __device__ __forceinline__ void reduce(
        Registers (&state)[TM][TN], const float* a, const float* b, const float* c, int j, const Args& g, i64 position) {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            if constexpr (Body::PACKED2) {
                state[i][j].r0 += joined(gap({__float_as_uint(a[i])}, {__float_as_uint(*b)}));
            } else {
                Body::template step<EXACT>(state[i][j], a + i, b, c, a, g.number, position, 0);
            }
        }
    }

    // Sums of |x - y| over pieces of WORDS pairs of k in float16, joined in float32.
    template <int WORDS>
    static __device__ __forceinline__ void reduce_half2(Registers (&state)[TM][TN], const unsigned char* raw, unsigned a, unsigned b) {
        packed2 x[WORDS][TM];
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 v = *(const uint4*)(raw + (a ^ (w << 2)) + i * 1024);
                x[w][i] = {v.x}, x[w + 1][i] = {v.y}, x[w + 2][i] = {v.z}, x[w + 3][i] = {v.w};
            }
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            packed2 y[WORDS];
#pragma unroll
            for (int w = 0; w < WORDS; w += 4) {
                const uint4 v = *(const uint4*)(raw + (b ^ (w << 2)) + j * 1024);
                y[w] = {v.y}, y[w + 1] = {v.x}, y[w + 2] = {v.w}, y[w + 3] = {v.z};
            }
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                packed2 sum[WORDS];
#pragma unroll
                for (int w = 0; w < WORDS; ++w) sum[w] = gap(x[w][i], y[w]);
#pragma unroll
                for (int span = 1; span < WORDS; span *= 2)
#pragma unroll
                    for (int w = 0; w < WORDS; w += 2 * span) sum[w] = plus(sum[w], sum[w + span]);
                state[i][j].r0 += joined(sum[0]);
            }
        }
    }

    static __device__ void consume(const Args& g, const unsigned char* raw, const Barriers& barriers, int warp, int lane) {
        const int wm = warp % Tile::WARPS_M, wn = warp / Tile::WARPS_M;
        const int row = (Tile::WARPS_M > 1 ? wm / 2 * (8 * TM) + wm % 2 * 4 : 0) + lane / 8, column = wn * (8 * TN) + lane % 8;
        const int at_a = row * 128 + swizzle_128(row, 0), at_b = BM * 128 + column * 128 + swizzle_128(column, 0);
        Walk<Tile::RUNS> walk(count_tiles<Tile::SYMMETRIC, BM, BN>(g), ceil_div(g.size[ROLE_N], BN));
        const i64 depth = g.size[ROLE_K];
        State pipeline;
        Registers state[TM][TN];
#pragma unroll 1
        for (; walk.more(); walk.next()) {
            if constexpr (Tile::RUNS) Tile::template begin<Body>(g, walk, raw);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) Body::initial(state[i][j]);
#pragma unroll 1
            for (i64 k = 0; k < depth; k += 32) {
                ptx::mbarrier_wait_parity(barriers.full(pipeline.stage), pipeline.phase);
                const unsigned char* stage = raw + pipeline.stage * STAGE;
                const unsigned char* vectors = stage + (BM + BN) * 128;
                const int here = depth - k < 32 ? (int)(depth - k) : 32;
                if constexpr (Body::PACKED2) {
#pragma unroll 1
                    for (int word = 0; word < (here & ~7); word += 8)
                        reduce_half2<8>(state, raw, (pipeline.stage * STAGE + at_a) ^ (word << 2), (pipeline.stage * STAGE + at_b) ^ (word << 2));
                }
#pragma unroll 1
                for (int piece = 0; piece < (Body::PACKED2 ? 0 : here / 4); ++piece) {
                    const unsigned char* pa = raw + ((pipeline.stage * STAGE + at_a) ^ (piece << 4));
                    const unsigned char* pb = raw + ((pipeline.stage * STAGE + at_b) ^ (piece << 4));
                    float a[4][TM], c[4][AtLeastOne<Body::VECTORS>::value];
#pragma unroll
                    for (int i = 0; i < TM; ++i) {
                        const float4 v = *(const float4*)(pa + i * 1024);
                        a[0][i] = v.x, a[1][i] = v.y, a[2][i] = v.z, a[3][i] = v.w;
                    }
#pragma unroll
                    for (int o = 0; o < Body::VECTORS; ++o) {
                        const float4 v = *(const float4*)(vectors + o * 128 + piece * 16);
                        c[0][o] = v.x, c[1][o] = v.y, c[2][o] = v.z, c[3][o] = v.w;
                    }
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        const float4 v = *(const float4*)(pb + j * 1024);
                        const float b[4] = {v.y, v.x, v.w, v.z};
#pragma unroll
                        for (int q = 0; q < 4; ++q) reduce(state, a[q], &b[q], c[q], j, g, k + piece * 4 + q);
                    }
                }
#pragma unroll 1
                for (int kk = here & (Body::PACKED2 ? ~7 : ~3); kk < here; ++kk) {
                    const int swizzle = kk / 4 << 4;
                    const unsigned char* pa = raw + ((pipeline.stage * STAGE + at_a) ^ swizzle) + kk % 4 * 4;
                    const unsigned char* pb = raw + ((pipeline.stage * STAGE + at_b) ^ swizzle) + (kk % 4 ^ 1) * 4;
                    float a[TM], c[AtLeastOne<Body::VECTORS>::value];
#pragma unroll
                    for (int i = 0; i < TM; ++i) a[i] = *(const float*)(pa + i * 1024);
#pragma unroll
                    for (int o = 0; o < Body::VECTORS; ++o) c[o] = *(const float*)(vectors + o * 128 + kk * 4);
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        const float b = *(const float*)(pb + j * 1024);
                        reduce(state, a, &b, c, j, g, k + kk);
                    }
                }
                ptx::mbarrier_arrive(barriers.empty(pipeline.stage));
                pipeline.advance();
            }
            if constexpr (Tile::RUNS)
                Tile::template end<Body>(g, walk, state, row, column, raw);
            else
                finish(g, walk.tile, state, row, column);
        }
    }

    // CHECK: part of the tile lies outside or, in symmetric mode, above the diagonal.
    template <bool CHECK>
    static __device__ __forceinline__ void store(const Args& g, const Coord& p, Registers (&state)[TM][TN], i64 m0, i64 n0) {
        each<0, Body::OUTS>([&](auto index) {
            typedef typename Body::template Out<decltype(index)::value> P;
            typedef typename P::T T;
            const i64* s = g.stride[P::BUFFER];
            const i64 along = P::UNIT ? 1 : s[ROLE_N];
            T* base = (T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
            T* at = base + m0 * s[ROLE_M] + n0 * along;
            T* mirror = base + n0 * s[ROLE_M] + m0 * along;
#pragma unroll
            for (int i = 0; i < TM; ++i, at += 8 * s[ROLE_M]) {
                T* twin = mirror + 8 * i * along;
#pragma unroll
                for (int j = 0; j < TN; ++j, twin += 8 * s[ROLE_M]) {
                    const i64 m = m0 + 8 * i, n = n0 + 8 * j;
                    const bool inside = !CHECK || (m < g.size[ROLE_M] && n < g.size[ROLE_N]);
                    if (inside) {
                        const T value = P::of(Body::outputs(g, p, m, n, state[i][j]));
                        if (!CHECK || !Tile::SYMMETRIC || n <= m) at[8 * j * along] = value;
                        if (Tile::SYMMETRIC && (!CHECK || n < m)) *twin = value;
                    }
                }
            }
        });
    }

    static __device__ __forceinline__ void finish(const Args& g, i64 t, Registers (&state)[TM][TN], int row, int column) {
        const Coord p = coord_of<BM, BN, Tile::BAND, Tile::SYMMETRIC>(g, t);
        const bool whole = p.m + BM <= g.size[ROLE_M] && p.n + BN <= g.size[ROLE_N] && (!Tile::SYMMETRIC || p.m >= p.n + BN);
        if (whole)
            store<false>(g, p, state, p.m + row, p.n + column);
        else
            store<true>(g, p, state, p.m + row, p.n + column);
    }
};

// A reduction R on these stages: the producers' warps come last.
template <class R, class Tile, int PRODUCER_REGISTERS, int CONSUMER_REGISTERS>
__device__ __forceinline__ void run_pipelined(const typename R::Args& g) {
    extern __shared__ __align__(1024) unsigned char raw[];
    const unsigned shared = shared_address(raw);
    const typename R::Barriers barriers = {shared + Tile::STAGES * R::STAGE};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) barriers.initialise(R::ARRIVALS * 32 * Tile::PRODUCERS, 32 * Tile::CONSUMERS);
    __syncthreads();
    if (warp >= Tile::CONSUMERS) {
        ptx::setmaxnreg_dec<PRODUCER_REGISTERS>();
        R::produce(g, shared, barriers, threadIdx.x - 32 * Tile::CONSUMERS);
    } else {
        ptx::setmaxnreg_inc<CONSUMER_REGISTERS>();
        R::consume(g, raw, barriers, warp, lane);
    }
}
template <class Body, class Tile, int PRODUCER_REGISTERS, int CONSUMER_REGISTERS>
__device__ __forceinline__ void pipelined(const typename Body::Args& g) {
    run_pipelined<Pipelined<Body, Tile>, Tile, PRODUCER_REGISTERS, CONSUMER_REGISTERS>(g);
}

// For other reductions on the same stages.
template <int WARPS_M, int WARPS_N, int TM, int TN, int STAGES, bool SYMMETRIC>
using StagedTile = PipelinedTile<WARPS_M, WARPS_N, TM, TN, STAGES, SYMMETRIC>;
template <class Body, class Tile>
using StagedReduction = Pipelined<Body, Tile>;
template <class Body, class Tile>
__device__ constexpr int staged_shared_bytes() {
    return pipelined_shared_bytes<Body, Tile>();
}

}  // namespace km

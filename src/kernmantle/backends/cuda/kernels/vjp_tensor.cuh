// VJPs of a contraction for many outputs, on tensor cores. For each point m the kernel multiplies a matrix of slopes,
// (columns x rows), by a matrix of weights times coefficients, (rows x outputs). The slopes are made in registers, as the left
// operand of mma; the other matrix is made once a block, in shared memory.
//
// Both are split into two numbers of 11 bits, halves or tf32 (split_hi_lo.cuh); a sign needs only one. Of 16 rows a lane takes four
// neighbours, so that it reads them at once. Accumulators of tensor cores round towards zero, so they are added to sums in
// float32 every FLUSH chunks of rows.
#pragma once
#include "pipeline.cuh"
#include "vjp.cuh"
#include "split_hi_lo.cuh"

namespace km {

// Signs of two differences that are 0 or normal and below 2^120, times SIGN, in halves: the upper half of such a number,
// read as a half, is 0 or at least SIGN.
constexpr float SIGN = 1.0f / (1 << 17);
KM_DEVICE unsigned packed_signs(float low, float high) {
    return ptx::clamp_f16x2(ptx::upper_halves(__float_as_uint(low), __float_as_uint(high)), 0x00800080u);
}
KM_DEVICE float first_bits(float a) { return __uint_as_float(__float_as_uint(a) & 0xffffe000u); }
// What both ways to multiply share. ITEM words of a lane hold a product operand of 16 rows and 8 outputs. Pointers and
// places in shared memory are kept and moved on, for arithmetic on them would be half of all instructions.
template <class Body, class Tile>
struct Tensor {
    typedef typename Body::Args Args;
    typedef CopyPipeline<Tile::STAGES> Pipeline;
    static constexpr int NTL = Tile::NTL, TT = Tile::TT, MT = Tile::MT, KK = Tile::KK, KC = Tile::KC, STAGES = Tile::STAGES;
    static constexpr int BM = Tile::BM, BN = Tile::BN, BL = Tile::BL, THREADS = Tile::THREADS;
    static constexpr bool HALVES = Tile::SPLIT;
    static constexpr int FACTORS_AT = KC * BN, WEIGHTS_AT = FACTORS_AT + KC * BL, STAGE = WEIGHTS_AT + KC * BM;
    static constexpr int ITEM = HALVES ? 4 : 8, OPERAND = KK * BM * NTL * 32 * ITEM;
    static constexpr int WARPS = THREADS / 32, ITEMS = KK * BM * NTL, PER = KC / 4;
    static constexpr int ROW_PIECES = KC * BN / 4, FACTOR_PIECES = KC * BL / 4, WEIGHTS = (KC * BM + THREADS - 1) / THREADS;
    static constexpr bool ALONG_POINTS = Body::WEIGHT_RUN == ALONG_TILE;
    static constexpr int WEIGHT_HOP = ALONG_POINTS ? THREADS / BM : THREADS / KC;
    static_assert(ROW_PIECES % THREADS == 0 && THREADS % PER == 0, "copies");
    static_assert(ITEMS % WARPS == 0 && WARPS % NTL == 0 && (BM * NTL % WARPS == 0 || WARPS % (BM * NTL) == 0), "items");
    static_assert(WEIGHTS == 1 || KC * BM % THREADS == 0, "weights");

    const Args& g;
    const Patch t;
    float* shared;
    const int thread, warp, lane;
    const float *rows, *factors;
    i64 high, weight_at[AtLeastOne<Body::WEIGHTS>::value];
    int left, offset;
    bool active;
    float loaded[WEIGHTS][AtLeastOne<Body::WEIGHTS>::value], scale[WEIGHTS];

    __device__ __forceinline__ Tensor(const Args& g_, const Patch& t_, float* shared_)
        : g(g_), t(t_), shared(shared_), thread(threadIdx.x), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
        high = padded(g.size[ROLE_K], KC);
        const int piece = thread % PER;
        const i64 at = t.first + piece * 4;
        rows = g.rows + (plane_of<Body>(g, t.p) * padded(g.size[ROLE_N], BN) + t.n + thread / PER) * high + at;
        factors = g.factors + (t.entry * padded(g.size[ROLE_L], BL) + t.l + thread / PER) * high + at;
        const int m = weight_m(0), k = weight_k(0);
        offset = WEIGHTS_AT + k / 16 * 16 * BM + m * 16 + k % 16;
        left = (int)(t.end - t.first) - k;
        active = KC * BM >= THREADS || thread < KC * BM;
        each<0, Body::WEIGHTS>([&](auto i) {
            typedef typename Body::template WeightBuffer<decltype(i)::value> P;
            const i64* s = g.stride[P::BUFFER];
            weight_at[decltype(i)::value] = (i64)(origin<P>(g, t.p) + (t.m + m) * s[ROLE_M] + (t.first + k) * s[ROLE_K]);
        });
#pragma unroll
        for (int i = 0; i < WEIGHTS; ++i) {
            const i64 point = t.m + weight_m(i);
            scale[i] = HALVES && point < g.size[ROLE_M] && active ? g.scale[t.entry * g.size[ROLE_M] + point] : 1.0f;
        }
    }
    __device__ __forceinline__ unsigned* operand(int buffer) const { return (unsigned*)(shared + STAGES * STAGE) + buffer * OPERAND; }

    // A stage holds, for each 16 rows, 16 neighbours of every column, output and point.
    __device__ __forceinline__ void copy(int stage) {
        constexpr int COLUMNS = THREADS / PER;
        const int piece = thread % PER;
        const unsigned to = shared_address(shared) + stage * (STAGE * 4), inside = (thread / PER * 16 + piece % 4 * 4) * 4;
        const unsigned to_rows = to + inside + piece / 4 * (64 * BN), to_factors = to + inside + piece / 4 * (64 * BL) + FACTORS_AT * 4;
        const float* from = rows;
#pragma unroll
        for (int i = 0; i < ROW_PIECES / THREADS; ++i, from += COLUMNS * high) ptx::cp_async<16>(to_rows + i * COLUMNS * 64, from);
        from = factors;
#pragma unroll
        for (int i = 0; i < (FACTOR_PIECES + THREADS - 1) / THREADS; ++i, from += COLUMNS * high)
            if (FACTOR_PIECES % THREADS == 0 || thread + i * THREADS < FACTOR_PIECES) ptx::cp_async<16>(to_factors + i * COLUMNS * 64, from);
        rows += KC;
        factors += KC;
    }

    // The i-th weight of a thread: neighbouring threads take neighbours in memory.
    __device__ __forceinline__ int weight_k(int i) const { return ALONG_POINTS ? thread / BM + i * WEIGHT_HOP : thread % KC; }
    __device__ __forceinline__ int weight_m(int i) const { return ALONG_POINTS ? thread % BM : thread / KC + i * WEIGHT_HOP; }
    // The weights of the next chunk, as they lie in memory: they are first looked at when it is written.
    __device__ __forceinline__ void read() {
#pragma unroll
        for (int i = 0; i < WEIGHTS; ++i)
            each<0, Body::WEIGHTS>([&](auto q) {
                typedef typename Body::template WeightBuffer<decltype(q)::value> P;
                const i64 hop = i * WEIGHT_HOP * g.stride[P::BUFFER][ALONG_POINTS ? ROLE_K : ROLE_M];
                loaded[i][decltype(q)::value] = is_inside(i, left) ? take<P>((const typename P::T*)weight_at[decltype(q)::value] + hop) : 0.0f;
            });
        each<0, Body::WEIGHTS>([&](auto q) {
            typedef typename Body::template WeightBuffer<decltype(q)::value> P;
            weight_at[decltype(q)::value] += KC * g.stride[P::BUFFER][ROLE_K] * (i64)sizeof(typename P::T);
        });
        left -= KC;
    }
    __device__ __forceinline__ bool is_inside(int i, int rest) const {
        return active && t.m + weight_m(i) < g.size[ROLE_M] && (ALONG_POINTS ? i * WEIGHT_HOP : 0) < rest;
    }
    // 0 behind the end, whatever a weight of nothing would be.
    __device__ __forceinline__ void write(int stage) {
        float* to = shared + stage * STAGE + offset;
        constexpr int HOP = ALONG_POINTS ? WEIGHT_HOP / 16 * 16 * BM + WEIGHT_HOP % 16 : WEIGHT_HOP * 16;
        static_assert(WEIGHTS == 1 || !ALONG_POINTS || WEIGHT_HOP % 16 == 0, "weights");
#pragma unroll
        for (int i = 0; i < WEIGHTS; ++i) {
            const float w = is_inside(i, left + KC) ? Body::weight(loaded[i], g.number) : 0.0f;
            if (active) to[i * HOP] = HALVES ? w * scale[i] : w;
        }
    }

    // Fills all stages but one.
    __device__ __forceinline__ void fill(int chunks) {
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) {
            if (s < chunks) copy(s);
            Pipeline::commit();
            read();
            write(s);
        }
        Pipeline::wait();
        __syncthreads();
    }
    // Starts to fill the stage that is free, and returns it; its weights are still to be written.
    __device__ __forceinline__ int refill(const Pipeline& pipeline, i64 ahead) {
        Pipeline::template wait<STAGES - 3>();
        __syncthreads();
        const int free = pipeline.previous();
        if (ahead < t.end) copy(free);
        Pipeline::commit();
        read();
        return free;
    }

    // Weights times coefficients of a stage; `put` stores what a lane has of an item (16 rows, a point, 8 outputs), of
    // which a warp takes every STEP-th from its first.
    static constexpr int STEP = WARPS / NTL;
    __device__ __forceinline__ int first_item() const { return warp / NTL; }
    template <class Put>
    __device__ __forceinline__ void multiply(int stage, Put put) {
        const float* s = shared + stage * STAGE + lane % 4 * 4;
        const float* w_at = s + WEIGHTS_AT + first_item() * 16;
        const float* c_at = s + FACTORS_AT + first_item() / BM * (16 * BL) + (warp % NTL * 8 + lane / 4) * 16;
#pragma unroll
        for (int i = 0; i < ITEMS / WARPS; ++i) {
            const float4 w = *(const float4*)(w_at + i * STEP * 16), c = *(const float4*)(c_at + i * STEP / BM * (16 * BL));
            put(i * STEP, w.x * c.x, w.y * c.y, w.z * c.z, w.w * c.w);
        }
    }

    // Slopes of two columns, four rows each, as a lane multiplies them.
    struct Factors {
        float of_mn[AtLeastOne<Body::MN_OPERANDS>::value][2], of_n[AtLeastOne<Body::N_OPERANDS>::value][2];
        float of_m[AtLeastOne<Body::M_OPERANDS>::value], scalar[AtLeastOne<Body::SCALARS>::value];
    };
    __device__ __forceinline__ void hold(Factors& h, int m, int n) const {
        const i64 points = g.size[ROLE_M], columns = g.size[ROLE_N];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i64 mm = t.m + m, nn = t.n + n + 8 * r, column = nn < columns ? nn : columns - 1;
            const Operands<Body, Args> c(g, t.p, mm < points ? mm : points - 1, column);
            const float by = Body::KIND == POWERS ? fitting(g.top[plane_of<Body>(g, t.p) * columns + column], COLUMN_FIT) : 1.0f;
#pragma unroll
            for (int q = 0; q < Body::MN_OPERANDS; ++q) h.of_mn[q][r] = c.of_mn[q] * by;
#pragma unroll
            for (int q = 0; q < Body::N_OPERANDS; ++q) h.of_n[q][r] = c.of_n[q];
#pragma unroll
            for (int q = 0; q < Body::M_OPERANDS; ++q) h.of_m[q] = c.of_m[q];
#pragma unroll
            for (int q = 0; q < Body::SCALARS; ++q) h.scalar[q] = c.scalar[q];
        }
    }
    // Order: rows 0 and 1 of the first column, then of the second, then rows 2 and 3 likewise.
    __device__ __forceinline__ void slopes(float (&v)[8], const Factors& h, const float4& x0, const float4& x1, int ordinal, const float* table, unsigned bits) const {
        const float x[8] = {x0.x, x0.y, x1.x, x1.y, x0.z, x0.w, x1.z, x1.w};
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const int r = e / 2 % 2;
            float c[AtLeastOne<Body::MN_OPERANDS>::value], l[AtLeastOne<Body::N_OPERANDS>::value];
#pragma unroll
            for (int q = 0; q < Body::MN_OPERANDS; ++q) c[q] = h.of_mn[q][r];
#pragma unroll
            for (int q = 0; q < Body::N_OPERANDS; ++q) l[q] = h.of_n[q][r];
            constexpr Method UNIT = Body::KIND == PLAIN ? EXACT : BY_UNIT;
            if (Body::KIND == POWERS && (ordinal * 8 + e) * Tile::TABLE % 8 < Tile::TABLE)
                v[e] = Body::template slope<BY_TABLE>(c, h.of_m, l, h.scalar, x[e], g.number, table, bits);
            else
                v[e] = Body::template slope<UNIT>(c, h.of_m, l, h.scalar, x[e], g.number, table, bits);
        }
    }

    // What sums are multiplied by: for the outputs and for the columns of a lane, and for a point.
    __device__ __forceinline__ void by_outputs(float (&by)[NTL][2]) const {
#pragma unroll
        for (int e = 0; e < NTL * 2; ++e) {
            const i64 l = t.l + e / 2 * 8 + lane % 4 * 2 + e % 2;
            const float factor = HALVES && l < g.size[ROLE_L] ? inverse(fitting(g.peak[t.entry * g.size[ROLE_L] + l], FACTOR_FIT)) : 1.0f;
            by[e / 2][e % 2] = HALVES && Body::KIND == SIGNS ? factor / SIGN : factor;
        }
    }
    __device__ __forceinline__ void by_columns(float (&by)[2], int n) const {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const i64 column = t.n + n + lane / 4 + 8 * e;
            by[e] = 1.0f;
            if (Body::KIND == POWERS && column < g.size[ROLE_N]) {
                const float fit = fitting(g.top[plane_of<Body>(g, t.p) * g.size[ROLE_N] + column], COLUMN_FIT);
                by[e] = power_of_exponent(-Body::exponent(g.number), (int)(__float_as_uint(fit) >> 23)) * (1.0f / (1 << POWER_FIT));
            }
        }
    }
    __device__ __forceinline__ float by_point(int m) const {
        const i64 point = t.m + m;
        return HALVES && point < g.size[ROLE_M] ? inverse(g.scale[t.entry * g.size[ROLE_M] + point]) : 1.0f;
    }

    // Stores the sums of a lane, of a point, 16 columns and all outputs.
    __device__ __forceinline__ bool store(const float (&d)[NTL][4], int m, int n, const float (&outputs)[NTL][2], const float (&columns)[2], float* part) const {
        bool fine = true;
        const float by = by_point(m);
        const i64 point = t.m + m, column = t.n + n + lane / 4, output = t.l + lane % 4 * 2;
        float* at = part + (lane % 4 * 2 * BM + m) * BN + n + lane / 4;
#pragma unroll
        for (int e = 0; e < NTL * 4; ++e) {
            const int nn = e / 2 % 2 * 8, l = e / 4 * 8 + e % 2;
            const float sum = d[e / 4][e % 4] * by * outputs[e / 4][e % 2] * columns[e / 2 % 2];
            if (part)
                at[l * BM * BN + nn] = sum;
            else if (point < g.size[ROLE_M] && column + nn < g.size[ROLE_N] && output + l < g.size[ROLE_L])
                fine = store_result<Body>(g, t.p, point, column + nn, output + l, sum) && fine;
        }
        return fine;
    }
};

template <class Body, class Tile>
__device__ constexpr int tensor_vjp_shared_bytes() {
    typedef Tensor<Body, Tile> T;
    return 4 * (T::STAGES * T::STAGE + 2 * T::OPERAND);
}

// By mma.sync: a warp takes TT points and MT times 16 columns.
template <int NTL_, int TT_, int MT_, int WT_, int WF_, int KK_, int STAGES_, int FLUSH_, int TABLE_, bool SPLIT_>
struct MmaVjpTile {
    static constexpr int NTL = NTL_, TT = TT_, MT = MT_, WT = WT_, WF = WF_, KK = KK_, STAGES = STAGES_, FLUSH = FLUSH_, TABLE = TABLE_;
    static constexpr int BM = TT * WT, BN = 16 * MT * WF, BL = 8 * NTL, KC = 16 * KK, THREADS = 32 * WT * WF;
    static constexpr bool TENSOR = true, SPLIT = SPLIT_;
};

template <class Body, class Tile>
struct MmaVjp : Tensor<Body, Tile> {
    typedef Tensor<Body, Tile> Base;
    using Base::BM;
    using Base::BN;
    using Base::HALVES;
    using Base::KC;
    using Base::KK;
    using Base::MT;
    using Base::NTL;
    using Base::STAGES;
    using Base::TT;
    using typename Base::Pipeline;
    float acc[TT][MT][NTL][4];

    __device__ __forceinline__ MmaVjp(const typename Body::Args& g, const Patch& t, float* shared) : Base(g, t, shared) {
        clear(acc);
    }

    __device__ __forceinline__ void make(int stage, int buffer) {
        unsigned* to = this->operand(buffer) + (this->first_item() * NTL + this->warp % NTL) * (32 * Base::ITEM) + this->lane * 4;
        this->multiply(stage, [&](int item, float b0, float b1, float b2, float b3) {
            unsigned* at = to + item * (NTL * 32 * Base::ITEM);
            if (HALVES) {
                const unsigned x = ptx::pack_f16x2(b0, b1), y = ptx::pack_f16x2(b2, b3);
                const uint4 both = {x, y, residual_f16x2(x, b0, b1), residual_f16x2(y, b2, b3)};
                *(uint4*)at = both;
            } else {
                const float h0 = first_bits(b0), h1 = first_bits(b1), h2 = first_bits(b2), h3 = first_bits(b3);
                *(float4*)at = make_float4(h0, h1, h2, h3);
                *(float4*)(at + 128) = make_float4(b0 - h0, b1 - h1, b2 - h2, b3 - h3);
            }
        });
    }

    __device__ __forceinline__ void add_halves(int a, int m, const float (&v)[8], const unsigned* b) {
        unsigned first[4], second[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            first[e] = Body::KIND == SIGNS ? packed_signs(v[2 * e], v[2 * e + 1]) : ptx::pack_f16x2(v[2 * e], v[2 * e + 1]);
            if (Body::KIND == POWERS) second[e] = residual_f16x2(first[e], v[2 * e], v[2 * e + 1]);
        }
        uint4 loaded[NTL];
#pragma unroll
        for (int n = 0; n < NTL; ++n) loaded[n] = *(const uint4*)(b + n * 128);
#pragma unroll
        for (int n = 0; n < NTL; ++n) ptx::mma_m16n8k16_pure<f16>(acc[a][m][n], first, loaded[n].x, loaded[n].y);
#pragma unroll
        for (int n = 0; n < NTL; ++n) ptx::mma_m16n8k16_pure<f16>(acc[a][m][n], first, loaded[n].z, loaded[n].w);
        if (Body::KIND == POWERS) {
#pragma unroll
            for (int n = 0; n < NTL; ++n) ptx::mma_m16n8k16_pure<f16>(acc[a][m][n], second, loaded[n].x, loaded[n].y);
        }
    }
    __device__ __forceinline__ void add_floats(int a, int m, const float (&v)[8], const unsigned* b) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            unsigned first[4], second[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const float one = v[half * 4 + e % 2 * 2 + e / 2];
                first[e] = __float_as_uint(first_bits(one));
                second[e] = __float_as_uint(one - first_bits(one));
            }
#pragma unroll
            for (int n = 0; n < NTL; ++n) {
                const uint2 h = *(const uint2*)(b + n * 256 + half * 2), l = *(const uint2*)(b + n * 256 + 128 + half * 2);
                ptx::mma_m16n8k8_tf32_pure(acc[a][m][n], first, h.x, h.y);
                ptx::mma_m16n8k8_tf32_pure(acc[a][m][n], first, l.x, l.y);
                ptx::mma_m16n8k8_tf32_pure(acc[a][m][n], second, h.x, h.y);
            }
        }
    }

    __device__ __forceinline__ void run(const float* table) {
        const int wt = this->warp / Tile::WF * TT, wf = this->warp % Tile::WF * MT * 16;
        typename Base::Factors loaded[TT][MT];
        float sum[TT][MT][NTL][4];
#pragma unroll
        for (int a = 0; a < TT; ++a)
#pragma unroll
            for (int m = 0; m < MT; ++m) this->hold(loaded[a][m], wt + a, wf + m * 16 + this->lane / 4);
        clear(sum);
        const unsigned bits = Body::KIND == POWERS ? __float_as_uint(table[512]) : 0;
        const int chunks = (int)ceil_div(this->t.end - this->t.first, KC);
        this->fill(chunks);
        make(0, 0);
        Pipeline pipeline;
        i64 ahead = this->t.first + (STAGES - 1) * KC;
#pragma unroll 1
        for (int start = 0; start < chunks; start += Tile::FLUSH) {
            const int stop = start + Tile::FLUSH < chunks ? start + Tile::FLUSH : chunks;
#pragma unroll 1
            for (int chunk = start; chunk < stop; ++chunk, ahead += KC, pipeline.advance()) {
                const int filled = this->refill(pipeline, ahead);
                make(pipeline.next(), (chunk + 1) & 1);
                const float* x = this->shared + pipeline.stage * Base::STAGE + (wf + this->lane / 4) * 16 + this->lane % 4 * 4;
                const unsigned* b = this->operand(chunk & 1) + this->lane * 4;
#pragma unroll
                for (int kk = 0; kk < KK; ++kk) {
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        const float4 x0 = *(const float4*)(x + kk * 16 * BN + m * 256), x1 = *(const float4*)(x + kk * 16 * BN + m * 256 + 128);
#pragma unroll
                        for (int a = 0; a < TT; ++a) {
                            float v[8];
                            this->slopes(v, loaded[a][m], x0, x1, (kk * MT + m) * TT + a, table, bits);
                            const unsigned* at = b + (kk * BM + wt + a) * NTL * 32 * Base::ITEM;
                            if constexpr (HALVES)
                                add_halves(a, m, v, at);
                            else
                                add_floats(a, m, v, at);
                        }
                    }
                }
                this->write(filled);
            }
#pragma unroll
            for (int e = 0; e < TT * MT * NTL * 4; ++e) {
                (&sum[0][0][0][0])[e] += (&acc[0][0][0][0])[e];
                (&acc[0][0][0][0])[e] = 0.0f;
            }
        }
        float* part = this->t.range < 0 ? (float*)0 : part_of<Tile>(this->g, this->t, this->t.range);
        bool fine = true;
        float outputs[NTL][2], columns[2];
        this->by_outputs(outputs);
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            this->by_columns(columns, wf + m * 16);
#pragma unroll
            for (int a = 0; a < TT; ++a) fine = this->store(sum[a][m], wt + a, wf + m * 16, outputs, columns, part) && fine;
        }
        if (!fine) this->g.dirty[this->t.tile] = 1;
    }
};

template <class Work, class Body, class Tile>
KM_DEVICE void run_vjp(const typename Body::Args& g) {
    extern __shared__ __align__(1024) unsigned char raw[];
    __shared__ float table[Body::KIND == POWERS ? POWER_WORDS : 1];
    if (Body::KIND == POWERS) fill_table(table, Body::exponent(g.number), POWER_FIT, Tile::THREADS);
    Work work(g, patch_of<Tile>(g, blockIdx.x), (float*)raw);
    work.run(table);
}
template <class Body, class Tile>
KM_DEVICE void mma_vjp_main(const typename Body::Args& g) {
    run_vjp<MmaVjp<Body, Tile>, Body, Tile>(g);
}

}  // namespace km

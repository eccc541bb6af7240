// Rows of few entries times many columns, on Hopper: entries by FP32 instructions, as they are written, in the registers from
// which tensor cores multiply them with v, both as high and low halves.
//
// A consumer warpgroup has 64 rows. It makes the entries of 64 columns, brings each row's largest to 2^14 .. 2^15, and makes
// the next ones while those are multiplied; what comes out is added up in float32, as tensor cores cut what they add.
#pragma once
#include "row_sums.cuh"

namespace km {

template <class Body, class Tile>
__device__ constexpr int apply_wide_shared_bytes() {
    return Tile::STAGES * (Tile::BYTES + wide_side<Body, Tile>() * 4 + 16);
}

template <class Body, class Tile>
struct WideRows : RowSums<Body, Tile, RowsOfGroup<Body>> {
    typedef RowSums<Body, Tile, RowsOfGroup<Body>> Base;
    typedef typename Body::Args Args;
    typedef typename Body::template Row<0> X;
    static constexpr int K = Tile::DEPTH, COLUMNS = Tile::COLUMNS, GROUPS = Tile::GROUPS, STAGES = Tile::STAGES;
    static constexpr int BM = Tile::BM, BN = Tile::BN, SIDE = wide_side<Body, Tile>();
    static constexpr unsigned WHOLE = 0xffffffffu, HIGH = 64u | 1u << 30, LOW = 1u << 16;

    // Entries of 64 columns as fragments, and what their rows were divided by.
    struct Half {
        unsigned high[4][4], low[4][4];
        float unit[2];
    };

    using Base::g, Base::group, Base::lane, Base::local_row, Base::sum, Base::product;

    const float* sides;
    unsigned tiles, full, empty;
    float x[K][2], ends[AtLeastOne<Body::ROW_ENDS>::value][2];
    typename Body::Fixed fixed;
    bool infinite;

    __device__ __forceinline__ WideRows(const Args& g_, unsigned char* raw)
        : Base(g_), sides((const float*)(raw + STAGES * Tile::BYTES)), infinite(false) {
        tiles = shared_address(raw);
        full = tiles + STAGES * (Tile::BYTES + SIDE * 4);
        empty = full + 8 * STAGES;
    }

    __device__ __forceinline__ void prepare() const {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                ptx::mbarrier_init(full + 8 * i, 1);
                ptx::mbarrier_init(empty + 8 * i, 4 * GROUPS);
            }
            ptx::fence_mbarrier_init();
        }
        __syncthreads();
    }

    // One thread.
    __device__ __forceinline__ void produce() const {
        Stage<STAGES> stage;
        stage.phase = 1;
        Spans spans(score_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                ptx::mbarrier_wait_parity(empty + 8 * stage.at, stage.phase);
                ptx::mbarrier_arrive_expect_tx(full + 8 * stage.at, Tile::BYTES + SIDE * 4);
                ptx::cp_async_bulk(tiles + stage.at * Tile::BYTES, g.values + (i64)t * Tile::BYTES, Tile::BYTES, full + 8 * stage.at);
                ptx::cp_async_bulk(tiles + STAGES * Tile::BYTES + stage.at * (SIDE * 4), g.columns + (i64)t * SIDE, SIDE * 4, full + 8 * stage.at);
                stage.advance();
            }
        }
    }

    __device__ __forceinline__ void begin(i64 m0) {
        const auto p = origin();
        const i64 last = g.size[ROLE_M] - 1;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 m = m0 + local_row() + 8 * h < last ? m0 + local_row() + 8 * h : last;
#pragma unroll
            for (int k = 0; k < K; ++k) x[k][h] = convert<float>(load_pack<typename X::T, 1>(row_of<X>(g, p, m) + k * g.stride[X::PORT][ROLE_K]).v[0]);
            each<0, Body::ROW_ENDS>([&](auto index) {
                ends[decltype(index)::value][h] = end_value<typename Body::template RowEnd<decltype(index)::value>, float>(g, p, m, g.size[ROLE_M], ROLE_M);
            });
        }
        Base::template flush_sums<true>(0);
    }

    // Entries of four columns, 2 t, 2 t + 1, 2 t + 8, 2 t + 9 of 16, in the order of a fragment.
    __device__ __forceinline__ void make_entries(const float* side, float (&entry)[8]) const {
        typename Body::Registers state[8];
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const float4 four = *(const float4*)(side + k * SCORE_ROWS);
            const float y[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float* a = &x[k][i / 2 % 2];
                const float* b = y + i / 4 * 2 + i % 2;
                if (k == 0 && Body::STARTS) {
                    Body::start(state[i], a, b, b, g.number);
                } else {
                    if (k == 0) Body::initial(state[i]);
                    Body::template step<EXACT>(state[i], a, b, b, b, g.number, k, 0);
                }
            }
        }
        float columns[4][AtLeastOne<Body::COLUMN_ENDS>::value];
#pragma unroll
        for (int o = 0; o < Body::COLUMN_ENDS; ++o) {
            const float4 four = *(const float4*)(side + (K + o) * SCORE_ROWS);
            columns[0][o] = four.x;
            columns[1][o] = four.y;
            columns[2][o] = four.z;
            columns[3][o] = four.w;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float rows[AtLeastOne<Body::ROW_ENDS>::value];
#pragma unroll
            for (int o = 0; o < Body::ROW_ENDS; ++o) rows[o] = ends[o][i / 2 % 2];
            entry[i] = Body::entry(fixed, g.number, rows, columns[i / 4 * 2 + i % 2], 0, state[i]);
        }
    }

    // Entries of the columns whose numbers begin at `side`, taken apart.
    __device__ __forceinline__ void fill(Half& to, const float* side) {
        float entry[4][8], most[2] = {0.0f, 0.0f}, scale[2];
#pragma unroll
        for (int s = 0; s < 4; ++s) {
            make_entries(side + 16 * s + lane % 4 * 4, entry[s]);
#pragma unroll
            for (int i = 0; i < 8; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(entry[s][i]));
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            most[h] = fmaxf(most[h], __shfl_xor_sync(WHOLE, most[h], 1));
            most[h] = fmaxf(most[h], __shfl_xor_sync(WHOLE, most[h], 2));
            infinite |= most[h] == infinity<float>();
            const HalfScale own = HalfScale::of_largest(most[h]);
            scale[h] = own.scale;
            to.unit[h] = own.inverse;
        }
#pragma unroll
        for (int s = 0; s < 4; ++s)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                split_f16x2(to.high[s][i], to.low[s][i], entry[s][2 * i] * scale[i % 2], entry[s][2 * i + 1] * scale[i % 2]);
    }

    // Products of the entries with 64 rows of v, small ones first.
    __device__ __forceinline__ void multiply(const Half& from, unsigned values) {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) ptx::fence_operand(product[j][i]);
        const unsigned high = LOW + (values >> 4), low = high + (Tile::PLANE >> 4);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) ptx::wgmma_rs(f16(), product, from.high[s], (unsigned long long)HIGH << 32 | (low + 2 * s), s > 0);
#pragma unroll
        for (int s = 0; s < 4; ++s) ptx::wgmma_rs(f16(), product, from.low[s], (unsigned long long)HIGH << 32 | (high + 2 * s), 1);
#pragma unroll
        for (int s = 0; s < 4; ++s) ptx::wgmma_rs(f16(), product, from.high[s], (unsigned long long)HIGH << 32 | (high + 2 * s), 1);
        ptx::wgmma_commit_group();
    }
    __device__ __forceinline__ void add(const float (&unit)[2]) {
        ptx::wgmma_wait_group<0>();
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                ptx::fence_operand(product[j][i]);
                sum[j][i] = fmaf(product[j][i], unit[i / 2], sum[j][i]);
            }
    }

    // Frees a stage that the warp has read, whose reads come before later copies: while products are under way that costs nothing.
    __device__ __forceinline__ void release(int at) const {
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(empty + 8 * at);
    }

    __device__ __forceinline__ void consume() {
        const auto p = origin();
        fixed = Body::fixed(g, p);
        Stage<STAGES> stage;
        Spans spans(score_share<Tile>(g));
#pragma unroll 1
        while (spans.next()) {
            const i64 m0 = (i64)spans.row * BM;
            begin(m0);
            Half first, second;
            ptx::mbarrier_wait_parity(full + 8 * stage.at, stage.phase);
            fill(first, sides + stage.at * SIDE);
#pragma unroll 1
            for (int t = spans.begin; t < spans.end; ++t) {
                const int now = stage.at;
                const unsigned values = tiles + now * Tile::BYTES;
                multiply(first, values);
                if (t > spans.begin) release(stage.at == 0 ? STAGES - 1 : stage.at - 1);
                fill(second, sides + now * SIDE + 64);
                add(first.unit);
                multiply(second, values + Tile::PIECE);
                stage.advance();
                const bool more = t + 1 < spans.end;  // the last one is made once more, for nothing
                if (more) ptx::mbarrier_wait_parity(full + 8 * stage.at, stage.phase);
                fill(first, sides + (more ? stage.at : now) * SIDE);
                add(second.unit);
                if (!more) release(now);
                if (t % SCORE_RUN == SCORE_RUN - 1) Base::template flush_sums<false>(0);
            }
            const Share share = score_share<Tile>(g);
            Base::end(m0, 0, slot_of<Body, BM>(g.work, blockIdx.x, share.slot(spans.row), g.size[ROLE_L]), share.whole(spans.row));
        }
        if (infinite) atomicMax(g.list, ALL_BY_DIFFERENCES);
    }
};

template <class Body, class Tile, int PRODUCER, int CONSUMER>
__device__ __forceinline__ void apply_wide(const typename Body::Args& g) {
    run_rows<WideRows<Body, Tile>, Tile, PRODUCER, CONSUMER>(g);
}

}  // namespace km

// Rows of entries in registers times rows of v in shared memory, by tensor cores as three products of halves. What comes out of a
// tile is added up in float32, as tensor cores cut what they add.
#pragma once
#include "columns_split.cuh"
#include "fragments.cuh"
#include "reduce.cuh"
#include "row_sums.cuh"

namespace km {

template <class Body, class Tile>
struct ValueRows : RowSums<Body, Tile, ScoreRows<Body, Tile>> {
    typedef RowSums<Body, Tile, ScoreRows<Body, Tile>> Base;
    typedef typename Body::Args Args;
    static constexpr int COLUMNS = Tile::COLUMNS, BN = Tile::BN, STEPS = BN / 16;
    using Base::CELLS, Base::WHOLE, Base::g, Base::lane, Base::score, Base::norm, Base::bound, Base::unit, Base::factor, Base::gives_up;
    using Base::uniform, Base::finish_products, Base::loses_digits, Base::correct, Base::make_entries, Base::sum, Base::product;

    Fragments<STEPS, true> weights;
    float weight_unit[2];
    bool infinite;

    __device__ __forceinline__ ValueRows(const Args& g_) : Base(g_), infinite(false) {}

    // Number of passes over the columns of v.
    __device__ __forceinline__ int passes() const { return (int)ceil_div(g.size[ROLE_L], COLUMNS); }

    // Starts the products of the fragments with rows of v, small ones first.
    __device__ __forceinline__ void multiply_values(unsigned values) {
        const unsigned long long high = ptx::wgmma_descriptor(uniform(values), 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
        const unsigned long long low = high + (Tile::VALUES / 2 >> 4);
        fence_accumulators(product);
        ptx::wgmma_fence();
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.high[s], low + value_step(s), s > 0);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.low[s], high + value_step(s), 1);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) ptx::wgmma_rs(f16(), product, weights.high[s], high + value_step(s), 1);
        ptx::wgmma_commit_group();
    }
    // Offset of 16 rows of v in units of a descriptor.
    static __device__ __forceinline__ constexpr unsigned value_step(int step) { return (step / 4 * Tile::PIECE + step % 4 * 32) >> 4; }
    // Adds the products that are under way.
    __device__ __forceinline__ void add_values() {
        ptx::wgmma_wait_group<0>();
        fence_accumulators(product);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; ++i) sum[i / 4][i % 4] = fmaf(product[i / 4][i % 4], weight_unit[i / 2 % 2], sum[i / 4][i % 4]);
    }

    // Entries of tile t, in the place of its products; what lost digits there is taken by differences.
    __device__ __forceinline__ void make_all(const float* side, const float* tail, int t, i64 m0) {
        const float2 of_tile = *(const float2*)tail;
        typename Base::Smallest least;
#pragma unroll
        for (int block = 0; block < BN / 8; ++block) finish_products(side, block, unit * of_tile.x, least);
        if (__any_sync(WHOLE, loses_digits(of_tile.y, least)) && !gives_up) correct(side, of_tile.x, m0, (i64)t * BN);
#pragma unroll
        for (int block = 0; block < BN / 8; ++block) make_entries(side, block);
    }

    // Entries as powers of 2 of products and of norms of columns, without what the row gives: between 2^2 and 2^14.
    __device__ __forceinline__ void make_powers(const float* side, const float* tail) {
        const float c = -unit * tail[0];
#pragma unroll
        for (int j = 0; j < BN / 16; ++j) {
            const float4 four = Base::four_of(side, 0, j);
            const float norms[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) score[8 * j + i] = ptx::ex2_approx_ftz(fmaf(score[8 * j + i], c, fmaf(norms[i / 4 * 2 + i % 2], -factor, SCORE_LIFT)));
        }
    }
    // Takes such entries apart into fragments.
    __device__ __forceinline__ void pack_powers() {
#pragma unroll
        for (int h = 0; h < 2; ++h) weight_unit[h] = ptx::ex2_approx_ftz(-norm[h] - SCORE_LIFT);
        const float scale[2] = {1.0f, 1.0f};
        pack_fragments<f16>(weights, reinterpret_cast<const float(&)[2 * STEPS][4]>(score), scale);
    }

    // Brings the largest entry of each row to 2^14 .. 2^15, and takes entries apart into fragments.
    __device__ __forceinline__ void pack_entries() {
        float scale[2];
        float most[2][2] = {{0.0f, 0.0f}, {0.0f, 0.0f}};
#pragma unroll
        for (int i = 0; i < CELLS; ++i) most[i / 2 % 2][i % 2] = fmaxf(most[i / 2 % 2][i % 2], fabsf(score[i]));
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float top = warp_max<2>(fmaxf(most[h][0], most[h][1]));
            infinite |= top == infinity<float>() && bound[h] != -infinity<float>();
            const HalfScale own = HalfScale::of_largest(top);
            scale[h] = own.scale;
            weight_unit[h] = own.inverse;
        }
        pack_fragments<f16>(weights, reinterpret_cast<const float(&)[2 * STEPS][4]>(score), scale);
    }
};

}  // namespace km

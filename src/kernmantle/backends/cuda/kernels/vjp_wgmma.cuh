// The VJP of vjp_tensor.cuh on Hopper, by wgmma: a warpgroup makes the slopes of 64 columns and one point in registers while
// the product of another point runs. The other operand lies in shared memory in pieces of 8 outputs by 8 rows, as wgmma reads
// it without a swizzle, first the high halves, then the low ones.
#pragma once
#include "ptx_wgmma.cuh"
#include "vjp_tensor.cuh"

namespace km {

// Operand in pieces of 8 outputs and 8 rows, 128 bytes each: neighbours along the rows follow each other.
KM_DEVICE unsigned long long pieces_at(unsigned address) {
    return ptx::wgmma_descriptor(address, 128, 256, ptx::WGMMA_PLAIN);
}

// WT groups of TT points times WF groups of 64 columns, a warpgroup each.
template <int NTL_, int TT_, int WT_, int WF_, int KK_, int STAGES_, int FLUSH_, int TABLE_>
struct WgmmaVjpTile {
    static constexpr int NTL = NTL_, TT = TT_, MT = 1, WT = WT_, WF = WF_, KK = KK_, STAGES = STAGES_, FLUSH = FLUSH_, TABLE = TABLE_;
    static constexpr int BM = TT * WT, BN = 64 * WF, BL = 8 * NTL, KC = 16 * KK, THREADS = 128 * WT * WF;
    static constexpr bool TENSOR = true, SPLIT = true;
};

template <class Body, class Tile>
struct WgmmaVjp : Tensor<Body, Tile> {
    typedef Tensor<Body, Tile> Base;
    using Base::BM;
    using Base::BN;
    using Base::KC;
    using Base::KK;
    using Base::NTL;
    using Base::STAGES;
    using Base::TT;
    using typename Base::Pipeline;
    static constexpr int LOW = NTL * 256;
    float acc[TT][NTL][4];

    __device__ __forceinline__ WgmmaVjp(const typename Body::Args& g, const Patch& t, float* shared) : Base(g, t, shared) {
        clear(acc);
    }

    __device__ __forceinline__ void make(int stage, int buffer) {
        unsigned* to = this->operand(buffer) + this->first_item() * NTL * 128 + this->warp % NTL * 64 + this->lane;
        this->multiply(stage, [&](int item, float b0, float b1, float b2, float b3) {
            unsigned* at = to + item * NTL * 128;
            const unsigned x = ptx::pack_f16x2(b0, b1), y = ptx::pack_f16x2(b2, b3);
            at[0] = x, at[32] = y;
            at[LOW / 4] = residual_f16x2(x, b0, b1), at[LOW / 4 + 32] = residual_f16x2(y, b2, b3);
        });
        ptx::fence_proxy_async();
    }

    __device__ __forceinline__ void run(const float* table) {
        // the same for all lanes, which the compiler cannot see
        const int group = __shfl_sync(0xffffffffu, this->warp / 4, 0), wt = group / Tile::WF * TT, wf = group % Tile::WF * 64 + this->warp % 4 * 16;
        typename Base::Factors loaded[TT];
        float sum[TT][NTL][4];
#pragma unroll
        for (int a = 0; a < TT; ++a) this->hold(loaded[a], wt + a, wf + this->lane / 4);
        clear(sum);
        const unsigned bits = Body::KIND == POWERS ? __float_as_uint(table[512]) : 0;
        const int chunks = (int)ceil_div(this->t.end - this->t.first, KC);
        this->fill(chunks);
        make(0, 0);
        Pipeline pipeline;
        i64 ahead = this->t.first + (STAGES - 1) * KC;
        const unsigned operands = shared_address(this->operand(0));
#pragma unroll 1
        for (int start = 0; start < chunks; start += Tile::FLUSH) {
            const int stop = start + Tile::FLUSH < chunks ? start + Tile::FLUSH : chunks;
#pragma unroll 1
            for (int chunk = start; chunk < stop; ++chunk, ahead += KC, pipeline.advance()) {
                const int filled = this->refill(pipeline, ahead);
                make(pipeline.next(), (chunk + 1) & 1);
                const float* x = this->shared + pipeline.stage * Base::STAGE + (wf + this->lane / 4) * 16 + this->lane % 4 * 4;
                const unsigned long long b = pieces_at(operands + ((chunk & 1) * Base::OPERAND + wt * NTL * 128) * 4);
                unsigned first[2][4], second[2][4];
#pragma unroll
                for (int kk = 0; kk < KK; ++kk) {
                    const float4 x0 = *(const float4*)(x + kk * 16 * BN), x1 = *(const float4*)(x + kk * 16 * BN + 128);
#pragma unroll
                    for (int a = 0; a < TT; ++a) {
                        const int ordinal = kk * TT + a, slot = ordinal & 1;
                        float v[8];
                        this->slopes(v, loaded[a], x0, x1, ordinal, table, bits);
                        if (ordinal >= 2) ptx::wgmma_wait_group<1>();
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            first[slot][e] = Body::KIND == SIGNS ? packed_signs(v[2 * e], v[2 * e + 1]) : ptx::pack_f16x2(v[2 * e], v[2 * e + 1]);
                            if (Body::KIND == POWERS) second[slot][e] = residual_f16x2(first[slot][e], v[2 * e], v[2 * e + 1]);
                        }
                        const unsigned long long high = b + ((kk * BM + a) * NTL * 512 >> 4), low = high + (LOW >> 4);
                        ptx::wgmma_fence();
                        ptx::wgmma_rs_add(acc[a], first[slot], high);
                        ptx::wgmma_rs_add(acc[a], first[slot], low);
                        if (Body::KIND == POWERS) ptx::wgmma_rs_add(acc[a], second[slot], high);
                        ptx::wgmma_commit_group();
                    }
                }
                this->write(filled);
                ptx::wgmma_wait_group<0>();
            }
#pragma unroll
            for (int e = 0; e < TT * NTL * 4; ++e) {
                ptx::fence_operand((&acc[0][0][0])[e]);
                (&sum[0][0][0])[e] += (&acc[0][0][0])[e];
                (&acc[0][0][0])[e] = 0.0f;
            }
        }
        float* part = this->t.range < 0 ? (float*)0 : part_of<Tile>(this->g, this->t, this->t.range);
        bool fine = true;
        float outputs[NTL][2], columns[2];
        this->by_outputs(outputs);
        this->by_columns(columns, wf);
#pragma unroll
        for (int a = 0; a < TT; ++a) fine = this->store(sum[a], wt + a, wf, outputs, columns, part) && fine;
        if (!fine) this->g.dirty[this->t.tile] = 1;
    }
};

template <class Body, class Tile>
KM_DEVICE void wgmma_vjp_main(const typename Body::Args& g) {
    run_vjp<WgmmaVjp<Body, Tile>, Body, Tile>(g);
}

}  // namespace km

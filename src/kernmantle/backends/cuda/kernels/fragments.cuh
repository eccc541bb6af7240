// Accumulators of products by tensor cores, and what becomes of them: fragments of the next product's left operand.
#pragma once
#include "ptx_wgmma.cuh"
#include "split_hi_lo.cuh"

namespace km {

// Keeps the accumulators of a product where they are while it is under way.
template <int BLOCKS>
KM_DEVICE void fence_accumulators(float (&d)[BLOCKS][4]) {
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; ++i) ptx::fence_operand(d[i / 4][i % 4]);
}

KM_DEVICE unsigned pack_halves(f16, float a, float b) { return ptx::pack_f16x2(a, b); }
KM_DEVICE unsigned pack_halves(bf16, float a, float b) { return ptx::pack_bf16x2(a, b); }

KM_DEVICE float2 unpack_halves(f16, unsigned both) { return ptx::unpack_f16x2(both); }
KM_DEVICE float2 unpack_halves(bf16, unsigned both) { return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)); }

// What tensor cores multiply from registers, 16 columns a step, of float32 also the low halves.
template <int STEPS, bool SPLIT>
struct Fragments {
    unsigned high[STEPS][4], low[SPLIT ? STEPS : 1][4];
};
// Accumulators as fragments, times the scale of each row.
template <class H, int STEPS, bool SPLIT>
KM_DEVICE void pack_fragments(Fragments<STEPS, SPLIT>& to, const float (&from)[2 * STEPS][4], const float (&scale)[2]) {
#pragma unroll
    for (int s = 0; s < STEPS; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float a = from[2 * s + i / 2][i % 2 * 2] * scale[i % 2], b = from[2 * s + i / 2][i % 2 * 2 + 1] * scale[i % 2];
            to.high[s][i] = pack_halves(H(), a, b);
            if constexpr (SPLIT) to.low[s][i] = residual_f16x2(to.high[s][i], a, b);
        }
}

// Adds up accumulators by rows: of halves what they were rounded to.
template <class H, int STEPS, bool SPLIT>
KM_DEVICE void add_rows(float (&to)[2], const Fragments<STEPS, SPLIT>& rounded, const float (&from)[2 * STEPS][4]) {
#pragma unroll
    for (int i = 0; i < 4 * STEPS; ++i) {
        if constexpr (SPLIT) {
            to[i % 2] += from[i / 2][i % 2 * 2] + from[i / 2][i % 2 * 2 + 1];
        } else {
            const float2 two = unpack_halves(H(), rounded.high[i / 4][i % 4]);
            to[i % 2] += two.x + two.y;
        }
    }
}

}  // namespace km

// The products of halves that make one of float32, for Kronecker-sparse products.
#pragma once
#include "scalar.cuh"

namespace km {

// One of the three products of halves of float32: the low half by the high one of the weights, the high by the low, both high.
KM_DEVICE void multiply_turn(
    float (&d)[4], int turn, bool begins, const unsigned (&high)[4], const unsigned (&low)[4], const uint4& weights) {
    const unsigned(&left)[4] = turn == 0 ? low : high;
    const unsigned b0 = turn == 1 ? weights.z : weights.x, b1 = turn == 1 ? weights.w : weights.y;
    if (begins)
        ptx::mma_m16n8k16_from_zero(d, left, b0, b1);
    else
        ptx::mma_m16n8k16_f16(d, left, b0, b1);
}

}  // namespace km

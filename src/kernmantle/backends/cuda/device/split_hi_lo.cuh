// float32 as two numbers of tensor cores, a high and a low part of 11 bits each. A product of two such numbers is three
// products of tensor cores: low by high, high by low, high by high; low by low is below the last bit.
#pragma once
#include "scalar.cuh"

namespace km {

// The power of two by which numbers are multiplied before they become halves, and its inverse: the largest magnitude comes
// to 2^14 .. 2^15. The largest half is 65504, so nothing rounds to infinity, and of numbers as small as 2^-29 of the largest
// the high part is still a half. Numbers below 2^-112 are multiplied by 2^126.
struct HalfScale {
    float scale, inverse;
    // By the biased exponent of the largest magnitude, 255 for infinity and NaN.
    static KM_DEVICE HalfScale of_exponent(unsigned biased) {
        biased = biased < 15 ? 15 : biased;
        return {__uint_as_float((268 - biased) << 23), __uint_as_float((biased - 14) << 23)};
    }
    static KM_DEVICE HalfScale of_largest(float magnitude) { return of_exponent(__float_as_uint(magnitude) >> 23); }
};

// What two numbers are more than the halves that they were rounded to, in halves.
KM_DEVICE unsigned residual_f16x2(unsigned high, float a, float b) {
    const float2 rounded = ptx::unpack_f16x2(high);
    return ptx::pack_f16x2(a - rounded.x, b - rounded.y);
}
// Two numbers, scaled before, as two high and two low halves.
KM_DEVICE void split_f16x2(unsigned& high, unsigned& low, float a, float b) {
    high = ptx::pack_f16x2(a, b);
    low = residual_f16x2(high, a, b);
}
// Scales two numbers and splits them; what is lost is taken from the exact products.
KM_DEVICE void split_f16x2(unsigned& high, unsigned& low, float a, float b, float scale) {
    high = ptx::pack_f16x2(a * scale, b * scale);
    const float2 rounded = ptx::unpack_f16x2(high);
    low = ptx::pack_f16x2(fmaf(a, scale, -rounded.x), fmaf(b, scale, -rounded.y));
}

KM_DEVICE void split_tf32(unsigned& high, unsigned& low, float a) {
    high = ptx::round_to_tf32(a);
    low = ptx::round_to_tf32(a - __uint_as_float(high));
}

// sum += a b, 16 x 8 over 8 positions of k, of tf32 numbers; where SPLIT also of their low parts, which go to `small`.
template <bool SPLIT>
KM_DEVICE void mma_split_tf32(
    float* sum, float* small, const unsigned (&a)[4], const unsigned (&a_low)[4], const unsigned (&b)[2], const unsigned (&b_low)[2]) {
    if (SPLIT) {
        ptx::mma_m16n8k8_tf32(small, a_low, b[0], b[1]);
        ptx::mma_m16n8k8_tf32(small, a, b_low[0], b_low[1]);
    }
    ptx::mma_m16n8k8_tf32(sum, a, b[0], b[1]);
}

// One of the three products of halves: 0 is low by high, 1 high by low, 2 high by high. `b` has two words of the high halves,
// then two of the low ones. BEGINS: the sum starts at 0.
KM_DEVICE void mma_term_f16(float (&sum)[4], int term, bool begins, const unsigned (&a)[4], const unsigned (&a_low)[4], const uint4& b) {
    const unsigned(&left)[4] = term == 0 ? a_low : a;
    const unsigned b0 = term == 1 ? b.z : b.x, b1 = term == 1 ? b.w : b.y;
    if (begins)
        ptx::mma_m16n8k16_from_zero(sum, left, b0, b1);
    else
        ptx::mma_m16n8k16<f16>(sum, left, b0, b1);
}

}  // namespace km

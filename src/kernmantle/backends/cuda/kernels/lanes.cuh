// Keys that the lanes of a warp hold one each, in order: what a row is left with while candidates come.
#pragma once
#include "scalar.cuh"

namespace km {

typedef unsigned long long u64;

// Unsigned numbers in the order of floats, and back.
KM_DEVICE unsigned ordered_bits(float a) {
    const unsigned bits = __float_as_uint(a);
    return bits ^ ((unsigned)((int)bits >> 31) | 0x80000000u);
}
KM_DEVICE float from_ordered_bits(unsigned a) { return __uint_as_float(a & 0x80000000u ? a ^ 0x80000000u : ~a); }
// A number and where it is, to be compared as one: NaN comes last, of equal numbers the one of the lower place first.
KM_DEVICE u64 ranked_key(float value, unsigned position) {
    return (u64)ordered_bits(value != value ? not_a_number<float>() : value + 0.0f) << 32 | position;
}

// Ascending over the lanes of a warp; MERGE: of keys that rise and then fall.
template <bool MERGE>
KM_DEVICE u64 sort_lanes(u64 key, int lane) {
#pragma unroll
    for (int k = MERGE ? 32 : 2; k <= 32; k *= 2)
#pragma unroll
        for (int gap = k / 2; gap > 0; gap /= 2) {
            const u64 other = __shfl_xor_sync(0xffffffffu, key, gap);
            const bool lower = ((lane & gap) == 0) == (k == 32 || (lane & k) == 0);
            key = (other < key) == lower ? other : key;
        }
    return key;
}
// The 32 smallest of ascending keys and 32 others, ascending.
KM_DEVICE u64 merge_lanes(u64 best, u64 fresh, int lane) {
    fresh = __shfl_sync(0xffffffffu, sort_lanes<false>(fresh, lane), 31 - lane);
    return sort_lanes<true>(fresh < best ? fresh : best, lane);
}

}  // namespace km

// What passes share that split numbers with less headroom, or take whole rows: their scale, and where a row begins.
#pragma once
#include "kron.cuh"
#include "split_hi_lo.cuh"

namespace km {

// The power of two by which numbers come to less than 2^TOP, TOP from 1 to 15, by the biased exponent of the largest magnitude.
template <int TOP>
KM_DEVICE HalfScale kron_scale_below(unsigned biased) {
    biased = biased < TOP ? TOP : biased;
    return {__uint_as_float((253 + TOP - biased) << 23), __uint_as_float((biased + 1 - TOP) << 23)};
}

// Where a run of a pass over whole rows begins. There are fewer of them than 2^31.
template <class Args>
KM_DEVICE i64 kron_row_offset(const Args& g, const i64 (&s)[KRON_AXES], int number) {
    const unsigned c = (unsigned)g.size[KRON_C], b = (unsigned)g.size[KRON_B], rest = (unsigned)number / c;
    return number % c * s[KRON_C] + rest % b * s[KRON_B] + rest / b * s[KRON_A];
}

}  // namespace km

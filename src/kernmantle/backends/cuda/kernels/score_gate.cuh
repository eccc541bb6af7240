// What decides between score tiles and differences, on the device.
#pragma once
#include "scalar.cuh"

namespace km {

// Which of two kernels runs, by differences or by products on tensor cores (apply_score.cuh): the first if too many of the
// pairs that were sampled lose digits in products, or of those that were met. `list` holds the second count and, from
// SAMPLED_AT on, the others.
constexpr int SAMPLERS = 128, SAMPLED_AT = 4, MOST_SAMPLED = 8;
KM_DEVICE i64 most_differences(i64 m, i64 n) { return m * n / 4096 + m + 64; }
KM_DEVICE bool sampled_differences(const int* list) {
    const int4 found = *(const int4*)(list + SAMPLED_AT + 4 * (threadIdx.x % 32));
    return __reduce_add_sync(0xffffffffu, found.x + found.y + found.z + found.w) >= MOST_SAMPLED;
}
KM_DEVICE bool uses_differences(const int* list, i64 m, i64 n) {
    return sampled_differences(list) || list[0] > most_differences(m, n);
}

}  // namespace km

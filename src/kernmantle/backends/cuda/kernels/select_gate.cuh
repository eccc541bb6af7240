// What decides between selections by score tiles and those by differences alone, on the device.
#pragma once
#include "scalar.cuh"

namespace km {

// Groups of 16 columns that are compared beyond the 32 nearest of every row, in all, before another kernel takes over; the
// list is that of select_split.cuh.
KM_DEVICE i64 most_repeated(i64 m) {
    const i64 most = 128 * m + 65536;
    return most < (1 << 30) ? most : 1 << 30;
}
KM_DEVICE bool selects_by_differences(const int* list, i64 m) {
    return list[3] != 0 || list[0] > most_repeated(m);
}

}  // namespace km

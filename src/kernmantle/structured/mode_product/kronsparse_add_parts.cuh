// Parts of sums in float32, added in their order and rounded to the type of the result.
#pragma once
#include "ptx.cuh"
#include "scalar.cuh"

namespace km {

// A block of THREADS threads takes four neighbours for each of its lanes, whose parts ROWS threads share.
template <class T, int ROWS, int THREADS>
__device__ __forceinline__ void add_parts(const float* parts, T* out, i64 slots, i64 count) {
    constexpr int LANES = THREADS / ROWS;
    __shared__ float4 shared[ROWS][LANES];
    ptx::griddepcontrol_wait();
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    const i64 at = 4 * ((i64)blockIdx.x * LANES + lane);
    const int left = count - at < 4 ? (int)(count - at) : 4;
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (count % 4 == 0 && left == 4) {
#pragma unroll 4
        for (i64 slot = row; slot < slots; slot += ROWS) {
            const float4 part = *(const float4*)(parts + slot * count + at);
            total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
        }
    } else {
#pragma unroll 4
        for (i64 slot = row; slot < slots; slot += ROWS)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                if (e < left) total[e] += parts[slot * count + at + e];
    }
    if (ROWS > 1) {
        shared[row][lane] = make_float4(total[0], total[1], total[2], total[3]);
        __syncthreads();
        if (row > 0) return;
#pragma unroll
        for (int other = 1; other < ROWS; ++other) {
            const float4 part = shared[other][lane];
            total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
        }
    }
#pragma unroll
    for (int e = 0; e < 4; ++e)
        if (e < left) out[at + e] = Store<T>::from(total[e]);
}

}  // namespace km

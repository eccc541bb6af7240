// Blocks of a launch that wait for others of it. Blocks begin in the order of their numbers, so one may wait for those before it.
#pragma once
#include "ptx.cuh"

namespace km {
namespace ptx {

// Whether a grid may begin before the one ahead of it is complete.
static constexpr bool GRIDS_OVERLAP = __CUDA_ARCH__ >= 900;
// What a thread reads from here on is not older than what its block was launched behind.
KM_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
KM_DEVICE unsigned ld_acquire(const unsigned* at) {
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}
KM_DEVICE unsigned atom_add_acq_rel(unsigned* at, unsigned value) {
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(at), "r"(value) : "memory");
    return before;
}

}  // namespace ptx

// Waits until so many blocks have arrived, and sees what they have written. All threads of a block call it.
KM_DEVICE void wait_for_blocks(const unsigned* arrived, unsigned blocks) {
    ptx::griddepcontrol_wait();  // the launch before this one counts in the same place
    if (threadIdx.x == 0)
        while (ptx::ld_acquire(arrived) < blocks) __nanosleep(20);
    __syncthreads();
}

// Counts the block, whose threads have all written what others wait for; the last of a launch sets the count back to 0.
KM_DEVICE void arrive_block(unsigned* arrived) {
    __syncthreads();
    if (threadIdx.x == 0 && ptx::atom_add_acq_rel(arrived, 1) == gridDim.x - 1) *arrived = 0;
}

}  // namespace km

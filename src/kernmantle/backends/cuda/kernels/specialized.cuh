// How blocks run that are specialised by warps: the last warpgroup produces, by one thread, what the others consume.
#pragma once
#include "ptx.cuh"

namespace km {

// A task of Tile::GROUPS warpgroups that consume, with the registers of a thread of either kind.
template <class Task, class Tile, int PRODUCER, int CONSUMER, class Args>
__device__ __forceinline__ void run_specialized(const Args& g) {
    extern __shared__ __align__(1024) unsigned char raw[];
    Task task(g, raw);
    task.prepare();
    if (task.group == Tile::GROUPS) {
        ptx::setmaxnreg_dec<PRODUCER>();
        if (threadIdx.x == 128 * Tile::GROUPS) task.produce();
    } else {
        ptx::setmaxnreg_inc<CONSUMER>();
        task.consume();
    }
}

}  // namespace km

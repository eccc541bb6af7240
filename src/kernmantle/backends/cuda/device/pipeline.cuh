// Stages of shared memory that are filled ahead of their use, one after another and then the first again: by asynchronous
// copies of the threads that use them, or by producer warps that tell consumer warps through barriers.
#pragma once
#include "ptx.cuh"

namespace km {

// Stages that the threads of a block, or of a warp, fill and use themselves. A thread starts the copies of a stage and commits
// them as a group; before it uses the stage it waits until at most so many later groups are under way, and then for the
// other threads.
template <int STAGES>
struct CopyPipeline {
    int stage = 0;

    KM_DEVICE int next() const { return stage + 1 == STAGES ? 0 : stage + 1; }
    // The stage that was used last, which is free to be filled.
    KM_DEVICE int previous() const { return stage == 0 ? STAGES - 1 : stage - 1; }
    KM_DEVICE void advance() { stage = next(); }
    static KM_DEVICE void commit() { ptx::cp_async_commit_group(); }
    template <int PENDING = STAGES - 2>
    static KM_DEVICE void wait() {
        ptx::cp_async_wait_group<PENDING>();
    }
};

// A warp's place among stages that have barriers, and the parity of its pass over them: consumers begin with 0, producers with
// 1, for every stage is empty at first.
template <int STAGES>
struct PipelineState {
    int stage = 0;
    unsigned phase = 0;

    KM_DEVICE void advance() {
        if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// Two barriers of 8 bytes for each stage: one for producers that filled it, one for consumers that are done with it.
template <int STAGES>
struct PipelineBarriers {
    static constexpr int BYTES = 16 * STAGES;
    unsigned at;

    KM_DEVICE unsigned full(int stage) const { return at + 16 * stage; }
    KM_DEVICE unsigned empty(int stage) const { return at + 16 * stage + 8; }
    // By one thread, before the block is synchronised: how many arrivals make a stage full, and how many empty.
    KM_DEVICE void initialise(unsigned producers, unsigned consumers) const {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            ptx::mbarrier_init(full(stage), producers);
            ptx::mbarrier_init(empty(stage), consumers);
        }
        ptx::fence_mbarrier_init();
    }
};

}  // namespace km

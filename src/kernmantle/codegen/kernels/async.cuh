// Shared memory that is filled while the kernel does something else: its addresses, barriers and copies.
#pragma once
#include "scalar.cuh"

namespace km {

KM_DEVICE unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }
KM_DEVICE void barrier_init(unsigned at, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count));
}
KM_DEVICE void barrier_arrive(unsigned at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
KM_DEVICE void barrier_wait(unsigned at, unsigned phase) {
    asm volatile(
        "{\n.reg .pred done;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra GO;\nbra WAIT;\nGO:\n}" ::"r"(at),
        "r"(phase)
        : "memory");
}
// Copies BYTES, of which the first `valid` come from memory and the rest is zero.
template <int BYTES>
KM_DEVICE void copy_async(unsigned to, const void* from, int valid) {
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid) : "memory");
    }
}

template <int BYTES>
KM_DEVICE void copy_async(unsigned to, const void* from) {
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
    }
}
// Arrives when this thread's copies so far are done.
KM_DEVICE void barrier_arrive_after_copies(unsigned at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}

// Copies BYTES, a multiple of 16, by the copy engine; both places are 16 bytes aligned.
KM_DEVICE void copy_bulk(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
}
// Arrives, and has the barrier wait for so many bytes from the copy engine.
KM_DEVICE void barrier_expect(unsigned at, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

}  // namespace km

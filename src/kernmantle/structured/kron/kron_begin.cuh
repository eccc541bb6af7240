// How a pass over a Kronecker product begins: when it may read what others have written.
#pragma once
#include "ptx_grid.cuh"

namespace km {

// All launches before this one are complete; the next one may begin. In this order whatever begins after a pass reads all that
// was written before that pass, also without waiting.
KM_DEVICE void kron_wait() {
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
}
// The factors may be read: in a later pass while the one before it still runs.
KM_DEVICE void kron_wait_for_factors(bool is_later) {
    if (ptx::GRIDS_OVERLAP && is_later) ptx::fence_gpu();  // nothing that a multiprocessor has of them is older than the product
    else kron_wait();
}
// Begins a pass: prepares its factors, and fetches what lies in its way, which a first pass does first.
template <class Prepare, class Fetch>
KM_DEVICE void kron_begin(bool is_later, const Prepare& prepare, const Fetch& fetch) {
    if (!ptx::GRIDS_OVERLAP) {
        fetch();
        prepare();
        return;
    }
    if (is_later) ptx::fence_gpu();
#pragma unroll 1
    for (int step = 0; step < 2; ++step) {
        if ((step == 0) == is_later) {
            prepare();
        } else {
            kron_wait();
            fetch();
        }
    }
}

}  // namespace km

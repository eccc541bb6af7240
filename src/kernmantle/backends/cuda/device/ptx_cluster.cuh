// Clusters of blocks: barriers of all their threads, and the shared memory of other blocks. For sm_90 and later.
#pragma once
#include "ptx.cuh"

namespace km {
namespace ptx {

KM_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
KM_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The address in the cluster of what another block has at this address of its own.
KM_DEVICE unsigned mapa(unsigned at, unsigned rank) {
    unsigned r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at), "r"(rank));
    return r;
}
KM_DEVICE uint4 ld_shared_cluster_v4(unsigned at) {
    uint4 r;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w) : "r"(at) : "memory");
    return r;
}

}  // namespace ptx
}  // namespace km

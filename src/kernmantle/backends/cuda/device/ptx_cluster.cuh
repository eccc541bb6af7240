// Clusters of blocks: barriers of all their threads, and the shared memory of other blocks. For sm_90 and later.
#pragma once
#include "ptx.cuh"

namespace km {
namespace ptx {

KM_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// The same without waiting for what this thread wrote: that it has begun, and barriers that fence_mbarrier_init made visible.
KM_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
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
KM_DEVICE void st_shared_cluster_v4(unsigned to, uint4 a) {
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w) : "memory");
}
KM_DEVICE float ld_shared_cluster(unsigned at) {
    float r;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(r) : "r"(at) : "memory");
    return r;
}
// To shared memory of any block of the cluster; a barrier beside it, of the same block, counts the bytes.
KM_DEVICE void st_async(unsigned to, unsigned a, unsigned mbarrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(a), "r"(mbarrier) : "memory");
}
KM_DEVICE void st_async_v2(unsigned to, unsigned a, unsigned b, unsigned mbarrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to), "r"(a), "r"(b),
                 "r"(mbarrier)
                 : "memory");
}
KM_DEVICE void st_async_v4(unsigned to, unsigned a, unsigned b, unsigned c, unsigned d, unsigned mbarrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "r"(a), "r"(b),
                 "r"(c), "r"(d), "r"(mbarrier)
                 : "memory");
}
// Arrives at a barrier of any block of the cluster. A release by the cluster would wait for all that was stored to global memory.
KM_DEVICE void mbarrier_arrive_cluster(unsigned at) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(at) : "memory"); }

}  // namespace ptx
}  // namespace km

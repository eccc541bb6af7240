// Instructions that CUDA C++ has no name for, one function each, called as PTX calls them. All other headers are free of
// asm; wgmma is in ptx_wgmma.cuh. Addresses are of shared memory (see shared_address) unless they are pointers.
#pragma once

#define KM_DEVICE __device__ __forceinline__

namespace km {

struct f16;
struct bf16;

KM_DEVICE unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

// Sets all numbers of an array in registers to 0.
KM_DEVICE void clear(float& number) { number = 0.0f; }
template <class T, int COUNT>
KM_DEVICE void clear(T (&array)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) clear(array[i]);
}

namespace ptx {

// ---- The special function unit. ftz: subnormal numbers count as 0.
KM_DEVICE float ex2_approx_ftz(float a) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
KM_DEVICE float lg2_approx(float a) {
    float r;
    asm("lg2.approx.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
KM_DEVICE float lg2_approx_ftz(float a) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
KM_DEVICE float rcp_approx(float a) {
    float r;
    asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
KM_DEVICE float sqrt_approx(float a) {
    float r;
    asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
KM_DEVICE float sqrt_approx_ftz(float a) {
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}

// ---- Arithmetic.
KM_DEVICE float min_nan(float a, float b) {
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
KM_DEVICE float max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
// a 2^126 + 1/2, limited to 0 .. 1.
KM_DEVICE float fma_sat_step(float a) {
    float r;
    asm("fma.rn.sat.f32 %0, %1, 0f7E800000, 0f3F000000;" : "=f"(r) : "f"(a));
    return r;
}
// a >> 23, which the compiler must not merge with the shift of an address.
KM_DEVICE unsigned shift_right_23(unsigned a) {
    unsigned r;
    asm("shr.u32 %0, %1, 23;" : "=r"(r) : "r"(a));
    return r;
}

// ---- Halves: one in 16 bits, two in a word, the first in the low bits.
KM_DEVICE float f16_to_f32(unsigned short a) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(a));
    return r;
}
KM_DEVICE unsigned short f32_to_f16(float a) {
    unsigned short r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(a));
    return r;
}
KM_DEVICE unsigned short f32_to_bf16(float a) {
    unsigned short r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(a));
    return r;
}
KM_DEVICE unsigned pack_f16x2(float low, float high) {
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
KM_DEVICE unsigned pack_bf16x2(float low, float high) {
    unsigned r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
KM_DEVICE float2 unpack_f16x2(unsigned a) {
    float2 r;
    asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;}" : "=f"(r.x), "=f"(r.y) : "r"(a));
    return r;
}
KM_DEVICE unsigned abs_sub_f16x2(unsigned a, unsigned b) {
    unsigned r;
    asm("{.reg .b32 d;\nsub.f16x2 d, %1, %2;\nabs.f16x2 %0, d;}" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
KM_DEVICE unsigned add_f16x2(unsigned a, unsigned b) {
    unsigned r;
    asm("add.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
KM_DEVICE unsigned mul_f16x2(unsigned a, unsigned b) {
    unsigned r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
// The sum of the two of a word.
KM_DEVICE unsigned short reduce_add_f16x2(unsigned a) {
    unsigned short r;
    asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nadd.f16 %0, l, h;}" : "=h"(r) : "r"(a));
    return r;
}
// The upper halves of two words.
KM_DEVICE unsigned upper_halves(unsigned low, unsigned high) {
    unsigned r;
    asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(r) : "r"(low), "r"(high));
    return r;
}
// Both halves limited to -most .. most, for most > 0.
KM_DEVICE unsigned clamp_f16x2(unsigned a, unsigned most) {
#if __CUDA_ARCH__ >= 860
    asm("min.xorsign.abs.f16x2 %0, %0, %1;" : "+r"(a) : "r"(most));
#else
    asm("min.f16x2 %0, %0, %1;" : "+r"(a) : "r"(most));
    asm("max.f16x2 %0, %0, %1;" : "+r"(a) : "r"(most | 0x80008000u));
#endif
    return a;
}
KM_DEVICE unsigned round_to_tf32(float a) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(a));
    return r;
}

// ---- Tensor cores, a warp at a time: d (16 x 8) += a b, of 16 positions of k in halves of type T, of 8 in tf32.
// _pure: the compiler may merge and move it, which it may not do with the others (eight loads from shared memory less in a
// gradient's loop on sm_120).
template <class T>
KM_DEVICE void mma_m16n8k16(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1);
template <class T>
KM_DEVICE void mma_m16n8k16_pure(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1);
#define KM_MMA(declared, word, kind)                                                                          \
    declared(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {                                    \
        asm word("mma.sync.aligned." kind " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                             \
    }
KM_MMA(template <> KM_DEVICE void mma_m16n8k16<f16>, volatile, "m16n8k16.row.col.f32.f16.f16.f32")
KM_MMA(template <> KM_DEVICE void mma_m16n8k16<bf16>, volatile, "m16n8k16.row.col.f32.bf16.bf16.f32")
KM_MMA(template <> KM_DEVICE void mma_m16n8k16_pure<f16>, , "m16n8k16.row.col.f32.f16.f16.f32")
KM_MMA(template <> KM_DEVICE void mma_m16n8k16_pure<bf16>, , "m16n8k16.row.col.f32.bf16.bf16.f32")
KM_MMA(KM_DEVICE void mma_m16n8k8_tf32, volatile, "m16n8k8.row.col.f32.tf32.tf32.f32")
KM_MMA(KM_DEVICE void mma_m16n8k8_tf32_pure, , "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef KM_MMA
// d = a b.
KM_DEVICE void mma_m16n8k16_from_zero(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}
// d (16 x 8) += a (16 x 16) b (16 x 8) in float64: eight smaller products before sm_90.
KM_DEVICE void mma_m16n8k16_f64(double (&d)[4], const double* a, const double* b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11}, {%12, %13, %14, %15}, {%0, %1, %2, %3};"
                 : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
#pragma unroll
    for (int i = 0; i < 8; ++i)
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(d[i % 2 * 2]), "+d"(d[i % 2 * 2 + 1])
                     : "d"(a[i]), "d"(b[i / 2]));
#endif
}
// Four matrices of 8 x 8 halves.
KM_DEVICE void ldmatrix_x4(unsigned (&r)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
KM_DEVICE void ldmatrix_x4_trans(unsigned (&r)[4], unsigned from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}
// The largest of the lanes' numbers.
KM_DEVICE unsigned redux_max(unsigned a) {
    unsigned r;
    asm volatile("redux.sync.max.u32 %0, %1, 0xffffffff;" : "=r"(r) : "r"(a));
    return r;
}

// ---- Copies from global to shared memory that a thread does not wait for. `valid` bytes are copied, the rest is zero.
template <int BYTES>
KM_DEVICE void cp_async(unsigned to, const void* from, int valid) {
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid) : "memory");
    }
}
template <int BYTES>
KM_DEVICE void cp_async(unsigned to, const void* from) {
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(BYTES) : "memory");
    }
}
// The same, and the line of 128 bytes comes into the second-level cache.
template <int BYTES>
KM_DEVICE void cp_async_l2_128(unsigned to, const void* from, int valid) {
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES), "r"(valid) : "memory");
    }
}
KM_DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of this thread are under way.
template <int PENDING>
KM_DEVICE void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
KM_DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// BYTES, a multiple of 16, by the copy engine; both ends are 16 bytes aligned.
KM_DEVICE void cp_async_bulk(unsigned to, const void* from, unsigned bytes, unsigned mbarrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(mbarrier)
                 : "memory");
}
// The same from shared to global memory, in a group of this thread; wait_group_read: until at most PENDING groups are still read.
KM_DEVICE void cp_async_bulk_store(void* to, unsigned from, unsigned bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
}
KM_DEVICE void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING>
KM_DEVICE void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// ---- Barriers in shared memory.
KM_DEVICE void mbarrier_init(unsigned at, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count));
}
KM_DEVICE void mbarrier_arrive(unsigned at) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
// Arrives, and has the barrier wait for so many bytes from the copy engine.
KM_DEVICE void mbarrier_arrive_expect_tx(unsigned at, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
// Arrives when this thread's cp.async so far are done.
KM_DEVICE void cp_async_mbarrier_arrive_noinc(unsigned at) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(at) : "memory");
}
KM_DEVICE void mbarrier_wait_parity(unsigned at, unsigned phase) {
    asm volatile(
        "{\n.reg .pred done;\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra GO;\nbra WAIT;\nGO:\n}" ::"r"(at),
        "r"(phase)
        : "memory");
}
// Makes barriers that were just initialised visible to the copy engine.
KM_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Makes what this thread wrote to shared memory visible to wgmma and the copy engine.
KM_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- Named barriers of THREADS threads of a block.
template <int THREADS>
KM_DEVICE void bar_sync(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}
template <int THREADS>
KM_DEVICE void bar_arrive(int number) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}
// Whether all of them say so.
template <int THREADS>
KM_DEVICE bool bar_red_and(int number, bool mine) {
    int all;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %2, 0;\nbarrier.cta.red.and.pred q, %1, %3, p;\nselp.s32 %0, 1, 0, q;\n}"
                 : "=r"(all)
                 : "r"(number), "r"((int)mine), "n"(THREADS)
                 : "memory");
    return all;
}

// ---- Launches and registers. Programmatic dependent launch: the next grid may begin; the one before is complete.
KM_DEVICE void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
KM_DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
template <int REGISTERS>
KM_DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS>
KM_DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// ---- Memory.
KM_DEVICE void st_shared(unsigned to, float a) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(a) : "memory"); }
KM_DEVICE void st_shared_v4(unsigned to, float a, float b, float c, float d) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
// Streamed: written once and not read again soon.
KM_DEVICE void st_global_cs_v4(void* to, const uint4& a) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w) : "memory");
}
KM_DEVICE void prefetch_global_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// ---- No instructions: what the compiler must not know or move. opaque: the value may be any, so that what follows from
// it is not worked out ahead; fence_operand: as that, and nothing in memory moves past it.
KM_DEVICE void opaque(int& a) { asm volatile("" : "+r"(a)); }
KM_DEVICE void opaque(long long& a) { asm volatile("" : "+l"(a)); }
KM_DEVICE void opaque(long long& a, long long& b, long long& c) { asm volatile("" : "+l"(a), "+l"(b), "+l"(c)); }
KM_DEVICE void fence_operand(float& a) { asm volatile("" : "+f"(a)::"memory"); }
KM_DEVICE void fence_operand(unsigned& a) { asm volatile("" : "+r"(a)::"memory"); }

}  // namespace ptx
}  // namespace km

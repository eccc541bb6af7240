// Sums of exponentials of the rows of a thread, each relative to an entry of the row that is 3 below the largest or nearer. Those of a
// run of columns are added up in registers, then in shared memory, and what rounding takes of that begins the next run, so that
// rounding does not add up with all columns.
#pragma once
#include "apply.cuh"

namespace km {

// Of R rows; the shared memory of the block begins with the sums of its THREADS threads.
template <int R, int THREADS>
struct ExponentialSums {
    // Largest sum of columns that are added at a time: that of an entry larger by 2.8 than what it is relative to, of four by 1.4.
    static constexpr float MOST = 16.0f;

    float shift[R];
    bool settled;  // of a warp: whether sums of all of its rows are relative to an entry, and one beside which sums count

    // Of a row: the sum of the runs before, and its shift.
    static __device__ __forceinline__ float2& before(int r) {
        extern __shared__ __align__(16) unsigned char raw[];
        return ((float2*)raw)[r * THREADS + threadIdx.x];
    }
    __device__ __forceinline__ void begin() {
        settled = false;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            shift[r] = 0.0f;
            before(r) = make_float2(0.0f, 0.0f);
        }
    }

    template <int COUNT>
    __device__ __forceinline__ void sum_powers(float (&sum)[R], const float (&w)[COUNT][R]) const {
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int u = 0; u < COUNT; ++u) {
                const float power = exp2_fast(fmaf(w[u][r], LOG2_E, shift[r]));
                sum[r] = u == 0 ? power : sum[r] + power;
            }
    }
    // Makes sums relative to the largest of these entries where it is larger by more than 2 than the entry before.
    template <int COUNT, class Running>
    __device__ __forceinline__ void raise(Running (&running)[R], const float (&w)[COUNT][R]) {
        settled = true;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            Running& k = running[r];
            float top = w[0][r];
#pragma unroll
            for (int u = 1; u < COUNT; ++u) top = fmaxf(top, w[u][r]);
            const bool mine = top > k.r0 + 2.0f, counts = fmaxf(fabsf(k.r0), fabsf(top)) < LARGE_ENTRY;
            const float next = shift_of(top), lost = k.r1 == k.r1 ? 0.0f : k.r1;
            const float sum = counts ? k.r1 * exp2_fast(next - shift[r]) : lost;
            k.r1 = mine ? sum : k.r1;
            k.r0 = mine ? top : k.r0;
            shift[r] = mine ? next : shift[r];
            settled = settled && fabsf(k.r0) < LARGE_ENTRY;
        }
        settled = __all_sync(0xffffffffu, settled);
    }
    // Adds the entries of COUNT columns. What sums are relative to changes only where one of the warp's is large, or not settled.
    template <int COUNT, class Running>
    __device__ __forceinline__ void add(Running (&running)[R], const float (&w)[COUNT][R]) {
        float sum[R];
        sum_powers(sum, w);
        bool small = settled;
#pragma unroll
        for (int r = 0; r < R; ++r) small = small && sum[r] <= MOST;
        if (!__all_sync(0xffffffffu, small)) {
            raise(running, w);
            sum_powers(sum, w);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) running[r].r1 += sum[r];
    }

    // Ends a run. What a sum is relative to only grows, but for large entries, beside which none counts.
    template <class Running>
    __device__ __forceinline__ void move(Running (&running)[R]) const {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            float2& there = before(r);
            const float old = there.x * fminf(exp2_fast(shift[r] - there.y), 1.0f), sum = old + running[r].r1;
            running[r].r1 = is_finite(sum) ? running[r].r1 - (sum - old) : 0.0f;
            there = make_float2(sum, shift[r]);
        }
    }
    template <class Running>
    __device__ __forceinline__ void end(Running (&running)[R]) const {
        move(running);
#pragma unroll
        for (int r = 0; r < R; ++r) running[r].r1 = sum_relative_to(running[r].r0, shift[r], before(r).x);
    }
};

}  // namespace km

// How results that a tile has in shared memory get there, and leave it.
#pragma once
#include "ptx.cuh"

namespace km {

// Up to `rest` of four neighbours, two halves in a word, to shared memory.
template <int VECTOR, class T>
KM_DEVICE void kron_keep(T* to, int rest, unsigned a, unsigned b) {
    if constexpr (VECTOR >= 4) {
        if (rest > 0) *(uint2*)to = uint2{a, b};
    } else if constexpr (VECTOR == 2) {
        if (rest > 0) *(unsigned*)to = a;
        if (rest > 2) *(unsigned*)(to + 2) = b;
    } else {
        unsigned short* const own = (unsigned short*)to;
        if (rest > 0) own[0] = (unsigned short)a;
        if (rest > 1) own[1] = (unsigned short)(a >> 16);
        if (rest > 2) own[2] = (unsigned short)b;
        if (rest > 3) own[3] = (unsigned short)(b >> 16);
    }
}

// Results leave shared memory, where they lie as far behind 16 bytes as in memory: whole vectors by the copy engine.
template <int VECTOR, class T>
KM_DEVICE void kron_leave(const T* rows, T* to, int shift, int count, int thread) {
    constexpr int EACH = 16 / (int)sizeof(T);
    const int end = shift + count, first = VECTOR < EACH && shift > 0 ? EACH : 0, last = end / EACH * EACH;
    if (thread == 0 && last > first) ptx::cp_async_bulk_store(to - shift + first, shared_address(rows + first), (last - first) * (int)sizeof(T));
    if constexpr (VECTOR < EACH) {
        // What is no whole vector at either end.
        const int at = thread < EACH ? thread : last + thread - EACH;
        if (thread < EACH ? shift > 0 && at >= shift && at < end : thread < 2 * EACH && at < end && (shift == 0 || end >= EACH)) to[at - shift] = rows[at];
    }
}

}  // namespace km

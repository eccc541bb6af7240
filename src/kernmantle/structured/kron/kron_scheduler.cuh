// Which tiles of an array a block of a pass of Kronecker products takes, and where they begin.
#pragma once
#include "kron.cuh"
#include "ptx.cuh"

namespace km {

// The tiles of a block, every so many-th: goes from tile to tile of an array without divisions or multiplications. A tile has
// hundreds of entries, so numbers of tiles fit 32 bits.
template <int ITEMS, int RIGHT>
struct KronTileScheduler {
    // Whether there is more than one tile along the last axis at all.
    static constexpr int BEGIN = RIGHT == 1 ? 1 : 0;
    int count[3], now[4] = {}, step[4] = {}, last_items, last_right;
    // Offset of the tile, what a step adds to it, and what is added where the number of an axis wraps around.
    i64 at, apart, wrap[3];
    template <class Args>
    KM_DEVICE KronTileScheduler(const Args& g, const i64 (&s)[KRON_AXES], int first, int step_by, bool in_registers)
        : count{int((g.size[KRON_RIGHT] + RIGHT - 1) / RIGHT), int((g.size[KRON_C] + ITEMS - 1) / ITEMS), int(g.size[KRON_B])} {
        digits(now, first);
        digits(step, step_by);
        last_items = int(g.size[KRON_C] - (i64)(count[1] - 1) * ITEMS);
        last_right = int(g.size[KRON_RIGHT] - (i64)(count[0] - 1) * RIGHT);
        const i64 unit[4] = {RIGHT * s[KRON_RIGHT], ITEMS * s[KRON_C], s[KRON_B], s[KRON_A]};
        at = now[0] * unit[0] + now[1] * unit[1] + now[2] * unit[2] + now[3] * unit[3];
        apart = step[0] * unit[0] + step[1] * unit[1] + step[2] * unit[2] + step[3] * unit[3];
#pragma unroll
        for (int i = 0; i < 3; ++i) wrap[i] = unit[i + 1] - count[i] * unit[i];
        // Without this they are worked out again for every tile.
        if (in_registers) ptx::opaque(apart, wrap[1], wrap[2]);
        if (in_registers && BEGIN == 0) ptx::opaque(wrap[0]);
    }
    KM_DEVICE void digits(int (&to)[4], int t) const {
#pragma unroll
        for (int i = BEGIN; i < 3; ++i) {
            to[i] = t % count[i];
            t /= count[i];
        }
        to[3] = t;
    }
    KM_DEVICE void advance() {
        int carry = 0;
        at += apart;
#pragma unroll
        for (int i = BEGIN; i < 3; ++i) {
            now[i] += step[i] + carry;
            carry = now[i] >= count[i];
            now[i] -= carry ? count[i] : 0;
            at += carry ? wrap[i] : 0;
        }
        now[3] += step[3] + carry;
    }
    // Entries of the tile that are there.
    KM_DEVICE int items() const { return ITEMS == 1 || now[1] + 1 < count[1] ? ITEMS : last_items; }
    KM_DEVICE int right() const { return RIGHT == 1 || now[0] + 1 < count[0] ? RIGHT : last_right; }
    KM_DEVICE i64 offset(const i64 (&s)[KRON_AXES]) const {
        return now[3] * s[KRON_A] + now[2] * s[KRON_B] + (i64)now[1] * ITEMS * s[KRON_C] + (i64)now[0] * RIGHT * s[KRON_RIGHT];
    }
};

}  // namespace km

// Tiles of x and of the gradient v for the gradients of two neighbouring axes of a Kronecker product (kron_back_wgmma.cuh): what a set of
// four warps loads of them, and how that becomes a matrix of halves of 64 x 64 in shared memory.
#pragma once
#include "kron_separate.cuh"
#include "layout.cuh"
#include "split_hi_lo.cuh"

namespace km {

// B: the type T and that of halves H, rows Q0, Q1 and columns P0, P1 of both axes; ROWS and COLUMNS of the grid of slots, SLOT0 and SLOT1
// apart; ITEMS of a tile, which follow each other in memory; VECTOR numbers of a load, PACK of which follow each other in a row; STAGES.
// LOADERS: threads that load x, and as many v. COPIES: so many tiles are copied ahead.
template <class B>
struct KronBackTile {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr bool SPLIT = sizeof(T) == 4, SCALED = Same<H, f16>::value;
    static constexpr int ITEMS = B::ITEMS, COLUMNS = B::COLUMNS, VECTOR = B::VECTOR, PACK = B::PACK, SET = 128, LOADERS = B::LOADERS;
    // Bytes of a matrix in halves, of which float32 has two: high parts and low ones.
    static constexpr int MATRIX = 64 * 64 * 2, PLANES = SPLIT ? 2 : 1;

    typedef KronPass<T> Arguments;

    static KM_DEVICE int tiles(const Arguments& g) { return (int)(g.items / ITEMS); }
    // Where a number stands in a part of a matrix: rows of 128 bytes, swizzled.
    static KM_DEVICE unsigned spot(unsigned row, unsigned column) { return row * 128 + swizzle_128(row, column / 8) + column % 8 * 2; }
    static KM_DEVICE float larger(float top, float a) { return fabsf(a) < infinity<float>() ? fmaxf(top, fabsf(a)) : top; }

    // The power of two of a largest magnitude, which of float32 numbers are multiplied by, and of halves what comes of them.
    static KM_DEVICE HalfScale scale_of(unsigned largest) {
        if (!SCALED) return {1.0f, 1.0f};
        const unsigned biased = largest >> 23;
        return HalfScale::of_exponent(SPLIT || biased > 90 ? biased : 90);  // such that two of them can be multiplied
    }
    static KM_DEVICE void halves_of(unsigned& high, unsigned& low, float a, float b, float scale) {
        if constexpr (SPLIT) split_f16x2(high, low, a, b, scale);
        else high = pack_halves(H(), a, b);
    }
    static KM_DEVICE unsigned pack_halves(f16, float a, float b) { return ptx::pack_f16x2(a, b); }
    static KM_DEVICE unsigned pack_halves(bf16, float a, float b) { return ptx::pack_bf16x2(a, b); }

    // ---- Loading, of x or OF_GRADIENT: a set of LOADERS has one vector of each LOADS for a thread.
    template <bool OF_GRADIENT>
    struct Loader {
        static constexpr unsigned R = OF_GRADIENT ? B::Q0 : B::P0, C = OF_GRADIENT ? B::Q1 : B::P1, NUMBERS = ITEMS * R * C, VECTORS = NUMBERS / VECTOR;
        static constexpr unsigned LOADS = (VECTORS + LOADERS - 1) / LOADERS;
        static_assert(NUMBERS % VECTOR == 0 && C % PACK == 0, "whole vectors");
        Pack<T, VECTOR> v[LOADS];

        static KM_DEVICE bool is_mine(unsigned n, unsigned thread) { return VECTORS % LOADERS == 0 || n * LOADERS + thread < VECTORS; }
        static KM_DEVICE const T* begin(const Arguments& g, int tile) { return (OF_GRADIENT ? g.v : g.x) + (i64)tile * NUMBERS; }
        KM_DEVICE void ask(const Arguments& g, int tile, unsigned thread) {
            const T* const from = begin(g, tile);
#pragma unroll
            for (unsigned n = 0; n < LOADS; ++n) v[n] = load_pack<T, VECTOR>(from + (is_mine(n, thread) ? (n * LOADERS + thread) * VECTOR : 0));
        }
        // The same by the copy engine, asked for by one thread, and read by all once it is there.
        static KM_DEVICE void copy(const Arguments& g, int tile, unsigned to, unsigned barrier) {
            ptx::mbarrier_arrive_expect_tx(barrier, NUMBERS * sizeof(T));
            ptx::cp_async_bulk(to, begin(g, tile), NUMBERS * sizeof(T), barrier);
        }
        KM_DEVICE void take(const unsigned char* from, unsigned thread) {
#pragma unroll
            for (unsigned n = 0; n < LOADS; ++n) {
                if (is_mine(n, thread)) v[n] = read_pack<T, VECTOR>(from + (n * LOADERS + thread) * (VECTOR * sizeof(T)));
            }
        }
        // COUNT neighbours of a row, of float32 as halves and rests.
        template <int COUNT>
        static KM_DEVICE void keep(unsigned char* to, unsigned row, unsigned column, const T (&own)[COUNT], float scale) {
            unsigned char* const there = to + spot(row, column);
            if constexpr (COUNT == 1) {
                unsigned high, low;
                if constexpr (SPLIT) split_f16x2(high, low, own[0], own[0], scale);
                else high = own[0].bits;
                *(unsigned short*)there = (unsigned short)high;
                if (SPLIT) *(unsigned short*)(there + MATRIX) = (unsigned short)low;
            } else {
                Pack<unsigned, COUNT / 2> high, low;
#pragma unroll
                for (int i = 0; i < COUNT; i += 2) {
                    if constexpr (SPLIT) split_f16x2(high.v[i / 2], low.v[i / 2], own[i], own[i + 1], scale);
                    else high.v[i / 2] = own[i].bits | (unsigned)own[i + 1].bits << 16;
                }
                *(Pack<unsigned, COUNT / 2>*)there = high;
                if (SPLIT) *(Pack<unsigned, COUNT / 2>*)(there + MATRIX) = low;
            }
        }
        // The largest magnitude that this thread has, as a float's bits; an infinity is none, for others need not depend on it.
        KM_DEVICE unsigned largest() const {
            float top = 0.0f;
            if constexpr (SPLIT) {
                float tops[4] = {};
#pragma unroll
                for (unsigned i = 0; i < LOADS * VECTOR; ++i) tops[i % 4] = fmaxf(tops[i % 4], fabsf(v[i / VECTOR].v[i % VECTOR]));
                top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
                if (top == infinity<float>()) {
                    top = 0.0f;
#pragma unroll
                    for (unsigned i = 0; i < LOADS * VECTOR; ++i) top = larger(top, v[i / VECTOR].v[i % VECTOR]);
                }
            } else {
                unsigned bits = 0;
#pragma unroll
                for (unsigned i = 0; i < LOADS * VECTOR; ++i) {
                    const unsigned own = v[i / VECTOR].v[i % VECTOR].bits & 0x7fffu;
                    bits = ::max(bits, own < 0x7c00u ? own : 0u);
                }
                top = ptx::f16_to_f32((unsigned short)bits);
            }
            return __float_as_uint(top);
        }
        KM_DEVICE void keep_all(unsigned char* to, int thread, float scale) const {
#pragma unroll
            for (unsigned n = 0; n < LOADS; ++n) {
                int mine = thread;
                if (PACK == 1) ptx::opaque(mine);  // there are no registers for where so many numbers go
                mine &= LOADERS - 1;
                if (!is_mine(n, mine)) continue;
#pragma unroll
                for (unsigned i = 0; i < VECTOR; i += PACK) {
                    const unsigned entry = (n * LOADERS + mine) * VECTOR + i, item = entry / (R * C);
                    T part[PACK];
#pragma unroll
                    for (unsigned k = 0; k < PACK; ++k) part[k] = v[n].v[i + k];
                    keep(to, item / COLUMNS * B::SLOT0 + entry / C % R, item % COLUMNS * B::SLOT1 + entry % C, part, scale);
                }
            }
        }
    };
};

}  // namespace km

// What every pass of a Kronecker product shares: its arguments, its tiles, and its way in and out of shared memory.
//
// A pass takes the tensor as (a, b, c, run, right): three batch axes, the axes of its factors, and what lies to their
// right. A tile is ITEMS entries of c by the whole run by RIGHT entries of the last.
#pragma once
#include "kron_begin.cuh"
#include "scalar.cuh"

namespace km {

enum KronAxis { KRON_A, KRON_B, KRON_C, KRON_RUN, KRON_RIGHT, KRON_AXES };

template <int FACTORS>
struct KronArguments {
    const void* x;
    const void* y;
    void* out;
    const void* factor[FACTORS];
    i64 size[KRON_AXES];
    i64 x_stride[KRON_AXES], y_stride[KRON_AXES], out_stride[KRON_AXES];
    // of rows and columns, then of the batch axes
    i64 factor_stride[FACTORS][5];
    double alpha, beta;
    // An earlier pass of the same product is launched ahead of this one, so that the factors are there as soon as it begins.
    bool is_later;
};

struct KronCoord {
    i64 a, b, c, right;
};

template <int ITEMS, int RIGHT, class Args>
KM_DEVICE i64 kron_tiles(const Args& g) {
    return g.size[KRON_A] * g.size[KRON_B] * ((g.size[KRON_C] + ITEMS - 1) / ITEMS) * ((g.size[KRON_RIGHT] + RIGHT - 1) / RIGHT);
}
template <int ITEMS, int RIGHT, class Args>
KM_DEVICE KronCoord kron_coord(const Args& g, i64 t) {
    KronCoord p;
    const i64 across = (g.size[KRON_RIGHT] + RIGHT - 1) / RIGHT, down = (g.size[KRON_C] + ITEMS - 1) / ITEMS;
    p.right = t % across * RIGHT;
    t /= across;
    p.c = t % down * ITEMS;
    t /= down;
    p.b = t % g.size[KRON_B];
    p.a = t / g.size[KRON_B];
    return p;
}
KM_DEVICE i64 kron_offset(const i64 (&stride)[KRON_AXES], const KronCoord& p) {
    return p.a * stride[KRON_A] + p.b * stride[KRON_B] + p.c * stride[KRON_C] + p.right * stride[KRON_RIGHT];
}
// Behind the last entry of x.
template <class T, class Args>
KM_DEVICE const T* kron_end_of(const Args& g) {
    i64 last = 0;
#pragma unroll
    for (int axis = 0; axis < KRON_AXES; ++axis) last += (g.size[axis] - 1) * g.x_stride[axis];
    return (const T*)g.x + last + 1;
}

// The largest finite value(n) of those below COUNT of which this thread takes every APART-th from `first`, up to MOST at a time.
template <int COUNT, int APART, int MOST, class Value>
KM_DEVICE float kron_largest(int first, const Value& value) {
    constexpr int ROUNDS = (COUNT + APART - 1) / APART, AHEAD = ROUNDS < MOST ? ROUNDS : MOST;
    float top = 0.0f;
#pragma unroll 1
    for (int begin = first; begin < COUNT; begin += AHEAD * APART) {
        float v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) v[j] = value(min(begin + j * APART, COUNT - 1));
#pragma unroll
        for (int j = 0; j < AHEAD; ++j) top = v[j] < infinity<float>() ? fmaxf(top, v[j]) : top;
    }
    return top;
}

// A factor of ROWS x COLUMNS to shared memory as [column][row], rows padded with zeros to PITCH. A thread has AHEAD entries under
// way, which it loads before it stores those of any factor.
template <class T, int ROWS, int COLUMNS, int PITCH, int THREADS>
struct KronFactorCopy {
    static constexpr int COUNT = COLUMNS * PITCH, ROUNDS = (COUNT + THREADS - 1) / THREADS, AHEAD = ROUNDS < 4 ? ROUNDS : 4;
    T staged[AHEAD];

    template <class Args>
    KM_DEVICE void load(const Args& g, int number, const KronCoord& p, int round = 0) {
        const i64(&s)[5] = g.factor_stride[number];
        const T* from = (const T*)g.factor[number] + p.a * s[2] + p.b * s[3] + p.c * s[4];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int at = threadIdx.x + (round + i) * THREADS, column = at / PITCH, row = at % PITCH;
            staged[i] = T{};
            if (at < COUNT && row < ROWS) staged[i] = load_pack<T, 1>(from + row * s[0] + column * s[1]).v[0];
        }
    }
    template <class C, class Args>
    KM_DEVICE void store(C* to, const Args& g, int number, const KronCoord& p) {
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round += AHEAD) {
            if (round > 0) load(g, number, p, round);
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int at = threadIdx.x + (round + i) * THREADS;
                if (at < COUNT) to[at] = convert<C>(staged[i]);
            }
        }
    }
};

// Entries of a tile between global memory and registers or shared memory. B tells the types, ITEMS, RIGHT, the RUN as
// it is there, how many neighbours VEC make one access and whether they lie along the run (RIGHT = 1) or beside it.
template <class B, int RUN, int VEC>
struct KronEntry {
    static constexpr int COUNT = B::ITEMS * RUN * B::RIGHT / VEC;
    int item, run, right;
    KM_DEVICE explicit KronEntry(int n) {
        const int at = n * VEC;
        item = B::ITEMS == 1 ? 0 : at / (RUN * B::RIGHT);
        run = B::ITEMS == 1 ? at / B::RIGHT : at / B::RIGHT % RUN;
        right = B::RIGHT == 1 ? 0 : at % B::RIGHT;
    }
    template <class Args>
    KM_DEVICE bool is_inside(const Args& g, const KronCoord& p) const {
        return (B::ITEMS == 1 || p.c + item < g.size[KRON_C]) && (B::RIGHT == 1 || p.right + right < g.size[KRON_RIGHT]);
    }
    // UNIT: neighbours lie beside each other, along the run where nothing lies to its right.
    template <bool UNIT>
    KM_DEVICE i64 offset(const i64 (&s)[KRON_AXES]) const {
        const i64 along = UNIT && B::RIGHT == 1 ? run : run * s[KRON_RUN];
        return item * s[KRON_C] + along + (UNIT ? right : right * s[KRON_RIGHT]);
    }
};

template <class B, class C, class Args>
KM_DEVICE void kron_read(C* to, const Args& g, const KronCoord& p) {
    typedef typename B::T T;
    typedef KronEntry<B, B::RUN_IN, B::VEC_IN> Entry;
    constexpr int VEC = B::VEC_IN, BATCH = 4;
    const T* from = (const T*)g.x + kron_offset(g.x_stride, p);
    for (int n = threadIdx.x; n < Entry::COUNT; n += B::THREADS * BATCH) {
        Pack<T, VEC> staged[BATCH];
        bool inside[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const Entry e(n + i * B::THREADS);
            inside[i] = n + i * B::THREADS < Entry::COUNT && e.is_inside(g, p);
            if (inside[i]) staged[i] = load_pack<T, VEC>(from + e.template offset<(VEC > 1)>(g.x_stride));
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (n + i * B::THREADS >= Entry::COUNT) break;
            const Entry e(n + i * B::THREADS);
            C* at = to + B::tile_offset((e.item * B::RUN + B::spread_in(e.run)) * B::RIGHT + e.right);
            Pack<C, VEC> wide;
#pragma unroll
            for (int v = 0; v < VEC; ++v) wide.v[v] = inside[i] ? convert<C>(staged[i].v[v]) : C(0);
            *(Pack<C, VEC>*)at = wide;
        }
    }
}

// alpha times values plus beta times y, stored.
template <class B, int VEC, class C, class Args>
KM_DEVICE void kron_store(const Args& g, i64 to, i64 y_offset, const C (&value)[VEC]) {
    typedef typename B::T T;
    Pack<T, VEC> added, pack;
    if (B::ADDED) added = *(const Pack<T, VEC>*)((const T*)g.y + y_offset);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
        C total = C(g.alpha) * value[v];
        if (B::ADDED) total = fma(C(g.beta), convert<C>(added.v[v]), total);
        pack.v[v] = Store<T>::from(total);
    }
    store_pack<T, VEC>((T*)g.out + to, pack);
}

template <class B, class C, class Args>
KM_DEVICE void kron_write(const C* from, const Args& g, const KronCoord& p) {
    typedef KronEntry<B, B::RUN_OUT, B::VEC_OUT> Entry;
    constexpr int VEC = B::VEC_OUT;
    const i64 to = kron_offset(g.out_stride, p), y_offset = B::ADDED ? kron_offset(g.y_stride, p) : 0;
#pragma unroll 2
    for (int n = threadIdx.x; n < Entry::COUNT; n += B::THREADS) {
        const Entry e(n);
        if (!e.is_inside(g, p)) continue;
        const C* at = from + B::tile_offset((e.item * B::RUN + B::spread_out(e.run)) * B::RIGHT + e.right);
        const Pack<C, VEC> wide = *(const Pack<C, VEC>*)at;
        kron_store<B, VEC>(g, to + e.template offset<(VEC > 1)>(g.out_stride), B::ADDED ? y_offset + e.template offset<(VEC > 1)>(g.y_stride) : 0, wide.v);
    }
}

}  // namespace km

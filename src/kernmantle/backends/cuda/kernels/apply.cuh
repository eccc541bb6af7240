// Reductions over the rows of a matrix that is never stored: out[m, c] = reduce over n of w[m, n] (times v[n, c]).
//
// A block takes a contiguous run of tiles in the order of row blocks, so that the work is even for any shape. Its partial result for
// a row block goes to a slot of the workspace that no other block writes: slot 0 for the first row block of its run, 1 for the
// last, 2 for those between, which are all its own and are finished at once. The others are joined, in order, by a second
// kernel. Beside what gram needs, a Body says how an entry is made of its registers (entry) and how entries are reduced (Running:
// begin, take, join, finish), or that the smallest are wanted (SELECTS; keys are negated for the largest).
#pragma once
#include "tile.cuh"

namespace km {

template <int N>
struct Extent {
    static constexpr int value = N > 0 ? N : 1;
};

// Arguments with the work space behind them.
template <class Arguments>
struct Working : Arguments {
    void* work;
};

// 2^a within 2^-22 relative and 0 below the normal numbers, 1 / a within a unit in the last place.
KM_DEVICE float exp2_fast(float a) {
    return ptx::ex2_approx_ftz(a);
}
// 2^a within 2^-22 relative by float32's own instructions, of -126 to 127: 2^a = 2^(a - n) 2^n, n the integer nearest to a.
KM_DEVICE float exp2_polynomial(float a) {
    constexpr float SHIFT = 12582912.0f;  // 1.5 * 2^23: integers are the last bits of what is added to it
    const float shifted = a + SHIFT, rest = a - (shifted - SHIFT);
    float power = fma(0.00132647273f, rest, 0.00967151299f);
    power = fma(power, rest, 0.0555073358f);
    power = fma(power, rest, 0.240222424f);
    power = fma(power, rest, 0.693147004f);
    power = fma(power, rest, 1.0f);
    return __int_as_float(__float_as_int(power) + (__float_as_int(shifted) << 23));
}
KM_DEVICE float rcp_fast(float a) {
    return ptx::rcp_approx(a);
}

// Whether rows are log-sum-exps whose exponentials may have the special function unit's own accuracy.
template <class Body>
__device__ constexpr auto sums_exponentials(int) -> decltype(Body::SUMS_EXPONENTIALS) {
    return Body::SUMS_EXPONENTIALS;
}
template <class Body>
__device__ constexpr bool sums_exponentials(...) {
    return false;
}
// exp(a) relative to exp(top) is 2^(log2 e a + shift), whose shift is rounded once: sums are corrected for that in the end. Beside an
// entry of 2^28, whose unit in the last place is 32, no sum counts.
constexpr float LOG2_E = 1.44269504f, LARGE_ENTRY = 268435456.0f;
// The largest sum of exponentials relative to an entry that is not the largest one: their exponents are small enough to be exact.
constexpr float MOST_SUM = 256.0f;
KM_DEVICE float shift_of(float top) {
    return fabsf(top) < LARGE_ENTRY ? -LOG2_E * top : 0.0f;
}
KM_DEVICE float sum_relative_to(float top, float shift, float sum) {
    if (fabsf(top) < LARGE_ENTRY) return sum * exp2_fast(-fmaf(top, LOG2_E, shift));
    return sum != sum ? sum : top == negative_infinity<float>() ? 0.0f : 1.0f;
}

// a / b, quickly where both are small.
KM_DEVICE i64 quotient(i64 a, i64 b) { return ((a | b) >> 32) == 0 ? (i64)((unsigned)a / (unsigned)b) : a / b; }

struct Share {
    i64 first, last, columns;

    __device__ __forceinline__ Share(i64 block, i64 blocks, i64 tiles, i64 columns_)
        : first(quotient(block * tiles, blocks)), last(quotient((block + 1) * tiles, blocks)), columns(columns_) {}
    __device__ __forceinline__ Share(const Walk<true>& walk) : first(walk.first), last(walk.end), columns(walk.columns) {}
    __device__ __forceinline__ bool whole(i64 row) const { return first <= row * columns && (row + 1) * columns <= last; }
    __device__ __forceinline__ int slot(i64 row) const { return whole(row) ? 2 : row * columns <= first ? 0 : 1; }
};

template <class Args>
KM_DEVICE i64 batches(const Args& g) {
    return g.size[ROLE_A] * g.size[ROLE_B] * g.size[ROLE_C];
}

// A key and where it was found. NaN comes after everything else, of equal keys the earlier one first.
template <class C>
struct Ranked {
    C key;
    i64 position;
};
template <class C>
KM_DEVICE bool before(C key, i64 position, const Ranked<C>& other) {
    const bool mine = key != key, theirs = other.key != other.key;
    if (mine != theirs) return theirs;
    if (!mine && key != other.key) return key < other.key;
    return position < other.position;
}
// Puts a key into a sorted list of which neighbours lie STEP apart; returns the worst key then.
template <class C, int STEP>
__device__ __noinline__ C insert(Ranked<C>* list, int count, C key, i64 position) {
    int q = count - 1;
    if (!before(key, position, list[(i64)q * STEP])) return list[(i64)q * STEP].key;
    for (; q > 0 && before(key, position, list[(i64)(q - 1) * STEP]); --q) list[(i64)q * STEP] = list[(i64)(q - 1) * STEP];
    list[(i64)q * STEP] = Ranked<C>{key, position};
    return list[(i64)(count - 1) * STEP].key;
}
template <class C, int STEP>
KM_DEVICE void empty_list(Ranked<C>* list, int count) {
    for (int q = 0; q < count; ++q) list[(i64)q * STEP] = Ranked<C>{not_a_number<C>(), 0x7fffffffffffffffll};
}

template <class T>
KM_DEVICE T shuffle_xor(T value, int step) {
    static_assert(sizeof(T) % 4 == 0, "words");
    union {
        T whole;
        unsigned word[sizeof(T) / 4];
    } a;
    a.whole = value;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(T) / 4); ++i) a.word[i] = __shfl_xor_sync(0xffffffffu, a.word[i], step);
    return a.whole;
}

// Results of one place: written as stored, or keys and positions.
template <class Body, class Args>
KM_DEVICE void write_result(const Args& g, const Coord& p, i64 m, i64 c, const typename Body::Running& running) {
    typedef typename Body::Result P;
    typedef typename P::T T;
    const i64* s = g.stride[P::BUFFER];
    T* at = (T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + m * s[ROLE_M] + c * s[ROLE_L];
    if constexpr (Body::SELECTS) {
        *at = Store<T>::from(Body::LARGEST ? -running.key : running.key);
        const i64* t = g.stride[P::BUFFER + 1];
        i64* position = (i64*)g.pointer[P::BUFFER + 1] + batch_offset(g, P::BUFFER + 1, p) + m * t[ROLE_M] + c * t[ROLE_L];
        *position = running.position;
    } else {
        *at = Store<T>::from(Body::finish(running));
    }
}

// Where a block keeps what it has of a row block: [column of the result][row].
template <class Body, int BM>
KM_DEVICE typename Body::Running* slot_of(void* work, i64 block, int slot, i64 width) {
    return (typename Body::Running*)work + (block * 3 + slot) * width * BM;
}

// Values that entries read of one row or column: operands without a reduced axis.
template <class P, class C, class Args>
KM_DEVICE C end_value(const Args& g, const Coord& p, i64 at, i64 extent, int role) {
    typedef typename P::T T;
    const T* base = (const T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
    return at < extent ? convert<C>(load_pack<T, 1>(base + at * g.stride[P::BUFFER][role]).v[0]) : C(0);
}

// First block whose run begins at that tile or after it.
KM_DEVICE i64 first_from(i64 tile, i64 blocks, i64 tiles) { return quotient(tile * blocks + tiles - 1, tiles); }

constexpr int JOINED = 16;  // parts that are joined before they join the others: of hundreds that are equal rounding adds up
// The second kernel: row blocks that several blocks have parts of, in the order of these. All blocks whose run begins inside a row
// block, not at its start, share its results among them.
template <class Body, int BM>
KM_DEVICE void join_runs(const typename Body::Args& g, i64 blocks, i64 tiles, i64 columns) {
    typedef typename Body::Running Running;
    const i64 b = blockIdx.x + 1, width = g.size[ROLE_L];
    const i64 begin = Share(b, blocks, tiles, columns).first, row = quotient(begin, columns), start = row * columns;
    if (begin == start) return;
    const i64 first = first_from(start + 1, blocks, tiles), end = first_from(start + columns, blocks, tiles);
    const i64 last = (end < blocks ? end : blocks) - 1, sharing = last - first + 1;
    const Coord p = row_coord<BM>(g, row);
    const i64 results = Body::SELECTS ? 1 : width;
    Running* const own = slot_of<Body, BM>(g.work, first - 1, Share(first - 1, blocks, tiles, columns).slot(row), width);
    // Of a run that begins inside the row block this is the first one.
    const Running* const others = slot_of<Body, BM>(g.work, first, 0, width);
    const i64 step = slot_of<Body, BM>(g.work, 1, 0, width) - slot_of<Body, BM>(g.work, 0, 0, width);
    for (i64 e = (b - first) * blockDim.x + threadIdx.x; e < results * BM; e += sharing * blockDim.x) {
        const i64 m = p.m + e % BM;
        if (m >= g.size[ROLE_M]) continue;
        Running* mine = own + e;
        if constexpr (Body::SELECTS) {
            for (i64 other = 0; other < sharing; ++other) {
                const Running* from = others + other * step + e;
                for (i64 q = 0; q < width; ++q) {
                    const Running next = from[q * BM];
                    if (!before(next.key, next.position, mine[(width - 1) * BM])) break;
                    insert<typename Body::C, BM>(mine, (int)width, next.key, next.position);
                }
            }
            for (i64 q = 0; q < width; ++q) write_result<Body>(g, p, m, q, mine[q * BM]);
        } else {
            Running total = *mine;
#pragma unroll 1
            for (i64 begin_at = 0; begin_at < sharing; begin_at += JOINED) {
                const i64 end_at = begin_at + JOINED < sharing ? begin_at + JOINED : sharing;
                Running part;
                Body::begin(part);
#pragma unroll 8
                for (i64 other = begin_at; other < end_at; ++other) Body::join(part, others[other * step + e]);
                Body::join(total, part);
            }
            write_result<Body>(g, p, m, e / BM, total);
        }
    }
}

}  // namespace km

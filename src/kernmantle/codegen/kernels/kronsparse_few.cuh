// Products of small matrices on tensor cores, several kinds in one launch, everything read as it lies in memory:
// out[m, p, q, l] = sum over r of left[m, p, r, l] right[m, q, r, l], plus bias[m, q, l]. Of these are the passes of a
// training step of a Kronecker-sparse factor for a few rows, and what is made of a chain's matrix and its gradient.
//
// A warp owns 16 MT rows p, 8 NT columns q, L neighbouring l and a run of the r; `parts` warps of a block share the r
// of a tile and add up in shared memory. Each lane has 2 MT neighbouring p and NT neighbouring q, and of 16 positions r
// four neighbours, so that it reads four numbers at once along what lies together. float32 is taken apart into two
// numbers of the tensor cores' 19 bits, of which three products are taken.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

// One operand: steps in elements of the batch axes, of p or q, and of r.
struct FewSide {
    const void* at;
    i64 batch[4], own, along;
};
struct FewJob {
    FewSide left, right;
    void* out;
    i64 out_batch[4], out_p, out_q;
    const void* bias;
    i64 bias_batch[4], bias_q;
    i64 p, q, r, parts, sizes[4];
    i64 inverses[6];  // by which places are divided: by the tiles of q, of p and by sizes
};

// How an operand is read: four numbers along r at once, along its own axis, those of neighbouring l, or one by one. The
// first two also where every other number is another product's: both are read, and one is kept.
enum FewRead { ALONG, ACROSS, BESIDE, ALONE, ALONG_OTHER, ACROSS_OTHER };

template <
    class T_, int WARPS_, int L_, int MT_, int NT_, int LEFT_, int RIGHT_, int DEEP_, bool PACKED_, bool BIAS_, int ACTIVATION_,
    int PRODUCTS_>
struct FewTile {
    typedef T_ T;
    static constexpr int L = L_, MT = MT_, NT = NT_, LEFT = LEFT_, RIGHT = RIGHT_, ACTIVATION = ACTIVATION_, PRODUCTS = PRODUCTS_;
    static constexpr int DEEP = DEEP_;  // sixteens of r that are read at once
    static constexpr bool PACKED = PACKED_, BIAS = BIAS_, SPLIT = sizeof(T) == 4;
    static constexpr int ROWS = 16 * MT, COLUMNS = 8 * NT, WARPS = WARPS_;
    static constexpr int SUMS = L * MT * NT * 4;
    static constexpr bool KEPT = !SPLIT || SUMS < 32;
};

template <int BYTES>
KM_DEVICE void few_words(unsigned* to, const void* from) {
    if constexpr (BYTES >= 16) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; ++i) {
            const uint4 w = ((const uint4*)from)[i];
            to[4 * i] = w.x, to[4 * i + 1] = w.y, to[4 * i + 2] = w.z, to[4 * i + 3] = w.w;
        }
    } else if constexpr (BYTES == 8) {
        const uint2 w = *(const uint2*)from;
        to[0] = w.x, to[1] = w.y;
    } else {
        *to = *(const unsigned*)from;
    }
}

// COUNT of twice as many numbers: the even ones, or the odd.
template <class T, int COUNT>
KM_DEVICE void few_others(unsigned* to, const T* from, bool odd) {
    unsigned both[2 * COUNT * sizeof(T) / 4];
    few_words<2 * COUNT * sizeof(T)>(both, from);
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = odd ? both[2 * i + 1] : both[2 * i];
    } else {
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) to[i] = __byte_perm(both[2 * i], both[2 * i + 1], odd ? 0x7632 : 0x5410);
    }
}

// Where a lane reads one operand: an address for each access of sixteen r, or one if not KEPT, where registers are
// few, or where it reads numbers one by one.
template <class T, int OWN, int READ, bool KEPT>
struct FewPlaces {
    static constexpr bool DOWN = READ == ALONG || READ == ALONG_OTHER, OVER = READ == ACROSS || READ == ACROSS_OTHER;
    static constexpr int COUNT = !KEPT ? 1 : DOWN ? OWN : OVER ? 4 : 1;
    const T* at[COUNT];
    bool odd;

    __device__ __forceinline__ FewPlaces(const FewSide& side, i64 from) {
        const T* first = (const T*)side.at + from;
        odd = READ > ALONE && (unsigned long long)first / sizeof(T) % 2;
        if (odd) --first;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] = first + i * (DOWN ? side.own : side.along);
    }
    __device__ __forceinline__ const T* access(const FewSide& side, int i) const {
        if constexpr (KEPT) return at[i];
        return at[0] + i * (DOWN ? side.own : side.along);
    }
    __device__ __forceinline__ void advance(i64 by) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] += by;
    }
};

// The numbers that a lane has of one operand: OWN of its own axis, four positions r, L of l.
template <class T, int OWN, int L, int READ, bool KEPT>
struct FewNumbers {
    typedef FewPlaces<T, OWN, READ, KEPT> Places;
    static constexpr int EACH = 4 / sizeof(T), COUNT = OWN * 4 * L / EACH;
    unsigned word[COUNT];

    static __device__ __forceinline__ constexpr int place(int own, int r, int l) {
        return Places::OVER ? (r * OWN + own) * L + l : (own * 4 + r) * L + l;
    }
    __device__ __forceinline__ unsigned bits(int own, int r, int l) const {
        const int at = place(own, r, l);
        return EACH == 1 ? word[at] : word[at / 2] >> 16 * (at % 2) & 0xffffu;
    }
    // Halves of r and the next one.
    __device__ __forceinline__ unsigned pair(int own, int r, int l) const {
        const int a = place(own, r, l), b = place(own, r + 1, l);
        if (a % 2 == 0 && b == a + 1) return word[a / 2];
        return __byte_perm(word[a / 2], word[b / 2], (a % 2 ? 0x32 : 0x10) | (b % 2 ? 0x7600 : 0x5400));
    }
    // `left`: how many of the own axis there are from here on, `behind` of r; `off` numbers behind the places.
    __device__ __forceinline__ void read(const FewSide& side, const Places& places, i64 off, int left, int behind) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) word[i] = 0;
        if constexpr (Places::DOWN) {
#pragma unroll
            for (int own = 0; own < OWN; ++own)
                if (own < left && behind > 0) {
                    unsigned* const to = word + own * 4 * L / EACH;
                    if constexpr (READ == ALONG) few_words<4 * L * sizeof(T)>(to, places.access(side, own) + off);
                    else few_others<T, 4>(to, places.access(side, own) + off, places.odd);
                }
        } else if constexpr (Places::OVER) {
#pragma unroll
            for (int r = 0; r < 4; ++r)
                if (left > 0 && r < behind) {
                    unsigned* const to = word + r * OWN * L / EACH;
                    if constexpr (READ == ACROSS) few_words<OWN * L * sizeof(T)>(to, places.access(side, r) + off);
                    else few_others<T, OWN>(to, places.access(side, r) + off, places.odd);
                }
        } else {
            const T* const at = places.at[0] + off;
#pragma unroll
            for (int own = 0; own < OWN; ++own)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    if (own >= left || r >= behind) continue;
                    const T* const from = at + own * side.own + r * side.along;
                    if constexpr (READ == BESIDE) {
                        few_words<L * sizeof(T)>(word + place(own, r, 0) / EACH, from);
                    } else {
#pragma unroll
                        for (int l = 0; l < L; ++l) {
                            const unsigned found = *(const typename Word<sizeof(T)>::type*)(from + l);
                            const int to = place(own, r, l);
                            word[to / EACH] |= EACH == 1 ? found : found << 16 * (to % 2);
                        }
                    }
                }
        }
    }
};


template <class P>
struct FewWarp {
    typedef typename P::T T;
    typedef FewNumbers<T, 2 * P::MT, P::L, P::LEFT, P::KEPT> Left;
    typedef FewNumbers<T, P::NT, P::L, P::RIGHT, P::KEPT> Right;
    typedef float Sums[P::L][P::MT][P::NT][4];

    static __device__ __forceinline__ void add(Sums& sum, const Left& left, const Right& right) {
#pragma unroll
        for (int l = 0; l < P::L; ++l) {
            if constexpr (P::SPLIT) {
                // What tensor cores add they cut off, so that every 8 positions have sums of their own.
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned high[P::MT][4], low[P::MT][4];
#pragma unroll
                    for (int m = 0; m < P::MT; ++m)
#pragma unroll
                        for (int e = 0; e < 4; ++e) apart(left.bits(2 * m + e % 2, 2 * half + e / 2, l), high[m][e], low[m][e]);
#pragma unroll
                    for (int t = 0; t < P::NT; ++t) {
                        unsigned top[2], rest[2];
#pragma unroll
                        for (int e = 0; e < 2; ++e) apart(right.bits(t, 2 * half + e, l), top[e], rest[e]);
#pragma unroll
                        for (int m = 0; m < P::MT; ++m) {
                            float here[4] = {};
                            if (P::PRODUCTS == 3) ptx::mma_m16n8k8_tf32(here, low[m], top[0], top[1]);
                            if (P::PRODUCTS == 3) ptx::mma_m16n8k8_tf32(here, high[m], rest[0], rest[1]);
                            ptx::mma_m16n8k8_tf32(here, high[m], top[0], top[1]);
#pragma unroll
                            for (int i = 0; i < 4; ++i) sum[l][m][t][i] += here[i];
                        }
                    }
                }
            } else {
                unsigned a[P::MT][4];
#pragma unroll
                for (int m = 0; m < P::MT; ++m)
#pragma unroll
                    for (int e = 0; e < 4; ++e) a[m][e] = left.pair(2 * m + e % 2, e / 2 * 2, l);
#pragma unroll
                for (int t = 0; t < P::NT; ++t) {
                    const unsigned b0 = right.pair(t, 0, l), b1 = right.pair(t, 2, l);
#pragma unroll
                    for (int m = 0; m < P::MT; ++m) ptx::mma_m16n8k16<T>(sum[l][m][t], a[m], b0, b1);
                }
            }
        }
    }
    static __device__ __forceinline__ void apart(unsigned bits, unsigned& high, unsigned& low) {
        high = ptx::round_to_tf32(__uint_as_float(bits));
        low = ptx::round_to_tf32(__uint_as_float(bits) - __uint_as_float(high));
    }
};

// What a lane owns, from its first row and column on, each sum by itself: numbers that are not finite, or round to one
// that is not, have no rest.
template <class P>
__device__ __noinline__ void few_again(const FewJob& job, i64 p, i64 q, i64 left_at, i64 right_at, i64 out_at, i64 bias_at) {
    typedef typename P::T T;
#pragma unroll 1
    for (int at = 0; at < 4 * P::MT * P::NT * P::L; ++at) {
        const int l = at % P::L, column = at / P::L % (2 * P::NT), row = at / (P::L * 2 * P::NT);
        if (p + row >= job.p || q + column >= job.q) continue;
        const T* const left = (const T*)job.left.at + left_at + row * job.left.own + l;
        const T* const right = (const T*)job.right.at + right_at + column * job.right.own + l;
        float sum = 0.0f;
#pragma unroll 1
        for (i64 r = 0; r < job.r; ++r)
            sum = fmaf(convert<float>(left[r * job.left.along]), convert<float>(right[r * job.right.along]), sum);
        if (P::BIAS) sum += convert<float>(((const T*)job.bias)[bias_at + (q + column) * job.bias_q + l]);
        ((T*)job.out)[out_at + (p + row) * job.out_p + (q + column) * job.out_q + l] = Store<T>::from(activated<P::ACTIVATION>(sum));
    }
}

// The place along an axis, and what is left for the others; divisions take long, so that there is 2^32 / size, or 0
// where a place may be too large for that.
KM_DEVICE unsigned few_place(unsigned& at, unsigned size, i64 inverse) {
    if (size == 1) return 0;
    const unsigned others = inverse ? __umulhi(at, (unsigned)inverse) : at / size, place = at - others * size;
    at = others;
    return place;
}

// Work of a block on one kind; `block` counts those of this kind.
template <class P>
__device__ __forceinline__ void few(const FewJob& job, unsigned block, float* shared) {
    typedef typename P::T T;
    typedef FewWarp<P> Warp;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4, slot = lane / 4;
    const int parts = (int)job.parts, share = __ffs(parts) - 1, part = warp & (parts - 1);  // parts are a power of two
    const unsigned across = ((unsigned)job.q + P::COLUMNS - 1) / P::COLUMNS, down = ((unsigned)job.p + P::ROWS - 1) / P::ROWS;
    unsigned tile = block * (P::WARPS >> share) + (warp >> share);
    const i64 q = (i64)few_place(tile, across, job.inverses[0]) * P::COLUMNS + slot * P::NT;
    const i64 p = (i64)few_place(tile, down, job.inverses[1]) * P::ROWS + slot * 2 * P::MT;
    i64 left_at = p * job.left.own, right_at = q * job.right.own, out_at = 0, bias_at = 0;
#pragma unroll
    for (int axis = 3; axis >= 0; --axis) {
        const unsigned size = (unsigned)job.sizes[axis];
        if (size == 1) continue;
        const i64 place = few_place(tile, size, job.inverses[2 + axis]);
        left_at += place * job.left.batch[axis], right_at += place * job.right.batch[axis];
        out_at += place * job.out_batch[axis], bias_at += place * job.bias_batch[axis];
    }
    const bool inside = tile == 0;
    const int count = (int)job.r, steps = (count + 15) / 16, each = (steps + parts - 1) >> share;
    const int begin = part * each, end = begin + each < steps ? begin + each : steps;
    typename Warp::Sums sum;
#pragma unroll
    for (int i = 0; i < P::SUMS; ++i) (&sum[0][0][0][0])[i] = 0.0f;
    ptx::griddepcontrol_wait();
    if (inside) {
        int r = begin * 16 + quad * 4;
        const int left_own = (int)(job.p - p), right_own = (int)(job.q - q);
        typename Warp::Left::Places left_places(job.left, left_at + r * job.left.along);
        typename Warp::Right::Places right_places(job.right, right_at + r * job.right.along);
#pragma unroll 1
        for (int step = begin; step < end; step += P::DEEP, r += 16 * P::DEEP) {
            typename Warp::Left left[P::DEEP];
            typename Warp::Right right[P::DEEP];
#pragma unroll
            for (int u = 0; u < P::DEEP; ++u) {
                const int behind = step + u < end ? count - r - 16 * u : 0;
                left[u].read(job.left, left_places, 16 * u * job.left.along, left_own, behind);
                right[u].read(job.right, right_places, 16 * u * job.right.along, right_own, behind);
            }
            left_places.advance(16 * P::DEEP * job.left.along);
            right_places.advance(16 * P::DEEP * job.right.along);
#pragma unroll
            for (int u = 0; u < P::DEEP; ++u) Warp::add(sum, left[u], right[u]);
        }
    }
    if (parts > 1) {
        // Sum i of a lane is at i * 32 + lane. The warps of a tile share the sums, and the first gathers them.
        float* const own = shared + (warp - part) * P::SUMS * 32 + lane;
#pragma unroll
        for (int i = 0; i < P::SUMS; ++i) own[(part * P::SUMS + i) * 32] = (&sum[0][0][0][0])[i];
        __syncthreads();
        for (int i = part; i < P::SUMS; i += parts) {
            float each[P::WARPS], total = 0.0f;
#pragma unroll
            for (int one = 0; one < P::WARPS; ++one) each[one] = one < parts ? own[(one * P::SUMS + i) * 32] : 0.0f;
#pragma unroll
            for (int one = 0; one < P::WARPS; ++one) total += each[one];
            own[i * 32] = total;
        }
        __syncthreads();
        if (part) return;
#pragma unroll
        for (int i = 0; i < P::SUMS; ++i) (&sum[0][0][0][0])[i] = own[i * 32];
    }
    if (!inside) return;
    // Rows 8 h + slot of a tile are p + 2 m + h; its columns 2 quad + e are those of slot 2 quad + e.
    const i64 q0 = q - slot * P::NT + quad * 2 * P::NT;
    const T* const bias = (const T*)job.bias + bias_at;
    T* const out = (T*)job.out + out_at;
    bool odd = false;
#pragma unroll
    for (int m = 0; m < P::MT; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 row = p + 2 * m + h;
            if (row >= job.p) continue;
            constexpr int WORDS = 2 * P::NT * P::L * sizeof(T) / 4;
            union {
                T value[2 * P::NT * P::L];
                unsigned word[WORDS];
            } line;
#pragma unroll
            for (int e = 0; e < 2; ++e)
#pragma unroll
                for (int t = 0; t < P::NT; ++t)
#pragma unroll
                    for (int l = 0; l < P::L; ++l) {
                        float v = sum[l][m][t][2 * h + e];
                        const i64 column = q0 + e * P::NT + t;
                        odd |= P::SPLIT && !(fabsf(v) <= 3.4028235e38f);
                        if (P::BIAS && column < job.q) v += convert<float>(bias[column * job.bias_q + l]);
                        line.value[(e * P::NT + t) * P::L + l] = Store<T>::from(activated<P::ACTIVATION>(v));
                    }
            if constexpr (P::PACKED) {
                if (q0 >= job.q) continue;
                unsigned* const to = (unsigned*)(out + row * job.out_p + q0 * P::L);
                if constexpr (WORDS % 4 == 0) {
#pragma unroll
                    for (int i = 0; i < WORDS; i += 4)
                        *(uint4*)(to + i) = make_uint4(line.word[i], line.word[i + 1], line.word[i + 2], line.word[i + 3]);
                } else if constexpr (WORDS == 2) {
                    *(uint2*)to = make_uint2(line.word[0], line.word[1]);
                } else {
                    *to = line.word[0];
                }
            } else {
#pragma unroll
                for (int i = 0; i < 2 * P::NT; ++i)
                    if (q0 + i < job.q)
#pragma unroll
                        for (int l = 0; l < P::L; ++l) out[row * job.out_p + (q0 + i) * job.out_q + l] = line.value[i * P::L + l];
            }
        }
    if (P::SPLIT && odd) few_again<P>(job, p, q0, left_at, right_at + (q0 - q) * job.right.own, out_at, bias_at);
}

// The same where right is nothing but ones and there is one q: sums over the r of a p, 16 bytes of neighbouring p at a
// time if TOGETHER, or else r along the lanes of a warp.
template <class T, int WARPS, int ROUNDS, bool TOGETHER>
__device__ __forceinline__ void few_sum(const FewJob& job, unsigned block, float* shared) {
    constexpr int EACH = 16 / sizeof(T), WIDE = 2 * EACH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* const out = (T*)job.out;
    ptx::griddepcontrol_wait();
    if constexpr (TOGETHER) {
        const i64 p = (i64)block * WIDE + threadIdx.x % 2 * EACH;
        const T* const from = (const T*)job.left.at + p;
        float sum[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) sum[e] = 0.0f;
        if (p < job.p)
#pragma unroll 1
            for (i64 r = threadIdx.x / 2; r < job.r; r += 16 * WARPS * ROUNDS) {
                Pack<T, EACH> found[ROUNDS];
#pragma unroll
                for (int round = 0; round < ROUNDS; ++round) {
                    const i64 at = r + 16 * WARPS * round;
                    found[round] = at < job.r ? load_pack<T, EACH>(from + at * job.left.along) : Pack<T, EACH>();
                }
#pragma unroll
                for (int round = 0; round < ROUNDS; ++round)
#pragma unroll
                    for (int e = 0; e < EACH; ++e) sum[e] += convert<float>(found[round].v[e]);
            }
#pragma unroll
        for (int e = 0; e < EACH; ++e)
#pragma unroll
            for (int gap = 2; gap < 32; gap *= 2) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], gap);
        if (lane < 2)
#pragma unroll
            for (int e = 0; e < EACH; ++e) shared[warp * WIDE + lane * EACH + e] = sum[e];
        __syncthreads();
        if (threadIdx.x >= WIDE || (i64)block * WIDE + threadIdx.x >= job.p) return;
        float total = 0.0f;
#pragma unroll
        for (int other = 0; other < WARPS; ++other) total += shared[other * WIDE + threadIdx.x];
        out[((i64)block * WIDE + threadIdx.x) * job.out_p] = Store<T>::from(total);
    } else {
        const i64 p = (i64)block * WARPS + warp;
        if (p >= job.p) return;
        const T* const from = (const T*)job.left.at + p * job.left.own;
        float sum = 0.0f;
#pragma unroll 4
        for (i64 r = lane; r < job.r; r += 32) sum += convert<float>(from[r * job.left.along]);
#pragma unroll
        for (int gap = 1; gap < 32; gap *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, gap);
        if (lane == 0) out[p * job.out_p] = Store<T>::from(sum);
    }
}

}  // namespace km

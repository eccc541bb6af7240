// Grouped products of small matrices on tensor cores, several kinds in one launch:
//   out[m, p, q, l] = sum over r of left[m, p, r, l] right[m, q, r, l], plus bias[m, q, l].
// The operands are read where they lie, with any strides. A training step of a Kronecker-sparse factor for a few rows consists of
// such products, and so does the merging of neighbouring factors and its gradient.
//
// A warp computes 16 MMA_M rows p, 8 MMA_N columns q and WARP_L neighbouring l over a part of r; the `parts` warps of a block that share a
// tile add their sums up in shared memory. A lane has 2 MMA_M neighbouring p, MMA_N neighbouring q and four neighbours of 16
// positions r, so that it reads four numbers at once along the axis that is contiguous. float32 is split into two tf32 numbers,
// of which three products are taken.
#pragma once
#include "kronsparse_tile.cuh"
#include "reduce.cuh"

namespace km {

// One operand: steps in elements of the batch axes, of p or q, and of r.
struct GroupedOperand {
    const void* at;
    i64 batch[4], own, along;
};
struct GroupedProduct {
    GroupedOperand left, right;
    void* out;
    i64 out_batch[4], out_p, out_q;
    const void* bias;
    i64 bias_batch[4], bias_q;
    i64 p, q, r, parts, sizes[4];
    i64 inverses[6];  // 2^32 over the number of tiles along q, of tiles along p, and each of the sizes; 0 where a division is needed
};

// How an operand is read: four numbers along r at once, its own axis at once, neighbouring l at once, or number by number. The
// _OTHER kinds are for arrays of which every second number belongs to another product: a lane reads both and drops one.
enum GroupedRead { ALONG, ACROSS, ADJACENT, ALONE, ALONG_OTHER, ACROSS_OTHER };

// The tile of one kind of product, from a struct of its parameters:
//   T, WARPS             type of arrays, and warps of a block
//   WARP_L, MMA_M, MMA_N neighbouring l, fragments of 16 rows and of 8 columns of a warp
//   LEFT, RIGHT          how the operands are read, a GroupedRead each
//   DEEP                 sixteens of r that are read before the first is multiplied
//   PACKED               a lane's numbers of the result are neighbours in memory and stored at once
//   BIAS, ACTIVATION     what is done with a sum before it is stored
//   PRODUCTS             3 products of tf32 for float32, or 1 in one pass
template <class Traits>
struct GroupedTile : Traits {
    using typename Traits::T;
    using Traits::WARP_L, Traits::MMA_M, Traits::MMA_N, Traits::WARPS;
    static constexpr bool SPLIT = sizeof(T) == 4;
    static constexpr int ROWS = 16 * MMA_M, COLUMNS = 8 * MMA_N, SUMS = WARP_L * MMA_M * MMA_N * 4;
    static constexpr bool ADDRESSED = !SPLIT || SUMS < 32;
    // The warps of a tile add their sums up in shared memory.
    static constexpr int SHARED_BYTES = WARPS * 32 * SUMS * 4;
};

template <int BYTES>
KM_DEVICE void read_words(unsigned* to, const void* from) {
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

// Reads 2 COUNT numbers and keeps the even ones, or the odd ones.
template <class T, int COUNT>
KM_DEVICE void read_alternate(unsigned* to, const T* from, bool odd) {
    unsigned both[2 * COUNT * sizeof(T) / 4];
    read_words<2 * COUNT * sizeof(T)>(both, from);
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) to[i] = odd ? both[2 * i + 1] : both[2 * i];
    } else {
#pragma unroll
        for (int i = 0; i < COUNT / 2; ++i) to[i] = __byte_perm(both[2 * i], both[2 * i + 1], odd ? 0x7632 : 0x5410);
    }
}

// Where a lane reads one operand: an address for each access of sixteen r, or one if not ADDRESSED, where registers are
// few, or where it reads numbers one by one.
template <class T, int OWN, int READ, bool ADDRESSED>
struct GroupedPointers {
    static constexpr bool DOWN = READ == ALONG || READ == ALONG_OTHER, OVER = READ == ACROSS || READ == ACROSS_OTHER;
    static constexpr int COUNT = !ADDRESSED ? 1 : DOWN ? OWN : OVER ? 4 : 1;
    const T* at[COUNT];
    bool odd;

    __device__ __forceinline__ GroupedPointers(const GroupedOperand& side, i64 from) {
        const T* first = (const T*)side.at + from;
        odd = READ > ALONE && (unsigned long long)first / sizeof(T) % 2;
        if (odd) --first;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] = first + i * (DOWN ? side.own : side.along);
    }
    __device__ __forceinline__ const T* access(const GroupedOperand& side, int i) const {
        if constexpr (ADDRESSED) return at[i];
        return at[0] + i * (DOWN ? side.own : side.along);
    }
    __device__ __forceinline__ void advance(i64 by) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) at[i] += by;
    }
};

// The numbers that a lane has of one operand: OWN of its own axis, four positions r, WARP_L of l.
template <class T, int OWN, int WARP_L, int READ, bool ADDRESSED>
struct GroupedFragment {
    typedef GroupedPointers<T, OWN, READ, ADDRESSED> Pointers;
    static constexpr int EACH = 4 / sizeof(T), COUNT = OWN * 4 * WARP_L / EACH;
    unsigned word[COUNT];

    static __device__ __forceinline__ constexpr int offset(int own, int r, int l) {
        return Pointers::OVER ? (r * OWN + own) * WARP_L + l : (own * 4 + r) * WARP_L + l;
    }
    __device__ __forceinline__ unsigned bits(int own, int r, int l) const {
        const int at = offset(own, r, l);
        return EACH == 1 ? word[at] : word[at / 2] >> 16 * (at % 2) & 0xffffu;
    }
    // Halves of r and the next one.
    __device__ __forceinline__ unsigned word_of(int own, int r, int l) const {
        const int a = offset(own, r, l), b = offset(own, r + 1, l);
        if (a % 2 == 0 && b == a + 1) return word[a / 2];
        return __byte_perm(word[a / 2], word[b / 2], (a % 2 ? 0x32 : 0x10) | (b % 2 ? 0x7600 : 0x5400));
    }
    // `left`: how many of the own axis there are from here on, `behind` of r; `off` numbers behind the places.
    __device__ __forceinline__ void read(const GroupedOperand& side, const Pointers& pointers, i64 off, int left, int depth_left) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) word[i] = 0;
        if constexpr (Pointers::DOWN) {
#pragma unroll
            for (int own = 0; own < OWN; ++own)
                if (own < left && depth_left > 0) {
                    unsigned* const to = word + own * 4 * WARP_L / EACH;
                    if constexpr (READ == ALONG) read_words<4 * WARP_L * sizeof(T)>(to, pointers.access(side, own) + off);
                    else read_alternate<T, 4>(to, pointers.access(side, own) + off, pointers.odd);
                }
        } else if constexpr (Pointers::OVER) {
#pragma unroll
            for (int r = 0; r < 4; ++r)
                if (left > 0 && r < depth_left) {
                    unsigned* const to = word + r * OWN * WARP_L / EACH;
                    if constexpr (READ == ACROSS) read_words<OWN * WARP_L * sizeof(T)>(to, pointers.access(side, r) + off);
                    else read_alternate<T, OWN>(to, pointers.access(side, r) + off, pointers.odd);
                }
        } else {
            const T* const at = pointers.at[0] + off;
#pragma unroll
            for (int own = 0; own < OWN; ++own)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    if (own >= left || r >= depth_left) continue;
                    const T* const from = at + own * side.own + r * side.along;
                    if constexpr (READ == ADJACENT) {
                        read_words<WARP_L * sizeof(T)>(word + offset(own, r, 0) / EACH, from);
                    } else {
#pragma unroll
                        for (int l = 0; l < WARP_L; ++l) {
                            const unsigned found = *(const typename Word<sizeof(T)>::type*)(from + l);
                            const int to = offset(own, r, l);
                            word[to / EACH] |= EACH == 1 ? found : found << 16 * (to % 2);
                        }
                    }
                }
        }
    }
};


template <class P>
struct GroupedWarp {
    typedef typename P::T T;
    typedef GroupedFragment<T, 2 * P::MMA_M, P::WARP_L, P::LEFT, P::ADDRESSED> Left;
    typedef GroupedFragment<T, P::MMA_N, P::WARP_L, P::RIGHT, P::ADDRESSED> Right;
    typedef float Sums[P::WARP_L][P::MMA_M][P::MMA_N][4];

    static __device__ __forceinline__ void add(Sums& sum, const Left& left, const Right& right) {
#pragma unroll
        for (int l = 0; l < P::WARP_L; ++l) {
            if constexpr (P::SPLIT) {
                // What tensor cores add they cut off, so that every 8 positions have sums of their own.
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned high[P::MMA_M][4], low[P::MMA_M][4];
#pragma unroll
                    for (int m = 0; m < P::MMA_M; ++m)
#pragma unroll
                        for (int e = 0; e < 4; ++e) split_tf32(high[m][e], low[m][e], __uint_as_float(left.bits(2 * m + e % 2, 2 * half + e / 2, l)));
#pragma unroll
                    for (int t = 0; t < P::MMA_N; ++t) {
                        unsigned top[2], rest[2];
#pragma unroll
                        for (int e = 0; e < 2; ++e) split_tf32(top[e], rest[e], __uint_as_float(right.bits(t, 2 * half + e, l)));
#pragma unroll
                        for (int m = 0; m < P::MMA_M; ++m) {
                            float here[4] = {};
                            mma_split_tf32<P::PRODUCTS == 3>(here, here, high[m], low[m], top, rest);
#pragma unroll
                            for (int i = 0; i < 4; ++i) sum[l][m][t][i] += here[i];
                        }
                    }
                }
            } else {
                unsigned a[P::MMA_M][4];
#pragma unroll
                for (int m = 0; m < P::MMA_M; ++m)
#pragma unroll
                    for (int e = 0; e < 4; ++e) a[m][e] = left.word_of(2 * m + e % 2, e / 2 * 2, l);
#pragma unroll
                for (int t = 0; t < P::MMA_N; ++t) {
                    const unsigned b0 = right.word_of(t, 0, l), b1 = right.word_of(t, 2, l);
#pragma unroll
                    for (int m = 0; m < P::MMA_M; ++m) ptx::mma_m16n8k16<T>(sum[l][m][t], a[m], b0, b1);
                }
            }
        }
    }
};

// Computes the sums of a lane again, one by one, by FMA instructions: a number that is not finite, or that rounds to one that is
// not, has no low part.
template <class P>
__device__ __noinline__ void grouped_recompute(const GroupedProduct& product, i64 p, i64 q, i64 left_at, i64 right_at, i64 out_at, i64 bias_at) {
    typedef typename P::T T;
#pragma unroll 1
    for (int at = 0; at < 4 * P::MMA_M * P::MMA_N * P::WARP_L; ++at) {
        const int l = at % P::WARP_L, column = at / P::WARP_L % (2 * P::MMA_N), row = at / (P::WARP_L * 2 * P::MMA_N);
        if (p + row >= product.p || q + column >= product.q) continue;
        const T* const left = (const T*)product.left.at + left_at + row * product.left.own + l;
        const T* const right = (const T*)product.right.at + right_at + column * product.right.own + l;
        float sum = 0.0f;
#pragma unroll 1
        for (i64 r = 0; r < product.r; ++r)
            sum = fmaf(convert<float>(left[r * product.left.along]), convert<float>(right[r * product.right.along]), sum);
        if (P::BIAS) sum += convert<float>(((const T*)product.bias)[bias_at + (q + column) * product.bias_q + l]);
        ((T*)product.out)[out_at + (p + row) * product.out_p + (q + column) * product.out_q + l] = Store<T>::from(activated<P::ACTIVATION>(sum));
    }
}

// Takes the index along the fastest axis off a combined index, which keeps those of the other axes. Divisions are slow, so the
// host passes 2^32 / size, or 0 where a combined index may be too large for that.
KM_DEVICE unsigned take_index(unsigned& at, unsigned size, i64 inverse) {
    if (size == 1) return 0;
    const unsigned others = inverse ? __umulhi(at, (unsigned)inverse) : at / size, offset = at - others * size;
    at = others;
    return offset;
}

// Computes the tiles of a block; `block` counts the blocks of this product.
template <class P>
__device__ __forceinline__ void grouped_product(const GroupedProduct& product, unsigned block, float* shared) {
    typedef typename P::T T;
    typedef GroupedWarp<P> Warp;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad = lane % 4, slot = lane / 4;
    const int parts = (int)product.parts, share = __ffs(parts) - 1, part = warp & (parts - 1);  // parts are a power of two
    const unsigned across = ((unsigned)product.q + P::COLUMNS - 1) / P::COLUMNS, down = ((unsigned)product.p + P::ROWS - 1) / P::ROWS;
    unsigned tile = block * (P::WARPS >> share) + (warp >> share);
    const i64 q = (i64)take_index(tile, across, product.inverses[0]) * P::COLUMNS + slot * P::MMA_N;
    const i64 p = (i64)take_index(tile, down, product.inverses[1]) * P::ROWS + slot * 2 * P::MMA_M;
    i64 left_at = p * product.left.own, right_at = q * product.right.own, out_at = 0, bias_at = 0;
#pragma unroll
    for (int axis = 3; axis >= 0; --axis) {
        const unsigned size = (unsigned)product.sizes[axis];
        if (size == 1) continue;
        const i64 offset = take_index(tile, size, product.inverses[2 + axis]);
        left_at += offset * product.left.batch[axis], right_at += offset * product.right.batch[axis];
        out_at += offset * product.out_batch[axis], bias_at += offset * product.bias_batch[axis];
    }
    const bool inside = tile == 0;
    const int count = (int)product.r, steps = (count + 15) / 16, each = (steps + parts - 1) >> share;
    const int begin = part * each, end = begin + each < steps ? begin + each : steps;
    typename Warp::Sums sum;
    clear(sum);
    ptx::griddepcontrol_wait();
    if (inside) {
        int r = begin * 16 + quad * 4;
        const int left_own = (int)(product.p - p), right_own = (int)(product.q - q);
        typename Warp::Left::Pointers left_pointers(product.left, left_at + r * product.left.along);
        typename Warp::Right::Pointers right_pointers(product.right, right_at + r * product.right.along);
#pragma unroll 1
        for (int step = begin; step < end; step += P::DEEP, r += 16 * P::DEEP) {
            typename Warp::Left left[P::DEEP];
            typename Warp::Right right[P::DEEP];
#pragma unroll
            for (int u = 0; u < P::DEEP; ++u) {
                const int depth_left = step + u < end ? count - r - 16 * u : 0;
                left[u].read(product.left, left_pointers, 16 * u * product.left.along, left_own, depth_left);
                right[u].read(product.right, right_pointers, 16 * u * product.right.along, right_own, depth_left);
            }
            left_pointers.advance(16 * P::DEEP * product.left.along);
            right_pointers.advance(16 * P::DEEP * product.right.along);
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
    const i64 q0 = q - slot * P::MMA_N + quad * 2 * P::MMA_N;
    const T* const bias = (const T*)product.bias + bias_at;
    T* const out = (T*)product.out + out_at;
    bool odd = false;
#pragma unroll
    for (int m = 0; m < P::MMA_M; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 row = p + 2 * m + h;
            if (row >= product.p) continue;
            constexpr int WORDS = 2 * P::MMA_N * P::WARP_L * sizeof(T) / 4;
            union {
                T value[2 * P::MMA_N * P::WARP_L];
                unsigned word[WORDS];
            } row_values;
#pragma unroll
            for (int e = 0; e < 2; ++e)
#pragma unroll
                for (int t = 0; t < P::MMA_N; ++t)
#pragma unroll
                    for (int l = 0; l < P::WARP_L; ++l) {
                        float v = sum[l][m][t][2 * h + e];
                        const i64 column = q0 + e * P::MMA_N + t;
                        odd |= P::SPLIT && !(fabsf(v) <= 3.4028235e38f);
                        if (P::BIAS && column < product.q) v += convert<float>(bias[column * product.bias_q + l]);
                        row_values.value[(e * P::MMA_N + t) * P::WARP_L + l] = Store<T>::from(activated<P::ACTIVATION>(v));
                    }
            if constexpr (P::PACKED) {
                if (q0 >= product.q) continue;
                unsigned* const to = (unsigned*)(out + row * product.out_p + q0 * P::WARP_L);
                if constexpr (WORDS % 4 == 0) {
#pragma unroll
                    for (int i = 0; i < WORDS; i += 4)
                        *(uint4*)(to + i) = make_uint4(row_values.word[i], row_values.word[i + 1], row_values.word[i + 2], row_values.word[i + 3]);
                } else if constexpr (WORDS == 2) {
                    *(uint2*)to = make_uint2(row_values.word[0], row_values.word[1]);
                } else {
                    *to = row_values.word[0];
                }
            } else {
#pragma unroll
                for (int i = 0; i < 2 * P::MMA_N; ++i)
                    if (q0 + i < product.q)
#pragma unroll
                        for (int l = 0; l < P::WARP_L; ++l) out[row * product.out_p + (q0 + i) * product.out_q + l] = row_values.value[i * P::WARP_L + l];
            }
        }
    if (P::SPLIT && odd) grouped_recompute<P>(product, p, q0, left_at, right_at + (q0 - q) * product.right.own, out_at, bias_at);
}

template <class T, int WARPS>
__device__ constexpr int grouped_sum_shared_bytes() {
    return WARPS * 2 * 16 / (int)sizeof(T) * 4;
}

// The same where right is nothing but ones and there is one q: sums over the r of a p, 16 bytes of neighbouring p at a
// time if TOGETHER, or else r along the lanes of a warp.
template <class T, int WARPS, int ROUNDS, bool TOGETHER>
__device__ __forceinline__ void grouped_sum(const GroupedProduct& product, unsigned block, float* shared) {
    constexpr int EACH = 16 / sizeof(T), WIDE = 2 * EACH;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* const out = (T*)product.out;
    ptx::griddepcontrol_wait();
    if constexpr (TOGETHER) {
        const i64 p = (i64)block * WIDE + threadIdx.x % 2 * EACH;
        const T* const from = (const T*)product.left.at + p;
        float sum[EACH];
        clear(sum);
        if (p < product.p)
#pragma unroll 1
            for (i64 r = threadIdx.x / 2; r < product.r; r += 16 * WARPS * ROUNDS) {
                Pack<T, EACH> found[ROUNDS];
#pragma unroll
                for (int round = 0; round < ROUNDS; ++round) {
                    const i64 at = r + 16 * WARPS * round;
                    found[round] = at < product.r ? load_pack<T, EACH>(from + at * product.left.along) : Pack<T, EACH>();
                }
#pragma unroll
                for (int round = 0; round < ROUNDS; ++round)
#pragma unroll
                    for (int e = 0; e < EACH; ++e) sum[e] += convert<float>(found[round].v[e]);
            }
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            sum[e] = warp_sum<16, 2>(sum[e]);
        if (lane < 2)
#pragma unroll
            for (int e = 0; e < EACH; ++e) shared[warp * WIDE + lane * EACH + e] = sum[e];
        __syncthreads();
        if (threadIdx.x >= WIDE || (i64)block * WIDE + threadIdx.x >= product.p) return;
        out[((i64)block * WIDE + threadIdx.x) * product.out_p] = Store<T>::from(sum_over_warps<WARPS, WIDE>(shared + threadIdx.x));
    } else {
        const i64 p = (i64)block * WARPS + warp;
        if (p >= product.p) return;
        const T* const from = (const T*)product.left.at + p * product.left.own;
        float sum = 0.0f;
#pragma unroll 4
        for (i64 r = lane; r < product.r; r += 32) sum += convert<float>(from[r * product.left.along]);
        sum = warp_sum(sum);
        if (lane == 0) out[p * product.out_p] = Store<T>::from(sum);
    }
}

}  // namespace km

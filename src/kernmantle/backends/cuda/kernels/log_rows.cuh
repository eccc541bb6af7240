// Logarithms of sums of exponentials as logarithms of products on tensor cores: log sum_k exp(r_mk + c_nk) is
// log(sum_k exp(r_mk - max r_m) exp(c_nk - max c_n)) + max r_m + max c_n.
//
// Exponentials are at most 1; times 2^14 they are split into high and low halves, of which the low ones end at 2^-25. An entry is off
// by at most 2^-39 of the sums of both rows of exponentials and by roundings. One whose sum of products is below LOG_SHARE of these
// sums is computed as it is written, as is one of rows that have NaN or +infinity.
#pragma once
#include "scratch.cuh"

namespace km {

constexpr float EXPONENTIAL_SCALE = 16384.0f, LOG_SHARE = 3.8147e-6f;  // 2^14, 2^-18
// Facts of a row: the sum of its exponentials, -infinity if all of them are 0 and +infinity if it is not to be multiplied; its
// largest exponent.
KM_DEVICE bool loses_digits(float sum, float sums) { return !(sum >= LOG_SHARE * sums); }

// Eight exponents of a row, -infinity behind its end.
template <class Body, class P, bool IS_ROW, class Args>
KM_DEVICE void exponents(float (&v)[8], const typename P::T* row, const Args& g, const Coord& p, i64 k) {
    read_along_k<P, false>(v, row, g, k);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (k + i >= g.size[ROLE_K]) {
            v[i] = negative_infinity<float>();
            continue;
        }
        float c[AtLeastOne<Body::VECTORS>::value];
        read_vectors<Body>(c, g, p, k + i);
        v[i] = IS_ROW ? Body::row_part(v[i], c, g.number) : Body::column_part(v[i], c, g.number);
    }
}

// The halves and facts of one row of an operand by a warp; rows behind the last are 0.
template <class Body, class P, bool IS_ROW, class Args>
KM_DEVICE void split_exponentials(const Args& g, int operand, i64 row_index, int lane) {
    const i64 depth = g.size[ROLE_K], blocks = ceil_div(depth, BLOCK), rows = ceil_div(g.size[P::TILE], BLOCK) * BLOCK;
    const i64 plane = row_index / rows, m = row_index % rows, base = plane * (rows / BLOCK) + m / BLOCK;
    const Coord p = entry_of<Body, P>(g, plane);
    const bool inside = m < g.size[P::TILE];
    const typename P::T* row = row_of<P>(g, p, inside ? m : 0);
    float top = negative_infinity<float>();
    bool wild = false;
    for (i64 k = 8 * lane; inside && k < depth; k += 256) {
        float v[8];
        exponents<Body, P, IS_ROW>(v, row, g, p, k);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            top = fmaxf(top, v[i]);
            wild = wild || !(v[i] < infinity<float>());
        }
    }
    top = warp_max(top);
    wild = __any_sync(0xffffffffu, wild);
    const bool some = inside && !wild && top > negative_infinity<float>();
    float sum = 0.0f;
    for (i64 k = 8 * lane; k < blocks * BLOCK; k += 256) {
        float v[8];
        if (some) exponents<Body, P, IS_ROW>(v, row, g, p, k);
        Pack<f16, 8> high, low;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float u = some ? EXPONENTIAL_SCALE * ::expf(v[i] - top) : 0.0f;
            high.v[i] = Store<f16>::from(u);
            low.v[i] = Store<f16>::from(u - convert<float>(high.v[i]));
            sum += u;
        }
        unsigned char* to = g.scratch.plane[operand] + (base * blocks + k / BLOCK) * (2 * BLOCK_BYTES) + m % BLOCK * 128
                            + swizzle_128((int)m % 8, (int)(k / 8) % 8);
        *(Pack<f16, 8>*)to = high;
        *(Pack<f16, 8>*)(to + BLOCK_BYTES) = low;
    }
    sum = warp_sum(sum) * (1.0f / EXPONENTIAL_SCALE);
    if (lane == 0)
        g.scratch.row[operand][row_index] = make_float2(wild ? infinity<float>() : some ? sum : negative_infinity<float>(), wild ? 0.0f : top);
}

}  // namespace km

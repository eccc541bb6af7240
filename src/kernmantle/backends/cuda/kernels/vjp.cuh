// VJPs of a contraction with an axis of outputs:
//   out[m, n, l] = outer * sum over k of coefficient[k, l] weight[m, k] slope(z[m, n], x[k, n]).
//
// m are points, n columns, k rows, l outputs. This header has what the kernels share: arguments, tiles and operands.
#pragma once
#include "gram.cuh"

namespace km {

// How the main kernel takes a slope: as it is written, as a sign counted in halves, as a sign times a power.
enum Kind { PLAIN, SIGNS, POWERS };

// Behind the arguments: the rows as the main kernel reads them, coefficients, per point the scale of its weights, per
// column and output the largest magnitude, columns and tiles that need the exact form, sums over ranges of k. The first
// `whole` tiles take all of k, the others are cut into `splits` ranges of `share`.
template <class A>
struct VjpArguments : A {
    float *rows, *factors, *scale;
    unsigned *top, *wild, *peak;
    unsigned char* dirty;
    float* parts;
    i64 whole, splits, share;
};

// One tile of the output.
struct Patch {
    Coord p;
    i64 m, n, l, entry, first, end;
    i64 tile;
    int range;
};

template <class P, class Args>
KM_DEVICE const typename P::T* origin(const Args& g, const Coord& p) {
    return (const typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
}
template <class P>
KM_DEVICE float take(const typename P::T* at) {
    return convert<float>(load_pack<typename P::T, 1>(at).v[0]);
}
template <class P, class Args>
KM_DEVICE float fetch(const Args& g, const Coord& p, i64 m, i64 n, i64 k, i64 l) {
    const i64* s = g.stride[P::BUFFER];
    return take<P>(origin<P>(g, p) + m * s[ROLE_M] + n * s[ROLE_N] + k * s[ROLE_K] + l * s[ROLE_L]);
}

template <class Args>
KM_DEVICE i64 entries(const Args& g) {
    return g.size[ROLE_A] * g.size[ROLE_B] * g.size[ROLE_C];
}
template <class Args>
KM_DEVICE Coord entry_at(const Args& g, i64 entry) {
    Coord p;
    p.c = entry % g.size[ROLE_C];
    entry /= g.size[ROLE_C];
    p.b = entry % g.size[ROLE_B];
    p.a = entry / g.size[ROLE_B];
    p.m = p.n = p.split = 0;
    return p;
}
// Batch entries that share their rows share the copy of them; the copy of an entry, and how many there are.
template <class Body, class Args>
KM_DEVICE i64 plane_of(const Args& g, const Coord& p) {
    const i64* s = g.stride[Body::X::BUFFER];
    i64 plane = 0;
    if (s[ROLE_A]) plane = p.a;
    if (s[ROLE_B]) plane = plane * g.size[ROLE_B] + p.b;
    if (s[ROLE_C]) plane = plane * g.size[ROLE_C] + p.c;
    return plane;
}
template <class Body, class Args>
KM_DEVICE i64 planes(const Args& g) {
    const i64* s = g.stride[Body::X::BUFFER];
    return (s[ROLE_A] ? g.size[ROLE_A] : 1) * (s[ROLE_B] ? g.size[ROLE_B] : 1) * (s[ROLE_C] ? g.size[ROLE_C] : 1);
}
template <class Body, class Args>
KM_DEVICE Coord entry_of_plane(const Args& g, i64 plane) {
    const i64* s = g.stride[Body::X::BUFFER];
    Coord p = {0, 0, 0, 0, 0, 0};
    if (s[ROLE_C]) {
        p.c = plane % g.size[ROLE_C];
        plane /= g.size[ROLE_C];
    }
    if (s[ROLE_B]) {
        p.b = plane % g.size[ROLE_B];
        plane /= g.size[ROLE_B];
    }
    if (s[ROLE_A]) p.a = plane;
    return p;
}

KM_DEVICE i64 least(i64 a, i64 b) { return a < b ? a : b; }
KM_DEVICE i64 padded(i64 extent, i64 step) { return ceil_div(extent, step) * step; }

template <class Tile, class Args>
KM_DEVICE i64 patches(const Args& g) {
    return entries(g) * ceil_div(g.size[ROLE_M], Tile::BM) * ceil_div(g.size[ROLE_N], Tile::BN) * ceil_div(g.size[ROLE_L], Tile::BL);
}
// Columns go fastest, so that blocks in flight share weights.
template <class Tile, class Args>
KM_DEVICE Patch patch_at(const Args& g, i64 tile) {
    Patch t;
    t.tile = tile;
    const i64 across = ceil_div(g.size[ROLE_N], Tile::BN), outputs = ceil_div(g.size[ROLE_L], Tile::BL);
    const i64 down = ceil_div(g.size[ROLE_M], Tile::BM);
    t.n = tile % across * Tile::BN;
    tile /= across;
    t.l = tile % outputs * Tile::BL;
    tile /= outputs;
    t.m = tile % down * Tile::BM;
    t.entry = tile / down;
    t.p = entry_at(g, t.entry);
    t.first = 0;
    t.end = g.size[ROLE_K];
    t.range = -1;
    return t;
}
// The tile and the range of k of a block.
template <class Tile, class Args>
KM_DEVICE Patch patch_of(const Args& g, i64 block) {
    if (block < g.whole || g.splits == 1) return patch_at<Tile>(g, block);
    const i64 rest = block - g.whole;
    Patch t = patch_at<Tile>(g, g.whole + rest / g.splits);
    t.range = (int)(rest % g.splits);
    t.first = t.range * g.share;
    t.end = t.first + g.share < t.end ? t.first + g.share : t.end;
    return t;
}
template <class Tile, class Args>
KM_DEVICE float* part_of(const Args& g, const Patch& t, int range) {
    return g.parts + ((t.tile - g.whole) * g.splits + range) * (Tile::BM * Tile::BN * Tile::BL);
}

// Power of two that takes a number of this magnitude below 2^to.
KM_DEVICE float fitting(unsigned top, int to) {
    if (top == 0 || top >= 0x7f800000u) return 1.0f;
    int e = to + 126 - (int)(top >> 23);
    e = e < -126 ? -126 : e > 126 ? 126 : e;
    return __int_as_float((e + 127) << 23);
}
// A sign times a power |d|^q: entries for every sign and exponent of d, then the number 1.
constexpr int POWER_WORDS = 516;
KM_DEVICE void fill_table(float* table, float q, int to, int threads) {
    for (int i = threadIdx.x; i <= 512; i += threads) {
        const float size = i == 512 ? 1.0f : i % 256 == 0 ? 0.0f : i % 256 == 255 ? infinity<float>() : ldexpf(power_of_exponent(q, i % 256), to);
        table[i] = i >= 256 && i < 512 ? -size : size;
    }
    __syncthreads();
}
KM_DEVICE float signed_table(float d, const float* table, unsigned one, float c0, float c1, float c2, float c3, float c4, float c5) {
    const unsigned bits = __float_as_uint(d);
    const float m = __uint_as_float((bits & 0x007fffffu) | one);
    float r = fmaf(c5, m, c4);
    r = fmaf(r, m, c3);
    r = fmaf(r, m, c2);
    r = fmaf(r, m, c1);
    r = fmaf(r, m, c0);
    return r * table[ptx::shift_right_23(bits)];
}
KM_DEVICE float signed_unit(float d, float q, float to) {
    return with_sign(ptx::ex2_approx_ftz(fmaf(ptx::lg2_approx_ftz(fabsf(d)), q, to)), d);
}

KM_DEVICE float inverse(float power_of_two) { return __uint_as_float((254u << 23) - __float_as_uint(power_of_two)); }
// Differences of numbers below it are less than 2^120.
constexpr unsigned LARGE = 0x7b000000u;
constexpr int COLUMN_FIT = -1, WEIGHT_FIT = 0, FACTOR_FIT = 14, POWER_FIT = 15;

// What a slope reads of one cell beside the row.
template <class Body, class Args>
struct Operands {
    float of_mn[AtLeastOne<Body::MN_OPERANDS>::value], of_m[AtLeastOne<Body::M_OPERANDS>::value], of_n[AtLeastOne<Body::N_OPERANDS>::value];
    float scalar[AtLeastOne<Body::SCALARS>::value];
    __device__ __forceinline__ Operands(const Args& g, const Coord& p, i64 m, i64 n) {
        each<0, Body::MN_OPERANDS>([&](auto i) { of_mn[decltype(i)::value] = fetch<typename Body::template MnBuffer<decltype(i)::value>>(g, p, m, n, 0, 0); });
        each<0, Body::M_OPERANDS>([&](auto i) { of_m[decltype(i)::value] = fetch<typename Body::template MBuffer<decltype(i)::value>>(g, p, m, 0, 0, 0); });
        each<0, Body::N_OPERANDS>([&](auto i) { of_n[decltype(i)::value] = fetch<typename Body::template NBuffer<decltype(i)::value>>(g, p, 0, n, 0, 0); });
        each<0, Body::SCALARS>([&](auto i) { scalar[decltype(i)::value] = fetch<typename Body::template ScalarBuffer<decltype(i)::value>>(g, p, 0, 0, 0, 0); });
    }
};
template <class Body, class Args>
KM_DEVICE float weight_at(const Args& g, const Coord& p, i64 m, i64 k) {
    float w[AtLeastOne<Body::WEIGHTS>::value];
    each<0, Body::WEIGHTS>([&](auto i) { w[decltype(i)::value] = fetch<typename Body::template WeightBuffer<decltype(i)::value>>(g, p, m, 0, k, 0); });
    return Body::weight(w, g.number);
}
template <class Body, class Args>
KM_DEVICE float coefficient_at(const Args& g, const Coord& p, i64 k, i64 l) {
    float c[AtLeastOne<Body::FACTORS>::value];
    each<0, Body::FACTORS>([&](auto i) { c[decltype(i)::value] = fetch<typename Body::template FactorBuffer<decltype(i)::value>>(g, p, 0, 0, k, l); });
    return Body::coefficient(c, g.number);
}

// Writes one result; false where it is not finite, so that the exact form must decide.
template <class Body, class Args>
KM_DEVICE bool store_result(const Args& g, const Coord& p, i64 m, i64 n, i64 l, float sum) {
    float e[AtLeastOne<Body::OUTERS>::value];
    each<0, Body::OUTERS>([&](auto i) { e[decltype(i)::value] = fetch<typename Body::template OuterBuffer<decltype(i)::value>>(g, p, m, n, 0, 0); });
    typedef typename Body::Out P;
    const i64* s = g.stride[P::BUFFER];
    typename P::T* at = (typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + m * s[ROLE_M] + n * s[ROLE_N] + l * s[ROLE_L];
    *at = Store<typename P::T>::from(Body::outer(e, g.number) * sum);
    return is_finite(sum);
}

}  // namespace km

// Storage types, loads and stores, and the scalar operations that generated functors spell. Needs no CUDA header.
#pragma once
#include "ptx.cuh"

namespace km {

typedef long long i64;

struct f16 {
    unsigned short bits;
};
struct bf16 {
    unsigned short bits;
};
struct boolean {
    unsigned char bits;
};

// Two neighbours of float16, moved as one.
struct packed2 {
    unsigned bits;
};

template <class A, class B>
struct Same {
    static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
    static constexpr bool value = true;
};

// Up to 16 bytes moved as one access.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
    T v[V];
};

template <int BYTES>
struct Word;
template <>
struct Word<1> { typedef unsigned char type; };
template <>
struct Word<2> { typedef unsigned short type; };
template <>
struct Word<4> { typedef unsigned int type; };
template <>
struct Word<8> { typedef uint2 type; };
template <>
struct Word<16> { typedef uint4 type; };

// A value by the bits of another one of the same size.
template <class To, class From>
KM_DEVICE To bit_cast(const From& from) {
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    union {
        From from;
        To to;
    } both;
    both.from = from;
    return both.to;
}

// Read of memory that the kernel never writes.
template <class T, int V>
KM_DEVICE Pack<T, V> load_pack(const T* at) {
    return bit_cast<Pack<T, V>>(__ldg((const typename Word<sizeof(T) * V>::type*)at));
}
// Read of memory that the kernel writes too, such as shared memory, as one access.
template <class T, int V>
KM_DEVICE Pack<T, V> read_pack(const void* at) {
    return bit_cast<Pack<T, V>>(*(const typename Word<sizeof(T) * V>::type*)at);
}

// Write of a result that this kernel does not read again.
template <class T, int V>
KM_DEVICE void store_pack(T* at, const Pack<T, V>& pack) {
    typedef typename Word<sizeof(T) * V>::type W;
    __stcs((W*)at, bit_cast<W>(pack));
}

template <class C, class T>
KM_DEVICE C convert(T x) {
    return C(x);
}
template <class C>
KM_DEVICE C convert(boolean x) {
    return C(x.bits != 0);
}
template <class C>
KM_DEVICE C convert(f16 x) {
    return C(ptx::f16_to_f32(x.bits));
}
template <class C>
KM_DEVICE C convert(bf16 x) {
    return C(__uint_as_float((unsigned int)x.bits << 16));
}

template <class C>
KM_DEVICE C convert(packed2 x) {
    return __uint_as_float(x.bits);
}

// |a - b| and a + b of pairs of float16, and the sum of the two of a pair.
KM_DEVICE packed2 gap(packed2 a, packed2 b) {
    return {ptx::abs_sub_f16x2(a.bits, b.bits)};
}
KM_DEVICE packed2 plus(packed2 a, packed2 b) {
    return {ptx::add_f16x2(a.bits, b.bits)};
}
KM_DEVICE float joined(packed2 a) {
    return ptx::f16_to_f32(ptx::reduce_add_f16x2(a.bits));
}

// Narrow to a storage type; float64 goes to the half types through float32.
template <class T>
struct Store {
    template <class C>
    static __device__ __forceinline__ T from(C x) { return T(x); }
};
template <>
struct Store<boolean> {
    template <class C>
    static __device__ __forceinline__ boolean from(C x) { return boolean{(unsigned char)(x != C(0))}; }
};
template <>
struct Store<f16> {
    template <class C>
    static __device__ __forceinline__ f16 from(C x) {
        return {ptx::f32_to_f16(float(x))};
    }
};
template <>
struct Store<bf16> {
    template <class C>
    static __device__ __forceinline__ bf16 from(C x) {
        return {ptx::f32_to_bf16(float(x))};
    }
};

template <class C>
KM_DEVICE C infinity();
template <>
__device__ __forceinline__ float infinity<float>() { return __int_as_float(0x7f800000); }
template <>
__device__ __forceinline__ double infinity<double>() { return __longlong_as_double(0x7ff0000000000000ll); }
template <>
__device__ __forceinline__ int infinity<int>() { return 0x7fffffff; }
template <>
__device__ __forceinline__ i64 infinity<i64>() { return 0x7fffffffffffffffll; }
template <>
__device__ __forceinline__ bool infinity<bool>() { return true; }

template <class C>
KM_DEVICE C negative_infinity() { return C(-infinity<C>()); }
template <>
__device__ __forceinline__ int negative_infinity<int>() { return -0x7fffffff - 1; }
template <>
__device__ __forceinline__ i64 negative_infinity<i64>() { return -0x7fffffffffffffffll - 1; }
template <>
__device__ __forceinline__ bool negative_infinity<bool>() { return false; }

template <class C>
KM_DEVICE C not_a_number() { return infinity<C>() - infinity<C>(); }
template <>
__device__ __forceinline__ float not_a_number<float>() { return __int_as_float(0x7fffffff); }
template <>
__device__ __forceinline__ double not_a_number<double>() { return __longlong_as_double(0x7fffffffffffffffll); }

// Extrema that are NaN where an argument is.
template <class C>
KM_DEVICE C min(C a, C b) { return (a < b || a != a) ? a : b; }
template <class C>
KM_DEVICE C max(C a, C b) { return (a > b || a != a) ? a : b; }
template <>
__device__ __forceinline__ float min<float>(float a, float b) {
    return ptx::min_nan(a, b);
}
template <>
__device__ __forceinline__ float max<float>(float a, float b) {
    return ptx::max_nan(a, b);
}

template <class C>
KM_DEVICE C abs(C a) { return a < C(0) ? C(-a) : a; }
template <>
__device__ __forceinline__ float abs<float>(float a) { return fabsf(a); }
template <>
__device__ __forceinline__ double abs<double>(double a) { return fabs(a); }
template <>
__device__ __forceinline__ bool abs<bool>(bool a) { return a; }

template <class C>
KM_DEVICE C sign(C a) { return a != a ? a : C((a > C(0)) - (a < C(0))); }
template <>
__device__ __forceinline__ float sign<float>(float a) { return fabsf(a) > 0.0f ? ::copysignf(1.0f, a) : a; }
// a times the sign of d by its bit; wrong for d that is 0 or NaN, which another factor must show.
KM_DEVICE float with_sign(float a, float d) {
    return __uint_as_float(__float_as_uint(a) ^ (__float_as_uint(d) & 0x80000000u));
}
// 1 for positive d, 0 for negative and 1/2 for 0, for d that is 0 or normal.
KM_DEVICE float above(float d) {
    return ptx::fma_sat_step(d);
}
template <class C>
KM_DEVICE C copysign(C a, C b) { return (b < C(0)) ? C(-abs(a)) : abs(a); }
template <>
__device__ __forceinline__ float copysign<float>(float a, float b) { return ::copysignf(a, b); }
template <>
__device__ __forceinline__ double copysign<double>(double a, double b) { return ::copysign(a, b); }

// sin and cos in float32: the argument less the nearest multiple of pi, or the nearest odd one of pi / 2, which is kept in three
// pieces, and a polynomial on what is left; within 2 units in the last place. Large arguments need more digits of pi: a call.
constexpr float CYCLES_LIMIT = 1e5f;
namespace apart {
__device__ __noinline__ float large_sine(float a) { return ::sinf(a); }
__device__ __noinline__ float large_cosine(float a) { return ::cosf(a); }
}  // namespace apart
KM_DEVICE float less_cycles(float a, float cycles) {
    return fmaf(cycles, -1.24467443e-13f, fmaf(cycles, -6.27832833e-07f, fmaf(cycles, -3.14159203f, a)));
}
KM_DEVICE float sine_within_cycle(float r) {
    const float s = r * r;
    const float p = fmaf(fmaf(fmaf(2.60576576e-06f, s, -1.98095964e-04f), s, 8.33306648e-03f), s, -0.166666597f);
    return fmaf(fmaf(p, s, 0.0f), r, r);
}
// Of arguments within the limit; one that is not makes `large` true, and the result is of no use.
KM_DEVICE float sine_within(float a, bool& large) {
    large |= fabsf(a) > CYCLES_LIMIT;
    const float cycles = fmaf(a, 0.318309886f, 12582912.0f);  // 1.5 2^23: the last bit is 1
    const float r = sine_within_cycle(less_cycles(a, cycles - 12582912.0f));
    return __uint_as_float(__float_as_uint(r) ^ (__float_as_uint(cycles) << 31));
}
KM_DEVICE float cosine_within(float a, bool& large) {
    large |= fabsf(a) > CYCLES_LIMIT;
    const unsigned cycles = __float_as_uint(__fmaf_rd(a, 0.318309886f, 6291456.0f)) | 1;  // 1.5 2^22: the last bit is 1 / 2
    const float r = sine_within_cycle(less_cycles(a, __uint_as_float(cycles) - 6291456.0f));
    return __uint_as_float(__float_as_uint(r) ^ (~cycles << 30 & 0x80000000u));
}
KM_DEVICE float sine(float a) {
    bool large = false;
    const float found = sine_within(a, large);
    return large ? apart::large_sine(a) : found;
}
KM_DEVICE float cosine(float a) {
    bool large = false;
    const float found = cosine_within(a, large);
    return large ? apart::large_cosine(a) : found;
}

#define KM_FUNCTION(name, single, twice)            \
    KM_DEVICE float name(float a) { return single; } \
    KM_DEVICE double name(double a) { return twice; }
KM_FUNCTION(sqrt, ::sqrtf(a), ::sqrt(a))
KM_FUNCTION(rsqrt, ::rsqrtf(a), ::rsqrt(a))
KM_FUNCTION(rcp, 1.0f / a, 1.0 / a)
KM_FUNCTION(exp, ::expf(a), ::exp(a))
KM_FUNCTION(exp2, ::exp2f(a), ::exp2(a))
KM_FUNCTION(expm1, ::expm1f(a), ::expm1(a))
KM_FUNCTION(log, ::logf(a), ::log(a))
KM_FUNCTION(log2, ::log2f(a), ::log2(a))
KM_FUNCTION(log1p, ::log1pf(a), ::log1p(a))
KM_FUNCTION(sin, sine(a), ::sin(a))
KM_FUNCTION(cos, cosine(a), ::cos(a))
KM_FUNCTION(tan, ::tanf(a), ::tan(a))
KM_FUNCTION(acos, ::acosf(a), ::acos(a))
KM_FUNCTION(tanh, ::tanhf(a), ::tanh(a))
KM_FUNCTION(erf, ::erff(a), ::erf(a))
KM_FUNCTION(floor, ::floorf(a), ::floor(a))
#undef KM_FUNCTION

template <class C>
KM_DEVICE C sigmoid(C a) {
    const C e = exp(-abs(a));
    return (a < C(0) ? e : C(1)) / (C(1) + e);
}

KM_DEVICE float pow(float a, float b) { return ::powf(a, b); }
KM_DEVICE double pow(double a, double b) { return ::pow(a, b); }

// Long functions for the end of a tile, called instead of put in place for every cell: a root of 16 cells is 50 KB of
// code, which drives the inner loop out of the instruction cache.
namespace apart {
#define KM_APART(name)                                                                   \
    __device__ __noinline__ float name(float a) { return km::name(a); }                   \
    __device__ __noinline__ double name(double a) { return km::name(a); }
KM_APART(sin)
KM_APART(cos)
KM_APART(tan)
KM_APART(acos)
KM_APART(erf)
#undef KM_APART
// Roots of normal numbers through the special function unit, within 4 units in the last place as pow itself.
__device__ __noinline__ float pow(float a, float b) {
    const unsigned bits = __float_as_uint(a);
    if (bits - 0x01000000u >= 0x7e000000u || !(fabsf(b) <= 1.0f)) return km::pow(a, b);
    // bits of 2^23 + n and of 1.5 2^23 + n end in n, which stands for conversions
    const float e = __uint_as_float(bits >> 23 | 0x4b000000u) - 8388735.0f, shifted = fmaf(b, e, 12582912.0f);
    float r = ptx::lg2_approx_ftz(__uint_as_float((bits & 0x007fffffu) | 0x3f800000u));
    r = fmaf(b, r, fmaf(b, e, 12582912.0f - shifted));
    r = ptx::ex2_approx_ftz(r);
    return r * __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
}
__device__ __noinline__ double pow(double a, double b) { return km::pow(a, b); }
}  // namespace apart

// Powers of a number that is not negative, for the inner loop, in float32. The root is within 2^-23 relative. The
// general power goes through the special function unit: within 2e-6 relative while |log2 a| <= 24, less precise in
// proportion beyond; powers too small for a normal number are 0. a = 0, infinity and NaN are as in pow.
KM_DEVICE float root_fast(float a) {
    return ptx::sqrt_approx(a);
}
KM_DEVICE float power_fast(float a, float b) {
    float r = ptx::lg2_approx(a);
    r = b == 0.0f ? 0.0f : r * b;
    return ptx::ex2_approx_ftz(r);
}
// For a factor that vanishes with a: subnormal a counts as 0.
KM_DEVICE float root_factor(float a) {
    return ptx::sqrt_approx_ftz(a);
}

// |d|^p for d that is 0 or a normal number, p not 0: through the special function unit, and without it. There d = c (1 + r)
// with c the middle of one of four intervals of its octave. The table holds c^p and 1 / c for each exponent and interval;
// the polynomial, 1 at r = 0, is near (1 + r)^p.
KM_DEVICE float power_unit(float d, float p) {
    const float r = ptx::lg2_approx_ftz(fabsf(d)) * p;
    return ptx::ex2_approx_ftz(r);
}
// Of the slopes, lowest first.
KM_DEVICE float slopes_at(float, float q) { return q; }
template <class... Q>
KM_DEVICE float slopes_at(float r, float q, Q... more) {
    return fmaf(slopes_at(r, more...), r, q);
}
template <class... Q>
KM_DEVICE float power_table(float d, const float* scale, Q... slopes) {
    const float2 at = *(const float2*)((const char*)scale + ((__float_as_uint(d) >> 18) & 0x1ff8u));
    const float r = fmaf(fabsf(d), at.y, -1.0f);
    return at.x * fmaf(slopes_at(r, slopes...), r, 1.0f);
}
// 2^(p e) for the biased exponent e.
KM_DEVICE float power_of_exponent(float p, int biased) {
    if (biased == 0) return p > 0.0f ? 0.0f : __int_as_float(0x7f800000);
    const float e = (float)(biased - 127), whole = p * e, rest = fmaf(p, e, -whole), integral = rintf(whole);
    return ldexpf(exp2f((whole - integral) + rest), (int)integral);
}
// The four entries of an octave whose power is size; s0 to s3 are those of the middles in [1, 2).
KM_DEVICE void fill_octave(float* scale, int biased, float size, float s0, float s1, float s2, float s3) {
    const float of[4] = {s0, s1, s2, s3};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        scale[8 * biased + 2 * i] = size * of[i];
        scale[8 * biased + 2 * i + 1] = biased ? ldexpf(1.0f / (1.125f + 0.25f * (float)i), 127 - biased) : 0.0f;
    }
}
// Differences of such numbers are finite, and 0 or normal: each is 0 or within 2^-102 to 2^126.
KM_DEVICE bool is_moderate(float a) {
    const unsigned size = __float_as_uint(a) & 0x7fffffffu;
    return (size == 0) | (size - 0x0c800000u < 0x7e800000u - 0x0c800000u);
}
KM_DEVICE bool is_finite(float a) { return fabsf(a) < __int_as_float(0x7f800000); }

template <class C>
KM_DEVICE C pow_integer(C a, C b) {
    C result = C(b >= C(0) || a == C(1));
    for (; b > C(0); b = C(b / 2)) {
        if (b % 2) result = C(result * a);
        a = C(a * a);
    }
    return result;
}
KM_DEVICE int pow(int a, int b) { return pow_integer(a, b); }
KM_DEVICE i64 pow(i64 a, i64 b) { return pow_integer(a, b); }

}  // namespace km

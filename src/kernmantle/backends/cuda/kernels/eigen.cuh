// Eigenvalues and vectors of symmetric matrices up to order 32. Orders 1 to 3: a thread a matrix, rotations in registers.
// Above: a column a lane, one-sided Jacobi rotations of a + shift I, which is positive definite, so that its columns
// become eigenvectors times eigenvalues (Hestenes 1958); eigenvalues are Rayleigh quotients with the matrix itself.
#pragma once
#include "scalar.cuh"

namespace km {

// Strides are those of items, rows and columns; the lower triangle of a is read. v may be the memory of a.
struct EigenArguments {
    const void* a;
    void* w;
    void* v;
    int* info;
    i64 count, order;
    i64 a_stride[3], v_stride[3];
};

template <class T>
struct Unit {
    static constexpr T eps = T(1.1920929e-7);
    static constexpr int most = 125;
};
template <>
struct Unit<double> {
    static constexpr double eps = 2.220446049250313e-16;
    static constexpr int most = 1021;
};

// Tangent of the angle that makes two columns, or a row and a column, with products p, q and d orthogonal.
template <class T>
KM_DEVICE T tangent(T p, T q, T d) {
    const T ratio = (q - p) / (T(2) * d);
    const T root = T(fabs(ratio)) + sqrt(fma(ratio, ratio, T(1)));
    return (ratio < T(0) ? T(-1) : T(1)) / root;
}

// Exponent of the power of two that brings the largest entry to the order of one.
template <class T>
KM_DEVICE int size_of(T top) {
    if (!(top > T(0))) return 0;
    const int e = ilogb(top);
    return e > Unit<T>::most ? Unit<T>::most : e < -Unit<T>::most ? -Unit<T>::most : e;
}

// One thread's matrix of order N <= 3.
template <class T, int N>
KM_DEVICE void eigen_by_thread(const EigenArguments& g, i64 item, bool vectors) {
    const T* from = (const T*)g.a + item * g.a_stride[0];
    T a[N][N], v[N][N], top = T(0);
    bool bad = false;
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j <= i; ++j) {
            const T entry = from[i * g.a_stride[1] + j * g.a_stride[2]];
            bad |= !(entry - entry == T(0));
            top = fmax(top, T(fabs(entry)));
            a[i][j] = a[j][i] = entry;
        }
    const int size = size_of(top);
    const T down = ldexp(T(1), -size), up = ldexp(T(1), size), least = Unit<T>::eps * T(0.0625);
#pragma unroll
    for (int i = 0; i < N; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j) a[i][j] *= down, v[i][j] = T(i == j);
    bool done = bad;
    for (int sweep = 0; sweep < 12 && !done; ++sweep) {
        done = true;
#pragma unroll
        for (int p = 0; p < N; ++p)
#pragma unroll
            for (int q = p + 1; q < N; ++q) {
                const T d = a[q][p];
                if (!(T(fabs(d)) > least)) continue;
                done = false;
                const T t = tangent(a[p][p], a[q][q], d), c = rsqrt(fma(t, t, T(1))), s = c * t;
                a[p][p] -= t * d;
                a[q][q] += t * d;
                a[p][q] = a[q][p] = T(0);
#pragma unroll
                for (int r = 0; r < N; ++r) {
                    if (r != p && r != q) {
                        const T x = a[r][p], y = a[r][q];
                        a[r][p] = a[p][r] = c * x - s * y;
                        a[r][q] = a[q][r] = s * x + c * y;
                    }
                    const T x = v[r][p], y = v[r][q];
                    v[r][p] = c * x - s * y;
                    v[r][q] = s * x + c * y;
                }
            }
    }
    T* w = (T*)g.w + item * N;
    T* to = (T*)g.v + item * g.v_stride[0];
    const T nan = T(__longlong_as_double(-1));
#pragma unroll
    for (int j = 0; j < N; ++j) {
        int rank = 0;
#pragma unroll
        for (int i = 0; i < N; ++i) rank += a[i][i] < a[j][j] || (a[i][i] == a[j][j] && i < j);
        if (bad) rank = j;
        w[rank] = bad ? nan : a[j][j] * up;
        if (vectors)
#pragma unroll
            for (int i = 0; i < N; ++i) to[i * g.v_stride[1] + rank * g.v_stride[2]] = bad ? nan : v[i][j];
    }
    g.info[item] = bad ? N + 1 : done ? 0 : N;
}

template <class T, int WIDTH>
struct Columns {
    static constexpr int SWEEPS = 20;
    T own[WIDTH];
    T square;
    int lane;

    template <class V>
    static KM_DEVICE V across(V value, int mask) {
        return __shfl_xor_sync(0xffffffffu, value, mask, WIDTH);
    }
    static KM_DEVICE T sum(T value) {
#pragma unroll
        for (int mask = WIDTH / 2; mask; mask /= 2) value += across(value, mask);
        return value;
    }
    static KM_DEVICE T largest(T value) {
#pragma unroll
        for (int mask = WIDTH / 2; mask; mask /= 2) value = fmax(value, across(value, mask));
        return value;
    }

    KM_DEVICE T length() const {
        T parts[4] = {T(0), T(0), T(0), T(0)};
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) parts[i % 4] = fma(own[i], own[i], parts[i % 4]);
        return (parts[0] + parts[1]) + (parts[2] + parts[3]);
    }

    // All columns with one another, by exclusive or of lanes. Cosines above ENOUGH ask for another sweep; it is twice
    // what rounding of their sums leaves. Those above WORST at the last sweep are a failure.
    static constexpr int ENOUGH = WIDTH < 32 ? 6 : 8, WORST = 4 * WIDTH;
    KM_DEVICE bool sweep(bool& failed) {
        square = length();
        bool large = false;
        failed = false;
#pragma unroll 1
        for (int mask = 1; mask < WIDTH; ++mask) {
            T other[WIDTH], parts[4] = {T(0), T(0), T(0), T(0)};
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) {
                other[i] = across(own[i], mask);
                parts[i % 4] = fma(own[i], other[i], parts[i % 4]);
            }
            const T dot = (parts[0] + parts[1]) + (parts[2] + parts[3]);
            const T theirs = across(square, mask);
            const bool first = lane < (lane ^ mask);
            const T p = first ? square : theirs, q = first ? theirs : square;
            const T cosine = dot * dot, scale = p * q;
            const bool rotates = cosine > Unit<T>::eps * Unit<T>::eps * scale;
            large |= cosine > T(ENOUGH * ENOUGH) * Unit<T>::eps * Unit<T>::eps * scale;
            failed |= !(cosine <= T(WORST * WORST) * Unit<T>::eps * Unit<T>::eps * scale);
            const T t = rotates ? tangent(p, q, dot) : T(0), c = rsqrt(fma(t, t, T(1)));
            const T s = first ? -c * t : c * t;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) own[i] = fma(s, other[i], c * own[i]);
            square = fma(first ? -t : t, dot, square);
        }
        return __any_sync(0xffffffffu, large);
    }
};

// A group of WIDTH lanes: one matrix, order <= WIDTH; absent columns are those of the shift.
template <class T, int WIDTH>
KM_DEVICE void eigen_by_lanes(const EigenArguments& g, i64 item, bool here, bool vectors) {
    typedef Columns<T, WIDTH> C;
    const int order = int(g.order);
    const T* from = (const T*)g.a + item * g.a_stride[0];
    C c;
    c.lane = threadIdx.x % WIDTH;
    const bool mine = here && c.lane < order;
    T top = T(0), row = T(0);
    bool bad = false;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const int low = max(i, c.lane), left = min(i, c.lane);
        const T entry = mine && i < order ? from[low * g.a_stride[1] + left * g.a_stride[2]] : T(0);
        bad |= !(entry - entry == T(0));
        top = fmax(top, T(fabs(entry)));
        c.own[i] = entry;
    }
    const int size = size_of(C::largest(top));
    const T down = ldexp(T(1), -size), up = ldexp(T(1), size);
    bad = C::largest(T(bad)) > T(0);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) c.own[i] = bad ? T(0) : c.own[i] * down, row += T(fabs(c.own[i]));
    // Both bound the largest eigenvalue; a quarter more keeps every column away from zero.
    const T bound = fmin(C::largest(row), T(sqrt(C::sum(c.length()))));
    const T shift = bound > T(0) ? T(1.25) * bound : T(1);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) c.own[i] += i == c.lane ? shift : T(0);
    bool going = true, failed = false;
    for (int sweep = 0; sweep < C::SWEEPS && going; ++sweep) going = c.sweep(failed);
    failed = C::largest(T(failed)) > T(0);
    const T scale = T(1) / sqrt(c.length());
    T value = T(0);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) c.own[i] *= scale;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        if (i < order && !bad) {
            T inner = T(0);
#pragma unroll
            for (int j = 0; j < i; ++j) inner = fma(from[i * g.a_stride[1] + j * g.a_stride[2]] * down, c.own[j], inner);
            const T entry = from[i * g.a_stride[1] + i * g.a_stride[2]] * down;
            value = fma(c.own[i], fma(T(2), inner, entry * c.own[i]), value);
        }
    }
    int rank = 0;
#pragma unroll 1
    for (int j = 0; j < order; ++j) {
        const T other = __shfl_sync(0xffffffffu, value, j, WIDTH);
        rank += other < value || (other == value && j < c.lane);
    }
    __syncwarp();
    const T nan = T(__longlong_as_double(-1));
    if (mine) {
        ((T*)g.w)[item * order + rank] = bad ? nan : value * up;
        if (c.lane == 0) g.info[item] = bad ? order + 1 : failed ? order : 0;
        T* to = (T*)g.v + item * g.v_stride[0] + rank * g.v_stride[2];
        if (vectors)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i)
                if (i < order) to[i * g.v_stride[1]] = bad ? nan : c.own[i];
    }
    __syncwarp();
}

template <class T, int WIDTH, int THREADS>
KM_DEVICE void eigenpairs(const EigenArguments& g, bool vectors) {
    if constexpr (WIDTH < 4) {
        for (i64 item = i64(blockIdx.x) * THREADS + threadIdx.x; item < g.count; item += i64(gridDim.x) * THREADS)
            eigen_by_thread<T, WIDTH>(g, item, vectors);
    } else {
        constexpr int PER_WARP = 32 / WIDTH;
        const i64 warp = (i64(blockIdx.x) * THREADS + threadIdx.x) / 32, warps = i64(gridDim.x) * THREADS / 32;
        const int group = threadIdx.x % 32 / WIDTH;
        for (i64 start = warp * PER_WARP; start < g.count; start += warps * PER_WARP) {
            const bool here = start + group < g.count;
            eigen_by_lanes<T, WIDTH>(g, here ? start + group : start, here, vectors);
        }
    }
}

}  // namespace km

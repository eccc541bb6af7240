// Eigenvalues and vectors of symmetric matrices of order 33 to 64: a block a matrix, whose columns lie in shared memory,
// one-sided Jacobi rotations as in eigen.cuh. In a round all columns meet in pairs (a tournament), eight lanes a pair.
#pragma once
#include "eigen.cuh"
#include "reduce.cuh"

namespace km {

template <class T, int WIDTH>
struct Tournament {
    static constexpr int LANES = 8, THREADS = 4 * WIDTH, ROWS = WIDTH / LANES, GROUPS = WIDTH / 2, SWEEPS = 20;
    // Eight more than a multiple of 32 words: columns beside each other, which the pairs of a warp have, are in banks of
    // their own.
    static constexpr int STRIDE = WIDTH <= 40 ? 40 : 72;
    static constexpr int ENOUGH = 8, WORST = 4 * WIDTH;
    T columns[WIDTH * STRIDE], square[WIDTH], part[THREADS / 32];
    int order_of[WIDTH];

    static KM_DEVICE T sum(T value) {
        return warp_reduce<LANES / 2>(value, [](T a, T b) { return a + b; });
    }

    // The largest, or the sum, over all threads.
    KM_DEVICE T over_block(T value, bool largest) {
        value = warp_reduce(value, [largest](T a, T b) { return largest ? fmax(a, b) : a + b; });
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
        __syncthreads();
        value = part[0];
        for (int i = 1; i < THREADS / 32; ++i) value = largest ? fmax(value, part[i]) : value + part[i];
        __syncthreads();
        return value;
    }

    // Squared lengths of a group's two columns.
    KM_DEVICE void measure(int group, int lane) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = group + half * GROUPS;
            T total = T(0);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const T x = columns[column * STRIDE + lane + LANES * i];
                total = fma(x, x, total);
            }
            total = sum(total);
            if (lane == 0) square[column] = total;
        }
        __syncthreads();
    }

    // All columns with one another once. Cosines above ENOUGH ask for another sweep, those above WORST are a failure.
    KM_DEVICE bool sweep(int order, bool& failed) {
        const int even = order + order % 2, group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
        const bool active = group < even / 2;
        bool large = false;
        failed = false;
        measure(group, lane);
#pragma unroll 1
        for (int round = 0; round < even - 1; ++round) {
            const int up = round + group, down = round - group;
            int a = up < even - 1 ? up : up - even + 1, b = down < 0 ? down + even - 1 : down;
            if (group == 0) b = even - 1;
            if (!active) a = 2 * group, b = a + 1;  // columns that no other group has
            const T p = square[a], q = square[b];
            T x[ROWS], y[ROWS], dot = T(0);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                x[i] = columns[a * STRIDE + lane + LANES * i];
                y[i] = columns[b * STRIDE + lane + LANES * i];
                dot = fma(x[i], y[i], dot);
            }
            dot = sum(dot);
            __syncwarp();  // one lane replaces the lengths that all have read
            const T cosine = dot * dot, scale = p * q;
            const bool rotates = active && cosine > Unit<T>::eps * Unit<T>::eps * scale;
            large |= active && cosine > T(ENOUGH * ENOUGH) * Unit<T>::eps * Unit<T>::eps * scale;
            failed |= active && !(cosine <= T(WORST * WORST) * Unit<T>::eps * Unit<T>::eps * scale);
            if (rotates) {
                const T t = tangent(p, q, dot), c = rsqrt(fma(t, t, T(1))), s = c * t;
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    columns[a * STRIDE + lane + LANES * i] = fma(-s, y[i], c * x[i]);
                    columns[b * STRIDE + lane + LANES * i] = fma(s, x[i], c * y[i]);
                }
                if (lane == 0) {
                    square[a] = fma(-t, dot, p);
                    square[b] = fma(t, dot, q);
                }
            }
            __syncthreads();
        }
        return __syncthreads_or(large);
    }

    // Rayleigh quotients, with the matrix itself, of a group's two columns, which become unit vectors.
    KM_DEVICE void quotients(const T* from, const EigenArguments& g, T down, bool bad) {
        const int order = int(g.order), group = threadIdx.x / LANES, lane = threadIdx.x % LANES;
        measure(group, lane);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            T* column = columns + (group + half * GROUPS) * STRIDE;
            const T scale = T(1) / sqrt(square[group + half * GROUPS]);
            for (int i = lane; i < WIDTH; i += LANES) column[i] *= scale;
        }
        __syncthreads();
        const T *first = columns + group * STRIDE, *second = first + GROUPS * STRIDE;
        T one = T(0), two = T(0);
        for (int i = lane; i < order && !bad; i += LANES) {
            T inner = T(0), other = T(0);
            const T* row = from + i * g.a_stride[1];
            for (int j = 0; j < i; ++j) {
                const T entry = row[j * g.a_stride[2]] * down;
                inner = fma(entry, first[j], inner);
                other = fma(entry, second[j], other);
            }
            const T entry = row[i * g.a_stride[2]] * down;
            one = fma(first[i], fma(T(2), inner, entry * first[i]), one);
            two = fma(second[i], fma(T(2), other, entry * second[i]), two);
        }
        one = sum(one);
        two = sum(two);
        __syncthreads();
        if (lane == 0) square[group] = one, square[group + GROUPS] = two;
        __syncthreads();
    }

    KM_DEVICE void solve(const EigenArguments& g, i64 item, bool vectors) {
        const int order = int(g.order), thread = threadIdx.x, group = thread / LANES, lane = thread % LANES;
        const T* from = (const T*)g.a + item * g.a_stride[0];
        T top = T(0);
        bool bad = false;
        for (int e = thread; e < WIDTH * WIDTH; e += THREADS) {
            const int column = e / WIDTH, row = e % WIDTH, low = max(column, row), left = min(column, row);
            const T entry = low < order ? from[low * g.a_stride[1] + left * g.a_stride[2]] : T(0);
            bad |= !(entry - entry == T(0));
            top = fmax(top, T(fabs(entry)));
            columns[column * STRIDE + row] = entry;
        }
        bad = __syncthreads_or(bad);
        const int size = size_of(bad ? T(0) : over_block(top, true));
        const T down = ldexp(T(1), -size), up = ldexp(T(1), size);
        T longest = T(0), squares = T(0);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            T* column = columns + (group + half * GROUPS) * STRIDE;
            T total = T(0);
            for (int i = lane; i < WIDTH; i += LANES) {
                column[i] = bad ? T(0) : column[i] * down;
                total += T(fabs(column[i]));
                squares = fma(column[i], column[i], squares);
            }
            longest = fmax(longest, sum(total));
        }
        // Both bound the largest eigenvalue; a quarter more keeps every column away from zero.
        longest = over_block(longest, true);
        const T bound = fmin(longest, T(sqrt(over_block(squares, false))));
        const T shift = bound > T(0) ? T(1.25) * bound : T(1);
        if (thread < WIDTH) columns[thread * STRIDE + thread] += shift;
        __syncthreads();
        bool going = true, failed = false;
        for (int count = 0; count < SWEEPS && going; ++count) going = sweep(order, failed);
        failed = __syncthreads_or(failed);
        quotients(from, g, down, bad);
        const T nan = T(__longlong_as_double(-1));
        if (thread < order) {
            const T value = square[thread];
            int rank = 0;
            for (int j = 0; j < order; ++j) rank += square[j] < value || (square[j] == value && j < thread);
            if (bad) rank = thread;
            order_of[rank] = thread;
            ((T*)g.w)[item * order + rank] = bad ? nan : value * up;
            if (thread == 0) g.info[item] = bad ? order + 1 : failed ? order : 0;
        }
        __syncthreads();
        T* to = (T*)g.v + item * g.v_stride[0];
        for (int e = thread; vectors && e < order * order; e += THREADS) {
            const int row = e / order, rank = e % order;
            to[row * g.v_stride[1] + rank * g.v_stride[2]] = bad ? nan : columns[order_of[rank] * STRIDE + row];
        }
        __syncthreads();
    }
};

template <class T, int WIDTH>
KM_DEVICE void eigenpairs_by_block(const EigenArguments& g, bool vectors) {
    __shared__ Tournament<T, WIDTH> own;
    for (i64 item = blockIdx.x; item < g.count; item += gridDim.x) own.solve(g, item, vectors);
}

}  // namespace km

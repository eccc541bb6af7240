// Linear systems of at most 32 unknowns: WIDTH lanes solve one, each has a row of the matrix, which lies in shared memory.
#pragma once
#include "scalar.cuh"

namespace km {

// Strides are those of items, rows and columns.
struct SystemArguments {
    const void* a;
    void* factor;
    int* pivots;
    int* info;
    const void* b;
    void* x;
    i64 count, order, columns;
    i64 a_stride[3], factor_stride[3], b_stride[3], x_stride[3];
};

template <class T, int WIDTH>
struct System {
    static constexpr int PITCH = 33;  // neither rows nor columns meet in a bank
    T* first;
    int order, lane, origin, pivot, failed;

    template <class V>
    static KM_DEVICE V of(V value, int source) {
        return __shfl_sync(0xffffffffu, value, source, WIDTH);
    }

    KM_DEVICE T& at(int row, int column) const { return first[column * PITCH + row]; }

    KM_DEVICE void read(const T* from, bool here, i64 down, i64 across) const {
        constexpr int AT_ONCE = 4;  // on their way before the first of them is written
        for (int begin = 0; begin < order; begin += AT_ONCE) {
            T part[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const int j = begin + i;
                part[i] = here && lane < order && j < order ? from[lane * down + j * across] : T(lane == j);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) at(lane, begin + i) = part[i];
        }
        __syncwarp();
    }

    KM_DEVICE void write(T* to, i64 down, i64 across, bool lower_only) const {
        for (int j = 0; j < order; ++j)
            if (lane < order) to[lane * down + j * across] = j <= lane || !lower_only ? at(lane, j) : T(0);
    }

    // L on and below the diagonal; nothing above it is of use or written. A column takes all columns before it at once, so that
    // nothing is written between what is read.
    KM_DEVICE void cholesky() {
        for (int k = 0; k < order; ++k) {
            T rest = at(lane, k);
#pragma unroll 4
            for (int j = 0; j < k; ++j) rest -= at(lane, j) * at(k, j);
            const T square = of(rest, k);
            if (!(square > 0) && !failed) failed = k + 1;
            const T root = sqrt(square), own = (lane > k && lane < order ? rest : T(1)) / root;  // dividing 0 takes longer
            __syncwarp();
            if (lane >= k) at(lane, k) = lane == k ? root : own;
            __syncwarp();
        }
    }

    // U on and above the diagonal, L below it, whose diagonal is 1; the first of the largest entries is the pivot.
    KM_DEVICE void lu() {
        for (int k = 0; k < order; ++k) {
            const T entry = at(lane, k);
            T size = lane < k || lane >= order ? T(-1) : entry == entry ? T(fabs(entry)) : T(0);
            int best = lane;
#pragma unroll
            for (int apart = WIDTH / 2; apart; apart /= 2) {
                const T other = __shfl_xor_sync(0xffffffffu, size, apart, WIDTH);
                const int position = __shfl_xor_sync(0xffffffffu, best, apart, WIDTH);
                if (other > size || (other == size && position < best)) size = other, best = position;
            }
            origin = of(origin, lane == k ? best : lane == best ? k : lane);
            if (lane == k) pivot = best + 1;
            __syncwarp();
            if (lane < order) {
                const T swapped = at(k, lane);
                at(k, lane) = at(best, lane);
                at(best, lane) = swapped;
            }
            __syncwarp();
            const T head = at(k, k);
            if (head == 0 && !failed) failed = k + 1;
            if (lane > k && lane < order) {
                const T own = head == 0 ? at(lane, k) : at(lane, k) / head;
                at(lane, k) = own;
                int j = k + 1;
                for (; j + 4 <= order; j += 4) {
                    T mine[4], above[4];  // read before the first of them is written
#pragma unroll
                    for (int i = 0; i < 4; ++i) mine[i] = at(lane, j + i), above[i] = at(k, j + i);
#pragma unroll
                    for (int i = 0; i < 4; ++i) at(lane, j + i) = mine[i] - own * above[i];
                }
                for (; j < order; ++j) at(lane, j) -= own * at(k, j);
            }
            __syncwarp();
        }
    }

    KM_DEVICE void exchange(const int* pivots) {
        for (int k = 0; k < order; ++k) {
            const int other = pivots[k] - 1;
            origin = of(origin, lane == k ? other : lane == other ? k : lane);
        }
    }

    // A triangle from the top and one from the bottom, each as it lies or, ACROSS, as its transpose.
    template <bool DOWN, bool UNIT, bool ACROSS>
    KM_DEVICE T triangle(T x) const {
        const T own = UNIT || lane >= order ? T(1) : at(lane, lane);
#pragma unroll 2
        for (int step = 0; step < order; ++step) {
            const int k = DOWN ? step : order - 1 - step;
            const T entry = ACROSS ? at(k, lane) : at(lane, k), done = of(UNIT ? x : (lane == k ? x : T(1)) / own, k);
            x = lane == k ? done : (DOWN ? lane > k : lane < k) ? x - entry * done : x;
        }
        return x;
    }
};

template <class T, int WIDTH, int THREADS, bool PIVOTED, bool TRANSPOSED, bool FACTORS, bool SOLVES>
__device__ __forceinline__ void systems(const SystemArguments& g) {
    typedef System<T, WIDTH> S;
    __shared__ T store[THREADS / 32][WIDTH * S::PITCH];
    constexpr int PER_WARP = 32 / WIDTH;
    const i64 warp = (i64(blockIdx.x) * THREADS + threadIdx.x) / 32, warps = i64(gridDim.x) * THREADS / 32;
    const int lane = threadIdx.x % WIDTH, group = threadIdx.x % 32 / WIDTH;
    for (i64 start = warp * PER_WARP; start < g.count; start += warps * PER_WARP) {
        const bool here = start + group < g.count;
        const i64 item = here ? start + group : start;
        S s{store[threadIdx.x / 32] + group * WIDTH, int(g.order), lane, lane, 0, 0};
        s.read((const T*)g.a + item * g.a_stride[0], here, g.a_stride[1], g.a_stride[2]);
        if constexpr (FACTORS) {
            if constexpr (PIVOTED) s.lu();
            else s.cholesky();
            if (here && lane == 0) g.info[item] = s.failed;
            if (here && g.factor)
                s.write((T*)g.factor + item * g.factor_stride[0], g.factor_stride[1], g.factor_stride[2], !PIVOTED);
            if (PIVOTED && here && g.pivots && lane < s.order) g.pivots[item * g.order + lane] = s.pivot;
        } else if constexpr (PIVOTED) {
            s.exchange(g.pivots + item * g.order);
        }
        if constexpr (SOLVES) {
            const T* b = (const T*)g.b + item * g.b_stride[0];
            T* to = (T*)g.x + item * g.x_stride[0];
            const i64 source = TRANSPOSED ? lane : s.origin, target = TRANSPOSED ? s.origin : lane;
            for (i64 c = 0; c < g.columns; ++c) {
                T x = here && lane < s.order ? b[source * g.b_stride[1] + c * g.b_stride[2]] : T(0);
                x = s.template triangle<true, PIVOTED && !TRANSPOSED, TRANSPOSED>(x);
                x = s.template triangle<false, PIVOTED && TRANSPOSED, TRANSPOSED || !PIVOTED>(x);
                if (s.failed) x = T(__longlong_as_double(-1));
                if (here && lane < s.order) to[target * g.x_stride[1] + c * g.x_stride[2]] = x;
            }
        }
        __syncwarp();
    }
}

}  // namespace km

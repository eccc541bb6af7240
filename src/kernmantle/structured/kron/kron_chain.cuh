// All gradients of neighbouring factors of a Kronecker product in one pass: a tile has whole rows of x and of the gradient v in shared
// memory, and all that comes between. x has no factor applied, v all of them.
//
// x goes through the factors from the first axis on; what it is before each axis stays. Then v comes back from the last axis on: its outer
// products with what x was there are added to the axis' sums, on tensor cores, and the factor's transpose is applied, by additions. A
// value of stage s has the factors of the first s axes applied: rows of a factor along those, columns along the others.
//
// An axis may have the product of several factors, whose gradients are found from that of the product once a block is done. Sums of float32
// are of two parts of 11 bits each and three products; halves are exact in one.
#pragma once
#include "kron_separate.cuh"
#include "split_hi_lo.cuh"

namespace km {

// B: the type T, how many AXES, rows(axis) and columns(axis) of each, pitch(stage, axis) from entry to entry of an axis in shared memory,
// slot(n) where slots begin, how many ITEMS and ACROSS columns beside the axes a tile has, whether there are COLUMNS, how many neighbours VECTOR a copy takes, THREADS, and
// whether places of fibers are LISTED in shared memory, and all axes SQUARE.
template <class B>
struct KronChain {
    typedef typename B::T T;
    static constexpr int AXES = B::AXES, THREADS = B::THREADS, WARPS = THREADS / 32, ITEMS = B::ITEMS, ACROSS = B::ACROSS;
    static constexpr bool EXACT = sizeof(T) == 2;
    static constexpr int LISTS = B::SQUARE ? 1 : 2;

    struct Arguments : KronPass<T> {
        const unsigned short* listed;
    };

    static __device__ constexpr int extent(int stage, int axis) { return axis < stage ? B::rows(axis) : B::columns(axis); }
    static __device__ constexpr int run(int stage) {
        int found = 1;
        for (int axis = 0; axis < AXES; ++axis) found *= extent(stage, axis);
        return found;
    }
    static __device__ constexpr int item_pitch(int stage) { return B::pitch(stage, 0) * extent(stage, 0); }
    // Fibers along an axis in a tile.
    static __device__ constexpr int fibers(int stage, int axis) { return ITEMS * ACROSS * (run(stage) / extent(stage, axis)); }

    // Numbers of a value of a stage in shared memory, and of the factors of an axis or its sums there.
    static __device__ constexpr int numbers(int stage) { return (ITEMS * item_pitch(stage) + 7) / 8 * 8; }
    static __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }
    static __device__ constexpr int table(int axis) { return (B::rows(axis) + 7) / 8 * ((B::columns(axis) + 7) / 8) * 32 * (EXACT ? 2 : 4); }
    static __device__ constexpr int sums(int axis) {
        return WARPS * ((B::rows(axis) + 15) / 16) * ((B::columns(axis) + 7) / 8) * 128 + B::rows(axis) * B::columns(axis);
    }
    // Bytes of shared memory: the factors, all values and where fibers begin, or in their place the sums of an axis.
    static __device__ constexpr int shared_bytes() {
        int values = numbers(0) + numbers(AXES) + (AXES > 1 ? numbers(AXES - 1) : 0), tables = 0, listed = 0, most = 0;
        for (int axis = 0; axis < AXES; ++axis) {
            if (axis > 0) values += larger(numbers(axis), numbers(axis - 1));
            tables += table(axis) * (axis + 1 < AXES ? 2 : 1);
            listed += B::LISTED ? LISTS * fibers(axis, axis) : 0;
            most = larger(most, sums(axis));
        }
        return larger(4 * tables + (int)sizeof(T) * values + 2 * listed, 4 * most);
    }

    // What the digits of a number say of a place, those of the axes from FROM on before TO without AXIS; they are taken off it.
    template <int STAGE, int AXIS, int FROM, int TO>
    static __device__ __forceinline__ int digits(unsigned& number) {
        if constexpr (FROM >= TO) {
            return 0;
        } else if constexpr (TO - 1 == AXIS) {
            return digits<STAGE, AXIS, FROM, TO - 1>(number);
        } else {
            constexpr int OWN = TO - 1, FIRST = AXIS == 0 ? 1 : 0;
            constexpr bool IS_LAST = ITEMS == 1 && OWN == FIRST;
            const int found = (IS_LAST ? number : number % (unsigned)extent(STAGE, OWN)) * B::pitch(STAGE, OWN);
            number = IS_LAST ? 0 : number / (unsigned)extent(STAGE, OWN);
            return found + digits<STAGE, AXIS, FROM, OWN>(number);
        }
    }
    // The same in shared memory, where digits take long to find: those of all axes, one behind the other.
    static __device__ __forceinline__ void list_fibers(unsigned short* to) { list_fibers_of<0>(to); }
    template <int AXIS>
    static __device__ __forceinline__ void list_fibers_of(unsigned short* to) {
        if constexpr (B::LISTED && AXIS < AXES) {
            for (int n = threadIdx.x; n < fibers(AXIS, AXIS); n += THREADS) {
                to[n] = (unsigned short)offset<AXIS, AXIS>(n / 8, n % 8);
                if (!B::SQUARE) to[fibers(AXIS, AXIS) + n] = (unsigned short)offset<AXIS + 1, AXIS>(n / 8, n % 8);
            }
            list_fibers_of<AXIS + 1>(to + LISTS * fibers(AXIS, AXIS));
        }
    }
    static __device__ constexpr int listed_before(int axis) { return axis == 0 ? 0 : listed_before(axis - 1) + LISTS * fibers(axis - 1, axis - 1); }
    template <int STAGE, int AXIS>
    static __device__ __forceinline__ int offset(const unsigned short* listed, unsigned eight, unsigned one) {
        if constexpr (B::LISTED) return listed[listed_before(AXIS) + (B::SQUARE ? 0 : STAGE - AXIS) * fibers(AXIS, AXIS) + eight * 8 + one];
        else return offset<STAGE, AXIS>(eight, one);
    }
    // Where a fiber along AXIS begins in a tile: number `one` of eight neighbours.
    template <int STAGE, int AXIS>
    static __device__ __forceinline__ int offset(unsigned eight, unsigned one) {
        constexpr int LAST = ACROSS > 1 ? AXES : AXIS == AXES - 1 ? AXES - 2 : AXES - 1, INNER = ACROSS > 1 ? ACROSS : LAST < 0 ? 1 : extent(STAGE, LAST);
        constexpr int PITCH = ACROSS > 1 ? 1 : LAST < 0 ? item_pitch(STAGE) : B::pitch(STAGE, LAST < 0 ? 0 : LAST), PART = INNER % 8 ? INNER : INNER / 8;
        unsigned fiber = INNER % 8 ? eight * 8 + one : eight, found = INNER % 8 ? 0 : one * PITCH;
        if (INNER > 1) {
            found += fiber % (unsigned)PART * (INNER % 8 ? PITCH : 8 * PITCH);
            fiber /= (unsigned)PART;
        }
        found += digits<STAGE, AXIS, 0, LAST < 0 ? 0 : LAST>(fiber);
        return found + fiber * item_pitch(STAGE);
    }

    // The first of the axes whose entries and columns a block takes at once, and how many there are.
    static __device__ constexpr int first_within(int stage) {
        int axis = AXES;
        for (int count = ACROSS; axis > 0 && count * extent(stage, axis - 1) <= THREADS; --axis) count *= extent(stage, axis - 1);
        return axis;
    }
    static constexpr bool WIDE_COPIES = B::VECTOR * sizeof(T) == 16;
    static __device__ constexpr int within(int stage) {
        int count = ACROSS;
        for (int axis = first_within(stage); axis < AXES; ++axis) count *= extent(stage, axis);
        return count;
    }

    // A tile of x or v, numbers beyond the last item and column as zeros.
    template <int STAGE>
    static __device__ __forceinline__ void fetch(T* to, const T* from, const Arguments& g, i64 item0, i64 column0) {
        constexpr int WITHIN = within(STAGE) / B::VECTOR, FIRST = first_within(STAGE), NUMBERS = within(STAGE) / ACROSS, ROWS = ITEMS * run(STAGE) / NUMBERS;
        constexpr int STEP = THREADS / WITHIN, ROUNDS = (ROWS + STEP - 1) / STEP, AHEAD = ROUNDS < 8 ? ROUNDS : 8;
        const int begin = threadIdx.x / WITHIN, mine = threadIdx.x % WITHIN * B::VECTOR, column = mine % ACROSS;
        unsigned number = mine / ACROSS;
        const i64 step = B::COLUMNS ? NUMBERS * g.width : NUMBERS, rows = (g.items - item0) * (run(STAGE) / NUMBERS);
        from += item0 * run(STAGE) * (B::COLUMNS ? g.width : 1) + column0 + begin * step + (B::COLUMNS ? number * g.width + column : number);
        to += column + digits<STAGE, -1, FIRST, AXES>(number);
        const bool takes = THREADS % WITHIN == 0 || begin < STEP, is_there = takes && (!B::COLUMNS || column0 + column < g.width);
#pragma unroll 1
        for (int first = begin; first < ROWS; first += AHEAD * STEP) {
            T staged[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                unsigned row = first + i * STEP;
                const bool inside = is_there && (ITEMS == 1 || row < rows), is_mine = takes && (ROWS % (AHEAD * STEP) == 0 || row < ROWS);
                const int at = digits<STAGE, -1, 0, FIRST>(row) + row * item_pitch(STAGE);
                if (WIDE_COPIES || sizeof(T) == 4) {
                    constexpr int BYTES = WIDE_COPIES ? 16 : 4;
                    if (is_mine) ptx::cp_async<BYTES>(shared_address(to + at), inside ? from + i * STEP * step : g.x, inside ? BYTES : 0);
                } else {
                    staged[i] = T{};
                    if (is_mine && inside) staged[i] = load_pack<T, 1>(from + i * STEP * step).v[0];
                }
            }
            from += AHEAD * STEP * step;
            if (WIDE_COPIES || sizeof(T) == 4) continue;
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                unsigned row = first + i * STEP;
                const bool is_mine = takes && (ROWS % (AHEAD * STEP) == 0 || row < ROWS);
                const int at = digits<STAGE, -1, 0, FIRST>(row) + row * item_pitch(STAGE);
                if (is_mine) to[at] = staged[i];
            }
        }
    }

    // Two numbers of 11 bits, or one that is exact; tensor cores leave out what lies beyond.
    static __device__ __forceinline__ void split(unsigned& high, unsigned& low, float a) {
        high = __float_as_uint(a) + (EXACT ? 0 : 0x1000u);
        if (!EXACT) low = __float_as_uint(a - __uint_as_float(high & 0xffffe000u));
    }
    static __device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&high)[4], const unsigned (&low)[4], const unsigned (&other)[4]) {
        if (!EXACT) {
            ptx::mma_m16n8k8_tf32(sum, low, other[0], other[1]);
            ptx::mma_m16n8k8_tf32(sum, high, other[2], other[3]);
        }
        ptx::mma_m16n8k8_tf32(sum, high, other[0], other[1]);
    }

    // The factor of AXIS, or its transpose (BACK), as right operands: for each lane two numbers, and their low parts behind them.
    template <int AXIS, bool BACK>
    struct Table {
        static constexpr int IN = extent(AXIS + BACK, AXIS), OUT = extent(AXIS + 1 - BACK, AXIS), STEPS = (IN + 7) / 8, WIDE = (OUT + 7) / 8;
        static constexpr int EACH = EXACT ? 2 : 4, COUNT = STEPS * WIDE * 32;

        // From thread FIRST on.
        template <int FIRST, class Factor>
        static __device__ __forceinline__ void prepare(float* table, const Factor& factor) {
#pragma unroll 4
            for (int n = (threadIdx.x + THREADS - FIRST) % THREADS; n < COUNT; n += THREADS) {
                const int lane = n % 32, step = n / 32 % STEPS, out = n / 32 / STEPS * 8 + lane / 4;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int in = step * 8 + lane % 4 + 4 * i;
                    unsigned high, low = 0;
                    split(high, low, in < IN && out < OUT ? BACK ? factor(in, out) : factor(out, in) : 0.0f);
                    table[n * EACH + i] = __uint_as_float(high);
                    if (!EXACT) table[n * EACH + 2 + i] = __uint_as_float(low);
                }
            }
        }
        static __device__ __forceinline__ void take(unsigned (&to)[4], const float* table, int n, int step) {
            const Pack<float, EACH> pack = *(const Pack<float, EACH>*)(table + ((n * STEPS + step) * 32 + threadIdx.x % 32) * EACH);
#pragma unroll
            for (int i = 0; i < EACH; ++i) to[i] = __float_as_uint(pack.v[i]);
        }
    };

    // That factor along its fibers, 16 at a time by a warp; LAST: to memory.
    template <int AXIS, bool BACK, bool LAST>
    static __device__ __forceinline__ void apply(T* to, const T* from, const float* table, const Arguments& g, i64 item0, i64 column0) {
        typedef Table<AXIS, BACK> Own;
        constexpr int STAGE = AXIS + BACK, END = AXIS + 1 - BACK, IN = Own::IN, OUT = Own::OUT, STEPS = Own::STEPS, WIDE = Own::WIDE;
        constexpr int FIBERS = fibers(STAGE, AXIS), ROUNDS = (FIBERS + 16 * WARPS - 1) / (16 * WARPS), INNER = run(0) / B::columns(0) * ACROSS;
        constexpr bool STAYS = STEPS * WIDE <= 4;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = lane / 4, t = lane % 4;
        unsigned other[STAYS ? WIDE : 1][STAYS ? STEPS : 1][4];
        if (STAYS) {
#pragma unroll
            for (int n = 0; n < WIDE * STEPS; ++n) Own::take(other[STAYS ? n / STEPS : 0][STAYS ? n % STEPS : 0], table, n / STEPS, n % STEPS);
        }
        const T* source = from + t * B::pitch(STAGE, AXIS);
#pragma unroll(STAYS ? 2 : 1)
        for (int round = 0; round < ROUNDS; ++round) {
            const int block = warp + round * WARPS;
            if (FIBERS % (16 * WARPS) && block * 16 >= FIBERS) break;
            unsigned high[STEPS][4], low[STEPS][4];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const bool inside = FIBERS % 16 == 0 || block * 16 + half * 8 + row < FIBERS;
                const T* own = source + (inside ? offset<STAGE, AXIS>(g.listed, block * 2 + half, row) : 0);
#pragma unroll
                for (int k = 0; k < 2 * STEPS; ++k) {
                    const bool is_there = k * 4 + 4 <= IN || k * 4 + t < IN;
                    split(high[k / 2][k % 2 * 2 + half], low[k / 2][k % 2 * 2 + half], is_there ? convert<float>(own[k * 4 * B::pitch(STAGE, AXIS)]) : 0.0f);
                }
            }
#pragma unroll
            for (int n = 0; n < WIDE; ++n) {
                float sum[4] = {};
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    unsigned own[4];
                    if (!STAYS) Own::take(own, table, n, step);
                    multiply(sum, high[step], low[step], STAYS ? other[STAYS ? n : 0][STAYS ? step : 0] : own);
                }
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const unsigned fiber = block * 16 + half * 8 + row;
                    if (FIBERS % 16 && fiber >= FIBERS) continue;
                    const i64 item = item0 + fiber / (unsigned)INNER, column = column0 + fiber % (unsigned)ACROSS;
                    if (LAST && ((ITEMS > 1 && item >= g.items) || (B::COLUMNS && column >= g.width))) continue;
                    const int at = LAST ? 0 : offset<END, AXIS>(g.listed, block * 2 + half, row) + (n * 8 + 2 * t) * B::pitch(END, AXIS);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int out = n * 8 + 2 * t + i;
                        if (OUT % 8 && out >= OUT) continue;
                        if (!LAST) {
                            to[at + i * B::pitch(END, AXIS)] = Store<T>::from(sum[half * 2 + i]);
                            continue;
                        }
                        const i64 entry = item * run(0) + out * (INNER / ACROSS) + fiber % (unsigned)INNER / (unsigned)ACROSS;
                        to[B::COLUMNS ? entry * g.width + column : entry] = Store<T>::from(g.slope * sum[half * 2 + i]);
                    }
                }
            }
        }
    }

    // Sums of outer products along AXIS: 16 rows by 8 columns for every fragment. Up to 8 rows of float32 have their low parts as the other 8.
    template <int AXIS>
    struct Sum {
        static constexpr int Q = B::rows(AXIS), P = B::columns(AXIS), DOWN = (Q + 15) / 16, WIDE = (P + 7) / 8;
        static constexpr bool STACKED = Q <= 8 && !EXACT;
        // Fragments down that are summed at once.
        static constexpr int HIGH = DOWN * WIDE > 8 ? 1 : DOWN;
        float own[DOWN][WIDE][4];

        __device__ Sum() : own{} {}
        __device__ __forceinline__ void add(const T* v, const T* x, const unsigned short* listed) {
            constexpr int FIBERS = fibers(AXIS, AXIS), STEPS = (FIBERS + 7) / 8;
            const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
            int rows[DOWN][2], columns[WIDE];
#pragma unroll
            for (int m = 0; m < 2 * DOWN; ++m) rows[m / 2][m % 2] = min(m * 8 + g, Q - 1) * B::pitch(AXIS + 1, AXIS);
#pragma unroll
            for (int n = 0; n < WIDE; ++n) columns[n] = min(n * 8 + g, P - 1) * B::pitch(AXIS, AXIS);
#pragma unroll
            for (int first = 0; first < DOWN; first += HIGH) {
                float found[HIGH][WIDE][4] = {};
#pragma unroll 2
                for (int step = threadIdx.x / 32; step < STEPS; step += WARPS) {
                    unsigned high[HIGH][4], low[HIGH][4], other[WIDE][2], rest[WIDE][2];
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const bool inside = FIBERS % 8 == 0 || step * 8 + half * 4 + t < FIBERS;
                        const T* left = v + (inside ? offset<AXIS + 1, AXIS>(listed, step, half * 4 + t) : 0);
                        const T* right = x + (inside ? offset<AXIS, AXIS>(listed, step, half * 4 + t) : 0);
#pragma unroll
                        for (int m = 0; m < 2 * HIGH; ++m) {
                            const int to = half * 2 + m % 2, row = 2 * first + m;
                            if (row == 1 && Q <= 8) high[0][to] = STACKED ? low[0][to - 1] : 0u;
                            else split(high[m / 2][to], low[m / 2][to], inside ? convert<float>(left[rows[row / 2][row % 2]]) : 0.0f);
                        }
#pragma unroll
                        for (int n = 0; n < WIDE; ++n) split(other[n][half], rest[n][half], inside ? convert<float>(right[columns[n]]) : 0.0f);
                    }
#pragma unroll
                    for (int m = 0; m < HIGH; ++m)
#pragma unroll
                        for (int n = 0; n < WIDE; ++n) {
                            if (!EXACT && !STACKED) ptx::mma_m16n8k8_tf32(found[m][n], low[m], other[n][0], other[n][1]);
                            if (!EXACT) ptx::mma_m16n8k8_tf32(found[m][n], high[m], rest[n][0], rest[n][1]);
                            ptx::mma_m16n8k8_tf32(found[m][n], high[m], other[n][0], other[n][1]);
                        }
                }
#pragma unroll
                for (int i = 0; i < HIGH * WIDE * 4; ++i) own[first + i / (4 * WIDE)][i / 4 % WIDE][i % 4] += found[i / (4 * WIDE)][i / 4 % WIDE][i % 4];
            }
        }

        // The sums of all warps, (Q, P) in shared memory from its begin on.
        __device__ __forceinline__ float* total(float* shared) {
            constexpr int PITCH = WIDE * 8, SIZE = DOWN * 16 * PITCH;
            const int lane = threadIdx.x % 32;
            if (STACKED) {
#pragma unroll
                for (int i = 0; i < WIDE * 2; ++i) own[0][i / 2][i % 2] += own[0][i / 2][2 + i % 2];
            }
            float* joint = shared + WARPS * SIZE;
            __syncthreads();
#pragma unroll
            for (int m = 0; m < DOWN; ++m) store_fragments<PITCH>(shared + threadIdx.x / 32 * SIZE + (m * 16 + lane / 4) * PITCH + lane % 4 * 2, own[m]);
            __syncthreads();
            for (int n = threadIdx.x; n < Q * P; n += THREADS) joint[n] = sum_over_warps<WARPS, SIZE>(shared + n / P * PITCH + n % P);
            __syncthreads();
            return joint;
        }
    };
};

}  // namespace km

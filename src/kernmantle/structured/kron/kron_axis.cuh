// Passes of Kronecker products over one factor by wgmma, of up to 256 rows and columns, for arrays whose numbers lie beside each
// other along the columns or (LAST) along the factor's axis.
//
// Eight warps load, and two groups of four warps multiply 64 rows of the factor each, as those of kron_wgmma.cuh. A tile has FIBERS
// lines along the axis: columns beside each other of one entry of the batch, out[q, r] = sum_k factor[q, k] x[k, r], or rows
// of memory, out[n, q] = sum_k factor[q, k] x[n, k], whose product is transposed in shared memory. A group has lines of its own where
// the factor has up to 64 rows and columns, else both have the same. Lines, rows and columns that are not there are zeros.
// The factor is in registers. One of more than 128 rows or columns (STAYS) is in shared memory, 128 of its rows in every block, and
// tiles come in two CHUNKS of k.
#pragma once
#include "kron_scheduler.cuh"
#include "layout.cuh"
#include "pipeline.cuh"
#include "ptx_wgmma_along.cuh"
#include "split_hi_lo.cuh"

namespace km {

// What a piece in shared memory has beside its entries: the inverses of what its lines were multiplied by, how many of them there
// are, and where the results go.
template <int SCALES>
struct KronFiberPiece {
    float inverse[SCALES];
    int fibers;
    i64 out;
};

// Two numbers as an operand of tensor cores.
KM_DEVICE unsigned kron_operand(f16, float a, float b) { return ptx::pack_f16x2(a, b); }
KM_DEVICE unsigned kron_operand(bf16, float a, float b) { return ptx::pack_bf16x2(a, b); }

template <class B, class Args>
struct KronWgmmaAxis {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr bool LAST = B::LAST, SPLIT = sizeof(T) == 4, BOTH = B::ROWS > 64 || B::COLUMNS > 64;
    static constexpr int ROWS = B::ROWS, COLUMNS = B::COLUMNS, CHUNKS = (COLUMNS + 127) / 128, STEPS = (COLUMNS + 16 * CHUNKS - 1) / (16 * CHUNKS), DEEP = 16 * STEPS;
    static constexpr bool STAYS = ROWS > 128 || CHUNKS > 1;
    // Blocks that share the rows of the factor; bytes of a part of it in shared memory.
    static constexpr int SHARING = (ROWS + 127) / 128, ALL = CHUNKS * DEEP, FACTOR = STAYS ? (ALL + 63) / 64 * (128 * 128) : 0;
    static constexpr int STAGES = B::STAGES, SETS = B::SETS, LOADERS = 8 / SETS, SET = 256 / SETS, THREADS = 512;
    // Lines of a group in 64s, of which an instruction takes one, and of a tile.
    static constexpr int BLOCKS = B::BLOCKS, OWN = 64 * BLOCKS, FIBERS = BOTH ? OWN : 2 * OWN;
    // A piece as it lies in memory and in shared memory: rows of 64 halves, those of the first 64 columns of all rows first.
    static constexpr int DEPTH = CHUNKS > 1 ? DEEP : COLUMNS, DOWN = LAST ? FIBERS : DEEP, HERE = LAST ? FIBERS : DEPTH, ALONG = LAST ? DEPTH : FIBERS, WIDE = LAST ? (DEEP + 63) / 64 : FIBERS / 64;
    static constexpr int PARTS = SPLIT ? 2 : 1, PART = WIDE * DOWN * 128, PIECE = PARTS * PART;
    // Neighbours that a load brings, and that a lane has at a time; lanes of a row, loads along it and down the rows of a warp.
    static constexpr int VECTOR = B::VECTOR, UNIT = VECTOR > 2 ? VECTOR : 2, UNITS = (ALONG + UNIT - 1) / UNIT;
    static constexpr int LANES = UNITS > 16 ? 32 : UNITS > 8 ? 16 : UNITS > 4 ? 8 : 4, ACROSS = (UNITS + LANES - 1) / LANES, AT_ONCE = 32 / LANES;
    static constexpr int OF_WARP = FIBERS / LOADERS, STEP = LAST ? AT_ONCE : LOADERS * AT_ONCE, LOADS = LAST ? OF_WARP / AT_ONCE : (HERE + STEP - 1) / STEP;
    // Powers of two by which numbers are multiplied: one for each row of memory, or one for all columns of a tile. Arrivals that make
    // a stage full, and empty: of all threads where all of them write and read what is noted of a piece.
    static constexpr int SCALES = LAST ? FIBERS : 1, FILLING = LAST ? SET : LOADERS, EMPTYING = LAST ? 256 : 8;
    typedef KronFiberPiece<SCALES> Piece;
    typedef Pack<T, UNIT> Unit;
    // Bytes from row to row of results in shared memory, in which lanes that write together meet in few banks.
    static constexpr int OUT_PITCH = 64 * (int)sizeof(T) + (SPLIT && !LAST && !STAYS ? 32 : 16), OUT = 64 * OUT_PITCH;
    static constexpr int STAGED = PARTS * FACTOR, RESULTS = STAGED + STAGES * PIECE, BARRIERS = RESULTS + 2 * OUT, NOTES = BARRIERS + PipelineBarriers<STAGES>::BYTES;
    static constexpr int TOPS = NOTES + STAGES * (int)sizeof(Piece), SHARED_BYTES = TOPS + THREADS / 32 * 4;
    // Few columns, RIGHT of them, of several entries of the batch make a tile.
    static constexpr int RIGHT = B::RIGHT, ITEMS = LAST ? FIBERS : RIGHT ? FIBERS / RIGHT : 1, TILE_WIDTH = LAST ? 1 : RIGHT ? RIGHT : FIBERS;
    typedef KronTileScheduler<ITEMS, TILE_WIDTH> Scheduler;
    typedef PipelineState<STAGES> State;

    static KM_DEVICE int spot(int row, int column) { return column / 64 * (DOWN * 128) + row * 128 + swizzle_128(row, column % 64 / 8) + column % 8 * 2; }
    static KM_DEVICE float larger(float top, float a) { return fabsf(a) < infinity<float>() ? fmaxf(top, fabsf(a)) : top; }
    // Lines of a tile that are there, and where one of its columns is.
    static KM_DEVICE int fibers_of(const Scheduler& tile) { return LAST ? tile.items() : RIGHT ? tile.items() * RIGHT : tile.right(); }
    static KM_DEVICE i64 column_of(int at, i64 stride) { return RIGHT ? at / (RIGHT ? RIGHT : 1) * stride + at % (RIGHT ? RIGHT : 1) : at; }

    // The number of a block among those with the same rows of the factor, which of these it has, and how many tiles it takes.
    static KM_DEVICE int block() { return (int)blockIdx.x / SHARING; }
    static KM_DEVICE int blocks() { return (int)gridDim.x / SHARING; }
    static KM_DEVICE int first_row() { return (int)blockIdx.x % SHARING * 128; }
    static KM_DEVICE int steps(int tiles) { return block() < tiles && block() < blocks() ? (tiles - block() + blocks() - 1) / blocks() : 0; }

    // The power of two of a factor in float32, or of a product of several in float16, by its largest entry that is finite.
    static __device__ HalfScale measured(const Args& g, float* tops) {
        if (!B::SCALED) return {1.0f, 1.0f};
        float top = 0.0f;
        const bool down = B::down(g);
#pragma unroll 4
        for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) top = larger(top, down ? B::entry(g, i % ROWS, i / ROWS) : B::entry(g, i / COLUMNS, i % COLUMNS));
        top = __uint_as_float(ptx::redux_max(__float_as_uint(top)));
        if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < THREADS / 32; ++w) top = fmaxf(top, tops[w]);
        return HalfScale::of_largest(top);
    }

    // The block's rows of the factor to shared memory, its rows as those of a piece: high parts, then low ones.
    static __device__ void keep_factor(const Args& g, unsigned char* to, const HalfScale& scale) {
        const bool down = B::down(g);
#pragma unroll 4
        for (int i = threadIdx.x; i < 128 * ALL / 2; i += THREADS) {
            const int row = down ? i % 128 : i / (ALL / 2), column = 2 * (down ? i / 128 : i % (ALL / 2)), q = first_row() + row;
            const float a = q < ROWS && column < COLUMNS ? B::entry(g, q, column) : 0.0f, b = q < ROWS && column + 1 < COLUMNS ? B::entry(g, q, column + 1) : 0.0f;
            unsigned high, low;
            if constexpr (SPLIT) split_f16x2(high, low, a, b, scale.scale);
            else high = kron_operand(H(), a * scale.scale, b * scale.scale);
            unsigned char* const own = to + column / 64 * (128 * 128) + row * 128 + swizzle_128(row, column % 64 / 8) + column % 8 * 2;
            *(unsigned*)own = high;
            if constexpr (SPLIT) *(unsigned*)(own + FACTOR) = low;
        }
    }

    // ---- Loading. Units of the next piece are asked for behind the fence of the one before, which would wait for them.
    template <int N>
    static KM_DEVICE float top_of(const Unit (&v)[N][ACROSS]) {
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < N * ACROSS * UNIT; ++i) top = fmaxf(top, fabsf(convert<float>(v[i / UNIT / ACROSS][i / UNIT % ACROSS].v[i % UNIT])));
        // An infinity is none that the others are to be scaled by, for they need not depend on it.
        if (top == infinity<float>()) {
            top = 0.0f;
#pragma unroll
            for (int i = 0; i < N * ACROSS * UNIT; ++i) top = larger(top, convert<float>(v[i / UNIT / ACROSS][i / UNIT % ACROSS].v[i % UNIT]));
        }
        return top;
    }
    static KM_DEVICE void keep(unsigned char* to, const Unit& unit, float by) {
        if constexpr (SPLIT) {
            unsigned high[UNIT / 2], low[UNIT / 2];
#pragma unroll
            for (int i = 0; i < UNIT / 2; ++i) split_f16x2(high[i], low[i], convert<float>(unit.v[2 * i]), convert<float>(unit.v[2 * i + 1]), by);
            *(Pack<unsigned, UNIT / 2>*)to = *(const Pack<unsigned, UNIT / 2>*)high;
            *(Pack<unsigned, UNIT / 2>*)(to + PART) = *(const Pack<unsigned, UNIT / 2>*)low;
        } else {
            *(Unit*)to = unit;
        }
    }
    static __device__ void load(const Args& g, unsigned char* stages, Piece* pieces, PipelineBarriers<STAGES> barriers, float* tops, int tiles) {
        const int set = (threadIdx.x - 256) / SET, lane = threadIdx.x % 32, warp = threadIdx.x % SET / 32;
        const int row = (LAST ? warp * OF_WARP : warp * AT_ONCE) + lane / LANES, column = lane % LANES * UNIT;
        // Sets take pieces in turn: parts of each tile, or all of them.
        constexpr int SKIP = SETS > CHUNKS ? SETS / CHUNKS : 1;
        static_assert((SETS % CHUNKS == 0 || SETS == 1) && STAGES % SETS == 0, "a set has one chunk of every tile, or all, and stages of its own");
        const int apart = blocks() * SKIP;
        const i64 step = LAST ? g.x_stride[KRON_C] : g.x_stride[KRON_RUN];
        int number = block() + set / CHUNKS * blocks(), chunk = set % CHUNKS, fibers = 0, deep = COLUMNS;
        Scheduler tile(g, g.x_stride, number, apart, false);
        Unit v[LOADS][ACROSS];
        i64 out = 0;
        // What is not there is read from what is, so that loads need no branches. `each` gets the address of a row, and where a load is.
        const auto loads = [&](int there, int chunk, auto each) {
            const T* const from = (const T*)g.x + tile.at + chunk * (LAST ? (i64)DEEP : DEEP * step) + (LAST ? 0 : row * step);
            const int last = (LAST ? there : CHUNKS > 1 ? min(DEEP, COLUMNS - chunk * DEEP) : HERE) - 1;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                const bool is_there = (CHUNKS == 1 && (i + 1) * STEP <= HERE) || row + i * STEP <= last;
                const T* const own = from + (LAST ? min(row + i * STEP, last) : is_there ? i * STEP : 0) * step;
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) each(i, j, own, column + j * (LANES * UNIT));
            }
        };
        // The number of the column of a load, of columns that are there.
        const auto along_of = [&](int at, int there, int deep) {
            if (!LAST) return column_of(min(at, there - VECTOR), g.x_stride[KRON_C]);
            return (i64)(CHUNKS == 1 && LANES * UNIT * ACROSS == ALONG ? at : at < deep ? at : 0);
        };
        const auto ask = [&]() {
            const int there = fibers_of(tile);
            fibers = there;
            deep = CHUNKS > 1 ? min(DEEP, COLUMNS - chunk * DEEP) : COLUMNS;
            out = tile.offset(g.out_stride);
            loads(there, chunk, [&](int i, int j, const T* own, int along) {
                if constexpr (UNIT == VECTOR) {
                    v[i][j] = load_pack<T, UNIT>(own + along_of(along, there, deep));
                } else {
#pragma unroll
                    for (int n = 0; n < UNIT; ++n) v[i][j].v[n] = load_pack<T, 1>(own + along_of(along + n, there, deep)).v[0];
                }
            });
            if (SETS % CHUNKS == 0 || ++chunk == CHUNKS) {
                if (SETS % CHUNKS) chunk = 0;
                tile.advance();
                number += apart;
            }
            if (!B::PREFETCH || number >= tiles || lane % (128 / (int)sizeof(Unit)) != 0) return;
            const int later = fibers_of(tile), later_deep = CHUNKS > 1 ? min(DEEP, COLUMNS - chunk * DEEP) : COLUMNS;
            loads(later, chunk, [&](int, int, const T* own, int along) { ptx::prefetch_global_l2(own + along_of(along, later, later_deep)); });
        };
        State state;
        state.phase = 1;
        for (int i = 0; i < set; ++i) state.advance();
        int left = steps(tiles) * CHUNKS - set;
#pragma unroll
        for (int i = 0; i < LOADS * ACROSS; ++i) v[i / ACROSS][i % ACROSS] = Unit{};
        if (left > 0) ask();
#pragma unroll 1
        for (int parity = 0; left > 0; left -= SETS, parity ^= 1) {
            // Zeros for positions of k behind the last one.
            if (CHUNKS > 1 || (LAST && ALONG % UNIT)) {
#pragma unroll
                for (int i = 0; i < LOADS * ACROSS * UNIT; ++i) {
                    const int at = LAST ? column + i / UNIT % ACROSS * (LANES * UNIT) + i % UNIT : row + i / UNIT / ACROSS * STEP;
                    T& own = v[i / UNIT / ACROSS][i / UNIT % ACROSS].v[i % UNIT];
                    own = at < deep ? own : T{};
                }
            }
            HalfScale scale{1.0f, 1.0f};
            if constexpr (SPLIT && !LAST) {
                float* const shared = tops + (2 * set + parity) * LOADERS;
                const float top = top_of(v);
                const unsigned own = ptx::redux_max(__float_as_uint(top));
                if (lane == 0) shared[warp] = __uint_as_float(own);
                ptx::bar_sync<SET>(3 + set);
                unsigned largest = 0;
#pragma unroll
                for (int w = 0; w < LOADERS; ++w) largest = ::max(largest, __float_as_uint(shared[w]));
                scale = HalfScale::of_exponent(largest >> 23);
            }
            ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
            unsigned char* const to = stages + state.stage * PIECE;
            Piece& piece = pieces[state.stage];
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                const int down = row + i * STEP;
                if constexpr (SPLIT && LAST) {
                    const Unit(&own)[1][ACROSS] = *(const Unit(*)[1][ACROSS])&v[i];
                    float top = top_of(own);
#pragma unroll
                    for (int gap = LANES / 2; gap > 0; gap /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, gap));
                    scale = HalfScale::of_largest(top);
                    if (lane % LANES == 0) piece.inverse[down] = scale.inverse;
                }
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    const int along = column + j * (LANES * UNIT);
                    if (LAST ? along < ALONG : HERE % STEP == 0 || down < HERE) keep(to + spot(down, along), v[i][j], scale.scale);
                }
            }
            if (lane == 0 && warp == 0) {
                if (SPLIT && !LAST) piece.inverse[0] = scale.inverse;
                piece.fibers = fibers;
                piece.out = out;
            }
            ptx::fence_proxy_async();
            __syncwarp();
            if (LAST || lane == 0) ptx::mbarrier_arrive(barriers.full(state.stage));
            if (left > SETS) ask();
#pragma unroll
            for (int i = 0; i < SETS; ++i) state.advance();
        }
    }

    // ---- Multiplying.
    static KM_DEVICE void fence(float (&d)[8][4]) {
#pragma unroll
        for (int i = 0; i < 32; ++i) ptx::fence_operand(d[i / 4][i % 4]);
    }
    // What the lane reads that says later that a piece is free.
    template <class A>
    static KM_DEVICE A of_first_lane(const A* at) {
        A own = 0;
        if (threadIdx.x % 32 == 0) own = *at;
        return __shfl_sync(0xffffffffu, own, 0);
    }
    // Results in shared memory leave it: `rows` rows of `columns` numbers, `step` apart in memory, of which `first` are ahead of them.
    static KM_DEVICE void store(const Args& g, const unsigned char* results, i64 to, i64 step, int rows, int columns, int first, int group) {
        constexpr int V = B::VECTOR_OUT, ACROSS_OUT = 64 / V, DOWN_OUT = 128 / ACROSS_OUT;
        ptx::bar_sync<128>(1 + group);
        const int row = threadIdx.x % 128 / ACROSS_OUT, column = threadIdx.x % ACROSS_OUT * V;
        if (column >= columns) return;
        T* const there = (T*)g.out + to + row * step + (LAST ? column : column_of(first + column, g.out_stride[KRON_C]));
        const unsigned char* const from = results + row * OUT_PITCH + column * (int)sizeof(T);
#pragma unroll 8
        for (int i = 0; i < 64 / DOWN_OUT; ++i)
            if (row + i * DOWN_OUT < rows) *(Pack<T, V>*)(there + i * DOWN_OUT * step) = *(const Pack<T, V>*)(from + i * DOWN_OUT * OUT_PITCH);
    }

    static __device__ void multiply(const Args& g, const unsigned char* stages, unsigned char* results, const Piece* pieces, PipelineBarriers<STAGES> barriers, const HalfScale& scale, int tiles) {
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, begin = first_row() + (BOTH ? 64 * group : 0), first = BOTH ? 0 : OWN * group;
        // Columns of 64 lines lie behind each other, rows of lines below each other.
        const unsigned from = __shfl_sync(0xffffffffu, shared_address(stages) + first / 64 * (LAST ? 64 : DOWN) * 128, 0);
        const unsigned long long fibers = ptx::wgmma_descriptor(from, 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
        const unsigned long long factor = ptx::wgmma_descriptor(__shfl_sync(0xffffffffu, shared_address(stages) - STAGED + 64 * 128 * group, 0), 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
        unsigned high[STAYS ? 1 : STEPS][4], low[SPLIT && !STAYS ? STEPS : 1][4];
#pragma unroll
        for (int s = 0; s < (STAYS ? 0 : STEPS); ++s) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int row = begin + 16 * warp + lane / 4 + r % 2 * 8, column = 16 * s + lane % 4 * 2 + r / 2 * 8;
                const float a = row < ROWS && column < COLUMNS ? B::entry(g, row, column) : 0.0f, b = row < ROWS && column + 1 < COLUMNS ? B::entry(g, row, column + 1) : 0.0f;
                if constexpr (SPLIT) split_f16x2(high[s][r], low[s][r], a, b, scale.scale);
                else high[s][r] = kron_operand(H(), a * scale.scale, b * scale.scale);
            }
        }
        const float back = scale.inverse * (float)g.alpha;
        const i64 step = LAST ? g.out_stride[KRON_C] : g.out_stride[KRON_RUN], row_step = LAST ? 1 : g.out_stride[KRON_RUN], fiber_step = LAST ? g.out_stride[KRON_C] : 0;
        const int rows = min(64, ROWS - begin);
        unsigned char* const own = results + group * OUT + (16 * warp + lane / 4) * (LAST ? (int)sizeof(T) : OUT_PITCH) + lane % 4 * 2 * (LAST ? OUT_PITCH : (int)sizeof(T));
        State state;
#pragma unroll 1
        for (int left = steps(tiles); left > 0; --left) {
            float d[BLOCKS][8][4], sum[CHUNKS > 1 ? 8 : 1][4];
            i64 out;
            int there;
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk, state.advance()) {
                float by[BLOCKS][LAST ? 8 : 1][2];
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
#pragma unroll
                for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
                    for (int i = 0; i < 32; ++i) d[b][i / 4][i % 4] = 0.0f;
                    fence(d[b]);
                }
                ptx::wgmma_fence();
#pragma unroll
                for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
                    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
                        for (int b = 0; b < BLOCKS; ++b) {
                            const int k = chunk * STEPS + s, piece = state.stage * PIECE + (term == 1) * PART;
                            const int at = LAST ? s / 4 * (DOWN * 128) + b * (64 * 128) + s % 4 * 32 : b * (DOWN * 128) + s * (16 * 128);
                            const unsigned long long other = fibers + ((piece + at) >> 4);
                            if constexpr (STAYS) {
                                const unsigned long long own = factor + (((term == 0) * FACTOR + k / 4 * (128 * 128) + k % 4 * 32) >> 4);
                                if constexpr (LAST) ptx::wgmma_ss(H(), d[b], own, other, 1);
                                else ptx::wgmma_ss_along(H(), d[b], own, other, 1);
                            } else {
                                const auto& own = term == 0 ? low[SPLIT ? s : 0] : high[s];
                                if constexpr (LAST) ptx::wgmma_rs(H(), d[b], own, other, 1);
                                else ptx::wgmma_rs_along(H(), d[b], own, other);
                            }
                        }
                    }
                }
                ptx::wgmma_commit_group();
                const Piece& piece = pieces[state.stage];
                out = of_first_lane(&piece.out);
                there = of_first_lane(&piece.fibers) - first;
                const float all = LAST || !SPLIT ? back : back * of_first_lane(&piece.inverse[0]);
#pragma unroll
                for (int n = 0; n < (LAST ? 8 * BLOCKS : BLOCKS); ++n) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) by[LAST ? n / 8 : n][LAST ? n % 8 : 0][i] = LAST && SPLIT ? back * piece.inverse[first + 8 * n + 2 * (lane % 4) + i] : all;
                }
                ptx::wgmma_wait_group<0>();
#pragma unroll
                for (int b = 0; b < BLOCKS; ++b) fence(d[b]);
                __syncwarp();
                if (LAST || lane == 0) ptx::mbarrier_arrive(barriers.empty(state.stage));
#pragma unroll
                for (int b = 0; b < BLOCKS; ++b) {
#pragma unroll
                    for (int i = 0; i < 32; ++i) {
                        d[b][i / 4][i % 4] *= by[b][LAST ? i / 4 : 0][i % 2];
                        if constexpr (CHUNKS > 1) {
                            if (chunk > 0) d[b][i / 4][i % 4] += sum[i / 4][i % 4];
                            if (chunk + 1 < CHUNKS) sum[i / 4][i % 4] = d[b][i / 4][i % 4];
                        }
                    }
                }
            }
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                ptx::bar_sync<128>(1 + group);
#pragma unroll
                for (int n = 0; n < 8; ++n) {
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        if constexpr (LAST) {
#pragma unroll
                            for (int i = 0; i < 2; ++i) *(T*)(own + (8 * n + i) * OUT_PITCH + h * 8 * (int)sizeof(T)) = Store<T>::from(d[b][n][2 * h + i]);
                        } else {
                            Pack<T, 2> two;
                            two.v[0] = Store<T>::from(d[b][n][2 * h]);
                            two.v[1] = Store<T>::from(d[b][n][2 * h + 1]);
                            *(Pack<T, 2>*)(own + h * 8 * OUT_PITCH + n * 8 * (int)sizeof(T)) = two;
                        }
                    }
                }
                const i64 to = out + begin * row_step + (first + 64 * b) * fiber_step;
                if constexpr (LAST) store(g, results + group * OUT, to, step, there - 64 * b, rows, 0, group);
                else store(g, results + group * OUT, to, step, rows, there - 64 * b, first + 64 * b, group);
            }
        }
    }

    static __device__ void run(const Args& g) {
        extern __shared__ __align__(1024) unsigned char raw[];
        float* const tops = (float*)(raw + TOPS);
        Piece* const pieces = (Piece*)(raw + NOTES);
        const PipelineBarriers<STAGES> barriers{shared_address(raw + BARRIERS)};
        const int tiles = (int)kron_tiles<ITEMS, TILE_WIDTH>(g);
        if (threadIdx.x == 0) barriers.initialise(FILLING, EMPTYING);
        // What is never loaded: positions of k behind the last one.
        if (DEEP != COLUMNS && CHUNKS == 1) {
            for (int i = threadIdx.x; i < RESULTS / 16; i += THREADS) ((uint4*)raw)[i] = uint4{0, 0, 0, 0};
            ptx::fence_proxy_async();
        }
        const HalfScale scale = measured(g, tops);
        if constexpr (STAYS) {
            __syncthreads();
            keep_factor(g, raw, scale);
            ptx::fence_proxy_async();
        }
        __syncthreads();
        if (threadIdx.x >= 256) {
            ptx::setmaxnreg_dec<B::LOADER_REGISTERS>();
            load(g, raw + STAGED, pieces, barriers, tops, tiles);
        } else {
            ptx::setmaxnreg_inc<256 - B::LOADER_REGISTERS>();
            multiply(g, raw + STAGED, raw + RESULTS, pieces, barriers, scale, tiles);
        }
    }
};

}  // namespace km

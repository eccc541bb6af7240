// Passes of Kronecker products on tensor cores: several factors are applied one after the other, a phase each. The first phase
// reads from stages of shared memory that every warp fills for itself by asynchronous copies (pipeline.cuh), later ones from a
// tile in shared memory that GROUP warps share.
#pragma once
#include "kron_double.cuh"
#include "kron_fetch.cuh"

namespace km {

// Offsets of the fragments of a unit in the result, or of what is added to them in y.
template <class B, class Phase>
struct KronOutput {
    static constexpr bool LAST = Phase::F::LAST;
    static constexpr int LANE_WIDTH = 16 / sizeof(typename B::C);
    static constexpr int COUNT = LAST ? 1 : Phase::TILES;
    i64 at[COUNT], step;
    template <class Args>
    KM_DEVICE KronOutput(const Args& g, const i64 (&s)[KRON_AXES], i64 base, int unit, int lane) {
        const i64 run = B::RIGHT == 1 ? 1 : s[KRON_RUN];
        step = LAST ? 8 * s[KRON_C] : 8 * Phase::STRIDE * run;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int fiber = LAST ? 16 * Phase::TILES * unit + kron_row(lane) : min(unit * Phase::TILES + i, Phase::FIBERS - 1);
            at[i] = base + Phase::item(fiber) * s[KRON_C]
                    + (LAST ? 0 : (Phase::run_out(fiber) + kron_row(lane) * Phase::STRIDE) * run + Phase::right(fiber)) + LANE_WIDTH * (lane % 4);
        }
    }
    KM_DEVICE i64 offset(int w, int tile, int h, int n) const {
        return LAST ? at[0] + (2 * tile + h) * step + 16 * w + 8 * n : at[LAST ? 0 : tile] + (2 * w + h) * step + 8 * n;
    }
};

// Bytes of shared memory: the factors, where lines of the first phase go, the stages of each warp, the tiles between phases, and rows of the result of each warp.
template <class B>
__device__ constexpr int kron_mma_shared_bytes() {
    constexpr int PIPELINED = 4 * B::TABLE_WORDS + B::WARPS * B::STAGES * B::STAGE * (int)sizeof(typename B::T), TILES = B::WARPS / B::GROUP * B::TILE * (int)sizeof(typename B::S);
    return 4 * B::FACTOR_WORDS + PIPELINED + TILES + B::WARPS * B::OUT_STAGE * (int)sizeof(typename B::T);
}

// A pass. Its Body B has the types T of arrays, H of operands, C of sums and S of what lies between phases, the first phase and a function for the later ones,
// and GROUP, the number of warps that share a tile between phases.
template <class B, class Args>
struct KronMma {
    typedef typename B::T T;
    typedef typename B::C C;
    typedef typename B::S S;
    typedef typename B::First First;
    typedef KronTileScheduler<B::ITEMS, B::RIGHT> Scheduler;
    typedef CopyPipeline<B::STAGES> Pipeline;
    typedef KronFetch<B, Args> Fetch;
    static constexpr bool ROWS = Fetch::ROWS, SHIFTED = Fetch::SHIFTED, SWIZZLED = Fetch::SWIZZLED;
    static constexpr int GROUPS = B::WARPS / B::GROUP, DOWN = Fetch::DOWN;
    // Neighbours of the result that one lane has.
    static constexpr int LANE_WIDTH = 16 / sizeof(C);

    static __device__ __forceinline__ void wait_for_group(int group) {
        if (B::GROUP == 1) __syncwarp();
        else if (B::GROUP == B::WARPS) __syncthreads();
        else ptx::bar_sync<B::GROUP * 32>(group + 1);
    }

    // Stores neighbouring results, of which `room` are inside the array.
    static __device__ __forceinline__ void store(const Args& g, i64 to, i64 y_offset, int rest, const C (&value)[LANE_WIDTH]) {
        typedef Pack<T, B::VEC_OUT> Out;
#pragma unroll
        for (int v = 0; v < LANE_WIDTH; v += B::VEC_OUT) {
            if (v >= rest) break;
            Out pack, added;
            if (B::ADDED) added = *(const Out*)((const T*)g.y + y_offset + v);
#pragma unroll
            for (int i = 0; i < B::VEC_OUT; ++i)
                pack.v[i] = Store<T>::from(B::ADDED ? fma((C)g.beta, convert<C>(added.v[i]), value[v + i]) : value[v + i]);
            store_pack<T, B::VEC_OUT>((T*)g.out + to + v, pack);
        }
    }

    // Multiplies a unit of the last phase and stores the result.
    template <class Phase, class Fragments>
    static __device__ __forceinline__ void store_global(const Args& g, const Scheduler& p, const Fragments& x, const unsigned* factor, C back, int unit, int lane) {
        constexpr bool LAST = Phase::F::LAST, ROUND = Phase::F::ROWS % 16 == 0;
        const KronOutput<B, Phase> to(g, g.out_stride, p.at, unit, lane), y_offset(g, g.y_stride, B::ADDED ? p.offset(g.y_stride) : 0, unit, lane);
        const int items = p.items(), right = p.right();
        int rest[Phase::TILES];
#pragma unroll
        for (int i = 0; i < Phase::TILES; ++i) {
            const int fiber = unit * Phase::TILES + i;
            rest[i] = (B::RIGHT == 1 ? Phase::EXTENT : right) - Phase::right(fiber) - LANE_WIDTH * (lane % 4);
            if (fiber >= Phase::FIBERS || Phase::item(fiber) >= items) rest[i] = 0;
        }
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int tile, int h, int n, const C (&value)[LANE_WIDTH]) {
            int here;
            if (LAST) {
                here = 16 * Phase::TILES * unit + 16 * tile + 8 * h + kron_row(lane) < items ? (ROUND ? LANE_WIDTH : Phase::EXTENT - 16 * w - 8 * n - LANE_WIDTH * (lane % 4)) : 0;
            } else {
                here = ROUND || 16 * w + 8 * h + kron_row(lane) < Phase::F::ROWS ? rest[tile] - 8 * n : 0;
            }
            if (here > 0) store(g, to.offset(w, tile, h, n), B::ADDED ? y_offset.offset(w, tile, h, n) : 0, here, value);
        });
    }

    // The same, where a lane alone would write few bytes beside each other: 16 rows of a unit come together in shared memory
    // and leave it row by row. A store takes a multiprocessor as long as it meets lines of 128 bytes.
    template <class Phase, class Fragments>
    static __device__ __forceinline__ void store_rows(const Args& g, const Scheduler& p, const Fragments& x, const unsigned* factor, C back, int unit, int lane) {
        extern __shared__ __align__(128) unsigned char raw[];
        constexpr int WIDTH = 16 * Phase::TOGETHER, RUNS = Phase::TILES / Phase::TOGETHER, V = B::VEC_OUT;
        constexpr int ACROSS = WIDTH / V < 32 ? WIDTH / V : 32, DOWN_AT_ONCE = 32 / ACROSS;
        T* const rows = (T*)(raw + kron_mma_shared_bytes<B>()) - (B::WARPS - (int)threadIdx.x / 32) * B::OUT_STAGE;
        const i64 apart = Phase::STRIDE * (B::RIGHT == 1 ? 1 : g.out_stride[KRON_RUN]);
        const int items = p.items(), right = p.right(), down = lane / ACROSS, across = lane % ACROSS * V;
        T* to[RUNS];
        int rest[RUNS];
#pragma unroll
        for (int i = 0; i < RUNS; ++i) {
            const int fiber = unit * Phase::TILES + i * Phase::TOGETHER, item = Phase::item(fiber);
            const bool inside = fiber < Phase::FIBERS && item < items;
            rest[i] = inside ? (B::RIGHT == 1 ? Phase::EXTENT : right) - Phase::right(fiber) : 0;
            to[i] = (T*)g.out + (inside ? p.at + item * g.out_stride[KRON_C] + Phase::run_out(fiber) * (B::RIGHT == 1 ? 1 : g.out_stride[KRON_RUN]) + Phase::right(fiber) + down * apart + across : 0);
        }
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int tile, int h, int n, const C (&value)[LANE_WIDTH]) {
            Pack<T, LANE_WIDTH> pack;
#pragma unroll
            for (int i = 0; i < LANE_WIDTH; ++i) pack.v[i] = Store<T>::from(value[i]);
            *(Pack<T, LANE_WIDTH>*)(rows + (8 * h + kron_row(lane)) * B::OUT_PITCH + 16 * tile + LANE_WIDTH * (lane % 4)) = pack;
            if (tile + 1 < Phase::TILES || h == 0) return;
            __syncwarp();
#pragma unroll
            for (int i = 0; i < RUNS; ++i) {
#pragma unroll
                for (int r = 0; r < 16; r += DOWN_AT_ONCE) {
                    const bool inside = Phase::F::ROWS % 16 == 0 || 16 * w + r + down < Phase::F::ROWS;
#pragma unroll
                    for (int along = 0; along < WIDTH; along += ACROSS * V)
                        if (inside && across + along < rest[i])
                            store_pack<T, V>(to[i] + (16 * w + r) * apart + along, read_pack<T, V>(rows + (r + down) * B::OUT_PITCH + i * WIDTH + across + along));
                }
            }
            __syncwarp();
        });
    }

    // The same where the columns of a unit are whole rows of the last axis, which follow each other: 16 runs of RUN numbers.
    template <class Phase, class Fragments>
    static __device__ __forceinline__ void store_runs(const Args& g, const Scheduler& p, const Fragments& x, const unsigned* factor, C back, int unit, int lane) {
        extern __shared__ __align__(128) unsigned char raw[];
        constexpr int BLOCKS = (Phase::EXTENT + 15) / 16, RUN = Phase::TILES / BLOCKS * Phase::EXTENT, V = B::VEC_RUN, ACROSS = RUN / V;
        T* const rows = (T*)(raw + kron_mma_shared_bytes<B>()) - (B::WARPS - (int)threadIdx.x / 32) * B::OUT_STAGE;
        const int fiber = unit * Phase::TILES, item = Phase::item(fiber);
        const bool inside = item < p.items();
        T* const to = (T*)g.out + (inside ? p.at + item * g.out_stride[KRON_C] + Phase::run_out(fiber) : 0);
        T* const own = rows + kron_row(lane) * B::OUT_PITCH + LANE_WIDTH * (lane % 4);
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int tile, int h, int n, const C (&value)[LANE_WIDTH]) {
            keep(own + 8 * h * B::OUT_PITCH + tile / BLOCKS * Phase::EXTENT + tile % BLOCKS * 16, Phase::EXTENT - tile % BLOCKS * 16 - LANE_WIDTH * (lane % 4), value);
            if (tile + 1 < Phase::TILES || h == 0) return;
            __syncwarp();
            const int count = inside ? min(16, Phase::F::ROWS - 16 * w) * ACROSS : 0;
#pragma unroll 2
            for (int first = 0; first < 16 * ACROSS; first += 32) {
                const int at = first + lane, row = at / ACROSS, column = at % ACROSS * V;
                if (at < count) store_pack<T, V>(to + (16 * w + row) * Phase::STRIDE + column, read_pack<T, V>(rows + row * B::OUT_PITCH + column));
            }
            __syncwarp();
        });
    }

    // The same of rows of the last axis: 32 columns of all rows of a unit come together.
    template <class Phase, class Fragments>
    static __device__ __forceinline__ void store_last(const Args& g, const Scheduler& p, const Fragments& x, const unsigned* factor, C back, int unit, int lane) {
        extern __shared__ __align__(128) unsigned char raw[];
        constexpr int UNIT_ROWS = 16 * Phase::TILES, V = B::VEC_OUT, ACROSS = 32 / V;
        T* const rows = (T*)(raw + kron_mma_shared_bytes<B>()) - (B::WARPS - (int)threadIdx.x / 32) * B::OUT_STAGE;
        const int down = lane / ACROSS, across = lane % ACROSS * V, left = p.items() - UNIT_ROWS * unit - down;
        T* const to = (T*)g.out + p.at + (UNIT_ROWS * unit + down) * g.out_stride[KRON_C] + across;
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int tile, int h, int n, const C (&value)[LANE_WIDTH]) {
            Pack<T, LANE_WIDTH> pack;
#pragma unroll
            for (int i = 0; i < LANE_WIDTH; ++i) pack.v[i] = Store<T>::from(value[i]);
            *(Pack<T, LANE_WIDTH>*)(rows + (16 * tile + 8 * h + kron_row(lane)) * B::OUT_PITCH + w % 2 * 16 + LANE_WIDTH * (lane % 4)) = pack;
            if (tile + 1 < Phase::TILES || h == 0 || (w % 2 == 0 && w + 1 < Phase::F::WIDE)) return;
            __syncwarp();
            const int first = w / 2 * 32;
#pragma unroll
            for (int r = 0; r < UNIT_ROWS; r += V) {
                if (r < left && first + across < Phase::EXTENT)
                    store_pack<T, V>(to + r * g.out_stride[KRON_C] + first, read_pack<T, V>(rows + (r + down) * B::OUT_PITCH + across));
            }
            __syncwarp();
        });
    }

    // Neighbours of a result to shared memory, of which `rest` are there.
    static __device__ __forceinline__ void keep(T* to, int rest, const C (&value)[LANE_WIDTH]) {
#pragma unroll
        for (int v = 0; v < LANE_WIDTH; v += B::VEC_OUT) {
            Pack<T, B::VEC_OUT> pack;
#pragma unroll
            for (int i = 0; i < B::VEC_OUT; ++i) pack.v[i] = Store<T>::from(value[v + i]);
            if (v < rest) *(Pack<T, B::VEC_OUT>*)(to + v) = pack;
        }
    }
    // The same of rows of the last axis that are no whole vectors: all of a unit come together as they lie in memory, as far behind 16
    // bytes as there, and leave as whole vectors if they follow each other.
    template <class Phase, class Fragments>
    static __device__ __forceinline__ void store_unaligned(const Args& g, const Scheduler& p, const Fragments& x, const unsigned* factor, C back, int unit, int lane) {
        extern __shared__ __align__(128) unsigned char raw[];
        constexpr int UNIT_ROWS = 16 * Phase::TILES, RUN = Phase::EXTENT, EACH = 16 / sizeof(T);
        T* const rows = (T*)(raw + kron_mma_shared_bytes<B>()) - (B::WARPS - (int)threadIdx.x / 32) * B::OUT_STAGE;
        const i64 apart = g.out_stride[KRON_C];
        T* const to = (T*)g.out + p.at + UNIT_ROWS * unit * apart;
        const int shift = (int)((unsigned long long)to % 16) / (int)sizeof(T), count = min(UNIT_ROWS, p.items() - UNIT_ROWS * unit) * RUN;
        T* const own = rows + shift + kron_row(lane) * RUN + LANE_WIDTH * (lane % 4);
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int tile, int h, int n, const C (&value)[LANE_WIDTH]) {
            keep(own + (16 * tile + 8 * h) * RUN + 16 * w, RUN - 16 * w - LANE_WIDTH * (lane % 4), value);
        });
        __syncwarp();
        if (apart == RUN) {
#pragma unroll 2
            for (int n = EACH * lane; n < shift + count; n += 32 * EACH) {
                if (n >= shift && n + EACH <= shift + count) {
                    store_pack<T, EACH>(to - shift + n, read_pack<T, EACH>(rows + n));
                } else {
                    for (int i = max(n, shift); i < min(n + EACH, shift + count); ++i) to[i - shift] = rows[i];
                }
            }
        } else {
#pragma unroll 1
            for (int n = lane; n < count; n += 32) to[n / RUN * apart + n % RUN] = rows[shift + n];
        }
        __syncwarp();
    }

    // Multiplies a unit of an earlier phase and stores the result in the tile of the next one.
    template <class Phase, class Fragments>
    static __device__ __forceinline__ void store_smem(const Fragments& x, S* tile, const unsigned* factor, C back, int unit, int lane) {
        constexpr bool LAST = Phase::F::LAST;
        constexpr int FIBERS = LAST ? 2 * Phase::TILES : Phase::TILES, EACH = LAST ? 8 : 1;
        extern __shared__ __align__(128) unsigned char raw[];
        const unsigned short* const offsets = (const unsigned short*)((const unsigned*)raw + B::FACTOR_WORDS);
        S* to[FIBERS];
        // By how much columns have changed places: by the row of the lane or by that of the line.
        const int swizzle = Phase::ROW_SWIZZLED ? kron_row(lane) % 4 * 8 : 0;
#pragma unroll
        for (int i = 0; i < FIBERS; ++i) {
            const int fiber = EACH * (unit * FIBERS + i) + (LAST ? kron_row(lane) : 0);
            const int along = LAST ? 0 : ((Phase::right(fiber) + LANE_WIDTH * (lane % 4)) ^ (Phase::swizzle(fiber) | swizzle)) + kron_row(lane) * Phase::PITCH;
            to[i] = fiber < Phase::FIBERS ? tile + (LAST && B::TABLE_WORDS > 0 ? offsets[fiber] : Phase::tile_offset(fiber)) + along : nullptr;
        }
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int own, int h, int n, const C (&value)[LANE_WIDTH]) {
            S* at = to[LAST ? 2 * own + h : own];
            if (Phase::FIBERS % (EACH * FIBERS) && at == nullptr) return;
            if (!LAST && Phase::F::ROWS % 16 && 16 * w + 8 * h + kron_row(lane) >= Phase::F::ROWS) return;
            Pack<S, LANE_WIDTH> pack;
#pragma unroll
            for (int i = 0; i < LANE_WIDTH; ++i) pack.v[i] = Store<S>::from(value[i]);
            *(Pack<S, LANE_WIDTH>*)(at + (LAST ? (16 * w + LANE_WIDTH * (lane % 4)) ^ swizzle : (16 * w + 8 * h) * Phase::PITCH) + 8 * n) = pack;
        });
    }

    template <class Phase, class Fragments>
    static __device__ __forceinline__ void epilogue(const Args& g, const Scheduler& p, const Fragments& x, S* tile, const unsigned* factors, const C* backs, int unit, int lane) {
        if constexpr (Phase::FINAL && B::WHOLE)
            store_unaligned<Phase>(g, p, x, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
        else if constexpr (Phase::FINAL && B::COALESCED && Phase::F::LAST) store_last<Phase>(g, p, x, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
        else if constexpr (Phase::FINAL && B::VEC_RUN > 0) store_runs<Phase>(g, p, x, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
        else if constexpr (Phase::FINAL && B::COALESCED) store_rows<Phase>(g, p, x, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
        else if constexpr (Phase::FINAL) store_global<Phase>(g, p, x, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
        else store_smem<Phase>(x, tile, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
    }

    template <class Phase>
    static __device__ __forceinline__ void later(const Args& g, const Scheduler& p, S* tile, const unsigned* factors, const C* backs, int group, int warp, int lane) {
        if (Phase::LOCAL) __syncwarp();
        else wait_for_group(group);
#pragma unroll 1
        for (int unit = warp; unit < Phase::UNITS; unit += B::GROUP) {
            KronFragments<B, typename Phase::F, Phase::TILES> x;
            const int swizzle = Phase::ROW_SWIZZLED ? lane % 4 * 8 : 0;
            x.template read_columns<Phase::PITCH>(tile, [&](int own, int column) {
                const int fiber = min(unit * Phase::TILES + own, Phase::FIBERS - 1);
                return Phase::tile_offset(fiber) + ((Phase::right(fiber) + column) ^ (Phase::swizzle(fiber) | swizzle));
            }, lane);
            __syncwarp();
            epilogue<Phase>(g, p, x, tile, factors, backs, unit, lane);
        }
    }

    static __device__ void run(const Args& g) {
        // Stages begin at a multiple of 128 bytes: a copy of 128 bytes would take two transactions otherwise.
        extern __shared__ __align__(128) unsigned char raw[];
        __shared__ float tops[B::FACTORS * B::WARPS];
        __shared__ C backs[B::FACTORS];
        unsigned* factors = (unsigned*)raw;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / B::GROUP, own = warp % B::GROUP;
        T* const all_stages = (T*)(factors + B::FACTOR_WORDS + B::TABLE_WORDS);
        if (B::TABLE_WORDS > 0) {
            for (int i = threadIdx.x; i < First::FIBERS; i += B::THREADS) ((unsigned short*)(factors + B::FACTOR_WORDS))[i] = First::tile_offset(i);
        }
        T* stages = all_stages + warp * B::STAGES * B::STAGE;
        S* tile = (S*)(all_stages + B::WARPS * B::STAGES * B::STAGE) + group * B::TILE;
        if (ROWS && !SHIFTED && !B::DENSE && First::F::COLUMNS % 16) {
            for (int i = lane; i < B::STAGES * B::STAGE; i += 32) stages[i] = T{};
            __syncwarp();
        }
        const int tiles = (int)kron_tiles<B::ITEMS, B::RIGHT>(g), apart = gridDim.x * GROUPS, first = blockIdx.x * GROUPS + group;
        // Lines of more entries leave no registers for them, and more time.
        constexpr bool IN_REGISTERS = First::F::DEEP <= 4;
        Scheduler here(g, g.out_stride, first, apart, IN_REGISTERS), ahead(g, g.x_stride, first, apart, IN_REGISTERS);
        int left = first < tiles ? (tiles - first + apart - 1) / apart : 0, unit_ahead = own;
        const T* const end = SHIFTED || B::DENSE ? kron_end_of<T>(g) : nullptr;
        Pipeline filled, used;
        const auto prefetch = [&]() {
            if (left > 0) {
                if constexpr (B::DENSE) Fetch::fetch_dense(g, ahead, unit_ahead, stages + filled.stage * B::STAGE, end, lane);
                else if constexpr (SHIFTED) Fetch::fetch_shifted(g, ahead, unit_ahead, stages + filled.stage * B::STAGE, end, lane);
                else Fetch::fetch(g, ahead, unit_ahead, stages + filled.stage * B::STAGE, lane);
                unit_ahead += B::GROUP;
                if (unit_ahead >= First::UNITS) {
                    unit_ahead = own;
                    ahead.advance();
                    --left;
                }
            }
            Pipeline::commit();
            filled.advance();
        };
        kron_begin(g.is_later, [&]() { B::prepare(factors, backs, tops, g); }, [&]() {
#pragma unroll 1
            for (int s = 0; s < B::STAGES; ++s) prefetch();
        });
        if (threadIdx.x == 0) backs[B::Final::NUMBER] *= (C)g.alpha;
        __syncthreads();
#pragma unroll 1
        for (int t = first; t < tiles; t += apart, here.advance()) {
#pragma unroll 1
            for (int unit = own; unit < First::UNITS; unit += B::GROUP) {
                Pipeline::template wait<B::STAGES - 1>();
                __syncwarp();
                KronFragments<B, typename First::F, First::TILES> x;
                const T* stage = stages + used.stage * B::STAGE;
                const unsigned short* shifts = (const unsigned short*)(stage + DOWN * B::PITCH);
                if constexpr (B::DENSE) x.template read_dense_rows<First::F::COLUMNS>(stage, *(const unsigned short*)(stage + Fetch::EACH * Fetch::OF_RUN), lane);
                else if constexpr (SHIFTED && ROWS) x.template read_shifted_rows<B::PITCH>(stage, shifts, lane);
                else if constexpr (SHIFTED) x.template read_shifted_columns<B::PITCH>(stage, shifts, lane);
                else if constexpr (ROWS) x.template read_rows<SWIZZLED>(stage, [&](int row) { return (SWIZZLED && First::F::DEEP == 1 ? row ^ row / 2 % 2 : row) * B::PITCH; }, lane);
                else x.template read_columns<B::PITCH>(stage, [&](int tile, int column) { return (16 * tile + column) ^ (SWIZZLED ? Fetch::swizzle_of(lane % 4) : 0); }, lane);
                __syncwarp();
                prefetch();
                used.advance();
                if (!First::FINAL && unit == own) wait_for_group(group);
                epilogue<First>(g, here, x, tile, factors, backs, unit, lane);
            }
            B::later(g, here, tile, factors, backs, group, own, lane);
        }
        ptx::cp_async_wait_all();
    }
};

}  // namespace km

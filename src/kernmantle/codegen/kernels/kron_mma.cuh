// Passes of Kronecker products on tensor cores. The first phase reads from a ring that asynchronous copies fill for
// every warp by itself, later ones from a tile in shared memory that GROUP warps share.
#pragma once
#include "kron_double.cuh"

namespace km {

// Steps from tile to tile of an array without divisions or products; a tile has hundreds of entries, so their numbers are
// small.
template <int ITEMS, int RIGHT>
struct KronWalk {
    // Whether there is more than one tile along the last axis at all.
    static constexpr int BEGIN = RIGHT == 1 ? 1 : 0;
    int count[3], now[4] = {}, step[4] = {}, last_items, last_right;
    // Where the tile begins, what a step adds, and what it adds where a number begins anew.
    i64 at, apart, anew[3];
    template <class Args>
    KM_DEVICE KronWalk(const Args& g, const i64 (&s)[KRON_AXES], int first, int step_by, bool kept)
        : count{int((g.size[KRON_RIGHT] + RIGHT - 1) / RIGHT), int((g.size[KRON_C] + ITEMS - 1) / ITEMS), int(g.size[KRON_B])} {
        digits(now, first);
        digits(step, step_by);
        last_items = int(g.size[KRON_C] - (i64)(count[1] - 1) * ITEMS);
        last_right = int(g.size[KRON_RIGHT] - (i64)(count[0] - 1) * RIGHT);
        const i64 unit[4] = {RIGHT * s[KRON_RIGHT], ITEMS * s[KRON_C], s[KRON_B], s[KRON_A]};
        at = now[0] * unit[0] + now[1] * unit[1] + now[2] * unit[2] + now[3] * unit[3];
        apart = step[0] * unit[0] + step[1] * unit[1] + step[2] * unit[2] + step[3] * unit[3];
#pragma unroll
        for (int i = 0; i < 3; ++i) anew[i] = unit[i + 1] - count[i] * unit[i];
        // Without this they are worked out again for every tile.
        if (kept) ptx::opaque(apart, anew[1], anew[2]);
        if (kept && BEGIN == 0) ptx::opaque(anew[0]);
    }
    KM_DEVICE void digits(int (&to)[4], int t) const {
#pragma unroll
        for (int i = BEGIN; i < 3; ++i) {
            to[i] = t % count[i];
            t /= count[i];
        }
        to[3] = t;
    }
    KM_DEVICE void move() {
        int carry = 0;
        at += apart;
#pragma unroll
        for (int i = BEGIN; i < 3; ++i) {
            now[i] += step[i] + carry;
            carry = now[i] >= count[i];
            now[i] -= carry ? count[i] : 0;
            at += carry ? anew[i] : 0;
        }
        now[3] += step[3] + carry;
    }
    // Entries of the tile that are there.
    KM_DEVICE int items() const { return ITEMS == 1 || now[1] + 1 < count[1] ? ITEMS : last_items; }
    KM_DEVICE int right() const { return RIGHT == 1 || now[0] + 1 < count[0] ? RIGHT : last_right; }
    KM_DEVICE i64 offset(const i64 (&s)[KRON_AXES]) const {
        return now[3] * s[KRON_A] + now[2] * s[KRON_B] + (i64)now[1] * ITEMS * s[KRON_C] + (i64)now[0] * RIGHT * s[KRON_RIGHT];
    }
};

// Where the lines of a unit go in the result or where y has what is added to them.
template <class B, class Phase>
struct KronTarget {
    static constexpr bool LAST = Phase::F::LAST;
    static constexpr int NEAR = 16 / sizeof(typename B::C);
    static constexpr int COUNT = LAST ? 1 : Phase::TILES;
    i64 at[COUNT], step;
    template <class Args>
    KM_DEVICE KronTarget(const Args& g, const i64 (&s)[KRON_AXES], i64 base, int unit, int lane) {
        const i64 run = B::RIGHT == 1 ? 1 : s[KRON_RUN];
        step = LAST ? 8 * s[KRON_C] : 8 * Phase::BEHIND * run;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int line = LAST ? 16 * Phase::TILES * unit + kron_row(lane) : min(unit * Phase::TILES + i, Phase::LINES - 1);
            at[i] = base + Phase::item(line) * s[KRON_C]
                    + (LAST ? 0 : (Phase::run_out(line) + kron_row(lane) * Phase::BEHIND) * run + Phase::right(line)) + NEAR * (lane % 4);
        }
    }
    KM_DEVICE i64 place(int w, int tile, int h, int n) const {
        return LAST ? at[0] + (2 * tile + h) * step + 16 * w + 8 * n : at[LAST ? 0 : tile] + (2 * w + h) * step + 8 * n;
    }
};

// What is B's: the types T of arrays, H of operands and C of sums; First and the later phases; and how many warps share a tile (GROUP).
template <class B, class Args>
struct KronMma {
    typedef typename B::T T;
    typedef typename B::C C;
    typedef typename B::First First;
    typedef KronWalk<B::ITEMS, B::RIGHT> Walk;
    static constexpr bool ROWS = First::F::LAST;
    static constexpr int GROUPS = B::WARPS / B::GROUP, DOWN = ROWS ? 16 * First::TILES : First::F::COLUMNS, ENTRIES = B::COPY / (int)sizeof(T);
    // Neighbours of the result that one lane has.
    static constexpr int NEAR = 16 / sizeof(C);
    static constexpr int PER = (ROWS ? First::F::COLUMNS : B::RIGHT) / ENTRIES;
    // Whether neighbours in the ring change places so that lanes served together meet in no bank; else lines are apart.
    static constexpr bool TURNED = sizeof(T) == 4 && B::PITCH % 16 == 0;

    // Place of an entry of a line of the ring.
    static __device__ __forceinline__ int spot(int row, int along) {
        if (!TURNED) return row * B::PITCH + along;
        return ROWS ? (row * B::PITCH + along) ^ row / 2 % 2 * 16 : row * B::PITCH + (along ^ row % 4 * 8);
    }

    // Starts the copies of one unit of the first phase.
    static __device__ __forceinline__ void fetch(const Args& g, const Walk& p, int unit, T* stage, int lane) {
        const T* from = (const T*)g.x + p.at;
        const int items = p.items(), right = p.right();
        if (!ROWS) from += First::item(unit * First::TILES) * g.x_stride[KRON_C] + First::run(unit * First::TILES) * g.x_stride[KRON_RUN];
        const bool inside = ROWS || First::item(unit * First::TILES) < items;
        constexpr bool EVEN = 32 % PER == 0;
        const i64 step = 32 / PER * g.x_stride[KRON_RUN];
        const int mine = lane / PER, at = lane % PER * ENTRIES;
        const unsigned to = shared_address(stage + spot(mine, at));
#pragma unroll
        for (int n = 0; n < DOWN * PER; n += 32) {
            if (DOWN * PER % 32 && n + lane >= DOWN * PER) break;
            const int row = EVEN ? n / PER + mine : (n + lane) / PER, along = EVEN ? at : (n + lane) % PER * ENTRIES;
            const T* own;
            bool given = inside;
            if (ROWS) {
                const int line = unit * DOWN + row, item = First::item(line);
                own = from + item * g.x_stride[KRON_C] + First::run(line) + along;
                given = line < First::LINES && item < items;
            } else {
                own = EVEN ? from + mine * g.x_stride[KRON_RUN] + at + n / 32 * step : from + row * g.x_stride[KRON_RUN] + along;
                given = inside && along < right;
            }
            constexpr bool ALIKE = EVEN && (!TURNED || 32 / PER % 4 == 0);
            const unsigned there = ALIKE ? to + n / PER * B::PITCH * (int)sizeof(T) : shared_address(stage + spot(row, along));
            ptx::cp_async<B::COPY>(there, own, given ? B::COPY : 0);
        }
    }

    static __device__ __forceinline__ void wait_for_group(int group) {
        if (B::GROUP == 1) __syncwarp();
        else if (B::GROUP == B::WARPS) __syncthreads();
        else ptx::bar_sync<B::GROUP * 32>(group + 1);
    }

    // Neighbouring results, of which `room` are there.
    static __device__ __forceinline__ void store(const Args& g, i64 to, i64 beside, int room, const C (&value)[NEAR]) {
        typedef Pack<T, B::VEC_OUT> Out;
#pragma unroll
        for (int v = 0; v < NEAR; v += B::VEC_OUT) {
            if (v >= room) break;
            Out pack, added;
            if (B::ADDED) added = *(const Out*)((const T*)g.y + beside + v);
#pragma unroll
            for (int i = 0; i < B::VEC_OUT; ++i)
                pack.v[i] = Store<T>::from(B::ADDED ? fma((C)g.beta, convert<C>(added.v[i]), value[v + i]) : value[v + i]);
            store_pack<T, B::VEC_OUT>((T*)g.out + to + v, pack);
        }
    }

    // Lines of one unit of the last phase to the result.
    template <class Phase, class Lines>
    static __device__ __forceinline__ void give_out(const Args& g, const Walk& p, const Lines& x, const unsigned* factor, C back, int unit, int lane) {
        constexpr bool LAST = Phase::F::LAST, ROUND = Phase::F::ROWS % 16 == 0;
        const KronTarget<B, Phase> to(g, g.out_stride, p.at, unit, lane), beside(g, g.y_stride, B::ADDED ? p.offset(g.y_stride) : 0, unit, lane);
        const int items = p.items(), right = p.right();
        int room[Phase::TILES];
#pragma unroll
        for (int i = 0; i < Phase::TILES; ++i) {
            const int line = unit * Phase::TILES + i;
            room[i] = (B::RIGHT == 1 ? Phase::EXTENT : right) - Phase::right(line) - NEAR * (lane % 4);
            if (line >= Phase::LINES || Phase::item(line) >= items) room[i] = 0;
        }
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int tile, int h, int n, const C (&value)[NEAR]) {
            int here;
            if (LAST) {
                here = 16 * Phase::TILES * unit + 16 * tile + 8 * h + kron_row(lane) < items ? (ROUND ? NEAR : Phase::EXTENT - 16 * w - 8 * n - NEAR * (lane % 4)) : 0;
            } else {
                here = ROUND || 16 * w + 8 * h + kron_row(lane) < Phase::F::ROWS ? room[tile] - 8 * n : 0;
            }
            if (here > 0) store(g, to.place(w, tile, h, n), B::ADDED ? beside.place(w, tile, h, n) : 0, here, value);
        });
    }

    // Lines of one unit of an earlier phase to the tile.
    template <class Phase, class Lines>
    static __device__ __forceinline__ void keep(const Lines& x, C* tile, const unsigned* factor, C back, int unit, int lane) {
        constexpr bool LAST = Phase::F::LAST;
        constexpr int LINES = LAST ? 2 * Phase::TILES : Phase::TILES, EACH = LAST ? 8 : 1;
        C* to[LINES];
        // By how much columns have changed places: by the row of the lane or by that of the line.
        const int turn = Phase::ROW_TURNED ? kron_row(lane) % 4 * 8 : 0;
#pragma unroll
        for (int i = 0; i < LINES; ++i) {
            const int line = EACH * (unit * LINES + i) + (LAST ? kron_row(lane) : 0);
            const int along = LAST ? 0 : ((Phase::right(line) + NEAR * (lane % 4)) ^ (Phase::turn(line) | turn)) + kron_row(lane) * Phase::PITCH;
            to[i] = line < Phase::LINES ? tile + Phase::place(line) + along : nullptr;
        }
        kron_multiply<B, typename Phase::F, Phase::TILES>(x, factor, back, lane, [&](int w, int own, int h, int n, const C (&value)[NEAR]) {
            C* at = to[LAST ? 2 * own + h : own];
            if (Phase::LINES % (EACH * LINES) && at == nullptr) return;
            if (!LAST && Phase::F::ROWS % 16 && 16 * w + 8 * h + kron_row(lane) >= Phase::F::ROWS) return;
            Pack<C, NEAR> pack;
#pragma unroll
            for (int i = 0; i < NEAR; ++i) pack.v[i] = value[i];
            *(Pack<C, NEAR>*)(at + (LAST ? (16 * w + NEAR * (lane % 4)) ^ turn : (16 * w + 8 * h) * Phase::PITCH) + 8 * n) = pack;
        });
    }

    template <class Phase, class Lines>
    static __device__ __forceinline__ void finish(const Args& g, const Walk& p, const Lines& x, C* tile, const unsigned* factors, const C* backs, int unit, int lane) {
        if constexpr (Phase::FINAL) give_out<Phase>(g, p, x, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
        else keep<Phase>(x, tile, factors + Phase::OFFSET, backs[Phase::NUMBER], unit, lane);
    }

    template <class Phase>
    static __device__ __forceinline__ void later(const Args& g, const Walk& p, C* tile, const unsigned* factors, const C* backs, int group, int warp, int lane) {
        if (Phase::LOCAL) __syncwarp();
        else wait_for_group(group);
#pragma unroll 1
        for (int unit = warp; unit < Phase::UNITS; unit += B::GROUP) {
            KronLines<B, typename Phase::F, Phase::TILES> x;
            const int turn = Phase::ROW_TURNED ? lane % 4 * 8 : 0;
            x.template read_columns<Phase::PITCH>(tile, [&](int own, int column) {
                const int line = min(unit * Phase::TILES + own, Phase::LINES - 1);
                return Phase::place(line) + ((Phase::right(line) + column) ^ (Phase::turn(line) | turn));
            }, lane);
            __syncwarp();
            finish<Phase>(g, p, x, tile, factors, backs, unit, lane);
        }
    }

    static __device__ void run(const Args& g) {
        // Copies of 128 bytes, all of the ring, begin at a multiple of that: else each takes two turns.
        extern __shared__ __align__(128) unsigned char raw[];
        __shared__ float tops[B::FACTORS * B::WARPS];
        __shared__ C backs[B::FACTORS];
        unsigned* factors = (unsigned*)raw;
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / B::GROUP, own = warp % B::GROUP;
        T* const rings = (T*)(factors + B::FACTOR_WORDS);
        T* ring = rings + warp * B::STAGES * B::STAGE;
        C* tile = (C*)(rings + B::WARPS * B::STAGES * B::STAGE) + group * B::TILE;
        if (ROWS && First::F::COLUMNS % 16) {
            for (int i = lane; i < B::STAGES * B::STAGE; i += 32) ring[i] = T{};
            __syncwarp();
        }
        const int tiles = (int)kron_tiles<B::ITEMS, B::RIGHT>(g), apart = gridDim.x * GROUPS, first = blockIdx.x * GROUPS + group;
        // Lines of more entries leave no registers for them, and more time.
        constexpr bool KEPT = First::F::DEEP <= 4;
        Walk here(g, g.out_stride, first, apart, KEPT), ahead(g, g.x_stride, first, apart, KEPT);
        int left = first < tiles ? (tiles - first + apart - 1) / apart : 0, unit_ahead = own, slot_ahead = 0, slot = 0;
        const auto prefetch = [&]() {
            if (left > 0) {
                fetch(g, ahead, unit_ahead, ring + slot_ahead * B::STAGE, lane);
                unit_ahead += B::GROUP;
                if (unit_ahead >= First::UNITS) {
                    unit_ahead = own;
                    ahead.move();
                    --left;
                }
            }
            ptx::cp_async_commit_group();
            slot_ahead = slot_ahead + 1 == B::STAGES ? 0 : slot_ahead + 1;
        };
#pragma unroll 1
        for (int s = 0; s < B::STAGES; ++s) prefetch();
        B::prepare(factors, backs, tops, g);
        if (threadIdx.x == 0) backs[B::Final::NUMBER] *= (C)g.alpha;
        __syncthreads();
#pragma unroll 1
        for (int t = first; t < tiles; t += apart, here.move()) {
#pragma unroll 1
            for (int unit = own; unit < First::UNITS; unit += B::GROUP) {
                ptx::cp_async_wait_group<B::STAGES - 1>();
                __syncwarp();
                KronLines<B, typename First::F, First::TILES> x;
                const T* stage = ring + slot * B::STAGE;
                if constexpr (ROWS) x.template read_rows<TURNED>(stage, [&](int row) { return (TURNED && First::F::DEEP == 1 ? row ^ row / 2 % 2 : row) * B::PITCH; }, lane);
                else x.template read_columns<B::PITCH>(stage, [&](int tile, int column) { return (16 * tile + column) ^ (TURNED ? lane % 4 * 8 : 0); }, lane);
                __syncwarp();
                prefetch();
                slot = slot + 1 == B::STAGES ? 0 : slot + 1;
                if (!First::FINAL && unit == own) wait_for_group(group);
                finish<First>(g, here, x, tile, factors, backs, unit, lane);
            }
            B::later(g, here, tile, factors, backs, group, own, lane);
        }
        ptx::cp_async_wait_all();
    }
};

}  // namespace km

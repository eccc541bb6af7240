// How units of the first phase of a pass on tensor cores come to shared memory (kron_mma.cuh): by asynchronous copies of each warp.
#pragma once
#include "kron_scheduler.cuh"
#include "pipeline.cuh"

namespace km {

template <class B, class Args>
struct KronFetch {
    typedef typename B::T T;
    typedef typename B::First First;
    typedef KronTileScheduler<B::ITEMS, B::RIGHT> Scheduler;
    static constexpr bool ROWS = First::F::LAST;
    static constexpr int DOWN = ROWS ? 16 * First::TILES : First::F::COLUMNS, ENTRIES = B::COPY / (int)sizeof(T);
    static constexpr int PER = (ROWS ? First::F::COLUMNS : B::RIGHT) / ENTRIES;
    // Whether rows begin anywhere: they are copied with what fills 16 bytes at either end, and a stage ends with where they begin.
    static constexpr bool SHIFTED = sizeof(T) == 2 && B::COPY == 2;
    static constexpr int CHUNKS = ((ROWS ? First::F::COLUMNS : B::RIGHT) + 14) / 8;
    static_assert(!SHIFTED || B::DENSE || B::PITCH == 8 * (CHUNKS + (CHUNKS % 2 == 0)), "rows and what is copied with them, in different banks");
    // Pieces of 16 bytes of all rows of a unit that follow each other, which are copied as one.
    static constexpr int EACH = 16 / (int)sizeof(T), OF_RUN = (DOWN * First::F::COLUMNS + 2 * EACH - 2) / EACH;
    // Whether a stage is swizzled so that lanes that are served together read different banks; else its rows are padded for that.
    static constexpr bool SWIZZLED = sizeof(T) == 4 && B::PITCH % 16 == 0;

    // Index in a stage of an entry of one of its rows.
    static __device__ __forceinline__ int spot(int row, int along) {
        if (!SWIZZLED) return row * B::PITCH + along;
        return ROWS ? (row * B::PITCH + along) ^ row / 2 % 2 * 16 : row * B::PITCH + (along ^ swizzle_of(row));
    }
    // By how much entries along a row of columns have changed places: of 16 only halves can.
    static __device__ __forceinline__ int swizzle_of(int row) { return B::PITCH == 16 ? row / 2 % 2 * 8 : row % 4 * 8; }

    // Where the row of that number begins in memory, and how many of its entries are there.
    static __device__ __forceinline__ int row_of(const Args& g, const T*& from, int unit, int row, int items, int right) {
        const int fiber = ROWS ? unit * DOWN + row : unit * First::TILES, item = First::item(fiber);
        from += item * g.x_stride[KRON_C] + First::run(fiber) * (ROWS ? 1 : g.x_stride[KRON_RUN]) + (ROWS ? 0 : row * g.x_stride[KRON_RUN]);
        return (!ROWS || fiber < First::FIBERS) && item < items ? (ROWS ? First::F::COLUMNS : min(B::RIGHT, right)) : 0;
    }
    // Starts the copies of one unit whose rows begin anywhere; no more is read of the array than what is there.
    static __device__ __forceinline__ void fetch_shifted(const Args& g, const Scheduler& p, int unit, T* stage, const T* end, int lane) {
        const int items = p.items(), right = p.right();
        unsigned short* shifts = (unsigned short*)(stage + DOWN * B::PITCH);
#pragma unroll 4
        for (int n = lane; n < DOWN * CHUNKS; n += 32) {
            const int row = n / CHUNKS, chunk = n % CHUNKS;
            const T* from = (const T*)g.x + p.at;
            const int length = row_of(g, from, unit, row, items, right), shift = (int)((unsigned long long)from % 16) / 2;
            const T* own = from - shift + 8 * chunk;
            T* to = stage + row * B::PITCH + 8 * chunk;
            const bool valid = length > 0 && 8 * chunk < length + shift;
            if (valid && own + 8 > end) {
                for (int i = 0; i < 8; ++i) to[i] = own + i < end ? own[i] : T{};
            } else {
                ptx::cp_async<16>(shared_address(to), valid ? own : (const T*)g.x - (unsigned long long)g.x % 16 / 2, valid ? 16 : 0);
            }
            if (chunk == 0) shifts[row] = shift;
        }
    }

    // The same of rows that follow each other in memory: as one run, which begins where the stage ends with.
    static __device__ __forceinline__ void fetch_dense(const Args& g, const Scheduler& p, int unit, T* stage, const T* end, int lane) {
        const T* const from = (const T*)g.x + p.at + unit * DOWN * First::F::COLUMNS;
        const int shift = (int)((unsigned long long)from % 16) / (int)sizeof(T), rows = min(DOWN, min(First::FIBERS, p.items() * (First::FIBERS / B::ITEMS)) - unit * DOWN);
        // Behind the last row lie others of the array, unless it ends there.
        const int length = rows > 0 ? rows * First::F::COLUMNS + shift : 0;
        const T* const own = from - shift + EACH * lane;
        const unsigned to = shared_address(stage + EACH * lane);
        const bool is_inside = from - shift + EACH * OF_RUN <= end;
#pragma unroll
        for (int n = 0; n < OF_RUN; n += 32)
            if (is_inside && (n + 32 <= OF_RUN || n + lane < OF_RUN)) ptx::cp_async<16>(to + 16 * n, own + EACH * n, 16);
        if (!is_inside) {
#pragma unroll 1
            for (int n = shift + lane; n < length; n += 32) stage[n] = from[n - shift];
        }
        if (lane == 0) *(unsigned short*)(stage + EACH * OF_RUN) = shift;
    }

    // Starts the copies of one unit of the first phase.
    static __device__ __forceinline__ void fetch(const Args& g, const Scheduler& p, int unit, T* stage, int lane) {
        const T* from = (const T*)g.x + p.at;
        const int items = p.items(), right = p.right();
        if (!ROWS) from += First::item(unit * First::TILES) * g.x_stride[KRON_C] + First::run(unit * First::TILES) * g.x_stride[KRON_RUN];
        const bool inside = ROWS || First::item(unit * First::TILES) < items;
        constexpr bool EVEN = 32 % PER == 0;
        const i64 step = 32 / PER * g.x_stride[KRON_RUN];
        const int mine = lane / PER, at = lane % PER * ENTRIES;
        const unsigned to = shared_address(stage + spot(mine, at));
        // Whole where copies are asynchronous; `break` below would leave a loop behind it, with every copy a second time.
        constexpr int UNROLL = B::COPY >= 4 ? (DOWN * PER + 31) / 32 : 8;
#pragma unroll UNROLL
        for (int n = 0; n < DOWN * PER; n += 32) {
            if (DOWN * PER % 32 && n + lane >= DOWN * PER) continue;
            const int row = EVEN ? n / PER + mine : (n + lane) / PER, along = EVEN ? at : (n + lane) % PER * ENTRIES;
            const T* own;
            bool valid = inside;
            if (ROWS) {
                const int fiber = unit * DOWN + row, item = First::item(fiber);
                own = from + item * g.x_stride[KRON_C] + First::run(fiber) + along;
                valid = fiber < First::FIBERS && item < items;
            } else {
                own = EVEN ? from + mine * g.x_stride[KRON_RUN] + at + n / 32 * step : from + row * g.x_stride[KRON_RUN] + along;
                valid = inside && along < right;
            }
            constexpr bool ALIKE = EVEN && (!SWIZZLED || 32 / PER % 4 == 0);
            if constexpr (B::COPY >= 4) {
                const unsigned there = ALIKE ? to + n / PER * B::PITCH * (int)sizeof(T) : shared_address(stage + spot(row, along));
                ptx::cp_async<B::COPY>(there, own, valid ? B::COPY : 0);
            } else {
                stage[spot(row, along)] = valid ? *own : T{};
            }
        }
    }
};

}  // namespace km

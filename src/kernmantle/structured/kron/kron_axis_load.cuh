// Loaders of passes of Kronecker products over one factor by wgmma (kron_axis.cuh): eight warps bring pieces of x, in sets that take them
// in turn. They have the numbers of a piece in registers while they wait for them or, of float32 where these would be many, in shared
// memory (COPIES pieces of each set), where each thread reads what it copied itself.
#pragma once
#include "kron_axis_tile.cuh"
#include "reduce.cuh"

namespace km {

template <class B, class Args>
struct KronAxisLoader : KronAxisTile<B, Args> {
    typedef KronAxisTile<B, Args> Tile;
    using typename Tile::T, typename Tile::Piece, typename Tile::Unit, typename Tile::Scheduler, typename Tile::State;
    using Tile::SPLIT, Tile::COLUMNS, Tile::CHUNKS, Tile::DEEP, Tile::STAGES, Tile::COPIES, Tile::SETS, Tile::LOADERS;
    using Tile::SET, Tile::FIBERS, Tile::DEPTH, Tile::PIECE, Tile::VECTOR, Tile::UNIT, Tile::LANES;
    using Tile::ACROSS, Tile::AT_ONCE, Tile::STEP, Tile::LOADS, Tile::ALONE, Tile::COPY, Tile::spot;
    using Tile::fibers_of, Tile::begin_of, Tile::column_of, Tile::block, Tile::blocks, Tile::steps, Tile::top_of, Tile::tops_of;
    using Tile::exchange_tops, Tile::scales_of, Tile::keep, Tile::keep_each;

    // Units of the next piece are asked for behind the fence of the one before, which would wait for them.
    static __device__ void load(const Args& g, unsigned char* stages, Piece* pieces, PipelineBarriers<STAGES> barriers, float* tops, int tiles) {
        const int set = (threadIdx.x - 256) / SET, lane = threadIdx.x % 32, warp = threadIdx.x % SET / 32;
        const int row = warp * AT_ONCE + lane / LANES, column = lane % LANES * UNIT;
        // Sets take pieces in turn: parts of each tile, or all of them.
        constexpr int SKIP = SETS > CHUNKS ? SETS / CHUNKS : 1;
        static_assert((SETS % CHUNKS == 0 || SETS == 1) && STAGES % SETS == 0, "a set has one chunk of every tile, or all, and stages of its own");
        const int apart = blocks() * SKIP;
        const i64 step = g.x_stride[KRON_RUN];
        int number = block() + set / CHUNKS * blocks(), chunk = set % CHUNKS, fibers = 0, begin = 0, deep = COLUMNS;
        Scheduler tile(g, g.x_stride, number, apart, false);
        Unit v[LOADS][ACROSS];
        i64 out = 0;
        // What is not there is read from what is, so that loads need no branches. `each` gets the address of a row, and where a load is.
        const auto loads = [&](int chunk, auto each) {
            const int last = (CHUNKS > 1 ? min(DEEP, COLUMNS - chunk * DEEP) : DEPTH) - 1;
            const T* const from = (const T*)g.x + tile.at + (chunk * DEEP + min(row, last)) * step;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) {
                const bool is_there = (CHUNKS == 1 && (i + 1) * STEP <= DEPTH) || row + i * STEP <= last;
                const T* const own = from + (is_there ? i * STEP : 0) * step;
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) each(i, j, own, column + j * (LANES * UNIT));
            }
        };
        // The number of the column of a load, of columns that are there.
        const auto along_of = [&](int at, int there) { return column_of(begin_of(tile) + min(at, there - VECTOR), g.x_stride[KRON_C]); };
        const auto ask = [&]() {
            const int there = fibers_of(tile);
            fibers = there;
            begin = begin_of(tile);
            deep = CHUNKS > 1 ? min(DEEP, COLUMNS - chunk * DEEP) : COLUMNS;
            out = tile.offset(g.out_stride);
            loads(chunk, [&](int i, int j, const T* own, int along) {
                if constexpr (UNIT == VECTOR) {
                    v[i][j] = load_pack<T, UNIT>(own + along_of(along, there));
                } else {
#pragma unroll
                    for (int n = 0; n < UNIT; ++n) v[i][j].v[n] = load_pack<T, 1>(own + along_of(along + n, there)).v[0];
                }
            });
            if (SETS % CHUNKS == 0 || ++chunk == CHUNKS) {
                if (SETS % CHUNKS) chunk = 0;
                tile.advance();
                number += apart;
            }
            if (!B::PREFETCH || number >= tiles || lane % (128 / (int)sizeof(Unit)) != 0) return;
            const int later = fibers_of(tile);
            loads(chunk, [&](int, int, const T* own, int along) { ptx::prefetch_global_l2(own + along_of(along, later)); });
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
            if (CHUNKS > 1) {
#pragma unroll
                for (int i = 0; i < LOADS * ACROSS * UNIT; ++i) {
                    const int at = row + i / UNIT / ACROSS * STEP;
                    T& own = v[i / UNIT / ACROSS][i / UNIT % ACROSS].v[i % UNIT];
                    own = at < deep ? own : T{};
                }
            }
            HalfScale scale{1.0f, 1.0f};
            float by[ALONE ? ACROSS : 1][UNIT], inverse[ALONE ? ACROSS : 1][UNIT];
            if constexpr (ALONE) {
                // Of each column by itself: entries of the batch keep their own accuracy.
                float* const shared = tops + (2 * set + parity) * LOADERS * FIBERS;
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) exchange_tops(shared + warp * FIBERS + column + j * (LANES * UNIT), tops_of(v, j), lane);
                ptx::bar_sync<SET>(3 + set);
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) scales_of(shared + column + j * (LANES * UNIT), by[j], inverse[j]);
            } else if constexpr (SPLIT) {
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
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    const int along = column + j * (LANES * UNIT);
                    if (DEPTH % STEP == 0 || down < DEPTH) {
                        if constexpr (ALONE) keep_each(to + spot(down, along), v[i][j], by[j]);
                        else keep(to + spot(down, along), v[i][j], scale.scale);
                    }
                }
            }
            if constexpr (ALONE) {
#pragma unroll
                for (int j = 0; j < ACROSS; ++j)
                    if (threadIdx.x % SET < LANES) *(Pack<float, UNIT>*)(piece.inverse + column + j * (LANES * UNIT)) = *(const Pack<float, UNIT>*)inverse[j];
            }
            if (lane == 0 && warp == 0) {
                if (SPLIT && !ALONE) piece.inverse[0] = scale.inverse;
                piece.fibers = fibers;
                piece.begin = begin;
                piece.out = out;
            }
            ptx::fence_proxy_async();
            __syncwarp();
            if (ALONE || lane == 0) ptx::mbarrier_arrive(barriers.full(state.stage));
            if (left > SETS) ask();
#pragma unroll
            for (int i = 0; i < SETS; ++i) state.advance();
        }
    }

    // What is noted of a piece that is copied.
    struct Note {
        int fibers, begin;
        i64 out;
    };
    // The same by copies that no thread waits for: a thread reads what it copied itself.
    static __device__ void load_copied(const Args& g, unsigned char* stages, unsigned char* copies, Piece* pieces, PipelineBarriers<STAGES> barriers, float* tops, Note* notes, int tiles) {
        const int set = (threadIdx.x - 256) / SET, lane = threadIdx.x % 32, warp = threadIdx.x % SET / 32, thread = threadIdx.x % SET;
        const int row = warp * AT_ONCE + lane / LANES, column = lane % LANES * UNIT;
        constexpr int ROLLED = B::LOADER_REGISTERS < 64 ? 2 : 4, EACH = UNIT / VECTOR, SKIP = SETS > CHUNKS ? SETS / CHUNKS : 1, BETWEEN = SET * VECTOR * 4;
        static_assert((SETS % CHUNKS == 0 || SETS == 1) && STAGES % SETS == 0, "a set has one chunk of every tile, or all, and stages of its own");
        const i64 step = g.x_stride[KRON_RUN];
        Scheduler tile(g, g.x_stride, block() + set / CHUNKS * blocks(), blocks() * SKIP, false);
        int left = steps(tiles) * CHUNKS - set, ahead = left, chunk = set % CHUNKS, slot = 0;
        unsigned char* const own_copies = copies + set * (COPIES * COPY) + thread * VECTOR * 4;
        notes += set * COPIES;
        const auto copy = [&](int slot) {
            if (ahead > 0) {
                const int there = fibers_of(tile), deep = CHUNKS > 1 ? min(DEEP, COLUMNS - chunk * DEEP) : COLUMNS, last = deep - 1;
                const T* const from = (const T*)g.x + tile.at + (chunk * DEEP + min(row, last)) * step;
                const unsigned to = shared_address(own_copies + slot * COPY);
                const T* own[ACROSS * EACH];
#pragma unroll
                for (int j = 0; j < ACROSS * EACH; ++j) {
                    const int at = column + j / EACH * (LANES * UNIT) + j % EACH * VECTOR;
                    own[j] = from + column_of(begin_of(tile) + min(at, there - VECTOR), g.x_stride[KRON_C]);
                }
                // What is not there is copied from the last row that is.
#pragma unroll(ROLLED)
                for (int i = 0; i < LOADS; ++i) {
                    const i64 further = row + (i + 1) * STEP <= last ? STEP * step : 0;
#pragma unroll
                    for (int j = 0; j < ACROSS * EACH; ++j) {
                        ptx::cp_async<VECTOR * 4>(to + (i * ACROSS * EACH + j) * BETWEEN, own[j]);
                        own[j] += further;
                    }
                }
                if (thread == 0) notes[slot] = {there, begin_of(tile), tile.offset(g.out_stride)};
                if (SETS % CHUNKS == 0 || ++chunk == CHUNKS) {
                    if (SETS % CHUNKS) chunk = 0;
                    tile.advance();
                }
                ahead -= SETS;
            }
            CopyPipeline<COPIES>::commit();
        };
#pragma unroll 1
        for (int s = 0; s < COPIES; ++s) copy(s);
        State state;
        state.phase = 1;
        for (int i = 0; i < set; ++i) state.advance();
#pragma unroll 1
        for (int number = 0; left > 0; left -= SETS, ++number) {
            const int deep = CHUNKS > 1 && (SETS % CHUNKS ? number : set) % CHUNKS + 1 == CHUNKS ? COLUMNS - (CHUNKS - 1) * DEEP : DEPTH;
            const unsigned char* const from = own_copies + slot * COPY;
            const auto read = [&](int i, int j, bool is_any) {
                Unit found;
#pragma unroll
                for (int m = 0; m < EACH; ++m) {
                    const Pack<T, VECTOR> own = *(const Pack<T, VECTOR>*)(from + ((i * ACROSS + j) * EACH + m) * BETWEEN);
#pragma unroll
                    for (int n = 0; n < VECTOR; ++n) {
                        found.v[m * VECTOR + n] = is_any || CHUNKS == 1 || row + i * STEP < deep ? own.v[n] : T{};
                    }
                }
                return found;
            };
            CopyPipeline<COPIES>::template wait<COPIES - 1>();
            float by[ACROSS][UNIT], inverse[ACROSS][UNIT];
            float* const shared = tops + (2 * set + number % 2) * (LOADERS * FIBERS);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) {
                Pack<float, UNIT> top{};
#pragma unroll(ROLLED)
                for (int i = 0; i < LOADS; ++i) {
                    const Unit own = read(i, j, true);
#pragma unroll
                    for (int n = 0; n < UNIT; ++n) top.v[n] = fmaxf(top.v[n], fabsf(own.v[n]));
                }
                exchange_tops(shared + warp * FIBERS + column + j * (LANES * UNIT), top, lane);
            }
            ptx::bar_sync<SET>(3 + set);
#pragma unroll
            for (int j = 0; j < ACROSS; ++j) scales_of(shared + column + j * (LANES * UNIT), by[j], inverse[j]);
            ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
            unsigned char* const to = stages + state.stage * PIECE;
            Piece& piece = pieces[state.stage];
#pragma unroll(ROLLED)
            for (int i = 0; i < LOADS; ++i) {
                const int down = row + i * STEP;
                Unit own[ACROSS];
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) own[j] = read(i, j, false);
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    const int along = column + j * (LANES * UNIT);
                    if (DEPTH % STEP == 0 || down < DEPTH) keep_each(to + spot(down, along), own[j], by[j]);
                }
            }
#pragma unroll
            for (int j = 0; j < ACROSS; ++j)
                if (thread < LANES) *(Pack<float, UNIT>*)(piece.inverse + column + j * (LANES * UNIT)) = *(const Pack<float, UNIT>*)inverse[j];
            if (thread == 0) {
                const Note own = notes[slot];
                piece.fibers = own.fibers, piece.begin = own.begin, piece.out = own.out;
            }
            ptx::fence_proxy_async();
            __syncwarp();
            ptx::mbarrier_arrive(barriers.full(state.stage));
            copy(slot);
            slot = slot + 1 < COPIES ? slot + 1 : 0;
#pragma unroll
            for (int i = 0; i < SETS; ++i) state.advance();
        }
    }
};

}  // namespace km

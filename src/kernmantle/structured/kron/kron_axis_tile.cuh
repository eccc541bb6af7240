// Tiles of passes of Kronecker products over one factor by wgmma (kron_axis.cuh): how they lie, and how numbers become halves.
#pragma once
#include "kron_scheduler.cuh"
#include "layout.cuh"
#include "pipeline.cuh"
#include "split_hi_lo.cuh"

namespace km {

template <bool IS, class A, class B>
struct Either {
    typedef A Type;
};
template <class A, class B>
struct Either<false, A, B> {
    typedef B Type;
};

// The tiles of a block, as KronTileScheduler has them, of FIBERS columns: those of several entries of the batch one after another, of RIGHT
// columns each.
template <int FIBERS, int RIGHT>
struct KronFiberScheduler {
    int entry, column, number, tiles, step, outer = 0, entries, batches;
    i64 at = 0, apart;
    template <class Args>
    static KM_DEVICE int tiles_of(const Args& g) {
        return int((g.size[KRON_C] * RIGHT + FIBERS - 1) / FIBERS);
    }
    template <class Args>
    KM_DEVICE KronFiberScheduler(const Args& g, const i64 (&s)[KRON_AXES], int first, int step_by, bool)
        : number(first), tiles(tiles_of(g)), step(step_by), entries(int(g.size[KRON_C])), batches(int(g.size[KRON_B])), apart(s[KRON_C]), strides{s[KRON_B], s[KRON_A]} {
        locate();
    }
    KM_DEVICE void locate() {
        outer += number / tiles;
        number %= tiles;
        const i64 first = (i64)number * FIBERS;
        entry = int(first / RIGHT);
        column = int(first % RIGHT);
        at = outer_offset(strides) + entry * apart;
    }
    KM_DEVICE void advance() {
        number += step;
        if (number >= tiles) return locate();
        const int columns = step * FIBERS;
        entry += columns / RIGHT;
        column += columns % RIGHT;
        if (column >= RIGHT) column -= RIGHT, ++entry;
        at = outer_offset(strides) + entry * apart;
    }
    // Columns of the tile that are there.
    KM_DEVICE int fibers() const { return number + 1 < tiles ? FIBERS : int((i64)entries * RIGHT - (i64)number * FIBERS); }
    KM_DEVICE i64 offset(const i64 (&s)[KRON_AXES]) const {
        const i64 own[2] = {s[KRON_B], s[KRON_A]};
        return outer_offset(own) + entry * s[KRON_C];
    }
    // Where a column is, of so many behind the beginning of the tile's first entry of the batch.
    static KM_DEVICE i64 along(int column, i64 apart) { return column / RIGHT * apart + column % RIGHT; }

private:
    i64 strides[2];
    KM_DEVICE i64 outer_offset(const i64 (&s)[2]) const { return outer == 0 ? 0 : outer % batches * s[0] + outer / batches * s[1]; }
};

// What a piece in shared memory has beside its entries: the inverses of what its fibers were multiplied by, how many of them there
// are, where the results go, and how many columns of an entry of the batch lie before its own.
template <int SCALES>
struct KronFiberPiece {
    float inverse[SCALES];
    int fibers, begin;
    i64 out;
};

// Two numbers as an operand of tensor cores.
KM_DEVICE unsigned kron_operand(f16, float a, float b) { return ptx::pack_f16x2(a, b); }
KM_DEVICE unsigned kron_operand(bf16, float a, float b) { return ptx::pack_bf16x2(a, b); }

// Two numbers as high and low halves, each scaled by itself.
KM_DEVICE void kron_split_each(unsigned& high, unsigned& low, float a, float b, float scale_a, float scale_b) {
    high = ptx::pack_f16x2(a * scale_a, b * scale_b);
    const float2 rounded = ptx::unpack_f16x2(high);
    low = ptx::pack_f16x2(fmaf(a, scale_a, -rounded.x), fmaf(b, scale_b, -rounded.y));
}

// The parameters of a pass, members of B (tensor_emit.py):
//   T, H                 type of x and the result, and of the operands of tensor cores
//   ROWS, COLUMNS        of the factor; `down` says whether its neighbouring rows follow each other in memory, `entry` gives one
//   BLOCKS               fibers, in 64s, that a group of warps multiplies at a time
//   RIGHT                columns to the right of the axis where a tile has those of several entries of the batch, else 0
//   VECTOR, VECTOR_OUT   neighbours of x in one load, and of the result in one store
//   STAGES, SETS         pieces in shared memory, and sets of warps that load one each
//   COPIES               pieces of float32 of each set that wait in shared memory, 0 where they wait in registers
//   LOADER_REGISTERS     of a thread that loads
//   PREFETCH, SCALED     x comes to the second-level cache ahead; the factor is multiplied by a power of two
template <class B, class Args>
struct KronAxisTile {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr bool SPLIT = sizeof(T) == 4, BOTH = B::ROWS > 64 || B::COLUMNS > 64;
    static constexpr int ROWS = B::ROWS, COLUMNS = B::COLUMNS, CHUNKS = (COLUMNS + 127) / 128, STEPS = (COLUMNS + 16 * CHUNKS - 1) / (16 * CHUNKS), DEEP = 16 * STEPS;
    // Blocks that share the rows of the factor.
    static constexpr int SHARING = (ROWS + 127) / 128;
    static constexpr int STAGES = B::STAGES, COPIES = B::COPIES, SETS = B::SETS, LOADERS = 8 / SETS, SET = 256 / SETS, THREADS = 512;
    // Chunks of float32 have powers of two of their own: sums of the first wait in shared memory, where results will be.
    static constexpr bool SUMMED = SPLIT && CHUNKS > 1;
    // Fibers of a group in 64s, of which an instruction takes one, and of a tile.
    static_assert(B::BLOCKS <= 2, "one group of products is under way while another is waited for");
    static constexpr int BLOCKS = B::BLOCKS, OWN = 64 * BLOCKS, FIBERS = BOTH ? OWN : 2 * OWN;
    // A piece as it lies in memory and in shared memory: rows of 64 halves, those of the first 64 columns of all rows first.
    static constexpr int DEPTH = CHUNKS > 1 ? DEEP : COLUMNS, PARTS = SPLIT ? 2 : 1, PART = FIBERS / 64 * DEEP * 128, PIECE = PARTS * PART;
    // Neighbours that a load brings, and that a lane has at a time; lanes of a row, loads along it and down the rows of a warp.
    static constexpr int VECTOR = B::VECTOR, UNIT = VECTOR > 2 ? VECTOR : 2, UNITS = FIBERS / UNIT;
    static constexpr int LANES = UNITS > 16 ? 32 : UNITS > 8 ? 16 : UNITS > 4 ? 8 : 4, ACROSS = (UNITS + LANES - 1) / LANES, AT_ONCE = 32 / LANES;
    static constexpr int STEP = LOADERS * AT_ONCE, LOADS = (DEPTH + STEP - 1) / STEP;
    // RIGHT: a tile has columns of several entries of the batch, of so many each, one after another.
    static constexpr int RIGHT = B::RIGHT;
    // Powers of two by which numbers are multiplied: one for each column, or for all of a tile of one entry. Arrivals that make
    // a stage full, and empty: of all threads where all of them write and read what is noted of a piece.
    static constexpr bool ALONE = SPLIT && (RIGHT || COPIES);
    static constexpr int SCALES = ALONE ? FIBERS : 1, FILLING = ALONE ? SET : LOADERS, EMPTYING = ALONE ? 256 : 8;
    typedef KronFiberPiece<SCALES> Piece;
    typedef Pack<T, UNIT> Unit;
    // Bytes from row to row of results in shared memory, in which lanes that write together meet in few banks.
    static constexpr int OUT_PITCH = 64 * (int)sizeof(T) + (SPLIT && CHUNKS == 1 ? 32 : 16), OUT = 64 * OUT_PITCH;
    // Words of a thread of a piece that is copied, bytes of such a piece, and where these are.
    static constexpr int WORDS = LOADS * ACROSS * UNIT, COPY = 4 * WORDS * SET, COPIED = STAGES * PIECE, RESULTS = COPIED + COPIES * SETS * COPY, BARRIERS = RESULTS + 2 * OUT, NOTES = BARRIERS + PipelineBarriers<STAGES>::BYTES;
    static constexpr int TOPS = NOTES + STAGES * (int)sizeof(Piece);
    // Largest entries of warps, or of each column that a warp has.
    static constexpr int COPY_NOTES = TOPS + 4 * (ALONE ? 2 * SETS * LOADERS * FIBERS : THREADS / 32), SHARED_BYTES = COPY_NOTES + COPIES * SETS * 16;
    typedef typename Either<(RIGHT > 0), KronFiberScheduler<FIBERS, (RIGHT > 0 ? RIGHT : 1)>, KronTileScheduler<1, FIBERS>>::Type Scheduler;
    typedef PipelineState<STAGES> State;

    static KM_DEVICE int spot(int row, int column) { return column / 64 * (DEEP * 128) + row * 128 + swizzle_128(row, column % 64 / 8) + column % 8 * 2; }
    static KM_DEVICE float larger(float top, float a) { return fabsf(a) < infinity<float>() ? fmaxf(top, fabsf(a)) : top; }
    // Fibers of a tile that are there, the column with which it begins, and where one of its columns is.
    static KM_DEVICE int fibers_of(const Scheduler& tile) {
        if constexpr (RIGHT > 0) return tile.fibers();
        else return tile.right();
    }
    static KM_DEVICE int begin_of(const Scheduler& tile) {
        if constexpr (RIGHT > 0) return tile.column;
        else return 0;
    }
    static KM_DEVICE i64 column_of(int at, i64 stride) {
        if constexpr (RIGHT > 0) return Scheduler::along(at, stride);
        else return at;
    }
    static KM_DEVICE int tiles_of(const Args& g) {
        if constexpr (RIGHT > 0) return int(g.size[KRON_A] * g.size[KRON_B]) * Scheduler::tiles_of(g);
        else return int(kron_tiles<1, FIBERS>(g));
    }

    // The number of a block among those with the same rows of the factor, which of these it has, and how many tiles it takes.
    static KM_DEVICE int block() { return (int)blockIdx.x / SHARING; }
    static KM_DEVICE int blocks() { return (int)gridDim.x / SHARING; }
    static KM_DEVICE int first_row() { return (int)blockIdx.x % SHARING * 128; }
    static KM_DEVICE int steps(int tiles) { return block() < tiles && block() < blocks() ? (tiles - block() + blocks() - 1) / blocks() : 0; }

    // The largest of what a thread has.
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
    // Of each column of a load.
    static KM_DEVICE Pack<float, UNIT> tops_of(const Unit (&v)[LOADS][ACROSS], int j) {
        Pack<float, UNIT> top;
#pragma unroll
        for (int n = 0; n < UNIT; ++n) {
            top.v[n] = 0.0f;
#pragma unroll
            for (int i = 0; i < LOADS; ++i) top.v[n] = fmaxf(top.v[n], fabsf(convert<float>(v[i][j].v[n])));
            if (top.v[n] == infinity<float>()) {
                top.v[n] = 0.0f;
#pragma unroll
                for (int i = 0; i < LOADS; ++i) top.v[n] = larger(top.v[n], convert<float>(v[i][j].v[n]));
            }
        }
        return top;
    }
    // Largest entries of columns: those of a warp to shared memory, and the powers of two by those of all.
    static KM_DEVICE void exchange_tops(float* to, Pack<float, UNIT> top, int lane) {
#pragma unroll
        for (int gap = LANES; gap < 32; gap *= 2) {
#pragma unroll
            for (int n = 0; n < UNIT; ++n) top.v[n] = fmaxf(top.v[n], __shfl_xor_sync(0xffffffffu, top.v[n], gap));
        }
        if (lane < LANES) *(Pack<float, UNIT>*)to = top;
    }
    static KM_DEVICE void scales_of(const float* from, float (&by)[UNIT], float (&inverse)[UNIT]) {
        unsigned largest[UNIT] = {};
#pragma unroll
        for (int w = 0; w < LOADERS; ++w) {
            const Pack<unsigned, UNIT> own = *(const Pack<unsigned, UNIT>*)(from + w * FIBERS);
#pragma unroll
            for (int n = 0; n < UNIT; ++n) largest[n] = ::max(largest[n], own.v[n]);
        }
#pragma unroll
        for (int n = 0; n < UNIT; ++n) {
            const HalfScale own = HalfScale::of_exponent(largest[n] >> 23);
            by[n] = own.scale, inverse[n] = own.inverse;
        }
    }
    static KM_DEVICE void keep(unsigned char* to, const Unit& unit, float by) {
        float each[UNIT];
#pragma unroll
        for (int i = 0; i < UNIT; ++i) each[i] = by;
        keep_each(to, unit, each);
    }
    static KM_DEVICE void keep_each(unsigned char* to, const Unit& unit, const float (&by)[UNIT]) {
        if constexpr (SPLIT) {
            unsigned high[UNIT / 2], low[UNIT / 2];
#pragma unroll
            for (int i = 0; i < UNIT / 2; ++i) kron_split_each(high[i], low[i], convert<float>(unit.v[2 * i]), convert<float>(unit.v[2 * i + 1]), by[2 * i], by[2 * i + 1]);
            *(Pack<unsigned, UNIT / 2>*)to = *(const Pack<unsigned, UNIT / 2>*)high;
            *(Pack<unsigned, UNIT / 2>*)(to + PART) = *(const Pack<unsigned, UNIT / 2>*)low;
        } else {
            *(Unit*)to = unit;
        }
    }
};

}  // namespace km

// out[m, n] = outputs(reduce over l, k of map(rows[m, k], columns[n, k], ...)) on tiles kept in registers.
//
// A block has GROUPS groups of TX x TY threads; each group reduces its own contiguous range of k into a
// (TY TM) x (TX TN) tile, and the groups' registers are merged in order. Operands are staged, transposed, in two
// alternating pieces of shared memory. Positions past the end are never reduced, so any map and any identity is right.
#pragma once
#include "thread_layout.cuh"

namespace km {

template <int TY_, int TX_, int TM_, int TN_, int DEPTH_, int GROUPS_, int UNROLL_, bool SYMMETRIC_>
struct GramTile {
    static constexpr int TY = TY_, TX = TX_, TM = TM_, TN = TN_, DEPTH = DEPTH_, GROUPS = GROUPS_, UNROLL = UNROLL_;
    static constexpr int BM = TY * TM, BN = TX * TN, GROUP_THREADS = TX * TY, THREADS = GROUP_THREADS * GROUPS;
    static constexpr bool SYMMETRIC = SYMMETRIC_, RUNS = false;
    static constexpr int BAND = 16;
};

// Whether a map has sines of which those of moderate arguments are taken in place.
template <class Body>
__device__ constexpr auto has_sines(int) -> decltype(Body::HAS_SINES) {
    return Body::HAS_SINES;
}
template <class Body>
__device__ constexpr bool has_sines(...) {
    return false;
}

// Bytes of shared memory: two stages of every group, or the registers of the groups while they are merged.
template <class Body, class Tile>
__device__ constexpr int gram_stage_words() {
    typedef typename Body::C C;
    return Tile::DEPTH * (Body::ROWS * Pitch<C, Tile::BM>::value + Body::COLUMNS * Pitch<C, Tile::BN>::value + Body::VECTORS);
}
template <class Body, class Tile>
__device__ constexpr int gram_shared_bytes() {
    constexpr int stages = 2 * Tile::GROUPS * gram_stage_words<Body, Tile>() * (int)sizeof(typename Body::C);
    constexpr int merge = Tile::GROUPS > 1 ? Tile::THREADS * Tile::TM * Tile::TN * (int)sizeof(typename Body::Registers) : 0;
    return (stages > merge ? stages : merge) + (Body::POWERS ? TABLE_BYTES : 0);
}

template <class Body, class Tile>
struct Gram {
    typedef typename Body::C C;
    typedef typename Body::Args Args;
    typedef typename Body::Registers Registers;
    static constexpr int TM = Tile::TM, TN = Tile::TN, BM = Tile::BM, BN = Tile::BN, DEPTH = Tile::DEPTH;
    static constexpr int GT = Tile::GROUP_THREADS;
    // Sines are long: more than two steps of them do not stay in the instruction cache.
    static constexpr int UNROLL = has_sines<Body>(0) && Tile::UNROLL > 2 ? 2 : Tile::UNROLL;
    static constexpr int PM = Pitch<C, BM>::value, PN = Pitch<C, BN>::value;
    static constexpr int STAGE = gram_stage_words<Body, Tile>();
    typedef ThreadLayout<C, TM, Tile::TY> RowLayout;
    typedef ThreadLayout<C, TN, Tile::TX> ColumnLayout;

    const Args& g;
    Coord p;
    const int tx, ty;
    Registers state[TM][TN];
    C cell[AtLeastOne<Body::CELLS>::value][TM][TN];
    C total[Body::HALVES ? TM : 1];
    bool wild;

    __device__ __forceinline__ Gram(const Args& g_, const Coord& p_, int thread)
        : g(g_), p(p_), tx(column_of(thread)), ty(row_of(thread)), wild(false) {
#pragma unroll
        for (int i = 0; i < (Body::HALVES ? TM : 1); ++i) total[i] = C(0);
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) Body::initial(state[i][j]);
    }

    // A warp covers 4 x 8 threads where it can, so that it reads few different words of both operands.
    static constexpr bool BLOCKS = Tile::TX % 8 == 0 && Tile::TY % 4 == 0 && Tile::TX > 8;
    static __device__ __forceinline__ int column_of(int thread) {
        return BLOCKS ? thread / 32 % (Tile::TX / 8) * 8 + thread % 8 : thread % Tile::TX;
    }
    static __device__ __forceinline__ int row_of(int thread) {
        return BLOCKS ? thread / 32 / (Tile::TX / 8) * 4 + thread % 32 / 8 : thread / Tile::TX;
    }

    __device__ __forceinline__ i64 row(int i) const { return p.m + RowLayout::at(i, ty); }
    __device__ __forceinline__ i64 column(int j) const { return p.n + ColumnLayout::at(j, tx); }

    // Operands over both tile axes: those without a reduced axis once a tile, the others at every step.
    template <bool VARYING>
    __device__ __forceinline__ void read_cells(i64 k, i64 l) {
        each<0, Body::CELLS>([&](auto index) {
            typedef typename Body::template Cell<decltype(index)::value> P;
            if constexpr (P::VARIES == VARYING) {
                typedef typename P::T T;
                const T* base = (const T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + k * g.stride[P::BUFFER][ROLE_K]
                                + l * g.stride[P::BUFFER][ROLE_L];
#pragma unroll
                for (int i = 0; i < TM; ++i)
#pragma unroll
                    for (int j = 0; j < TN; ++j) {
                        const i64 m = row(i), n = column(j);
                        const bool inside = m < g.size[ROLE_M] && n < g.size[ROLE_N];
                        const T* at = base + m * g.stride[P::BUFFER][ROLE_M] + n * g.stride[P::BUFFER][ROLE_N];
                        cell[decltype(index)::value][i][j] = inside ? convert<C>(load_pack<T, 1>(at).v[0]) : C(0);
                        if (!VARYING && P::GUARD == 2) wild = wild || !is_moderate(float(cell[decltype(index)::value][i][j]));
                    }
            }
        });
    }

    typedef C RowValues[AtLeastOne<Body::ROWS>::value][TM];
    typedef C ColumnValues[AtLeastOne<Body::COLUMNS>::value][TN];

    // What one cell reads.
    __device__ __forceinline__ void gather(
        C (&av)[AtLeastOne<Body::ROWS>::value], C (&bv)[AtLeastOne<Body::COLUMNS>::value], C (&dv)[AtLeastOne<Body::CELLS>::value],
        const RowValues& a, const ColumnValues& b, int i, int j) const {
#pragma unroll
        for (int o = 0; o < Body::ROWS; ++o) av[o] = a[o][i];
#pragma unroll
        for (int o = 0; o < Body::COLUMNS; ++o) bv[o] = b[o][j];
#pragma unroll
        for (int o = 0; o < Body::CELLS; ++o) dv[o] = cell[o][i][j];
    }

    // A step of a map with sines: of moderate arguments in place, a column of cells at a time; if one of them is large, the
    // column is taken again, each cell by a call.
    __device__ __forceinline__ void within_limit(const RowValues& a, const ColumnValues& b, const C* c, i64 position) {
#pragma unroll
        for (int j = 0; j < TN; ++j) {
            Registers before[TM];
            bool large = false;
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                C av[AtLeastOne<Body::ROWS>::value], bv[AtLeastOne<Body::COLUMNS>::value], dv[AtLeastOne<Body::CELLS>::value];
                gather(av, bv, dv, a, b, i, j);
                before[i] = state[i][j];
                Body::step_within(state[i][j], av, bv, c, dv, g.number, position, large);
            }
            if (large) {
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    C av[AtLeastOne<Body::ROWS>::value], bv[AtLeastOne<Body::COLUMNS>::value], dv[AtLeastOne<Body::CELLS>::value];
                    gather(av, bv, dv, a, b, i, j);
                    state[i][j] = before[i];
                    Body::template step<EXACT>(state[i][j], av, bv, c, dv, g.number, position, 0);
                }
            }
        }
    }

    // Where MIXED allows it, SHARE of 16 cells take their power from the table, so that two units share the work.
    template <bool MIXED>
    __device__ __forceinline__ void step(const C* stage, int kk, i64 k, i64 l, const float* scale) {
        C a[AtLeastOne<Body::ROWS>::value][TM], b[AtLeastOne<Body::COLUMNS>::value][TN], c[AtLeastOne<Body::VECTORS>::value];
        const C* columns = stage + Body::ROWS * DEPTH * PM;
        const C* vectors = columns + Body::COLUMNS * DEPTH * PN;
#pragma unroll
        for (int o = 0; o < Body::ROWS; ++o) RowLayout::read(a[o], stage + (o * DEPTH + kk) * PM, ty);
#pragma unroll
        for (int o = 0; o < Body::COLUMNS; ++o) ColumnLayout::read(b[o], columns + (o * DEPTH + kk) * PN, tx);
#pragma unroll
        for (int o = 0; o < Body::VECTORS; ++o) c[o] = vectors[o * DEPTH + kk];
        read_cells<true>(k, l);
        const i64 position = l * g.size[ROLE_K] + k;
        if constexpr (MIXED && Body::HALVES) {
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                C av[AtLeastOne<Body::ROWS>::value];
#pragma unroll
                for (int o = 0; o < Body::ROWS; ++o) av[o] = a[o][i];
                total[i] += Body::once(av, c, g.number);
            }
        }
        if constexpr (has_sines<Body>(0)) {
            within_limit(a, b, c, position);
            return;
        }
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                C av[AtLeastOne<Body::ROWS>::value], bv[AtLeastOne<Body::COLUMNS>::value], dv[AtLeastOne<Body::CELLS>::value];
                gather(av, bv, dv, a, b, i, j);
                if (MIXED && Body::POWERS && (i * TN + j) * Body::SHARE % 16 < Body::SHARE)
                    Body::template step<MIXED ? BY_TABLE : EXACT>(state[i][j], av, bv, c, dv, g.number, position, scale);
                else
                    Body::template step<MIXED ? BY_UNIT : EXACT>(state[i][j], av, bv, c, dv, g.number, position, scale);
            }
    }

    __device__ __forceinline__ void steps(const C* stage, i64 k, i64 l, i64 depths, bool probe_points, const float* scale) {
        if (depths >= DEPTH && (!Body::MODERATE || probe_points)) {
#pragma unroll(UNROLL)
            for (int kk = 0; kk < DEPTH; ++kk) step<Body::MODERATE>(stage, kk, k + kk, l, scale);
        } else {
            const int end = depths < DEPTH ? (int)depths : DEPTH;
#pragma unroll 1
            for (int kk = 0; kk < end; ++kk) step<false>(stage, kk, k + kk, l, scale);
        }
    }

    // Sums of halves become sums of signs.
    __device__ __forceinline__ void sum_signs() {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) Body::sum_of_signs(state[i][j], total[i]);
    }

    // Registers of the groups joined pairwise, earlier ranges first; group 0 ends with the whole.
    __device__ __forceinline__ void merge(Registers* shared, int group, int thread) {
#pragma unroll 1
        for (int gap = 1; gap < Tile::GROUPS; gap *= 2) {
            __syncthreads();
            if (group % (2 * gap) == gap) {
#pragma unroll
                for (int c = 0; c < TM * TN; ++c) shared[(group * TM * TN + c) * GT + thread] = state[c / TN][c % TN];
            }
            __syncthreads();
            if (group % (2 * gap) == 0) {
#pragma unroll
                for (int c = 0; c < TM * TN; ++c)
                    Body::merge(state[c / TN][c % TN], shared[((group + gap) * TM * TN + c) * GT + thread]);
            }
        }
    }

    // CHECK: part of the tile lies outside or, in symmetric mode, above the diagonal.
    template <bool CHECK>
    __device__ __forceinline__ void store() {
        constexpr int WIDTH = ColumnLayout::WIDTH;
        const i64 m0 = row(0), n0 = column(0);
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; j += WIDTH) {
                const i64 m = row(i), n = column(j);
                bool inside[WIDTH], whole = true;
                typename Body::Outs out[WIDTH];
#pragma unroll
                for (int v = 0; v < WIDTH; ++v) {
                    inside[v] = !CHECK || (m < g.size[ROLE_M] && n + v < g.size[ROLE_N] && (!Tile::SYMMETRIC || n + v <= m));
                    whole = whole && inside[v];
                    if (inside[v]) out[v] = Body::outputs(g, p, m, n + v, state[i][j + v]);
                }
                each<0, Body::OUTS>([&](auto index) {
                    typedef typename Body::template Out<decltype(index)::value> P;
                    typedef typename P::T T;
                    const i64* s = g.stride[P::BUFFER];
                    const i64 along = P::UNIT ? 1 : s[ROLE_N];
                    T* base = (T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + p.split * s[ROLE_K];
                    T* at = base + m0 * s[ROLE_M] + n0 * along + RowLayout::hop(i) * s[ROLE_M] + ColumnLayout::hop(j) * along;
                    if constexpr (P::VECTOR) {
                        if (whole) {
                            Pack<T, WIDTH> pack;
#pragma unroll
                            for (int v = 0; v < WIDTH; ++v) pack.v[v] = P::of(out[v]);
                            store_pack<T, WIDTH>(at, pack);
                        }
                    }
#pragma unroll
                    for (int v = 0; v < WIDTH; ++v)
                        if (inside[v] && !(P::VECTOR && whole)) at[v * along] = P::of(out[v]);
                    if (Tile::SYMMETRIC) {
                        T* twin = base + n0 * s[ROLE_M] + m0 * along + ColumnLayout::hop(j) * s[ROLE_M] + RowLayout::hop(i) * along;
#pragma unroll
                        for (int v = 0; v < WIDTH; ++v)
                            if (inside[v] && (!CHECK || n + v < m)) twin[v * s[ROLE_M]] = P::of(out[v]);
                    }
                });
            }
        }
    }

    __device__ __forceinline__ void finish() {
        const bool whole = p.m + BM <= g.size[ROLE_M] && p.n + BN <= g.size[ROLE_N] && (!Tile::SYMMETRIC || p.m >= p.n + BN);
        if (whole)
            store<false>();
        else
            store<true>();
    }
};

// Length of each of several ranges of k; all but the last keep whole accesses of up to 16 bytes.
KM_DEVICE i64 aligned_share(i64 length, i64 ranges) { return (ceil_div(length, ranges) + 7) / 8 * 8; }

template <class Body, class Tile>
__device__ __forceinline__ void gram(const typename Body::Args& g) {
    typedef typename Body::C C;
    typedef Gram<Body, Tile> G;
    constexpr int DEPTH = Tile::DEPTH, GT = Tile::GROUP_THREADS;
    extern __shared__ __align__(16) unsigned char raw[];
    const int thread = Tile::GROUPS > 1 ? threadIdx.x % GT : threadIdx.x, group = Tile::GROUPS > 1 ? threadIdx.x / GT : 0;
    C* shared = (C*)raw + (i64)group * 2 * G::STAGE;
    // Whether there are registers for pointers that move on and for a way of their own for whole stages.
    constexpr bool QUICK = Tile::TM * Tile::TN <= 32 || Body::CELLS > 0;
    constexpr int COLUMNS_AT = Body::ROWS * DEPTH * G::PM, VECTORS_AT = COLUMNS_AT + Body::COLUMNS * DEPTH * G::PN;

    float* scale = (float*)(raw + gram_shared_bytes<Body, Tile>() - TABLE_BYTES);
    if constexpr (Body::POWERS) {
        for (int e = threadIdx.x; e < 256; e += Tile::THREADS) Body::octave(scale, e, power_of_exponent(Body::exponent(g.number), e), g.number);
    }
    Walk<Tile::RUNS> walk(count_tiles<Tile::SYMMETRIC, Tile::BM, Tile::BN>(g), ceil_div(g.size[ROLE_N], Tile::BN));
    for (; walk.more(); walk.next()) {
        i64& t = walk.tile;
        const Coord p = coord_of<Tile::BM, Tile::BN, Tile::BAND, Tile::SYMMETRIC>(g, t);
        // the split takes a range of the outermost reduced loop, the group a range of k within it
        i64 l0 = 0, l1 = Body::OUTER_LOOP ? g.size[ROLE_L] : 1, k0 = 0, k1 = g.size[ROLE_K];
        i64& first = Body::OUTER_LOOP ? l0 : k0;
        i64& end = Body::OUTER_LOOP ? l1 : k1;
        const i64 share = Body::OUTER_LOOP ? ceil_div(end, g.size[SPLITS]) : aligned_share(end, g.size[SPLITS]);
        first = p.split * share;
        if (first + share < end) end = first + share;
        const i64 range = k1 > k0 ? k1 - k0 : 0, each_group = Tile::GROUPS > 1 ? aligned_share(range, Tile::GROUPS) : range;
        const i64 pieces = ceil_div(each_group, DEPTH), rounds = l1 > l0 ? (l1 - l0) * pieces : 0;
        const i64 kb = k0 + group * each_group, ke = kb + each_group < k1 ? kb + each_group : k1;

        G tile(g, p, thread);
        if constexpr (Tile::RUNS) Tile::template begin<Body>(tile, raw);
        tile.template read_cells<false>(0, 0);
        FetchList<Body::template Row, 0, Body::ROWS, C, Tile::BM, DEPTH, GT, QUICK> rows;
        FetchList<Body::template Column, 0, Body::COLUMNS, C, Tile::BN, DEPTH, GT, QUICK> columns;
        FetchList<Body::template Vector, 0, Body::VECTORS, C, 1, DEPTH, GT, QUICK> vectors;
        rows.template locate<G::PM>(thread);
        columns.template locate<G::PN>(thread);
        vectors.template locate<1>(thread);
        auto seek = [&](i64 k, i64 l) {
            rows.seek(g, p, p.m, k, l, thread);
            columns.seek(g, p, p.n, k, l, thread);
            vectors.seek(g, p, 0, k, l, thread);
        };
        auto read = [&](i64 k) {
            const i64 depths = ke - k;
            rows.read(g, thread, g.size[ROLE_M] - p.m, depths);
            columns.read(g, thread, g.size[ROLE_N] - p.n, depths);
            vectors.read(g, thread, 1, depths);
        };
        int bad = 0;
        if constexpr (Body::MODERATE) {
            bad = !Body::good(g.number) | tile.wild;
            ptx::opaque(bad);
        }
        // whether the stage just written is one that the table may be used for
        auto probe_points = [&]() {
            if constexpr (Body::MODERATE) {
                return !__syncthreads_or(bad | rows.is_wild() | columns.is_wild() | vectors.is_wild());
            }
            __syncthreads();
            return false;
        };
        auto write = [&](C* stage) {
            rows.template write<G::PM>(stage, thread);
            columns.template write<G::PN>(stage + COLUMNS_AT, thread);
            vectors.template write<1>(stage + VECTORS_AT, thread);
        };
        i64 l = l0, k = kb, piece = 0;
        if (rounds > 0) {
            seek(k, l);
            read(k);
            write(shared);
        }
        bool moderate = probe_points();
        int now = 0;
#pragma unroll 1
        for (i64 round = 0; round < rounds; ++round) {
            i64 next_k = k + DEPTH, next_l = l;
            if (Body::OUTER_LOOP && ++piece == pieces) {
                piece = 0;
                next_k = kb;
                seek(next_k, ++next_l);
            } else if (!QUICK) {
                seek(next_k, next_l);
            } else {
                rows.advance(g);
                columns.advance(g);
                vectors.advance(g);
            }
            if (round + 1 < rounds) read(next_k);
            tile.steps(shared + now * G::STAGE, k, l, ke - k, moderate, scale);
            now ^= 1;
            if (round + 1 < rounds) write(shared + now * G::STAGE);
            moderate = probe_points();
            k = next_k;
            l = next_l;
        }
        if constexpr (Body::HALVES) tile.sum_signs();
        if constexpr (Tile::GROUPS > 1) tile.merge((typename G::Registers*)raw, group, thread);
        if (group == 0) {
            // worked out anew, so that it takes no registers in the loop above
            ptx::opaque(t);
            tile.p = coord_of<Tile::BM, Tile::BN, Tile::BAND, Tile::SYMMETRIC>(g, t);
            if constexpr (Tile::RUNS)
                Tile::template end<Body>(tile, walk, raw);
            else
                tile.finish();
        }
        __syncthreads();
    }
}

}  // namespace km

// What a warp does with the entries of a tile that it holds in registers. Its 32 lanes hold 4 rows x 8 columns of threads;
// all columns of a row lie in one warp, so that rows are reduced by shuffles and no two warps share a result.
#pragma once
#include "apply.cuh"
#include "gram.cuh"
#include "reduce.cuh"

namespace km {

// Joins the 8 lanes of every row: each step halves the rows that a lane is left with while there are several.
template <class Body, int R>
struct Lanes {
    typedef typename Body::Running Running;
    template <int STEP>
    static __device__ __forceinline__ int join(Running (&k)[R], int lane) {
        const bool upper = lane & STEP;
        if constexpr (R > 1) {
            Running half[R / 2];
#pragma unroll
            for (int i = 0; i < R / 2; ++i) {
                const Running low = k[i], high = k[i + R / 2];
                const Running got = shuffle_xor(upper ? low : high, STEP);
                half[i] = upper ? high : low;
                Body::join(half[i], got);
            }
            int first = upper ? R / 2 : 0;
            if constexpr (STEP > 1) first += Lanes<Body, R / 2>::template join<STEP / 2>(half, lane);
#pragma unroll
            for (int i = 0; i < R / 2; ++i) k[i] = half[i];
            return first;
        } else {
            Body::join(k[0], shuffle_xor(k[0], STEP));
            if constexpr (STEP > 1) return join<STEP / 2>(k, lane);
            return 0;
        }
    }
};
// Whether the smallest entries are found by the minima of groups, which another kernel reads (apply_groups.cuh).
template <class Body>
__device__ constexpr auto takes_groups(int) -> decltype(Body::GROUPED) {
    return Body::GROUPED;
}
template <class Body>
__device__ constexpr bool takes_groups(...) {
    return false;
}
struct Sums {
    typedef float Running;
    static KM_DEVICE void join(float& total, float other) { total += other; }
};
// Which of R rows a lane is left with.
template <int R, int STEP>
KM_DEVICE int row_left(int lane) {
    if constexpr (R > 1 && STEP > 0)
        return (lane & STEP ? R / 2 : 0) + row_left<R / 2, STEP / 2>(lane);
    else
        return 0;
}

// Rows of v that go with the columns of a tile, in shared memory: [row][column], rows apart or, 16 columns wide, in pieces
// permuted by the row, so that 8 neighbours meet no bank twice. CHUNK columns at a time; what lies outside is 0.
template <class Body, int BN, int THREADS>
struct Weights {
    typedef typename Body::C C;
    static constexpr bool PERMUTED = Body::GROUP == 16;
    static constexpr int CHUNK = Body::GROUP, PITCH = CHUNK < 8 || PERMUTED ? CHUNK : CHUNK + 4;
    static constexpr int BYTES = Body::WEIGHTED ? BN * PITCH * (int)sizeof(C) : 0;

    static __device__ __forceinline__ int at(int n, int q) {
        return n * PITCH + (PERMUTED ? (((n >> 1) & 3) << 2) ^ q : q);
    }

    // Copies without waiting where nothing is converted.
    template <class Args>
    static __device__ __forceinline__ void stage(C* to, const Args& g, const Coord& p, i64 c, int thread) {
        if constexpr (Body::WEIGHTED) {
            typedef typename Body::Weight P;
            typedef typename P::T T;
            const i64* s = g.stride[P::BUFFER];
            const T* base = (const T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + p.n * s[ROLE_N] + c * s[ROLE_L];
#pragma unroll 4
            for (int e = thread; e < BN * CHUNK; e += THREADS) {
                const int n = e / CHUNK, q = e % CHUNK;
                C* entry = to + at(n, q);
                const T* from = base + n * s[ROLE_N] + q * s[ROLE_L];
                const bool inside = p.n + n < g.size[ROLE_N] && c + q < g.size[ROLE_L];
                if constexpr (Same<T, float>::value) {
                    if (inside)
                        ptx::cp_async<4>(shared_address(entry), from);
                    else
                        *entry = 0.0f;
                } else {
                    *entry = inside ? convert<C>(load_pack<T, 1>(from).v[0]) : C(0);
                }
            }
        }
    }
    static __device__ __forceinline__ void wait() { ptx::cp_async_wait_all(); }
};

// What entries read of the columns of a tile, in shared memory: [operand][column].
template <class Body, int BN, int THREADS>
struct ColumnEnds {
    typedef typename Body::C C;
    static constexpr int BYTES = Body::COLUMN_ENDS * BN * (int)sizeof(C);

    // Copies without waiting where nothing is converted.
    template <class Args>
    static __device__ __forceinline__ void stage(C* to, const Args& g, const Coord& p, int thread) {
        each<0, Body::COLUMN_ENDS>([&](auto index) {
            typedef typename Body::template ColumnEnd<decltype(index)::value> P;
            typedef typename P::T T;
            const T* from = (const T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
#pragma unroll
            for (int e = thread; e < BN; e += THREADS) {
                C* entry = to + decltype(index)::value * BN + e;
                const i64 n = p.n + e;
                if (Same<T, float>::value && n < g.size[ROLE_N])
                    ptx::cp_async<4>(shared_address(entry), from + n * g.stride[P::BUFFER][ROLE_N]);
                else
                    *entry = end_value<P, C>(g, p, n, g.size[ROLE_N], ROLE_N);
            }
        });
    }
};

// Room for what is kept of a row block's rows while a block works on it, if v has no more columns than are staged at once.
template <class Body, int BM>
__device__ constexpr int state_bytes() {
    return Body::SELECTS ? 0 : Body::GROUP * BM * (int)sizeof(typename Body::Running);
}

// A tile of TM x TN cells a thread: ReducerLayout tells the rows and columns of a thread within the tile.
template <class Body, class ReducerLayout>
struct Reducer {
    typedef typename Body::C C;
    typedef typename Body::Args Args;
    typedef typename Body::Running Running;
    typedef Weights<Body, ReducerLayout::BN, ReducerLayout::THREADS> V;
    static constexpr int TM = ReducerLayout::TM, TN = ReducerLayout::TN, BM = ReducerLayout::BM, BN = ReducerLayout::BN, CHUNK = V::CHUNK, CB = CHUNK < 4 ? CHUNK : 4;
    static_assert(TM <= 8, "a lane is left with one row");

    const Args& g;
    const Coord& p;
    const ReducerLayout layout;
    const int lane;
    C w[TM][TN];

    // ends: what entries read of columns, where the layout has it staged.
    template <class Registers>
    __device__ __forceinline__ Reducer(const Args& g_, const Coord& p_, const ReducerLayout& layout_, const Registers (&state)[TM][TN], const C* ends = nullptr)
        : g(g_), p(p_), layout(layout_), lane(threadIdx.x % 32) {
        const typename Body::Fixed fixed = Body::fixed(g, p);
        C rows[Extent<Body::ROW_ENDS>::value][TM], columns[Extent<Body::COLUMN_ENDS>::value][TN];
        each<0, Body::ROW_ENDS>([&](auto index) {
            typedef typename Body::template RowEnd<decltype(index)::value> P;
#pragma unroll
            for (int i = 0; i < TM; ++i) rows[decltype(index)::value][i] = end_value<P, C>(g, p, p.m + layout.row(i), g.size[ROLE_M], ROLE_M);
        });
        each<0, Body::COLUMN_ENDS>([&](auto index) {
            typedef typename Body::template ColumnEnd<decltype(index)::value> P;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                C& column = columns[decltype(index)::value][j];
                if constexpr (ReducerLayout::ENDS_ARE_STAGED)
                    column = ends[decltype(index)::value * BN + layout.column(j)];
                else
                    column = end_value<P, C>(g, p, p.n + layout.column(j), g.size[ROLE_N], ROLE_N);
            }
        });
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                C r[Extent<Body::ROW_ENDS>::value], c[Extent<Body::COLUMN_ENDS>::value], e[Extent<Body::CELL_ENDS>::value];
#pragma unroll
                for (int o = 0; o < Body::ROW_ENDS; ++o) r[o] = rows[o][i];
#pragma unroll
                for (int o = 0; o < Body::COLUMN_ENDS; ++o) c[o] = columns[o][j];
                each<0, Body::CELL_ENDS>([&](auto index) {
                    typedef typename Body::template CellEnd<decltype(index)::value> P;
                    const i64 m = p.m + layout.row(i), n = p.n + layout.column(j);
                    const bool inside = m < g.size[ROLE_M] && n < g.size[ROLE_N];
                    e[decltype(index)::value] = inside ? load_at<C, typename P::T, P::BUFFER>(g, p, m, n) : C(0);
                });
                w[i][j] = Body::entry(fixed, g.number, r, c, e, state[i][j]);
            }
    }

    // Adds the tile to what is kept of its rows; the first one starts it, the last one of a whole row block writes the result.
    template <bool CHECK>
    __device__ __forceinline__ void reduce(const Running* from, Running* to, bool begins, bool finishes, C* v) const {
        const i64 width = g.size[ROLE_L], left = g.size[ROLE_N] - p.n;
        const int mine = row_left<TM, 4>(lane);
        int local = 0;
#pragma unroll
        for (int i = 0; i < TM; ++i) local = i == mine ? layout.row(i) : local;
        const bool writes = !(lane & (TM == 8 ? 0 : TM == 4 ? 1 : TM == 2 ? 3 : 7)) && p.m + local < g.size[ROLE_M];
#pragma unroll 1
        for (i64 c = 0; c < width; c += CB) {
            if (Body::WEIGHTED && c > 0 && c % CHUNK == 0) {
                ReducerLayout::sync();
                V::stage(v, g, p, c, layout.thread());
                V::wait();
                ReducerLayout::sync();
            }
            Running old[CB], k[CB][TM];
#pragma unroll
            for (int q = 0; q < CB; ++q) {
                Body::begin(old[q]);
                if (!begins && writes && c + q < width) old[q] = from[(c + q) * BM + local];
#pragma unroll
                for (int i = 0; i < TM; ++i) Body::begin(k[q][i]);
            }
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                if (!CHECK || layout.column(j) < left) {
                    Pack<C, CB> each;
                    if constexpr (Body::WEIGHTED)
                        each = *(const Pack<C, CB>*)(v + V::at(layout.column(j), (int)(c % CHUNK)));
                    else
                        each.v[0] = C(1);
#pragma unroll
                    for (int q = 0; q < CB; ++q)
#pragma unroll
                        for (int i = 0; i < TM; ++i) Body::take(k[q][i], w[i][j], each.v[q]);
                }
            }
#pragma unroll
            for (int q = 0; q < CB; ++q) {
                Lanes<Body, TM>::template join<4>(k[q], lane);
                if (writes && c + q < width) {
                    Body::join(old[q], k[q][0]);
                    if (finishes)
                        write_result<Body>(g, p, p.m + local, c + q, old[q]);
                    else
                        to[(c + q) * BM + local] = old[q];
                }
            }
        }
    }

    // The same for log-sum-exps. Exponentials are relative to the largest entry of their row so far; where their sum shows that the
    // tile has much larger ones, or there is none yet, to the largest one of the tile.
    __device__ __forceinline__ void add_exponentials(const Running* from, Running* to, bool begins, bool finishes) {
        const i64 left = g.size[ROLE_N] - p.n;
        if (left < BN) {
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int i = 0; i < TM; ++i) w[i][j] = layout.column(j) < left ? w[i][j] : negative_infinity<float>();
        }
        const int mine = row_left<TM, 4>(lane);
        int local = layout.row(0);
#pragma unroll
        for (int i = 1; i < TM; ++i) local = i == mine ? layout.row(i) : local;
        const bool inside = p.m + local < g.size[ROLE_M];
        Running total;
        Body::begin(total);
        bool relative = !begins;
        float sum[TM];
        if (relative) {
            __syncwarp();
            if (inside) total = from[local];
#pragma unroll
            for (int i = 0; i < TM; ++i) sum[i] = sum_of_row(i, shift_of(from[layout.row(i)].r0));
            Lanes<Sums, TM>::template join<4>(sum, lane);
            relative = __all_sync(0xffffffffu, !inside || (fabsf(total.r0) < LARGE_ENTRY && sum[0] <= MOST_SUM));
        }
        if (relative) {
            total.r1 += sum_relative_to(total.r0, shift_of(total.r0), sum[0]);
        } else {
            float largest = negative_infinity<float>();
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                float top = w[i][0];
#pragma unroll
                for (int j = 1; j < TN; ++j) top = fmaxf(top, w[i][j]);
                top = warp_max<4>(top);
                sum[i] = sum_of_row(i, shift_of(top));
                largest = i == mine ? top : largest;
            }
            Lanes<Sums, TM>::template join<4>(sum, lane);
            Running tile;
            tile.r0 = largest;
            tile.r1 = sum_relative_to(largest, shift_of(largest), sum[0]);
            Body::join(total, tile);
        }
        if (!inside || (lane & (TM == 8 ? 0 : TM == 4 ? 1 : TM == 2 ? 3 : 7))) return;
        if (finishes)
            write_result<Body>(g, p, p.m + local, 0, total);
        else
            to[local] = total;
    }
    __device__ __forceinline__ float sum_of_row(int i, float shift) const {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < TN; ++j) sum += exp2_fast(fmaf(w[i][j], LOG2_E, shift));
        return sum;
    }

    // The smallest key of every group, which is the columns that a thread has; NaN where all are NaN or none is inside.
    __device__ __forceinline__ void store_minima(float* work, const Walk<true>& walk) const {
        const i64 left = g.size[ROLE_N] - p.n, pitch = (i64)walk.columns * 8;
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            float least = not_a_number<float>();
#pragma unroll
            for (int j = 0; j < TN; ++j)
                if (layout.column(j) < left) least = fminf(least, Body::LARGEST ? -w[i][j] : w[i][j]);
            const i64 m = p.m + layout.row(i);
            if (m < g.size[ROLE_M]) __stcs(work + m * pitch + (i64)walk.column * 8 + lane % 8, least);
        }
    }

    // The smallest entries: where a row may have a new one, its 8 lanes hand their keys to the first of them.
    __device__ __forceinline__ void select(Running* running, bool begins, bool finishes, C* shared) const {
        const int count = (int)g.size[ROLE_L], first = lane & 24;
        const i64 left = g.size[ROLE_N] - p.n;
        C* keys = shared + threadIdx.x / 8 * (8 * TN);
#pragma unroll 1
        for (int i = 0; i < TM; ++i) {
            const int local = layout.row(i);
            Running* list = running + local;
            if (begins && lane == first) empty_list<C, BM>(list, count);
            __syncwarp();
            C worst = list[(i64)(count - 1) * BM].key;
            bool any = false;
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                C key = w[0][j];
#pragma unroll
                for (int q = 1; q < TM; ++q) key = q == i ? w[q][j] : key;
                if (Body::LARGEST) key = -key;
                keys[j * 8 + lane % 8] = key;
                any = any || (layout.column(j) < left && !(key > worst));
            }
            __syncwarp();
            if (__any_sync(0xffffffffu, any)) {
                if (lane == first && p.m + local < g.size[ROLE_M]) {
                    for (int q = 0; q < 8 * TN; ++q) {
                        const int n = layout.column_of(q / 8, q % 8);
                        if (n < left && !(keys[q] > worst)) worst = insert<C, BM>(list, count, keys[q], p.n + n);
                    }
                }
            }
            __syncwarp();
            if (finishes && lane == first && p.m + local < g.size[ROLE_M]) {
                for (int q = 0; q < count; ++q) write_result<Body>(g, p, p.m + local, q, list[(i64)q * BM]);
            }
        }
    }

    // v: the first chunk of the tile's weights, which all threads of the tile have put there; held: room for what is kept
    // or, of selections, for keys.
    __device__ __forceinline__ void end(void* work, const Walk<true>& walk, C* v, void* states) {
        if constexpr (takes_groups<Body>(0)) {
            store_minima((float*)work, walk);
            return;
        }
        const Share share(walk);
        const i64 row = walk.row, columns = walk.columns, t = walk.tile;
        Running* slot = slot_of<Body, BM>(work, blockIdx.x, share.slot(row), g.size[ROLE_L]);
        const bool begins = t == share.first || t == row * columns;
        const bool ends = t + 1 == share.last || t + 1 == (row + 1) * columns, finishes = ends && share.whole(row);
        if constexpr (Body::SELECTS) {
            select(slot, begins, finishes, (C*)states);
        } else if constexpr (sums_exponentials<Body>(0)) {
            Running* running = (Running*)states;  // log-sum-exps have one column
            add_exponentials(running, ends ? slot : running, begins, finishes);
        } else {
            Running* local_state = g.size[ROLE_L] <= Body::GROUP ? (Running*)states : slot;
            Running* to = ends ? slot : local_state;
            if (p.n + ReducerLayout::BN <= g.size[ROLE_N])
                reduce<false>(local_state, to, begins, finishes, v);
            else
                reduce<true>(local_state, to, begins, finishes, v);
        }
    }
};

// Tiles of gram whose 8 threads across lie in one warp.
template <int TY_, int TM_, int TN_, int DEPTH_, int UNROLL_>
struct ApplyTile : GramTile<TY_, 8, TM_, TN_, DEPTH_, 1, UNROLL_, false> {
    typedef GramTile<TY_, 8, TM_, TN_, DEPTH_, 1, UNROLL_, false> Base;
    static constexpr int BAND = 1;
    static constexpr bool RUNS = true;

    template <class Gram>
    struct Layout {
        static constexpr int TM = TM_, TN = TN_, BM = Base::BM, BN = Base::BN, THREADS = Base::THREADS;
        static constexpr bool ENDS_ARE_STAGED = false;
        int ty, tx;
        __device__ __forceinline__ int row(int i) const { return Gram::RowLayout::at(i, ty); }
        __device__ __forceinline__ int column(int j) const { return Gram::ColumnLayout::at(j, tx); }
        __device__ __forceinline__ int column_of(int j, int lane) const { return Gram::ColumnLayout::at(j, lane); }
        __device__ __forceinline__ int thread() const { return threadIdx.x; }
        static __device__ __forceinline__ void sync() { __syncthreads(); }
    };
    template <class Body>
    using ReducerLayout = Layout<Gram<Body, ApplyTile>>;
    // Bytes of what gram keeps in shared memory, or of the keys of a selection in its place; v lies behind, then what is kept.
    template <class Body>
    static __device__ constexpr int stage_bytes() {
        constexpr int stages = gram_shared_bytes<Body, ApplyTile>();
        constexpr int keys = Body::SELECTS ? Base::THREADS * TN_ * (int)sizeof(typename Body::C) : 0;
        return ((stages > keys ? stages : keys) + 15) / 16 * 16;
    }

    template <class Body, class Gram>
    static __device__ __forceinline__ void begin(const Gram& tile, unsigned char* raw) {
        typedef Weights<Body, Base::BN, Base::THREADS> V;
        V::stage((typename Body::C*)(raw + stage_bytes<Body>()), tile.g, tile.p, 0, threadIdx.x);
        V::wait();
    }
    // All warps are past the stages of the tile, whose memory serves as scratch.
    template <class Body, class Gram>
    static __device__ __forceinline__ void end(const Gram& tile, const Walk<true>& walk, unsigned char* raw) {
        typedef typename Body::C C;
        Reducer<Body, Layout<Gram>> reducer(tile.g, tile.p, Layout<Gram>{tile.ty, tile.tx}, tile.state);
        unsigned char* v = raw + stage_bytes<Body>();
        unsigned char* states = Body::SELECTS ? raw : v + Weights<Body, Base::BN, Base::THREADS>::BYTES;
        reducer.end(tile.g.work, walk, (C*)v, states);
    }
};
template <class Body, class Tile>
__device__ constexpr int apply_tile_shared_bytes() {
    return Tile::template stage_bytes<Body>() + Weights<Body, Tile::BN, Tile::THREADS>::BYTES + state_bytes<Body, Tile::BM>();
}

}  // namespace km

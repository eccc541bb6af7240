// Row reductions for few positions of k: a thread holds R whole rows of x and their results in registers. Rows of y, with the
// operands that belong to them, pass through shared memory, where all lanes read the same one at once. Sums in float32 of
// THIN_RUN columns are added up in global memory, those of exponentials in shared memory (exponential_sums.cuh), so that rounding
// does not add up with all of them.
//
// Where a body EXPANDS, entries are exponentials of squared distances, |x|^2 + |y|^2 - 2 x y. Of points near the origin K products
// with y are added to - |y|^2, which is staged, and sums of a stage are multiplied with the exponential of - |x|^2 once: no
// operation more than those of a product, where differences take K more. Of points further away, differences are taken.
#pragma once
#include "apply.cuh"
#include "exponential_sums.cuh"
#include "gram.cuh"
#include "reduce.cuh"

namespace km {

constexpr int THIN_RUN = 512;

template <int THREADS_, int R_, int DEPTH_, int STAGE_, int UNROLL_>
struct ApplyThin {
    static constexpr int THREADS = THREADS_, R = R_, DEPTH = DEPTH_, STAGE = STAGE_, UNROLL = UNROLL_;
    static constexpr int BM = THREADS * R, BN = STAGE;
};
// How entries are made: as they are written, of scaled numbers, or of these without the norms of rows.
enum Entries { WRITTEN, SCALED, EXPANDED };
// What is staged of a row of y: its entries, its squared norm negated where distances are products, the ends that entries of the matrix
// read, its row of v.
template <class Body, class Tile>
struct Staged {
    static constexpr int NORM = Tile::DEPTH, ENDS = NORM + Body::EXPANDS, V = ENDS + Body::COLUMN_ENDS, USED = V + (Body::WEIGHTED ? Body::GROUP : 0);
    static constexpr int WIDE = 16 / sizeof(typename Body::C);
    static constexpr int PITCH = (USED + WIDE - 1) / WIDE * WIDE > 0 ? (USED + WIDE - 1) / WIDE * WIDE : WIDE;
};
// Sums of exponentials of the runs before, and what is staged behind them.
template <class Body, class Tile>
__device__ constexpr int thin_sums_bytes() {
    return sums_exponentials<Body>(0) ? Tile::BM * (int)sizeof(float2) : 0;
}
template <class Body, class Tile>
__device__ constexpr int apply_thin_shared_bytes() {
    return thin_sums_bytes<Body, Tile>() + Tile::STAGE * Staged<Body, Tile>::PITCH * (int)sizeof(typename Body::C);
}

template <class Body, class Tile>
struct Thin {
    typedef typename Body::C C;
    typedef typename Body::Args Args;
    typedef typename Body::Running Running;
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    typedef Staged<Body, Tile> S;
    static constexpr int R = Tile::R, K = Tile::DEPTH, BM = Tile::BM, GROUP = Body::SELECTS ? 1 : Body::GROUP;

    static constexpr bool LOGARITHMS = sums_exponentials<Body>(0);
    static constexpr int TOGETHER = Tile::UNROLL < 4 ? Tile::UNROLL : 4;  // columns whose exponentials are added at a time
    static constexpr bool FLUSHES = Body::SUMS && sizeof(C) == 4;
    // Tiles between two times that sums are moved.
    static constexpr int RUN = THIN_RUN / Tile::STAGE > 1 && !Body::EXPANDS ? THIN_RUN / Tile::STAGE : 1;

    // How large numbers of rows may be, in units of the exponent, for their rounding to be no more than that of their sums.
    static constexpr float LIMIT = 8.0f / Extent<K>::value;
    // How large squared norms may be, where distances are products and where they are differences of scaled numbers, and weights of
    // products: K sums of a size below 32, or 16, keep products of normal terms within 1e-6 of their norm (0045), no exponential
    // of them is below the normal numbers, and sums of a stage are finite.
    static constexpr float LARGEST_NORM = K <= 3 ? 31.0f : 16.0f, FARTHEST = 512.0f, HEAVIEST = 1e25f;
    // Rows of a thread whose exponentials are polynomials, as the special function unit takes 8 cycles for those of a warp, where all
    // else takes fewer (0054).
    static constexpr int POLYNOMIALS = Body::EXPANDS && R == 8 && K + GROUP == 3 ? 2 : 0;
    // Columns whose mean is the origin of distances by products, two of each lane.
    static constexpr int SAMPLE = 64;

    const Args& g;
    C* const origin;
    Coord p;
    C scale;
    typename Body::Fixed fixed;
    C factor[Body::EXPANDS ? R : 1];
    bool rows_expand, expanded;  // of a warp: whether its rows are near the origin, and its sums without their norms
    C x[Extent<K>::value][R], ends[Extent<Body::ROW_ENDS>::value][R], vectors[Extent<K>::value][Extent<Body::VECTORS>::value];
    Running running[GROUP][R];
    C worst[R];
    ExponentialSums<R, Tile::THREADS> logs;
    __device__ __forceinline__ Thin(const Args& g_, C* origin_) : g(g_), origin(origin_), scale(0), rows_expand(false), expanded(false) {}
    __device__ __forceinline__ i64 row(int r) const { return p.m + r * Tile::THREADS + threadIdx.x; }

    // Writes the mean of some columns to shared memory. All threads of the block wait for it.
    __device__ __forceinline__ void find_origin() {
        const typename Y::T* base = (const typename Y::T*)g.pointer[Y::BUFFER] + batch_offset(g, Y::BUFFER, p);
        const i64 apart = g.size[ROLE_N] < SAMPLE ? 1 : quotient(g.size[ROLE_N], SAMPLE);
        if (threadIdx.x < 32) {
#pragma unroll
            for (int k = 0; k < K; ++k) {
                C sum = C(0);
#pragma unroll
                for (int i = threadIdx.x; i < SAMPLE; i += 32) {
                    const i64 n = i * apart < g.size[ROLE_N] ? i * apart : 0;
                    sum += convert<C>(load_pack<typename Y::T, 1>(base + n * g.stride[Y::BUFFER][ROLE_N] + k * g.stride[Y::BUFFER][ROLE_K]).v[0]);
                }
                sum = warp_sum(sum);
                if (threadIdx.x == 0) origin[k] = sum * (1.0f / SAMPLE);
            }
        }
        __syncthreads();
    }

    __device__ __forceinline__ C scaled(C value, int k) const { return ((double)value - (double)origin[k]) * (double)scale; }
    // 2^-a, by the special function unit and what its argument lost by rounding.
    static __device__ __forceinline__ C reciprocal_power(double a) {
        const C rounded = a, power = exp2_fast(-rounded);
        return fma(power, C(-0.693147181) * C(a - rounded), power);
    }

    // Rows of x, times the scale where there is one; whether they are small enough for it.
    __device__ __forceinline__ bool read_rows() {
        const typename X::T* base = (const typename X::T*)g.pointer[X::BUFFER] + batch_offset(g, X::BUFFER, p);
        bool small = true, expands = true;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const i64 m = row(r) < g.size[ROLE_M] ? row(r) : g.size[ROLE_M] - 1;
            double norm = 0;
#pragma unroll
            for (int k = 0; k < K; ++k) {
                x[k][r] = convert<C>(load_pack<typename X::T, 1>(base + m * g.stride[X::BUFFER][ROLE_M] + k * g.stride[X::BUFFER][ROLE_K]).v[0]);
                if (Body::EXPANDS) {
                    if (scale > C(0)) {
                        const C value = scaled(x[k][r], k);
                        norm += (double)value * value;
                        x[k][r] = C(2) * value;
                    }
                } else if (Body::SCALES && scale > C(0)) {
                    x[k][r] *= scale;
                    small = small && abs(x[k][r]) <= C(LIMIT);
                }
            }
            if constexpr (Body::EXPANDS) {
                factor[r] = reciprocal_power(norm);
                expands = expands && norm <= LARGEST_NORM;
                small = small && norm <= FARTHEST;
            }
        }
        if (Body::EXPANDS) rows_expand = __all_sync(0xffffffffu, expands);
        return small;
    }

    // Moves the sums to memory that the block has for the row block: adds them to those before, or begins with them.
    template <bool BEGINS>
    __device__ __forceinline__ void flush_sums(i64 c) {
        Running* to = slot_of<Body, BM>(g.work, blockIdx.x, 2, g.size[ROLE_L]) + threadIdx.x;
#pragma unroll
        for (int q = 0; q < GROUP; ++q) {
            if (c + q >= g.size[ROLE_L]) break;
#pragma unroll
            for (int r = 0; r < R; ++r) {
                Running& there = to[(c + q) * BM + r * Tile::THREADS];
                if constexpr (Body::EXPANDS) { if (expanded) running[q][r].r0 *= factor[r]; }
                if (!BEGINS) Body::join(running[q][r], there);
                there = running[q][r];
                Body::begin(running[q][r]);
            }
        }
    }

    __device__ __forceinline__ void begin(i64 row_block, Running* lists, i64 c) {
        p = row_coord<BM>(g, row_block);
        fixed = Body::fixed(g, p);
        if constexpr (Body::SCALES) scale = Body::scale(fixed, g.number);
        if constexpr (Body::EXPANDS) find_origin();
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const i64 m = row(r) < g.size[ROLE_M] ? row(r) : g.size[ROLE_M] - 1;
            each<0, Body::ROW_ENDS>([&](auto index) { ends[decltype(index)::value][r] = end_value<typename Body::template RowEnd<decltype(index)::value>, C>(g, p, m, g.size[ROLE_M], ROLE_M); });
            if constexpr (Body::SELECTS) {
                empty_list<C, BM>(lists + r * Tile::THREADS + threadIdx.x, (int)g.size[ROLE_L]);
                worst[r] = not_a_number<C>();
            } else {
#pragma unroll
                for (int q = 0; q < GROUP; ++q) Body::begin(running[q][r]);
            }
        }
        if constexpr (LOGARITHMS) logs.begin();
        if constexpr (FLUSHES) flush_sums<true>(c);
        each<0, Body::VECTORS>([&](auto index) {
            typedef typename Body::template Vector<decltype(index)::value> P;
            const typename P::T* source = (const typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
#pragma unroll
            for (int k = 0; k < K; ++k) vectors[k][decltype(index)::value] = convert<C>(load_pack<typename P::T, 1>(source + k * g.stride[P::BUFFER][ROLE_K]).v[0]);
        });
    }

    // Rows n, n + 1, ... of y, as of x; of v the columns from c on. Whether they are small enough to be scaled, and whether products serve.
    __device__ __forceinline__ bool stage(C* shared, i64 n, i64 c, bool& expands) const {
        bool small = true;
        expands = true;
        const i64 left = g.size[ROLE_N] - n;
        const typename Y::T* base = (const typename Y::T*)g.pointer[Y::BUFFER] + batch_offset(g, Y::BUFFER, p) + n * g.stride[Y::BUFFER][ROLE_N];
        const i64 along = g.stride[Y::BUFFER][ROLE_N], down = g.stride[Y::BUFFER][ROLE_K];
        if (Body::EXPANDS && scale > C(0)) {
            for (int i = threadIdx.x; i < Tile::STAGE && i < left; i += Tile::THREADS) {
                double norm = 0;
#pragma unroll
                for (int k = 0; k < K; ++k) {
                    const C value = scaled(convert<C>(load_pack<typename Y::T, 1>(base + i * along + k * down).v[0]), k);
                    norm += (double)value * value;
                    shared[i * S::PITCH + k] = value;
                }
                shared[i * S::PITCH + S::NORM] = -norm;
                expands = expands && norm <= LARGEST_NORM;
                small = small && norm <= FARTHEST;
            }
        } else {
            for (int e = threadIdx.x; e < Tile::STAGE * K; e += Tile::THREADS) {
                const int i = e / Extent<K>::value, k = e % Extent<K>::value;
                if (i < left) {
                    C value = convert<C>(load_pack<typename Y::T, 1>(base + i * along + k * down).v[0]);
                    if (Body::SCALES && !Body::EXPANDS && scale > C(0)) {
                        value *= scale;
                        small = small && abs(value) <= C(LIMIT);
                    }
                    shared[i * S::PITCH + k] = value;
                }
            }
        }
        each<0, Body::COLUMN_ENDS>([&](auto index) {
            typedef typename Body::template ColumnEnd<decltype(index)::value> P;
            for (int i = threadIdx.x; i < Tile::STAGE; i += Tile::THREADS) shared[i * S::PITCH + S::ENDS + decltype(index)::value] = end_value<P, C>(g, p, n + i, g.size[ROLE_N], ROLE_N);
        });
        if constexpr (Body::WEIGHTED) {
            typedef typename Body::Weight P;
            const typename P::T* v = (const typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + n * g.stride[P::BUFFER][ROLE_N] + c * g.stride[P::BUFFER][ROLE_L];
            for (int e = threadIdx.x; e < Tile::STAGE * GROUP; e += Tile::THREADS) {
                const int i = e / GROUP, q = e % GROUP;
                const bool inside = i < left && c + q < g.size[ROLE_L];
                const C weight = inside ? convert<C>(load_pack<typename P::T, 1>(v + i * g.stride[P::BUFFER][ROLE_N] + q * g.stride[P::BUFFER][ROLE_L]).v[0]) : C(0);
                if (Body::EXPANDS) expands = expands && abs(weight) <= C(HEAVIEST);
                shared[i * S::PITCH + S::V + q] = weight;
            }
        }
        return small;
    }

    // - |y|^2 + 2 x y, or the squared distance of numbers that are scaled, or what the map is added up to.
    template <Entries HOW>
    __device__ __forceinline__ void add_up(typename Body::Registers (&state)[R], const C* q) const {
        if constexpr (HOW == EXPANDED) {
#pragma unroll
            for (int r = 0; r < R; ++r) state[r].r0 = q[S::NORM];
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int r = 0; r < R; ++r) state[r].r0 = fma(x[k][r], q[k], state[r].r0);
        } else if constexpr (HOW == SCALED && Body::EXPANDS) {
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    const C apart = fma(C(-0.5), x[k][r], q[k]);
                    state[r].r0 = k == 0 ? apart * apart : fma(apart, apart, state[r].r0);
                }
        } else {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                if constexpr (Body::STARTS) Body::start(state[r], &x[0][r], &q[0], vectors[0], g.number);
                else Body::initial(state[r]);
            }
#pragma unroll
            for (int k = Body::STARTS; k < K; ++k)
#pragma unroll
                for (int r = 0; r < R; ++r) Body::template step<EXACT>(state[r], &x[k][r], &q[k], vectors[k], &q[k], g.number, k, 0);
        }
    }

    template <Entries HOW>
    __device__ __forceinline__ C entry(int r, const C* columns, typename Body::Registers& s) const {
        C mine[Extent<Body::ROW_ENDS>::value];
#pragma unroll
        for (int o = 0; o < Body::ROW_ENDS; ++o) mine[o] = ends[o][r];
        if constexpr (HOW == EXPANDED) {
            s.r0 = -s.r0;
            if (r < POLYNOMIALS) return Body::polynomial_entry(fixed, g.number, mine, columns, 0, s);
        }
        if constexpr (HOW == WRITTEN) return Body::entry(fixed, g.number, mine, columns, 0, s);
        else return Body::scaled_entry(fixed, g.number, mine, columns, 0, s);
    }

    // The entries of a column, and what is staged of it.
    template <Entries HOW>
    __device__ __forceinline__ void make_entries(C (&w)[R], C (&q)[S::PITCH], const C* shared) const {
#pragma unroll
        for (int i = 0; i < S::PITCH; i += S::WIDE) {
            const Pack<C, S::WIDE> pack = *(const Pack<C, S::WIDE>*)(shared + i);
#pragma unroll
            for (int v = 0; v < S::WIDE; ++v) q[i + v] = pack.v[v];
        }
        typename Body::Registers state[R];
        add_up<HOW>(state, q);
#pragma unroll
        for (int r = 0; r < R; ++r) w[r] = entry<HOW>(r, &q[S::ENDS], state[r]);
    }

    // Log-sum-exps of COUNT columns.
    template <Entries HOW, int COUNT>
    __device__ __forceinline__ void add_exponentials(const C* shared) {
        float w[COUNT][R];
#pragma unroll
        for (int u = 0; u < COUNT; ++u) {
            C q[S::PITCH];
            make_entries<HOW>(w[u], q, shared + u * S::PITCH);
        }
        logs.add(running[0], w);
    }

    template <Entries HOW>
    __device__ __forceinline__ void step(const C* shared, i64 n, Running* lists) {
        C q[S::PITCH], w[R];
        make_entries<HOW>(w, q, shared);
        if constexpr (Body::SELECTS) {
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const C key = Body::LARGEST ? -w[r] : w[r];
                if (!(key > worst[r])) worst[r] = insert<C, BM>(lists + r * Tile::THREADS + threadIdx.x, (int)g.size[ROLE_L], key, n);
            }
        } else {
#pragma unroll
            for (int c = 0; c < GROUP; ++c)
#pragma unroll
                for (int r = 0; r < R; ++r) Body::take(running[c][r], w[r], Body::WEIGHTED ? q[S::V + c] : C(1));
        }
    }

    template <Entries HOW>
    __device__ __forceinline__ void steps(const C* shared, i64 n, Running* lists) {
        const int rows = g.size[ROLE_N] - n < Tile::STAGE ? (int)(g.size[ROLE_N] - n) : Tile::STAGE;
        const int even = rows / Tile::UNROLL * Tile::UNROLL;
        if constexpr (LOGARITHMS) {
#pragma unroll 1
            for (int first = 0; first < even; first += THIN_RUN) {
                const int last = first + THIN_RUN < even ? first + THIN_RUN : even;
#pragma unroll 1
                for (int i = first; i < last; i += Tile::UNROLL)
#pragma unroll
                    for (int u = 0; u < Tile::UNROLL; u += TOGETHER) add_exponentials<HOW, TOGETHER>(shared + (i + u) * S::PITCH);
                logs.move(running[0]);
            }
#pragma unroll 1
            for (int i = even; i < rows; ++i) add_exponentials<HOW, 1>(shared + i * S::PITCH);
            return;
        }
#pragma unroll 1
        for (int i = 0; i < even; i += Tile::UNROLL)
#pragma unroll
            for (int u = 0; u < Tile::UNROLL; ++u) step<HOW>(shared + (i + u) * S::PITCH, n + i + u, lists);
#pragma unroll 1
        for (int i = even; i < rows; ++i) step<HOW>(shared + i * S::PITCH, n + i, lists);
    }

    // Entries of all staged columns, some of which may be `far` from the origin.
    __device__ __forceinline__ void run(const C* shared, i64 n, Running* lists, bool far) {
        const bool scales = Body::SCALES && scale > C(0);
        expanded = Body::EXPANDS && scales && rows_expand && !far;
        if constexpr (Body::EXPANDS) { if (expanded) return steps<EXPANDED>(shared, n, lists); }
        if constexpr (Body::SCALES) { if (scales) return steps<SCALED>(shared, n, lists); }
        steps<WRITTEN>(shared, n, lists);
    }

    __device__ __forceinline__ void end(Running* slot, i64 c, bool whole) {
        if constexpr (FLUSHES) flush_sums<false>(c);
        if constexpr (LOGARITHMS) logs.end(running[0]);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const int local = r * Tile::THREADS + threadIdx.x;
            const bool inside = row(r) < g.size[ROLE_M];
            if constexpr (Body::SELECTS) {
                if (whole && inside) for (i64 q = 0; q < g.size[ROLE_L]; ++q) write_result<Body>(g, p, row(r), q, slot[q * BM + local]);
            } else {
#pragma unroll
                for (int q = 0; q < GROUP; ++q) {
                    if (!inside || c + q >= g.size[ROLE_L]) continue;
                    const Running mine = FLUSHES ? slot_of<Body, BM>(g.work, blockIdx.x, 2, g.size[ROLE_L])[(c + q) * BM + local] : running[q][r];
                    if (whole) write_result<Body>(g, p, row(r), c + q, mine);
                    else slot[(c + q) * BM + local] = mine;
                }
            }
        }
    }
};

// Columns of v beyond GROUP take further passes over the same run.
template <class Body, class Tile>
__device__ __forceinline__ void apply_thin(const typename Body::Args& g) {
    typedef typename Body::C C;
    typedef Thin<Body, Tile> T;
    extern __shared__ __align__(16) unsigned char raw[];
    C* shared = (C*)(raw + thin_sums_bytes<Body, Tile>());
    const i64 columns = ceil_div(g.size[ROLE_N], Tile::BN), width = g.size[ROLE_L];
    const Share share(blockIdx.x, gridDim.x, batches(g) * ceil_div(g.size[ROLE_M], Tile::BM) * columns, columns);
    __shared__ C origin[Extent<Tile::DEPTH>::value];
    T task(g, origin);
    typename Body::Running* slot = 0;
#pragma unroll 1
    for (i64 c = 0; c < (Body::SELECTS ? 1 : width); c += T::GROUP) {
        bool small = true;
#pragma unroll 1
        for (i64 t = share.first; t < share.last; ++t) {
            const i64 row = quotient(t, columns), n = (t - row * columns) * Tile::STAGE;
            if (t == share.first || n == 0) {
                slot = slot_of<Body, Tile::BM>(g.work, blockIdx.x, share.slot(row), width);
                task.begin(row, slot, c);
                small = task.read_rows();
            }
            __syncthreads();
            bool expands;
            small = task.stage(shared, n, c, expands) && small;
            if (Body::SCALES && __syncthreads_or(task.scale > C(0) && !small)) {
                task.scale = C(0);
                task.read_rows();
                task.stage(shared, n, c, expands);
                small = true;
            }
            bool far = false;
            if (Body::EXPANDS) far = __syncthreads_or(!expands);
            else __syncthreads();
            task.run(shared, n, slot, far);
            const auto ends = [&] { return t + 1 == share.last || (t + 1) == (row + 1) * columns; };
            if constexpr (T::FLUSHES) {
                if ((t + 1) % T::RUN == 0 && !(Body::EXPANDS && ends())) task.template flush_sums<false>(c);
            }
            if (ends()) task.end(slot, c, share.whole(row));
        }
    }
}

}  // namespace km

// Kronecker-sparse products on tensor cores: y[n, i, j, l] = f(sum over k of w[i, j, k, l] x[n, i, k, l] + bias[i, j, l]).
//
// A block owns one i, LT neighbouring l, NJ columns j and every so many tiles of rows n; its warps own rows, and of each
// row L values of l. X goes through rings of stages in shared memory, one for the WS warps that share rows, and is read
// from there into registers as the left operand; any order of the 16 positions of k in a product is as good as another,
// so a thread takes those that lie together. The weights come in the order in which they are read (kronsparse_prepare),
// for all of k at once (RESIDENT) or a chunk at a time.
//
// float32 is taken apart into two float16 after scaling by a power of two, one for the rows of a warp and a chunk of k and
// one for each column; accumulators of tensor cores round towards zero, so every chunk has its own and is added in float32.
// Rows with an infinity, and columns whose weights are not finite, are computed without tensor cores.
#pragma once
#include "kronsparse_fetch.cuh"
#include "kronsparse_wgmma.cuh"

namespace km {

template <class P>
struct KronSparseBlock : KronSparseOperands<P> {
    typedef KronSparseOperands<P> Own;
    typedef typename P::T T;
    typedef typename Products<T>::type H;
    static constexpr int MT = P::MT, L = P::L, LT = P::LT, NT = P::NT, STEPS = P::STEPS, ROWS = P::ROWS, SIZE = P::SIZE;

    typedef float Sums[MT][L][NT][4];
    typedef typename Word<SIZE>::type Bits;
    using Own::g, Own::chunks, Own::i, Own::j0, Own::l0, Own::group, Own::x, Own::y, Own::ring, Own::held, Own::table;
    using Own::lane, Own::ring_of, Own::part;

    __device__ __forceinline__ KronSparseBlock(const KronSparse& given, unsigned char* shared) : Own(given, shared) {}

    // Offset of the row of accumulators 0, 1 (half 0) or 2, 3 (half 1) of tile m.
    __device__ __forceinline__ int row_of(int m, int half) const {
        return P::ROWS_TOGETHER ? P::Q * (lane / 4) + 2 * m + half : 16 * m + 8 * half + lane / 4;
    }

    // What this thread takes of 16 positions of k: bits of [tile][half][position][l].
    template <int EACH>
    static __device__ __forceinline__ Pack<Bits, EACH> take(const unsigned char* from) {
        union {
            typename Word<SIZE * EACH>::type word;
            Pack<Bits, EACH> pack;
        } both;
        both.word = *(const typename Word<SIZE * EACH>::type*)from;
        return both.pack;
    }
    __device__ __forceinline__ void read(Bits (&v)[MT][2][4][L], const unsigned char* stage, int step) const {
        const int quad = lane % 4;
        if constexpr (P::X_FIRST) {
            constexpr int EACH = P::ACCESS / SIZE;
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half)
#pragma unroll
                    for (int e = 0; e < (P::TOGETHER ? 1 : 4); ++e) {
                        const int k = 16 * step + position_of<P>(quad, e);
#pragma unroll
                        for (int s = 0; s < P::COUNT; s += EACH) {
                            const Pack<Bits, EACH> pack = take<EACH>(stage + place_of<P>(row_of(m, half), (k * LT + part * L + s) * SIZE));
#pragma unroll
                            for (int u = 0; u < EACH; ++u) v[m][half][e + (s + u) / L][(s + u) % L] = pack.v[u];
                        }
                    }
        } else {
            constexpr int EACH = P::ACCESS / SIZE;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int k = 16 * step + position_of<P>(quad, e);
#pragma unroll
                for (int s = 0; s < P::Q; s += EACH) {
                    const Pack<Bits, EACH> pack = take<EACH>(stage + place_of<P>(k, (P::Q * (lane / 4) + s) * SIZE));
#pragma unroll
                    for (int u = 0; u < EACH; ++u) v[(s + u) / 2][(s + u) % 2][e][0] = pack.v[u];
                }
            }
        }
    }

    __device__ __forceinline__ uint4 weights(const unsigned char* from, int step, int l, int t) const {
        return *(const uint4*)(from + (((step * LT + part * L + l) * (P::SPLIT ? NT : NT / 2) + t) * 32 + lane) * 16);
    }

    // Place of the weights of 16 positions of k and one l among those held for products of four warps.
    __device__ __forceinline__ unsigned long long grouped(const unsigned char* from, int step, int l, int plane) const {
        return weights_at(shared_address(from) + ((step * LT + part * L + l) * P::PLANES + plane) * P::PLANE);
    }

    // Adds the products of one chunk; false if a number of x was infinite.
    __device__ __forceinline__ bool add(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
        if constexpr (P::SPLIT)
            return add_split(sum, stage, from);
        else if constexpr (P::GROUPED)
            add_halves_grouped(sum, stage, from);
        else
            add_halves(sum, stage, from);
        return true;
    }

    // Halves as the left operands of products.
    __device__ __forceinline__ void join(unsigned (&left)[MT][4], const Bits (&v)[MT][2][4][L], int l) const {
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int r = 0; r < 4; ++r) left[m][r] = (unsigned)v[m][r % 2][r / 2 * 2][l] | (unsigned)v[m][r % 2][r / 2 * 2 + 1][l] << 16;
    }

    __device__ __forceinline__ void add_halves_grouped(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
        unsigned left[STEPS][L][MT][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            Bits v[MT][2][4][L];
            read(v, stage, step);
#pragma unroll
            for (int l = 0; l < L; ++l) join(left[step][l], v, l);
        }
        products_begin();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int l = 0; l < L; ++l)
#pragma unroll
                for (int m = 0; m < MT; ++m) multiply_grouped(H(), sum[m][l], left[step][l][m], grouped(from, step, l, 0), 1);
        products_wait();
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int l = 0; l < L; ++l)
#pragma unroll
                for (int t = 0; t < NT; ++t)
#pragma unroll
                    for (int r = 0; r < 4; ++r) settle(sum[m][l][t][r]);
    }

    __device__ __forceinline__ void add_halves(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            Bits v[MT][2][4][L];
            read(v, stage, step);
#pragma unroll
            for (int l = 0; l < L; ++l) {
                unsigned left[MT][4];
                join(left, v, l);
#pragma unroll
                for (int t = 0; t < NT / 2; ++t) {
                    const uint4 w = weights(from, step, l, t);
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        multiply_add(H(), sum[m][l][2 * t], left[m], w.x, w.y);
                        multiply_add(H(), sum[m][l][2 * t + 1], left[m], w.z, w.w);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ bool add_split(Sums& sum, const unsigned char* stage, const unsigned char* from) const {
        Bits v[STEPS][MT][2][4][L];
        float top = 0.0f;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            read(v[step], stage, step);
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int l = 0; l < L; ++l)
                        top = fmaxf(top, fmaxf(fabsf(__uint_as_float(v[step][m][0][e][l])), fabsf(__uint_as_float(v[step][m][1][e][l]))));
        }
        const int found = (int)(lanes_max(__float_as_uint(top)) >> 23), exponent = found < 14 ? 14 : found;
        const float scale = __uint_as_float((unsigned)(267 - exponent) << 23), back = __uint_as_float((unsigned)(exponent - 13) << 23);
#pragma unroll
        for (int l = 0; l < L; ++l) {
            unsigned high[STEPS][MT][4], low[STEPS][MT][4];
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int m = 0; m < MT; ++m)
#pragma unroll
                    for (int r = 0; r < 4; ++r) {
                        const float p = __uint_as_float(v[step][m][r % 2][r / 2 * 2][l]), q = __uint_as_float(v[step][m][r % 2][r / 2 * 2 + 1][l]);
                        const unsigned both = halves(p * scale, q * scale);
                        const float2 kept = of_halves(both);
                        high[step][m][r] = both;
                        low[step][m][r] = halves(fmaf(p, scale, -kept.x), fmaf(q, scale, -kept.y));
                    }
            if constexpr (P::GROUPED) {
                add_grouped(sum, high, low, from, l, back);
            } else {
#pragma unroll
                for (int t = 0; t < NT; t += P::BUNCH) add_bunch(sum, high, low, from, l, t, back);
            }
        }
        return found < 255;
    }

    // Adds one l: the small products first, which a sum that starts at 0 keeps best.
    __device__ __forceinline__ void add_grouped(
        Sums& sum, const unsigned (&high)[STEPS][MT][4], const unsigned (&low)[STEPS][MT][4], const unsigned char* from, int l,
        float back) const {
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float here[MT][NT][4];
        products_begin();
#pragma unroll
        for (int turn = BEGIN; turn < 3; ++turn)
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int m = 0; m < MT; ++m)
                    multiply_grouped(
                        f16(), here[m], turn == 0 ? low[step][m] : high[step][m], grouped(from, step, l, turn == 1), turn > BEGIN || step > 0);
        products_wait();
#pragma unroll
        for (int m = 0; m < MT; ++m)
#pragma unroll
            for (int t = 0; t < NT; ++t)
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    settle(here[m][t][r]);
                    sum[m][l][t][r] = fmaf(here[m][t][r], back, sum[m][l][t][r]);
                }
    }

    // The same of BUNCH tiles of columns by each warp for itself.
    __device__ __forceinline__ void add_bunch(
        Sums& sum, const unsigned (&high)[STEPS][MT][4], const unsigned (&low)[STEPS][MT][4], const unsigned char* from,
        int l, int t, float back) const {
        constexpr int BUNCH = P::BUNCH;
        constexpr int BEGIN = P::PRODUCTS == 3 ? 0 : 2;
        float here[BUNCH][MT][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            uint4 w[BUNCH];
#pragma unroll
            for (int u = 0; u < BUNCH; ++u) w[u] = weights(from, step, l, t + u);
#pragma unroll
            for (int turn = BEGIN; turn < 3; ++turn)
#pragma unroll
                for (int u = 0; u < BUNCH; ++u)
#pragma unroll
                    for (int m = 0; m < MT; ++m) {
                        const unsigned(&left)[4] = turn == 0 ? low[step][m] : high[step][m];
                        const unsigned b0 = turn == 1 ? w[u].z : w[u].x, b1 = turn == 1 ? w[u].w : w[u].y;
                        if (step == 0 && turn == BEGIN)
                            multiply(here[u][m], left, b0, b1);
                        else
                            multiply_add(f16(), here[u][m], left, b0, b1);
                    }
        }
#pragma unroll
        for (int u = 0; u < BUNCH; ++u)
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[m][l][t + u][r] = fmaf(here[u][m][r], back, sum[m][l][t + u][r]);
    }

    // The warp's rows without tensor cores.
    __device__ __forceinline__ void directly(i64 n0) const {
        const T* w = (const T*)g.weight + group * g.wg + i * g.wi + l0 * g.wl;
#pragma unroll 1
        for (int at = lane; at < ROWS * P::NJ * L; at += 32) {
            const i64 n = n0 + at % ROWS;
            const int l = part * L + at / ROWS % L, j = j0 + at / (ROWS * L);
            if (n >= g.count || j >= g.b || l0 + l >= g.d) continue;
            float total = 0.0f;
#pragma unroll 1
            for (int k = 0; k < g.c; ++k)
                total = fmaf(
                    convert<float>(x[n * g.xn + ((i64)k * g.d + l) * g.xf]), convert<float>(w[j * g.wj + k * g.wk + l * g.wl]), total);
            total = activated<P::ACTIVATION>(total + (P::BIAS ? table[l * P::NJ + j - j0].y : 0.0f));
            y[n * g.yn + ((i64)j * g.d + l) * g.yf] = Store<T>::from(total);
        }
    }

    // COUNT neighbours to memory, of which `left` are inside.
    template <int COUNT>
    static __device__ __forceinline__ void put(T* to, const T (&v)[COUNT], int left) {
        constexpr int RUN = P::Y_RUN < COUNT ? P::Y_RUN : COUNT;
        if (RUN > 1 && COUNT % RUN == 0 && left >= COUNT) {
#pragma unroll
            for (int s = 0; s < COUNT; s += RUN) {
                Pack<T, RUN> pack;
#pragma unroll
                for (int u = 0; u < RUN; ++u) pack.v[u] = v[s + u];
                store_pack<T, RUN>(to + s, pack);
            }
        } else {
#pragma unroll
            for (int s = 0; s < COUNT; ++s)
                if (s < left) to[s] = v[s];
        }
    }

    __device__ __forceinline__ T value(float sum, int l, int column) const {
        float v = sum;
        if (P::SPLIT || P::BIAS) {
            const float2 entry = table[(part * L + l) * P::NJ + column];
            v = P::SPLIT ? fmaf(v, entry.x, entry.y) : v + entry.y;
        }
        return Store<T>::from(activated<P::ACTIVATION>(v));
    }

    __device__ __forceinline__ void store(const Sums& sum, i64 n0) const {
        const int quad = lane % 4;
        if constexpr (P::Y_FIRST) {
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const i64 n = n0 + row_of(m, half);
                    if (n >= g.count) continue;
#pragma unroll
                    for (int t = 0; t < NT; t += P::CT) {
                        const int column = column_of<P>(t, 2 * quad);
                        T* to = y + n * g.yn + (i64)(j0 + column) * g.d;
                        if constexpr (P::FULL && L < 4) {
                            T v[2 * P::CT * L];
#pragma unroll
                            for (int u = 0; u < 2 * P::CT; ++u)
#pragma unroll
                                for (int l = 0; l < L; ++l) v[u * L + l] = value(sum[m][l][t + u / 2][2 * half + u % 2], l, column + u);
                            put(to, v, (g.b - j0 - column) * L);
                        } else {
#pragma unroll
                            for (int u = 0; u < 2 * P::CT; ++u) {
                                T v[L];
#pragma unroll
                                for (int l = 0; l < L; ++l) v[l] = value(sum[m][l][t + u / 2][2 * half + u % 2], l, column + u);
                                put(to + u * g.d + part * L, v, j0 + column + u < g.b ? g.d - l0 - part * L : 0);
                            }
                        }
                    }
                }
        } else {
#pragma unroll
            for (int l = 0; l < L; ++l)
#pragma unroll
                for (int t = 0; t < NT; ++t)
#pragma unroll
                    for (int u = 0; u < 2; ++u) {
                        const int column = column_of<P>(t, 2 * quad + u);
                        if (j0 + column >= g.b || l0 + part * L + l >= g.d) continue;
                        T v[P::Q];
#pragma unroll
                        for (int q = 0; q < P::Q; ++q) v[q] = value(sum[q / 2][l][t][2 * (q % 2) + u], l, column);
                        const i64 n = n0 + P::Q * (lane / 4), left = g.count - n;
                        put(y + n + ((i64)(j0 + column) * g.d + part * L + l) * g.yf, v, left < P::Q ? (int)left : P::Q);
                    }
        }
    }

    __device__ __forceinline__ void run() {
        const int slot = blockIdx.x / (gridDim.x / (unsigned)g.slots);
        if (!P::RESIDENT) wait_for_previous();
        int next_tile = slot, next_chunk = 0, next_stage = 0;
        auto issue = [&] {
            if (next_tile < g.tiles) {
                const i64 n0 = (i64)next_tile * P::BM + ring_of * ROWS;
                if (n0 < g.count) Own::fetch_x(n0, next_chunk, next_stage);
                if (!P::RESIDENT) Own::fetch_weights(next_chunk, next_stage);
                if (++next_chunk == chunks) {
                    next_chunk = 0;
                    next_tile += g.slots;
                }
                next_stage = next_stage + 1 == P::STAGES ? 0 : next_stage + 1;
            }
            copies_end_group();
        };
#pragma unroll
        for (int s = 0; s < P::STAGES - 1; ++s) issue();
        if (P::RESIDENT) {
            wait_for_previous();
            for (int at = 0; at < chunks; ++at) Own::fetch_weights(at, at);
            copies_end_group();
        }
        Own::fill_table();
        copies_wait<P::RESIDENT ? 0 : P::STAGES - 2>();
        if (P::GROUPED) show_to_products();
        __syncthreads();
        const bool usual = !P::SPLIT || columns_finite();
        int stage = 0;
#pragma unroll 1
        for (int tile = slot; tile < g.tiles; tile += g.slots) {
            const i64 n0 = (i64)tile * P::BM + ring_of * ROWS;
            Sums sum;
#pragma unroll
            for (int m = 0; m < MT; ++m)
#pragma unroll
                for (int l = 0; l < L; ++l)
#pragma unroll
                    for (int t = 0; t < NT; ++t)
#pragma unroll
                        for (int r = 0; r < 4; ++r) sum[m][l][t][r] = 0.0f;
            bool finite = usual;
#pragma unroll 1
            for (int chunk = 0; chunk < chunks; ++chunk) {
                copies_wait<P::STAGES - 2>();
                if (P::GROUPED && !P::RESIDENT) show_to_products();
                if (!P::RESIDENT)
                    __syncthreads();
                else if (P::WS > 1)
                    meet<P::SHARERS>(1 + ring_of);
                else
                    __syncwarp();
                issue();
                const int place = P::RESIDENT ? chunk : stage;
                if (P::GROUPED || n0 < g.count) finite = add(sum, ring + stage * P::STAGE, held + place * P::CHUNK) && finite;
                stage = stage + 1 == P::STAGES ? 0 : stage + 1;
            }
            if (n0 >= g.count) continue;
            if (finite)
                store(sum, n0);
            else
                directly(n0);
        }
    }

    // Whether the weights of all of this warp's columns are finite.
    __device__ __forceinline__ bool columns_finite() const {
        bool fine = true;
        for (int at = lane; at < L * P::NJ; at += 32) {
            const float undo = table[part * L * P::NJ + at].x;
            fine = fine && undo == undo;
        }
        return __all_sync(0xffffffffu, fine);
    }
};

template <class P>
__device__ __forceinline__ void kron_sparse(const KronSparse& g) {
    extern __shared__ __align__(1024) unsigned char shared[];
    KronSparseBlock<P>(g, shared).run();
}

}  // namespace km

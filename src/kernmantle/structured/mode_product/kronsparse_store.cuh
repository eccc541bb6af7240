// The epilogue of a Kronecker-sparse product: scales, bias, activation, and the stores to global memory.
#pragma once
#include "kronsparse_add.cuh"

namespace km {

template <class P>
struct KronSparseWriter : KronSparseAdder<P> {
    typedef KronSparseAdder<P> Own;
    typedef typename P::T T;
    typedef typename Own::Sums Sums;
    static constexpr int MMA_M = P::MMA_M, WARP_L = P::WARP_L, MMA_N = P::MMA_N, WARP_M = P::WARP_M, SIZE = P::SIZE;
    using Own::g, Own::i, Own::j0, Own::l0, Own::group, Own::x, Own::y, Own::scales, Own::biases;
    using Own::lane, Own::part, Own::side, Own::member, Own::pipeline_index, Own::row_of;

    __device__ __forceinline__ KronSparseWriter(const KronSparse& arguments, unsigned char* shared) : Own(arguments, shared) {}

    // The warp's rows without tensor cores.
    __device__ __forceinline__ void recompute_rows(i64 n0) const {
        const T* w = (const T*)g.weight + group * g.wg + i * g.wi + l0 * g.wl;
#pragma unroll 1
        for (int at = lane; at < WARP_M * 8 * MMA_N * WARP_L; at += 32) {
            const i64 n = n0 + at % WARP_M;
            const int l = part * WARP_L + at / WARP_M % WARP_L, j = j0 + 8 * MMA_N * side + at / (WARP_M * WARP_L);
            if (n >= g.count || j >= g.b || l0 + l >= g.d) continue;
            float total = 0.0f;
#pragma unroll 1
            for (int k = 0; k < g.c; ++k)
                total = fmaf(
                    convert<float>(x[n * g.xn + ((i64)k * g.d + l) * g.xf]), convert<float>(w[j * g.wj + k * g.wk + l * g.wl]), total);
            total = activated<P::ACTIVATION>(total + (P::BIAS ? biases[l * P::TILE_N + j - j0] : 0.0f));
            y[n * g.yn + ((i64)j * g.d + l) * g.yf] = Store<T>::from(total);
        }
    }

    // COUNT neighbours to memory, of which `left` are inside.
    template <int COUNT>
    static __device__ __forceinline__ void put(T* to, const T (&v)[COUNT], int left) {
        constexpr int RUN = P::Y_RUN < COUNT ? P::Y_RUN : COUNT;
        if constexpr (RUN > 1 && COUNT % RUN == 0 && (RUN & (RUN - 1)) == 0) {
            if (left >= COUNT) {
#pragma unroll
                for (int s = 0; s < COUNT; s += RUN) {
                    Pack<T, RUN> pack;
#pragma unroll
                    for (int u = 0; u < RUN; ++u) pack.v[u] = v[s + u];
                    store_pack<T, RUN>(to + s, pack);
                }
                return;
            }
        }
#pragma unroll
        for (int s = 0; s < COUNT; ++s)
            if (s < left) to[s] = v[s];
    }

    __device__ __forceinline__ T value(float sum, int l, int column) const {
        float v = sum;
        const int at = (part * WARP_L + l) * P::TILE_N + column;
        if (P::SPLIT)
            v = fmaf(v, scales[at], P::BIAS ? biases[at] : 0.0f);
        else if (P::BIAS)
            v += biases[at];
        return Store<T>::from(activated<P::ACTIVATION>(v));
    }

    static __device__ __forceinline__ uint4 either(bool first, const uint4& a, const uint4& b) {
        return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
    }
    static __device__ __forceinline__ void write(T* to, const uint4& v) {
        ptx::st_global_cs_v4(to, v);
    }
    // Two lanes with 32 neighbouring bytes each write first those of the even one, then those of the other: whole sectors.
    __device__ __forceinline__ void write_both(T* even, const uint4 (&word)[2], bool first, bool second) const {
        const bool odd = lane % 2;
        const uint4 own = either(odd, word[1], word[0]);
        uint4 other = either(odd, word[0], word[1]);
        other.x = __shfl_xor_sync(0xffffffffu, other.x, 1);
        other.y = __shfl_xor_sync(0xffffffffu, other.y, 1);
        other.z = __shfl_xor_sync(0xffffffffu, other.z, 1);
        other.w = __shfl_xor_sync(0xffffffffu, other.w, 1);
        T* const to = even + odd * (16 / SIZE);
        if (first) write(to, either(odd, other, own));
        if (second) write(to + 2 * g.d, either(odd, own, other));
    }

    __device__ __forceinline__ void store_sectors(const Sums& sum, i64 n0) const {
        constexpr int WORDS = WARP_L * SIZE / 16;  // of a column
        const int quad = lane % 4, odd = quad % 2;
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const i64 n = n0 + row_of(m, half);
#pragma unroll
                for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                    for (int u = 0; u < WORDS; ++u) {
                        union {
                            T v[32 / SIZE];
                            uint4 word[2];
                        } both;
                        const int own = column_of<P>(t + side * MMA_N, 2 * quad + u);
#pragma unroll
                        for (int w = 0; w < 3 - WORDS; ++w)
#pragma unroll
                            for (int l = 0; l < WARP_L; ++l) both.v[w * WARP_L + l] = value(sum[m][l][t][2 * half + u + w], l, own + w);
                        const int column = j0 + own - 2 * odd, last = column + (WORDS == 1 ? odd : 0);
                        write_both(y + n * g.yn + (i64)column * g.d + part * WARP_L, both.word, n < g.count && last < g.b, n < g.count && last + 2 < g.b);
                    }
            }
    }

    // 8 rows and 8 columns at a time, of all warps that share the rows, in a stage that all of them have read; while they
    // are written the next come together.
    __device__ __forceinline__ void store_staged(const Sums& sum, i64 n0, unsigned char* stage) const {
        constexpr int BYTES = P::TILE_L * SIZE, WORDS = BYTES / 16, PART = WARP_L * SIZE < 16 ? WARP_L * SIZE : 16;
        typedef typename Word<PART>::type Own;
        static_assert(128 * BYTES <= P::STAGE, "two times 64 lines");
        const int quad = lane % 4;
        auto offset = [](int row, int bytes) { return row * BYTES + bytes ^ (BYTES == 64 ? row / 2 % 8 : row / 4 % 4) * 16; };
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int t = 0; t < MMA_N; ++t) {
                    unsigned char* const own = stage + (half * MMA_N + t) % 2 * 64 * BYTES;
#pragma unroll
                    for (int u = 0; u < 2; ++u)
#pragma unroll
                        for (int l = 0; l < WARP_L; l += PART / SIZE) {
                            Pack<T, PART / SIZE> own_l;
#pragma unroll
                            for (int s = 0; s < PART / SIZE; ++s) own_l.v[s] = value(sum[m][l + s][t][2 * half + u], l + s, 8 * t + 2 * quad + u);
                            *(Own*)(own + offset(8 * (lane / 4) + 2 * quad + u, (part * WARP_L + l) * SIZE)) = bit_cast<Own>(own_l);
                        }
                    ptx::bar_sync<P::PIPELINE_THREADS>(1 + pipeline_index);
#pragma unroll
                    for (int at = member; at < 64 * WORDS; at += P::PIPELINE_THREADS) {
                        const int row = at / WORDS, word = at % WORDS, column = j0 + 8 * t + row % 8;
                        const i64 n = n0 + 16 * m + 8 * half + row / 8;
                        if (n < g.count && column < g.b)
                            write(y + n * g.yn + (i64)column * g.d + word * (16 / SIZE), *(const uint4*)(own + offset(row, 16 * word)));
                    }
                }
    }

    // Two neighbouring columns of one l.
    __device__ __forceinline__ void values(T (&out)[2], const float* sums, int l, int column) const {
        const int at = (part * WARP_L + l) * P::TILE_N + column;
        float2 v = make_float2(sums[0], sums[1]), bias = make_float2(0.0f, 0.0f);
        if (P::BIAS) bias = *(const float2*)(biases + at);
        if (P::SPLIT) {
            const float2 scale = *(const float2*)(scales + at);
            v = make_float2(fmaf(v.x, scale.x, bias.x), fmaf(v.y, scale.y, bias.y));
        } else if (P::BIAS) {
            v = make_float2(v.x + bias.x, v.y + bias.y);
        }
        out[0] = Store<T>::from(activated<P::ACTIVATION>(v.x));
        out[1] = Store<T>::from(activated<P::ACTIVATION>(v.y));
    }

    // Lanes that share a row of so many words: those by which a warp has the fewest words one after the other; few, and so several rows
    // at a time, where a whole warp for a row would have as many.
    static __device__ constexpr int lanes_of(int words) {
        const int by_8 = (words + 7) / 8, by_16 = (words + 15) / 16, by_32 = (words + 31) / 32;
        return by_8 < 2 * by_16 || by_16 == 2 * by_32 ? 8 : 16;
    }

    // RUN_N fragments of columns of 8 rows at a time, in a stage that all warps that share the rows have read: all l of
    // neighbouring columns lie together in memory, so lanes store neighbouring vectors, or words of halves.
    __device__ __forceinline__ void store_runs(const Sums& sum, i64 n0, unsigned char* stage) const {
        constexpr int TILE_L = P::TILE_L, PITCH = P::RUN_PITCH_BYTES(P::RUN_N), LENGTH = 8 * P::RUN_N * TILE_L, VECTORS = LENGTH / P::Y_RUN;
        constexpr int EACH = P::PUT_BYTES / SIZE, COUNT = P::WARPS_L == 1 ? 2 * WARP_L : WARP_L;
        typedef typename Word<P::PUT_BYTES>::type Put;
        static_assert(P::RUN_FITS(P::RUN_N) && LENGTH % P::Y_RUN == 0 && COUNT % EACH == 0, "8 rows in a stage");
        const int quad = lane % 4, first_column = 8 * MMA_N * side;
        stage += side * 8 * PITCH;
        auto meet = [&] {
            if (P::PIPELINE_THREADS > 32)
                ptx::bar_sync<P::PIPELINE_THREADS>(1 + pipeline_index);
            else
                __syncwarp();
        };
#pragma unroll
        for (int m = 0; m < MMA_M; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int t0 = 0; t0 < MMA_N; t0 += P::RUN_N) {
                    meet();
#pragma unroll
                    for (int t = t0; t < t0 + P::RUN_N; ++t) {
                        T own[2 * WARP_L];
#pragma unroll
                        for (int l = 0; l < WARP_L; ++l) {
                            T both[2];
                            values(both, &sum[m][l][t][2 * half], l, column_of<P>(t + side * MMA_N, 2 * quad));
                            own[l] = both[0];
                            own[WARP_L + l] = both[1];
                        }
                        unsigned char* const to = stage + lane / 4 * PITCH + (column_of<P>(t - t0, 2 * quad) * TILE_L + part * WARP_L) * SIZE;
#pragma unroll
                        for (int at = 0; at < 2 * WARP_L; at += EACH) {
                            Pack<T, EACH> pack;
#pragma unroll
                            for (int u = 0; u < EACH; ++u) pack.v[u] = own[at + u];
                            *(Put*)(to + (at / COUNT * TILE_L + at % COUNT) * SIZE) = bit_cast<Put>(pack);
                        }
                    }
                    meet();
                    const i64 first = n0 + 16 * m + 8 * half, left = g.count - first;
                    const int j = j0 + first_column + 8 * t0, rows = left < 8 ? (int)left : 8, length = min(LENGTH, (g.b - j) * TILE_L);
                    T* const to = y + first * g.yn + (i64)j * TILE_L;
                    if constexpr (P::Y_RUN * SIZE < 4) {
                        // Whole words; what a run has before the first one and behind the last one are single numbers.
                        constexpr int LANES = lanes_of(LENGTH / 2 + 1);
                        const int own = lane % LANES;
#pragma unroll 1
                        for (int row = (32 * part + lane) / LANES; row < rows && length > 0; row += 32 * P::WARPS_L / LANES) {
                            T* const run = to + row * g.yn;
                            const unsigned* const from = (const unsigned*)(stage + row * PITCH);
                            const int before = this->before_y(8 * half + row, j, 0), words = (length + before) / 2;
                            unsigned* const put = (unsigned*)(run - before);
#pragma unroll 4
                            for (int word = before + own; word < words; word += LANES)
                                put[word] = __funnelshift_l(from[word - before], from[word], 16 * before);
                            if (own < 2 && (own == 0 ? before : (length + before) % 2)) {
                                const int at = own == 0 ? 0 : length - 1;
                                run[at] = ((const T*)from)[at];
                            }
                        }
                    } else {
                        // Neighbouring lanes have neighbouring vectors, and go on by as many rows and vectors each time.
                        constexpr int STEP = 32 * P::WARPS_L, ROWS = STEP / VECTORS, REST = STEP % VECTORS;
                        const int at = 32 * part + lane;
                        int row = at / VECTORS, vector = at % VECTORS;
                        T* own = to + row * g.yn + vector * P::Y_RUN;
                        const unsigned char* from = stage + row * PITCH + vector * P::Y_RUN * SIZE;
#pragma unroll 4
                        for (; row < rows; row += ROWS) {
                            if (vector * P::Y_RUN < length) store_pack<T, P::Y_RUN>(own, *(const Pack<T, P::Y_RUN>*)from);
                            const bool wraps = REST > 0 && vector + REST >= VECTORS;
                            vector += wraps ? REST - VECTORS : REST;
                            row += wraps;
                            own += (ROWS + wraps) * g.yn + (wraps ? REST - VECTORS : REST) * P::Y_RUN;
                            from += (ROWS + wraps) * PITCH + (wraps ? REST - VECTORS : REST) * P::Y_RUN * SIZE;
                        }
                    }
                }
    }

    // All rows of a tile inside the batch, 8 columns at a time in a stage that the warp has read: lanes store neighbouring words,
    // of two numbers that they shift together where a column begins between words, whose first and last numbers are stored apart.
    __device__ __forceinline__ void store_words(const Sums& sum, i64 n0, unsigned char* stage) const {
        constexpr int PITCH = WARP_M * SIZE + 16, LANES = WARP_M / 2, AT_ONCE = 32 / LANES, KINDS = AT_ONCE == 1 ? 2 : 1;
        static_assert(8 * PITCH <= P::STAGE && sizeof(T) == 2 && WARP_L == 1, "8 columns of halves in a stage");
        const int quad = lane % 4, own = lane / LANES, word = lane % LANES, first = j0 + 8 * MMA_N * side, left = g.b - first;
        const i64 apart = g.d * g.yf;
        unsigned char* const put = stage + 2 * quad * PITCH + P::THREAD_M * SIZE * (lane / 4);
        const unsigned char *const next = stage + own * PITCH + 4 * word, *const last = next - (word > 0 ? 4 : 0);
        // Where this lane stores, of even and of odd columns if it has both, how it shifts, and from which column on no more.
        T* to[KINDS];
        int shift[KINDS], end[KINDS];
#pragma unroll
        for (int kind = 0; kind < KINDS; ++kind) {
            const int before = this->before_y(0, first + own + kind, 0);
            to[kind] = y + n0 + (first + own + kind) * apart + 2 * word - before;
            shift[kind] = 16 * before;
            end[kind] = word < before ? 0 : left - own;
        }
        // Of the column whose ends this lane stores.
        const int ends = lane < 8 && this->before_y(0, first + lane, 0) ? left - lane : 0;
        const unsigned char* const from = stage + lane % 8 * PITCH;
        T* at = y + n0 + (first + lane) * apart;
#pragma unroll
        for (int t = 0; t < MMA_N; ++t) {
            __syncwarp();
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                Pack<T, P::THREAD_M> column;
#pragma unroll
                for (int q = 0; q < P::THREAD_M; ++q) column.v[q] = value(sum[q / 2][0][t][2 * (q % 2) + u], 0, 8 * (t + side * MMA_N) + 2 * quad + u);
                *(typename Word<P::THREAD_M * SIZE>::type*)(put + u * PITCH) = bit_cast<typename Word<P::THREAD_M * SIZE>::type>(column);
            }
            __syncwarp();
#pragma unroll
            for (int c = 0; c < 8; c += AT_ONCE) {
                const int kind = c / AT_ONCE % KINDS;
                const unsigned both = __funnelshift_l(*(const unsigned*)(last + c * PITCH), *(const unsigned*)(next + c * PITCH), shift[kind]);
                if (8 * t + c < end[kind]) *(unsigned*)to[kind] = both;
                to[kind] += KINDS * AT_ONCE * apart;
            }
            if (8 * t < ends) {
                at[0] = *(const T*)from;
                at[WARP_M - 1] = *(const T*)(from + (WARP_M - 1) * SIZE);
            }
            at += 8 * apart;
        }
    }

    // `stage`: one that is read.
    __device__ __forceinline__ void store(const Sums& sum, i64 n0, unsigned char* stage) const {
        const int quad = lane % 4;
        if constexpr (P::STORE_RUNS) {
            store_runs(sum, n0, stage);
            return;
        }
        if constexpr (P::STAGED) {
            if (l0 + P::TILE_L <= g.d) {
                store_staged(sum, n0, stage);
                return;
            }
        }
        if constexpr (P::SECTORS) {
            if (l0 + WARP_L <= g.d) {
                store_sectors(sum, n0);
                return;
            }
        }
        if constexpr (P::Y_FIRST) {
#pragma unroll
            for (int m = 0; m < MMA_M; ++m)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const i64 n = n0 + row_of(m, half);
                    if (n >= g.count) continue;
#pragma unroll
                    for (int t = 0; t < MMA_N; t += P::N_VECTOR) {
                        const int column = column_of<P>(t + side * MMA_N, 2 * quad);
                        T* to = y + n * g.yn + (i64)(j0 + column) * g.d;
                        if constexpr (P::WHOLE_COLUMN && WARP_L * SIZE < 16) {
                            T v[2 * P::N_VECTOR * WARP_L];
#pragma unroll
                            for (int u = 0; u < 2 * P::N_VECTOR; ++u)
#pragma unroll
                                for (int l = 0; l < WARP_L; ++l) v[u * WARP_L + l] = value(sum[m][l][t + u / 2][2 * half + u % 2], l, column + u);
                            put(to, v, (g.b - j0 - column) * WARP_L);
                        } else {
#pragma unroll
                            for (int u = 0; u < 2 * P::N_VECTOR; ++u) {
                                T v[WARP_L];
#pragma unroll
                                for (int l = 0; l < WARP_L; ++l) v[l] = value(sum[m][l][t + u / 2][2 * half + u % 2], l, column + u);
                                put(to + u * g.d + part * WARP_L, v, j0 + column + u < g.b ? g.d - l0 - part * WARP_L : 0);
                            }
                        }
                    }
                }
        } else {
            if constexpr (P::STORE_WORDS) {
                if (n0 + WARP_M <= g.count) {
                    store_words(sum, n0, stage);
                    return;
                }
            }
#pragma unroll
            for (int l = 0; l < WARP_L; ++l)
#pragma unroll
                for (int t = 0; t < MMA_N; ++t)
#pragma unroll
                    for (int u = 0; u < 2; ++u) {
                        const int column = column_of<P>(t + side * MMA_N, 2 * quad + u);
                        if (j0 + column >= g.b || l0 + part * WARP_L + l >= g.d) continue;
                        T v[P::THREAD_M];
#pragma unroll
                        for (int q = 0; q < P::THREAD_M; ++q) v[q] = value(sum[q / 2][l][t][2 * (q % 2) + u], l, column);
                        const i64 n = n0 + P::THREAD_M * (lane / 4), left = g.count - n;
                        put(y + n + ((i64)(j0 + column) * g.d + part * WARP_L + l) * g.yf, v, left < P::THREAD_M ? (int)left : P::THREAD_M);
                    }
        }
    }
};

}  // namespace km

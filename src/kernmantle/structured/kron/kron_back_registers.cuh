// The gradients of two neighbouring short axes of a Kronecker product, from one read of x and of the gradient v of the product: what leaves
// is v with both factors' transposes applied, and each block's share of both factors' gradients.
//
// A warp takes matrices of 16 x 16, the first axis along the rows, the second one along the columns, with several items in a grid of
// ROWS x COLUMNS slots where axes are short, and factors that repeat along the diagonal. All of it stays in registers: for X and V, A and B
//   U = V B,  G_A += U X^T,  out = A^T U,  S^T = V^T A,  G_B += S^T X,
// where sums of a product are operands of the next one, and transposes are those of 8 x 8 that a warp makes of its words. float32 is split
// into two halves of 11 bits, scaled by a power of two for the matrix, of which a product is three. Halves are taken as they are; of float16
// the power of two is for what is rounded in between.
//
// A lane has four neighbours of a row, as columns 2 j, 2 j + 1, 2 j + 8 and 2 j + 9 of the products: the order of terms is free, and results
// leave as they came.
#pragma once
#include "kron_separate.cuh"
#include "pipeline.cuh"
#include "ptx_transpose.cuh"
#include "split_hi_lo.cuh"

namespace km {

// B: the type T and that of halves H, rows Q0, Q1 and columns P0, P1 of both axes; ROWS and COLUMNS of the grid of slots, SLOT0 and SLOT1
// apart; ITEMS of a matrix, which follow each other in memory, of BEFORE that a row of x has, 0 for whole matrices; PACK neighbours of an
// access; THREADS. ACROSS columns of a tile of TEAM threads, 0 where none stand behind the axes, and STAGES of tiles.
template <class B>
struct KronBackRegisters {
    typedef typename B::T T;
    typedef typename B::H H;
    static constexpr bool SPLIT = sizeof(T) == 4, SCALED = Same<H, f16>::value;
    static constexpr int PLANES = SPLIT ? 2 : 1, THREADS = B::THREADS, WARPS = THREADS / 32, PACK = B::PACK, ITEMS = B::ITEMS, SIDE = 16;
    // Sums of each warp, then those of the block.
    static constexpr int SUMS = 4 * (WARPS + 1) * 2 * SIDE * SIDE;
    static constexpr int FOURS = (B::P0 * B::P1 + 3) / 4 + (B::Q0 * B::Q1 + 3) / 4;  // fours of what stands in a column
    static constexpr int STAGED = THREADS / B::TEAM * B::STAGES * FOURS * (4 * B::ACROSS * (int)sizeof(T) + 16);
    static constexpr int SHARED_BYTES = STAGED > SUMS ? STAGED : SUMS;
    static constexpr float LESS = SCALED ? 0x1p-19f : 1.0f, MORE = SCALED ? 0x1p19f : 1.0f;

    typedef KronPass<T> Arguments;
    // Words of a matrix as left operand: rows lane / 4 and 8 more, columns 2 (lane % 4) and 8 more; high halves, then low ones.
    struct Words {
        unsigned part[PLANES][4];
    };
    // Four neighbours of rows lane / 4 and 8 more.
    struct Raw {
        T v[2][4];
    };

    static KM_DEVICE int row(int h) { return threadIdx.x % 32 / 4 + 8 * h; }
    static KM_DEVICE int column(int i) { return threadIdx.x % 4 * 4 + i; }

    // ---- Where the numbers of a lane are, of entries (R, C); -1 where there is none.
    template <int R, int C>
    static KM_DEVICE int offset(int h, int i, int count) {
        if (R == SIDE && C == SIDE) return row(h) * SIDE + column(i);
        const int down = row(h) / B::SLOT0, r = row(h) % B::SLOT0, across = column(i) / B::SLOT1, c = column(i) % B::SLOT1, item = down * B::COLUMNS + across;
        return down < B::ROWS && across < B::COLUMNS && item < count && r < R && c < C ? (item * R + r) * C + c : -1;
    }
    template <int R, int C>
    static KM_DEVICE void ask(Raw& raw, const T* from, int count) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int i = 0; i < 4; i += PACK) {
                const int at = offset<R, C>(h, i, count);
                Pack<T, PACK> pack{};
                if ((R == SIDE && C == SIDE) || at >= 0) pack = load_pack<T, PACK>(from + at);
#pragma unroll
                for (int k = 0; k < PACK; ++k) raw.v[h][i + k] = pack.v[k];
            }
        }
    }

    // ---- Powers of two and halves.
    static KM_DEVICE float magnitude(float a) { return fabsf(a) < infinity<float>() ? fabsf(a) : 0.0f; }
    static KM_DEVICE float magnitude(f16 a) { return (a.bits & 0x7fffu) < 0x7c00u ? ptx::f16_to_f32((unsigned short)(a.bits & 0x7fffu)) : 0.0f; }
    static KM_DEVICE float magnitude(bf16) { return 0.0f; }
    static KM_DEVICE HalfScale scale_of(unsigned largest) {
        if (!SCALED) return {1.0f, 1.0f};
        const unsigned biased = largest >> 23;
        return HalfScale::of_exponent(SPLIT || biased > 90 ? biased : 90);  // such that two of them can be multiplied
    }
    static KM_DEVICE HalfScale scale_of(const Raw& raw) {
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) top = fmaxf(top, SPLIT ? fabsf(convert<float>(raw.v[i / 4][i % 4])) : magnitude(raw.v[i / 4][i % 4]));
        if (SPLIT && top == infinity<float>()) {
            top = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; ++i) top = fmaxf(top, magnitude(raw.v[i / 4][i % 4]));
        }
        return scale_of(SCALED ? ptx::redux_max(__float_as_uint(top)) : 0u);
    }
    static KM_DEVICE unsigned pack_halves(f16, float a, float b) { return ptx::pack_f16x2(a, b); }
    static KM_DEVICE unsigned pack_halves(bf16, float a, float b) { return ptx::pack_bf16x2(a, b); }
    static KM_DEVICE void halves_of(Words& to, int word, float a, float b, float scale) {
        if constexpr (SPLIT) split_f16x2(to.part[0][word], to.part[1][word], a, b, scale);
        else to.part[0][word] = pack_halves(H(), a, b);
    }
    static KM_DEVICE Words words_of(const Raw& raw, float scale) {
        Words found;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            const T a = raw.v[w % 2][w / 2 * 2], b = raw.v[w % 2][w / 2 * 2 + 1];
            if constexpr (SPLIT) split_f16x2(found.part[0][w], found.part[1][w], a, b, scale);
            else found.part[0][w] = a.bits | (unsigned)b.bits << 16;
        }
        return found;
    }
    // Sums as operands of the next product.
    static KM_DEVICE Words words_of(const float (&d)[2][4], float less) {
        Words found;
#pragma unroll
        for (int w = 0; w < 4; ++w) halves_of(found, w, d[w / 2][w % 2 * 2] * less, d[w / 2][w % 2 * 2 + 1] * less, 1.0f);
        return found;
    }
    static KM_DEVICE Words transposed(const Words& a) {
        Words found;
#pragma unroll
        for (int p = 0; p < PLANES; ++p) {
#pragma unroll
            for (int w = 0; w < 4; ++w) found.part[p][w] = ptx::transpose(a.part[p][w / 2 + w % 2 * 2]);
        }
        return found;
    }

    // d = left right^T, where the words of the right matrix, as a left operand, are those of its transpose as a right one.
    static KM_DEVICE void multiply(float (&d)[2][4], const Words& left, const Words& right) {
#pragma unroll
        for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const auto& a = left.part[SPLIT && term == 0];
                const auto& b = right.part[SPLIT && term == 1];
                if (term == (SPLIT ? 0 : 2)) {
                    d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
                }
                ptx::mma_m16n8k16_pure<H>(d[n], a, b[n], b[n + 2]);
            }
        }
    }

    // ---- A factor's transpose, repeated along the diagonal: entry(r, c) of row(h) and columns in the order of the products.
    template <class Entry>
    static KM_DEVICE Words factor_of(HalfScale& scale, const Entry& entry) {
        float value[2][4], top = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            value[i / 4][i % 4] = entry(i / 4, i % 4);
            top = fmaxf(top, magnitude(value[i / 4][i % 4]));
        }
        scale = scale_of(ptx::redux_max(__float_as_uint(top)));
        Words found;
#pragma unroll
        for (int w = 0; w < 4; ++w) halves_of(found, w, value[w % 2][w / 2 * 2], value[w % 2][w / 2 * 2 + 1], scale.scale);
        return found;
    }
    template <int Q, int P, int SLOT, int COUNT, class Entry>
    static KM_DEVICE float inside(const Entry& factor, int q, int p) {
        return q / SLOT == p / SLOT && q / SLOT < COUNT && q % SLOT < Q && p % SLOT < P ? factor(q % SLOT, p % SLOT) : 0.0f;
    }
    // Rows and columns of the products as those of the second axis.
    static KM_DEVICE int second(int n) { return n % 8 / 2 * 4 + n / 8 * 2 + n % 2; }

    // Factors, and sums of both gradients, of a warp.
    struct Own {
        Words a, b;
        HalfScale scale0, scale1;
        float total0[2][4], total1[2][4], slope;
    };
    template <class First, class Second>
    static KM_DEVICE void begin(Own& own, const First& first, const Second& of_second, float slope) {
        const int lane = threadIdx.x % 32;
        // A^T: rows p, columns q. B^T: rows p and columns q, both in the order of the products.
        own.a = factor_of(own.scale0, [&](int h, int i) { return inside<B::Q0, B::P0, B::SLOT0, B::ROWS>(first, lane % 4 * 2 + i % 2 + i / 2 * 8, row(h)); });
        own.b = factor_of(own.scale1, [&](int h, int i) { return inside<B::Q1, B::P1, B::SLOT1, B::COLUMNS>(of_second, second(lane % 4 * 2 + i % 2 + i / 2 * 8), second(row(h))); });
        own.slope = slope;
#pragma unroll
        for (int i = 0; i < 8; ++i) own.total0[i / 4][i % 4] = own.total1[i / 4][i % 4] = 0.0f;
    }
    // The products of a matrix; `out` has four neighbours of each row.
    static KM_DEVICE void step(Own& own, float (&out)[2][4], const Words& x, const Words& v, const HalfScale& scale_x, const HalfScale& scale_v) {
        // By what first sums are multiplied, and what comes of them.
        float less[2] = {1.0f, 1.0f}, more[2] = {1.0f, 1.0f};
        if (SCALED) {
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const HalfScale& of = k ? own.scale0 : own.scale1;
                less[k] = SPLIT ? LESS : scale_v.scale * of.scale * LESS;
                more[k] = scale_v.inverse * (of.inverse * MORE);
            }
        }
        float d[2][4];
        multiply(d, v, own.b);
        const Words u = words_of(d, less[0]);
        multiply(d, u, x);
#pragma unroll
        for (int i = 0; i < 8; ++i) own.total0[i / 4][i % 4] = fmaf(d[i / 4][i % 4] * scale_x.inverse, more[0], own.total0[i / 4][i % 4]);
        multiply(d, own.a, transposed(u));
        const float back = more[0] * ((SPLIT ? own.scale0.inverse : 1.0f) * own.slope);
#pragma unroll
        for (int i = 0; i < 8; ++i) out[i / 4][i % 4] = d[i % 4 / 2][2 * (i / 4) + i % 2] * back;
        multiply(d, transposed(v), own.a);
        const Words s = words_of(d, less[1]);
        multiply(d, s, transposed(x));
#pragma unroll
        for (int i = 0; i < 8; ++i) own.total1[i / 4][i % 4] = fmaf(d[i / 4][i % 4] * scale_x.inverse, more[1], own.total1[i / 4][i % 4]);
    }
    // Sums of warps, of rows and columns of the axes, are added up.
    template <class Write>
    static __device__ void end(const Own& own, float* sums, const Write& write) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float* const mine = sums + warp * (2 * SIDE * SIDE);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int r = lane / 4 + i % 4 / 2 * 8, c = i / 4 * 8 + lane % 4 * 2 + i % 2;
            mine[r * SIDE + c] = own.total0[i / 4][i % 4];
            mine[SIDE * SIDE + second(r) * SIDE + second(c)] = own.total1[i / 4][i % 4];
        }
        __syncthreads();
        float* const joint = sums + WARPS * (2 * SIDE * SIDE);
        join<B::Q0, B::P0, B::SLOT0, B::ROWS>(joint, sums);
        join<B::Q1, B::P1, B::SLOT1, B::COLUMNS>(joint + SIDE * SIDE, sums + SIDE * SIDE);
        __syncthreads();
        write((const float*)joint, (const float*)(joint + SIDE * SIDE));
    }
    static KM_DEVICE HalfScale scale_of_x(const Raw& raw) { return SPLIT ? scale_of(raw) : HalfScale{1.0f, 1.0f}; }

    // The items of a matrix: those of a row of x may be no whole matrices.
    struct Run {
        i64 first;
        int count;
    };
    static constexpr int BEFORE = B::BEFORE ? B::BEFORE : 1, OF_ROW = (BEFORE + ITEMS - 1) / ITEMS;
    static KM_DEVICE Run run_of(i64 matrix) {
        if (!B::BEFORE) return {matrix * ITEMS, ITEMS};
        const int of_row = (int)(matrix % OF_ROW) * ITEMS;
        return {matrix / OF_ROW * BEFORE + of_row, BEFORE - of_row < ITEMS ? BEFORE - of_row : ITEMS};
    }

    // `write` gets both factors' gradients that this block has found.
    template <class First, class Second, class Write>
    static __device__ void run(const Arguments& g, const First& first, const Second& of_second, const Write& write) {
        extern __shared__ __align__(128) unsigned char raw_bytes[];
        Own own;
        if constexpr (B::ACROSS > 0) {
            go_across(g, own, raw_bytes, first, of_second);
        } else {
            constexpr int X = B::P0 * B::P1, V = B::Q0 * B::Q1;
            const i64 all = B::BEFORE ? g.items / BEFORE * OF_ROW : g.items / ITEMS, apart = (i64)gridDim.x * WARPS;
            i64 matrix = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
            Raw of_x, of_v;
            Run items;
            const auto fetch = [&]() {
                items = run_of(matrix);
                ask<B::P0, B::P1>(of_x, g.x + items.first * X, items.count);
                ask<B::Q0, B::Q1>(of_v, g.v + items.first * V, items.count);
            };
            kron_begin(g.is_later, [&]() { begin(own, first, of_second, g.slope); }, [&]() {
                if (matrix < all) fetch();
            });
#pragma unroll 1
            while (matrix < all) {
                const HalfScale scale_x = scale_of_x(of_x), scale_v = scale_of(of_v);
                const Words x = words_of(of_x, scale_x.scale), v = words_of(of_v, scale_v.scale);
                T* const to = g.out + items.first * X;
                const int count = items.count;
                matrix += apart;
                if (matrix < all) fetch();
                float out[2][4];
                step(own, out, x, v, scale_x, scale_v);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
#pragma unroll
                    for (int i = 0; i < 4; i += PACK) {
                        const int at = offset<B::P0, B::P1>(h, i, count);
                        Pack<T, PACK> pack;
#pragma unroll
                        for (int k = 0; k < PACK; ++k) pack.v[k] = Store<T>::from(out[h][i + k]);
                        if ((B::P0 == SIDE && B::P1 == SIDE) || at >= 0) store_pack<T, PACK>(to + at, pack);
                    }
                }
            }
        }
        end(own, (float*)raw_bytes, write);
    }

    // ---- Where other columns stand behind both axes. A tile of TEAM threads, a warp or the block, has ACROSS of them in shared memory, for each
    // entry of the axes one run; a lane takes EACH neighbours, each of another matrix, and writes what leaves over x, from where the team stores it.
    static constexpr int TEAM = B::TEAM;
    static KM_DEVICE void meet() {
        if constexpr (TEAM > 32) __syncthreads();
        else __syncwarp();
    }
    static constexpr int ACROSS = B::ACROSS, COPY = 16 / (int)sizeof(T), EACH = 4, STAGES = B::STAGES, NEXT = EACH * ITEMS;
    static constexpr int FOUR = 4 * ACROSS * (int)sizeof(T) + 16, OF_V = (B::P0 * B::P1 + 3) / 4 * FOUR, STAGE = OF_V + (B::Q0 * B::Q1 + 3) / 4 * FOUR;
    // Bytes from the begin of x or v of a tile: of 8 lanes that read four entries apart no two meet in a bank.
    static KM_DEVICE int spot(int entry, int column) { return entry * (ACROSS * (int)sizeof(T)) + entry / 4 * 16 + column * (int)sizeof(T); }

    template <int ENTRIES>
    static KM_DEVICE void copy(unsigned to, const T* from, i64 width, int inside) {
        constexpr int IN_RUN = ACROSS / COPY, LOADS = (ENTRIES * IN_RUN + TEAM - 1) / TEAM;
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            const int own = n * TEAM + threadIdx.x % TEAM, entry = own / IN_RUN, column = own % IN_RUN * COPY;
            if (ENTRIES * IN_RUN % TEAM == 0 || entry < ENTRIES) {
                const bool is_inside = column < inside;
                ptx::cp_async<16>(to + spot(entry, column), is_inside ? from + entry * width + column : from, is_inside ? 16 : 0);
            }
        }
    }
    static KM_DEVICE int item_of(int h, int i) { return ITEMS == 1 ? 0 : row(h) / B::SLOT0 * B::COLUMNS + column(i) / B::SLOT1; }
    template <int R, int C>
    static KM_DEVICE int entry_of(int h, int i) {
        if (R == SIDE && C == SIDE) return row(h) * SIDE + column(i);
        const int down = row(h) / B::SLOT0, r = row(h) % B::SLOT0, across = column(i) / B::SLOT1, c = column(i) % B::SLOT1;
        return down < B::ROWS && across < B::COLUMNS && down * B::COLUMNS + across < ITEMS && r < R && c < C ? r * C + c : -1;
    }
    template <int R, int C>
    static KM_DEVICE void take(Pack<T, EACH> (&raw)[2][4], const unsigned char* from, int column) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int at = entry_of<R, C>(i / 4, i % 4);
            raw[i / 4][i % 4] = Pack<T, EACH>{};
            if ((R == SIDE && C == SIDE) || at >= 0) raw[i / 4][i % 4] = read_pack<T, EACH>(from + spot(at, column + EACH * item_of(i / 4, i % 4)));
        }
    }
    static KM_DEVICE Raw part_of(const Pack<T, EACH> (&raw)[2][4], int k) {
        Raw found;
#pragma unroll
        for (int i = 0; i < 8; ++i) found.v[i / 4][i % 4] = raw[i / 4][i % 4].v[k];
        return found;
    }
    template <class First, class Second>
    static __device__ void go_across(const Arguments& g, Own& own, unsigned char* raw_bytes, const First& first, const Second& of_second) {
        constexpr int X = B::P0 * B::P1, V = B::Q0 * B::Q1, IN_RUN = ACROSS / COPY, STORES = (X * IN_RUN + TEAM - 1) / TEAM, TEAMS = THREADS / TEAM;
        const int team = threadIdx.x / TEAM;
        const i64 of_item = (g.width + ACROSS - 1) / ACROSS, all = g.items * of_item, apart = (i64)gridDim.x * TEAMS;
        unsigned char* const mine = raw_bytes + team * (STAGES * STAGE);
        const unsigned stages = shared_address(mine);
        const auto fetch = [&](i64 tile, int stage) {
            if (tile < all) {
                const i64 item = tile / of_item, column = tile % of_item * ACROSS;
                const int inside = (int)(g.width - column < ACROSS ? g.width - column : ACROSS);
                copy<X>(stages + stage * STAGE, g.x + item * X * g.width + column, g.width, inside);
                copy<V>(stages + stage * STAGE + OF_V, g.v + item * V * g.width + column, g.width, inside);
            }
            ptx::cp_async_commit_group();
        };
        i64 tile = (i64)blockIdx.x * TEAMS + team;
        kron_begin(g.is_later, [&]() { begin(own, first, of_second, g.slope); }, [&]() {
#pragma unroll
            for (int n = 0; n < STAGES - 1; ++n) fetch(tile + n * apart, n);
        });
        CopyPipeline<STAGES> pipeline;
#pragma unroll 1
        for (; tile < all; tile += apart, pipeline.advance()) {
            meet();  // all have stored what they found in the stage that is filled now
            fetch(tile + (STAGES - 1) * apart, pipeline.previous());
            CopyPipeline<STAGES>::template wait<STAGES - 1>();
            meet();
            unsigned char* const of_x = mine + pipeline.stage * STAGE;
            const i64 item = tile / of_item, column0 = tile % of_item * ACROSS;
            const int inside = (int)(g.width - column0 < ACROSS ? g.width - column0 : ACROSS);
#pragma unroll 1
            for (int column = threadIdx.x % TEAM / 32 * NEXT; column < inside; column += TEAM / 32 * NEXT) {
                Pack<T, EACH> x[2][4], v[2][4];
                take<B::P0, B::P1>(x, of_x, column);
                take<B::Q0, B::Q1>(v, of_x + OF_V, column);
#pragma unroll
                for (int k = 0; k < EACH; ++k) {
                    const Raw x_of = part_of(x, k), v_of = part_of(v, k);
                    const HalfScale scale_x = scale_of_x(x_of), scale_v = scale_of(v_of);
                    float out[2][4];
                    step(own, out, words_of(x_of, scale_x.scale), words_of(v_of, scale_v.scale), scale_x, scale_v);
#pragma unroll
                    for (int i = 0; i < 8; ++i) x[i / 4][i % 4].v[k] = Store<T>::from(out[i / 4][i % 4]);
                }
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const int at = entry_of<B::P0, B::P1>(i / 4, i % 4);
                    if ((B::P0 == SIDE && B::P1 == SIDE) || at >= 0) *(Pack<T, EACH>*)(of_x + spot(at, column + EACH * item_of(i / 4, i % 4))) = x[i / 4][i % 4];
                }
            }
            meet();
            T* const to = g.out + item * X * g.width + column0;
#pragma unroll
            for (int n = 0; n < STORES; ++n) {
                const int own_run = n * TEAM + threadIdx.x % TEAM, entry = own_run / IN_RUN, column = own_run % IN_RUN * COPY;
                if ((X * IN_RUN % TEAM == 0 || entry < X) && column < inside)
                    store_pack<T, COPY>(to + entry * g.width + column, read_pack<T, COPY>(of_x + spot(entry, column)));
            }
        }
        ptx::cp_async_wait_all();
        __syncthreads();
    }

    // What is on the diagonal of the sums of all warps is added up.
    template <int Q, int P, int SLOT, int COUNT>
    static __device__ void join(float* to, const float* sums) {
        for (int n = threadIdx.x; n < Q * P; n += THREADS) {
            float total = 0.0f;
            for (int w = 0; w < WARPS; ++w) {
#pragma unroll 4
                for (int k = 0; k < COUNT; ++k) total += sums[w * (2 * SIDE * SIDE) + (k * SLOT + n / P) * SIDE + k * SLOT + n % P];
            }
            to[n] = total;
        }
    }
};

}  // namespace km

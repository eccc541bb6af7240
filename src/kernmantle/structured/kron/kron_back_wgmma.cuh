// The gradients of two neighbouring axes of a Kronecker product by wgmma, from one read of x and of the gradient v of the product: what
// leaves is v with both factors' transposes applied, and each block's share of both factors' gradients.
//
// A tile is a matrix of 64 x 64: the first axis along its rows, the second one along its columns, with several items in a grid of
// ROWS x COLUMNS slots where axes are short, and factors that repeat along the diagonal. What is beside items is zero. For tiles X and V and
// factors A and B of 64 x 64,
//   U = V B,    G_A += U X^T            a group of four warps,
//   S = A^T V,  out = S B               another one,
//   S^T = V^T A,  G_B += S^T X          the third one:
// two products each, of which the first one's sums are, in registers, the operand of the second one. Two sets of four warps load x and v: they
// split float32 into two halves of 11 bits, scaled by a power of two for the tile, of which a product is three. Halves are copied as they are;
// of float16 the power of two is for the sums of the first products, which are rounded to halves.
#pragma once
#include "kron_back_products.cuh"

namespace km {

template <class B>
struct KronBackWgmma : KronBackProducts<B, 3> {
    typedef KronBackTile<B> Tile;
    typedef KronBackProducts<B, 3> Products;
    typedef typename Tile::T T;
    typedef typename Tile::H H;
    typedef typename Tile::Arguments Arguments;
    typedef typename Products::State State;
    typedef typename Products::Barriers Barriers;
    using Tile::halves_of, Tile::scale_of, Tile::tiles, Tile::SPLIT, Tile::SCALED, Tile::SET, Tile::MATRIX, Tile::PLANES;
    using Products::matrix, Products::at, Products::await, Products::terms, Products::of_first_lane, Products::release, Products::of_sum, Products::each_two;
    using Products::MULTIPLYING, Products::LOADERS, Products::THREADS, Products::STEPS, Products::STAGE, Products::OF_V;
    static constexpr int ITEMS = B::ITEMS, COLUMNS = B::COLUMNS, STAGES = B::STAGES, VECTOR = B::VECTOR, PACK = B::PACK;
    // Registers of a thread that loads, and of one that sums; the others have 96, which is what a block begins with.
    static constexpr int LOADER_REGISTERS = 64, REGISTERS = 128;
    // Whether results leave registers: where vectors of shared memory would be few in a row, or short; of halves two are less than a sector.
    static constexpr bool DIRECT = SPLIT && (PACK < 4 || 64 % B::P1 != 0);
    // Numbers from row to row of results in shared memory, where few lanes that write together meet in a bank.
    static constexpr int PITCH = 72;
    // Factors, over which the sums of both are written at the end: what loads write is nobody else's to write (racecheck).
    static constexpr int FIRST = 0, SECOND = PLANES * MATRIX, STAGED = 2 * 64 * 64 * 4, RESULTS = STAGED + STAGES * STAGE, COPIED = RESULTS + 64 * PITCH * 4;
    static_assert(STAGED >= 2 * PLANES * MATRIX, "sums take the memory of factors");
    // What the copy engine brings: for each of x and v so many tiles, and a barrier for each.
    static constexpr int COPIES = B::COPIES, TILE = (int)sizeof(T) * 64 * 64, BARRIERS = COPIED + 2 * COPIES * TILE, ARRIVALS = BARRIERS + Barriers::BYTES;
    static constexpr int NOTES = ARRIVALS + 2 * COPIES * 8, TOPS = NOTES + STAGES * 8, SHARED_BYTES = TOPS + 4 * (THREADS > 4 * LOADERS ? THREADS : 4 * LOADERS) / 32;
    // By which sums of products of numbers less than 2^15 are multiplied so that they are less than the largest half.
    static constexpr float LESS = SCALED ? 0x1p-21f : 1.0f, MORE = SCALED ? 0x1p21f : 1.0f;

    // ---- Loading.
    // The first tiles, by one thread.
    template <bool OF_GRADIENT>
    static KM_DEVICE void copy_first(const Arguments& g, unsigned char* raw) {
        const unsigned to = shared_address(raw + COPIED + OF_GRADIENT * COPIES * TILE), arrivals = shared_address(raw + ARRIVALS + OF_GRADIENT * COPIES * 8);
#pragma unroll
        for (int n = 0; n < COPIES; ++n) {
            const int tile = blockIdx.x + n * (int)gridDim.x;
            if (tile < tiles(g)) Tile::template Loader<OF_GRADIENT>::copy(g, tile, to + n * TILE, arrivals + n * 8);
        }
    }
    template <bool OF_GRADIENT>
    static __device__ void load(const Arguments& g, unsigned char* raw, float* notes, Barriers barriers, float* tops) {
        typedef typename Tile::template Loader<OF_GRADIENT> Own;
        constexpr bool MEASURES = SPLIT || (SCALED && OF_GRADIENT);
        const unsigned thread = (threadIdx.x - MULTIPLYING) % LOADERS, lane = thread % 32, warp = thread / 32;
        const int all = tiles(g);
        unsigned char* const copied = raw + COPIED + OF_GRADIENT * COPIES * TILE;
        const unsigned arrivals = shared_address(raw + ARRIVALS + OF_GRADIENT * COPIES * 8);
        Own own;
        State state;
        PipelineState<COPIES ? COPIES : 1> copy;
        state.phase = 1;
        int tile = blockIdx.x, parity = 0;
        if (COPIES == 0 && tile < all) own.ask(g, tile, thread);
#pragma unroll 1
        for (; tile < all; parity ^= 1, state.advance(), copy.advance()) {
            if constexpr (COPIES > 0) {
                ptx::mbarrier_wait_parity(arrivals + copy.stage * 8, copy.phase);
                own.take(copied + copy.stage * TILE, thread);
            }
#pragma unroll
            for (int n = 0; n < Own::LOADS; ++n) {
                if (!Own::is_mine(n, thread)) own.v[n] = Pack<T, VECTOR>{};
            }
            unsigned largest = 0;
            if constexpr (MEASURES) {
                largest = ptx::redux_max(own.largest());
                if (lane == 0) tops[(2 * OF_GRADIENT + parity) * (LOADERS / 32) + warp] = __uint_as_float(largest);
            }
            if constexpr (COPIES > 0 && !MEASURES) ptx::fence_proxy_async();  // loads come before the next copy, which else waits for their values
            if (MEASURES || COPIES > 0) ptx::bar_sync<LOADERS>(2 + OF_GRADIENT);
            if constexpr (COPIES > 0) {
                const int next = tile + COPIES * (int)gridDim.x;
                if (thread == 0 && next < all) Own::copy(g, next, shared_address(copied) + copy.stage * TILE, arrivals + copy.stage * 8);
            }
            HalfScale scale{1.0f, 1.0f};
            if constexpr (MEASURES) {
#pragma unroll
                for (int w = 0; w < LOADERS / 32; ++w) largest = ::max(largest, __float_as_uint(tops[(2 * OF_GRADIENT + parity) * (LOADERS / 32) + w]));
                scale = scale_of(largest);
            }
            ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
            own.keep_all(raw + STAGED + state.stage * STAGE + OF_GRADIENT * OF_V, thread, scale.scale);
            if (thread == 0) notes[2 * state.stage + OF_GRADIENT] = SPLIT ? scale.inverse : scale.scale;
            ptx::fence_proxy_async();  // which waits for all loads of its thread: the next ones come behind it
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(barriers.full(state.stage));
            tile += (int)gridDim.x;
            if (COPIES == 0 && tile < all) own.ask(g, tile, thread);
        }
    }

    // Sums as operands of the next product.
    static KM_DEVICE void operands_of(unsigned (&high)[STEPS][4], unsigned (&low)[STEPS][4], const float (&d)[8][4], float less) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
            for (int h = 0; h < 2; ++h) halves_of(high[n / 2][n % 2 * 2 + h], low[n / 2][n % 2 * 2 + h], d[n][2 * h] * less, d[n][2 * h + 1] * less, 1.0f);
        }
    }
    // By what the sums of the first product are multiplied, and by what those of the second one are.
    struct Powers {
        float less, more;
    };
    static KM_DEVICE Powers powers(const float* notes, const HalfScale& scale) {
        if (!SCALED) return {1.0f, 1.0f};
        const float own = of_first_lane(notes + 1);
        if (SPLIT) return {LESS, own * (scale.inverse * MORE)};
        return {own * scale.scale * LESS, __uint_as_float(0x7f000000u - __float_as_uint(own)) * (scale.inverse * MORE)};
    }
    // The gradient of the first factor, or of the second one; `scale` is that of the other one.
    template <bool OF_SECOND>
    static __device__ void sum(const Arguments& g, float (&total)[8][4], const unsigned char* raw, const float* notes, Barriers barriers, const HalfScale& scale) {
        const unsigned long long factor = matrix(shared_address(raw + (OF_SECOND ? FIRST : SECOND))), stages = matrix(shared_address(raw + STAGED));
        const int all = tiles(g);
#pragma unroll
        for (int i = 0; i < 32; ++i) total[i / 4][i % 4] = 0.0f;
        State state;
#pragma unroll 1
        for (int tile = blockIdx.x; tile < all; tile += (int)gridDim.x, state.advance()) {
            const unsigned long long x = at(stages, state.stage * STAGE), v = at(x, OF_V);
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            float d[8][4];
            terms(d, 0, [&](int low, int other, int s, int keep) {
                const unsigned long long right = at(factor, other * MATRIX + s * (16 * 128));
                if constexpr (OF_SECOND) ptx::wgmma_ss_across(H(), d, at(v, low * MATRIX + s * (16 * 128)), right, keep);
                else ptx::wgmma_ss_along(H(), d, at(v, low * MATRIX + s * 32), right, keep);
            });
            const Powers by = powers(notes + 2 * state.stage, scale);
            await(d);
            unsigned high[STEPS][4], low[STEPS][4];
            operands_of(high, low, d, by.less);
            terms(d, 0, [&](int is_low, int other, int s, int keep) {
                const auto& left = is_low ? low[s] : high[s];
                if constexpr (OF_SECOND) ptx::wgmma_rs_along(H(), d, left, at(x, other * MATRIX + s * (16 * 128)), keep);
                else ptx::wgmma_rs(H(), d, left, at(x, other * MATRIX + s * 32), keep);
            });
            const float of_x = SPLIT ? of_first_lane(notes + 2 * state.stage) : 1.0f;
            await(d);
            release(barriers.empty(state.stage));
#pragma unroll
            for (int i = 0; i < 32; ++i) total[i / 4][i % 4] = fmaf(d[i / 4][i % 4] * of_x, by.more, total[i / 4][i % 4]);
        }
    }

    // The gradient of x leaves shared memory, this warp's 16 rows.
    static __device__ void store(const Arguments& g, const float* results, int tile) {
        constexpr int P0 = B::P0, P1 = B::P1, READ = PACK < 4 ? PACK : 4;
        constexpr unsigned ROW = 64 / PACK, VECTORS = 16 * ROW;
        int thread = threadIdx.x % SET;
        ptx::opaque(thread);  // as for loads
        T* const to = g.out + (i64)tile * (ITEMS * P0 * P1);
        __syncwarp();
#pragma unroll
        for (int n = 0; n < VECTORS / 32; ++n) {
            const unsigned own = n * 32 + thread % 32, row = threadIdx.x / 32 % 4 * 16 + own / ROW, column = own % ROW * PACK;
            const unsigned p0 = row % B::SLOT0, p1 = column % B::SLOT1, item = row / B::SLOT0 * COLUMNS + column / B::SLOT1;
            if (p0 >= P0 || p1 >= P1 || row / B::SLOT0 >= B::ROWS || column / B::SLOT1 >= COLUMNS || item >= ITEMS) continue;
            Pack<T, PACK> pack;
#pragma unroll
            for (int i = 0; i < PACK; i += READ) {
                const Pack<float, READ> part = *(const Pack<float, READ>*)(results + row * PITCH + column + i);
#pragma unroll
                for (int j = 0; j < READ; ++j) pack.v[i + j] = Store<T>::from(part.v[j]);
            }
            store_pack<T, PACK>(to + (item * P0 + p0) * P1 + p1, pack);
        }
        __syncwarp();
    }
    // Results leave registers, neighbours two by two.
    static KM_DEVICE void leave(const Arguments& g, const float (&e)[8][4], float more, int tile) {
        constexpr int P0 = B::P0, P1 = B::P1;
        int lane = threadIdx.x % 32;
        ptx::opaque(lane);  // where numbers go is worked out anew for every tile: there are no registers for that
        T* const to = g.out + (i64)tile * (ITEMS * P0 * P1);
        const int warp = threadIdx.x % SET / 32;
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
            const int row = 16 * warp + lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2;
            const int p0 = row % B::SLOT0, down = row / B::SLOT0;
            const auto is_inside = [&](int p1, int across) { return p0 < P0 && p1 < P1 && down < B::ROWS && across < COLUMNS && down * COLUMNS + across < ITEMS; };
            const auto target = [&](int p1, int across) { return to + ((down * COLUMNS + across) * P0 + p0) * P1 + p1; };
            if constexpr (PACK > 1) {
                const Pack<T, 2> pack = {Store<T>::from(e[i / 4][i % 4] * more), Store<T>::from(e[i / 4][i % 4 + 1] * more)};
                if constexpr (P0 == 64 && P1 == 64) store_pack<T, 2>(to + row * 64 + column, pack);
                else if (is_inside(column % B::SLOT1, column / B::SLOT1)) store_pack<T, 2>(target(column % B::SLOT1, column / B::SLOT1), pack);
            } else {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int p1 = (column + h) % B::SLOT1, across = (column + h) / B::SLOT1;
                    if (is_inside(p1, across)) *target(p1, across) = Store<T>::from(e[i / 4][i % 4 + h] * more);
                }
            }
        }
    }
    static __device__ void apply(const Arguments& g, unsigned char* raw, const float* notes, Barriers barriers, const HalfScale& scale, float back) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, all = tiles(g);
        const unsigned long long second = matrix(shared_address(raw + SECOND)), stages = matrix(shared_address(raw + STAGED));
        float* const results = (float*)(raw + RESULTS);
        back *= g.slope;
        long long first = matrix(shared_address(raw + FIRST)), other_factor = second;
        State state;
#pragma unroll 1
        for (int tile = blockIdx.x; tile < all; tile += (int)gridDim.x, state.advance()) {
            const unsigned long long v = at(stages, state.stage * STAGE + OF_V);
            ptx::opaque(first);  // words of its steps are worked out anew for every tile: there are no registers for them
            ptx::opaque(other_factor);
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            float d[8][4];
            terms(d, 0, [&](int low, int other, int s, int keep) { ptx::wgmma_ss_across(H(), d, at(first, low * MATRIX + s * (16 * 128)), at(v, other * MATRIX + s * (16 * 128)), keep); });
            const Powers by = powers(notes + 2 * state.stage, scale);
            await(d);
            release(barriers.empty(state.stage));
            unsigned high[STEPS][4], low[STEPS][4];
            operands_of(high, low, d, by.less);
            terms(d, 0, [&](int is_low, int other, int s, int keep) { ptx::wgmma_rs_along(H(), d, is_low ? low[s] : high[s], at(other_factor, other * MATRIX + s * (16 * 128)), keep); });
            await(d);
            if constexpr (DIRECT) {
                leave(g, d, by.more * back, tile);
            } else {
                each_two([&](int n, int i, int row, int column) { *(Pack<float, 2>*)(results + row * PITCH + column) = {d[n][i] * by.more * back, d[n][i + 1] * by.more * back}; });
                store(g, results, tile);
            }
        }
    }

    // The sums of a group of warps to shared memory.
    static KM_DEVICE void keep_sums(float* to, const float (&total)[8][4]) {
        each_two([&](int n, int i, int row, int column) { *(Pack<float, 2>*)(to + of_sum(row, column)) = {total[n][i], total[n][i + 1]}; });
    }

    // `write` gets the gradients of both factors that this block has found, in threads that multiply.
    template <class First, class Second, class Write>
    static __device__ void run(const Arguments& g, const First& first, const Second& second, const Write& write) {
        extern __shared__ __align__(1024) unsigned char raw[];
        float* const tops = (float*)(raw + TOPS);
        float* const notes = (float*)(raw + NOTES);
        float* const sums = (float*)(raw + FIRST);
        const Barriers barriers{shared_address(raw + BARRIERS)};
        if (threadIdx.x == 0) {
            for (int n = 0; n < 2 * COPIES; ++n) ptx::mbarrier_init(shared_address(raw + ARRIVALS) + 8 * n, 1);
            barriers.initialise(2 * LOADERS / 32, MULTIPLYING / 32);
        }
        for (int n = threadIdx.x; n < STAGES * STAGE / 16; n += THREADS) ((uint4*)(raw + STAGED))[n] = uint4{0, 0, 0, 0};
        HalfScale scale0, scale1;
        kron_begin(g.is_later, [&]() {
            scale0 = Products::template stored<B::Q0, B::P0, B::SLOT0, B::ROWS>(raw + FIRST, tops, first);
            scale1 = Products::template stored<B::Q1, B::P1, B::SLOT1, COLUMNS>(raw + SECOND, tops, second);
        }, [&]() {
            if (threadIdx.x > 0) return;
            copy_first<false>(g, raw);
            copy_first<true>(g, raw);
        });
        ptx::fence_proxy_async();
        __syncthreads();
        const int group = threadIdx.x / SET;
        if (group >= 3) {
            ptx::setmaxnreg_dec<LOADER_REGISTERS>();
            if (group < 3 + LOADERS / SET) load<false>(g, raw, notes, barriers, tops);
            else load<true>(g, raw, notes, barriers, tops);
            return;
        }
        if (group == 1) {
            apply(g, raw, notes, barriers, scale0, SPLIT ? scale1.inverse : 1.0f);
            ptx::bar_sync<MULTIPLYING>(1);
        } else {
            ptx::setmaxnreg_inc<REGISTERS>();
            float total[8][4];
            if (group == 0) sum<false>(g, total, raw, notes, barriers, scale1);
            else sum<true>(g, total, raw, notes, barriers, scale0);
            ptx::bar_sync<MULTIPLYING>(1);  // others are done with the factors
            keep_sums(sums + group / 2 * (64 * 64), total);
        }
        ptx::bar_sync<MULTIPLYING>(1);
        Products::template join<B::Q0, B::P0, B::SLOT0, B::ROWS>(sums);
        Products::template join<B::Q1, B::P1, B::SLOT1, COLUMNS>(sums + 64 * 64);
        ptx::bar_sync<MULTIPLYING>(1);
        write((const float*)sums, (const float*)(sums + 64 * 64));
    }
};

}  // namespace km

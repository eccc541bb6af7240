// The gradient of one axis of a Kronecker product by wgmma, with columns behind it: what leaves is v with the factor's transpose applied, and
// each block's share of the factor's gradient.
//
// A tile is 64 rows, the axis, by 64 columns; a short axis has several runs of 64 columns below each other, and the factor is repeated along
// the diagonal. For tiles X and V and the factor A,
//   G += V X^T      a group of four warps,
//   out = A^T V     the other one.
// Two sets of eight warps load x and v. A thread copies for later tiles what it reads itself; then it splits float32 into two halves of 11 bits,
// scaled by a power of two for the tile, of which a product is three.
#pragma once
#include "kron_back_products.cuh"

namespace km {

// B: as for KronBackTile, of float32 and columns Q1 = P1 = 64.
template <class B>
struct KronBackAxis : KronBackProducts<B, 2> {
    typedef KronBackTile<B> Tile;
    typedef KronBackProducts<B, 2> Products;
    typedef typename Tile::T T;
    typedef typename Tile::H H;
    typedef typename Tile::Arguments Arguments;
    typedef typename Products::State State;
    typedef typename Products::Barriers Barriers;
    using Tile::scale_of, Tile::spot, Tile::SET, Tile::MATRIX, Tile::PLANES;
    using Products::matrix, Products::at, Products::await, Products::terms, Products::of_first_lane, Products::release, Products::of_sum, Products::each_two;
    using Products::MULTIPLYING, Products::LOADERS, Products::THREADS, Products::STEPS, Products::STAGE, Products::OF_V;
    static constexpr int ITEMS = B::ITEMS, STAGES = B::STAGES, COPIES = B::COPIES, VECTOR = B::VECTOR, WIDE = 64 * ITEMS, TILE = (int)sizeof(T) * 64 * 64;
    static constexpr int FACTOR = 0, STAGED = PLANES * MATRIX, SUMS = STAGED + STAGES * STAGE, COPIED = SUMS + 64 * 64 * 4, BARRIERS = COPIED + 2 * COPIES * TILE;
    static constexpr int NOTES = BARRIERS + Barriers::BYTES, TOPS = NOTES + STAGES * 8, SHARED_BYTES = TOPS + 4 * (THREADS > 4 * LOADERS ? THREADS : 4 * LOADERS) / 32;
    // Registers of a thread that loads, and of one that multiplies: of 80 for each.
    static constexpr int LOADER_REGISTERS = 56, REGISTERS = 128;

    // Tiles of an entry before the axis, and of all.
    static KM_DEVICE int across(const Arguments& g) { return (int)((g.width + WIDE - 1) / WIDE); }
    static KM_DEVICE int tiles(const Arguments& g) { return (int)g.items * across(g); }

    template <bool OF_GRADIENT>
    static __device__ void load(const Arguments& g, unsigned char* raw, float* notes, Barriers barriers, float* tops) {
        typedef typename Tile::template Loader<OF_GRADIENT> Own;
        typedef CopyPipeline<COPIES> Copies;
        constexpr int R = Own::R, IN_ROW = 64 / VECTOR;
        const int thread = (threadIdx.x - MULTIPLYING) % LOADERS, lane = thread % 32, warp = thread / 32, all = tiles(g), of_item = across(g);
        unsigned char* const copied = raw + COPIED + OF_GRADIENT * COPIES * TILE;
        const T* const from = OF_GRADIENT ? g.v : g.x;
        const auto copy = [&](int tile, int stage) {
            if (tile < all) {
                const i64 column = (i64)(tile % of_item) * WIDE + thread % IN_ROW * VECTOR;
                const T* const begin = from + (i64)(tile / of_item) * R * g.width + column;
#pragma unroll
                for (unsigned n = 0; n < Own::LOADS; ++n) {
                    const int row = n * (LOADERS / IN_ROW) + thread / IN_ROW, run = row / R;
                    const bool inside = column + run * 64 < g.width;
                    if (Own::is_mine(n, thread))
                        ptx::cp_async<16>(shared_address(copied + stage * TILE + (n * LOADERS + thread) * 16), inside ? begin + row % R * g.width + run * 64 : from, inside ? 16 : 0);
                }
            }
            Copies::commit();
        };
        Own own;
        State state;
        PipelineState<COPIES> ahead;
        state.phase = 1;
        int parity = 0;
#pragma unroll
        for (int n = 0; n < COPIES; ++n) copy(blockIdx.x + n * (int)gridDim.x, n);
#pragma unroll 1
        for (int tile = blockIdx.x; tile < all; tile += (int)gridDim.x, parity ^= 1, state.advance(), ahead.advance()) {
            Copies::template wait<COPIES - 1>();
            own.take(copied + ahead.stage * TILE, thread);
#pragma unroll
            for (unsigned n = 0; n < Own::LOADS; ++n) {
                if (!Own::is_mine(n, thread)) own.v[n] = Pack<T, VECTOR>{};
            }
            unsigned largest = ptx::redux_max(own.largest());
            if (lane == 0) tops[(2 * OF_GRADIENT + parity) * (LOADERS / 32) + warp] = __uint_as_float(largest);
            ptx::bar_sync<LOADERS>(2 + OF_GRADIENT);
#pragma unroll
            for (int w = 0; w < LOADERS / 32; ++w) largest = ::max(largest, __float_as_uint(tops[(2 * OF_GRADIENT + parity) * (LOADERS / 32) + w]));
            const HalfScale scale = scale_of(largest);
            ptx::mbarrier_wait_parity(barriers.empty(state.stage), state.phase);
            own.keep_all(raw + STAGED + state.stage * STAGE + OF_GRADIENT * OF_V, thread, scale.scale);
            if (thread == 0) notes[2 * state.stage + OF_GRADIENT] = scale.inverse;
            copy(tile + COPIES * (int)gridDim.x, ahead.stage);
            ptx::fence_proxy_async();
            __syncwarp();
            if (lane == 0) ptx::mbarrier_arrive(barriers.full(state.stage));
        }
    }

    static __device__ void sum(const Arguments& g, float* sums, const unsigned char* raw, const float* notes, Barriers barriers) {
        const unsigned long long stages = matrix(shared_address(raw + STAGED));
        const int all = tiles(g);
        float total[8][4] = {}, d[8][4];
        State state;
#pragma unroll 1
        for (int tile = blockIdx.x; tile < all; tile += (int)gridDim.x, state.advance()) {
            const unsigned long long x = at(stages, state.stage * STAGE), v = at(x, OF_V);
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            terms(d, 0, [&](int low, int other, int s, int keep) { ptx::wgmma_ss(H(), d, at(v, low * MATRIX + s * 32), at(x, other * MATRIX + s * 32), keep); });
            const float of_x = of_first_lane(notes + 2 * state.stage), of_v = of_first_lane(notes + 2 * state.stage + 1);
            await(d);
            release(barriers.empty(state.stage));
#pragma unroll
            for (int i = 0; i < 32; ++i) total[i / 4][i % 4] = fmaf(d[i / 4][i % 4] * of_x, of_v, total[i / 4][i % 4]);
        }
        each_two([&](int n, int i, int row, int column) { *(Pack<float, 2>*)(sums + of_sum(row, column)) = {total[n][i], total[n][i + 1]}; });
    }

    static __device__ void apply(const Arguments& g, const unsigned char* raw, const float* notes, Barriers barriers, float back) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x % SET / 32, all = tiles(g), of_item = across(g);
        const unsigned long long stages = matrix(shared_address(raw + STAGED));
        back *= g.slope;
        // The factor's transpose.
        unsigned factor[PLANES][STEPS][4];
#pragma unroll
        for (int i = 0; i < PLANES * STEPS * 4; ++i) {
            const int part = i / (STEPS * 4), s = i / 4 % STEPS, r = i % 4;
            const int p = 16 * warp + lane / 4 + r % 2 * 8, q = 16 * s + lane % 4 * 2 + r / 2 * 8;
            const unsigned char* const from = raw + FACTOR + part * MATRIX;
            factor[part][s][r] = *(const unsigned short*)(from + spot(q, p)) | (unsigned)*(const unsigned short*)(from + spot(q + 1, p)) << 16;
        }
        float d[8][4];
        State state;
#pragma unroll 1
        for (int tile = blockIdx.x; tile < all; tile += (int)gridDim.x, state.advance()) {
            const unsigned long long v = at(stages, state.stage * STAGE + OF_V);
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
            terms(d, 0, [&](int low, int other, int s, int keep) { ptx::wgmma_rs_along(H(), d, factor[low][s], at(v, other * MATRIX + s * (16 * 128)), keep); });
            const float more = of_first_lane(notes + 2 * state.stage + 1) * back;
            await(d);
            release(barriers.empty(state.stage));
            const i64 column = (i64)(tile % of_item) * WIDE + lane % 4 * 2;
            T* const to = g.out + (i64)(tile / of_item) * B::P0 * g.width + column;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int row = 16 * warp + lane / 4 + h * 8, p = row % B::SLOT0, run = row / B::SLOT0 * 64;
                if (p >= B::P0 || row / B::SLOT0 >= ITEMS) continue;
                T* const row_of = to + p * g.width + run;
#pragma unroll
                for (int n = 0; n < 8; ++n) {
                    const Pack<T, 2> pack = {Store<T>::from(d[n][2 * h] * more), Store<T>::from(d[n][2 * h + 1] * more)};
                    if (column + run + n * 8 < g.width) store_pack<T, 2>(row_of + n * 8, pack);
                }
            }
        }
    }

    // `write` gets the gradient of the factor that this block has found, in threads that multiply.
    template <class First, class Write>
    static __device__ void run(const Arguments& g, const First& first, const Write& write) {
        extern __shared__ __align__(1024) unsigned char raw[];
        float* const tops = (float*)(raw + TOPS);
        float* const notes = (float*)(raw + NOTES);
        float* const sums = (float*)(raw + SUMS);
        const Barriers barriers{shared_address(raw + BARRIERS)};
        if (threadIdx.x == 0) barriers.initialise(2 * LOADERS / 32, MULTIPLYING / 32);
        for (int n = threadIdx.x; n < STAGES * STAGE / 16; n += THREADS) ((uint4*)(raw + STAGED))[n] = uint4{0, 0, 0, 0};
        kron_wait_for_factors(g.is_later);
        const HalfScale scale = Products::template stored<B::Q0, B::P0, B::SLOT0, ITEMS>(raw + FACTOR, tops, first);
        ptx::fence_proxy_async();
        __syncthreads();
        kron_wait();
        const int group = threadIdx.x / SET;
        if (group >= 2) {
            ptx::setmaxnreg_dec<LOADER_REGISTERS>();
            if (group < 4) load<false>(g, raw, notes, barriers, tops);
            else load<true>(g, raw, notes, barriers, tops);
            return;
        }
        ptx::setmaxnreg_inc<REGISTERS>();
        if (group == 0) sum(g, sums, raw, notes, barriers);
        else apply(g, raw, notes, barriers, scale.inverse);
        ptx::bar_sync<MULTIPLYING>(1);
        Products::template join<B::Q0, B::P0, B::SLOT0, ITEMS>(sums);
        ptx::bar_sync<MULTIPLYING>(1);
        write((const float*)sums);
    }
};

}  // namespace km

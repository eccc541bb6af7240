// Passes of Kronecker products over one factor by wgmma, of up to 256 rows and columns, with columns to the right of its axis.
//
// Eight warps load, and two groups of four warps multiply 64 rows of the factor each, as those of kron_wgmma.cuh. A tile has FIBERS
// columns, beside each other or of several entries of the batch, out[q, r] = sum_k factor[q, k] x[k, r]. A group has columns of its own
// where the factor has up to 64 rows and columns, else both have the same. Columns and rows that are not there are zeros.
// The factor is in registers, 128 of its rows in every block; tiles of more than 128 columns come in two CHUNKS of k.
#pragma once
#include "kron_axis_load.cuh"
#include "ptx_wgmma_along.cuh"

namespace km {

template <class B, class Args>
struct KronWgmmaAxis : KronAxisLoader<B, Args> {
    typedef KronAxisTile<B, Args> Tile;
    using typename Tile::T, typename Tile::H, typename Tile::Piece, typename Tile::State;
    using Tile::SPLIT, Tile::BOTH, Tile::ROWS, Tile::COLUMNS, Tile::CHUNKS, Tile::STEPS, Tile::DEEP, Tile::STAGES;
    using Tile::COPIES, Tile::THREADS, Tile::SUMMED, Tile::BLOCKS, Tile::OWN, Tile::PART, Tile::PIECE, Tile::RIGHT;
    using Tile::ALONE, Tile::FILLING, Tile::EMPTYING, Tile::OUT_PITCH, Tile::OUT, Tile::COPIED, Tile::RESULTS, Tile::BARRIERS;
    using Tile::NOTES, Tile::TOPS, Tile::COPY_NOTES, Tile::column_of, Tile::tiles_of, Tile::first_row, Tile::steps;

    // The power of two of a factor in float32, or of a product of several in float16, by its largest entry that is finite.
    static __device__ HalfScale measured(const Args& g, float* tops) {
        if (!B::SCALED) return {1.0f, 1.0f};
        const bool down = B::down(g);
        const float top = kron_largest<ROWS * COLUMNS, THREADS, 16>(threadIdx.x, [&](int i) {
            return fabsf(down ? B::entry(g, i % ROWS, i / ROWS) : B::entry(g, i / COLUMNS, i % COLUMNS));
        });
        return HalfScale::of_largest(block_max<THREADS / 32>(top, tops));
    }

    // ---- Multiplying.
    static KM_DEVICE void fence(float (&d)[8][4]) {
#pragma unroll
        for (int i = 0; i < 32; ++i) ptx::fence_operand(d[i / 4][i % 4]);
    }
    // What the lane reads that says later that a piece is free.
    template <class A>
    static KM_DEVICE A of_first_lane(const A* at) {
        A own = 0;
        if (threadIdx.x % 32 == 0) own = *at;
        return __shfl_sync(0xffffffffu, own, 0);
    }
    // Results in shared memory leave it: `rows` rows of `columns` numbers, of which `first` are ahead of them.
    static KM_DEVICE void store(const Args& g, const unsigned char* results, i64 to, int rows, int columns, int first, int group) {
        constexpr int V = B::VECTOR_OUT, ACROSS_OUT = 64 / V, DOWN_OUT = 128 / ACROSS_OUT;
        ptx::bar_sync<128>(1 + group);
        const int row = threadIdx.x % 128 / ACROSS_OUT, column = threadIdx.x % ACROSS_OUT * V;
        if (column >= columns) return;
        const i64 step = g.out_stride[KRON_RUN];
        T* const there = (T*)g.out + to + row * step + column_of(first + column, g.out_stride[KRON_C]);
        const unsigned char* const from = results + row * OUT_PITCH + column * (int)sizeof(T);
#pragma unroll 8
        for (int i = 0; i < 64 / DOWN_OUT; ++i)
            if (row + i * DOWN_OUT < rows) *(Pack<T, V>*)(there + i * DOWN_OUT * step) = *(const Pack<T, V>*)(from + i * DOWN_OUT * OUT_PITCH);
    }

    static __device__ void multiply(const Args& g, const unsigned char* stages, unsigned char* results, const Piece* pieces, PipelineBarriers<STAGES> barriers, const HalfScale& scale, int tiles) {
        const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, begin = first_row() + (BOTH ? 64 * group : 0), first = BOTH ? 0 : OWN * group;
        const unsigned from = __shfl_sync(0xffffffffu, shared_address(stages) + first / 64 * DEEP * 128, 0);
        const unsigned long long fibers = ptx::wgmma_descriptor(from, 16, 8 * 128, ptx::WGMMA_SWIZZLE_128);
        unsigned high[CHUNKS * STEPS][4], low[SPLIT ? CHUNKS * STEPS : 1][4];
#pragma unroll
        for (int s = 0; s < CHUNKS * STEPS; ++s) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int row = begin + 16 * warp + lane / 4 + r % 2 * 8, column = 16 * s + lane % 4 * 2 + r / 2 * 8;
                const float a = row < ROWS && column < COLUMNS ? B::entry(g, row, column) : 0.0f, b = row < ROWS && column + 1 < COLUMNS ? B::entry(g, row, column + 1) : 0.0f;
                if constexpr (SPLIT) split_f16x2(high[s][r], low[s][r], a, b, scale.scale);
                else high[s][r] = kron_operand(H(), a * scale.scale, b * scale.scale);
            }
        }
        kron_wait();
        const float back = scale.inverse * (float)g.alpha;
        const int rows = min(64, ROWS - begin);
        unsigned char* const own = results + group * OUT + (16 * warp + lane / 4) * OUT_PITCH + lane % 4 * 2 * (int)sizeof(T);
        float* const sums = (float*)(results + group * OUT) + threadIdx.x % 128;
        // Products of 64 lines of a piece.
        const auto clear = [&](float(&d)[8][4], bool has_sums) {
#pragma unroll
            for (int i = 0; i < 32; ++i) d[i / 4][i % 4] = has_sums ? d[i / 4][i % 4] : 0.0f;
            fence(d);
        };
        const auto products = [&](float(&d)[8][4], int b, int chunk, int stage) {
            if (b == 0) ptx::wgmma_fence();
#pragma unroll
            for (int term = SPLIT ? 0 : 2; term < 3; ++term) {
#pragma unroll
                for (int s = 0; s < STEPS; ++s) {
                    const int at = stage * PIECE + (term == 1) * PART + b * (DEEP * 128) + s * (16 * 128);
                    const auto& own = term == 0 ? low[SPLIT ? chunk * STEPS + s : 0] : high[chunk * STEPS + s];
                    ptx::wgmma_rs_along(H(), d, own, fibers + (at >> 4));
                }
            }
            ptx::wgmma_commit_group();
        };
        // Sums of 64 lines as they are in float32; behind the last of them a stage is free.
        const auto finish = [&](float(&d)[8][4], int b, int stage, bool is_scaled) {
            const Piece& piece = pieces[stage];
            const float all = ALONE || !SPLIT ? back : back * of_first_lane(&piece.inverse[0]);
            if (b + 1 < BLOCKS) ptx::wgmma_wait_group<1>();
            else ptx::wgmma_wait_group<0>();
            fence(d);
#pragma unroll
            for (int n = 0; n < 8; ++n) {
                float by[2] = {all, all};
                if constexpr (ALONE) {
                    const Pack<float, 2> own = *(const Pack<float, 2>*)(piece.inverse + first + 64 * b + 8 * n + 2 * (lane % 4));
                    by[0] = back * own.v[0], by[1] = back * own.v[1];
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) d[n][i] *= is_scaled ? by[i % 2] : 1.0f;
            }
            __syncwarp();
            if (b + 1 == BLOCKS && (ALONE || lane == 0)) ptx::mbarrier_arrive(barriers.empty(stage));
        };
        const auto leave = [&](const float(&d)[8][4], int b, i64 out, int there, int begins) {
            ptx::bar_sync<128>(1 + group);
#pragma unroll
            for (int n = 0; n < 8; ++n) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    Pack<T, 2> two;
                    two.v[0] = Store<T>::from(d[n][2 * h]);
                    two.v[1] = Store<T>::from(d[n][2 * h + 1]);
                    *(Pack<T, 2>*)(own + h * 8 * OUT_PITCH + n * 8 * (int)sizeof(T)) = two;
                }
            }
            store(g, results + group * OUT, out + begin * g.out_stride[KRON_RUN], rows, there - 64 * b, begins + first + 64 * b, group);
        };
        State state;
#pragma unroll 1
        for (int left = steps(tiles); left > 0; --left) {
            float d[BLOCKS][8][4];
            if constexpr (CHUNKS > 1) {
                ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
                clear(d[0], false);
                products(d[0], 0, 0, state.stage);
                finish(d[0], 0, state.stage, SUMMED);
                state.advance();
                if (SUMMED) {
                    ptx::bar_sync<128>(1 + group);
#pragma unroll
                    for (int i = 0; i < 32; ++i) sums[i * 128] = d[0][i / 4][i % 4];
                }
            }
            ptx::mbarrier_wait_parity(barriers.full(state.stage), state.phase);
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) clear(d[b], CHUNKS > 1 && !SUMMED);
            // Products of 64 lines after 64 lines, so that the first leave while the others are multiplied.
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) products(d[b], b, CHUNKS - 1, state.stage);
            const i64 out = of_first_lane(&pieces[state.stage].out);
            const int there = of_first_lane(&pieces[state.stage].fibers) - first, begins = RIGHT ? of_first_lane(&pieces[state.stage].begin) : 0;
#pragma unroll
            for (int b = 0; b < BLOCKS; ++b) {
                finish(d[b], b, state.stage, true);
                if (SUMMED) {
#pragma unroll
                    for (int i = 0; i < 32; ++i) d[b][i / 4][i % 4] += sums[i * 128];
                }
                leave(d[b], b, out, there, begins);
            }
            state.advance();
        }
    }

    static __device__ void run(const Args& g) {
        extern __shared__ __align__(1024) unsigned char raw[];
        float* const tops = (float*)(raw + TOPS);
        Piece* const pieces = (Piece*)(raw + NOTES);
        const PipelineBarriers<STAGES> barriers{shared_address(raw + BARRIERS)};
        const int tiles = tiles_of(g);
        if (threadIdx.x == 0) barriers.initialise(FILLING, EMPTYING);
        // What is never loaded: positions of k behind the last one.
        if (DEEP != COLUMNS && CHUNKS == 1) {
            for (int i = threadIdx.x; i < COPIED / 16; i += THREADS) ((uint4*)raw)[i] = uint4{0, 0, 0, 0};
            ptx::fence_proxy_async();
        }
        kron_wait_for_factors(g.is_later);
        const HalfScale scale = measured(g, tops);
        __syncthreads();
        if (threadIdx.x >= 256) {
            ptx::setmaxnreg_dec<B::LOADER_REGISTERS>();
            kron_wait();
            if constexpr (COPIES > 0) KronAxisLoader<B, Args>::load_copied(g, raw, raw + COPIED, pieces, barriers, tops, (typename KronAxisLoader<B, Args>::Note*)(raw + COPY_NOTES), tiles);
            else KronAxisLoader<B, Args>::load(g, raw, pieces, barriers, tops, tiles);
        } else {
            ptx::setmaxnreg_inc<256 - B::LOADER_REGISTERS>();
            multiply(g, raw, raw + RESULTS, pieces, barriers, scale, tiles);
        }
    }
};

}  // namespace km

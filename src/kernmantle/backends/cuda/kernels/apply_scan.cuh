// The nearest columns of a few rows by any entry: reading the columns once is all the work.
//
// A half or a quarter of a warp reads a column; of 32 columns at a time every lane gets the entry of one by halving what each has of
// them. The warp keeps the best of those that it has seen, and a second kernel those of all warps.
#pragma once
#include "apply.cuh"
#include "lanes.cuh"
#include "scratch.cuh"

namespace km {

template <int ROWS_>
struct ApplyScan {
    static constexpr int ROWS = ROWS_, WARPS = 8;
};
template <class Body, class Tile>
__device__ constexpr int apply_scan_shared_bytes() {
    return 0;
}

// The key of an entry, whose sums are done.
template <class Body, class Args>
KM_DEVICE u64 entry_key(const Args& g, const Coord& p, i64 m, i64 n, const typename Body::Registers& s) {
    float rows[Extent<Body::ROW_ENDS>::value], columns[Extent<Body::COLUMN_ENDS>::value], cells[Extent<Body::CELL_ENDS>::value];
    each<0, Body::ROW_ENDS>([&](auto index) {
        rows[decltype(index)::value] = end_value<typename Body::template RowEnd<decltype(index)::value>, float>(g, p, m, g.size[ROLE_M], ROLE_M);
    });
    each<0, Body::COLUMN_ENDS>([&](auto index) {
        columns[decltype(index)::value] = end_value<typename Body::template ColumnEnd<decltype(index)::value>, float>(g, p, n, g.size[ROLE_N], ROLE_N);
    });
    each<0, Body::CELL_ENDS>([&](auto index) {
        typedef typename Body::template CellEnd<decltype(index)::value> P;
        cells[decltype(index)::value] = load_at<float, typename P::T, P::BUFFER>(g, p, m, n);
    });
    const float value = Body::entry(Body::fixed(g, p), g.number, rows, columns, cells, s);
    return ranked_key(Body::LARGEST ? -value : value, (unsigned)n);
}

template <class Body, class Tile>
__device__ __forceinline__ void apply_scan(const typename Body::Args& g) {
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    // A lane reads NUMBERS of a column, which are 16 bytes, LANES of them read 64; each has EACH of the 32 columns.
    constexpr int R = Tile::ROWS, NUMBERS = sizeof(typename Y::T) == 2 ? 8 : 4, LANES = 64 / NUMBERS, TOGETHER = 32 / LANES, EACH = LANES;
    constexpr unsigned WHOLE = 0xffffffffu;
    const int lane = threadIdx.x % 32, part = lane % LANES, which = lane / LANES, count = (int)g.size[ROLE_L];
    const i64 warps = (i64)gridDim.x * Tile::WARPS, warp = (i64)blockIdx.x * Tile::WARPS + threadIdx.x / 32;
    const i64 depth = g.size[ROLE_K], rows = g.size[ROLE_M], last = g.size[ROLE_N] - 1, chunks = ceil_div(g.size[ROLE_N], 32);
    const i64 apart = TOGETHER * g.stride[Y::BUFFER][ROLE_N];
    const Coord p = {0, 0, 0, 0, 0, 0};
    u64 best[R];
#pragma unroll
    for (int r = 0; r < R; ++r) best[r] = ~0ull;
#pragma unroll 1
    for (i64 chunk = warp; chunk < chunks; chunk += warps) {
        // the last 32 columns are whole too: some of them come twice, but count once
        const i64 first = chunk * 32 < last - 31 ? chunk * 32 : last - 31;
        const typename Y::T* columns = row_of<Y>(g, p, first + which);
        typename Body::Registers s[R][EACH];
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int i = 0; i < EACH; ++i) Body::initial(s[r][i]);
        auto add = [&](auto whole, i64 k) {
            constexpr bool WHOLE_STEP = decltype(whole)::value > 0;
            constexpr int AHEAD = !WHOLE_STEP ? 2 : R > 1 ? 4 : 8;
            float x[R][NUMBERS];
#pragma unroll
            for (int r = 0; r < R; ++r) read_along_k<X, WHOLE_STEP>(x[r], row_of<X>(g, p, r < rows ? r : 0), g, k);
#pragma unroll
            for (int start = 0; start < EACH; start += AHEAD) {
                float y[AHEAD][NUMBERS];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) read_along_k<Y, WHOLE_STEP>(y[i], columns + (start + i) * apart, g, k);
#pragma unroll
                for (int v = 0; v < NUMBERS; ++v) {
                    if (!WHOLE_STEP && k + v >= depth) continue;
                    float c[AtLeastOne<Body::VECTORS>::value];
                    read_vectors<Body>(c, g, p, k + v);
#pragma unroll
                    for (int i = 0; i < AHEAD; ++i)
#pragma unroll
                        for (int r = 0; r < R; ++r)
                            Body::template step<EXACT>(s[r][start + i], x[r] + v, y[i] + v, c, x[r], g.number, k + v, 0);
                }
            }
        };
        // without a test between them the loads of a step are under way together
        i64 k = 0;
#pragma unroll 1
        for (; k + 64 <= depth; k += 64) add(Index<1>(), k + NUMBERS * part);
        if (k < depth) add(Index<0>(), k + NUMBERS * part);
        const i64 n = first + TOGETHER * part + which;
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int left = EACH / 2; left > 0; left /= 2) {
                const bool upper = part & left;
#pragma unroll
                for (int i = 0; i < left; ++i) {
                    typename Body::Registers other;
                    other.r0 = __shfl_xor_sync(WHOLE, upper ? s[r][i].r0 : s[r][i + left].r0, left);
                    s[r][i].r0 = upper ? s[r][i + left].r0 : s[r][i].r0;
                    Body::merge(s[r][i], other);
                }
            }
            const bool counts = n >= chunk * 32 && r < rows;
            const u64 fresh = counts ? entry_key<Body>(g, p, r < rows ? r : 0, n, s[r][0]) : ~0ull;
            const u64 worst = __shfl_sync(WHOLE, best[r], count - 1);
            if (__any_sync(WHOLE, fresh < worst)) best[r] = merge_lanes(best[r], fresh, lane);
        }
    }
    u64* to = (u64*)g.work;
    if (blockIdx.x == 0 && threadIdx.x == 0) to[0] = (u64)warps;
#pragma unroll
    for (int r = 0; r < R; ++r)
        if (lane < count) to[4 + (r * warps + warp) * count + lane] = best[r];
}

// A block for each row: the best of all warps.
template <class Body, class Tile>
__device__ __forceinline__ void select_scanned(const typename Body::Args& g) {
    constexpr unsigned WHOLE = 0xffffffffu;
    constexpr int WARPS = Tile::WARPS, AHEAD = 8;
    __shared__ u64 queues[WARPS][64], lists[WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = (int)g.size[ROLE_L];
    const u64* from = (const u64*)g.work;
    const i64 keys = (i64)from[0] * count, row = blockIdx.x;
    from += 4 + row * keys;
    u64 best = ~0ull;
    int waiting = 0;
#pragma unroll 1
    for (i64 base = 32 * warp + lane; base - lane < keys; base += 32 * WARPS * AHEAD) {
        u64 key[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) key[i] = base + 32 * WARPS * i < keys ? from[base + 32 * WARPS * i] : ~0ull;
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const u64 worst = __shfl_sync(WHOLE, best, count - 1);
            const unsigned all = __ballot_sync(WHOLE, key[i] < worst);
            if (all == 0) continue;
            if (key[i] < worst) queues[warp][waiting + __popc(all & ((1u << lane) - 1))] = key[i];
            waiting += __popc(all);
            __syncwarp();
            if (waiting >= 32) {
                waiting -= 32;
                best = merge_lanes(best, queues[warp][waiting + lane], lane);
            }
            __syncwarp();
        }
    }
    best = merge_lanes(best, lane < waiting ? queues[warp][lane] : ~0ull, lane);
    lists[warp][lane] = best;
    __syncthreads();
    if (warp > 0) return;
#pragma unroll 1
    for (int other = 1; other < WARPS; ++other) best = merge_lanes(best, lists[other][lane], lane);
    if (lane >= count) return;
    const Coord p = {0, 0, 0, 0, 0, 0};
    write_result<Body>(g, p, row, lane, Ranked<float>{from_ordered_bits((unsigned)(best >> 32)), (i64)(unsigned)best});
}

}  // namespace km

// Sums of rows times columns of v in the accumulators of a warpgroup. Those of SCORE_RUN tiles are added up in global memory, so that
// rounding does not add up with all tiles.
#pragma once
#include "columns_split.cuh"

namespace km {

// Rows: which rows a thread has, as RowsOfGroup.
template <class Body, class Tile, class Rows>
struct RowSums : Rows {
    typedef typename Body::Args Args;
    typedef typename Body::State State;
    static constexpr int COLUMNS = Tile::COLUMNS, BM = Tile::BM;
    using Rows::g, Rows::lane, Rows::local_row;

    float sum[COLUMNS / 8][4], product[COLUMNS / 8][4];

    __device__ __forceinline__ RowSums(const Args& g_) : Rows(g_) {}

    // Address of this thread's sum in memory that the block has for the row block; null behind the last column of v.
    __device__ __forceinline__ float* address_of(i64 first, int j, int i) const {
        const i64 c = first + 8 * j + lane % 4 * 2 + i % 2;
        return c < g.size[ROLE_L] ? &score_slot<Body, BM>(g)[c * BM + local_row() + i / 2 * 8].r0 : nullptr;
    }
    // Moves the sums to memory: adds them to those before, or begins with them.
    template <bool BEGINS>
    __device__ __forceinline__ void flush_sums(i64 first) {
        ptx::opaque(first);  // addresses take no registers meanwhile
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float* address = address_of(first, j, i);
                if (address != nullptr) *address = BEGINS ? 0.0f : *address + sum[j][i];
                sum[j][i] = 0.0f;
            }
    }

    __device__ __forceinline__ void end(i64 m0, i64 first, State* slot, bool whole) {
        const auto p = origin();
        flush_sums<false>(first);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int local = local_row() + i / 2 * 8;
                const i64 c = first + 8 * j + lane % 4 * 2 + i % 2;
                if (m0 + local >= g.size[ROLE_M] || c >= g.size[ROLE_L]) continue;
                const State mine = {*address_of(first, j, i) * HalfScale::of_largest(__int_as_float(g.list[LARGEST_AT + c])).inverse};
                if (whole)
                    write_result<Body>(g, p, m0 + local, c, mine);
                else
                    slot[c * BM + local] = mine;
            }
    }
};

}  // namespace km

// Fibers of a Kronecker product of float64 on tensor cores, and their factors, as in kron_fibers.cuh but never rounded.
#pragma once
#include "kron_products.cuh"

namespace km {

// A factor of ROWS x COLUMNS in blocks of 16 x 16, eight entries of each for a lane; LAST: for the last axis.
template <bool LAST_, int ROWS_, int COLUMNS_>
struct KronDouble {
    static constexpr bool LAST = LAST_;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_;
    static constexpr int DEEP = (COLUMNS + 15) / 16, WIDE = (ROWS + 15) / 16, BLOCK = 512;

    // value(q, p) is an entry.
    template <class B, bool FITS, class Value>
    static __device__ void prepare(unsigned* to, double* back, const float*, const Value& value) {
#pragma unroll 8
        for (int i = threadIdx.x; i < DEEP * WIDE * 256; i += B::THREADS) {
            const int block = i / 256, r = i / 64 % 4 * 2 + i % 2, lane = i / 2 % 32, t = lane % 4;
            const int row = LAST ? 8 * (r / 4) + lane / 4 : 8 * (r % 2) + kron_row(lane);
            const int column = LAST ? 8 * (r % 4 / 2) + 2 * t + r % 2 : 4 * (r / 2) + t;
            const int q = block % WIDE * 16 + row, p = block / WIDE * 16 + column;
            ((double*)to)[i] = q < ROWS && p < COLUMNS ? value(q, p) : 0.0;
        }
        if (threadIdx.x == 0) *back = 1.0;
    }
};

template <class B, class F, int TILES>
struct KronFragments<B, F, TILES, double> {
    double v[TILES][F::DEEP][8];

    // Rows of a multiple of 16 entries; `at` says where one begins.
    template <bool SWIZZLED, class At>
    KM_DEVICE void read_rows(const double* from, const At& at, int lane) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const double* own = from + at(16 * tile + 8 * h + kron_row(lane)) + lane % 4 * 2;
#pragma unroll
                for (int i = 0; i < 2 * F::DEEP; ++i) {
                    const Pack<double, 2> pack = *(const Pack<double, 2>*)(own + 8 * i);
                    v[tile][i / 2][i % 2 * 4 + h] = pack.v[0];
                    v[tile][i / 2][i % 2 * 4 + 2 + h] = pack.v[1];
                }
            }
        }
    }
    // Columns, 16 beside each other in each tile, of which a lane has two; their entries are PITCH apart.
    template <int PITCH, class At>
    KM_DEVICE void read_columns(const double* from, const At& at, int lane) {
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
            const double* own = from + at(tile, lane / 4) + lane % 4 * PITCH;
#pragma unroll
            for (int i = 0; i < 4 * F::DEEP; ++i) {
                const bool inside = F::COLUMNS % 16 == 0 || 4 * i + lane % 4 < F::COLUMNS;
#pragma unroll
                for (int n = 0; n < 2; ++n) v[tile][i / 4][4 * n + i % 4] = inside ? own[4 * i * PITCH + 8 * n] : 0.0;
            }
        }
    }
};

// As for float32, with two neighbours at a time: n says which eight of 16 they are among.
template <class B, class F, int TILES, class Give>
KM_DEVICE void kron_multiply(const KronFragments<B, F, TILES, double>& x, const unsigned* factor, double back, int lane, const Give& give) {
#pragma unroll B::UNROLL
    for (int w = 0; w < F::WIDE; ++w) {
        double sum[TILES][2][4] = {};
#pragma unroll
        for (int s = 0; s < F::DEEP; ++s) {
            const double* at = (const double*)(factor + (s * F::WIDE + w) * F::BLOCK) + lane * 2;
            double f[8];
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                const Pack<double, 2> pack = *(const Pack<double, 2>*)(at + 32 * i);
                f[i] = pack.v[0];
                f[i + 1] = pack.v[1];
            }
#pragma unroll
            for (int tile = 0; tile < TILES; ++tile) {
                const double* own = x.v[tile][s];
#pragma unroll
                for (int n = 0; n < 2; ++n) ptx::mma_m16n8k16_f64(sum[tile][n], F::LAST ? own : f, (F::LAST ? f : own) + 4 * n);
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int n = i % 2, h = i / 2;
                const double value[2] = {sum[tile][n][2 * h] * back, sum[tile][n][2 * h + 1] * back};
                give(w, tile, h, n, value);
            }
        }
    }
}

}  // namespace km

// The kernels before and after the main kernel of a VJP. Before it the operands over rows are copied in the layout that it
// reads; after it, entries that its fast arithmetic could not finish are computed exactly as they are written.
#pragma once
#include "vjp.cuh"
#include "reduce.cuh"

namespace km {

// Largest magnitudes of a matrix by columns, and whether a number in them is not tame: 32 columns and 256 rows a block.
template <class Value>
KM_DEVICE void peaks(Value value, i64 row, i64 rows, i64 column, i64 columns, bool across, unsigned* top, unsigned* wild, unsigned (*buffer)[32]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned found = 0, odd = 0;
#pragma unroll 1
    for (int slot = 0; slot < 4; ++slot) {
        const i64 first = row + (across ? warp + 64 * slot : lane), c = column + (across ? lane : warp + 8 * slot);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const i64 r = first + (across ? 8 : 32) * i;
            if (r < rows && c < columns) {
                const float v = value(r, c);
                const unsigned size = __float_as_uint(v) & 0x7fffffffu;
                found = size > found ? size : found;
                odd |= !is_moderate(v) | (size >= LARGE);
            }
        }
        if (across) continue;
        found = warp_max(found);
        odd = warp_max(odd);
        if (lane == 0 && c < columns) {
            atomicMax(top + c, found);
            if (wild && odd) atomicMax(wild + c, 1u);
        }
        found = odd = 0;
    }
    if (!across) return;
    buffer[warp][lane] = found | odd << 31;
    __syncthreads();
    if (warp == 0 && column + lane < columns) {
        unsigned best = 0, any = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const unsigned one = buffer[i][lane] & 0x7fffffffu;
            any |= buffer[i][lane] >> 31;
            best = one > best ? one : best;
        }
        atomicMax(top + column + lane, best);
        if (wild && any) atomicMax(wild + column + lane, 1u);
    }
    __syncthreads();
}

// First kernel: the largest magnitudes of rows and points by columns and, for tensor cores, of coefficients by outputs.
template <class Body, class Tile>
KM_DEVICE void range_scan(const typename Body::Args& g) {
    __shared__ unsigned buffer[8][32];
    const i64 columns = g.size[ROLE_N], outputs = g.size[ROLE_L];
    const i64 wide = ceil_div(columns, 32), row_blocks = ceil_div(g.size[ROLE_K], 256), point_blocks = ceil_div(g.size[ROLE_M], 256);
    const i64 of_rows = planes<Body>(g) * row_blocks * wide, of_points = entries(g) * point_blocks * wide;
    const i64 of_factors = Tile::SPLIT ? entries(g) * row_blocks * ceil_div(outputs, 32) : 0;
    for (i64 job = blockIdx.x; job < of_rows + of_points + of_factors; job += gridDim.x) {
        if (job < of_rows) {
            const i64 plane = job / wide / row_blocks, row = job / wide % row_blocks * 256;
            const Coord p = entry_of_plane<Body>(g, plane);
            const i64* s = g.stride[Body::X::BUFFER];
            peaks([&](i64 r, i64 c) { return fetch<typename Body::X>(g, p, 0, c, r, 0); }, row, g.size[ROLE_K], job % wide * 32, columns,
                  s[ROLE_N] <= s[ROLE_K], g.top + plane * columns, g.wild + plane * columns, buffer);
        } else if (job < of_rows + of_points) {
            const i64 rest = job - of_rows, row = rest / wide % point_blocks * 256;
            const Coord p = entry_at(g, rest / wide / point_blocks);
            const i64 plane = plane_of<Body>(g, p);
            typedef typename Body::template MnBuffer<0> Z;
            const i64* s = g.stride[Z::BUFFER];
            peaks([&](i64 r, i64 c) { return fetch<Z>(g, p, r, c, 0, 0); }, row, g.size[ROLE_M], rest % wide * 32, columns,
                  s[ROLE_N] <= s[ROLE_M], g.top + plane * columns, g.wild + plane * columns, buffer);
        } else {
            const i64 narrow = ceil_div(outputs, 32), rest = job - of_rows - of_points, row = rest / narrow % row_blocks * 256;
            const i64 entry = rest / narrow / row_blocks;
            const Coord p = entry_at(g, entry);
            peaks([&](i64 r, i64 c) { return coefficient_at<Body>(g, p, r, c); }, row, g.size[ROLE_K], rest % narrow * 32, outputs, true,
                  g.peak + entry * outputs, (unsigned*)0, buffer);
        }
    }
}

// Second kernel: the rows, copied with the axis first that the main kernel reads them along, and scaled coefficients.
// Positions past the last row repeat it, columns past the last are 0; coefficients there are 0.
template <class Body, class Tile>
KM_DEVICE void pack(const typename Body::Args& g) {
    __shared__ float buffer[32][33];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 rows = g.size[ROLE_K], columns = g.size[ROLE_N], outputs = g.size[ROLE_L];
    const i64 high = padded(rows, Tile::KC), wide = padded(columns, Tile::BN), deep = padded(outputs, Tile::BL);
    const i64 down = ceil_div(high, 32), across = ceil_div(wide, 32), of_rows = planes<Body>(g) * down * across;
    const i64 of_factors = Tile::SPLIT || Tile::TENSOR ? entries(g) * deep * ceil_div(high, 256) : 0;
    for (i64 job = blockIdx.x; job < of_rows + of_factors; job += gridDim.x) {
        if (job < of_rows) {
            const i64 plane = job / across / down, k0 = job / across % down * 32, n0 = job % across * 32;
            const Coord p = entry_of_plane<Body>(g, plane);
            const i64* s = g.stride[Body::X::BUFFER];
            const bool flat = s[ROLE_N] <= s[ROLE_K];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int slow = warp + 8 * i, kk = flat ? slow : lane, nn = flat ? lane : slow;
                const i64 k = k0 + kk < rows ? k0 + kk : rows - 1, n = n0 + nn;
                buffer[kk][nn] = n < columns ? fetch<typename Body::X>(g, p, 0, n, k, 0) : 0.0f;
            }
            __syncthreads();
            float* to = g.rows + plane * high * wide;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int slow = warp + 8 * i;
                if (Tile::TENSOR) {
                    const i64 k = k0 + lane, n = n0 + slow;
                    const float by = Body::KIND == POWERS && n < columns ? fitting(g.top[plane * columns + n], COLUMN_FIT) : 1.0f;
                    if (k < high && n < wide) to[n * high + k] = buffer[lane][slow] * by;
                } else {
                    const i64 k = k0 + slow, n = n0 + lane;
                    if (k < high && n < wide) to[k * wide + n] = buffer[slow][lane];
                }
            }
            __syncthreads();
        } else {
            const i64 rest = job - of_rows, steps = ceil_div(high, 256), k = rest % steps * 256 + threadIdx.x;
            const i64 l = rest / steps % deep, entry = rest / steps / deep;
            const float by = Tile::SPLIT && l < outputs ? fitting(g.peak[entry * outputs + l], FACTOR_FIT) : 1.0f;
            const bool inside = k < rows && l < outputs;
            if (k < high) g.factors[(entry * deep + l) * high + k] = inside ? coefficient_at<Body>(g, entry_at(g, entry), k, l) * by : 0.0f;
        }
    }
}

// Third kernel, for halves: per point the power of two that takes its weights below 1. A warp takes a point.
template <class Body, class Tile>
KM_DEVICE void scale_weights(const typename Body::Args& g) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const i64 points = g.size[ROLE_M], rows = g.size[ROLE_K], blocks = ceil_div(points, warps);
    for (i64 job = blockIdx.x; job < entries(g) * blocks; job += gridDim.x) {
        const i64 entry = job / blocks, m = job % blocks * warps + warp;
        if (m >= points) continue;
        const Coord p = entry_at(g, entry);
        unsigned top = 0;
#pragma unroll 8
        for (i64 k = lane; k < rows; k += 32) {
            const unsigned size = __float_as_uint(weight_at<Body>(g, p, m, k)) & 0x7fffffffu;
            top = size > top ? size : top;
        }
        top = warp_max(top);
        if (lane == 0) g.scale[entry * points + m] = fitting(top, WEIGHT_FIT);
    }
}

// Adds the ranges of the tiles that were cut, in order.
template <class Body, class Tile>
KM_DEVICE void reduce_splits(const typename Body::Args& g) {
    const i64 tiles = patches<Tile>(g) - g.whole;
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Patch patch = patch_at<Tile>(g, g.whole + t);
        bool fine = true;
        for (int i = threadIdx.x; i < Tile::BM * Tile::BN * Tile::BL; i += blockDim.x) {
            const i64 n = patch.n + i % Tile::BN, m = patch.m + i / Tile::BN % Tile::BM, l = patch.l + i / (Tile::BN * Tile::BM);
            if (n < g.size[ROLE_N] && m < g.size[ROLE_M] && l < g.size[ROLE_L]) {
                float sum = 0.0f;
                for (int range = 0; range < g.splits; ++range) sum += part_of<Tile>(g, patch, range)[i];
                fine = store_result<Body>(g, patch.p, m, n, l, sum) && fine;
            }
        }
        if (!fine) g.dirty[patch.tile] = 1;
    }
}

// Computes as it is written what the quick arithmetic cannot: entries that did not come out finite, columns with numbers
// that it hides. A warp takes an entry.
template <class Body, class Tile>
KM_DEVICE void fix_non_finite(const typename Body::Args& g) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const i64 tiles = patches<Tile>(g), rows = g.size[ROLE_K], columns = g.size[ROLE_N];
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const Patch patch = patch_at<Tile>(g, t);
        const unsigned* wild = g.wild + plane_of<Body>(g, patch.p) * columns;
        bool odd = false;
        if (Body::KIND != PLAIN)
            for (int i = threadIdx.x; i < Tile::BN; i += blockDim.x) odd = odd || (patch.n + i < columns && wild[patch.n + i]);
        if (!__syncthreads_or(odd || g.dirty[t])) continue;
        for (int i = warp; i < Tile::BM * Tile::BN * Tile::BL; i += warps) {
            const i64 n = patch.n + i % Tile::BN, m = patch.m + i / Tile::BN % Tile::BM, l = patch.l + i / (Tile::BN * Tile::BM);
            if (n >= columns || m >= g.size[ROLE_M] || l >= g.size[ROLE_L]) continue;
            typedef typename Body::Out P;
            const float found = fetch<P>(g, patch.p, m, n, 0, l);
            if (is_finite(found) && !(Body::KIND != PLAIN && wild[n])) continue;
            const Operands<Body, typename Body::Args> operands(g, patch.p, m, n);
            float sum = 0.0f;
            for (i64 k = lane; k < rows; k += 32) {
                const float x = fetch<typename Body::X>(g, patch.p, 0, n, k, 0);
                const float slope = Body::template slope<EXACT>(operands.of_mn, operands.of_m, operands.of_n, operands.scalar, x, g.number, (const float*)0, 0u);
                sum = fmaf(coefficient_at<Body>(g, patch.p, k, l), weight_at<Body>(g, patch.p, m, k) * slope, sum);
            }
            sum = warp_sum(sum);
            if (lane == 0) store_result<Body>(g, patch.p, m, n, l, sum);
        }
    }
}

}  // namespace km

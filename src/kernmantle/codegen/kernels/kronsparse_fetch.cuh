// Which part of a Kronecker-sparse product a block and a warp own, and how its operands come into shared memory.
#pragma once
#include "kronsparse_tile.cuh"

namespace km {

template <class P>
struct KronSparseOperands {
    typedef typename P::T T;
    static constexpr int LT = P::LT, ROWS = P::ROWS, SIZE = P::SIZE;
    static __device__ __forceinline__ int ceil_div(int p, int q) { return (p + q - 1) / q; }

    const KronSparse& g;
    int chunks, i, j0, l0, group;
    const T* x;
    T* y;
    unsigned char *ring, *held, *desk;
    float *scales, *biases;
    int lane, ring_of, part, side, member;

    __device__ __forceinline__ KronSparseOperands(const KronSparse& given, unsigned char* shared) : g(given) {
        const int across = ceil_div(g.b, P::NJ), deep = ceil_div(g.d, LT), own = blockIdx.x % (gridDim.x / (unsigned)g.slots);
        chunks = ceil_div(g.c, P::KC);
        j0 = own % across * P::NJ;
        l0 = own / across % deep * LT;
        i = own / (across * deep) % g.a;
        group = own / (across * deep * g.a);
        lane = threadIdx.x % 32;
        const int warp = threadIdx.x / 32, in = P::GROUPED ? 4 : 1;
        const int share = warp / in % (P::WS * P::SIDES);
        part = share % P::WS;
        side = share / P::WS;
        ring_of = warp % in + warp / in / (P::WS * P::SIDES) * in;
        member = 32 * share + lane;
        scales = (float*)shared;
        biases = scales + LT * P::NJ;
        desk = shared + P::TABLE_BYTES + warp * P::DESK;
        held = shared + P::TABLE_BYTES + P::DESKS_BYTES;
        ring = held + (P::RESIDENT ? chunks : P::STAGES) * P::CHUNK + ring_of * P::STAGES * P::STAGE;
        x = (const T*)g.x + group * g.xg + ((i64)i * g.c * g.d + l0) * g.xf;
        y = (T*)g.y + group * g.yg + ((i64)i * g.b * g.d + l0) * g.yf;
    }

    // Copies BYTES of which `valid` are there.
    template <int BYTES>
    static __device__ __forceinline__ void copy(unsigned char* to, const T* from, int valid) {
        if (BYTES >= 4) {
            ptx::cp_async_l2_128<BYTES < 4 ? 4 : BYTES>(shared_address(to), from, valid);
        } else {
            *(unsigned short*)to = valid ? *(const unsigned short*)from : 0;
        }
    }

    // Rows n0 .. and chunk `at` of k to a stage.
    __device__ __forceinline__ void fetch_x(i64 n0, int at, int stage) const {
        const int k0 = at * P::KC;
        if (n0 + ROWS <= g.count && k0 + P::KC <= g.c && (P::FULL || !P::X_FIRST || l0 + LT <= g.d))
            fetch_lines<true>(n0, k0, stage);
        else
            fetch_lines<false>(n0, k0, stage);
    }

    // A line is a row (X_FIRST) or a position of k; LANES share one. INSIDE: nothing of it lies behind an edge.
    template <bool INSIDE>
    __device__ __forceinline__ void fetch_lines(i64 n0, int k0, int stage) const {
        constexpr int EACH = P::X_BYTES / SIZE, PIECES = (P::X_FIRST ? P::KC * LT : ROWS) / EACH, LINES = P::X_FIRST ? ROWS : P::KC;
        constexpr int LANES = common(PIECES, P::SHARERS), LAP = P::SHARERS / LANES;
        const int line0 = member / LANES, place0 = member % LANES * EACH;
        const i64 apart = P::X_FIRST ? g.xn : g.d * g.xf;
        const T* from = x + (P::X_FIRST ? n0 * g.xn + (i64)k0 * g.d : n0 + (i64)k0 * g.d * g.xf) + line0 * apart;
        unsigned char* const to = ring + stage * P::STAGE;
#pragma unroll
        for (int line = 0; line < LINES; line += LAP, from += LAP * apart) {
            if (LINES % LAP != 0 && line0 + line >= LINES) break;
#pragma unroll
            for (int piece = 0; piece < PIECES; piece += LANES) {
                const int place = place0 + piece * EACH, along = P::X_FIRST && !P::FULL ? place / LT * g.d + place % LT : place;
                unsigned char* const put = to + place_of<P>(line0 + line, place * SIZE);
                if (INSIDE) {
                    copy<P::X_BYTES>(put, from + along, P::X_BYTES);
                } else {
                    const int left = edge(n0, k0, line0 + line, place), valid = left <= 0 ? 0 : left < EACH ? left : EACH;
                    copy<P::X_BYTES>(put, valid ? from + along : x, valid * SIZE);
                }
            }
        }
    }

    // How many numbers from a place of a line on are there.
    __device__ __forceinline__ int edge(i64 n0, int k0, int line, int place) const {
        const int rows = g.count - n0 < ROWS ? (int)(g.count - n0) : ROWS;
        if (!P::X_FIRST) return k0 + line < g.c ? rows - place : 0;
        if (P::FULL) return line < rows ? (g.c - k0) * LT - place : 0;
        return line < rows && k0 + place / LT < g.c ? g.d - l0 - place % LT : 0;
    }

    // A chunk of weights to a place of the held ones.
    __device__ __forceinline__ void fetch_weights(int at, int place) {
        const unsigned own = blockIdx.x % (gridDim.x / (unsigned)g.slots);
        const unsigned char* from = (const unsigned char*)g.image + ((i64)own * chunks + at) * P::CHUNK;
#pragma unroll 4
        for (int to = 16 * threadIdx.x; to < P::CHUNK; to += 16 * P::THREADS) ptx::cp_async<16>(shared_address(held + place * P::CHUNK + to), from + to);
    }

    // Power of two that undoes the scale of each column (NaN: its weights are not finite), and the bias.
    __device__ __forceinline__ void fill_table() {
        const int padded = ceil_div(g.b, P::NJ) * P::NJ, deep = ceil_div(g.d, LT) * LT;
        for (int at = threadIdx.x; at < LT * P::NJ; at += P::THREADS) {
            const int l = at / P::NJ, j = j0 + at % P::NJ;
            const bool inside = j < g.b && l0 + l < g.d;
            scales[at] = !P::SPLIT ? 1.0f : g.scale[(((i64)group * g.a + i) * deep + l0 + l) * padded + j];
            if (P::BIAS) biases[at] = inside ? convert<float>(((const T*)g.bias)[group * g.bg + ((i64)i * g.b + j) * g.d + l0 + l]) : 0.0f;
        }
    }
};

}  // namespace km

// Passes of small factors by fused multiply-adds: in each phase a thread holds all entries along a few neighbouring
// axes in registers, applies their factors, and puts them back in place; between phases the tile is in shared memory.
// An axis takes as much room as it is long before or after its factor, whichever is more.
#pragma once
#include "kron.cuh"

namespace km {

// Values of a thread as (LEFT, EXTENT, RIGHT): the first COLUMNS along the middle become ROWS.
// MOST: how many slices at most share what is read of the factor.
template <int MOST, int LEFT, int EXTENT, int ROWS, int COLUMNS, int RIGHT, int PITCH, class C, int N, class Factor>
KM_DEVICE void kron_apply(C (&v)[N], const Factor& factor) {
    constexpr int SLICES = LEFT * RIGHT;
    constexpr int GROUP = SLICES % 8 == 0 && MOST >= 8 ? 8 : SLICES % 4 == 0 && MOST >= 4 ? 4 : SLICES % 3 == 0 && MOST >= 3 ? 3 : SLICES % 2 == 0 && MOST >= 2 ? 2 : 1;
#pragma unroll
    for (int s = 0; s < SLICES; s += GROUP) {
        C sum[GROUP][ROWS];
#pragma unroll
        for (int p = 0; p < COLUMNS; ++p) {
            C fiber[PITCH];
            factor.template fiber<PITCH>(fiber, p * PITCH);
#pragma unroll
            for (int i = 0; i < GROUP; ++i) {
                const C own = v[((s + i) / RIGHT * EXTENT + p) * RIGHT + (s + i) % RIGHT];
#pragma unroll
                for (int q = 0; q < ROWS; ++q) sum[i][q] = p == 0 ? own * fiber[q] : fma(own, fiber[q], sum[i][q]);
            }
        }
#pragma unroll
        for (int i = 0; i < GROUP; ++i) {
#pragma unroll
            for (int q = 0; q < ROWS; ++q) v[((s + i) / RIGHT * EXTENT + q) * RIGHT + (s + i) % RIGHT] = sum[i][q];
        }
    }
}

// A factor in shared memory, its lines a multiple of 16 bytes.
template <class C>
struct SharedFactor {
    const C* from;
    template <int PITCH>
    KM_DEVICE void fiber(C (&to)[PITCH], int at) const {
        constexpr int VEC = 16 / sizeof(C);
#pragma unroll
        for (int i = 0; i < PITCH; i += VEC) {
            const Pack<C, VEC> pack = *(const Pack<C, VEC>*)(from + at + i);
#pragma unroll
            for (int v = 0; v < VEC; ++v) to[i + v] = pack.v[v];
        }
    }
};

// A thread's share of a phase: values of ACROSS x EXTENT x ALONG entries of the tile seen as (DOWN, EXTENT, RIGHT).
template <class B, int EXTENT_, int RIGHT_, int ACROSS_, int ALONG_>
struct KronShare {
    static constexpr int EXTENT = EXTENT_, RIGHT = RIGHT_, ACROSS = ACROSS_, ALONG = ALONG_;
    static constexpr int DOWN = B::ITEMS * B::RUN * B::RIGHT / (EXTENT * RIGHT);
    static constexpr int COUNT = DOWN / ACROSS * (RIGHT / ALONG), VALUES = ACROSS * EXTENT * ALONG;
    int down, right;
    KM_DEVICE explicit KronShare(int n) : down(n / (RIGHT / ALONG) * ACROSS), right(n % (RIGHT / ALONG) * ALONG) {}
    KM_DEVICE int first() const { return down * EXTENT * RIGHT + right; }
    // From the first value to line `line`, each of ALONG neighbours. B::tile_offset of first() + step() is the sum of both.
    static __device__ __forceinline__ constexpr int step(int fiber) { return fiber * RIGHT; }
};

template <class B, class Share, class C>
KM_DEVICE void kron_load_shared(C (&v)[Share::VALUES], const C* s, const Share& share) {
    s += B::tile_offset(share.first());
    constexpr int VEC = 16 / sizeof(C);
    if (Share::RIGHT == 1 && Share::EXTENT % VEC == 0) {
#pragma unroll
        for (int i = 0; i < Share::VALUES; i += VEC) {
            const Pack<C, VEC> pack = *(const Pack<C, VEC>*)(s + B::tile_offset(i));
#pragma unroll
            for (int w = 0; w < VEC; ++w) v[i + w] = pack.v[w];
        }
    } else {
#pragma unroll
        for (int i = 0; i < Share::VALUES; i += Share::ALONG) {
            const int fiber = i / Share::ALONG;
            const Pack<C, Share::ALONG> pack = *(const Pack<C, Share::ALONG>*)(s + B::tile_offset(Share::step(fiber)));
#pragma unroll
            for (int w = 0; w < Share::ALONG; ++w) v[i + w] = pack.v[w];
        }
    }
}

template <class B, class Share, class C>
KM_DEVICE void kron_store_shared(C* s, const C (&v)[Share::VALUES], const Share& share) {
    s += B::tile_offset(share.first());
    constexpr int VEC = 16 / sizeof(C);
    if (Share::RIGHT == 1 && Share::EXTENT % VEC == 0) {
#pragma unroll
        for (int i = 0; i < Share::VALUES; i += VEC) {
            Pack<C, VEC> pack;
#pragma unroll
            for (int w = 0; w < VEC; ++w) pack.v[w] = v[i + w];
            *(Pack<C, VEC>*)(s + B::tile_offset(i)) = pack;
        }
    } else {
#pragma unroll
        for (int i = 0; i < Share::VALUES; i += Share::ALONG) {
            const int fiber = i / Share::ALONG;
            Pack<C, Share::ALONG> pack;
#pragma unroll
            for (int w = 0; w < Share::ALONG; ++w) pack.v[w] = v[i + w];
            *(Pack<C, Share::ALONG>*)(s + B::tile_offset(Share::step(fiber))) = pack;
        }
    }
}

// Starts the copies of the first AHEAD entries of a tile, which lie beside each other, and asks for the others.
template <class B, class Args>
KM_DEVICE void kron_fetch_ahead(typename B::T* ahead, const Args& g, const KronCoord& p) {
    typedef typename B::T T;
    constexpr int VEC = 16 / sizeof(T);
    const T* from = (const T*)g.x + kron_offset(g.x_stride, p);
#pragma unroll 4
    for (int n = threadIdx.x * VEC; n < B::AHEAD; n += B::THREADS * VEC) ptx::cp_async<16>(shared_address(ahead + n), from + n);
    ptx::cp_async_commit_group();
    constexpr int REQUEST = 128 / sizeof(T);
    for (int n = B::AHEAD + threadIdx.x * REQUEST; n < B::RUN_IN; n += B::THREADS * REQUEST) ptx::prefetch_global_l2(from + n);
}

// The first AHEAD entries of the tile are in shared memory already.
template <class B, class Share, class C, class Args>
KM_DEVICE void kron_load_global(C (&v)[Share::VALUES], const typename B::T* ahead, const Args& g, const KronCoord& p, const Share& share) {
    typedef typename B::T T;
    constexpr int PREFETCHED = B::AHEAD / Share::RIGHT;
    const T* from = (const T*)g.x + kron_offset(g.x_stride, p);
    Pack<T, Share::ALONG> staged[Share::VALUES / Share::ALONG];
#pragma unroll
    for (int i = 0; i < Share::VALUES / Share::ALONG; ++i) {
        // Those in memory first, which take longer.
        constexpr int COUNT = Share::VALUES / Share::ALONG;
        const int fiber = (i + PREFETCHED) % COUNT;
        if (fiber < PREFETCHED) {
            staged[fiber] = *(const Pack<T, Share::ALONG>*)(ahead + share.first() + Share::step(fiber));
            continue;
        }
        const KronEntry<B, B::RUN, 1> e(share.first() + Share::step(fiber));
        if (e.is_inside(g, p)) staged[fiber] = load_pack<T, Share::ALONG>(from + e.template offset<(B::VEC_IN > 1)>(g.x_stride));
        else staged[fiber] = Pack<T, Share::ALONG>{};
    }
#pragma unroll
    for (int i = 0; i < Share::VALUES; ++i) v[i] = convert<C>(staged[i / Share::ALONG].v[i % Share::ALONG]);
}

template <class B, class Share, class C, class Args>
KM_DEVICE void kron_store_global(const Args& g, const KronCoord& p, const C (&v)[Share::VALUES], const Share& share) {
    constexpr bool UNIT = B::VEC_OUT > 1;
    const i64 to = kron_offset(g.out_stride, p), y_offset = B::ADDED ? kron_offset(g.y_stride, p) : 0;
#pragma unroll
    for (int fiber = 0; fiber < Share::VALUES / Share::ALONG; ++fiber) {
        const KronEntry<B, B::RUN, 1> e(share.first() + Share::step(fiber));
        C own[Share::ALONG];
#pragma unroll
        for (int w = 0; w < Share::ALONG; ++w) own[w] = v[fiber * Share::ALONG + w];
        if (e.is_inside(g, p))
            kron_store<B, Share::ALONG>(g, to + e.template offset<UNIT>(g.out_stride), B::ADDED ? y_offset + e.template offset<UNIT>(g.y_stride) : 0, own);
    }
}

// One phase: FIRST reads from global memory, LAST writes there.
template <class B, class Share, bool FIRST, bool LAST, class C, class Args, class Apply>
KM_DEVICE void kron_phase(C* s, const typename B::T* ahead, const Args& g, const KronCoord& p, const Apply& apply) {
#pragma unroll 1
    for (int n = threadIdx.x; n < Share::COUNT; n += B::THREADS) {
        const Share share(n);
        C v[Share::VALUES];
        if (FIRST) kron_load_global<B, Share>(v, ahead, g, p, share);
        else kron_load_shared<B, Share>(v, s, share);
        apply(v);
        if (LAST) kron_store_global<B, Share>(g, p, v, share);
        else kron_store_shared<B, Share>(s, v, share);
    }
}

// Words of shared memory of the factors and of a tile with its gaps, behind which lies what is copied ahead; bytes of all.
template <class B>
__device__ constexpr int kron_fma_words() {
    return B::FACTOR_WORDS + (B::TILED ? B::tile_offset(B::ITEMS * B::RUN * B::RIGHT) : 0);
}
template <class B>
__device__ constexpr int kron_fma_shared_bytes() {
    return (int)sizeof(typename B::C) * kron_fma_words<B>() + (int)sizeof(typename B::T) * B::AHEAD;
}

// The pass: B::factors puts the factors into shared memory, B::phases does the work.
template <class B, class Args>
KM_DEVICE void kron_fma(const Args& g) {
    typedef typename B::C C;
    extern __shared__ __align__(1024) unsigned char raw[];
    C* factors = (C*)raw;
    C* s = factors + B::FACTOR_WORDS;
    typename B::T* ahead = (typename B::T*)(factors + kron_fma_words<B>());
    const i64 tiles = kron_tiles<B::ITEMS, B::RIGHT>(g);
    if (blockIdx.x >= tiles) return;
    const auto entry_of = [&](const KronCoord& p) { return B::VARIES ? (p.a * g.size[KRON_B] + p.b) * g.size[KRON_C] + p.c : 0; };
    i64 last;
    {
        const KronCoord first = kron_coord<B::ITEMS, B::RIGHT>(g, blockIdx.x);
        last = entry_of(first);
        kron_begin(g.is_later, [&]() { B::factors(factors, g, first); }, [&]() {
            if (B::AHEAD) kron_fetch_ahead<B>(ahead, g, first);
        });
        if (B::DIRECT_IN && !B::AHEAD) __syncthreads();
    }
#pragma unroll 1
    for (i64 t = blockIdx.x; t < tiles; t += gridDim.x) {
        const KronCoord p = kron_coord<B::ITEMS, B::RIGHT>(g, t);
        if (B::VARIES && entry_of(p) != last) {
            __syncthreads();
            B::factors(factors, g, p);
            last = entry_of(p);
            if (B::DIRECT_IN && !B::AHEAD) __syncthreads();
        }
        if (B::AHEAD) {
            ptx::cp_async_wait_all();
            __syncthreads();
        }
        if (!B::DIRECT_IN) {
            kron_read<B>(s, g, p);
            __syncthreads();
        }
        // The next tile is copied as soon as the first phase has taken what is there.
        const auto next = [&]() {
            if (B::AHEAD && t + gridDim.x < tiles) kron_fetch_ahead<B>(ahead, g, kron_coord<B::ITEMS, B::RIGHT>(g, t + gridDim.x));
        };
        B::phases(s, factors, ahead, g, p, next);
        if (!B::DIRECT_OUT) kron_write<B>(s, g, p);
        __syncthreads();
    }
}

}  // namespace km

// The arrays by which the kernels of sums of squared differences, and of logarithms of products, communicate: halves of the operands, norms of their rows, and the
// list of tiles that are to be computed as written.
//
// An operand is stored in blocks of 64 rows by 64 positions of k, one after another along k: the high halves of a block first, then
// the low ones, in rows of 128 bytes, swizzled (layout.cuh).
#pragma once
#include "gram.cuh"
#include "layout.cuh"
#include "reduce.cuh"

namespace km {

constexpr int BLOCK = 64, BLOCK_BYTES = 2 * BLOCK * BLOCK;
// Blocks that probe, samples of each, and how many blocks must find close pairs for differences to be taken throughout.
constexpr int PROBE_BLOCKS = 32, PROBES = 16, CLOSE_BLOCKS = 15;
// Offsets in the list: of the count of tiles that follow, of products that are taken, and of close pairs per probe block.
constexpr int LIST_PRODUCTS = 1, LIST_PROBES = 2, LIST_TILES = 64;
// A squared distance is near when it is below this share of the two norms, or too small for float32 to square well.
constexpr float CLOSE_SHARE = 0.0625f, CLOSE_SQUARE = 7.8886091e-31f;

KM_DEVICE bool is_close(float distance, float norms) { return !(distance > fmaf(CLOSE_SHARE, norms, CLOSE_SQUARE)); }

// Per row its squared norm and what its halves are to be multiplied by.
struct Scratch {
    int* list;
    unsigned char* plane[2];
    float2* row[2];
};
template <class A>
struct Prepared : A {
    Scratch scratch;
};

template <class T>
struct IsHalf {
    static constexpr bool value = Same<T, f16>::value || Same<T, bf16>::value || sizeof(T) == 1;
};

// Whether one product can be enough: where the values are halves already.
template <class Body>
__device__ constexpr bool has_halves() {
    return !Body::WEIGHTED && IsHalf<typename Body::template Row<0>::T>::value && IsHalf<typename Body::template Column<0>::T>::value;
}

// Arguments of a kernel that works through a list of tiles.
template <class A>
struct Listed : A {
    const int* list;
};
template <bool SYMMETRIC, int BM, int BN, class A>
KM_DEVICE i64 count_tiles(const Listed<A>& g) {
    return g.list[0];
}
template <int BM, int BN, int GROUP, bool SYMMETRIC, class A>
KM_DEVICE Coord coord_of(const Listed<A>& g, i64 t) {
    const int4 entry = ((const int4*)(g.list + LIST_TILES))[t];
    Coord p;
    i64 batch = entry.z;
    p.m = (i64)entry.x * BLOCK;
    p.n = (i64)entry.y * BLOCK;
    p.c = batch % g.size[ROLE_C];
    batch /= g.size[ROLE_C];
    p.b = batch % g.size[ROLE_B];
    p.a = batch / g.size[ROLE_B];
    p.split = 0;
    return p;
}

// Whether the halves of an operand, weighted, differ along a batch role.
template <class Body, class P, class Args>
KM_DEVICE bool is_batched(const Args& g, int role) {
    bool batched = g.stride[P::BUFFER][role] != 0;
    each<0, Body::VECTORS>([&](auto index) {
        batched = batched || g.stride[Body::template Vector<decltype(index)::value>::BUFFER][role] != 0;
    });
    return batched;
}
template <class Body, class P, class Args>
KM_DEVICE i64 plane_of(const Args& g, const Coord& p) {
    const i64 index[3] = {p.a, p.b, p.c};
    i64 plane = 0;
#pragma unroll
    for (int role = ROLE_A; role <= ROLE_C; ++role)
        if (is_batched<Body, P>(g, role)) plane = plane * g.size[role] + index[role];
    return plane;
}
template <class Body, class P, class Args>
KM_DEVICE i64 count_planes(const Args& g) {
    i64 planes = 1;
#pragma unroll
    for (int role = ROLE_A; role <= ROLE_C; ++role)
        if (is_batched<Body, P>(g, role)) planes *= g.size[role];
    return planes;
}
// A batch entry that has this plane.
template <class Body, class P, class Args>
KM_DEVICE Coord entry_of(const Args& g, i64 plane) {
    i64 index[3] = {0, 0, 0};
#pragma unroll
    for (int role = ROLE_C; role >= ROLE_A; --role)
        if (is_batched<Body, P>(g, role)) {
            index[role] = plane % g.size[role];
            plane /= g.size[role];
        }
    return Coord{index[0], index[1], index[2], 0, 0, 0};
}

template <class P, class Args>
KM_DEVICE const typename P::T* row_of(const Args& g, const Coord& p, i64 row) {
    return (const typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p) + row * g.stride[P::BUFFER][P::TILE];
}
// COUNT neighbours along k from a multiple of COUNT on; 0 behind the end, unless all lie INSIDE.
template <class P, bool INSIDE, int COUNT, class Args>
KM_DEVICE void read_along_k(float (&to)[COUNT], const typename P::T* row, const Args& g, i64 k) {
    constexpr int VEC = P::RUN == ALONG_K && P::VEC < COUNT ? P::VEC : P::RUN == ALONG_K ? COUNT : 1;
    const i64 depth = g.size[ROLE_K], step = g.stride[P::BUFFER][ROLE_K];
    if (VEC > 1 && (INSIDE || k + COUNT <= depth)) {
#pragma unroll
        for (int i = 0; i < COUNT; i += VEC) {
            const Pack<typename P::T, VEC> pack = load_pack<typename P::T, VEC>(row + k + i);
#pragma unroll
            for (int v = 0; v < VEC; ++v) to[i + v] = convert<float>(pack.v[v]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            to[i] = INSIDE || k + i < depth ? convert<float>(load_pack<typename P::T, 1>(row + (k + i) * step).v[0]) : 0.0f;
    }
}
template <class Body, class Args>
KM_DEVICE void read_vectors(float (&to)[AtLeastOne<Body::VECTORS>::value], const Args& g, const Coord& p, i64 k) {
    each<0, Body::VECTORS>([&](auto index) {
        typedef typename Body::template Vector<decltype(index)::value> P;
        const typename P::T* from = (const typename P::T*)g.pointer[P::BUFFER] + batch_offset(g, P::BUFFER, p);
        to[decltype(index)::value] = convert<float>(load_pack<typename P::T, 1>(from + k * g.stride[P::BUFFER][ROLE_K]).v[0]);
    });
}

// Whether exponentials are multiplied, for logarithms of sums of exponentials of sums.
template <class Body>
__device__ constexpr auto takes_logarithms(int) -> decltype(Body::LOGS) {
    return Body::LOGS;
}
template <class Body>
__device__ constexpr bool takes_logarithms(...) {
    return false;
}

// One reduction by a whole warp, exactly as it is written. DEEP pieces of both rows are under way at
// once: what such a sum costs is waiting for them.
template <class Body, class Args>
KM_DEVICE typename Body::Registers directly(const Args& g, const Coord& p, i64 m, i64 n, int lane) {
    typedef typename Body::template Row<0> X;
    typedef typename Body::template Column<0> Y;
    constexpr int DEEP = 4;
    const typename X::T* x = row_of<X>(g, p, m);
    const typename Y::T* y = row_of<Y>(g, p, n);
    const i64 depth = g.size[ROLE_K];
    typename Body::Registers s;
    Body::initial(s);
    auto add = [&](const float (&a)[4], const float (&b)[4], i64 k) {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            float c[AtLeastOne<Body::VECTORS>::value];
            if ((Body::VECTORS > 0 || takes_logarithms<Body>(0)) && k + v >= depth) continue;
            read_vectors<Body>(c, g, p, k + v);
            Body::template step<EXACT>(s, a + v, b + v, c, a, g.number, k + v, 0);
        }
    };
    i64 k = 4 * lane;
#pragma unroll 1
    for (i64 end = DEEP * 128; end <= depth; end += DEEP * 128, k += DEEP * 128) {
        float a[DEEP][4], b[DEEP][4];
#pragma unroll
        for (int i = 0; i < DEEP; ++i) {
            read_along_k<X, true>(a[i], x, g, k + 128 * i);
            read_along_k<Y, true>(b[i], y, g, k + 128 * i);
        }
#pragma unroll
        for (int i = 0; i < DEEP; ++i) add(a[i], b[i], k + 128 * i);
    }
#pragma unroll 1
    for (; k < depth; k += 128) {
        float a[4], b[4];
        read_along_k<X, false>(a, x, g, k);
        read_along_k<Y, false>(b, y, g, k);
        add(a, b, k);
    }
    if constexpr (takes_logarithms<Body>(0)) {
#pragma unroll 1
        for (int gap = 16; gap > 0; gap /= 2) {
            typename Body::Registers other;
            other.r0 = __shfl_xor_sync(0xffffffffu, s.r0, gap);
            other.r1 = __shfl_xor_sync(0xffffffffu, s.r1, gap);
            Body::merge(s, other);
        }
    } else {
        s.r0 = warp_sum(s.r0);
    }
    return s;
}

}  // namespace km

// mma 64x64*64x64 f32, 3 products of scaled f16 halves, tile 1x1 warps 12/2 stages 1 lines 4
#include "kron_mma.cuh"
struct Phase0 {
    typedef km::KronFactor<true, 64, 64, 3> F;
    static constexpr int TILES = 2, FIBERS = 64, UNITS = 2, OFFSET = 0, NUMBER = 1, STRIDE = 1, EXTENT = 64, PITCH = 1, TOGETHER = 1;
    static constexpr bool FINAL = false, LOCAL = false, ROW_SWIZZLED = true;
    static __device__ __forceinline__ int item(int line) { return 0; }
    static __device__ __forceinline__ int run(int line) { return line % 64 * 64; }
    static __device__ __forceinline__ int run_out(int line) { return 0; }
    static __device__ __forceinline__ int right(int line) { return 0; }
    static __device__ __forceinline__ int tile_offset(int line) { return line % 64 * 64; }
    static __device__ __forceinline__ int swizzle(int line) { return 0; }
};
struct Phase1 {
    typedef km::KronFactor<false, 64, 64, 3> F;
    static constexpr int TILES = 2, FIBERS = 4, UNITS = 2, OFFSET = 4096, NUMBER = 0, STRIDE = 64, EXTENT = 64, PITCH = 64, TOGETHER = 2;
    static constexpr bool FINAL = true, LOCAL = false, ROW_SWIZZLED = true;
    static __device__ __forceinline__ int item(int line) { return 0; }
    static __device__ __forceinline__ int run(int line) { return 0; }
    static __device__ __forceinline__ int run_out(int line) { return 0; }
    static __device__ __forceinline__ int right(int line) { return line % 4 * 16; }
    static __device__ __forceinline__ int tile_offset(int line) { return 0; }
    static __device__ __forceinline__ int swizzle(int line) { return 0; }
};
struct Body {
    typedef float T;
    typedef km::f16 H;
    typedef float C;
    typedef float S;
    typedef km::KronArguments<2> Args;
    typedef Phase0 First;
    typedef Phase1 Final;
    static constexpr int THREADS = 384, WARPS = 12, GROUP = 2, STAGES = 1, ITEMS = 1, RIGHT = 1, PRODUCTS = 3, COPY = 16, VEC_OUT = 4, PITCH = 64, STAGE = 2048, TILE = 4104, FACTORS = 2, FACTOR_WORDS = 8192, UNROLL = 1, TABLE_WORDS = 32, OUT_PITCH = 0, OUT_STAGE = 0, VEC_RUN = 0;
    static constexpr bool ADDED = false, DENSE = false;
    static constexpr bool COALESCED = false;
    static __device__ __forceinline__ void prepare(unsigned* to, C* backs, float* tops, const Args& g) {
        Phase0::F::measure<Body, false>(tops + 0 * WARPS, g.factor_stride[1][0] < g.factor_stride[1][1],
                [&](int q, int p) { return km::kron_entry<T, C>(g, 1, q / 1, p / 1); });
        Phase1::F::measure<Body, false>(tops + 1 * WARPS, g.factor_stride[0][0] < g.factor_stride[0][1],
                [&](int q, int p) { return km::kron_entry<T, C>(g, 0, q / 1, p / 1); });
        __syncthreads();
        Phase0::F::prepare<Body, false>(to + Phase0::OFFSET, backs + Phase0::NUMBER, tops + 0 * WARPS,
                [&](int q, int p) { return km::kron_entry<T, C>(g, 1, q / 1, p / 1); });
        Phase1::F::prepare<Body, false>(to + Phase1::OFFSET, backs + Phase1::NUMBER, tops + 1 * WARPS,
                [&](int q, int p) { return km::kron_entry<T, C>(g, 0, q / 1, p / 1); });
    }
    static __device__ __forceinline__ void later(const Args& g, const km::KronTileScheduler<ITEMS, RIGHT>& p,
            S* tile, const unsigned* factors, const C* backs, int group, int warp, int lane) {
        km::KronMma<Body, Args>::later<Phase1>(g, p, tile, factors, backs, group, warp, lane);
    }
};
static_assert(km::kron_mma_shared_bytes<Body>() == 229696, "bytes of shared memory differ from the plan");
extern "C" __global__ void __launch_bounds__(384, 1)
km_kron(const void* x, const void* y, void* out, const void* f0, const void* f1, long long size_a, long long size_b, long long size_c, long long size_run, long long size_right, long long x_a, long long x_b, long long x_c, long long x_run, long long x_right, long long out_a, long long out_b, long long out_c, long long out_run, long long out_right, long long f0_row, long long f0_column, long long f1_row, long long f1_column, double alpha, double beta) {
    km::ptx::griddepcontrol_launch_dependents();
    km::ptx::griddepcontrol_wait();
    km::KronArguments<2> g;
    g.x = x;
    g.y = y;
    g.out = out;
    g.alpha = alpha;
    g.beta = beta;
    g.factor[0] = f0;
    g.factor[1] = f1;
    g.size[0] = size_a;
    g.x_stride[0] = x_a;
    g.out_stride[0] = out_a;
    g.size[1] = size_b;
    g.x_stride[1] = x_b;
    g.out_stride[1] = out_b;
    g.size[2] = size_c;
    g.x_stride[2] = x_c;
    g.out_stride[2] = out_c;
    g.size[3] = size_run;
    g.x_stride[3] = x_run;
    g.out_stride[3] = out_run;
    g.size[4] = size_right;
    g.x_stride[4] = x_right;
    g.out_stride[4] = out_right;
    g.factor_stride[0][0] = f0_row;
    g.factor_stride[0][1] = f0_column;
    g.factor_stride[0][2] = 0;
    g.factor_stride[0][3] = 0;
    g.factor_stride[0][4] = 0;
    g.factor_stride[1][0] = f1_row;
    g.factor_stride[1][1] = f1_column;
    g.factor_stride[1][2] = 0;
    g.factor_stride[1][3] = 0;
    g.factor_stride[1][4] = 0;
    km::KronMma<Body, Body::Args>::run(g);
}

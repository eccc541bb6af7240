// fma 8x8*8x8*8x8*8x8*8x8 f32 tile 1x1 threads 256 slices 4 ahead 22528 direct
#include "kron_fma.cuh"
struct Body {
    typedef float T;
    typedef float C;
    typedef km::KronArguments<5> Args;
    static constexpr int ITEMS = 1, RIGHT = 1, THREADS = 256, RUN = 32768, RUN_IN = 32768, RUN_OUT = 32768, VEC_IN = 4, VEC_OUT = 4, FACTOR_WORDS = 320, AHEAD = 22528;
    static constexpr bool ADDED = false, VARIES = false, DIRECT_IN = true, DIRECT_OUT = true, TILED = true;
    static __device__ __forceinline__ constexpr int tile_offset(int i) { return i + i / 64 * 4; }
    static __device__ __forceinline__ int spread_in(int run) { return run; }
    static __device__ __forceinline__ int spread_out(int run) { return run; }
    static __device__ __forceinline__ void factors(C* s, const Args& g, const km::KronCoord& p) {
        km::KronFactorCopy<T, 8, 8, 8, THREADS> f0;
        km::KronFactorCopy<T, 8, 8, 8, THREADS> f1;
        km::KronFactorCopy<T, 8, 8, 8, THREADS> f2;
        km::KronFactorCopy<T, 8, 8, 8, THREADS> f3;
        km::KronFactorCopy<T, 8, 8, 8, THREADS> f4;
        f0.load(g, 0, p);
        f1.load(g, 1, p);
        f2.load(g, 2, p);
        f3.load(g, 3, p);
        f4.load(g, 4, p);
        f0.store(s + 0, g, 0, p);
        f1.store(s + 64, g, 1, p);
        f2.store(s + 128, g, 2, p);
        f3.store(s + 192, g, 3, p);
        f4.store(s + 256, g, 4, p);
    }
    template <class Next>
    static __device__ __forceinline__ void phases(C* s, const C* f, const T* ahead, const Args& g,
            const km::KronCoord& p, const Next& next) {
        km::kron_phase<Body, km::KronShare<Body, 64, 512, 1, 1>, true, false>(s, ahead, g, p, [&](C (&v)[64]) {
            km::kron_apply<4, 8, 8, 8, 8, 1, 8>(v, km::SharedFactor<C>{f + 64});
            km::kron_apply<4, 1, 8, 8, 8, 8, 8>(v, km::SharedFactor<C>{f + 0});
        });
        __syncthreads();
        next();
        km::kron_phase<Body, km::KronShare<Body, 64, 1, 1, 1>, false, false>(s, ahead, g, p, [&](C (&v)[64]) {
            km::kron_apply<4, 8, 8, 8, 8, 1, 8>(v, km::SharedFactor<C>{f + 256});
            km::kron_apply<4, 1, 8, 8, 8, 8, 8>(v, km::SharedFactor<C>{f + 192});
        });
        __syncthreads();
        km::kron_phase<Body, km::KronShare<Body, 8, 64, 1, 4>, false, true>(s, ahead, g, p, [&](C (&v)[32]) {
            km::kron_apply<4, 1, 8, 8, 8, 4, 8>(v, km::SharedFactor<C>{f + 128});
        });
    }
};
static_assert(km::kron_fma_shared_bytes<Body>() == 230656, "bytes of shared memory differ from the plan");
extern "C" __global__ void __launch_bounds__(256, 1)
km_kron(const void* x, const void* y, void* out, const void* f0, const void* f1, const void* f2, const void* f3, const void* f4, long long size_a, long long size_b, long long size_c, long long size_run, long long size_right, long long x_a, long long x_b, long long x_c, long long x_run, long long x_right, long long out_a, long long out_b, long long out_c, long long out_run, long long out_right, long long f0_row, long long f0_column, long long f1_row, long long f1_column, long long f2_row, long long f2_column, long long f3_row, long long f3_column, long long f4_row, long long f4_column, double alpha, double beta) {
    km::ptx::griddepcontrol_launch_dependents();
    km::ptx::griddepcontrol_wait();
    km::KronArguments<5> g;
    g.x = x;
    g.y = y;
    g.out = out;
    g.alpha = alpha;
    g.beta = beta;
    g.factor[0] = f0;
    g.factor[1] = f1;
    g.factor[2] = f2;
    g.factor[3] = f3;
    g.factor[4] = f4;
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
    g.factor_stride[2][0] = f2_row;
    g.factor_stride[2][1] = f2_column;
    g.factor_stride[2][2] = 0;
    g.factor_stride[2][3] = 0;
    g.factor_stride[2][4] = 0;
    g.factor_stride[3][0] = f3_row;
    g.factor_stride[3][1] = f3_column;
    g.factor_stride[3][2] = 0;
    g.factor_stride[3][3] = 0;
    g.factor_stride[3][4] = 0;
    g.factor_stride[4][0] = f4_row;
    g.factor_stride[4][1] = f4_column;
    g.factor_stride[4][2] = 0;
    g.factor_stride[4][3] = 0;
    g.factor_stride[4][4] = 0;
    km::kron_fma<Body>(g);
}

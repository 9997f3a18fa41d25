/* The loops of loops.h. The Makefile compiles this file in plain C, for any processor, and with
 * LS_VEC_AVX2 and LS_VEC_AVX512; it includes loops_typed.inc once per storage type. */
#pragma GCC optimize("O3")
#if defined(LS_VEC_AVX512) /* F, BW, DQ, VL: every processor since Skylake-SP that has AVX-512 */
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define TABLE ls_loops_avx512
#define TABLE_NAME "AVX-512"
#elif defined(LS_VEC_AVX2)
#pragma GCC target("avx2,fma,f16c")
#define TABLE ls_loops_avx2
#define TABLE_NAME "AVX2"
#else
#define TABLE ls_loops_plain
#define TABLE_NAME "plain C"
#endif
#include <math.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "loops.h"
#include "vec.h"

/* Vectors that one f32 accumulator sums before it is flushed to double: keeps the error of a sum
 * near that of one rounding, at a fiftieth of the cost of adding in double. */
enum { SEGMENT = 16, STREAMS = 4 };

/* Elements from one vector of a plane to the next. */
static inline int64_t vector_step(const ls_plane *plane)
{
    LS_ASSERT(plane->step == plane->block || plane->block == LS_LANES);
    return plane->step == plane->block ? LS_LANES : plane->step;
}

/* Sums of the lanes that belong to one channel. */
static void fold_lanes(const double *lanes, const ls_plane *plane, double *channel)
{
    int lane_count = plane->blocks * LS_LANES, channels = plane->blocks * plane->block;
    for (int c = 0; c < channels; c++) {
        channel[c] = 0;
    }
    for (int lane = 0; lane < lane_count; lane++) {
        channel[lane % channels] += lanes[lane];
    }
}

/* Pixels whose second pass finds them in cache: all of a contiguous plane; of a strip, which has
 * many channels, fewer. */
static int64_t part_pixels(const ls_plane *plane, size_t element)
{
    enum { PART_BYTES = 65536 };
    int64_t row = (int64_t)element * plane->blocks * plane->block;
    return plane->blocks == 1 ? plane->pixels : PART_BYTES / row;
}

/* Mean and squared deviations of n + m pixels from those of n and of m (Chan et al., 1979). */
static void merge_parts(const ls_plane *plane, double n, double *mean, double *m2, double m,
                        const double *more, const double *more_m2)
{
    for (int c = 0; c < plane->blocks * plane->block; c++) {
        double off = more[c] - mean[c];
        mean[c] += off * m / (n + m);
        m2[c] += more_m2[c] + off * off * n * m / (n + m);
    }
}

#define LS_CONCAT_(a, b) a##_##b
#define LS_CONCAT(a, b) LS_CONCAT_(a, b)
#define NAME(base) LS_CONCAT(base, SUFFIX)

#define SUFFIX f32
#define STORED float
#define LOAD(p) vec_load_f32(p)
#define STORE(p, x) vec_store_f32(p, x)
#define ROUNDED(x) (x)
#define LOAD1(p) (*(p))
#define STORE1(p, x) (*(p) = (x))
#include "loops_typed.inc"

#define SUFFIX f16
#define STORED uint16_t
#define LOAD(p) vec_widen_f16(vhalf_load(p))
#define STORE(p, x) vhalf_store(p, vec_narrow_f16(x))
#define ROUNDED(x) vec_widen_f16(vec_narrow_f16(x))
#define LOAD1(p) ls_half_fp16_to_f32(*(p))
#define STORE1(p, x) (*(p) = ls_half_f32_to_fp16(x))
#include "loops_typed.inc"

#define SUFFIX bf16
#define STORED uint16_t
#define LOAD(p) vec_widen_bf16(vhalf_load(p))
#define STORE(p, x) vhalf_store(p, vec_narrow_bf16(x))
#define ROUNDED(x) vec_widen_bf16(vec_narrow_bf16(x))
#define LOAD1(p) ls_half_bf16_to_f32(*(p))
#define STORE1(p, x) (*(p) = ls_half_f32_to_bf16(x))
#include "loops_typed.inc"

/* TYPED(name, parameters, arguments): the function that calls name_f32, name_f16 or name_bf16. */
#define TYPED(name, parameters, ...)  \
    static void name parameters       \
    {                                 \
        if (type == LS_F32) {         \
            name##_f32(__VA_ARGS__);  \
        } else if (type == LS_F16) {  \
            name##_f16(__VA_ARGS__);  \
        } else {                      \
            name##_bf16(__VA_ARGS__); \
        }                             \
    }

TYPED(widen, (ls_dtype type, const void *from, float *to, int64_t count), from, to, count)
TYPED(narrow, (ls_dtype type, const float *from, void *to, int64_t count), from, to, count)
TYPED(round_to, (ls_dtype type, float *value, int64_t count), value, count)
TYPED(norm_stats, (ls_dtype type, const void *x, const ls_plane *plane, double *mean, double *m2),
      x, plane, mean, m2)
TYPED(norm_apply, (ls_dtype type, const ls_norm_apply *args, const ls_plane *plane), args, plane)
TYPED(norm_sums, (ls_dtype type, const ls_norm_sums *args, const ls_plane *plane), args, plane)
TYPED(norm_dx, (ls_dtype type, const ls_norm_dx *args, const ls_plane *plane), args, plane)
TYPED(add, (ls_dtype type, const void *a, const void *b, void *sum, bool relu, int64_t count), a, b,
      sum, relu, count)
TYPED(relu, (ls_dtype type, const void *x, void *y, int64_t count), x, y, count)
TYPED(relu_back, (ls_dtype type, const void *dy, const void *y, void *dx, int64_t count), dy, y, dx,
      count)
TYPED(pool, (ls_dtype type, const ls_pool_shape *shape, const void *x, void *y, uint8_t *tap),
      shape, x, y, tap)
TYPED(pool_back,
      (ls_dtype type, const ls_pool_shape *shape, const void *dy, const uint8_t *tap, void *dx),
      shape, dy, tap, dx)
TYPED(average, (ls_dtype type, const void *x, void *y, const ls_plane *plane), x, y, plane)
TYPED(average_back, (ls_dtype type, const void *dy, void *dx, const ls_plane *plane), dy, dx, plane)

const ls_loops TABLE = {
    .name = TABLE_NAME,
    .lanes = LS_LANES,
    .widen = widen,
    .narrow = narrow,
    .round = round_to,
    .norm_stats = norm_stats,
    .norm_apply = norm_apply,
    .norm_sums = norm_sums,
    .norm_dx = norm_dx,
    .add = add,
    .relu = relu,
    .relu_back = relu_back,
    .pool = pool,
    .pool_back = pool_back,
    .average = average,
    .average_back = average_back,
};

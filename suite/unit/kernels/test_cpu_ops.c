/* Single operations of the CPU backend: convolution and linear on integers, where every partial sum
 * is exact and the answer must be equal to the last bit; SyncBN over two plans against one plan of
 * both batches. */
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>

#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/conv.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/parallel.h"
#include "suite/inside/kernel.h"
#include "suite/unit/run_suite.h"

/* ---- products: integers of -4 to 4, at most 9*64*16 = 9216 products of at most 16 to a sum: exact
 * in f32, and small enough for the sums to be exact in any order
 * ------------------------------------------- */

static float small_integer(uint64_t stream, int64_t i)
{
    return (float)((int)ls_rng_below(11, stream, (uint64_t)i, 9) - 4);
}

static float odd_integer(uint64_t stream, int64_t i)
{
    return (float)(2 * (int)ls_rng_below(12, stream, (uint64_t)i, 4) + 1);
}

/* Block and index of logical NCHW elements. */
static int64_t blocked(int64_t i, int channels, int pixels, int block)
{
    int64_t p = i % pixels, c = i / pixels % channels, n = i / pixels / channels;
    return ((n * (channels / block) + c / block) * pixels + p) * block + c % block;
}

typedef struct product_case {
    int batch, in, height, width, out, kernel, stride, pad;
} product_case;

static const product_case products[] = {
    {1, 3, 9, 7, 16, 7, 2, 3},
    {3, 3, 5, 5, 24, 3, 1, 1},
    {2, 16, 7, 5, 32, 3, 2, 1},
    {3, 24, 5, 6, 24, 3, 1, 1},
    {1, 64, 3, 3, 16, 1, 1, 0},
    {2, 32, 5, 5, 64, 1, 2, 0},
    {4, 64, 1, 1, 64, 3, 1, 1},
    {2, 32, 2, 2, 32, 3, 1, 1},
    {3, 32, 2, 2, 64, 3, 2, 1},
    {3, 16, 2, 2, 48, 1, 2, 0},
    {2, 64, 1, 1, 128, 1, 1, 0},
    {1, 5, 4, 4, 7, 3, 1, 1},
    {2, 16, 4, 4, 16, 5, 1, 2},
    {2, 8, 2, 1, 8, 3, 1, 1},
    {1, 16, 1, 1, 16, 3, 2, 1},
    {3, 40, 3, 2, 16, 3, 2, 1},
    {7, 16, 8, 8, 32, 3, 1, 1},
    {5, 48, 3, 3, 32, 3, 1, 1},
    {3, 48, 2, 2, 64, 1, 1, 0},
    {3, 80, 1, 2, 64, 3, 1, 1},
    /* several tiles, units and parts of wgrad_wide.c */
    {9, 64, 6, 6, 272, 1, 1, 0},
    {9, 320, 6, 6, 16, 1, 1, 0},
    {5, 64, 8, 8, 48, 1, 1, 0},
    {3, 128, 13, 11, 16, 1, 2, 0},
    {3, 32, 7, 7, 32, 3, 1, 1},
    {2, 64, 16, 16, 32, 3, 1, 1},
    {2, 32, 14, 9, 64, 3, 2, 1},
};

enum { PRODUCTS = sizeof products / sizeof products[0] };

typedef struct wide_shape {
    ls_dnn_shape s;
    int in_block, out_block, in_pixels, out_pixels;
    int64_t in, out, weight;
} wide_shape;

static int block_for(int channels, bool last)
{
    int widest = ls_dnn_block();
    return last                               ? channels
           : channels % widest == 0           ? widest
           : widest >= 8 && channels % 8 == 0 ? 8
                                              : 1;
}

static wide_shape shape_of(const product_case *c, bool last)
{
    int height = (c->height + 2 * c->pad - c->kernel) / c->stride + 1;
    int width = (c->width + 2 * c->pad - c->kernel) / c->stride + 1;
    wide_shape w = {.s = {c->batch, c->in, c->height, c->width, c->out, height, width, c->kernel,
                          c->stride, c->pad, false},
                    .in_block = block_for(c->in, last),
                    .out_block = block_for(c->out, last),
                    .in_pixels = c->height * c->width,
                    .out_pixels = height * width};
    w.in = (int64_t)c->batch * c->in * w.in_pixels;
    w.out = (int64_t)c->batch * c->out * w.out_pixels;
    w.weight = (int64_t)c->out * c->in * c->kernel * c->kernel;
    return w;
}

/* Calls visit for each product of the convolution with the logical indices of its three parts. */
typedef void visit_product(double *const *value, int64_t in, int64_t weight, int64_t out);

static void each_product(const wide_shape *w, double *const *value, visit_product *visit)
{
    const ls_dnn_shape *s = &w->s;
    for (int64_t o = 0; o < w->out; o++) {
        int ow = (int)(o % s->out_width), oh = (int)(o / s->out_width % s->out_height);
        int64_t oc = o / w->out_pixels % s->out_channels, n = o / w->out_pixels / s->out_channels;
        for (int64_t ic = 0; ic < s->in_channels; ic++) {
            for (int tap = 0; tap < s->kernel * s->kernel; tap++) {
                int h = oh * s->stride - s->pad + tap / s->kernel;
                int x = ow * s->stride - s->pad + tap % s->kernel;
                if (h >= 0 && h < s->in_height && x >= 0 && x < s->in_width) {
                    visit(value, ((n * s->in_channels + ic) * s->in_height + h) * s->in_width + x,
                          (oc * s->in_channels + ic) * s->kernel * s->kernel + tap, o);
                }
            }
        }
    }
}

static void to_out(double *const *v, int64_t in, int64_t weight, int64_t out)
{
    v[2][out] += v[0][in] * v[1][weight];
}

static void to_in(double *const *v, int64_t in, int64_t weight, int64_t out)
{
    v[0][in] += v[2][out] * v[1][weight];
}

static void to_weight(double *const *v, int64_t in, int64_t weight, int64_t out)
{
    v[1][weight] += v[0][in] * v[2][out];
}

enum { IN, WEIGHT, OUT, PARTS };

typedef struct product_test {
    ls_backend *backend;
    const ls_backend_api *api;
    ls_conv *conv;
    wide_shape w;
    ls_dtype type;
    ls_tensor data[PARTS]; /* in and out in the layout, weight plain */
    void *packed, *scratch;
} product_test;

enum { BLOCKS, LAST, FOLDED, LAYOUTS }; /* FOLDED: channels last, gradients as matrix products */

static void product_open(product_test *t, const product_case *c, ls_dtype type, bool emulated,
                         int layout)
{
    bool last = layout != BLOCKS;
    memset(t, 0, sizeof *t);
    t->api = ls_backend_entry();
    ls_backend_options options = {
        .threads = 2, .local_ranks = 1, .emulate_half = emulated, .native_half = !emulated};
    ck_assert_int_eq(t->api->open(&options, &t->backend), LS_OK);
    t->backend->weights_way = layout == FOLDED ? "unfolded" : "";
    t->w = shape_of(c, last);
    t->type = type;
    ck_assert_int_eq(
        ls_conv_create(t->backend, "conv", &t->w.s, last ? LS_DNN_CHANNELS_LAST : t->w.in_block,
                       last ? LS_DNN_CHANNELS_LAST : t->w.out_block, type, true, &t->conv),
        LS_OK);
    int64_t count[PARTS] = {t->w.in, t->w.weight, t->w.out};
    for (int k = 0; k < PARTS; k++) {
        t->data[k] = (ls_tensor){NULL, k == WEIGHT ? LS_F32 : type, count[k]};
        ck_assert_int_eq(t->api->memory_alloc(t->backend, (int64_t)ls_tensor_bytes(&t->data[k]),
                                              "part", &t->data[k].data),
                         LS_OK);
    }
    ck_assert_int_eq(t->api->memory_alloc(t->backend, (int64_t)ls_conv_weight_bytes(t->conv),
                                          "packed", &t->packed),
                     LS_OK);
    ck_assert_int_eq(t->api->memory_alloc(t->backend, (int64_t)ls_conv_scratch_bytes(t->conv),
                                          "scratch", &t->scratch),
                     LS_OK);
    ls_conv_place(t->conv, t->packed, t->scratch);
}

static void product_close(product_test *t)
{
    for (int k = 0; k < PARTS; k++) {
        t->api->memory_free(t->backend, t->data[k].data);
    }
    t->api->memory_free(t->backend, t->packed);
    t->api->memory_free(t->backend, t->scratch);
    ls_conv_destroy(t->conv);
    t->api->close(t->backend);
}

static int64_t memory_index(const product_test *t, int part, int64_t i)
{
    const wide_shape *w = &t->w;
    return part == WEIGHT ? i
           : part == IN   ? blocked(i, w->s.in_channels, w->in_pixels, w->in_block)
                          : blocked(i, w->s.out_channels, w->out_pixels, w->out_block);
}

typedef float integer_at(uint64_t stream, int64_t i);

/* Fills two of the parts with integers, poisons the third; exact[third] is what has to come. */
static void product_fill(product_test *t, int third, double **exact, visit_product *visit,
                         integer_at *value)
{
    for (int k = 0; k < PARTS; k++) {
        exact[k] = calloc((size_t)t->data[k].count, sizeof **exact);
        ck_assert_ptr_nonnull(exact[k]);
        for (int64_t i = 0; i < t->data[k].count; i++) {
            exact[k][i] = k == third ? 0 : (double)value((uint64_t)k, i);
            ls_kernel_subject_put(&t->data[k], memory_index(t, k, i),
                                  k == third ? -777 : exact[k][i]);
        }
    }
    each_product(&t->w, exact, visit);
}

static void product_compare(product_test *t, int third, double **exact, ls_kernel_rounding type)
{
    for (int64_t i = 0; i < t->data[third].count; i++) {
        double got = ls_kernel_subject_get(&t->data[third], memory_index(t, third, i));
        double wanted = ls_kernel_interpreter_round(exact[third][i], type);
        ck_assert_msg(got == wanted, "part %d, element %lld: %g, %g wanted", third, (long long)i,
                      got, wanted);
    }
    for (int k = 0; k < PARTS; k++) {
        free(exact[k]);
    }
}

/* index: of a case in a layout. */
static void product_check(int index, ls_dtype type, bool emulated, ls_kernel_rounding round,
                          integer_at *value)
{
    product_test t;
    product_open(&t, &products[index % PRODUCTS], type, emulated, index / PRODUCTS);
    double *exact[PARTS];
    product_fill(&t, OUT, exact, to_out, value);
    ck_assert_int_eq(ls_conv_pack(t.conv, &t.data[WEIGHT]), LS_OK);
    ck_assert_int_eq(ls_conv_forward(t.conv, t.data[IN].data, t.data[OUT].data), LS_OK);
    product_compare(&t, OUT, exact, round);
    product_fill(&t, IN, exact, to_in, value);
    ck_assert_int_eq(ls_conv_backward_data(t.conv, t.data[IN].data, t.data[OUT].data), LS_OK);
    product_compare(&t, IN, exact, round);
    static const char *const ways[] = {"only", "direct", "unfolded"};
    bool has_two = strcmp(ls_conv_choice(t.conv), ways[0]) != 0;
    for (int way = has_two ? 1 : 0; way < (has_two ? 3 : 1); way++) {
        ck_assert_int_eq(ls_conv_choose(t.conv, ways[way]), LS_OK);
        ck_assert_str_eq(ls_conv_choice(t.conv), ways[way]);
        product_fill(&t, WEIGHT, exact, to_weight, value);
        ck_assert_int_eq(
            ls_conv_backward_weights(t.conv, t.data[IN].data, t.data[OUT].data, &t.data[WEIGHT]),
            LS_OK);
        product_compare(&t, WEIGHT, exact, round);
    }
    ck_assert_int_eq(ls_conv_choose(t.conv, has_two ? "only" : "direct"), LS_ERR_UNSUPPORTED);
    ck_assert_int_eq(ls_conv_choose(t.conv, "winograd"), LS_ERR_USAGE);
    product_close(&t);
}

LOOP_TEST(products_are_exact, LAYOUTS *PRODUCTS)
{
    product_check(_i, LS_F32, false, LS_KERNEL_ROUND_NONE, small_integer);
}

LOOP_TEST(half_products_round_once, LAYOUTS *PRODUCTS)
{
    for (int emulated = 0; emulated < 2; emulated++) {
        product_check(_i, LS_F16, emulated, LS_KERNEL_ROUND_F16, small_integer);
        product_check(_i, LS_BF16, emulated, LS_KERNEL_ROUND_BF16, small_integer);
    }
}

/* An infinite gradient of a corner reaches the taps that see a pixel there, and no other. */
LOOP_TEST(padding_meets_an_infinite_gradient, 3)
{
    static const product_case corner = {1, 16, 4, 4, 16, 3, 1, 1};
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    product_test t;
    product_open(&t, &corner, types[_i], true, LAST);
    for (int64_t i = 0; i < t.data[IN].count; i++) {
        ls_kernel_subject_put(&t.data[IN], i, 1);
        ls_kernel_subject_put(&t.data[OUT], i, i == 0 ? (double)INFINITY : 1);
    }
    static const char *const ways[] = {"direct", "unfolded"};
    for (int way = 0; way < 2; way++) {
        ck_assert_int_eq(ls_conv_choose(t.conv, ways[way]), LS_OK);
        ck_assert_int_eq(
            ls_conv_backward_weights(t.conv, t.data[IN].data, t.data[OUT].data, &t.data[WEIGHT]),
            LS_OK);
        for (int tap = 0; tap < 9; tap++) { /* of output channel 0 */
            double got = ls_kernel_subject_get(&t.data[WEIGHT], tap);
            bool sees = tap / 3 > 0 && tap % 3 > 0;
            ck_assert_msg(sees ? got == (double)INFINITY : got == (tap == 1 || tap == 3 ? 12 : 9),
                          "%s, tap %d: %g", ways[way], tap, got);
        }
    }
    product_close(&t);
}

/* The units that an implementation's name is for. */
TEST(names_tell_units)
{
    static const struct {
        const char *engine, *units;
    } names[] = {{"jit:avx2", NULL},
                 {"brgconv:avx512_core", NULL},
                 {"jit_bf16:avx512_core_bf16", "AVX512-BF16"},
                 {"brgconv_1x1:avx512_core_amx_bf16", "AMX"},
                 {"jit:avx512_core_amx_bf16", "AMX"},
                 {"lockstep:avx512_core_bf16", "AVX512-BF16"},
                 {"brg:avx512_core_fp16", "AVX512-FP16"},
                 {"brgconv:avx512_core_amx_fp16", "AMX-FP16"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *units = ls_dnn_units(names[i].engine);
        ck_assert(names[i].units == NULL ? units == NULL : units != NULL);
        ck_assert(units == NULL || strcmp(units, names[i].units) == 0);
    }
}

/* Sums of odd positive numbers pass 256 and 2048, above which bf16 and fp16 hold even numbers only:
 * an accumulator of either loses some. */
/* Where oneDNN has no blocks of its own for a matrix (it has on AVX-512), no pass transposes the
 * weight. */
TEST(matrices_read_the_weight_as_it_lies)
{
    const ls_dnn_shape shape = {.batch = 32, .in_channels = 512, .out_channels = 1000, .matrix = 1};
    const ls_dnn_types types = {LS_F32, LS_F32, LS_F32};
    ls_dnn *dnn = NULL;
    ck_assert_int_eq(ls_dnn_open(&dnn), LS_OK);
    for (int pass = 0; pass <= LS_DNN_BACKWARD_WEIGHTS && ls_dnn_block() < 16; pass++) {
        ls_dnn_product *product = NULL;
        ck_assert_int_eq(ls_dnn_product_create(dnn, &shape, pass, 1, 1, &types, &product), LS_OK);
        ck_assert_msg(ls_dnn_product_about(product)->weight_is_plain, "pass %d", pass);
        ls_dnn_product_destroy(product);
    }
    ls_dnn_close(dnn);
}

/* oneDNN's own reorder of a weight, f32 as it lies, to a layout. */
static void reorder(const ls_dnn_shape *s, ls_dtype type, dnnl_format_tag_t tag, float *plain,
                    void *packed)
{
    int rank = s->matrix ? 2 : 4;
    const dnnl_dims_t dims = {s->out_channels, s->in_channels, s->kernel, s->kernel};
    dnnl_format_tag_t tags[2] = {s->matrix ? dnnl_oi : dnnl_oihw, tag};
    dnnl_data_type_t types[2] = {dnnl_f32, type == LS_BF16 ? dnnl_bf16 : dnnl_f32};
    void *data[2] = {plain, packed};
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_memory_t memory[2];
    ck_assert_int_eq(dnnl_engine_create(&engine, dnnl_cpu, 0), dnnl_success);
    ck_assert_int_eq(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), dnnl_success);
#if DNNL_VERSION_MAJOR >= 3
    dnnl_memory_desc_t at[2];
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(dnnl_memory_desc_create_with_tag(&at[k], rank, dims, types[k], tags[k]),
                         dnnl_success);
    }
#else
    dnnl_memory_desc_t of[2], *at[2] = {&of[0], &of[1]};
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(dnnl_memory_desc_init_by_tag(at[k], rank, dims, types[k], tags[k]),
                         dnnl_success);
    }
#endif
    for (int k = 0; k < 2; k++) {
        ck_assert_int_eq(dnnl_memory_create(&memory[k], at[k], engine, data[k]), dnnl_success);
    }
    ck_assert_int_eq(dnnl_reorder_primitive_desc_create(&desc, at[0], engine, at[1], engine, NULL),
                     dnnl_success);
    ck_assert_int_eq(dnnl_primitive_create(&primitive, desc), dnnl_success);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, memory[0]}, {DNNL_ARG_TO, memory[1]}};
    ck_assert_int_eq(dnnl_primitive_execute(primitive, stream, 2, args), dnnl_success);
    ck_assert_int_eq(dnnl_stream_wait(stream), dnnl_success);
}

enum { ROW = 192, COLUMN = 64, TAPS = 9, WEIGHTS = ROW * COLUMN * TAPS };

static const struct {
    dnnl_format_tag_t tag;
    ls_dtype type;
    bool matrix;
    ls_dnn_order order;
} weight_layouts[] = {
    {dnnl_OIhw8i16o2i, LS_BF16, false, LS_DNN_PAIRS_IN},
    {dnnl_OIhw8i64o2i, LS_BF16, false, LS_DNN_PAIRS_IN},
    {dnnl_OIhw16i16o2i, LS_BF16, false, LS_DNN_PAIRS_IN},
    {dnnl_OIhw16i48o2i, LS_BF16, false, LS_DNN_PAIRS_IN},
    {dnnl_OIhw16i64o2i, LS_BF16, false, LS_DNN_PAIRS_IN},
    {dnnl_OIhw8o16i2o, LS_BF16, false, LS_DNN_PAIRS_OUT},
    {dnnl_IOhw8o16i2o, LS_BF16, false, LS_DNN_PAIRS_OUT},
    {dnnl_OIhw16o16i2o, LS_BF16, false, LS_DNN_PAIRS_OUT},
    {dnnl_BA16a64b2a, LS_BF16, true, LS_DNN_PAIRS_OUT},
    {dnnl_OI8i64o2i, LS_BF16, true, LS_DNN_PAIRS_IN},
    {dnnl_OI16i64o2i, LS_BF16, true, LS_DNN_PAIRS_IN},
    {dnnl_OIhw16i16o, LS_F32, false, LS_DNN_OUT},
    {dnnl_OIhw16i64o, LS_F32, false, LS_DNN_OUT},
    {dnnl_OIhw16o16i, LS_F32, false, LS_DNN_IN},
    {dnnl_IOhw16o16i, LS_F32, false, LS_DNN_IN},
    {dnnl_OI16i64o, LS_F32, true, LS_DNN_OUT},
    {dnnl_OIhw8i8o, LS_F32, false, LS_DNN_OTHER},
    {dnnl_OIhw4i16o4i, LS_BF16, false, LS_DNN_OTHER},
    {dnnl_hwio, LS_F32, false, LS_DNN_OTHER},
};

enum { WEIGHT_LAYOUTS = sizeof weight_layouts / sizeof weight_layouts[0] };

static ls_dnn_shape weight_shape(int row)
{
    bool matrix = weight_layouts[row].matrix;
    return (ls_dnn_shape){
        .in_channels = COLUMN, .out_channels = ROW, .kernel = matrix ? 1 : 3, .matrix = matrix};
}

static float packed_value(ls_dtype type, const void *packed, int64_t at)
{
    return type == LS_F32 ? ((const float *)packed)[at]
                          : ls_half_bf16_to_f32(((const uint16_t *)packed)[at]);
}

/* Each value lies where the layout says: in oneDNN's own reorder. */
LOOP_TEST(weights_lie_where_oneDNN_puts_them, WEIGHT_LAYOUTS)
{
    static float plain[WEIGHTS], packed[WEIGHTS];
    ls_dnn_shape s = weight_shape(_i);
    ls_dtype type = weight_layouts[_i].type;
    ls_dnn_layout l;
    ck_assert_int_eq(ls_dnn_layout_of_tag(&s, type, (int)weight_layouts[_i].tag, &l), LS_OK);
    ck_assert_int_eq(l.order, weight_layouts[_i].order);
    if (l.order == LS_DNN_OTHER) {
        return;
    }
    int taps = s.kernel * s.kernel;
    for (int k = 0; k < ROW * COLUMN * taps; k++) {
        plain[k] = ls_half_bf16_to_f32((uint16_t)(0x3f80 + k % 15991)); /* exact in bf16 */
    }
    reorder(&s, type, weight_layouts[_i].tag, plain, packed);
    for (int k = 0; k < ROW * COLUMN * taps; k++) {
        int tap = k % taps, i = k / taps % COLUMN, o = k / taps / COLUMN;
        int near_o = o % 16, near_i = i % 16;
        int64_t at = ls_dnn_side_at(&l.out, o / 16) + ls_dnn_side_at(&l.in, i / 16) + tap * l.tap;
        at += l.order == LS_DNN_PAIRS_IN    ? 2 * near_o + near_i % 2 + near_i / 2 * l.step
              : l.order == LS_DNN_PAIRS_OUT ? 2 * near_i + near_o % 2 + near_o / 2 * l.step
              : l.order == LS_DNN_OUT       ? near_o + near_i * l.step
                                            : near_i + near_o * l.step;
        ck_assert_msg(packed_value(type, packed, at) == plain[k], "(%d, %d, %d)", o, i, tap);
    }
}

/* A 3x3 convolution of padding 1 on images of 2x2 pixels, as the matrix that has ROW rows. */
enum { SIDE = 2, PIXELS = SIDE * SIDE, MATRIX_OUT = ROW / PIXELS, MATRIX_IN = COLUMN / PIXELS };

static int channel_of(int element, int block)
{
    return element / (PIXELS * block) * block + element % block;
}

static void expand(const ls_pack_weight *w, float *matrix)
{
    for (int k = 0; k < ROW * COLUMN; k++) {
        int row = k / COLUMN, column = k % COLUMN;
        int out = row / w->out_block % PIXELS, in = column / w->in_block % PIXELS;
        int tap = w->tap_between[out * PIXELS + in];
        int o = channel_of(row, w->out_block), i = channel_of(column, w->in_block);
        matrix[k] = tap < 0 ? 0 : ((const float *)w->plain)[(o * MATRIX_IN + i) * TAPS + tap];
    }
}

/* Packs by this project's code, into zeros, and by oneDNN's reorder of `plain`: bit for bit. */
static void packs_as_oneDNN(int row, const ls_dnn_layout *l, const ls_pack_weight *w, float *plain)
{
    static _Alignas(64) float wanted[WEIGHTS], packed[WEIGHTS];
    ls_dnn_shape s = weight_shape(row);
    ls_dtype type = weight_layouts[row].type;
    ls_pack_target target[2] = {{l, packed}, {l, NULL}};
    memset(packed, 0, sizeof packed);
    ck_assert(ls_pack_takes(w, l, type != LS_BF16) && !ls_pack_takes(w, l, type == LS_BF16));
    ls_pack_run(w, target, 2);
    reorder(&s, type, weight_layouts[row].tag, plain, wanted);
    ck_assert_mem_eq(packed, wanted,
                     (size_t)(ROW * COLUMN * s.kernel * s.kernel) * ls_dtype_bytes(type));
}

/* On a processor that the packing is for; blocks of 16 channels, or all of them. */
LOOP_TEST(packing_is_oneDNNs_reorder, WEIGHT_LAYOUTS)
{
    static float plain[WEIGHTS], matrix[WEIGHTS];
    ls_dnn_shape s = weight_shape(_i);
    ls_dnn_layout l;
    ck_assert_int_eq(
        ls_dnn_layout_of_tag(&s, weight_layouts[_i].type, (int)weight_layouts[_i].tag, &l), LS_OK);
    if (ls_dnn_block() < 16 || l.order == LS_DNN_OTHER) {
        return;
    }
    for (int k = 0; k < WEIGHTS; k++) {
        plain[k] = 1 + (float)(k * 7919LL % 65537) * 0x1p-16f;
    }
    ls_pack_weight w = {.plain = plain, .type = LS_F32, .rounded = LS_F32, .taps = TAPS};
    if (!s.matrix) {
        w.out_channels = ROW;
        w.in_channels = COLUMN;
        packs_as_oneDNN(_i, &l, &w, plain);
        return;
    }
    int8_t tap_between[PIXELS * PIXELS];
    for (int k = 0; k < PIXELS * PIXELS; k++) {
        int out = k / PIXELS, in = k % PIXELS;
        tap_between[k] = (int8_t)((in / SIDE - out / SIDE + 1) * 3 + in % SIDE - out % SIDE + 1);
    }
    tap_between[1] = -1;
    w.out_channels = MATRIX_OUT;
    w.in_channels = MATRIX_IN;
    w.out_pixels = w.in_pixels = PIXELS;
    w.tap_between = tap_between;
    for (int last = 0; last < 2; last++) {
        w.out_block = last ? MATRIX_OUT : 16;
        w.in_block = last ? MATRIX_IN : 16;
        expand(&w, matrix);
        packs_as_oneDNN(_i, &l, &w, matrix);
    }
}

LOOP_TEST(half_products_accumulate_in_f32, 2 * PRODUCTS)
{
    for (int emulated = 0; emulated < 2; emulated++) {
        product_check(_i, LS_F16, emulated, LS_KERNEL_ROUND_F16, odd_integer);
        product_check(_i, LS_BF16, emulated, LS_KERNEL_ROUND_BF16, odd_integer);
    }
}

/* fp16 keeps subnormals, as operand and as result: 2^-24 times 4, summed over 16 channels. */
TEST(fp16_products_keep_subnormals)
{
    product_case one = {2, 16, 5, 5, 16, 1, 1, 0};
    for (int emulated = 0; emulated < 2; emulated++) {
        product_test t;
        product_open(&t, &one, LS_F16, emulated, false);
        float *weight = t.data[WEIGHT].data;
        for (int64_t i = 0; i < t.data[WEIGHT].count; i++) {
            weight[i] = 4.0f;
        }
        for (int64_t i = 0; i < t.data[IN].count; i++) {
            ls_kernel_subject_put(&t.data[IN], i, 0x1p-24);
        }
        ck_assert_int_eq(ls_conv_pack(t.conv, &t.data[WEIGHT]), LS_OK);
        ck_assert_int_eq(ls_conv_forward(t.conv, t.data[IN].data, t.data[OUT].data), LS_OK);
        for (int64_t i = 0; i < t.data[OUT].count; i++) {
            ck_assert(ls_kernel_subject_get(&t.data[OUT], i) == 0x1p-18);
        }
        product_close(&t);
    }
}

/* A weight that the half type cannot hold is rounded before it is multiplied, not after. */
LOOP_TEST(weights_round_before_the_product, 2)
{
    product_case one = {1, 16, 4, 4, 16, 1, 1, 0};
    product_test t;
    product_open(&t, &one, LS_BF16, false, _i == 1);
    float *weight = t.data[WEIGHT].data;
    for (int64_t i = 0; i < t.data[WEIGHT].count; i++) {
        weight[i] = i % 16 == 0 ? 1.0f + 0x1p-9f : 0.0f; /* rounds to 1 in bf16 */
    }
    for (int64_t i = 0; i < t.data[IN].count; i++) {
        ls_kernel_subject_put(&t.data[IN], memory_index(&t, IN, i), 0x1.fep8);
    }
    ck_assert_int_eq(ls_conv_pack(t.conv, &t.data[WEIGHT]), LS_OK);
    ck_assert_int_eq(ls_conv_forward(t.conv, t.data[IN].data, t.data[OUT].data), LS_OK);
    for (int64_t i = 0; i < t.data[OUT].count; i++) {
        ck_assert(ls_kernel_subject_get(&t.data[OUT], i) == 0x1.fep8);
    }
    product_close(&t);
}

/* ---- SyncBN: two ranks, each a plan with half of the batch, on threads of their own ---------- */

typedef struct meeting {
    pthread_barrier_t barrier;
    const float *mine[2];
} meeting;

typedef struct member {
    meeting *place;
    int rank;
    ls_kernel_subject s;
} member;

static ls_status gather(void *context, ls_stream *stream, const float *mine, float *all,
                        int64_t count)
{
    (void)stream;
    member *m = context;
    m->place->mine[m->rank] = mine;
    pthread_barrier_wait(&m->place->barrier);
    for (int r = 0; r < 2; r++) {
        memcpy(all + r * count, m->place->mine[r], (size_t)count * sizeof *all);
    }
    pthread_barrier_wait(&m->place->barrier);
    return LS_OK;
}

static void *member_step(void *context)
{
    member *m = context;
    return ls_kernel_subject_step(&m->s) == LS_OK ? NULL : m;
}

LOOP_TEST(sync_norm_is_one_batch, 2)
{
    if (_i == 1) {
        setenv("LS_CPU_LAYOUT", "channels_last", 1);
    }
    ls_kernel_net n;
    ls_kernel_net_start(&n);
    int x = ls_kernel_net_relu(&n, ls_kernel_net_norm(&n, ls_kernel_net_conv(&n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_block(&n, x, 32, 2, 0);
    ls_kernel_net_finish(&n, x, 5);
    ls_kernel_subject whole;
    ls_kernel_subject_options o = {
        .device = "cpu", .batch = 6, .height = 9, .width = 9, .threads = 1};
    ck_assert_int_eq(ls_kernel_subject_make(&n, &o, &whole), LS_OK);
    ck_assert_int_eq(ls_kernel_subject_step(&whole), LS_OK);
    o.batch = 3;
    meeting place;
    pthread_barrier_init(&place.barrier, NULL, 2);
    member m[2];
    ls_norm_sync sync[2];
    for (int r = 0; r < 2; r++) {
        m[r].place = &place;
        m[r].rank = r;
        sync[r] = (ls_norm_sync){2, &m[r], gather};
        o.norm_sync = &sync[r];
        ck_assert_int_eq(ls_kernel_subject_make(&n, &o, &m[r].s), LS_OK);
        memcpy(m[r].s.input, whole.input + r * 3 * 3 * 81, 3 * 3 * 81 * sizeof(float));
        memcpy(m[r].s.target, whole.target + 3 * r, 3 * sizeof(int64_t));
    }
    pthread_t thread[2];
    for (int r = 0; r < 2; r++) {
        pthread_create(&thread[r], NULL, member_step, &m[r]);
    }
    for (int r = 0; r < 2; r++) {
        void *failed;
        pthread_join(thread[r], &failed);
        ck_assert_ptr_null(failed);
    }
    for (int b = 0; b < n.network.buffer_count; b++) {
        for (int64_t i = 0; i < m[0].s.buffer[b].count; i++) {
            double one = ls_kernel_subject_get(&m[0].s.buffer[b], i),
                   all = ls_kernel_subject_get(&whole.buffer[b], i);
            ck_assert(one == ls_kernel_subject_get(&m[1].s.buffer[b],
                                                   i)); /* the same bits on every rank */
            ck_assert(fabs(one - all) <= 160 * 0x1p-24 * (fabs(all) + 1));
        }
    }
    double difference = 0, size = 0;
    for (int p = 0; p < n.network.param_count; p++) {
        for (int64_t i = 0; i < whole.grad[p].count; i++) {
            double mean = (ls_kernel_subject_get(&m[0].s.grad[p], i) +
                           ls_kernel_subject_get(&m[1].s.grad[p], i)) /
                          2;
            double all = ls_kernel_subject_get(&whole.grad[p], i);
            difference += (mean - all) * (mean - all);
            size += all * all;
        }
    }
    /* both are f32 through eight layers with their own order of sums; local statistics give 0.1 and
     * more */
    ck_assert_msg(sqrt(difference / size) <= 160 * 0x1p-24, "%g", sqrt(difference / size));
    for (int r = 0; r < 2; r++) {
        ls_kernel_subject_free(&m[r].s);
    }
    ls_kernel_subject_free(&whole);
    pthread_barrier_destroy(&place.barrier);
}

/* Each element to its place in the other block size, of 4 and of 2 bytes, all channels as one block
 * included, and nothing behind the last one. */
TEST(blocks_are_changed)
{
    enum { IMAGES = 2, CHANNELS = 48, PIXELS = 5, COUNT = IMAGES * CHANNELS * PIXELS };
    enum { BLOCKS = 4, TOTAL = COUNT + CHANNELS * PIXELS };
    static const int blocks[BLOCKS] = {1, 8, 16, CHANNELS};
    static uint32_t from[TOTAL], to[TOTAL];
    static uint16_t short_from[TOTAL], short_to[TOTAL];
    for (int i = 0; i < TOTAL; i++) {
        from[i] = short_from[i] = (uint16_t)(i + 1);
    }
    for (int k = 0; k < BLOCKS * BLOCKS; k++) {
        ls_backend backend = {.threads = 1 + k % 2};
        int before = blocks[k % BLOCKS], after = blocks[k / BLOCKS];
        memset(to, 0, sizeof to);
        memset(short_to, 0, sizeof short_to);
        ls_parallel_reblock(&backend, 4, from, before, to, after, IMAGES, CHANNELS, PIXELS);
        ls_parallel_reblock(&backend, 2, short_from, before, short_to, after, IMAGES, CHANNELS,
                            PIXELS);
        for (int64_t i = 0; i < COUNT; i++) {
            int64_t at = blocked(i, CHANNELS, PIXELS, after);
            ck_assert_uint_eq(to[at], from[blocked(i, CHANNELS, PIXELS, before)]);
            ck_assert_uint_eq(short_to[at], from[blocked(i, CHANNELS, PIXELS, before)]);
        }
        for (int64_t i = COUNT; i < TOTAL; i++) {
            ck_assert(to[i] == 0 && short_to[i] == 0);
        }
    }
}

/* ---- whole tensors -----------------------------------------------------------------------------
 */

enum { WHOLE_MOST = 40000, WHOLE_GUARD = 64 };

static void put(ls_dtype type, void *to, int64_t i, float value)
{
    ls_tensor tensor = {to, type, WHOLE_MOST};
    ls_kernel_subject_put(&tensor, i, (double)value);
}

static float got(ls_dtype type, const void *from, int64_t i)
{
    ls_tensor tensor = {(void *)(uintptr_t)from, type, WHOLE_MOST};
    return (float)ls_kernel_subject_get(&tensor, i);
}

/* `have` holds `want` and, behind it, what lay there. */
static void check_whole(const char *what, const void *have, const void *want, size_t bytes)
{
    char guard[WHOLE_GUARD];
    memset(guard, 0x5a, sizeof guard);
    ck_assert_msg(memcmp(have, want, bytes) == 0, "%s of %zu bytes", what, bytes);
    ck_assert_msg(memcmp((const char *)have + bytes, guard, sizeof guard) == 0,
                  "%s of %zu bytes: behind them", what, bytes);
}

/* Every element once, on either side of the stretches that threads share. */
LOOP_TEST(whole_tensors, 3)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    static const int64_t counts[] = {0, 1, 16383, 16384, 16385, 32769, WHOLE_MOST};
    static float wide[WHOLE_MOST + WHOLE_GUARD], want_wide[WHOLE_MOST];
    static float a[WHOLE_MOST], b[WHOLE_MOST], have[WHOLE_MOST + WHOLE_GUARD], want[WHOLE_MOST];
    static float source[WHOLE_MOST];
    ls_dtype type = types[_i];
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        int64_t count = counts[k];
        size_t bytes = (size_t)count * ls_dtype_bytes(type), wide_bytes = (size_t)count * 4;
        ls_backend backend = {.threads = 1 + (int)(k % 3), .loops = &ls_loops_plain};
        for (int64_t i = 0; i < count; i++) {
            source[i] = (float)(i * 37 % 2001 - 1000) * 0.37f;
            put(type, a, i, source[i]);
            put(type, b, i, (float)(i * 53 % 1999 - 900) * 0.11f);
            want_wide[i] = got(type, a, i);
        }
        memset(wide, 0x5a, sizeof wide);
        ls_parallel_widen(&backend, type, a, wide, count);
        check_whole("widen", wide, want_wide, wide_bytes);
        memset(have, 0x5a, sizeof have);
        ls_parallel_narrow(&backend, type, source, have, count);
        check_whole("narrow", have, a, bytes);
        memset(have, 0x5a, sizeof have);
        ls_parallel_store(&backend, LS_F32, source, &(ls_tensor){have, type, count});
        check_whole("store", have, a, bytes);
        memset(wide, 0x5a, sizeof wide);
        memcpy(wide, source, wide_bytes);
        ls_parallel_round(&backend, type, wide, count);
        check_whole("round", wide, want_wide, wide_bytes);
        memcpy(wide, source, wide_bytes);
        ls_parallel_store(&backend, type, wide, &(ls_tensor){wide, LS_F32, count});
        check_whole("store rounded, where it lies", wide, want_wide, wide_bytes);
        for (int relu = 0; relu < 2; relu++) {
            for (int64_t i = 0; i < count; i++) {
                float sum = got(type, a, i) + got(type, b, i);
                put(type, want, i, relu != 0 && !(sum > 0) ? 0 : sum);
            }
            memset(have, 0x5a, sizeof have);
            ls_parallel_add(&backend, type, a, b, have, relu != 0, count);
            check_whole("add", have, want, bytes);
        }
        for (int64_t i = 0; i < count; i++) {
            put(type, want, i, got(type, a, i) > 0 ? got(type, a, i) : 0);
        }
        memset(have, 0x5a, sizeof have);
        ls_parallel_relu(&backend, type, a, have, count);
        check_whole("relu", have, want, bytes);
        for (int64_t i = 0; i < count; i++) {
            put(type, want, i, got(type, b, i) > 0 ? got(type, a, i) : 0);
        }
        memset(have, 0x5a, sizeof have);
        ls_parallel_relu_back(&backend, type, a, b, have, count);
        check_whole("relu_back", have, want, bytes);
    }
}

TEST_MAIN("cpu ops", .timeout_s = 60)

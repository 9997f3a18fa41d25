#include "conv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/arena.h"
#include "kernels/core/text.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "matrix.h"
#include "pack.h"
#include "parallel.h"
#include "unfold.h"
#include "wgrad.h"

typedef struct conv_pass {
    ls_dnn_product *product; /* NULL: the pass is not needed */
    ls_dtype type;           /* of its operands: the activations' own, or f32 */
    int in_block, out_block; /* the layouts that the product requires */
    void *packed;            /* weight in the product's layout; NULL for the weight gradient */
} conv_pass;

/* The ways of the gradient of weights. */
static const char direct[] = "direct", unfolded[] = "unfolded", only[] = "only";

/* Behind the passes of dnn.h: the gradient of weights as a product with the unfolded input. */
enum { UNFOLDED = LS_DNN_BACKWARD_WEIGHTS + 1, PASSES };

struct ls_conv {
    ls_backend *backend;
    ls_dnn_shape shape;    /* the layer's shape in the network */
    ls_matrix_map map;     /* only if `matrix` */
    bool matrix;           /* runs as one matrix product over whole images */
    bool own_weights;      /* wgrad.h computes the gradient of the weights */
    bool own_wide_weights; /* wgrad_wide.h does */
    bool own_pack;         /* pack.h writes the packed weights, all in bf16 or in f32 */
    int in_block, out_block;
    ls_dtype type;
    conv_pass pass[PASSES];
    bool unfolds; /* pass[UNFOLDED] takes the place of LS_DNN_BACKWARD_WEIGHTS */
    int folds; /* pass[LS_DNN_BACKWARD_DATA] is a matrix product of so many images; 0: it is not */
    ls_dnn_layout folded; /* of its weight, in the convolution's terms */
    size_t packed_offset[2];
    ls_arena weights;
    char *scratch;
};

static int64_t in_pixels(const ls_conv *conv)
{
    return conv->shape.matrix ? 1 : (int64_t)conv->shape.in_height * conv->shape.in_width;
}

static int64_t out_pixels(const ls_conv *conv)
{
    return conv->shape.matrix ? 1 : (int64_t)conv->shape.out_height * conv->shape.out_width;
}

static int64_t in_count(const ls_conv *conv)
{
    return conv->shape.batch * conv->shape.in_channels * in_pixels(conv);
}

static int64_t out_count(const ls_conv *conv)
{
    return conv->shape.batch * conv->shape.out_channels * out_pixels(conv);
}

/* Channels that lie together in a layout of dnn.h. */
static int stored_block(int block, int channels)
{
    return block == LS_DNN_CHANNELS_LAST ? channels : block;
}

static int64_t weight_count(const ls_conv *conv)
{
    const ls_dnn_shape *s = &conv->shape;
    int64_t taps = s->matrix ? 1 : (int64_t)s->kernel * s->kernel;
    return taps * s->out_channels * s->in_channels;
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* A pass on operands as they are stored, on the processor's units for their type. */
static ls_status native_create(ls_conv *conv, ls_dnn_pass which, const ls_dnn_shape *shape)
{
    conv_pass *pass = &conv->pass[which];
    ls_dnn_types types = {conv->type, conv->type, conv->type};
    if (which == LS_DNN_BACKWARD_WEIGHTS) {
        types.weight = LS_F32; /* rounded after the sum over all images */
    } else if (which == LS_DNN_FORWARD && conv->shape.matrix) {
        types.out = LS_F32; /* ls_conv_forward_wide */
    }
    bool matrix = shape->matrix;
    pass->type = conv->type;
    pass->in_block = conv->in_block;
    pass->out_block = conv->out_block;
    ls_status status =
        ls_dnn_product_create(conv->backend->dnn, shape, which, matrix ? 1 : conv->in_block,
                              matrix ? 1 : conv->out_block, &types, &pass->product);
    if (status == LS_ERR_UNSUPPORTED && conv->type == LS_F16 && !matrix &&
        pass->in_block != LS_DNN_CHANNELS_LAST) {
        pass->in_block = pass->out_block = LS_DNN_CHANNELS_LAST;
        status = ls_dnn_product_create(conv->backend->dnn, shape, which, LS_DNN_CHANNELS_LAST,
                                       LS_DNN_CHANNELS_LAST, &types, &pass->product);
    }
    return status;
}

static ls_status pass_create(ls_conv *conv, ls_dnn_pass which)
{
    static const ls_dnn_types f32 = {LS_F32, LS_F32, LS_F32};
    conv_pass *pass = &conv->pass[which];
    struct ls_dnn *dnn = conv->backend->dnn;
    ls_dnn_shape s = conv->shape;
    if (conv->matrix) {
        s = (ls_dnn_shape){.batch = conv->shape.batch,
                           .in_channels = conv->map.columns,
                           .out_channels = conv->map.rows,
                           .matrix = true};
    }
    ls_status status = LS_ERR_UNSUPPORTED;
    if (ls_backend_is_native(conv->backend, conv->type)) {
        status = native_create(conv, which, &s);
        if (status != LS_ERR_UNSUPPORTED) {
            return status;
        }
    }
    pass->type = LS_F32;
    if (conv->matrix) {
        pass->in_block = conv->in_block;
        pass->out_block = conv->out_block;
        return ls_dnn_product_create(dnn, &s, which, 1, 1, &f32, &pass->product);
    }
    const int choice[][2] = {
        {conv->in_block, conv->out_block}, {1, conv->out_block}, {conv->in_block, 1}, {1, 1}};
    for (size_t i = 0; i < sizeof choice / sizeof choice[0] && status == LS_ERR_UNSUPPORTED; i++) {
        pass->in_block = choice[i][0];
        pass->out_block = choice[i][1];
        status = ls_dnn_product_create(dnn, &s, which, pass->in_block, pass->out_block, &f32,
                                       &pass->product);
    }
    return status;
}

/* The code of wgrad.h is for exactly these units; oneDNN's for AMX, in channels last, is faster. */
static bool has_avx512_bf16(const ls_conv *conv)
{
    const char *units = conv->type == LS_BF16 ? conv->backend->units_bf16 : NULL;
    return units != NULL && strcmp(units, "AVX512-BF16") == 0;
}

/* The unfolded input is of moderate size, or is the input. */
static bool can_unfold(const ls_conv *conv)
{
    enum { PIXELS_MAX = 256 };
    const ls_dnn_shape *s = &conv->shape;
    return conv->in_block == LS_DNN_CHANNELS_LAST && conv->out_block == LS_DNN_CHANNELS_LAST &&
           !s->matrix && (s->kernel == 1 || out_pixels(conv) <= PIXELS_MAX);
}

/* Unless LS_CPU_WEIGHTS says which, and without a measurement: on AMX the product is the faster one
 * where unfolding is paid by enough output channels (results/machines/xeon-amx-2core).
 */
static bool unfolds_unasked(const ls_conv *conv)
{
    enum { CHANNELS_ENOUGH = 128 };
    const ls_dnn_shape *s = &conv->shape;
    if (conv->backend->weights_way[0] != '\0') {
        return strcmp(conv->backend->weights_way, unfolded) == 0;
    }
    const char *units = ls_dnn_units(ls_dnn_product_about(conv->pass[UNFOLDED].product)->engine);
    return units != NULL && strncmp(units, "AMX", 3) == 0 &&
           (s->kernel == 1 || s->out_channels >= CHANNELS_ENOUGH);
}

static ls_status unfolded_create(ls_conv *conv)
{
    const ls_dnn_shape *s = &conv->shape;
    conv_pass *pass = &conv->pass[UNFOLDED];
    *pass =
        (conv_pass){.type = ls_backend_is_native(conv->backend, conv->type) ? conv->type : LS_F32,
                    .in_block = LS_DNN_CHANNELS_LAST,
                    .out_block = LS_DNN_CHANNELS_LAST};
    ls_status status = ls_dnn_outer_create(conv->backend->dnn, s->out_channels,
                                           s->in_channels * s->kernel * s->kernel,
                                           s->batch * out_pixels(conv), pass->type, &pass->product);
    conv->unfolds = status == LS_OK && unfolds_unasked(conv);
    return status == LS_ERR_UNSUPPORTED ? LS_OK : status;
}

/* The folded product's layout has the convolution's output channels as inputs, and its input
 * channels, tap by tap, as outputs. */
static ls_dnn_layout folded_layout(const ls_conv *conv, const ls_dnn_layout *product)
{
    static const ls_dnn_order turned[] = {[LS_DNN_OTHER] = LS_DNN_OTHER,
                                          [LS_DNN_PAIRS_IN] = LS_DNN_PAIRS_OUT,
                                          [LS_DNN_PAIRS_OUT] = LS_DNN_PAIRS_IN,
                                          [LS_DNN_OUT] = LS_DNN_IN,
                                          [LS_DNN_IN] = LS_DNN_OUT};
    enum { BLOCK = 16 };
    int blocks = conv->shape.in_channels / BLOCK;
    ls_dnn_layout l = {.order = turned[product->order],
                       .step = product->step,
                       .out = product->in,
                       .in = product->out};
    if (l.order == LS_DNN_OTHER || conv->shape.in_channels % BLOCK != 0 ||
        blocks % l.in.many != 0) {
        return (ls_dnn_layout){.order = LS_DNN_OTHER};
    }
    l.tap = blocks / l.in.many * l.in.far;
    return l;
}

/* Images for which one product has rows enough to be paid for reading the weight: a divisor of the
 * batch. */
static int folded_images(const ls_conv *conv)
{
    enum { ROWS_ENOUGH = 512 };
    int batch = conv->shape.batch, images = 1;
    while (images < batch && (batch % images != 0 || images * out_pixels(conv) < ROWS_ENOUGH)) {
        images++;
    }
    return images;
}

/* Where oneDNN's own code for data gradients reaches a part of the units' rate only: strides, 1x1
 * kernels and images of few pixels (results/machines/xeon-amx-2core). */
static bool folding_pays(const ls_dnn_shape *s)
{
    enum { PIXELS_FEW = 64 };
    return s->stride > 1 || s->kernel == 1 || s->out_height * s->out_width < PIXELS_FEW;
}

/* Whether the input is its own unfolding. */
static bool is_dense(const ls_conv *conv)
{
    return conv->shape.kernel == 1 && conv->shape.stride == 1 && conv->shape.pad == 0;
}

/* Whether the product writes the data gradient itself. */
static bool folds_nothing(const ls_conv *conv)
{
    return is_dense(conv) && conv->pass[LS_DNN_BACKWARD_DATA].type == conv->type;
}

/* The data gradient as a product of the output's gradient with all taps, folded, where that is
 * faster: on AMX. LS_ERR_UNSUPPORTED where it is not taken. */
static ls_status folded_create(ls_conv *conv)
{
    const ls_dnn_shape *s = &conv->shape;
    const char *way = conv->backend->weights_way;
    bool native = ls_backend_is_native(conv->backend, conv->type);
    bool asked = strcmp(way, unfolded) == 0;
    if (conv->in_block != LS_DNN_CHANNELS_LAST || conv->out_block != LS_DNN_CHANNELS_LAST ||
        s->matrix || conv->matrix || !folding_pays(s) || strcmp(way, direct) == 0 ||
        !(asked || native)) {
        return LS_ERR_UNSUPPORTED;
    }
    conv_pass *pass = &conv->pass[LS_DNN_BACKWARD_DATA];
    pass->type = native ? conv->type : LS_F32;
    int images = folds_nothing(conv) ? s->batch : folded_images(conv);
    ls_dnn_shape rows = {.batch = images * (int)out_pixels(conv),
                         .in_channels = s->out_channels,
                         .out_channels = s->kernel * s->kernel * s->in_channels,
                         .matrix = true};
    ls_dnn_types types = {pass->type, pass->type, folds_nothing(conv) ? pass->type : LS_F32};
    LS_TRY(ls_dnn_product_create(conv->backend->dnn, &rows, LS_DNN_FORWARD, 1, 1, &types,
                                 &pass->product));
    const ls_dnn_product_info *about = ls_dnn_product_about(pass->product);
    const char *units = ls_dnn_units(about->engine);
    if (!asked && (units == NULL || strncmp(units, "AMX", 3) != 0)) {
        ls_dnn_product_destroy(pass->product);
        pass->product = NULL;
        return LS_ERR_UNSUPPORTED;
    }
    pass->in_block = pass->out_block = LS_DNN_CHANNELS_LAST;
    conv->folds = images;
    conv->folded = folded_layout(conv, &about->layout);
    return LS_OK;
}

static ls_status passes_create(ls_conv *conv, bool data_gradient)
{
    LS_TRY(pass_create(conv, LS_DNN_FORWARD));
    if (data_gradient) {
        ls_status status = folded_create(conv);
        LS_TRY(status == LS_ERR_UNSUPPORTED ? pass_create(conv, LS_DNN_BACKWARD_DATA) : status);
    }
    conv->own_weights =
        has_avx512_bf16(conv) && ls_wgrad_takes(&conv->shape, conv->in_block, conv->out_block);
    conv->own_wide_weights = !ls_backend_is_native(conv->backend, conv->type) &&
                             conv->backend->isa == LS_ISA_AVX512 &&
                             ls_wgrad_wide_takes(&conv->shape, conv->type, conv->in_block,
                                                 conv->out_block, conv->backend->threads);
    if (conv->own_weights || conv->own_wide_weights) {
        return LS_OK;
    }
    LS_TRY(pass_create(conv, LS_DNN_BACKWARD_WEIGHTS));
    return can_unfold(conv) ? unfolded_create(conv) : LS_OK;
}

static size_t own_scratch_bytes(const ls_conv *conv)
{
    return conv->own_weights ? ls_wgrad_scratch_bytes(&conv->shape)
           : conv->own_wide_weights
               ? ls_wgrad_wide_scratch_bytes(&conv->shape, conv->type, conv->backend->threads)
               : 0;
}

static bool owns_weights(const ls_conv *conv)
{
    return conv->own_weights || conv->own_wide_weights;
}

static void run_own_weights(ls_conv *conv, const void *in, const void *out_grad,
                            const ls_tensor *grad, void *scratch)
{
    if (conv->own_weights) {
        ls_wgrad_run(&conv->shape, in, out_grad, grad, scratch, conv->backend->threads);
    } else {
        ls_wgrad_wide_run(&conv->shape, conv->type, in, out_grad, grad, scratch,
                          conv->backend->threads);
    }
}

static const ls_dnn_layout *layout_of(const ls_conv *conv, ls_dnn_pass which)
{
    return which == LS_DNN_BACKWARD_DATA && conv->folds > 0
               ? &conv->folded
               : &ls_dnn_product_about(conv->pass[which].product)->layout;
}

static bool same_side(const ls_dnn_side *a, const ls_dnn_side *b)
{
    return a->many == b->many && a->near == b->near && a->far == b->far;
}

/* Whether both passes read the weight in one layout, of which one copy is enough. */
static bool shares_weight(const ls_conv *conv)
{
    const conv_pass *pass = conv->pass;
    if (pass[LS_DNN_BACKWARD_DATA].product == NULL || conv->folds > 0) {
        return false;
    }
    bool plain = ls_dnn_product_about(pass[LS_DNN_FORWARD].product)->weight_is_plain &&
                 ls_dnn_product_about(pass[LS_DNN_BACKWARD_DATA].product)->weight_is_plain;
    const ls_dnn_layout *a = layout_of(conv, LS_DNN_FORWARD);
    const ls_dnn_layout *b = layout_of(conv, LS_DNN_BACKWARD_DATA);
    return plain || (a->order != LS_DNN_OTHER && a->order == b->order && a->step == b->step &&
                     a->tap == b->tap && same_side(&a->out, &b->out) && same_side(&a->in, &b->in));
}

static ls_pack_weight pack_weight(const ls_conv *conv, const void *plain, ls_dtype type)
{
    const ls_dnn_shape *s = &conv->shape;
    return (ls_pack_weight){.plain = plain,
                            .type = type,
                            .rounded = conv->type,
                            .out_channels = s->out_channels,
                            .in_channels = s->in_channels,
                            .taps = s->kernel * s->kernel,
                            .out_pixels = (int)out_pixels(conv),
                            .in_pixels = (int)in_pixels(conv),
                            .out_block = conv->map.out_block,
                            .in_block = conv->map.in_block,
                            .tap_between = conv->matrix ? conv->map.tap_between : NULL};
}

static bool can_pack(const ls_conv *conv, bool wide)
{
    ls_pack_weight weight = pack_weight(conv, NULL, LS_BF16);
    bool blocks = !conv->matrix || (conv->map.in_block % 16 == 0 && conv->map.out_block % 16 == 0);
    if (conv->backend->isa != LS_ISA_AVX512 || conv->shape.matrix || !blocks) {
        return false;
    }
    bool data = conv->pass[LS_DNN_BACKWARD_DATA].product != NULL;
    return ls_pack_takes(&weight, layout_of(conv, LS_DNN_FORWARD), wide) &&
           (!data || ls_pack_takes(&weight, layout_of(conv, LS_DNN_BACKWARD_DATA), wide));
}

ls_status ls_conv_create(ls_backend *backend, const char *name, const ls_dnn_shape *shape,
                         int in_block, int out_block, ls_dtype type, bool data_gradient,
                         ls_conv **out)
{
    ls_conv *conv = calloc(1, sizeof *conv);
    LS_TRY_MEMORY(conv != NULL, "layer %s", name);
    conv->backend = backend;
    conv->shape = *shape;
    conv->in_block = in_block;
    conv->out_block = out_block;
    conv->type = type;
    conv->matrix = ls_matrix_pays(shape);
    if (conv->matrix) {
        conv->map = ls_matrix_make(shape, stored_block(in_block, shape->in_channels),
                                   stored_block(out_block, shape->out_channels));
    }
    ls_status status = passes_create(conv, data_gradient);
    if (status != LS_OK) {
        if (status == LS_ERR_UNSUPPORTED) {
            ls_log_error("layer %s (%d -> %d channels, kernel %d): oneDNN has only reference code "
                         "for it on this machine",
                         name, shape->in_channels, shape->out_channels, shape->kernel);
        }
        ls_conv_destroy(conv);
        return status;
    }
    conv->own_pack = can_pack(conv, false) || can_pack(conv, true);
    for (int which = 0; which < 2; which++) {
        if (conv->pass[which].product != NULL) {
            conv->packed_offset[which] =
                which == LS_DNN_BACKWARD_DATA && shares_weight(conv)
                    ? conv->packed_offset[LS_DNN_FORWARD]
                    : ls_arena_reserve(
                          &conv->weights,
                          ls_dnn_product_about(conv->pass[which].product)->weight_bytes);
        }
    }
    *out = conv;
    return LS_OK;
}

void ls_conv_destroy(ls_conv *conv)
{
    if (conv == NULL) {
        return;
    }
    for (int which = 0; which < PASSES; which++) {
        ls_dnn_product_destroy(conv->pass[which].product);
    }
    free(conv);
}

size_t ls_conv_weight_bytes(const ls_conv *conv)
{
    return conv->weights.bytes;
}

/* ---- scratch: carved afresh by each pass, in the same order as here -------------------------- */

static void *scratch_take(const ls_conv *conv, ls_arena *used, size_t bytes)
{
    size_t offset = ls_arena_reserve(used, bytes);
    return conv->scratch + offset;
}

static size_t unfolded_bytes(const ls_conv *conv)
{
    const ls_dnn_shape *s = &conv->shape;
    size_t columns = (size_t)(s->kernel * s->kernel) * (size_t)s->in_channels;
    return is_dense(conv) ? 0
                          : (size_t)(s->batch * out_pixels(conv)) * columns *
                                ls_dtype_bytes(conv->pass[UNFOLDED].type);
}

/* One output channel's weights for each thread: ls_unfold_store. */
static size_t tap_rows_bytes(const ls_conv *conv)
{
    const ls_dnn_shape *s = &conv->shape;
    return (size_t)conv->backend->threads * (size_t)(s->kernel * s->kernel) *
           (size_t)s->in_channels * sizeof(float);
}

/* Of the products of one run, before they are folded. */
static size_t folded_bytes(const ls_conv *conv)
{
    const ls_dnn_shape *s = &conv->shape;
    return folds_nothing(conv)
               ? 0
               : (size_t)(conv->folds * out_pixels(conv)) * (size_t)(s->kernel * s->kernel) *
                     (size_t)s->in_channels * sizeof(float);
}

size_t ls_conv_scratch_bytes(const ls_conv *conv)
{
    size_t f32 = sizeof(float), most = 0;
    size_t plain = (size_t)weight_count(conv) * f32;
    size_t matrix = conv->matrix ? (size_t)conv->map.rows * (size_t)conv->map.columns * f32 : 0;
    for (int which = 0; which < PASSES; which++) {
        const conv_pass *pass = &conv->pass[which];
        if (pass->product == NULL) {
            continue;
        }
        ls_arena used = {0};
        size_t in = (size_t)in_count(conv) * f32, out = (size_t)out_count(conv) * f32;
        bool half = conv->type != pass->type;
        ls_arena_reserve(&used, half ? in : 0);
        ls_arena_reserve(&used, pass->in_block != conv->in_block ? in : 0);
        ls_arena_reserve(&used, half ? out : 0);
        ls_arena_reserve(&used, pass->out_block != conv->out_block ? out : 0);
        ls_arena_reserve(&used, ls_dnn_product_about(pass->product)->scratch_bytes);
        ls_arena_reserve(&used, plain);
        ls_arena_reserve(&used, matrix);
        ls_arena_reserve(&used, ls_dnn_product_about(pass->product)->weight_bytes);
        ls_arena_reserve(&used, which == UNFOLDED ? unfolded_bytes(conv) : 0);
        ls_arena_reserve(&used, which == UNFOLDED ? tap_rows_bytes(conv) : 0);
        bool folded = which == LS_DNN_BACKWARD_DATA && conv->folds > 0;
        ls_arena_reserve(&used, folded ? folded_bytes(conv) : 0);
        ls_arena_reserve(&used, folded ? plain : 0); /* ls_conv_pack */
        most = used.bytes > most ? used.bytes : most;
    }
    ls_arena own = {0}; /* wgrad.h's, and a gradient: ls_conv_product_only */
    ls_arena_reserve(&own, own_scratch_bytes(conv));
    ls_arena_reserve(&own, owns_weights(conv) ? plain : 0);
    return own.bytes > most ? own.bytes : most;
}

void ls_conv_place(ls_conv *conv, void *memory, void *scratch)
{
    conv->weights.base = memory;
    conv->scratch = scratch;
    for (int which = 0; which < 2; which++) {
        if (conv->pass[which].product != NULL) {
            conv->pass[which].packed = ls_arena_at(&conv->weights, conv->packed_offset[which]);
        }
    }
}

/* The pass that runs for `which`. */
static const conv_pass *pass_of(const ls_conv *conv, ls_dnn_pass which)
{
    return &conv->pass[which == LS_DNN_BACKWARD_WEIGHTS && conv->unfolds ? UNFOLDED : (int)which];
}

void ls_conv_describe_pass(const ls_conv *conv, ls_dnn_pass which, char *text, size_t bytes)
{
    const conv_pass *pass = pass_of(conv, which);
    if (pass->product == NULL) {
        snprintf(text, bytes, "lockstep:%s",
                 conv->own_weights      ? "avx512_core_bf16"
                 : conv->type == LS_F32 ? "avx512_core"
                                        : "avx512_core in f32");
        return;
    }
    bool reordered = pass->in_block != conv->in_block || pass->out_block != conv->out_block;
    bool last = reordered && pass->in_block == LS_DNN_CHANNELS_LAST;
    snprintf(text, bytes, "%s%s%s", ls_dnn_product_about(pass->product)->engine,
             pass->type == conv->type ? "" : " in f32",
             pass == &conv->pass[UNFOLDED]                      ? " (unfolded)"
             : which == LS_DNN_BACKWARD_DATA && conv->folds > 0 ? " (folded)"
             : last                                             ? " (reordered to channels last)"
             : reordered                                        ? " (reordered to plain)"
                                                                : "");
}

const char *ls_conv_units(const ls_conv *conv, ls_dnn_pass which)
{
    const conv_pass *pass = pass_of(conv, which);
    bool own = which == LS_DNN_BACKWARD_WEIGHTS && owns_weights(conv);
    if (pass->product == NULL && !own) {
        return NULL;
    }
    if (own ? conv->own_wide_weights : pass->type == LS_F32) {
        return "f32";
    }
    char text[128];
    ls_conv_describe_pass(conv, which, text, sizeof text);
    const char *units = ls_dnn_units(text);
    return units != NULL ? units : "";
}

void ls_conv_describe(const ls_conv *conv, char *text, size_t bytes)
{
    static const char *const label[3] = {"forward", "data", "weights"};
    char line[3][128] = {""};
    bool alike = true;
    for (int which = 0; which < 3; which++) {
        if (conv->pass[which].product != NULL ||
            (which == LS_DNN_BACKWARD_WEIGHTS && owns_weights(conv))) {
            ls_conv_describe_pass(conv, (ls_dnn_pass)which, line[which], sizeof line[which]);
            alike = alike && strcmp(line[which], line[0]) == 0;
        }
    }
    text[0] = '\0';
    if (conv->matrix) {
        ls_text_put(text, bytes, "matrix %dx%d: ", conv->map.rows, conv->map.columns);
    }
    for (int which = 0; which < (alike ? 1 : 3); which++) {
        if (line[which][0] != '\0') {
            ls_text_add(text, bytes, "%s%s%s%s", which > 0 ? ", " : "", alike ? "" : label[which],
                        alike ? "" : " ", line[which]);
        }
    }
}

/* ---- running --------------------------------------------------------------------------------- */

/* One activation operand of a pass: in the tensor's layout and in the product's. */
typedef struct operand {
    void *wide;    /* in the pass's type and the tensor's block; the tensor itself if it has both */
    void *product; /* in the product's block; equal to `wide` if the blocks are equal */
    bool converted;
    int block, product_block, channels, pixels;
    size_t element; /* bytes */
    int64_t count;
} operand;

static operand operand_take(const ls_conv *conv, ls_arena *used, const void *data, bool is_in,
                            const conv_pass *pass)
{
    int channels = is_in ? conv->shape.in_channels : conv->shape.out_channels;
    operand o = {.converted = conv->type != pass->type,
                 .block = stored_block(is_in ? conv->in_block : conv->out_block, channels),
                 .product_block = stored_block(is_in ? pass->in_block : pass->out_block, channels),
                 .channels = channels,
                 .pixels = (int)(is_in ? in_pixels(conv) : out_pixels(conv)),
                 .element = ls_dtype_bytes(pass->type),
                 .count = is_in ? in_count(conv) : out_count(conv)};
    size_t bytes = (size_t)o.count * sizeof(float);
    o.wide = o.converted ? scratch_take(conv, used, bytes) : (void *)(uintptr_t)data;
    o.product = o.block == o.product_block ? o.wide : scratch_take(conv, used, bytes);
    return o;
}

static void operand_load(const ls_conv *conv, const operand *o, const void *data)
{
    if (o->converted) {
        ls_parallel_widen(conv->backend, conv->type, data, o->wide, o->count);
    }
    if (o->product != o->wide) {
        ls_parallel_reblock(conv->backend, o->element, o->wide, o->block, o->product,
                            o->product_block, conv->shape.batch, o->channels, o->pixels);
    }
}

static void operand_store(const ls_conv *conv, const operand *o, void *data)
{
    if (o->product != o->wide) {
        ls_parallel_reblock(conv->backend, o->element, o->product, o->product_block, o->wide,
                            o->block, conv->shape.batch, o->channels, o->pixels);
    }
    if (o->converted) {
        ls_parallel_narrow(conv->backend, conv->type, o->wide, data, o->count);
    }
}

/* Both passes' weights, without a copy between. */
static void pack_directly(ls_conv *conv, const ls_tensor *weight)
{
    ls_pack_weight plain = pack_weight(conv, weight->data, weight->dtype);
    ls_pack_target target[2] = {{layout_of(conv, LS_DNN_FORWARD), NULL}};
    for (int which = 0; which < 2; which++) {
        const conv_pass *pass = &conv->pass[which];
        bool shared = which == LS_DNN_BACKWARD_DATA && shares_weight(conv);
        if (pass->product != NULL && !shared &&
            !LS_PLANT(data_weight_stale, false,
                      which == LS_DNN_BACKWARD_DATA && ls_plant_now > 0)) {
            target[which] = (ls_pack_target){layout_of(conv, (ls_dnn_pass)which), pass->packed};
        }
    }
    ls_pack_run(&plain, target, conv->backend->threads);
}

ls_status ls_conv_pack(ls_conv *conv, const ls_tensor *weight)
{
    ls_arena used = {0};
    int64_t count = weight_count(conv);
    LS_ASSERT(weight->count == count);
    if (conv->own_pack && !LS_PLANT(tf32_products, false, true)) {
        pack_directly(conv, weight);
        return LS_OK;
    }
    const float *plain = weight->data;
    if (weight->dtype != LS_F32 || conv->type != LS_F32 || LS_PLANT(tf32_products, false, true)) {
        float *copy = scratch_take(conv, &used, (size_t)count * sizeof *copy);
        ls_parallel_widen(conv->backend, weight->dtype, weight->data, copy, count);
        ls_parallel_round(conv->backend, LS_PLANT(tf32_products, conv->type, LS_F16), copy, count);
        plain = copy;
    }
    if (conv->matrix) {
        size_t cells = (size_t)conv->map.rows * (size_t)conv->map.columns;
        const conv_pass *forward = &conv->pass[LS_DNN_FORWARD];
        float *matrix = ls_dnn_product_about(forward->product)->weight_is_plain
                            ? forward->packed
                            : scratch_take(conv, &used, cells * sizeof *matrix);
        ls_matrix_expand(conv->backend, &conv->map, plain, matrix);
        plain = matrix;
        count = (int64_t)cells;
    }
    for (int which = 0; which < 2; which++) {
        conv_pass *pass = &conv->pass[which];
        if (pass->product == NULL || (which == LS_DNN_BACKWARD_DATA && shares_weight(conv)) ||
            pass->packed == plain ||
            LS_PLANT(data_weight_stale, false, which == LS_DNN_BACKWARD_DATA && ls_plant_now > 0) ||
            LS_PLANT(last_data_weight_stale, false,
                     which == LS_DNN_BACKWARD_DATA && ls_plant_now > 0)) {
            continue;
        }
        const float *from = plain;
        if (which == LS_DNN_BACKWARD_DATA && conv->folds > 0) {
            float *turned = scratch_take(conv, &used, (size_t)count * sizeof *turned);
            ls_unfold_turn(conv->backend, &conv->shape, plain, turned);
            from = turned;
        }
        if (ls_dnn_product_about(pass->product)->weight_is_plain) {
            ls_parallel_widen(conv->backend, LS_F32, from, pass->packed, count);
        } else {
            LS_TRY(ls_dnn_product_reorder(pass->product, from, pass->packed));
        }
    }
    return LS_OK;
}

/* The forward or the data pass: reads one of `in` and `out` and writes the other. */
static ls_status run_pass(ls_conv *conv, ls_dnn_pass which, void *in, void *out)
{
    conv_pass *pass = &conv->pass[which];
    bool forward = which == LS_DNN_FORWARD;
    LS_ASSERT(pass->product != NULL);
    LS_ASSERT(!forward || !conv->shape.matrix || pass->type == LS_F32); /* it is wide */
    ls_arena used = {0};
    operand at_in = operand_take(conv, &used, in, true, pass);
    operand at_out = operand_take(conv, &used, out, false, pass);
    void *scratch = scratch_take(conv, &used, ls_dnn_product_about(pass->product)->scratch_bytes);
    operand_load(conv, forward ? &at_in : &at_out, forward ? in : out);
    LS_TRY(ls_dnn_product_run(pass->product, at_in.product, pass->packed, at_out.product, scratch));
    operand_store(conv, forward ? &at_out : &at_in, forward ? out : in);
    if (LS_PLANT(product_tail_at_16, false, conv->type != LS_F32 && conv->shape.batch >= 16)) {
        enum { TAIL = 8 * 2 }; /* eight values in half are not written */
        int64_t count = forward ? at_out.count : at_in.count;
        memset((char *)(forward ? out : in) + count * 2 - TAIL, 0, TAIL);
    }
    return LS_OK;
}

ls_status ls_conv_forward(ls_conv *conv, const void *in, void *out)
{
    return run_pass(conv, LS_DNN_FORWARD, (void *)(uintptr_t)in, out);
}

ls_status ls_conv_forward_wide(ls_conv *conv, const void *in, float *out)
{
    conv_pass *pass = &conv->pass[LS_DNN_FORWARD];
    LS_ASSERT(pass->out_block == conv->out_block);
    ls_arena used = {0};
    operand from = operand_take(conv, &used, in, true, pass);
    void *scratch = scratch_take(conv, &used, ls_dnn_product_about(pass->product)->scratch_bytes);
    operand_load(conv, &from, in);
    return ls_dnn_product_run(pass->product, from.product, pass->packed, out, scratch);
}

/* in, out: of the convolution's type, channels last. */
static ls_status run_folded(ls_conv *conv, void *in, const void *out)
{
    const conv_pass *pass = &conv->pass[LS_DNN_BACKWARD_DATA];
    ls_arena used = {0};
    operand from = operand_take(conv, &used, out, false, pass);
    void *scratch = scratch_take(conv, &used, ls_dnn_product_about(pass->product)->scratch_bytes);
    float *rows = scratch_take(conv, &used, folded_bytes(conv));
    size_t in_bytes =
        (size_t)in_pixels(conv) * (size_t)conv->shape.in_channels * ls_dtype_bytes(conv->type);
    size_t out_bytes = (size_t)from.pixels * (size_t)from.channels * from.element;
    operand_load(conv, &from, out);
    if (folds_nothing(conv)) {
        return ls_dnn_product_run(pass->product, from.product, pass->packed, in, scratch);
    }
    for (int image = 0; image < conv->shape.batch; image += conv->folds) {
        LS_TRY(ls_dnn_product_run(pass->product, (char *)from.product + (size_t)image * out_bytes,
                                  pass->packed, rows, scratch));
        ls_unfold_back(conv->backend, &conv->shape, conv->folds, rows, conv->type,
                       (char *)in + (size_t)image * in_bytes);
    }
    return LS_OK;
}

ls_status ls_conv_backward_data(ls_conv *conv, void *in_grad, const void *out_grad)
{
    if (conv->folds > 0) {
        return run_folded(conv, in_grad, out_grad);
    }
    return run_pass(conv, LS_DNN_BACKWARD_DATA, in_grad, (void *)(uintptr_t)out_grad);
}

/* The product with the unfolded input: sums[out][tap][in]. in, out_grad: as the pass takes them. */
static ls_status run_unfolded(ls_conv *conv, ls_arena *used, void *in, void *out_grad, float *sums)
{
    const conv_pass *pass = &conv->pass[UNFOLDED];
    void *scratch = scratch_take(conv, used, ls_dnn_product_about(pass->product)->scratch_bytes);
    void *rows = is_dense(conv) ? in : scratch_take(conv, used, unfolded_bytes(conv));
    if (rows != in) {
        ls_unfold(conv->backend, &conv->shape, in, rows, ls_dtype_bytes(pass->type));
    }
    return ls_dnn_product_run(pass->product, rows, sums, out_grad, scratch);
}

static ls_status backward_weights_unfolded(ls_conv *conv, const void *in, const void *out_grad,
                                           const ls_tensor *grad)
{
    const conv_pass *pass = &conv->pass[UNFOLDED];
    size_t bytes = (size_t)weight_count(conv) * sizeof(float);
    ls_arena used = {0};
    operand from = operand_take(conv, &used, in, true, pass);
    operand to = operand_take(conv, &used, out_grad, false, pass);
    float *sums = scratch_take(conv, &used, bytes);
    operand_load(conv, &from, in);
    operand_load(conv, &to, out_grad);
    LS_TRY(run_unfolded(conv, &used, from.product, to.product, sums));
    if (conv->shape.kernel > 1) {
        ls_unfold_store(conv->backend, &conv->shape, conv->type, sums,
                        scratch_take(conv, &used, tap_rows_bytes(conv)), grad);
    } else {
        ls_parallel_store(conv->backend, conv->type, sums, grad);
    }
    return LS_OK;
}

ls_status ls_conv_backward_weights(ls_conv *conv, const void *in, const void *out_grad,
                                   const ls_tensor *grad)
{
    conv_pass *pass = &conv->pass[LS_DNN_BACKWARD_WEIGHTS];
    int64_t count = weight_count(conv);
    LS_ASSERT(grad->count == count);
    if (owns_weights(conv)) {
        run_own_weights(conv, in, out_grad, grad, conv->scratch);
        return LS_OK;
    }
    /* zeros of the padding times an infinite gradient would be NaN, where direct code has nothing
     */
    if (conv->unfolds &&
        (conv->shape.pad == 0 ||
         ls_parallel_is_finite(conv->backend, conv->type, out_grad, out_count(conv)))) {
        return backward_weights_unfolded(conv, in, out_grad, grad);
    }
    ls_arena used = {0};
    operand from = operand_take(conv, &used, in, true, pass);
    operand to = operand_take(conv, &used, out_grad, false, pass);
    void *scratch = scratch_take(conv, &used, ls_dnn_product_about(pass->product)->scratch_bytes);
    bool direct = grad->dtype == LS_F32 && conv->type == LS_F32;
    float *plain = direct ? grad->data : scratch_take(conv, &used, (size_t)count * sizeof *plain);
    float *dense = plain; /* the product's result as a plain matrix or kernel */
    if (conv->matrix) {
        size_t cells = (size_t)conv->map.rows * (size_t)conv->map.columns;
        dense = scratch_take(conv, &used, cells * sizeof *dense);
    }
    bool packed = !ls_dnn_product_about(pass->product)->weight_is_plain;
    float *result =
        packed ? scratch_take(conv, &used, ls_dnn_product_about(pass->product)->weight_bytes)
               : dense;
    operand_load(conv, &from, in);
    operand_load(conv, &to, out_grad);
    LS_TRY(ls_dnn_product_run(pass->product, from.product, result, to.product, scratch));
    if (packed) {
        LS_TRY(ls_dnn_product_reorder(pass->product, dense, result));
    }
    if (conv->matrix) {
        ls_matrix_fold(conv->backend, &conv->map, dense, plain);
    }
    for (int64_t i = 0; LS_PLANT(large_half_gradients, false,
                                 conv->type != LS_F32 && conv->shape.in_channels >= 1024) &&
                        i < count;
         i++) {
        plain[i] *= 1.1f;
    }
    ls_parallel_store(conv->backend, conv->type, plain, grad);
    return LS_OK;
}

bool ls_conv_is_direct(const ls_conv *conv)
{
    bool direct = true;
    for (int which = 0; which < 3; which++) {
        direct =
            direct && (conv->pass[which].product == NULL || conv->pass[which].type == conv->type);
    }
    return direct;
}

ls_status ls_conv_product_only(ls_conv *conv, ls_dnn_pass which, void *in, void *out)
{
    if (which == LS_DNN_BACKWARD_WEIGHTS && owns_weights(conv)) {
        ls_tensor grad = {.dtype = conv->type, .count = weight_count(conv)};
        ls_arena used = {0};
        void *scratch = scratch_take(conv, &used, own_scratch_bytes(conv));
        grad.data = scratch_take(conv, &used, ls_tensor_bytes(&grad));
        run_own_weights(conv, in, out, &grad, scratch);
        return LS_OK;
    }
    const conv_pass *pass = pass_of(conv, which);
    LS_ASSERT(pass->type == conv->type);
    if (which == LS_DNN_BACKWARD_DATA && conv->folds > 0) {
        return run_folded(conv, in, out);
    }
    ls_arena used = {0};
    operand from = operand_take(conv, &used, in, true, pass);
    operand to = operand_take(conv, &used, out, false, pass);
    if (pass == &conv->pass[UNFOLDED]) {
        float *sums = scratch_take(conv, &used, (size_t)weight_count(conv) * sizeof *sums);
        return run_unfolded(conv, &used, from.product, to.product, sums);
    }
    void *scratch = scratch_take(conv, &used, ls_dnn_product_about(pass->product)->scratch_bytes);
    void *weight =
        which == LS_DNN_BACKWARD_WEIGHTS
            ? scratch_take(conv, &used, ls_dnn_product_about(pass->product)->weight_bytes)
            : pass->packed;
    return ls_dnn_product_run(pass->product, from.product, weight, to.product, scratch);
}

/* ---- the way of the gradient of weights ------------------------------------------------------ */

const char *ls_conv_choice(const ls_conv *conv)
{
    return conv->pass[UNFOLDED].product == NULL ? only : conv->unfolds ? unfolded : direct;
}

ls_status ls_conv_choose(ls_conv *conv, const char *choice)
{
    bool has_two = conv->pass[UNFOLDED].product != NULL;
    bool first = strcmp(choice, direct) == 0, second = strcmp(choice, unfolded) == 0;
    if (!first && !second && strcmp(choice, only) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "the way '%s' of a gradient: it is %s, %s or %s", choice,
                           direct, unfolded, only);
    }
    if (has_two != (first || second)) {
        return ls_log_fail(LS_ERR_UNSUPPORTED, "the way '%s' of a gradient: here it is %s", choice,
                           has_two ? "direct or unfolded" : only);
    }
    conv->unfolds = second;
    return LS_OK;
}

/* The shortest of a few runs of backward_weights, after one that is not timed. */
static ls_status time_weights(ls_conv *conv, void *in, void *out, const ls_tensor *grad, double *ms)
{
    enum { RUNS = 5 };
    *ms = 1e30;
    for (int i = 0; i <= RUNS; i++) {
        int64_t begin_ns = ls_clock_ns();
        LS_TRY(ls_conv_backward_weights(conv, in, out, grad));
        double taken_ms = ls_clock_ms_between(begin_ns, ls_clock_ns());
        *ms = i > 0 && taken_ms < *ms ? taken_ms : *ms;
    }
    return LS_OK;
}

ls_status ls_conv_benchmark(ls_conv *conv)
{
    if (conv->pass[UNFOLDED].product == NULL) {
        return LS_OK;
    }
    size_t element = ls_dtype_bytes(conv->type), scratch_bytes = ls_conv_scratch_bytes(conv);
    ls_arena all = {0};
    size_t in = ls_arena_reserve(&all, (size_t)in_count(conv) * element);
    size_t out = ls_arena_reserve(&all, (size_t)out_count(conv) * element);
    size_t plain = ls_arena_reserve(&all, (size_t)weight_count(conv) * sizeof(float));
    size_t scratch = ls_arena_reserve(&all, scratch_bytes);
    void *memory = NULL;
    LS_TRY(ls_memory_take((int64_t)all.bytes, "timing the gradients of weights", &memory));
    all.base = memory;
    memset(memory, 0x3c, all.bytes); /* values near 0.01 or 1; zeroed memory may be one page */
    ls_tensor grad = {ls_arena_at(&all, plain), LS_F32, weight_count(conv)};
    conv->scratch = ls_arena_at(&all, scratch);
    double ms[2] = {0};
    ls_status status = LS_OK;
    for (int way = 0; way < 2 && status == LS_OK; way++) {
        conv->unfolds = way == 1;
        status = time_weights(conv, ls_arena_at(&all, in), ls_arena_at(&all, out), &grad, &ms[way]);
    }
    conv->unfolds = ms[1] < ms[0];
    conv->scratch = NULL;
    ls_memory_give(memory);
    return status;
}

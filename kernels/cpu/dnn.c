#include "dnn.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

#define LS_DNNL(call)                                                                      \
    do {                                                                                   \
        dnnl_status_t ls_dnnl_status_ = (call);                                            \
        if (ls_dnnl_status_ != dnnl_success) {                                             \
            ls_log_error("oneDNN: %s failed with status %d", #call, (int)ls_dnnl_status_); \
            return LS_ERR_INFRA;                                                           \
        }                                                                                  \
    } while (0)

static dnnl_data_type_t type_of(ls_dtype type)
{
    return type == LS_F16 ? dnnl_f16 : type == LS_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* oneDNN's description of a layout: steps of blocks in each dimension, then what is in a block,
 * from the outermost level to the innermost: `size` values of dimension `of`. */
typedef struct blocking {
    dnnl_dims_t step, size, of;
    int levels;
} blocking;

/* ---- what differs between 2.x and 3.x -------------------------------------------------------- */

#if DNNL_VERSION_MAJOR >= 3

typedef const_dnnl_memory_desc_t desc_ref; /* borrowed */
typedef dnnl_memory_desc_t desc_own;

static bool blocking_of(desc_ref desc, blocking *b)
{
    dnnl_format_kind_t kind = dnnl_format_kind_undef;
    dnnl_dims_t *step = NULL, *size = NULL, *of = NULL;
    bool known =
        dnnl_memory_desc_query(desc, dnnl_query_format_kind, &kind) == dnnl_success &&
        kind == dnnl_blocked &&
        dnnl_memory_desc_query(desc, dnnl_query_strides, &step) == dnnl_success &&
        dnnl_memory_desc_query(desc, dnnl_query_inner_nblks_s32, &b->levels) == dnnl_success &&
        dnnl_memory_desc_query(desc, dnnl_query_inner_blks, &size) == dnnl_success &&
        dnnl_memory_desc_query(desc, dnnl_query_inner_idxs, &of) == dnnl_success;
    if (known) {
        memcpy(b->step, *step, sizeof b->step);
        memcpy(b->size, *size, sizeof b->size);
        memcpy(b->of, *of, sizeof b->of);
    }
    return known;
}

static dnnl_status_t desc_create(desc_own *out, int rank, const dnnl_dims_t dims, ls_dtype type,
                                 dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(out, rank, dims, type_of(type), tag);
}

static void desc_destroy(desc_own desc)
{
    if (desc != NULL) {
        dnnl_memory_desc_destroy(desc);
    }
}

static dnnl_status_t conv_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      ls_dnn_pass pass, desc_ref in, desc_ref weight, desc_ref out_,
                                      const dnnl_dims_t stride, const dnnl_dims_t pad,
                                      const_dnnl_primitive_desc_t hint,
                                      const_dnnl_primitive_attr_t attr)
{
    dnnl_dims_t dense = {0};
    dnnl_alg_kind_t direct = dnnl_convolution_direct;
    switch (pass) {
    case LS_DNN_FORWARD:
        return dnnl_convolution_forward_primitive_desc_create(out, engine, dnnl_forward_training,
                                                              direct, in, weight, NULL, out_,
                                                              stride, dense, pad, pad, attr);
    case LS_DNN_BACKWARD_DATA:
        return dnnl_convolution_backward_data_primitive_desc_create(
            out, engine, direct, in, weight, out_, stride, dense, pad, pad, hint, attr);
    case LS_DNN_BACKWARD_WEIGHTS:
        break;
    }
    return dnnl_convolution_backward_weights_primitive_desc_create(
        out, engine, direct, in, weight, NULL, out_, stride, dense, pad, pad, hint, attr);
}

static dnnl_status_t matrix_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                        ls_dnn_pass pass, desc_ref in, desc_ref weight,
                                        desc_ref out_, const_dnnl_primitive_desc_t hint,
                                        const_dnnl_primitive_attr_t attr)
{
    switch (pass) {
    case LS_DNN_FORWARD:
        return dnnl_inner_product_forward_primitive_desc_create(out, engine, dnnl_forward_training,
                                                                in, weight, NULL, out_, attr);
    case LS_DNN_BACKWARD_DATA:
        return dnnl_inner_product_backward_data_primitive_desc_create(out, engine, in, weight, out_,
                                                                      hint, attr);
    case LS_DNN_BACKWARD_WEIGHTS:
        break;
    }
    return dnnl_inner_product_backward_weights_primitive_desc_create(out, engine, in, weight, NULL,
                                                                     out_, hint, attr);
}

static dnnl_status_t outer_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                       desc_ref left, desc_ref right, desc_ref product,
                                       const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, engine, left, right, NULL, product, attr);
}

#else

typedef const dnnl_memory_desc_t *desc_ref; /* borrowed */
typedef dnnl_memory_desc_t *desc_own;

static bool blocking_of(desc_ref desc, blocking *b)
{
    const dnnl_blocking_desc_t *from = &desc->format_desc.blocking;
    b->levels = from->inner_nblks;
    memcpy(b->step, from->strides, sizeof b->step);
    memcpy(b->size, from->inner_blks, sizeof b->size);
    memcpy(b->of, from->inner_idxs, sizeof b->of);
    return desc->format_kind == dnnl_blocked;
}

static dnnl_status_t desc_create(desc_own *out, int rank, const dnnl_dims_t dims, ls_dtype type,
                                 dnnl_format_tag_t tag)
{
    *out = malloc(sizeof **out);
    if (*out == NULL) {
        return dnnl_out_of_memory;
    }
    return dnnl_memory_desc_init_by_tag(*out, rank, dims, type_of(type), tag);
}

static void desc_destroy(desc_own desc)
{
    free(desc);
}

static dnnl_status_t conv_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                      ls_dnn_pass pass, desc_ref in, desc_ref weight, desc_ref out_,
                                      const dnnl_dims_t stride, const dnnl_dims_t pad,
                                      const_dnnl_primitive_desc_t hint,
                                      const_dnnl_primitive_attr_t attr)
{
    dnnl_convolution_desc_t desc;
    dnnl_status_t status = dnnl_success;
    switch (pass) {
    case LS_DNN_FORWARD:
        status = dnnl_convolution_forward_desc_init(&desc, dnnl_forward_training,
                                                    dnnl_convolution_direct, in, weight, NULL, out_,
                                                    stride, pad, pad);
        break;
    case LS_DNN_BACKWARD_DATA:
        status = dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, in,
                                                          weight, out_, stride, pad, pad);
        break;
    case LS_DNN_BACKWARD_WEIGHTS:
        status = dnnl_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, in,
                                                             weight, NULL, out_, stride, pad, pad);
        break;
    }
    return status != dnnl_success ? status
                                  : dnnl_primitive_desc_create(out, &desc, attr, engine, hint);
}

static dnnl_status_t matrix_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                        ls_dnn_pass pass, desc_ref in, desc_ref weight,
                                        desc_ref out_, const_dnnl_primitive_desc_t hint,
                                        const_dnnl_primitive_attr_t attr)
{
    dnnl_inner_product_desc_t desc;
    dnnl_status_t status = dnnl_success;
    switch (pass) {
    case LS_DNN_FORWARD:
        status = dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_training, in, weight,
                                                      NULL, out_);
        break;
    case LS_DNN_BACKWARD_DATA:
        status = dnnl_inner_product_backward_data_desc_init(&desc, in, weight, out_);
        break;
    case LS_DNN_BACKWARD_WEIGHTS:
        status = dnnl_inner_product_backward_weights_desc_init(&desc, in, weight, NULL, out_);
        break;
    }
    return status != dnnl_success ? status
                                  : dnnl_primitive_desc_create(out, &desc, attr, engine, hint);
}

static dnnl_status_t outer_desc_create(dnnl_primitive_desc_t *out, dnnl_engine_t engine,
                                       desc_ref left, desc_ref right, desc_ref product,
                                       const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t desc;
    dnnl_status_t status = dnnl_matmul_desc_init(&desc, left, right, NULL, product);
    return status != dnnl_success ? status
                                  : dnnl_primitive_desc_create(out, &desc, attr, engine, NULL);
}

#endif

/* ---- the same for both ----------------------------------------------------------------------- */

struct ls_dnn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
};

struct ls_dnn_product {
    ls_dnn *dnn;
    ls_dnn_pass pass;
    bool outer; /* ls_dnn_outer_create */
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t primitive, reorder; /* reorder: NULL if the weight is plain */
    dnnl_memory_t in, weight, out, scratch, plain;
    ls_dnn_product_info info;
};

ls_status ls_dnn_open(ls_dnn **out)
{
    ls_dnn *dnn = calloc(1, sizeof *dnn);
    LS_TRY_MEMORY(dnn != NULL, "the oneDNN engine");
    dnnl_status_t status = dnnl_engine_create(&dnn->engine, dnnl_cpu, 0);
    if (status == dnnl_success) {
        status = dnnl_stream_create(&dnn->stream, dnn->engine, dnnl_stream_default_flags);
    }
    if (status != dnnl_success) {
        ls_log_error("oneDNN: no CPU engine, status %d", (int)status);
        ls_dnn_close(dnn);
        return LS_ERR_INFRA;
    }
    *out = dnn;
    return LS_OK;
}

void ls_dnn_close(ls_dnn *dnn)
{
    if (dnn == NULL) {
        return;
    }
    if (dnn->stream != NULL) {
        dnnl_stream_destroy(dnn->stream);
    }
    if (dnn->engine != NULL) {
        dnnl_engine_destroy(dnn->engine);
    }
    free(dnn);
}

int ls_dnn_block(void)
{
#if defined(__x86_64__)
    int isa = (int)dnnl_get_effective_cpu_isa();
    if ((isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core) {
        return 16;
    }
    return (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2 ? 8 : 1;
#else
    return 1;
#endif
}

const char *ls_dnn_half_units(ls_dtype type)
{
#if defined(__x86_64__)
    int isa = (int)dnnl_get_effective_cpu_isa();
#define LS_HAS(units) ((isa & (int)(units)) == (int)(units))
    if (type == LS_BF16) {
        return LS_HAS(dnnl_cpu_isa_avx512_core_amx)    ? "AMX"
               : LS_HAS(dnnl_cpu_isa_avx512_core_bf16) ? "AVX512-BF16"
                                                       : NULL;
    }
#if DNNL_VERSION_MAJOR > 3 || (DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR >= 1)
    if (type == LS_F16) {
        return LS_HAS(dnnl_cpu_isa_avx512_core_amx_fp16) ? "AMX-FP16"
               : LS_HAS(dnnl_cpu_isa_avx512_core_fp16)   ? "AVX512-FP16"
                                                         : NULL;
    }
#endif
#undef LS_HAS
#endif
    (void)type;
    return NULL;
}

const char *ls_dnn_units(const char *engine)
{
    static const struct {
        const char *part, *units; /* the first that is found */
    } known[] = {{"amx_fp16", "AMX-FP16"},
                 {"amx", "AMX"},
                 {"core_fp16", "AVX512-FP16"},
                 {"core_bf16", "AVX512-BF16"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strstr(engine, known[i].part) != NULL) {
            return known[i].units;
        }
    }
    return NULL;
}

/* The processor's own units for products of this type, whatever oneDNN uses; NULL: none. */
static const char *processor_units(ls_dtype type)
{
#if defined(__x86_64__)
    /* Intel's SDM, CPUID leaf 7: EDX of subleaf 0, EAX of subleaf 1 */
    enum { AMX_BF16 = 1 << 22, AVX512_FP16 = 1 << 23, AVX512_BF16 = 1 << 5, AMX_FP16 = 1 << 21 };
    unsigned a = 0, b = 0, c = 0, d = 0, a1 = 0, b1 = 0, c1 = 0, d1 = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && a >= 1) {
        (void)__get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
    }
    if (type == LS_BF16) {
        return d & AMX_BF16 ? "AMX" : a1 & AVX512_BF16 ? "AVX512-BF16" : NULL;
    }
    return a1 & AMX_FP16 ? "AMX-FP16" : d & AVX512_FP16 ? "AVX512-FP16" : NULL;
#else
    (void)type;
    return NULL;
#endif
}

void ls_dnn_half_products(ls_dtype type, bool asked, const char *native, char *text, size_t bytes)
{
    const dnnl_version_t *v = dnnl_version();
    const char *label = ls_dtype_label(type), *used = ls_dnn_half_units(type);
    const char *units = processor_units(type), *variable = "ONEDNN_MAX_CPU_ISA";
    const char *limit = getenv(variable);
    if (limit == NULL) {
        variable = "DNNL_MAX_CPU_ISA";
        limit = getenv(variable);
    }
    if (asked) {
        snprintf(text, bytes, "%s emulated, as asked", label);
    } else if (native != NULL) {
        snprintf(text, bytes, "%s on %s", label, native);
    } else if (used != NULL) {
        snprintf(text, bytes, "%s emulated: f32 is faster than this CPU's %s", label, used);
    } else if (units == NULL) {
        snprintf(text, bytes, "%s emulated: this CPU has neither %s", label,
                 type == LS_BF16 ? "AMX nor AVX512-BF16" : "AMX-FP16 nor AVX512-FP16");
    } else if (type == LS_F16 && (v->major < 3 || (v->major == 3 && v->minor < 1))) {
        snprintf(text, bytes, "%s emulated: oneDNN %d.%d.%d has no products of it, 3.1 has", label,
                 v->major, v->minor, v->patch);
    } else if (limit != NULL) {
        snprintf(text, bytes, "%s emulated: %s=%s hides this CPU's %s", label, variable, limit,
                 units);
    } else {
        snprintf(text, bytes, "%s emulated: oneDNN %d.%d.%d does not use this CPU's %s", label,
                 v->major, v->minor, v->patch, units);
    }
}

void ls_dnn_describe(char *text, size_t bytes)
{
    const dnnl_version_t *version = dnnl_version();
    Dl_info info;
    void *address = NULL;
    dnnl_status_t (*function)(dnnl_engine_t *, dnnl_engine_kind_t, size_t) = dnnl_engine_create;
    memcpy(&address, &function, sizeof address); /* ISO C has no cast from a function to void * */
    const char *path = dladdr(address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?";
    snprintf(text, bytes, "oneDNN %d.%d.%d (%s)", version->major, version->minor, version->patch,
             path);
}

static dnnl_format_tag_t tag_of_block(int block)
{
    return block == LS_DNN_CHANNELS_LAST ? dnnl_nhwc
           : block == 16                 ? dnnl_nChw16c
           : block == 8                  ? dnnl_nChw8c
                                         : dnnl_nchw;
}

typedef struct descs {
    desc_own in, weight, out;
    desc_own operand; /* the weight as forward reads it */
    desc_own plain;   /* f32 */
} descs;

static void descs_free(descs *d)
{
    desc_destroy(d->in);
    desc_destroy(d->weight);
    desc_destroy(d->out);
    desc_destroy(d->operand);
    desc_destroy(d->plain);
}

/* matrix_tag: of a matrix's weight, or any. */
static ls_status descs_create(const ls_dnn_shape *s, int in_block, int out_block,
                              const ls_dnn_types *types, dnnl_format_tag_t matrix_tag, descs *d)
{
    const dnnl_dims_t in = {s->batch, s->in_channels, s->in_height, s->in_width};
    const dnnl_dims_t out = {s->batch, s->out_channels, s->out_height, s->out_width};
    const dnnl_dims_t weight = {s->out_channels, s->in_channels, s->kernel, s->kernel};
    int rank = s->matrix ? 2 : 4;
    dnnl_format_tag_t in_tag = s->matrix ? dnnl_nc : tag_of_block(in_block);
    dnnl_format_tag_t out_tag = s->matrix ? dnnl_nc : tag_of_block(out_block);
    LS_DNNL(desc_create(&d->in, rank, in, types->in, in_tag));
    LS_DNNL(desc_create(&d->out, rank, out, types->out, out_tag));
    dnnl_format_tag_t tag = s->matrix ? matrix_tag : dnnl_format_tag_any;
    LS_DNNL(desc_create(&d->weight, rank, weight, types->weight, tag));
    LS_DNNL(desc_create(&d->operand, rank, weight, types->in, tag));
    LS_DNNL(desc_create(&d->plain, rank, weight, LS_F32, s->matrix ? dnnl_oi : dnnl_oihw));
    return LS_OK;
}

static dnnl_status_t primitive_desc_create(ls_dnn *dnn, const ls_dnn_shape *s, ls_dnn_pass pass,
                                           const descs *d, const_dnnl_primitive_desc_t hint,
                                           const_dnnl_primitive_attr_t attr,
                                           dnnl_primitive_desc_t *out)
{
    desc_ref weight = pass == LS_DNN_BACKWARD_WEIGHTS ? d->weight : d->operand;
    if (s->matrix) {
        return matrix_desc_create(out, dnn->engine, pass, d->in, weight, d->out, hint, attr);
    }
    /* conv_desc_create requires paddings that give the output's size on the right too; oneDNN
     * applies the left one and cuts the rest, as torch does. */
    dnnl_dims_t stride = {s->stride, s->stride}, pad = {s->pad, s->pad};
    return conv_desc_create(out, dnn->engine, pass, d->in, weight, d->out, stride, pad, hint, attr);
}

/* oneDNN's implementation of a typical convolution of that type, in a layout: LS_ERR_UNSUPPORTED if
 * there is none but reference code, LS_ERR_INFRA. *last: in channels last. */
static ls_status find_typical(ls_dnn *dnn, ls_dtype type, dnnl_format_tag_t layout, bool *last,
                              const char **units)
{
    enum { IMAGES = 8, CHANNELS = 64, SIDE = 16, KERNEL = 3 };
    static const ls_dnn_shape shape = {.stride = 1, .pad = 1};
    const dnnl_dims_t image = {IMAGES, CHANNELS, SIDE, SIDE};
    const dnnl_dims_t kernel = {CHANNELS, CHANNELS, KERNEL, KERNEL};
    descs d = {0};
    desc_own nhwc = NULL;
    dnnl_primitive_desc_t found = NULL;
    const char *name = "ref";
    ls_status status = LS_ERR_INFRA;
    if (desc_create(&d.in, 4, image, type, layout) == dnnl_success &&
        desc_create(&d.out, 4, image, type, layout) == dnnl_success &&
        desc_create(&d.operand, 4, kernel, type, dnnl_format_tag_any) == dnnl_success &&
        desc_create(&nhwc, 4, image, type, dnnl_nhwc) == dnnl_success) {
        status = LS_ERR_UNSUPPORTED;
        if (primitive_desc_create(dnn, &shape, LS_DNN_FORWARD, &d, NULL, NULL, &found) ==
                dnnl_success &&
            dnnl_primitive_desc_query(found, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
            strncmp(name, "ref", 3) != 0) {
            *last = dnnl_memory_desc_equal(
                        dnnl_primitive_desc_query_md(found, dnnl_query_src_md, 0), nhwc) != 0;
            *units = ls_dnn_units(name);
            status = LS_OK;
        }
    }
    if (found != NULL) {
        dnnl_primitive_desc_destroy(found);
    }
    desc_destroy(nhwc);
    descs_free(&d);
    return status == LS_ERR_INFRA ? ls_log_fail(status, "oneDNN: no memory for a descriptor")
                                  : status;
}

ls_status ls_dnn_wants_channels_last(ls_dnn *dnn, ls_dtype type, bool *out)
{
    bool last = false, unused = false;
    const char *units = NULL, *units_blocked = NULL;
    ls_status any = find_typical(dnn, type, dnnl_format_tag_any, &last, &units);
    ls_status blocked =
        find_typical(dnn, type, tag_of_block(ls_dnn_block()), &unused, &units_blocked);
    *out = any == LS_OK && last &&
           (blocked == LS_ERR_UNSUPPORTED || (units != NULL && strstr(units, "AMX") != NULL));
    return any == LS_ERR_INFRA || blocked == LS_ERR_INFRA ? LS_ERR_INFRA : LS_OK;
}

const char *ls_dnn_units_in(ls_dnn *dnn, ls_dtype type, bool last)
{
    bool unused = false;
    const char *units = NULL;
    dnnl_format_tag_t layout = last ? dnnl_nhwc : tag_of_block(ls_dnn_block());
    return find_typical(dnn, type, layout, &unused, &units) == LS_OK ? units : NULL;
}

static ls_status product_find(ls_dnn_product *p, const ls_dnn_shape *shape, const descs *d)
{
    dnnl_primitive_attr_t attr = NULL;
    LS_DNNL(dnnl_primitive_attr_create(&attr));
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    dnnl_primitive_desc_t hint = NULL;
    if (status == dnnl_success && p->pass != LS_DNN_FORWARD) {
        status = primitive_desc_create(p->dnn, shape, LS_DNN_FORWARD, d, NULL, attr, &hint);
    }
    if (status == dnnl_success) {
        status = primitive_desc_create(p->dnn, shape, p->pass, d, hint, attr, &p->desc);
    }
    if (hint != NULL) {
        dnnl_primitive_desc_destroy(hint);
    }
    dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success) {
        return LS_ERR_UNSUPPORTED;
    }
    LS_DNNL(dnnl_primitive_desc_query(p->desc, dnnl_query_impl_info_str, 0, &p->info.engine));
    return strncmp(p->info.engine, "ref", 3) == 0 ? LS_ERR_UNSUPPORTED : LS_OK;
}

static ls_status reorder_create(ls_dnn_product *p, desc_ref from, desc_ref to)
{
    dnnl_primitive_desc_t desc = NULL;
    LS_DNNL(
        dnnl_reorder_primitive_desc_create(&desc, from, p->dnn->engine, to, p->dnn->engine, NULL));
    dnnl_status_t status = dnnl_primitive_create(&p->reorder, desc);
    dnnl_primitive_desc_destroy(desc);
    LS_DNNL(status);
    return LS_OK;
}

enum { LANES = 16 };

/* Offset in elements of value (o, i, tap); a matrix has one tap. */
static int64_t weight_at(const blocking *b, const ls_dnn_shape *s, int o, int i, int tap)
{
    int64_t position[4] = {o, i, tap / s->kernel, tap % s->kernel}, at = 0, size = 1;
    for (int k = b->levels - 1; k >= 0; k--) {
        int64_t *p = &position[b->of[k]];
        at += *p % b->size[k] * size;
        *p /= b->size[k];
        size *= b->size[k];
    }
    for (int d = 0; d < (s->matrix ? 2 : 4); d++) {
        at += position[d] * b->step[d];
    }
    return at;
}

/* Position of (o, i) in a block of that order. */
static int64_t in_block_at(ls_dnn_order order, int64_t step, int o, int i)
{
    switch (order) {
    case LS_DNN_PAIRS_IN:
        return 2 * o + i % 2 + i / 2 * step;
    case LS_DNN_PAIRS_OUT:
        return 2 * i + o % 2 + o / 2 * step;
    case LS_DNN_OUT:
        return o + i * step;
    default:
        return i + o * step;
    }
}

/* Fills a side: blocks of one dimension, of which `inner` values are in an inner block. */
static ls_dnn_side side_of(const blocking *b, const ls_dnn_shape *s, int dimension)
{
    int inner = 1, channels = dimension == 0 ? s->out_channels : s->in_channels;
    for (int k = 0; k < b->levels; k++) {
        inner *= b->of[k] == dimension ? (int)b->size[k] : 1;
    }
    ls_dnn_side side = {.many = inner % LANES == 0 ? inner / LANES : 0};
    if (side.many > 0 && channels % inner == 0) {
        bool out = dimension == 0;
        side.near = weight_at(b, s, out ? LANES : 0, out ? 0 : LANES, 0);
        side.far = weight_at(b, s, out ? inner : 0, out ? 0 : inner, 0);
        return side;
    }
    return (ls_dnn_side){0};
}

/* A layout is what every value of its first block, and the first value of every block, confirm. */
static bool lies(const blocking *b, const ls_dnn_shape *s, const ls_dnn_layout *l)
{
    bool good = true;
    for (int k = 0; k < LANES * LANES; k++) {
        int o = k / LANES, i = k % LANES;
        good = good && weight_at(b, s, o, i, 0) == in_block_at(l->order, l->step, o, i);
    }
    for (int o = 0; o < s->out_channels / LANES; o++) {
        good = good && weight_at(b, s, o * LANES, 0, 0) == ls_dnn_side_at(&l->out, o);
    }
    for (int i = 0; i < s->in_channels / LANES; i++) {
        good = good && weight_at(b, s, 0, i * LANES, 0) == ls_dnn_side_at(&l->in, i);
    }
    for (int t = 0; t < (s->matrix ? 1 : s->kernel * s->kernel); t++) {
        good = good && weight_at(b, s, 0, 0, t) == t * l->tap;
    }
    return good;
}

static void find_layout(const ls_dnn_shape *shape, desc_ref weight, ls_dtype type,
                        ls_dnn_layout *layout)
{
    *layout = (ls_dnn_layout){.order = LS_DNN_OTHER};
    ls_dnn_shape s = *shape;
    s.kernel = s.matrix ? 1 : s.kernel;
    blocking b;
    if (type == LS_F16 || s.out_channels % LANES != 0 || s.in_channels % LANES != 0 ||
        !blocking_of(weight, &b)) {
        return;
    }
    ls_dnn_layout l = {.out = side_of(&b, &s, 0), .in = side_of(&b, &s, 1)};
    l.tap = s.kernel > 1 ? weight_at(&b, &s, 0, 0, 1) : 0;
    for (int k = 0; k < 2 && l.out.many > 0 && l.in.many > 0; k++) {
        bool half = type == LS_BF16;
        l.order = half ? (k == 0 ? LS_DNN_PAIRS_IN : LS_DNN_PAIRS_OUT)
                       : (k == 0 ? LS_DNN_OUT : LS_DNN_IN);
        int far = half ? 2 : 1;
        l.step = weight_at(&b, &s, k == 0 ? 0 : far, k == 0 ? far : 0, 0);
        if (lies(&b, &s, &l)) {
            *layout = l;
            return;
        }
    }
}

ls_status ls_dnn_layout_of_tag(const ls_dnn_shape *s, ls_dtype type, int tag, ls_dnn_layout *layout)
{
    const dnnl_dims_t dims = {s->out_channels, s->in_channels, s->kernel, s->kernel};
    desc_own desc = NULL;
    LS_DNNL(desc_create(&desc, s->matrix ? 2 : 4, dims, type, (dnnl_format_tag_t)tag));
    find_layout(s, desc, type, layout);
    desc_destroy(desc);
    return LS_OK;
}

static desc_ref weight_of(const ls_dnn_product *p)
{
    bool gradient = p->pass == LS_DNN_BACKWARD_WEIGHTS;
    return dnnl_primitive_desc_query_md(
        p->desc, gradient ? dnnl_query_diff_weights_md : dnnl_query_weights_md, 0);
}

/* Whether oneDNN chose to read or write a matrix's weight transposed. */
static ls_status is_transposed(const ls_dnn_product *p, const ls_dnn_shape *s,
                               const ls_dnn_types *types, bool *transposed)
{
    const dnnl_dims_t dims = {s->out_channels, s->in_channels};
    desc_own desc = NULL;
    *transposed = false;
    if (s->matrix) {
        ls_dtype type = p->pass == LS_DNN_BACKWARD_WEIGHTS ? types->weight : types->in;
        LS_DNNL(desc_create(&desc, 2, dims, type, dnnl_io));
        *transposed = dnnl_memory_desc_equal(weight_of(p), desc) != 0;
        desc_destroy(desc);
    }
    return LS_OK;
}

static ls_status product_build(ls_dnn_product *p, const ls_dnn_shape *s, const ls_dnn_types *types,
                               const descs *d)
{
    bool backward_weights = p->pass == LS_DNN_BACKWARD_WEIGHTS;
    dnnl_engine_t engine = p->dnn->engine;
    desc_ref weight = weight_of(p);
    desc_ref scratch = dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    p->info.weight_bytes = dnnl_memory_desc_get_size(weight);
    p->info.scratch_bytes = scratch == NULL ? 0 : dnnl_memory_desc_get_size(scratch);
    LS_DNNL(dnnl_primitive_create(&p->primitive, p->desc));
    LS_DNNL(dnnl_memory_create(&p->in, d->in, engine, DNNL_MEMORY_NONE));
    LS_DNNL(dnnl_memory_create(&p->out, d->out, engine, DNNL_MEMORY_NONE));
    LS_DNNL(dnnl_memory_create(&p->weight, weight, engine, DNNL_MEMORY_NONE));
    LS_DNNL(dnnl_memory_create(&p->plain, d->plain, engine, DNNL_MEMORY_NONE));
    if (p->info.scratch_bytes > 0) {
        LS_DNNL(dnnl_memory_create(&p->scratch, scratch, engine, DNNL_MEMORY_NONE));
    }
    p->info.weight_is_plain = dnnl_memory_desc_equal(weight, d->plain) != 0;
    if (!backward_weights && !p->info.weight_is_plain) {
        find_layout(s, weight, types->in, &p->info.layout);
    }
    if (p->info.weight_is_plain) {
        return LS_OK;
    }
    return backward_weights ? reorder_create(p, weight, d->plain)
                            : reorder_create(p, d->plain, weight);
}

ls_status ls_dnn_product_create(ls_dnn *dnn, const ls_dnn_shape *shape, ls_dnn_pass pass,
                                int in_block, int out_block, const ls_dnn_types *types,
                                ls_dnn_product **out)
{
    ls_dnn_product *p = calloc(1, sizeof *p);
    LS_TRY_MEMORY(p != NULL, "a oneDNN primitive");
    p->dnn = dnn;
    p->pass = pass;
    descs d = {0};
    bool transposed = false;
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, descs_create(shape, in_block, out_block, types, dnnl_format_tag_any, &d),
                free_descs);
    LS_TRY_GOTO(status, product_find(p, shape, &d), free_descs);
    LS_TRY_GOTO(status, is_transposed(p, shape, types, &transposed), free_descs);
    if (transposed) {
        /* Its matrix products take a weight as it lies, too, and are not slower (measured): that
         * saves a transposition in each step, and the copies of forward and backward are one. */
        dnnl_primitive_desc_destroy(p->desc);
        p->desc = NULL;
        descs_free(&d);
        d = (descs){0};
        LS_TRY_GOTO(status, descs_create(shape, in_block, out_block, types, dnnl_oi, &d),
                    free_descs);
        LS_TRY_GOTO(status, product_find(p, shape, &d), free_descs);
    }
    LS_TRY_GOTO(status, product_build(p, shape, types, &d), free_descs);
    *out = p;
free_descs:
    descs_free(&d);
    if (status != LS_OK) {
        ls_dnn_product_destroy(p);
    }
    return status;
}

static ls_status outer_build(ls_dnn_product *p, const descs *d)
{
    dnnl_primitive_attr_t attr = NULL;
    LS_DNNL(dnnl_primitive_attr_create(&attr));
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success) {
        status = outer_desc_create(&p->desc, p->dnn->engine, d->out, d->in, d->weight, attr);
    }
    dnnl_primitive_attr_destroy(attr);
    if (status != dnnl_success) {
        return LS_ERR_UNSUPPORTED;
    }
    LS_DNNL(dnnl_primitive_desc_query(p->desc, dnnl_query_impl_info_str, 0, &p->info.engine));
    if (strncmp(p->info.engine, "ref", 3) == 0) {
        return LS_ERR_UNSUPPORTED;
    }
    desc_ref scratch = dnnl_primitive_desc_query_md(p->desc, dnnl_query_scratchpad_md, 0);
    p->info.scratch_bytes = scratch == NULL ? 0 : dnnl_memory_desc_get_size(scratch);
    p->info.weight_bytes = dnnl_memory_desc_get_size(d->weight);
    p->info.weight_is_plain = true;
    LS_DNNL(dnnl_primitive_create(&p->primitive, p->desc));
    dnnl_engine_t engine = p->dnn->engine;
    LS_DNNL(dnnl_memory_create(&p->in, d->in, engine, DNNL_MEMORY_NONE));
    LS_DNNL(dnnl_memory_create(&p->out, d->out, engine, DNNL_MEMORY_NONE));
    LS_DNNL(dnnl_memory_create(&p->weight, d->weight, engine, DNNL_MEMORY_NONE));
    if (p->info.scratch_bytes > 0) {
        LS_DNNL(dnnl_memory_create(&p->scratch, scratch, engine, DNNL_MEMORY_NONE));
    }
    return LS_OK;
}

static ls_status outer_descs(int rows, int columns, int64_t depth, ls_dtype type, descs *d)
{
    const dnnl_dims_t left = {rows, depth}, right = {depth, columns}, product = {rows, columns};
    LS_DNNL(desc_create(&d->out, 2, left, type, dnnl_ba));
    LS_DNNL(desc_create(&d->in, 2, right, type, dnnl_ab));
    LS_DNNL(desc_create(&d->weight, 2, product, LS_F32, dnnl_ab));
    return LS_OK;
}

ls_status ls_dnn_outer_create(ls_dnn *dnn, int rows, int columns, int64_t depth, ls_dtype type,
                              ls_dnn_product **out)
{
    ls_dnn_product *p = calloc(1, sizeof *p);
    LS_TRY_MEMORY(p != NULL, "a oneDNN primitive");
    p->dnn = dnn;
    p->pass = LS_DNN_BACKWARD_WEIGHTS;
    p->outer = true;
    descs d = {0};
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, outer_descs(rows, columns, depth, type, &d), free_descs);
    LS_TRY_GOTO(status, outer_build(p, &d), free_descs);
    *out = p;
free_descs:
    descs_free(&d);
    if (status != LS_OK) {
        ls_dnn_product_destroy(p);
    }
    return status;
}

void ls_dnn_product_destroy(ls_dnn_product *product)
{
    if (product == NULL) {
        return;
    }
    dnnl_memory_t memory[] = {product->in, product->weight, product->out, product->scratch,
                              product->plain};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        if (memory[i] != NULL) {
            dnnl_memory_destroy(memory[i]);
        }
    }
    if (product->primitive != NULL) {
        dnnl_primitive_destroy(product->primitive);
    }
    if (product->reorder != NULL) {
        dnnl_primitive_destroy(product->reorder);
    }
    if (product->desc != NULL) {
        dnnl_primitive_desc_destroy(product->desc);
    }
    free(product);
}

const ls_dnn_product_info *ls_dnn_product_about(const ls_dnn_product *product)
{
    return &product->info;
}

/* oneDNN clears the padding behind a handle when it is set, so set it only when it changes. */
static ls_status point_to(dnnl_memory_t memory, const void *data)
{
    void *now = NULL;
    LS_DNNL(dnnl_memory_get_data_handle(memory, &now));
    if (now != data) {
        LS_DNNL(dnnl_memory_set_data_handle(memory, (void *)data));
    }
    return LS_OK;
}

ls_status ls_dnn_product_reorder(ls_dnn_product *product, const float *plain, const void *packed)
{
    bool unpack = product->pass == LS_DNN_BACKWARD_WEIGHTS;
    LS_ASSERT(product->reorder != NULL);
    LS_TRY(point_to(product->plain, plain));
    LS_TRY(point_to(product->weight, packed));
    dnnl_exec_arg_t args[] = {{unpack ? DNNL_ARG_TO : DNNL_ARG_FROM, product->plain},
                              {unpack ? DNNL_ARG_FROM : DNNL_ARG_TO, product->weight}};
    LS_DNNL(dnnl_primitive_execute(product->reorder, product->dnn->stream, 2, args));
    LS_DNNL(dnnl_stream_wait(product->dnn->stream));
    return LS_OK;
}

ls_status ls_dnn_product_run(ls_dnn_product *product, void *in, void *weight, void *out,
                             void *scratch)
{
    enum { OUTER = 3 };
    static const int name[4][3] = {
        [LS_DNN_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST},
        [LS_DNN_BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
        [LS_DNN_BACKWARD_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
        [OUTER] = {DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SRC},
    };
    const int *names = name[product->outer ? OUTER : (int)product->pass];
    LS_TRY(point_to(product->in, in));
    LS_TRY(point_to(product->weight, weight));
    LS_TRY(point_to(product->out, out));
    int count = 3;
    dnnl_exec_arg_t args[4] = {
        {names[0], product->in}, {names[1], product->weight}, {names[2], product->out}};
    if (product->scratch != NULL) {
        LS_TRY(point_to(product->scratch, scratch));
        args[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, product->scratch};
    }
    LS_DNNL(dnnl_primitive_execute(product->primitive, product->dnn->stream, count, args));
    LS_DNNL(dnnl_stream_wait(product->dnn->stream));
    return LS_OK;
}

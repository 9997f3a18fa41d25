#include "explain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/log.h"
#include "reference/ddp/buckets.h"
#include "reference/model/model.h"
#include "reference/options/precision.h"
#include "reference/options/schedule.h"
#include "harness/machine/machine.h"
#include "reference/state/device.h"

/* The data that all sections print. */
typedef struct scene {
    const ls_options *options;
    int world;
    FILE *to;
    ls_dialect_rules rules;
    ls_precision precision;
    ls_network network;
    ls_bucket_item *item;
    int *order;
} scene;

static const double mb = 1e6;

static void print_title(const scene *s, const char *title)
{
    fprintf(s->to, "\n%s\n", title);
    for (size_t i = 0; i < strlen(title); i++) {
        fputc('-', s->to);
    }
    fputc('\n', s->to);
}

static void print_optimizer(const scene *s, int64_t images)
{
    const ls_options *o = s->options;
    ls_optimizer_kind kind = o->optimizer;
    fprintf(s->to, "%s, learning rate %g (%s), weight decay %g", ls_optimizers_name(kind),
            ls_schedule_base_lr(o->lr, o->lr_scaling == LS_LR_SCALING_LINEAR, images), o->schedule,
            o->weight_decay);
    if (ls_optimizers_takes(kind, "momentum")) {
        fprintf(s->to, ", momentum %g%s", o->momentum, o->nesterov ? " (Nesterov)" : "");
    }
    if (ls_optimizers_takes(kind, "trust")) {
        fprintf(s->to, ", trust %g", o->trust);
    }
    if (ls_optimizers_takes(kind, "betas")) {
        fprintf(s->to, ", betas %g and %g", o->beta1, o->beta2);
    }
    if (ls_optimizers_takes(kind, "eps")) {
        fprintf(s->to, ", eps %g", o->epsilon);
    }
    if (ls_optimizers_takes(kind, "max-grad-norm")) {
        fprintf(s->to, ", gradient norm at most %g", o->max_grad_norm);
    }
    fputc('\n', s->to);
}

static void print_run(const scene *s)
{
    const ls_options *o = s->options;
    int64_t images = (int64_t)o->batch_size * o->accumulate * s->world;
    fprintf(s->to, "%s, %d classes, %d x %d pixels; %s with %s; dialect %s\n", o->arch,
            o->num_classes, o->image_size, o->image_size, ls_options_level_name(o->opt_level),
            ls_dtype_label(o->half), ls_dialect_name(o->dialect));
    fprintf(s->to, "%d rank%s x %d images", s->world, s->world == 1 ? "" : "s", o->batch_size);
    if (o->accumulate > 1) {
        fprintf(s->to, " x %d micro-steps", o->accumulate);
    }
    fprintf(s->to, " = %" PRId64 " images per step\n", images);
    print_optimizer(s, images);
    fprintf(s->to, "products: %.3f GFLOP per image, forward and backward\n",
            6e-9 * (double)ls_model_macs(&s->network, o->image_size));
}

/* ---- types ----------------------------------------------------------------------------------- */

static void print_type_row(const scene *s, const char *kind, ls_param_role role)
{
    const ls_precision *p = &s->precision;
    const char *master = ls_precision_has_master(p, role)        ? "fp32"
                         : ls_precision_param(p, role) == LS_F32 ? "itself"
                                                                 : "none";
    fprintf(s->to, "%-24s %-10s %-10s %-10s %s\n", kind,
            ls_dtype_label(ls_precision_param(p, role)), ls_dtype_label(ls_precision_grad(p, role)),
            ls_dtype_label(ls_precision_reduced(p, role)), master);
}

static void print_types(const scene *s)
{
    const ls_precision *p = &s->precision;
    print_title(s, "Types");
    fprintf(s->to, "%-24s %-10s %-10s %-10s %s\n", "parameters", "held as", "gradient", "reduced",
            "master");
    print_type_row(s, "convolution weights", LS_PARAM_CONV_WEIGHT);
    print_type_row(s, "batch norm weight, bias", LS_PARAM_NORM_WEIGHT);
    print_type_row(s, "linear weight, bias", LS_PARAM_LINEAR_WEIGHT);
    fprintf(s->to, "%-24s %s\n", "running statistics",
            ls_dtype_label(ls_precision_buffer(p, LS_BUFFER_RUNNING_MEAN)));
    fprintf(s->to, "%-24s %s, products sum in fp32\n", "activations",
            ls_dtype_label(p->activation));
    fprintf(s->to, "%-24s fp32: logits, loss, unscaled gradients, moments\n", "always");
    if (p->level == LS_O1) {
        fprintf(s->to,
                "Weights are cast to %s once per step; their gradients are made in %s and\n"
                "converted.\n",
                ls_dtype_label(p->half), ls_dtype_label(p->half));
    }
}

static void print_params(const scene *s)
{
    print_title(s, "Parameters, in torchvision's order");
    fprintf(s->to, "%4s  %-34s %-18s %-6s %s\n", "", "name", "shape", "held", "reduced");
    for (int p = 0; p < s->network.param_count; p++) {
        const ls_param *param = &s->network.param[p];
        char shape[48];
        size_t used = 0;
        for (int d = 0; d < param->shape.rank; d++) {
            used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRId64,
                                     d > 0 ? "x" : "", param->shape.dim[d]);
        }
        fprintf(s->to, "%4d  %-34s %-18s %-6s %s\n", p, param->name, shape,
                ls_dtype_label(ls_precision_param(&s->precision, param->role)),
                ls_dtype_label(s->item[p].dtype));
    }
}

/* ---- buckets --------------------------------------------------------------------------------- */

/* Prints member names indented by four, folded at 79 columns. */
static void print_members(const scene *s, const ls_bucket_layout *layout, const ls_bucket *bucket)
{
    int column = 0;
    for (int i = 0; i < bucket->count; i++) {
        const char *name = s->network.param[layout->member[bucket->first + i]].name;
        int length = (int)strlen(name) + 1;
        if (column == 0 || column + length > 79) {
            fprintf(s->to, "%s   ", column == 0 ? "" : "\n");
            column = 3;
        }
        fprintf(s->to, " %s", name);
        column += length;
    }
    fputc('\n', s->to);
}

static int64_t print_layout(const scene *s, const ls_bucket_layout *layout)
{
    int64_t bytes = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        const ls_bucket *bucket = &layout->bucket[b];
        fprintf(s->to, "bucket %d: %d tensors, %" PRId64 " %s, %.3f MB (%.2f MiB)\n", b,
                bucket->count, bucket->elements, ls_dtype_label(bucket->dtype),
                (double)bucket->bytes / mb, (double)bucket->bytes / 1048576.0);
        print_members(s, layout, bucket);
        bytes += bucket->bytes;
    }
    return bytes;
}

static void print_rules(const scene *s)
{
    const ls_dialect_rules *r = &s->rules;
    print_title(s, "Reduction");
    fprintf(s->to, "average: %s (times %.9g, sum, times %.9g)\n",
            ls_dialect_average_name(r->average), r->pre_factor, r->post_factor);
    fprintf(s->to, "at the start rank 0 sends parameters%s\n",
            r->start_buffers ? " and running statistics" : "");
    fprintf(s->to, "running statistics later: %s\n",
            r->broadcast_buffers ? "rank 0's, before each forward" : "each rank's own");
    if (r->delay) {
        fprintf(s->to, "one reduction per type after backward, in every iteration\n");
        return;
    }
    fprintf(s->to, "a bucket closes at");
    for (int i = 0; i < r->limit_count; i++) {
        fprintf(s->to, "%s %" PRId64, i > 0 ? ", later" : "", r->limit[i]);
    }
    fprintf(s->to, " %s of one type\n", r->unit == LS_BUCKET_BYTES ? "bytes" : "elements");
}

/* The bytes of later iterations. */
static int64_t print_buckets(const scene *s)
{
    ls_bucket_layout layout;
    print_rules(s);
    ls_buckets_first(&s->rules, &s->network, s->item, &layout);
    print_title(s, s->rules.rebuild ? "Buckets of iteration 1" : "Buckets of every iteration");
    fprintf(s->to, "%s\n",
            layout.delayed ? "begun after the end of backward"
                           : "begun when full, in this order, during backward");
    int64_t bytes = print_layout(s, &layout);
    ls_buckets_free(&layout);
    if (s->rules.rebuild) {
        ls_buckets_rebuild(&s->rules, &s->network, s->item, s->order, &layout);
        print_title(s, "Buckets of later iterations, from backward's order");
        bytes = print_layout(s, &layout);
        ls_buckets_free(&layout);
    }
    return bytes;
}

/* A ring sends and receives 2(W-1)/W of each reduced byte per rank (Patarasuk and Yuan 2009). */
static void print_wire(const scene *s, int64_t bytes)
{
    double share = 2.0 * (s->world - 1) / s->world;
    print_title(s, "On the wire, per step");
    if (s->options->no_sync == LS_FALSE) {
        fprintf(s->to, "each of %d micro-steps reduces: all buckets, %d times\n",
                s->options->accumulate, s->options->accumulate);
        bytes *= s->options->accumulate;
    }
    fprintf(s->to, "reduced:                   %10.3f MB\n", (double)bytes / mb);
    fprintf(s->to, "sent by each rank (ring):  %10.3f MB  (times 2(W-1)/W = %.4f)\n",
            share * (double)bytes / mb, share);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The sum of all layers' outputs. A backend stores fewer if it fuses passes or works in place;
 * workspace is not included. */
static int64_t activation_bytes(const scene *s)
{
    size_t layers = (size_t)s->network.layer_count;
    ls_layer_extent *extent = calloc(layers, sizeof *extent);
    LS_MEMORY(extent != NULL);
    ls_model_extents(&s->network, s->options->image_size, extent);
    int64_t elements = 0;
    for (size_t i = 0; i < layers; i++) {
        elements += (int64_t)extent[i].channels * extent[i].height * extent[i].width;
    }
    free(extent);
    return elements * s->options->batch_size * (int64_t)ls_dtype_bytes(s->precision.activation);
}

static void print_memory(const scene *s)
{
    enum { PARAMS, CAST, MASTERS, MOMENTS, GRADS, STAGED, UNSCALED, SUMS, ACTIVATIONS, KINDS };
    static const char *const kind[KINDS + 1] = {
        [PARAMS] = "parameters",
        [CAST] = "their copies for products",
        [MASTERS] = "masters",
        [MOMENTS] = "moments",
        [GRADS] = "gradients (in their buckets)",
        [STAGED] = "their copies in the type that is reduced",
        [UNSCALED] = "half gradients unscaled, in fp32",
        [SUMS] = "accumulated gradients, fp32",
        [ACTIVATIONS] = "activations, at most (estimate)",
        [KINDS] = "sum, without workspace",
    };
    const ls_options *o = s->options;
    int64_t bytes[KINDS + 1] = {[ACTIVATIONS] = activation_bytes(s)};
    int64_t activation = (int64_t)ls_dtype_bytes(s->precision.activation);
    for (int p = 0; p < s->network.param_count; p++) {
        ls_param_role role = s->network.param[p].role;
        int64_t elements = s->item[p].elements;
        ls_dtype held = ls_precision_param(&s->precision, role);
        ls_dtype made = ls_precision_grad(&s->precision, role), reduced = s->item[p].dtype;
        bool norm = role == LS_PARAM_NORM_WEIGHT || role == LS_PARAM_NORM_BIAS;
        bool cast = !norm && held != s->precision.activation;
        bytes[PARAMS] += elements * (int64_t)ls_dtype_bytes(held);
        bytes[CAST] += cast ? elements * activation : 0;
        bytes[MASTERS] += ls_precision_has_master(&s->precision, role) ? 4 * elements : 0;
        bytes[MOMENTS] += 4 * elements * ls_optimizers_moments(o->optimizer, o->momentum);
        bytes[GRADS] += elements * (int64_t)ls_dtype_bytes(made);
        bytes[STAGED] += reduced != made ? elements * (int64_t)ls_dtype_bytes(reduced) : 0;
        bytes[UNSCALED] += made != LS_F32 ? 4 * elements : 0;
        bytes[SUMS] += o->accumulate > 1 ? 4 * elements : 0;
    }
    print_title(s, "Memory of one rank");
    for (int i = 0; i <= KINDS; i++) {
        fprintf(s->to, "%-44s %12.3f MB\n", kind[i], (double)bytes[i] / mb);
        bytes[KINDS] += bytes[i];
    }
}

static void print_scaler(const scene *s)
{
    const ls_scaler_config *c = &s->precision.scaler;
    print_title(s, "Loss scale");
    if (!c->dynamic) {
        fprintf(s->to, "static %.9g; no step is skipped\n", (double)s->precision.initial_scale);
        return;
    }
    fprintf(s->to,
            "dynamic from %.9g: times %g on overflow (the step is skipped),\n"
            "times %g after %d clean steps, at most %.9g",
            (double)s->precision.initial_scale, (double)c->backoff_factor, (double)c->growth_factor,
            c->growth_interval, (double)c->max_scale);
    if (c->min_scale > 0) {
        fprintf(s->to, ", at least %.9g\n", (double)c->min_scale);
    } else {
        fprintf(s->to, "; the run ends below 2^-24\n");
    }
}

ls_status ls_explain_print(const ls_options *options, int world, FILE *to)
{
    LS_ASSERT(world >= 1);
    scene s = {.options = options, .world = world, .to = to};
    ls_dialect_resolve(options, world, &s.rules);
    ls_precision_resolve(options, &s.rules, &s.precision);
    LS_TRY(ls_model_build(options->arch, options->num_classes, options->image_size, &s.network));
    size_t count = (size_t)s.network.param_count;
    s.item = calloc(count, sizeof *s.item);
    s.order = calloc(count, sizeof *s.order);
    LS_MEMORY(s.item != NULL && s.order != NULL);
    ls_buckets_items(&s.network, &s.precision, s.item);
    ls_model_backward_order(&s.network, s.order);
    print_run(&s);
    print_types(&s);
    print_scaler(&s);
    print_wire(&s, print_buckets(&s));
    print_memory(&s);
    print_params(&s);
    free(s.item);
    free(s.order);
    ls_model_free(&s.network);
    return LS_OK;
}

enum {
    BATCH_MOST = 64, /* a larger plan may not fit into this machine's memory */
    COLUMNS = 80,
    INDENT = 4,
};

/* Prints the line from `text` up to `end`, broken at blanks into lines of COLUMNS. */
static void print_broken(FILE *to, const char *text, const char *end)
{
    int column = 0;
    while (text < end) {
        int word = (int)strcspn(text, " \n");
        if (column > 0 && column + 1 + word > COLUMNS) {
            fprintf(to, "\n%*s", INDENT, "");
            column = INDENT;
        } else if (column > 0) {
            fputc(' ', to);
            column++;
        }
        fprintf(to, "%.*s", word, text);
        column += word;
        text += word;
        text += *text == ' ';
    }
    fputc('\n', to);
}

/* The products of a plan's description, a line each; lines of norms have no colon. */
static void print_engines(FILE *to, const char *text)
{
    while (*text != '\0') {
        const char *end = text + strcspn(text, "\n");
        const char *colon = memchr(text, ':', (size_t)(end - text));
        if (colon != NULL && memchr(text, ' ', (size_t)(colon - text)) == NULL) {
            print_broken(to, text, end);
        }
        text = end + (*end == '\n');
    }
}

static ls_status print_plan(const ls_options *options, const ls_device *device,
                            const ls_network *network, FILE *to)
{
    ls_dialect_rules rules;
    ls_precision precision;
    ls_dialect_resolve(options, 1, &rules);
    ls_precision_resolve(options, &rules, &precision);
    const ls_plan_options how = {.batch = options->batch_size < BATCH_MOST ? options->batch_size
                                                                           : BATCH_MOST,
                                 .height = options->image_size,
                                 .width = options->image_size,
                                 .activation = precision.activation};
    ls_plan *plan = NULL;
    ls_plan_info info;
    LS_TRY(device->api->plan_create(device->backend, network, &how, &plan));
    device->api->plan_info(plan, &info);
    fprintf(to, "\nProducts on this machine\n------------------------\n%s, %d thread%s\n",
            device->info.device, device->info.threads, device->info.threads == 1 ? "" : "s");
    if (precision.activation != LS_F32) {
        const char *text = info.products[0] != '\0'
                               ? info.products
                               : ls_device_products(&device->info, precision.activation);
        print_broken(to, text, text + strlen(text));
    }
    if (info.layout != NULL) {
        fprintf(to, "activations in %s\n", info.layout);
    }
    fprintf(to, "oneDNN's implementations at %d image%s, %s:\n", how.batch,
            how.batch == 1 ? "" : "s", ls_dtype_label(precision.activation));
    print_engines(to, info.fusions);
    device->api->plan_destroy(plan);
    return LS_OK;
}

ls_status ls_explain_print_products(const ls_options *options, int world, FILE *to)
{
    if (strcmp(ls_bus_choose(options->device), "cpu") != 0) {
        return LS_OK;
    }
    ls_network network;
    ls_device device;
    const ls_backend_options how = {.threads = options->threads,
                                    .local_ranks = world,
                                    .emulate_half = options->half_math == LS_HALF_EMULATED,
                                    .native_half = options->half_math == LS_HALF_NATIVE};
    LS_TRY(ls_model_build(options->arch, options->num_classes, options->image_size, &network));
    ls_status status = ls_device_open("cpu", &how, &device);
    if (status == LS_OK) {
        status = print_plan(options, &device, &network, to);
        ls_device_close(&device);
    }
    ls_model_free(&network);
    return status;
}

/* What a step is predicted to take on a GPU that need not be there: the traffic model's bytes and
 * operations (kernels/traffic.h), the rates of a described device, and assumptions, each with its
 * reason, about the share of these rates that kernels reach. */
#include "layers_internal.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/traffic.h"
#include "reference/model/model.h"
#include "reference/options/precision.h"

/* ---- devices and assumptions ----------------------------------------------------------------- */

typedef struct device {
    const char *name;
    double copy_bytes_per_s, half_flop_per_s, tf32_flop_per_s, f32_flop_per_s;
    const char *source;
} device;

/* Rates that long copies and large products reach, not those of data sheets. */
static const device devices[] = {
    {"H200", 4.3e12, 790e12, 395e12, 60e12,
     "from published measurements of copies and f16; tf32 half of f16, f32 0.9 of 67"},
    {"H100", 3.0e12, 790e12, 395e12, 60e12,
     "an H200's products; copies 0.9 of 3.35 TB/s: not measured"},
    {"A100", 1.7e12, 270e12, 135e12, 17.5e12,
     "0.85 of 2.04 TB/s (80 GB) and 0.87 of 312 TFLOP/s: not measured"},
};
enum { DEVICES = sizeof devices / sizeof *devices };

typedef struct assumption {
    double value;
    const char *text;
} assumption;

static const assumption first_engine = {
    0.72, "share of its floor a product reaches with the first engine of cuDNN's list"};
static const assumption timed_engine = {0.77,
                                        "the same with timed engines; both measured on an H200"};
static const assumption narrow_engine = {
    0.30, "the same with fewer than 16 stored channels: engines of an older kind"};
static const assumption sweep_share = {0.85, "share of the rate of copies that a sweep reaches"};
static const assumption launch_us = {1.2, "us between two kernels of a recorded step"};
static const assumption overlapped_us = {
    0.4, "us between two kernels of a norm with programmatic dependent launch"};
static const assumption kernel_us = {2.5, "us that a kernel takes at least"};

/* ---- variants of a step ---------------------------------------------------------------------- */

enum {
    TIMED_ENGINES = 1 << 16, /* beyond the bits of kernels/traffic.h */
    ONE_UNPACK = 1 << 17,    /* gradients converted in few launches */
    DEPENDENT_LAUNCH = 1 << 18,
};

static const struct {
    int way;
    bool fused; /* a graph of several operations */
    const char *text;
} changes[] = {
    {TIMED_ENGINES, false, "timed engines"},
    {LS_TRAFFIC_BLOCKED_STEM, false, "stem over blocks of 2 x 2 pixels"},
    {ONE_UNPACK, false, "gradients converted in one launch a bucket"},
    {LS_TRAFFIC_FUSE_STATISTICS, true, "statistics in the convolution"},
    {LS_TRAFFIC_FUSE_INNER, true, "mask and sums in the data gradient"},
    {LS_TRAFFIC_FUSE_APPLY, true, "norm and ReLU in the next convolution"},
    {LS_TRAFFIC_FUSE_JOINS, true, "joins in the data gradient"},
    {DEPENDENT_LAUNCH, false, "programmatic dependent launch"},
};
enum { CHANGES = sizeof changes / sizeof *changes };

/* All changes, with or without the fused ones, but for those of the last row, which no default
 * takes. */
static int ways_of(bool fused)
{
    int ways = 0;
    for (int i = 0; i < CHANGES; i++) {
        bool taken = changes[i].way != DEPENDENT_LAUNCH && (fused || !changes[i].fused);
        ways |= taken ? changes[i].way : 0;
    }
    return ways;
}

/* ---- a predicted step ------------------------------------------------------------------------ */

typedef enum kind {
    PRODUCTS,
    PRODUCT_WEIGHTS,
    PRODUCT_DATA,
    STATISTICS,
    APPLY,
    SUMS,
    NORM_BACK,
    SIMPLE,
    WEIGHTS, /* conversions of parameters and gradients */
    OPTIMIZER,
    KINDS,
} kind;

static const char *const kind_name[KINDS] = {
    "products: forward", "products: weights", "products: inputs", "norms: statistics",
    "norms: apply",      "norms: sums",       "norms: gradients", "image, pools, loss",
    "weights converted", "unscale, optimizer"};

typedef struct level {
    const char *name;
    ls_opt_level level;
    ls_dtype half;
    bool tf32;
} level;

static const level levels[] = {{"O0 tf32", LS_O0, LS_F16, true},   {"O1", LS_O1, LS_F16, false},
                               {"O2", LS_O2, LS_F16, false},       {"O3", LS_O3, LS_F16, false},
                               {"O2 bf16", LS_O2, LS_BF16, false}, {"O0", LS_O0, LS_F16, false}};
enum { LEVELS = sizeof levels / sizeof *levels };

typedef struct sum {
    int passes, launches;
    double bytes, floor_ms, ms;
} sum;

typedef struct step {
    const device *device;
    const level *level;
    ls_precision precision;
    const ls_network *network;
    ls_lower lower;
    ls_traffic *list;
    int batch, ways, count;
    sum of[KINDS];
} step;

/* cuDNN's fused graphs take fp16 (results/cudnn/README.md). */
static bool can_fuse(const level *level)
{
    return level->level != LS_O0 && level->half == LS_F16;
}

/* A pass of own kernels: its first launch moves the bytes, `small` ones merge a few sums; `behind`
 * launches come directly behind another of the same norm (kernels/cuda/launch.h). */
static void add_sweep(step *s, kind k, double bytes, int launches, int small, int behind)
{
    double floor_ms = 1e3 * bytes / s->device->copy_bytes_per_s;
    double saved_us = s->ways & DEPENDENT_LAUNCH ? launch_us.value - overlapped_us.value : 0;
    int large = launches - small;
    sum *to = &s->of[k];
    to->passes += large > 0;
    to->launches += launches;
    to->bytes += bytes;
    to->floor_ms += floor_ms;
    to->ms += fmax(floor_ms / sweep_share.value, 1e-3 * kernel_us.value * large) +
              1e-3 * (small * kernel_us.value + launches * launch_us.value - behind * saved_us);
}

/* Operands of its epilogue stream through at the rate of a sweep. */
static void add_product(step *s, kind k, const ls_traffic *part, double share)
{
    double rate = s->device->copy_bytes_per_s;
    double flops_ms = 1e3 * part->flops /
                      (s->precision.activation != LS_F32 ? s->device->half_flop_per_s
                       : s->level->tf32                  ? s->device->tf32_flop_per_s
                                                         : s->device->f32_flop_per_s);
    double own_ms = fmax(1e3 * (part->bytes - part->epilogue) / rate, flops_ms);
    double epilogue_ms = 1e3 * part->epilogue / rate;
    sum *to = &s->of[k];
    to->passes++;
    to->launches++;
    to->bytes += part->bytes;
    to->floor_ms += fmax(1e3 * part->bytes / rate, flops_ms);
    to->ms += fmax(own_ms / share + epilogue_ms / sweep_share.value, 1e-3 * kernel_us.value) +
              1e-3 * launch_us.value;
}

static void add_traffic(step *s, const ls_traffic *part)
{
    static const kind kind_of[LS_TRAFFIC_PARTS] = {
        [LS_TRAFFIC_IMAGE] = SIMPLE,
        [LS_TRAFFIC_PRODUCT] = PRODUCTS,
        [LS_TRAFFIC_PRODUCT_WEIGHTS] = PRODUCT_WEIGHTS,
        [LS_TRAFFIC_PRODUCT_DATA] = PRODUCT_DATA,
        [LS_TRAFFIC_STATISTICS] = STATISTICS,
        [LS_TRAFFIC_APPLY] = APPLY,
        [LS_TRAFFIC_SUMS] = SUMS,
        [LS_TRAFFIC_NORM_BACK] = NORM_BACK,
        [LS_TRAFFIC_SIMPLE] = SIMPLE,
        [LS_TRAFFIC_SIMPLE_BACK] = SIMPLE,
    };
    const ls_op *op = &s->lower.op[part->op];
    int small = 0, large = part->bytes > 0 ? 1 : 0;
    if (ls_traffic_is_product(part->part)) {
        enum { NARROW = 16 };
        double share = part->channels < NARROW   ? narrow_engine.value
                       : s->ways & TIMED_ENGINES ? timed_engine.value
                                                 : first_engine.value;
        add_product(s, kind_of[part->part], part, share);
        return;
    }
    if (part->part == LS_TRAFFIC_STATISTICS) {
        small = 1;
    } else if (part->part == LS_TRAFFIC_SUMS) {
        small = op->dual ? 2 : 1;
    }
    bool last = part->part == LS_TRAFFIC_APPLY || part->part == LS_TRAFFIC_NORM_BACK;
    int behind = last ? large : large + small > 1 ? small : 0;
    add_sweep(s, kind_of[part->part], part->bytes, large + small, small, behind);
}

/* Whether a product takes this parameter, and its gradient, as the model holds them. */
static bool is_taken_as_held(const step *s, const ls_param *param)
{
    int64_t taps = 1;
    for (int d = 2; d < param->shape.rank; d++) {
        taps *= param->shape.dim[d];
    }
    return taps == 1 && ls_precision_param(&s->precision, param->role) == s->precision.activation;
}

/* Conversions before and after the products, unscale and optimizer (SGD with momentum), by the
 * types of the level (numerics.md, section 1). */
static void add_parameters(step *s)
{
    double packed = 0, unpacked = 0, unscaled = 0, stepped = 0;
    int unpacks = 0;
    double half = (double)ls_dtype_bytes(s->precision.activation);
    for (int i = 0; i < s->network->param_count; i++) {
        const ls_param *param = &s->network->param[i];
        const ls_precision *p = &s->precision;
        double elements = (double)ls_shape_count(&param->shape);
        double held = (double)ls_dtype_bytes(ls_precision_param(p, param->role));
        double grad = (double)ls_dtype_bytes(ls_precision_grad(p, param->role));
        bool norm = param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS;
        if (!norm && !is_taken_as_held(s, param)) {
            packed += elements * (held + half);
            unpacked += elements * (half + grad);
            unpacks += param->role == LS_PARAM_CONV_WEIGHT || param->role == LS_PARAM_LINEAR_WEIGHT;
        }
        bool master = ls_precision_has_master(p, param->role);
        unscaled += elements * (grad + 4);
        stepped += elements * (master ? 8 + 4 + 8 + held : 2 * held + 4 + 8);
    }
    if (packed > 0) {
        add_sweep(s, WEIGHTS, packed, 1, 0, 0);
        enum { BUCKETS = 4 };
        int launches = s->ways & ONE_UNPACK && unpacks > BUCKETS ? BUCKETS : unpacks;
        add_sweep(s, WEIGHTS, unpacked, launches, 0, 0);
    }
    add_sweep(s, OPTIMIZER, unscaled, 1, 0, 0);
    add_sweep(s, OPTIMIZER, stepped, 3, 2, 0); /* constants before, scale after */
}

static size_t slot_bytes(void *context, const ls_plan_options *options, int channels, int height,
                         int width, bool is_input)
{
    (void)context;
    (void)is_input;
    return (size_t)options->batch * (size_t)channels * (size_t)height * (size_t)width *
           ls_dtype_bytes(options->activation);
}

/* Results of cuDNN 9.19 for every shape of ResNet-50 (results/cudnn/README.md). */
static bool every_product_adds(void *context, const ls_lower *lower, const ls_op *op)
{
    (void)context, (void)lower, (void)op;
    return true;
}

static void resolve(const level *level, ls_precision *out)
{
    ls_options options;
    ls_dialect_rules rules;
    ls_options_defaults(&options);
    options.opt_level = level->level;
    options.half = level->half;
    ls_dialect_resolve(&options, 1, &rules);
    ls_precision_resolve(&options, &rules, out);
}

static ls_status predict(const ls_layers_request *r, const device *on, const level *level,
                         int batch, int ways, const ls_network *network, step *out)
{
    const ls_lower_backend backend = {slot_bytes, every_product_adds, .gates_twice = true};
    step s = {.device = on, .level = level, .network = network, .batch = batch, .ways = ways};
    resolve(level, &s.precision);
    if (s.precision.activation == LS_F32) {
        s.ways &= ~LS_TRAFFIC_BLOCKED_STEM; /* of half types (kernels/cuda/plan/work.c) */
    }
    ls_plan_options plan = {.batch = batch,
                            .height = r->image_size,
                            .width = r->image_size,
                            .activation = s.precision.activation};
    LS_TRY(ls_lower_create(network, &plan, &backend, &s.lower));
    s.list = malloc((size_t)ls_traffic_most(&s.lower) * sizeof *s.list);
    LS_MEMORY(s.list != NULL);
    s.count = ls_traffic_list(&s.lower, s.precision.activation == LS_F32 ? 4 : 8, s.ways, s.list);
    for (int i = 0; i < s.count; i++) {
        add_traffic(&s, &s.list[i]);
    }
    add_parameters(&s);
    *out = s;
    return LS_OK;
}

static void release(step *s)
{
    ls_lower_free(&s->lower);
    free(s->list);
}

static double sum_ms(const step *s)
{
    double ms = 0;
    for (int k = 0; k < KINDS; k++) {
        ms += s->of[k].ms;
    }
    return ms;
}

/* ---- tables ---------------------------------------------------------------------------------- */

typedef struct printing {
    const ls_layers_request *request;
    const device *device;
    const ls_network *network;
} printing;

static ls_status predict_ms(const printing *p, const level *level, int batch, int ways, double *ms)
{
    step s;
    LS_TRY(predict(p->request, p->device, level, batch, ways, p->network, &s));
    *ms = sum_ms(&s);
    release(&s);
    return LS_OK;
}

static void print_row(const char *name, const step *plain, const step *fused, const sum *a,
                      const sum *b)
{
    double images = plain->batch;
    printf("%-20s %4d %7.1f %7.2f %7.2f", name, a->passes, a->bytes * 1e-6 / images, a->floor_ms,
           a->ms);
    if (fused != NULL) {
        printf("  %4d %7.1f %7.2f %7.2f", b->passes, b->bytes * 1e-6 / images, b->floor_ms, b->ms);
    }
    putchar('\n');
}

static sum total(const step *s)
{
    sum all = {0};
    for (int k = 0; k < KINDS; k++) {
        all.passes += s->of[k].passes;
        all.launches += s->of[k].launches;
        all.bytes += s->of[k].bytes;
        all.floor_ms += s->of[k].floor_ms;
        all.ms += s->of[k].ms;
    }
    return all;
}

static void print_kinds(const step *plain, const step *fused)
{
    printf("\n%s, one operation a pass%s\n", plain->level->name,
           fused == NULL ? "" : "                     with cuDNN's fused graphs");
    printf("%-20s %4s %7s %7s %7s", "", "pass", "MB/img", "floor", "ms");
    printf(fused == NULL ? "\n" : "  %4s %7s %7s %7s\n", "pass", "MB/img", "floor", "ms");
    for (int k = 0; k < KINDS; k++) {
        print_row(kind_name[k], plain, fused, &plain->of[k], fused == NULL ? NULL : &fused->of[k]);
    }
    sum a = total(plain), b = fused == NULL ? a : total(fused);
    print_row("sum", plain, fused, &a, &b);
    printf("%d kernels; images/s: %.0f, at the floor %.0f", a.launches, plain->batch * 1e3 / a.ms,
           plain->batch * 1e3 / a.floor_ms);
    if (fused != NULL) {
        printf("\nfused: %d kernels; images/s: %.0f, at the floor %.0f", b.launches,
               fused->batch * 1e3 / b.ms, fused->batch * 1e3 / b.floor_ms);
    }
    putchar('\n');
}

static ls_status print_changes(const printing *p, const level *level)
{
    double before;
    int ways = 0, batch = p->request->batch;
    LS_TRY(predict_ms(p, level, batch, ways, &before));
    printf("\nchanges, each on top of those above it%34s %9s\n", "saves ms", "images/s");
    printf("%-54s %17s %9.0f\n", "none of them", "", batch * 1e3 / before);
    for (int i = 0; i < CHANGES; i++) {
        if (changes[i].fused && !can_fuse(level)) {
            continue;
        }
        double ms;
        ways |= changes[i].way;
        LS_TRY(predict_ms(p, level, batch, ways, &ms));
        printf("%-54s %17.2f %9.0f\n", changes[i].text, before - ms, batch * 1e3 / ms);
        before = ms;
    }
    return LS_OK;
}

static ls_status print_sums(const printing *p)
{
    static const int batches[] = {32, 128, 256, 400};
    printf("\nimages/s by batch, one operation a pass / with fused graphs\n%5s", "");
    for (int l = 0; l < LEVELS; l++) {
        printf(" %*s", levels[l].level == LS_O0 ? 7 : 11, levels[l].name);
    }
    putchar('\n');
    for (size_t b = 0; b < sizeof batches / sizeof *batches; b++) {
        printf("%5d", batches[b]);
        for (int l = 0; l < LEVELS; l++) {
            double plain, fused = NAN;
            char text[32];
            LS_TRY(predict_ms(p, &levels[l], batches[b], ways_of(false), &plain));
            if (can_fuse(&levels[l])) {
                LS_TRY(predict_ms(p, &levels[l], batches[b], ways_of(true), &fused));
                snprintf(text, sizeof text, "%.0f /%5.0f", batches[b] * 1e3 / plain,
                         batches[b] * 1e3 / fused);
            } else {
                snprintf(text, sizeof text, "%.0f", batches[b] * 1e3 / plain);
            }
            printf(" %*s", levels[l].level == LS_O0 ? 7 : 11, text);
        }
        putchar('\n');
    }
    return LS_OK;
}

static void print_assumptions(const device *d)
{
    const assumption *all[] = {&first_engine, &timed_engine,  &narrow_engine, &sweep_share,
                               &launch_us,    &overlapped_us, &kernel_us};
    printf("\nrates: copies %.2f TB/s, products f16 and bf16 %.0f, tf32 %.0f, f32 %.0f TFLOP/s\n"
           "%s\n\nassumptions\n",
           d->copy_bytes_per_s * 1e-12, d->half_flop_per_s * 1e-12, d->tf32_flop_per_s * 1e-12,
           d->f32_flop_per_s * 1e-12, d->source);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        printf("%5.2f  %s\n", all[i]->value, all[i]->text);
    }
}

static ls_status write_passes(const printing *p, const step *plain, const step *fused)
{
    if (p->request->out == NULL) {
        return LS_OK;
    }
    FILE *table = ls_file_create(p->request->out);
    LS_TRY_FILE(table);
    fprintf(table,
            "# title: %s, %d pixels, batch %d, %s: every pass as predicted for %s\n"
            "# units: MB, 10^9 operations; fused_mb: with cuDNN's fused graphs, 0: part of another "
            "pass\n"
            "# columns: 1 order  2 mb  3 gflop  4 fused_mb  5 pass  6 layer\n",
            p->request->arch, p->request->image_size, p->request->batch, plain->level->name,
            p->device->name);
    for (int i = 0; i < plain->count; i++) {
        const ls_traffic *part = &plain->list[i];
        const ls_op *op = &plain->lower.op[part->op];
        bool second = part->part == LS_TRAFFIC_STATISTICS && part->norm == 1;
        int layer = op->kind == LS_OP_NORM ? op->norm[second] : op->layer;
        fprintf(table, "%d\t%.4f\t%.4f\t%.4f\t\"%s\"\t\"%s\"\n", i, part->bytes * 1e-6,
                part->flops * 1e-9, (fused == NULL ? part : &fused->list[i])->bytes * 1e-6,
                ls_traffic_part_name(part->part), plain->network->layer[layer].name);
    }
    return ls_file_close(table, p->request->out);
}

/* ---- the command ----------------------------------------------------------------------------- */

static ls_status find_device(const char *name, const device **out)
{
    char known[128] = "";
    for (int i = 0; i < DEVICES; i++) {
        if (strcmp(devices[i].name, name) == 0) {
            *out = &devices[i];
            return LS_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ", devices[i].name);
    }
    return ls_log_fail(LS_ERR_USAGE, "--predict '%s': allowed: %s", name, known);
}

/* The level whose products have the requested type: O2 for half types, else O0. */
static const level *level_of(const char *type)
{
    const char *name = strcmp(type, "f16") == 0    ? "O2"
                       : strcmp(type, "bf16") == 0 ? "O2 bf16"
                       : strcmp(type, "tf32") == 0 ? "O0 tf32"
                                                   : "O0";
    for (int l = 0; l < LEVELS; l++) {
        if (strcmp(levels[l].name, name) == 0) {
            return &levels[l];
        }
    }
    LS_ASSERT(!"a level for every type");
    return NULL;
}

static ls_status print_all(const printing *p, const level *level)
{
    const ls_layers_request *r = p->request;
    bool can = can_fuse(level);
    step plain, fused = {0};
    LS_TRY(predict(r, p->device, level, r->batch, ways_of(false), p->network, &plain));
    ls_status status = LS_OK;
    if (can) {
        status = predict(r, p->device, level, r->batch, ways_of(true), p->network, &fused);
    }
    if (status == LS_OK) {
        printf("%s, %d pixels, batch %d, %s: predicted for one %s; nothing was run\n", r->arch,
               r->image_size, r->batch, r->type, p->device->name);
        print_kinds(&plain, can ? &fused : NULL);
        status = write_passes(p, &plain, can ? &fused : NULL);
        release(&fused);
    }
    release(&plain);
    LS_THEN(status, print_changes(p, level));
    LS_THEN(status, print_sums(p));
    if (status == LS_OK) {
        print_assumptions(p->device);
    }
    return status;
}

ls_status ls_layers_predict(const ls_layers_request *request)
{
    printing p = {.request = request};
    ls_network network;
    LS_TRY(find_device(request->predict, &p.device));
    LS_TRY(ls_model_build(request->arch, LS_LAYERS_CLASSES, request->image_size, &network));
    p.network = &network;
    ls_status status = print_all(&p, level_of(request->type));
    ls_model_free(&network);
    return status;
}

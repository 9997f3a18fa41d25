/* The backend's optimizer step by itself: every rule against FP64 over several steps, on tensors of
 * awkward sizes that stand one element off alignment with guards between them, and against golden
 * values. */
#include <math.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/rng.h"
#include "kernels/core/list.h"
#include "reference/oracle/bits.h"
#include "reference/oracle/update.h"
#include "reference/state/device.h"
#include "suite/cases/rows.h"

/* ---- tensors of a step ----------------------------------------------------------------------- */

enum { TENSORS = 7, GUARD = 3 };

/* The lists; first and second are the moments. */
enum { VALUE, GRAD, FIRST, SECOND, COPY, LISTS };

typedef struct bench {
    ls_device device;
    ls_step_state *state;
    void *block[LISTS]; /* NULL: no such list */
    ls_tensor list[LISTS][TENSORS];
    int tensors;
} bench;

/* Close it also where this fails. */
static ls_status open_bench(bench *b)
{
    ls_backend_options options = {.threads = 2, .local_ranks = 1};
    memset(b, 0, sizeof *b);
    LS_TRY(ls_device_open("auto", &options, &b->device));
    void *state = NULL;
    ls_status status =
        b->device.api->memory_alloc(b->device.backend, sizeof *b->state, "state", &state);
    b->state = state;
    return status;
}

static void close_bench(bench *b)
{
    if (b->device.api == NULL) {
        return;
    }
    for (int k = 0; k < LISTS; k++) {
        if (b->block[k] != NULL) {
            b->device.api->memory_free(b->device.backend, b->block[k]);
        }
    }
    b->device.api->memory_free(b->device.backend, b->state);
    ls_device_close(&b->device);
}

/* A list's memory: guard, tensor, guard, ...: seldom aligned. count[tensors]. */
static ls_status make_list(bench *b, int k, int tensors, const int64_t *count, ls_dtype dtype)
{
    int64_t elements = GUARD, bytes = (int64_t)ls_dtype_bytes(dtype);
    for (int i = 0; i < tensors; i++) {
        elements += count[i] + GUARD;
    }
    LS_TRY(
        b->device.api->memory_alloc(b->device.backend, elements * bytes, "a list", &b->block[k]));
    char *at = (char *)b->block[k] + GUARD * bytes;
    for (int i = 0; i < tensors; i++) {
        b->list[k][i] = (ls_tensor){.data = at, .dtype = dtype, .count = count[i]};
        at += (count[i] + GUARD) * bytes;
    }
    b->tensors = tensors;
    return LS_OK;
}

static ls_optimizer_args args_of(const bench *b)
{
    ls_optimizer_args args = {0};
    ls_tensor_list *list[LISTS] = {&args.value, &args.grad, &args.moment1, &args.moment2,
                                   &args.copy};
    for (int k = 0; k < LISTS; k++) {
        if (b->block[k] != NULL) {
            *list[k] = (ls_tensor_list){.count = b->tensors, .tensor = b->list[k]};
        }
    }
    return args;
}

static ls_status write_state(bench *b, const ls_step_state *state)
{
    LS_TRY(b->device.api->copy_in(b->device.backend, b->device.stream, b->state, state,
                                  (int64_t)sizeof *state));
    return b->device.api->stream_wait(b->device.stream);
}

/* One call of the backend's optimizer_step on the lists that were made. */
static ls_status step_bench(bench *b, const ls_optimizer_config *config, bool dynamic)
{
    ls_optimizer_args args = args_of(b);
    return b->device.api->optimizer_step(b->device.backend, b->device.stream, config, &args,
                                         dynamic, b->state);
}

static const ls_tol order =
    LS_TOL(2, "f32's errors of this formula in one order of its operations, and as much again for "
              "another order");

static const ls_tol within = LS_TOL(1, "f32's errors of this formula, in two orders of it");

static const int64_t sizes[TENSORS] = {1, 0, 513, 7, 40001, 64, 17};

/* ---- against FP64 ---------------------------------------------------------------------------- */

enum { STEPS = 6, SKIPPED = 4 }; /* the fourth call finds an overflow */

typedef struct rule {
    const char *name;
    ls_optimizer_config config;
} rule;

#define BETAS .beta1 = .9, .beta2 = .999
static const rule rules[] = {
    {"sgd", {.kind = LS_OPTIMIZER_SGD, .momentum = .9, .weight_decay = .01}},
    {"sgd-nesterov",
     {.kind = LS_OPTIMIZER_SGD, .momentum = .9, .weight_decay = .01, .nesterov = true}},
    {"sgd-plain", {.kind = LS_OPTIMIZER_SGD}},
    {"sgd-decay", {.kind = LS_OPTIMIZER_SGD, .weight_decay = .01}},
    {"sgd-momentum", {.kind = LS_OPTIMIZER_SGD, .momentum = .9}},
    {"sgd-nesterov-plain", {.kind = LS_OPTIMIZER_SGD, .momentum = .9, .nesterov = true}},
    {"adam-plain", {.kind = LS_OPTIMIZER_ADAM, BETAS, .epsilon = 1e-8}},
    {"adam", {.kind = LS_OPTIMIZER_ADAM, BETAS, .epsilon = 1e-8, .weight_decay = .01}},
    {"adam-uncorrected", {.kind = LS_OPTIMIZER_ADAM, BETAS, .epsilon = 1e-8, .uncorrected = true}},
    {"adamw", {.kind = LS_OPTIMIZER_ADAMW, BETAS, .epsilon = 1e-8, .weight_decay = .01}},
    {"lamb",
     {.kind = LS_OPTIMIZER_LAMB, BETAS, .epsilon = 1e-6, .weight_decay = .01, .max_grad_norm = 1}},
    {"lamb-l2",
     {.kind = LS_OPTIMIZER_LAMB,
      BETAS,
      .epsilon = 1e-6,
      .weight_decay = .01,
      .max_grad_norm = 1,
      .l2 = true}},
    {"lamb-unclipped",
     {.kind = LS_OPTIMIZER_LAMB, BETAS, .epsilon = 1e-6, .weight_decay = .01, .max_grad_norm = 0}},
    {"lamb-plain", {.kind = LS_OPTIMIZER_LAMB, BETAS, .epsilon = 1e-6, .max_grad_norm = 1}},
    {"nvlamb", {.kind = LS_OPTIMIZER_LAMB, BETAS, .epsilon = 1e-6, .nvlamb = true}},
    {"lars",
     {.kind = LS_OPTIMIZER_LARS,
      .momentum = .9,
      .epsilon = 1e-8,
      .weight_decay = .01,
      .trust = .02}},
    {"lars-plain", {.kind = LS_OPTIMIZER_LARS, .epsilon = 1e-8, .trust = .02}},
    {"lars-clip",
     {.kind = LS_OPTIMIZER_LARS,
      .momentum = .9,
      .nesterov = true,
      .epsilon = 1e-8,
      .weight_decay = .01,
      .trust = .5,
      .clip = true}},
};

static const struct storage {
    const char *name;
    ls_dtype value, copy;
    bool copies;
} storages[] = {{"f32", LS_F32, LS_F32, false},
                {"masters-fp16", LS_F32, LS_F16, true},
                {"masters-bf16", LS_F32, LS_BF16, true},
                {"half", LS_F16, LS_F16, false}};

/* An optimizer of which the oracle has no kind does not compile. */
static const ls_update_kind oracle_kinds[LS_OPTIMIZER_KINDS] = {
#define LS_OPTIMIZER(KIND, ...) [LS_OPTIMIZER_##KIND] = LS_UPDATE_##KIND,
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
};

static ls_update_rule oracle_rule(const ls_optimizer_config *config)
{
    return (ls_update_rule){
        .kind = oracle_kinds[config->kind],
        .lr = 1e-2,
        .weight_decay = config->weight_decay,
        .momentum = config->momentum,
        .nesterov = config->nesterov,
        .beta1 = config->beta1,
        .beta2 = config->beta2,
        .epsilon = config->epsilon,
        .uncorrected = config->uncorrected,
        .l2 = config->l2,
        .nvlamb = config->nvlamb,
        .max_grad_norm = config->max_grad_norm,
        .trust = config->trust,
        .clip = config->clip,
    };
}

/* The same tensors in FP64. */
typedef struct shadow {
    ls_update_rule rule;
    ls_update_tensor tensor[TENSORS];
    double *block[TENSORS];
    float *host; /* one tensor */
    ls_bits_type value, copy;
} shadow;

static void make_shadow(shadow *s)
{
    for (int i = 0; i < TENSORS; i++) {
        size_t n = (size_t)sizes[i];
        double *at = s->block[i] = calloc(7 * n + 1, sizeof *at);
        LS_MEMORY(at != NULL);
        s->tensor[i] = (ls_update_tensor){.count = sizes[i],
                                          .value = at,
                                          .value_error = at + n,
                                          .moment = {at + 2 * n, at + 3 * n},
                                          .moment_error = {at + 4 * n, at + 5 * n},
                                          .grad = at + 6 * n};
    }
    s->host = malloc((size_t)sizes[4] * sizeof *s->host); /* the largest */
    LS_MEMORY(s->host != NULL);
}

static void free_shadow(shadow *s)
{
    for (int i = 0; i < TENSORS; i++) {
        free(s->block[i]);
    }
    free(s->host);
}

/* Values of a normal distribution, gradients over nine orders of magnitude. */
static float drawn(int what, int tensor, int64_t i)
{
    float value = ls_rng_normal(11, (uint64_t)(what * 100 + tensor), (uint64_t)i);
    static const float size[10] = {1,     1e-1f, 1e-2f, 1e-3f, 1e-4f,
                                   1e-5f, 1e-6f, 1e-7f, 1e-8f, 1e-9f};
    return what == 0 ? value : value * size[(i * 7 + tensor) % 10];
}

static ls_status write_start(bench *b, shadow *s)
{
    for (int i = 0; i < TENSORS; i++) {
        for (int64_t j = 0; j < sizes[i]; j++) {
            s->tensor[i].value[j] = ls_bits_round(s->value, (double)drawn(0, i, j));
            s->host[j] = (float)s->tensor[i].value[j];
        }
        LS_TRY(ls_device_write_f32(&b->device, &b->list[VALUE][i], s->host));
    }
    return LS_OK;
}

static ls_status write_gradients(bench *b, shadow *s, int step)
{
    s->rule.grad_squares = 0;
    s->rule.grad_elements = 0;
    for (int i = 0; i < TENSORS; i++) {
        double *grad = s->block[i] + 6 * sizes[i];
        for (int64_t j = 0; j < sizes[i]; j++) {
            s->host[j] = drawn(step, i, j);
            grad[j] = (double)s->host[j];
        }
        s->rule.grad_squares += ls_update_squares(grad, sizes[i]);
        s->rule.grad_elements += sizes[i];
        LS_TRY(ls_device_write_f32(&b->device, &b->list[GRAD][i], s->host));
    }
    return LS_OK;
}

static ls_status compare_list(bench *b, shadow *s, int k, int step, ls_verdict *out)
{
    static const char *const names[] = {"value", "gradient", "first moment", "second moment"};
    bool half = k == VALUE && s->value != LS_BITS_F32;
    for (int i = 0; i < TENSORS; i++) {
        ls_update_tensor *t = &s->tensor[i];
        double *want = k == VALUE  ? t->value
                       : k == GRAD ? s->block[i] + 6 * sizes[i]
                                   : t->moment[k - FIRST];
        double *error =
            k == VALUE ? t->value_error : t->moment_error[k - FIRST < 0 ? 0 : k - FIRST];
        LS_TRY(ls_device_read_f32(&b->device, &b->list[k][i], s->host));
        for (int64_t j = 0; j < sizes[i]; j++) {
            double got = (double)s->host[j], limit = k == GRAD ? 0 : order.value * error[j];
            limit += half ? ls_bits_unit(s->value) * fabs(want[j]) + ls_bits_tiny(s->value) : 0;
            double off = fabs(got - want[j]);
            if (k != GRAD && limit > 0) {
                (void)ls_verdict_worst(out, off / limit, &within, "x limit");
            }
            if (!(off <= limit)) {
                ls_verdict_fail(
                    out,
                    "call %d, tensor %d of %d elements, element %d: %s %.9g, FP64 %.9g, "
                    "limit=%.1e",
                    step, i, (int)sizes[i], (int)j, names[k], got, want[j], limit);
            }
            if (half) { /* what is stored is where the next step starts */
                want[j] = got;
                error[j] = 0;
            }
        }
    }
    return LS_OK;
}

/* Copies are the rounded masters, to the last bit. */
static ls_status compare_copies(bench *b, const shadow *s, int step, ls_verdict *out)
{
    float *value = ls_list_make(1, (size_t)sizes[4] * sizeof *value);
    ls_status status = LS_OK;
    for (int i = 0; i < TENSORS && status == LS_OK; i++) {
        status = ls_device_read_f32(&b->device, &b->list[VALUE][i], value);
        LS_THEN(status, ls_device_read_f32(&b->device, &b->list[COPY][i], s->host));
        for (int64_t j = 0; j < sizes[i] && status == LS_OK; j++) {
            double want = ls_bits_round(s->copy, (double)value[j]);
            if ((double)s->host[j] != want) {
                ls_verdict_fail(out, "call %d, tensor %d element %d: copy %.9g of %.9g", step, i,
                                (int)j, (double)s->host[j], (double)value[j]);
            }
        }
    }
    free(value);
    return status;
}

/* Memory is zero when it is made, and nothing may have been written between the tensors. */
static ls_status check_guards(bench *b, ls_verdict *out)
{
    for (int k = 0; k < LISTS; k++) {
        for (int i = 0; i < TENSORS && b->block[k] != NULL; i++) {
            ls_tensor t = b->list[k][i];
            ls_tensor guard = {(char *)t.data + ls_tensor_bytes(&t), t.dtype, GUARD};
            float value[GUARD];
            LS_TRY(ls_device_read_f32(&b->device, &guard, value));
            for (int j = 0; j < GUARD; j++) {
                if (value[j] != 0) {
                    ls_verdict_fail(out, "list %d: written behind tensor %d", k, i);
                }
            }
        }
    }
    return LS_OK;
}

/* What a row calls. */
struct kernel {
    const struct rule *rule;
    const struct storage *storage;
};

static ls_status run_rule(bench *b, const ls_case *row, shadow *s, ls_verdict *out)
{
    const struct kernel *kernel = row->data;
    const struct storage *storage = kernel->storage;
    const ls_optimizer_config *config = &kernel->rule->config;
    int moments = ls_update_moments(&s->rule);
    LS_TRY(make_list(b, VALUE, TENSORS, sizes, storage->value));
    LS_TRY(make_list(b, GRAD, TENSORS, sizes, LS_F32));
    for (int m = 0; m < moments; m++) {
        LS_TRY(make_list(b, FIRST + m, TENSORS, sizes, LS_F32));
    }
    if (storage->copies) {
        LS_TRY(make_list(b, COPY, TENSORS, sizes, storage->copy));
    }
    LS_TRY(write_start(b, s));
    ls_step_state state = {.loss_scale = 1, .inv_loss_scale = 1, .lr = 1e-2f};
    LS_TRY(write_state(b, &state));
    for (int call = 1; call <= STEPS && out->code == LS_PASS; call++) {
        LS_TRY(write_gradients(b, s, call));
        LS_TRY(ls_device_read(&b->device, &state, b->state, (int64_t)sizeof state));
        state.overflow = call == SKIPPED ? 1 : 0;
        LS_TRY(write_state(b, &state));
        LS_TRY(step_bench(b, config, true));
        s->rule.step = call - (call > SKIPPED ? 1 : 0);
        for (int i = 0; i < TENSORS && call != SKIPPED; i++) {
            LS_TRY(ls_update_step(&s->rule, &s->tensor[i]));
        }
        for (int k = VALUE; k < FIRST + moments; k++) {
            LS_TRY(compare_list(b, s, k, call, out));
        }
        LS_TRY(storage->copies ? compare_copies(b, s, call, out) : LS_OK);
    }
    LS_TRY(ls_device_read(&b->device, &state, b->state, (int64_t)sizeof state));
    if (state.step_count != STEPS - 1 && out->code == LS_PASS) {
        ls_verdict_fail(out, "%lld steps counted of %d calls, one of them skipped",
                        (long long)state.step_count, STEPS);
    }
    return check_guards(b, out);
}

static ls_bits_type bits_of(ls_dtype dtype)
{
    return dtype == LS_F16 ? LS_BITS_F16 : dtype == LS_BF16 ? LS_BITS_BF16 : LS_BITS_F32;
}

static void judge_rule(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct kernel *kernel = row->data;
    const struct storage *storage = kernel->storage;
    shadow s = {.rule = oracle_rule(&kernel->rule->config),
                .value = bits_of(storage->value),
                .copy = bits_of(storage->copy)};
    bench b;
    make_shadow(&s);
    ls_status status = open_bench(&b);
    LS_THEN(status, run_rule(&b, row, &s, out));
    close_bench(&b);
    free_shadow(&s);
    if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "the backend cannot run a step (%s)", ls_status_name(status));
    }
    ls_verdict_pass(out, STEPS * TENSORS,
                    "%d calls on %d tensors follow FP64, at most %.2f of the limit; the skipped "
                    "one changed nothing",
                    STEPS, TENSORS, out->value);
}

/* ---- clipping -------------------------------------------------------------------------------- */

static const struct clipping {
    const char *name;
    ls_clip_config config;
    bool overflows; /* under a dynamic scale */
} clippings[] = {
    {"norm", {.max_norm = 0.5}, false},
    {"norm-above", {.max_norm = 1e4}, false}, /* the gradients' is about 60 */
    {"value", {.max_value = 0.01}, false},
    {"measure", {0}, false},
    {"overflow", {.max_norm = 0.5}, true},
};

static const ls_tol clip_units =
    LS_TOL(3, "units of f32: the factor is rounded, and the product; the norm's sum is in double");

static ls_status run_clip(bench *b, const struct clipping *c, shadow *s, ls_verdict *out)
{
    const double u = 0x1p-24;
    LS_TRY(make_list(b, GRAD, TENSORS, sizes, LS_F32));
    LS_TRY(write_gradients(b, s, 1));
    /* a scale that must have no influence: the gradients are unscaled */
    ls_step_state state = {.loss_scale = 512, .overflow = c->overflows ? 1 : 0};
    LS_TRY(write_state(b, &state));
    ls_tensor_list grads = {TENSORS, b->list[GRAD]};
    LS_TRY(b->device.api->clip(b->device.backend, b->device.stream, &c->config, grads, true,
                               b->state));
    LS_TRY(ls_device_read(&b->device, &state, b->state, (int64_t)sizeof state));
    double norm = sqrt(s->rule.grad_squares), factor = c->config.max_norm / (norm + 1e-6);
    factor = c->config.max_norm == 0 || factor > 1 || c->overflows ? 1 : factor;
    if (c->overflows ? !isnan(state.grad_norm)
                     : !(fabs((double)state.grad_norm - norm) <= clip_units.value * u * norm)) {
        ls_verdict_fail(out, "the norm is %.9g, FP64 %.9g", (double)state.grad_norm, norm);
    }
    for (int i = 0; i < TENSORS; i++) {
        LS_TRY(ls_device_read_f32(&b->device, &b->list[GRAD][i], s->host));
        for (int64_t j = 0; j < sizes[i]; j++) {
            double want = s->tensor[i].grad[j] * factor, most = (double)(float)c->config.max_value;
            want = most > 0 && fabs(want) > most ? copysign(most, want) : want;
            double limit = factor == 1 ? 0 : clip_units.value * u * fabs(want) + 0x1p-149;
            double off = fabs((double)s->host[j] - want);
            if (!(off <= limit)) {
                ls_verdict_fail(out, "tensor %d of %d elements, element %d: %.9g, FP64 %.9g", i,
                                (int)sizes[i], (int)j, (double)s->host[j], want);
            }
        }
    }
    return check_guards(b, out);
}

static void judge_clip(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    shadow s = {0};
    bench b;
    make_shadow(&s);
    ls_status status = open_bench(&b);
    LS_THEN(status, run_clip(&b, row->data, &s, out));
    close_bench(&b);
    free_shadow(&s);
    if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "the backend cannot clip (%s)", ls_status_name(status));
    }
    ls_verdict_pass(out, TENSORS, "%d tensors follow FP64", TENSORS);
}

/* ---- golden steps -----------------------------------------------------------------------------
 */

/* Single steps that torch 1.13 printed, or that FP64 gave for Apex's rules. */
static const ls_tol digits = LS_TOL(
    1e-6, "relative, of values near 1: nine printed digits, and at most four steps of ten f32 "
          "roundings, 4 * 10 * 2^-24 = 2.4e-6 at worst and a sixth of it as a random walk");

typedef struct golden {
    const char *name, *requirement;
    ls_optimizer_config config;
    double lr;
    int elements, steps;
    double start[2], grad[4][2]; /* [step][element] */
    double want[4][2];           /* after each step; all 0: unknown */
} golden;

#define ONE .lr = .125, .elements = 1, .steps = 3, .start = {1}
#define SGD_ROW ONE, .grad = {{1}, {.5}, {-1}}
#define ADAM_ROW ONE, .grad = {{1}, {.5}, {-2}}
#define APEX_BETAS .beta1 = .5, .beta2 = .75, .epsilon = .0625
#define LAMB_ROW .lr = .125, .elements = 2, .steps = 2, .start = {3, 4}, .grad = {{3, 4}, {.5, 0}}
#define LAMB_RULE .kind = LS_OPTIMIZER_LAMB, APEX_BETAS, .max_grad_norm = 1
#define TORCH_ROW                                \
    .elements = 2, .steps = 4, .start = {1, -2}, \
    .grad = {{.1, -.2}, {.2, -.2}, {.3, -.2}, {.4, -.2}}
#define TORCH_BETAS .beta1 = .9, .beta2 = .999, .epsilon = 1e-8

#define RULE(...)   \
    {               \
        __VA_ARGS__ \
    }
#define GOLDEN(name, requirement, config, ...) \
    {                                          \
        name, requirement, config, __VA_ARGS__ \
    }

static const golden goldens[] = {
    GOLDEN("apex.sgd", "Z8", RULE(.kind = LS_OPTIMIZER_SGD), SGD_ROW,
           .want = {{.875}, {.8125}, {.9375}}),
    GOLDEN("apex.sgd.momentum", "Z8", RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5), SGD_ROW,
           .want = {{.875}, {.75}, {.8125}}),
    GOLDEN("apex.sgd.nesterov", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5, .nesterov = true), SGD_ROW,
           .want = {{.8125}, {.6875}, {.84375}}),
    GOLDEN("apex.sgd.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5, .weight_decay = .25), SGD_ROW,
           .want = {{.84375}, {.6767578125}, {.697113037109375}}),
    GOLDEN("apex.sgd.nesterov-decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .5, .weight_decay = .25, .nesterov = true),
           SGD_ROW, .want = {{.765625}, {.596923828125}, {.7153053283691406}}),
    GOLDEN("apex.adam", "Z8", RULE(.kind = LS_OPTIMIZER_ADAM, APEX_BETAS), ADAM_ROW,
           .want = {{.882352941}, {.780531844}, {.852165903}}),
    GOLDEN("apex.adam.uncorrected", "Z8",
           RULE(.kind = LS_OPTIMIZER_ADAM, APEX_BETAS, .uncorrected = true), ADAM_ROW,
           .want = {{.888888889}, {.777777778}, {.859142113}}),
    GOLDEN("apex.adamw", "Z8", RULE(.kind = LS_OPTIMIZER_ADAMW, APEX_BETAS, .weight_decay = .5),
           ADAM_ROW, .want = {{.819852941}, {.666791035}, {.696750654}}),
    GOLDEN("apex.adam.l2", "Z8", RULE(.kind = LS_OPTIMIZER_ADAM, APEX_BETAS, .weight_decay = .5),
           ADAM_ROW, .want = {{.88}, {.769508305}, {.807107922}}),
    GOLDEN("apex.lamb", "Z8", RULE(LAMB_RULE), LAMB_ROW, .want = {{0}, {2.777072610, 3.827196782}}),
    GOLDEN("apex.lamb.nvlamb", "Z8", RULE(LAMB_RULE, .nvlamb = true), LAMB_ROW,
           .want = {{0}, {2.077148979, 3.300840815}}),
    GOLDEN("apex.lamb.decay", "Z8", RULE(LAMB_RULE, .weight_decay = .5), LAMB_ROW,
           .want = {{0}, {2.219451295, 3.127367950}}),
    GOLDEN("apex.lamb.l2", "Z8", RULE(LAMB_RULE, .weight_decay = .5, .l2 = true), LAMB_ROW,
           .want = {{0}, {2.163562520, 3.178162214}}),
    /* as small as eps: nothing may be added to the norm, as torch's clip_grad_norm_ adds 1e-6 */
    GOLDEN("apex.lamb.small", "Z8",
           RULE(.kind = LS_OPTIMIZER_LAMB, .beta1 = .5, .beta2 = .75, .epsilon = 1e-6,
                .max_grad_norm = 1e-6),
           .lr = .125, .elements = 2, .steps = 2, .start = {3, 4},
           .grad = {{3e-6, 4e-6}, {.5e-6, 0}},
           .want = {{2.953125, 3.944444444}, {2.909978073, 3.922568201}}),
    GOLDEN("torch.sgd", "Z8", RULE(.kind = LS_OPTIMIZER_SGD), TORCH_ROW, .lr = .1,
           .want = {{0}, {0}, {0}, {.9, -1.92}}),
    GOLDEN("torch.sgd.momentum", "Z8", RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .9), TORCH_ROW,
           .lr = .1, .want = {{0}, {0}, {0}, {.81441, -1.81902}}),
    GOLDEN("torch.sgd.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .9, .weight_decay = .01), TORCH_ROW, .lr = .1,
           .want = {{0}, {0}, {0}, {.805571046311, -1.801226112622}}),
    GOLDEN("torch.sgd.nesterov-decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_SGD, .momentum = .9, .weight_decay = .01, .nesterov = true),
           TORCH_ROW, .lr = .1, .want = {{0}, {0}, {0}, {.721377136562, -1.733584050304}}),
    GOLDEN("torch.adam", "Z8", RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS), TORCH_ROW, .lr = .01,
           .want = {{0}, {0}, {0}, {.961164067213, -1.960000002}}),
    GOLDEN("torch.adam.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS, .weight_decay = .1), TORCH_ROW, .lr = .01,
           .want = {{0}, {0}, {0}, {.960331120814, -1.96000572487}}),
    GOLDEN("torch.adamw", "Z8", RULE(.kind = LS_OPTIMIZER_ADAMW, TORCH_BETAS, .weight_decay = .01),
           TORCH_ROW, .lr = .01, .want = {{0}, {0}, {0}, {.960770015177, -1.959206121592}}),
    GOLDEN("torch.adamw.decay", "Z8",
           RULE(.kind = LS_OPTIMIZER_ADAMW, TORCH_BETAS, .weight_decay = .1), TORCH_ROW, .lr = .01,
           .want = {{0}, {0}, {0}, {.95722890722, -1.952071954009}}),
    /* apex/parallel/LARC.py by hand: a = .5 * 5 / (1 + .25 * 5) = 10/9, g' = (.6 + .75, .8 + 1) * a
     * = (1.5, 2); in clip mode a / lr = 80/9 is cut to 1 */
    GOLDEN("apex.larc", "Z8",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-12, .trust = .5),
           .lr = .125, .elements = 2, .steps = 1, .start = {3, 4}, .grad = {{.6, .8}},
           .want = {{2.8125, 3.75}}),
    GOLDEN("apex.larc.clip", "Z8",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-12, .trust = .5,
                .clip = true),
           .lr = .125, .elements = 2, .steps = 1, .start = {3, 4}, .grad = {{.6, .8}},
           .want = {{2.83125, 3.775}}),
    /* a tensor of zeros has no ratio: lr 1/8 as it is, and no decay */
    GOLDEN("lars.zero-value", "Z9",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-8, .trust = .5),
           .lr = .125, .elements = 2, .steps = 1, .start = {0, 0}, .grad = {{.5, -2}},
           .want = {{-.0625, .25}}),
    GOLDEN("lars.zero-grad", "Z9",
           RULE(.kind = LS_OPTIMIZER_LARS, .weight_decay = .25, .epsilon = 1e-8, .trust = .5),
           .lr = .125, .elements = 2, .steps = 1, .start = {3, 4}, .grad = {{0, 0}},
           .want = {{3, 4}}),
    /* m/bc1 = .5 and v/bc2 = .25, u = .5/.5625 = 8/9 */
    GOLDEN("lamb.zero-value", "Z9", RULE(LAMB_RULE, .nvlamb = true), .lr = .125, .elements = 1,
           .steps = 1, .start = {0}, .grad = {{.5}}, .want = {{-1.0 / 9}}),
    GOLDEN("lamb.no-decay", "Z9", RULE(LAMB_RULE), .lr = .125, .elements = 1, .steps = 1,
           .start = {100}, .grad = {{.5}}, .want = {{100 - 1.0 / 9}}),
    /* G = .5 < 1: the gradient stays; above, 5 is cut to 1: u = 1/1.0625 */
    GOLDEN("lamb.below-max-norm", "Z9", RULE(LAMB_RULE), .lr = .125, .elements = 1, .steps = 1,
           .start = {1}, .grad = {{5}}, .want = {{1 - .125 / 1.0625}}),
    GOLDEN("adam.zero-grad", "Z9", RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS), .lr = .125,
           .elements = 2, .steps = 3, .start = {1, -2}, .want = {{1, -2}, {1, -2}, {1, -2}}),
    /* sqrt(v) = 1e-10 is a hundredth of eps: u = 1e-10 / 1.01e-8 with eps outside the root */
    GOLDEN("adam.small-grad", "Z9", RULE(.kind = LS_OPTIMIZER_ADAM, TORCH_BETAS), .lr = .125,
           .elements = 1, .steps = 1, .start = {1}, .grad = {{1e-10}},
           .want = {{1 - .125 * 1e-10 / 1.01e-8}}),
};

static ls_status run_golden(bench *b, const golden *g, int *compared, ls_verdict *out)
{
    int64_t count = g->elements;
    for (int k = VALUE; k < COPY; k++) {
        LS_TRY(make_list(b, k, 1, &count, LS_F32));
    }
    float value[2] = {(float)g->start[0], (float)g->start[1]}, got[2];
    LS_TRY(ls_device_write_f32(&b->device, &b->list[VALUE][0], value));
    ls_step_state state = {.loss_scale = 1, .inv_loss_scale = 1, .lr = (float)g->lr};
    LS_TRY(write_state(b, &state));
    for (int t = 0; t < g->steps; t++) {
        float grad[2] = {(float)g->grad[t][0], (float)g->grad[t][1]};
        LS_TRY(ls_device_write_f32(&b->device, &b->list[GRAD][0], grad));
        LS_TRY(step_bench(b, &g->config, true));
        LS_TRY(ls_device_read_f32(&b->device, &b->list[VALUE][0], got));
        bool known = g->want[t][0] != 0 || g->want[t][1] != 0;
        for (int i = 0; i < g->elements && known; i++, ++*compared) {
            double off = fabs((double)got[i] - g->want[t][i]) / fmax(1, fabs(g->want[t][i]));
            if (!ls_verdict_worst(out, off, &digits, "relative")) {
                ls_verdict_fail(out, "element %d after step %d: %.9g, expected %.9g", i, t + 1,
                                (double)got[i], g->want[t][i]);
            }
        }
    }
    return LS_OK;
}

static void judge_golden(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    bench b;
    int compared = 0;
    ls_status status = open_bench(&b);
    LS_THEN(status, run_golden(&b, row->data, &compared, out));
    close_bench(&b);
    if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "the backend cannot run a step (%s)", ls_status_name(status));
    }
    ls_verdict_pass(out, compared, "the printed values, at most %.1e off", out->value);
}

/* ---- rows ------------------------------------------------------------------------------------ */

void ls_optim_inside_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        for (size_t k = 0; k < sizeof storages / sizeof *storages; k++) {
            struct kernel *kernel = ls_rows_memory(list, sizeof *kernel);
            const ls_row row = {.requirement = "Z10", .judge = judge_rule, .data = kernel};
            *kernel = (struct kernel){&rules[i], &storages[k]};
            ls_rows_format(list, settings, &row, "optim.kernel.%s.%s", rules[i].name,
                           storages[k].name);
        }
    }
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "Z14", .judge = judge_clip}),
                 "optim.kernel.clip.%s", clippings);
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        const ls_row row = {
            .requirement = goldens[i].requirement, .judge = judge_golden, .data = &goldens[i]};
        ls_rows_format(list, settings, &row, "optim.golden.%s", goldens[i].name);
    }
}

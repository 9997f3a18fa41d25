/* The backend's optimizer step by itself: every rule against FP64 over several steps, on tensors of
 * awkward sizes that stand one element off alignment with guards between them. */
#include <math.h>
#include <stdlib.h>

#include "kernels/optimizers.h"
#include "kernels/core/text.h"
#include "kernels/core/rng.h"
#include "kernels/core/list.h"
#include "reference/oracle/bits.h"
#include "reference/oracle/update.h"
#include "optim_bench.h"
#include "suite/cases/rows.h"

static const ls_tol order =
    LS_TOL(2, "f32's errors of this formula in one order of its operations, and as much again for "
              "another order");

static const ls_tol within = LS_TOL(1, "f32's errors of this formula, in two orders of it");

static const int64_t sizes[LS_OPTIM_BENCH_TENSORS] = {1, 0, 513, 7, 40001, 64, 17};

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
    ls_update_tensor tensor[LS_OPTIM_BENCH_TENSORS];
    double *block[LS_OPTIM_BENCH_TENSORS];
    float *host; /* one tensor */
    ls_bits_type value, copy;
} shadow;

static void make_shadow(shadow *s)
{
    for (int i = 0; i < LS_OPTIM_BENCH_TENSORS; i++) {
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
    for (int i = 0; i < LS_OPTIM_BENCH_TENSORS; i++) {
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

static ls_status write_start(ls_optim_bench *b, shadow *s)
{
    for (int i = 0; i < LS_OPTIM_BENCH_TENSORS; i++) {
        for (int64_t j = 0; j < sizes[i]; j++) {
            s->tensor[i].value[j] = ls_bits_round(s->value, (double)drawn(0, i, j));
            s->host[j] = (float)s->tensor[i].value[j];
        }
        LS_TRY(ls_device_write_f32(&b->device, &b->list[LS_OPTIM_BENCH_VALUE][i], s->host));
    }
    return LS_OK;
}

static ls_status write_gradients(ls_optim_bench *b, shadow *s, int step)
{
    s->rule.grad_squares = 0;
    s->rule.grad_elements = 0;
    for (int i = 0; i < LS_OPTIM_BENCH_TENSORS; i++) {
        double *grad = s->block[i] + 6 * sizes[i];
        for (int64_t j = 0; j < sizes[i]; j++) {
            s->host[j] = drawn(step, i, j);
            grad[j] = (double)s->host[j];
        }
        s->rule.grad_squares += ls_update_squares(grad, sizes[i]);
        s->rule.grad_elements += sizes[i];
        LS_TRY(ls_device_write_f32(&b->device, &b->list[LS_OPTIM_BENCH_GRAD][i], s->host));
    }
    return LS_OK;
}

static ls_status compare_list(ls_optim_bench *b, shadow *s, int k, int step, ls_verdict *out)
{
    static const char *const names[] = {"value", "gradient", "first moment", "second moment"};
    bool half = k == LS_OPTIM_BENCH_VALUE && s->value != LS_BITS_F32;
    for (int i = 0; i < LS_OPTIM_BENCH_TENSORS; i++) {
        ls_update_tensor *t = &s->tensor[i];
        double *want = k == LS_OPTIM_BENCH_VALUE  ? t->value
                       : k == LS_OPTIM_BENCH_GRAD ? s->block[i] + 6 * sizes[i]
                                                  : t->moment[k - LS_OPTIM_BENCH_FIRST];
        double *error =
            k == LS_OPTIM_BENCH_VALUE
                ? t->value_error
                : t->moment_error[k - LS_OPTIM_BENCH_FIRST < 0 ? 0 : k - LS_OPTIM_BENCH_FIRST];
        LS_TRY(ls_device_read_f32(&b->device, &b->list[k][i], s->host));
        for (int64_t j = 0; j < sizes[i]; j++) {
            double got = (double)s->host[j],
                   limit = k == LS_OPTIM_BENCH_GRAD ? 0 : order.value * error[j];
            limit += half ? ls_bits_unit(s->value) * fabs(want[j]) + ls_bits_tiny(s->value) : 0;
            double off = fabs(got - want[j]);
            if (k != LS_OPTIM_BENCH_GRAD && limit > 0) {
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
static ls_status compare_copies(ls_optim_bench *b, const shadow *s, int step, ls_verdict *out)
{
    float *value = ls_list_make(1, (size_t)sizes[4] * sizeof *value);
    ls_status status = LS_OK;
    for (int i = 0; i < LS_OPTIM_BENCH_TENSORS && status == LS_OK; i++) {
        status = ls_device_read_f32(&b->device, &b->list[LS_OPTIM_BENCH_VALUE][i], value);
        LS_THEN(status, ls_device_read_f32(&b->device, &b->list[LS_OPTIM_BENCH_COPY][i], s->host));
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
static ls_status check_guards(ls_optim_bench *b, ls_verdict *out)
{
    for (int k = 0; k < LS_OPTIM_BENCH_LISTS; k++) {
        for (int i = 0; i < LS_OPTIM_BENCH_TENSORS && b->block[k] != NULL; i++) {
            ls_tensor t = b->list[k][i];
            ls_tensor guard = {(char *)t.data + ls_tensor_bytes(&t), t.dtype, LS_OPTIM_BENCH_GUARD};
            float value[LS_OPTIM_BENCH_GUARD];
            LS_TRY(ls_device_read_f32(&b->device, &guard, value));
            for (int j = 0; j < LS_OPTIM_BENCH_GUARD; j++) {
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

static ls_status run_rule(ls_optim_bench *b, const ls_case *row, shadow *s, ls_verdict *out)
{
    const struct kernel *kernel = row->data;
    const struct storage *storage = kernel->storage;
    const ls_optimizer_config *config = &kernel->rule->config;
    int moments = ls_update_moments(&s->rule);
    LS_TRY(ls_optim_bench_make_list(b, LS_OPTIM_BENCH_VALUE, LS_OPTIM_BENCH_TENSORS, sizes,
                                    storage->value));
    LS_TRY(ls_optim_bench_make_list(b, LS_OPTIM_BENCH_GRAD, LS_OPTIM_BENCH_TENSORS, sizes, LS_F32));
    for (int m = 0; m < moments; m++) {
        LS_TRY(ls_optim_bench_make_list(b, LS_OPTIM_BENCH_FIRST + m, LS_OPTIM_BENCH_TENSORS, sizes,
                                        LS_F32));
    }
    if (storage->copies) {
        LS_TRY(ls_optim_bench_make_list(b, LS_OPTIM_BENCH_COPY, LS_OPTIM_BENCH_TENSORS, sizes,
                                        storage->copy));
    }
    LS_TRY(write_start(b, s));
    ls_step_state state = {.loss_scale = 1, .inv_loss_scale = 1, .lr = 1e-2f};
    LS_TRY(ls_optim_bench_write_state(b, &state));
    for (int call = 1; call <= STEPS && out->code == LS_PASS; call++) {
        LS_TRY(write_gradients(b, s, call));
        LS_TRY(ls_device_read(&b->device, &state, b->state, (int64_t)sizeof state));
        state.overflow = call == SKIPPED ? 1 : 0;
        LS_TRY(ls_optim_bench_write_state(b, &state));
        LS_TRY(ls_optim_bench_step(b, config, true));
        s->rule.step = call - (call > SKIPPED ? 1 : 0);
        for (int i = 0; i < LS_OPTIM_BENCH_TENSORS && call != SKIPPED; i++) {
            LS_TRY(ls_update_step(&s->rule, &s->tensor[i]));
        }
        for (int k = LS_OPTIM_BENCH_VALUE; k < LS_OPTIM_BENCH_FIRST + moments; k++) {
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
    ls_optim_bench b;
    make_shadow(&s);
    ls_status status = ls_optim_bench_open(&b);
    LS_THEN(status, run_rule(&b, row, &s, out));
    ls_optim_bench_close(&b);
    free_shadow(&s);
    if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "the backend cannot run a step (%s)", ls_status_name(status));
    }
    ls_verdict_pass(out, STEPS * LS_OPTIM_BENCH_TENSORS,
                    "%d calls on %d tensors follow FP64, at most %.2f of the limit; the skipped "
                    "one changed nothing",
                    STEPS, LS_OPTIM_BENCH_TENSORS, out->value);
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

static ls_status run_clip(ls_optim_bench *b, const struct clipping *c, shadow *s, ls_verdict *out)
{
    const double u = 0x1p-24;
    LS_TRY(ls_optim_bench_make_list(b, LS_OPTIM_BENCH_GRAD, LS_OPTIM_BENCH_TENSORS, sizes, LS_F32));
    LS_TRY(write_gradients(b, s, 1));
    /* a scale that must have no influence: the gradients are unscaled */
    ls_step_state state = {.loss_scale = 512, .overflow = c->overflows ? 1 : 0};
    LS_TRY(ls_optim_bench_write_state(b, &state));
    ls_tensor_list grads = {LS_OPTIM_BENCH_TENSORS, b->list[LS_OPTIM_BENCH_GRAD]};
    LS_TRY(b->device.api->clip(b->device.backend, b->device.stream, &c->config, grads, true,
                               b->state));
    LS_TRY(ls_device_read(&b->device, &state, b->state, (int64_t)sizeof state));
    double norm = sqrt(s->rule.grad_squares), factor = c->config.max_norm / (norm + 1e-6);
    factor = c->config.max_norm == 0 || factor > 1 || c->overflows ? 1 : factor;
    if (c->overflows ? !isnan(state.grad_norm)
                     : !(fabs((double)state.grad_norm - norm) <= clip_units.value * u * norm)) {
        ls_verdict_fail(out, "the norm is %.9g, FP64 %.9g", (double)state.grad_norm, norm);
    }
    for (int i = 0; i < LS_OPTIM_BENCH_TENSORS; i++) {
        LS_TRY(ls_device_read_f32(&b->device, &b->list[LS_OPTIM_BENCH_GRAD][i], s->host));
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
    ls_optim_bench b;
    make_shadow(&s);
    ls_status status = ls_optim_bench_open(&b);
    LS_THEN(status, run_clip(&b, row->data, &s, out));
    ls_optim_bench_close(&b);
    free_shadow(&s);
    if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "the backend cannot clip (%s)", ls_status_name(status));
    }
    ls_verdict_pass(out, LS_OPTIM_BENCH_TENSORS, "%d tensors follow FP64", LS_OPTIM_BENCH_TENSORS);
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
}

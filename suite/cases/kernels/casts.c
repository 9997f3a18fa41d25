/* Which operation sees which type (numerics.md section 1): weights cast once per step and never
 * stale, batch norm's parameters left in f32, activations and gradients rounded once, the loss and
 * the loss scale's product in f32. Shown by what changes when an operand is rounded beforehand. */
#include <math.h>
#include <string.h>

#include "kernels/core/rng.h"
#include "kernels/core/list.h"
#include "suite/cases/rows.h"
#include "reference/explain/explain.h"
#include "reference/oracle/bits.h"
#include "suite/inside/inside.h"
#include "suite/inside/kernel.h"

enum { LOGITS = 10, BATCH = 2, PIXELS = 16, IMAGE = 3 * PIXELS * PIXELS };

typedef struct kind {
    const char *name;
    ls_dtype type;
} kind;

static const kind kinds[] = {{"fp16", LS_F16}, {"bf16", LS_BF16}, {"f32", LS_F32}};

enum { KINDS = 3 };

/* ---- a network whose every tensor a case may look at and change ----------------------------- */

/* A resnet8 of ten classes for images of 16 x 16 pixels on the CPU's backend; parameters are f32.
 */
typedef struct net {
    ls_kernel_net network;
    ls_kernel_subject s;
    ls_verdict *verdict;
} net;

static void must(net *n, ls_status status, const char *call)
{
    if (status != LS_OK) {
        ls_verdict_fail(n->verdict, "%s failed: %s", call, ls_status_name(status));
    }
}

/* Of the plan: it is told that parameters have changed. */
static void changed(net *n)
{
    must(n, n->s.api->plan_params_changed(n->s.plan, n->s.stream), "plan_params_changed");
}

static bool open_net(net *n, ls_dtype activation, int batch, uint64_t seed, ls_verdict *out)
{
    ls_kernel_net *w = &n->network;
    n->verdict = out;
    ls_kernel_net_start(w);
    int x = ls_kernel_net_relu(w, ls_kernel_net_norm(w, ls_kernel_net_conv(w, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_block(w, x, 16, 1, 'A');
    x = ls_kernel_net_block(w, x, 32, 2, 'A');
    ls_kernel_net_finish(w, ls_kernel_net_block(w, x, 64, 2, 'A'), LOGITS);
    ls_kernel_subject_options options = {.device = "cpu",
                                         .batch = batch,
                                         .height = PIXELS,
                                         .width = PIXELS,
                                         .threads = 1,
                                         .activation = activation,
                                         .seed = seed};
    ls_status status = ls_kernel_subject_make(w, &options, &n->s);
    if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "no plan: %s", ls_status_name(status));
        return false;
    }
    changed(n);
    return true;
}

static void close_net(net *n)
{
    ls_kernel_subject_free(&n->s);
}

/* The last parameter of that role. */
static int find(const net *n, ls_param_role role)
{
    int found = -1;
    for (int i = 0; i < n->network.network.param_count; i++) {
        found = n->network.param[i].role == role ? i : found;
    }
    LS_ASSERT(found >= 0);
    return found;
}

/* A tensor's f32 values, for the caller to free. */
static float *values_of(net *n, const ls_tensor *tensor)
{
    float *value = ls_list_make(1, (size_t)tensor->count * sizeof *value);
    must(n,
         n->s.api->copy_out(n->s.backend, n->s.stream, value, tensor->data,
                            (int64_t)ls_tensor_bytes(tensor)),
         "copy_out");
    must(n, n->s.api->stream_wait(n->s.stream), "copy_out");
    return value;
}

static void set_param(net *n, int param, const float *value)
{
    const ls_tensor *tensor = &n->s.param[param];
    must(n,
         n->s.api->copy_in(n->s.backend, n->s.stream, tensor->data, value,
                           (int64_t)ls_tensor_bytes(tensor)),
         "copy_in");
    must(n, n->s.api->stream_wait(n->s.stream), "copy_in");
}

static void draw_input(net *n, uint64_t seed)
{
    for (int i = 0; i < n->s.options.batch * IMAGE; i++) {
        n->s.input[i] = ls_rng_normal(seed, 77, (uint64_t)i);
    }
    for (int i = 0; i < n->s.options.batch; i++) {
        n->s.target[i] = ls_rng_below(seed, 78, (uint64_t)i, LOGITS);
    }
}

static ls_status ready(void *context, int param)
{
    (void)context, (void)param;
    return LS_OK;
}

/* Forward, and backward of loss * scale * factor, with parameters as the plan knows them; the loss.
 */
static float run_net(net *n, float scale, float factor)
{
    const ls_backend_api *api = n->s.api;
    ls_step_state state = {0};
    must(n, ls_kernel_subject_set_scale(&n->s, scale), "copy_in");
    must(n, api->plan_forward(n->s.plan, n->s.stream, n->s.input, n->s.target), "plan_forward");
    must(n, api->plan_backward(n->s.plan, n->s.stream, factor, ready, NULL), "plan_backward");
    must(n, ls_kernel_subject_get_state(&n->s, &state), "copy_out");
    return state.loss;
}

/* Rounded on the bits of the double, by the oracle's rules. */
static float rounded(ls_dtype type, float value)
{
    ls_bits_type bits = type == LS_F16 ? LS_BITS_F16 : type == LS_BF16 ? LS_BITS_BF16 : LS_BITS_F32;
    return (float)ls_bits_round(bits, (double)value);
}

/* Everything a run leaves, as f32. */
typedef struct result {
    float loss, logits[BATCH * LOGITS];
    float *grad[LS_KERNEL_NET_PARAMS];
    int count;
} result;

static result run(net *n, float scale)
{
    result r = {.count = n->network.network.param_count};
    r.loss = run_net(n, scale, 1.0f);
    must(n,
         n->s.api->plan_export(n->s.plan, n->s.stream, LS_EXPORT_LOGITS, 0, r.logits,
                               (int64_t)sizeof r.logits),
         "plan_export");
    for (int i = 0; i < r.count; i++) {
        r.grad[i] = values_of(n, &n->s.grad[i]);
    }
    return r;
}

static void drop(result *r)
{
    for (int i = 0; i < r->count; i++) {
        free(r->grad[i]);
    }
}

static bool same_logits(const result *a, const result *b)
{
    return memcmp(a->logits, b->logits, sizeof a->logits) == 0;
}

/* Logits and all gradients have the same bits. */
static bool same(const net *n, const result *a, const result *b)
{
    bool equal = same_logits(a, b);
    for (int i = 0; i < a->count; i++) {
        size_t bytes = (size_t)n->s.grad[i].count * sizeof(float);
        equal = equal && memcmp(a->grad[i], b->grad[i], bytes) == 0;
    }
    return equal;
}

/* Whether the parameter is among those a row is about. */
static bool concerns(const ls_param *param, const char *what)
{
    if (strcmp(what, "conv") == 0) {
        return param->role == LS_PARAM_CONV_WEIGHT;
    }
    if (strcmp(what, "linear") == 0) {
        return param->role == LS_PARAM_LINEAR_WEIGHT || param->role == LS_PARAM_LINEAR_BIAS;
    }
    bool weight = strcmp(what, "norm-bias") != 0, bias = strcmp(what, "norm-weight") != 0;
    return (weight && param->role == LS_PARAM_NORM_WEIGHT) ||
           (bias && param->role == LS_PARAM_NORM_BIAS);
}

/* Values that no 16-bit type holds, for batch norm's 1 and 0 too. */
static void unround(net *n)
{
    for (int i = 0; i < n->network.network.param_count; i++) {
        float *value = values_of(n, &n->s.param[i]);
        for (int64_t k = 0; k < n->s.param[i].count; k++) {
            value[k] = value[k] * 1.0003f + 0.00031f * (float)(k % 7);
        }
        set_param(n, i, value);
        free(value);
    }
    changed(n);
}

static void round_params(net *n, const char *what, ls_dtype type)
{
    for (int i = 0; i < n->network.network.param_count; i++) {
        float *value = values_of(n, &n->s.param[i]);
        for (int64_t k = 0; k < n->s.param[i].count && concerns(&n->network.param[i], what); k++) {
            value[k] = rounded(type, value[k]);
        }
        set_param(n, i, value);
        free(value);
    }
    changed(n);
}

/* Rounding these operands beforehand changes no bit where the operation rounds them itself, and
 * must change some where it does not. */
struct trial {
    ls_dtype type;       /* of activations */
    const char *operand; /* or NULL */
    uint64_t seed;
    void (*check)(net *n, const struct trial *trial, ls_verdict *out);
};

static void judge_trial(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct trial *trial = row->data;
    net n;
    (void)job;
    if (open_net(&n, trial->type, BATCH, trial->seed, out)) {
        trial->check(&n, trial, out);
        close_net(&n);
    }
}

/* The half type that values are compared with. */
static ls_dtype half_of(const struct trial *trial)
{
    return trial->type == LS_F32 ? LS_F16 : trial->type;
}

static void check_operand(net *n, const struct trial *trial, ls_verdict *out)
{
    const char *what = trial->operand;
    ls_dtype type = trial->type, half = half_of(trial);
    bool still = type != LS_F32 && strncmp(what, "norm", 4) != 0;
    unround(n);
    result before = run(n, 128.0f);
    if (strcmp(what, "input") == 0) {
        for (int i = 0; i < BATCH * IMAGE; i++) {
            n->s.input[i] = rounded(half, n->s.input[i]);
        }
    } else {
        round_params(n, what, half);
    }
    result after = run(n, 128.0f);
    /* where nothing is rounded, the forward alone must show it */
    bool equal = still ? same(n, &before, &after) : same_logits(&before, &after);
    if (equal != still) {
        ls_verdict_fail(out, "%s rounded to %s beforehand: the bits %s", what, ls_dtype_name(half),
                        equal ? "stay, so it was rounded" : "change");
    }
    ls_verdict_pass(out, still ? before.count + 1 : 1, "%s rounded to %s beforehand: %s", what,
                    ls_dtype_name(half),
                    still ? "logits and gradients keep every bit" : "the logits change");
    drop(&before);
    drop(&after);
}

/* ---- activations and gradients --------------------------------------------------------------- */

/* How many of the values are no value of that type. */
static int64_t strangers(ls_dtype type, const float *value, int64_t count)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        found += !(value[i] == rounded(type, value[i]));
    }
    return found;
}

static void check_activations(net *n, const struct trial *trial, ls_verdict *out)
{
    ls_dtype type = trial->type, half = half_of(trial);
    int stored = 0;
    ls_kernel_interpreter sizes; /* only for those of the layers */
    ls_kernel_interpreter_make(&sizes, &n->network, BATCH, PIXELS, PIXELS, LS_KERNEL_ROUND_NONE);
    result r = run(n, 128.0f);
    for (int i = 1; i < n->network.network.layer_count - 1; i++) {
        int64_t count = sizes.size[i].count;
        char text[300];
        ls_inside_capture capture = ls_inside_capture_begin(); /* it says what is fused away */
        float *value = ls_kernel_subject_activation(&n->s, i, count);
        ls_inside_capture_end(&capture, text, (int)sizeof text);
        if (value == NULL) {
            continue;
        }
        int64_t odd = strangers(half, value, count);
        stored++;
        if ((type == LS_F32) != (odd > 0)) {
            ls_verdict_fail(out, "%s: %lld of %lld elements are no %s", n->network.layer[i].name,
                            (long long)odd, (long long)count, ls_dtype_name(half));
        }
        free(value);
    }
    ls_kernel_interpreter_free(&sizes);
    if (stored == 0) {
        ls_verdict_set(out, LS_WEAK, "every layer is fused away");
    }
    ls_verdict_pass(out, stored, "%d stored layers are %s", stored, ls_dtype_name(type));
    drop(&r);
}

/* Gradients of products are made in the activation's type even where they are held in f32; batch
 * norm's are f32 throughout. */
static void check_gradients(net *n, const struct trial *trial, ls_verdict *out)
{
    ls_dtype type = trial->type, half = half_of(trial);
    result r = run(n, 128.0f);
    for (int i = 0; i < r.count; i++) {
        bool norm = concerns(&n->network.param[i], "norm");
        int64_t odd = strangers(half, r.grad[i], n->s.grad[i].count);
        if ((norm || type == LS_F32) != (odd > 0)) {
            ls_verdict_fail(out, "%s: %lld of %lld gradients are no %s", n->network.param[i].name,
                            (long long)odd, (long long)n->s.grad[i].count, ls_dtype_name(half));
        }
    }
    ls_verdict_pass(out, r.count, "%d gradients: products' are %s, batch norm's f32", r.count,
                    ls_dtype_name(type));
    drop(&r);
}

/* ---- the weights' cache ---------------------------------------------------------------------- */

/* What an optimizer's step does to the weights. */
static void step_weights(net *n)
{
    for (int i = 0; i < n->network.network.param_count; i++) {
        float *value = values_of(n, &n->s.param[i]);
        for (int64_t k = 0; k < n->s.param[i].count; k++) {
            value[k] += 0.01f * (float)(1 + k % 3);
        }
        set_param(n, i, value);
        free(value);
    }
}

/* A plan that ran before `changes` gives what a new plan gives that never knew other weights. */
static void compare_fresh(net *used, ls_dtype type, bool steps, uint64_t input, const char *when,
                          ls_verdict *out)
{
    net fresh;
    if (!open_net(&fresh, type, BATCH, 8, out)) {
        return;
    }
    if (steps) {
        step_weights(&fresh);
        changed(&fresh);
    }
    draw_input(&fresh, input);
    draw_input(used, input);
    result a = run(used, 128.0f), b = run(&fresh, 128.0f);
    if (!same(used, &a, &b)) {
        ls_verdict_fail(out, "%s: logit 0 is %.9g, a new plan's %.9g", when, (double)a.logits[0],
                        (double)b.logits[0]);
    }
    drop(&a);
    drop(&b);
    close_net(&fresh);
}

static void check_cache(net *n, const struct trial *trial, ls_verdict *out)
{
    ls_dtype type = trial->type;
    result r = run(n, 128.0f);
    compare_fresh(n, type, false, 81, "a second micro-step with the same weights", out);
    step_weights(n);
    changed(n);
    compare_fresh(n, type, true, 82, "the first forward behind a step", out);
    compare_fresh(n, type, true, 83, "the second forward behind a step", out);
    ls_verdict_pass(out, 3 * (r.count + 1),
                    "micro-steps and the forward behind a step see the weights of their time");
    drop(&r);
}

/* Cast once: until it is notified, a plan with half products does not look at the f32 weights
 * again. */
static void check_cast_once(net *n, const struct trial *trial, ls_verdict *out)
{
    (void)trial;
    result before = run(n, 128.0f);
    int conv = find(n, LS_PARAM_CONV_WEIGHT);
    float *value = values_of(n, &n->s.param[conv]);
    for (int64_t k = 0; k < n->s.param[conv].count; k++) {
        value[k] *= 2.0f;
    }
    set_param(n, conv, value);
    result before_notice = run(n, 128.0f);
    changed(n);
    result notified = run(n, 128.0f);
    bool first = same(n, &before, &before_notice), second = same(n, &before, &notified);
    if (!first || second) {
        ls_verdict_fail(out, "weights changed: the forward %s before it was notified, %s after",
                        first ? "did not see it" : "saw it", second ? "did not see it" : "saw it");
    }
    ls_verdict_pass(out, 2 * (before.count + 1),
                    "cast once, and again when the parameters have changed");
    free(value);
    drop(&before);
    drop(&before_notice);
    drop(&notified);
}

/* ---- loss and its scale ---------------------------------------------------------------------- */

/* Logits are the bias: the linear layer's weights are zero. */
static void bias_only(net *n, const float bias[LOGITS], int64_t target)
{
    int weight = find(n, LS_PARAM_LINEAR_WEIGHT);
    float *zero = ls_list_make((size_t)n->s.param[weight].count, sizeof *zero);
    set_param(n, weight, zero);
    set_param(n, find(n, LS_PARAM_LINEAR_BIAS), bias);
    free(zero);
    changed(n);
    for (int i = 0; i < n->s.options.batch; i++) {
        n->s.target[i] = target;
    }
}

/* Logits of 49152 and -49152: the loss is 98304, beyond fp16. */
static void check_loss(net *n, const struct trial *trial, ls_verdict *out)
{
    (void)trial;
    static const float bias[LOGITS] = {49152.0f, -49152.0f, 0, 0, 0, 0, 0, 0, 0, 0};
    bias_only(n, bias, 1);
    float loss = run_net(n, 1.0f, 1.0f);
    if (loss != 98304.0f) {
        ls_verdict_fail(out, "the loss is %.9g, expected 98304", (double)loss);
    }
    /* ten equal logits: ln(10), to f32 and not to a 16-bit type */
    static const float flat[LOGITS] = {0};
    bias_only(n, flat, 3);
    loss = run_net(n, 1.0f, 1.0f);
    static const ls_tol tol =
        LS_TOL(2.4e-7, "ln(10) is between 2 and 4: one unit in f32's last place");
    if (!(fabs((double)loss - log(10.0)) <= tol.value)) {
        ls_verdict_fail(out, "the loss of ten equal logits is %.9g, expected %.9g", (double)loss,
                        log(10.0));
    }
    ls_verdict_pass(out, 2, "98304 and ln(10), in f32");
}

/* One image, sure of class 0, target 1: the gradient of fc.bias is S, -S, and p * S elsewhere. */
typedef struct product {
    const char *name;
    int kind;
    float scale, factor;
    float expected; /* of class 0; INFINITY where it overflows */
} product;

static const product products[] = {
    {"fp16.largest", 0, 65504.0f, 1.0f, 65504.0f},
    {"fp16.rounds-down", 0, 65519.996f, 1.0f, 65504.0f},
    {"fp16.overflows", 0, 65520.0f, 1.0f, INFINITY},
    {"fp16.factor", 0, 131008.0f, 0.5f, 65504.0f},
    {"fp16.factor-overflows", 0, 131040.0f, 0.5f, INFINITY},
    {"bf16.beyond-fp16", 1, 16777216.0f, 1.0f, 16777216.0f},
    {"f32.beyond-fp16", 2, 16777216.0f, 1.0f, 16777216.0f},
};

static void judge_product(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const product *p = row->data;
    static const float bias[LOGITS] = {40.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    net n;
    if (!open_net(&n, kinds[p->kind].type, 1, 11, out)) {
        return;
    }
    bias_only(&n, bias, 1);
    run_net(&n, p->scale, p->factor);
    float *grad = values_of(&n, &n.s.grad[find(&n, LS_PARAM_LINEAR_BIAS)]);
    if (grad[0] != p->expected || grad[1] != -p->expected || !isfinite(grad[2])) {
        ls_verdict_fail(out, "S %.9g * %g: the gradients are %.9g, %.9g, %.9g", (double)p->scale,
                        (double)p->factor, (double)grad[0], (double)grad[1], (double)grad[2]);
    }
    ls_verdict_pass(out, 3, "S %.9g * %g gives %.9g", (double)p->scale, (double)p->factor,
                    (double)grad[0]);
    free(grad);
    close_net(&n);
}

/* p of 1.5e-8 vanishes in fp16 (half the smallest subnormal is 3e-8); times 65536 in f32 it stays.
 */
static void judge_rescue(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row, (void)job;
    static const float bias[LOGITS] = {18.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    net n;
    if (!open_net(&n, LS_F16, 1, 12, out)) {
        return;
    }
    double p = exp(-18.0) / (1.0 + 9.0 * exp(-18.0));
    static const ls_tol tol = LS_TOL(0x1p-20, "units of fp16 between 2^-10 and 2^-9: p in f32 may "
                                              "fall on the other side of one rounding");
    bias_only(&n, bias, 0);
    for (int scaled = 0; scaled < 2; scaled++) {
        run_net(&n, scaled ? 65536.0f : 1.0f, 1.0f);
        float *grad = values_of(&n, &n.s.grad[find(&n, LS_PARAM_LINEAR_BIAS)]);
        double expected = scaled ? p * 65536.0 : 0.0;
        if (!(fabs((double)grad[5] - expected) <= (scaled ? tol.value : 0.0))) {
            ls_verdict_fail(out, "S %d: the gradient is %.9g, expected %.9g", scaled ? 65536 : 1,
                            (double)grad[5], expected);
        }
        free(grad);
    }
    ls_verdict_pass(out, 2, "0 at S 1, %.3g at S 65536", p * 65536.0);
    close_net(&n);
}

/* ---- reported types -------------------------------------------------------------------------- */

/* numerics.md section 1, a line of `explain` each: held, gradient, reduced, master. */
static const struct table {
    const char *name, *arguments, *line[5];
} tables[] = {
    {"o0",
     "--opt-level O0",
     {"convolution weights      fp32       fp32       fp32       itself",
      "batch norm weight, bias  fp32       fp32       fp32       itself",
      "linear weight, bias      fp32       fp32       fp32       itself",
      "running statistics       fp32", "activations              fp32"}},
    {"o1",
     "--opt-level O1",
     {"convolution weights      fp32       fp32       fp32       itself",
      "batch norm weight, bias  fp32       fp32       fp32       itself",
      "linear weight, bias      fp32       fp32       fp32       itself",
      "Weights are cast to fp16 once per step", "activations              fp16"}},
    {"o2",
     "--opt-level O2",
     {"convolution weights      fp16       fp16       fp16       fp32",
      "batch norm weight, bias  fp32       fp32       fp32       itself",
      "linear weight, bias      fp16       fp16       fp16       fp32",
      "running statistics       fp32", "activations              fp16"}},
    {"o3",
     "--opt-level O3",
     {"convolution weights      fp16       fp16       fp16       none",
      "batch norm weight, bias  fp16       fp16       fp16       none",
      "linear weight, bias      fp16       fp16       fp16       none",
      "running statistics       fp16", "activations              fp16"}},
    {"o2.bf16",
     "--opt-level O2 --half bf16",
     {"convolution weights      bf16       bf16       bf16       fp32",
      "batch norm weight, bias  fp32       fp32       fp32       itself",
      "linear weight, bias      bf16       bf16       bf16       fp32",
      "running statistics       fp32", "activations              bf16"}},
    {"o2.allreduce-fp32",
     "--opt-level O2 --allreduce-fp32",
     {"convolution weights      fp16       fp16       fp32       fp32",
      "batch norm weight, bias  fp32       fp32       fp32       itself",
      "linear weight, bias      fp16       fp16       fp32       fp32",
      "running statistics       fp32", "activations              fp16"}},
    {"o3.masters",
     "--opt-level O3 --master-weights=True --keep-batchnorm-fp32=True",
     {"convolution weights      fp16       fp16       fp16       fp32",
      "batch norm weight, bias  fp32       fp32       fp32       itself",
      "linear weight, bias      fp16       fp16       fp16       fp32",
      "running statistics       fp32", "activations              fp16"}},
    {"o1.compressed",
     "--opt-level O1 --compress fp16",
     {"convolution weights      fp32       fp32       fp16       itself",
      "batch norm weight, bias  fp32       fp32       fp16       itself",
      "linear weight, bias      fp32       fp32       fp16       itself",
      "always                   fp32: logits, loss, unscaled gradients, moments",
      "activations              fp16"}},
};

static void judge_table(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct table *table = row->data;
    char *text = NULL;
    ls_status status = ls_inside_explain(2, &text, "-a resnet8 %s", table->arguments);
    if (status != LS_OK) {
        ls_verdict_fail(out, "explain %s: %s", table->arguments, ls_status_name(status));
    }
    for (size_t i = 0; i < sizeof table->line / sizeof *table->line && status == LS_OK; i++) {
        if (strstr(text, table->line[i]) == NULL) {
            ls_verdict_fail(out, "explain %s has no line \"%s\"", table->arguments, table->line[i]);
        }
    }
    ls_verdict_pass(out, sizeof table->line / sizeof *table->line,
                    "explain %s: the types of the table", table->arguments);
    free(text);
}

/* ---- rows ------------------------------------------------------------------------------------ */

void ls_casts_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_row rescue = {"casts.product.rescue", "A9", judge_rescue};
    static const struct {
        const char *id; /* with the operand, where there is one */
        struct trial trial;
        int types;
    } trials[] = {
        {"operand.conv", {.operand = "conv", .seed = 5, .check = check_operand}, KINDS},
        {"operand.linear", {.operand = "linear", .seed = 5, .check = check_operand}, KINDS},
        {"operand.norm-weight",
         {.operand = "norm-weight", .seed = 5, .check = check_operand},
         KINDS},
        {"operand.norm-bias", {.operand = "norm-bias", .seed = 5, .check = check_operand}, KINDS},
        {"operand.input", {.operand = "input", .seed = 5, .check = check_operand}, KINDS},
        {"activations", {.seed = 6, .check = check_activations}, KINDS},
        {"gradients", {.seed = 7, .check = check_gradients}, KINDS},
        {"cache", {.seed = 8, .check = check_cache}, KINDS},
        {"loss", {.seed = 10, .check = check_loss}, KINDS},
        {"once", {.seed = 9, .check = check_cast_once}, 2 /* not f32 */},
    };
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        for (int k = 0; k < trials[i].types; k++) {
            struct trial *trial = ls_rows_memory(list, sizeof *trial);
            const ls_row row = {.requirement = "A9", .judge = judge_trial, .data = trial};
            *trial = trials[i].trial;
            trial->type = kinds[k].type;
            ls_rows_format(list, settings, &row, "casts.%s.%s", trials[i].id, kinds[k].name);
        }
    }
    ls_rows_table(list, settings, &rescue, 1);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "A9", .judge = judge_product}),
                 "casts.product.%s", products);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "A9", .judge = judge_table}),
                 "casts.table.%s", tables);
}

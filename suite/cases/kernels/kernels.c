/* Operations of a backend in small networks against a plain double interpreter on the backend's own
 * branches: gradients by what ideal rounding costs, running statistics, the order in which
 * gradients are handed over, repeats. Inside cases: they call the backend through
 * kernels/kernels.h. */
#include "suite/cases/rows.h"

#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "suite/judge/compare.h"
#include "suite/inside/kernel.h"

/* ---- networks -------------------------------------------------------------------------------- */

typedef void build(ls_kernel_net *n);

static void build_basic(ls_kernel_net *n) /* a stem with pool, equal and projected blocks */
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 7, 2, 3)));
    x = ls_kernel_net_pool(n, x, 3, 2, 1);
    x = ls_kernel_net_block(n, x, 16, 1, 0);
    ls_kernel_net_finish(n, ls_kernel_net_block(n, x, 32, 2, 0), 7);
}

static void build_bottleneck(ls_kernel_net *n)
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_pool(n, x, 3, 2, 1);
    x = ls_kernel_net_bottleneck(n, x, 16, 1);
    x = ls_kernel_net_bottleneck(n, x, 16, 2);
    ls_kernel_net_finish(n, ls_kernel_net_bottleneck(n, x, 16, 1), 10);
}

static void build_padded(ls_kernel_net *n) /* option A shortcuts; 24 channels: no multiple of 16 */
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_block(n, x, 16, 1, 'A');
    x = ls_kernel_net_block(n, x, 24, 2, 'A');
    ls_kernel_net_finish(n, ls_kernel_net_block(n, x, 64, 2, 'A'), 10);
}

static void build_bare(ls_kernel_net *n) /* nothing fuses: ReLU, add and pool alone; 5 channels */
{
    ls_kernel_net_start(n);
    int a = ls_kernel_net_relu(n, ls_kernel_net_conv(n, 0, 5, 3, 1, 1));
    int b = ls_kernel_net_pool(n, a, 2, 2, 0);
    int c = ls_kernel_net_sum(n, ls_kernel_net_conv(n, b, 5, 3, 1, 1), b);
    int d = ls_kernel_net_relu(n, c);
    int e = ls_kernel_net_norm(n, ls_kernel_net_conv(n, d, 8, 1, 1, 0));
    int f = ls_kernel_net_sum(n, e, ls_kernel_net_conv(n, d, 8, 1, 1, 0)); /* add without ReLU */
    ls_kernel_net_finish(n, ls_kernel_net_pool(n, f, 2, 1, 1), 4);
}

static void build_tiny(ls_kernel_net *n) /* down to one pixel: a 3x3 is a matrix product there */
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 2, 1)));
    x = ls_kernel_net_block(n, x, 32, 2, 0);
    x = ls_kernel_net_block(n, x, 32, 1, 0);
    x = ls_kernel_net_block(n, x, 64, 2, 0);
    ls_kernel_net_finish(n, ls_kernel_net_block(n, x, 64, 1, 0), 10);
}

static const struct scene {
    const char *name;
    build *make;
    int batch, height, width;
} scenes[] = {
    {"basic", build_basic, 4, 24, 24},     {"bottleneck", build_bottleneck, 4, 12, 12},
    {"padded", build_padded, 4, 12, 12},   {"bare", build_bare, 3, 11, 9},
    {"tiny", build_tiny, 16, 16, 16},      {"odd-37x33", build_basic, 1, 37, 33},
    {"odd-19x27", build_basic, 3, 19, 27}, {"one-sample", build_basic, 1, 40, 40},
    {"wide-7x45", build_padded, 2, 7, 45},
};
enum { SCENES = sizeof scenes / sizeof *scenes };

static const struct form {
    const char *name;
    int level;
    ls_dtype activation, param, grad, norm;
    ls_kernel_rounding rounding;
} forms[] = {
    {"f32", 0, LS_F32, LS_F32, LS_F32, LS_F32, LS_KERNEL_ROUND_F32},
    {"o1.fp16", 1, LS_F16, LS_F32, LS_F32, LS_F32, LS_KERNEL_ROUND_F16},
    {"o2.fp16", 2, LS_F16, LS_F16, LS_F16, LS_F32, LS_KERNEL_ROUND_F16},
    {"o3.fp16", 3, LS_F16, LS_F16, LS_F16, LS_F16, LS_KERNEL_ROUND_F16},
    {"o1.bf16", 1, LS_BF16, LS_F32, LS_F32, LS_F32, LS_KERNEL_ROUND_BF16},
    {"o2.bf16", 2, LS_BF16, LS_BF16, LS_BF16, LS_F32, LS_KERNEL_ROUND_BF16},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* What is looked at. */
typedef struct look {
    const char *requirement, *name;
    /* s: the subjects, opened */
    void (*judge)(const struct form *form, ls_kernel_subject *s, ls_verdict *out);
    int subjects;
    double (*initial)(const ls_kernel_net *n, int p, int64_t i);
} look;

/* A look at one network in one form. */
struct trial {
    const look *look;
    const struct scene *scene;
    const struct form *form;
    int threads;
    bool twins; /* in a group of two ranks that have the same batch */
};

static const float scale_of_half = 128; /* what evidence runs use: no overflow, no underflow */

static ls_kernel_subject_options options_of(const ls_case *row)
{
    const struct trial *trial = row->data;
    const struct scene *scene = trial->scene;
    const struct form *form = trial->form;
    return (ls_kernel_subject_options){.device = row->device,
                                       .batch = scene->batch,
                                       .height = scene->height,
                                       .width = scene->width,
                                       .threads = trial->threads,
                                       .activation = form->activation,
                                       .param_type = form->param,
                                       .grad_type = form->grad,
                                       .norm_type = form->norm,
                                       .buffer_type = LS_F32,
                                       .initial = trial->look->initial};
}

/* A group of two ranks with the same batch: what this one says, the other says, too. */
static ls_status echo(void *context, ls_stream *stream, const float *mine, float *all,
                      int64_t count)
{
    const ls_kernel_subject *s = context;
    int64_t bytes = count * (int64_t)sizeof *mine;
    float *host = ls_list_make(1, (size_t)bytes);
    ls_status status = s->api->copy_out(s->backend, stream, host, mine, bytes);
    status = status == LS_OK ? s->api->stream_wait(stream) : status;
    for (int rank = 0; rank < 2 && status == LS_OK; rank++) {
        status = s->api->copy_in(s->backend, stream, all + rank * count, host, bytes);
    }
    status = status == LS_OK ? s->api->stream_wait(stream) : status;
    free(host);
    return status;
}

static bool start(const ls_case *row, const ls_kernel_net *net, ls_kernel_subject *s,
                  ls_verdict *out)
{
    ls_kernel_subject_options options = options_of(row);
    ls_norm_sync twins = {.group_size = 2, .context = s, .all_gather = echo};
    options.norm_sync = ((const struct trial *)row->data)->twins ? &twins : NULL;
    ls_status status = ls_kernel_subject_make(net, &options, s);
    if (status == LS_ERR_UNSUPPORTED) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the %s backend does not run this network so",
                       row->device);
    } else if (status != LS_OK) {
        ls_verdict_set(out, LS_INFRA, "no backend %s: %s", row->device, ls_status_name(status));
    }
    return status == LS_OK;
}

static void judge_trial(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct trial *trial = row->data;
    ls_kernel_net net;
    ls_kernel_subject s[2];
    int opened = 0;
    trial->scene->make(&net);
    while (opened < trial->look->subjects && start(row, &net, &s[opened], out)) {
        opened++;
    }
    if (opened == trial->look->subjects) {
        trial->look->judge(trial->form, s, out);
    }
    while (opened > 0) {
        ls_kernel_subject_free(&s[--opened]);
    }
}

static bool ran(ls_status status, const char *what, ls_verdict *out)
{
    if (status != LS_OK) {
        ls_verdict_fail(out, "%s failed: %s", what, ls_status_name(status));
    }
    return status == LS_OK;
}

/* ---- gradients ------------------------------------------------------------------------------- */

typedef struct pair { /* the same network in exact and in ideal arithmetic */
    ls_kernel_interpreter exact, ideal;
} pair;

/* A mirror after its forward; evaluates: with the subject's running statistics. */
static bool mirror(const ls_kernel_subject *s, ls_kernel_rounding type, bool evaluates,
                   ls_kernel_interpreter *t, ls_verdict *out)
{
    if (!ran(ls_kernel_subject_mirror(s, type, t), "export", out)) {
        return false;
    }
    t->evaluates = evaluates;
    for (int i = 0; evaluates && i < s->n->network.layer_count; i++) {
        const ls_layer *l = &s->n->layer[i];
        if (l->kind == LS_LAYER_BATCH_NORM) {
            double *mean = ls_kernel_subject_read(s, &s->buffer[l->running_mean]);
            double *var = ls_kernel_subject_read(s, &s->buffer[l->running_var]);
            LS_ASSERT(mean != NULL && var != NULL);
            memcpy(t->mean[i], mean, (size_t)l->channels * sizeof *mean);
            memcpy(t->variance[i], var, (size_t)l->channels * sizeof *var);
            free(mean);
            free(var);
        }
    }
    ls_kernel_interpreter_forward(t, s->target);
    return true;
}

static bool mirror_pair(const ls_kernel_subject *s, ls_kernel_rounding type, bool evaluates,
                        pair *p, ls_verdict *out)
{
    if (!mirror(s, LS_KERNEL_ROUND_NONE, evaluates, &p->exact, out)) {
        return false;
    }
    if (!mirror(s, type, evaluates, &p->ideal, out)) {
        ls_kernel_interpreter_free(&p->exact);
        return false;
    }
    return true;
}

static void free_pair(pair *p)
{
    ls_kernel_interpreter_free(&p->exact);
    ls_kernel_interpreter_free(&p->ideal);
}

static double distance(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    }
    return sqrt(sum);
}

static double norm_of(const double *a, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += a[i] * a[i];
    }
    return sqrt(sum);
}

static void judge_part(const char *name, double e, double r, ls_compare_bound bound,
                       ls_verdict *out)
{
    double ratio = e == 0 ? 0 : e / r;
    if (!ls_verdict_worst(out, ratio, &(const ls_tol){bound.factor, bound.why}, "x ideal")) {
        ls_verdict_fail(out, "%s: e=%.2e is %.1f x ideal rounding, limit=%g x", name, e, ratio,
                        bound.factor);
    }
}

static void judge_params(const ls_kernel_subject *s, const pair *p, int level, ls_verdict *out)
{
    const ls_compare_bound *bounds = ls_compare_bounds_of(level);
    const ls_network *w = &s->n->network;
    double whole = 0, whole_e = 0, whole_r = 0;
    int64_t all = 0;
    for (int k = 0; k < w->param_count; k++) {
        double size = norm_of(p->exact.param_grad[k], s->grad[k].count);
        whole += size * size;
        all += s->grad[k].count;
    }
    for (int k = 0; k < w->param_count; k++) {
        int64_t count = s->grad[k].count;
        double *grad = ls_kernel_subject_read(s, &s->grad[k]);
        if (grad == NULL) {
            ls_verdict_set(out, LS_INFRA, "cannot read a gradient back");
            return;
        }
        double e = distance(grad, p->exact.param_grad[k], count);
        double r = distance(p->ideal.param_grad[k], p->exact.param_grad[k], count);
        free(grad);
        /* the judge's D: a tensor that is small among the others is judged on their scale */
        double floor = 1e-3 * sqrt(whole) * sqrt((double)count / (double)all);
        double scale = fmax(norm_of(p->exact.param_grad[k], count), floor);
        bool small = count < 64;
        judge_part(w->param[k].name, e / scale, r / scale,
                   bounds[small ? LS_COMPARE_SMALL : LS_COMPARE_TENSOR], out);
        whole_e += e * e;
        whole_r += r * r;
    }
    judge_part("whole gradient", sqrt(whole_e / whole), sqrt(whole_r / whole),
               bounds[LS_COMPARE_WHOLE], out);
}

static const ls_tol loss_units =
    LS_TOL(4e-7, "exp and log are good to one unit of f32 (6e-8) each, and so is the stored loss");

/* The loss is that of the backend's own logits. */
static void judge_loss(const ls_kernel_subject *s, ls_kernel_interpreter *exact, ls_verdict *out)
{
    int linear = s->n->network.layer_count - 2;
    int64_t count = exact->size[linear].count;
    float *logits = malloc((size_t)count * sizeof *logits);
    double *own = malloc((size_t)count * sizeof *own);
    LS_MEMORY(logits != NULL && own != NULL);
    ls_step_state state;
    if (ran(s->api->plan_export(s->plan, s->stream, LS_EXPORT_LOGITS, 0, logits, count * 4),
            "export of logits", out) &&
        ran(ls_kernel_subject_get_state(s, &state), "reading the state", out)) {
        for (int64_t i = 0; i < count; i++) {
            own[i] = (double)logits[i];
        }
        double *kept = exact->value[linear];
        exact->value[linear] = own;
        ls_kernel_interpreter_loss(exact, linear + 1, s->target, false, 0);
        exact->value[linear] = kept;
        if (!(fabs((double)state.loss - exact->loss) <= loss_units.value * (1 + exact->loss))) {
            ls_verdict_fail(out, "loss %.9g, its logits give %.9g", (double)state.loss,
                            exact->loss);
        }
    }
    free(logits);
    free(own);
}

/* Biases of the last layer 100 apart, the least first; all else as usual, but small. */
static double apart(const ls_kernel_net *n, int p, int64_t i)
{
    const ls_param *param = &n->param[p];
    return param->role == LS_PARAM_LINEAR_BIAS   ? 100 * (double)i
           : param->role == LS_PARAM_NORM_WEIGHT ? 1
           : param->role == LS_PARAM_NORM_BIAS   ? 0
                                                 : ldexp((double)((p + i * 7) % 11 - 5), -6);
}

/* exp of a logit's distance from another than the largest is beyond f32. */
static void judge_large(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    (void)form;
    ls_kernel_interpreter exact;
    if (ran(ls_kernel_subject_step(s), "a step", out) &&
        mirror(s, LS_KERNEL_ROUND_NONE, false, &exact, out)) {
        judge_loss(s, &exact, out);
        ls_kernel_interpreter_free(&exact);
    }
    int64_t gradients = 0;
    for (int k = 0; k < s->n->network.param_count; k++) {
        double *grad = ls_kernel_subject_read(s, &s->grad[k]);
        for (int64_t i = 0; grad != NULL && i < s->grad[k].count; i++, gradients++) {
            if (!isfinite(grad[i])) {
                ls_verdict_fail(out, "%s[%lld] is %g", s->n->param[k].name, (long long)i, grad[i]);
                break;
            }
        }
        free(grad);
    }
    ls_verdict_pass(out, gradients, "logits 100 apart: loss and gradients are finite");
}

static void judge_gradients(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    float scale = form->level == 0 ? 1 : scale_of_half;
    int params = s->n->network.param_count;
    pair p;
    if (ran(ls_kernel_subject_set_scale(s, scale), "setting the scale", out) &&
        ran(ls_kernel_subject_step(s), "a step", out) &&
        mirror_pair(s, form->rounding, false, &p, out)) {
        ls_kernel_interpreter_backward(&p.exact, s->target, (double)scale);
        ls_kernel_interpreter_backward(&p.ideal, s->target, (double)scale);
        judge_params(s, &p, form->level, out);
        judge_loss(s, &p.exact, out);
        free_pair(&p);
    }
    ls_verdict_pass(out, params,
                    "gradients of %d parameters at most %.1f x what ideal rounding costs", params,
                    out->value);
}

/* ---- order, repeats, scale ------------------------------------------------------------------- */

static int ready_order(const ls_kernel_net *net, int *expected)
{
    int count = 0;
    for (int i = net->network.layer_count - 1; i > 0; i--) {
        const ls_layer *l = &net->layer[i];
        if (l->kind == LS_LAYER_LINEAR) {
            expected[count++] = l->bias;
            expected[count++] = l->weight;
        } else if (l->kind == LS_LAYER_BATCH_NORM) {
            expected[count++] = l->weight;
            expected[count++] = l->bias;
        } else if (l->kind == LS_LAYER_CONV) {
            expected[count++] = l->weight;
        }
    }
    return count;
}

static void judge_order(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    (void)form;
    int expected[LS_KERNEL_NET_PARAMS], count = ready_order(s->n, expected);
    if (ran(ls_kernel_subject_step(s), "a step", out) && s->ready_count != count) {
        ls_verdict_fail(out, "%d gradients were handed over, the network has %d", s->ready_count,
                        count);
    }
    for (int i = 0; i < count && out->code == LS_PASS; i++) {
        if (s->ready[i] != expected[i]) {
            ls_verdict_fail(out, "gradient %d handed over is parameter %d, expected %d", i,
                            s->ready[i], expected[i]);
        }
    }
    ls_verdict_pass(out, count, "%d gradients are handed over in order", count);
}

/* Every gradient of both equals bit for bit after `a` has been multiplied by `factor`. Returns how
 * many there are. */
static int64_t judge_equal(const ls_kernel_subject *a, const ls_kernel_subject *b, double factor,
                           ls_verdict *out)
{
    int64_t compared = 0;
    for (int k = 0; k < a->n->network.param_count; k++) {
        double *x = ls_kernel_subject_read(a, &a->grad[k]);
        double *y = ls_kernel_subject_read(b, &b->grad[k]);
        for (int64_t i = 0; x != NULL && y != NULL && i < a->grad[k].count; i++, compared++) {
            if (x[i] * factor != y[i]) {
                ls_verdict_fail(out, "%s[%lld]: %.9g and %.9g", a->n->param[k].name, (long long)i,
                                x[i] * factor, y[i]);
                break;
            }
        }
        free(x);
        free(y);
    }
    return compared;
}

/* Two backends on the same network: the second has another loss scale or is asked twice, and must
 * give the gradients of the first times the scale. */
static void judge_two(ls_kernel_subject *s, float scale, bool twice, ls_verdict *out)
{
    if (ran(ls_kernel_subject_set_scale(&s[1], scale), "setting the scale", out) &&
        ran(ls_kernel_subject_step(&s[0]), "a step", out) &&
        ran(ls_kernel_subject_step(&s[1]), "a step", out) &&
        (!twice || ran(ls_kernel_subject_step(&s[1]), "a second step", out))) {
        int64_t compared = judge_equal(&s[0], &s[1], (double)scale, out);
        ls_verdict_pass(out, compared, "%lld gradients equal to the last bit", (long long)compared);
    }
}

/* Gradients are overwritten, never added to. */
static void judge_repeat(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    (void)form;
    judge_two(s, 1, true, out);
}

static void judge_power_of_two(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    (void)form;
    judge_two(s, 1024, false, out);
}

/* ---- branches and statistics ----------------------------------------------------------------- */

static const ls_tol flips =
    LS_TOL(1e-4, "only values within an f32 rounding of a tie may fall on the other side");

/* How many of the branches that the subject took are not those of the values; of how many. */
static int64_t count_flips(const ls_kernel_interpreter *forced, const ls_kernel_interpreter *own,
                           int64_t *all)
{
    int64_t flipped = 0;
    for (int i = 0; i < own->n->network.layer_count; i++) {
        const ls_layer *l = &own->n->layer[i];
        for (int64_t e = 0; l->branch >= 0 && e < own->size[i].count; e++, ++*all) {
            flipped += l->kind == LS_LAYER_RELU
                           ? (forced->bits[i][e / 8] >> (e % 8) & 1) != (own->value[i][e] > 0)
                           : own->index[i][e] != forced->index[i][e];
        }
    }
    return flipped;
}

static void judge_branches(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    (void)form;
    ls_kernel_interpreter own, forced;
    if (!ran(ls_kernel_subject_forward(s), "a forward", out) ||
        !ran(ls_kernel_subject_mirror(s, LS_KERNEL_ROUND_NONE, &forced), "export", out)) {
        return;
    }
    if (ran(ls_kernel_subject_mirror(s, LS_KERNEL_ROUND_NONE, &own), "export", out)) {
        int64_t all = 0;
        own.force = false;
        ls_kernel_interpreter_forward(&own, s->target);
        int64_t flipped = count_flips(&forced, &own, &all);
        ls_kernel_interpreter_free(&own);
        ls_verdict_measured(out, (double)flipped / (double)all, flips.value, "of all branches",
                            flips.why);
        if ((double)flipped > flips.value * (double)all) {
            ls_verdict_fail(out, "%lld of %lld branches are not those of the values",
                            (long long)flipped, (long long)all);
        }
        ls_verdict_pass(out, all, "%lld of %lld branches are not those of the values",
                        (long long)flipped, (long long)all);
    }
    ls_kernel_interpreter_free(&forced);
}

static const ls_tol statistics_units =
    LS_TOL(1e-5, "160 units of f32: statistics of f32 values that come through up to ten layers");

static void judge_channel(const ls_kernel_interpreter *t, int layer, int channel,
                          const double *mean, const double *var, ls_verdict *out)
{
    double count = (double)t->size[layer].count / t->size[layer].channels;
    double variance = t->variance[layer][channel], unbiased = variance * count / (count - 1);
    /* two forwards from 0 and 1 with momentum 0.1 */
    double want_mean = 0.19 * t->mean[layer][channel], want_var = 0.81 + 0.19 * unbiased;
    double mean_off = fabs(mean[channel] - want_mean) / sqrt(variance);
    double var_off = fabs(var[channel] - want_var) / want_var;
    double off = mean_off > var_off || isnan(mean_off) ? mean_off : var_off; /* fmax drops a NaN */
    if (!ls_verdict_worst(out, off, &statistics_units, "relative")) {
        ls_verdict_fail(out, "%s channel %d: running mean %g var %g, expected %g and %g",
                        t->n->layer[layer].name, channel, mean[channel], var[channel], want_mean,
                        want_var);
    }
}

static void judge_statistics(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    (void)form;
    ls_kernel_interpreter t;
    int channels = 0;
    if (!ran(ls_kernel_subject_forward(s), "a forward", out) ||
        !ran(ls_kernel_subject_forward(s), "a second forward", out) ||
        !mirror(s, LS_KERNEL_ROUND_NONE, false, &t, out)) {
        return;
    }
    for (int i = 0; i < s->n->network.layer_count; i++) {
        const ls_layer *l = &s->n->layer[i];
        if (l->kind != LS_LAYER_BATCH_NORM) {
            continue;
        }
        double *mean = ls_kernel_subject_read(s, &s->buffer[l->running_mean]);
        double *var = ls_kernel_subject_read(s, &s->buffer[l->running_var]);
        for (int c = 0; mean != NULL && var != NULL && c < t.size[i].channels; c++, channels++) {
            judge_channel(&t, i, c, mean, var, out);
        }
        free(mean);
        free(var);
    }
    ls_verdict_pass(out, 2 * channels, "mean and variance of %d channels, at most %.1e off",
                    channels, out->value);
    ls_kernel_interpreter_free(&t);
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* Every buffer, one after the other; for the caller to free. */
static double *read_buffers(const ls_kernel_subject *s, int64_t *count)
{
    int64_t at = 0;
    for (int i = 0; i < s->n->network.buffer_count; i++) {
        at += s->n->buffer[i].role == LS_BUFFER_BATCHES_TRACKED ? 0 : s->buffer[i].count;
    }
    double *all = ls_list_make((size_t)at + 1, sizeof *all);
    *count = at;
    at = 0;
    for (int i = 0; i < s->n->network.buffer_count; i++) {
        if (s->n->buffer[i].role != LS_BUFFER_BATCHES_TRACKED) {
            double *one = ls_kernel_subject_read(s, &s->buffer[i]);
            LS_ASSERT(one != NULL);
            memcpy(all + at, one, (size_t)s->buffer[i].count * sizeof *one);
            at += s->buffer[i].count;
            free(one);
        }
    }
    return all;
}

/* The logits against exact and ideal arithmetic; what the state counts against them. */
static void judge_evaluated(const ls_kernel_subject *s, const struct form *form,
                            const ls_step_state *before, ls_verdict *out)
{
    pair p;
    ls_step_state after;
    int linear = s->n->network.layer_count - 2, classes = s->n->network.num_classes;
    if (!mirror_pair(s, form->rounding, true, &p, out)) {
        return;
    }
    const double *exact = p.exact.value[linear], *ideal = p.ideal.value[linear];
    int64_t count = p.exact.size[linear].count;
    float *logits = ls_list_make((size_t)count, sizeof *logits);
    double *own = ls_list_make((size_t)count, sizeof *own);
    if (ran(s->api->plan_export(s->plan, s->stream, LS_EXPORT_LOGITS, 0, logits, count * 4),
            "export of logits", out) &&
        ran(ls_kernel_subject_get_state(s, &after), "reading the state", out)) {
        int64_t top1 = 0, top5 = 0;
        for (int n = 0; n < s->options.batch; n++) {
            int larger = 0;
            for (int j = 0; j < classes; j++) {
                float other = logits[n * classes + j], mine = logits[n * classes + s->target[n]];
                own[n * classes + j] = (double)other;
                larger += other > mine || (other == mine && j < s->target[n]);
            }
            top1 += larger == 0;
            top5 += larger <= 4;
        }
        double size = norm_of(exact, count);
        judge_part("logits", distance(own, exact, count) / size,
                   distance(ideal, exact, count) / size,
                   ls_compare_bounds_of(form->level)[LS_COMPARE_TENSOR], out);
        if ((int64_t)(uint32_t)(after.top1 - before->top1) != top1 ||
            (int64_t)(uint32_t)(after.top5 - before->top5) != top5) {
            ls_verdict_fail(out, "counts %lld and %lld of %d samples, the logits say %lld and %lld",
                            (long long)(after.top1 - before->top1),
                            (long long)(after.top5 - before->top5), s->options.batch,
                            (long long)top1, (long long)top5);
        }
    }
    free(logits);
    free(own);
    free_pair(&p);
}

/* Returns how many there are. */
static int64_t judge_buffers(const ls_kernel_subject *s, const double *want, const char *what,
                             ls_verdict *out)
{
    int64_t count;
    double *have = read_buffers(s, &count);
    if (memcmp(have, want, (size_t)count * sizeof *have) != 0) {
        ls_verdict_fail(out, "%s", what);
    }
    free(have);
    return count;
}

/* Two forwards move the running statistics; an evaluation takes them and leaves them; the step that
 * follows is, bit for bit, that of a run without it. */
static void judge_evaluation(const struct form *form, ls_kernel_subject *s, ls_verdict *out)
{
    int64_t count, compared = 0;
    ls_step_state before;
    bool done = true;
    for (int k = 0; k < 4; k++) {
        done = done && ran(ls_kernel_subject_forward(&s[k % 2]), "a forward", out);
    }
    if (!done || !ran(ls_kernel_subject_get_state(&s[0], &before), "reading the state", out)) {
        return;
    }
    double *moved = read_buffers(&s[0], &count);
    s[0].api->plan_evaluate(s[0].plan, true);
    if (ran(ls_kernel_subject_forward(&s[0]), "an evaluation", out)) {
        compared +=
            judge_buffers(&s[0], moved, "the evaluation changed the running statistics", out);
        judge_evaluated(s, form, &before, out);
    }
    free(moved);
    s[0].api->plan_evaluate(s[0].plan, false);
    if (ran(ls_kernel_subject_step(&s[0]), "a step", out) &&
        ran(ls_kernel_subject_step(&s[1]), "a step", out)) {
        moved = read_buffers(&s[1], &count);
        compared += judge_buffers(
            &s[0], moved, "the step after the evaluation has other running statistics", out);
        compared += judge_equal(&s[0], &s[1], 1, out);
        free(moved);
    }
    ls_verdict_pass(out, compared, "logits within %.1f x ideal rounding; the next step is unmoved",
                    out->value);
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum { F32, O1_FP16, O2_FP16 };

static void add(const ls_case_settings *settings, ls_case_list *list, struct trial trial)
{
    const ls_row row = {.requirement = trial.look->requirement,
                        .judge = judge_trial,
                        .data = memcpy(ls_rows_memory(list, sizeof trial), &trial, sizeof trial)};
    ls_rows_format(list, settings, &row, "kernels.%s.%s.%s", trial.look->name, trial.scene->name,
                   trial.form->name);
}

void ls_kernels_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const look gradients = {"K1", "gradients", judge_gradients, 1, NULL};
    static const look twins = {"K10", "twins", judge_gradients, 1, NULL};
    static const look threads = {"K12", "threads", judge_gradients, 1, NULL};
    static const look evaluation = {"K13", "evaluate", judge_evaluation, 2, NULL};
    static const look repeat = {"K4", "repeat", judge_repeat, 2, NULL};
    static const look of_f32[] = {
        {"K11", "large-logits", judge_large, 1, apart},
        {"K4", "order", judge_order, 1, NULL},
        {"K5", "scale", judge_power_of_two, 2, NULL},
        {"K6", "branches", judge_branches, 1, NULL},
        {"K3", "statistics", judge_statistics, 1, NULL},
    };
    for (int i = 0; i < SCENES; i++) {
        const struct scene *scene = &scenes[i];
        for (int k = 0; k < FORMS; k++) {
            const struct form *form = &forms[k];
            if (i < 5 || k == F32) { /* odd sizes: the loops' remainders, in f32 */
                add(settings, list, (struct trial){&gradients, scene, form, 1, false});
            }
            if (i < 5) {
                add(settings, list, (struct trial){&evaluation, scene, form, 1 + i % 2, i == 0});
            }
            if (i < 2 && k % 2 == 0) { /* a norm on the shortcut, too: scenes 0 and 1 */
                add(settings, list, (struct trial){&twins, scene, form, 1, true});
            }
            if (i < 5 && k % 2 == 0) { /* planes, blocks and stretches are shared out */
                add(settings, list, (struct trial){&threads, scene, form, 3, false});
            }
        }
        if (i >= 5) {
            continue;
        }
        add(settings, list, (struct trial){&repeat, scene, &forms[O2_FP16], 1, false});
        for (int k = 0; k < 5; k++) {
            if (i != 3 || k != 4) { /* its one batch norm stands behind a pool: basic's do too */
                add(settings, list, (struct trial){&of_f32[k], scene, &forms[F32], 1, false});
            }
        }
    }
}

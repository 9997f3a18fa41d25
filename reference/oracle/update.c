#include "update.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

/* ---- running error analysis ------------------------------------------------------------------ */

/* A number in FP64, and a bound on the error of the same formula in f32. Every operation adds one
 * unit of its result to the errors of its operands (Higham, Accuracy and Stability of Numerical
 * Algorithms, 3.3), and eta if a result may be flushed to zero. */
typedef struct interval {
    double value, error;
} interval;

static const ls_update_unit f32 = {0x1p-24, 0x1p-126}; /* its smallest normal number */

static interval interval_rounded(const ls_update_unit *u, double value, double error)
{
    return (interval){value, error + u->u * (fabs(value) + error) + u->eta};
}

/* A constant stored in the type. */
static interval interval_constant(const ls_update_unit *u, double value)
{
    return (interval){value, u->u * fabs(value)};
}

static interval interval_add(const ls_update_unit *u, interval a, interval b)
{
    return interval_rounded(u, a.value + b.value, a.error + b.error);
}

static interval interval_sub(const ls_update_unit *u, interval a, interval b)
{
    return interval_rounded(u, a.value - b.value, a.error + b.error);
}

static interval interval_mul(const ls_update_unit *u, interval a, interval b)
{
    return interval_rounded(u, a.value * b.value,
                            fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error);
}

/* The error is infinite if the divisor may be zero. */
static interval interval_div(const ls_update_unit *u, interval a, interval b)
{
    double quotient = a.value / b.value, least = fabs(b.value) - b.error;
    double error = least > 0 ? (a.error + fabs(quotient) * b.error) / least : INFINITY;
    return interval_rounded(u, quotient, error);
}

static interval interval_root(const ls_update_unit *u, interval a)
{
    double root = sqrt(a.value), error = sqrt(a.error);
    return interval_rounded(u, root, root > 0 ? fmin(error, a.error / root) : error);
}

/* Constants of one step, the same for all elements of a tensor. */
typedef struct constants {
    ls_update_unit unit;
    interval lr, decay, momentum, undamped, beta1, beta2, rest1, rest2, epsilon;
    interval bias1, bias2; /* 1 - beta^t */
    interval divisor;      /* LAMB: gradients are divided by it */
    interval ratio;        /* LAMB, LARS: of this tensor */
    bool scales;           /* LARS */
    interval clip;         /* gradients are multiplied by it */
} constants;

/* One element, updated in place. */
typedef struct element {
    interval value, grad, first, second, highest;
} element;

/* The oracle's own list, independent of kernels/optimizers.def. */
static const struct optimizer {
    const char *name, *label;
    const char *moment[2]; /* NULL: none */
    double epsilon;
} optimizers[LS_UPDATE_KINDS] = {
    [LS_UPDATE_SGD] = {"sgd", "SGD", {"momentum_buffer"}, 1e-8},
    [LS_UPDATE_ADAM] = {"adam", "Adam", {"exp_avg", "exp_avg_sq"}, 1e-8},
    [LS_UPDATE_ADAMW] = {"adamw", "AdamW", {"exp_avg", "exp_avg_sq"}, 1e-8},
    [LS_UPDATE_LAMB] = {"lamb", "LAMB", {"exp_avg", "exp_avg_sq"}, 1e-6},
    [LS_UPDATE_LARS] = {"lars", "LARS", {"momentum_buffer"}, 1e-8},
};

ls_update_kind ls_update_find(const char *name)
{
    int kind = 0;
    while (kind < LS_UPDATE_KINDS && strcmp(name, optimizers[kind].name) != 0) {
        kind++;
    }
    return (ls_update_kind)kind;
}

bool ls_update_counts_steps(ls_update_kind kind)
{
    return optimizers[kind].moment[1] != NULL; /* those with a second moment */
}

static bool is_sgd(ls_update_kind kind)
{
    return !ls_update_counts_steps(kind);
}

int ls_update_moments(const ls_update_rule *rule)
{
    const char *const *name = optimizers[rule->kind].moment;
    bool unused = is_sgd(rule->kind) && rule->momentum == 0;
    return unused ? 0 : (name[0] != NULL) + (name[1] != NULL);
}

const char *ls_update_moment_name(ls_update_kind kind, int moment)
{
    return optimizers[kind].moment[moment];
}

const char *ls_update_label(ls_update_kind kind)
{
    return optimizers[kind].label;
}

double ls_update_epsilon(ls_update_kind kind)
{
    return optimizers[kind].epsilon;
}

double ls_update_squares(const double *value, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += value[i] * value[i];
    }
    return sum;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* The root of a sum of n squares whose terms have the error `errors` (a 2-norm): f32 sums in any
 * order are a random walk of sqrt(n) units, of which four are allowed, plus eight operations. */
static interval norm_of(double squares, double errors, int64_t n)
{
    double norm = sqrt(squares);
    return (interval){norm, errors + f32.u * (8 + 4 * sqrt((double)n)) * norm};
}

static interval norm_of_values(const ls_update_tensor *t)
{
    return norm_of(ls_update_squares(t->value, t->count),
                   sqrt(ls_update_squares(t->value_error, t->count)), t->count);
}

/* ---- elements -------------------------------------------------------------------------------- */

static void step_sgd(const ls_update_rule *o, const constants *c, element *e)
{
    const ls_update_unit *u = &c->unit;
    interval d = e->grad;
    if (o->kind == LS_UPDATE_LARS) {
        if (c->scales) {
            d = interval_mul(u, interval_add(u, d, interval_mul(u, c->decay, e->value)), c->ratio);
        }
    } else if (o->weight_decay != 0 && o->mistake != LS_UPDATE_DECAY_AFTER_MOMENTUM) {
        d = interval_add(u, d, interval_mul(u, c->decay, e->value));
    }
    if (o->momentum != 0) {
        interval part = o->dampening != 0 ? interval_mul(u, c->undamped, d) : d;
        interval start = d;
        if (o->mistake == LS_UPDATE_FIRST_DAMPED) {
            start = interval_mul(u, interval_sub(u, (interval){1, 0}, c->momentum), d);
        }
        e->first =
            o->step == 1 ? start : interval_add(u, interval_mul(u, c->momentum, e->first), part);
        d = o->nesterov ? interval_add(u, d, interval_mul(u, c->momentum, e->first)) : e->first;
    }
    if (o->mistake == LS_UPDATE_DECAY_AFTER_MOMENTUM) {
        d = interval_add(u, d, interval_mul(u, c->decay, e->value));
    }
    e->value = interval_sub(u, e->value, interval_mul(u, c->lr, d));
}

/* beta a + (1 - beta) b, the second product of which is `part`. */
static interval mean(const ls_update_rule *o, const constants *c, interval beta, interval a,
                     double b, interval part)
{
    const ls_update_unit *u = &c->unit;
    interval kept = interval_mul(u, beta, a), sum = interval_add(u, kept, part);
    if (o->any_form) {
        double least = fmin(beta.value, 1 - beta.value);
        sum.error +=
            u->u * (fabs(kept.value) + fabs(part.value) + 2 * least * (fabs(a.value) + fabs(b))) +
            u->eta;
    }
    return sum;
}

static void move_moments(const ls_update_rule *o, const constants *c, interval grad, element *e)
{
    const ls_update_unit *u = &c->unit;
    interval part = interval_mul(u, c->rest1, grad);
    interval square = interval_mul(u, interval_mul(u, c->rest2, grad), grad);
    e->first = mean(o, c, c->beta1, e->first, grad.value, part);
    e->second = mean(o, c, c->beta2, e->second, grad.value * grad.value, square);
    if (o->amsgrad) {
        e->highest.value = fmax(e->highest.value, e->second.value);
        e->highest.error = fmax(e->highest.error, e->second.error);
    }
}

static interval adam_direction(const ls_update_rule *o, const constants *c, const element *e)
{
    const ls_update_unit *u = &c->unit;
    interval first = e->first, second = o->amsgrad ? e->highest : e->second;
    if (!o->uncorrected) {
        first = interval_div(u, first, c->bias1);
        second = interval_div(u, second, c->bias2);
    }
    interval below = interval_add(u, interval_root(u, second), c->epsilon);
    if (o->mistake == LS_UPDATE_EPSILON_INSIDE) {
        below = interval_root(u, interval_add(u, second, c->epsilon));
        if (!o->uncorrected) { /* added to the root of the uncorrected moment */
            interval sum = interval_add(u, e->second, c->epsilon);
            below = interval_div(u, interval_root(u, sum), interval_root(u, c->bias2));
        }
    } else if (o->mistake == LS_UPDATE_EPSILON_FIRST) {
        interval sum = interval_add(u, interval_root(u, e->second), c->epsilon);
        below = interval_div(u, sum, interval_root(u, c->bias2));
    }
    return interval_div(u, first, below);
}

static void step_adam(const ls_update_rule *o, const constants *c, element *e)
{
    const ls_update_unit *u = &c->unit;
    bool decays = o->weight_decay != 0;
    if (o->kind == LS_UPDATE_ADAM && decays) {
        e->grad = interval_add(u, e->grad, interval_mul(u, c->decay, e->value));
    }
    move_moments(o, c, e->grad, e);
    interval value = e->value;
    if (o->kind == LS_UPDATE_ADAMW && decays && o->any_form) {
        value = interval_mul(u, interval_constant(u, 1 - o->lr * o->weight_decay), value);
    } else if (o->kind == LS_UPDATE_ADAMW && decays) {
        interval rate = o->mistake == LS_UPDATE_DECAY_WITHOUT_LR ? (interval){1, 0} : c->lr;
        value = interval_sub(u, value, interval_mul(u, interval_mul(u, rate, c->decay), value));
    }
    interval way = interval_mul(u, c->lr, adam_direction(o, c, e));
    way.error +=
        o->any_form ? 4 * u->u * fabs(way.value) : 0; /* of factors that join the divisor */
    e->value = interval_sub(u, value, way);
}

/* Updates the moments; returns u, of which the step subtracts lr times the ratio. */
static interval lamb_direction(const ls_update_rule *o, const constants *c, element *e)
{
    const ls_update_unit *u = &c->unit;
    bool decays = o->weight_decay != 0;
    interval grad = interval_div(u, e->grad, c->divisor);
    if (decays && o->l2) {
        grad = interval_add(u, grad, interval_mul(u, c->decay, e->value));
    }
    move_moments(o, c, grad, e);
    interval way = adam_direction(o, c, e);
    return decays && !o->l2 ? interval_add(u, way, interval_mul(u, c->decay, e->value)) : way;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* A gradient as the step gets it. */
static interval clipped(const ls_update_rule *o, const constants *c, double grad)
{
    const ls_update_unit *u = &c->unit;
    interval g = {grad, 0};
    if (o->clip_norm > 0) {
        g = interval_mul(u, c->clip, g);
    }
    if (o->clip_value > 0 && fabs(grad) > o->clip_value) {
        g = interval_constant(u, copysign(o->clip_value, grad));
    }
    return g;
}

static element read_element(const ls_update_rule *o, const constants *c, const ls_update_tensor *t,
                            int moments, int64_t i)
{
    element e = {.value = {t->value[i], t->value_error[i]}, .grad = clipped(o, c, t->grad[i])};
    if (moments > 0) {
        e.first = (interval){t->moment[0][i], t->moment_error[0][i]};
    }
    if (moments > 1) {
        e.second = (interval){t->moment[1][i], t->moment_error[1][i]};
    }
    if (o->amsgrad) {
        e.highest = (interval){t->highest[i], t->highest_error[i]};
    }
    e.grad.error += t->grad_error != NULL ? t->grad_error[i] : 0;
    return e;
}

static void write_element(const ls_update_rule *o, const element *e, int moments, int64_t i,
                          ls_update_tensor *t)
{
    t->value[i] = e->value.value;
    t->value_error[i] = e->value.error;
    if (moments > 0) {
        t->moment[0][i] = e->first.value;
        t->moment_error[0][i] = e->first.error;
    }
    if (moments > 1) {
        t->moment[1][i] = e->second.value;
        t->moment_error[1][i] = e->second.error;
    }
    if (o->amsgrad) {
        t->highest[i] = e->highest.value;
        t->highest_error[i] = e->highest.error;
    }
}

/* 1 - beta^t: by optimizers that keep the count on a device in f32, where beta and its power are
 * rounded. */
static interval correction(const ls_update_rule *o, const ls_update_unit *u, double beta)
{
    double t = (double)o->step, power = pow(beta, t);
    return o->any_form ? (interval){1 - power, f32.u * (power * (t + 2) + 1)}
                       : interval_constant(u, 1 - power);
}

static constants make_constants(const ls_update_rule *o)
{
    const ls_update_unit *u = o->unit.u > 0 ? &o->unit : &f32;
    return (constants){
        .unit = *u,
        .lr = interval_constant(u, o->lr),
        .decay = interval_constant(u, o->weight_decay),
        .momentum = interval_constant(u, o->momentum),
        .undamped = interval_sub(u, (interval){1, 0}, interval_constant(u, o->dampening)),
        .beta1 = interval_constant(u, o->beta1),
        .beta2 = interval_constant(u, o->beta2),
        .rest1 = interval_constant(u, 1 - o->beta1),
        .rest2 = interval_constant(u, 1 - o->beta2),
        .epsilon = interval_constant(u, o->epsilon),
        .bias1 = correction(o, u, o->beta1),
        .bias2 = correction(o, u, o->beta2),
        .divisor = {1, 0},
    };
}

/* At most 1: a quotient above that may be below it in f32 if its error reaches so far. */
static interval clip_factor(const ls_update_rule *o, const constants *c, const ls_update_tensor *t)
{
    const ls_update_unit *u = &c->unit;
    bool each = o->mistake == LS_UPDATE_CLIP_EACH;
    interval norm = norm_of(each ? ls_update_squares(t->grad, t->count) : o->grad_squares, 0,
                            each ? t->count : o->grad_elements);
    interval below = interval_add(u, norm, interval_constant(u, 1e-6));
    interval factor = interval_div(u, interval_constant(u, o->clip_norm), below);
    return factor.value < 1 ? factor : (interval){1, fmax(0, 1 - (factor.value - factor.error))};
}

/* The norm of one tensor's gradients as the step gets them. */
static interval norm_of_gradients(const ls_update_rule *o, const constants *c,
                                  const ls_update_tensor *t)
{
    double squares = 0, errors = 0;
    for (int64_t i = 0; i < t->count; i++) {
        interval g = clipped(o, c, t->grad[i]);
        squares += g.value * g.value;
        errors += g.error * g.error;
    }
    return norm_of(squares, sqrt(errors), t->count);
}

static void find_lars_ratio(const ls_update_rule *o, constants *c, const ls_update_tensor *t)
{
    const ls_update_unit *u = &c->unit;
    interval value = norm_of_values(t);
    interval grad = norm_of_gradients(o, c, t);
    c->scales = value.value > 0 && grad.value > 0;
    if (!c->scales) {
        return;
    }
    interval decay = o->mistake == LS_UPDATE_RATIO_WITHOUT_DECAY ? (interval){0, 0} : c->decay;
    interval below =
        interval_add(u, interval_add(u, grad, interval_mul(u, decay, value)), c->epsilon);
    c->ratio = interval_div(u, interval_mul(u, interval_constant(u, o->trust), value), below);
    if (o->clip) {
        interval ratio = interval_div(u, c->ratio, c->lr);
        c->ratio = ratio.value < 1 ? ratio : (interval){1, 0};
    }
}

/* Two passes: the norm of u determines the ratio. */
static ls_status step_lamb(const ls_update_rule *o, constants *c, ls_update_tensor *t)
{
    const ls_update_unit *u = &c->unit;
    interval *way = malloc(((size_t)t->count + 1) * sizeof *way);
    LS_MEMORY(way != NULL);
    interval all = norm_of(o->grad_squares, 0, o->grad_elements);
    if (o->max_grad_norm > 0 && all.value > o->max_grad_norm) {
        c->divisor = interval_div(u, all, interval_constant(u, o->max_grad_norm));
    }
    interval value = norm_of_values(t);
    double squares = 0, errors = 0;
    for (int64_t i = 0; i < t->count; i++) {
        element e = read_element(o, c, t, 2, i);
        way[i] = lamb_direction(o, c, &e);
        write_element(o, &e, 2, i, t);
        squares += way[i].value * way[i].value;
        errors += way[i].error * way[i].error;
    }
    interval update = norm_of(squares, sqrt(errors), t->count);
    bool adapts = (o->nvlamb || o->weight_decay != 0) && value.value > 0 && update.value > 0 &&
                  o->mistake != LS_UPDATE_NO_RATIO;
    c->ratio = adapts ? interval_mul(u, c->lr, interval_div(u, value, update)) : c->lr;
    for (int64_t i = 0; i < t->count; i++) {
        element e = read_element(o, c, t, 2, i);
        e.value = interval_sub(u, e.value, interval_mul(u, c->ratio, way[i]));
        write_element(o, &e, 2, i, t);
    }
    free(way);
    return LS_OK;
}

ls_status ls_update_step(const ls_update_rule *rule, ls_update_tensor *tensor)
{
    constants c = make_constants(rule);
    int moments = ls_update_moments(rule);
    if (rule->clip_norm > 0) {
        c.clip = clip_factor(rule, &c, tensor);
    }
    void (*step)(const ls_update_rule *, const constants *, element *) = NULL;
    switch (rule->kind) { /* no default: the compiler asks for a new kind's step */
    case LS_UPDATE_LARS:
        find_lars_ratio(rule, &c, tensor);
        step = step_sgd;
        break;
    case LS_UPDATE_SGD:
        step = step_sgd;
        break;
    case LS_UPDATE_ADAM:
    case LS_UPDATE_ADAMW:
        step = step_adam;
        break;
    case LS_UPDATE_LAMB:
        return step_lamb(rule, &c, tensor);
    case LS_UPDATE_KINDS:
        break;
    }
    LS_ASSERT(step != NULL);
    for (int64_t i = 0; i < tensor->count; i++) {
        element e = read_element(rule, &c, tensor, moments, i);
        step(rule, &c, &e);
        write_element(rule, &e, moments, i, tensor);
    }
    return LS_OK;
}

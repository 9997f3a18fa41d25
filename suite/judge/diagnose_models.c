#include "diagnose.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/text.h"
#include "kernels/core/list.h"
#include "suite/suite.h"

static const ls_tol better = LS_TOL(0.25, "an explanation leaves a quarter of the error at most");
static const ls_tol near_share =
    LS_TOL(0.05, "shares that mean something stand a factor of two apart, and rounding moves less");

/* ---- least squares --------------------------------------------------------------------------- */

typedef double matrix[LS_DIAGNOSE_FIT_MAX][LS_DIAGNOSE_FIT_MAX];

/* Solves m * x = right; x replaces right. False when it is singular. The matrix is that of normal
 * equations, which need no pivots. */
static bool solve(int size, matrix m, double *right)
{
    double diagonal[LS_DIAGNOSE_FIT_MAX];
    for (int k = 0; k < size; k++) {
        diagonal[k] = m[k][k];
    }
    for (int k = 0; k < size; k++) {
        /* 2^-40 of the original diagonal: the vectors are equal up to rounding */
        if (!(m[k][k] > 0x1p-40 * diagonal[k])) {
            return false;
        }
        for (int i = 0; i < size; i++) {
            double factor = i == k ? 0 : m[i][k] / m[k][k];
            for (int j = k; j < size; j++) {
                m[i][j] -= factor * m[k][j];
            }
            right[i] -= factor * right[k];
        }
    }
    for (int k = 0; k < size; k++) {
        right[k] /= m[k][k];
    }
    return true;
}

double ls_diagnose_fit(int64_t count, const double *value, int basis_count,
                       const double *const *basis, double *weight)
{
    if (basis_count > LS_DIAGNOSE_FIT_MAX) {
        return INFINITY;
    }
    matrix m;
    memset(m, 0, sizeof m);
    memset(weight, 0, (size_t)basis_count * sizeof *weight);
    for (int a = 0; a < basis_count; a++) {
        for (int64_t i = 0; i < count; i++) {
            weight[a] += basis[a][i] * value[i];
        }
        for (int b = 0; b <= a; b++) {
            for (int64_t i = 0; i < count; i++) {
                m[a][b] += basis[a][i] * basis[b][i];
            }
            m[b][a] = m[a][b];
        }
    }
    if (!solve(basis_count, m, weight)) {
        return INFINITY;
    }
    double rest2 = 0;
    for (int64_t i = 0; i < count; i++) {
        double rest = value[i];
        for (int a = 0; a < basis_count; a++) {
            rest -= weight[a] * basis[a][i];
        }
        rest2 += rest * rest;
    }
    return sqrt(rest2);
}

double ls_diagnose_fit_norm(int64_t count, const double *value)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += value[i] * value[i];
    }
    return sqrt(sum);
}

/* ---- the steps before ------------------------------------------------------------------------ */

/* <prefix>/<name><suffix> of all parameters; NULL if one is missing or not finite, or, with `some`,
 * if all are missing: missing ones are then zero. */
static double *read_all(const ls_evidence *e, const ls_dumpfile *file, const char *prefix,
                        const char *suffix, bool some)
{
    double *whole = ls_list_make((size_t)e->net.elements, sizeof *whole);
    int found = 0;
    bool finite = true;
    for (int p = 0; p < e->net.param_count; p++) {
        const ls_nettab_param *param = &e->net.param[p];
        const ls_dumpfile_entry *entry =
            ls_dumpfile_findf(file, "%s/%s%s", prefix, param->name, suffix);
        if (entry != NULL && entry->count == param->count) {
            ls_dumpfile_read(entry, whole + param->offset);
            found++;
        }
    }
    for (int64_t i = 0; i < e->net.elements; i++) {
        finite = finite && isfinite(whole[i]);
    }
    if (!finite || (some ? found == 0 : found < e->net.param_count)) {
        free(whole);
        return NULL;
    }
    return whole;
}

/* "<folder>/step000002.rank0.safetensors" to step000001's, if that file exists. */
static bool former_path(const char *path, char *out, size_t bytes)
{
    const char *slash = strrchr(path, '/'), *base = slash == NULL ? path : slash + 1;
    int step = 0, used = 0;
    if (sscanf(base, "step%6d%n", &step, &used) != 1 || used != 10 || step < 2) {
        return false;
    }
    ls_text_put(out, bytes, "%.*sstep%06d%s", (int)(base - path), path, step - 1, base + used);
    return access(out, R_OK) == 0;
}

void ls_diagnose_past_read(const ls_evidence *e, ls_diagnose_past *out)
{
    char path[1200];
    ls_dumpfile *former = NULL;
    out->moment = read_all(e, e->file[0], "state", "/momentum_buffer", true);
    out->param = out->grad = NULL;
    if (former_path(ls_dumpfile_path(e->file[0]), path, sizeof path) &&
        ls_dumpfile_open(path, &former) == LS_OK) {
        out->param = read_all(e, former, "param", "", false);
        out->grad = read_all(e, former, "grad", "", false);
        ls_dumpfile_close(former);
    }
}

void ls_diagnose_past_free(ls_diagnose_past *past)
{
    free(past->moment);
    free(past->param);
    free(past->grad);
}

/* ---- another step ---------------------------------------------------------------------------- */

static ls_status try_mode(const ls_diagnose_wrong *wrong, const ls_oracle_step *step,
                          const ls_oracle_mode *mode, const char *meaning, char *text, int bytes)
{
    /* moments near the middle of two halves may round either way, so a few channels may differ */
    bool may_turn = mode->norm == LS_NORM_MOMENTS_IN_HALF;
    ls_oracle_result result;
    LS_TRY(ls_oracle_run(step, mode, &result));
    ls_ideal_error_span whole = {0, wrong->evidence->net.elements};
    double rest = sqrt(ls_ideal_error_squared(wrong->evidence->grad, result.grad, whole) /
                       ls_ideal_error_square(result.grad, whole));
    if ((may_turn || rest <= wrong->limit) && rest <= better.value * wrong->error) {
        snprintf(text, (size_t)bytes, "the gradient is that of %s (residual %.0e)", meaning, rest);
    }
    ls_oracle_free(&wrong->evidence->net, &result);
    return LS_OK;
}

static ls_status try_step(const ls_diagnose_wrong *wrong, const ls_oracle_step *step,
                          const char *meaning, char *text, int bytes)
{
    ls_oracle_mode mode = {.forced = wrong->branches};
    return try_mode(wrong, step, &mode, meaning, text, bytes);
}

static ls_status try_statistics(const ls_diagnose_wrong *wrong, char *text, int bytes)
{
    ls_oracle_step step = wrong->evidence->step;
    if (step.world == 1) {
        return LS_OK;
    }
    bool shared = step.stat_ranks > 1;
    step.stat_ranks = shared ? 1 : step.world;
    return try_step(wrong, &step,
                    shared ? "batch-norm statistics of each rank alone: SyncBN was not in use"
                           : "batch-norm statistics over all ranks: SyncBN was not requested",
                    text, bytes);
}

/* The previous step's weights: all of them, or only those that are cast to half for products. */
static ls_status try_old_weights(const ls_diagnose_wrong *wrong, const double *former, char *text,
                                 int bytes)
{
    const ls_evidence *e = wrong->evidence;
    double *mixed = ls_list_make((size_t)e->net.elements, sizeof *mixed);
    memcpy(mixed, former, (size_t)e->net.elements * sizeof *mixed);
    ls_oracle_step step = e->step;
    step.param = mixed;
    ls_status status = try_step(wrong, &step, "the weights of the step before", text, bytes);
    for (int p = 0; p < e->net.param_count; p++) {
        const ls_nettab_param *param = &e->net.param[p];
        if (e->net.node[param->node].kind == LS_NETTAB_NORM) {
            memcpy(mixed + param->offset, e->param + param->offset,
                   (size_t)param->count * sizeof *mixed);
        }
    }
    if (status == LS_OK && text[0] == '\0') {
        status = try_step(wrong, &step,
                          "the weights of the step before in the products: their cast copies are "
                          "stale",
                          text, bytes);
    }
    free(mixed);
    return status;
}

/* Momentum SGD without Nesterov moves by lr * buffer, which gives the previous step's weights if
 * its dump is missing. */
static ls_status try_past_weights(const ls_diagnose_wrong *wrong, const ls_diagnose_past *past,
                                  char *text, int bytes)
{
    const ls_evidence *e = wrong->evidence;
    double lr = ls_dumpfile_number(e->file[0], "lr", 0);
    if (past->param != NULL) {
        return try_old_weights(wrong, past->param, text, bytes);
    }
    if (past->moment == NULL || lr == 0) {
        return LS_OK;
    }
    double *before = ls_list_make((size_t)e->net.elements, sizeof *before);
    for (int64_t i = 0; i < e->net.elements; i++) {
        before[i] = e->param[i] + lr * past->moment[i];
    }
    ls_status status = try_old_weights(wrong, before, text, bytes);
    free(before);
    return status;
}

/* ---- micro-steps ----------------------------------------------------------------------------- */

/* One micro-step of all ranks as a step by itself; its members are borrowed from the whole step. */
typedef struct one_micro {
    ls_oracle_step step;
    ls_branch_set branches;
    const float **input;
    const int64_t **target;
} one_micro;

static void free_micro(one_micro *one)
{
    free(one->input);
    free(one->target);
    free(one->branches.open);
    free(one->branches.index);
    free(one->branches.elements);
}

static void make_micro(const ls_diagnose_wrong *wrong, int64_t micro, one_micro *one)
{
    const ls_evidence *e = wrong->evidence;
    const ls_branch_set *all = wrong->branches;
    int64_t micros = e->step.accumulate;
    int64_t pixels = 3 * (int64_t)e->net.node[0].height * e->net.node[0].width;
    size_t branches = all == NULL ? 1 : (size_t)all->count + 1;
    *one = (one_micro){.step = e->step,
                       .input = ls_list_make((size_t)e->world, sizeof *one->input),
                       .target = ls_list_make((size_t)e->world, sizeof *one->target)};
    one->branches.open = ls_list_make(branches, sizeof *one->branches.open);
    one->branches.index = ls_list_make(branches, sizeof *one->branches.index);
    one->branches.elements = ls_list_make(branches, sizeof *one->branches.elements);
    for (int rank = 0; rank < e->world; rank++) {
        int64_t images = micro * e->step.batch[rank];
        one->input[rank] = e->step.input[rank] + images * pixels;
        one->target[rank] = e->step.target[rank] + images;
    }
    one->step.input = one->input;
    one->step.target = one->target;
    one->step.accumulate = 1;
    for (int b = 0; all != NULL && b < all->count; b++) { /* micro-steps are the slowest index */
        int64_t part = all->elements[b] / micros, from = micro * part;
        one->branches.open[b] = all->open[b] == NULL ? NULL : all->open[b] + from;
        one->branches.index[b] = all->index[b] == NULL ? NULL : all->index[b] + from;
        one->branches.elements[b] = part;
    }
    one->branches.count = all == NULL ? 0 : all->count;
}

/* The gradient of one micro-step alone; free with ls_oracle_free. */
static ls_status run_micro(const ls_diagnose_wrong *wrong, int64_t micro, ls_oracle_result *out)
{
    one_micro one;
    make_micro(wrong, micro, &one);
    ls_oracle_mode mode = {.forced = wrong->branches == NULL ? NULL : &one.branches};
    ls_status status = ls_oracle_run(&one.step, &mode, out);
    free_micro(&one);
    return status;
}

static bool is_better(const ls_diagnose_wrong *wrong, double rest)
{
    return rest <= wrong->limit && rest <= better.value * wrong->error;
}

/* What a micro-step's share is that should be 1, or NULL. */
static const char *share_meaning(const ls_oracle_step *step, double share)
{
    double exponent = log2(fabs(share)), scale = step->loss_scale;
    bool power = fabs(exponent) > 0.5 && fabs(exponent - round(exponent)) <= near_share.value;
    return scale != 1 && fabs(share * scale - 1) <= near_share.value ? "was not scaled"
           : fabs(share) < near_share.value / step->accumulate       ? "is missing"
           : scale != 1 && power ? "was unscaled by another scale than its own"
                                 : NULL;
}

/* The gradient as a sum of the micro-steps' with other weights, grad[count]. A factor on the last
 * one alone is allowed, because the loss may be divided by the number of micro-steps or not. */
static void name_weights(const ls_diagnose_wrong *wrong, const double *const *grad, int count,
                         char *text, int bytes)
{
    const ls_evidence *e = wrong->evidence;
    double weight[LS_DIAGNOSE_FIT_MAX], norm = ls_diagnose_fit_norm(e->net.elements, e->grad);
    double rest = ls_diagnose_fit(e->net.elements, e->grad, 1, &grad[count - 1], weight) / norm;
    if (is_better(wrong, rest)) {
        snprintf(text, (size_t)bytes,
                 "every gradient is %.3f x that of the last micro-step alone (residual %.0e): the "
                 "sum is overwritten",
                 weight[0], rest);
        return;
    }
    rest = ls_diagnose_fit(e->net.elements, e->grad, count, grad, weight) / norm;
    for (int m = 0; m < count && is_better(wrong, rest) && text[0] == '\0'; m++) {
        const char *meaning = share_meaning(&e->step, weight[m] * count);
        if (meaning != NULL) {
            snprintf(text, (size_t)bytes,
                     "every gradient has %.4g of the share of micro-step %d (residual %.0e): its "
                     "loss %s",
                     weight[m] * count, m, rest, meaning);
        }
    }
}

static ls_status try_micros(const ls_diagnose_wrong *wrong, char *text, int bytes)
{
    const ls_evidence *e = wrong->evidence;
    int count = e->step.accumulate, done = 0;
    const double *grad[LS_DIAGNOSE_FIT_MAX];
    ls_oracle_result result[LS_DIAGNOSE_FIT_MAX];
    ls_status status = LS_OK;
    if (count < 2 || count > LS_DIAGNOSE_FIT_MAX) {
        return LS_OK;
    }
    while (done < count && status == LS_OK) {
        status = run_micro(wrong, done, &result[done]);
        if (status == LS_OK) {
            grad[done] = result[done].grad;
            done++;
        }
    }
    if (status == LS_OK) {
        name_weights(wrong, grad, count, text, bytes);
    }
    while (done-- > 0) {
        ls_oracle_free(&e->net, &result[done]);
    }
    return status;
}

/* ---- batch norm ------------------------------------------------------------------------------ */

static ls_status try_norms(const ls_diagnose_wrong *wrong, char *text, int bytes)
{
    static const struct {
        ls_norm_form form;
        bool shared; /* applies to SyncBN only */
        const char *meaning;
    } model[] = {
        {LS_NORM_EPSILON_1E3, false, "batch norm with an epsilon of 1e-3, not 1e-5"},
        {LS_NORM_EPSILON_NONE, false, "batch norm without its epsilon"},
        {LS_NORM_EPSILON_OUTSIDE, false, "batch norm with epsilon added to the deviation"},
        {LS_NORM_MOMENTS_IN_HALF, false, "batch norm with mean and variance kept in half"},
        {LS_NORM_VARIANCES_AVERAGED, true,
         "SyncBN that averages the ranks' variances and forgets the distance of their means"},
        {LS_NORM_OWN_SUMS, true, "SyncBN whose backward sums over each rank's own batch"},
        {LS_NORM_OWN_MOMENTS, true,
         "SyncBN that normalises by each rank's own moments, backward by sums of all ranks"},
        {LS_NORM_OWN_MOMENTS_COUNT, true,
         "SyncBN that normalises by each rank's own moments, backward by sums of all ranks over "
         "one rank's count"},
    };
    const ls_oracle_step *step = &wrong->evidence->step;
    for (size_t i = 0; i < sizeof model / sizeof *model && text[0] == '\0'; i++) {
        if (!model[i].shared || step->stat_ranks > 1) {
            ls_oracle_mode mode = {.forced = wrong->branches, .norm = model[i].form};
            LS_TRY(try_mode(wrong, step, &mode, model[i].meaning, text, bytes));
        }
    }
    return LS_OK;
}

/* ---- shortcuts ------------------------------------------------------------------------------- */

/* Makes the shortcuts, which are strided, take odd pixels. False if there are none, or an odd pixel
 * is missing. */
static bool move_shortcuts(ls_nettab *net)
{
    int moved = 0;
    for (int i = 0; i < net->node_count; i++) {
        ls_nettab_node *node = &net->node[i];
        const ls_nettab_node *from =
            node->kind == LS_NETTAB_SHORTCUT ? &net->node[node->input] : NULL;
        if (from == NULL) {
            continue;
        }
        node->pad = 1 - node->stride;
        if (node->height * node->stride > from->height ||
            node->width * node->stride > from->width) {
            return false;
        }
        moved++;
    }
    return moved > 0;
}

static ls_status try_shortcuts(const ls_diagnose_wrong *wrong, char *text, int bytes)
{
    ls_oracle_step step = wrong->evidence->step;
    ls_nettab *net = ls_list_make(1, sizeof *net);
    *net = wrong->evidence->net;
    step.net = net;
    ls_status status = LS_OK;
    if (move_shortcuts(net)) {
        status = try_step(wrong, &step, "shortcuts that take the odd pixels, not the even ones",
                          text, bytes);
    }
    free(net);
    return status;
}

ls_status ls_diagnose_models(const ls_diagnose_wrong *wrong, const ls_diagnose_past *past,
                             char *text, int bytes)
{
    LS_TRY(try_statistics(wrong, text, bytes));
    if (text[0] == '\0') {
        LS_TRY(try_past_weights(wrong, past, text, bytes));
    }
    if (text[0] == '\0') {
        LS_TRY(try_micros(wrong, text, bytes));
    }
    if (text[0] == '\0') {
        LS_TRY(try_norms(wrong, text, bytes));
    }
    return text[0] == '\0' ? try_shortcuts(wrong, text, bytes) : LS_OK;
}

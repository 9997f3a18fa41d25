#include "compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/list.h"

static const double u32 = 0x1p-24; /* unit of f32 */

void ls_compare_checks_fail(ls_compare_checks *checks, const char *tensor, const char *format, ...)
{
    if (checks->count++ > 0) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(checks->line, sizeof checks->line, format, arguments);
    va_end(arguments);
    if (tensor != NULL) {
        snprintf(checks->tensor, sizeof checks->tensor, "%s", tensor);
    }
}

void ls_compare_checks_replicas(const ls_evidence *evidence, const char *prefix, const char *what,
                                ls_compare_checks *checks)
{
    for (int rank = 1; rank < evidence->world; rank++) {
        int param = ls_evidence_differs(evidence, prefix, rank);
        if (param >= 0) {
            const char *name = evidence->net.param[param].name;
            ls_compare_checks_fail(checks, name, "rank=%d %s: %s differ from rank 0's bits", rank,
                                   name, what);
        }
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The rest of a name that begins so; else NULL. */
static const char *below(const char *name, const char *prefix)
{
    size_t length = strlen(prefix);
    return strncmp(name, prefix, length) == 0 ? name + length : NULL;
}

/* A parameter of the network, or of the classifier that --aux-head adds. */
static bool is_param(const ls_nettab *net, const char *name)
{
    return ls_nettab_find_param(net, name) >= 0 || strcmp(name, "aux.fc.weight") == 0 ||
           strcmp(name, "aux.fc.bias") == 0;
}

bool ls_compare_checks_belongs(const ls_nettab *net, const char *name)
{
    static const char *const params[] = {"param/", "grad/", "next/", "local/", "master/"};
    static const char *const moments[] = {"state/", "next_state/"};
    static const char *const buffers[] = {"buffer/", "last_buffer/"};
    static const char *const kinds[] = {"running_mean", "running_var", "num_batches_tracked"};
    const char *rest;
    char stem[160];
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        if ((rest = below(name, params[i])) != NULL) {
            return is_param(net, rest);
        }
    }
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++) {
        if ((rest = below(name, moments[i])) != NULL) {
            const char *slash = strrchr(rest, '/');
            snprintf(stem, sizeof stem, "%.*s", slash == NULL ? 0 : (int)(slash - rest), rest);
            return is_param(net, stem);
        }
    }
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        if ((rest = below(name, buffers[i])) != NULL) {
            const char *dot = strrchr(rest, '.');
            bool known = false;
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds && dot != NULL; k++) {
                known = known || strcmp(dot + 1, kinds[k]) == 0;
            }
            snprintf(stem, sizeof stem, "%.*s.weight", dot == NULL ? 0 : (int)(dot - rest), rest);
            int param = ls_nettab_find_param(net, stem);
            return known && param >= 0 && net->node[net->param[param].node].kind == LS_NETTAB_NORM;
        }
    }
    if ((rest = below(name, "branch/")) != NULL) {
        snprintf(stem, sizeof stem, "%03d", atoi(rest));
        return strcmp(rest, stem) == 0 && atoi(rest) < net->branch_count;
    }
    return true;
}

void ls_compare_checks_names(const ls_evidence *evidence, ls_compare_checks *checks)
{
    for (int rank = 0; rank < evidence->world; rank++) {
        for (int i = 0; i < ls_dumpfile_count(evidence->file[rank]); i++) {
            const char *name = ls_dumpfile_at(evidence->file[rank], i)->name;
            if (!ls_compare_checks_belongs(&evidence->net, name)) {
                ls_compare_checks_fail(checks, NULL, "rank=%d: %.80s is no tensor of %s", rank,
                                       name, evidence->net.arch);
            }
        }
    }
}

/* The first tensor under the prefix that `b` lacks or has with other bits; NULL: none. */
static const char *first_other(const ls_dumpfile *a, const ls_dumpfile *b, const char *prefix)
{
    for (int i = 0; i < ls_dumpfile_count(a); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(a, i);
        if (below(entry->name, prefix) != NULL &&
            !ls_dumpfile_equal(entry, ls_dumpfile_find(b, entry->name))) {
            return entry->name;
        }
    }
    return NULL;
}

void ls_compare_checks_states(const ls_evidence *evidence, ls_compare_checks *checks)
{
    static const char *const groups[] = {"master/", "state/", "next_state/"};
    const ls_dumpfile *first = evidence->file[0];
    for (int rank = 1; rank < evidence->world; rank++) {
        const ls_dumpfile *own = evidence->file[rank];
        for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
            const char *name = first_other(own, first, groups[g]);
            if (name == NULL && ls_dumpfile_has(own, groups[g])) {
                name = first_other(first, own, groups[g]); /* which it leaves out */
            }
            if (name != NULL) {
                ls_compare_checks_fail(checks, NULL, "rank=%d %s differs from rank 0's bits", rank,
                                       name);
            }
        }
    }
}

/* ---- loss ------------------------------------------------------------------------------------ */

/* Mean cross entropy of `images` rows in FP64, its labels smoothed, and the largest |logit|. */
static double cross_entropy(const double *logits, const int64_t *target, int64_t images,
                            int classes, double smoothing, double *largest)
{
    double loss = 0;
    for (int64_t n = 0; n < images; n++) {
        const double *x = logits + n * classes;
        double most = x[0], sum = 0, mean = 0;
        for (int c = 0; c < classes; c++) {
            mean += x[c] / classes;
            most = fmax(most, x[c]);
            *largest = fmax(*largest, fabs(x[c]));
        }
        for (int c = 0; c < classes; c++) {
            sum += exp(x[c] - most);
        }
        double wanted = x[target[n]];
        wanted = smoothing > 0 ? (1 - smoothing) * wanted + smoothing * mean : wanted;
        loss += (most + log(sum) - wanted) / (double)images;
    }
    return loss;
}

void ls_compare_checks_loss(const ls_evidence *evidence, bool finite, ls_compare_checks *checks)
{
    int classes = evidence->net.classes, wrong = 0;
    ls_shards shards = ls_oracle_shards(&evidence->step);
    double *logits = ls_list_make((size_t)(ls_shards_samples(&shards) * classes), sizeof *logits);
    for (int rank = 0; rank < evidence->world; rank++) {
        int64_t images = ls_shards_images(&shards, rank);
        const ls_dumpfile_entry *entry = ls_dumpfile_find(evidence->file[rank], "logits");
        const ls_dumpfile_entry *loss = ls_dumpfile_find(evidence->file[rank], "loss");
        if (!ls_dumpfile_floats(entry, images * classes) || !ls_dumpfile_floats(loss, 1)) {
            ls_compare_checks_fail(checks, NULL, "rank=%d logits or loss missing or misshapen",
                                   rank);
            continue;
        }
        double value, largest = 0;
        ls_dumpfile_read(entry, logits);
        ls_dumpfile_read(loss, &value);
        double smoothing = evidence->step.label_smoothing;
        double expected = cross_entropy(logits, evidence->step.target[rank], images, classes,
                                        smoothing, &largest);
        /* f32: exp of a rounded difference has an error of 4*u*largest, a sum of C terms and its
         * logarithm (C+8)*u, the mean over the images one rounding each */
        double limit = u32 * (4 * largest + classes + 8 + (double)(images + 4) * fabs(expected));
        /* labels smoothed: the part E of the loss is also a mean over C values of at most
         * 2*largest + log C, of which a sum in f32 may round each C times */
        limit += u32 * smoothing * (classes + 4) * (2 * largest + log(classes));
        bool overflowed = !finite && !isfinite(expected) && !isfinite(value);
        if (!(isfinite(expected) && fabs(value - expected) <= limit) && !overflowed) {
            double plain =
                cross_entropy(logits, evidence->step.target[rank], images, classes, 0, &largest);
            bool is_plain = smoothing > 0 && fabs(value - plain) <= limit;
            checks->unsmoothed = is_plain && (wrong == 0 || checks->unsmoothed);
            wrong++;
            ls_compare_checks_fail(checks, NULL,
                                   "rank=%d loss %.9g is not the cross entropy %.9g of its logits, "
                                   "limit=%.1e (f32 arithmetic)",
                                   rank, value, expected, limit);
        }
    }
    free(logits);
}

/* ---- reduction ------------------------------------------------------------------------------- */

/* One parameter's tensors before and after the reduction. */
typedef struct reduction {
    double *local; /* of one rank */
    double *sum, *magnitude;
} reduction;

static void check_reduction(const ls_evidence *evidence, int param, int level, reduction *r,
                            ls_compare_checks *checks)
{
    const ls_oracle_step *step = &evidence->step;
    const ls_nettab_param *p = &evidence->net.param[param];
    const ls_nettab_node *node = &evidence->net.node[p->node];
    bool half = level == 3 || (level == 2 && node->kind != LS_NETTAB_NORM);
    ls_bits_type own = half ? step->half : LS_BITS_F32;
    ls_bits_type wire = own;
    if (step->reduce != LS_BITS_F64 && (own == LS_BITS_F32 || step->reduce == LS_BITS_F32)) {
        wire = step->reduce; /* --compress applies to f32 gradients; half ones keep their type */
    }
    ls_bits_type coarsest = ls_bits_unit(own) > ls_bits_unit(wire) ? own : wire;
    double world = evidence->world;
    double divisor = step->average == LS_ORACLE_SUM ? 1 : ls_oracle_divisor(step);
    double unit = ls_bits_unit(coarsest);
    bool early = step->average == LS_ORACLE_DIVIDE_THEN_SUM || step->predivide != 1 || wire != own;
    double per_sum = (world - 1 + (early ? 2 : 0)) * unit / (1 - world * unit);
    /* subnormals of the reduced type: half a quantum for each of the 2W+2 roundings, unscaled */
    double tiny = (2 * world + 2) * ls_bits_tiny(coarsest) / step->loss_scale;
    memset(r->sum, 0, (size_t)p->count * sizeof *r->sum);
    memset(r->magnitude, 0, (size_t)p->count * sizeof *r->magnitude);
    for (int rank = 0; rank < evidence->world; rank++) {
        ls_dumpfile_read(ls_dumpfile_findf(evidence->file[rank], "local/%s", p->name), r->local);
        for (int64_t i = 0; i < p->count; i++) {
            r->sum[i] += r->local[i];
            r->magnitude[i] += fabs(r->local[i]);
        }
    }
    for (int64_t i = 0; i < p->count; i++) {
        double got = evidence->grad[p->offset + i], expected = r->sum[i] / divisor;
        /* + 2 f32 units: 1/W and 1/S are f32 values, and the unscaled gradient is stored in f32 */
        double limit = per_sum * r->magnitude[i] / divisor +
                       (unit + 3 * u32) * fmax(fabs(got), fabs(expected)) + tiny;
        checks->reduce_ratio = fmax(checks->reduce_ratio, fabs(got - expected) / limit);
        if (!(isfinite(expected) && fabs(got - expected) <= limit)) {
            ls_compare_checks_fail(checks, p->name,
                                   "%s element %lld: reduced to %.6g, the ranks' local/ give %.6g, "
                                   "limit=%.1e (one rounding per addition)",
                                   p->name, (long long)i, got, expected, limit);
            return;
        }
    }
}

/* Whether all ranks have local/; a rank that has some of it must have it all. */
static bool has_local(const ls_evidence *evidence, ls_compare_checks *checks)
{
    bool all = true;
    for (int rank = 0; rank < evidence->world; rank++) {
        bool held = ls_dumpfile_has(evidence->file[rank], "local/");
        all = all && held;
        for (int i = 0; i < evidence->net.param_count && held; i++) {
            const ls_nettab_param *param = &evidence->net.param[i];
            if (!ls_dumpfile_floats(
                    ls_dumpfile_findf(evidence->file[rank], "local/%s", param->name),
                    param->count)) {
                ls_compare_checks_fail(checks, param->name,
                                       "rank=%d local/%s is missing or not of %lld floats", rank,
                                       param->name, (long long)param->count);
                return false;
            }
        }
    }
    return all;
}

static int64_t largest_param(const ls_nettab *net)
{
    int64_t largest = 0;
    for (int i = 0; i < net->param_count; i++) {
        largest = net->param[i].count > largest ? net->param[i].count : largest;
    }
    return largest;
}

/* Ranks with images of their own have gradients of their own. */
static void check_local(const ls_evidence *e, ls_compare_checks *checks)
{
    bool zero = true;
    for (int64_t i = 0; i < e->net.elements && zero; i++) {
        zero = e->grad[i] == 0;
    }
    for (int rank = 1; rank < e->world && !zero; rank++) {
        bool same = ls_dumpfile_equal(ls_dumpfile_find(e->file[0], "input"),
                                      ls_dumpfile_find(e->file[rank], "input"));
        if (!same && ls_evidence_differs(e, "local", rank) < 0) {
            ls_compare_checks_fail(checks, NULL,
                                   "rank=%d local/ has rank 0's bits, and its input has not: it "
                                   "was dumped after the reduction",
                                   rank);
        }
    }
}

bool ls_compare_checks_reduce(const ls_evidence *evidence, int level, ls_compare_checks *checks)
{
    if (!has_local(evidence, checks)) {
        return false;
    }
    check_local(evidence, checks);
    int64_t largest = largest_param(&evidence->net);
    reduction r = {.local = ls_list_make(3 * (size_t)largest, sizeof *r.local)};
    r.sum = r.local + largest;
    r.magnitude = r.sum + largest;
    int order[LS_NETTAB_PARAMS_MAX];
    ls_evidence_backward_order(&evidence->net, order);
    for (int i = 0; i < evidence->net.param_count; i++) {
        check_reduction(evidence, order[i], level, &r, checks);
    }
    free(r.local);
    return true;
}

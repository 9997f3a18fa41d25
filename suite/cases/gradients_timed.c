/* The first step's whole gradient of the timed jobs against FP32, one process, micro-batch form,
 * same backend (rung 4 of numerics.md section 5), and against the same job with other buckets. */
#include "../suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../harness/text.h"
#include "../../reference/safetensors.h"
#include "timed.h"

/* The reference has the rank's threads, batch and kernels, so every micro-batch's forward is equal
 * bit by bit and no branch turns: what is left is the order of sums over ranks. */
static const ls_tol exact =
    LS_TOL(2e-5, "the same f32 kernels on the same micro-batches: only the order of sums over "
                 "ranks is left; the "
                 "limit is the one that a whole O0 step has against FP64 on forced branches");

/* Half levels on their own branches. e: what a correct subject with plain fp16 showed (numerics.md
 * 4). */
static const struct coarse {
    const char *arch;
    ls_tol error;
} coarse[] = {
    {"resnet18", LS_TOL(0.24, "twice the 0.12 of a correct fp16 ResNet-18 at 64 pixels on its own "
                              "branches; a missing or summed reduction is at 1 and more")},
};

typedef struct sums {
    double difference, reference, subject, product;
    bool finite;
} sums;

static void add_tensor(sums *s, const float *g, const float *const *r, int count, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        double reference = 0;
        for (int k = 0; k < count; k++) {
            reference += r[k][i];
        }
        reference /= count;
        double d = g[i] - reference;
        s->difference += d * d;
        s->reference += reference * reference;
        s->subject += (double)g[i] * g[i];
        s->product += g[i] * reference;
        s->finite = s->finite && isfinite(g[i]);
    }
}

static ls_status open_dump(const ls_record *job, int64_t step, ls_safetensors **out)
{
    char path[700];
    ls_text_put(path, sizeof path, "%s/dump/step%06d.rank0.safetensors", job->directory, (int)step);
    return ls_safetensors_open(path, out);
}

/* Sums over every grad/ tensor; false with a verdict where the dumps do not fit together. */
static bool sum_gradients(const ls_safetensors *subject, ls_safetensors *const *reference,
                          int count, sums *s, ls_verdict *out)
{
    const float **data = calloc((size_t)count, sizeof *data);
    LS_ASSERT(data != NULL);
    int tensors = 0;
    for (int i = 0; i < ls_safetensors_count(subject); i++) {
        const ls_safetensors_entry *entry = ls_safetensors_at(subject, i);
        if (strncmp(entry->name, "grad/", 5) != 0) {
            continue;
        }
        for (int k = 0; k < count; k++) {
            const ls_safetensors_entry *other = ls_safetensors_find(reference[k], entry->name);
            if (other == NULL || other->bytes != entry->bytes || entry->dtype != LS_F32) {
                ls_verdict_set(out, LS_FAIL, "%s is not in both dumps with one shape, as F32",
                               entry->name);
                free(data);
                return false;
            }
            data[k] = other->data;
        }
        add_tensor(s, entry->data, data, count, entry->bytes / (int64_t)sizeof(float));
        tensors++;
    }
    free(data);
    if (tensors == 0) {
        ls_verdict_set(out, LS_FAIL, "the dump of step 1 holds no gradient");
    }
    return tensors > 0;
}

static bool compare(const ls_record *subject, const ls_record *reference, int first_step, int count,
                    sums *s, ls_verdict *out)
{
    memset(s, 0, sizeof *s);
    s->finite = true;
    ls_safetensors *mine = NULL, **other = calloc((size_t)count, sizeof *other);
    LS_ASSERT(other != NULL);
    bool good = open_dump(subject, 1, &mine) == LS_OK;
    for (int k = 0; k < count && good; k++) {
        good = open_dump(reference, first_step + k, &other[k]) == LS_OK;
    }
    if (good) {
        good = sum_gradients(mine, other, count, s, out);
    } else {
        ls_verdict_set(out, LS_FAIL, "a dump of the first step is missing or broken");
    }
    for (int k = 0; k < count; k++) {
        if (other[k] != NULL) {
            ls_safetensors_close(other[k]);
        }
    }
    if (mine != NULL) {
        ls_safetensors_close(mine);
    }
    free(other);
    return good;
}

/* A factor that explains the difference: summed instead of averaged, not unscaled, ... */
static void name_factor(const sums *s, int world, ls_verdict *out)
{
    double factor = s->product / s->reference;
    double rest = 1 - s->product * s->product / (s->subject * s->reference);
    double residual = sqrt(rest > 0 ? rest : 0);
    if (!(residual < 0.3) || fabs(factor - 1) < 0.2) {
        return;
    }
    /* 0.05: the names stand a factor of two and more apart, the rounding of halves is below 0.01 */
    const char *meaning = fabs(factor / world - 1) < 0.05   ? ": summed over ranks, not averaged"
                          : fabs(factor * world - 1) < 0.05 ? ": averaged twice, or not summed"
                                                            : "";
    ls_text_put(out->cause, sizeof out->cause,
                "every gradient is %.4g x the expected one (residual %.1e)%s", factor, residual,
                meaning);
}

static void judge_reference(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    sums s;
    if (!compare(&job[0], &job[1], row->number[0], row->number[1], &s, out)) {
        return;
    }
    if (!s.finite) {
        ls_verdict_set(out, LS_WEAK, "the first step overflowed: its gradient says nothing");
        return;
    }
    const ls_tol *limit = row->job[0].level == 0 ? &exact : NULL;
    for (size_t i = 0; limit == NULL && i < sizeof coarse / sizeof *coarse; i++) {
        if (strcmp(coarse[i].arch, row->job[0].arch) == 0 && row->job[0].image_size == 64) {
            limit = &coarse[i].error;
        }
    }
    double error = sqrt(s.difference / s.reference);
    if (limit == NULL) {
        ls_verdict_set(out, LS_WEAK,
                       "rel=%.2g; no bound is known for this network on its own branches", error);
        return;
    }
    ls_verdict_measured(out, error, limit->value, "relative", limit->why);
    if (!(error <= limit->value)) {
        name_factor(&s, row->job[0].world, out);
        ls_verdict_set(out, LS_FAIL, "rank=0 whole gradient of step 1 rel=%.2g limit=%.2g", error,
                       limit->value);
    } else {
        ls_text_put(out->evidence, sizeof out->evidence,
                    "step 1 against FP32 in one process: rel=%.2g limit=%.2g%s", error,
                    limit->value, row->job[0].level == 0 ? "" : " (coarse: own branches)");
    }
}

/* Same level, ranks and batches, other buckets or nodes: the local gradients are equal, only the
 * order of the additions differs. u: unit of the type reduced; W-1 additions, each off by at most u
 * of its partial sum, in either job; partial sums are at most sqrt(W) times the mean of W parts of
 * random sign. */
static void judge_order(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    sums s;
    if (!compare(&job[0], &job[1], 1, 1, &s, out)) {
        return;
    }
    if (!s.finite) {
        ls_verdict_set(out, LS_WEAK, "the first step overflowed: its gradient says nothing");
        return;
    }
    for (int k = 0; k < job[0].world; k++) {
        const ls_record_step *a = ls_record_find_step(&job[0].rank[k], 1);
        const ls_record_step *b = ls_record_find_step(&job[1].rank[k], 1);
        if (a == NULL || b == NULL || strcmp(a->loss_bits, b->loss_bits) != 0) {
            ls_verdict_set(out, LS_FAIL,
                           "rank=%d: the loss of step 1 differs between two jobs that "
                           "differ in buckets only",
                           k);
            return;
        }
    }
    double unit = row->job[0].level < 2 ? ldexp(1, -24) : ldexp(1, -11);
    int world = job[0].world;
    double limit = 2 * (world - 1) * unit * sqrt(world);
    double error = sqrt(s.difference / s.reference);
    ls_verdict_measured(out, error, limit, "relative",
                        "order of W-1 rounded additions in both jobs");
    if (!(error <= limit)) {
        ls_verdict_set(out, LS_FAIL, "whole gradient of step 1 rel=%.2g limit=%.2g", error, limit);
    } else {
        ls_text_put(out->evidence, sizeof out->evidence,
                    "same local gradients, other buckets: rel=%.2g limit=%.2g", error, limit);
    }
}

void ls_gradients_timed_cases(const ls_case_settings *settings, ls_case_list *list)
{
    const ls_matrix *bench = settings->bench;
    for (int i = 0; bench != NULL && i < bench->count; i++) {
        const ls_spec *spec = &bench->spec[i];
        if (spec->role != LS_ROLE_THROUGHPUT) {
            continue;
        }
        char id[64];
        ls_timed_id(spec, id);
        ls_case *row = ls_rows_add(list, judge_reference, "G4", "gradients.timed.%s", id);
        row->job_count = 2;
        row->job[0] = *spec;
        ls_timed_reference(bench, spec, &row->job[1], &row->number[0], &row->number[1]);
        for (int j = 0; j < i; j++) {
            const ls_spec *other = &bench->spec[j];
            if (other->role == LS_ROLE_THROUGHPUT && other->level == spec->level &&
                other->world == spec->world && spec->world > 1) {
                row = ls_rows_add(list, judge_order, "G5", "gradients.order.%s", id);
                row->job_count = 2;
                row->job[0] = *spec;
                row->job[1] = *other;
                break;
            }
        }
    }
}

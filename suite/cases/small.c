/* A network that is nearly certain, and right: (p - y) / N is below what half precision holds,
 * until it is multiplied by the loss scale. The last bias' gradient is the mean of those numbers,
 * which the dumped logits give in FP64. */
#include "../suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../harness/text.h"
#include "../../reference/safetensors.h"
#include "overflow.h"

enum { CLASSES = 10, STEPS = 2 };

static const ls_tol halves = LS_TOL(
    0x1p-9, "three roundings to half, 2^-11 each at most: the loss gradient's, its sum's over "
            "the batch and the sum's over the ranks; one spare");
static const ls_tol single = LS_TOL(
    0x1p-21, "softmax in f32: an exponential, a sum of ten and a quotient, 2^-24 each, taken "
             "from 1 where the class is right");

/* Adds this rank's sum of (p - y) and of p. */
static bool add_rank(const ls_safetensors *file, double *sum, double *magnitude, int *images)
{
    const ls_safetensors_entry *logits = ls_safetensors_find(file, "logits");
    const ls_safetensors_entry *target = ls_safetensors_find(file, "target");
    int64_t row_bytes = CLASSES * (int64_t)sizeof(float);
    if (logits == NULL || target == NULL || logits->dtype != LS_F32 || target->dtype != LS_I64 ||
        logits->bytes % row_bytes != 0 ||
        logits->bytes / row_bytes != target->bytes / (int64_t)sizeof(int64_t)) {
        return false;
    }
    int count = (int)(logits->bytes / row_bytes);
    for (int n = 0; n < count; n++) {
        const float *row = (const float *)logits->data + n * CLASSES;
        double total = 0, most = -INFINITY;
        for (int c = 0; c < CLASSES; c++) {
            most = fmax(most, (double)row[c]);
        }
        for (int c = 0; c < CLASSES; c++) {
            total += exp((double)row[c] - most);
        }
        int right = (int)((const int64_t *)target->data)[n];
        for (int c = 0; c < CLASSES; c++) {
            double p = exp((double)row[c] - most) / total, others = 0;
            for (int k = 0; k < CLASSES && c == right; k++) { /* 1 - p without cancellation */
                others += k == c ? 0 : exp((double)row[k] - most) / total;
            }
            sum[c] += c == right ? -others : p;
            magnitude[c] += p;
        }
    }
    *images += count;
    return true;
}

static void judge_step(const ls_record *job, int step, ls_verdict *out)
{
    double sum[CLASSES] = {0}, magnitude[CLASSES] = {0};
    float bias[CLASSES];
    int images = 0;
    for (int k = 0; k < job->world; k++) {
        char path[700];
        ls_safetensors *file;
        ls_text_put(path, sizeof path, "%s/dump/step%06d.rank%d.safetensors", job->directory, step,
                    k);
        if (ls_safetensors_open(path, &file) != LS_OK) {
            ls_verdict_set(out, LS_FAIL, "step %d: the dump of rank %d is missing or broken", step,
                           k);
            return;
        }
        const ls_safetensors_entry *grad = ls_safetensors_find(file, "grad/fc.bias");
        bool good = grad != NULL && grad->dtype == LS_F32 && grad->bytes == (int64_t)sizeof bias &&
                    add_rank(file, sum, magnitude, &images);
        if (good) {
            memcpy(bias, grad->data, sizeof bias);
        } else {
            ls_verdict_set(out, LS_FAIL, "step %d rank=%d: no logits, target or grad/fc.bias", step,
                           k);
        }
        ls_safetensors_close(file);
    }
    for (int c = 0; c < CLASSES && out->code == LS_PASS; c++) {
        double want = sum[c] / images, limit = halves.value * fabs(want);
        limit += single.value * magnitude[c] / images;
        double off = fabs((double)bias[c] - want);
        if (!out->measured || off / limit > out->value) {
            ls_verdict_measured(out, off / limit, 1, "of the limit", halves.why);
        }
        if (!(off <= limit)) {
            ls_verdict_set(out, LS_FAIL,
                           "step %d fc.bias[%d]: gradient %.4g, (p - y) / N of the logits is %.4g, "
                           "limit=%.1e",
                           step, c, (double)bias[c], want, limit);
            ls_text_put(out->cause, sizeof out->cause, "%s",
                        bias[c] == 0 ? "the loss gradient is rounded away: it is cast to half "
                                       "before it is scaled, or softmax is computed in half"
                                     : "the loss gradient has fewer bits than half: it is cast "
                                       "before it is scaled, or softmax is computed in half");
        }
    }
}

static void judge_small(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    for (int step = 1; step <= STEPS && out->code == LS_PASS; step++) {
        judge_step(job, step, out);
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence,
                    "gradients of the last bias at %.2f of their limit", out->value);
    }
}

void ls_small_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 1; level < 4; level++) {
        ls_case *row = ls_rows_add(list, judge_small, "G6", "small.o%d.w2", level);
        row->job_count = 1;
        row->job[0] = ls_rows_evidence(settings, level, 2, 1, 0.1);
        ls_overflow_spec_of(&row->job[0], LS_OVERFLOW_NEARLY, "", 0);
    }
}

/* A network that is nearly certain, and right: (p - y) / N is below what half precision holds,
 * until it is multiplied by the loss scale. The last bias' gradient is the mean of those numbers,
 * which the dumped logits give in FP64. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/judge/judges.h"

enum { CLASSES = 10, STEPS = 2 };

static const ls_tol halves = LS_TOL(
    0x1p-9, "three roundings to half, 2^-11 each at most: the loss gradient's, its sum's over "
            "the batch and the sum's over the ranks; one spare");
static const ls_tol single = LS_TOL(
    0x1p-21, "softmax in f32: an exponential, a sum of ten and a quotient, 2^-24 each, taken "
             "from 1 where the class is right");

/* In f32, or at O1 as the last product gives them. */
static bool are_logits(const ls_dumpfile_entry *entry)
{
    return entry != NULL && (strcmp(entry->dtype, "F32") == 0 || strcmp(entry->dtype, "F16") == 0 ||
                             strcmp(entry->dtype, "BF16") == 0);
}

/* Adds this rank's sum of (p - y) and of p. */
static bool add_rank(const ls_dumpfile *file, double *sum, double *magnitude, int *images)
{
    const ls_dumpfile_entry *logits = ls_dumpfile_find(file, "logits");
    const ls_dumpfile_entry *target = ls_dumpfile_find(file, "target");
    if (!are_logits(logits) || target == NULL || strcmp(target->dtype, "I64") != 0 ||
        logits->count != target->count * CLASSES) {
        return false;
    }
    double *values = ls_dumps_values(logits), *right = ls_dumps_values(target);
    for (int n = 0; n < target->count; n++) {
        const double *row = values + n * CLASSES;
        double total = 0, most = -INFINITY;
        for (int c = 0; c < CLASSES; c++) {
            most = fmax(most, row[c]);
        }
        for (int c = 0; c < CLASSES; c++) {
            total += exp(row[c] - most);
        }
        for (int c = 0; c < CLASSES; c++) {
            double p = exp(row[c] - most) / total, others = 0;
            for (int k = 0; k < CLASSES && c == (int)right[n];
                 k++) { /* 1 - p without cancellation */
                others += k == c ? 0 : exp(row[k] - most) / total;
            }
            sum[c] += c == (int)right[n] ? -others : p;
            magnitude[c] += p;
        }
    }
    *images += (int)target->count;
    free(values);
    free(right);
    return true;
}

static void judge_step(const ls_record *job, int step, ls_verdict *out)
{
    double sum[CLASSES] = {0}, magnitude[CLASSES] = {0}, bias[CLASSES];
    int images = 0;
    for (int k = 0; k < job->world; k++) {
        ls_dumpfile *file = ls_dumps_open(job, step, k, out);
        if (file == NULL) {
            return;
        }
        const ls_dumpfile_entry *grad = ls_dumpfile_find(file, "grad/fc.bias");
        if (grad != NULL && strcmp(grad->dtype, "F32") == 0 && grad->count == CLASSES &&
            add_rank(file, sum, magnitude, &images)) {
            ls_dumpfile_read(grad, bias);
        } else {
            ls_verdict_fail(out, "step %d rank=%d: no logits, target or grad/fc.bias", step, k);
        }
        ls_dumpfile_close(file);
    }
    for (int c = 0; c < CLASSES && out->code == LS_PASS; c++) {
        double want = sum[c] / images, limit = halves.value * fabs(want);
        limit += single.value * magnitude[c] / images;
        double off = fabs(bias[c] - want);
        if (!ls_verdict_worst(out, off / limit, &(const ls_tol){1, halves.why}, "of the limit")) {
            ls_verdict_fail(
                out,
                "step %d fc.bias[%d]: gradient %.4g, (p - y) / N of the logits is %.4g, "
                "limit=%.1e",
                step, c, bias[c], want, limit);
            ls_verdict_cause(out, "%s",
                             bias[c] == 0
                                 ? "the loss gradient is rounded away: it is cast to half "
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
    ls_verdict_pass(out, STEPS * CLASSES, "gradients of the last bias at %.2f of their limit",
                    out->value);
}

/* Logit c of LS_OVERFLOW_EXACT: 1.5 x 1024, and 15 x 1.5 + 48 x 0.5 times (c + 1) / 8. All partial
 * sums are multiples of 1/16 below 2^11: exact in f32 in any order. Rounded once, where values from
 * 1024 to 2047 stand 1 (fp16) or 8 (bf16) apart. */
static double exact_logit(int c, double spacing)
{
    double sum = 1536 + 46.5 * (c + 1) / 8;
    return spacing == 0 ? sum : spacing * nearbyint(sum / spacing);
}

static void judge_exact(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    double spacing = spec->level == 0 ? 0 : strcmp(spec->half, "bf16") == 0 ? 8 : 1;
    ls_dumpfile *file = ls_dumps_open(job, 1, 0, out);
    if (file == NULL) {
        return;
    }
    const ls_dumpfile_entry *logits = ls_dumpfile_find(file, "logits");
    int64_t count = are_logits(logits) ? logits->count : 0;
    double *values = count > 0 ? ls_dumps_values(logits) : NULL;
    for (int64_t i = 0; i < count && out->code == LS_PASS; i++) {
        double got = values[i];
        double want = exact_logit((int)(i % CLASSES), spacing);
        if (got != want) {
            ls_verdict_fail(out, "logit %d of sample %d is %.9g, the sum rounded once is %.9g",
                            (int)(i % CLASSES), (int)(i / CLASSES), got, want);
            ls_verdict_cause(out, "%s",
                             spacing == 0
                                 ? "products are rounded on the way"
                                 : "products accumulate in half, or are rounded on the way");
        }
    }
    free(values);
    ls_dumpfile_close(file);
    if (count == 0) {
        ls_verdict_fail(out, "the dump has no logits");
    }
    ls_verdict_pass(out, count, "%d logits exact to the last bit", (int)count);
}

static const ls_row rows[] = {
    {"exact.o[0|1|2|3].w1", "G7", judge_exact, "O$1 steps=1 dump=1 batches=exact@"},
    {"exact.bf16.o[1|2|3].w1", "G7", judge_exact, "O$1 bf16 steps=1 dump=1 batches=exact@"},
    {"small.o[1|2|3].w2", "G6", judge_small, "O$1 w2 b0.1 dump=1,2 scale=1048576 batches=nearly@"},
};

void ls_small_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}

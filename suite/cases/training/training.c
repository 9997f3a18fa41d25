/* Training works at all: the loss of every level comes down on data that can be learnt. */
#include "suite/cases/rows.h"

#include <math.h>

#include "kernels/core/text.h"

enum { STEPS = 60, WINDOW = 10 };

static const ls_tol falls_to = LS_TOL(
    0.8, "synthetic images are separable by class: a fresh network is at ln 10 = 2.30 and must "
         "leave it by a fifth in 60 steps; one that does not learn stays within noise of it");

/* Mean over ranks and over WINDOW steps that end at `last`; adds how many losses it is of. */
static double mean_loss(const ls_record *job, int64_t last, int *losses)
{
    double sum = 0;
    int count = 0;
    for (int k = 0; k < job->world; k++) {
        for (int64_t step = last - WINDOW + 1; step <= last; step++) {
            const ls_record_step *seen = ls_record_find_step(&job->rank[k], step);
            if (seen != NULL) {
                sum += seen->loss;
                count++;
            }
        }
    }
    *losses += count;
    return count == 0 ? NAN : sum / count;
}

static void judge_falls(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int losses = 0;
    double first = mean_loss(job, WINDOW, &losses), last = mean_loss(job, STEPS, &losses);
    ls_verdict_measured(out, last / first, falls_to.value, "of the first", falls_to.why);
    if (!(last <= falls_to.value * first)) {
        ls_verdict_fail(out, "mean loss %.4f of the first %d steps became %.4f", first, WINDOW,
                        last);
    }
    ls_verdict_pass(out, losses, "mean loss of %d steps fell from %.3f to %.3f", WINDOW, first,
                    last);
}

static const ls_row rows[] = {
    {"training.falls.o[0|1|2|3].w2", "T1", judge_falls, "resnet8 O$1 w2 batch=16 steps=60"},
};

void ls_training_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}

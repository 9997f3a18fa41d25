/* Training works at all: the loss of every level comes down on data that can be learnt. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"

enum { STEPS = 60, WINDOW = 10 };

static const ls_tol falls_to = LS_TOL(
    0.8, "synthetic images are separable by class: a fresh network is at ln 10 = 2.30 and must "
         "leave it by a fifth in 60 steps; one that does not learn stays within noise of it");

/* Mean over ranks and over WINDOW steps that end at `last`. */
static double mean_loss(const ls_record *job, int64_t last)
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
    return count == 0 ? NAN : sum / count;
}

static void judge_falls(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    double first = mean_loss(job, WINDOW), last = mean_loss(job, STEPS);
    ls_verdict_measured(out, last / first, falls_to.value, "of the first", falls_to.why);
    if (!(last <= falls_to.value * first)) {
        ls_verdict_fail(out, "mean loss %.4f of the first %d steps became %.4f", first, WINDOW,
                        last);
    } else {
        ls_verdict_pass(out, "mean loss of %d steps fell from %.3f to %.3f", WINDOW, first, last);
    }
}

void ls_training_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level < 4; level++) {
        ls_case *row = ls_rows_add(list, judge_falls, "T1", "training.falls.o%d.w2", level);
        row->job_count = 1;
        ls_spec *spec = &row->job[0];
        *spec = ls_rows_evidence(settings, level, 2, 1, LS_BUCKET_OWN);
        ls_text_put(spec->arch, sizeof spec->arch, "resnet8");
        spec->batch_size = 16;
        spec->steps = STEPS;
        spec->dump_steps[0] = '\0';
    }
}

/* Whether validations count every picture once over all ranks and leave the model as it is, and
 * whether what is kept as the best is. Of trainers that report their validations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "rules.h"

/* ---- evaluation.counted ---------------------------------------------------------------------- */

/* Each event's pictures against the data set's. */
static void check_sums(const ls_observe_rank *rank, int number, int *compared,
                       ls_observe_finding *out)
{
    const ls_event *epoch;
    ls_event_each(epoch, ls_trace_events(rank, epoch)) {
        const ls_event *val = ls_event_object(epoch, val), *one, *made = NULL;
        double step = ls_event_number(epoch, step, -1);
        ls_event_each(one, ls_trace_events(rank, validation)) {
            made = made == NULL && ls_event_number(one, step, NAN) == step ? one : made;
        }
        double length = ls_event_number(made, length, NAN);
        double images = ls_event_number(val, images, NAN) + ls_event_number(val, bad_images, 0);
        if (isnan(length) || isnan(images)) {
            continue;
        }
        ++*compared;
        if (images != length) {
            ls_finding_set(out, LS_FAIL, "",
                           images > length
                               ? "pictures that fill up a batch or a rank's part are counted"
                               : "a part of the data set is left out",
                           NULL, "rank %d: the validation after step %g counts %g pictures of %g",
                           number, step, images, length);
        }
    }
}

static const ls_event *pass_of(const ls_observe_rank *rank, int number)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (!ls_event_bool(data, trained, true) && ls_event_bool(data, indices, false) &&
            ls_event_int(data, pass, -1) == number) {
            return data;
        }
    }
    return NULL;
}

/* Every index that the ranks draw in their validation of that number; false: there is none. */
static bool check_pass(const ls_observe_trace *trace, int number, int *compared,
                       ls_observe_finding *out)
{
    const ls_event *first = pass_of(&trace->rank[0], number), *index;
    int64_t length = ls_event_integer(first, length, 0);
    int64_t modulus = ls_event_integer(first, modulus, 1), twice = 0, drawn = 0;
    if (first == NULL || length < 1 || length > (INT64_C(1) << 31) || modulus < 1) {
        return false;
    }
    int64_t places = (length + modulus - 1) / modulus;
    char *seen = ls_list_make((size_t)places, 1);
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data = pass_of(&trace->rank[k], number);
        ls_event_each(index, ls_event_list(data, kept)) {
            int64_t at = -1;
            bool good = ls_json_whole(index->number, 0, length - 1, &at);
            twice += good && seen[at / modulus];
            drawn += good && !seen[at / modulus];
            if (good) {
                seen[at / modulus] = 1;
            }
        }
    }
    free(seen);
    ++*compared;
    if (drawn < places || twice > 0) {
        ls_finding_set(out, LS_FAIL, "",
                       "the ranks do not share the pictures: some validate those of another", NULL,
                       "of %lld pictures of validation %d the ranks take %lld, %lld of them again",
                       (long long)places, number, (long long)drawn, (long long)twice);
    }
    return true;
}

static void check_statistics(const ls_observe_rank *rank, int number, int *compared,
                             ls_observe_finding *out)
{
    const ls_event *one;
    ls_event_each(one, ls_trace_events(rank, validation)) {
        const char *before = ls_event_text(one, buffers_before, "");
        ++*compared;
        if (strcmp(before, ls_event_text(one, buffers_after, "")) != 0) {
            ls_finding_set(out, LS_FAIL, "",
                           "norms are in training mode while the model is validated", NULL,
                           "rank %d: the validation after step %g changes running statistics",
                           number, ls_event_number(one, step, -1));
            return;
        }
    }
}

void ls_rules_evaluation_counted(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    for (int k = 0; k < trace->world; k++) {
        check_sums(&trace->rank[k], k, &compared, out);
        check_statistics(&trace->rank[k], k, &compared, out);
    }
    for (int n = 0; trace->world > 0 && !trace->attached && check_pass(trace, n, &compared, out);
         n++) {
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no validation is reported");
    }
    ls_finding_blame(out, "--val",
                     "let rank r of W take pictures r, r + W, ..., count each once, "
                     "and validate in eval mode");
    ls_verdict_pass(&out->verdict, compared,
                    "%d counts, parts and statistics of validations are as they should be",
                    compared);
}

/* ---- evaluation.best ------------------------------------------------------------------------- */

/* The best score of a run does not fall. */
void ls_rules_evaluation_best(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    ls_observe_finding guessed = {0};
    ls_misuse_judge(trace, "evaluation.best", &guessed);
    ls_finding_guess(out, &guessed);
    for (int k = 0; k < trace->world; k++) {
        const ls_event *save;
        double best = NAN;
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            const ls_event *held = ls_event_object(save, best);
            double images = ls_event_number(held, images, 0);
            double score = images > 0 ? ls_event_number(held, top1, NAN) / images : NAN;
            if (isnan(score)) {
                continue;
            }
            ++compared;
            if (score < best) {
                ls_finding_set(out, LS_FAIL, "", "the newest validation counts as the best", NULL,
                               "rank %d: the file of step %lld has %.4g for the best score, an "
                               "earlier one had %.4g",
                               k, (long long)ls_event_integer(save, step, -1), score, best);
            }
            best = isnan(best) ? score : fmax(best, score);
        }
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no file is reported with the best score so far");
    }
    ls_finding_blame(out, "--save-dir", "replace the best file where the score is higher");
    ls_verdict_pass(&out->verdict, compared, "the best score never falls over %d files", compared);
}

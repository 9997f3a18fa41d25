/* Whether a validation reads samples that the job trains on: compared by content, as splits that
 * are drawn anew on each rank or in each run have the right sizes and indices. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/pass.h"
#include "suite/observe/trace/job.h"
#include "rules.h"

static const ls_tol few =
    LS_TOL(32, "samples: of fewer a share of a tenth is three, which a data set may hold twice");
static const ls_tol duplicates =
    LS_TOL(0.1, "of the samples: text and pictures of public data sets hold up to some hundredths "
                "of them twice");
static const ls_tol almost_all =
    LS_TOL(0.95, "of the samples: a validation wholly on training data is a training score");
static const ls_tol whole =
    LS_TOL(0.9, "of the data set, drawn once by all ranks: a sampler may drop its last batches");

/* Of all ranks' passes that were trained on, or of those that began at one place and were not. */
static ls_contents gather(const ls_observe_trace *trace, const char *at)
{
    ls_contents all = {0};
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (at == NULL
                    ? ls_pass_is_trained(data)
                    : !ls_pass_is_trained(data) && strcmp(at, ls_event_text(data, at, "")) == 0) {
                ls_pass_contents_add(&all, data);
            }
        }
    }
    return all;
}

/* A data set of that length is trained on: a pass over it is none over held-out data. */
static bool same_length(const ls_observe_trace *trace, const ls_event *validation)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (ls_pass_is_trained(data) &&
                ls_event_number(data, length, -1) == ls_event_number(validation, length, -2)) {
                return true;
            }
        }
    }
    return false;
}

/* The job went through all of the data that it trains on, once at least: else a look at training
 * data would be a validation on a part of them. */
static bool drew_all(const ls_observe_trace *trace)
{
    for (int i = 0;; i++) {
        double count = 0, length = NAN;
        for (int k = 0; k < trace->world; k++) {
            const ls_event *data;
            int index = i;
            ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
                if (ls_pass_is_trained(data) && index-- == 0) {
                    count += ls_event_number(data, count, 0);
                    length = ls_event_number(data, length, NAN);
                }
            }
        }
        if (count == 0) {
            return false;
        }
        if (count >= whole.value * length) {
            return true;
        }
    }
}

/* Whether the contents of a data set come again in its next pass: random changes of pictures make
 * them differ each time. True for one pass. */
static bool comes_again(const ls_observe_trace *trace, const ls_contents *training)
{
    int passes = 0;
    const ls_event *data;
    ls_event_each(data, ls_trace_events(&trace->rank[0], data)) {
        passes += ls_pass_is_trained(data);
    }
    return passes < 2 || training->repeated > duplicates.value * training->count;
}

/* No validation of that place comes before this pass of rank k: its place is still to be judged. */
static bool is_first(const ls_observe_trace *trace, int rank, const ls_event *validation)
{
    for (int k = 0; k <= rank; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (data == validation) {
                return true;
            }
            if (!ls_pass_is_trained(data) && ls_event_same(data, validation, at)) {
                return false;
            }
        }
    }
    return true;
}

static void judge_place(const ls_observe_trace *trace, const ls_event *validation,
                        const ls_contents *training, int *compared, ls_observe_finding *out)
{
    const char *at = ls_event_text(validation, at, "");
    ls_contents held = gather(trace, at);
    int of, common = ls_pass_contents_common(&held, training, &of);
    ls_pass_contents_free(&held);
    if (of < few.value) {
        return;
    }
    *compared += of;
    if (common <= duplicates.value * of) {
        return;
    }
    if (common >= almost_all.value * of || same_length(trace, validation) || !drew_all(trace) ||
        ls_event_count(ls_trace_events(&trace->rank[0], model)) > 1) {
        ls_finding_set(out, LS_WEAK, at, NULL, "validate on samples that no rank trains on",
                       "%d of %d samples of the validation at %s are trained on: fine for a "
                       "training score, or where each model has a split of its own",
                       common, of, at);
        return;
    }
    ls_finding_set(out, LS_FAIL, ls_job_data_place(validation, cut_at),
                   "training and validation are split differently on each rank or after a resume: "
                   "the score is of samples that the model has seen",
                   "split alike everywhere: random_split(..., "
                   "generator=torch.Generator().manual_seed(0)), and sort lists of files",
                   "%d of %d samples of the validation are trained on, by this or another rank",
                   common, of);
}

void ls_rules_data_held_out(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_contents training = gather(trace, NULL);
    int compared = 0, passes = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (!ls_pass_is_trained(data) && is_first(trace, k, data)) {
                ls_observe_finding one = {0};
                judge_place(trace, data, &training, &compared, &one);
                ls_calls_keep_worst(out, &one);
                passes++;
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       passes == 0 ? "no pass over data that were not trained on"
                                   : "too few samples whose content can be compared");
    } else if (!comes_again(trace, &training)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "samples change from pass to pass: their contents cannot be compared");
    }
    ls_pass_contents_free(&training);
    ls_verdict_pass(&out->verdict, compared, "%d samples of validations are not trained on",
                    compared);
}


#include "rules.h"
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/mean.h"

int64_t ls_split_next_step(const ls_observe_trace *trace, int64_t n)
{
    int64_t next = INT64_MAX;
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        int64_t first = rank->step_count > 0 ? rank->step[0].step->step : INT64_MAX;
        int64_t own = n > first ? n : first;
        if (rank->step_count > 0 && own - first < rank->step_count && own < next) {
            next = own;
        }
    }
    return next;
}

/* A step up to n that some ranks skipped and others took. */
static bool find_uneven_skip(const ls_observe_trace *trace, int64_t n, int64_t *at, int *skipped,
                             int *took)
{
    for (*at = ls_split_next_step(trace, 0); *at <= n; *at = ls_split_next_step(trace, *at + 1)) {
        *skipped = *took = -1;
        for (int k = 0; k < trace->world; k++) {
            const ls_observe_step *step = ls_trace_step(&trace->rank[k], *at);
            if (step != NULL && step->step->skip_given) {
                *(step->step->skipped ? skipped : took) = k;
            }
        }
        if (*skipped >= 0 && *took >= 0) {
            return true;
        }
    }
    return false;
}

/* What load_state_dict calls of a rank gave to a model or an optimizer up to a step. */
static int count_restores(const ls_observe_rank *rank, const char *what, int64_t until,
                          const ls_event **last)
{
    int count = 0;
    const ls_event *entry;
    ls_event_each(entry, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(entry, what, ""), what) == 0 &&
            ls_event_number(entry, step, 0) <= (double)until) {
            count++;
            *last = entry;
        }
    }
    return count;
}

static bool blame_restore(const ls_observe_trace *trace, ls_split at, const char *what,
                          ls_observe_finding *out)
{
    const ls_event *call = NULL;
    int a = count_restores(&trace->rank[at.a], what, at.step, &call);
    int b = count_restores(&trace->rank[at.b], what, at.step, &call);
    if (a == b || call == NULL) {
        return false;
    }
    ls_verdict_cause(&out->verdict,
                     "rank %d restored the %s from a file %d times, rank %d %d times", at.a, what,
                     a, at.b, b);
    ls_finding_blame(out, ls_event_text(call, at, ""),
                     "call load_state_dict on every rank (read the file with map_location), or "
                     "before the model is wrapped");
    return true;
}

static bool blame_skip(const ls_observe_trace *trace, ls_split at, ls_observe_finding *out)
{
    int64_t step;
    int skipped, took;
    if (!find_uneven_skip(trace, at.step, &step, &skipped, &took)) {
        return false;
    }
    const ls_observe_step *own = ls_trace_step(&trace->rank[took], step);
    int call = ls_trace_find(own, LS_CALL_OPTIMIZER_STEP, 0);
    ls_verdict_cause(&out->verdict,
                     "the optimizer of rank %d did nothing in step %lld, that of "
                     "rank %d stepped",
                     skipped, (long long)step, took);
    ls_finding_blame(
        out, call >= 0 ? own->call[call].at : "",
        "decide on all ranks alike whether a step is taken: from the reduced gradient, "
        "not from a rank's own loss or gradient");
    return true;
}

/* A schedule that was stepped on one of two ranks alone before that step: its call there, and which
 * rank that is. */
static const ls_call *lone_schedule(const ls_observe_trace *trace, ls_split at, int64_t step,
                                    int *where)
{
    int count[2] = {0, 0};
    const ls_call *last[2] = {NULL, NULL};
    const int rank[2] = {at.a, at.b};
    for (int64_t n = ls_split_next_step(trace, 0); n < step; n = ls_split_next_step(trace, n + 1)) {
        for (int k = 0; k < 2; k++) {
            const ls_observe_step *own = ls_trace_step(&trace->rank[rank[k]], n);
            for (int c = own == NULL ? -1 : ls_trace_find(own, LS_CALL_SCHEDULE, 0); c >= 0;
                 c = ls_trace_find(own, LS_CALL_SCHEDULE, c + 1)) {
                count[k] += own->call[c].times;
                last[k] = &own->call[c];
            }
        }
    }
    *where = rank[count[1] > count[0]];
    return count[0] == count[1] ? NULL : last[count[1] > count[0]];
}

static bool blame_rate(const ls_observe_trace *trace, ls_split at, ls_observe_finding *out)
{
    for (int64_t n = ls_split_next_step(trace, 0); n <= at.step;
         n = ls_split_next_step(trace, n + 1)) {
        const ls_observe_step *a = ls_trace_step(&trace->rank[at.a], n);
        const ls_observe_step *b = ls_trace_step(&trace->rank[at.b], n);
        if (a != NULL && b != NULL && a->step->lr != b->step->lr && a->step->lr == a->step->lr &&
            b->step->lr == b->step->lr) {
            if (blame_restore(trace, at, "optimizer", out)) {
                return true; /* the rate is a part of its state */
            }
            bool built =
                n == ls_split_next_step(trace, 0) && ls_job_built_with_rates(trace, at.a, at.b);
            const ls_event *optimizer = ls_job_optimizer(&trace->rank[at.a], 0);
            ls_verdict_cause(&out->verdict,
                             "step %lld: the learning rate is %g on rank %d and %g "
                             "on rank %d",
                             (long long)n, a->step->lr, at.a, b->step->lr, at.b);
            int lone, call = ls_trace_find(a, LS_CALL_OPTIMIZER_STEP, 0);
            const ls_call *schedule = lone_schedule(trace, at, n, &lone);
            if (schedule != NULL) {
                ls_verdict_cause(&out->verdict,
                                 "rank %d alone steps its schedule: at step %lld the learning rate "
                                 "is %g on rank %d and %g on rank %d",
                                 lone, (long long)n, a->step->lr, at.a, b->step->lr, at.b);
                ls_finding_blame(out, schedule->at, "step the schedule on every rank");
            } else if (built) {
                ls_finding_blame(out, ls_event_text(optimizer, at, ""),
                                 "build the optimizer with a rate that is equal on all ranks");
            }
            ls_finding_blame(out, call >= 0 ? a->call[call].at : "",
                             "compute the rate from values that are equal on all ranks");
            return true;
        }
    }
    return false;
}

/* Ranks that hold other parameters before a step than after the one before it, where samples of
 * both show it. */
typedef struct between {
    int compared, changed; /* ranks */
    int first;             /* of those that changed some */
    ls_job_names names;    /* its tensors */
} between;

static between changed_before(const ls_observe_trace *trace, int64_t step)
{
    between b = {.first = -1};
    ls_observe_finding ignored = {0};
    ls_samples before, after;
    ls_samples_open(trace, step - 1, &before, &ignored);
    ls_samples_open(trace, step, &after, &ignored);
    for (int k = 0; k < trace->world; k++) {
        ls_job_names names = {0};
        int compared = 0;
        for (int i = 0; i < trace->rank[k].tensor_count; i++) {
            const char *name = trace->rank[k].tensor[i].name;
            const ls_dumpfile_entry *left = ls_samples_find(before.file[k], "next", name, NULL);
            const ls_dumpfile_entry *found = ls_samples_find(after.file[k], "param", name, NULL);
            compared += left != NULL && found != NULL;
            if (left != NULL && found != NULL && !ls_dumpfile_equal(left, found)) {
                ls_job_add_name(&names, name);
            }
        }
        b.compared += compared > 0;
        b.changed += names.count > 0;
        b.names = names.count > 0 && b.first < 0 ? names : b.names;
        b.first = names.count > 0 && b.first < 0 ? k : b.first;
    }
    ls_samples_close(&before);
    ls_samples_close(&after);
    return b;
}

/* Parameters that ranks change by themselves between two steps: which ranks do. */
static bool blame_between(const ls_observe_trace *trace, int64_t step, ls_observe_finding *out)
{
    between b = changed_before(trace, step);
    if (b.compared < 2 || b.changed == 0) {
        return false;
    }
    LS_TEXT(who, 40, "rank %d alone changes", b.first);
    ls_verdict_cause(&out->verdict,
                     "%s parameters between steps %lld and %lld, behind DistributedDataParallel: "
                     "%s",
                     b.changed == 1            ? who
                     : b.changed == b.compared ? "each rank by itself changes"
                                               : "some ranks change",
                     (long long)step - 1, (long long)step, ls_job_names_text(&b.names));
    return true;
}

/* Gradients that differ because a wrapper's forward did not run. */
static bool blame_idle(const ls_samples *samples, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    for (int i = 0; i < rank->tensor_count; i++) {
        if (ls_samples_find(samples->file[0], "local", rank->tensor[i].name, NULL) != NULL) {
            return ls_mean_blame_idle(samples, 0, rank->tensor[i].model, out);
        }
    }
    return false;
}

/* From samples of the step itself: which of parameters, gradients and step differ. */
static void blame_samples(const ls_samples *samples, int64_t split_at, ls_observe_finding *out)
{
    ls_job_names params = {0}, used = {0}, next = {0};
    const ls_observe_step *step = samples->step[0];
    int call = step == NULL ? -1 : ls_trace_find(step, LS_CALL_OPTIMIZER_STEP, 0);
    const char *at = call >= 0 ? step->call[call].at : "";
    int of_params = ls_job_compare_samples(samples, "param", &params);
    int of_used = ls_job_compare_samples(samples, "used", &used);
    if (!of_params || samples->number != split_at) {
        return;
    }
    if (params.count > 0) {
        if (!blame_between(samples->trace, split_at, out)) {
            ls_verdict_cause(&out->verdict,
                             "the parameters differ before the step already: changed between "
                             "two steps, behind DistributedDataParallel: %s",
                             ls_job_names_text(&params));
        }
        ls_finding_blame(out, at, "change parameters on all ranks alike, or broadcast them after");
    } else if (of_used && used.count > 0 && blame_idle(samples, out)) {
        return;
    } else if (of_used && used.count > 0) {
        ls_verdict_cause(&out->verdict, "the ranks step by different gradients: %s",
                         ls_job_names_text(&used));
        ls_finding_blame(out, at,
                         "let DistributedDataParallel reduce these gradients, and change "
                         "them on all ranks alike");
    } else if (of_used && ls_job_compare_samples(samples, "next", &next) && next.count == 0) {
        if (!blame_between(samples->trace, split_at + 1, out)) {
            ls_verdict_cause(&out->verdict,
                             "the step itself leaves the same parameters: they are changed after "
                             "it, behind DistributedDataParallel, or in elements that are not "
                             "sampled");
        }
        ls_finding_blame(out, at, "change parameters on all ranks alike, or broadcast them after");
    } else if (of_used) {
        ls_finding_explain(out, at,
                           "equal parameters and gradients before the step, and other parameters "
                           "after it: state or settings of the optimizers differ",
                           "give all ranks the same optimizer state and settings");
    }
}

/* A conversion gives parameters new storage, and other accumulators of gradients than those that
 * the wrapper hooked. */
static bool blame_moved(const ls_observe_trace *trace, ls_split at, ls_observe_finding *out)
{
    const ls_event *moved = ls_event_at(ls_trace_events(&trace->rank[at.a], moved), 0);
    if (moved == NULL || ls_event_number(moved, step, INFINITY) >= (double)at.step) {
        return false;
    }
    ls_verdict_cause(&out->verdict,
                     "the model was converted after step %d, in DistributedDataParallel, which "
                     "hooked its parameters as they were: it reduces no gradient since then",
                     ls_event_int(moved, step, 0));
    ls_finding_blame(out, ls_event_text(moved, at, ""),
                     "convert a copy (copy.deepcopy), or wrap the model again afterwards");
    return true;
}

void ls_split_blame(const ls_observe_trace *trace, ls_split at, const ls_samples *samples,
                    const char *what, ls_observe_finding *out)
{
    if (!blame_moved(trace, at, out) && !blame_skip(trace, at, out) &&
        !blame_rate(trace, at, out) && !blame_restore(trace, at, what, out) &&
        !blame_restore(trace, at, "optimizer", out)) {
        blame_samples(samples, at.step, out);
    }
}

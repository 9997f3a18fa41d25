/* Modules outside of the models that take part in training steps: equal on all ranks. */
#include <math.h>
#include <string.h>

#include "rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"

/* The event of a step that is the `index`-th of its class there, or NULL. */
static const ls_event *find(const ls_observe_rank *rank, double step, const char *name, int index)
{
    const ls_event *one;
    ls_event_each(one, ls_trace_events(rank, outside)) {
        if (ls_event_number(one, step, NAN) == step &&
            strcmp(ls_event_text(one, name, ""), name) == 0 && index-- == 0) {
            return one;
        }
    }
    return NULL;
}

static int index_of(const ls_observe_rank *rank, const ls_event *event)
{
    int index = 0;
    const ls_event *one;
    ls_event_each(one, ls_trace_events(rank, outside)) {
        index += one < event &&
                 ls_event_number(one, step, NAN) == ls_event_number(event, step, -1) &&
                 ls_event_same(one, event, name);
    }
    return index;
}

static const char *digest_at(const ls_event *event, int tensor)
{
    return ls_event_to_text(ls_event_at(ls_event_list(event, digests), tensor), "");
}

/* Whether a tensor holds, on a rank, what it held in the first step of all that saw the module. */
static bool stays(const ls_observe_rank *rank, const ls_event *event, int tensor)
{
    const ls_event *first = ls_event_first(ls_trace_events(rank, outside));
    const ls_event *same = find(rank, ls_event_number(first, step, NAN),
                                ls_event_text(event, name, ""), index_of(rank, event));
    return same != NULL && same != event &&
           strcmp(digest_at(same, tensor), digest_at(event, tensor)) == 0;
}

/* Where both ranks were given seeds that differ, before; "": nowhere. */
static const char *seeded_apart(const ls_observe_trace *trace, int rank)
{
    const ls_event *mine;
    ls_event_each(mine, ls_trace_events(&trace->rank[0], seed)) {
        const ls_event *theirs = ls_job_seed_like(trace, rank, mine);
        if (theirs != NULL &&
            ls_event_number(mine, seed, NAN) != ls_event_number(theirs, seed, NAN)) {
            return ls_event_text(mine, at, "");
        }
    }
    return "";
}

static void compare(const ls_observe_trace *trace, int rank, const ls_event *event, int *compared,
                    ls_observe_finding *out)
{
    const ls_observe_rank *zero = &trace->rank[0], *other = &trace->rank[rank];
    const ls_event *its = find(other, ls_event_number(event, step, NAN),
                               ls_event_text(event, name, ""), index_of(zero, event));
    int count = ls_event_count(ls_event_list(event, digests));
    if (its == NULL || ls_event_count(ls_event_list(its, digests)) != count) {
        return;
    }
    for (int i = 0; i < count; i++) {
        if (!stays(zero, event, i) || !stays(other, its, i)) {
            continue; /* statistics of the rank's own, say */
        }
        ++*compared;
        const char *seeded = seeded_apart(trace, rank);
        if (strcmp(digest_at(event, i), digest_at(its, i)) == 0) {
            continue;
        }
        /* a buffer may be a bank of the rank's own samples */
        bool drawn = i < ls_event_int(event, params, 0) || seeded[0] != '\0';
        if (drawn) {
            ls_finding_set(out, LS_FAIL, seeded[0] != '\0' ? seeded : ls_event_text(event, at, ""),
                           "each rank has drawn other values for it, and DistributedDataParallel "
                           "sends only those of the module that it wraps: ranks train for other "
                           "targets",
                           "build it before ranks are seeded by their numbers, or broadcast its "
                           "tensors from rank 0",
                           "step %d: a %.60s takes part in the step, changes in none, and holds "
                           "other values on rank %d than on rank 0",
                           ls_event_int(event, step, 0), ls_event_text(event, name, ""), rank);
            return;
        }
        ls_finding_set(out, LS_WEAK, ls_event_text(event, at, ""), NULL,
                       "all_reduce what it is counted from, or broadcast it from rank 0",
                       "step %d: a buffer of a %.60s, which takes part in the step, changes in "
                       "none, and holds other values on rank %d than on rank 0: ranks train for "
                       "other targets, unless it is meant to be of the rank's own samples",
                       ls_event_int(event, step, 0), ls_event_text(event, name, ""), rank);
    }
}

/* Numbers of a model that are no tensors: nothing sends them from rank 0. */
static void compare_numbers(const ls_observe_trace *trace, int rank, const ls_event *model,
                            ls_observe_finding *out)
{
    const ls_event *its = ls_job_model(&trace->rank[rank], ls_event_int(model, model, -1)), *one,
                   *other, *first = NULL;
    double value = NAN;
    int differ = 0;
    ls_event_each(one, ls_event_list(model, fractions)) {
        ls_event_each(other, its == NULL ? NULL : ls_event_list(its, fractions)) {
            if (ls_event_equal(ls_event_at(one, 0), ls_event_at(other, 0)) &&
                ls_event_number_at(one, 1) != ls_event_number_at(other, 1)) {
                value = differ++ == 0 ? ls_event_number_at(other, 1) : value;
                first = first == NULL ? one : first;
            }
        }
    }
    if (differ > 0) {
        ls_finding_set(
            out, LS_FAIL, ls_event_text(model, at, ""),
            "each rank computed them from its own part of the data, or drew them: nothing sends "
            "numbers that are no tensors from rank 0, and the ranks train other functions",
            "compute them of all data, or send rank 0's",
            "%d numbers of %.60s differ between ranks: %.60s is %.6g on rank 0, %.6g on "
            "rank %d",
            differ, ls_event_text(model, name, "the model"),
            ls_event_to_text(ls_event_at(first, 0), "?"), ls_event_number_at(first, 1), value,
            rank);
    }
}

void ls_rules_replicas_outside(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    const ls_event *event;
    ls_misuse_judge(trace, "replicas.outside", out);
    if (!ls_verdict_good(out->verdict.code)) {
        return;
    }
    if (!ls_trace_is_ddp(trace) || ls_calls_in_part(trace)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no model is replicated over all ranks");
        return;
    }
    ls_event_each(event, ls_trace_events(&trace->rank[0], outside)) {
        for (int k = 1; k < trace->world; k++) {
            compare(trace, k, event, &compared, out);
        }
    }
    ls_event_each(event, ls_trace_events(&trace->rank[0], model)) {
        for (int k = 1; k < trace->world; k++) {
            ls_observe_finding one = {0};
            compare_numbers(trace, k, event, &one);
            ls_finding_guess(out, &one);
        }
    }
    ls_finding_close(out, compared, LS_SKIP,
                     "no module outside of the models took part in two steps",
                     "%d tensors outside of the models, equal on all ranks", compared);
}

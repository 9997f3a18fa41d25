#include "carried.h"

#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "kernels/core/list.h"

/* What a walk over the calls keeps of an optimizer. */
typedef struct track {
    const char *first, *last; /* places of the backward calls that are pending */
    int found;                /* by the step's own forward; -1: not known */
    const ls_call *clear;     /* the last one before that forward */
} track;

static ls_carried state_of(const ls_calls_optimizer *own, const track *t, const char *at)
{
    bool pending = ls_calls_pending(own) > 0, stale = own->attempts > 0 && !own->cleared;
    bool seen = t->found >= 0 && own->clear == t->clear; /* by a forward, and not cleared since */
    ls_carried b = {.left = seen ? t->found : own->left};
    b.reused = b.left != 0 && (stale || (seen && t->found > 0 && !pending && own->attempts > 0));
    b.carried = pending && !stale;
    if (b.carried && t->first != NULL) {
        b.from = strcmp(t->first, at) != 0 ? t->first : strcmp(t->last, at) != 0 ? t->last : NULL;
    }
    return b;
}

static void follow(const ls_calls *calls, track *t, int optimizer)
{
    const ls_call *call = calls->call;
    const ls_calls_optimizer *own = &calls->optimizer[optimizer];
    if (ls_calls_pending(own) == 0) {
        t->first = t->last = NULL;
    }
    if (calls->call_index == 0) {
        t->found = -1;
    }
    if (call->kind == LS_CALL_BACKWARD) {
        t->first = t->first == NULL ? call->at : t->first;
        t->last = call->at;
    } else if (ls_calls_is_training(call) &&
               (ls_calls_optimizers_of(calls, call->model) >> optimizer & 1) != 0) {
        t->found = ls_event_int(call->json, left, -1);
        t->clear = own->clear;
    }
}

ls_carried *ls_carried_read(const ls_samples *samples, int rank)
{
    ls_calls calls;
    track track[LS_CALLS_OPTIMIZERS] = {{NULL, NULL, 0, NULL}};
    ls_carried *out = ls_list_make(LS_CALLS_OPTIMIZERS, sizeof *out);
    ls_calls_start(&calls, &samples->trace->rank[rank]);
    while (ls_calls_next(&calls) && ls_calls_step(&calls) <= samples->number) {
        bool here =
            calls.call->kind == LS_CALL_BACKWARD && ls_calls_step(&calls) == samples->number;
        for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
            if (here) {
                out[o] = state_of(&calls.optimizer[o], &track[o], calls.call->at);
            } else {
                follow(&calls, &track[o], o);
            }
        }
        if (here) {
            break;
        }
    }
    return out;
}

ls_carried ls_carried_of(const ls_samples *samples, int rank, const char *name,
                         const ls_carried *all)
{
    int optimizer = -1, group;
    const ls_observe_rank *own = &samples->trace->rank[rank];
    if (ls_job_group(own, name, -1, &optimizer, &group) == NULL || optimizer < 0 ||
        optimizer >= LS_CALLS_OPTIMIZERS) {
        return (ls_carried){.left = -1};
    }
    return all[optimizer];
}

bool ls_carried_is(const ls_samples *samples, int rank, const char *name)
{
    ls_carried *all = ls_carried_read(samples, rank);
    bool carried = ls_carried_of(samples, rank, name, all).carried;
    free(all);
    return carried;
}

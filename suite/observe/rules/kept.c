/* What a parameter loses when another object takes its place: that it is frozen, one under several
 * names, or an optimizer's. */
#include "rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"

/* Names of parameters that were frozen, that others of the same values replaced, and that an
 * optimizer steps. */
static int count_unfrozen(const ls_observe_rank *rank, ls_job_names *names, const char **at)
{
    int optimizer, group;
    const ls_event *model, *one;
    ls_event_each(model, ls_trace_events(rank, model)) {
        ls_event_each(one, ls_event_list(model, unfrozen)) {
            const char *name = ls_event_to_text(ls_event_at(one, 0), "");
            if (ls_job_group(rank, name, -1, &optimizer, &group) != NULL) {
                *at = names->count > 0 ? *at : ls_event_to_text(ls_event_at(one, 1), "");
                ls_job_add_name(names, name);
            }
        }
    }
    return names->count;
}

static void judge_untied(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const ls_event *untied = ls_event_at(ls_trace_events(rank, untied), 0);
    const ls_event *names = ls_event_list(untied, names);
    if (untied != NULL && ls_verdict_good(out->verdict.code)) {
        ls_finding_set(out, LS_FAIL, ls_event_text(untied, at, ""),
                       "parameters were replaced by name, and each name got a Parameter of its own "
                       "(load_state_dict with assign=True, a conversion from meta, or a loop over "
                       "the parameters of each module)",
                       "tie them again before the model is wrapped and the optimizer is built, or "
                       "load without assign=True",
                       "%.80s and %.80s were one Parameter, are two%s since, and both are trained, "
                       "each by itself",
                       ls_event_to_text(ls_event_at(names, 0), "?"),
                       ls_event_to_text(ls_event_at(names, 1), "?"),
                       ls_event_bool(untied, equal, true) ? " of equal values" : "");
    }
}

static void judge_replaced(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const ls_event *replaced = ls_event_at(ls_trace_events(rank, replaced), 0);
    const ls_event *params = ls_event_list(replaced, params), *first = ls_event_at(params, 0);
    if (first != NULL && ls_verdict_good(out->verdict.code)) {
        const ls_event *optimizer = ls_job_optimizer(rank, ls_event_int(replaced, optimizer, -1));
        const char *at = ls_event_to_text(ls_event_at(first, 1), "");
        ls_finding_set(
            out, LS_FAIL, at[0] != '\0' ? at : ls_event_text(optimizer, at, ""),
            "the optimizer was built before parameters were replaced: it steps those "
            "that the model had",
            "build the optimizer after the model has its last parameters, or copy values "
            "into those that it has",
            "%d parameters took the place of an optimizer's and are in none: %.100s",
            ls_event_count(params), ls_event_to_text(ls_event_at(first, 0), "?"));
    }
}

/* Parameters of FSDP2 while they are gathered: the model's own, which it trains, are parts. */
static void judge_freed(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const ls_event *freed = ls_event_at(ls_trace_events(rank, freed), 0);
    if (freed != NULL && ls_verdict_good(out->verdict.code)) {
        const ls_event *optimizer = ls_job_optimizer(rank, ls_event_int(freed, optimizer, -1));
        ls_finding_set(
            out, LS_FAIL, ls_event_text(optimizer, at, ""),
            "the optimizer was built behind a forward, while the model's parameters were gathered "
            "(fully_shard with reshard_after_forward=False, as its root has it): it holds those, "
            "not "
            "the parts that get gradients",
            "build the optimizer before the first forward, or behind model.reshard()",
            "%d of an optimizer's %d parameters hold no memory and get no gradient when it steps: "
            "nothing moves what the model has in their place",
            ls_event_int(freed, count, 0), ls_event_int(freed, among, 0));
    }
}

static bool has_gradients(const ls_observe_rank *rank, int optimizer)
{
    const ls_event *bare;
    bool has = true;
    ls_event_each(bare, ls_trace_events(rank, bare)) {
        bool its = ls_event_int(bare, optimizer, -1) == optimizer;
        has = its ? ls_event_bool(bare, later, false) : has;
    }
    return has;
}

/* Steps that do nothing, of all optimizers: a network may wait for its turn, a job does not. */
static void judge_bare(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const ls_event *optimizer, *bare = ls_event_at(ls_trace_events(rank, bare), 0);
    bool all = bare != NULL;
    ls_event_each(optimizer, ls_trace_events(rank, optimizer)) {
        all = all && !has_gradients(rank, ls_event_int(optimizer, optimizer, -1));
    }
    if (all && ls_verdict_good(out->verdict.code)) {
        optimizer = ls_job_optimizer(rank, ls_event_int(bare, optimizer, -1));
        ls_finding_set(
            out, LS_FAIL, ls_event_text(optimizer, at, ""),
            "the optimizer was built before the model was wrapped, moved or copied: it holds the "
            "parameters of before, which no loss depends on",
            "build the optimizer of the parameters that the wrapped model has",
            "in %d steps, each behind a backward, none of the %d parameters of the optimizer has a "
            "gradient: nothing is trained",
            ls_event_int(bare, steps, 0), ls_event_int(bare, count, 0));
    }
}

/* Training forwards of a model in steps before that one; `first`: the first of them. */
static int count_forwards(const ls_observe_rank *rank, int model, int64_t before,
                          const ls_call **first)
{
    int count = 0;
    ls_trace_each_step(step, rank) {
        ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
            if (step->step->step < before && call->model == model && ls_calls_is_training(call)) {
                *first = *first == NULL ? call : *first;
                count++;
            }
        }
    }
    return count;
}

/* A model whose own train() freezes a part does so at its first call, or never: one that comes
 * behind steps leaves the part trained until then. */
static void judge_late(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const ls_event *froze;
    ls_event_each(froze, ls_trace_events(rank, froze)) {
        int optimizer, group;
        const ls_call *first = NULL;
        const char *name = ls_event_to_text(ls_event_at(ls_event_list(froze, names), 0), "");
        int64_t step = ls_event_integer(froze, step, 0);
        int forwards = count_forwards(rank, ls_event_int(froze, model, -1), step, &first);
        if (forwards > 0 && ls_verdict_good(out->verdict.code) &&
            ls_job_group(rank, name, -1, &optimizer, &group) != NULL) {
            ls_finding_set(out, LS_FAIL, first->at,
                           "a train() of the model's own modules freezes them, and nothing calls "
                           "it before the first step",
                           "call model.train() before the training, or freeze them where the "
                           "model is built",
                           "%d parameters are trained in %d forwards, until the model's first "
                           "train() (%.80s, step %lld) freezes them: %.80s",
                           ls_event_count(ls_event_list(froze, names)), forwards,
                           ls_event_text(froze, at, "?"), (long long)step, name);
        }
    }
}

void ls_rules_optimizer_frozen(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const char *at = "";
    ls_job_names names = {0};
    int frozen = 0;
    for (int i = 0; i < trace->rank[0].tensor_count; i++) {
        frozen += !trace->rank[0].tensor[i].trainable;
    }
    if (count_unfrozen(&trace->rank[0], &names, &at) > 0) {
        ls_finding_set(out, LS_FAIL, at,
                       "a new Parameter is trainable: the script put one in the place of each of "
                       "these, which were frozen",
                       "nn.Parameter(value, requires_grad=old.requires_grad), or change old.data",
                       "%d parameters were frozen, are replaced by others of the same values, and "
                       "are trained: %s",
                       names.count, ls_job_names_text(&names));
    }
    judge_untied(&trace->rank[0], out);
    judge_replaced(&trace->rank[0], out);
    judge_freed(&trace->rank[0], out);
    judge_late(&trace->rank[0], out);
    judge_bare(&trace->rank[0], out);
    ls_finding_close(out, frozen, LS_SKIP, "no parameter is frozen",
                     "%d frozen parameters, none of which is replaced by a trainable one", frozen);
}

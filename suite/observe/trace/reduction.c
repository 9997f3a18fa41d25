#include "mean.h"

#include <string.h>

#include "by_hand.h"
#include "calls.h"
#include "job.h"

ls_reduction_hook_kind ls_reduction_kind(const ls_event *hook)
{
    static const struct {
        const char *name;
        ls_reduction_hook_kind kind;
    } known[] = {{"allreduce_hook", LS_HOOK_F32},      {"fp16_compress_hook", LS_HOOK_F16},
                 {"bf16_compress_hook", LS_HOOK_BF16}, {"noop_hook", LS_HOOK_NOOP},
                 {"ALLREDUCE", LS_HOOK_F32},           {"FP16_COMPRESS", LS_HOOK_F16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(ls_event_text(hook, name, ""), known[i].name) == 0) {
            return known[i].kind;
        }
    }
    return hook == NULL ? LS_HOOK_NONE : LS_HOOK_OTHER;
}

ls_reduction_hook_kind ls_reduction_hook(const ls_observe_rank *rank, int model,
                                         const ls_event **event)
{
    const ls_event *hook = ls_job_numbered(ls_trace_events(rank, hook), LS_INTEGER(model), model);
    *event = hook != NULL ? hook : *event;
    return ls_reduction_kind(hook);
}

bool ls_reduction_is_partial(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const ls_event *model = ls_job_model(&trace->rank[0], m);
        int world = ls_event_int(model, world, trace->world);
        if (ls_job_model_is_ddp(model) && world != trace->world) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                           "a model is replicated over %d of %d ranks: which, is not known", world,
                           trace->world);
            return true;
        }
    }
    return false;
}

bool ls_reduction_hooks_known(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const ls_event *hook = NULL;
        ls_reduction_hook_kind kind = ls_reduction_hook(&trace->rank[0], m, &hook);
        if (kind == LS_HOOK_OTHER) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                           "the communication hook %s: its result is not known",
                           ls_event_text(hook, name, "?"));
            return false;
        }
        if (kind == LS_HOOK_NOOP && ls_job_calls_collectives(trace)) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                           "the communication hook noop_hook reduces nothing, and the script calls "
                           "collectives of its own, which may reduce gradients");
            return false;
        }
        if (kind == LS_HOOK_NOOP) {
            ls_finding_set(out, LS_FAIL, ls_event_text(hook, at, ""),
                           "noop_hook, which is for measuring only", "do not register noop_hook",
                           "the communication hook noop_hook reduces nothing");
            return false;
        }
    }
    return !ls_reduction_is_partial(trace, out);
}

bool ls_reduction_concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (trace->world < 2) {
        ls_verdict_set(&out->verdict, LS_SKIP, "one rank");
        return false;
    }
    const char *class = ls_job_sharded(trace);
    if (class == NULL) {
        class = ls_job_averages_later(trace);
    }
    const char *apart = ls_job_apart(trace);
    const char *why = class != NULL ? ": gradients are not averaged as DistributedDataParallel does"
                      : apart != NULL ? apart
                      : ls_by_hand_averages_later(trace)
                          ? "the script averages parameters after the step, not gradients before it"
                      : ls_by_hand_divides_model(trace)
                          ? "the ranks hold other values and send each other tensors before the "
                            "backward pass ends: parts of one model, whose gradients are their own"
                          : NULL;
    if (why != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s%s", class == NULL ? "" : class, why);
    }
    return why == NULL;
}

bool ls_reduction_is_wrapped(const ls_observe_trace *trace, const ls_observe_tensor *tensor)
{
    return !trace->attached || ls_job_model_is_ddp(ls_job_model(&trace->rank[0], tensor->model));
}

ls_values ls_reduction_gradient(const ls_samples *samples, int rank, const char *name)
{
    if (!samples->trace->attached) {
        return ls_samples_read(samples->file[rank], "grad", name, NULL);
    }
    bool stepped = ls_samples_find(samples->file[rank], "used", name, NULL) != NULL;
    bool alone = samples->step[rank]->step->skipped &&
                 ls_event_count(ls_trace_events(&samples->trace->rank[rank], optimizer)) == 1;
    return stepped || alone ? ls_samples_read(samples->file[rank], "reduced", name, NULL)
                            : (ls_values){0};
}

const char *ls_reduction_type(const ls_samples *samples, int rank, const char *name)
{
    const char *group = samples->trace->attached ? "reduced" : "grad";
    const ls_dumpfile *file = samples->file[rank];
    if (!samples->trace->attached && file != NULL &&
        strcmp(ls_dumpfile_text(file, "reduced_type", ""), "fp32") == 0) {
        group = "param"; /* reduced in f32, the mean goes back to the gradient's own type */
    }
    const ls_dumpfile_entry *entry = ls_samples_find(samples->file[rank], group, name, NULL);
    return entry == NULL ? "F32" : entry->dtype;
}

void ls_reduction_set_sent(const ls_samples *samples, int rank, int model, ls_mean_plan *plan)
{
    const ls_event *hook = NULL;
    ls_reduction_hook_kind kind = ls_reduction_hook(&samples->trace->rank[rank], model, &hook);
    if (samples->trace->attached) {
        plan->sent_as = kind == LS_HOOK_F16 ? "f16" : kind == LS_HOOK_BF16 ? "bf16" : NULL;
    }
}

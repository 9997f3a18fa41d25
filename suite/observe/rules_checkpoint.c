/* Whether files hold what the job held, and what a job needs that goes on from them. */
#include <limits.h>
#include <string.h>

#include "calls.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "job.h"

/* `what` of a save or a load: {"model": [keys], "optimizer": [keys], ...}. */
static bool has(const cJSON *event, const char *part)
{
    const cJSON *what = cJSON_GetObjectItemCaseSensitive(event, "what");
    return cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(what, part)) > 0;
}

static int64_t step_of(const cJSON *event)
{
    return ls_json_integer(event, "step", 0);
}

/* Files that the ranks write at the same step are one checkpoint in parts. */
static bool checkpoint_has(const ls_observe_trace *trace, int64_t step, const char *part)
{
    for (int k = 0; k < trace->world; k++) {
        const cJSON *save;
        cJSON_ArrayForEach(save, trace->rank[k].save)
        {
            if (step_of(save) == step && has(save, part)) {
                return true;
            }
        }
    }
    return false;
}

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!trace->attached) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the trainer's own events do not say what its files hold");
        return false;
    }
    return true;
}

static int count_saves(const ls_observe_trace *trace, const char *part)
{
    int count = 0;
    for (int k = 0; k < trace->world; k++) {
        const cJSON *save;
        cJSON_ArrayForEach(save, trace->rank[k].save)
        {
            count += has(save, part);
        }
    }
    return count;
}

/* ---- checkpoint.content ---------------------------------------------------------------------- */

static bool names(const cJSON *list, const char *name)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, list)
    {
        if (cJSON_IsString(entry) && strcmp(entry->valuestring, name) == 0) {
            return true;
        }
    }
    return false;
}

static int trainable_of(const ls_observe_rank *rank)
{
    int count = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        count += rank->tensor[i].trainable;
    }
    return count;
}

/* Tensors with other values than the model's. Where most differ the file holds another set of
 * weights (an average, the best of earlier steps), as many jobs save on purpose; where a few do,
 * it holds a mixture of two steps. */
static void judge_wrong(const ls_observe_rank *rank, int number, const cJSON *save, int *others,
                        ls_observe_finding *out)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(save, "wrong");
    ls_job_names wrong = {0};
    for (int i = 0; i < rank->tensor_count; i++) {
        if (rank->tensor[i].trainable && names(list, rank->tensor[i].name)) {
            ls_job_add_name(&wrong, rank->tensor[i].name);
        }
    }
    if (wrong.count == 0) {
        return;
    }
    if (2 * wrong.count > trainable_of(rank)) {
        ++*others;
        return;
    }
    ls_verdict_fail(
        &out->verdict,
        "rank %d, step %lld: %.80s holds %d of %d parameters with other values than the "
        "model: %s",
        number, (long long)step_of(save), ls_json_string(save, "path", ""), wrong.count,
        trainable_of(rank), ls_job_names_text(&wrong));
    ls_verdict_cause(&out->verdict,
                     "the parts of the file are of different steps: they were copied "
                     "before, or while the model was trained on");
    ls_finding_blame(
        out, ls_json_string(save, "at", ""),
        "take model.state_dict() where the file is written, or copy all of it at once");
}

/* Names that are missing in every file of the checkpoint. */
static bool missing_everywhere(const ls_observe_rank *rank, int64_t step, const char *name)
{
    const cJSON *save;
    cJSON_ArrayForEach(save, rank->save)
    {
        if (step_of(save) == step && has(save, "model") &&
            !names(cJSON_GetObjectItemCaseSensitive(save, "params_missing"), name)) {
            return false;
        }
    }
    return true;
}

/* A file with an optimizer is for going on: it needs every parameter that the optimizer has. A file
 * of weights alone may leave some out, as adapters and exported encoders do. */
static void judge_missing(const ls_observe_trace *trace, int number, const cJSON *save,
                          ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[number];
    int64_t step = step_of(save);
    ls_job_names missing = {0};
    if (!checkpoint_has(trace, step, "optimizer") || !has(save, "model")) {
        return;
    }
    for (int i = 0; i < rank->tensor_count; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        int optimizer, group;
        if (tensor->trainable && missing_everywhere(rank, step, tensor->name) &&
            ls_job_group(rank, tensor->name, -1, &optimizer, &group) != NULL) {
            ls_job_add_name(&missing, tensor->name);
        }
    }
    if (missing.count == 0) {
        return;
    }
    ls_verdict_fail(
        &out->verdict,
        "rank %d, step %lld: %.80s holds an optimizer, but not %d of the parameters that "
        "it trains: %s",
        number, (long long)step, ls_json_string(save, "path", ""), missing.count,
        ls_job_names_text(&missing));
    ls_verdict_cause(&out->verdict, "only a part of the model was saved");
    ls_finding_blame(out, ls_json_string(save, "at", ""),
                     "save the state_dict of every model that is trained");
}

/* All ranks run on one machine: a path is one file. */
static bool on_one_node(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        const cJSON *start = trace->rank[k].record->start;
        if (ls_json_int(start, "local_rank", -1) != ls_json_int(start, "rank", -2)) {
            return false;
        }
    }
    return true;
}

static void judge_race(const ls_observe_trace *trace, const cJSON *save, ls_observe_finding *out)
{
    const char *path = ls_json_string(save, "path", "");
    bool file = path[0] != '\0' && strncmp(path, "/dev/", 5) != 0 && path[0] != '<';
    int writers = 1;
    for (int k = 1; k < trace->world && file; k++) {
        const cJSON *other;
        cJSON_ArrayForEach(other, trace->rank[k].save)
        {
            if (step_of(other) == step_of(save) &&
                strcmp(ls_json_string(other, "path", ""), path) == 0) {
                writers++;
                break;
            }
        }
    }
    if (writers == 1 || !on_one_node(trace)) {
        return;
    }
    ls_verdict_fail(&out->verdict, "step %lld: %d ranks write the file %.120s",
                    (long long)step_of(save), writers, path);
    ls_verdict_cause(&out->verdict,
                     "torch.save on every rank to the same path: one overwrites what "
                     "another is writing");
    ls_finding_blame(out, ls_json_string(save, "at", ""),
                     "if dist.get_rank() == 0: torch.save(...), then a barrier");
}

/* Weights that fit no model that was alive: compared with nothing. */
static bool is_compared(const cJSON *save)
{
    return has(save, "model") && ls_json_int(save, "params", 1) > 0;
}

void ls_rules_checkpoint_content(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int others = 0, models = 0, compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    models = count_saves(trace, "model");
    for (int k = 0; k < trace->world; k++) {
        const cJSON *save;
        cJSON_ArrayForEach(save, trace->rank[k].save)
        {
            if (is_compared(save)) {
                compared++;
                judge_wrong(&trace->rank[k], k, save, &others, out);
                judge_missing(trace, k, save, out);
            }
            if (k == 0) {
                judge_race(trace, save, out);
            }
        }
    }
    if (models == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no torch.save of a model");
    } else if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "%d files hold weights of no model that was alive when they were written",
                       models);
    }
    ls_verdict_pass(&out->verdict,
                    "%d files hold the model's values, %d hold other weights (an average, or those "
                    "of an earlier step)",
                    compared - others, others);
}

/* ---- checkpoint.resume ----------------------------------------------------------------------- */

static const cJSON *restored(const ls_observe_rank *rank, const char *what)
{
    const cJSON *restore;
    cJSON_ArrayForEach(restore, rank->restore)
    {
        if (strcmp(ls_json_string(restore, "what", ""), what) == 0) {
            return restore;
        }
    }
    return NULL;
}

static bool uses_schedule(const ls_observe_trace *trace)
{
    for (int i = 0; i < trace->rank[0].step_count; i++) {
        if (ls_trace_find(&trace->rank[0].step[i], LS_CALL_SCHEDULE, 0) >= 0) {
            return true;
        }
    }
    return false;
}

/* Files that hold an optimizer, hence are for going on. */
static int judge_saves(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int files = 0;
    bool scaled = ls_calls_use_scaler(trace), scheduled = uses_schedule(trace);
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const cJSON *save;
        cJSON_ArrayForEach(save, rank->save)
        {
            if (!has(save, "optimizer")) {
                continue;
            }
            files++;
            const char *at = ls_json_string(save, "at", "");
            if (scaled && !checkpoint_has(trace, step_of(save), "scaler")) {
                ls_verdict_fail(&out->verdict,
                                "rank %d, step %lld: %.120s holds the optimizer, but not the "
                                "scaler that is in use",
                                k, (long long)step_of(save), ls_json_string(save, "path", ""));
                ls_verdict_cause(&out->verdict,
                                 "scaler.state_dict() is not saved: a job that goes on starts with "
                                 "the first scale and skips steps");
                ls_finding_blame(out, at, "add \"scaler\": scaler.state_dict() to the checkpoint");
            }
            if (scheduled && !checkpoint_has(trace, step_of(save), "schedule")) {
                ls_finding_blame(out, at,
                                 "the checkpoint has no state of the learning rate's schedule: "
                                 "right where it is set from the epoch");
            }
        }
    }
    return files;
}

/* A job that goes on has restored an optimizer: weights alone may be the start of a new one. */
/* Weights of which a model takes none: names with or without "module.", read with strict=False. */
static void judge_empty_restores(const ls_observe_rank *rank, int k, ls_observe_finding *out)
{
    const cJSON *restore, *model;
    cJSON_ArrayForEach(restore, rank->restore)
    {
        int which = ls_json_int(restore, "which", -1), missing = ls_json_int(restore, "missing", 0);
        if (strcmp(ls_json_string(restore, "what", ""), "model") != 0 ||
            ls_json_int(restore, "unexpected", 0) == 0) {
            continue;
        }
        cJSON_ArrayForEach(model, rank->model)
        {
            int params = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(model, "params"));
            if (ls_json_int(model, "model", -2) == which && params > 0 && missing >= params) {
                ls_verdict_fail(&out->verdict,
                                "rank %d: load_state_dict found none of the %d parameters, and %d "
                                "names that the model does not have",
                                k, params, ls_json_int(restore, "unexpected", 0));
                ls_verdict_cause(&out->verdict, "names with \"module.\" and without it, and "
                                                "strict=False: nothing is loaded");
                ls_finding_blame(out, ls_json_string(restore, "at", ""),
                                 "load with strict=True, into model.module where the names have no "
                                 "\"module.\"");
            }
        }
    }
}

static int judge_loads(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int resumed = 0;
    bool scaled = ls_calls_use_scaler(trace), scheduled = uses_schedule(trace);
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const cJSON *load;
        judge_empty_restores(rank, k, out);
        if (restored(rank, "optimizer") == NULL) {
            continue;
        }
        resumed++;
        cJSON_ArrayForEach(load, rank->load)
        {
            const char *at = ls_json_string(load, "at", "");
            if (scaled && has(load, "scaler") && restored(rank, "scaler") == NULL) {
                ls_verdict_fail(&out->verdict,
                                "rank %d: %.120s holds a scaler, and the job goes on from its "
                                "optimizer without it",
                                k, ls_json_string(load, "path", ""));
                ls_verdict_cause(&out->verdict, "scaler.load_state_dict is not called");
                ls_finding_blame(out, at, "call scaler.load_state_dict(checkpoint[...])");
            }
            if (scheduled && has(load, "schedule") && restored(rank, "schedule") == NULL) {
                ls_finding_blame(out, at,
                                 "the file's schedule of the learning rate is not restored: right "
                                 "where it is set from the epoch");
            }
        }
    }
    return resumed;
}

/* The first pass of a job that goes on: whether the sampler begins again with epoch 0. */
static void advise_epoch(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const cJSON *load, *data;
    cJSON_ArrayForEach(load, trace->rank[0].load)
    {
        if (!has(load, "epoch")) {
            continue;
        }
        cJSON_ArrayForEach(data, trace->rank[0].data)
        {
            if (!ls_json_bool(data, "trained", false)) {
                continue;
            }
            if (ls_json_bool(data, "shuffle", false) &&
                ls_json_int(data, "sampler_epoch", -1) == 0) {
                ls_finding_blame(out, ls_json_string(data, "at", ""),
                                 "the job goes on from a file with an epoch, and the sampler's is "
                                 "0 in its first pass: call sampler.set_epoch(epoch) there, too");
            }
            return;
        }
    }
}

void ls_rules_checkpoint_resume(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!concerns(trace, out)) {
        return;
    }
    int files = judge_saves(trace, out), resumed = judge_loads(trace, out);
    if (resumed > 0) {
        advise_epoch(trace, out);
    }
    if (files + resumed == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       count_saves(trace, "model") > 0
                           ? "files of weights alone: none is for going on from"
                           : "nothing was saved or resumed");
    }
    ls_verdict_pass(&out->verdict, "%d files to go on from; %s", files,
                    resumed > 0 ? "the job restored what its file holds"
                                : "the job itself began anew");
}

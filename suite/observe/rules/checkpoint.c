/* Whether files hold what the job held, and all of it of one step. */
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/job.h"

/* ---- checkpoint.content ---------------------------------------------------------------------- */

static int trainable_of(const ls_observe_rank *rank)
{
    int count = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        count += rank->tensor[i].trainable;
    }
    return count;
}

/* Weights that fit no model that was alive: compared with nothing. */
static bool is_compared(const ls_event *save)
{
    return ls_saved_has(save, "model") && ls_event_int(save, params, 1) > 0;
}

/* The digest of a model's parameters in a file, "" where it is not known. */
static const char *digest_of(const ls_event *save, int model)
{
    const ls_event *pair;
    ls_event_each(pair, ls_event_list(save, digests)) {
        const ls_event *index = ls_event_at(pair, 0), *digest = ls_event_at(pair, 1);
        if (ls_event_is_number(index) && ls_event_to_int(index, -1) == model &&
            ls_event_is_text(digest)) {
            return digest->text;
        }
    }
    return "";
}

/* Where the job has had these weights before: -1 nowhere, else the step of the file that has them,
 * or 0: those it began with. */
static int64_t find_earlier(const ls_observe_rank *rank, const ls_event *save)
{
    const ls_event *model, *other;
    ls_event_each(model, ls_trace_events(rank, model)) {
        int index = ls_event_int(model, model, -1);
        const char *digest = digest_of(save, index);
        if (digest[0] == '\0') {
            continue;
        }
        ls_event_each(other, ls_trace_events(rank, save)) {
            if (ls_saved_step(other) < ls_saved_step(save) &&
                strcmp(digest_of(other, index), digest) == 0) {
                return ls_saved_step(other);
            }
        }
        const ls_event *first = ls_event_object(model, digest);
        if (ls_saved_step(save) > 0 && strcmp(ls_event_text(first, param, ""), digest) == 0) {
            return 0;
        }
    }
    return -1;
}

/* Weights other than the model's: an average or the best of earlier steps, as many jobs save on
 * purpose. An average differs from file to file, and the best is not saved with an optimizer that
 * is newer. */
static void judge_others(const ls_observe_rank *rank, int number, const ls_event *save,
                         ls_observe_finding *out)
{
    int64_t earlier = find_earlier(rank, save);
    const char *at = ls_event_text(save, at, "");
    if (earlier < 0) {
        return;
    }
    if (ls_event_holds(ls_event_list(save, fresh), "optimizer") ||
        ls_event_holds(ls_event_list(save, fresh), "schedule")) {
        ls_finding_set(out, LS_FAIL, at,
                       "the weights are a copy that was made once and is saved each time",
                       "take model.state_dict() where the file is written",
                       "rank %d, step %lld: %.80s holds the optimizer or schedule of this step, "
                       "and weights that the job had at step %lld",
                       number, (long long)ls_saved_step(save), ls_event_text(save, path, ""),
                       (long long)earlier);
    }
}

static void judge_start(const ls_observe_rank *rank, int number, const ls_event *save,
                        ls_observe_finding *out)
{
    const ls_event *wrong = ls_event_list(save, wrong);
    if (is_compared(save) && ls_event_count(wrong) > 0 && find_earlier(rank, save) == 0) {
        ls_finding_set(out, LS_WEAK, ls_event_text(save, at, ""), NULL,
                       "right where they are meant; else a copy is saved that was made before the "
                       "loop, or an average that is never updated",
                       "rank %d, step %lld: %.80s holds the weights that the job began with",
                       number, (long long)ls_saved_step(save), ls_event_text(save, path, ""));
    }
}

static void fail_mixture(int number, const ls_event *save, const char *what, const char *cause,
                         const char *advice, ls_observe_finding *out)
{
    ls_finding_set(out, LS_FAIL, ls_event_text(save, at, ""), cause, advice,
                   "rank %d, step %lld: %.80s holds %s", number, (long long)ls_saved_step(save),
                   ls_event_text(save, path, ""), what);
}

/* Tensors with other values than the model's. Where most differ the file holds another set of
 * weights; where a few do, it holds a mixture of two steps. */
static void judge_wrong(const ls_observe_rank *rank, int number, const ls_event *save, int *others,
                        ls_observe_finding *out)
{
    ls_job_names wrong = {0};
    for (int i = 0; i < rank->tensor_count; i++) {
        if (rank->tensor[i].trainable &&
            ls_event_holds(ls_event_list(save, wrong), rank->tensor[i].name)) {
            ls_job_add_name(&wrong, rank->tensor[i].name);
        }
    }
    if (2 * wrong.count > trainable_of(rank)) {
        ++*others;
        judge_others(rank, number, save, out);
    } else if (wrong.count > 0) {
        LS_TEXT(what, 400, "%d of %d parameters with other values than the model: %s", wrong.count,
                trainable_of(rank), ls_job_names_text(&wrong));
        fail_mixture(number, save, what,
                     "the parts of the file are of different steps: they were copied before, or "
                     "while the model was trained on",
                     "take model.state_dict() where the file is written, or copy all of it at once",
                     out);
    } else if (ls_event_holds(ls_event_list(save, stale), "optimizer")) {
        fail_mixture(number, save,
                     "the weights of this step and an optimizer's state of an earlier one",
                     "optimizer.state_dict() was called before the loop, when there was no state, "
                     "or its result was copied",
                     "call optimizer.state_dict() where the file is written", out);
    } else if (ls_event_holds(ls_event_list(save, stale), "schedule")) {
        fail_mixture(number, save,
                     "the weights of this step and a schedule's state of an earlier "
                     "one",
                     "the schedule's state_dict() was called before the loop: its numbers stay "
                     "what they were",
                     "call the schedule's state_dict() where the file is written", out);
    }
}

/* state_dict() copies nothing: what was taken as the best weights goes on with the training. Steps
 * of other models may lie between the call and the file: one for each optimizer. */
static void judge_reference(const ls_observe_rank *rank, int number, const ls_event *save,
                            ls_observe_finding *out)
{
    int64_t made = ls_event_integer(save, made, -1), step = ls_saved_step(save);
    int optimizers = ls_event_count(ls_trace_events(rank, optimizer));
    if (made <= 0 || step - made < (optimizers > 1 ? optimizers : 1)) {
        return;
    }
    ls_finding_set(out, LS_FAIL, ls_event_text(save, made_at, ""),
                   "state_dict() does not copy: weights that were to be kept are trained on",
                   "keep a copy: copy.deepcopy(model.state_dict()), or write the file there",
                   "rank %d, step %lld: %.80s holds the weights of this step, and state_dict() was "
                   "called for it after step %lld",
                   number, (long long)step, ls_event_text(save, path, ""), (long long)made);
}

/* Names that are missing in every file of the checkpoint. */
static bool missing_everywhere(const ls_observe_rank *rank, int64_t step, const char *name)
{
    const ls_event *save;
    ls_event_each(save, ls_trace_events(rank, save)) {
        if (ls_saved_step(save) == step && ls_saved_has(save, "model") &&
            !ls_event_holds(ls_event_list(save, params_missing), name)) {
            return false;
        }
    }
    return true;
}

/* A file with an optimizer is for going on: it needs every parameter that the optimizer has. A file
 * of weights alone may leave some out, as adapters and exported encoders do. */
static void judge_missing(const ls_observe_trace *trace, int number, const ls_event *save,
                          ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[number];
    int64_t step = ls_saved_step(save);
    ls_job_names missing = {0};
    if (!ls_saved_checkpoint_has(trace, step, "optimizer") || !ls_saved_has(save, "model")) {
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
    ls_finding_set(out, LS_FAIL, ls_event_text(save, at, ""), "only a part of the model was saved",
                   "save the state_dict of every model that is trained",
                   "rank %d, step %lld: %.80s holds an optimizer, but not %d of the parameters "
                   "that it trains: %s",
                   number, (long long)step, ls_event_text(save, path, ""), missing.count,
                   ls_job_names_text(&missing));
}

/* All ranks run on one machine: a path is one file. */
static bool on_one_node(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *start = trace->rank[k].start;
        if (ls_event_number(start, local_rank, NAN) != ls_event_number(start, rank, NAN)) {
            return false;
        }
    }
    return true;
}

static void judge_race(const ls_observe_trace *trace, const ls_event *save, ls_observe_finding *out)
{
    const char *path = ls_event_text(save, path, "");
    bool file = path[0] != '\0' && strncmp(path, "/dev/", 5) != 0 && path[0] != '<';
    int writers = 1;
    for (int k = 1; k < trace->world && file; k++) {
        const ls_event *other;
        ls_event_each(other, ls_trace_events(&trace->rank[k], save)) {
            if (ls_saved_step(other) == ls_saved_step(save) &&
                strcmp(ls_event_text(other, path, ""), path) == 0) {
                writers++;
                break;
            }
        }
    }
    if (writers == 1 || !on_one_node(trace)) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(save, at, ""),
        "torch.save on every rank to the same path: one overwrites what another is writing",
        "if dist.get_rank() == 0: torch.save(...), then a barrier",
        "step %lld: %d ranks write the file %.120s", (long long)ls_saved_step(save), writers, path);
}

static const ls_tol one_clock = LS_TOL(
    1e11,
    "ns: a file is read within 100 s of its writing; two hosts' clocks count from their boots, "
    "which are further apart");

/* Another rank reads the file that one writes, and nothing makes it wait until that is done: no
 * collective of the reader's lies behind the writer's call. Ranks that train meet in each step. */
static void judge_early(const ls_observe_trace *trace, int writer, const ls_event *save,
                        ls_observe_finding *out)
{
    const char *path = ls_event_text(save, path, "");
    double shared = ls_event_number(save, shared, NAN);
    double begun = ls_event_number(save, begun_ns, NAN);
    bool one_node = on_one_node(trace); /* not known of ranks without a launcher */
    for (int k = 0; k < trace->world && path[0] != '\0'; k++) {
        const ls_event *load, *own;
        bool writes = k == writer;
        ls_event_each(own, ls_trace_events(&trace->rank[k], save)) {
            writes = writes || strcmp(ls_event_text(own, path, ""), path) == 0;
        }
        ls_event_each(load, ls_trace_events(&trace->rank[k], load)) {
            bool failed = ls_event_bool(load, failed, false);
            if (writes || strcmp(ls_event_text(load, path, ""), path) != 0 ||
                ls_saved_step(load) != ls_saved_step(save) ||
                !(ls_event_number(load, shared, NAN) <= shared) ||
                !(one_node ||
                  fabs(ls_event_number(load, begun_ns, NAN) - begun) < one_clock.value) ||
                !(failed || ls_event_number(load, begun_ns, NAN) > begun)) {
                continue;
            }
            ls_finding_set(
                out, LS_FAIL, ls_event_text(load, at, ""),
                "no barrier between torch.save on one rank and torch.load on the others: they may "
                "read no file, half of it, or an older one",
                "dist.barrier() behind torch.save, on all ranks, before any of them loads the file",
                "step %lld: rank %d reads %.120s, which rank %d writes in the same step%s",
                (long long)ls_saved_step(save), k, path, writer, failed ? ", and fails" : "");
            return;
        }
    }
}

static void judge_save(const ls_observe_trace *trace, int k, const ls_event *save, int *others,
                       ls_observe_finding *out)
{
    if (is_compared(save)) {
        judge_wrong(&trace->rank[k], k, save, others, out);
    }
    if (is_compared(save) && ls_verdict_good(out->verdict.code)) {
        judge_missing(trace, k, save, out);
    }
    if (ls_verdict_good(out->verdict.code)) {
        ls_observe_finding one = {0};
        judge_reference(&trace->rank[k], k, save, &one);
        ls_finding_guess(out, &one);
    }
    if (k == 0 && ls_verdict_good(out->verdict.code)) {
        judge_race(trace, save, out);
    }
    if (ls_verdict_good(out->verdict.code) && ls_job_sharded(trace) == NULL) {
        judge_early(trace, k, save, out);
    }
}

void ls_rules_checkpoint_content(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int others = 0, models = 0, compared = 0;
    const ls_event *save;
    if (!ls_saved_concerns(trace, out)) {
        return;
    }
    models = ls_saved_count(trace, "model");
    for (int k = 0; k < trace->world && ls_verdict_good(out->verdict.code); k++) {
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            compared += is_compared(save);
            if (ls_verdict_good(out->verdict.code)) {
                judge_save(trace, k, save, &others, out);
            }
        }
    }
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            judge_start(&trace->rank[k], k, save, out);
        }
    }
    if (models == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no torch.save of a model");
    } else if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "%d files hold weights of no model that was alive when they were written",
                       models);
    }
    ls_verdict_pass(&out->verdict, compared,
                    "%d files hold the model's values, %d hold other weights (an average, or those "
                    "of an earlier step)",
                    compared - others, others);
}

/* Whether what is trained moves: an optimizer's parameters, a branch of the model, the weights that
 * are validated; and whether what is stepped is the model. Parts of the rules optimizer.step,
 * reduction.covered and optimizer.average. */
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"

static const ls_tol enough =
    LS_TOL(5, "steps: an optimizer may gather the gradients of a few before it moves");
static const ls_tol gathering =
    LS_TOL(32, "steps, where its state moves: some gather gradients of many batches there");

/* ---- an optimizer whose steps change nothing ------------------------------------------------- */

/* A step that some optimizer makes at a rate above 0. */
static bool is_made(const ls_observe_step *step)
{
    bool made = false;
    ls_trace_each_kind(call, step, LS_CALL_OPTIMIZER_STEP) {
        for (int group = 0; !made && !isnan(ls_calls_rate(call, group)); group++) {
            made = ls_calls_rate(call, group) > 0;
        }
    }
    return made && !step->step->skipped;
}

/* Such steps from the first digest to the last, where the parameters are the same in all digests;
 * 0: they are not, or there are no two. */
static int64_t unmoved_steps(const ls_observe_rank *rank, bool *state_moves)
{
    const char *param = NULL, *state = NULL;
    int64_t made = 0, counted = 0;
    ls_trace_each_step(step, rank) {
        const char *own = ls_trace_digest(step, LS_RECORD_PARAM);
        const char *moments = ls_trace_digest(step, LS_RECORD_STATE);
        made += param != NULL && is_made(step);
        if (own == NULL) {
            continue;
        }
        if (param != NULL && strcmp(own, param) != 0) {
            return 0;
        }
        *state_moves = *state_moves || (state != NULL && moments != NULL && strcmp(state, moments));
        param = own;
        state = moments;
        counted = made;
    }
    return counted;
}

/* Whether a plain step by the gradient would change the tensor: one that rounding takes away in
 * f32 says nothing; and whether it has changed nothing. */
static bool asks_in_vain(const ls_samples *samples, const char *name, double rate)
{
    const ls_dumpfile *file = samples->file[0];
    ls_values used = ls_samples_read(file, "used", name, NULL);
    ls_values param = ls_samples_read(file, "param", name, NULL);
    ls_values next = ls_samples_read(file, "next", name, NULL);
    bool asked = false;
    if (used.v != NULL && !ls_samples_overflow(&used) && ls_samples_equal(&param, &next) &&
        used.count == param.count) {
        for (int64_t i = 0; i < used.count; i++) {
            asked = asked || rate * fabs(used.v[i]) > 4 * param.unit.u * fabs(param.v[i]);
        }
    }
    ls_samples_free(&used);
    ls_samples_free(&param);
    ls_samples_free(&next);
    return asked;
}

/* The optimizer that was asked in vain in this step, or NULL. */
static const ls_event *asked_in_vain(const ls_samples *samples)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    for (int i = 0; i < rank->tensor_count; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        int optimizer = -1, group;
        const ls_call *call = NULL;
        /* of half types precision.updates says what rounding takes */
        if (strcmp(tensor->type, "f32") != 0 ||
            ls_job_group(rank, tensor->name, -1, &optimizer, &group) == NULL ||
            ls_job_steps_of(samples->step[0], optimizer, &call) == 0) {
            continue;
        }
        double rate = ls_calls_rate(call, group);
        if (rate > 0 && asks_in_vain(samples, tensor->name, rate)) {
            return ls_job_optimizer(rank, optimizer);
        }
    }
    return NULL;
}

void ls_still_judge_optimizers(const ls_observe_trace *trace, ls_observe_finding *out)
{
    bool state_moves = false;
    int64_t steps = trace->attached ? unmoved_steps(&trace->rank[0], &state_moves) : 0;
    if (steps < (state_moves ? gathering : enough).value) {
        return;
    }
    int asked = 0;
    const ls_event *optimizer = NULL;
    ls_samples_each(samples, trace, 0, true, out) {
        if (samples.file[0] != NULL && is_made(samples.step[0])) {
            const ls_event *one = asked_in_vain(&samples);
            optimizer = one != NULL ? one : optimizer;
            asked += one != NULL;
        }
    }
    if (asked >= 2) {
        ls_finding_set(out, LS_FAIL, ls_event_text(optimizer, at, ""),
                       "the optimizer's step leaves out all parameters: a list of them that it "
                       "keeps is empty or of another time, or it changes copies",
                       "let step() go through param_groups and their gradients each time",
                       "%.80s is asked to step %lld times at a rate above 0, %d detailed steps "
                       "have gradients, and no parameter ever changes",
                       ls_event_text(optimizer, class, "an optimizer"), (long long)steps, asked);
    }
}

/* ---- a branch that runs without autograd ----------------------------------------------------- */

void ls_still_judge_branches(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    const ls_event *event = ls_trace_last(rank, detached);
    const ls_event *then = ls_event_list(event, digests), *now = ls_event_list(event, digests_now);
    const ls_event *names = ls_event_list(event, names);
    ls_job_names still = {0};
    if (event == NULL || ls_event_int(event, steps, 0) < enough.value) {
        return;
    }
    for (int i = 0; i < ls_event_count(names); i++) {
        const char *before = ls_event_to_text(ls_event_at(then, i), "");
        if (before[0] != '\0' && !strcmp(before, ls_event_to_text(ls_event_at(now, i), ""))) {
            ls_job_add_name(&still, ls_event_to_text(ls_event_at(names, i), ""));
        }
    }
    bool moved = still.count == 0 || still.count < ls_event_count(names);
    if (!moved && ls_event_bool(event, product, false)) {
        ls_finding_set(out, LS_FAIL, ls_event_text(event, at, ""),
                       "they are factors of a product, and all are 0: the gradient of each is made "
                       "of the other, and nothing moves them but chance",
                       "begin with one factor of 0 (LoRA: B), and draw the other at random",
                       "%d matrices that an optimizer has hold 0, get a gradient of 0 and stay as "
                       "they are in %d steps, though outputs that the loss is made of would be "
                       "others: %s",
                       still.count, ls_event_int(event, steps, 0), ls_job_names_text(&still));
    } else if (!moved && ls_event_bool(event, read, false)) {
        ls_finding_set(out, LS_FAIL, ls_event_text(event, at, ""),
                       "what is computed from them reaches the outputs only by what has no "
                       "gradient: an index (argmax, a comparison), detach(), .data, item(), or a "
                       "tensor built from numbers",
                       "let the result scale what it chooses (a gate), or leave detach(); freeze "
                       "what is not to be trained",
                       "%d parameters that an optimizer has never get a gradient in %d steps, and "
                       "stay as they are, though outputs that the loss is made of depend on them: "
                       "%s",
                       still.count, ls_event_int(event, steps, 0), ls_job_names_text(&still));
    } else if (!moved) {
        ls_finding_set(out, LS_FAIL, ls_event_text(event, at, ""),
                       "the part runs without autograd: within no_grad(), or by a checkpoint with "
                       "use_reentrant=True none of whose inputs requires a gradient",
                       "checkpoint(..., use_reentrant=False), or leave no_grad(); freeze what is "
                       "not to be trained",
                       "%d parameters that an optimizer has never get a gradient in %d steps, and "
                       "stay as they are: their modules run with autograd off: %s",
                       still.count, ls_event_int(event, steps, 0), ls_job_names_text(&still));
    }
}

/* ---- an average that is looked for by other names -------------------------------------------- */

static const ls_tol shadowed =
    LS_TOL(3, "steps: what a function does once or twice may be how it begins");

/* Whether each tensor of the event holds what its parameter held at the start (true), or what it
 * holds in that step (false); `any`: whether one does. */
static bool is_as(const ls_observe_rank *rank, const ls_event *event, bool start, bool any)
{
    const ls_event *model = ls_job_model(rank, ls_event_int(event, model, -1)), *param;
    const ls_event *names = ls_event_list(event, names), *held = ls_event_list(event, digests);
    for (int i = 0; i < ls_event_count(names); i++) {
        const ls_event *other = ls_event_at(ls_event_list(event, digests_now), i);
        int place = 0;
        for (param = ls_event_first(ls_event_list(model, params)); start && param != NULL;
             param = ls_event_after(param), place++) {
            if (ls_event_equal(ls_event_at(param, 0), ls_event_at(names, i))) {
                other = ls_event_at(ls_event_list(model, param_digests), place);
            }
        }
        if (ls_event_equal(ls_event_at(held, i), other) == any) {
            return any;
        }
    }
    return !any && ls_event_count(names) > 0;
}

int ls_still_judge_shadows(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    int seen = 0;
    const ls_event *event, *one;
    ls_event_each(event, ls_trace_events(rank, shadow)) {
        int steps = 0;
        bool idle = true;
        ls_event_each(one, ls_trace_events(rank, shadow)) {
            if (ls_event_same(one, event, at) && ls_event_same(one, event, name)) {
                steps++;
                idle = idle && !ls_event_bool(one, match, true) &&
                       ls_event_int(one, touched, 1) == 0 && is_as(rank, one, true, false) &&
                       !is_as(rank, one, false, true);
            }
        }
        seen++;
        if (idle && steps >= shadowed.value) {
            ls_finding_set(out, LS_FAIL, ls_event_text(event, at, ""),
                           "it is looked for by other names than it was made with: one model's "
                           "have a wrapper's prefix (\"module.\"), the other's have not",
                           "make it and update it by the names of the same module: model or "
                           "model.module, not both",
                           "%.80s is a copy of the model's weights by their names, and none of the "
                           "names that it is looked for by is in it: in %d detailed steps of %d no "
                           "tensor of it is read or written, and all hold what the model started "
                           "from",
                           ls_event_text(event, name, "a dict"), steps, steps);
        }
    }
    return seen;
}

/* ---- validations of the weights of the start ------------------------------------------------- */

/* Whether a step changed the parameters. */
static bool has_trained(const ls_observe_rank *rank)
{
    const char *first = NULL;
    ls_trace_each_step(step, rank) {
        const char *own = ls_trace_digest(step, LS_RECORD_PARAM);
        if (own != NULL && first != NULL && strcmp(first, own) != 0) {
            return true;
        }
        first = first == NULL ? own : first;
    }
    return false;
}

/* Whether training goes on from other weights than the steps before the validation left, to the bit
 * those that were put in for it. Digests of steps are of all models. */
static bool stay_in(const ls_observe_rank *rank, const ls_event *event)
{
    bool one = ls_event_count(ls_trace_events(rank, model)) == 1;
    const ls_observe_step *step = ls_trace_step(rank, (int64_t)ls_event_number(event, step, 0));
    const char *left = step == NULL ? NULL : ls_trace_digest(step, LS_RECORD_PARAM);
    const char *run = ls_event_text(event, param, ""), *next = ls_event_text(event, param_next, "");
    bool moved =
        ls_event_bool(event, moved, false) || (one && left != NULL && strcmp(run, left) != 0);
    return moved && next[0] != '\0' && strcmp(run, next) == 0;
}

int ls_still_judge_validations(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    int seen = 0, start = 0, kept = 0;
    const ls_event *event, *last = NULL, *first = NULL;
    ls_event_each(event, ls_trace_events(rank, validated)) {
        first = first == NULL && stay_in(rank, event) ? event : first;
        kept += stay_in(rank, event);
        const ls_event *model = ls_job_model(rank, ls_event_int(event, model, -1));
        const ls_event *digest = ls_event_object(model, digest);
        if (ls_event_count(ls_event_list(model, params)) == 0) {
            continue; /* nothing is known of them */
        }
        seen++;
        if (ls_event_has(event, param) && ls_event_has(digest, param) &&
            !strcmp(ls_event_text(event, param, ""), ls_event_text(digest, param, ""))) {
            start++;
            last = event;
        }
    }
    if (first != NULL) {
        ls_finding_set(out, LS_FAIL, ls_event_text(first, at, ""),
                       "other weights (an average, a file's) are put into the model for a "
                       "validation and stay in it",
                       "put the trained weights back after the validation, and before a file is "
                       "written",
                       "after %d of %d validations training goes on from the weights that were "
                       "put in for them: what the steps before left is lost",
                       kept, seen);
    }
    if (start >= 2 && start == seen && has_trained(rank)) {
        ls_finding_set(out, LS_FAIL, ls_event_text(last, at, ""),
                       "an average or a copy is put into the model before it is validated, and has "
                       "never followed the weights: it may look for them by other names",
                       "update the average from the module whose names it was made of (model or "
                       "model.module, not both)",
                       "all %d validations after steps run with the weights that the model started "
                       "from, to the bit, and the steps have changed these",
                       start);
    }
    return seen;
}

/* ---- copies that are stepped in a model's place ---------------------------------------------- */

/* Where the rank first read a file, else where the optimizer was built. */
static const char *place_of_copies(const ls_observe_rank *rank, const ls_call *call)
{
    const ls_event *load = ls_event_first(ls_trace_events(rank, load));
    return load != NULL ? ls_event_text(load, at, "")
                        : ls_event_text(ls_job_optimizer(rank, call->optimizer), at, "");
}

/* The optimizer's first step finds other values in its copies than in the model, and a later one
 * the same in all: after each step the model takes theirs. */
static bool judge_copies(const ls_observe_rank *rank, int k, int optimizer, ls_observe_finding *out)
{
    const ls_event *first = NULL;
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        if (call->kind != LS_CALL_OPTIMIZER_STEP || call->optimizer != optimizer) {
            continue;
        }
        const ls_event *copies = ls_event_list(call->json, copies);
        int count = (int)ls_event_number_at(copies, 0), equal = (int)ls_event_number_at(copies, 1);
        if (first == NULL && (ls_event_count(copies) < 3 || equal == count)) {
            return false;
        }
        if (first != NULL && ls_event_count(copies) == 3 && equal == count) {
            int held = (int)ls_event_number_at(first, 1);
            ls_finding_set(out, LS_FAIL, place_of_copies(rank, call),
                           "the copies were made before the model had its weights: the first step "
                           "puts older ones in their place",
                           "copy the model's weights into the optimizer's copies once they are "
                           "loaded, or build the optimizer after that",
                           "rank %d: optimizer %d steps copies of %d parameters, of which %d hold "
                           "other values than the model before the first step (%.60s), and none "
                           "by step %lld",
                           k, optimizer, count, count - held,
                           ls_event_to_text(ls_event_at(first, 2), ""),
                           (long long)walk.step->step->step);
            return true;
        }
        first = first == NULL ? copies : first;
    }
    return false;
}

bool ls_still_judge_copies(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        int optimizers = ls_event_count(ls_trace_events(&trace->rank[k], optimizer));
        for (int i = 0; i < optimizers; i++) {
            if (judge_copies(&trace->rank[k], k, i, out)) {
                return true;
            }
        }
    }
    return false;
}

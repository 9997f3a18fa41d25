/* What becomes of gradients between a backward and a step: whether they are cleared in between, not
 * at all, or thrown away, and whether a clip has an effect. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/factor.h"
#include "suite/observe/trace/job.h"
#include "kernels/core/text.h"
#include "rules.h"

/* ---- order.zero ------------------------------------------------------------------------------ */

typedef struct zeroes {
    int attempts, kept;
    int64_t looked;            /* attempts x tensors */
    int emptied, emptied_rank; /* attempts after the gradients had been cleared */
    long long emptied_step;
    const char *clear;        /* where */
    bool shown;               /* the script clears them by other means than zero_grad */
    ls_observe_finding first; /* where no clearing was seen, and no samples say what that means */
} zeroes;

static void note_kept(const ls_observe_trace *trace, ls_calls *calls, int rank, zeroes *z,
                      ls_observe_finding *out)
{
    int more = ls_factor_exceeds(trace, rank, ls_calls_step(calls), "local");
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, calls->call);
    z->shown = z->shown || more == 0;
    if (more != 1 && z->kept++ > 0) {
        return;
    }
    ls_observe_finding *to = more == 1 ? out : &z->first;
    ls_verdict_set(&to->verdict, more == 1 ? LS_FAIL : LS_WEAK,
                   "rank %d, step %lld: no gradient was cleared since the step before: a forward "
                   "found %d gradients in place, %s",
                   rank, ls_calls_step(calls), own->left,
                   more == 1 ? "and the step's are more than its own backward gave"
                             : "and no samples say whether they were cleared by hand");
    ls_verdict_cause(&to->verdict, "optimizer.zero_grad() is missing: gradients of all steps add "
                                   "up");
    ls_finding_blame(to, calls->call->at,
                     "call optimizer.zero_grad() after each step, before the next backward");
}

static void look_at_zero(const ls_observe_trace *trace, ls_calls *calls, int rank, zeroes *z,
                         ls_observe_finding *out)
{
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, calls->call);
    if (own == NULL || !ls_calls_is_attempt(calls->call)) {
        return;
    }
    z->attempts++;
    z->looked += trace->rank[rank].tensor_count;
    /* In a detailed step a forward also finds no gradients where they are all zero. */
    z->shown = z->shown || (own->attempts > 0 && own->by_hand);
    /* Before its first step an optimizer has no number: a zero_grad without one counts for all. */
    if (own->attempts > 0 && own->backwards > 0 && own->cleared && ls_calls_pending(own) == 0) {
        if (z->emptied++ == 0) {
            z->emptied_rank = rank;
            z->emptied_step = ls_calls_step(calls);
            z->clear = own->clear != NULL ? own->clear->at : calls->call->at;
        }
    }
    if (own->attempts > 0 && own->backwards > 0 && !own->cleared && own->left > 0) {
        note_kept(trace, calls, rank, z, out);
    }
}

static const ls_tol half =
    LS_TOL(0.5, "of the steps: a script may leave out a batch now and then, but not half of them");
static const ls_tol twice = LS_TOL(2, "times: what happens once may be how a job begins or ends");

static void judge_emptied(const zeroes *z, ls_observe_finding *out)
{
    if (z->emptied == 0 || out->verdict.code == LS_FAIL) {
        return;
    }
    bool mostly = z->emptied >= half.value * z->attempts;
    ls_finding_set(out, mostly ? LS_FAIL : LS_WEAK, z->clear,
                   "zero_grad() between backward and step: the optimizer steps by nothing",
                   "call zero_grad() before the backward or after the step",
                   "rank %d, step %lld: the gradients were cleared after the backward and before "
                   "the optimizer's step; so in %d of %d steps of all ranks",
                   z->emptied_rank, z->emptied_step, z->emptied, z->attempts);
}

void ls_rules_order_zero(const ls_observe_trace *trace, ls_observe_finding *out)
{
    zeroes z = {0};
    if (ls_job_has_no_tensors(trace, out)) {
        return;
    }
    if (ls_thrown_closure(trace)) {
        ls_verdict_set(
            &out->verdict, LS_UNSUPPORTED,
            "gradients are computed and cleared by a closure inside the optimizer's step");
        return;
    }
    const char *sharded = ls_job_sharded(trace);
    if (sharded != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "%s: gradients are in parts, which no forward reports", sharded);
        return;
    }
    for (int k = 0; k < trace->world; k++) {
        ls_calls_each(calls, &trace->rank[k]) {
            look_at_zero(trace, &calls, k, &z, out);
        }
    }
    judge_emptied(&z, out);
    for (int k = 0; k < trace->world && out->verdict.code != LS_FAIL; k++) {
        ls_thrown_judge_cleared(trace, k, out);
    }
    if (!z.shown) {
        ls_calls_keep_worst(out, &z.first);
    }
    if (z.attempts == 0) {
        ls_finding_missing(trace, "no step of an optimizer was seen", out);
    }
    ls_verdict_pass(&out->verdict, z.looked, "gradients cleared between %d steps%s",
                    z.attempts / trace->world, z.kept > 0 ? ", some by hand" : "");
}

/* ---- order.clip ------------------------------------------------------------------------------ */

/* What becomes of a clip. */
typedef enum fate {
    FATE_UNKNOWN, /* the job ended first, or it only measures the norm */
    FATE_USED,
    FATE_EARLY,   /* no backward had computed the gradients yet */
    FATE_LATE,    /* the optimizer had stepped by them; they are cleared next */
    FATE_CLEARED, /* they are cleared before their optimizer steps */
    FATES,
} fate;

/* The calls of one place for the same models: a library's own place is that of all its users. */
typedef struct clips {
    const char *at;
    const ls_event *models; /* or NULL */
    int of[FATES], calls;
    long long step; /* of the first that had no effect */
    double limit;
} clips;

/* The optimizers whose parameters a clip was given; all, where that is not known. */
static unsigned clipped_by(const ls_calls *calls)
{
    const ls_event *model;
    unsigned mask = 0;
    ls_event_each(model, ls_event_list(calls->call->json, models)) {
        mask |= ls_calls_optimizers_of(calls,
                                       ls_event_is_number(model) ? ls_event_to_int(model, -1) : -1);
    }
    return (mask == 0 ? ~0u : mask) & calls->optimizers;
}

/* The optimizers of `mask` that a zero_grad reaches. */
static unsigned cleared_by(ls_calls *calls, const ls_call *call, unsigned mask)
{
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
    bool model = strcmp(ls_calls_text(call, of), "model") == 0;
    return mask & (model || own == NULL ? ls_calls_optimizers_of(calls, call->model) : own->shares);
}

/* Goes on from a clip until an optimizer steps by what it left, or that is cleared. */
static fate fate_of(ls_calls *calls)
{
    unsigned mask = clipped_by(calls);
    bool pending = false, stepped = false;
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        const ls_calls_optimizer *own = &calls->optimizer[o];
        bool of = (mask >> o & 1) != 0;
        pending = pending || (of && ls_calls_pending(own) > 0);
        stepped = stepped || (of && own->attempts > 0 && own->backwards == 0);
    }
    int c = calls->call_index + 1;
    for (int i = calls->step_index; i < calls->rank->step_count; i++, c = 0) {
        const ls_observe_step *step = &calls->rank->step[i];
        for (; c < step->call_count; c++) {
            const ls_call *call = &step->call[c];
            const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
            if (call->kind == LS_CALL_BACKWARD && !pending) {
                return FATE_EARLY;
            }
            if (ls_calls_is_attempt(call) && own != NULL && (mask >> call->optimizer & 1) != 0) {
                return FATE_USED;
            }
            mask &= call->kind == LS_CALL_ZERO_GRAD ? ~cleared_by(calls, call, mask) : ~0u;
            if (mask == 0) {
                return stepped && !pending ? FATE_LATE : FATE_CLEARED;
            }
        }
    }
    return stepped && !pending ? FATE_LATE : FATE_UNKNOWN;
}

static clips *clips_of(clips *list, int *count, const ls_call *call)
{
    enum { PLACES = 16 };
    const ls_event *models = ls_event_list(call->json, models);
    for (int i = 0; i < *count; i++) {
        if (strcmp(list[i].at, call->at) == 0 &&
            (models == list[i].models || ls_event_equal(models, list[i].models))) {
            return &list[i];
        }
    }
    if (*count == PLACES) {
        return NULL;
    }
    list[*count] = (clips){.at = call->at, .models = models};
    return &list[(*count)++];
}

static void note_clip(ls_calls *calls, clips *place)
{
    double limit = ls_event_number(calls->call->json, limit, INFINITY);
    if (!isfinite(limit) || ls_event_int(calls->call->json, params, 1) == 0) {
        return; /* it only measures the norm */
    }
    fate what = fate_of(calls);
    place->of[what] += calls->call->times;
    place->calls += calls->call->times;
    if (what > FATE_USED && place->step == 0) {
        place->step = ls_calls_step(calls);
        place->limit = limit;
    }
}

static const ls_tol nearly_all =
    LS_TOL(0.875, "of a place's clips: a script may clear the gradients of a batch now and then");

/* A place whose clips have no effect, each time or nearly so. */
static void judge_place(const ls_observe_trace *trace, int rank, const clips *place,
                        ls_observe_finding *out)
{
    static const struct {
        const char *cause, *advice;
    } words[FATES] = {
        [FATE_EARLY] = {"clip_grad_norm_ before backward(): there are no gradients yet, or those "
                        "of the step before",
                        "clip after the last backward, before optimizer.step()"},
        [FATE_LATE] = {"clip_grad_norm_ after the step has no effect",
                       "clip after the last backward, before optimizer.step()"},
        [FATE_CLEARED] = {"the gradients that are clipped are not those that the next step uses: "
                          "of another model, or cleared before their optimizer steps",
                          "clip the parameters of the optimizer that steps next"},
    };
    int idle = place->of[FATE_EARLY] + place->of[FATE_LATE] + place->of[FATE_CLEARED];
    int known = place->calls - place->of[FATE_UNKNOWN];
    if (idle < twice.value || idle < nearly_all.value * known || out->verdict.code == LS_FAIL) {
        return;
    }
    fate most = FATE_EARLY;
    for (int f = FATE_EARLY; f < FATES; f++) {
        most = place->of[f] > place->of[most] ? (fate)f : most;
    }
    if (most == FATE_CLEARED && ls_factor_made_by_hand(trace, rank) == 1) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the script makes the gradients of a step out of those that it clipped");
        return;
    }
    ls_finding_set(out, LS_FAIL, place->at, words[most].cause, words[most].advice,
                   "rank %d, step %lld: gradients were clipped to %g %s; so in %d of %d calls",
                   rank, place->step, place->limit,
                   most == FATE_EARLY  ? "before a backward had computed them"
                   : most == FATE_LATE ? "after the optimizer had stepped by them"
                                       : "and cleared before their optimizer stepped",
                   idle, place->calls);
}

/* Calls of a rank by norm, and those that returned 0: gradients of a training are not all zero. */
typedef struct norms {
    int calls, zero;
    const char *at;
} norms;

/* A generator gives its parameters once: to an optimizer, or to the first clip. */
static void judge_norms(int rank, const norms *n, ls_observe_finding *out)
{
    if (n->zero >= twice.value && n->zero >= n->calls - 1 && out->verdict.code != LS_FAIL) {
        ls_finding_set(out, LS_FAIL, n->at,
                       "clip_grad_norm_ is given no gradients, such as by a generator or filter() "
                       "that has been used up",
                       "give it model.parameters(), or a list",
                       "rank %d: %d of %d calls returned a norm of 0: they clipped nothing", rank,
                       n->zero, n->calls);
    }
}

static int judge_clips(const ls_observe_trace *trace, int rank, ls_observe_finding *out)
{
    norms seen = {.at = ""};
    clips list[16];
    int places = 0, count = 0;
    ls_calls_each(calls, &trace->rank[rank]) {
        if (calls.call->kind == LS_CALL_CLIP) {
            clips *place = clips_of(list, &places, calls.call);
            bool norm = strcmp(ls_event_text(calls.call->json, how, "norm"), "norm") == 0;
            bool zero = norm && ls_event_number(calls.call->json, norm, NAN) == 0;
            seen.calls += norm ? calls.call->times : 0;
            seen.zero += zero ? calls.call->times : 0;
            seen.at = zero ? calls.call->at : seen.at;
            count += calls.call->times;
            if (place != NULL) {
                note_clip(&calls, place);
            }
        }
    }
    for (int i = 0; i < places; i++) {
        judge_place(trace, rank, &list[i], out);
    }
    judge_norms(rank, &seen, out);
    return count;
}

void ls_rules_order_clip(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int clips = 0;
    for (int k = 0; k < trace->world; k++) {
        clips += judge_clips(trace, k, out);
    }
    ls_finding_close(out, clips, LS_SKIP, "gradients are not clipped",
                     "%d calls, each before its optimizer's step", clips / trace->world);
}

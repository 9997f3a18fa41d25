/* Whether the script uses torch's GradScaler as its notes on mixed precision say: every gradient
 * unscaled once, clipped after that, stepped through the scaler, one update at the end. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "kernels/core/text.h"
#include "rules.h"

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!ls_calls_use_scaler(trace)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no enabled GradScaler was used");
        return false;
    }
    return true;
}

/* Looks at a call and what is known before it. */
typedef void visit(ls_calls *calls, int rank, int *counted, ls_observe_finding *out);

static int go_through(const ls_observe_trace *trace, visit *look, ls_observe_finding *out)
{
    int counted = 0;
    for (int k = 0; k < trace->world; k++) {
        ls_calls_each(calls, &trace->rank[k]) {
            look(&calls, k, &counted, out);
        }
    }
    return counted;
}

static void fail_at(const ls_calls *calls, int rank, const char *at, const char *what,
                    const char *cause, const char *advice, ls_observe_finding *out)
{
    if (!ls_verdict_good(out->verdict.code)) {
        return;
    }
    ls_finding_set(out, LS_FAIL, at, cause, advice, "rank %d, step %lld: %s", rank,
                   ls_calls_step(calls), what);
}

static void fail(const ls_calls *calls, int rank, const char *what, const char *cause,
                 const char *advice, ls_observe_finding *out)
{
    fail_at(calls, rank, calls->call->at, what, cause, advice, out);
}

/* All gradients of the optimizer are of scaled losses, and none was unscaled. */
static bool only_scaled(const ls_calls_grad *grad)
{
    return grad->scaled > 0 && grad->plain == 0 && grad->derived == 0 && grad->unscaled == 0;
}

/* ---- scaler.once ----------------------------------------------------------------------------- */

static void look_once(ls_calls *calls, int rank, int *counted, ls_observe_finding *out)
{
    const ls_call *call = calls->call;
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
    const ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
    if (own == NULL) {
        return;
    }
    const ls_calls_grad *grad = &own->grad;
    bool unscales = call->kind == LS_CALL_UNSCALE && ls_calls_flag(call, inside) != 1 &&
                    scaler != NULL && scaler->enabled;
    bool steps = call->kind == LS_CALL_SCALER_STEP && scaler != NULL && scaler->enabled;
    *counted += steps ? call->times : 0;
    if (unscales && grad->unscaled > 0) {
        fail(calls, rank,
             "unscale_ was called again on gradients that were unscaled and not cleared since",
             grad->after_unscale > 0
                 ? "unscale_ after every micro-step: what earlier ones left is divided by the "
                   "scale each time"
                 : "unscale_ is called twice for one optimizer in one step",
             "call scaler.unscale_(optimizer) once, after the last backward of the step", out);
    }
    if (steps && grad->unscaled > 0 && grad->unscale_update != scaler->updates) {
        fail(calls, rank,
             "scaler.step unscales gradients again that unscale_ had divided before update()",
             "update() between unscale_ and scaler.step: the scaler forgets that it unscaled them",
             "call scaler.update() once, after scaler.step", out);
    }
    if (call->kind == LS_CALL_OPTIMIZER_STEP && ls_calls_is_attempt(call) && only_scaled(grad)) {
        fail(calls, rank, "the optimizer steps by gradients that are still times the loss scale",
             "optimizer.step() without the scaler, and no unscale_ before it",
             "call scaler.step(optimizer) in place of optimizer.step()", out);
    }
}

void ls_rules_scaler_once(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (concerns(trace, out)) {
        int steps = go_through(trace, look_once, out);
        ls_verdict_pass(&out->verdict, steps, "unscaled once before each of %d scaler steps",
                        steps / trace->world);
    }
}

/* ---- scaler.order ---------------------------------------------------------------------------- */

/* The scale of gradients that the call clips while they are times it; 0: they are not, or the limit
 * is above it, as one that is times the scale may be. */
static double clips_scaled(const ls_calls *calls)
{
    double limit = ls_event_number(calls->call->json, limit, INFINITY);
    bool any = false;
    int clipped = calls->call->optimizer; /* whose gradients; -1: of any */
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        const ls_calls_grad *grad = &calls->optimizer[o].grad;
        if ((calls->optimizers >> o & 1) == 0 || (clipped >= 0 && clipped != o)) {
            continue;
        }
        if (!only_scaled(grad)) {
            return 0; /* it may be this one's that are clipped */
        }
        any = true;
    }
    for (int s = 0; s < LS_CALLS_SCALERS && any; s++) {
        const ls_calls_scaler *scaler = &calls->scaler[s];
        bool of = clipped < 0 || clipped >= LS_CALLS_OPTIMIZERS
                      ? scaler->optimizers != 0
                      : (scaler->optimizers >> clipped & 1) != 0;
        if (scaler->enabled && of && scaler->scale > 1 && limit < scaler->scale) {
            return ls_event_int(calls->call->json, params, 1) != 0 ? scaler->scale : 0;
        }
    }
    return 0;
}

/* Whether a call clips the gradients of all optimizers, some unscaled, and others still times their
 * scale. */
static bool clips_mixed(const ls_calls *calls)
{
    int params = 0, scaled = 0, unscaled = 0;
    const ls_event *event, *group;
    ls_event_each(event, ls_trace_events(calls->rank, optimizer)) {
        ls_event_each(group, ls_event_list(event, groups)) {
            params += ls_event_count(ls_event_list(group, params));
        }
    }
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        const ls_calls_grad *grad = &calls->optimizer[o].grad;
        bool used = (calls->optimizers >> o & 1) != 0;
        scaled += used && only_scaled(grad);
        unscaled += used && grad->scaled > 0 && grad->unscaled > 0;
    }
    return scaled > 0 && unscaled > 0 && ls_event_int(calls->call->json, params, -1) == params &&
           isfinite(ls_event_number(calls->call->json, limit, INFINITY));
}

/* The clips of one place that clip scaled gradients. */
typedef struct scaled_clip {
    const char *at;
    long long step; /* of the first */
    double limit, scale;
    bool unread;      /* nothing had read the scale, to compute the limit by */
    bool same, other; /* at another scale: with the same limit, with another */
} scaled_clip;

static void note_scaled_clip(const ls_calls *calls, scaled_clip *list, int most)
{
    double scale = clips_scaled(calls);
    double limit = ls_event_number(calls->call->json, limit, NAN);
    for (int i = 0; i < most && scale > 0; i++) {
        scaled_clip *own = &list[i];
        if (own->at == NULL) {
            *own = (scaled_clip){.at = calls->call->at,
                                 .step = ls_calls_step(calls),
                                 .limit = limit,
                                 .scale = scale,
                                 .unread = ls_event_bool(calls->call->json, scale_unread, false)};
            return;
        }
        if (strcmp(own->at, calls->call->at) == 0) {
            own->same = own->same || (scale != own->scale && limit == own->limit);
            own->other = own->other || (scale != own->scale && limit != own->limit);
            return;
        }
    }
}

/* A limit times the scale clips scaled gradients as it should: it is computed from the scale, and
 * follows it where that changes. While the scale stays and is read for something, that is guessed.
 */
static void check_clips(const ls_observe_trace *trace, ls_observe_finding *out)
{
    enum { PLACES = 8 };
    for (int k = 0; k < trace->world; k++) {
        scaled_clip list[PLACES] = {{0}};
        ls_calls_each(calls, &trace->rank[k]) {
            if (calls.call->kind == LS_CALL_CLIP && clips_mixed(&calls)) {
                fail(&calls, k,
                     "gradients of all optimizers are clipped together: some are unscaled, others "
                     "are still times the scale",
                     "clipping without scaler.unscale_() of every optimizer before it",
                     "call scaler.unscale_() for each optimizer before clipping", out);
            } else if (calls.call->kind == LS_CALL_CLIP) {
                note_scaled_clip(&calls, list, PLACES);
            }
        }
        for (int i = 0; i < PLACES && list[i].at != NULL; i++) {
            ls_observe_finding one = {0};
            if (list[i].other) {
                continue;
            }
            ls_finding_set(&one, LS_FAIL, list[i].at,
                           "clipping without scaler.unscale_(optimizer) before it",
                           "call scaler.unscale_(optimizer) before clipping",
                           "rank %d, step %lld: gradients were clipped to %g while they were still "
                           "times the scale",
                           k, list[i].step, list[i].limit);
            (list[i].same || list[i].unread ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
        }
    }
}

static void look_at_backward(ls_calls *calls, int rank, ls_observe_finding *out)
{
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        const ls_calls_grad *grad = &calls->optimizer[o].grad;
        const ls_calls_scaler *scaler = ls_calls_sole_scaler(calls, o);
        if (scaler == NULL ||
            scaler != &calls->scaler[ls_event_int(calls->call->json, scaled, 0)]) {
            continue;
        }
        if (grad->unscaled > 0) {
            fail(calls, rank,
                 "a backward adds scaled gradients to gradients that were unscaled already",
                 "unscale_ before the last backward of the step",
                 "call scaler.unscale_(optimizer) after the last backward, before the step", out);
        }
        if (grad->update != NULL) {
            fail(calls, rank,
                 "a backward adds to gradients of an earlier one; in between, update() was called",
                 "scaler.update() inside the accumulation: micro-steps may have different scales",
                 "call scaler.update() once, after scaler.step", out);
        }
    }
}

static void look_at_step(ls_calls *calls, int rank, ls_observe_finding *out)
{
    const ls_call *call = calls->call;
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
    const ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
    if (own == NULL || scaler == NULL || !scaler->enabled) {
        return;
    }
    if (own->stepped) {
        fail(calls, rank, "scaler.step(optimizer) a second time without update() in between",
             "scaler.update() is missing after scaler.step",
             "call scaler.update() once, after scaler.step", out);
    }
    if (own->grad.scaled > 0 && own->grad.update != NULL && scaler->backwards == 0) {
        fail_at(calls, rank, own->grad.update->at,
                "scaler.step by gradients of before the last update(): they were scaled by another "
                "scale",
                ls_calls_count(scaler->optimizers) > 1
                    ? "scaler.update() between the steps of two optimizers whose gradients were "
                      "scaled before it"
                    : "scaler.update() before scaler.step",
                "call scaler.update() once, after the last scaler.step", out);
    }
}

static void look_at_order(ls_calls *calls, int rank, int *counted, ls_observe_finding *out)
{
    const ls_call *call = calls->call;
    int by = ls_event_int(call->json, scaled, -1);
    bool scaled = call->kind == LS_CALL_BACKWARD && by >= 0 && by < LS_CALLS_SCALERS;
    *counted += scaled || call->kind == LS_CALL_CLIP || call->kind == LS_CALL_SCALER_STEP ||
                        call->kind == LS_CALL_UPDATE
                    ? call->times
                    : 0;
    if (scaled) {
        look_at_backward(calls, rank, out);
    } else if (call->kind == LS_CALL_SCALER_STEP) {
        look_at_step(calls, rank, out);
    }
}

/* Steps from which on a missing update() is one: the discriminator's step of the first pair has
 * none of its own, and torch itself ends a job at the second step without update(). */
static int steps_to_judge(const ls_calls *calls)
{
    const ls_event *observe = ls_event_object(calls->rank->start, observe);
    bool whole = ls_event_int(observe, steps, 0) != 1;
    return whole && ls_calls_count(calls->optimizers) == 1 ? 1 : 2;
}

/* A scaler that is never updated never backs off. */
static void check_updated(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const ls_call *step[LS_CALLS_SCALERS] = {0};
        ls_calls calls = ls_calls_begin(rank);
        while (ls_calls_next(&calls)) {
            if (calls.call->kind == LS_CALL_SCALER_STEP &&
                ls_calls_scaler_of(&calls, calls.call) != NULL) {
                step[calls.call->scaler] = calls.call;
            }
        }
        for (int s = 0; s < LS_CALLS_SCALERS; s++) {
            const ls_calls_scaler *scaler = &calls.scaler[s];
            if (!scaler->enabled || step[s] == NULL || scaler->updates > 0 ||
                rank->step_count < steps_to_judge(&calls)) {
                continue;
            }
            ls_finding_set(out, LS_FAIL, step[s]->at,
                           "scaler.update() is missing after scaler.step",
                           "call scaler.update() once, after scaler.step",
                           "rank %d: scaler.step in %d steps, no update()", k, rank->step_count);
        }
    }
}

void ls_rules_scaler_order(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (concerns(trace, out)) {
        int calls = go_through(trace, look_at_order, out);
        check_clips(trace, out);
        check_updated(trace, out);
        ls_verdict_pass(&out->verdict, calls,
                        "backward, unscaling, clipping, step and update in their order, %d calls",
                        calls / trace->world);
    }
}

/* ---- scaler.losses --------------------------------------------------------------------------- */

/* Gradients that the scaler divides by its scale, although a loss was not multiplied by it. */
static void look_at_plain(ls_calls *calls, int rank, const ls_calls_grad *grad,
                          ls_observe_finding *out)
{
    const ls_call *plain = grad->plain_call;
    bool dropped = ls_calls_flag(plain, dropped) == 1;
    if (grad->scaled == 0 && grad->derived == 0) {
        fail_at(calls, rank, plain->at,
                "scaler.step divides gradients by the scale whose loss was never multiplied by it",
                dropped ? "scaler.scale(loss) is called and its result is not what goes backward"
                        : "loss.backward() in place of scaler.scale(loss).backward()",
                "call scaler.scale(loss).backward()", out);
    } else if (ls_calls_count(calls->optimizers) == 1) {
        fail_at(
            calls, rank, plain->at,
            "one of the backward calls of the step was of an unscaled loss: scaler.step divides "
            "its gradients by the scale, too",
            "loss.backward() in place of scaler.scale(loss).backward() for one of several "
            "losses",
            "call scaler.scale(loss).backward() for every loss", out);
    }
}

/* An optimizer that steps outside the scaler. */
static void look_outside(ls_calls *calls, int rank, const ls_calls_grad *grad,
                         ls_observe_finding *out)
{
    if (only_scaled(grad)) {
        fail(calls, rank, "optimizer.step() outside the scaler by gradients of scaled losses",
             "optimizer.step() in place of scaler.step(optimizer)",
             "call scaler.step(optimizer) in place of optimizer.step()", out);
    } else if (grad->plain > 0 && grad->scaled == 0 && grad->derived == 0 && grad->forwards > 0 &&
               grad->half_forwards == grad->forwards) {
        ls_observe_finding one = {0};
        fail(calls, rank,
             "an optimizer steps by gradients of f16 forwards whose losses were not scaled, "
             "although a scaler is in use",
             "loss.backward() in place of scaler.scale(loss).backward()",
             "call scaler.scale(loss).backward() and scaler.step(optimizer)", &one);
        ls_finding_guess(out, &one);
    }
}

static void look_at_losses(ls_calls *calls, int rank, int *counted, ls_observe_finding *out)
{
    const ls_call *call = calls->call;
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
    const ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
    *counted += call->kind == LS_CALL_BACKWARD && ls_event_int(call->json, scaled, -1) >= 0
                    ? call->times
                    : 0;
    if (call->kind == LS_CALL_SCALE && ls_calls_flag(call, again) == 1) {
        fail(calls, rank, "scaler.scale is given what it has returned: the loss is scaled twice",
             "scaler.scale(scaler.scale(loss))", "call scaler.scale(loss) once for each loss", out);
    }
    if (call->kind == LS_CALL_BACKWARD && ls_calls_flag(call, penalty) == 1) {
        fail(calls, rank,
             "a loss is made of gradients of a scaled loss (create_graph), and the script never "
             "asks for the scale",
             "a gradient penalty of gradients that are still times the loss scale",
             "multiply the gradients by 1 / scaler.get_scale() before the penalty is made of them",
             out);
    }
    if (call->kind == LS_CALL_BACKWARD && ls_calls_flag(call, added) == 1) {
        fail(calls, rank,
             "a term that scale() has not multiplied is added to a scaled loss, and the gradients "
             "of both are divided by the scale",
             "a term of the loss is added after scaler.scale(): it hardly counts",
             "add all terms first: scaler.scale(loss + term).backward()", out);
    }
    if (own == NULL || !ls_calls_is_attempt(call)) {
        return;
    }
    const ls_calls_grad *grad = &own->grad;
    bool inside = call->kind == LS_CALL_SCALER_STEP && scaler != NULL && scaler->enabled;
    if (inside && grad->plain > 0) {
        look_at_plain(calls, rank, grad, out);
    } else if (inside && only_scaled(grad) && (grad->by >> call->scaler & 1) == 0) {
        LS_TEXT(what, 200, "scaler %d steps by gradients that were scaled by another one",
                call->scaler);
        fail(calls, rank, what, "the scalers of two optimizers are exchanged",
             "step each optimizer by the scaler that scaled its loss", out);
    } else if (call->kind == LS_CALL_OPTIMIZER_STEP) {
        look_outside(calls, rank, grad, out);
    }
}

/* ---- gradients that are thrown away ---------------------------------------------------------- */

typedef struct discards {
    int overflows;       /* gradients cleared after an overflow since the last update() */
    int most;            /* of those, over the job */
    bool loss_finite;    /* of the last backward */
    const char *waiting; /* the zero_grad of the last overflow, until a call says what follows it */
    const char *at;      /* of the first one */
} discards;

static void see_discard(discards *seen, const ls_event *call)
{
    const char *word = ls_event_text(call, call, "");
    if (strcmp(word, "backward") == 0) {
        seen->loss_finite = isfinite(ls_event_number(call, loss, NAN));
        seen->overflows += seen->waiting != NULL;
        seen->most = seen->overflows > seen->most ? seen->overflows : seen->most;
        seen->at = seen->at == NULL ? seen->waiting : seen->at;
        seen->waiting = NULL;
    } else if (strcmp(word, "update") == 0) {
        seen->waiting = NULL;
        seen->overflows = 0;
    } else if (strcmp(word, "zero_grad") == 0 && ls_event_int(call, discards, 0) > 0 &&
               seen->loss_finite && !ls_event_bool(call, finite, true)) {
        seen->waiting = ls_event_text(call, at, "");
    }
}

/* A script that finds infinite gradients itself and leaves out both step() and update(): the next
 * backward runs at the scale that caused them. A loss that is not finite itself is no matter of the
 * scale. */
static void judge_discards(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        discards seen = {0};
        ls_trace_each_call_of(walk, rank) {
            see_discard(&seen, walk.call->json);
        }
        const ls_event *tail, *call;
        ls_event_each(tail, ls_trace_events(rank, unfinished)) {
            ls_event_each(call, ls_event_list(tail, calls)) {
                see_discard(&seen, call);
            }
        }
        /* One may be of a loss whose step is still to come: networks that train in turn clear the
         * gradients of each other. */
        if (seen.most > 1) {
            const ls_call *step = ls_trace_first(rank, LS_CALL_SCALER_STEP);
            ls_finding_set(out, LS_FAIL, step != NULL ? step->at : seen.at,
                           "the script skips steps that overflow by itself: without update() the "
                           "scale is never lowered, and the next step overflows, too",
                           "call scaler.step(optimizer) and scaler.update() in every step: they "
                           "skip it and lower the scale",
                           "rank %d: %d times gradients that hold an infinity were cleared, and "
                           "neither scaler.step nor update() was called",
                           k, seen.most);
        }
    }
}

void ls_rules_scaler_losses(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (concerns(trace, out)) {
        int losses = go_through(trace, look_at_losses, out);
        judge_discards(trace, out);
        ls_verdict_pass(&out->verdict, losses,
                        "%d scaled backward calls, their gradients stepped through the scaler",
                        losses / trace->world);
    }
}

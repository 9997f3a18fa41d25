#include "fate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "kernels/core/list.h"

typedef struct walk {
    ls_fates *out;
    ls_fate now;        /* passes that may still be used: now.passes, 0: none */
    int first_lost;     /* of those since the last step, the first that was thrown away */
    bool stepped;       /* a step was asked for */
    bool trains;        /* a forward with autograd before this backward was in training mode, of no
                           input's own */
    bool begun;         /* a forward with autograd came since the last backward */
    bool forwards;      /* there was one */
    bool fresh;         /* since the last step */
    bool bare;          /* `now` began without: its gradients are of inputs, say */
    const char *input;  /* of it */
    const ls_call *sum; /* a sum in half that the gradients go through */
} walk;

static void put(walk *w, bool stepped, const char *gone)
{
    if (w->out->count == w->out->capacity) {
        w->out->capacity = 2 * w->out->capacity + 64;
        w->out->item = realloc(w->out->item, (size_t)w->out->capacity * sizeof *w->out->item);
        LS_MEMORY(w->out->item != NULL);
    }
    w->now.stepped = stepped;
    w->now.gone = gone;
    w->out->item[w->out->count++] = w->now;
    w->now = (ls_fate){0};
}

static void see_backward(walk *w, const ls_call *call, int64_t step)
{
    double by = ls_event_number(call->json, multiplied, 1);
    ls_fate *now = &w->now;
    if (!w->trains) {
        return;
    }
    if (now->passes == 0) {
        *now = (ls_fate){.by = by, .loss_finite = true, .finite = -1, .input = ""};
        w->bare = w->forwards && !w->fresh;
    }
    now->passes += call->times;
    now->step = step;
    now->by = now->by == by ? by : NAN;
    bool scalar = ls_event_has(call->json, loss); /* one that is not finite is null */
    now->loss_finite =
        now->loss_finite && (!scalar || isfinite(ls_event_number(call->json, loss, NAN)));
    now->scaled = now->scaled || ls_event_int(call->json, scaled, -1) >= 0;
    now->at = call->at;
    now->local = ls_calls_flag(call, sync) == 0;
    now->input = w->input;
}

/* A call that is no attempt to step; `cleared`: it leaves no gradient in place. */
static void see(walk *w, const ls_call *call, int64_t step, bool cleared)
{
    ls_call_kind kind = call->kind;
    if (cleared && w->now.passes > 0) {
        int finite = ls_calls_flag(call, finite);
        w->now.finite = kind == LS_CALL_ZERO_GRAD && finite >= 0 ? finite : w->now.finite;
        /* a forward that found none: of what, is not known without its input */
        w->now.other = w->bare || (kind == LS_CALL_FORWARD && w->now.input[0] == '\0');
        put(w, false, call->at);
    }
    if (kind == LS_CALL_FORWARD && ls_calls_flag(call, grad) != 0) {
        bool trains = ls_calls_is_training(call) && ls_calls_flag(call, input_grad) != 1;
        w->trains = trains || (w->begun && w->trains); /* a network behind another one's output */
        w->begun = w->forwards = w->fresh = true;
        w->input = ls_calls_text(call, input);
    } else if (kind == LS_CALL_BACKWARD) {
        see_backward(w, call, step);
        w->begun = false;
    } else if (kind == LS_CALL_CLIP && w->now.passes > 0 &&
               strcmp(ls_calls_text(call, how), "norm") == 0 && ls_event_has(call->json, norm)) {
        bool finite = isfinite(ls_event_number(call->json, norm, NAN));
        w->now.finite = finite && w->now.finite != 0 ? 1 : 0;
    } else if (kind == LS_CALL_COLLECTIVE && w->now.passes > 0 && ls_calls_combine(call) &&
               strcmp(ls_calls_text(call, type), "f16") == 0) {
        w->now.halved = call;
    }
}

static void see_step(walk *w, const ls_call *call)
{
    for (int i = w->first_lost; i < w->out->count; i++) {
        ls_fate *lost = &w->out->item[i];
        bool none = w->now.passes == 0;
        lost->other = lost->other || none ||
                      (lost->input[0] != '\0' && strcmp(lost->input, w->now.input) == 0);
        lost->first = !w->stepped && lost->finite != 0 && lost->loss_finite;
    }
    if (w->now.passes > 0) {
        put(w, true, call->at);
    }
    w->first_lost = w->out->count;
    w->stepped = true;
    w->fresh = false;
}

static bool none_pending(const ls_calls *calls)
{
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        if ((calls->optimizers >> o & 1) != 0 && ls_calls_pending(&calls->optimizer[o]) > 0) {
            return false;
        }
    }
    return true;
}

/* Places within no_sync() are those of micro-steps. Where no step was ever made, none is known. */
static void mark_others(ls_fates *fates)
{
    enum { PLACES = 32 };
    const char *place[PLACES];
    int places = 0, good = 0, bad = 0;
    for (int i = 0; i < fates->count; i++) {
        const ls_fate *f = &fates->item[i];
        if (f->stepped && places < PLACES && (places == 0 || strcmp(place[places - 1], f->at))) {
            place[places++] = f->at;
        }
        good += !f->stepped && f->finite == 1;
        bad += !f->stepped && f->finite == 0;
    }
    for (int i = 0; i < fates->count; i++) {
        ls_fate *f = &fates->item[i];
        bool known = f->stepped || f->local || places == 0;
        for (int j = 0; j < places && !known; j++) {
            known = strcmp(f->at, place[j]) == 0;
        }
        f->other = f->other || !known;
        f->finite = !f->stepped && f->finite < 0 && bad > 0 && good == 0 ? 0 : f->finite;
    }
}

void ls_fate_read(const ls_observe_rank *rank, ls_fates *out)
{
    const ls_event *event, *call;
    *out = (ls_fates){0};
    walk w = {.out = out, .trains = true, .input = ""};
    ls_calls calls;
    ls_calls_start(&calls, rank);
    const ls_call *before = NULL;
    for (bool more = true; more; before = calls.call) {
        more = ls_calls_next(&calls); /* what it holds is the state after `before` */
        if (before != NULL &&
            (ls_calls_is_attempt(before) || before->kind == LS_CALL_OPTIMIZER_STEP)) {
            see_step(&w, before);
        } else if (before != NULL) {
            bool clears = before->kind == LS_CALL_ZERO_GRAD || before->kind == LS_CALL_FORWARD;
            see(&w, before, ls_calls_step(&calls), clears && none_pending(&calls));
        }
    }
    ls_event_each(event, ls_trace_events(rank, unfinished)) {
        const ls_event *list = ls_event_list(event, calls);
        out->tail = ls_list_make((size_t)ls_event_count(list) + 1, sizeof *out->tail);
        int at = 0;
        ls_event_each(call, list) {
            out->tail[at] = ls_trace_call(call);
            see(&w, &out->tail[at], rank->first + rank->step_count,
                out->tail[at].kind == LS_CALL_ZERO_GRAD);
            at++;
        }
        break; /* a job has one */
    }
    if (w.now.passes > 0 && out->count > w.first_lost) { /* the last of those that were lost */
        put(&w, false, w.now.at);
    }
    mark_others(out);
}

void ls_fate_free(ls_fates *fates)
{
    free(fates->item);
    free(fates->tail);
    *fates = (ls_fates){0};
}

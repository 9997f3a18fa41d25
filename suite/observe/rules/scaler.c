/* Whether the loss scale is what torch's GradScaler promises: it follows its rule, it alone decides
 * whether a step is skipped, and all ranks decide alike. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/by_hand.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/calls.h"
#include "kernels/core/text.h"
#include "rules.h"

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    bool used = trace->attached ? ls_calls_use_scaler(trace) : ls_trace_is_scaled(trace);
    if (!used) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no enabled GradScaler was used");
    }
    return used;
}

/* ---- scaler.trace ---------------------------------------------------------------------------- */

/* torch's rule. Factors and interval of a scaler that was restored from a file are the file's:
 * they are NaN and 0 until the first change shows them. */
typedef struct machine {
    double growth, backoff;
    int interval;
    int clean;          /* steps since the scale last changed; -1: not known */
    double scale, next; /* expected of the call */
    double least, most; /* of the scales of a trainer of the protocol */
} machine;

/* What a job's updates showed. */
typedef struct seen {
    int updates, overflows, growths, forced, set; /* set: changed by the script between updates */
    double scale;
    const ls_call *by_script; /* the first update that follows or is such a change */
} seen;

/* aten/src/ATen/native/cuda/AmpKernels.cu: the product of an f32 scale and an f64 factor is rounded
 * to f32, and a growth to infinity is not made. */
static void tick(machine *m, bool overflow)
{
    if (overflow) {
        m->next = (double)(float)(m->scale * m->backoff);
        m->clean = 0;
        return;
    }
    m->next = m->scale;
    m->clean = m->clean < 0 ? -1 : m->clean + 1;
    if (m->clean == m->interval) {
        float grown = (float)(m->scale * m->growth);
        m->next = isfinite(grown) ? (double)grown : m->scale;
        m->clean = 0;
    }
}

/* Takes what a restored scaler's settings must be from a change that they explain. */
static void learn(machine *m, bool overflow, double next, int tracker)
{
    if (overflow && isnan(m->backoff)) { /* an overflow lowers the scale, whatever the file says */
        m->backoff = next < m->scale ? next / m->scale : 0.5;
    }
    if (!overflow && m->interval == 0 && next > m->scale) {
        m->growth = next / m->scale;
        m->interval = m->clean >= 0 ? m->clean + 1 : 0;
    }
    /* Without the file's interval the tracker alone says where the count stands. */
    m->clean = m->clean < 0 && tracker > 0 && !overflow ? tracker - 1 : m->clean;
}

static const char *explain(const machine *m, bool overflow, double next)
{
    if (overflow && next == m->scale) {
        return "the scale is not lowered where an infinity was found";
    }
    if (overflow && next > m->scale) {
        return "the scale grows although an infinity was found";
    }
    if (overflow) {
        return "the scale is lowered by another factor than backoff_factor";
    }
    if (next < m->scale) {
        return "the scale is lowered although no infinity was found";
    }
    if (next == m->scale) {
        return "the scale does not grow after growth_interval clean steps";
    }
    return m->next > m->scale ? "the scale grows by another factor than growth_factor"
                              : "the scale grows before growth_interval clean steps are over";
}

/* One update against the machine; false: it does not follow. */
static bool check_update(ls_calls *calls, int rank, machine *m, bool learns, seen *s,
                         ls_observe_finding *out)
{
    const ls_call *call = calls->call;
    double scale = ls_event_number(call->json, scale, m->scale);
    double next = ls_event_number(call->json, next, NAN);
    int tracker = ls_event_int(call->json, growth, -1);
    bool overflow = ls_calls_scaler_of(calls, call)->found == 1;
    bool forced = ls_calls_flag(call, forced) == 1;
    bool set = !isnan(m->scale) && scale != m->scale;
    s->set += set;
    s->by_script = s->by_script == NULL && (set || forced) ? call : s->by_script;
    s->updates++;
    m->scale = scale;
    if (forced) {
        s->forced++;
    } else {
        if (m->clean < 0 && tracker > 0 && !overflow) {
            m->clean = tracker - 1; /* a job that goes on begins with a count of its own */
        }
        if (learns) {
            learn(m, overflow, next, tracker);
        }
        tick(m, overflow);
        s->overflows += overflow;
        s->growths += !overflow && next > scale;
        bool known = !isnan(m->next) && !(m->clean < 0 && next == scale * m->growth);
        if (known && next != m->next) {
            ls_finding_set(out, LS_FAIL, call->at, explain(m, overflow, next),
                           "use torch.amp.GradScaler as it is: call update() once after the steps, "
                           "without a scale of your own, and do not change its fields",
                           "rank %d, step %lld: scale %g, then %g after a step %s an infinity; "
                           "expected %g (growth %g after %d clean steps, backoff %g)",
                           rank, ls_calls_step(calls), m->scale, next,
                           overflow ? "with" : "without", m->next, m->growth, m->interval,
                           m->backoff);
            return false;
        }
    }
    m->clean = tracker >= 0 && m->clean < 0 ? tracker : m->clean;
    s->scale = m->scale = next;
    return true;
}

static bool follow(const ls_observe_trace *trace, int rank, int scaler, bool learns, seen *s,
                   ls_observe_finding *out)
{
    const ls_event *event, *own = NULL;
    ls_event_each(event, ls_trace_events(&trace->rank[rank], scaler)) {
        own = ls_event_int(event, scaler, -1) == scaler ? event : own;
    }
    machine m = {.growth = learns ? NAN : ls_event_number(own, growth_factor, 2),
                 .backoff = learns ? NAN : ls_event_number(own, backoff_factor, 0.5),
                 .interval = learns ? 0 : ls_event_int(own, growth_interval, 2000),
                 .clean = -1,
                 .scale = NAN,
                 .next = NAN};
    ls_calls_each(calls, &trace->rank[rank]) {
        if (calls.call->kind == LS_CALL_UPDATE && calls.call->scaler == scaler &&
            calls.scaler[scaler].enabled && !check_update(&calls, rank, &m, learns, s, out)) {
            return false;
        }
    }
    return true;
}

static void judge_calls(const ls_observe_trace *trace, seen *sum, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        for (int scaler = 0; scaler < LS_CALLS_SCALERS; scaler++) {
            seen s = *sum, again = *sum;
            ls_observe_finding own = *out, other = *out;
            bool follows = follow(trace, k, scaler, false, &s, &own);
            if (!follows && (ls_saved_restored(&trace->rank[k], "scaler") != NULL) &&
                follow(trace, k, scaler, true, &again, &other)) {
                own = other;
                s = again;
            }
            *out = own;
            *sum = s;
        }
    }
}

/* A trainer of the protocol says its settings in its options (numerics.md section 2.6). */
static bool begin_steps(const ls_observe_trace *trace, const ls_record_rank *rank, machine *m)
{
    const char *floor_asked = ls_job_asked_value(trace, "min-loss-scale", 0);
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(rank->start, "options");
    bool torch = strcmp(ls_json_string(options, "dialect", "apex"), "torch") == 0;
    bool resumed = rank->step_count > 0 && rank->step[0].step > 1;
    double most = ls_json_number(options, "max-loss-scale", 0);
    *m = (machine){.growth = 2,
                   .backoff = 0.5,
                   .interval = ls_json_int(options, "growth-interval", 2000),
                   .clean = resumed ? -1 : 0,
                   .scale = NAN,
                   .next = NAN,
                   .least = fmax(ls_json_number(options, "min-loss-scale", 0),
                                 floor_asked != NULL ? strtod(floor_asked, NULL) : 0),
                   /* 2^24: Apex's default max_loss_scale */
                   .most = most > 0 ? most
                           : torch  ? INFINITY
                                    : 16777216};
    return strcmp(ls_json_string(options, "loss-scale", "dynamic"), "dynamic") == 0;
}

static bool check_step(const ls_record_step *step, machine *m, seen *s)
{
    double next = step->loss_scale_next;
    m->scale = step->loss_scale;
    tick(m, step->skipped);
    m->next = fmin(fmax(m->next, m->least), m->most);
    if (m->clean < 0 && !step->skipped && next == 2 * m->scale) {
        m->clean = 0; /* a run that goes on: its first growth shows its count */
        m->next = next;
    }
    s->updates++;
    s->overflows += step->skipped;
    s->growths += next > m->scale;
    s->scale = next;
    return next == m->next;
}

/* Each loss has a scale of its own, which says itself whether the loss overflowed: only an overflow
 * lowers it. */
static bool judge_loss(const ls_observe_rank *rank, int number, int loss, machine m, seen *sum,
                       ls_observe_finding *out)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_event *own = ls_event_at(rank->step[i].losses, loss);
        ls_record_step step = {.step = rank->step[i].step->step,
                               .loss_scale = ls_event_number(own, loss_scale, NAN),
                               .loss_scale_next = ls_event_number(own, loss_scale_next, NAN)};
        step.skipped = step.loss_scale_next < step.loss_scale;
        if (isnan(step.loss_scale) || isnan(step.loss_scale_next)) {
            return true;
        }
        if (!check_step(&step, &m, sum)) {
            ls_finding_set(out, LS_FAIL, "", explain(&m, step.skipped, sum->scale), NULL,
                           "rank %d, step %lld, loss %d: scale %g, then %g; expected %g", number,
                           (long long)step.step, loss, m.scale, sum->scale, m.next);
            return false;
        }
    }
    return true;
}

/* Apex's amp: an overflow of a loss makes the optimizers of its block skip. Of the two losses of
 * the protocol the first has the block [0], the second [0, 1] (protocol.md). */
static void judge_blocks(const ls_observe_rank *rank, int number, ls_observe_finding *out)
{
    for (int i = 0; i < rank->step_count; i++) {
        bool lost[2] = {false, false}, skipped[2];
        for (int n = 0; n < 2; n++) {
            const ls_event *own = ls_event_at(rank->step[i].losses, n);
            lost[n] =
                ls_event_number(own, loss_scale_next, NAN) < ls_event_number(own, loss_scale, NAN);
            skipped[n] = ls_event_is(ls_event_at(rank->step[i].skips, n), LS_TYPE_TRUE);
        }
        const bool wanted[2] = {lost[0] || lost[1], lost[1]};
        for (int n = 0; n < 2; n++) {
            if (skipped[n] != wanted[n]) {
                ls_finding_set(out, LS_FAIL, "",
                               "an overflow makes other optimizers skip than those of its block",
                               NULL, "rank %d, step %lld: optimizer %d %s", number,
                               (long long)rank->step[i].step->step, n,
                               skipped[n] ? "skips, and no loss of its own overflowed"
                                          : "steps, and a loss of its own overflowed");
                return;
            }
        }
    }
}

/* False where the rank has one loss. */
static bool judge_losses(const ls_observe_trace *trace, int rank, const machine *m, seen *sum,
                         ls_observe_finding *out)
{
    const ls_observe_rank *own = &trace->rank[rank];
    int losses = own->step_count > 0 ? ls_event_count(own->step[0].losses) : 0;
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(own->record->start, "options");
    bool good = true;
    for (int n = 0; n < losses && good; n++) {
        good = judge_loss(own, rank, n, *m, sum, out);
    }
    if (good && losses == 2 && ls_event_count(own->step[0].skips) == 2 &&
        ls_json_int(options, "scalers", 2) == 2) {
        judge_blocks(own, rank, out);
    }
    return losses > 1;
}

static void judge_steps(const ls_observe_trace *trace, seen *sum, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_record_rank *rank = trace->rank[k].record;
        machine m;
        if (!begin_steps(trace, rank, &m)) {
            ls_verdict_set(&out->verdict, LS_SKIP, "the loss scale is static");
            return;
        }
        if (judge_losses(trace, k, &m, sum, out)) {
            continue;
        }
        for (int i = 0; i < rank->step_count; i++) {
            const ls_record_step *step = &rank->step[i];
            if (isnan(step->loss_scale) || isnan(step->loss_scale_next) || !step->skip_given) {
                ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                               "the events have no loss scale, or do not say what was skipped");
                return;
            }
            if (!check_step(step, &m, sum)) {
                ls_finding_set(out, LS_FAIL, "", explain(&m, step->skipped, sum->scale), NULL,
                               "rank %d, step %lld: scale %g, then %g, %s; expected %g", k,
                               (long long)step->step, m.scale, sum->scale,
                               step->skipped ? "skipped" : "taken", m.next);
                return;
            }
        }
    }
}

void ls_rules_scaler_trace(const ls_observe_trace *trace, ls_observe_finding *out)
{
    seen sum = {.scale = NAN};
    if (trace->attached && !ls_calls_use_scaler(trace) && ls_own_scale_judge(trace, out)) {
        return;
    }
    if (!concerns(trace, out)) {
        return;
    }
    if (trace->attached) {
        ls_observe_finding one = {0};
        bool sure = ls_scaler_lost_scale(trace, &one);
        (sure ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
        judge_calls(trace, &sum, out);
    } else {
        judge_steps(trace, &sum, out);
    }
    int ranks = trace->world;
    if (sum.by_script != NULL) {
        ls_finding_blame(out, sum.by_script->at,
                         "the script sets the scale itself, which is judged in between only");
    }
    if (sum.updates == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK, "no update of a scaler was seen");
    } else if (sum.overflows + sum.growths == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "the scale stays at %g over %d updates and nothing overflowed: nothing "
                       "shows how it grows or backs off",
                       sum.scale, sum.updates / ranks);
    }
    ls_verdict_pass(&out->verdict, sum.updates,
                    "scale followed over %d updates, %d overflows, %d growths, %d set by the "
                    "script",
                    sum.updates / ranks, sum.overflows / ranks, sum.growths / ranks,
                    (sum.forced + sum.set) / ranks);
}

/* ---- scaler.skip ----------------------------------------------------------------------------- */

typedef struct skips {
    int taken, skipped, compared;
} skips;

static void check_attempt(ls_calls *calls, int rank, skips *count, ls_observe_finding *out)
{
    const ls_call *call = calls->call;
    int found = ls_calls_flag(call, found_inf), stepped = ls_calls_flag(call, stepped);
    count->taken += stepped == 1 ? call->times : 0;
    count->skipped += stepped == 0 ? call->times : 0;
    if (found >= 0 && found == stepped) {
        ls_finding_set(
            out, LS_FAIL, call->at,
            found == 1 ? "a scaler of the script's own steps on infinite gradients"
                       : "a step of the script's own replaced GradScaler.step or the optimizer's, "
                         "and does nothing",
            "let GradScaler.step decide whether to step", "rank %d, step %lld: %s", rank,
            ls_calls_step(calls),
            found == 1 ? "the optimizer stepped although its gradients hold an infinity or a NaN"
                       : "the scaler skipped the step although no gradient is infinite");
    }
}

/* An optimizer that steps by itself after unscale_: right where that found nothing. */
static void check_outside(ls_calls *calls, int rank, skips *count, ls_observe_finding *out)
{
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, calls->call);
    if (own == NULL || !ls_calls_is_attempt(calls->call) || own->grad.unscaled == 0) {
        return;
    }
    count->taken++;
    if (own->found != 1) {
        return;
    }
    ls_finding_set(out, LS_FAIL, calls->call->at,
                   "the optimizer steps outside the scaler, which would have skipped the step",
                   "call scaler.step(optimizer) in place of optimizer.step()",
                   "rank %d, step %lld: optimizer.step() on gradients in which unscale_ had found "
                   "an infinity or a NaN",
                   rank, ls_calls_step(calls));
}

/* An update after an infinity that unscale_ found, and no step was asked for. */
static void count_update(ls_calls *calls, skips *count)
{
    const ls_calls_scaler *scaler = ls_calls_scaler_of(calls, calls->call);
    bool left_out = scaler != NULL && scaler->found == 1;
    for (int o = 0; o < LS_CALLS_OPTIMIZERS && left_out; o++) {
        left_out = (scaler->optimizers >> o & 1) == 0 || calls->optimizer[o].grad.unscaled > 0;
    }
    count->skipped += left_out;
}

/* Digests are over all models: one that changes without an optimizer's step (an average of weights)
 * changes them in skipped steps, too. */
static bool trains_all_models(const ls_observe_rank *rank)
{
    unsigned forwards = 0;
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        bool counts = ls_calls_is_training(call) && call->model >= 0 && call->model < 32;
        forwards |= counts ? 1u << call->model : 0;
    }
    return ls_calls_count(forwards) >= ls_job_models(rank);
}

static bool restored_near(const ls_observe_rank *rank, int64_t step)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        int64_t at = ls_event_integer(restore, step, 0);
        if (at >= step - 1 && at <= step + 1) {
            return true;
        }
    }
    return false;
}

/* After the skipped step the script's own collectives take as many elements as the parameters have:
 * it averages or sends parameters, and a rank that skipped gets those of the others. */
static bool sends_parameters(const ls_observe_rank *rank, const ls_observe_step *step)
{
    double sent = 0, held = 0;
    for (int c = ls_trace_find(step, LS_CALL_SCALER_STEP, 0); c >= 0 && c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
        if (call->kind == LS_CALL_COLLECTIVE) {
            sent += call->times * ls_event_number(call->json, elements, 0);
        }
    }
    for (int i = 0; i < rank->tensor_count; i++) {
        held += rank->tensor[i].trainable ? (double)rank->tensor[i].elements : 0;
    }
    return held > 0 && sent >= held;
}

static bool changed(const ls_observe_step *before, const ls_observe_step *now,
                    ls_record_digest which, int *compared)
{
    const char *a = ls_trace_digest(before, which), *b = ls_trace_digest(now, which);
    *compared += a != NULL && b != NULL;
    return a != NULL && b != NULL && strcmp(a, b) != 0;
}

/* In a skipped step, the call of an optimizer that the scaler told of the infinity and whose step
 * is the script's own: it is the one that changes parameters; NULL: none. */
static const ls_event *overriding(const ls_observe_rank *rank, const ls_observe_step *step)
{
    ls_trace_each_kind(call, step, LS_CALL_OPTIMIZER_STEP) {
        const ls_event *optimizer = ls_job_optimizer(rank, call->optimizer);
        bool told = ls_event_int(call->json, scaled, -1) >= 0;
        if (told && (ls_calls_flag(call, overrode) == 1 || ls_event_has(optimizer, step_at))) {
            return optimizer;
        }
    }
    return NULL;
}

static void fail_change(const ls_observe_rank *rank, int number, int i, const char *what,
                        ls_observe_finding *out)
{
    const ls_observe_step *step = &rank->step[i];
    int call = ls_trace_find(step, LS_CALL_SCALER_STEP, 0);
    const ls_event *optimizer = overriding(rank, step);
    if (optimizer != NULL && out->verdict.code != LS_FAIL) {
        LS_TEXT(why, 240,
                "%.80s unscales by itself: the scaler hands it found_inf, and its step() changes "
                "parameters where that is set",
                ls_event_text(optimizer, class, "the optimizer"));
        ls_finding_set(out, LS_FAIL, ls_event_text(optimizer, step_at, ""), why,
                       "return from step() where found_inf is not 0, before anything is changed",
                       "rank %d, step %lld: the scaler found an infinity, and the optimizer "
                       "changed %s",
                       number, (long long)step->step->step, what);
    }
    if (out->verdict.code == LS_FAIL) {
        return;
    }
    ls_finding_set(out, LS_FAIL, call >= 0 ? step->call[call].at : "", NULL,
                   "change parameters and state only in steps that were taken: compare "
                   "scaler.get_scale() before and after update()",
                   "rank %d, step %lld was skipped, but %s changed", number,
                   (long long)step->step->step, what);
    ls_verdict_cause(&out->verdict,
                     "something else than the optimizer changes %s in every step, whether it was "
                     "skipped or not",
                     what);
}

static void check_digests(const ls_observe_trace *trace, int number, skips *count,
                          ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[number];
    bool trained = !trace->attached || trains_all_models(rank);
    for (int i = 1; i < rank->step_count; i++) {
        const ls_observe_step *now = &rank->step[i], *before = now - 1;
        if (!now->step->skipped || restored_near(rank, now->step->step)) {
            continue;
        }
        count->skipped += !trace->attached;
        bool params = trained && !sends_parameters(rank, now);
        if (params && changed(before, now, LS_RECORD_PARAM, &count->compared)) {
            fail_change(rank, number, i, "parameters", out);
        }
        if (params && changed(before, now, LS_RECORD_MASTER, &count->compared)) {
            fail_change(rank, number, i, "masters", out);
        }
        if (changed(before, now, LS_RECORD_STATE, &count->compared)) {
            fail_change(rank, number, i, "the optimizer's state", out);
        }
    }
}

/* A trainer of the protocol reports a loss that is infinite or no number: so are its gradients, and
 * after the reduction those of every rank. Under a static scale no step is skipped. */
static void check_losses(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world && !trace->attached; k++) {
        const ls_record_rank *rank = trace->rank[k].record;
        const cJSON *options = cJSON_GetObjectItemCaseSensitive(rank->start, "options");
        bool dynamic = strcmp(ls_json_string(options, "loss-scale", "dynamic"), "dynamic") == 0;
        for (int i = 0; i < rank->step_count && dynamic; i++) {
            const ls_record_step *step = &rank->step[i];
            if (step->loss_lost && step->skip_given && !step->skipped) {
                ls_finding_set(
                    out, LS_FAIL, "", "the check of gradients misses an infinity or a NaN", NULL,
                    "rank %d, step %lld was taken although its loss is infinite or no number", k,
                    (long long)step->step);
                return;
            }
        }
    }
}

static const ls_tol twice =
    LS_TOL(2, "steps: once, an infinity may go to units alone that hand nothing on");

/* Infinities that the scaler is not shown. */
static void check_hidden(const ls_observe_trace *trace, int number, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[number];
    int steps = 0;
    ls_trace_each_call_of(walk, rank) {
        const char *at = ls_calls_text(walk.call, hidden);
        bool scaled = ls_event_int(walk.call->json, scaled, -1) >= 0;
        steps += scaled && ls_event_has(walk.call->json, hidden);
        if (steps < twice.value || out->verdict.code == LS_FAIL) {
            continue;
        }
        const char *hook = ls_event_text(ls_trace_last(rank, hook), at, "");
        ls_finding_set(out, LS_FAIL,
                       at[0] != '\0'     ? at
                       : hook[0] != '\0' ? hook
                                         : walk.call->at,
                       at[0] != '\0' || hook[0] != '\0'
                           ? "a hook replaces infinite gradients by finite ones: the scaler never "
                             "finds an overflow, and its scale only grows"
                           : "infinite gradients become finite on their way to the parameters: the "
                             "scaler never finds an overflow, and its scale only grows",
                       "leave infinities to the scaler, which skips the step and lowers the scale",
                       "rank %d, step %lld: an infinity or NaN goes into the model's backward, "
                       "and the gradients of all parameters are finite; so in %d detailed steps",
                       number, (long long)walk.step->step->step, steps);
    }
}

void ls_rules_scaler_skip(const ls_observe_trace *trace, ls_observe_finding *out)
{
    skips count = {0};
    if (!concerns(trace, out)) {
        return;
    }
    check_losses(trace, out);
    for (int k = 0; k < trace->world; k++) {
        ls_calls_each(calls, &trace->rank[k]) {
            if (calls.call->kind == LS_CALL_SCALER_STEP) {
                check_attempt(&calls, k, &count, out);
            } else if (calls.call->kind == LS_CALL_OPTIMIZER_STEP) {
                check_outside(&calls, k, &count, out);
            } else if (calls.call->kind == LS_CALL_UPDATE) {
                count_update(&calls, &count);
            }
        }
        check_digests(trace, k, &count, out);
        check_hidden(trace, k, out);
    }
    if (trace->attached) {
        ls_observe_finding one = {0};
        ls_scaler_lost_steps(trace, &one);
        ls_finding_guess(out, &one);
    }
    if (count.taken == 0 && count.skipped > 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "all of %d steps were skipped: nothing shows that one is ever taken",
                       count.skipped / trace->world);
    } else if (count.skipped == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "nothing overflowed in %d steps: nothing shows what is skipped",
                       count.taken / trace->world);
    }
    ls_verdict_pass(&out->verdict, count.taken + count.skipped,
                    "%d steps taken and %d skipped, each as its gradients were; %d digests "
                    "unchanged over skipped steps",
                    count.taken / trace->world, count.skipped / trace->world, count.compared);
}

/* ---- scaler.agree ---------------------------------------------------------------------------- */

/* What a rank's scalers decided in a step, in order. */
typedef struct decisions {
    int count;
    const ls_call *call[64];
} decisions;

static decisions decisions_of(const ls_observe_step *step)
{
    decisions d = {0};
    int most = (int)(sizeof d.call / sizeof *d.call);
    for (int c = 0; c < step->call_count && d.count < most; c++) {
        ls_call_kind kind = step->call[c].kind;
        if (kind == LS_CALL_SCALER_STEP || kind == LS_CALL_UPDATE ||
            (kind == LS_CALL_UNSCALE && ls_calls_flag(&step->call[c], inside) != 1)) {
            d.call[d.count++] = &step->call[c];
        }
    }
    return d;
}

static bool same_number(const ls_call *a, const ls_call *b, ls_event_member member, double *x,
                        double *y)
{
    *x = ls_event_to_number(ls_event_get(a->json, member), NAN);
    *y = ls_event_to_number(ls_event_get(b->json, member), NAN);
    return *x == *y || isnan(*x) || isnan(*y);
}

/* What differs between the same decision on two ranks; "" nothing. */
static void compare_decision(const ls_call *a, const ls_call *b, char *text, size_t bytes)
{
    double x, y;
    text[0] = '\0';
    if (a->kind != b->kind || a->scaler != b->scaler || a->optimizer != b->optimizer) {
        ls_text_put(text, bytes, "other calls of the scaler (at %.60s, at %.60s)", a->at, b->at);
    } else if (ls_calls_flag(a, found_inf) != ls_calls_flag(b, found_inf)) {
        ls_text_put(text, bytes, "found_inf is %d and %d", ls_calls_flag(a, found_inf),
                    ls_calls_flag(b, found_inf));
    } else if (ls_calls_flag(a, stepped) != ls_calls_flag(b, stepped)) {
        ls_text_put(text, bytes, "the optimizer %s and %s",
                    ls_calls_flag(a, stepped) == 1 ? "stepped" : "was skipped",
                    ls_calls_flag(b, stepped) == 1 ? "stepped" : "was skipped");
    } else if (!same_number(a, b, LS_NUMBER(scale), &x, &y)) {
        ls_text_put(text, bytes, "the scale is %g and %g", x, y);
    } else if (!same_number(a, b, LS_NUMBER(next), &x, &y)) {
        ls_text_put(text, bytes, "the next scale is %g and %g", x, y);
    }
}

static const char late_advice[] =
    "reduce the gradients first, then call scaler.unscale_(): an infinity of one rank is then on "
    "all";

/* An unscale_ that comes before the collectives that reduce the step's gradients; NULL: none. */
static const ls_call *early_unscale(const ls_observe_rank *rank)
{
    ls_trace_each_step(step, rank) {
        int reduces = ls_by_hand_collective(step);
        int c = ls_trace_find(step, LS_CALL_UNSCALE, 0);
        if (c >= 0 && c < reduces) {
            return &step->call[c];
        }
    }
    return NULL;
}

static void blame_split(const ls_observe_trace *trace, int rank, const ls_call *call,
                        const char *text, ls_observe_finding *out)
{
    bool restored = (ls_saved_restored(&trace->rank[0], "scaler") != NULL);
    if (restored != (ls_saved_restored(&trace->rank[rank], "scaler") != NULL)) {
        ls_verdict_cause(&out->verdict, "the scaler's state was loaded on rank %d only",
                         restored ? 0 : rank);
        ls_finding_blame(
            out,
            ls_event_text(ls_saved_restored(&trace->rank[restored ? 0 : rank], "scaler"), at,
                          call->at),
            "call scaler.load_state_dict on every rank");
    } else if (strstr(text, "found_inf") != NULL && early_unscale(&trace->rank[0]) != NULL) {
        ls_finding_explain(
            out, early_unscale(&trace->rank[0])->at,
            "each rank looks for infinities in gradients of its own: unscale_ comes before the "
            "script reduces them, and one rank skips where another steps by an infinity",
            late_advice);
    } else if (strstr(text, "found_inf") != NULL) {
        ls_finding_explain(out, call->at,
                           "each rank looks for infinities in gradients of its own: they are not "
                           "reduced, or unscaled before they are",
                           "unscale after the last backward of the step, outside no_sync(), and "
                           "leave all parameters to DistributedDataParallel");
    } else {
        ls_finding_explain(out, call->at,
                           "the script calls the scaler depending on a value of the rank's own",
                           "make the same calls of the scaler on every rank");
    }
}

static void compare_ranks(const ls_observe_trace *trace, int rank, int *compared,
                          ls_observe_finding *out)
{
    ls_trace_each_step(a, &trace->rank[0]) {
        const ls_observe_step *b = ls_trace_step(&trace->rank[rank], a->step->step);
        if (b == NULL) {
            continue;
        }
        decisions x = decisions_of(a), y = decisions_of(b);
        for (int d = 0; d < x.count && d < y.count; d++) {
            char text[160];
            compare_decision(x.call[d], y.call[d], text, sizeof text);
            ++*compared;
            if (text[0] != '\0') {
                ls_verdict_fail(&out->verdict, "ranks 0 and %d, step %lld: %s", rank,
                                (long long)a->step->step, text);
                blame_split(trace, rank, y.call[d], text, out);
                return;
            }
        }
    }
}

/* Trainers of the protocol: scale and skip of each step. */
static void compare_steps(const ls_observe_trace *trace, int rank, int *compared,
                          ls_observe_finding *out)
{
    for (int i = 0; i < trace->rank[0].step_count; i++) {
        const ls_record_step *a = trace->rank[0].step[i].step;
        const ls_observe_step *other = ls_trace_step(&trace->rank[rank], a->step);
        if (other == NULL || isnan(a->loss_scale) || isnan(other->step->loss_scale)) {
            continue;
        }
        const ls_record_step *b = other->step;
        ++*compared;
        if (a->loss_scale != b->loss_scale || a->skipped != b->skipped ||
            (!isnan(a->loss_scale_next) && a->loss_scale_next != b->loss_scale_next)) {
            ls_finding_set(
                out, LS_FAIL, "", "each rank looks for infinities in its own gradients", NULL,
                "ranks 0 and %d, step %lld: scale %g and %g, %s and %s, then %g and %g", rank,
                (long long)a->step, a->loss_scale, b->loss_scale, a->skipped ? "skipped" : "taken",
                b->skipped ? "skipped" : "taken", a->loss_scale_next, b->loss_scale_next);
            return;
        }
    }
}

/* Overflows of rank 0, by the calls that found them. */
static int count_skipped(const ls_observe_trace *trace)
{
    int count = 0;
    ls_trace_each_step(step, &trace->rank[0]) {
        bool before = false; /* unscale_ found it, which the scaler's step says again */
        count += !trace->attached && step->step->skipped;
        ls_trace_each_call(call, step) {
            bool unscales = call->kind == LS_CALL_UNSCALE && ls_calls_flag(call, inside) != 1;
            bool found = unscales && ls_calls_flag(call, found_inf) == 1;
            bool skips = call->kind == LS_CALL_SCALER_STEP && ls_calls_flag(call, stepped) == 0;
            count += found || (skips && !before) ? call->times : 0;
            before = call->kind != LS_CALL_UPDATE && (before || found);
        }
    }
    return count;
}

void ls_rules_scaler_agree(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    bool by_hand = !ls_trace_is_ddp(trace) && ls_by_hand_replicates(trace);
    if ((!ls_trace_is_ddp(trace) && !by_hand) || ls_calls_in_part(trace)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       trace->world < 2 ? "one rank" : "no model is replicated over all ranks");
        return;
    }
    for (int k = 1; k < trace->world; k++) {
        if (trace->attached) {
            compare_ranks(trace, k, &compared, out);
        } else {
            compare_steps(trace, k, &compared, out);
        }
    }
    int skipped = count_skipped(trace);
    if (compared == 0) {
        ls_finding_missing(trace, "no step of a scaler was seen on two ranks", out);
    } else if (skipped == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "nothing overflowed on any of %d ranks: nothing shows that one rank's "
                       "infinity counts on all",
                       trace->world);
    }
    const ls_call *early = by_hand ? early_unscale(&trace->rank[0]) : NULL;
    if (early != NULL && out->verdict.code == LS_PASS) {
        ls_finding_set(out, LS_WEAK, early->at, NULL, late_advice,
                       "gradients are unscaled before the script reduces them: each rank looks for "
                       "infinities in its own, and no step shows two that differ");
    }
    ls_verdict_pass(&out->verdict, compared,
                    "%d decisions of the scaler equal on %d ranks, %d of them skips",
                    compared / (trace->world - 1), trace->world, skipped);
}

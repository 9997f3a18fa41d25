#include "calls.h"

#include <math.h>
#include <string.h>

/* ---- what a call says ------------------------------------------------------------------------ */

/* Those that are followed. */
static bool is_optimizer(int index)
{
    return index >= 0 && index < LS_CALLS_OPTIMIZERS;
}

static bool is_scaler(int index)
{
    return index >= 0 && index < LS_CALLS_SCALERS;
}

ls_calls_optimizer *ls_calls_optimizer_of(ls_calls *calls, const ls_call *call)
{
    return is_optimizer(call->optimizer) ? &calls->optimizer[call->optimizer] : NULL;
}

ls_calls_scaler *ls_calls_scaler_of(ls_calls *calls, const ls_call *call)
{
    return is_scaler(call->scaler) ? &calls->scaler[call->scaler] : NULL;
}

bool ls_calls_combine(const ls_call *call)
{
    const char *op = ls_calls_text(call, op);
    return call->kind == LS_CALL_COLLECTIVE && strcmp(ls_calls_text(call, use), "decision") != 0 &&
           (strstr(op, "reduce") != NULL || strstr(op, "gather") != NULL ||
            strstr(op, "all_to_all") != NULL || strcmp(op, "send") == 0 || strcmp(op, "recv") == 0);
}

int ls_calls_count(unsigned mask)
{
    int count = 0;
    for (; mask != 0; mask &= mask - 1) {
        count++;
    }
    return count;
}

const ls_calls_scaler *ls_calls_sole_scaler(const ls_calls *calls, int optimizer)
{
    for (int s = 0; s < LS_CALLS_SCALERS && optimizer >= 0; s++) {
        if (calls->scaler[s].optimizers == 1u << optimizer) {
            return &calls->scaler[s];
        }
    }
    return NULL;
}

int ls_calls_flag_of(const ls_call *call, ls_event_member member)
{
    const ls_event *value = ls_event_get(call->json, member);
    if (ls_event_is_number(value)) {
        return value->number != 0;
    }
    return ls_event_is(value, LS_TYPE_TRUE) ? 1 : ls_event_is(value, LS_TYPE_FALSE) ? 0 : -1;
}

const char *ls_calls_text_of(const ls_call *call, ls_event_member member)
{
    return ls_event_to_text(ls_event_get(call->json, member), "");
}

long long ls_calls_step(const ls_calls *calls)
{
    return calls->step == NULL ? 0 : (long long)calls->step->step->step;
}

double ls_calls_rate(const ls_call *call, int group)
{
    return ls_event_number_at(ls_event_list(call->json, lr), group);
}

bool ls_calls_is_training(const ls_call *call)
{
    return call->kind == LS_CALL_FORWARD && ls_calls_flag(call, grad) != 0 &&
           ls_calls_flag(call, training) != 0;
}

/* `scaled` of an optimizer's step and of a backward: the index of a scaler, or null. */
static int scaled_by(const ls_call *call)
{
    return ls_event_int(call->json, scaled, -1);
}

bool ls_calls_is_attempt(const ls_call *call)
{
    return call->kind == LS_CALL_SCALER_STEP ||
           (call->kind == LS_CALL_OPTIMIZER_STEP && scaled_by(call) < 0);
}

int ls_calls_pending(const ls_calls_optimizer *optimizer)
{
    return optimizer->grad.scaled + optimizer->grad.derived + optimizer->grad.plain;
}

/* ---- the start ------------------------------------------------------------------------------- */

static bool holds(const ls_event *optimizer, const char *name)
{
    const ls_event *group;
    ls_event_each(group, ls_event_list(optimizer, groups)) {
        if (ls_event_holds(ls_event_list(group, params), name)) {
            return true;
        }
    }
    return false;
}

/* "m2.fc.weight" is of model 2, "fc.weight" of model 0; of "?" it is not known. */
static unsigned model_of(const char *name)
{
    int model = 0, length = 0;
    if (strcmp(name, "?") == 0) {
        return ~0u;
    }
    bool given = sscanf(name, "m%d.%n", &model, &length) == 1 && length > 0;
    return given && model >= 0 && model < 32 ? 1u << model : 1u;
}

/* `later`: an event that gives parameters other names, or more of them. */
static void read_optimizer(ls_calls *calls, const ls_event *event, bool later)
{
    int index = ls_event_int(event, optimizer, -1);
    const ls_event *group, *param, *other;
    if (!is_optimizer(index)) {
        return;
    }
    ls_calls_optimizer *own = &calls->optimizer[index];
    own->models = later ? own->models : 0;
    ls_event_each(group, ls_event_list(event, groups)) {
        ls_event_each(param, ls_event_list(group, params)) {
            const char *name = ls_event_to_text(param, "?");
            own->models |= model_of(name);
            ls_event_each(other, ls_trace_events(calls->rank, optimizer)) {
                int peer = ls_event_int(other, optimizer, -1);
                if (is_optimizer(peer) && holds(other, name)) {
                    own->shares |= 1u << peer;
                }
            }
        }
    }
}

static void read_scaler(ls_calls *calls, const ls_event *event)
{
    int index = ls_event_int(event, scaler, -1);
    if (is_scaler(index)) {
        calls->scaler[index].enabled = ls_event_bool(event, enabled, false);
        calls->scaler[index].scale = ls_event_number(event, init_scale, NAN);
    }
}

/* Which optimizers each scaler steps, over the whole job. */
static void read_users(ls_calls *calls)
{
    ls_trace_each_call_of(walk, calls->rank) {
        const ls_call *call = walk.call;
        bool scales = call->kind == LS_CALL_SCALER_STEP || call->kind == LS_CALL_UNSCALE;
        ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
        if (ls_calls_optimizer_of(calls, call) == NULL) {
            continue;
        }
        if (scales && scaler != NULL) {
            scaler->optimizers |= 1u << call->optimizer;
        }
        if (scales || call->kind == LS_CALL_OPTIMIZER_STEP) {
            calls->optimizers |= 1u << call->optimizer;
        }
    }
}

void ls_calls_start(ls_calls *calls, const ls_observe_rank *rank)
{
    const ls_event *event;
    *calls = (ls_calls){.rank = rank, .call_index = -1};
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        calls->optimizer[o] =
            (ls_calls_optimizer){.shares = 1u << o, .models = ~0u, .left = -1, .found = -1};
    }
    for (int s = 0; s < LS_CALLS_SCALERS; s++) {
        calls->scaler[s] = (ls_calls_scaler){.scale = NAN, .found = -1};
    }
    ls_event_each(event, ls_trace_events(rank, optimizer)) {
        read_optimizer(calls, event, false);
    }
    ls_event_each(event, ls_trace_events(rank, held)) {
        read_optimizer(calls, event, true);
    }
    ls_event_each(event, ls_trace_events(rank, scaler)) {
        read_scaler(calls, event);
    }
    read_users(calls);
}

ls_calls ls_calls_begin(const ls_observe_rank *rank)
{
    ls_calls calls;
    ls_calls_start(&calls, rank);
    return calls;
}

/* ---- the effect of a call -------------------------------------------------------------------- */

static void clear(ls_calls *calls, unsigned optimizers, bool by_hand)
{
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        if ((optimizers >> o & 1) != 0) {
            calls->optimizer[o].grad = (ls_calls_grad){0};
            calls->optimizer[o].by_hand = by_hand && !calls->optimizer[o].cleared;
            calls->optimizer[o].cleared = true;
            calls->optimizer[o].found = -1;
        }
    }
}

unsigned ls_calls_optimizers_of(const ls_calls *calls, int model)
{
    unsigned mask = 0;
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        bool has = model < 0 || model >= 32 || (calls->optimizer[o].models >> model & 1) != 0;
        mask |= has ? 1u << o : 0;
    }
    return mask;
}

/* Of these optimizers those that hold parameters of that model alone; -1: of any. */
static unsigned of_model_alone(const ls_calls *calls, unsigned optimizers, int model)
{
    for (int o = 0; o < LS_CALLS_OPTIMIZERS && model >= 0 && model < 32; o++) {
        unsigned models = calls->optimizer[o].models;
        if (models != ~0u && (models & ~(1u << model)) != 0) {
            optimizers &= ~(1u << o);
        }
    }
    return optimizers;
}

/* A forward that finds no gradient: they were set to None, by whatever means. */
static void after_forward(ls_calls *calls, const ls_call *call)
{
    int left = ls_event_int(call->json, left, -1);
    unsigned optimizers = ls_calls_optimizers_of(calls, call->model);
    if (ls_calls_flag(call, grad) == 0) {
        return;
    }
    if (left == 0) {
        clear(calls, of_model_alone(calls, optimizers, call->model), true);
    }
    bool half = strcmp(ls_calls_text(call, autocast), "f16") == 0;
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        ls_calls_optimizer *own = &calls->optimizer[o];
        if ((optimizers >> o & 1) != 0) {
            own->left = left > own->left ? left : own->left;
            own->grad.forwards += call->times;
            own->grad.half_forwards += half ? call->times : 0;
        }
    }
}

/* The result of scaler.scale may be divided, summed or weighed before its backward: a tensor that
 * is no scaler's own may come from one where scale was called. */
static void after_backward(ls_calls *calls, const ls_call *call)
{
    int by = scaled_by(call);
    by = is_scaler(by) && calls->scaler[by].enabled ? by : -1;
    bool derived = by < 0 && calls->scales > 0 && ls_calls_flag(call, dropped) != 1;
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        ls_calls_grad *grad = &calls->optimizer[o].grad;
        calls->optimizer[o].backwards += call->times;
        grad->scaled += by >= 0 ? call->times : 0;
        grad->by |= by >= 0 ? 1u << by : 0;
        grad->derived += derived ? call->times : 0;
        grad->plain += by < 0 && !derived ? call->times : 0;
        grad->plain_call = by < 0 && !derived ? call : grad->plain_call;
        grad->after_unscale += by >= 0 && grad->unscaled > 0 ? call->times : 0;
    }
    for (int s = 0; s < LS_CALLS_SCALERS; s++) {
        calls->scaler[s].backwards += by == s || derived ? call->times : 0;
    }
    calls->scales = 0;
}

static void note_found(int *found, int flag)
{
    *found = flag > *found ? flag : *found;
}

static void after_unscale(ls_calls *calls, const ls_call *call)
{
    ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
    ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
    int found = ls_calls_flag(call, found_inf);
    if (scaler != NULL) {
        note_found(&scaler->found, found);
    }
    if (own != NULL && ls_calls_flag(call, inside) != 1) {
        note_found(&own->found, found);
        own->grad.unscaled += call->times;
        own->grad.after_unscale = 0;
        own->grad.unscale_update = scaler == NULL ? 0 : scaler->updates;
    }
}

static void after_attempt(ls_calls *calls, const ls_call *call)
{
    ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
    if (own != NULL) {
        own->grad = (ls_calls_grad){0};
        own->attempts += call->times;
        own->backwards = 0;
        own->cleared = own->by_hand = false;
        own->left = -1;
        own->attempt = call;
        own->stepped = own->stepped || call->kind == LS_CALL_SCALER_STEP;
    }
}

static void after_scaler_step(ls_calls *calls, const ls_call *call)
{
    ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
    int found = ls_calls_flag(call, found_inf);
    if (scaler != NULL) {
        scaler->steps += call->times;
        note_found(&scaler->found, found >= 0 ? found : ls_calls_flag(call, stepped) == 0 ? 1 : -1);
    }
}

static void after_update(ls_calls *calls, const ls_call *call)
{
    ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
    if (scaler == NULL) {
        return;
    }
    scaler->updates += call->times;
    scaler->scale = ls_event_number(call->json, next, scaler->scale);
    scaler->backwards = 0;
    scaler->found = -1;
    scaler->update = call;
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        if ((scaler->optimizers >> o & 1) != 0) {
            ls_calls_optimizer *own = &calls->optimizer[o];
            own->found = -1;
            own->stepped = false;
            own->grad.update = own->grad.scaled > 0 ? call : NULL;
        }
    }
}

static void apply(ls_calls *calls, const ls_call *call)
{
    if (ls_calls_is_attempt(call)) {
        after_attempt(calls, call);
    }
    switch (call->kind) {
    case LS_CALL_FORWARD:
        after_forward(calls, call);
        break;
    case LS_CALL_SCALE: {
        const ls_calls_scaler *scaler = ls_calls_scaler_of(calls, call);
        calls->scales += scaler == NULL || scaler->enabled ? call->times : 0;
        break;
    }
    case LS_CALL_BACKWARD:
        after_backward(calls, call);
        break;
    case LS_CALL_UNSCALE:
        after_unscale(calls, call);
        break;
    case LS_CALL_SCALER_STEP:
        after_scaler_step(calls, call);
        break;
    case LS_CALL_UPDATE:
        after_update(calls, call);
        break;
    case LS_CALL_ZERO_GRAD: {
        const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, call);
        bool model = strcmp(ls_calls_text(call, of), "model") == 0;
        unsigned cleared =
            model || own == NULL ? ls_calls_optimizers_of(calls, call->model) : own->shares;
        clear(calls, cleared, false);
        for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
            calls->optimizer[o].clear = (cleared >> o & 1) != 0 ? call : calls->optimizer[o].clear;
        }
        break;
    }
    default:
        break;
    }
}

bool ls_calls_next(ls_calls *calls)
{
    if (calls->call != NULL) {
        apply(calls, calls->call);
    }
    calls->call_index++;
    while (calls->step_index < calls->rank->step_count) {
        const ls_observe_step *step = &calls->rank->step[calls->step_index];
        calls->step = step;
        if (calls->call_index < step->call_count) {
            calls->call = &step->call[calls->call_index];
            return true;
        }
        calls->step_index++;
        calls->call_index = 0;
    }
    calls->call = NULL;
    return false;
}

/* ---- a job ----------------------------------------------------------------------------------- */

bool ls_calls_use_scaler(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        ls_calls_each(calls, &trace->rank[k]) {
            ls_call_kind kind = calls.call->kind;
            const ls_calls_scaler *scaler = ls_calls_scaler_of(&calls, calls.call);
            if ((kind == LS_CALL_SCALE || kind == LS_CALL_SCALER_STEP) && scaler != NULL &&
                scaler->enabled) {
                return true;
            }
        }
    }
    return false;
}

bool ls_calls_in_part(const ls_observe_trace *trace)
{
    const ls_event *model;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(model, ls_trace_events(&trace->rank[k], model)) {
            if (strcmp(ls_event_text(model, kind, ""), "ddp") == 0 &&
                ls_event_int(model, world, trace->world) != trace->world) {
                return true;
            }
        }
    }
    return false;
}

static int weight(ls_verdict_code code)
{
    switch (code) {
    case LS_PASS:
    case LS_WAIVED:
        return 0;
    case LS_SKIP:
        return 1;
    case LS_WEAK:
    case LS_UNSUPPORTED:
        return 2;
    default:
        return 3;
    }
}

void ls_calls_keep_worst(ls_observe_finding *out, const ls_observe_finding *one)
{
    int64_t compared = out->verdict.compared + one->verdict.compared;
    if (weight(one->verdict.code) > weight(out->verdict.code) ||
        (out->verdict.code == LS_PASS && out->where[0] == '\0')) {
        const ls_observe_rule *rule = out->rule;
        ls_observe_hint hint = out->hint;
        *out = *one;
        out->rule = rule;
        out->hint = hint;
    }
    if (out->hint.verdict.code == LS_PASS) {
        out->hint = one->hint;
    }
    out->verdict.compared = compared;
}

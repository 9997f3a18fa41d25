/* Whether mixed precision is in force where it should be: autocast around forwards, products in
 * half, losses and parameters in f32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "harness/report/stats.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/job.h"

/* ---- what a job shows ------------------------------------------------------------------------ */

/* Over all ranks. */
typedef struct precision {
    bool scaled;                         /* an enabled scaler is in use */
    int forwards, autocast, half, f16;   /* training forwards; under autocast; with half output */
    int bare;                            /* outside autocast in a detailed step */
    int unsynced, unsynced_autocast;     /* of them in no_sync, where others synchronise */
    int synced_autocast;                 /* in steps that have both */
    int backwards, inside;               /* backward calls; inside autocast */
    int params, half_params, f16_params; /* trainable */
    const ls_call *plain, *cast, *backward; /* a forward outside and one under autocast; a backward
                                               inside it */
    const ls_call *synced, *no_sync;
} precision;

static bool is_half(const char *type)
{
    return ls_text_choice(type, "f16|bf16") >= 0;
}

/* Autocast that forward opens itself is seen in detailed steps only: elsewhere none is no news. */
static void count_forward(precision *p, const ls_call *call, bool accumulates, bool detail)
{
    const char *autocast = ls_calls_text(call, autocast);
    bool cast = autocast[0] != '\0', sync = ls_calls_flag(call, sync) != 0;
    p->forwards += call->times;
    p->autocast += cast ? call->times : 0;
    p->f16 += strcmp(autocast, "f16") == 0 ? call->times : 0;
    p->half += is_half(ls_calls_text(call, type)) ? call->times : 0;
    if (accumulates) {
        p->unsynced += sync ? 0 : call->times;
        p->unsynced_autocast += !sync && cast ? call->times : 0;
        p->synced_autocast += sync && cast ? call->times : 0;
        *(sync ? &p->synced : &p->no_sync) = call;
    }
    if (cast && p->cast == NULL) {
        p->cast = call;
    } else if (!cast) {
        p->plain = p->plain == NULL || (detail && p->bare == 0) ? call : p->plain;
        p->bare += detail ? call->times : 0;
    }
}

static bool has_forward(const ls_observe_step *step, bool sync)
{
    ls_trace_each_call(call, step) {
        if (ls_calls_is_training(call) && (ls_calls_flag(call, sync) != 0) == sync) {
            return true;
        }
    }
    return false;
}

static void count_step(precision *p, const ls_observe_step *step)
{
    bool accumulates = has_forward(step, false) && has_forward(step, true);
    ls_trace_each_call(call, step) {
        if (ls_calls_is_training(call)) {
            count_forward(p, call, accumulates, step->detail);
        } else if (call->kind == LS_CALL_BACKWARD) {
            bool inside = ls_calls_text(call, autocast)[0] != '\0';
            p->backwards += call->times;
            p->inside += inside ? call->times : 0;
            p->backward = inside && p->backward == NULL ? call : p->backward;
        }
    }
}

static precision precision_of(const ls_observe_trace *trace)
{
    precision p = {.scaled = ls_calls_use_scaler(trace)};
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        for (int i = 0; i < rank->step_count; i++) {
            count_step(&p, &rank->step[i]);
        }
        for (int i = 0; i < rank->tensor_count; i++) {
            const ls_observe_tensor *tensor = &rank->tensor[i];
            p.params += tensor->trainable;
            p.half_params += tensor->trainable && is_half(tensor->type);
            p.f16_params += tensor->trainable && strcmp(tensor->type, "f16") == 0;
        }
    }
    return p;
}

static bool concerns(const ls_observe_trace *trace, precision *p, ls_observe_finding *out)
{
    *p = precision_of(trace);
    if (!p->scaled && p->autocast == 0 && p->half == 0 && p->half_params == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "the job trains in f32: no autocast, no scaler");
        return false;
    }
    if (p->forwards == 0) {
        ls_finding_missing(trace, "no training forward of a known model", out);
        return false;
    }
    return true;
}

/* ---- arithmetic, seen from the gradients ----------------------------------------------------- */

static const ls_tol f32_products =
    LS_TOL(1e-5, "one rounding of a gradient to f16 has a relative error of 2^-12 / sqrt(3) = "
                 "1.4e-4 in the mean, sums of f32 products of some 1e-7 to 1e-6: 1e-5 lies "
                 "between them");

static double relative_error(const ls_values *value, const ls_values *exact)
{
    double error = 0, norm = 0;
    for (int64_t i = 0; i < exact->count; i++) {
        double d = value->v[i] - exact->v[i];
        error += d * d;
        norm += exact->v[i] * exact->v[i];
    }
    return norm > 0 && isfinite(error) ? sqrt(error / norm) : NAN;
}

/* The median over parameters, [*count] of them, of the distance between what autograd gave and the
 * same backward in FP64; NaN: the step was not run again, or gave nothing to compare. */
static double distance_of_step(const ls_observe_rank *rank, const ls_dumpfile *file, int *count)
{
    double *distance = ls_list_make((size_t)rank->tensor_count, sizeof *distance);
    *count = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        ls_values own = ls_samples_read(file, "again/local", rank->tensor[i].name, NULL);
        ls_values exact = ls_samples_read(file, "again/f64", rank->tensor[i].name, NULL);
        if (own.v != NULL && exact.v != NULL && own.count == exact.count) {
            double error = relative_error(&own, &exact);
            distance[*count] = error;
            *count += !isnan(error);
        }
        ls_samples_free(&own);
        ls_samples_free(&exact);
    }
    double median = ls_stats_percentile(distance, *count, 0.5);
    free(distance);
    return median;
}

static double distance_to_f64(const ls_observe_trace *trace, int *count, ls_observe_finding *out)
{
    double distance = NAN;
    for (int k = 0; k < trace->world && isnan(distance); k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        for (int i = 0; i < rank->step_count && isnan(distance); i++) {
            ls_dumpfile *file = ls_trace_samples(trace, k, &rank->step[i], out);
            if (file != NULL) {
                distance = distance_of_step(rank, file, count);
                ls_dumpfile_close(file);
            }
        }
    }
    return distance;
}

/* ---- precision.autocast ---------------------------------------------------------------------- */

/* The scaler is in use, but no forward is under autocast where DDP calls it: forward may open
 * autocast itself, which only its outputs and gradients show. */
static void judge_without_autocast(const ls_observe_trace *trace, const precision *p,
                                   ls_observe_finding *out)
{
    int tensors = 0;
    double distance = p->half > 0 ? NAN : distance_to_f64(trace, &tensors, out);
    if (p->half > 0) {
        ls_verdict_pass(&out->verdict, p->half,
                        "%d of %d training forwards gave half precision: forward opens autocast "
                        "itself",
                        p->half, p->forwards);
    } else if (isnan(distance)) {
        ls_finding_set(out, LS_WEAK, p->plain->at, NULL,
                       "if forward does not do it itself: with torch.autocast(...) around it",
                       "no training forward was called under autocast and outputs are f32: whether "
                       "forward opens autocast itself could not be seen");
    } else if (distance < f32_products.value) {
        ls_finding_set(out, LS_FAIL, p->plain->at,
                       "autocast is missing around the forward, or is for another device type",
                       "with torch.autocast(device_type): around the forward and the loss",
                       "a GradScaler is in use, but none of %d training forwards is under "
                       "autocast, and gradients are those of f32 (%.1e from FP64)",
                       p->forwards, distance);
        ls_verdict_measured(&out->verdict, distance, f32_products.value, "", f32_products.why);
    } else {
        ls_verdict_pass(&out->verdict, tensors,
                        "gradients are %.1e from FP64, as half products make them: forward opens "
                        "autocast itself",
                        distance);
    }
}

/* The two branches of an accumulation, one of which forgot autocast. */
static bool judge_micro_steps(const precision *p, ls_observe_finding *out)
{
    if (p->unsynced == 0) {
        return false;
    }
    bool first = p->unsynced_autocast == p->unsynced && p->synced_autocast == 0;
    bool last = p->unsynced_autocast == 0 && p->synced_autocast > 0;
    if (!first && !last) {
        return false;
    }
    const ls_call *bare = first ? p->synced : p->no_sync;
    ls_finding_set(out, LS_FAIL, bare->at,
                   "autocast around one of the two branches of the accumulation",
                   "put the same autocast around both forwards",
                   "micro-steps %s no_sync() run under autocast, those %s it do not",
                   first ? "in" : "outside", first ? "outside" : "in");
    return true;
}

/* An optimizer steps within an autocast region that holds casts of the weights before the step
 * before. */
static bool judge_open_region(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int stale = 0, steps = 0;
    const ls_call *first = NULL;
    for (int k = 0; k < trace->world; k++) {
        ls_trace_each_step(step, &trace->rank[k]) {
            ls_trace_each_kind(call, step, LS_CALL_OPTIMIZER_STEP) {
                bool is_stale = ls_calls_flag(call, stale_casts) == 1;
                first = is_stale && first == NULL ? call : first;
                stale += is_stale;
                steps++;
            }
        }
    }
    if (first == NULL) {
        return false;
    }
    ls_finding_set(
        out, LS_FAIL, first->at,
        "autocast stays open over steps: it casts each weight once until it ends, so that forwards "
        "go on with the weights of its first step",
        "open autocast in each step, around the forward and the loss alone",
        "%d of %d steps are taken within an autocast region that holds casts of earlier weights",
        stale, steps);
    return true;
}

/* Regions for another device type than the models', and no other: autocast disables itself there
 * with a warning. */
static bool judge_other_device(const ls_observe_trace *trace, ls_observe_finding *out)
{
    precision p = precision_of(trace);
    const ls_event *region, *own = NULL;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(region, ls_trace_events(&trace->rank[k], autocast)) {
            const char *at = ls_event_text(region, at, "");
            bool library = strchr(at, '(') != NULL; /* a package's own region */
            own = own == NULL && at[0] != '\0' && !library ? region : own;
        }
    }
    if (own == NULL || p.autocast > 0 || p.half > 0 || p.forwards == 0) {
        return false;
    }
    ls_finding_set(out, LS_FAIL, ls_event_text(own, at, ""),
                   "autocast for another device type: it does nothing, and the model runs in f32",
                   "torch.autocast(device_type=...) of the device that the model is on",
                   "autocast is asked for %s, where no parameter is, and none of %d training "
                   "forwards is under autocast",
                   ls_event_text(own, device, "?"), p.forwards);
    return true;
}

void ls_rules_precision_autocast(const ls_observe_trace *trace, ls_observe_finding *out)
{
    precision p;
    if (judge_other_device(trace, out)) {
        return;
    }
    if (!concerns(trace, &p, out)) {
        return;
    }
    if (judge_open_region(trace, out)) {
        return;
    }
    if (p.f16 > 0 && !p.scaled && p.backwards > 0 && !ls_own_scale(trace)) {
        ls_observe_finding one = {0};
        bool wholly_half = p.f16_params > 0 && p.f16_params == p.params;
        ls_finding_set(
            &one, wholly_half ? LS_WEAK : LS_FAIL, p.cast->at,
            "f16 without a loss scale: gradients below 6e-8 become zero",
            "scale the loss: torch.amp.GradScaler, scaler.scale(loss).backward(), "
            "scaler.step(optimizer), scaler.update(); or use bf16",
            "%d training forwards under f16 autocast, and no enabled GradScaler scaled a loss",
            p.f16);
        ls_finding_guess(out, &one);
    } else if (p.autocast == 0 && p.scaled) {
        judge_without_autocast(trace, &p, out);
        return;
    } else if (p.autocast == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no autocast: the model itself is in half");
    } else if (!judge_micro_steps(&p, out) && p.bare > 0) {
        ls_finding_blame(out, p.plain->at,
                         "this training forward is outside autocast: fine where f32 is meant");
    } else if (p.inside > 0 && out->verdict.code == LS_PASS) {
        ls_finding_blame(out, p.backward->at,
                         "end the autocast region before backward(): torch's notes do not "
                         "recommend backward inside it");
    }
    ls_verdict_pass(&out->verdict, p.autocast, "%d of %d training forwards under autocast",
                    p.autocast, p.forwards);
}

/* ---- precision.products ---------------------------------------------------------------------- */

void ls_rules_precision_products(const ls_observe_trace *trace, ls_observe_finding *out)
{
    precision p;
    if (!concerns(trace, &p, out)) {
        return;
    }
    if (p.autocast == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no training forward was called under autocast");
        return;
    }
    if (p.half > 0) {
        ls_verdict_pass(&out->verdict, p.half, "%d of %d training forwards gave half precision",
                        p.half, p.forwards);
        return;
    }
    int tensors = 0;
    double distance = distance_to_f64(trace, &tensors, out);
    if (isnan(distance)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "outputs are f32, as those of norms and losses are under autocast, and no "
                       "gradient was computed again in FP64");
        return;
    }
    if (distance < f32_products.value) {
        ls_finding_set(out, LS_FAIL, p.cast->at,
                       "forward leaves autocast (enabled=False), or its inputs and weights are of "
                       "a type that autocast does not cast",
                       "let products run under autocast, with f32 weights",
                       "forwards are under autocast, but gradients are those of f32: %.1e from "
                       "FP64 in the median over parameters",
                       distance);
        ls_verdict_measured(&out->verdict, distance, f32_products.value, "", f32_products.why);
    }
    ls_verdict_pass(&out->verdict, tensors,
                    "gradients are %.1e from FP64, as half products make them", distance);
}

/* ---- precision.loss -------------------------------------------------------------------------- */

typedef struct losses {
    int count, f16, bf16;
    int plain; /* of those in f16: means and sums of outputs */
    int rank;
    long long step;
    const ls_call *half; /* the first */
} losses;

static void count_loss(losses *l, const ls_call *call, int rank, const ls_observe_step *step)
{
    const char *type = ls_calls_text(call, type);
    bool scalar = ls_event_is_number(ls_event_member(call->json, loss));
    bool scaled = ls_event_int(call->json, scaled, -1) >= 0;
    /* The result of scale() is f32 whatever the loss was: scale() says the type of the loss. */
    if (!(call->kind == LS_CALL_SCALE || (call->kind == LS_CALL_BACKWARD && scalar && !scaled)) ||
        type[0] == '\0') {
        return;
    }
    l->count += call->times;
    l->f16 += strcmp(type, "f16") == 0 ? call->times : 0;
    l->bf16 += strcmp(type, "bf16") == 0 ? call->times : 0;
    l->plain += ls_calls_flag(call, plain) == 1 ? call->times : 0;
    if (is_half(type) && l->half == NULL) {
        l->half = call;
        l->rank = rank;
        l->step = (long long)step->step->step;
    }
}

void ls_rules_precision_loss(const ls_observe_trace *trace, ls_observe_finding *out)
{
    precision p;
    losses l = {0};
    if (!concerns(trace, &p, out)) {
        return;
    }
    for (int k = 0; k < trace->world; k++) {
        ls_trace_each_call_of(walk, &trace->rank[k]) {
            count_loss(&l, walk.call, k, walk.step);
        }
    }
    if (l.count == 0) {
        ls_finding_missing(trace, "no backward of a scalar was seen", out);
        return;
    }
    if (l.f16 > 0) {
        /* A mean of outputs (a critic's) in f16 only makes the scale fall once or twice. */
        bool wholly_half = p.half_params > 0 && p.half_params == p.params;
        ls_finding_set(
            out, wholly_half || l.plain == l.f16 ? LS_WEAK : LS_FAIL, "",
            "a loss computed by hand from f16 outputs: its gradient cannot hold a scale of 65,536",
            NULL, "rank %d, step %lld: the loss is f16, as %d of %d losses are", l.rank, l.step,
            l.f16, l.count);
    }
    if (l.half != NULL) {
        ls_finding_blame(out, l.half->at, "compute the loss in f32: outputs.float()");
    }
    ls_verdict_pass(&out->verdict, l.count, "%d of %d losses in f32", l.count - l.bf16, l.count);
}

/* ---- precision.params ------------------------------------------------------------------------ */

static const ls_observe_tensor *half_param(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        for (int i = 0; i < trace->rank[k].tensor_count; i++) {
            const ls_observe_tensor *tensor = &trace->rank[k].tensor[i];
            if (tensor->trainable && is_half(tensor->type)) {
                return tensor;
            }
        }
    }
    return NULL;
}

/* A member of a model's event. */
static const char *text_of_model(const ls_observe_trace *trace, int model, ls_event_member member)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(&trace->rank[0], model)) {
        if (ls_event_int(event, model, 0) == model) {
            return ls_event_to_text(ls_event_get(event, member), "");
        }
    }
    return "";
}

/* Optimizers of torch alone, whose steps are known: others may hold copies in f32. */
static bool is_plain(const ls_observe_rank *rank)
{
    const ls_event *optimizer;
    ls_event_each(optimizer, ls_trace_events(rank, optimizer)) {
        if (strncmp(ls_event_text(optimizer, class, ""), "torch.optim.", 12) != 0 ||
            ls_event_text(optimizer, rule, "")[0] == '\0') {
            return false;
        }
    }
    return ls_event_count(ls_trace_events(rank, optimizer)) > 0;
}

void ls_rules_precision_params(const ls_observe_trace *trace, ls_observe_finding *out)
{
    precision p;
    if (!concerns(trace, &p, out)) {
        return;
    }
    const ls_observe_tensor *half = half_param(trace);
    if (half == NULL) {
        ls_verdict_pass(&out->verdict, p.params, "%d trainable parameters in f32",
                        p.params / trace->world);
        return;
    }
    const char *at = text_of_model(trace, half->model, LS_TEXT_MEMBER(at));
    if (p.f16_params > 0 && p.scaled) {
        ls_finding_set(out, LS_FAIL, at,
                       "model.half() with a GradScaler: unscale_ refuses f16 gradients "
                       "(\"Attempting to unscale FP16 gradients\")",
                       "keep parameters in f32 and let autocast cast them",
                       "%d of %d trainable parameters are f16 under a GradScaler: %.80s, ...",
                       p.f16_params / trace->world, p.params / trace->world, half->name);
    } else if (p.f16_params > 0) {
        ls_finding_set(out, LS_WEAK, at,
                       "parameters are held in f16 without f32 copies: small steps leave them as "
                       "they are, and gradients have no loss scale",
                       "keep parameters in f32 and let autocast cast them",
                       "%d of %d trainable parameters are f16 without f32 copies: updates below "
                       "half of their last digit are lost",
                       p.f16_params / trace->world, p.params / trace->world);
    } else if (p.autocast > 0 && is_plain(&trace->rank[0])) {
        const char *cast = text_of_model(trace, half->model, LS_TEXT_MEMBER(cast_at));
        ls_finding_set(out, LS_WEAK, cast[0] != '\0' ? cast : at,
                       "the model itself is cast to bf16, not by autocast alone: an update below "
                       "1/256 of a value is lost, and moments are in bf16",
                       "keep parameters in f32 and let autocast cast them",
                       "%d of %d trainable parameters are bf16 under autocast, and %.60s keeps no "
                       "copies in f32",
                       p.half_params / trace->world, p.params / trace->world,
                       ls_event_text(ls_job_optimizer(&trace->rank[0], 0), class,
                                     "the "
                                     "optimizer"));
    } else {
        ls_finding_blame(out, at,
                         "trainable parameters are bf16: an update below 1/256 of a value is lost "
                         "unless the optimizer holds f32 copies");
    }
    ls_verdict_pass(&out->verdict, p.params,
                    "%d of %d trainable parameters are bf16, as the job asked",
                    p.half_params / trace->world, p.params / trace->world);
}

/* ---- precision.updates ----------------------------------------------------------------------- */

/* Whether parameters in half move as their optimizer's steps ask: an update below half of a
 * value's last digit leaves it as it was, in every step again. */

static const ls_tol most = LS_TOL(
    0.5, "of the way that the steps ask for: where rounding keeps more than it lets through, "
         "parameters stand still (numerics 8.8)");
static const ls_tol some = LS_TOL(0.05, "of the way: what is less changes a run no more than the "
                                        "rounding of its gradients (numerics 8.8)");

static const ls_tol felt =
    LS_TOL(0x1p-13,
           "of a tensor's values: a sixteenth of half of bf16's last digit. Sixteen such steps in "
           "one direction are a digit, a training makes thousands");

static const ls_tol asked_steps =
    LS_TOL(3, "detailed steps that ask a tensor to move: one or two may go back and forth");

/* A tensor over the detailed steps. */
typedef struct standing {
    ls_values first; /* its values before the first of them */
    bool moved;
    int asked; /* steps that ask it to move by what would be felt */
} standing;

typedef struct moves {
    double asked, lost; /* sums of sizes of updates, and of those that changed nothing */
    int64_t elements, still;
    int tensors, unknown;
    ls_job_names names; /* of tensors most of whose way is lost */
    const char *type, *at;
    standing *standing; /* [tensors of rank 0, and its parts of others] */
} moves;

static bool is_half_param(const ls_observe_tensor *tensor)
{
    return tensor->trainable && is_half(tensor->type);
}

/* Whether all elements keep their values in this step and since the first detailed one. */
static void follow_tensor(standing *own, const ls_values *param, const ls_values *next,
                          double asked)
{
    double size = 0;
    for (int64_t i = 0; i < param->count; i++) {
        size += fabs(param->v[i]);
    }
    own->moved = own->moved || !ls_samples_equal(param, next) ||
                 (own->first.v != NULL && !ls_samples_equal(&own->first, param));
    own->asked += size > 0 && asked >= felt.value * size;
}

static void add_tensor(const ls_samples *samples, const ls_observe_tensor *tensor, bool first,
                       standing *own, moves *m)
{
    ls_values param, next, wanted;
    double asked = 0, lost = 0;
    if (ls_samples_find(samples->file[0], "next", tensor->name, NULL) == NULL) {
        return;
    }
    if (!ls_rules_step_expect(samples, 0, tensor->name, &param, &next, &wanted)) {
        m->unknown++;
        return;
    }
    for (int64_t i = 0; i < wanted.count; i++) {
        double way = fabs(wanted.v[i] - param.v[i]);
        if (way > 0 && isfinite(way)) {
            bool still = next.v[i] == param.v[i];
            asked += way;
            lost += still ? way : 0;
            m->elements++;
            m->still += still;
        }
    }
    m->asked += asked;
    m->lost += lost;
    m->tensors++;
    m->type = tensor->type;
    if (first && lost > most.value * asked) {
        ls_job_add_name(&m->names, tensor->name);
    }
    follow_tensor(own, &param, &next, asked);
    if (own->first.v == NULL) {
        own->first = param;
    } else {
        ls_samples_free(&param);
    }
    ls_samples_free(&next);
    ls_samples_free(&wanted);
}

static void add_step(const ls_samples *samples, bool first, moves *m)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    for (int i = 0; i < rank->with_shards; i++) {
        if (is_half_param(&rank->tensor[i])) {
            add_tensor(samples, &rank->tensor[i], first, &m->standing[i], m);
        }
    }
    int call = ls_trace_find(samples->step[0], LS_CALL_OPTIMIZER_STEP, 0);
    if (call >= 0 && m->at[0] == '\0') { /* copies in f32 would be the optimizer's */
        const ls_call *step = &samples->step[0]->call[call];
        m->at = ls_event_text(ls_job_optimizer(rank, step->optimizer), at, "");
        m->at = m->at[0] != '\0' ? m->at : step->at;
    }
}

/* Where the script cast a model to half; "": that is not known. */
static const char *cast_at(const ls_observe_rank *rank)
{
    const ls_event *model;
    ls_event_each(model, ls_trace_events(rank, model)) {
        if (ls_event_has(model, cast_at)) {
            return ls_event_text(model, cast_at, "");
        }
    }
    return "";
}

/* ---- decay that rounding takes --------------------------------------------------------------- */

/* Decoupled decay multiplies a parameter by 1 - rate * decay and rounds, before the rest of the
 * step (torch/optim/adam.py; a fused kernel rounds once, behind all): below half of u, a quarter of
 * the last digit of 1, the product rounds to the value itself, whatever it is. */
typedef struct decays {
    int asked, lost; /* steps of groups */
    double most;     /* rate * decay */
    const char *at;
} decays;

static const ls_observe_tensor *half_of(const ls_observe_rank *rank, const ls_event *group)
{
    for (int i = 0; i < rank->with_shards; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        if (is_half_param(tensor) && (ls_event_holds(ls_event_list(group, params), tensor->name) ||
                                      ls_event_holds(ls_event_list(group, shards), tensor->name))) {
            return tensor;
        }
    }
    return NULL;
}

static void add_decays(const ls_observe_rank *rank, const ls_call *call, decays *d)
{
    const ls_event *optimizer = ls_job_optimizer(rank, call->optimizer), *group;
    int index = 0;
    ls_event_each(group, ls_event_list(optimizer, groups)) {
        const ls_event *set = ls_event_at(ls_event_member(call->json, set), index);
        double decay = ls_event_number(set, weight_decay, ls_event_number(group, weight_decay, 0)) *
                       ls_calls_rate(call, index++);
        const ls_observe_tensor *half = half_of(rank, group);
        if (half == NULL || !ls_event_bool(group, decoupled, false) ||
            ls_event_bool(group, fused, false) || !(decay > 0)) {
            continue;
        }
        d->asked += call->times;
        d->lost += decay < ls_samples_unit(half->type).u / 2 ? call->times : 0;
        d->most = fmax(d->most, decay);
        d->at = ls_event_text(optimizer, at, "");
    }
}

/* Of optimizers of torch, all of whose steps lose it. */
static decays lost_decays(const ls_observe_rank *rank)
{
    decays d = {.at = ""};
    if (is_plain(rank)) {
        ls_trace_each_call_of(walk, rank) {
            if (walk.call->kind == LS_CALL_OPTIMIZER_STEP) {
                add_decays(rank, walk.call, &d);
            }
        }
    }
    return d;
}

static int count_half(const ls_observe_trace *trace)
{
    int count = 0;
    for (int i = 0; i < trace->rank[0].with_shards; i++) {
        count += is_half_param(&trace->rank[0].tensor[i]);
    }
    return count;
}

/* Tensors that no detailed step moved, though each asks it to, and rounding alone keeps them. */
static void find_standing(const ls_observe_rank *rank, moves *m, ls_job_names *names)
{
    for (int i = 0; i < rank->with_shards; i++) {
        standing *own = &m->standing[i];
        if (own->asked >= asked_steps.value && !own->moved) {
            ls_job_add_name(names, rank->tensor[i].name);
        }
        ls_samples_free(&own->first);
    }
    free(m->standing);
}

void ls_rules_precision_updates(const ls_observe_trace *trace, ls_observe_finding *out)
{
    moves m = {.type = "", .at = ""};
    if (count_half(trace) == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no trainable parameter is in half");
        return;
    }
    m.standing = ls_list_make((size_t)trace->rank[0].with_shards, sizeof *m.standing);
    bool first = true;
    ls_samples_each(samples, trace, 0, true, out) {
        if (samples.file[0] != NULL && !samples.step[0]->step->skipped) {
            add_step(&samples, first, &m);
            first = false;
        }
    }
    ls_job_names standing = {0};
    find_standing(&trace->rank[0], &m, &standing);
    if (m.tensors == 0 || m.asked == 0) {
        ls_verdict_set(&out->verdict, m.unknown > 0 ? LS_UNSUPPORTED : LS_WEAK, "%s",
                       m.unknown > 0 ? "the optimizer's update is not known here: it may round "
                                       "otherwise, or keep what rounding loses"
                                     : "no detailed step moves a parameter that is in half");
        return;
    }
    double share = m.lost / m.asked;
    decays decay = lost_decays(&trace->rank[0]);
    LS_TEXT(found, 300,
            "%.3g %% of the way that the steps ask of %s parameters is lost to rounding: in "
            "detailed steps %.3g %% of updates are below half of the value's last digit and change "
            "nothing",
            100 * share, m.type, 100 * (double)m.still / (double)m.elements);
    if (share > most.value) {
        ls_verdict_fail(&out->verdict, "%s%s%s", found, m.names.count > 0 ? "; most in " : "",
                        ls_job_names_text(&m.names));
    } else if (standing.count > 0 && ls_trace_is_mixed(trace)) {
        /* autocast is made for parameters in f32; a job all in half may mean what it does */
        ls_verdict_fail(&out->verdict,
                        "%d of %d %s tensors never move, and rounding takes each update that the "
                        "steps ask of them: %s",
                        standing.count, count_half(trace), m.type, ls_job_names_text(&standing));
    } else if (decay.asked >= asked_steps.value && decay.lost == decay.asked) {
        ls_finding_set(out, LS_FAIL, decay.at,
                       "weight decay has no effect: values times 1 - rate * decay round to "
                       "themselves in a half type, in each step",
                       "keep parameters in f32 and let autocast cast them, or step by an "
                       "optimizer with f32 copies, stochastic rounding or compensated sums",
                       "weight decay asks for %.2g of a value in a step at most, %s rounds away "
                       "what is below %.2g: all %d steps are to the bit those without decay",
                       decay.most, m.type, ls_samples_unit(m.type).u / 2, decay.asked);
        return;
    } else if (share > some.value) {
        ls_verdict_set(&out->verdict, LS_WEAK, "%s", found);
    }
    if (!ls_verdict_good(out->verdict.code)) {
        ls_verdict_cause(&out->verdict,
                         "parameters are held in %s without copies in f32: steps that are small "
                         "against a value leave it as it is, each time again",
                         m.type);
        const char *cast = cast_at(&trace->rank[0]);
        ls_finding_blame(out, cast[0] != '\0' ? cast : m.at,
                         "keep parameters in f32 and let autocast cast them, or step by an "
                         "optimizer with f32 copies, stochastic rounding or compensated sums");
    }
    ls_verdict_measured(&out->verdict, share, most.value, "of the way", most.why);
    ls_verdict_pass(&out->verdict, m.elements, "%s", found);
}

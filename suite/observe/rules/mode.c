/* Whether the model is in training mode where it is trained, and its norms' statistics move. */
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/job.h"

static bool is_eval(const ls_call *call)
{
    return strcmp(ls_calls_text(call, mode), "eval") == 0;
}

/* Whether a backward follows that may be this forward's: not where the model is put in training
 * mode in between, as after a validation with autograd on. */
static bool has_backward(const ls_observe_step *step, int index)
{
    for (int c = index + 1; c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
        if (call->kind == LS_CALL_BACKWARD) {
            return true;
        }
        if (call->kind == LS_CALL_MODE && !is_eval(call) &&
            call->model == step->call[index].model) {
            return false;
        }
    }
    return false;
}

/* ---- mode.training --------------------------------------------------------------------------- */

/* Training forwards of a model on a rank. */
typedef struct mode {
    int forwards, in_eval;     /* with autograd on, in steps with a backward */
    bool began_frozen, turned; /* norms in eval mode from the first on; from a later one on */
    const ls_call *eval;       /* the last call of eval() since the last of train(), or NULL */
    bool validated;            /* forwards without autograd since then */
    int validations, returned; /* times that it was; that train() came after eval() */
    long long from, to;        /* steps of training forwards in eval mode since the last train() */
    int again;                 /* times that train() ended several steps of these */
    const ls_call *wrong;  /* the first forward in eval mode after a validation or a training one */
    const ls_call *left;   /* the eval() that is still in force there */
    const ls_call *first;  /* the first in eval mode */
    const ls_call *turn;   /* the first with norms in eval mode after others without */
    const ls_call *thawed; /* the first with norms in training mode that were frozen in eval mode */
    const ls_call
        *unmeasured;     /* the first with trained norms in eval mode that have no statistics */
    long long step;      /* of `wrong` */
    uint64_t optimizers; /* that hold its parameters */
} mode;

/* Optimizers that hold a parameter of the model, by bits of their numbers; 0: none is known. */
static uint64_t optimizers_of(const ls_observe_rank *rank, int model)
{
    uint64_t found = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        int optimizer = -1, group;
        while (rank->tensor[i].model == model &&
               ls_job_group(rank, rank->tensor[i].name, optimizer, &optimizer, &group) != NULL) {
            found |= UINT64_C(1) << optimizer % 64;
        }
    }
    return found;
}

/* False: the optimizers that step there hold none of its parameters. */
static bool is_stepped(const ls_observe_step *step, uint64_t optimizers)
{
    bool known = false, stepped = false;
    ls_trace_each_kind(call, step, LS_CALL_OPTIMIZER_STEP) {
        known = known || call->optimizer >= 0;
        stepped = stepped || (optimizers >> (call->optimizer < 0 ? 0 : call->optimizer % 64) & 1);
    }
    return stepped || !known || optimizers == 0;
}

static void note_forward(mode *m, const ls_observe_step *step, const ls_call *call, int index)
{
    bool training = ls_calls_flag(call, training) == 1;
    int norms = ls_event_int(call->json, eval_norms, 0);
    if (!training && ls_calls_flag(call, input_grad) == 1) {
        return; /* an attack: the gradient of the input is what is wanted */
    }
    if (ls_calls_flag(call, grad) == 0 || !has_backward(step, index) ||
        (!training && !is_stepped(step, m->optimizers))) { /* a model that was trained before */
        m->validations += !m->validated && m->eval != NULL;
        m->validated = m->validated || m->eval != NULL;
        return;
    }
    if (m->thawed == NULL && ls_event_int(call->json, thawed, 0) > 0) {
        m->thawed = call;
    }
    if (m->unmeasured == NULL && ls_event_int(call->json, unmeasured, 0) > 0) {
        m->unmeasured = call;
    }
    if (!training) {
        bool after = m->validated || m->forwards > m->in_eval;
        if (m->wrong == NULL && m->eval != NULL && after) {
            m->wrong = call;
            m->left = m->eval;
            m->step = (long long)step->step->step;
        }
        m->first = m->first == NULL ? call : m->first;
        m->from = m->from == 0 ? (long long)step->step->step : m->from;
        m->to = (long long)step->step->step;
        m->in_eval++;
    } else if (norms > 0) {
        m->began_frozen = m->began_frozen || m->forwards == 0;
        if (!m->began_frozen && !m->turned) {
            m->turned = true;
            m->turn = call;
        }
    }
    m->forwards++;
}

static void note_mode(mode *m, const ls_call *call)
{
    bool evaluated = m->eval != NULL;
    m->eval = is_eval(call) ? call : NULL;
    if (m->eval == NULL) {
        m->returned += evaluated;
        m->again += m->to > m->from;
        m->from = m->to = 0;
    }
    m->validated = false;
}

static mode mode_of(const ls_observe_rank *rank, int model)
{
    mode m = {.optimizers = optimizers_of(rank, model)};
    int validations = 0; /* also by forwards of the module inside a wrapper */
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, validated)) {
        validations += ls_event_int(event, model, -1) == model;
    }
    ls_trace_each_step(step, rank) {
        for (int c = 0; c < step->call_count; c++) {
            const ls_call *call = &step->call[c];
            if (call->model != model) {
                continue;
            }
            if (call->kind == LS_CALL_MODE) {
                note_mode(&m, call);
            } else if (call->kind == LS_CALL_FORWARD) {
                note_forward(&m, step, call, c);
            }
        }
    }
    m.validations = m.validations > validations ? m.validations : validations;
    return m;
}

static const ls_tol twice =
    LS_TOL(2, "times: a part of the training without dropout may begin behind one validation");

/* Whether no validation is ever left by train(), or the training goes on in eval mode again and
 * again until it comes: what is meant for the end of a training does neither. */
static bool is_forgotten(const mode *m)
{
    bool never = m->returned == 0 && m->validations >= twice.value && m->forwards > m->in_eval;
    return never || m->again >= twice.value;
}

static const ls_tol apart =
    LS_TOL(4, "training forwards in eval mode, which another rank makes in training mode");

/* Whether another rank makes as many training forwards of that model, all of them in training
 * mode: ranks that train one model do not run two. */
static bool is_apart(const ls_observe_trace *trace, int model, const mode *m)
{
    for (int k = 0; k < trace->world && m->in_eval >= apart.value; k++) {
        const ls_event *event = ls_job_model(&trace->rank[k], model);
        mode other = mode_of(&trace->rank[k], model);
        if (strcmp(ls_event_text(event, kind, ""), "ddp") == 0 && other.in_eval == 0 &&
            other.forwards == m->forwards) {
            return true;
        }
    }
    return false;
}

/* True: it is sure. */
static bool judge_mode(const ls_observe_trace *trace, int rank, int model, int *forwards,
                       ls_observe_finding *out)
{
    const ls_event *event = ls_job_model(&trace->rank[rank], model);
    int dropout = ls_job_count(event, dropout);
    int norms = ls_job_count(event, bn) + ls_job_count(event, sync_bn);
    const char *name = ls_event_text(event, name, "the model");
    mode m = mode_of(&trace->rank[rank], model);
    *forwards += m.forwards;
    if (m.wrong != NULL && dropout + norms > 0) {
        ls_finding_set(
            out, LS_FAIL, m.left->at,
            "model.eval() for the validation, and no model.train() after it: no dropout, and batch "
            "norms with running statistics",
            "call model.train() after the validation, before the next training step",
            "rank %d, from step %lld on: %s is trained in eval mode (%d of %d training forwards)",
            rank, m.step, name, m.in_eval, m.forwards);
        return is_forgotten(&m) || is_apart(trace, model, &m);
    } else if (m.unmeasured != NULL) {
        const char *at = ls_calls_text(m.unmeasured, unmeasured_at);
        bool meant = ls_event_bool(m.unmeasured->json, unmeasured_by_model, false);
        ls_finding_set(out, meant ? LS_WEAK : LS_FAIL, at[0] != '\0' ? at : m.unmeasured->at, NULL,
                       "train() of that part before the training",
                       "rank %d: %d norms of %s are in eval mode in training forwards and "
                       "normalize by the statistics that they were built with",
                       rank, ls_event_int(m.unmeasured->json, unmeasured, 0), name);
        ls_verdict_cause(&out->verdict,
                         meant ? "the model's own train() leaves them in eval mode: meant where "
                                 "batches are too small, or weights are loaded with statistics"
                               : "a part is put in eval mode and never back: its norms never "
                                 "measure anything, and its dropouts are off");
    } else if (m.thawed != NULL) {
        ls_finding_set(out, LS_FAIL, ls_calls_text(m.thawed, thawed_at),
                       "model.train() turns frozen batch norms on again: they normalize by the "
                       "batch, and their running statistics move",
                       "call eval() of the frozen part again after each model.train()",
                       "rank %d: %d norms of %s whose parameters are frozen, and that were put in "
                       "eval mode, are in training mode where it is trained",
                       rank, ls_event_int(m.thawed->json, thawed, 0), name);
    } else if (m.in_eval > 0 && dropout + norms > 0) {
        ls_finding_set(out, LS_WEAK, m.first->at, NULL,
                       "if it is not meant: call model.train() before training (models that are "
                       "loaded may come in eval mode)",
                       "rank %d: %s is trained in eval mode (%d of %d training forwards) without a "
                       "validation before: meant in fine-tuning with frozen norms",
                       rank, name, m.in_eval, m.forwards);
    } else if (m.turned) {
        ls_finding_blame(out, m.turn->at,
                         "from here on norms are in eval mode while the model is trained: if they "
                         "are not frozen on purpose, model.train() is missing after a validation");
        ls_text_put(out->verdict.evidence, sizeof out->verdict.evidence,
                    "%s in training mode, some of its norms in eval mode later", name);
    } else if (m.began_frozen) {
        ls_text_put(out->verdict.evidence, sizeof out->verdict.evidence,
                    "training mode in %d training forwards of %s, with norms in eval mode from "
                    "the first one on (frozen)",
                    m.forwards, name);
    }
    return false;
}

void ls_rules_mode_training(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int forwards = 0;
    for (int k = 0; k < trace->world; k++) {
        for (int m = 0; m < ls_job_models(&trace->rank[k]); m++) {
            if (ls_job_is_trained(&trace->rank[k], m, true)) {
                ls_observe_finding one = {0};
                bool sure = judge_mode(trace, k, m, &forwards, &one);
                (sure ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
            }
        }
    }
    if (forwards == 0 && out->verdict.code == LS_PASS) {
        ls_finding_missing(trace, "no training forward of a trained model", out);
    }
    LS_TEXT(text, sizeof out->verdict.evidence, "training mode in %d training forwards",
            forwards / trace->world);
    if (out->verdict.evidence[0] != '\0') { /* of one model */
        ls_text_put(text, sizeof text, "%s", out->verdict.evidence);
    }
    ls_verdict_pass(&out->verdict, forwards, "%s", text);
}

/* ---- mode.statistics ------------------------------------------------------------------------- */

static bool has_statistics(const ls_event *model)
{
    static const char end[] = "running_mean";
    const ls_event *buffer;
    ls_event_each(buffer, ls_event_list(model, buffers)) {
        const ls_event *name = ls_event_at(buffer, 0);
        size_t length = ls_event_is_text(name) ? strlen(name->text) : 0;
        if (length >= sizeof end - 1 && strcmp(name->text + length - (sizeof end - 1), end) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether a training forward of the model runs in that step with all norms in training mode; -1: of
 * any model that has statistics. */
static bool should_move(const ls_observe_rank *rank, const ls_observe_step *step, int model)
{
    ls_trace_each_call(call, step) {
        if (ls_calls_is_training(call) && ls_event_int(call->json, eval_norms, 0) == 0 &&
            (model < 0 || call->model == model) &&
            has_statistics(ls_job_model(rank, call->model))) {
            return true;
        }
    }
    return false;
}

/* Steps after which digests could have changed, and did or did not. */
typedef struct motion {
    int concerned, moved, stood;
    int model; /* whose statistics stood all the time, while other buffers may have moved; -1 */
    const char *at;
    int times;
} motion;

static void follow_buffers(const ls_observe_rank *rank, motion *m)
{
    const char *before = NULL;
    ls_trace_each_step(step, rank) {
        const char *now = ls_trace_digest(step, LS_RECORD_BUFFER);
        bool concerned = should_move(rank, step, -1);
        m->concerned += concerned;
        if (now == NULL) {
            continue;
        }
        if (before != NULL && concerned) {
            m->stood += strcmp(before, now) == 0;
            m->moved += strcmp(before, now) != 0;
        }
        before = now;
    }
}

/* The same for the running statistics of one model, in detailed steps: counts of batches move in
 * any case. */
static void follow_statistics(const ls_observe_rank *rank, int model, motion *m)
{
    const char *before = NULL;
    int moved = 0, stood = 0;
    bool ran = false;
    LS_TEXT(key, 16, "%d", model);
    ls_trace_each_step(step, rank) {
        const char *now = ls_event_to_text(ls_event_find(step->statistics, key), NULL);
        ran = ran || should_move(rank, step, model);
        if (now == NULL) {
            continue;
        }
        if (before != NULL && ran) {
            stood += strcmp(before, now) == 0;
            moved += strcmp(before, now) != 0;
        }
        before = now;
        ran = false;
    }
    if (stood > 0 && moved == 0 && m->model < 0) {
        m->model = model;
        m->times = stood;
        m->at = ls_event_text(ls_job_model(rank, model), at, "");
    }
}

void ls_rules_mode_statistics(const ls_observe_trace *trace, ls_observe_finding *out)
{
    motion m = {.model = -1};
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        follow_buffers(rank, &m);
        for (int i = 0; i < ls_job_models(rank); i++) {
            follow_statistics(rank, i, &m);
        }
    }
    if (m.concerned == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       "no training forward of a model whose norms keep running statistics");
    } else if (m.moved + m.stood == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK, "no two steps have digests of the buffers");
    } else if (m.moved == 0 || m.model >= 0) {
        ls_finding_set(out, LS_FAIL, m.at,
                       "running statistics do not move: momentum=0, which keeps the first ones, or "
                       "they are put back after each forward",
                       "let batch norms update their running statistics, which eval mode uses",
                       "the running statistics of model %d are the same after all of %d detailed "
                       "steps, although all its norms are in training mode",
                       m.model < 0 ? 0 : m.model, m.model < 0 ? m.stood : m.times);
    }
    ls_verdict_pass(&out->verdict, m.moved + m.stood,
                    "running statistics moved in %d of %d training steps", m.moved / trace->world,
                    (m.moved + m.stood) / trace->world);
}

/* ---- mode.sync_bn ---------------------------------------------------------------------------- */

void ls_rules_mode_sync_bn(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int converted = 0, synced = 0, local = 0;
    const ls_event *event, *call = NULL;
    const ls_observe_rank *rank = &trace->rank[0];
    ls_event_each(event, ls_trace_events(rank, convert)) {
        int modules = ls_event_int(event, converted, 0);
        converted += modules;
        call = modules > 0 ? event : call;
    }
    for (int m = 0; m < ls_job_models(rank); m++) {
        const ls_event *model = ls_job_model(rank, m);
        synced += ls_job_count(model, sync_bn);
        local += ls_job_is_trained(rank, m, true) ? ls_job_count(model, bn) : 0;
    }
    if (call == NULL) {
        ls_verdict_set(&out->verdict, LS_SKIP, "convert_sync_batchnorm was not called");
        return;
    }
    if (synced == 0 && local > 0) {
        ls_finding_set(
            out, LS_FAIL, ls_event_text(call, at, ""),
            "another model was converted than the one that is trained, or after it was wrapped",
            "model = SyncBatchNorm.convert_sync_batchnorm(model) before "
            "DistributedDataParallel(model)",
            "convert_sync_batchnorm converted %d modules, but the model that is trained has %d "
            "BatchNorm modules and no SyncBatchNorm",
            converted, local);
    }
    ls_verdict_pass(&out->verdict, synced + local,
                    "%d SyncBatchNorm modules in the model, %d others", synced, local);
}

/* Whether parameters in half move as their optimizer's steps ask: an update below half of a
 * value's last digit leaves it as it was, in every step again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/job.h"
#include "step.h"

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
    standing *standing; /* [tensors of rank 0] */
} moves;

static bool is_half(const ls_observe_tensor *tensor)
{
    return tensor->trainable &&
           (strcmp(tensor->type, "f16") == 0 || strcmp(tensor->type, "bf16") == 0);
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
    for (int i = 0; i < rank->tensor_count; i++) {
        if (is_half(&rank->tensor[i])) {
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

static int count_half(const ls_observe_trace *trace)
{
    int count = 0;
    for (int i = 0; i < trace->rank[0].tensor_count; i++) {
        count += is_half(&trace->rank[0].tensor[i]);
    }
    return count;
}

/* Tensors that no detailed step moved, though each asks it to, and rounding alone keeps them. */
static void find_standing(const ls_observe_rank *rank, moves *m, ls_job_names *names)
{
    for (int i = 0; i < rank->tensor_count; i++) {
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
    m.standing = ls_list_make((size_t)trace->rank[0].tensor_count, sizeof *m.standing);
    for (int64_t n = 0, first = 0; (n = ls_samples_next(trace, n)) != 0;) {
        ls_samples samples;
        ls_samples_open(trace, n, &samples, out);
        if (samples.file[0] != NULL && !samples.step[0]->step->skipped) {
            first = first == 0 ? n : first;
            add_step(&samples, n == first, &m);
        }
        ls_samples_close(&samples);
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

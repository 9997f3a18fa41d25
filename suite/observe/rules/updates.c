/* Whether parameters in half move as their optimizer's steps ask: an update below half of a
 * value's last digit leaves it as it was, in every step again. */
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/job.h"
#include "step.h"

static const ls_tol most = LS_TOL(
    0.5, "of the way that the steps ask for: where rounding keeps more than it lets through, "
         "parameters stand still (numerics 8.8)");
static const ls_tol some = LS_TOL(0.05, "of the way: what is less changes a run no more than the "
                                        "rounding of its gradients (numerics 8.8)");

typedef struct moves {
    double asked, lost; /* sums of sizes of updates, and of those that changed nothing */
    int64_t elements, still;
    int tensors, unknown;
    ls_job_names names; /* of tensors most of whose way is lost */
    const char *type, *at;
} moves;

static bool is_half(const ls_observe_tensor *tensor)
{
    return tensor->trainable &&
           (strcmp(tensor->type, "f16") == 0 || strcmp(tensor->type, "bf16") == 0);
}

static void add_tensor(const ls_samples *samples, const ls_observe_tensor *tensor, bool first,
                       moves *m)
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
    ls_values_free(&param);
    ls_values_free(&next);
    ls_values_free(&wanted);
}

static void add_step(const ls_samples *samples, bool first, moves *m)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    for (int i = 0; i < rank->tensor_count; i++) {
        if (is_half(&rank->tensor[i])) {
            add_tensor(samples, &rank->tensor[i], first, m);
        }
    }
    int call = ls_trace_find(samples->step[0], LS_CALL_OPTIMIZER_STEP, 0);
    if (call >= 0 && m->at[0] == '\0') { /* copies in f32 would be the optimizer's */
        const ls_call *step = &samples->step[0]->call[call];
        m->at = ls_json_string(ls_job_optimizer(rank, step->optimizer), "at", "");
        m->at = m->at[0] != '\0' ? m->at : step->at;
    }
}

static int count_half(const ls_observe_trace *trace)
{
    int count = 0;
    for (int i = 0; i < trace->rank[0].tensor_count; i++) {
        count += is_half(&trace->rank[0].tensor[i]);
    }
    return count;
}

void ls_rules_precision_updates(const ls_observe_trace *trace, ls_observe_finding *out)
{
    moves m = {.type = "", .at = ""};
    if (!trace->attached || count_half(trace) == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       trace->attached ? "no trainable parameter is in half"
                                       : "dumps of the protocol are compared with FP64 by conform");
        return;
    }
    for (int64_t n = 0, first = 0; (n = ls_samples_next(trace, n)) != 0;) {
        ls_samples samples;
        ls_samples_open(trace, n, &samples, out);
        if (samples.file[0] != NULL && !samples.step[0]->step->skipped) {
            first = first == 0 ? n : first;
            add_step(&samples, n == first, &m);
        }
        ls_samples_close(&samples);
    }
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
    } else if (share > some.value) {
        ls_verdict_set(&out->verdict, LS_WEAK, "%s", found);
    }
    if (share > some.value) {
        ls_verdict_cause(&out->verdict,
                         "parameters are held in %s without copies in f32: steps that are small "
                         "against a value leave it as it is, each time again",
                         m.type);
        ls_finding_blame(out, m.at,
                         "keep parameters in f32 and let autocast cast them, or step by an "
                         "optimizer with f32 copies, stochastic rounding or compensated sums");
    }
    ls_verdict_measured(&out->verdict, share, most.value, "of the way", most.why);
    ls_verdict_pass(&out->verdict, "%s", found);
}

/* Whether what training backward passes compute is used: they reach a step of an optimizer, or are
 * thrown away for a reason that is seen. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/factor.h"
#include "suite/observe/trace/fate.h"
#include "suite/observe/trace/job.h"
#include "rules.h"

static const ls_tol twice = LS_TOL(2, "times: what happens once may be an accident of its data");
static const ls_tol several =
    LS_TOL(4, "overflows: with hysteresis two or three come before a loss scale is lowered");
static const ls_tol most =
    LS_TOL(0.5, "of the passes: more are thrown away than are trained on, whatever the reason");
static const ls_tol near_whole = LS_TOL(1e-6, "of 1: a quotient that the script holds in f32");
static const ls_tol halved =
    LS_TOL(0.125, "of the passes: a loss scale that grows after seven clean steps would lose as "
                  "many, and none is in use");

/* What a rank throws away. */
typedef struct waste {
    int passes, lost;
    int searched; /* of those lost, overflows of a loss scale, which is lowered after it */
    int grads;    /* whose gradients were not finite, and their losses were */
    int losses;   /* whose losses were not finite either, on some rank */
    int halved;   /* of the gradients: after a sum in f16 */
    int others;   /* not counted above: of another purpose */
    const ls_fate *grad, *loss, *half, *other; /* the first of each, or NULL */
    const char *step;                          /* where steps are made, or "" */
} waste;

/* Of all ranks, in their order: passes of one number are of one step. */
static bool loss_is_finite(const ls_fates *ranks, int world, int i)
{
    bool finite = true;
    for (int k = 0; k < world; k++) {
        finite = finite && (ranks[k].count <= i || ranks[k].item[i].loss_finite);
    }
    return finite;
}

static const ls_fate *first_of(const ls_fate *before, const ls_fate *now)
{
    return before != NULL ? before : now;
}

/* Whether a scale of the script's own is lowered after overflows. */
static bool lowers(const ls_fates *own)
{
    for (int i = 0; i + 1 < own->count; i++) {
        const ls_fate *f = &own->item[i];
        if (!f->stepped && f->finite == 0 && f[1].by < f->by) {
            return true;
        }
    }
    return false;
}

static waste weigh(const ls_fates *ranks, int world, int rank)
{
    const ls_fates *own = &ranks[rank];
    bool searches = lowers(own);
    waste w = {.step = ""};
    for (int i = 0; i < own->count; i++) {
        const ls_fate *f = &own->item[i];
        w.others += f->other || f->first;
        if (f->stepped) {
            w.step = f->gone;
        }
        if (f->other || f->first) {
            continue;
        }
        w.passes += f->passes;
        w.lost += f->stepped ? 0 : f->passes;
        if (f->stepped) {
            continue;
        }
        if (!loss_is_finite(ranks, world, i)) {
            w.losses += f->passes;
            w.loss = first_of(w.loss, f);
        } else if (f->finite == 0 && (f->scaled || searches)) {
            w.searched += f->passes;
        } else if (f->finite == 0) {
            w.grads += f->passes;
            w.grad = first_of(w.grad, f);
            w.halved += f->halved != NULL ? f->passes : 0;
            w.half = f->halved != NULL ? first_of(w.half, f) : w.half;
        } else {
            w.other = first_of(w.other, f);
        }
    }
    return w;
}

/* ---- laws ------------------------------------------------------------------------------------ */

static void judge_gradients(const waste *w, int rank, ls_observe_finding *out)
{
    bool by_half = w->halved >= twice.value && w->halved >= halved.value * w->passes;
    bool mostly = w->grads >= several.value && w->grads >= most.value * w->passes;
    if (out->verdict.code == LS_FAIL || (!by_half && !mostly)) {
        return;
    }
    const ls_fate *f = by_half ? w->half : w->grad;
    LS_TEXT(scale, 160, "the loss is multiplied by %g, which is not lowered", f->by);
    ls_finding_set(
        out, LS_FAIL, by_half ? f->halved->at : f->at,
        by_half     ? "gradients are summed over the ranks in f16, the sum leaves its range "
                      "(65,504), and no loss scale is lowered"
        : f->by > 1 ? scale
                    : "the backward gives an infinity or no number where its loss is finite: a "
                      "slope that is infinite (a root or a norm of 0), or a type whose range it "
                      "leaves",
        by_half     ? "divide by the number of ranks before the cast, or send bf16 or f32"
        : f->by > 1 ? "lower the scale after each overflow, as torch.amp.GradScaler does"
                    : "look for the first gradient that is not finite: "
                      "torch.autograd.set_detect_anomaly(True)",
        "rank %d: %d of %d backward passes reach no step of an optimizer: their losses are "
        "finite, their gradients are not, and nothing changes before the next (the first in step "
        "%lld)",
        rank, w->grads, w->passes, (long long)f->step);
}

static void judge_losses(const waste *w, int rank, ls_observe_finding *out)
{
    if (out->verdict.code != LS_FAIL && w->losses >= twice.value &&
        w->losses >= most.value * w->passes) {
        ls_finding_set(out, LS_FAIL, w->loss->at,
                       "the losses are infinite or no numbers, and the script goes on without them",
                       "look for the first of them: the data, the weights, the loss",
                       "rank %d: %d of %d backward passes reach no step of an optimizer: their "
                       "losses are not finite (the first in step %lld)",
                       rank, w->losses, w->passes, (long long)w->loss->step);
    }
}

/* Replicas hold the same gradients: what one steps by, another must not throw away. Passes of one
 * number are the same one as long as those before them were. */
static void judge_ranks(const ls_fates *ranks, int world, ls_observe_finding *out)
{
    for (int k = 1; k < world; k++) {
        for (int i = 0; i < ranks[0].count && i < ranks[k].count; i++) {
            const ls_fate *a = &ranks[0].item[i], *b = &ranks[k].item[i];
            if (a->passes != b->passes) {
                break;
            }
            if (a->stepped == b->stepped || a->other || b->other) {
                continue;
            }
            ls_finding_set(out, LS_FAIL, (a->stepped ? a : b)->gone,
                           "each rank decides by a value of its own whether to step",
                           "decide on all ranks together: reduce the value before it is compared",
                           "step %lld: rank %d steps by a gradient that rank %d throws away",
                           (long long)(a->stepped ? a : b)->step, a->stepped ? 0 : k,
                           a->stepped ? k : 0);
            return;
        }
    }
}

/* A step by a gradient that is not finite, after which no loss is a number. */
static void judge_poison(const ls_fates *own, int rank, ls_observe_finding *out)
{
    int last = own->count;
    while (last > 0 && !own->item[last - 1].loss_finite) {
        last--;
    }
    const ls_fate *f = last > 0 ? &own->item[last - 1] : NULL;
    if (out->verdict.code == LS_FAIL || f == NULL || own->count - last < twice.value ||
        !f->stepped || f->finite != 0 || f->scaled) {
        return;
    }
    ls_finding_set(out, LS_FAIL, f->gone,
                   "the optimizer steps although the norm of the gradients is infinite or no "
                   "number: the weights are no numbers from then on",
                   "leave out the step where the norm is not finite, on all ranks alike",
                   "rank %d, step %lld: a step by gradients that are not finite; none of the %d "
                   "losses after it is a number",
                   rank, (long long)f->step, own->count - last);
}

/* ---- batches of a step that are cleared (order.zero) -------------------------------------------
 */

/* Whether the losses of a rank's detailed steps are divided by that many. */
static bool is_mean_of(const ls_observe_rank *rank, int passes)
{
    bool found = false;
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        double by = ls_event_number(call->json, multiplied, 1);
        if (call->kind == LS_CALL_BACKWARD && ls_event_int(call->json, scaled, -1) < 0) {
            found = fabs(by * passes - 1) < near_whole.value;
            if (!found) {
                return false;
            }
        }
    }
    return found;
}

void ls_thrown_judge_cleared(const ls_observe_trace *trace, int rank, ls_observe_finding *out)
{
    ls_fates fates;
    int steps = 0, like = 0, local = 0, lost = 0, each = 0, passes = 0;
    const char *clear = "";
    ls_fate_read(&trace->rank[rank], &fates);
    for (int i = 0; i < fates.count; i++) {
        const ls_fate *f = &fates.item[i], *before = f - 1;
        if (!f->stepped) {
            bool counts = !f->other && f->finite != 0 && f->loss_finite && f->input[0] != '\0';
            lost = counts ? lost + f->passes : 0;
            clear = f->gone;
            continue;
        }
        lost = f->input[0] != '\0' ? lost : 0;
        bool same = lost > 0 && strcmp(before->at, f->at) == 0;
        steps++;
        like += same;
        local += lost > 0 && !same && before->local;
        passes = lost > 0 ? lost : passes;
        each = lost == 0 || (each > 0 && each != lost + f->passes) ? -1 : lost + f->passes;
        lost = 0;
    }
    bool counted = like >= twice.value && like >= most.value * steps;
    bool enough = counted || (local >= twice.value && local >= most.value * steps);
    int made = enough ? ls_factor_made_by_hand(trace, rank) : 1;
    const char *copied = ls_event_text(ls_job_optimizer(&trace->rank[rank], 0), copies_at, "");
    copied = made == 0 ? "" : copied; /* they never come back */
    if (made != 1) {
        bool sure = counted && each > 1 && is_mean_of(&trace->rank[rank], each);
        LS_TEXT(kept, 120, "; the script copies gradients at %.80s", copied);
        LS_TEXT(mean, 80, "; each loss is divided by %d, their number", each);
        ls_observe_finding one = {0};
        ls_finding_set(&one, counted && copied[0] == '\0' ? LS_FAIL : LS_WEAK, clear,
                       "zero_grad() for every batch: of the batches of a step only the last one "
                       "counts",
                       "to accumulate, call zero_grad() once a step, after optimizer.step()",
                       "rank %d: in %d of %d steps gradients of other batches (%d in the last of "
                       "them) were cleared before any optimizer had stepped by them%s%s",
                       rank, counted ? like : local, steps, passes, copied[0] != '\0' ? kept : "",
                       sure ? mean : "");
        (sure && copied[0] == '\0' ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
    }
    ls_fate_free(&fates);
}

/* ---- the rule -------------------------------------------------------------------------------- */

static void judge_rest(const waste *w, int rank, ls_observe_finding *out)
{
    const ls_fate *f = w->other != NULL ? w->other : w->grad != NULL ? w->grad : w->loss;
    if (f == NULL || out->verdict.code != LS_PASS) {
        return;
    }
    LS_TEXT(text, 200, "rank %d: %d of %d backward passes reach no step of an optimizer", rank,
            w->lost - w->searched, w->passes);
    const struct {
        int count;
        const char *what;
    } part[] = {{w->losses, "losses"}, {w->grads, "gradients"}};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (part[i].count > 0) {
            ls_text_add(text, sizeof text, ", %d with %s that are not finite", part[i].count,
                        part[i].what);
        }
    }
    ls_finding_set(out, LS_WEAK, w->step[0] != '\0' ? w->step : f->gone,
                   "the script leaves out the step, and the gradients are cleared",
                   "let each batch reach a step, or leave it out before its backward",
                   "%s (the first in step %lld): a mistake, unless these batches are to be left "
                   "out",
                   text, (long long)f->step);
}

bool ls_thrown_closure(const ls_observe_trace *trace)
{
    const ls_event *remark;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(remark, ls_trace_events(&trace->rank[k], attach)) {
            if (strstr(ls_event_text(remark, error, ""), "closure") != NULL) {
                return true;
            }
        }
    }
    return false;
}

int ls_thrown_lost(const ls_observe_trace *trace)
{
    int lost = 0;
    for (int k = 0; k < trace->world && trace->attached && !ls_thrown_closure(trace); k++) {
        ls_fates fates;
        ls_fate_read(&trace->rank[k], &fates);
        waste w = weigh(&fates, 1, 0);
        lost = w.lost > lost ? w.lost : lost;
        ls_fate_free(&fates);
    }
    return lost;
}

void ls_rules_gradient_used(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int passes = 0, searched = 0, others = 0;
    if (ls_thrown_closure(trace) || ls_job_sharded(trace) != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s",
                       ls_job_sharded(trace) != NULL
                           ? "gradients are in parts, and what is cleared is not seen"
                           : "gradients are computed and cleared by a closure inside the "
                             "optimizer's step");
        return;
    }
    ls_fates *ranks = ls_list_make((size_t)trace->world, sizeof *ranks);
    for (int k = 0; k < trace->world; k++) {
        ls_fate_read(&trace->rank[k], &ranks[k]);
    }
    if (ls_trace_is_ddp(trace) && !ls_calls_in_part(trace)) {
        judge_ranks(ranks, trace->world, out);
    }
    for (int k = 0; k < trace->world; k++) {
        waste w = weigh(ranks, trace->world, k);
        judge_poison(&ranks[k], k, out);
        judge_gradients(&w, k, out);
        judge_losses(&w, k, out);
        passes += w.passes;
        searched += w.searched;
        others += w.others;
    }
    for (int k = 0; k < trace->world; k++) {
        waste w = weigh(ranks, trace->world, k);
        judge_rest(&w, k, out);
    }
    for (int k = 0; k < trace->world; k++) {
        ls_fate_free(&ranks[k]);
    }
    free(ranks);
    ls_finding_close(out, passes, others > 0 ? LS_SKIP : LS_WEAK,
                     others > 0 ? "the script makes the gradients of its steps by itself"
                                : "no training backward pass was seen",
                     "%d backward passes reach a step of an optimizer, but for %d overflows of a "
                     "loss scale",
                     passes / trace->world, searched / trace->world);
}

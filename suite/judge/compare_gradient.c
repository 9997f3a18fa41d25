#include <math.h>

#include "kernels/core/list.h"
#include "diagnose.h"

/* ---- branches -------------------------------------------------------------------------------- */

static void report_ties(ls_compare_judgement *j)
{
    const ls_nettab *net = &j->evidence->net;
    for (int64_t i = 0; i < j->forced.violation_count; i++) {
        const ls_oracle_violation *v =
            &j->forced.violation[i < LS_ORACLE_VIOLATIONS_MAX ? i : LS_ORACLE_VIOLATIONS_MAX - 1];
        const ls_nettab_node *node = &net->node[net->branch_node[v->branch]];
        ls_compare_checks_fail(&j->checks, NULL,
                               "rank=%d %s (branch/%03d) micro-step %d sample %d channel %d at "
                               "(%d,%d): %s, %s=%.3g limit=%.1e (%g x RMS rounding of the layer)",
                               v->rank, node->name, v->branch, v->micro, v->sample, v->channel,
                               v->row, v->column,
                               v->outside ? "index outside its window" : "branch turned",
                               node->kind == LS_NETTAB_POOL ? "gap" : "x64", v->value, v->limit,
                               ls_compare_bounds_tie(j->level).factor);
    }
}

static ls_status run_forced(ls_compare_judgement *j)
{
    const ls_evidence *e = j->evidence;
    ls_branch_set branches;
    ls_shards shards = ls_oracle_shards(&e->step);
    LS_TRY(ls_branch_read(&e->net, &shards, e->file, &branches));
    ls_compare_bound tie = ls_compare_bounds_tie(j->level);
    for (int b = 0; b < e->net.branch_count; b++) {
        j->tie_limit[b] = tie.factor * j->cost.branch_rms[b];
        j->verdict->forced += branches.elements[b];
    }
    ls_status status =
        ls_ideal_error_forced(&e->step, &branches, j->tie_limit, j->facts->cache, &j->forced);
    ls_branch_free(&branches);
    if (status == LS_OK) {
        j->verdict->turned = j->forced.turned;
        j->verdict->tie_ratio = tie.factor * j->forced.tie_ratio;
        report_ties(j);
    }
    return status;
}
/* ---- the gradient ---------------------------------------------------------------------------- */

static bool is_wrong(const ls_compare_judgement *j, int64_t span)
{
    /* written so that NaN counts as wrong */
    return !(j->spans.error[span] <=
             j->bounds[ls_compare_judgement_part(j, span)].factor * j->spans.ideal[span]);
}

/* The most informative part of a tensor (spans from .. to-1): an edge if little else is wrong, the
 * worst block if few are, else the tensor. */
static int64_t most_telling(const ls_compare_judgement *j, int64_t from, int64_t to)
{
    int64_t wrong_blocks = 0, blocks = 0, worst = -1, edge = -1;
    for (int64_t i = from + 1; i < to; i++) {
        blocks += ls_compare_judgement_part(j, i) == LS_COMPARE_BLOCK;
        if (is_wrong(j, i) && ls_compare_judgement_part(j, i) == LS_COMPARE_EDGE) {
            edge = i;
        } else if (is_wrong(j, i)) {
            wrong_blocks++;
            double ratio = j->spans.error[i] / j->spans.ideal[i];
            worst = worst < 0 || ratio > j->spans.error[worst] / j->spans.ideal[worst] ? i : worst;
        }
    }
    if (edge >= 0 && wrong_blocks <= 1) {
        return edge;
    }
    return worst >= 0 && (2 * wrong_blocks < blocks || !is_wrong(j, from)) ? worst : from;
}

static void report_part(ls_compare_judgement *j, int64_t span)
{
    const ls_nettab_param *param = &j->evidence->net.param[j->spans.param[span]];
    ls_compare_part p = ls_compare_judgement_part(j, span);
    char where[64] = "";
    if (p == LS_COMPARE_BLOCK || p == LS_COMPARE_EDGE) {
        int64_t from = j->spans.span[span].from - param->offset;
        snprintf(where, sizeof where, " elements %lld..%lld", (long long)from,
                 (long long)(from + j->spans.span[span].count - 1));
    }
    ls_compare_checks_fail(&j->checks, param->name,
                           "rank=0 %s%s rel=%.1e limit=%.1e (%g x ideal %s)", param->name, where,
                           j->spans.error[span], j->bounds[p].factor * j->spans.ideal[span],
                           j->bounds[p].factor, ls_compare_judgement_type(j));
}

/* Judges tensor by tensor, in backward order; reports the most informative part of the first wrong
 * one. */
static void judge_parts(ls_compare_judgement *j)
{
    for (int64_t from = 0, to; from < j->spans.count; from = to) {
        bool wrong = false;
        for (to = from;
             to == from || (to < j->spans.count && j->spans.kind[to] != LS_COMPARE_SPANS_TENSOR);
             to++) {
            double *ratio = &j->verdict->ratio[ls_compare_judgement_part(j, to)];
            *ratio = fmax(*ratio, j->spans.error[to] / j->spans.ideal[to]);
            wrong = wrong || is_wrong(j, to);
        }
        if (wrong) {
            report_part(j, most_telling(j, from, to));
        }
    }
}

static void judge_whole(ls_compare_judgement *j)
{
    const ls_evidence *e = j->evidence;
    ls_ideal_error_span whole = {0, e->net.elements};
    ls_compare_verdict *v = j->verdict;
    v->elements += e->net.elements;
    v->error = sqrt(ls_ideal_error_squared(e->grad, j->forced.grad, whole) /
                    ls_ideal_error_square(j->forced.grad, whole));
    v->ideal = sqrt(j->cost.whole_error2 / j->cost.whole_grad2);
    v->limit = j->bounds[LS_COMPARE_WHOLE].factor * v->ideal;
    v->ratio[LS_COMPARE_WHOLE] = v->error / v->ideal;
    if (!(v->error <= v->limit)) {
        ls_compare_checks_fail(
            &j->checks, NULL, "whole gradient rel=%.1e limit=%.1e (%g x ideal %s)", v->error,
            v->limit, j->bounds[LS_COMPARE_WHOLE].factor, ls_compare_judgement_type(j));
    }
}

/* Judges all ranks' logits, by the bound of a tensor. */
static void judge_logits(ls_compare_judgement *j)
{
    const ls_evidence *e = j->evidence;
    ls_shards shards = ls_oracle_shards(&e->step);
    int64_t count = ls_shards_samples(&shards) * e->net.classes;
    double *logits = ls_list_make((size_t)count, sizeof *logits);
    const double *expected = j->forced.logits;
    double error2 = 0, norm2 = 0;
    for (int rank = 0; rank < e->world; rank++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_find(e->file[rank], "logits");
        ls_ideal_error_span span = {0, ls_shards_images(&shards, rank) * e->net.classes};
        if (entry != NULL && entry->count == span.count) {
            ls_dumpfile_read(entry, logits);
            error2 += ls_ideal_error_squared(logits, expected, span);
            norm2 += ls_ideal_error_square(expected, span);
        }
        expected += span.count;
    }
    free(logits);
    double error = sqrt(error2 / norm2), ideal = sqrt(j->cost.logits_error2 / j->cost.logits2);
    ls_compare_bound b = j->bounds[count >= 64 ? LS_COMPARE_TENSOR : LS_COMPARE_SMALL];
    j->verdict->logits_ratio = error / ideal;
    if (!(error <= b.factor * ideal)) {
        ls_compare_checks_fail(&j->checks, NULL, "logits rel=%.1e limit=%.1e (%g x ideal %s)",
                               error, b.factor * ideal, b.factor, ls_compare_judgement_type(j));
    }
}

/* For each tensor the error of one element that the bound explains, [param_count]. */
static double *noise_of(const ls_compare_judgement *j)
{
    const ls_evidence *e = j->evidence;
    double *noise = ls_list_make((size_t)e->net.param_count, sizeof *noise);
    for (int64_t i = 0; i < j->spans.count && !j->verdict->coarse; i++) {
        if (j->spans.kind[i] == LS_COMPARE_SPANS_TENSOR) {
            noise[j->spans.param[i]] = j->bounds[ls_compare_judgement_part(j, i)].factor *
                                       j->spans.ideal[i] * j->spans.scale[i] /
                                       sqrt((double)j->spans.span[i].count);
        }
    }
    ls_ideal_error_span whole = {0, e->net.elements};
    double norm = sqrt(ls_ideal_error_square(j->forced.grad, whole) / (double)e->net.elements);
    for (int p = 0; p < e->net.param_count && j->verdict->coarse; p++) {
        noise[p] = j->verdict->limit * norm;
    }
    return noise;
}

static ls_status explain(ls_compare_judgement *j, const ls_branch_set *branches)
{
    ls_oracle_mode mode = {.forced = branches, .rank_grads = true};
    ls_oracle_result ranks;
    double *noise = noise_of(j);
    ls_status status = ls_oracle_run(&j->evidence->step, &mode, &ranks);
    if (status == LS_OK) {
        ls_diagnose_wrong wrong = {.evidence = j->evidence,
                                   .expected = j->forced.grad,
                                   .rank_grad = ranks.rank_grad,
                                   .branches = branches,
                                   .noise = noise,
                                   .error = j->verdict->error,
                                   .limit = j->verdict->limit};
        status = ls_diagnose_gradient(&wrong, j->verdict->cause, (int)sizeof j->verdict->cause);
        ls_oracle_free(&j->evidence->net, &ranks);
    }
    free(noise);
    return status;
}

/* Runs only after a failure, because it costs a few more steps of the oracle. */
static ls_status find_cause(ls_compare_judgement *j)
{
    const ls_evidence *e = j->evidence;
    if (j->verdict->coarse) {
        return explain(j, NULL);
    }
    ls_branch_set branches;
    ls_shards shards = ls_oracle_shards(&e->step);
    LS_TRY(ls_branch_read(&e->net, &shards, e->file, &branches));
    ls_status status = explain(j, &branches);
    ls_branch_free(&branches);
    return status;
}

static void look_for_weakness(ls_compare_judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    int low = 0, tensors = 0;
    for (int64_t i = 0; i < j->spans.count; i++) {
        if (j->spans.kind[i] == LS_COMPARE_SPANS_TENSOR) {
            tensors++;
            low += j->spans.error[i] < ls_compare_bounds_weak_share().factor * j->spans.ideal[i];
        }
    }
    if (j->level > 0 && 2 * low > tensors) {
        snprintf(j->weak, sizeof j->weak,
                 "%d of %d tensors err less than 1/16 of ideal %s: half was "
                 "not in use (e=%.1e r=%.1e)",
                 low, tensors, ls_compare_judgement_type(j), v->error, v->ideal);
    } else if (v->ideal > ls_compare_bounds_weak_ideal_error().factor) {
        snprintf(j->weak, sizeof j->weak, "ideal %s is itself %.2f off: nothing can be shown here",
                 ls_compare_judgement_type(j), v->ideal);
    }
}

static ls_status judge_forced(ls_compare_judgement *j)
{
    LS_TRY(run_forced(j));
    judge_logits(j);
    ls_compare_buffers_judge(j);
    ls_compare_spans_measure(&j->evidence->net, j->evidence->grad, j->forced.grad, &j->cost,
                             &j->spans);
    ls_compare_spans_ideal_error(&j->evidence->net, &j->cost, &j->spans, j->verdict->ideal_error);
    int before = j->checks.count;
    j->verdict->ideal = sqrt(j->cost.whole_error2 / j->cost.whole_grad2);
    /* if rounding is a tenth of the gradient, the errors of parts scatter irregularly: judge only
     * the whole */
    if (j->verdict->ideal <= ls_compare_bounds_weak_ideal_error().factor) {
        judge_parts(j);
    }
    judge_whole(j);
    if (j->checks.count > before) {
        LS_TRY(find_cause(j));
    }
    look_for_weakness(j);
    return LS_OK;
}

/* ---- without branch records ------------------------------------------------------------------ */

static ls_status judge_coarse(ls_compare_judgement *j)
{
    const ls_evidence *e = j->evidence;
    ls_compare_verdict *v = j->verdict;
    ls_ideal_error_span whole = {0, e->net.elements};
    ls_oracle_mode plain = {0};
    v->coarse = true;
    LS_TRY(ls_oracle_run(&e->step, &plain, &j->forced));
    double norm2 = ls_ideal_error_square(j->forced.grad, whole);
    for (int run = 1; run <= LS_COMPARE_COARSE_RUNS; run++) {
        ls_oracle_mode mode = {.ideal = true, .noise_seed = (uint64_t)run};
        ls_oracle_result ideal;
        LS_TRY(ls_oracle_run(&e->step, &mode, &ideal));
        double r = sqrt(ls_ideal_error_squared(ideal.grad, j->forced.grad, whole) / norm2);
        v->ideal = !(r <= v->ideal) ? r : v->ideal;
        ls_oracle_free(&e->net, &ideal);
    }
    v->elements += e->net.elements;
    v->error = sqrt(ls_ideal_error_squared(e->grad, j->forced.grad, whole) / norm2);
    v->limit = ls_compare_bounds_coarse().factor * v->ideal;
    if (!(v->error <= v->limit)) {
        ls_compare_checks_fail(&j->checks, NULL,
                               "whole gradient rel=%.1e limit=%.1e (coarse: %g x the largest of %d "
                               "ideal %s runs)",
                               v->error, v->limit, ls_compare_bounds_coarse().factor,
                               LS_COMPARE_COARSE_RUNS, ls_compare_judgement_type(j));
        LS_TRY(find_cause(j));
    }
    if (v->ideal > ls_compare_bounds_weak_ideal_error().factor) {
        snprintf(
            j->weak, sizeof j->weak,
            "coarse: ideal %s is itself %.2f off on FP64's branches: nothing can be shown here",
            ls_compare_judgement_type(j), v->ideal);
    }
    return LS_OK;
}

/* ---- the step -------------------------------------------------------------------------------- */

static ls_status measure_cost(ls_compare_judgement *j)
{
    ls_compare_spans_build(&j->evidence->net, &j->spans);
    j->tie_limit = ls_list_make((size_t)j->evidence->net.branch_count, sizeof *j->tie_limit);
    return ls_ideal_error_measure(&j->evidence->step, j->spans.span, j->spans.count,
                                  j->facts->cache, &j->cost);
}

ls_status ls_compare_gradient_judge(ls_compare_judgement *j)
{
    if (!j->finite && j->skipped) {
        snprintf(j->weak, sizeof j->weak, "no step taken: the gradient overflowed at loss scale %g",
                 j->evidence->step.loss_scale);
        return LS_OK;
    }
    LS_TRY(measure_cost(j));
    bool ideal_finite = isfinite(j->cost.whole_error2);
    if (!ideal_finite) {
        snprintf(j->weak, sizeof j->weak,
                 "ideal %s overflows at loss scale %g: nothing can be shown",
                 ls_compare_judgement_type(j), j->evidence->step.loss_scale);
        return LS_OK;
    }
    if (!j->finite) {
        ls_compare_checks_fail(&j->checks, NULL,
                               "the gradient is not finite, and ideal %s is, at loss scale %g",
                               ls_compare_judgement_type(j), j->evidence->step.loss_scale);
        return LS_OK;
    }
    if (j->evidence->has_branches && !j->facts->coarse) {
        LS_TRY(judge_forced(j));
    } else {
        LS_TRY(judge_coarse(j));
    }
    if (j->skipped && j->weak[0] == '\0') {
        snprintf(j->weak, sizeof j->weak, "no step taken, though the gradient is finite");
    }
    return LS_OK;
}
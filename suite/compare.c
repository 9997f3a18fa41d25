#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kernels/core/json.h"
#include "../kernels/core/log.h"
#include "../reference/oracle/evidence.h"
#include "../reference/oracle/price.h"
#include "compare_cause.h"
#include "compare_checks.h"
#include "compare_spans.h"

/* A factor on r, and where it comes from. */
typedef struct bound {
    double factor;
    const char *why;
} bound;

typedef enum part {
    PART_WHOLE,
    PART_TENSOR, /* of 64 elements and more */
    PART_SMALL,  /* tensors below */
    PART_BLOCK,
    PART_EDGE,
    PART_COUNT,
} part;

static const bound half_bounds[PART_COUNT] = {
    [PART_WHOLE] = {2,
                    "two correct subjects differ by rounding that is as large as the ideal's own"},
    [PART_TENSOR] =
        {4, "a tensor's error is a sum of few correlated ones; 20 to 60 seeds, five networks"},
    [PART_SMALL] = {8, "below 64 elements a norm scatters; 20 to 60 seeds, five networks"},
    [PART_BLOCK] = {8, "the largest of up to 2e5 blocks of 64 elements; 4.2 seen"},
    [PART_EDGE] = {8, "the largest of some hundred edges of 8 elements; 4.2 seen"},
};

static const bound single_bounds[PART_COUNT] = {
    [PART_WHOLE] = {32, "f32 sums of n terms err by up to sqrt(n) units, the ideal by one"},
    [PART_TENSOR] = {32, "f32 sums of n terms err by up to sqrt(n) units, the ideal by one"},
    [PART_SMALL] = {32, "f32 sums of n terms err by up to sqrt(n) units, the ideal by one"},
    [PART_BLOCK] = {64, "as above, and the largest of up to 2e5 blocks; 16 seen"},
    [PART_EDGE] = {64, "as above, and eight elements only; 16 seen"},
};

/* A turned branch may be this many RMS roundings of its layer away from its tie. At O0 the sums'
 * own errors, several times the store's (e/r of 4 to 6 is measured, 32 allowed), come on top. */
static const bound half_tie = {16, "the largest of 1e6 normal values is 5 RMS; 11.5 seen"};
static const bound single_tie = {64,
                                 "as at half levels, and f32 sums err by 4 to 6 stores; 25.7 seen"};
/* Coarse: the ideal's own scatter over this many noises, and twice its largest. */
enum { COARSE_RUNS = 8 };
static const bound coarse_bound = {2, "twice the largest of 8 ideal runs with different noise"};
static const bound weak_price = {0.1, "an ideal that is 10 % off shows nothing of a subject"};
static const bound weak_share = {1.0 / 16,
                                 "an error 16 times below the ideal's: half was not in use"};

typedef struct judgement {
    const ls_compare_facts *facts;
    ls_evidence *evidence;
    ls_compare_spans spans;
    ls_price_cost cost;
    ls_oracle_result forced;
    double *tie_limit;
    int level;
    bool nesterov, skipped, finite;
    const bound *bounds;
    ls_compare_checks checks;
    ls_compare_verdict *verdict;
    char weak[200];
} judgement;

/* ---- what was asked
 * ------------------------------------------------------------------------------ */

static ls_status half_of(const char *name, ls_bits_type *out)
{
    if (strcmp(name, "fp16") == 0) {
        *out = LS_BITS_F16;
    } else if (strcmp(name, "bf16") == 0) {
        *out = LS_BITS_BF16;
    } else if (strcmp(name, "fp32") == 0) {
        *out = LS_BITS_F32;
    } else {
        ls_log_error("'%s' is no type of a gradient: fp32, fp16, bf16", name);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

static ls_status read_level(judgement *j, const ls_dumpfile *file)
{
    const char *level = j->facts->opt_level;
    level = level != NULL ? level : ls_dumpfile_text(file, "opt_level", "");
    if (level[0] != 'O' || level[1] < '0' || level[1] > '3' || level[2] != '\0') {
        ls_log_error("%s: opt_level '%s': O0, O1, O2 or O3", ls_dumpfile_path(file), level);
        return LS_ERR_USAGE;
    }
    j->level = level[1] - '0';
    j->bounds = j->level == 0 ? single_bounds : half_bounds;
    const char *half = j->facts->half;
    return half_of(half != NULL ? half : ls_dumpfile_text(file, "half", "fp16"),
                   &j->evidence->step.half);
}

/* The metadata's reduced_type is that of the first convolution's gradient: it tells
 * --allreduce-fp32 at O2 and O3 and --compress at O0 and O1; at O2, whether batch norm's f32
 * gradients were compressed is for the facts to say. */
static ls_status read_reduced_type(judgement *j, const ls_dumpfile *file)
{
    ls_oracle_step *step = &j->evidence->step;
    ls_bits_type own = j->level >= 2 ? step->half : LS_BITS_F32, reduced = own;
    step->reduce = LS_BITS_F64;
    if (j->facts->reduce != NULL) {
        return half_of(j->facts->reduce, &step->reduce);
    }
    const char *name = ls_dumpfile_text(file, "reduced_type", NULL);
    if (name != NULL) {
        LS_TRY(half_of(name, &reduced));
    }
    step->reduce = reduced == own ? LS_BITS_F64 : reduced;
    return LS_OK;
}

/* --keep-batchnorm-fp32 gives O2 the stored types of O3 and O3 those of O2: what batch norm's
 * parameters are in the dump tells. */
static int stored_level(const judgement *j, const ls_dumpfile *file)
{
    const ls_nettab *net = &j->evidence->net;
    for (int i = 0; j->level >= 2 && i < net->param_count; i++) {
        const ls_nettab_param *p = &net->param[i];
        const ls_dumpfile_entry *held = ls_dumpfile_findf(file, "param/%s", p->name);
        if (net->node[p->node].kind == LS_NETTAB_NORM && held != NULL) {
            return strcmp(held->dtype, "F32") == 0 ? 2 : 3;
        }
    }
    return j->level;
}

static ls_status read_facts(judgement *j)
{
    const ls_compare_facts *facts = j->facts;
    const ls_dumpfile *file = j->evidence->file[0];
    ls_oracle_step *step = &j->evidence->step;
    LS_TRY(read_level(j, file));
    step->level = stored_level(j, file);
    step->loss_scale = ls_dumpfile_number(file, "loss_scale", 1);
    step->predivide =
        facts->predivide != 0 ? facts->predivide : ls_dumpfile_number(file, "predivide", 1);
    const char *average = ls_dumpfile_text(file, "average", "");
    bool torch = strcmp(ls_dumpfile_text(file, "dialect", ""), "torch") == 0;
    step->average = LS_ORACLE_SUM_THEN_DIVIDE;
    if (facts->average_none || strcmp(average, "none") == 0) {
        step->average = LS_ORACLE_SUM;
    } else if (facts->dialect_torch || strcmp(average, "pre") == 0 ||
               (torch && average[0] == '\0')) {
        step->average = LS_ORACLE_DIVIDE_THEN_SUM;
    }
    LS_TRY(read_reduced_type(j, file));
    if (facts->sync_bn || ls_dumpfile_flag(file, "sync_bn", false)) {
        step->stat_ranks = facts->sync_bn_group > 0 ? facts->sync_bn_group : step->world;
    }
    if (step->world % step->stat_ranks != 0 || !(step->loss_scale > 0) || !(step->predivide > 0)) {
        ls_log_error("%s: SyncBN over %d of %d ranks, loss scale %g, predivide %g: not a step",
                     ls_dumpfile_path(file), step->stat_ranks, step->world, step->loss_scale,
                     step->predivide);
        return LS_ERR_USAGE;
    }
    j->nesterov = facts->nesterov || ls_dumpfile_flag(file, "nesterov", false);
    j->skipped = ls_dumpfile_flag(file, "skipped", false);
    j->finite = true;
    for (int64_t i = 0; i < j->evidence->net.elements && j->finite; i++) {
        j->finite = isfinite(j->evidence->grad[i]);
    }
    return LS_OK;
}

/* ---- branches
 * ------------------------------------------------------------------------------------ */

static void report_ties(judgement *j)
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
                               j->level == 0 ? single_tie.factor : half_tie.factor);
    }
}

static ls_status run_forced(judgement *j)
{
    const ls_evidence *e = j->evidence;
    ls_branch_set branches;
    LS_TRY(
        ls_branch_read(&e->net, e->world, e->step.accumulate, e->step.batch, e->file, &branches));
    bound tie = j->level == 0 ? single_tie : half_tie;
    for (int b = 0; b < e->net.branch_count; b++) {
        j->tie_limit[b] = tie.factor * j->cost.branch_rms[b];
        j->verdict->forced += branches.elements[b];
    }
    ls_status status =
        ls_price_forced(&e->step, &branches, j->tie_limit, j->facts->cache, &j->forced);
    ls_branch_free(&branches);
    if (status == LS_OK) {
        j->verdict->turned = j->forced.turned;
        j->verdict->tie_ratio = tie.factor * j->forced.tie_ratio;
        report_ties(j);
    }
    return status;
}

/* ---- the gradient
 * -------------------------------------------------------------------------------- */

static part part_of(const judgement *j, int64_t span)
{
    if (j->spans.kind[span] == LS_COMPARE_SPANS_TENSOR) {
        return j->spans.span[span].count >= 64 ? PART_TENSOR : PART_SMALL;
    }
    return j->spans.kind[span] == LS_COMPARE_SPANS_BLOCK ? PART_BLOCK : PART_EDGE;
}

static const char *type_name(const judgement *j)
{
    return j->level == 0 ? "fp32" : j->evidence->step.half == LS_BITS_BF16 ? "bf16" : "fp16";
}

static bool is_wrong(const judgement *j, int64_t span)
{
    /* written so that NaN is wrong */
    return !(j->spans.error[span] <= j->bounds[part_of(j, span)].factor * j->spans.ideal[span]);
}

/* The part of a tensor (spans from .. to-1) that says most: an edge where little else is wrong, the
 * worst block where few are, else the tensor. */
static int64_t most_telling(const judgement *j, int64_t from, int64_t to)
{
    int64_t wrong_blocks = 0, blocks = 0, worst = -1, edge = -1;
    for (int64_t i = from + 1; i < to; i++) {
        blocks += part_of(j, i) == PART_BLOCK;
        if (is_wrong(j, i) && part_of(j, i) == PART_EDGE) {
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

static void report_part(judgement *j, int64_t span)
{
    const ls_nettab_param *param = &j->evidence->net.param[j->spans.param[span]];
    part p = part_of(j, span);
    char where[64] = "";
    if (p == PART_BLOCK || p == PART_EDGE) {
        int64_t from = j->spans.span[span].from - param->offset;
        snprintf(where, sizeof where, " elements %lld..%lld", (long long)from,
                 (long long)(from + j->spans.span[span].count - 1));
    }
    ls_compare_checks_fail(&j->checks, param->name,
                           "rank=0 %s%s rel=%.1e limit=%.1e (%g x ideal %s)", param->name, where,
                           j->spans.error[span], j->bounds[p].factor * j->spans.ideal[span],
                           j->bounds[p].factor, type_name(j));
}

/* Judges tensor by tensor, in backward order. Returns the part that says most of the first wrong
 * tensor; -1: none is wrong. */
static int64_t judge_parts(judgement *j)
{
    int64_t first = -1;
    for (int64_t from = 0, to; from < j->spans.count; from = to) {
        bool wrong = false;
        for (to = from;
             to == from || (to < j->spans.count && j->spans.kind[to] != LS_COMPARE_SPANS_TENSOR);
             to++) {
            double *ratio = to > from ? &j->verdict->block_ratio : &j->verdict->tensor_ratio;
            *ratio = fmax(*ratio, j->spans.error[to] / j->spans.ideal[to]);
            wrong = wrong || is_wrong(j, to);
        }
        if (wrong) {
            int64_t telling = most_telling(j, from, to);
            first = first < 0 ? telling : first;
            report_part(j, telling);
        }
    }
    return first;
}

static void judge_whole(judgement *j)
{
    const ls_evidence *e = j->evidence;
    ls_price_span whole = {0, e->net.elements};
    ls_compare_verdict *v = j->verdict;
    v->error = sqrt(ls_price_error2(e->grad, j->forced.grad, whole) /
                    ls_price_square(j->forced.grad, whole));
    v->ideal = sqrt(j->cost.whole_error2 / j->cost.whole_grad2);
    v->limit = j->bounds[PART_WHOLE].factor * v->ideal;
    if (!(v->error <= v->limit)) {
        ls_compare_checks_fail(&j->checks, NULL,
                               "whole gradient rel=%.1e limit=%.1e (%g x ideal %s)", v->error,
                               v->limit, j->bounds[PART_WHOLE].factor, type_name(j));
    }
}

/* All ranks' logits, by the bound of a tensor. */
static ls_status judge_logits(judgement *j)
{
    const ls_evidence *e = j->evidence;
    int64_t per_rank = (int64_t)e->step.accumulate * e->step.batch * e->net.classes;
    double *logits = malloc((size_t)per_rank * sizeof *logits);
    if (logits == NULL) {
        ls_log_error("cannot allocate %lld logits", (long long)per_rank);
        return LS_ERR_INFRA;
    }
    double error2 = 0, norm2 = 0;
    for (int rank = 0; rank < e->world; rank++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_find(e->file[rank], "logits");
        if (entry != NULL && entry->count == per_rank) {
            ls_price_span span = {0, per_rank};
            const double *expected = j->forced.logits + rank * per_rank;
            ls_dumpfile_read(entry, logits);
            error2 += ls_price_error2(logits, expected, span);
            norm2 += ls_price_square(expected, span);
        }
    }
    free(logits);
    double error = sqrt(error2 / norm2), ideal = sqrt(j->cost.logits_error2 / j->cost.logits2);
    bound b = j->bounds[per_rank * e->world >= 64 ? PART_TENSOR : PART_SMALL];
    if (!(error <= b.factor * ideal)) {
        ls_compare_checks_fail(&j->checks, NULL, "logits rel=%.1e limit=%.1e (%g x ideal %s)",
                               error, b.factor * ideal, b.factor, type_name(j));
    }
    return LS_OK;
}

/* What each rank's own gradient would be, for the cause; only where something is wrong. */
static ls_status find_cause(judgement *j, int64_t first_wrong)
{
    const ls_evidence *e = j->evidence;
    ls_branch_set branches;
    LS_TRY(
        ls_branch_read(&e->net, e->world, e->step.accumulate, e->step.batch, e->file, &branches));
    ls_oracle_mode mode = {.forced = &branches, .rank_grads = true};
    ls_oracle_result ranks;
    ls_status status = ls_oracle_run(&e->step, &mode, &ranks);
    ls_branch_free(&branches);
    if (status != LS_OK) {
        return status;
    }
    ls_price_span whole = {0, e->net.elements};
    bool found =
        ls_compare_cause_find(e, j->forced.grad, ranks.rank_grad, whole, "every gradient",
                              j->verdict->limit, j->verdict->cause, sizeof j->verdict->cause);
    if (!found && first_wrong >= 0) {
        ls_price_span span = j->spans.span[first_wrong];
        const ls_nettab_param *p = &e->net.param[j->spans.param[first_wrong]];
        char part_name[120];
        snprintf(part_name, sizeof part_name, "%s[%lld..%lld]", p->name,
                 (long long)(span.from - p->offset),
                 (long long)(span.from - p->offset + span.count - 1));
        ls_compare_cause_find(e, j->forced.grad, ranks.rank_grad, span, part_name,
                              j->bounds[part_of(j, first_wrong)].factor *
                                  j->spans.ideal[first_wrong],
                              j->verdict->cause, sizeof j->verdict->cause);
    }
    ls_oracle_free(&e->net, &ranks);
    return LS_OK;
}

static void look_for_weakness(judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    int low = 0, tensors = 0;
    for (int64_t i = 0; i < j->spans.count; i++) {
        if (j->spans.kind[i] == LS_COMPARE_SPANS_TENSOR) {
            tensors++;
            low += j->spans.error[i] < weak_share.factor * j->spans.ideal[i];
        }
    }
    if (j->level > 0 && 2 * low > tensors) {
        snprintf(j->weak, sizeof j->weak,
                 "%d of %d tensors err less than 1/16 of ideal %s: half was "
                 "not in use (e=%.1e r=%.1e)",
                 low, tensors, type_name(j), v->error, v->ideal);
    } else if (v->ideal > weak_price.factor) {
        snprintf(j->weak, sizeof j->weak, "ideal %s is itself %.2f off: nothing can be shown here",
                 type_name(j), v->ideal);
    }
}

static ls_status judge_forced(judgement *j)
{
    LS_TRY(run_forced(j));
    LS_TRY(judge_logits(j));
    LS_TRY(ls_compare_spans_measure(&j->evidence->net, j->evidence->grad, j->forced.grad, &j->cost,
                                    &j->spans));
    int before = j->checks.count;
    j->verdict->ideal = sqrt(j->cost.whole_error2 / j->cost.whole_grad2);
    /* where rounding makes a tenth of the gradient its parts scatter without a law: the whole alone
     */
    int64_t first_wrong = j->verdict->ideal <= weak_price.factor ? judge_parts(j) : -1;
    judge_whole(j);
    if (j->checks.count > before) {
        LS_TRY(find_cause(j, first_wrong));
    }
    look_for_weakness(j);
    return LS_OK;
}

/* ---- without branch records
 * ---------------------------------------------------------------------- */

static ls_status judge_coarse(judgement *j)
{
    const ls_evidence *e = j->evidence;
    ls_compare_verdict *v = j->verdict;
    ls_price_span whole = {0, e->net.elements};
    ls_oracle_mode plain = {0};
    v->coarse = true;
    LS_TRY(ls_oracle_run(&e->step, &plain, &j->forced));
    double norm2 = ls_price_square(j->forced.grad, whole);
    for (int run = 1; run <= COARSE_RUNS; run++) {
        ls_oracle_mode mode = {.ideal = true, .noise_seed = (uint64_t)run};
        ls_oracle_result ideal;
        LS_TRY(ls_oracle_run(&e->step, &mode, &ideal));
        double r = sqrt(ls_price_error2(ideal.grad, j->forced.grad, whole) / norm2);
        v->ideal = !(r <= v->ideal) ? r : v->ideal;
        ls_oracle_free(&e->net, &ideal);
    }
    v->error = sqrt(ls_price_error2(e->grad, j->forced.grad, whole) / norm2);
    v->limit = coarse_bound.factor * v->ideal;
    if (!(v->error <= v->limit)) {
        ls_compare_checks_fail(&j->checks, NULL,
                               "whole gradient rel=%.1e limit=%.1e (coarse: %g x the largest of %d "
                               "ideal %s runs)",
                               v->error, v->limit, coarse_bound.factor, COARSE_RUNS, type_name(j));
        ls_compare_cause_find(e, j->forced.grad, NULL, whole, "every gradient", v->limit, v->cause,
                              sizeof v->cause);
    }
    if (v->ideal > weak_price.factor) {
        snprintf(
            j->weak, sizeof j->weak,
            "coarse: ideal %s is itself %.2f off on FP64's branches: nothing can be shown here",
            type_name(j), v->ideal);
    }
    return LS_OK;
}

/* ---- the step
 * ------------------------------------------------------------------------------------ */

static ls_status measure_cost(judgement *j)
{
    LS_TRY(ls_compare_spans_build(&j->evidence->net, &j->spans));
    j->tie_limit = calloc((size_t)j->evidence->net.branch_count, sizeof *j->tie_limit);
    if (j->tie_limit == NULL) {
        ls_log_error("cannot allocate %d limits", j->evidence->net.branch_count);
        return LS_ERR_INFRA;
    }
    return ls_price_measure(&j->evidence->step, j->spans.span, j->spans.count, j->facts->cache,
                            &j->cost);
}

static ls_status judge_gradient(judgement *j)
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
                 "ideal %s overflows at loss scale %g: nothing can be shown", type_name(j),
                 j->evidence->step.loss_scale);
        return LS_OK;
    }
    if (!j->finite) {
        ls_compare_checks_fail(&j->checks, NULL,
                               "the gradient is not finite, and ideal %s is, at loss scale %g",
                               type_name(j), j->evidence->step.loss_scale);
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

static ls_status judge(judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    LS_TRY(read_facts(j));
    ls_compare_checks_replicas(j->evidence, "param", "parameters before the step", &j->checks);
    if (j->finite || !j->skipped) {
        LS_TRY(ls_compare_checks_loss(j->evidence, &j->checks));
    }
    LS_TRY(judge_gradient(j));
    ls_compare_checks_replicas(j->evidence, "grad", "reduced gradients", &j->checks);
    ls_compare_checks_replicas(j->evidence, "next", "parameters after the step", &j->checks);
    if (j->finite) {
        LS_TRY(ls_compare_checks_reduce(j->evidence, j->evidence->step.level, &j->checks,
                                        &v->reduce_judged));
    }
    if (j->finite || j->skipped) {
        LS_TRY(ls_compare_checks_next(j->evidence, j->level, j->nesterov, j->skipped, &j->checks,
                                      &v->next_judged));
    }
    return LS_OK;
}

/* ---- the verdict
 * --------------------------------------------------------------------------------- */

static void conclude(judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    v->failures = j->checks.count;
    if (j->checks.count > 0) {
        v->code = LS_COMPARE_FAIL;
        snprintf(v->tensor, sizeof v->tensor, "%s", j->checks.tensor);
        if (j->checks.count > 1) {
            snprintf(v->evidence, sizeof v->evidence, "%.280s; %d more", j->checks.line,
                     j->checks.count - 1);
        } else {
            snprintf(v->evidence, sizeof v->evidence, "%.319s", j->checks.line);
        }
    } else if (j->weak[0] != '\0') {
        v->code = LS_COMPARE_WEAK;
        snprintf(v->evidence, sizeof v->evidence, "%s", j->weak);
    } else {
        v->code = LS_COMPARE_PASS;
        snprintf(
            v->evidence, sizeof v->evidence,
            "%swhole gradient rel=%.1e limit=%.1e (%s ideal %s); tensors at most %.1f x, blocks "
            "%.1f x ideal; %lld of %lld branches turned, all near-ties%s%s",
            v->coarse ? "coarse: " : "", v->error, v->limit, j->level == 0 ? "32 x" : "2 x",
            type_name(j), v->tensor_ratio, v->block_ratio, (long long)v->turned,
            (long long)v->forced, v->reduce_judged ? "; reduction right" : "",
            v->next_judged ? "; step right" : "");
    }
}

static void add_tensors(const judgement *j, cJSON *list)
{
    for (int64_t i = 0; i < j->spans.count && !j->verdict->coarse; i++) {
        if (j->spans.kind[i] != LS_COMPARE_SPANS_TENSOR) {
            continue;
        }
        const ls_nettab_param *param = &j->evidence->net.param[j->spans.param[i]];
        cJSON *tensor = cJSON_CreateObject();
        cJSON_AddStringToObject(tensor, "name", param->name);
        cJSON_AddNumberToObject(tensor, "elements", (double)param->count);
        ls_json_add_number(tensor, "e", j->spans.error[i]);
        ls_json_add_number(tensor, "r", j->spans.ideal[i]);
        ls_json_add_number(tensor, "limit", j->bounds[part_of(j, i)].factor * j->spans.ideal[i]);
        cJSON_AddItemToArray(list, tensor);
    }
}

static ls_status write_json(const judgement *j, const char *path)
{
    static const char *const codes[] = {"PASS", "WEAK", "FAIL"};
    const ls_compare_verdict *v = j->verdict;
    char level[4] = {'O', (char)('0' + j->level), '\0'};
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "schema", 1);
    cJSON_AddStringToObject(root, "reference",
                            v->coarse ? "FP64 oracle on its own branches (coarse)"
                                      : "FP64 oracle on the subject's branches");
    cJSON_AddNumberToObject(root, "step", ls_dumpfile_number(j->evidence->file[0], "step", 0));
    cJSON_AddStringToObject(root, "level", level);
    cJSON_AddStringToObject(root, "half", type_name(j));
    cJSON *whole = cJSON_AddObjectToObject(root, "whole");
    ls_json_add_number(whole, "e", v->error);
    ls_json_add_number(whole, "r", v->ideal);
    ls_json_add_number(whole, "limit", v->limit);
    add_tensors(j, cJSON_AddArrayToObject(root, "tensors"));
    ls_json_add_number(root, "tensor_ratio", v->tensor_ratio);
    ls_json_add_number(root, "block_ratio", v->block_ratio);
    ls_json_add_number(root, "tie_ratio", v->tie_ratio);
    cJSON_AddNumberToObject(root, "branches", (double)v->forced);
    cJSON_AddNumberToObject(root, "branches_turned", (double)v->turned);
    cJSON_AddBoolToObject(root, "reduce_judged", v->reduce_judged);
    cJSON_AddBoolToObject(root, "next_judged", v->next_judged);
    cJSON_AddStringToObject(root, "verdict", codes[v->code]);
    cJSON_AddStringToObject(root, "evidence", v->evidence);
    cJSON_AddStringToObject(root, "cause", v->cause);
    ls_status status = ls_json_write_file(path, root);
    cJSON_Delete(root);
    return status;
}

ls_status ls_compare_step(const ls_compare_facts *facts, int file_count, const char *const *path,
                          const char *json_path, ls_compare_verdict *out)
{
    ls_compare_verdict verdict = {0};
    judgement j = {.facts = facts, .verdict = &verdict};
    LS_TRY(ls_evidence_load(facts->arch, file_count, path, &j.evidence));
    ls_status status;
    LS_TRY_GOTO(status, judge(&j), free_judgement);
    conclude(&j);
    if (json_path != NULL) {
        LS_TRY_GOTO(status, write_json(&j, json_path), free_judgement);
    }
    *out = verdict;
free_judgement:
    ls_compare_spans_free(&j.spans);
    ls_price_cost_free(&j.cost);
    ls_oracle_free(&j.evidence->net, &j.forced);
    free(j.tie_limit);
    ls_evidence_free(j.evidence);
    return status;
}

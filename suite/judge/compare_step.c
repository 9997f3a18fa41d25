#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "diagnose.h"
#include "compare.h"

/* ---- the facts of a job, and the metadata of its dump ---------------------------------------- */

static ls_status half_of(const char *name, ls_bits_type *out)
{
    if (strcmp(name, "fp16") == 0) {
        *out = LS_BITS_F16;
    } else if (strcmp(name, "bf16") == 0) {
        *out = LS_BITS_BF16;
    } else if (strcmp(name, "fp32") == 0) {
        *out = LS_BITS_F32;
    } else {
        return ls_log_fail(LS_ERR_USAGE, "'%s' is no type of a gradient: fp32, fp16, bf16", name);
    }
    return LS_OK;
}

static ls_status read_level(ls_compare_judgement *j, const ls_dumpfile *file)
{
    const char *level = j->facts->opt_level;
    level = level != NULL ? level : ls_dumpfile_text(file, "opt_level", "");
    if (level[0] != 'O' || level[1] < '0' || level[1] > '3' || level[2] != '\0') {
        return ls_log_fail(LS_ERR_USAGE, "%s: opt_level '%s': O0, O1, O2 or O3",
                           ls_dumpfile_path(file), level);
    }
    j->level = level[1] - '0';
    j->bounds = ls_compare_bounds_of(j->level);
    const char *half = j->facts->half;
    return half_of(half != NULL ? half : ls_dumpfile_text(file, "half", "fp16"),
                   &j->evidence->step.half);
}

/* The metadata's reduced_type is that of the first convolution's gradient. It shows
 * --allreduce-fp32 at O2 and O3 and --compress at O0 and O1; whether batch norm's f32 gradients
 * were compressed at O2 comes from the facts. */
static ls_status read_reduced_type(ls_compare_judgement *j, const ls_dumpfile *file)
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

/* --keep-batchnorm-fp32 gives O2 the stored types of O3, and O3 those of O2; the type of batch
 * norm's parameters in the dump decides. */
static int stored_level(const ls_compare_judgement *j, const ls_dumpfile *file)
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

/* A word or number that is unknown would count as the default. */
static ls_status check_metadata(const ls_dumpfile *file, int step, int accumulate)
{
    static const struct {
        const char *name, *words; /* NULL: a finite number */
    } known[] = {{"skipped", "0|1|true|false|True|False"},
                 {"sync_bn", "0|1|true|false|True|False"},
                 {"nesterov", "0|1|true|false|True|False"},
                 {"dialect", "apex|torch"},
                 {"average", "pre|post|none"},
                 {"half", "fp16|bf16"},
                 {"reduced_type", "fp32|fp16|bf16"},
                 {"step", NULL},
                 {"label_smoothing", NULL},
                 {"momentum", NULL},
                 {"weight_decay", NULL},
                 {"eps", NULL},
                 {"trust", NULL},
                 {"larc_clip", "0|1|true|false|True|False"},
                 {"clip_grad_norm", NULL},
                 {"clip_grad_value", NULL},
                 {"optimizer_steps", NULL}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *text = ls_dumpfile_text(file, known[i].name, NULL);
        bool good = text == NULL ||
                    (known[i].words != NULL ? ls_text_choice(text, known[i].words) >= 0
                                            : isfinite(ls_dumpfile_number(file, known[i].name, 0)));
        if (!good) {
            return ls_log_fail(LS_ERR_USAGE, "%s: %s '%.40s': allowed: %s", ls_dumpfile_path(file),
                               known[i].name, text,
                               known[i].words != NULL ? known[i].words : "a number");
        }
    }
    if (ls_dumpfile_integer(file, "accumulate", accumulate) != accumulate) {
        return ls_log_fail(LS_ERR_USAGE, "%s: accumulate '%s'; its input is of %d micro-batches",
                           ls_dumpfile_path(file), ls_dumpfile_text(file, "accumulate", ""),
                           accumulate);
    }
    int64_t own = ls_dumpfile_integer(file, "step", step);
    if (step > 0 && own != step) {
        return ls_log_fail(LS_ERR_USAGE, "%s is of step %lld; given as step %d",
                           ls_dumpfile_path(file), (long long)own, step);
    }
    return LS_OK;
}

/* The only node that reads `node`, or -1. */
static int reader_of(const ls_nettab *net, int node)
{
    int found = -1;
    for (int i = 0; i < net->node_count; i++) {
        if (net->node[i].input == node || net->node[i].other == node) {
            if (found >= 0) {
                return -1;
            }
            found = i;
        }
    }
    return found;
}

/* Whether ReLU and then one convolution, and nothing else, read the norm: its output need not be in
 * memory. */
static bool is_inner(const ls_nettab *net, int norm)
{
    int relu = reader_of(net, norm);
    int conv = relu >= 0 && net->node[relu].kind == LS_NETTAB_RELU ? reader_of(net, relu) : -1;
    return conv >= 0 && net->node[conv].kind == LS_NETTAB_CONV;
}

/* The batch norm of that name, or -1. */
static int find_norm(const ls_nettab *net, const char *name, size_t length)
{
    static const char ending[] = ".weight";
    for (int i = 0; i < net->node_count; i++) {
        if (net->node[i].kind == LS_NETTAB_NORM) {
            const char *weight = net->param[net->node[i].weight].name;
            if (strncmp(weight, name, length) == 0 && strcmp(weight + length, ending) == 0) {
                return i;
            }
        }
    }
    return -1;
}

static ls_status read_names(const ls_nettab *net, const ls_dumpfile *file, const char *text,
                            bool *applied)
{
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, ",");
        int norm = find_norm(net, at, length);
        if (norm < 0 || !is_inner(net, norm) || applied[norm] ||
            (at[length] == ',' && at[length + 1] == '\0')) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s: applied '%.*s': allowed: each once, separated by commas, batch "
                               "norms of %s between two convolutions",
                               ls_dumpfile_path(file), (int)(length < 60 ? length : 60), at,
                               net->arch);
        }
        applied[norm] = true;
        at += length + (at[length] == ',');
    }
    return LS_OK;
}

/* Reads from the dumps' metadata which batch norms the next convolution has applied with scale and
 * bias in fp16 (numerics.md section 4, point 8), into the step of the evidence: those that every
 * rank names. */
static ls_status read_applied(ls_compare_judgement *j)
{
    ls_oracle_step *step = &j->evidence->step;
    const ls_nettab *net = &j->evidence->net;
    for (int rank = 0; rank < j->evidence->world; rank++) {
        const ls_dumpfile *file = j->evidence->file[rank];
        const char *text = ls_dumpfile_text(file, "applied", "");
        bool applied[LS_NETTAB_NODES_MAX] = {false};
        if (text[0] != '\0' && (!j->facts->fused || j->level == 0 || step->half != LS_BITS_F16)) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s: applied '%.60s': allowed at O1 to O3 in fp16, in a job with "
                               "--fuse",
                               ls_dumpfile_path(file), text);
        }
        LS_TRY(read_names(net, file, text, applied));
        for (int i = 0; i < net->node_count; i++) {
            step->applied[i] = applied[i] && (rank == 0 || step->applied[i]);
        }
    }
    return LS_OK;
}

/* Fills level, bounds, nesterov, skipped, finite and the evidence's step. LS_ERR_USAGE for an
 * impossible step. */
static ls_status read_facts(ls_compare_judgement *j)
{
    const ls_compare_facts *facts = j->facts;
    const ls_dumpfile *file = j->evidence->file[0];
    ls_oracle_step *step = &j->evidence->step;
    for (int rank = 0; rank < j->evidence->world; rank++) {
        LS_TRY(check_metadata(j->evidence->file[rank], facts->step, step->accumulate));
    }
    LS_TRY(read_level(j, file));
    step->level = stored_level(j, file);
    step->loss_scale = ls_dumpfile_number(file, "loss_scale", 1);
    step->label_smoothing = ls_dumpfile_number(file, "label_smoothing", 0);
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
    step->reduces_each = facts->reduces_each;
    step->divisor = facts->divisor;
    if (facts->sync_bn || ls_dumpfile_flag(file, "sync_bn", false)) {
        int64_t recorded = ls_dumpfile_integer(file, "sync_bn_group", 0);
        int64_t group = facts->sync_bn_group > 0 ? facts->sync_bn_group : recorded;
        bool fits = group > 0 && group <= step->world;
        step->stat_ranks = group == 0 ? step->world : fits ? (int)group : INT_MAX;
    }
    if (step->world % step->stat_ranks != 0 || !(step->loss_scale > 0) || !(step->predivide > 0) ||
        !(step->label_smoothing >= 0 && step->label_smoothing <= 1)) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s: SyncBN over %d of %d ranks, loss scale %g, predivide %g, label "
                           "smoothing %g: not a step",
                           ls_dumpfile_path(file), step->stat_ranks, step->world, step->loss_scale,
                           step->predivide, step->label_smoothing);
    }
    LS_TRY(read_applied(j));
    j->nesterov = facts->nesterov || ls_dumpfile_flag(file, "nesterov", false);
    j->skipped = ls_dumpfile_flag(file, "skipped", false);
    j->finite = true;
    for (int64_t i = 0; i < j->evidence->net.elements && j->finite; i++) {
        j->finite = isfinite(j->evidence->grad[i]);
    }
    return LS_OK;
}

/* ---- the verdict in one line, and compare.json ----------------------------------------------- */

static void conclude(ls_compare_judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    v->reduce_ratio = j->checks.reduce_ratio;
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
        if (v->coarse) {
            ls_text_put(v->evidence, sizeof v->evidence,
                        "coarse: whole gradient rel=%.1e limit=%.1e (%g x the largest of %d ideal "
                        "%s runs)",
                        v->error, v->limit, ls_compare_bounds_coarse().factor,
                        LS_COMPARE_COARSE_RUNS, ls_compare_judgement_type(j));
        } else {
            ls_text_put(v->evidence, sizeof v->evidence,
                        "whole gradient rel=%.1e limit=%.1e (%g x ideal %s); tensors at most %.1f "
                        "x, blocks %.1f x ideal; %lld of %lld branches turned, all near-ties",
                        v->error, v->limit, j->bounds[LS_COMPARE_WHOLE].factor,
                        ls_compare_judgement_type(j),
                        fmax(v->ratio[LS_COMPARE_TENSOR], v->ratio[LS_COMPARE_SMALL]),
                        fmax(v->ratio[LS_COMPARE_BLOCK], v->ratio[LS_COMPARE_EDGE]),
                        (long long)v->turned, (long long)v->forced);
        }
        ls_text_add(
            v->evidence, sizeof v->evidence, "%s%s%s", v->reduce_judged ? "; reduction right" : "",
            v->next_judged ? "; step right" : "", v->buffers_judged ? "; statistics right" : "");
    }
}

static void add_tensors(const ls_compare_judgement *j, cJSON *list)
{
    for (int64_t i = 0; i < j->spans.count && !j->verdict->coarse; i++) {
        if (j->spans.kind[i] != LS_COMPARE_SPANS_TENSOR) {
            continue;
        }
        const ls_nettab_param *param = &j->evidence->net.param[j->spans.param[i]];
        cJSON *tensor = ls_json_append_object(list);
        cJSON_AddStringToObject(tensor, "name", param->name);
        cJSON_AddNumberToObject(tensor, "elements", (double)param->count);
        ls_json_add_number(tensor, "e", j->spans.error[i]);
        ls_json_add_number(tensor, "r", j->spans.ideal[i]);
        ls_json_add_number(tensor, "limit",
                           j->bounds[ls_compare_judgement_part(j, i)].factor * j->spans.ideal[i]);
    }
}

static ls_status write_verdict(const ls_compare_judgement *j, const char *path)
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
    cJSON_AddStringToObject(root, "half", ls_compare_judgement_type(j));
    cJSON *whole = cJSON_AddObjectToObject(root, "whole");
    ls_json_add_number(whole, "e", v->error);
    ls_json_add_number(whole, "r", v->ideal);
    ls_json_add_number(whole, "limit", v->limit);
    add_tensors(j, cJSON_AddArrayToObject(root, "tensors"));
    cJSON *ratios = cJSON_AddObjectToObject(root, "ratios"); /* largest e/r of each kind */
    static const char *const parts[] = {"whole", "tensor", "small", "block", "edge"};
    cJSON *prices = cJSON_AddObjectToObject(root, "prices"); /* largest error of the ideal */
    for (int p = 0; p < LS_COMPARE_PARTS; p++) {
        ls_json_add_number(ratios, parts[p], v->ratio[p]);
        ls_json_add_number(prices, parts[p], v->ideal_error[p]);
    }
    ls_json_add_number(ratios, "logits", v->logits_ratio);
    ls_json_add_number(ratios, "reduce", v->reduce_ratio);
    ls_json_add_number(ratios, "next", v->next_ratio);
    ls_json_add_number(ratios, "buffer", v->buffer_ratio);
    ls_json_add_number(root, "tie_ratio", v->tie_ratio);
    cJSON_AddNumberToObject(root, "branches", (double)v->forced);
    cJSON_AddNumberToObject(root, "branches_turned", (double)v->turned);
    cJSON_AddBoolToObject(root, "reduce_judged", v->reduce_judged);
    cJSON_AddBoolToObject(root, "next_judged", v->next_judged);
    cJSON_AddBoolToObject(root, "buffers_judged", v->buffers_judged);
    cJSON_AddStringToObject(root, "verdict", codes[v->code]);
    cJSON_AddStringToObject(root, "evidence", v->evidence);
    cJSON_AddStringToObject(root, "cause", v->cause);
    return ls_json_write_and_free(path, root);
}

/* ---- one step ------------------------------------------------------------------------------- */

/* Uses the optimizer named in the metadata: a case that sets one uses its own facts. */
static ls_status judge_optimizer(ls_compare_judgement *j)
{
    ls_update_rule rule = {0};
    bool skipped;
    ls_compare_optim_result result = {
        .why = "the metadata have no rate, or no optimizer or counts that are known"};
    int before = j->checks.count;
    if (ls_compare_optim_rule(j->evidence->file[0], j->nesterov, &rule, &skipped)) {
        LS_TRY(ls_compare_optim_step(j->evidence->file[0], &rule, j->skipped, &j->checks, &result));
    }
    j->verdict->next_judged = result.judged;
    j->verdict->elements += result.elements;
    j->verdict->next_ratio = result.ratio;
    if (!result.judged && j->weak[0] == '\0') {
        snprintf(j->weak, sizeof j->weak, "the optimizer's step was not judged: %s", result.why);
    }
    if (j->checks.count > before && j->verdict->cause[0] == '\0') {
        return ls_diagnose_step(j->evidence->file[0], &rule, j->skipped, j->verdict->cause,
                                (int)sizeof j->verdict->cause);
    }
    return LS_OK;
}

/* A wrong gradient on another rank can explain more than rank 0's, which may be right or only show
 * the position of a race. */
static void judge_replicas(ls_compare_judgement *j)
{
    static const char place[] = "wrong: "; /* the prefix that ls_diagnose_gradient writes */
    char *cause = j->verdict->cause;
    size_t used = strlen(cause), room = sizeof j->verdict->cause - used;
    int before = j->checks.count;
    ls_compare_checks_replicas(j->evidence, "grad", "reduced gradients", &j->checks);
    if (j->checks.count > before && (used == 0 || strncmp(cause, place, sizeof place - 1) == 0)) {
        snprintf(cause + used, room, "%s%s", used == 0 ? "" : "; ", LS_DIAGNOSE_DIGESTS_GRADIENTS);
    }
}

static ls_status judge(ls_compare_judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    LS_TRY(read_facts(j));
    ls_compare_checks_names(j->evidence, &j->checks);
    ls_compare_checks_replicas(j->evidence, "param", "parameters before the step", &j->checks);
    if (j->finite || !j->skipped) {
        ls_compare_checks_loss(j->evidence, j->finite, &j->checks);
    }
    LS_TRY(ls_compare_gradient_judge(j));
    if (j->checks.unsmoothed) { /* the gradients follow from the loss */
        snprintf(v->cause, sizeof v->cause,
                 "the labels are not smoothed: the loss is that of "
                 "--label-smoothing 0");
    }
    judge_replicas(j);
    ls_compare_checks_replicas(j->evidence, "next", "parameters after the step", &j->checks);
    ls_compare_checks_states(j->evidence, &j->checks);
    if (j->finite) {
        v->reduce_judged =
            ls_compare_checks_reduce(j->evidence, j->evidence->step.level, &j->checks);
    }
    return j->finite || j->skipped ? judge_optimizer(j) : LS_OK;
}

ls_status ls_compare_step(const ls_compare_facts *facts, int file_count, const char *const *path,
                          const char *json_path, ls_compare_verdict *out)
{
    ls_compare_verdict verdict = {0};
    ls_compare_judgement j = {.facts = facts, .verdict = &verdict};
    LS_TRY(ls_evidence_load_part(facts->arch, facts->world > 0 ? facts->world : file_count,
                                 file_count, facts->rank, path, &j.evidence));
    ls_status status;
    LS_TRY_GOTO(status, judge(&j), free_judgement);
    conclude(&j);
    if (json_path != NULL) {
        LS_TRY_GOTO(status, write_verdict(&j, json_path), free_judgement);
    }
    *out = verdict;
free_judgement:
    ls_compare_spans_free(&j.spans);
    ls_ideal_error_cost_free(&j.cost);
    ls_oracle_free(&j.evidence->net, &j.forced);
    free(j.tie_limit);
    ls_evidence_free(j.evidence);
    return status;
}

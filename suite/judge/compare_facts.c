#include "compare_judgement.h"

#include <math.h>
#include <string.h>

#include "kernels/core/log.h"

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

ls_status ls_compare_facts_read(ls_compare_judgement *j)
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
        int recorded = (int)ls_dumpfile_number(file, "sync_bn_group", 0);
        int group = facts->sync_bn_group > 0 ? facts->sync_bn_group : recorded;
        step->stat_ranks = group > 0 ? group : step->world;
    }
    if (step->world % step->stat_ranks != 0 || !(step->loss_scale > 0) || !(step->predivide > 0)) {
        return ls_log_fail(
            LS_ERR_USAGE, "%s: SyncBN over %d of %d ranks, loss scale %g, predivide %g: not a step",
            ls_dumpfile_path(file), step->stat_ranks, step->world, step->loss_scale,
            step->predivide);
    }
    j->nesterov = facts->nesterov || ls_dumpfile_flag(file, "nesterov", false);
    j->skipped = ls_dumpfile_flag(file, "skipped", false);
    j->finite = true;
    for (int64_t i = 0; i < j->evidence->net.elements && j->finite; i++) {
        j->finite = isfinite(j->evidence->grad[i]);
    }
    return LS_OK;
}
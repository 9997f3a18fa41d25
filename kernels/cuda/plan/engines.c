/* The engines of a plan's products as text, one line each, so that all ranks can run the same. */
#include <stdio.h>
#include <string.h>

#include "kernels/core/log.h"
#include "plan_internal.h"

enum { LINE_BYTES = 1024, NAME_BYTES = 64 };

/* The layer, and whether it is the stem over blocks, whose engines are of another shape. */
static void name_product(const ls_plan *plan, const ls_op *op, char *name, size_t bytes)
{
    snprintf(name, bytes, "%s%s", plan->network->layer[op->layer].name,
             ls_work_reads_blocks(plan, op) ? " in blocks" : "");
}

ls_status ls_engines_export(ls_plan *plan, const char **text)
{
    size_t used = 0;
    plan->engines[0] = '\0';
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (plan->work[i].conv == NULL) {
            continue;
        }
        char line[LINE_BYTES], name[NAME_BYTES];
        ls_conv_choice(plan->work[i].conv, line, sizeof line);
        name_product(plan, &plan->lower.op[i], name, sizeof name);
        int written =
            snprintf(plan->engines + used, LS_PLAN_TEXT_BYTES - used, "%s: %s\n", name, line);
        used += (size_t)written;
        if (used >= LS_PLAN_TEXT_BYTES) {
            return ls_log_fail(LS_ERR_UNSUPPORTED,
                               "the engines of %s take more than %d bytes of text",
                               plan->network->arch, LS_PLAN_TEXT_BYTES);
        }
    }
    *text = plan->engines;
    return LS_OK;
}

static ls_status take_line(ls_conv *conv, const char *name, const char **rest)
{
    char line[LINE_BYTES];
    LS_TRY(ls_plan_take_line(name, rest, line, sizeof line));
    return ls_conv_choose(conv, line);
}

ls_status ls_engines_import(ls_plan *plan, const char *text)
{
    const char *rest = text;
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (plan->work[i].conv != NULL) {
            char name[NAME_BYTES];
            name_product(plan, &plan->lower.op[i], name, sizeof name);
            LS_TRY(take_line(plan->work[i].conv, name, &rest));
        }
    }
    LS_TRY(ls_plan_lines_end(rest));
    for (int i = 0; i < plan->lower.op_count; i++) { /* their products may sum now, or no longer */
        if (plan->lower.op[i].kind == LS_OP_NORM) {
            ls_norm_prepare(plan, &plan->lower.op[i]);
        }
    }
    ls_work_describe(plan, plan->fusions, LS_PLAN_TEXT_BYTES);
    ls_apply_describe(plan, plan->applied, LS_PLAN_TEXT_BYTES);
    return ls_work_reserve_workspace(plan);
}

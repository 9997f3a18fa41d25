#include "plan_check.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "lowered.h"

/* ---- tensors --------------------------------------------------------------------------------- */

ls_status ls_plan_tensors_create(const ls_network *network, ls_plan_tensors *out)
{
    size_t params = (size_t)network->param_count, buffers = (size_t)network->buffer_count;
    out->param = calloc(params + 1, sizeof *out->param);
    out->grad = calloc(params + 1, sizeof *out->grad);
    out->buffer = calloc(buffers + 1, sizeof *out->buffer);
    LS_TRY_MEMORY(out->param != NULL && out->grad != NULL && out->buffer != NULL,
                  "a plan of %zu parameters", params);
    return LS_OK;
}

void ls_plan_tensors_free(ls_plan_tensors *tensors)
{
    free(tensors->param);
    free(tensors->grad);
    free(tensors->buffer);
}

ls_status ls_plan_tensors_bind(const ls_network *network, const ls_plan_binding *binding,
                               ls_plan_tensors *tensors)
{
    for (int i = 0; i < network->param_count; i++) {
        int64_t count = ls_shape_count(&network->param[i].shape);
        if (binding->param[i].count != count || binding->grad[i].count != count) {
            return ls_log_fail(
                LS_ERR_USAGE,
                "parameter %s has %lld elements, but %lld values and %lld gradients are "
                "bound to it",
                network->param[i].name, (long long)count, (long long)binding->param[i].count,
                (long long)binding->grad[i].count);
        }
    }
    size_t params = (size_t)network->param_count, buffers = (size_t)network->buffer_count;
    memcpy(tensors->param, binding->param, params * sizeof *tensors->param);
    memcpy(tensors->grad, binding->grad, params * sizeof *tensors->grad);
    memcpy(tensors->buffer, binding->buffer, buffers * sizeof *tensors->buffer);
    tensors->state = binding->state;
    return LS_OK;
}

/* ---- choices of engines ---------------------------------------------------------------------- */

ls_status ls_plan_take_line(const char *name, const char **rest, char *choice, size_t bytes)
{
    size_t length = strcspn(*rest, "\n"), label = strlen(name);
    if (length < label + 2 || length - label - 2 >= bytes || memcmp(*rest, name, label) != 0 ||
        memcmp(*rest + label, ": ", 2) != 0) {
        return ls_log_fail(LS_ERR_USAGE, "engines for %s were expected, not \"%.*s\"", name,
                           (int)(length < 80 ? length : 80), *rest);
    }
    memcpy(choice, *rest + label + 2, length - label - 2);
    choice[length - label - 2] = '\0';
    *rest += length + ((*rest)[length] == '\n' ? 1 : 0);
    return LS_OK;
}

ls_status ls_plan_lines_end(const char *rest)
{
    size_t length = strcspn(rest, "\n");
    return *rest == '\0'
               ? LS_OK
               : ls_log_fail(LS_ERR_USAGE, "engines for a layer that is not there: \"%.*s\"",
                             (int)(length < 80 ? length : 80), rest);
}

/* ---- gradients that are ready ---------------------------------------------------------------- */

ls_status ls_plan_ready_create(const ls_network *network, ls_plan_ready *out)
{
    size_t count = (size_t)network->param_count;
    ls_plan_ready ready = {.count = network->param_count,
                           .order = calloc(count + 1, sizeof *ready.order),
                           .closing = calloc(count + 1, sizeof *ready.closing),
                           .done = calloc(count + 1, sizeof *ready.done)};
    if (ready.order == NULL || ready.closing == NULL || ready.done == NULL) {
        ls_plan_ready_free(&ready);
        return ls_log_fail(LS_ERR_INFRA, "no memory for a plan of %zu parameters", count);
    }
    ls_lower_ready_order(network, ready.order);
    ls_plan_ready_group(&ready, NULL);
    *out = ready;
    return LS_OK;
}

void ls_plan_ready_free(ls_plan_ready *ready)
{
    free(ready->order);
    free(ready->closing);
    free(ready->done);
    *ready = (ls_plan_ready){0};
}

void ls_plan_ready_group(ls_plan_ready *ready, const int *group)
{
    for (int i = 0; i < ready->count; i++) {
        ready->closing[i] = true;
        for (int k = i + 1; group != NULL && k < ready->count && ready->closing[i]; k++) {
            ready->closing[i] = group[ready->order[k]] != group[ready->order[i]];
        }
    }
}

void ls_plan_ready_begin(ls_plan_ready *ready)
{
    memset(ready->done, 0, (size_t)ready->count * sizeof *ready->done);
    ready->reported = 0;
}

int ls_plan_ready_due(const ls_plan_ready *ready)
{
    int due = ready->reported;
    for (int i = due; i < ready->count && ready->done[ready->order[i]]; i++) {
        due = ready->closing[i] ? i + 1 : due;
    }
    return due;
}

ls_status ls_plan_ready_report(ls_plan_ready *ready, ls_grad_ready *report, void *context)
{
    int due = ls_plan_ready_due(ready);
    while (ready->reported < due) {
        int param = ready->order[ready->reported];
        ready->reported++;
        if (report != NULL) {
            LS_TRY(report(context, param));
        }
    }
    return LS_OK;
}

/* ---- export ---------------------------------------------------------------------------------- */

static ls_status stored_slot(const ls_lower *lower, int layer, int *slot)
{
    if (layer < 0 || layer >= lower->network->layer_count || lower->slot_of_layer[layer] < 0) {
        return ls_log_fail(
            LS_ERR_UNSUPPORTED,
            "layer %d is not stored: it is fused into the pass of the layer after it", layer);
    }
    *slot = lower->slot_of_layer[layer];
    return LS_OK;
}

static ls_status branch_slot(const ls_lower *lower, int branch, ls_layer_kind kind, int *slot)
{
    int layer = ls_lower_layer_of_branch(lower->network, branch, kind);
    if (layer < 0) {
        return ls_log_fail(LS_ERR_USAGE, "branch %d is no %s of this network", branch,
                           kind == LS_LAYER_RELU ? "ReLU" : "max pool");
    }
    *slot = lower->slot_of_layer[layer];
    return LS_OK;
}

ls_status ls_plan_check_export(const ls_lower *lower, ls_export what, int index, int64_t bytes,
                               int *slot)
{
    const char *name = NULL;
    int at = -1;
    switch (what) {
    case LS_EXPORT_LOGITS:
        name = "logits";
        at = lower->op[lower->op_count - 1].in;
        break;
    case LS_EXPORT_ACTIVATION:
        name = "an activation";
        LS_TRY(stored_slot(lower, index, &at));
        break;
    case LS_EXPORT_RELU_BITS:
        name = "ReLU bits";
        LS_TRY(branch_slot(lower, index, LS_LAYER_RELU, &at));
        break;
    case LS_EXPORT_POOL_INDEX:
        name = "pool indices";
        LS_TRY(branch_slot(lower, index, LS_LAYER_MAX_POOL, &at));
        break;
    }
    LS_ASSERT(name != NULL);
    int64_t count = lower->slot[at].count;
    int64_t wanted = what == LS_EXPORT_RELU_BITS ? (count + 7) / 8 : 4 * count; /* f32 or int32 */
    if (bytes != wanted) {
        return ls_log_fail(LS_ERR_USAGE, "export of %s takes %lld bytes, not %lld", name,
                           (long long)wanted, (long long)bytes);
    }
    *slot = at;
    return LS_OK;
}

/* ---- force ----------------------------------------------------------------------------------- */

ls_status ls_plan_check_force(const ls_lower *lower, int branch, const void *host, int64_t bytes,
                              const ls_op **out)
{
    bool forced = lower->options.forced_branches;
    const ls_op *op = forced ? ls_lower_op_of_branch(lower, branch) : NULL;
    if (op == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "branch %d of %s cannot be forced: %s", branch,
                           lower->network->arch,
                           forced ? "it is no ReLU or max pool of the plan"
                                  : "the plan was created without forced_branches");
    }
    int64_t count = lower->slot[op->out].count;
    int64_t wanted = op->kind == LS_OP_RELU ? (count + 7) / 8 : count * (int64_t)sizeof(int32_t);
    if (host != NULL && bytes != wanted) {
        return ls_log_fail(LS_ERR_USAGE, "%s: %lld bytes of forced branches, not %lld",
                           lower->network->layer[op->layer].name, (long long)bytes,
                           (long long)wanted);
    }
    *out = op;
    return LS_OK;
}

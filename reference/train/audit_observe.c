/* What a plan shows, as the judge's kernels take it: one description into the other, field by
 * field, because the judge knows nothing of the backend's headers. */
#include <stdio.h>
#include <string.h>

#include "kernels/core/log.h"
#include "audit_private.h"

_Static_assert((int)LS_OBSERVED_KINDS == (int)LS_AUDIT_PLAN_KINDS &&
                   (int)LS_OBSERVED_LOSS_BACK == (int)LS_AUDIT_LOSS_BACK &&
                   (int)LS_OBSERVED_NORM_BACK == (int)LS_AUDIT_NORM_BACK,
               "kinds stand in the same order on both sides");

static ls_audit_type type_of(ls_dtype type)
{
    LS_ASSERT(type == LS_F32 || type == LS_F16 || type == LS_BF16);
    return type == LS_F32 ? LS_AUDIT_F32 : type == LS_F16 ? LS_AUDIT_F16 : LS_AUDIT_BF16;
}

ls_audit_tensor ls_audit_tensor_of(const ls_tensor *tensor)
{
    if (tensor->data == NULL) {
        return (ls_audit_tensor){0};
    }
    return (ls_audit_tensor){tensor->data, tensor->count, type_of(tensor->dtype)};
}

static ls_audit_norm norm_of(const ls_audit *audit, const ls_observed_norm *norm, int channels)
{
    return (ls_audit_norm){
        .weight = ls_audit_tensor_of(&norm->weight),
        .bias = ls_audit_tensor_of(&norm->bias),
        .running_mean = ls_audit_tensor_of(&norm->running_mean),
        .running_var = ls_audit_tensor_of(&norm->running_var),
        .weight_grad = ls_audit_tensor_of(&norm->weight_grad),
        .bias_grad = ls_audit_tensor_of(&norm->bias_grad),
        .mean = {(void *)norm->mean, channels, LS_AUDIT_F32},
        .inv_std = {(void *)norm->inv_std, channels, LS_AUDIT_F32},
        .stats = audit->stats + audit->stats_at[norm->layer],
        .epsilon = (double)norm->epsilon,
        .momentum = (double)norm->momentum,
    };
}

/* Doubles of every rank of the group, through the collective of batch norms: floats, whose bits it
 * leaves alone. */
static ls_status gather(void *context, const double *mine, double *all, int64_t count)
{
    const ls_audit *audit = context;
    const ls_norm_sync *sync = &audit->trainer->norm_sync;
    return sync->all_gather(sync->context, audit->trainer->device.stream, (const float *)mine,
                            (float *)all, 2 * count);
}

static ls_audit_op translate(ls_audit *audit, const ls_observed *w)
{
    ls_audit_op op = {
        .kind = (ls_audit_kind)w->kind,
        .type = type_of(w->type),
        .images = w->images,
        .in_channels = w->in_channels,
        .plain_channels = w->plain_channels,
        .in_height = w->in_height,
        .in_width = w->in_width,
        .out_channels = w->out_channels,
        .out_height = w->out_height,
        .out_width = w->out_width,
        .kernel = w->kernel,
        .stride = w->stride,
        .pad = w->pad,
        .relu = w->relu,
        .dual = w->dual,
        .given = w->given,
        .tf32 = audit->trainer->options.tf32,
        .x = w->x,
        .residual = w->residual,
        .y = w->y,
        .w = w->w,
        .bias = w->bias,
        .mask = w->mask,
        .tap = w->tap,
        .dy = w->dy,
        .dy2 = w->dy2,
        .g = w->g,
        .dx = w->dx,
        .dx2 = w->dx2,
        .dw = w->dw,
        .weight = ls_audit_tensor_of(&w->weight),
        .weight_grad = ls_audit_tensor_of(&w->weight_grad),
        .bias_grad = ls_audit_tensor_of(&w->bias_grad),
        .target = w->target,
        .factor = (double)w->factor,
        .group = 1,
        .gather = gather,
        .gather_context = audit,
    };
    if (w->state != NULL) {
        op.loss = (float *)&w->state->loss;
        op.loss_scale = &w->state->loss_scale;
    }
    if (w->kind == LS_OBSERVED_NORM || w->kind == LS_OBSERVED_NORM_BACK) {
        op.group = w->norm_group;
        for (int k = 0; k < (w->dual ? 2 : 1); k++) {
            op.norm[k] = norm_of(audit, &w->norm[k], w->in_channels);
        }
    }
    return op;
}

/* ---- names ----------------------------------------------------------------------------------- */

static const char *layer_name(const ls_audit *audit, const ls_observed *what)
{
    const ls_memory *memory = &audit->trainer->memory;
    if (what->layer >= 0) {
        return audit->trainer->network.layer[what->layer].name;
    }
    for (int i = 0; i < memory->param_count; i++) {
        if (memory->param[i].data == what->weight.data) {
            return memory->network->param[i].name;
        }
    }
    return "a weight";
}

/* Each output with the operation that made it; of two norms in one the second has its own name. */
static void name_outputs(const ls_audit *audit, const ls_audit_op *op, const char *layer,
                         const char *second, ls_audit_name *name)
{
    ls_audit_output output[LS_AUDIT_OUTPUTS];
    int count = audit->judge->outputs(op, output);
    for (int i = 0; i < count; i++) {
        snprintf(name[i].operation, sizeof name[i].operation, "%s",
                 output[i].side == 0 ? layer : second);
        snprintf(name[i].output, sizeof name[i].output, "%s", output[i].name);
    }
}

/* ---- looking --------------------------------------------------------------------------------- */

ls_audit_verdict *ls_audit_place(ls_audit *audit, int count)
{
    LS_ASSERT(audit->count + count <= audit->most);
    audit->count += count;
    return audit->verdict + audit->count - count;
}

static ls_status look(ls_audit *audit, const ls_audit_op *op, const char *layer, const char *second,
                      void *room, ls_audit_draw draw, bool after)
{
    const ls_device *device = &audit->trainer->device;
    void *stream = device->api->stream_native(device->stream);
    if (!after) {
        return audit->judge->before(stream, op, draw, room);
    }
    ls_audit_output output[LS_AUDIT_OUTPUTS];
    int first = audit->count;
    ls_audit_verdict *verdict = ls_audit_place(audit, audit->judge->outputs(op, output));
    name_outputs(audit, op, layer, second, audit->name + first);
    return audit->judge->after(stream, op, room, verdict);
}

ls_status ls_audit_observe_op(ls_audit *audit, const ls_audit_op *op, const char *layer, void *room,
                              ls_audit_draw draw, bool after)
{
    return look(audit, op, layer, layer, room, draw, after);
}

void *ls_audit_next_room(ls_audit *audit, bool after)
{
    int64_t bytes = (int64_t)sizeof(ls_audit_sample) * LS_AUDIT_SAMPLES * LS_AUDIT_STEP_OUTPUTS;
    int *used = after ? &audit->many_after : &audit->many_before;
    LS_ASSERT(*used < audit->trainer->memory.param_count);
    void *room = audit->rooms + *used * bytes;
    ++*used;
    if (after && audit->many_after == audit->many_before) {
        audit->many_before = audit->many_after = 0;
    }
    return room;
}

ls_status ls_audit_observe(void *context, ls_stream *stream, const ls_observed *what, bool after)
{
    (void)stream; /* the trainer has one */
    ls_audit *audit = context;
    ls_audit_op op = translate(audit, what);
    const char *name = layer_name(audit, what), *second = name;
    if (what->kind == LS_OBSERVED_NORM || what->kind == LS_OBSERVED_NORM_BACK) {
        name = audit->trainer->network.layer[what->norm[0].layer].name;
        second = what->dual ? audit->trainer->network.layer[what->norm[1].layer].name : name;
    }
    void *room = what->kind == LS_OBSERVED_WEIGHT ? ls_audit_next_room(audit, after) : audit->room;
    audit->number += after ? 0 : 1;
    return look(audit, &op, name, second, room,
                (ls_audit_draw){audit->trainer->options.audit_seed ^ (uint64_t)audit->step << 20,
                                audit->number},
                after);
}

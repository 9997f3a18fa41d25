#include "plan_parts.h"

#include <string.h>

#include "kernels/core/plant.h"
#include "parallel.h"

static size_t element_bytes(const ls_plan *plan)
{
    return ls_dtype_bytes(plan->options.activation);
}

/* ---- pools: one plane (image, block of channels) at a time ----------------------------------- */

static ls_pool_shape pool_shape(const ls_plan *plan, const ls_op *op)
{
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const ls_layer *layer = &plan->network->layer[op->layer];
    ls_plane plane = ls_plan_field(plan, op->in).plane;
    return (ls_pool_shape){in->height,    in->width,  out->height, out->width,     layer->kernel,
                           layer->stride, layer->pad, plane.block, (int)plane.step};
}

static void pool(ls_plan *plan, const ls_op *op, bool backward)
{
    ls_pool_shape shape = pool_shape(plan, op);
    ls_field wide = ls_plan_field(plan, op->in), narrow = ls_plan_field(plan, op->out);
    ls_dtype type = plan->options.activation;
    size_t bytes = element_bytes(plan);
    char *in = backward ? ls_plan_grad(plan, op->dx) : ls_plan_at(plan, op->in);
    char *out = backward ? ls_plan_grad(plan, op->g) : ls_plan_at(plan, op->out);
    const ls_loops *loops = plan->backend->loops;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < wide.planes; i++) {
        int64_t at = ls_plan_plane_at(&narrow, i);
        char *from = in + (size_t)ls_plan_plane_at(&wide, i) * bytes;
        char *to = out + (size_t)at * bytes;
        uint8_t *tap = ls_plan_work(plan, op)->tap + at;
        if (backward) {
            loops->pool_back(type, &shape, to, tap, from);
        } else {
            loops->pool(type, &shape, from, to, tap);
        }
    }
}

static void average(ls_plan *plan, const ls_op *op, bool backward)
{
    ls_field wide = ls_plan_field(plan, op->in), narrow = ls_plan_field(plan, op->out);
    ls_plane plane = wide.plane;
    plane.pixels -= LS_PLANT(average_leaves_pixel_at_16, 0, plan->options.batch >= 16);
    ls_dtype type = plan->options.activation;
    size_t bytes = element_bytes(plan);
    char *in = backward ? ls_plan_grad(plan, op->dx) : ls_plan_at(plan, op->in);
    char *out = backward ? ls_plan_grad(plan, op->g) : ls_plan_at(plan, op->out);
    const ls_loops *loops = plan->backend->loops;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < wide.planes; i++) {
        char *image = in + (size_t)ls_plan_plane_at(&wide, i) * bytes;
        char *pixel = out + (size_t)ls_plan_plane_at(&narrow, i) * bytes;
        if (backward) {
            loops->average_back(type, pixel, image, &plane);
        } else {
            loops->average(type, image, pixel, &plane);
        }
    }
}

/* ---- the padded shortcut: copies the stored bits --------------------------------------------- */

static int64_t element(const ls_slot *slot, int block, int64_t image, int channel, int h, int w)
{
    int64_t plane = image * (slot->channels / block) + channel / block;
    return ((plane * slot->height + h) * slot->width + w) * block + channel % block;
}

/* forward: out[c,h,w] = c < C_in ? in[c,h*s,w*s] : 0; backward: the transpose, 0 elsewhere. */
static void shortcut(ls_plan *plan, const ls_op *op, bool backward)
{
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    int in_block = plan->layout[op->in].block, out_block = plan->layout[op->out].block;
    int stride = plan->network->layer[op->layer].stride;
    size_t bytes = element_bytes(plan);
    const char *from = backward ? ls_plan_grad(plan, op->g) : ls_plan_at(plan, op->in);
    char *to = backward ? ls_plan_grad(plan, op->dx) : ls_plan_at(plan, op->out);
    const ls_slot *target = backward ? in : out;
    size_t image_bytes = (size_t)(target->count / plan->options.batch) * bytes;
    int channels = in->channels < out->channels ? in->channels : out->channels;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t n = 0; n < plan->options.batch; n++) {
        memset(to + (size_t)n * image_bytes, 0, image_bytes);
        for (int c = 0; c < channels; c++) {
            for (int h = 0; h < out->height; h++) {
                for (int w = 0; w < out->width; w++) {
                    size_t small = (size_t)element(out, out_block, n, c, h, w) * bytes;
                    size_t large =
                        (size_t)element(in, in_block, n, c,
                                        h * stride + LS_PLANT(shortcut_odd_pixels, 0, stride - 1),
                                        w * stride + LS_PLANT(shortcut_odd_pixels, 0, stride - 1)) *
                        bytes;
                    memcpy(to + (backward ? large : small), from + (backward ? small : large),
                           bytes);
                }
            }
        }
    }
}

/* ---- by kind --------------------------------------------------------------------------------- */

ls_status ls_simple_forward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    (void)stream;
    ls_dtype type = plan->options.activation;
    int64_t count = op->out >= 0 ? plan->lower.slot[op->out].count : 0;
    switch (op->kind) {
    case LS_OP_RELU:
        if (ls_plan_work(plan, op)->forced) {
            ls_export_forced_relu(plan, op);
        } else {
            ls_parallel_relu(plan->backend, type, ls_plan_at(plan, op->in),
                             ls_plan_at(plan, op->out), count);
        }
        break;
    case LS_OP_ADD:
        ls_parallel_add(plan->backend, type, ls_plan_at(plan, op->in),
                        ls_plan_at(plan, op->residual), ls_plan_at(plan, op->out), op->relu, count);
        break;
    case LS_OP_POOL:
        if (ls_plan_work(plan, op)->forced) {
            ls_export_forced_pool(plan, op);
        } else {
            pool(plan, op, false);
        }
        break;
    case LS_OP_SHORTCUT:
        shortcut(plan, op, false);
        break;
    case LS_OP_AVERAGE:
        average(plan, op, false);
        break;
    default:
        LS_ASSERT(!"an operation with parameters");
    }
    return LS_OK;
}

static ls_status join(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    (void)stream;
    ls_dtype type = plan->options.activation;
    int64_t count = plan->lower.slot[op->out].count;
    const void *gradient = ls_plan_grad(plan, op->dy[0]);
    void *g = ls_plan_grad(plan, op->g);
    if (op->dy[1] != LS_NO_BUFFER) {
        ls_parallel_add(plan->backend, type, gradient, ls_plan_grad(plan, op->dy[1]), g, false,
                        count);
        gradient = g;
    }
    if (ls_plan_work(plan, op)->forced && op->relu) {
        ls_export_forced_relu_back(plan, op, gradient);
    } else if (op->relu) {
        ls_parallel_relu_back(plan->backend, type, gradient, ls_plan_at(plan, op->out), g, count);
    }
    return LS_OK;
}

ls_status ls_simple_join(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    return op->store_g ? ls_observe_run(plan, stream, LS_OBSERVED_GATE, op, join) : LS_OK;
}

static ls_status back(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    (void)stream;
    if (op->kind == LS_OP_POOL) {
        pool(plan, op, true);
    } else if (op->kind == LS_OP_SHORTCUT) {
        shortcut(plan, op, true);
    } else {
        average(plan, op, true);
    }
    return LS_OK;
}

ls_status ls_simple_backward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    LS_TRY(ls_simple_join(plan, stream, op));
    switch (op->kind) {
    case LS_OP_RELU:
    case LS_OP_ADD: /* the readers of g apply it */
        return LS_OK;
    case LS_OP_POOL:
        return ls_observe_run(plan, stream, LS_OBSERVED_POOL_BACK, op, back);
    case LS_OP_SHORTCUT:
        return ls_observe_run(plan, stream, LS_OBSERVED_SHORTCUT_BACK, op, back);
    default:
        LS_ASSERT(op->kind == LS_OP_AVERAGE);
        return ls_observe_run(plan, stream, LS_OBSERVED_AVERAGE_BACK, op, back);
    }
}

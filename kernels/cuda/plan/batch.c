/* Batches in device memory: a copying stream fills the slot of the next batch while the computing
 * stream reads another. Two events per slot order the two. */
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "plan_internal.h"

static size_t image_bytes(const ls_plan *plan)
{
    const ls_slot *image = &plan->lower.slot[plan->lower.slot_of_layer[0]];
    return (size_t)image->count * ls_dtype_bytes(plan->format.type);
}

static size_t target_bytes(const ls_plan *plan)
{
    return (size_t)plan->options.batch * sizeof(int64_t);
}

/* ---- slots ----------------------------------------------------------------------------------- */

static void free_batch(ls_batch *batch)
{
    ls_cuda_give(batch->images);
    ls_cuda_give(batch->target);
    ls_cuda_give_host(batch->host_images);
    ls_cuda_give_host(batch->host_target);
    if (batch->loaded != NULL) {
        cudaEventDestroy(batch->loaded);
    }
    if (batch->used != NULL) {
        cudaEventDestroy(batch->used);
    }
}

void ls_batch_destroy(ls_plan *plan)
{
    for (int i = 0; i < plan->batch_count; i++) {
        free_batch(&plan->batch[i]);
    }
    free(plan->batch);
    plan->batch = NULL;
    plan->batch_count = 0;
}

static ls_status make_batch(const ls_plan *plan, ls_batch *batch)
{
    void *target = NULL, *host_target = NULL;
    LS_TRY(ls_cuda_take((int64_t)image_bytes(plan), "a batch of images", &batch->images));
    LS_TRY(ls_cuda_take((int64_t)target_bytes(plan), "the classes of a batch", &target));
    batch->target = target;
    LS_TRY(ls_cuda_take_host((int64_t)target_bytes(plan), "the classes of a batch", &host_target));
    batch->host_target = host_target;
    LS_CUDA(cudaEventCreateWithFlags(&batch->loaded, cudaEventDisableTiming));
    LS_CUDA(cudaEventCreateWithFlags(&batch->used, cudaEventDisableTiming));
    return LS_OK;
}

static bool same_format(const ls_image_format *a, const ls_image_format *b)
{
    bool same = a->type == b->type;
    for (int c = 0; c < 3 && a->type == LS_U8; c++) {
        same = same && a->mean[c] == b->mean[c] && a->deviation[c] == b->deviation[c];
    }
    return same;
}

ls_status ls_batch_slots(ls_plan *plan, int slots, const ls_image_format *format)
{
    LS_ASSERT(format->type == LS_F32 || format->type == LS_U8);
    if (slots < 1) {
        return ls_log_fail(LS_ERR_USAGE, "%d slots for batches: 1 or more", slots);
    }
    if (slots == plan->batch_count && same_format(format, &plan->format)) {
        return LS_OK;
    }
    for (int i = 0; i < plan->batch_count; i++) {
        LS_TRY(ls_cuda_wait_event(plan->backend, plan->batch[i].loaded));
        LS_TRY(ls_cuda_wait_event(plan->backend, plan->batch[i].used));
    }
    ls_batch_destroy(plan);
    plan->batch = calloc((size_t)slots, sizeof *plan->batch);
    LS_TRY_MEMORY(plan->batch != NULL, "%d slots for batches", slots);
    plan->batch_count = slots;
    plan->format = *format;
    for (int i = 0; i < slots; i++) {
        ls_status status = make_batch(plan, &plan->batch[i]);
        if (status != LS_OK) {
            ls_batch_destroy(plan);
            return status;
        }
    }
    return LS_OK;
}

static ls_status check_slot(const ls_plan *plan, int slot)
{
    if (slot < 0 || slot >= plan->batch_count) {
        return ls_log_fail(LS_ERR_USAGE, "slot %d for a batch: there are %d, from 0", slot,
                           plan->batch_count);
    }
    return LS_OK;
}

/* ---- to the device --------------------------------------------------------------------------- */

static ls_status check_target(const ls_plan *plan, const int64_t *target)
{
    const ls_op *loss = &plan->lower.op[plan->lower.op_count - 1];
    int classes = plan->lower.slot[loss->in].channels;
    for (int n = 0; n < plan->options.batch; n++) {
        if (target[n] < 0 || target[n] >= classes) {
            return ls_log_fail(LS_ERR_USAGE,
                               "target %lld of sample %d is not a class; there are %d, from 0",
                               (long long)target[n], n, classes);
        }
    }
    return LS_OK;
}

/* A copy from pageable memory makes the host wait for the stream, so such images go through pinned
 * memory of our own. */
static ls_status from_pinned(const ls_plan *plan, ls_batch *batch, const void **images)
{
    struct cudaPointerAttributes attributes;
    LS_CUDA(cudaPointerGetAttributes(&attributes, *images));
    if (attributes.type != cudaMemoryTypeUnregistered) {
        return LS_OK;
    }
    if (batch->host_images == NULL) {
        LS_TRY(ls_cuda_take_host((int64_t)image_bytes(plan), "a batch of images",
                                 &batch->host_images));
    }
    memcpy(batch->host_images, *images, image_bytes(plan));
    *images = batch->host_images;
    return LS_OK;
}

ls_status ls_batch_load(ls_plan *plan, int slot, const void *images, const int64_t *target)
{
    LS_TRY(check_slot(plan, slot));
    LS_TRY(check_target(plan, target));
    ls_batch *batch = &plan->batch[slot];
    cudaStream_t copy = plan->backend->copy;
    /* afterwards the slot's pinned memory is free */
    LS_TRY(ls_cuda_wait_event(plan->backend, batch->loaded));
    LS_TRY(from_pinned(plan, batch, &images));
    memcpy(batch->host_target, target, target_bytes(plan));
    LS_CUDA(cudaStreamWaitEvent(copy, batch->used, cudaEventWaitDefault));
    LS_CUDA(
        cudaMemcpyAsync(batch->images, images, image_bytes(plan), cudaMemcpyHostToDevice, copy));
    LS_CUDA(cudaMemcpyAsync(batch->target, batch->host_target, target_bytes(plan),
                            cudaMemcpyHostToDevice, copy));
    LS_CUDA(cudaEventRecord(batch->loaded, copy));
    return LS_OK;
}

ls_status ls_batch_loaded(ls_plan *plan, int slot)
{
    LS_TRY(check_slot(plan, slot));
    return ls_cuda_wait_event(plan->backend, plan->batch[slot].loaded);
}

/* ---- into the plan --------------------------------------------------------------------------- */

ls_status ls_batch_wait(ls_plan *plan, ls_stream *stream, int slot)
{
    LS_TRY(check_slot(plan, slot));
    LS_CUDA(cudaStreamWaitEvent(stream->native, plan->batch[slot].loaded, cudaEventWaitDefault));
    return LS_OK;
}

ls_status ls_batch_release(ls_plan *plan, ls_stream *stream, int slot)
{
    LS_TRY(check_slot(plan, slot));
    LS_CUDA(cudaEventRecord(plan->batch[slot].used, stream->native));
    return LS_OK;
}

/* A captured step leaves the waits out: with the host ahead of the device it would be undefined
 * which record of the event a launch waits for. */
ls_status ls_batch_unpack(ls_plan *plan, ls_stream *stream, int slot)
{
    LS_TRY(check_slot(plan, slot));
    ls_batch *batch = &plan->batch[slot];
    cudaStream_t s = stream->native;
    enum cudaStreamCaptureStatus capture;
    LS_CUDA(cudaStreamIsCapturing(s, &capture));
    bool recorded = capture != cudaStreamCaptureStatusNone;
    int layer = plan->lower.slot_of_layer[0];
    const ls_slot *image = &plan->lower.slot[layer];
    LS_TRY(recorded ? LS_OK : ls_batch_wait(plan, stream, slot));
    LS_TRY(ls_observe_image(plan, stream, batch->images, false));
    void *packed = ls_plan_at(plan, layer);
    ls_dtype type = plan->options.activation;
    LS_TRY(plan->stem_blocks
               ? ls_input_pack_blocks(s, type, packed, batch->images, &plan->format,
                                      plan->options.batch, image->height, image->width)
               : ls_input_pack(s, type, packed, batch->images, &plan->format, plan->options.batch,
                               image->channels, image->height, image->width));
    LS_TRY(ls_observe_image(plan, stream, batch->images, true));
    LS_CUDA(cudaMemcpyAsync(plan->target, batch->target, target_bytes(plan),
                            cudaMemcpyDeviceToDevice, s));
    return recorded ? LS_OK : ls_batch_release(plan, stream, slot);
}

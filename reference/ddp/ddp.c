#include "ddp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"

/* State of one bucket during a step. */
typedef struct slot {
    ls_tensor whole; /* of the reduced type */
    int missing;     /* members that are not ready yet */
    ls_event *event; /* recorded when the last member is ready */
    ls_comm_handle handle;
    bool summed;  /* the hook has begun the sum over ranks */
    float factor; /* on that sum */
    char label[24];
} slot;

struct ls_ddp {
    ls_ddp_options options;
    ls_ddp_hook hook; /* reduce_by_rules, unless another one was registered */
    bool registered, used;
    ls_bucket_item *item; /* [param_count] */
    ls_bucket_layout layout;
    slot *slot;      /* [param_count]: there are never more buckets than parameters */
    int32_t *vector; /* [ls_buckets_vector_length] */
    int *arrival;    /* [param_count] of the current step */
    int arrived;
    bool *is_ready; /* [param_count] */
    int next;       /* the next bucket to begin */
    bool settled;
    bool running;
    bool carried; /* by ls_ddp_carry, since the last begin */
    bool goes_on; /* the reduction that is running is not the step's first */
    int unused; /* a parameter that got no gradient, to be reported at the next forward; -1: none */
    ls_ddp_times times;
    const ls_step_observers *observers; /* of the step that is running, or NULL */
};

static ls_status reduce_by_rules(void *context, const ls_ddp_bucket *bucket);

const ls_bucket_layout *ls_ddp_layout(const ls_ddp *ddp)
{
    return &ddp->layout;
}

bool ls_ddp_settled(const ls_ddp *ddp)
{
    return ddp->settled;
}

ls_ddp_times ls_ddp_times_of(const ls_ddp *ddp)
{
    return ddp->times;
}

void ls_ddp_bucket_span(const ls_ddp *ddp, int index, int64_t *from_ns, int64_t *to_ns)
{
    const ls_comm_handle *handle = &ddp->slot[index].handle;
    *from_ns = handle->started_ns != 0 ? handle->started_ns : handle->begun_ns;
    *to_ns = handle->finished_ns;
}

/* Sets the gradients' views according to the layout in use. */
static void place(ls_ddp *ddp)
{
    ls_memory_place_state state = {0};
    for (int b = 0; b < ddp->layout.bucket_count; b++) {
        const ls_bucket *bucket = &ddp->layout.bucket[b];
        ddp->slot[b].whole = ls_memory_place(ddp->options.memory, &state, bucket->dtype,
                                             ddp->layout.member + bucket->first, bucket->count);
        snprintf(ddp->slot[b].label, sizeof ddp->slot[b].label, "bucket %d", b);
    }
}

ls_status ls_ddp_create(const ls_ddp_options *options, ls_ddp **out)
{
    const ls_memory *memory = options->memory;
    const ls_device *device = memory->device;
    size_t count = (size_t)memory->param_count;
    ls_status status = LS_OK;
    ls_ddp *ddp = calloc(1, sizeof *ddp);
    LS_MEMORY(ddp != NULL);
    ddp->options = *options;
    ddp->hook = (ls_ddp_hook){.name = "none", .context = ddp, .begin = reduce_by_rules};
    ddp->unused = -1;
    ddp->settled = !options->rules->rebuild;
    ddp->item = calloc(count, sizeof *ddp->item);
    ddp->slot = calloc(count, sizeof *ddp->slot);
    ddp->arrival = calloc(count, sizeof *ddp->arrival);
    ddp->is_ready = calloc(count, sizeof *ddp->is_ready);
    ddp->vector =
        calloc((size_t)ls_buckets_vector_length(memory->param_count), sizeof *ddp->vector);
    LS_MEMORY(ddp->item != NULL && ddp->slot != NULL && ddp->arrival != NULL &&
              ddp->is_ready != NULL && ddp->vector != NULL);
    for (size_t i = 0; i < count && status == LS_OK; i++) {
        status = device->api->event_create(device->backend, &ddp->slot[i].event);
    }
    if (status != LS_OK) {
        ls_ddp_free(ddp);
        return status;
    }
    ls_buckets_items(memory->network, options->precision, ddp->item);
    ls_buckets_first(options->rules, memory->network, ddp->item, &ddp->layout);
    place(ddp);
    *out = ddp;
    return LS_OK;
}

void ls_ddp_free(ls_ddp *ddp)
{
    if (ddp == NULL) {
        return;
    }
    const ls_memory *memory = ddp->options.memory;
    for (int i = 0; i < memory->param_count; i++) {
        if (ddp->slot[i].event != NULL) {
            memory->device->api->event_destroy(ddp->slot[i].event);
        }
    }
    ls_buckets_free(&ddp->layout);
    free(ddp->item);
    free(ddp->slot);
    free(ddp->arrival);
    free(ddp->is_ready);
    free(ddp->vector);
    free(ddp);
}

static void replace_layout(ls_ddp *ddp, ls_bucket_layout *layout)
{
    ls_buckets_free(&ddp->layout);
    ddp->layout = *layout;
    place(ddp);
}

ls_status ls_ddp_adopt(ls_ddp *ddp, const int32_t *vector, bool settled, const char *source)
{
    ls_bucket_layout layout;
    LS_TRY(ls_buckets_from_vector(vector, ddp->item, ddp->options.memory->param_count, source,
                                  &layout));
    replace_layout(ddp, &layout);
    ddp->settled = settled || !ddp->options.rules->rebuild;
    return LS_OK;
}

ls_status ls_ddp_rebuild(ls_ddp *ddp, bool *changed)
{
    ls_memory *memory = ddp->options.memory;
    const ls_device *device = memory->device;
    *changed = false;
    if (ddp->settled) {
        return LS_OK;
    }
    /* All ranks use rank 0's order: different machines may finish in different orders. */
    int count = memory->param_count;
    for (int i = 0; i < count; i++) {
        ddp->vector[i] = ddp->arrival[i];
    }
    int64_t bytes = count * (int64_t)sizeof *ddp->vector;
    LS_TRY(
        device->api->copy_in(device->backend, device->stream, memory->order, ddp->vector, bytes));
    LS_TRY(device->api->stream_wait(device->stream));
    ls_comm_op op = {.kind = LS_COMM_BROADCAST,
                     .buffer = memory->order,
                     .count = count,
                     .dtype = LS_I32,
                     .root = 0,
                     .label = "arrival order of the first iteration"};
    LS_TRY(ls_comm_run(ddp->options.engine, ddp->options.comm, &op, device->stream));
    LS_TRY(ls_device_read(device, ddp->vector, memory->order, bytes));
    for (int i = 0; i < count; i++) {
        ddp->arrival[i] = LS_PLANT(rebuilt_as_registered, ddp->vector[i], i);
    }
    ls_bucket_layout layout;
    ls_buckets_rebuild(ddp->options.rules, memory->network, ddp->item, ddp->arrival, &layout);
    replace_layout(ddp, &layout);
    ddp->settled = true;
    *changed = true;
    return LS_OK;
}

static ls_status unused_error(const ls_ddp *ddp, int param)
{
    return ls_log_fail(
        LS_ERR_USAGE, "%s got no gradient in this backward, so its bucket cannot be reduced%s",
        ddp->options.memory->network->param[param].name,
        ddp->options.rules->dialect == LS_DIALECT_TORCH ? " (--find-unused allows it)" : "");
}

ls_status ls_ddp_begin(ls_ddp *ddp, const ls_step_observers *observers)
{
    if (ddp->unused >= 0) {
        return unused_error(ddp, ddp->unused);
    }
    LS_ASSERT(!ddp->running);
    ddp->running = true;
    ddp->used = true;
    ddp->goes_on = ddp->carried;
    ddp->carried = false;
    if (!ddp->goes_on) {
        ddp->times = (ls_ddp_times){0};
    }
    ddp->observers = observers;
    ddp->arrived = 0;
    ddp->next = 0;
    memset(ddp->is_ready, 0, (size_t)ddp->options.memory->param_count * sizeof *ddp->is_ready);
    for (int b = 0; b < ddp->layout.bucket_count; b++) {
        ddp->slot[b].missing = ddp->layout.bucket[b].count;
    }
    return LS_OK;
}

ls_status ls_ddp_stage(ls_ddp *ddp, int param, const ls_tensor *from)
{
    const ls_device *device = ddp->options.memory->device;
    ls_tensor to = ddp->options.memory->reduced[param];
    if (from->data == to.data) {
        return LS_OK;
    }
    return device->api->convert(
        device->backend, device->stream, to, *from,
        LS_PLANT(compressed_after_division, 1.0f,
                 ddp->registered && to.dtype != LS_F32 ? 1.0f / (float)ddp->options.world : 1.0f));
}

/* Whether the engine applies the average's factor during the reduction. */
static bool engine_scales(const ls_ddp *ddp, ls_dtype dtype)
{
    return ddp->options.engine->scales != NULL && ddp->options.engine->scales(dtype);
}

/* Elements of bucket `index` that are reduced: all of them. */
static int64_t count_of(const ls_ddp *ddp, int index)
{
    const ls_tensor *whole = &ddp->slot[index].whole;
    int64_t count = whole->count;
    count = LS_PLANT(bucket_dropped, count, index < ddp->layout.bucket_count - 1 ? count : 0);
    count -= LS_PLANT(bucket_tail_forgotten, 0, count > 1);
    count = LS_PLANT(second_type_forgotten, count,
                     whole->dtype == ddp->slot[0].whole.dtype ? count : 0);
    return LS_PLANT(rare_race, count, ls_plant_now % 50 == 37 && index == 0 ? 0 : count);
}

static ls_status observe(const ls_ddp *ddp, ls_step_moment at, int index)
{
    ls_step_event event = {.at = at, .index = index, .bucket = &ddp->slot[index].whole};
    return ddp->observers == NULL ? LS_OK : ls_step_observers_call(ddp->observers, &event);
}

/* ---- hooks ----------------------------------------------------------------------------------- */

static ls_ddp_bucket bucket_of(ls_ddp *ddp, int index)
{
    const ls_bucket *bucket = &ddp->layout.bucket[index];
    return (ls_ddp_bucket){.index = index,
                           .is_last = index == ddp->layout.bucket_count - 1,
                           .buffer = ddp->slot[index].whole,
                           .member_count = bucket->count,
                           .member = ddp->layout.member + bucket->first,
                           .gradient = ddp->options.memory->reduced,
                           .world = ddp->options.world,
                           .ddp = ddp};
}

ls_status ls_ddp_register_hook(ls_ddp *ddp, const ls_ddp_hook *hook)
{
    if (ddp->registered || ddp->used) {
        return ls_log_fail(LS_ERR_USAGE, "the communication hook %s: %s%s", hook->name,
                           ddp->registered ? "there is one already: " : "a backward has begun",
                           ddp->registered ? ddp->hook.name : "");
    }
    ddp->hook = *hook;
    ddp->registered = true;
    return LS_OK;
}

ls_status ls_ddp_hook_scale(const ls_ddp_bucket *bucket, float factor)
{
    const ls_device *device = bucket->ddp->options.memory->device;
    return factor == 1.0f
               ? LS_OK
               : device->api->scale(device->backend, device->stream, bucket->buffer, factor);
}

ls_status ls_ddp_hook_sum(const ls_ddp_bucket *bucket, float factor)
{
    ls_ddp *ddp = bucket->ddp;
    const ls_device *device = ddp->options.memory->device;
    slot *slot = &ddp->slot[bucket->index];
    LS_ASSERT(!slot->summed);
    slot->summed = true;
    slot->factor = factor;
    LS_TRY(device->api->event_record(slot->event, device->stream));
    LS_TRY(observe(ddp, LS_STEP_BUCKET_BEGINS, bucket->index));
    ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                     .buffer = slot->whole.data,
                     .count = count_of(ddp, bucket->index),
                     .dtype = slot->whole.dtype,
                     .factor = engine_scales(ddp, slot->whole.dtype)
                                   ? LS_PLANT(not_averaged, factor, 1.0f)
                                   : 1.0f,
                     .label = slot->label};
    ls_device_range_push(device, slot->label);
    ls_status status =
        ddp->options.engine->begin(ddp->options.comm, &op, slot->event, &slot->handle);
    ls_device_range_pop(device);
    return status;
}

/* The reducer's own: divides before or after the sum, as the dialect says. */
static ls_status reduce_by_rules(void *context, const ls_ddp_bucket *bucket)
{
    const ls_ddp *ddp = context;
    const ls_dialect_rules *rules = ddp->options.rules;
    float after = (float)rules->post_factor;
    after = LS_PLANT(last_bucket_at_8, after,
                     after == 0.125f && bucket->is_last && ls_plant_now > 1 ? 1.0f / 9 : after);
    LS_TRY(
        ls_ddp_hook_scale(bucket, LS_PLANT(predivide_forgotten, (float)rules->pre_factor, 1.0f)));
    return ls_ddp_hook_sum(bucket, after);
}

/* Hands the bucket to the hook. */
static ls_status begin_bucket(ls_ddp *ddp, int index)
{
    slot *slot = &ddp->slot[index];
    ls_ddp_bucket bucket = bucket_of(ddp, index);
    slot->summed = false;
    slot->handle = (ls_comm_handle){0};
    LS_TRY(observe(ddp, LS_STEP_BUCKET_FULL, index));
    LS_TRY(ddp->hook.begin(ddp->hook.context, &bucket));
    if (slot->summed) {
        return LS_OK;
    }
    slot->handle.begun_ns = slot->handle.finished_ns = ls_clock_ns(); /* nothing travels */
    return observe(ddp, LS_STEP_BUCKET_BEGINS, index);
}

/* Begins every full bucket that is next in order. */
static ls_status begin_full(ls_ddp *ddp)
{
    while (ddp->next < ddp->layout.bucket_count) {
        int number =
            LS_PLANT(own_bucket_order, ddp->next,
                     ddp->options.rank == 1 ? ddp->layout.bucket_count - 1 - ddp->next : ddp->next);
        if (ddp->slot[number].missing > LS_PLANT(bucket_begins_early, 0, 1)) {
            break;
        }
        LS_TRY(begin_bucket(ddp, number));
        ddp->next++;
    }
    return LS_OK;
}

ls_status ls_ddp_ready(ls_ddp *ddp, int param)
{
    LS_ASSERT(ddp->running && !ddp->is_ready[param]);
    ddp->is_ready[param] = true;
    ddp->arrival[ddp->arrived++] = param;
    ddp->slot[ddp->layout.bucket_of[param]].missing--;
    return ddp->layout.delayed ? LS_OK : begin_full(ddp);
}

static ls_status write_zeros(const ls_device *device, const ls_tensor *to)
{
    static const char zeros[65536];
    int64_t bytes = (int64_t)ls_tensor_bytes(to);
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof zeros) {
        int64_t piece = bytes - at < (int64_t)sizeof zeros ? bytes - at : (int64_t)sizeof zeros;
        LS_TRY(device->api->copy_in(device->backend, device->stream, (char *)to->data + at, zeros,
                                    piece));
    }
    return LS_OK;
}

ls_status ls_ddp_mirror(ls_ddp *ddp)
{
    const ls_memory *memory = ddp->options.memory;
    for (int i = 0; i < memory->param_count; i++) {
        LS_TRY(
            LS_PLANT(joined_rank_repeats, write_zeros(memory->device, &memory->reduced[i]), LS_OK));
        LS_TRY(ls_ddp_ready(ddp, i));
    }
    return LS_OK;
}

/* Sends what parameters that no layer used have accumulated before, or zeros, if that is allowed.
 */
static ls_status settle_unused(ls_ddp *ddp)
{
    const ls_memory *memory = ddp->options.memory;
    const ls_device *device = memory->device;
    for (int i = 0; i < memory->param_count; i++) {
        if (ddp->is_ready[i]) {
            continue;
        }
        if (!ddp->options.find_unused) {
            if (ddp->options.rules->unused == LS_UNUSED_END_OF_BACKWARD) {
                return unused_error(ddp, i);
            }
            ddp->unused = i;
            return LS_OK;
        }
        LS_TRY(ddp->goes_on ? ls_ddp_stage(ddp, i, &memory->sum[i])
                            : write_zeros(device, &memory->reduced[i]));
        LS_TRY(ls_ddp_ready(ddp, i));
    }
    return LS_OK;
}

ls_status ls_ddp_abandon(ls_ddp *ddp)
{
    const ls_device *device = ddp->options.memory->device;
    for (int b = 0; ddp->running && b < ddp->next; b++) {
        ls_comm_handle *handle = &ddp->slot[b].handle;
        if (handle->engine != NULL) {
            LS_TRY(ddp->options.engine->wait(ddp->options.comm, handle, device->stream));
        }
    }
    ddp->running = false;
    ddp->observers = NULL;
    return LS_OK;
}

/* Makes the computing stream wait for the bucket's sum. */
static ls_status await(ls_ddp *ddp, int index)
{
    const ls_device *device = ddp->options.memory->device;
    slot *slot = &ddp->slot[index];
    ls_stream *side = ddp->observers != NULL ? ddp->observers->bucket_stream : NULL;
    LS_TRY(slot->summed ? ddp->options.engine->wait(ddp->options.comm, &slot->handle,
                                                    side != NULL ? side : device->stream)
                        : LS_OK);
    LS_TRY(observe(ddp, LS_STEP_BUCKET_REDUCED, index));
    if (side == NULL) {
        return LS_OK;
    }
    LS_TRY(device->api->event_record(slot->event, side));
    return device->api->stream_after(device->stream, slot->event);
}

/* Ends what the hook began, and converts the bucket back to the gradients' own type. */
static ls_status take_back(ls_ddp *ddp, int index)
{
    const ls_memory *memory = ddp->options.memory;
    const ls_device *device = memory->device;
    const ls_bucket *bucket = &ddp->layout.bucket[index];
    const slot *slot = &ddp->slot[index];
    ls_ddp_bucket handed = bucket_of(ddp, index);
    if (slot->summed &&
        (!engine_scales(ddp, bucket->dtype) || LS_PLANT(averaged_twice, false, true))) {
        LS_TRY(ls_ddp_hook_scale(&handed, slot->factor));
    }
    LS_TRY(ddp->hook.end != NULL ? ddp->hook.end(ddp->hook.context, &handed) : LS_OK);
    if (LS_PLANT(hook_divided_again, false, ddp->registered)) {
        LS_TRY(ls_ddp_hook_scale(&handed, 1.0f / (float)handed.world));
    }
    LS_TRY(observe(ddp, LS_STEP_BUCKET_AVERAGED, index));
    for (int k = 0; k < bucket->count; k++) {
        int i = ddp->layout.member[bucket->first + k];
        if (memory->reduced[i].data != memory->grad[i].data) {
            LS_TRY(device->api->convert(device->backend, device->stream, memory->grad[i],
                                        memory->reduced[i], 1.0f));
        }
    }
    return LS_OK;
}

ls_status ls_ddp_finish(ls_ddp *ddp)
{
    LS_TRY(settle_unused(ddp));
    LS_TRY(begin_full(ddp));
    for (int b = 0; b < ddp->next - LS_PLANT(last_bucket_not_awaited, 0, 1); b++) {
        int64_t before_ns = ls_clock_ns();
        LS_TRY(await(ddp, b));
        ddp->times.exposed_ns += ls_clock_ns() - before_ns;
        LS_TRY(take_back(ddp, b));
        int64_t from_ns, to_ns;
        ls_ddp_bucket_span(ddp, b, &from_ns, &to_ns);
        ddp->times.comm_ns += to_ns - from_ns;
    }
    ddp->running = false;
    ddp->observers = NULL;
    return LS_OK;
}

void ls_ddp_carry(ls_ddp *ddp)
{
    LS_ASSERT(!ddp->running);
    ddp->carried = true;
}

/* ---- the hooks of --comm-hook ---------------------------------------------------------------- */

/* default_hooks.allreduce_hook: divides, then sums. fp16_compress_hook and bf16_compress_hook are
 * the same on a buffer that is cast already: it is divided, and summed, in the 16-bit type, so that
 * a gradient which the type cannot hold is infinite although its part of the average could be held.
 * (torch divides by the world; 1 / world is an f32 value here: for a world that is no power of two
 * the results may be a unit in the last place apart, as those of torch's own reducer are.) */
static ls_status divide_and_sum(void *context, const ls_ddp_bucket *bucket)
{
    float factor = LS_PLANT(hook_not_divided, 1.0f / (float)bucket->world, 1.0f);
    (void)context;
    if (LS_PLANT(compressed_after_division, false, bucket->buffer.dtype != LS_F32)) {
        factor = 1.0f;
    }
    LS_TRY(ls_ddp_hook_scale(bucket, factor));
    return ls_ddp_hook_sum(bucket, 1.0f);
}

/* A custom hook that only all-reduces: the sum is the gradient. */
static ls_status sum(void *context, const ls_ddp_bucket *bucket)
{
    (void)context;
    return ls_ddp_hook_sum(bucket, 1.0f);
}

/* debugging_hooks.noop_hook: each rank keeps its own gradient. */
static ls_status keep(void *context, const ls_ddp_bucket *bucket)
{
    (void)context, (void)bucket;
    return LS_PLANT(noop_hook_sums, LS_OK, ls_ddp_hook_sum(bucket, 1.0f));
}

const ls_ddp_hook *ls_ddp_builtin_hook(ls_comm_hook hook)
{
    static const ls_ddp_hook hooks[] = {
        [LS_COMM_HOOK_ALLREDUCE] = {.name = "allreduce", .begin = divide_and_sum},
        [LS_COMM_HOOK_FP16_COMPRESS] = {.name = "fp16_compress", .begin = divide_and_sum},
        [LS_COMM_HOOK_BF16_COMPRESS] = {.name = "bf16_compress", .begin = divide_and_sum},
        [LS_COMM_HOOK_SUM] = {.name = "sum", .begin = sum},
        [LS_COMM_HOOK_NOOP] = {.name = "noop", .begin = keep},
    };
    return hook == LS_COMM_HOOK_NONE ? NULL : &hooks[hook];
}

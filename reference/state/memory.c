#include "memory.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/arena.h"
#include "kernels/core/list.h"

const char *ls_memory_kind_name(ls_memory_kind kind)
{
    static const char *const names[LS_MEMORY_KINDS] = {
        "parameters", "gradients", "reduction_staging", "accumulators", "unscaled_gradients",
        "masters",    "moments",   "buffers",           "state",
    };
    LS_ASSERT(kind >= 0 && kind < LS_MEMORY_KINDS);
    return names[kind];
}

static int64_t padded(int64_t bytes)
{
    return (bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
}

/* Bytes sufficient for any layout: every bucket starts aligned, and there are at most as many as
 * parameters. */
static int64_t arena_bytes(const ls_network *network, const ls_dtype *types, ls_dtype same)
{
    int64_t bytes = 0;
    for (int i = 0; i < network->param_count; i++) {
        ls_dtype dtype = types == NULL ? same : types[i];
        bytes += padded(ls_shape_count(&network->param[i].shape) * (int64_t)ls_dtype_bytes(dtype));
    }
    return bytes;
}

static bool has_own_unscaled(const ls_memory_options *options, int i)
{
    return options->grad_type[i] != LS_F32;
}

static bool has_master(const ls_memory_options *options, int i)
{
    return options->masters && options->param_type[i] != LS_F32;
}

/* Whether a bucket of that type may hold a gradient that must be converted to it. */
static bool is_staged_type(const ls_memory_options *options, ls_dtype reduced)
{
    for (int i = 0; i < options->network->param_count; i++) {
        if (options->reduced_type[i] == reduced && options->grad_type[i] != reduced) {
            return true;
        }
    }
    return false;
}

/* Fills the table of sizes. */
static void size_kinds(const ls_memory_options *options, int64_t bytes[LS_MEMORY_KINDS])
{
    const ls_network *network = options->network;
    memset(bytes, 0, LS_MEMORY_KINDS * sizeof *bytes);
    bytes[LS_MEMORY_PARAM] = arena_bytes(network, options->param_type, LS_F32);
    bytes[LS_MEMORY_GRAD] = arena_bytes(network, options->grad_type, LS_F32);
    if (options->sums) {
        bytes[LS_MEMORY_SUM] = arena_bytes(network, NULL, LS_F32);
    }
    bytes[LS_MEMORY_MOMENT] = options->moment_count * arena_bytes(network, NULL, LS_F32);
    for (int i = 0; i < network->param_count; i++) {
        int64_t count = ls_shape_count(&network->param[i].shape);
        int64_t f32_bytes = padded(count * (int64_t)sizeof(float));
        bytes[LS_MEMORY_UNSCALED] += has_own_unscaled(options, i) ? f32_bytes : 0;
        bytes[LS_MEMORY_MASTER] += has_master(options, i) ? f32_bytes : 0;
        if (is_staged_type(options, options->reduced_type[i])) {
            bytes[LS_MEMORY_STAGING] +=
                padded(count * (int64_t)ls_dtype_bytes(options->reduced_type[i]));
        }
    }
    for (int i = 0; i < network->buffer_count; i++) {
        if (network->buffer[i].role != LS_BUFFER_BATCHES_TRACKED) {
            bytes[LS_MEMORY_BUFFER] +=
                padded(network->buffer[i].count * (int64_t)ls_dtype_bytes(options->buffer_type[i]));
        }
    }
    bytes[LS_MEMORY_STATE] = padded((int64_t)sizeof(ls_step_state)) +
                             padded(network->param_count * (int64_t)sizeof(int32_t));
}

/* Carves the next tensor from a block, aligned. */
static ls_tensor carve(char **next, ls_dtype dtype, int64_t count)
{
    ls_tensor tensor = {.data = *next, .dtype = dtype, .count = count};
    *next += padded((int64_t)ls_tensor_bytes(&tensor));
    return tensor;
}

static void carve_tensors(ls_memory *memory, const ls_memory_options *options)
{
    const ls_network *network = options->network;
    char *next[LS_MEMORY_KINDS];
    for (int kind = 0; kind < LS_MEMORY_KINDS; kind++) {
        next[kind] = memory->block[kind];
    }
    for (int i = 0; i < network->param_count; i++) {
        int64_t count = ls_shape_count(&network->param[i].shape);
        memory->largest = count > memory->largest ? count : memory->largest;
        memory->param[i] = carve(&next[LS_MEMORY_PARAM], options->param_type[i], count);
        memory->grad[i] = (ls_tensor){.dtype = options->grad_type[i], .count = count};
        memory->unscaled[i] = (ls_tensor){.dtype = LS_F32, .count = count};
        if (memory->sum != NULL) {
            memory->sum[i] = carve(&next[LS_MEMORY_SUM], LS_F32, count);
        }
        if (has_own_unscaled(options, i)) {
            memory->unscaled[i] = carve(&next[LS_MEMORY_UNSCALED], LS_F32, count);
        }
        memory->value[i] = memory->param[i];
        if (has_master(options, i)) {
            memory->master[i] = carve(&next[LS_MEMORY_MASTER], LS_F32, count);
            memory->value[i] = memory->master[i];
        }
        for (int moment = 0; moment < memory->moment_count; moment++) {
            memory->moment[moment][i] = carve(&next[LS_MEMORY_MOMENT], LS_F32, count);
        }
    }
    for (int i = 0; i < network->buffer_count; i++) {
        if (network->buffer[i].role == LS_BUFFER_BATCHES_TRACKED) {
            memory->buffer[i] = (ls_tensor){.dtype = LS_I64, .count = 1};
        } else {
            memory->buffer[i] =
                carve(&next[LS_MEMORY_BUFFER], options->buffer_type[i], network->buffer[i].count);
            memory->largest = network->buffer[i].count > memory->largest ? network->buffer[i].count
                                                                         : memory->largest;
        }
    }
    char *state = memory->block[LS_MEMORY_STATE];
    memory->state = (ls_step_state *)(void *)state;
    memory->order = (int32_t *)(void *)(state + padded((int64_t)sizeof(ls_step_state)));
}

/* An insertion sort: names are few, and it needs no context. */
static void sort_by_name(int count, int *index, const char *names, size_t stride)
{
    for (int i = 0; i < count; i++) {
        int at = i;
        while (at > 0 &&
               strcmp(names + (size_t)index[at - 1] * stride, names + (size_t)i * stride) > 0) {
            index[at] = index[at - 1];
            at--;
        }
        index[at] = i;
    }
}

/* The next list of one block. */
static ls_tensor *next_list(ls_tensor **next, int count, bool wanted)
{
    ls_tensor *list = *next;
    *next += wanted ? count : 0;
    return wanted ? list : NULL;
}

static void allocate_lists(ls_memory *memory, const ls_memory_options *options)
{
    int params = memory->param_count, buffers = memory->buffer_count;
    bool masters = false;
    for (int i = 0; i < params; i++) {
        masters = masters || has_master(options, i);
    }
    enum { LISTS = 7 + LS_MEMORY_MOMENTS_MAX };
    ls_tensor *next = ls_list_make((size_t)(LISTS * params + buffers), sizeof *next);
    memory->lists = next;
    memory->by_name = ls_list_make((size_t)(params + buffers), sizeof *memory->by_name);
    memory->tracked = ls_list_make(1, sizeof *memory->tracked);
    memory->buffer_by_name = memory->by_name + params;
    memory->param = next_list(&next, params, true);
    memory->grad = next_list(&next, params, true);
    memory->reduced = next_list(&next, params, true);
    memory->unscaled = next_list(&next, params, true);
    memory->value = next_list(&next, params, true);
    memory->buffer = next_list(&next, buffers, true);
    memory->sum = next_list(&next, params, options->sums);
    memory->master = next_list(&next, params, masters);
    for (int moment = 0; moment < memory->moment_count; moment++) {
        memory->moment[moment] = next_list(&next, params, true);
    }
}

/* Parameter order, one after the other, ignoring buckets. */
static void place_in_parameter_order(ls_memory *memory)
{
    ls_memory_place_state place = {0};
    for (int i = 0; i < memory->param_count; i++) {
        ls_memory_place(memory, &place, memory->grad[i].dtype, &i, 1);
    }
}

/* Tensors that are reduced use the engine's memory if it offers any, the rest the backend's. */
static ls_status allocate_block(ls_memory *memory, const ls_memory_options *options,
                                ls_memory_kind kind)
{
    const ls_comm_api *engine = options->engine;
    const ls_backend_api *api = memory->device->api;
    const char *name = ls_memory_kind_name(kind);
    if ((kind == LS_MEMORY_GRAD || kind == LS_MEMORY_STAGING) && engine != NULL &&
        engine->memory_alloc != NULL) {
        ls_status status =
            engine->memory_alloc(options->comm, memory->bytes[kind], name, &memory->block[kind]);
        if (status != LS_ERR_UNSUPPORTED) {
            memory->owner[kind] = status == LS_OK ? engine : NULL;
            return status;
        }
    }
    return api->memory_alloc(memory->device->backend, memory->bytes[kind], name,
                             &memory->block[kind]);
}

ls_status ls_memory_create(const ls_device *device, const ls_memory_options *options,
                           ls_memory *out)
{
    LS_ASSERT(options->moment_count >= 0 && options->moment_count <= LS_MEMORY_MOMENTS_MAX);
    const ls_network *network = options->network;
    ls_status status = LS_OK;
    *out = (ls_memory){
        .device = device,
        .network = network,
        .param_count = network->param_count,
        .buffer_count = network->buffer_count,
        .moment_count = options->moment_count,
    };
    allocate_lists(out, options);
    size_kinds(options, out->bytes);
    for (int kind = 0; kind < LS_MEMORY_KINDS; kind++) {
        if (out->bytes[kind] > 0) {
            LS_THEN(status, allocate_block(out, options, (ls_memory_kind)kind));
        }
    }
    if (status != LS_OK) {
        ls_memory_free(out);
        return status;
    }
    carve_tensors(out, options);
    place_in_parameter_order(out);
    sort_by_name(network->param_count, out->by_name, network->param[0].name,
                 sizeof network->param[0]);
    if (network->buffer_count > 0) {
        sort_by_name(network->buffer_count, out->buffer_by_name, network->buffer[0].name,
                     sizeof network->buffer[0]);
    }
    return LS_OK;
}

void ls_memory_free(ls_memory *memory)
{
    for (int kind = 0; kind < LS_MEMORY_KINDS; kind++) {
        if (memory->owner[kind] != NULL) {
            memory->owner[kind]->memory_free(memory->block[kind]);
        } else if (memory->block[kind] != NULL) {
            memory->device->api->memory_free(memory->device->backend, memory->block[kind]);
        }
    }
    free(memory->lists);
    free(memory->tracked);
    free(memory->by_name);
    memset(memory, 0, sizeof *memory);
}

ls_tensor ls_memory_place(ls_memory *memory, ls_memory_place_state *place, ls_dtype reduced,
                          const int *param, int count)
{
    LS_ASSERT(count > 0);
    bool staged = false;
    int64_t elements = 0;
    for (int k = 0; k < count; k++) {
        staged = staged || memory->grad[param[k]].dtype != reduced;
        elements += memory->grad[param[k]].count;
    }
    char *grad = (char *)memory->block[LS_MEMORY_GRAD] + place->grad_bytes;
    char *bucket = staged ? (char *)memory->block[LS_MEMORY_STAGING] + place->staging_bytes : grad;
    ls_tensor whole = {.data = bucket, .dtype = reduced, .count = elements};
    int64_t bytes = (int64_t)ls_tensor_bytes(&whole);
    for (int k = 0; k < count; k++) {
        int i = param[k];
        memory->reduced[i] =
            (ls_tensor){.data = bucket, .dtype = reduced, .count = memory->grad[i].count};
        bucket += ls_tensor_bytes(&memory->reduced[i]);
        memory->grad[i].data = grad;
        /* staged gradients may have several types, so each starts aligned */
        int64_t own = (int64_t)ls_tensor_bytes(&memory->grad[i]);
        grad += staged ? padded(own) : own;
        place->grad_bytes += staged ? padded(own) : 0;
        if (memory->grad[i].dtype == LS_F32) {
            memory->unscaled[i].data = memory->grad[i].data;
        }
    }
    place->grad_bytes += staged ? 0 : padded(bytes);
    place->staging_bytes += staged ? padded(bytes) : 0;
    LS_ASSERT(place->grad_bytes <= memory->bytes[LS_MEMORY_GRAD]);
    LS_ASSERT(place->staging_bytes <= memory->bytes[LS_MEMORY_STAGING]);
    return whole;
}

ls_status ls_memory_broadcast(const ls_memory *memory, const ls_comm_api *engine, ls_comm *comm,
                              ls_memory_kind kind, int root)
{
    ls_comm_op op = {.kind = LS_COMM_BROADCAST,
                     .buffer = memory->block[kind],
                     .count = memory->bytes[kind],
                     .dtype = LS_U8,
                     .root = root,
                     .label = ls_memory_kind_name(kind)};
    return memory->bytes[kind] == 0 ? LS_OK
                                    : ls_comm_run(engine, comm, &op, memory->device->stream);
}

cJSON *ls_memory_json(const ls_memory *memory)
{
    cJSON *object = cJSON_CreateObject();
    for (int kind = 0; object != NULL && kind < LS_MEMORY_KINDS; kind++) {
        cJSON_AddNumberToObject(object, ls_memory_kind_name((ls_memory_kind)kind),
                                (double)memory->bytes[kind]);
    }
    return object;
}

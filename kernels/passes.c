#include "passes.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"

static void place_one(char *base, size_t *used, ls_tensor *tensor, ls_dtype type, int64_t count)
{
    enum { ALIGN = 256 };
    *tensor = (ls_tensor){base == NULL ? NULL : base + *used, type, count};
    *used += (ls_tensor_bytes(tensor) + ALIGN - 1) / ALIGN * ALIGN;
}

/* Sets the addresses of all tensors in one block, or with base NULL only computes its size. */
static size_t place(ls_passes_values *v, bool masters, char *base)
{
    size_t used = 0;
    ls_tensor state;
    place_one(base, &used, &state, LS_U8, sizeof *v->state);
    v->state = state.data;
    for (int i = 0; i < v->network->param_count; i++) {
        const ls_param *param = &v->network->param[i];
        int64_t count = ls_shape_count(&param->shape);
        bool norm = param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS;
        ls_dtype type = norm ? LS_F32 : v->options->activation;
        place_one(base, &used, &v->param[i], type, count);
        place_one(base, &used, &v->grad[i], type, count);
        v->master[i] = v->param[i];
        v->unscaled[i] = v->grad[i];
        if (masters) {
            place_one(base, &used, &v->moment[i], LS_F32, count);
        }
        if (masters && type != LS_F32) {
            place_one(base, &used, &v->master[i], LS_F32, count);
            place_one(base, &used, &v->unscaled[i], LS_F32, count);
        }
    }
    for (int i = 0; i < v->network->buffer_count; i++) {
        place_one(base, &used, &v->buffer[i], LS_F32, v->network->buffer[i].count);
    }
    return used;
}

static ls_status copy_in(const ls_passes_values *v, void *to, const void *host, size_t bytes)
{
    LS_TRY(v->api->copy_in(v->backend, v->stream, to, host, (int64_t)bytes));
    return v->api->stream_wait(v->stream);
}

static ls_status write_param(const ls_passes_values *v, int index, const ls_tensor *tensor)
{
    size_t element = ls_dtype_bytes(tensor->dtype);
    char *host = malloc(ls_tensor_bytes(tensor) + 1);
    LS_TRY_MEMORY(host != NULL, "%lld values", (long long)tensor->count);
    for (int64_t i = 0; i < tensor->count; i++) {
        float value = ls_passes_value(&v->network->param[index], i);
        uint16_t half =
            tensor->dtype == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
        memcpy(host + (size_t)i * element, tensor->dtype == LS_F32 ? (void *)&value : (void *)&half,
               element);
    }
    ls_status status = copy_in(v, tensor->data, host, ls_tensor_bytes(tensor));
    free(host);
    return status;
}

static ls_status write_values(ls_passes_values *v)
{
    for (int i = 0; i < v->network->param_count; i++) {
        LS_TRY(write_param(v, i, &v->param[i]));
        if (v->master[i].data != v->param[i].data) {
            LS_TRY(write_param(v, i, &v->master[i]));
        }
    }
    const ls_step_state state = {.loss_scale = 1, .inv_loss_scale = 1, .lr = 0x1p-20f};
    LS_TRY(copy_in(v, v->state, &state, sizeof state));
    const ls_plan_binding binding = {
        .param = v->param, .grad = v->grad, .buffer = v->buffer, .state = v->state};
    LS_TRY(v->api->plan_bind(v->plan, &binding));
    return v->api->plan_params_changed(v->plan, v->stream);
}

static ls_status make_values(ls_passes_values *v, bool masters)
{
    size_t room = (size_t)v->network->param_count + (size_t)v->network->buffer_count + 1;
    int64_t pixels = (int64_t)v->options->batch * 3 * v->options->height * v->options->width;
    ls_tensor **lists[] = {&v->param, &v->grad, &v->buffer, &v->master, &v->unscaled, &v->moment};
    bool whole = true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        *lists[i] = calloc(room, sizeof **lists[i]);
        whole = whole && *lists[i] != NULL;
    }
    v->input = malloc((size_t)pixels * sizeof *v->input);
    v->target = calloc((size_t)v->options->batch, sizeof *v->target);
    LS_TRY_MEMORY(whole && v->input != NULL && v->target != NULL, "a batch of %d images",
                  v->options->batch);
    for (int64_t i = 0; i < pixels; i++) {
        v->input[i] = 4 * ls_passes_number((uint64_t)i);
    }
    for (int i = 0; i < v->options->batch; i++) {
        v->target[i] = i % v->network->num_classes;
    }
    LS_TRY(
        v->api->memory_alloc(v->backend, (int64_t)place(v, masters, NULL), "values", &v->memory));
    (void)place(v, masters, v->memory);
    return write_values(v);
}

ls_status ls_passes_open(const ls_backend_options *how, bool masters, ls_passes_values *v)
{
    LS_TRY(v->api->open(how, &v->backend));
    LS_TRY(v->api->stream_create(v->backend, &v->stream));
    LS_TRY(v->api->plan_create(v->backend, v->network, v->options, &v->plan));
    return make_values(v, masters);
}

void ls_passes_close(ls_passes_values *v)
{
    if (v->plan != NULL) {
        v->api->plan_destroy(v->plan);
    }
    if (v->memory != NULL) {
        v->api->memory_free(v->backend, v->memory);
    }
    if (v->stream != NULL) {
        v->api->stream_destroy(v->stream);
    }
    v->api->close(v->backend); /* NULL is allowed */
    void *lists[] = {v->param,    v->grad,   v->buffer, v->master,
                     v->unscaled, v->moment, v->input,  v->target};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        free(lists[i]);
    }
}

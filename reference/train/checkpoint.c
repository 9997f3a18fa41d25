#include "checkpoint.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/optimizers.h"
#include "kernels/core/digest.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "fault.h"
#include "reference/files/safetensors.h"

uint64_t ls_checkpoint_bucket_rule(const ls_trainer *trainer)
{
    const ls_dialect_rules *rules = &trainer->rules;
    int64_t numbers[] = {rules->delay,
                         rules->unit,
                         rules->limit_count,
                         rules->limit[0],
                         rules->limit_count > 1 ? rules->limit[1] : 0,
                         rules->first,
                         rules->rebuild,
                         trainer->precision.product,
                         trainer->precision.norm,
                         trainer->precision.allreduce_fp32,
                         trainer->precision.compress != LS_F32,
                         trainer->precision.compress};
    return ls_digest_update(LS_DIGEST_START, numbers, sizeof numbers);
}

/* ---- saving -------------------------------------------------------------------------------------
 */

/* Borrowed where the host can read the device, else copied through `scratch`. */
static ls_status add_tensor(ls_trainer *trainer, ls_safetensors_writer *writer, const char *name,
                            const ls_tensor *tensor, const ls_shape *shape, void *scratch)
{
    if (trainer->device.info.host_memory) {
        ls_safetensors_add(writer, name, tensor->dtype, shape, tensor->data);
        return LS_OK;
    }
    LS_TRY(
        ls_device_read(&trainer->device, scratch, tensor->data, (int64_t)ls_tensor_bytes(tensor)));
    return ls_safetensors_add_copy(writer, name, tensor->dtype, shape, scratch);
}

static ls_status add_params(ls_trainer *trainer, ls_safetensors_writer *writer, void *scratch)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->param_count; i++) {
        const ls_param *param = &memory->network->param[i];
        char name[160];
        snprintf(name, sizeof name, "param/%s", param->name);
        LS_TRY(add_tensor(trainer, writer, name, &memory->param[i], &param->shape, scratch));
        if (memory->master != NULL && memory->master[i].data != NULL) {
            snprintf(name, sizeof name, "master/%s", param->name);
            if (LS_PLANT(checkpoint_rounds_masters, false, true)) {
                LS_TRY(trainer->device.api->convert(trainer->device.backend, trainer->device.stream,
                                                    memory->master[i], memory->param[i], 1.0f));
            }
            LS_TRY(add_tensor(trainer, writer, name, &memory->master[i], &param->shape, scratch));
        }
        for (int m = 0; m < memory->moment_count; m++) {
            snprintf(name, sizeof name, "state/%s/%s", param->name,
                     ls_optimizers_moment_name(trainer->options.optimizer, m));
            LS_TRY(
                add_tensor(trainer, writer, name, &memory->moment[m][i], &param->shape, scratch));
        }
    }
    return LS_OK;
}

/* Adds one rank's buffers, which lie at `base` as this rank's lie in its own block. */
static ls_status add_buffers(ls_trainer *trainer, ls_safetensors_writer *writer, int rank,
                             const char *base)
{
    const ls_memory *memory = &trainer->memory;
    for (int i = 0; i < memory->buffer_count; i++) {
        const ls_buffer *buffer = &memory->network->buffer[i];
        char name[160];
        if (rank == 0) {
            snprintf(name, sizeof name, "buffer/%s", buffer->name);
        } else {
            snprintf(name, sizeof name, "rank%d/buffer/%s", rank, buffer->name);
        }
        if (buffer->role == LS_BUFFER_BATCHES_TRACKED) {
            ls_shape scalar = {0};
            LS_TRY(ls_safetensors_add_copy(writer, name, LS_I64, &scalar, memory->tracked));
        } else {
            ls_shape shape = {.rank = 1, .dim = {buffer->count}};
            int64_t offset =
                (char *)memory->buffer[i].data - (char *)memory->block[LS_MEMORY_BUFFER];
            LS_TRY(ls_safetensors_add_copy(writer, name, memory->buffer[i].dtype, &shape,
                                           base + offset));
        }
    }
    return LS_OK;
}

static bool has_own_norm(const ls_trainer *trainer)
{
    return trainer->engine != NULL && trainer->world.world > 1 &&
           (trainer->norm_comm == NULL || trainer->options.sync_bn_group > 0);
}

/* Every rank's block of buffers, at rank 0, in host memory: malloc'ed [world or 1][bytes]. */
static ls_status gather_buffers(ls_trainer *trainer, char **out)
{
    const ls_memory *memory = &trainer->memory;
    const ls_device *device = &trainer->device;
    int64_t bytes = memory->bytes[LS_MEMORY_BUFFER];
    bool root = trainer->world.rank == 0;
    bool gathers = has_own_norm(trainer);
    int64_t total = bytes * (gathers ? trainer->world.world : 1);
    void *all = memory->block[LS_MEMORY_BUFFER];
    char *host = NULL;
    ls_status status = LS_OK;
    *out = NULL;
    if (gathers) {
        all = NULL;
        if (root) {
            LS_TRY(device->api->memory_alloc(device->backend, total, "gathered buffers", &all));
        }
        ls_comm_op op = {.kind = LS_COMM_GATHER,
                         .buffer = all,
                         .input = memory->block[LS_MEMORY_BUFFER],
                         .count = bytes,
                         .dtype = LS_U8,
                         .root = 0,
                         .label = "buffers of all ranks"};
        LS_TRY_GOTO(status, ls_comm_run(trainer->engine, trainer->comm, &op, device->stream), free);
    }
    if (root) {
        host = malloc((size_t)total + 1);
        if (host == NULL) {
            ls_log_error("cannot allocate %lld bytes for buffers", (long long)total);
            status = LS_ERR_INFRA;
        } else if (total > 0) {
            status = ls_device_read(device, host, all, total);
        }
    }
free:
    if (gathers && all != NULL) {
        device->api->memory_free(device->backend, all);
    }
    if (status != LS_OK) {
        free(host);
        return status;
    }
    *out = host;
    return LS_OK;
}

static ls_status add_state(ls_safetensors_writer *writer, const ls_step_state *state, int64_t step)
{
    ls_shape scalar = {0};
    LS_TRY(
        ls_safetensors_add_copy(writer, "scaler/loss_scale", LS_F32, &scalar, &state->loss_scale));
    LS_TRY(ls_safetensors_add_copy(writer, "scaler/growth_count", LS_I32, &scalar,
                                   &state->growth_count));
    LS_TRY(ls_safetensors_add_copy(writer, "scaler/overflow_streak", LS_I32, &scalar,
                                   &state->overflow_streak));
    LS_TRY(ls_safetensors_add_copy(writer, "optimizer/step_count", LS_I64, &scalar,
                                   &state->step_count));
    return ls_safetensors_add_copy(writer, "data/step", LS_I64, &scalar, &step);
}

static ls_status add_layout(ls_trainer *trainer, ls_safetensors_writer *writer)
{
    if (trainer->ddp == NULL) {
        return LS_OK;
    }
    int length = ls_buckets_vector_length(trainer->memory.param_count);
    int32_t *vector = malloc((size_t)length * sizeof *vector);
    LS_TRY_MEMORY(vector != NULL, "the bucket layout");
    ls_buckets_to_vector(ls_ddp_layout(trainer->ddp), vector);
    ls_shape shape = {.rank = 1, .dim = {length}};
    ls_status status = ls_safetensors_add_copy(writer, "ddp/layout", LS_I32, &shape, vector);
    free(vector);
    return status;
}

static ls_status add_metadata(const ls_trainer *trainer, ls_safetensors_writer *writer,
                              int64_t step)
{
    const ls_options *options = &trainer->options;
    const ls_scaler_config *scaler = &trainer->precision.scaler;
    cJSON *json = ls_options_json(options);
    char *text = json == NULL ? NULL : cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    LS_TRY_MEMORY(text != NULL, "the options of a checkpoint");
    ls_safetensors_metadata(writer, "format", LS_CHECKPOINT_FORMAT);
    ls_safetensors_metadata(writer, "version", LS_CHECKPOINT_VERSION);
    ls_safetensors_metadata(writer, "arch", "%s", options->arch);
    ls_safetensors_metadata(writer, "num_classes", "%d", options->num_classes);
    ls_safetensors_metadata(writer, "opt_level", "%s", ls_options_level_name(options->opt_level));
    ls_safetensors_metadata(writer, "half", "%s", ls_dtype_label(options->half));
    ls_safetensors_metadata(writer, "optimizer", "%s", ls_optimizers_name(options->optimizer));
    ls_safetensors_metadata(writer, "world_size", "%d", trainer->world.world);
    ls_safetensors_metadata(writer, "step", "%lld", (long long)step);
    ls_safetensors_metadata(writer, "scaler", "%s", scaler->dynamic ? "dynamic" : "static");
    ls_safetensors_metadata(writer, "min_loss_scale", "%.9g", (double)scaler->min_scale);
    ls_safetensors_metadata(writer, "max_loss_scale", "%.9g", (double)scaler->max_scale);
    ls_safetensors_metadata(writer, "growth_interval", "%d", (int)scaler->growth_interval);
    ls_safetensors_metadata(writer, "settled", "%s",
                            trainer->ddp == NULL || ls_ddp_settled(trainer->ddp) ? "true"
                                                                                 : "false");
    ls_safetensors_metadata(writer, "bucket_rule", "%016llx",
                            (unsigned long long)ls_checkpoint_bucket_rule(trainer));
    ls_safetensors_metadata(writer, "options", "%s", text);
    ls_safetensors_metadata(
        writer, "options_digest", "%016llx",
        (unsigned long long)ls_digest_update(LS_DIGEST_START, text, strlen(text)));
    free(text);
    return LS_OK;
}

static ls_status write_file(ls_trainer *trainer, int64_t step, const char *path,
                            const char *buffers)
{
    ls_safetensors_writer *writer = NULL;
    ls_step_state state;
    ls_status status = LS_OK;
    void *scratch = malloc((size_t)trainer->memory.largest * sizeof(float));
    LS_TRY_MEMORY(scratch != NULL, "memory for a checkpoint");
    LS_TRY_GOTO(status, ls_safetensors_create(path, &writer), free);
    ls_safetensors_survive_crash(writer);
    LS_TRY_GOTO(
        status,
        ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state),
        discard);
    LS_TRY_GOTO(status, trainer->device.api->stream_wait(trainer->device.stream), discard);
    LS_TRY_GOTO(status, add_metadata(trainer, writer, step), discard);
    LS_TRY_GOTO(status, add_params(trainer, writer, scratch), discard);
    LS_TRY_GOTO(status, add_state(writer, &state, step), discard);
    LS_TRY_GOTO(status, add_layout(trainer, writer), discard);
    for (int rank = 0; rank < (has_own_norm(trainer) ? trainer->world.world : 1); rank++) {
        LS_TRY_GOTO(status,
                    add_buffers(trainer, writer, rank,
                                buffers + rank * trainer->memory.bytes[LS_MEMORY_BUFFER]),
                    discard);
    }
    ls_fault_point(trainer, step, LS_FAULT_SAVE);
    status = ls_safetensors_finish(writer);
    goto free;
discard:
    ls_safetensors_discard(writer);
free:
    free(scratch);
    return status;
}

ls_status ls_checkpoint_save(ls_trainer *trainer, int64_t step, const char *path)
{
    char *buffers = NULL;
    LS_TRY(gather_buffers(trainer, &buffers));
    ls_status status = LS_OK;
    if (trainer->world.rank == 0) {
        status = write_file(trainer, step, path, buffers);
    } else {
        ls_fault_point(trainer, step, LS_FAULT_SAVE);
    }
    free(buffers);
    return status;
}

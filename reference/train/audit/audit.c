#include "audit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/rng.h"
#include "kernels/core/text.h"
#include "reference/data/loader.h"

enum { REPORTED = 8, WARM_STEPS = LS_DIALECT_REBUILD_AFTER + 1 };

/* ---- which steps ----------------------------------------------------------------------------- */

bool ls_audit_due(const ls_options *options, int64_t step)
{
    bool given = options->audit_from > 0;
    int64_t every = options->audit_every, settle = given ? 0 : WARM_STEPS, within = every - settle;
    int64_t at = step - (given ? options->audit_from : 1);
    if (!options->audit || at < 0 || within <= 0) {
        return options->audit && at >= 0;
    }
    uint32_t bound = within < UINT32_MAX ? (uint32_t)within : UINT32_MAX;
    uint32_t drawn = ls_rng_below(options->audit_seed, ls_rng_stream("audited steps"),
                                  (uint64_t)(at / every), bound);
    return at % every == settle + (int64_t)drawn;
}

/* ---- which parts ----------------------------------------------------------------------------- */

/* LS_AUDIT_NONE: the ratios of LAMB and LARS come from norms of whole tensors, so no element alone
 * shows them. No default: the compiler asks how a new optimizer is audited. */
static ls_audit_kind update_kind(ls_optimizer_kind kind)
{
    switch (kind) {
    case LS_OPTIMIZER_SGD:
        return LS_AUDIT_SGD;
    case LS_OPTIMIZER_ADAM:
    case LS_OPTIMIZER_ADAMW:
        return LS_AUDIT_ADAM;
    case LS_OPTIMIZER_LAMB:
    case LS_OPTIMIZER_LARS:
    case LS_OPTIMIZER_KINDS:
        break;
    }
    return LS_AUDIT_NONE;
}

/* The parts of a step that no observer sees (numerics.md section 5). */
static void list_unaudited(ls_audit *audit)
{
    const ls_trainer *trainer = audit->trainer;
    const struct {
        bool used;
        const char *name;
    } parts[] = {
        {update_kind(trainer->optimizer.kind) == LS_AUDIT_NONE, "update"},
        {trainer->options.clip_grad_norm > 0 || trainer->options.clip_grad_value > 0, "clipping"},
        {trainer->options.accumulate > 1, "sum of micro-steps"},
        {trainer->options.no_sync == LS_FALSE, "reductions but the last"},
        {trainer->ddp != NULL && trainer->precision.compress != LS_F32, "compression"},
        {trainer->options.aux_head.count > 0, "auxiliary head"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].used) {
            ls_text_add(audit->unaudited, sizeof audit->unaudited, "%s%s",
                        audit->unaudited[0] == '\0' ? "" : ", ", parts[i].name);
        }
    }
}

/* ---- backends: those that compute at once have neither streams nor memory of their own ---------
 */

static void *native_stream(const ls_device *device)
{
    return device->api->stream_native != NULL ? device->api->stream_native(device->stream) : NULL;
}

static ls_status take_host(const ls_device *device, int64_t bytes, void **out)
{
    return (device->api->host_alloc != NULL ? device->api->host_alloc : device->api->memory_alloc)(
        device->backend, bytes, "the audit's verdicts", out);
}

static void give_host(const ls_device *device, void *memory)
{
    (device->api->host_free != NULL ? device->api->host_free
                                    : device->api->memory_free)(device->backend, memory);
}

/* ---- life ------------------------------------------------------------------------------------ */

static ls_status take(const ls_audit *audit, int64_t bytes, const char *purpose, void *out)
{
    const ls_device *device = &audit->trainer->device;
    void *memory = NULL;
    LS_TRY(device->api->memory_alloc(device->backend, bytes, purpose, &memory));
    memcpy(out, &memory, sizeof memory);
    return LS_OK;
}

static void give(const ls_audit *audit, void *memory)
{
    if (memory != NULL) {
        audit->trainer->device.api->memory_free(audit->trainer->device.backend, memory);
    }
}

/* Where each batch norm's statistics lie; returns the largest number of channels of any layer. */
static int place_stats(ls_audit *audit, int64_t *doubles)
{
    const ls_network *network = &audit->trainer->network;
    int most = 1;
    *doubles = 0;
    for (int i = 0; i < network->layer_count; i++) {
        const ls_layer *layer = &network->layer[i];
        most = layer->channels > most ? layer->channels : most;
        audit->stats_at[i] = *doubles;
        *doubles += layer->kind == LS_LAYER_BATCH_NORM ? 2 * layer->channels + 1 : 0;
    }
    return most;
}

/* Verdicts of a step at most. A layer's outputs in one micro-step: of a norm, the most, forward's
 * five, backward's four and a joined gradient. A parameter's: packed, unscaled, value, copy and
 * moments, and there are no more buckets than parameters. */
static int most_verdicts(const ls_trainer *trainer)
{
    enum { OF_LAYER = 10, OF_PARAM = 2 + LS_AUDIT_STEP_OUTPUTS, OTHERS = 4 /* image, loss */ };
    return trainer->options.accumulate * (trainer->network.layer_count * OF_LAYER + OTHERS) +
           trainer->memory.param_count * (OF_PARAM + 1);
}

static ls_status allocate(ls_audit *audit)
{
    ls_trainer *trainer = audit->trainer;
    const ls_device *device = &trainer->device;
    int64_t doubles = 0, params = trainer->memory.param_count;
    void *found = NULL;
    audit->stats_at = ls_list_make((size_t)trainer->network.layer_count, sizeof *audit->stats_at);
    audit->most = most_verdicts(trainer);
    audit->name = ls_list_make((size_t)audit->most, sizeof *audit->name);
    audit->bucket = ls_list_make((size_t)params, sizeof *audit->bucket);
    int group = trainer->norm_comm != NULL ? trainer->norm_sync.group_size : 1;
    int most = place_stats(audit, &doubles);
    LS_TRY(take(audit, audit->judge->room_bytes(most, group), "the audit's sums", &audit->room));
    LS_TRY(take(
        audit, params * (int64_t)sizeof(ls_audit_sample) * LS_AUDIT_SAMPLES * LS_AUDIT_STEP_OUTPUTS,
        "the audit's samples", &audit->rooms));
    LS_TRY(take(audit, (doubles + 1) * (int64_t)sizeof *audit->stats, "the audit's statistics",
                &audit->stats));
    int64_t bytes = audit->most * (int64_t)sizeof *audit->verdict;
    LS_TRY(take(audit, bytes, "the audit's verdicts", &audit->verdict));
    LS_TRY(take_host(device, bytes, &found));
    audit->found = found;
    for (int i = 0; trainer->ddp != NULL && i < params; i++) {
        LS_TRY(device->api->event_create(device->backend, &audit->bucket[i].picked));
    }
    return LS_OK;
}

ls_status ls_audit_open(ls_trainer *trainer, ls_audit **out)
{
    ls_audit_entry_fn *entry = NULL;
    *out = NULL;
    if (!trainer->options.audit) {
        return LS_OK;
    }
    LS_TEXT(judge, 32, "oracle_%s", trainer->device.api->name);
    LS_TRY(ls_load_symbol(judge, LS_AUDIT_ENTRY, &entry));
    LS_TRY(ls_load_same_abi(judge, entry()->abi, LS_AUDIT_ABI));
    ls_audit *audit = ls_list_make(1, sizeof *audit);
    audit->trainer = trainer;
    audit->judge = entry();
    list_unaudited(audit);
    ls_status status = allocate(audit);
    if (status != LS_OK) {
        ls_audit_close(audit);
        return status;
    }
    *out = audit;
    return LS_OK;
}

void ls_audit_close(ls_audit *audit)
{
    if (audit == NULL) {
        return;
    }
    const ls_device *device = &audit->trainer->device;
    if (audit->trainer->plan != NULL) {
        device->api->plan_observe(audit->trainer->plan, NULL, NULL);
    }
    for (int i = 0; i < audit->trainer->memory.param_count; i++) {
        if (audit->bucket[i].picked != NULL) {
            device->api->event_destroy(audit->bucket[i].picked);
        }
    }
    give(audit, audit->room);
    give(audit, audit->rooms);
    give(audit, audit->stats);
    give(audit, audit->verdict);
    give(audit, audit->bucket_memory);
    if (audit->found != NULL) {
        give_host(device, audit->found);
    }
    free(audit->stats_at);
    free(audit->name);
    free(audit->bucket);
    free(audit);
}

/* ---- operations of the plan ------------------------------------------------------------------ */

/* What a plan shows, as the judge's kernels take it: one description into the other, field by
 * field, because the judge knows nothing of the backend's headers. */
_Static_assert((int)LS_OBSERVED_KINDS == (int)LS_AUDIT_PLAN_KINDS &&
                   (int)LS_OBSERVED_LOSS_BACK == (int)LS_AUDIT_LOSS_BACK &&
                   (int)LS_OBSERVED_NORM_BACK == (int)LS_AUDIT_NORM_BACK,
               "kinds stand in the same order on both sides");

static ls_audit_type type_of(ls_dtype type)
{
    LS_ASSERT(type == LS_F32 || type == LS_F16 || type == LS_BF16);
    return type == LS_F32 ? LS_AUDIT_F32 : type == LS_F16 ? LS_AUDIT_F16 : LS_AUDIT_BF16;
}

static ls_audit_tensor tensor_of(const ls_tensor *tensor)
{
    if (tensor->data == NULL) {
        return (ls_audit_tensor){0};
    }
    return (ls_audit_tensor){tensor->data, tensor->count, type_of(tensor->dtype)};
}

static ls_audit_norm norm_of(const ls_audit *audit, const ls_observed_norm *norm, ls_dtype type,
                             int channels)
{
    return (ls_audit_norm){
        .weight = tensor_of(&norm->weight),
        .bias = tensor_of(&norm->bias),
        .running_mean = tensor_of(&norm->running_mean),
        .running_var = tensor_of(&norm->running_var),
        .weight_grad = tensor_of(&norm->weight_grad),
        .bias_grad = tensor_of(&norm->bias_grad),
        .mean = {(void *)norm->mean, channels, LS_AUDIT_F32},
        .inv_std = {(void *)norm->inv_std, channels, LS_AUDIT_F32},
        .half_scale = {(void *)norm->half_scale, channels, type_of(type)},
        .half_bias = {(void *)norm->half_bias, channels, type_of(type)},
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
        .in_block = w->in_block,
        .out_block = w->out_block,
        .relu = w->relu,
        .dual = w->dual,
        .given = w->given,
        .stem_blocks = w->stem_blocks,
        .tf32 = audit->trainer->options.tf32,
        .x = w->x,
        .residual = w->residual,
        .normed = w->normed,
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
        .weight = tensor_of(&w->weight),
        .plain_bias = tensor_of(&w->plain_bias),
        .weight_grad = tensor_of(&w->weight_grad),
        .bias_grad = tensor_of(&w->bias_grad),
        .target = w->target,
        .smoothing = audit->trainer->options.label_smoothing,
        /* not what backward was given: that may be wrong */
        .factor = (double)(1.0f / (float)audit->trainer->options.accumulate),
        .gather = gather,
        .gather_context = audit,
    };
    if (w->kind == LS_OBSERVED_IMAGE) {
        op.x_type = w->x_format.type == LS_U8 ? LS_AUDIT_U8 : LS_AUDIT_F32;
        memcpy(op.x_mean, w->x_format.mean, sizeof op.x_mean);
        memcpy(op.x_deviation, w->x_format.deviation, sizeof op.x_deviation);
    }
    if (w->state != NULL) {
        op.loss = (float *)&w->state->loss;
        op.loss_scale = &w->state->loss_scale;
    }
    bool is_norm = w->kind == LS_OBSERVED_NORM || w->kind == LS_OBSERVED_NORM_BACK;
    op.group = is_norm ? w->norm_group : 1;
    for (int k = 0; k < (w->dual ? 2 : 1); k++) {
        if (is_norm || w->normed != NULL || w->norm[0].half_scale != NULL) {
            op.norm[k] = norm_of(audit, &w->norm[k], w->type, w->in_channels);
        }
    }
    return op;
}

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

/* The places of an operation's verdicts, with their names. */
static ls_audit_verdict *place(ls_audit *audit, int count)
{
    LS_ASSERT(audit->count + count <= audit->most);
    audit->count += count;
    return audit->verdict + audit->count - count;
}

static ls_status look(ls_audit *audit, const ls_audit_op *op, const char *layer, const char *second,
                      void *room, ls_audit_draw draw, bool after)
{
    const ls_device *device = &audit->trainer->device;
    void *stream = native_stream(device);
    if (!after) {
        return audit->judge->before(stream, op, draw, room);
    }
    ls_audit_output output[LS_AUDIT_OUTPUTS];
    int first = audit->count;
    ls_audit_verdict *verdict = place(audit, audit->judge->outputs(op, output));
    name_outputs(audit, op, layer, second, audit->name + first);
    return audit->judge->after(stream, op, room, verdict);
}

/* The next room of an operation on many tensors. */
static void *next_room(ls_audit *audit, bool after)
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

/* The elements of an operation of this step, the same on every rank. */
static ls_audit_draw draw_of(const ls_audit *audit, uint64_t operation)
{
    return (ls_audit_draw){audit->trainer->options.audit_seed ^ (uint64_t)audit->step << 20,
                           operation};
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
    bool many = what->kind == LS_OBSERVED_WEIGHT || what->kind == LS_OBSERVED_UNPACK;
    void *room = many ? next_room(audit, after) : audit->room;
    audit->number += after ? 0 : 1;
    return look(audit, &op, name, second, room, draw_of(audit, audit->number), after);
}

/* ---- buckets --------------------------------------------------------------------------------- */

/* The layout is settled, so this happens once. */
static ls_status place_buckets(ls_audit *audit)
{
    int count = ls_ddp_layout(audit->trainer->ddp)->bucket_count;
    int64_t world = audit->trainer->world.world;
    int64_t list = LS_AUDIT_SAMPLES * (int64_t)sizeof(double);
    int64_t samples = LS_AUDIT_SAMPLES * (int64_t)sizeof(ls_audit_sample);
    if (count == audit->bucket_count) {
        return LS_OK;
    }
    give(audit, audit->bucket_memory);
    audit->bucket_memory = NULL;
    audit->bucket_count = 0;
    LS_TRY(take(audit, count * (samples + (1 + world) * list), "the audit's buckets",
                &audit->bucket_memory));
    char *at = audit->bucket_memory;
    for (int b = 0; b < count; b++) {
        audit->bucket[b].sample = (ls_audit_sample *)(void *)at;
        audit->bucket[b].mine = (double *)(void *)(at + samples);
        audit->bucket[b].all = audit->bucket[b].mine + LS_AUDIT_SAMPLES;
        snprintf(audit->bucket[b].label, sizeof audit->bucket[b].label, "audit of bucket %d", b);
        at += samples + (1 + world) * list;
    }
    audit->bucket_count = count;
    return LS_OK;
}

static ls_status bucket_before(ls_audit *audit, int index, const ls_tensor *whole)
{
    ls_trainer *trainer = audit->trainer;
    const ls_device *device = &trainer->device;
    ls_audit_bucket *bucket = &audit->bucket[index];
    LS_TRY(audit->judge->pick(native_stream(device), tensor_of(whole),
                              draw_of(audit, UINT64_C(1) << 40 | (uint64_t)index), bucket->mine,
                              bucket->sample));
    LS_TRY(device->api->event_record(bucket->picked, device->stream));
    ls_comm_op op = {.kind = LS_COMM_ALL_GATHER,
                     .buffer = bucket->all,
                     .input = bucket->mine,
                     .count = LS_AUDIT_SAMPLES * (int64_t)sizeof(double),
                     .dtype = LS_U8,
                     .label = bucket->label};
    return trainer->engine->begin(trainer->comm, &op, bucket->picked, &bucket->handle);
}

static ls_status bucket_after(ls_audit *audit, int index, const ls_tensor *whole)
{
    ls_trainer *trainer = audit->trainer;
    const ls_device *device = &trainer->device;
    ls_audit_bucket *bucket = &audit->bucket[index];
    ls_audit_name *name = &audit->name[audit->count];
    LS_TRY(trainer->engine->wait(trainer->comm, &bucket->handle, device->stream));
    ls_audit_verdict *verdict = place(audit, 1);
    snprintf(name->operation, sizeof name->operation, "bucket %d", index);
    snprintf(name->output, sizeof name->output, "average over ranks");
    return audit->judge->sum(native_stream(device), tensor_of(whole), bucket->all,
                             trainer->world.world, (double)(float)trainer->rules.pre_factor,
                             (double)(float)trainer->rules.post_factor, bucket->sample, verdict);
}

/* ---- parameters ------------------------------------------------------------------------------ */

static ls_audit_rule rule_of(const ls_trainer *trainer, int param)
{
    const ls_optimizer_config *config = &trainer->optimizer;
    const ls_optimizer_group all = {config->weight_decay, 1};
    const ls_optimizer_group *group =
        trainer->group != NULL ? &config->group[trainer->group[param]] : &all;
    const ls_step_state *state = trainer->memory.state;
    return (ls_audit_rule){.momentum = config->momentum,
                           .weight_decay = group->weight_decay,
                           .lr_factor = group->lr_factor,
                           .beta1 = config->beta1,
                           .beta2 = config->beta2,
                           .epsilon = config->epsilon,
                           .nesterov = config->nesterov,
                           .decoupled = config->kind == LS_OPTIMIZER_ADAMW,
                           .uncorrected = config->uncorrected,
                           .dynamic = trainer->amp.config.dynamic,
                           .lr = &state->lr,
                           .inv_scale = &state->inv_loss_scale,
                           .overflow = &state->overflow,
                           .step_count = &state->step_count};
}

static ls_status observe_param(ls_audit *audit, ls_audit_kind kind, int param, bool after)
{
    const ls_memory *memory = &audit->trainer->memory;
    ls_audit_op op = {.kind = kind,
                      .group = 1,
                      .unscaled = tensor_of(&memory->unscaled[param]),
                      .rule = rule_of(audit->trainer, param)};
    if (kind == LS_AUDIT_UNSCALE) {
        op.grad = tensor_of(&memory->grad[param]);
    } else {
        op.value = tensor_of(&memory->value[param]);
        for (int k = 0; k < memory->moment_count; k++) {
            op.moment[k] = tensor_of(&memory->moment[k][param]);
        }
        if (memory->master != NULL && memory->param[param].data != op.value.data) {
            op.copy = tensor_of(&memory->param[param]);
        }
    }
    audit->number += after ? 0 : 1;
    const char *layer = memory->network->param[param].name;
    return look(audit, &op, layer, layer, next_room(audit, after),
                draw_of(audit, UINT64_C(2) << 40 | (uint64_t)kind << 20 | (uint64_t)param), after);
}

static ls_status observe_params(ls_audit *audit, ls_audit_kind kind, bool after)
{
    for (int i = 0; i < audit->trainer->memory.param_count; i++) {
        LS_TRY(observe_param(audit, kind, i, after));
    }
    return LS_OK;
}

static ls_status observe_update(ls_audit *audit, bool after)
{
    ls_audit_kind kind = update_kind(audit->trainer->optimizer.kind);
    return kind == LS_AUDIT_NONE ? LS_OK : observe_params(audit, kind, after);
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* --resident: the batch has left the host, and its digest cannot be continued. */
static void digest_batch(ls_audit *audit, const ls_loader_batch *batch)
{
    const ls_options *options = &audit->trainer->options;
    audit->has_batch = batch->target != NULL || options->accumulate == 1;
    audit->batch = batch->target == NULL
                       ? batch->digest
                       : ls_loader_digest(audit->batch, batch, options->image_size);
}

static ls_status observe(void *context, const ls_step_event *event)
{
    ls_audit *audit = context;
    bool unscales = audit->trainer->amp.unscales;
    switch (event->at) {
    case LS_STEP_BATCH:
        digest_batch(audit, event->batch);
        return LS_OK;
    case LS_STEP_BUCKET_FULL:
        return bucket_before(audit, event->index, event->bucket);
    case LS_STEP_BUCKET_AVERAGED:
        return bucket_after(audit, event->index, event->bucket);
    case LS_STEP_UNSCALE:
    case LS_STEP_UNSCALE_END:
        return unscales ? observe_params(audit, LS_AUDIT_UNSCALE, event->at == LS_STEP_UNSCALE_END)
                        : LS_OK;
    case LS_STEP_OPTIMIZER:
    case LS_STEP_OPTIMIZER_END:
        return observe_update(audit, event->at == LS_STEP_OPTIMIZER_END);
    default:
        return LS_OK;
    }
}

ls_status ls_audit_begin(ls_audit *audit, int64_t step, ls_step_observers *observers)
{
    if (audit == NULL || !ls_audit_due(&audit->trainer->options, step)) {
        return LS_OK;
    }
    ls_trainer *trainer = audit->trainer;
    audit->active = true;
    audit->step = step;
    audit->count = 0;
    audit->number = 0;
    audit->batch = 0;
    audit->many_before = audit->many_after = 0;
    trainer->device.api->plan_observe(trainer->plan, ls_audit_observe, audit);
    LS_TRY(trainer->ddp != NULL ? place_buckets(audit) : LS_OK);
    audit->observer = (ls_step_observer){.context = audit, .on = observe};
    ls_step_observers_add(observers, &audit->observer);
    return LS_OK;
}

/* Ranks leave an audited step together: none waits for another's audit in the step after it, whose
 * time counts. */
static ls_status meet(ls_audit *audit)
{
    const ls_trainer *trainer = audit->trainer;
    if (audit->bucket_count == 0) { /* they do not wait for each other */
        return LS_OK;
    }
    ls_comm_op op = {.kind = LS_COMM_ALL_GATHER,
                     .buffer = audit->bucket[0].all,
                     .input = audit->bucket[0].mine,
                     .count = (int64_t)sizeof(double),
                     .dtype = LS_U8,
                     .label = "end of an audited step"};
    return ls_comm_run(trainer->engine, trainer->comm, &op, trainer->device.stream);
}

ls_status ls_audit_end(ls_audit *audit)
{
    if (audit == NULL || !audit->active) {
        return LS_OK;
    }
    ls_trainer *trainer = audit->trainer;
    const ls_device *device = &trainer->device;
    device->api->plan_observe(trainer->plan, NULL, NULL);
    audit->active = false;
    LS_TRY(meet(audit));
    return device->api->copy_out(device->backend, device->stream, audit->found, audit->verdict,
                                 audit->count * (int64_t)sizeof *audit->found);
}

/* ---- findings -------------------------------------------------------------------------------- */

static void report_wrong(const ls_audit *audit, int i)
{
    const ls_audit_verdict *v = &audit->found[i];
    ls_log_error("audit: step %lld: %s: %s: element %lld is %.9g, wanted %.9g within %.3g (%lld of "
                 "%lld elements looked at are wrong)",
                 (long long)audit->step, audit->name[i].operation, audit->name[i].output,
                 (long long)v->index, v->got, v->wanted, v->limit, (long long)v->bad,
                 (long long)v->elements);
}

static ls_events_audit summarise(const ls_audit *audit)
{
    ls_events_audit event = {.step = audit->step,
                             .outputs = audit->count,
                             .unaudited = audit->unaudited,
                             .operation = "",
                             .output = "",
                             .ratio = -1,
                             .has_batch = audit->has_batch,
                             .batch = audit->batch};
    int worst = -1, reported = 0;
    for (int i = 0; i < audit->count; i++) {
        const ls_audit_verdict *v = &audit->found[i];
        event.elements += v->elements;
        event.bad += v->bad;
        if (v->bad > 0 && reported++ < REPORTED) {
            report_wrong(audit, i);
        }
        if (v->ratio > event.ratio) {
            worst = i;
            event.ratio = v->ratio;
        }
    }
    if (worst >= 0) {
        const ls_audit_verdict *v = &audit->found[worst];
        event.operation = audit->name[worst].operation;
        event.output = audit->name[worst].output;
        event.index = v->index;
        event.got = v->got;
        event.wanted = v->wanted;
        event.limit = v->limit;
    }
    return event;
}

ls_status ls_audit_judge(ls_audit *audit, int64_t step, double ms)
{
    if (audit == NULL) {
        return LS_OK;
    }
    audit->total_ms += ms;
    if (!ls_audit_due(&audit->trainer->options, step)) {
        bool usual = step >= audit->trainer->first_step + WARM_STEPS;
        audit->others += usual;
        audit->other_ms += usual ? ms : 0;
        return LS_OK;
    }
    ls_events_audit event = summarise(audit);
    event.ms = ms;
    event.usual_ms = audit->others > 0 ? audit->other_ms / (double)audit->others : 0;
    audit->steps++;
    audit->audited_ms += ms;
    audit->outputs += event.outputs;
    audit->elements += event.elements;
    if (event.ratio >= audit->worst) {
        audit->worst = event.ratio;
        ls_text_put(audit->worst_name.operation, sizeof audit->worst_name.operation, "%s",
                    event.operation);
        ls_text_put(audit->worst_name.output, sizeof audit->worst_name.output, "%s", event.output);
    }
    LS_TRY(ls_events_write_audit(audit->trainer->events, &event));
    return event.bad > 0 ? LS_ERR_CHECK : LS_OK;
}

void ls_audit_print(const ls_audit *audit)
{
    if (audit == NULL || audit->trainer->world.rank != 0) {
        return;
    }
    if (audit->steps == 0) {
        printf("audit: none of these steps was one of those that are audited\n");
        return;
    }
    printf("audit: %lld steps, %lld outputs, %lld elements, the worst used %.2f of its bound (%s, "
           "%s)",
           (long long)audit->steps, (long long)audit->outputs, (long long)audit->elements,
           audit->worst, audit->worst_name.operation, audit->worst_name.output);
    if (audit->others > 0 && audit->total_ms > 0) {
        double usual = audit->other_ms / (double)audit->others;
        double more = audit->audited_ms - (double)audit->steps * usual;
        printf("; %.2f %% of the job's time", more > 0 ? 100 * more / audit->total_ms : 0);
    }
    printf("%s%s\n", audit->unaudited[0] == '\0' ? "" : "; not audited: ", audit->unaudited);
    fflush(stdout);
}

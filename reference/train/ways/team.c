#include "team.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"

enum { STAGES = 2 };

/* One device. */
typedef struct member {
    ls_device device; /* the first replica's is the trainer's */
    ls_plan **plan;   /* replicas: [1]; stages: [parts], which share their packed weights */
    int plans;
    /* a replica's own; the first one's is the trainer's and unused here */
    ls_memory memory;
    /* a stage's part of the network: consecutive layers, parameters, buffers and branches */
    ls_network network; /* layers are its own, the rest borrowed */
    int first_param, first_buffer, first_branch;
} member;

struct ls_team {
    ls_trainer *trainer;
    ls_lanes *lanes;
    bool stages;
    int parts, members;
    member *member;
    pthread_mutex_t lock; /* of calls to `computed` */
    /* of the step under way */
    const ls_loader_batch *batch;
    float *loss;
    ls_team_computed *computed;
    void *context;
};

int ls_team_devices(const ls_options *options)
{
    return options->model_parallel ? STAGES : options->data_parallel;
}

bool ls_team_offered(const ls_device *device)
{
    return device->info.host_memory && device->api->plan_edges != NULL;
}

static bool is_first_replica(const ls_team *team, const member *m)
{
    return !team->stages && m == team->member;
}

/* ---- stages of a network --------------------------------------------------------------------- */

/* The last layer of layer2, behind which PyTorch's tutorial cuts. */
static int cut_of(const ls_network *network)
{
    int cut = -1;
    for (int i = 0; i < network->layer_count; i++) {
        cut = strncmp(network->layer[i].name, "layer2.", 7) == 0 ? i : cut;
    }
    LS_ASSERT(cut > 0);
    return cut;
}

/* What enters or leaves a stage. */
static ls_layer edge_layer(ls_layer_kind kind, const char *name, int input, int channels)
{
    ls_layer layer = {.kind = kind,
                      .input = {input, -1},
                      .channels = channels,
                      .weight = -1,
                      .bias = -1,
                      .running_mean = -1,
                      .running_var = -1,
                      .branch = -1};
    snprintf(layer.name, sizeof layer.name, "%s", name);
    return layer;
}

/* Layers from..to - 1 of `whole`, between an input and an end of the given kinds; `from` > 0 is
 * preceded by layer from - 1, which is what enters. */
static ls_status slice(const ls_network *whole, int from, int to, member *out)
{
    ls_network *part = &out->network;
    bool enters = from > 0, leaves = to < whole->layer_count;
    int shift = from - (enters ? 1 : 0), count = 0;
    part->layer = ls_list_make((size_t)(to - from) + 2, sizeof *part->layer);
    snprintf(part->arch, sizeof part->arch, "%s", whole->arch);
    part->num_classes = whole->num_classes;
    if (enters) {
        part->layer[count++] =
            edge_layer(LS_LAYER_ENTRY, "entry", -1, whole->layer[from - 1].channels);
    }
    /* of the layers before: everything is numbered in order of layers */
    for (int i = 0; i < to; i++) {
        const ls_layer *layer = &whole->layer[i];
        int params = (layer->weight >= 0) + (layer->bias >= 0);
        int buffers = layer->running_mean >= 0 ? 3 : 0, branches = layer->branch >= 0;
        if (i < from) {
            out->first_param += params;
            out->first_buffer += buffers;
            out->first_branch += branches;
            continue;
        }
        ls_layer *own = &part->layer[count++];
        *own = *layer;
        for (int k = 0; k < 2; k++) {
            own->input[k] -= own->input[k] >= 0 ? shift : 0;
        }
        own->weight -= own->weight >= 0 ? out->first_param : 0;
        own->bias -= own->bias >= 0 ? out->first_param : 0;
        own->running_mean -= own->running_mean >= 0 ? out->first_buffer : 0;
        own->running_var -= own->running_var >= 0 ? out->first_buffer : 0;
        own->branch -= own->branch >= 0 ? out->first_branch : 0;
        part->param_count += params;
        part->buffer_count += buffers;
        part->branch_count += branches;
    }
    if (leaves) {
        int channels = part->layer[count - 1].channels;
        part->layer[count] = edge_layer(LS_LAYER_EXIT, "exit", count - 1, channels);
        count++;
    }
    part->layer_count = count;
    part->param = whole->param + out->first_param;
    part->buffer = whole->buffer + out->first_buffer;
    return LS_OK;
}

static ls_status create_stage(ls_team *team, int index, const ls_plan_options *options)
{
    const ls_network *whole = &team->trainer->trunk;
    const ls_backend_api *api = team->trainer->device.api;
    member *m = &team->member[index];
    int cut = cut_of(whole);
    ls_plan_options own = *options;
    LS_TRY(slice(whole, index == 0 ? 0 : cut + 1, index == 0 ? cut + 1 : whole->layer_count, m));
    if (index > 0) {
        ls_layer_extent *extent = ls_list_make((size_t)whole->layer_count, sizeof *extent);
        ls_model_extents(whole, options->height, extent);
        own.height = extent[cut].height;
        own.width = extent[cut].width;
        free(extent);
    }
    m->plan = ls_list_make((size_t)team->parts, sizeof *m->plan);
    for (; m->plans < team->parts; m->plans++) {
        own.weights_of = m->plan[0];
        LS_TRY(api->plan_create(m->device.backend, &m->network, &own, &m->plan[m->plans]));
    }
    return LS_OK;
}

/* ---- replicas -------------------------------------------------------------------------------- */

static ls_status create_replica(ls_team *team, int index, const ls_plan_options *options)
{
    ls_trainer *trainer = team->trainer;
    const ls_memory *first = &trainer->memory;
    const ls_network *network = &trainer->network;
    member *m = &team->member[index];
    size_t params = (size_t)network->param_count, buffers = (size_t)network->buffer_count;
    m->plan = ls_list_make(1, sizeof *m->plan);
    LS_TRY(trainer->device.api->plan_create(m->device.backend, &trainer->trunk, options, m->plan));
    m->plans = 1;
    if (index == 0) {
        return LS_OK;
    }
    ls_dtype *types = ls_list_make((2 * params + buffers), sizeof *types);
    for (size_t i = 0; i < params; i++) {
        types[i] = first->param[i].dtype;
        types[params + i] = first->grad[i].dtype;
        LS_ASSERT(types[params + i] == LS_F32); /* O0 and O1: options.c */
    }
    for (size_t i = 0; i < buffers; i++) {
        types[2 * params + i] = first->buffer[i].dtype;
    }
    ls_memory_options memory = {.network = network,
                                .param_type = types,
                                .grad_type = types + params,
                                .reduced_type = types + params,
                                .buffer_type = types + 2 * params};
    ls_status status = ls_memory_create(&m->device, &memory, &m->memory);
    free(types);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------ */

static ls_status open_devices(ls_team *team)
{
    const ls_trainer *trainer = team->trainer;
    ls_backend_options options = {
        .threads = trainer->device.info.threads / (team->stages ? STAGES : 1),
        .deterministic = trainer->options.deterministic,
        .emulate_half = trainer->options.half_math == LS_HALF_EMULATED,
    };
    options.threads = options.threads > 0 ? options.threads : 1;
    for (int i = 0; i < team->members; i++) {
        if (is_first_replica(team, &team->member[i])) {
            team->member[i].device = trainer->device;
        } else {
            LS_TRY(ls_device_open(trainer->device.api->name, &options, &team->member[i].device));
        }
    }
    return LS_OK;
}

ls_status ls_team_create(ls_trainer *trainer, const ls_plan_options *options)
{
    bool stages = trainer->options.model_parallel;
    ls_team *team = ls_list_make(1, sizeof *team);
    pthread_mutex_init(&team->lock, NULL);
    team->trainer = trainer;
    team->stages = stages;
    team->parts = trainer->options.accumulate;
    team->members = ls_team_devices(&trainer->options);
    trainer->team = team;
    team->member = ls_list_make((size_t)team->members, sizeof *team->member);
    LS_TRY(open_devices(team));
    LS_TRY(ls_lanes_open(team->members, &team->lanes));
    for (int i = 0; i < team->members; i++) {
        LS_TRY(stages ? create_stage(team, i, options) : create_replica(team, i, options));
    }
    trainer->plan = team->member[0].plan[0];
    return LS_OK;
}

static void free_member(const ls_team *team, member *m)
{
    /* in reverse: the first plan of a stage owns the packed weights */
    for (int i = m->plans - 1; i >= 0; i--) {
        m->device.api->plan_destroy(m->plan[i]);
    }
    free(m->plan);
    if (m->memory.device != NULL) {
        ls_memory_free(&m->memory);
    }
    free(m->network.layer);
    if (m->device.api != NULL && !is_first_replica(team, m)) {
        ls_device_close(&m->device);
    }
}

void ls_team_free(ls_team *team)
{
    if (team == NULL) {
        return;
    }
    ls_lanes_close(team->lanes);
    for (int i = 0; team->member != NULL && i < team->members; i++) {
        free_member(team, &team->member[i]);
    }
    team->trainer->plan = NULL;
    free(team->member);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

ls_status ls_team_bind(ls_team *team)
{
    const ls_memory *whole = &team->trainer->memory;
    for (int i = 0; i < team->members; i++) {
        member *m = &team->member[i];
        const ls_memory *memory = team->stages || i == 0 ? whole : &m->memory;
        ls_plan_binding binding = {.param = memory->param + m->first_param,
                                   .grad = memory->grad + m->first_param,
                                   .buffer = memory->buffer + m->first_buffer,
                                   .state = memory->state};
        for (int k = 0; k < m->plans; k++) {
            LS_TRY(m->device.api->plan_bind(m->plan[k], &binding));
        }
    }
    return LS_OK;
}

static ls_status pack(void *context, int lane)
{
    ls_team *team = context;
    member *m = &team->member[lane];
    return m->device.api->plan_params_changed(m->plan[0], m->device.stream);
}

ls_status ls_team_params_changed(ls_team *team)
{
    return team->stages ? ls_lanes_run(team->lanes, pack, team) : LS_OK;
}

/* ---- a part of the batch --------------------------------------------------------------------- */

static const float *images_of(const ls_team *team, int part)
{
    const ls_options *options = &team->trainer->options;
    int64_t values = (int64_t)options->batch_size * 3 * options->image_size * options->image_size;
    return team->batch->input + part * values;
}

static const int64_t *classes_of(const ls_team *team, int part)
{
    return team->batch->target + (int64_t)part * team->trainer->options.batch_size;
}

/* ---- a step of replicas ---------------------------------------------------------------------- */

/* What torch.nn.parallel.replicate does: parameters and buffers of the first device. */
static ls_status replicate(void *context, int lane)
{
    ls_team *team = context;
    const ls_memory *first = &team->trainer->memory;
    member *m = &team->member[lane];
    static const ls_memory_kind kind[] = {LS_MEMORY_PARAM, LS_MEMORY_BUFFER};
    bool stale = LS_PLANT(replica_weights_stale, false, lane > 0 && first->state->step_count > 0);
    for (size_t i = 0; lane > 0 && !stale && i < sizeof kind / sizeof *kind; i++) {
        memcpy(m->memory.block[kind[i]], first->block[kind[i]], (size_t)first->bytes[kind[i]]);
    }
    if (lane > 0) {
        *m->memory.state = *first->state;
        m->memory.state->top1 = m->memory.state->top5 = 0;
    }
    return m->device.api->plan_params_changed(m->plan[0], m->device.stream);
}

static ls_status forward_replica(void *context, int lane)
{
    ls_team *team = context;
    member *m = &team->member[lane];
    const ls_step_state *state = lane == 0 ? team->trainer->memory.state : m->memory.state;
    LS_TRY(m->device.api->plan_forward(m->plan[0], m->device.stream, images_of(team, lane),
                                       classes_of(team, lane)));
    team->loss[lane] = state->loss;
    return LS_OK;
}

static ls_status forward_replicas(ls_team *team)
{
    ls_memory *first = &team->trainer->memory;
    LS_TRY(ls_lanes_run(team->lanes, replicate, team));
    LS_TRY(ls_lanes_run(team->lanes, forward_replica, team));
    for (int i = 1; i < team->members; i++) {
        first->state->top1 += team->member[i].memory.state->top1;
        first->state->top5 += team->member[i].memory.state->top5;
    }
    if (LS_PLANT(replica_statistics_of_last, false, true)) {
        memcpy(first->block[LS_MEMORY_BUFFER],
               team->member[team->members - 1].memory.block[LS_MEMORY_BUFFER],
               (size_t)first->bytes[LS_MEMORY_BUFFER]);
    }
    return LS_OK;
}

static ls_status backward_replica(void *context, int lane)
{
    ls_team *team = context;
    member *m = &team->member[lane];
    float factor = LS_PLANT(replicas_summed, 1.0f / (float)team->parts, 1.0f);
    return m->device.api->plan_backward(m->plan[0], m->device.stream, factor, NULL, NULL);
}

/* Into the first device's gradients, by the first device. */
static ls_status reduce(ls_team *team)
{
    ls_memory *first = &team->trainer->memory;
    const ls_device *device = &team->trainer->device;
    int members = LS_PLANT(replica_gradient_forgotten, team->members, team->members - 1);
    members = LS_PLANT(replica_forgotten_at_64, members,
                       team->trainer->options.image_size < 64 ? members : members - 1);
    for (int i = 1; i < members; i++) {
        for (int p = 0; p < first->param_count; p++) {
            LS_TRY(device->api->accumulate(device->backend, device->stream, first->grad[p],
                                           team->member[i].memory.grad[p], false));
        }
    }
    return LS_OK;
}

/* ---- a step of stages ------------------------------------------------------------------------ */

/* What crosses after a part's forward, or before its backward. */
static void cross(const ls_team *team, int part, bool backward)
{
    const ls_backend_api *api = team->trainer->device.api;
    ls_plan_edge out, in, none;
    api->plan_edges(team->member[0].plan[part], &none, &out);
    api->plan_edges(team->member[1].plan[part], &in, &none);
    LS_ASSERT(out.bytes == in.bytes && out.bytes > 0);
    if (backward) {
        memcpy(out.gradient, in.gradient, (size_t)out.bytes);
        if (LS_PLANT(stage_gradient_dropped, false, part == 0)) {
            memset(out.gradient, 0, (size_t)out.bytes);
        }
    } else if (LS_PLANT(stage_activation_stale, true, part == 0 && ls_plant_now <= 1)) {
        memcpy(in.activation, out.activation, (size_t)in.bytes);
    }
}

static ls_status forward_stage(void *context, int lane)
{
    ls_team *team = context;
    member *m = &team->member[lane];
    const ls_memory *memory = &team->trainer->memory;
    for (int part = 0; part < team->parts; part++) {
        if (lane > 0) {
            LS_TRY(ls_lanes_await(team->lanes, lane - 1, part + 1));
            cross(team, part, false);
        }
        LS_TRY(m->device.api->plan_forward(m->plan[part], m->device.stream,
                                           lane == 0 ? images_of(team, part) : NULL,
                                           lane > 0 ? classes_of(team, part) : NULL));
        if (lane > 0) {
            team->loss[part] = memory->state->loss;
        }
        ls_lanes_post(team->lanes, lane);
    }
    return LS_OK;
}

typedef struct sink {
    ls_team *team;
    const member *member;
    int part;
    bool first; /* of the step's parts */
} sink;

static ls_status take_gradient(void *context, int param)
{
    const sink *to = context;
    ls_team *team = to->team;
    const ls_memory *memory = &team->trainer->memory;
    const ls_device *device = &to->member->device;
    int whole = to->member->first_param + param;
    pthread_mutex_lock(&team->lock);
    ls_status status = team->computed(team->context, to->part, whole);
    pthread_mutex_unlock(&team->lock);
    if (status == LS_OK && memory->sum != NULL) {
        status = device->api->accumulate(device->backend, device->stream, memory->sum[whole],
                                         memory->grad[whole],
                                         LS_PLANT(stage_parts_not_added, to->first, true));
    }
    return status;
}

static ls_status backward_stage(void *context, int lane)
{
    ls_team *team = context;
    member *m = &team->member[lane];
    int last = team->parts - 1;
    for (int part = last; part >= 0; part--) {
        sink to = {team, m, part, part == last};
        if (lane + 1 < team->members) {
            LS_TRY(ls_lanes_await(team->lanes, lane + 1, last - part + 1));
            cross(team, part, true);
        }
        LS_TRY(m->device.api->plan_backward(m->plan[part], m->device.stream,
                                            1.0f / (float)team->parts, take_gradient, &to));
        ls_lanes_post(team->lanes, lane);
    }
    return LS_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

ls_status ls_team_forward(ls_team *team, const ls_loader_batch *batch, float *loss)
{
    team->batch = batch;
    team->loss = loss;
    return team->stages ? ls_lanes_run(team->lanes, forward_stage, team) : forward_replicas(team);
}

ls_status ls_team_backward(ls_team *team, ls_team_computed *computed, void *context)
{
    team->computed = computed;
    team->context = context;
    if (team->stages) {
        return ls_lanes_run(team->lanes, backward_stage, team);
    }
    LS_TRY(ls_lanes_run(team->lanes, backward_replica, team));
    return reduce(team);
}

ls_status ls_team_export(ls_team *team, int part, ls_export what, int index, void *host,
                         int64_t bytes)
{
    const member *m = &team->member[team->stages ? team->members - 1 : part];
    while (what != LS_EXPORT_LOGITS && team->stages && index < m->first_branch) {
        m--;
    }
    index -= what == LS_EXPORT_LOGITS ? 0 : m->first_branch;
    return m->device.api->plan_export(m->plan[team->stages ? part : 0], m->device.stream, what,
                                      index, host, bytes);
}

void ls_team_add_info(const ls_team *team, ls_plan_info *info)
{
    for (int i = 0; i < team->members; i++) {
        const member *m = &team->member[i];
        for (int k = 0; k < m->plans; k++) {
            ls_plan_info own;
            m->device.api->plan_info(m->plan[k], &own);
            bool counted = m->plan[k] == team->trainer->plan;
            info->activation_bytes += counted ? 0 : own.activation_bytes;
            info->workspace_bytes += counted ? 0 : own.workspace_bytes;
        }
    }
}

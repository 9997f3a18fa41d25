/* The engines that the emulated cuDNN offers. Every kind that must not be used is there, before the
 * usable ones, and computes something visibly wrong. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "suite/emulation/runtime/emulate.h"
#include "emulated_cudnn.h"

#define NOTE(name) (1u << CUDNN_NUMERICAL_NOTE_##name)
#define BEHAVIOR(name) (1u << CUDNN_BEHAVIOR_NOTE_##name)

enum { OF_A_NEWER_LIBRARY = 12, WORKSPACE_ALIGNMENT = 256 };

typedef struct engine {
    int64_t id;
    unsigned notes, behaviours;
    int64_t workspace_bytes;
    bool wrong, unbuildable, slow;
    bool fused; /* of graphs with more than the convolution, and of those alone */
    emulated_knob most[EMULATED_KNOBS]; /* the largest values; type 0 for none */
} engine;

static const engine engines[] = {
    {.id = 3, .notes = NOTE(TENSOR_CORE) | NOTE(WINOGRAD), .wrong = true},
    {.id = 4, .notes = NOTE(WINOGRAD_TILE_6x6), .wrong = true},
    {.id = 7, .notes = NOTE(FFT), .wrong = true},
    {.id = 8, .notes = NOTE(REDUCED_PRECISION_REDUCTION) | NOTE(NONDETERMINISTIC), .wrong = true},
    {.id = 9, .notes = NOTE(DOWN_CONVERT_INPUTS), .wrong = true},
    {.id = 11, .notes = 1u << OF_A_NEWER_LIBRARY, .wrong = true},
    {.id = 12, .behaviours = BEHAVIOR(REQUIRES_FILTER_INT8x32_REORDER), .wrong = true},
    {.id = 15,
     .notes = NOTE(TENSOR_CORE) | NOTE(NONDETERMINISTIC),
     .behaviours = BEHAVIOR(RUNTIME_COMPILATION),
     .workspace_bytes = 8192,
     .slow = true},
    {.id = 16, .wrong = true, .unbuildable = true},
    {.id = 17, .workspace_bytes = INT64_C(1) << 40, .wrong = true},
    /* slow with its first tile */
    {.id = 21,
     .notes = NOTE(TENSOR_CORE),
     .behaviours = BEHAVIOR(SUPPORTS_CUDA_GRAPH_NATIVE_API),
     .workspace_bytes = 65536,
     .most = {{CUDNN_KNOB_TYPE_TILE_SIZE, 3}, {CUDNN_KNOB_TYPE_STAGES, 6}}},
    {.id = 22, .notes = NOTE(NONDETERMINISTIC), .workspace_bytes = 12288},
    {.id = 30, .notes = NOTE(STRICT_NAN_PROP), .workspace_bytes = 4096},
    {.id = 40, .notes = NOTE(REDUCED_PRECISION_REDUCTION), .wrong = true, .fused = true},
    /* slow with its first tile */
    {.id = 41,
     .notes = NOTE(TENSOR_CORE),
     .workspace_bytes = 131072,
     .fused = true,
     .most = {{CUDNN_KNOB_TYPE_TILE_SIZE, 3}, {CUDNN_KNOB_TYPE_STAGES, 6}}},
    {.id = 42,
     .notes = NOTE(TENSOR_CORE),
     .behaviours = BEHAVIOR(RUNTIME_COMPILATION),
     .fused = true},
};

enum { ENGINES = sizeof engines / sizeof engines[0], ENGINE_COUNT = 43 };

/* Configurations by mode, best first in the heuristics' opinion. */
static const struct offer {
    cudnnBackendHeurMode_t mode;
    int64_t id, tile, stages;
} offers[] = {
    {CUDNN_HEUR_MODE_A, 3, 0, 0},        {CUDNN_HEUR_MODE_A, 4, 0, 0},
    {CUDNN_HEUR_MODE_A, 7, 0, 0},        {CUDNN_HEUR_MODE_A, 8, 0, 0},
    {CUDNN_HEUR_MODE_A, 9, 0, 0},        {CUDNN_HEUR_MODE_A, 11, 0, 0},
    {CUDNN_HEUR_MODE_A, 12, 0, 0},       {CUDNN_HEUR_MODE_A, 16, 0, 0},
    {CUDNN_HEUR_MODE_A, 17, 0, 0},       {CUDNN_HEUR_MODE_A, 15, 0, 0},
    {CUDNN_HEUR_MODE_A, 21, 0, 3},       {CUDNN_HEUR_MODE_A, 21, 3, 4},
    {CUDNN_HEUR_MODE_B, 21, 3, 4},       {CUDNN_HEUR_MODE_B, 21, 1, 3},
    {CUDNN_HEUR_MODE_B, 15, 0, 0},       {CUDNN_HEUR_MODE_B, 22, 0, 0},
    {CUDNN_HEUR_MODE_FALLBACK, 8, 0, 0}, {CUDNN_HEUR_MODE_FALLBACK, 30, 0, 0},
    {CUDNN_HEUR_MODE_A, 40, 0, 0},       {CUDNN_HEUR_MODE_A, 41, 0, 3},
    {CUDNN_HEUR_MODE_A, 42, 0, 0},       {CUDNN_HEUR_MODE_B, 41, 2, 4},
};

enum { OFFERS = sizeof offers / sizeof offers[0] };

/* LS_EMULATED_FLAGS: a library that gives every engine a note of its own; the engine with nothing
 * but such a note, which is wrong, cannot be built. */
static unsigned notes_of(const engine *e)
{
    return e->notes | (getenv("LS_EMULATED_FLAGS") != NULL ? 1u << OF_A_NEWER_LIBRARY : 0);
}

static bool cannot_be_built(const engine *e)
{
    return e->unbuildable ||
           (getenv("LS_EMULATED_FLAGS") != NULL && e->notes == 1u << OF_A_NEWER_LIBRARY);
}

static const engine *engine_of(int64_t id)
{
    for (int i = 0; i < ENGINES; i++) {
        if (engines[i].id == id) {
            return &engines[i];
        }
    }
    return NULL;
}

static bool takes(const engine *e, const emulated_problem *p)
{
    return e->fused == (p->fusion != EMULATED_ALONE);
}

/* ---- finalizing ------------------------------------------------------------------------------ */

cudnnStatus_t emulated_engines_finalize_engine(emulated_descriptor *d)
{
    d->engine = emulated_cudnn_number(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
    if (!engine_of(d->engine) || !takes(engine_of(d->engine), &d->problem)) {
        return emulated_cudnn_error(d->engine < 0 || d->engine >= ENGINE_COUNT
                                        ? CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND
                                        : CUDNN_STATUS_NOT_SUPPORTED,
                                    "no engine %d for this graph", (int)d->engine);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t set_knob(const engine *e, emulated_descriptor *config,
                              const emulated_descriptor *choice)
{
    int64_t type = emulated_cudnn_number(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
    int64_t value = emulated_cudnn_number(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    for (int i = 0; i < EMULATED_KNOBS; i++) {
        if (e->most[i].type == (cudnnBackendKnobType_t)type && type != 0) {
            if (value < 0 || value > e->most[i].value) {
                return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "knob %d at %d",
                                            (int)type, (int)value);
            }
            config->knob[i].value = value;
            return CUDNN_STATUS_SUCCESS;
        }
    }
    return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "engine %d has no knob %d", (int)e->id,
                                (int)type);
}

static void default_knobs(const engine *e, emulated_descriptor *config)
{
    config->knob_count = e->most[0].type != 0 ? EMULATED_KNOBS : 0;
    for (int i = 0; i < config->knob_count; i++) {
        config->knob[i] = (emulated_knob){e->most[i].type, 0};
    }
}

cudnnStatus_t emulated_engines_finalize_config(emulated_descriptor *d)
{
    const emulated_descriptor *from =
        ((emulated_descriptor **)emulated_cudnn_find(d, CUDNN_ATTR_ENGINECFG_ENGINE)->values)[0];
    const emulated_attribute *choices = emulated_cudnn_find(d, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
    const engine *e = engine_of(from->engine);
    d->engine = from->engine;
    default_knobs(e, d);
    for (int64_t i = 0; choices && i < choices->count; i++) {
        const emulated_descriptor *choice = ((emulated_descriptor **)choices->values)[i];
        if (choice->type != CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "of a knob");
        }
        cudnnStatus_t status = set_knob(e, d, choice);
        if (status != CUDNN_STATUS_SUCCESS) {
            return status;
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

/* Tensor cores process 16 bytes of channels at a time. */
static bool fits_tensor_core(const emulated_problem *p)
{
    int64_t unit = 16 / (int64_t)emulated_cudnn_bytes(p->w.type);
    return p->x.channels % unit == 0 && p->y.channels % unit == 0 && p->x.alignment >= 16 &&
           p->w.alignment >= 16 && p->y.alignment >= 16;
}

cudnnStatus_t emulated_engines_finalize_plan(emulated_descriptor *plan,
                                             const emulated_descriptor *config)
{
    const engine *e = engine_of(config->engine);
    if (cannot_be_built(e) ||
        ((e->notes & NOTE(TENSOR_CORE)) != 0 && !fits_tensor_core(&config->problem))) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "engine %d does not take it",
                                    (int)e->id);
    }
    plan->engine = e->id;
    plan->workspace_bytes = e->workspace_bytes;
    plan->slow = e->slow || (config->knob_count > 0 && config->knob[0].value == 0);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* cuDNN writes results into open descriptors created by the caller. */
static cudnnStatus_t open_descriptor(void *values, int64_t i, cudnnBackendDescriptorType_t type,
                                     emulated_descriptor **out)
{
    *out = emulated_cudnn_descriptor(((cudnnBackendDescriptor_t *)values)[i]);
    if (!*out || (*out)->type != type || (*out)->final) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM,
                                    "place %d is no open descriptor of type %d", (int)i, (int)type);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_results(const emulated_descriptor *d, int64_t requested, int64_t *count,
                                 void *values)
{
    int64_t mode = emulated_cudnn_number(d, CUDNN_ATTR_ENGINEHEUR_MODE), found = 0;
    for (int i = 0; i < OFFERS; i++) {
        emulated_descriptor *config = NULL;
        if (offers[i].mode != (cudnnBackendHeurMode_t)mode ||
            !takes(engine_of(offers[i].id), &d->problem)) {
            continue;
        }
        if (found++ >= requested) {
            continue;
        }
        cudnnStatus_t status =
            open_descriptor(values, found - 1, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config);
        if (status != CUDNN_STATUS_SUCCESS) {
            return status;
        }
        const engine *e = engine_of(offers[i].id);
        default_knobs(e, config);
        if (config->knob_count > 0) {
            config->knob[0].value = offers[i].tile;
            config->knob[1].value = offers[i].stages;
        }
        config->engine = e->id;
        config->problem = d->problem;
        config->final = true;
    }
    *count = requested == 0 || found < requested ? found : requested;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_engine(const emulated_descriptor *d, int64_t requested, int64_t *count,
                                void *values)
{
    emulated_descriptor *out = NULL;
    if (requested < 1) {
        *count = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    cudnnStatus_t status = open_descriptor(values, 0, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &out);
    if (status == CUDNN_STATUS_SUCCESS) {
        emulated_cudnn_store(out, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &d->engine);
        out->engine = d->engine;
        out->problem = d->problem;
        out->final = true;
        *count = 1;
    }
    return status;
}

static cudnnStatus_t get_knobs(const emulated_descriptor *d, int64_t requested, int64_t *count,
                               void *values)
{
    *count = d->knob_count;
    for (int64_t i = 0; i < d->knob_count && i < requested; i++) {
        emulated_descriptor *out = NULL;
        cudnnStatus_t status =
            open_descriptor(values, i, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &out);
        if (status != CUDNN_STATUS_SUCCESS) {
            return status;
        }
        emulated_cudnn_store(out, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1,
                             &d->knob[i].type);
        emulated_cudnn_store(out, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
                             &d->knob[i].value);
        out->final = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_bits(unsigned bits, int64_t requested, int64_t *count, void *values)
{
    int64_t found = 0;
    for (int i = 0; i < 32; i++) {
        if ((bits >> i & 1) == 0) {
            continue;
        }
        if (found < requested) {
            ((int *)values)[found] = i;
        }
        found++;
    }
    *count = found;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_number(int64_t number, int64_t requested, int64_t *count, void *values)
{
    *count = 1;
    if (requested > 0) {
        memcpy(values, &number, sizeof number);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t emulated_engines_get(emulated_descriptor *d, cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t requested,
                                   int64_t *count, void *values, bool *known)
{
    static const struct {
        cudnnBackendDescriptorType_t descriptor;
        cudnnBackendAttributeName_t name;
        cudnnBackendAttributeType_t type;
    } computed[] = {
        {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS,
         CUDNN_TYPE_BACKEND_DESCRIPTOR},
        {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE,
         CUDNN_TYPE_BACKEND_DESCRIPTOR},
        {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
         CUDNN_TYPE_BACKEND_DESCRIPTOR},
        {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
         CUDNN_TYPE_NUMERICAL_NOTE},
        {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
         CUDNN_TYPE_BEHAVIOR_NOTE},
        {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
         CUDNN_TYPE_INT64},
    };
    int64_t ignored = 0;
    count = count ? count : &ignored;
    *known = false;
    for (size_t i = 0; i < sizeof computed / sizeof computed[0]; i++) {
        *known = *known || (computed[i].descriptor == d->type && computed[i].name == name &&
                            computed[i].type == type);
    }
    if (!*known) {
        return CUDNN_STATUS_BAD_PARAM;
    }
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        return get_results(d, requested, count, values);
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        return get_engine(d, requested, count, values);
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
        return get_knobs(d, requested, count, values);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        return get_bits(notes_of(engine_of(d->engine)), requested, count, values);
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
        return get_bits(engine_of(d->engine)->behaviours, requested, count, values);
    default:
        return get_number(d->workspace_bytes, requested, count, values);
    }
}

/* ---- executing ------------------------------------------------------------------------------- */

static cudnnStatus_t tensor_in(const emulated_descriptor *pack, const emulated_tensor *t,
                               void **out)
{
    const emulated_attribute *id = emulated_cudnn_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const emulated_attribute *data =
        emulated_cudnn_find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    size_t bytes =
        (size_t)(t->images * t->channels * t->height * t->width) * emulated_cudnn_bytes(t->type);
    for (int64_t i = 0; i < id->count; i++) {
        if (((const int64_t *)id->values)[i] != t->id) {
            continue;
        }
        *out = ((void **)data->values)[i];
        if ((uintptr_t)*out % (uintptr_t)t->alignment != 0) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                                        "tensor '%c' at %p", (int)t->id, *out);
        }
        if (!emulate_is_device(*out, bytes)) {
            return emulated_cudnn_error(CUDNN_STATUS_EXECUTION_FAILED,
                                        "tensor '%c' at %p is not %zu bytes of the device",
                                        (int)t->id, *out, bytes);
        }
        return CUDNN_STATUS_SUCCESS;
    }
    return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "no pointer for tensor '%c'", (int)t->id);
}

static cudnnStatus_t workspace_in(const emulated_descriptor *pack, int64_t bytes, void **out)
{
    *out = ((void **)emulated_cudnn_find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->values)[0];
    if (bytes == 0) {
        return CUDNN_STATUS_SUCCESS;
    }
    if (!*out || (uintptr_t)*out % WORKSPACE_ALIGNMENT != 0 ||
        !emulate_is_device(*out, (size_t)bytes)) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT,
                                    "a workspace of %d bytes is wanted, at %p is none", (int)bytes,
                                    *out);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* LS_EMULATED_ROUNDS_FIRST=ID: so does that engine. */
static bool rounds_first(int64_t id)
{
    const char *asked = getenv("LS_EMULATED_ROUNDS_FIRST");
    return asked != NULL && (strcmp(asked, "all") == 0 || strtoll(asked, NULL, 10) == id);
}

#define TRY(call)                                  \
    do {                                           \
        cudnnStatus_t try_status_ = (call);        \
        if (try_status_ != CUDNN_STATUS_SUCCESS) { \
            return try_status_;                    \
        }                                          \
    } while (0)

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t execution_plan,
                                  cudnnBackendDescriptor_t variant_pack)
{
    const emulated_descriptor *plan = emulated_cudnn_descriptor(execution_plan);
    emulated_descriptor *pack = emulated_cudnn_descriptor(variant_pack);
    if (!handle || !plan || !pack || !plan->final || !pack->final ||
        plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR ||
        pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "no handle, final plan or final pack");
    }
    const engine *e = engine_of(plan->engine);
    const emulated_problem *p = &plan->problem;
    emulated_execution run = {.problem = *p,
                              .workspace_bytes = plan->workspace_bytes,
                              .tf32 = (e->notes & NOTE(TENSOR_CORE)) != 0,
                              .wrong = e->wrong,
                              .repeated = pack->executions++ > 0,
                              .rounds_first = rounds_first(e->id),
                              .backward = (e->notes & NOTE(NONDETERMINISTIC)) != 0 &&
                                          handle->executions++ % 2 == 1};
    int64_t products = p->y.images * p->y.height * p->y.width * p->y.channels * p->w.channels *
                       p->w.height * p->w.width;
    run.times = plan->slow && products < 500000 ? 12 : 1;
    if (!p->x.within) {
        TRY(tensor_in(pack, &p->x, &run.x));
    }
    TRY(tensor_in(pack, &p->w, &run.w));
    TRY(tensor_in(pack, &p->y, &run.y));
    for (int i = 0; i < p->extra_count; i++) {
        if (p->extra[i].images > 0) {
            TRY(tensor_in(pack, &p->extra[i], &run.extra[i]));
        }
    }
    TRY(workspace_in(pack, plan->workspace_bytes, &run.workspace));
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    static const char *const pass[EMULATED_PASSES] = {"forward", "data", "weights"};
    if (emulate_unrecorded(pass[p->pass]) &&
        cudaStreamIsCapturing(handle->stream, &capture) == cudaSuccess &&
        capture != cudaStreamCaptureStatusNone) {
        (void)cudaStreamSynchronize(handle->stream);
    }
    if (emulate_enqueue(handle->stream, emulated_loops_run, &run, sizeof run) != cudaSuccess) {
        return emulated_cudnn_error(CUDNN_STATUS_EXECUTION_FAILED, "the stream takes no work");
    }
    return CUDNN_STATUS_SUCCESS;
}

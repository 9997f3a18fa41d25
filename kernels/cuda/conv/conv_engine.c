#include "conv_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"

#define BIT(note) (UINT32_C(1) << (note))

enum { MOST_NOTES = 32 }; /* a newer library may have more notes than its old header */

/* By number, from 0: the notes known to this program, whatever the header defines. */
static const char *const note_names[] = {
    "tensor core",      "down-converts",    "reduced sums", "FFT",
    "nondeterministic", "Winograd",         "Winograd 4x4", "Winograd 6x6",
    "Winograd 13x13",   "strict about NaN",
};
static const char *const behaviour_names[] = {
    "compiled at run time", "reorders weights", "reorders bias", "graph nodes", "cuBLASLt",
};
enum {
    NOTES = sizeof note_names / sizeof note_names[0],
    BEHAVIOURS = sizeof behaviour_names / sizeof behaviour_names[0],
};

const char *ls_conv_engine_refusal_name(ls_conv_refusal refusal)
{
    static const char *const names[LS_CONV_REFUSALS] = {
        [LS_CONV_TAKEN] = "taken",
        [LS_CONV_REDUCED_SUM] = "sum in less than f32",
        [LS_CONV_DOWN_CONVERTED] = "convert operands down",
        [LS_CONV_TRANSFORMED] = "use Winograd or FFT",
        [LS_CONV_NONDETERMINISTIC] = "do not repeat bit for bit (--deterministic)",
        [LS_CONV_TF32] = "use tensor cores on f32 (no --tf32)",
        [LS_CONV_REORDERED] = "want reordered operands",
        [LS_CONV_UNKNOWN] = "carry a note unknown to this program",
        [LS_CONV_WORKSPACE] = "want more workspace than allowed",
        [LS_CONV_UNBUILT] = "could not be built",
        [LS_CONV_ADDS_WRONG] = "do not round once what they add to",
    };
    return names[refusal];
}

/* ---- a device that is described -------------------------------------------------------------- */

enum { HEURISTICS, ENGINE, PLAN };

/* From the handle if there is one, else from the description, which cuDNN 9.8 and later accept. */
static cudnnStatus_t set_properties(cudnnBackendDescriptor_t descriptor, int kind,
                                    const ls_conv_target *target)
{
#if CUDNN_VERSION >= 90800
    static const cudnnBackendAttributeName_t names[] = {
        [HEURISTICS] = CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
        [ENGINE] = CUDNN_ATTR_ENGINE_DEVICEPROP,
        [PLAN] = CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP,
    };
    return cudnnBackendSetAttribute(descriptor, names[kind], CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                    &target->properties);
#else
    (void)descriptor;
    (void)kind;
    (void)target;
    return CUDNN_STATUS_NOT_SUPPORTED;
#endif
}

/* ---- asking ---------------------------------------------------------------------------------- */

static ls_status query(const ls_conv_graph *graph, cudnnBackendHeurMode_t mode,
                       cudnnBackendDescriptor_t heuristics, bool *served)
{
    *served = false;
    LS_CUDNN(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph->graph));
    LS_CUDNN(cudnnBackendSetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
                                      1, &mode));
    if (graph->target.properties) {
        LS_CUDNN(set_properties(heuristics, HEURISTICS, &graph->target));
    }
    cudnnStatus_t status = cudnnBackendFinalize(heuristics);
    if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) {
        return LS_OK;
    }
    LS_CUDNN(status);
    *served = true;
    return LS_OK;
}

/* cuDNN writes the results into descriptors that its caller creates. */
static ls_status results(cudnnBackendDescriptor_t heuristics, int most,
                         cudnnBackendDescriptor_t *config, int *count)
{
    int64_t found = 0, given = 0;
    LS_CUDNN(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &found, NULL));
    int64_t wanted = found < most ? found : most;
    for (; *count < wanted; (*count)++) {
        LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &config[*count]));
    }
    if (wanted > 0) {
        LS_CUDNN(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, wanted, &given, config));
    }
    while (*count > given) {
        ls_conv_graph_drop(config[--*count]);
    }
    return LS_OK;
}

ls_status ls_conv_engine_list(const ls_conv_graph *graph, cudnnBackendHeurMode_t mode, int most,
                              cudnnBackendDescriptor_t *config, int *count)
{
    cudnnBackendDescriptor_t heuristics = NULL;
    bool served = false;
    *count = 0;
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    ls_status status = query(graph, mode, heuristics, &served);
    if (status == LS_OK && served) {
        status = results(heuristics, most, config, count);
    }
    ls_conv_graph_drop(heuristics);
    while (status != LS_OK && *count > 0) {
        ls_conv_graph_drop(config[--*count]);
    }
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Both kinds of notes are enums, stored as ints. */
static ls_status read_notes(cudnnBackendDescriptor_t engine, cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type, int known, uint32_t *bits)
{
    int note[MOST_NOTES];
    int64_t count = 0;
    LS_CUDNN(cudnnBackendGetAttribute(engine, name, type, MOST_NOTES, &count, note));
    *bits = 0;
    for (int64_t i = 0; i < count && i < MOST_NOTES; i++) {
        *bits |= BIT(note[i] >= 0 && note[i] < known ? note[i] : LS_CONV_NOTE_UNKNOWN);
    }
    return LS_OK;
}

static ls_status read_engine(cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t engine,
                             ls_conv_engine *out)
{
    int64_t count = 0;
    LS_CUDNN(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine));
    LS_CUDNN(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                      &count, &out->id));
    LS_TRY(read_notes(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES,
                      &out->notes));
    return read_notes(engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, BEHAVIOURS,
                      &out->behaviours);
}

static ls_status read_knobs(cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t *choice,
                            ls_conv_engine *out)
{
    int64_t count = 0, one = 0;
    LS_CUDNN(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, LS_CONV_KNOBS, &count,
                                      choice));
    out->knob_count = (int)(count < LS_CONV_KNOBS ? count : LS_CONV_KNOBS);
    for (int i = 0; i < out->knob_count; i++) {
        LS_CUDNN(cudnnBackendGetAttribute(choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                          CUDNN_TYPE_KNOB_TYPE, 1, &one, &out->knob[i].type));
        LS_CUDNN(cudnnBackendGetAttribute(choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                          CUDNN_TYPE_INT64, 1, &one, &out->knob[i].value));
    }
    return LS_OK;
}

static int by_type(const void *a, const void *b)
{
    return (int)((const ls_conv_knob *)a)->type - (int)((const ls_conv_knob *)b)->type;
}

static ls_status read_config(cudnnBackendDescriptor_t config, cudnnBackendDescriptor_t *engine,
                             cudnnBackendDescriptor_t *choice, ls_conv_engine *out)
{
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, engine));
    for (int i = 0; i < LS_CONV_KNOBS; i++) {
        LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choice[i]));
    }
    LS_TRY(read_engine(config, *engine, out));
    return read_knobs(config, choice, out);
}

ls_status ls_conv_engine_read(cudnnBackendDescriptor_t config, ls_conv_engine *out)
{
    ls_conv_engine read = {0};
    cudnnBackendDescriptor_t engine = NULL, choice[LS_CONV_KNOBS] = {NULL};
    ls_status status = read_config(config, &engine, choice, &read);
    if (status == LS_OK) {
        qsort(read.knob, (size_t)read.knob_count, sizeof read.knob[0], by_type);
        *out = read;
    }
    for (int i = 0; i < LS_CONV_KNOBS; i++) {
        ls_conv_graph_drop(choice[i]);
    }
    ls_conv_graph_drop(engine);
    return status;
}

/* ---- judging: kernels/cuda/README.md has the table of notes and reasons ---------------------- */

ls_conv_refusal ls_conv_engine_judge(const ls_conv_engine *engine, const ls_conv_key *key)
{
    const uint32_t transforms = BIT(CUDNN_NUMERICAL_NOTE_FFT) | BIT(CUDNN_NUMERICAL_NOTE_WINOGRAD) |
                                BIT(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4) |
                                BIT(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6) |
                                BIT(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13);
    const uint32_t orders = BIT(CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER) |
                            BIT(CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER);
    uint32_t notes = engine->notes;
    if (notes & BIT(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) {
        return LS_CONV_REDUCED_SUM;
    }
    if (notes & BIT(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) {
        return LS_CONV_DOWN_CONVERTED;
    }
    if (notes & transforms) {
        return LS_CONV_TRANSFORMED;
    }
    if (key->deterministic && (notes & BIT(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))) {
        return LS_CONV_NONDETERMINISTIC;
    }
    if (key->type == LS_F32 && !key->tf32 && (notes & BIT(CUDNN_NUMERICAL_NOTE_TENSOR_CORE))) {
        return LS_CONV_TF32;
    }
    if (engine->behaviours & orders) {
        return LS_CONV_REORDERED;
    }
    /* An unknown behaviour (how an engine is started) does not change results; an unknown numerical
     * note may. */
    return notes & BIT(LS_CONV_NOTE_UNKNOWN) ? LS_CONV_UNKNOWN : LS_CONV_TAKEN;
}

bool ls_conv_engine_same(const ls_conv_engine *a, const ls_conv_engine *b)
{
    if (a->id != b->id || a->knob_count != b->knob_count) {
        return false;
    }
    for (int i = 0; i < a->knob_count; i++) {
        if (a->knob[i].type != b->knob[i].type || a->knob[i].value != b->knob[i].value) {
            return false;
        }
    }
    return true;
}

/* ---- building: failures are an answer here, not an error ------------------------------------- */

#define TRY_DNN(call)                              \
    do {                                           \
        cudnnStatus_t try_status_ = (call);        \
        if (try_status_ != CUDNN_STATUS_SUCCESS) { \
            return try_status_;                    \
        }                                          \
    } while (0)

static cudnnStatus_t build_engine(const ls_conv_graph *graph, int64_t id,
                                  cudnnBackendDescriptor_t *engine)
{
    TRY_DNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, engine));
    TRY_DNN(cudnnBackendSetAttribute(*engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph->graph));
    TRY_DNN(cudnnBackendSetAttribute(*engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1,
                                     &id));
    if (graph->target.properties) {
        TRY_DNN(set_properties(*engine, ENGINE, &graph->target));
    }
    return cudnnBackendFinalize(*engine);
}

static cudnnStatus_t build_config(const ls_conv_graph *graph, const ls_conv_engine *e,
                                  cudnnBackendDescriptor_t *engine,
                                  cudnnBackendDescriptor_t *choice,
                                  cudnnBackendDescriptor_t *config)
{
    TRY_DNN(build_engine(graph, e->id, engine));
    for (int i = 0; i < e->knob_count; i++) {
        TRY_DNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &choice[i]));
        TRY_DNN(cudnnBackendSetAttribute(choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                         CUDNN_TYPE_KNOB_TYPE, 1, &e->knob[i].type));
        TRY_DNN(cudnnBackendSetAttribute(choice[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE,
                                         CUDNN_TYPE_INT64, 1, &e->knob[i].value));
        TRY_DNN(cudnnBackendFinalize(choice[i]));
    }
    TRY_DNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, config));
    TRY_DNN(cudnnBackendSetAttribute(*config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, engine));
    if (e->knob_count > 0) {
        TRY_DNN(cudnnBackendSetAttribute(*config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                         CUDNN_TYPE_BACKEND_DESCRIPTOR, e->knob_count, choice));
    }
    return cudnnBackendFinalize(*config);
}

cudnnStatus_t ls_conv_engine_config(const ls_conv_graph *graph, const ls_conv_engine *engine,
                                    cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t made = NULL, choice[LS_CONV_KNOBS] = {NULL}, config = NULL;
    cudnnStatus_t status = build_config(graph, engine, &made, choice, &config);
    /* Unlike a graph, a finalized configuration owns copies of its parts. */
    for (int i = 0; i < engine->knob_count; i++) {
        ls_conv_graph_drop(choice[i]);
    }
    ls_conv_graph_drop(made);
    if (status != CUDNN_STATUS_SUCCESS) {
        ls_conv_graph_drop(config);
        return status;
    }
    *out = config;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t build_plan(const ls_conv_target *target, cudnnBackendDescriptor_t config,
                                cudnnBackendDescriptor_t *plan, int64_t *workspace_bytes)
{
    int64_t count = 0;
    TRY_DNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, plan));
    TRY_DNN(cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config));
    if (target->properties) {
        TRY_DNN(set_properties(*plan, PLAN, target));
    } else {
        TRY_DNN(cudnnBackendSetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
                                         1, &target->handle));
    }
    TRY_DNN(cudnnBackendFinalize(*plan));
    return cudnnBackendGetAttribute(*plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &count, workspace_bytes);
}

cudnnStatus_t ls_conv_engine_plan(const ls_conv_target *target, cudnnBackendDescriptor_t config,
                                  cudnnBackendDescriptor_t *out, int64_t *workspace_bytes)
{
    cudnnBackendDescriptor_t plan = NULL;
    int64_t bytes = 0;
    cudnnStatus_t status = build_plan(target, config, &plan, &bytes);
    if (status != CUDNN_STATUS_SUCCESS) {
        ls_conv_graph_drop(plan);
        return status;
    }
    *workspace_bytes = bytes;
    *out = plan;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- text ------------------------------------------------------------------------------------ */

void ls_conv_engine_tag(const ls_conv_engine *engine, char *text, size_t bytes)
{
    snprintf(text, bytes, "eng%" PRId64, engine->id);
    for (int i = 0; i < engine->knob_count; i++) {
        ls_text_add(text, bytes, "_k%d=%" PRId64, (int)engine->knob[i].type, engine->knob[i].value);
    }
}

bool ls_conv_engine_parse(const char *text, ls_conv_engine *out)
{
    ls_conv_engine e = {0};
    int used = 0;
    if (sscanf(text, "eng%" SCNd64 "%n", &e.id, &used) != 1 || e.id < 0) {
        return false;
    }
    for (const char *rest = text + used; *rest; rest += used) {
        int type = -1;
        int64_t value = 0;
        if (e.knob_count == LS_CONV_KNOBS ||
            sscanf(rest, "_k%d=%" SCNd64 "%n", &type, &value, &used) != 2 || type < 0) {
            return false;
        }
        e.knob[e.knob_count++] = (ls_conv_knob){(cudnnBackendKnobType_t)type, value};
    }
    *out = e;
    return true;
}

static void append_names(char *text, size_t bytes, uint32_t bits, const char *const *name,
                         int names)
{
    for (int i = 0; i <= LS_CONV_NOTE_UNKNOWN; i++) {
        if (bits & BIT(i)) {
            ls_text_add(text, bytes, "%s%s", text[strlen(text) - 1] == '[' ? "" : ", ",
                        i < names ? name[i] : "unknown");
        }
    }
}

void ls_conv_engine_describe(const ls_conv_engine *engine, char *text, size_t bytes)
{
    ls_conv_engine_tag(engine, text, bytes);
    ls_text_add(text, bytes, " %.1f MB [", (double)engine->workspace_bytes / (1 << 20));
    append_names(text, bytes, engine->notes, note_names, NOTES);
    append_names(text, bytes, engine->behaviours, behaviour_names, BEHAVIOURS);
    ls_text_add(text, bytes, "]");
}

#include "conv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "conv_internal.h"
#include "kernels/cuda/ops.h"

/* The last execution's pointers in a cuDNN descriptor. */
typedef struct packed {
    const void *data[LS_CONV_TENSORS_MOST]; /* in the order of ls_conv_kind */
    void *workspace;
    cudnnBackendDescriptor_t pack;
} packed;

struct ls_conv {
    ls_backend *backend;
    char name[64];
    ls_conv_key key[LS_CONV_PASSES];
    /* owned by the backend; NULL for backward data if it is not needed, and for a fused pass unless
     * it is in use */
    ls_conv_plan *plan[LS_CONV_PASSES];
    packed last[LS_CONV_PASSES];
    ls_conv_admit_fn *admit[LS_CONV_PASSES]; /* NULL: this pass is not fused */
};

/* ---- life ------------------------------------------------------------------------------------ */

static ls_conv_key key_of(const ls_backend *backend, const ls_conv_shape *shape, ls_dtype type,
                          ls_conv_pass pass, bool onto)
{
    return (ls_conv_key){.pass = pass,
                         .shape = *shape,
                         .type = type,
                         .onto = onto,
                         .deterministic = backend->deterministic,
                         .tf32 = backend->tf32,
                         .workspace_limit = backend->workspace_limit};
}

ls_conv_shape ls_conv_stem_blocks(const ls_conv_shape *stem)
{
    ls_conv_shape shape = *stem;
    LS_ASSERT(stem->kernel == 7 && stem->stride == 2 && stem->pad == 3);
    shape.in_channels = LS_INPUT_BLOCK_CHANNELS;
    shape.in_height = ls_input_blocks(stem->in_height);
    shape.in_width = ls_input_blocks(stem->in_width);
    shape.kernel = 4;
    shape.stride = 1;
    shape.pad = 0;
    return shape;
}

bool ls_conv_adds(ls_backend *backend, const ls_conv_shape *shape, ls_dtype type)
{
    const char *asked = getenv("LS_CUDNN_ADD");
    ls_conv_key key = key_of(backend, shape, type, LS_CONV_BACKWARD_DATA, true);
    ls_conv_plan *plan = NULL;
    return !(asked && strcmp(asked, "0") == 0) &&
           ls_conv_plans_get(backend, NULL, &key, NULL, &plan) == LS_OK;
}

ls_status ls_conv_create(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                         ls_dtype type, ls_conv_dx dx, ls_conv **out)
{
    LS_ASSERT(shape->out_height ==
              (shape->in_height + 2 * shape->pad - shape->kernel) / shape->stride + 1);
    LS_ASSERT(shape->out_width ==
              (shape->in_width + 2 * shape->pad - shape->kernel) / shape->stride + 1);
    ls_conv *conv = calloc(1, sizeof *conv);
    LS_TRY_MEMORY(conv != NULL, "layer %s", name);
    conv->backend = backend;
    snprintf(conv->name, sizeof conv->name, "%s", name);
    for (ls_conv_pass pass = 0; pass < LS_CONV_PASSES; pass++) {
        bool onto = pass == LS_CONV_BACKWARD_DATA && dx == LS_CONV_DX_ADDED;
        conv->key[pass] = key_of(backend, shape, type, pass, onto);
        if (pass >= LS_CONV_PLAIN_PASSES ||
            (pass == LS_CONV_BACKWARD_DATA && dx == LS_CONV_DX_NONE)) {
            continue;
        }
        ls_status status =
            ls_conv_plans_get(backend, conv->name, &conv->key[pass], NULL, &conv->plan[pass]);
        if (status != LS_OK) {
            ls_conv_destroy(conv);
            return status;
        }
    }
    *out = conv;
    return LS_OK;
}

void ls_conv_destroy(ls_conv *conv)
{
    if (!conv) {
        return;
    }
    for (int pass = 0; pass < LS_CONV_PASSES; pass++) {
        ls_conv_graph_drop(conv->last[pass].pack);
    }
    free(conv);
}

int64_t ls_conv_workspace_bytes(const ls_conv *conv)
{
    int64_t most = 0;
    for (int pass = 0; pass < LS_CONV_PASSES; pass++) {
        if (conv->plan[pass] && conv->plan[pass]->engine.workspace_bytes > most) {
            most = conv->plan[pass]->engine.workspace_bytes;
        }
    }
    return most;
}

/* ---- fused passes ---------------------------------------------------------------------------- */

bool ls_conv_fuses(const ls_conv *conv, ls_conv_pass pass)
{
    LS_ASSERT(pass >= LS_CONV_PLAIN_PASSES);
    return conv->plan[pass] != NULL;
}

int64_t ls_conv_sums_step(int channels)
{
    enum { FLOATS = LS_CONV_ALIGNMENT / sizeof(float) };
    return (channels + FLOATS - 1) / FLOATS * FLOATS;
}

/* Uses `plan` from now on, if its results are right. */
static ls_status admit(ls_conv *conv, ls_conv_pass pass, ls_conv_plan *plan)
{
    if (plan->admission == LS_CONV_NOT_TRIED) {
        const ls_conv_plan *plain = conv->plan[ls_conv_graph_kind(pass)->plain];
        LS_TRY(conv->admit[pass](conv->backend, conv->name, plain, plan));
    }
    conv->plan[pass] = plan->admission == LS_CONV_ADMITTED ? plan : NULL;
    return LS_OK;
}

/* Bytes per element that the sweep of a norm reads whose sums a fused pass makes (a norm's table in
 * README.md), of the output forward and of the input backward; 0: other sweeps are saved, too. */
static double saved_bytes(ls_conv_pass pass)
{
    static const double saved[LS_CONV_PASSES] = {[LS_CONV_FORWARD_SUMS] = 2,
                                                 [LS_CONV_DATA_GATED] = 4.125,
                                                 [LS_CONV_DATA_JOINED] = 6.125,
                                                 [LS_CONV_DATA_JOINED_TWICE] = 6.125};
    return saved[pass];
}

/* Bytes per second of the device's memory by its clock, twice each, and its bus; 0: unknown. */
static double memory_rate(const ls_backend *backend)
{
    int khz = 0, bits = 0;
    if (cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, backend->device) != cudaSuccess ||
        cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, backend->device) !=
            cudaSuccess) {
        (void)cudaGetLastError(); /* an unknown attribute is not an error */
        return 0;
    }
    return 2e3 * khz * bits / 8;
}

/* Where both plans were timed: whether the fused pass costs less than the plain one and the sweep
 * that it saves, at 0.85 of the memory's rate. On an H200 the stem's forward with sums does not. */
static bool pays(const ls_conv *conv, ls_conv_pass pass, const ls_conv_plan *fused)
{
    const ls_conv_plan *plain = conv->plan[ls_conv_graph_kind(pass)->plain];
    const ls_conv_shape *s = &fused->key.shape;
    double rate = 0.85 * memory_rate(conv->backend);
    if (!(fused->ms > 0 && plain->ms > 0 && rate > 0 && saved_bytes(pass) > 0)) {
        return true;
    }
    ls_conv_extent swept = pass == LS_CONV_FORWARD_SUMS ? LS_CONV_AS_Y : LS_CONV_AS_X;
    double bytes = saved_bytes(pass) * (double)ls_conv_graph_count(s, swept);
    return fused->ms < plain->ms + 1e3 * bytes / rate;
}

ls_status ls_conv_fuse(ls_conv *conv, ls_conv_pass pass, ls_conv_admit_fn *admit_plan)
{
    LS_ASSERT(pass >= LS_CONV_PLAIN_PASSES);
    conv->admit[pass] = admit_plan;
    ls_conv_plan *plan = NULL;
    ls_status status = ls_conv_plans_get(conv->backend, NULL, &conv->key[pass], NULL, &plan);
    conv->plan[pass] = NULL;
    if (status == LS_ERR_UNSUPPORTED || (status == LS_OK && !pays(conv, pass, plan))) {
        return LS_OK;
    }
    return status == LS_OK ? admit(conv, pass, plan) : status;
}

bool ls_conv_applies(const ls_conv *conv)
{
    return conv->plan[LS_CONV_FORWARD_APPLIED] && conv->plan[LS_CONV_WEIGHTS_APPLIED] &&
           conv->plan[LS_CONV_DATA_GATED];
}

/* All or none. */
static void settle_applied(ls_conv *conv)
{
    if (!ls_conv_applies(conv)) {
        conv->plan[LS_CONV_FORWARD_APPLIED] = conv->plan[LS_CONV_WEIGHTS_APPLIED] = NULL;
    }
}

ls_status ls_conv_fuse_applied(ls_conv *conv, ls_conv_admit_fn *admit_forward,
                               ls_conv_admit_fn *admit_weights)
{
    conv->admit[LS_CONV_FORWARD_APPLIED] = admit_forward;
    conv->admit[LS_CONV_WEIGHTS_APPLIED] = admit_weights;
    if (conv->plan[LS_CONV_DATA_GATED]) {
        LS_TRY(ls_conv_fuse(conv, LS_CONV_FORWARD_APPLIED, admit_forward));
    }
    if (conv->plan[LS_CONV_FORWARD_APPLIED]) {
        LS_TRY(ls_conv_fuse(conv, LS_CONV_WEIGHTS_APPLIED, admit_weights));
    }
    settle_applied(conv);
    return LS_OK;
}

/* ---- work ------------------------------------------------------------------------------------ */

static ls_status execute(ls_conv *conv, ls_conv_pass pass, ls_stream *stream,
                         const void *const *data, void *workspace)
{
    LS_ASSERT(conv->plan[pass]);
    packed *last = &conv->last[pass];
    size_t bytes = (size_t)ls_conv_graph_kind(pass)->count * sizeof *data;
    if (!last->pack || memcmp(last->data, data, bytes) != 0 || last->workspace != workspace) {
        cudnnBackendDescriptor_t pack = NULL;
        LS_TRY(ls_conv_plans_pack(pass, data, workspace, &pack));
        ls_conv_graph_drop(last->pack);
        *last = (packed){.workspace = workspace, .pack = pack};
        memcpy(last->data, data, bytes);
    }
    LS_CUDNN(cudnnSetStream(conv->backend->dnn, stream->native));
    LS_CUDNN(cudnnBackendExecute(conv->backend->dnn, conv->plan[pass]->plan, last->pack));
    return LS_OK;
}

ls_status ls_conv_forward(ls_conv *conv, ls_stream *stream, const void *x, const void *w, void *y,
                          void *workspace)
{
    return execute(conv, LS_CONV_FORWARD, stream, (const void *[]){x, w, y}, workspace);
}

ls_status ls_conv_forward_sums(ls_conv *conv, ls_stream *stream, const void *x, const void *w,
                               void *y, float *sums, void *workspace)
{
    const void *data[] = {x, w, y, sums, sums + ls_conv_sums_step(conv->key[0].shape.out_channels)};
    return execute(conv, LS_CONV_FORWARD_SUMS, stream, data, workspace);
}

ls_status ls_conv_backward_data(ls_conv *conv, ls_stream *stream, void *dx, const void *w,
                                const void *dy, void *workspace)
{
    return execute(conv, LS_CONV_BACKWARD_DATA, stream, (const void *[]){dx, w, dy}, workspace);
}

ls_status ls_conv_backward_gated(ls_conv *conv, ls_stream *stream, void *g, const void *w,
                                 const void *dy, const ls_conv_gate *gate, void *workspace)
{
    const void *data[LS_CONV_TENSORS_MOST];
    ls_conv_graph_gate(&conv->key[LS_CONV_DATA_GATED].shape, g, w, dy, gate, data);
    return execute(conv, LS_CONV_DATA_GATED, stream, data, workspace);
}

ls_status ls_conv_backward_joined(ls_conv *conv, ls_stream *stream, void *g, const void *w,
                                  const void *dy, const ls_conv_join *join, void *workspace)
{
    ls_conv_pass pass = join->twice ? LS_CONV_DATA_JOINED_TWICE : LS_CONV_DATA_JOINED;
    const void *data[LS_CONV_TENSORS_MOST];
    ls_conv_graph_join(&conv->key[pass].shape, g, w, dy, join, data);
    return execute(conv, pass, stream, data, workspace);
}

ls_status ls_conv_backward_weights(ls_conv *conv, ls_stream *stream, void *dw, const void *x,
                                   const void *dy, void *workspace)
{
    return execute(conv, LS_CONV_BACKWARD_WEIGHTS, stream, (const void *[]){x, dw, dy}, workspace);
}

ls_status ls_conv_forward_applied(ls_conv *conv, ls_stream *stream, const ls_conv_applied *in,
                                  const void *w, void *y, float *sums, void *workspace)
{
    float *squares = sums + ls_conv_sums_step(conv->key[0].shape.out_channels);
    const void *data[] = {in->x, w, y, in->scale, in->bias, sums, squares};
    LS_ASSERT(ls_conv_applies(conv));
    return execute(conv, LS_CONV_FORWARD_APPLIED, stream, data, workspace);
}

ls_status ls_conv_backward_weights_applied(ls_conv *conv, ls_stream *stream, void *dw,
                                           const ls_conv_applied *in, const void *dy,
                                           void *workspace)
{
    const void *data[] = {in->x, dw, dy, in->scale, in->bias};
    LS_ASSERT(ls_conv_applies(conv));
    return execute(conv, LS_CONV_WEIGHTS_APPLIED, stream, data, workspace);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The pass that does the work of a plain one. */
static ls_conv_pass pass_for(const ls_conv *conv, ls_conv_pass plain)
{
    ls_conv_pass found = plain;
    for (ls_conv_pass pass = LS_CONV_PLAIN_PASSES; pass < LS_CONV_PASSES; pass++) {
        bool instead = conv->plan[pass] != NULL && ls_conv_graph_kind(pass)->plain == plain;
        found = instead ? pass : found;
    }
    return found;
}

void ls_conv_describe(const ls_conv *conv, char *text, size_t bytes)
{
    text[0] = '\0';
    for (ls_conv_pass pass = 0; pass < LS_CONV_PLAIN_PASSES; pass++) {
        const ls_conv_plan *plan = conv->plan[pass_for(conv, pass)];
        char engine[LS_CONV_TAG_BYTES + 256], timed[64] = "";
        if (!plan) {
            continue;
        }
        ls_conv_engine_describe(&plan->engine, engine, sizeof engine);
        if (plan->timed > 0) {
            snprintf(timed, sizeof timed, " %.3f ms, best of %d", plan->ms, plan->timed);
        }
        ls_text_add(text, bytes, "%s%s%s %s%s", pass == 0 ? "" : "; ",
                    ls_conv_graph_kind(plan->key.pass)->name, plan->key.onto ? ", added" : "",
                    engine, timed);
    }
}

void ls_conv_engine_of(const ls_conv *conv, ls_conv_pass plain, char *text, size_t bytes)
{
    const ls_conv_plan *plan = conv->plan[pass_for(conv, plain)];
    LS_ASSERT(plan);
    ls_conv_engine_tag(&plan->engine, text, bytes);
}

void ls_conv_choice(const ls_conv *conv, char *text, size_t bytes)
{
    text[0] = '\0';
    for (ls_conv_pass pass = 0; pass < LS_CONV_PASSES; pass++) {
        char tag[LS_CONV_TAG_BYTES] = "-";
        const char *label = ls_conv_graph_kind(pass)->label;
        if (conv->plan[pass]) {
            ls_conv_engine_tag(&conv->plan[pass]->engine, tag, sizeof tag);
        } else if (label != NULL) {
            continue;
        }
        ls_text_add(text, bytes, "%s%s%s", pass == 0 ? "" : " ", label == NULL ? "" : label, tag);
    }
}

/* The pass of the word at a place of a choice: the first words are those of the plain passes in
 * order, each later one begins with the label of a fused pass that this layer may use.
 * LS_CONV_PASSES: of none. */
static ls_conv_pass pass_of_word(const ls_conv *conv, int place, const char *word)
{
    ls_conv_pass pass = LS_CONV_PLAIN_PASSES;
    if (place < LS_CONV_PLAIN_PASSES) {
        return (ls_conv_pass)place;
    }
    while (pass < LS_CONV_PASSES) {
        const char *label = ls_conv_graph_kind(pass)->label;
        if (conv->admit[pass] != NULL && strncmp(word, label, strlen(label)) == 0) {
            break;
        }
        pass++;
    }
    return pass;
}

/* Parses words: a tag for each plain pass, "-" where this layer lacks it, then labels with tags. */
static bool parse_choice(const ls_conv *conv, const char *text, ls_conv_engine *engine, bool *has)
{
    char word[LS_CONV_TAG_BYTES];
    int place = 0;
    for (int length = 0; sscanf(text, "%1023s%n", word, &length) == 1; text += length, place++) {
        ls_conv_pass pass = pass_of_word(conv, place, word);
        if (pass == LS_CONV_PASSES || has[pass]) {
            return false;
        }
        const char *label = ls_conv_graph_kind(pass)->label;
        has[pass] = strcmp(word, "-") != 0;
        if ((label == NULL && has[pass] != (conv->plan[pass] != NULL)) ||
            (has[pass] &&
             !ls_conv_engine_parse(word + (label == NULL ? 0 : strlen(label)), &engine[pass]))) {
            return false;
        }
    }
    return place >= LS_CONV_PLAIN_PASSES;
}

ls_status ls_conv_choose(ls_conv *conv, const char *text)
{
    ls_conv_engine engine[LS_CONV_PASSES];
    ls_conv_plan *plan[LS_CONV_PASSES] = {NULL};
    bool has[LS_CONV_PASSES] = {false};
    if (!parse_choice(conv, text, engine, has)) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "%s: \"%s\" is no choice of engines for it (three words like eng37_k2=5, \"-\" "
            "for a pass that is not there; with --fuse also one like sums=eng41)",
            conv->name, text);
    }
    for (ls_conv_pass pass = 0; pass < LS_CONV_PASSES; pass++) {
        if (has[pass]) {
            LS_TRY(ls_conv_plans_get(conv->backend, conv->name, &conv->key[pass], &engine[pass],
                                     &plan[pass]));
        }
    }
    memcpy(conv->plan, plan, sizeof plan[0] * LS_CONV_PLAIN_PASSES);
    for (ls_conv_pass pass = LS_CONV_PLAIN_PASSES; pass < LS_CONV_PASSES; pass++) {
        conv->plan[pass] = NULL;
        LS_TRY(has[pass] ? admit(conv, pass, plan[pass]) : LS_OK);
    }
    settle_applied(conv);
    return LS_OK;
}

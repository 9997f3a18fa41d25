#include "conv_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/sort.h"
#include "kernels/core/text.h"
#include "conv_trial.h"

enum {
    MOST_CONFIGS = 2 * LS_CONV_TIMED_MOST,
    CHOSEN_LIMITS = 4, /* workspace limits that an engine may take that another rank has chosen */
};

typedef struct candidate {
    ls_conv_engine engine;
    cudnnBackendDescriptor_t config, plan;
} candidate;

typedef struct search {
    ls_backend *backend;
    const ls_conv_key *key;
    ls_conv_graph graph;
    int wanted, count; /* plans */
    bool open;         /* also engines with notes unknown to this program */
    bool chosen;       /* by a rank whose GPU may be larger and allow more workspace */
    candidate found[LS_CONV_TIMED_MOST];
    int seen_count;
    ls_conv_engine seen[MOST_CONFIGS];
    int refused[LS_CONV_REFUSALS];
    int64_t smallest_workspace; /* of the engines over the limit */
    cudnnStatus_t failure;      /* of the last engine that could not be built */
    ls_conv_onto *onto;         /* while engines that add are tried */
} search;

static void drop_candidate(candidate *c)
{
    ls_conv_graph_drop(c->plan);
    ls_conv_graph_drop(c->config);
    *c = (candidate){0};
}

static bool same_key(const ls_conv_key *a, const ls_conv_key *b)
{
    const ls_conv_shape *s = &a->shape, *t = &b->shape;
    return a->pass == b->pass && a->type == b->type && a->onto == b->onto &&
           a->deterministic == b->deterministic && a->tf32 == b->tf32 &&
           a->workspace_limit == b->workspace_limit && s->batch == t->batch &&
           s->in_channels == t->in_channels && s->in_height == t->in_height &&
           s->in_width == t->in_width && s->out_channels == t->out_channels &&
           s->out_height == t->out_height && s->out_width == t->out_width &&
           s->kernel == t->kernel && s->stride == t->stride && s->pad == t->pad;
}

/* ---- one configuration ----------------------------------------------------------------------- */

/* Whether an engine that adds does so as it must (conv_trial.h). */
static ls_status try_adding(search *s, candidate *c, ls_conv_refusal *refusal)
{
    cudnnStatus_t executed = CUDNN_STATUS_SUCCESS;
    bool right = false;
    if (s->onto == NULL) {
        LS_TRY(ls_conv_onto_open(s->backend, s->key, &s->onto));
    }
    LS_TRY(ls_conv_onto_try(s->onto, c->plan, c->engine.workspace_bytes, &executed, &right));
    if (executed != CUDNN_STATUS_SUCCESS) {
        s->failure = executed;
        *refusal = LS_CONV_UNBUILT;
    } else if (!right) {
        *refusal = LS_CONV_ADDS_WRONG;
    }
    return LS_OK;
}

/* Builds the plan if the engine is allowed. */
static ls_conv_refusal build_plan(search *s, candidate *c)
{
    ls_conv_refusal refusal = ls_conv_engine_judge(&c->engine, s->key);
    if (refusal != LS_CONV_TAKEN && !(refusal == LS_CONV_UNKNOWN && s->open)) {
        return refusal;
    }
    cudnnStatus_t status =
        ls_conv_engine_plan(&s->graph.target, c->config, &c->plan, &c->engine.workspace_bytes);
    if (status != CUDNN_STATUS_SUCCESS) {
        s->failure = status;
        return LS_CONV_UNBUILT;
    }
    int64_t bytes = c->engine.workspace_bytes;
    if (bytes > s->key->workspace_limit * (s->chosen ? CHOSEN_LIMITS : 1)) {
        if (s->refused[LS_CONV_WORKSPACE] == 0 || bytes < s->smallest_workspace) {
            s->smallest_workspace = bytes;
        }
        return LS_CONV_WORKSPACE;
    }
    return LS_CONV_TAKEN;
}

static ls_status build_candidate(search *s, candidate *c, ls_conv_refusal *refusal)
{
    *refusal = build_plan(s, c);
    return *refusal == LS_CONV_TAKEN && ls_conv_onto_judges(s->backend, s->key)
               ? try_adding(s, c, refusal)
               : LS_OK;
}

static bool seen_before(search *s, const ls_conv_engine *engine)
{
    for (int i = 0; i < s->seen_count; i++) {
        if (ls_conv_engine_same(&s->seen[i], engine)) {
            return true;
        }
    }
    if (s->seen_count < MOST_CONFIGS) {
        s->seen[s->seen_count++] = *engine;
    }
    return false;
}

static ls_status consider(search *s, cudnnBackendDescriptor_t config)
{
    candidate c = {.config = config};
    ls_status status = ls_conv_engine_read(config, &c.engine);
    if (status != LS_OK || seen_before(s, &c.engine)) {
        drop_candidate(&c);
        return status;
    }
    ls_conv_refusal refusal = LS_CONV_TAKEN;
    status = build_candidate(s, &c, &refusal);
    if (status != LS_OK) {
        drop_candidate(&c);
        return status;
    }
    s->refused[refusal]++;
    if (refusal == LS_CONV_TAKEN) {
        s->found[s->count++] = c;
    } else {
        drop_candidate(&c);
    }
    return LS_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static ls_status look_in(search *s, cudnnBackendHeurMode_t mode, int until)
{
    cudnnBackendDescriptor_t config[MOST_CONFIGS];
    int count = 0;
    LS_TRY(ls_conv_engine_list(&s->graph, mode, MOST_CONFIGS, config, &count));
    ls_status status = LS_OK;
    for (int i = 0; i < count; i++) {
        if (status == LS_OK && s->count < until) {
            status = consider(s, config[i]);
        } else {
            ls_conv_graph_drop(config[i]);
        }
    }
    return status;
}

/* Mode A is fast and good, B slower and sometimes better; the fallback list always works. */
static ls_status look(search *s)
{
    LS_TRY(look_in(s, CUDNN_HEUR_MODE_A, s->wanted));
    if (s->count < s->wanted) {
        LS_TRY(look_in(s, CUDNN_HEUR_MODE_B, s->wanted));
    }
    return s->count == 0 ? look_in(s, CUDNN_HEUR_MODE_FALLBACK, s->wanted) : LS_OK;
}

/* Where no engine is left but those with notes that this program does not know, and no larger
 * workspace would help, a newer cuDNN has a note for all of them: they are taken after all. */
static ls_status look_again(search *s, const char *layer)
{
    s->open = true;
    s->seen_count = 0;
    memset(s->refused, 0, sizeof s->refused);
    LS_TRY(look(s));
    if (s->count > 0 && layer != NULL) {
        ls_log_warn("%s: cuDNN %zu gives each of its engines for the %s that could be used a note "
                    "unknown to this program; they are used",
                    layer, cudnnGetVersion(), ls_conv_graph_kind(s->key->pass)->name);
    }
    return LS_OK;
}

static void report_refused(const search *s, const char *layer)
{
    const ls_conv_shape *h = &s->key->shape;
    char text[512] = "";
    for (int i = LS_CONV_TAKEN + 1; i < LS_CONV_REFUSALS; i++) {
        if (s->refused[i] == 0) {
            continue;
        }
        ls_text_add(text, sizeof text, "%s %d %s", text[0] ? "," : ":", s->refused[i],
                    ls_conv_engine_refusal_name((ls_conv_refusal)i));
        if (i == LS_CONV_WORKSPACE) {
            ls_text_add(text, sizeof text, " (%.1f MB; the least is %.1f MB)",
                        (double)s->key->workspace_limit / (1 << 20),
                        (double)s->smallest_workspace / (1 << 20));
        } else if (i == LS_CONV_UNBUILT) {
            ls_text_add(text, sizeof text, " (%s)", cudnnGetErrorString(s->failure));
        }
    }
    ls_log_error("%s: cuDNN %zu has no engine that may be used for its %s (%s, image %dx%dx%dx%d, "
                 "kernel %d, stride %d, pad %d, %d channels out); %d configurations seen%s",
                 layer, cudnnGetVersion(), ls_conv_graph_kind(s->key->pass)->name,
                 ls_dtype_label(s->key->type), h->batch, h->in_channels, h->in_height, h->in_width,
                 h->kernel, h->stride, h->pad, h->out_channels, s->seen_count, text);
}

/* ---- their times ----------------------------------------------------------------------------- */

static ls_status fill_pack(cudnnBackendDescriptor_t pack, ls_conv_pass pass,
                           const void *const *data, void *const *workspace)
{
    int64_t id[LS_CONV_TENSORS_MOST];
    const ls_conv_kind *kind = ls_conv_graph_kind(pass);
    int count = kind->count;
    for (int i = 0; i < count; i++) {
        id[i] = kind->tensor[i].id;
    }
    LS_CUDNN(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64,
                                      count, id));
    LS_CUDNN(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                      CUDNN_TYPE_VOID_PTR, count, data));
    LS_CUDNN(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
                                      1, workspace));
    LS_CUDNN(cudnnBackendFinalize(pack));
    return LS_OK;
}

ls_status ls_conv_plans_pack(ls_conv_pass pass, const void *const *data, void *workspace,
                             cudnnBackendDescriptor_t *out)
{
    cudnnBackendDescriptor_t pack = NULL;
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    ls_status status = fill_pack(pack, pass, data, &workspace);
    if (status != LS_OK) {
        ls_conv_graph_drop(pack);
        return status;
    }
    *out = pack;
    return LS_OK;
}

/* The first executions load code; a median of a few ignores one disturbed run. A plan that takes
 * HOPELESS times as long as the best so far is not run again. */
enum { WARM_UP = 2, RUNS = 5, HOPELESS = 2 };

int64_t ls_conv_plans_workspace(const ls_conv_plan *a, const ls_conv_plan *b)
{
    int64_t one = a->engine.workspace_bytes, other = b->engine.workspace_bytes;
    return one > other ? one : other;
}

typedef struct scratch {
    void *tensor[LS_CONV_TENSORS_MOST], *workspace;
    cudaStream_t stream;
    cudaEvent_t mark[RUNS + 1];
} scratch;

static ls_status scratch_take(const ls_conv_key *key, int64_t workspace_bytes, scratch *s)
{
    const ls_conv_kind *kind = ls_conv_graph_kind(key->pass);
    LS_CUDA(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    for (int i = 0; i < kind->count; i++) {
        ls_conv_extent extent = kind->tensor[i].extent;
        ls_dtype type = ls_conv_graph_type(key, extent);
        int64_t count = ls_conv_graph_count(&key->shape, extent);
        LS_TRY(ls_cuda_take(count * (int64_t)ls_dtype_bytes(type), "timing of convolutions",
                            &s->tensor[i]));
        LS_TRY(ls_cuda_fill_pattern(s->stream, s->tensor[i], type, count));
    }
    if (workspace_bytes > 0) {
        LS_TRY(ls_cuda_take(workspace_bytes, "timing of convolutions: workspace", &s->workspace));
    }
    for (int i = 0; i <= RUNS; i++) {
        LS_CUDA(cudaEventCreateWithFlags(&s->mark[i], cudaEventDefault));
    }
    return LS_OK;
}

static void scratch_give(scratch *s)
{
    for (int i = 0; i <= RUNS; i++) {
        if (s->mark[i]) {
            cudaEventDestroy(s->mark[i]);
        }
    }
    if (s->stream) {
        cudaStreamDestroy(s->stream);
    }
    ls_cuda_give(s->workspace);
    for (int i = 0; i < LS_CONV_TENSORS_MOST; i++) {
        ls_cuda_give(s->tensor[i]);
    }
}

/* Enqueues `runs` executions, an event before each and one after the last, and waits for them.
 * Their milliseconds; `ok` false: the plan cannot be executed. */
static ls_status execute(ls_backend *backend, cudnnBackendDescriptor_t plan,
                         cudnnBackendDescriptor_t pack, scratch *s, int runs, double *ms, bool *ok)
{
    *ok = true;
    for (int i = 0; i < runs && *ok; i++) {
        LS_CUDA(cudaEventRecord(s->mark[i], s->stream));
        *ok = cudnnBackendExecute(backend->dnn, plan, pack) == CUDNN_STATUS_SUCCESS;
    }
    if (*ok) {
        LS_CUDA(cudaEventRecord(s->mark[runs], s->stream));
    } else {
        (void)cudaGetLastError(); /* cleared: a plan that fails is a result here and must not
                                     surface at the next launch */
    }
    LS_CUDA(cudaStreamSynchronize(s->stream));
    for (int i = 0; i < runs && *ok; i++) {
        float elapsed = 0;
        LS_CUDA(cudaEventElapsedTime(&elapsed, s->mark[i], s->mark[i + 1]));
        ms[i] = elapsed;
    }
    return LS_OK;
}

/* The median, or the time after the warm-up where that is more than HOPELESS times `best`. */
static ls_status time_plan(ls_backend *backend, cudnnBackendDescriptor_t plan,
                           cudnnBackendDescriptor_t pack, scratch *s, double best, double *ms)
{
    double run[RUNS];
    bool ok = true;
    *ms = INFINITY;
    LS_TRY(execute(backend, plan, pack, s, WARM_UP, run, &ok));
    if (ok && run[WARM_UP - 1] > HOPELESS * best) {
        *ms = run[WARM_UP - 1];
        return LS_OK;
    }
    if (ok) {
        LS_TRY(execute(backend, plan, pack, s, RUNS, run, &ok));
    }
    if (ok) {
        *ms = ls_sort_median(run, RUNS);
    }
    return LS_OK;
}

static ls_status time_all(ls_backend *backend, const ls_conv_key *key, int count,
                          const cudnnBackendDescriptor_t *plan, int64_t workspace_bytes, scratch *s,
                          double *ms)
{
    cudnnBackendDescriptor_t pack = NULL;
    LS_TRY(scratch_take(key, workspace_bytes, s));
    LS_CUDNN(cudnnSetStream(backend->dnn, s->stream));
    const void *const *data = (const void *const *)s->tensor;
    LS_TRY(ls_conv_plans_pack(key->pass, data, s->workspace, &pack));
    ls_status status = LS_OK;
    double best = INFINITY;
    for (int i = 0; i < count && status == LS_OK; i++) {
        status = time_plan(backend, plan[i], pack, s, best, &ms[i]);
        best = fmin(best, ms[i]);
    }
    ls_conv_graph_drop(pack);
    return status;
}

/* Median milliseconds of each plan on scratch tensors; INFINITY: the plan cannot be executed. */
static ls_status time_plans(ls_backend *backend, const ls_conv_key *key, int count,
                            const cudnnBackendDescriptor_t *plan, int64_t workspace_bytes,
                            double *ms)
{
    scratch s = {0};
    ls_status status = time_all(backend, key, count, plan, workspace_bytes, &s, ms);
    cudnnSetStream(backend->dnn, NULL);
    scratch_give(&s);
    return status;
}

static ls_status fastest(ls_backend *backend, const search *s, int *best, double *best_ms)
{
    cudnnBackendDescriptor_t plan[LS_CONV_TIMED_MOST];
    double ms[LS_CONV_TIMED_MOST];
    int64_t workspace = 0;
    for (int i = 0; i < s->count; i++) {
        plan[i] = s->found[i].plan;
        int64_t bytes = s->found[i].engine.workspace_bytes;
        workspace = bytes > workspace ? bytes : workspace;
    }
    LS_TRY(time_plans(backend, s->key, s->count, plan, workspace, ms));
    *best = 0;
    for (int i = 1; i < s->count; i++) {
        *best = ms[i] < ms[*best] ? i : *best;
    }
    *best_ms = ms[*best];
    if (!isfinite(*best_ms)) {
        return ls_log_fail(LS_ERR_INFRA, "none of the %d plans for %s could be executed", s->count,
                           ls_conv_graph_kind(s->key->pass)->name);
    }
    return LS_OK;
}

static ls_status settle(ls_backend *backend, search *s, const char *layer, ls_conv_plan *out)
{
    int best = 0;
    LS_TRY(look(s));
    if (s->count == 0 && s->refused[LS_CONV_UNKNOWN] > 0 && s->refused[LS_CONV_WORKSPACE] == 0) {
        LS_TRY(look_again(s, layer));
    }
    ls_conv_onto_close(s->onto);
    s->onto = NULL;
    if (s->count == 0) {
        if (layer) {
            report_refused(s, layer);
        }
        return LS_ERR_UNSUPPORTED;
    }
    if (s->count > 1) {
        LS_TRY(fastest(backend, s, &best, &out->ms));
        out->timed = s->count;
    }
    out->seen = s->seen_count;
    out->engine = s->found[best].engine;
    out->config = s->found[best].config;
    out->plan = s->found[best].plan;
    s->found[best] = (candidate){0};
    return LS_OK;
}

static ls_status search_plan(ls_backend *backend, const char *layer, const ls_conv_key *key,
                             ls_conv_plan *out)
{
    search *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "no memory to look for an engine for layer %s", layer);
    }
    s->backend = backend;
    s->key = key;
    s->wanted = backend->benchmark ? LS_CONV_TIMED_MOST : 1;
    ls_conv_target target = {backend->dnn, backend->described};
    ls_status status = ls_conv_graph_build(&target, key, &s->graph);
    LS_THEN(status, settle(backend, s, layer, out));
    for (int i = 0; i < s->count; i++) {
        drop_candidate(&s->found[i]);
    }
    ls_conv_onto_close(s->onto);
    if (status == LS_OK) {
        out->graph = s->graph;
    } else {
        ls_conv_graph_free(&s->graph);
    }
    free(s);
    return status;
}

/* ---- one engine, by its name ----------------------------------------------------------------- */

static ls_status build_named(ls_backend *backend, const char *layer, const ls_conv_key *key,
                             const ls_conv_engine *engine, search *s, ls_conv_plan *out)
{
    char tag[LS_CONV_TAG_BYTES];
    candidate c = {0};
    ls_conv_target target = {backend->dnn, backend->described};
    LS_TRY(ls_conv_graph_build(&target, key, &s->graph));
    s->failure = ls_conv_engine_config(&s->graph, engine, &c.config);
    ls_conv_refusal refusal = LS_CONV_UNBUILT;
    if (s->failure == CUDNN_STATUS_SUCCESS) {
        ls_status status = ls_conv_engine_read(c.config, &c.engine);
        LS_THEN(status, build_candidate(s, &c, &refusal));
        if (status != LS_OK) {
            drop_candidate(&c);
            return status;
        }
    }
    if (refusal != LS_CONV_TAKEN) {
        drop_candidate(&c);
        ls_conv_engine_tag(engine, tag, sizeof tag);
        return ls_log_fail(
            LS_ERR_UNSUPPORTED,
            "%s: the %s cannot take engine %s, which another rank has chosen: such engines "
            "%s here%s%s",
            layer, ls_conv_graph_kind(key->pass)->name, tag, ls_conv_engine_refusal_name(refusal),
            refusal == LS_CONV_UNBUILT ? ": " : "",
            refusal == LS_CONV_UNBUILT ? cudnnGetErrorString(s->failure) : "");
    }
    out->engine = c.engine;
    out->config = c.config;
    out->plan = c.plan;
    out->graph = s->graph;
    out->seen = 1;
    return LS_OK;
}

static ls_status name_plan(ls_backend *backend, const char *layer, const ls_conv_key *key,
                           const ls_conv_engine *engine, ls_conv_plan *out)
{
    search *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "no memory to take an engine for layer %s", layer);
    }
    s->backend = backend;
    s->key = key;
    s->open = s->chosen = true; /* rank 0 has warned */
    ls_status status = build_named(backend, layer, key, engine, s, out);
    ls_conv_onto_close(s->onto);
    if (status != LS_OK) {
        ls_conv_graph_free(&s->graph);
    }
    free(s);
    return status;
}

/* ---- the cache ------------------------------------------------------------------------------- */

static ls_conv_plan *cached(const struct ls_conv_plans *plans, const ls_conv_key *key,
                            const ls_conv_engine *engine)
{
    for (ls_conv_plan *p = plans->first; p; p = p->next) {
        if (same_key(&p->key, key) && (!engine || ls_conv_engine_same(&p->engine, engine))) {
            return p;
        }
    }
    return NULL;
}

ls_status ls_conv_plans_get(ls_backend *backend, const char *layer, const ls_conv_key *key,
                            const ls_conv_engine *engine, ls_conv_plan **out)
{
    struct ls_conv_plans *plans =
        backend->plans ? backend->plans : calloc(1, sizeof *backend->plans);
    LS_TRY_MEMORY(plans != NULL, "the list of convolutions' plans");
    backend->plans = plans;
    plans->asked++;
    ls_conv_plan *plan = cached(plans, key, engine);
    if (plan) {
        *out = plan;
        return LS_OK;
    }
    plans->searched++;
    plan = calloc(1, sizeof *plan);
    LS_TRY_MEMORY(plan != NULL, "a plan of layer %s", layer);
    plan->key = *key;
    ls_status status = engine ? name_plan(backend, layer, key, engine, plan)
                              : search_plan(backend, layer, key, plan);
    if (status != LS_OK) {
        free(plan);
        return status;
    }
    plan->next = plans->first;
    plans->first = plan;
    *out = plan;
    return LS_OK;
}

void ls_conv_plans_destroy(struct ls_conv_plans *plans)
{
    if (!plans) {
        return;
    }
    for (ls_conv_plan *p = plans->first, *next; p; p = next) {
        next = p->next;
        ls_conv_graph_drop(p->plan);
        ls_conv_graph_drop(p->config);
        ls_conv_graph_free(&p->graph);
        free(p);
    }
    free(plans);
}

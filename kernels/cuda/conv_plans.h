/* Execution plans of one backend; each pass, shape and type is searched once. */
#ifndef LS_CUDA_CONV_PLANS_H
#define LS_CUDA_CONV_PLANS_H

#include "conv_engine.h"

/* The most plans that --cudnn-benchmark times. */
enum { LS_CONV_TIMED_MOST = 8 };

typedef struct ls_conv_plan {
    ls_conv_key key;
    ls_conv_engine engine;
    int seen, timed; /* configurations examined, plans timed */
    double ms;       /* time of this plan; 0 if none was timed */
    ls_conv_graph graph;
    cudnnBackendDescriptor_t config, plan;
    struct ls_conv_plan *next;
} ls_conv_plan;

struct ls_conv_plans {
    ls_conv_plan *first;
    int64_t asked, searched; /* plans requested, and requests that needed a search in cuDNN */
};

/* The plan for that key: from an earlier search, or the first that passes the filters (with
 * benchmark: the fastest of them). It is valid until the backend closes. LS_ERR_UNSUPPORTED if none
 * is left, with the reasons for each refusal; `layer` names the layer in that message, NULL: no
 * message. */
ls_status ls_conv_plans_find(ls_backend *backend, const char *layer, const ls_conv_key *key,
                             ls_conv_plan **out);
/* The plan for that key with that engine and those knobs. LS_ERR_UNSUPPORTED if this device does
 * not have it or a filter refuses it. */
ls_status ls_conv_plans_take(ls_backend *backend, const char *layer, const ls_conv_key *key,
                             const ls_conv_engine *engine, ls_conv_plan **out);

/* Packs the addresses of the three tensors and the workspace for an execution. */
ls_status ls_conv_plans_pack(const void *x, const void *w, const void *y, void *workspace,
                             cudnnBackendDescriptor_t *out);

/* conv_time.c: median milliseconds of each plan on scratch tensors; INFINITY marks a plan that
 * cannot be executed. */
ls_status ls_conv_time_plans(ls_backend *backend, const ls_conv_key *key, int count,
                             const cudnnBackendDescriptor_t *plan, int64_t workspace_bytes,
                             double *ms);

#endif

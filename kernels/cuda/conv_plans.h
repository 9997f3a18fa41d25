/* Execution plans of one backend, found once for each pass, shape and type. */
#ifndef LS_CUDA_CONV_PLANS_H
#define LS_CUDA_CONV_PLANS_H

#include "conv_engine.h"

/* With --cudnn-benchmark: how many plans are timed. */
enum { LS_CONV_TIMED_MOST = 8 };

typedef struct ls_conv_plan {
    ls_conv_key key;
    ls_conv_engine engine;
    int seen, timed; /* configurations looked at, plans timed against each other */
    double ms;       /* of this one; 0 where none was timed */
    ls_conv_graph graph;
    cudnnBackendDescriptor_t config, plan;
    struct ls_conv_plan *next;
} ls_conv_plan;

struct ls_conv_plans {
    ls_conv_plan *first;
    int64_t asked, searched; /* plans asked for, and those for which cuDNN had to be asked */
};

/* The plan of that key: the one found before, or the first that survives the filters (with
 * benchmark: the fastest of them). It lives until the backend closes. LS_ERR_UNSUPPORTED where
 * none is left, with what was refused and why; `layer` is for that message, NULL: none. */
ls_status ls_conv_plans_find(ls_backend *backend, const char *layer, const ls_conv_key *key,
                             ls_conv_plan **out);
/* The plan of that key with that engine and those knobs. LS_ERR_UNSUPPORTED where it cannot be had
 * here, or is one that the filters refuse. */
ls_status ls_conv_plans_take(ls_backend *backend, const char *layer, const ls_conv_key *key,
                             const ls_conv_engine *engine, ls_conv_plan **out);

/* Where the three tensors and the workspace are for an execution. */
ls_status ls_conv_plans_pack(const void *x, const void *w, const void *y, void *workspace,
                             cudnnBackendDescriptor_t *out);

/* conv_time.c: median milliseconds of each of the plans on scratch tensors; a plan that cannot be
 * executed is marked by INFINITY. */
ls_status ls_conv_time_plans(ls_backend *backend, const ls_conv_key *key, int count,
                             const cudnnBackendDescriptor_t *plan, int64_t workspace_bytes,
                             double *ms);

#endif

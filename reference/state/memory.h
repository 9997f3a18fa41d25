/* Every tensor of a training run that outlives a step, sized in one table and allocated once:
 * parameters, gradients (views into one flat arena, in bucket order), f32 accumulators, unscaled
 * gradients, masters, moments, running statistics and the step's state. Activations and workspace
 * belong to the plan. */
#ifndef LS_MEMORY_H
#define LS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "reference/comm/comm.h"
#include "device.h"

struct cJSON;

enum { LS_MEMORY_MOMENTS_MAX = 2 };

/* Kinds of memory, as reported. */
typedef enum ls_memory_kind {
    LS_MEMORY_PARAM,
    LS_MEMORY_GRAD,
    LS_MEMORY_STAGING,  /* gradients in the type of the reduction, if it differs from their own */
    LS_MEMORY_SUM,      /* accumulated micro-gradients, f32, still scaled */
    LS_MEMORY_UNSCALED, /* f32 gradients of parameters with half gradients */
    LS_MEMORY_MASTER,
    LS_MEMORY_MOMENT,
    LS_MEMORY_BUFFER,
    LS_MEMORY_STATE,
    LS_MEMORY_KINDS,
} ls_memory_kind;

typedef struct ls_memory_options {
    const ls_network *network;  /* borrowed */
    const ls_dtype *param_type; /* [param_count] */
    const ls_dtype *grad_type;  /* [param_count]; written by backward */
    const ls_dtype
        *reduced_type; /* [param_count]; type of the reduction (the same without a reduction) */
    const ls_dtype *buffer_type; /* [buffer_count]; counters' entries are ignored */
    bool masters;                /* for every parameter whose type is not f32 */
    int moment_count;            /* 0 to 2 f32 tensors per parameter */
    bool sums;                   /* accumulation over micro-steps */
    const ls_comm_api *engine;   /* may allocate the tensors that are reduced; NULL: no reduction */
    ls_comm *comm;
} ls_memory_options;

typedef struct ls_memory {
    const ls_device *device;
    const ls_network *network;
    int param_count, buffer_count, moment_count;
    /* All lists are indexed like the network's; a list that the run does not need is NULL. They lie
     * in one block. */
    ls_tensor *lists;
    ls_tensor *param;
    ls_tensor *grad; /* views; ls_memory_place moves them */
    ls_tensor
        *reduced; /* the tensor that is reduced: the gradient itself, or its copy in another type */
    ls_tensor *sum;
    ls_tensor *unscaled; /* f32; the gradient itself if it is f32 */
    ls_tensor *master;   /* data NULL for a parameter that has none; NULL without masters */
    ls_tensor *value;    /* the tensor that the optimizer steps: the master, else the parameter */
    ls_tensor *moment[LS_MEMORY_MOMENTS_MAX];
    ls_tensor *buffer; /* counters: data NULL */
    int64_t *tracked;  /* host: batches processed, one count for all batch norms */
    ls_step_state *state;
    int32_t *order; /* backend memory, [param_count]: the arrival order, for its broadcast */
    void *block[LS_MEMORY_KINDS];
    int64_t bytes[LS_MEMORY_KINDS];
    const ls_comm_api *owner[LS_MEMORY_KINDS]; /* of the block; NULL: the backend */
    int *by_name, *buffer_by_name;             /* indices in order of name */
    int64_t largest;                           /* elements of the largest parameter or buffer */
} ls_memory;

/* LS_ERR_INFRA if the device has too little memory, naming kind and bytes. Gradients start in
 * parameter order, one bucket per type. `out` must not move. */
ls_status ls_memory_create(const ls_device *device, const ls_memory_options *options,
                           ls_memory *out);
void ls_memory_free(ls_memory *memory);

typedef struct ls_memory_place_state {
    int64_t grad_bytes, staging_bytes; /* used so far */
} ls_memory_place_state;

/* Gives the gradients of one bucket the next place and returns it as one tensor of type `reduced`,
 * plain and unpadded: in the gradients' own arena where all of them have that type, else in the
 * staging arena (memory->reduced[i] then differs from memory->grad[i]). Start a new layout with
 * `place = {0}`. Values do not move: call it only between steps, then bind the plan again. */
ls_tensor ls_memory_place(ls_memory *memory, ls_memory_place_state *place, ls_dtype reduced,
                          const int *param, int count);

/* All tensors of that kind on rank `root`, to all ranks. */
ls_status ls_memory_broadcast(const ls_memory *memory, const ls_comm_api *engine, ls_comm *comm,
                              ls_memory_kind kind, int root);

/* "parameters", "gradients", ... */
const char *ls_memory_kind_name(ls_memory_kind kind);
/* {"parameters": bytes, ...} for the start event. */
struct cJSON *ls_memory_json(const ls_memory *memory);

#endif

/* The digests in a step's event: FNV-1a 64 over the tensors' bytes in order of name, by group.
 *   param   the model's own parameters, in their storage type
 *   master  f32 masters of half parameters (absent without masters)
 *   state   the optimizer's moments, "<parameter>/<moment>" (absent without moments)
 *   scaler  loss scale (f32), growth count, overflow streak (i32), optimizer steps taken (i64)
 *   buffer  running statistics, and the counters of batches (i64)
 *   grad    gradients after reduction and unscaling, f32
 * Equal on all ranks after every step, except `buffer` with local batch norm. */
#ifndef LS_DIGEST_H
#define LS_DIGEST_H

#include "reference/options/options.h"
#include "memory.h"

typedef enum ls_digest_group {
    LS_DIGEST_GROUP_PARAM,
    LS_DIGEST_GROUP_MASTER,
    LS_DIGEST_GROUP_STATE,
    LS_DIGEST_GROUP_SCALER,
    LS_DIGEST_GROUP_BUFFER,
    LS_DIGEST_GROUP_GRAD,
    LS_DIGEST_GROUPS,
} ls_digest_group;

typedef struct ls_digest_set {
    bool given[LS_DIGEST_GROUPS];
    uint64_t value[LS_DIGEST_GROUPS];
} ls_digest_set;

/* Waits for the device. `state` is a host copy of memory->state. */
ls_status ls_digest_compute(const ls_memory *memory, const ls_step_state *state,
                            ls_digest_scope scope, ls_digest_set *out);

#endif

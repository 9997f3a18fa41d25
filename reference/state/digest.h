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

#include "reference/train/events.h"
#include "memory.h"

typedef struct ls_digest_set {
    bool given[LS_EVENTS_DIGEST_COUNT];
    uint64_t value[LS_EVENTS_DIGEST_COUNT];
} ls_digest_set;

/* Waits for the device. `state` is a host copy of memory->state. */
ls_status ls_digest_compute(const ls_memory *memory, const ls_step_state *state,
                            ls_digest_scope scope, ls_digest_set *out);

#endif

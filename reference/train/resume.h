/* Goes on from a checkpoint (--resume; what is in one: checkpoint.h). */
#ifndef LS_RESUME_H
#define LS_RESUME_H

#include "trainer.h"

/* Reads and checks everything, then fills parameters, masters, moments, buffers, *state, *step (the
 * last one done) and the reducer's layout. LS_ERR_USAGE, with what differs, before anything has
 * changed. Settings that may differ (learning rate, batch, ...) but do are a warning each. */
ls_status ls_resume_load(ls_trainer *trainer, const char *path, ls_step_state *state,
                         int64_t *step);

#endif

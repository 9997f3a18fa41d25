/* The training loop: one step after the other, and the report of each. */
#ifndef LS_STEP_LOOP_H
#define LS_STEP_LOOP_H

#include "trainer.h"

typedef struct ls_step_summary {
    int64_t last;    /* the last step done */
    int64_t skipped; /* how many steps of this process changed nothing */
    int signal;      /* that ended the run before its last step; 0: none */
} ls_step_summary;

/* From trainer->first_step to trainer->last_step. LS_ERR_NON_FINITE, LS_ERR_PEER_LOST and the like
 * end it; *summary is valid in any case. */
ls_status ls_step_run(ls_trainer *trainer, ls_step_summary *summary);
/* --evaluate: one validation and its report, no step. */
ls_status ls_step_validate(ls_trainer *trainer);

#endif

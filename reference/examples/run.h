/* --example NAME: trains an example of the amp library instead of the one model of the trainer. */
#ifndef LS_EXAMPLES_RUN_H
#define LS_EXAMPLES_RUN_H

#include "reference/train/step_loop.h"

/* After ls_setup_read. LS_ERR_UNSUPPORTED, written as an event, for options that belong to the
 * trainer's own loop. */
ls_status ls_examples_run_check(ls_trainer *trainer);
/* From step 1 to trainer->last_step; *summary is valid in any case. */
ls_status ls_examples_run(ls_trainer *trainer, ls_step_summary *summary);

#endif

/* --mllog: what a run logs for MLPerf, on rank 0. */
#ifndef LS_MLLOG_RUN_H
#define LS_MLLOG_RUN_H

#include "trainer.h"

/* Opens the log; all ranks call it. LS_ERR_USAGE on every rank where rank 0 cannot write it. */
ls_status ls_mllog_run_open(ls_trainer *trainer);
/* What is trained and how, and the run's start. */
ls_status ls_mllog_run_begin(ls_trainer *trainer);
/* The epoch of `step` begins or ends there; nothing for data without epochs. */
ls_status ls_mllog_run_epoch(ls_trainer *trainer, int64_t step, bool begins);
/* A validation after `step` begins (val NULL), or has ended. */
ls_status ls_mllog_run_validated(ls_trainer *trainer, int64_t step, const ls_evaluate_sums *val);

#endif

/* What a run keeps: --save FILE after the last step, and --save-dir DIR with two checkpoints,
 * `last.safetensors` (the newest state) and `best.safetensors` (after the validation with the
 * largest top-1). Rank 0 writes; a name stands for a whole file at any time. `best` is written
 * first and `last` is then a second name of the same file, so that `best` is never older than the
 * score in `last` says.
 *
 * With --save-dir SIGTERM and SIGUSR1 end the run, on whatever rank they arrive: all ranks stop
 * after the same step, save `last` and leave with LS_STOPPED. The signals are blocked and stay
 * pending, so a second one changes nothing. */
#ifndef LS_SAVE_H
#define LS_SAVE_H

#include "trainer.h"

/* Blocks the signals in this thread and in those that it starts. Before any other thread. */
ls_status ls_save_block_signals(const ls_trainer *trainer);
/* Hours of training must not end with a file that cannot be written: LS_ERR_USAGE on all ranks if
 * rank 0 cannot create the files of --save and --save-dir. After ls_join_open. */
ls_status ls_save_check(ls_trainer *trainer);

/* Whether `last` is due after that step. The best validation is saved after any. */
bool ls_save_due(const ls_trainer *trainer, int64_t step);
/* Of all ranks; without images: nothing was validated. */
void ls_save_note_score(ls_trainer *trainer, int64_t step, const ls_evaluate_sums *val);
/* Writes what is due after the step, which has ended on the device. All ranks call it. */
ls_status ls_save_step(ls_trainer *trainer, int64_t step);
/* At the end of a run without an error, after its last step, or after the one that a signal made
 * the last: then only `last` is written, and LS_STOPPED is returned. All ranks call it. */
ls_status ls_save_end(ls_trainer *trainer, int64_t step, int signal);

typedef struct ls_save_stop {
    int64_t at;  /* the run stops after this step: equal on all ranks before any has ended it */
    int signal;  /* that makes it so; 0: none, the run ends by itself */
    bool asking; /* this rank has passed its signal on */
} ls_save_stop;
/* Between two steps: whether a signal is pending, here or on another rank. A request names the
 * second step from here, which no rank has begun yet: one can only begin a step when all have
 * begun the one before the last. */
ls_status ls_save_ask(ls_trainer *trainer, int64_t done, ls_save_stop *stop);

#endif

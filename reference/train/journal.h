/* Further events of a job under `lockstep observe`, which sets LS_OBSERVE_DIR: what a rank drew
 * from its data, saved, went on from and validated (suite/observe/events.md). Rules that
 * know no network judge them, as they judge a job in PyTorch. Without the variable, or without
 * events, trainer->journal is NULL and every call does nothing. */
#ifndef LS_JOURNAL_H
#define LS_JOURNAL_H

#include "trainer.h"

typedef struct ls_journal ls_journal;

/* After the events' start; with --resume it says what was read and what the run holds now. */
ls_status ls_journal_open(ls_trainer *trainer);
/* Writes the pass that is not over. */
ls_status ls_journal_close(ls_trainer *trainer);

typedef enum ls_journal_loader { LS_JOURNAL_TRAINING, LS_JOURNAL_VALIDATION } ls_journal_loader;
/* A batch as the loader gave it; `counted` of its images are used. */
ls_status ls_journal_batch(const ls_trainer *trainer, ls_journal_loader of,
                           const ls_loader_batch *batch, int counted);
/* A validation of so many pictures of all ranks begins, or is over: the digest of running
 * statistics, before and after. */
ls_status ls_journal_validation(const ls_trainer *trainer, bool begins, int64_t step,
                                int64_t pictures);
/* A file was written, by rank 0; every rank says what it held then. */
ls_status ls_journal_saved(const ls_trainer *trainer, int64_t step, const char *path);

#endif

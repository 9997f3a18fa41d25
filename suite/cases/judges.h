/* Judges that work on any job's record, whoever ran it: used by rows and by `lockstep judge`. */
#ifndef LS_JUDGES_H
#define LS_JUDGES_H

#include "suite/suite.h"

/* Every dumped step of row->job[0].dump_steps against the oracle. */
void ls_gradients_judge(const ls_case *row, const ls_record *job, ls_verdict *out);
/* Digests of all ranks equal at every step. */
void ls_ddp_judge_lockstep(const ls_case *row, const ls_record *job, ls_verdict *out);
/* The scale follows from which steps were skipped. */
void ls_scaler_judge_timed(const ls_case *row, const ls_record *job, ls_verdict *out);
/* job: 0 uninterrupted, 1 saved at its last step, 2 resumed from there to 0's: equal digests. */
void ls_checkpoint_judge_resume(const ls_case *row, const ls_record *job, ls_verdict *out);

#endif

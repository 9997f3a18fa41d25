/* Judges for the record of any job, used by several families and by `lockstep judge`. */
#ifndef LS_JUDGES_H
#define LS_JUDGES_H

#include "suite/suite.h"

/* Compares every dumped step of row->job[0].dump_steps with the oracle. */
ls_case_judge ls_judge_gradients;
/* Digests of all ranks must be equal at every step, including running statistics if they are
 * shared. */
ls_case_judge ls_judge_lockstep;
/* The scale must follow its rule, given the skipped steps. */
ls_case_judge ls_judge_scaler;
/* job: 0 uninterrupted, 1 saved at its last step, 2 resumed from there to 0's end: equal digests.
 */
ls_case_judge ls_judge_resume;

enum {
    LS_JUDGE_REPLICA = 1u << LS_RECORD_PARAM | 1u << LS_RECORD_MASTER | 1u << LS_RECORD_STATE |
                       1u << LS_RECORD_SCALER | 1u << LS_RECORD_GRAD,
    LS_JUDGE_EVERYTHING = LS_JUDGE_REPLICA | 1u << LS_RECORD_BUFFER,
};

/* Two runs whose steps after `after` must be equal to the last bit, rank by rank: losses, and the
 * digests in `mask`. Returns the number of digests compared; none is UNSUPPORTED. */
int ls_judge_runs(const ls_record *a, const ls_record *b, int64_t after, unsigned mask,
                  ls_verdict *out);

#endif

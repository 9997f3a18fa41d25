/* Judges that work on any job's record, whoever ran it: used by several families and by `lockstep
 * judge`. */
#ifndef LS_JUDGES_H
#define LS_JUDGES_H

#include "suite/suite.h"

/* Every dumped step of row->job[0].dump_steps against the oracle. */
ls_case_judge ls_judge_gradients;
/* Digests of all ranks equal at every step; running statistics too where they are shared. */
ls_case_judge ls_judge_lockstep;
/* The scale follows from which steps were skipped. */
ls_case_judge ls_judge_scaler;
/* job: 0 uninterrupted, 1 saved at its last step, 2 resumed from there to 0's: equal digests. */
ls_case_judge ls_judge_resume;

enum {
    LS_JUDGE_REPLICA = 1u << LS_RECORD_PARAM | 1u << LS_RECORD_MASTER | 1u << LS_RECORD_STATE |
                       1u << LS_RECORD_SCALER | 1u << LS_RECORD_GRAD,
    LS_JUDGE_EVERYTHING = LS_JUDGE_REPLICA | 1u << LS_RECORD_BUFFER,
};

/* The digests that both steps have, of those in `mask`: FAIL where b's is another than a's, with
 * `who` ("rank=1") in front. Returns how many were compared. */
int ls_judge_digests(const ls_record_step *a, const ls_record_step *b, unsigned mask,
                     const char *who, ls_verdict *out);
/* Two runs whose steps behind `after` must be equal to the last bit, rank by rank: losses, and the
 * digests in `mask`. Returns how many digests were compared; none is UNSUPPORTED. */
int ls_judge_runs(const ls_record *a, const ls_record *b, int64_t after, unsigned mask,
                  ls_verdict *out);

#endif

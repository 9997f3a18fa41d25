/* Judges for the record of any job, used by several families and by `lockstep judge`. */
#ifndef LS_JUDGES_H
#define LS_JUDGES_H

#include <stdbool.h>

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
 * digests in `mask`, which both or neither must have. Returns the number of digests compared; none
 * is UNSUPPORTED. */
int ls_judge_runs(const ls_record *a, const ls_record *b, int64_t after, unsigned mask,
                  ls_verdict *out);

/* Checks that every subject must pass in every case: each rank has a complete record that counts
 * its steps to the end and was made with the requested options (design.md section 4).
 * True, and FAIL set, if the records of a job that ended well break the protocol. `spec`: the
 * request; NULL: unknown (a foreign launcher). */
bool ls_protocol_breaks(const ls_record *job, const ls_spec *spec, ls_verdict *out);

/* The dynamic loss scale as the suite's own state machine (apex/amp/scaler.py, numerics.md section
 * 2.6). */
typedef struct ls_judge_scaler_machine {
    double scale, lowest, highest;
    int clean, interval; /* steps without an overflow, and how many of them double the scale */
} ls_judge_scaler_machine;

/* The scale of the next step. */
double ls_judge_scaler_tick(ls_judge_scaler_machine *m, bool overflow);

/* bn1's running statistics in FP64 from what the ranks dumped.
 * buffer/bn1.* of every rank's dump of `step` (resnet8 at 16 pixels, f32): a tenth of mean and
 * unbiased variance over groups of `size` ranks on top of nine tenths of the values before, 16 each
 * (NULL: 0 and 1). Fills `out`. */
void ls_judge_statistics(const ls_record *job, int step, int size, const float *before_mean,
                         const float *before_var, ls_verdict *out);

#endif

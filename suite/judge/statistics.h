/* bn1's running statistics in FP64 from what the ranks dumped. */
#ifndef LS_JUDGE_STATISTICS_H
#define LS_JUDGE_STATISTICS_H

#include "suite/suite.h"

/* buffer/bn1.* of every rank's dump of `step` (resnet8 at 16 pixels, f32): a tenth of mean and
 * unbiased variance over groups of `size` ranks on top of nine tenths of the values before, 16 each
 * (NULL: 0 and 1). Fills `out`. */
void ls_judge_statistics(const ls_record *job, int step, int size, const float *before_mean,
                         const float *before_var, ls_verdict *out);

#endif

/* Checks the running statistics of every batch norm on every rank after the forward passes of a
 * step. */
#ifndef LS_COMPARE_BUFFERS_H
#define LS_COMPARE_BUFFERS_H

#include "compare_judgement.h"

/* buffer/ must equal last_buffer/ updated with FP64's batch statistics on the subject's branches: v
 * += 0.1 * (batch - v) once per micro-step, variances unbiased; the counter goes up by one each
 * time. The bound is that of a tensor: a factor on the ideal error of these statistics, plus the
 * rounding of the stored result in f32 or half. Needs j->forced and j->cost; judges nothing if a
 * rank's dump lacks either group. */
ls_status ls_compare_buffers_judge(ls_compare_judgement *j);

#endif

/* Running statistics of every batch norm of every rank after the forward passes of a step. */
#ifndef LS_COMPARE_BUFFERS_H
#define LS_COMPARE_BUFFERS_H

#include "compare_judgement.h"

/* buffer/ must be what last_buffer/ becomes with FP64's batch statistics on the subject's branches:
 * v += 0.1 * (batch - v) once a micro-step, variances unbiased; the counter goes up by one each.
 * The bound is that of a tensor: a factor on what the level costs these statistics at best, and
 * f32's (or half's, as stored) rounding of the result. Needs j->forced and j->cost; judges nothing
 * where a rank's dump lacks either group. */
ls_status ls_compare_buffers_judge(ls_compare_judgement *j);

#endif

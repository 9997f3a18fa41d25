/* Compares a step's gradient and logits with the oracle (numerics.md section 4). */
#ifndef LS_COMPARE_GRADIENT_H
#define LS_COMPARE_GRADIENT_H

#include "compare_judgement.h"

/* Adds failures to j->checks, or writes to j->weak why the evidence is weak; fills the verdict's
 * numbers. */
ls_status ls_compare_gradient_judge(ls_compare_judgement *j);

#endif

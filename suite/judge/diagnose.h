/* Finds the cause of a wrong gradient: tries common mistakes one after another; the one that
 * explains it up to rounding is the cause. */
#ifndef LS_DIAGNOSE_H
#define LS_DIAGNOSE_H

#include "diagnose_wrong.h"

/* Writes one line, "" if no mistake fits. Tries: a factor; a sum with other weights of the ranks,
 * or over other ranks at each element; the previous step's gradient added; weight decay added; the
 * same on the wrong elements alone, naming their position (tails, heads, one element, one kind of
 * tensor); batch-norm statistics of the wrong ranks; the previous step's weights; the precision of
 * another level. LS_ERR_INFRA without memory. */
ls_status ls_diagnose_gradient(const ls_diagnose_wrong *wrong, char *text, int text_bytes);

#endif

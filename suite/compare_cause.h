/* The likeliest cause of a wrong gradient, as one line: a constant factor, ranks that are missing
 * or alone, zeros. */
#ifndef LS_COMPARE_CAUSE_H
#define LS_COMPARE_CAUSE_H

#include "../reference/oracle/evidence.h"
#include "../reference/oracle/price.h"

/* Looks at the elements of `span` of evidence->grad (the whole gradient, or the part that is wrong,
 * named `part`) against g64 and against what each rank's gradient would be (rank_grad
 * [W][elements], NULL: not known). `residual`: what counts as explained (the bound of the
 * comparison). Writes "" where nothing fits; returns whether something did. */
bool ls_compare_cause_find(const ls_evidence *evidence, const double *g64, const float *rank_grad,
                           ls_price_span span, const char *part, double residual, char *text,
                           int text_bytes);

#endif

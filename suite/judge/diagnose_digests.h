/* What went wrong where two runs of steps that must be equal part: told by which digests differ
 * first. */
#ifndef LS_DIAGNOSE_DIGESTS_H
#define LS_DIAGNOSE_DIGESTS_H

#include "harness/run/record.h"

/* What it is where ranks hold different gradients after their reduction. */
#define LS_DIAGNOSE_DIGESTS_GRADIENTS                                                        \
    "ranks apply different gradients: a reduction is missing, incomplete or ran before the " \
    "gradient was ready"

/* Two ranks of one job. One line, "" where the digests tell nothing. */
void ls_diagnose_replicas(const ls_record_rank *a, const ls_record_rank *b, char *text,
                          int text_bytes);
/* One rank of an uninterrupted run, and of one resumed before step `first`. */
void ls_diagnose_resume(const ls_record_rank *straight, const ls_record_rank *resumed,
                        int64_t first, char *text, int text_bytes);

#endif

/* Finds the cause of a difference between two runs whose steps must be equal, from the digests that
 * differ first. */
#ifndef LS_DIAGNOSE_DIGESTS_H
#define LS_DIAGNOSE_DIGESTS_H

#include "harness/run/record.h"

/* The cause if ranks hold different gradients after their reduction. */
#define LS_DIAGNOSE_DIGESTS_GRADIENTS                                                        \
    "ranks apply different gradients: a reduction is missing, incomplete or ran before the " \
    "gradient was ready"

/* Compares two ranks of one job. One line, "" if the digests show no cause. */
void ls_diagnose_replicas(const ls_record_rank *a, const ls_record_rank *b, char *text,
                          int text_bytes);
/* Compares one rank of an uninterrupted run with the same rank of a run resumed before step
 * `first`. */
void ls_diagnose_resume(const ls_record_rank *straight, const ls_record_rank *resumed,
                        int64_t first, char *text, int text_bytes);

#endif

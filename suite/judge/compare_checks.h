/* Checks of a dump that need no oracle: equal replicas, a loss that follows from its logits, a
 * reduction that follows from local/. */
#ifndef LS_COMPARE_CHECKS_H
#define LS_COMPARE_CHECKS_H

#include <stdbool.h>

#include "reference/oracle/evidence.h"

/* Failed checks: the first one's line, and their number. */
typedef struct ls_compare_checks {
    int count;
    char line[320];
    char tensor[64];     /* of the first failure that concerns a tensor */
    double reduce_ratio; /* largest error of an element in units of its limit */
} ls_compare_checks;

/* tensor may be NULL. */
void ls_compare_checks_fail(ls_compare_checks *checks, const char *tensor, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* All ranks must have the same bits of <prefix>/; what: "parameters", for the line. */
void ls_compare_checks_replicas(const ls_evidence *evidence, const char *prefix, const char *what,
                                ls_compare_checks *checks);
/* Each rank's loss must be the mean cross entropy of its own logits, up to f32 arithmetic. */
ls_status ls_compare_checks_loss(const ls_evidence *evidence, ls_compare_checks *checks);
/* |g - mean(local)| <= (W-1)*u*sum|local|/W + u*|g| per element, u of the type of the reduction;
 * one more rounding per rank if each gradient is divided or converted first. *judged: every rank
 * has local/. */
ls_status ls_compare_checks_reduce(const ls_evidence *evidence, int level,
                                   ls_compare_checks *checks, bool *judged);

#endif

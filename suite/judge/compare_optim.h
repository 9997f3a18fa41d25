/* The optimizer step of a dump recomputed in FP64 from the value, gradient and moments that it
 * holds: next/ and next_state/ must be what follows. Needs one rank's dump and no network: all
 * ranks' are equal, which is another check. */
#ifndef LS_COMPARE_OPTIM_H
#define LS_COMPARE_OPTIM_H

#include "reference/oracle/dumpfile.h"
#include "reference/oracle/update.h"
#include "compare_checks.h"

/* What was found beyond failures. */
typedef struct ls_compare_optim_result {
    bool judged;       /* the dump has what is needed */
    bool state_judged; /* next_state/, too */
    int64_t elements;  /* of next/ that were compared */
    int64_t moved;     /* and are not what stood there before */
    double ratio;      /* largest error of next/, in units of its limit */
} ls_compare_optim_result;

/* The rule that the dump's metadata tell. *skipped: the step was. False, with *rule unset, where
 * they do not tell enough (optimizer, lr; optimizer_steps for those with bias correction). */
bool ls_compare_optim_rule(const ls_dumpfile *file, bool nesterov, ls_update_rule *rule,
                           bool *skipped);
/* Judges one dump by `rule`; grad_squares and grad_elements are filled in here. With `skipped`
 * nothing may have changed, to the last bit. */
ls_status ls_compare_optim_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                                ls_compare_checks *checks, ls_compare_optim_result *out);
/* What the step starts from: master/<name>, or param/<name> where that is it; NULL where the dump
 * has neither. */
const ls_dumpfile_entry *ls_compare_optim_before(const ls_dumpfile *file, const char *name);
/* How many units of its limit `got` is off, when it is stored as `next` is. */
double ls_compare_optim_ratio(const ls_dumpfile_entry *next, double got, double expected,
                              double error);

#endif

/* Recomputes the optimizer step of a dump in FP64 from the value, gradient and moments in the dump,
 * and compares next/ and next_state/. Needs one rank's dump and no network; another check
 * establishes that all ranks are equal. */
#ifndef LS_COMPARE_OPTIM_H
#define LS_COMPARE_OPTIM_H

#include "reference/oracle/dumpfile.h"
#include "reference/oracle/update.h"
#include "compare_checks.h"

/* Results besides failures. */
typedef struct ls_compare_optim_result {
    bool judged;       /* the dump has everything needed */
    bool state_judged; /* also for next_state/ */
    int64_t elements;  /* compared elements of next/ */
    int64_t moved;     /* those among them that differ from the value before the step */
    double ratio;      /* largest error of next/, in units of its limit */
} ls_compare_optim_result;

/* The rule that follows from the dump's metadata. *skipped: the step was. False, with *rule unset,
 * if the metadata is insufficient (optimizer, lr; optimizer_steps for rules with bias correction).
 */
bool ls_compare_optim_rule(const ls_dumpfile *file, bool nesterov, ls_update_rule *rule,
                           bool *skipped);
/* Judges one dump by `rule`, whose grad_squares and grad_elements are filled in here. With
 * `skipped` every bit must be unchanged. */
ls_status ls_compare_optim_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                                ls_compare_checks *checks, ls_compare_optim_result *out);
/* The value before the step: master/<name>, else param/<name>; NULL if the dump has neither. */
const ls_dumpfile_entry *ls_compare_optim_before(const ls_dumpfile *file, const char *name);
/* The error of `got` in units of its limit, for a value stored like `next`. */
double ls_compare_optim_ratio(const ls_dumpfile_entry *next, double got, double expected,
                              double error);

#endif

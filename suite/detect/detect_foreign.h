/* Wrong trainers in another framework: mistakes that users make in their own scripts, each run as a
 * subject against the case that must catch it, and the right trainer against the same cases. */
#ifndef LS_DETECT_FOREIGN_H
#define LS_DETECT_FOREIGN_H

#include "detect_run.h"

/* Appends the wrong trainers of suite/peers/wrong/expected.txt. A line is
 * script<TAB>case<TAB>sentence[<TAB>glob of the printed cause]; the scripts are in the same folder.
 * LS_ERR_USAGE for a malformed line or a missing script. */
ls_status ls_detect_read_foreign(const char *path, ls_detect_list *out);
/* How foreign trainers are run. */
typedef struct ls_detect_place {
    const char *program, *directory; /* lockstep; the run's folder */
    const char *python;
    uint64_t seed;
    bool full;
} ls_detect_place;
/* Runs a wrong trainer against its case and keeps the result unless a signal stopped the run. A
 * timeout does not count as caught: a framework is slow to load on a busy machine. */
ls_status ls_detect_run_foreign(const ls_detect_place *place, const ls_detect_plant *plant,
                                ls_detect_result *result, bool *stopped);
/* Runs the right trainer, suite/peers/pytorch_train.py, against the case of a wrong one, or reads
 * the result of an earlier start: it must pass. Prints the result and adds it to the summary. */
ls_status ls_detect_run_right(const ls_detect_place *place, const ls_detect_plant *wrong,
                              ls_detect_summary *summary, bool *stopped);

#endif

/* The closed set of verdicts on a case, and the words of verdicts.jsonl for them. */
#ifndef LS_VERDICT_CODE_H
#define LS_VERDICT_CODE_H

#include <stdbool.h>

#include "kernels/core/json.h"

/* Inside a claim everything but PASS and WAIVED fails. */
typedef enum ls_verdict_code {
    LS_PASS,
    LS_WEAK,   /* the evidence does not carry */
    LS_SKIP,   /* not judged: the run was stopped before its jobs had run */
    LS_WAIVED, /* would not pass, and lists/waivers.txt says why that is accepted */
    LS_FAIL,
    LS_CRASH,
    LS_TIMEOUT,
    LS_UNSUPPORTED, /* the subject refused with exit code 4, or left out what the case needs */
    LS_INFRA,       /* machine, disk, port: not the subject */
    LS_VERDICT_CODES,
} ls_verdict_code;

const char *ls_verdict_name(ls_verdict_code code); /* "PASS"; "?" for LS_VERDICT_CODES */
/* The code of that name, or LS_VERDICT_CODES. */
ls_verdict_code ls_verdict_code_of(const char *name);
/* That of a line of verdicts.jsonl: a PASS that says that nothing was compared is WEAK; older lines
 * do not say what was. */
ls_verdict_code ls_verdict_code_in(const cJSON *line);
bool ls_verdict_good(ls_verdict_code code); /* PASS, WAIVED */

#endif

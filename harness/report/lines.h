/* The lines and cells that the terminal, the page and the figures share, so that all say the same.
 */
#ifndef LS_REPORT_LINES_H
#define LS_REPORT_LINES_H

#include <stdio.h>

#include "job.h"

enum { LS_REPORT_LINES_BYTES = 512, LS_REPORT_LINES_HEADLINES = 4 };

typedef struct ls_report_headline {
    const char *name;  /* CORRECT, MANNERS, SPEED, MACHINE */
    const char *value; /* "yes", "within", ... ; "not shown" where run.json has none */
    const char *why;   /* "" where there is nothing to say */
} ls_report_headline;

/* The verdicts of the opening, in their order: MANNERS only where the run has such cases, and of an
 * observed job those that it has. Returns how many. Text belongs to the run. */
int ls_report_lines_headlines(const ls_report_run *run,
                              ls_report_headline out[LS_REPORT_LINES_HEADLINES]);
/* A text on a terminal of 80 columns: breaks at spaces; later lines start with `indent` spaces. A
 * word longer than the line stays whole: a command to paste must not be cut. */
void ls_report_lines_print(FILE *to, const char *text, int indent);
const char *ls_report_lines_title(const ls_report_run *run);
const char *ls_report_lines_where(const ls_report_run *run);

/* A number with four significant digits, "-" when it is not finite. Returns `text`. */
const char *ls_report_lines_number(double value, char text[32]);
/* "123.4 [121.0, 125.1]", in parentheses when it is no result, "-" without a number. */
const char *ls_report_lines_rate(const ls_report_job *job, char text[64]);
/* "2 simulated", "1" */
const char *ls_report_lines_nodes(const ls_report_job *job, char text[32]);
/* How the figure was judged: "FP32 step 1", "checked", or why it is no result. */
const char *ls_report_lines_judged(const ls_report_run *run, const ls_report_job *job,
                                   char text[160]);
/* Whether its timing carries: a case on it was WEAK, or the halves of its window differ. */
bool ls_report_lines_weak(const ls_report_run *run, const ls_report_job *job);
/* Marks of a row: "oversubscribed, no graph: --cuda-graph off, weak: halves differ by 7 %"; "" for
 * none. */
const char *ls_report_lines_marks(const ls_report_run *run, const ls_report_job *job,
                                  char text[160]);

/* Whether a verdict is listed among those that did not pass: all but PASS, and but SKIP and
 * UNSUPPORTED outside the claim, which are counted only. */
bool ls_report_lines_listed(const ls_report_verdict *verdict);
/* "FAIL 0.41s evidence, value 3.1e-2 over limit 6e-3 (from ...)". */
const char *ls_report_lines_evidence(const ls_report_verdict *verdict,
                                     char text[LS_REPORT_LINES_BYTES * 2]);
/* "not ok - gradients.o2.w4 # FAIL 0.41s evidence, value 3.1e-2 over limit 6e-3 (from ...)". */
const char *ls_report_lines_verdict(const ls_report_verdict *verdict,
                                    char text[LS_REPORT_LINES_BYTES * 2]);

#endif

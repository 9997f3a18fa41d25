/* Cases about how a job ends: the exit code of every rank, what its log says, what it must not have
 * written. */
#ifndef LS_ENDINGS_H
#define LS_ENDINGS_H

#include "rows.h"

enum { LS_ENDINGS_KILLED = -9, LS_ENDINGS_ANY = -1, LS_ENDINGS_RANKS = 4 };

typedef struct ls_ending {
    int code[LS_ENDINGS_RANKS]; /* of rank k; LS_ENDINGS_KILLED: by signal 9; LS_ENDINGS_ANY: not
                                   looked at */
    unsigned says;              /* ranks (a bit each) whose log must hold `text` */
    const char *text;           /* NULL: nothing is asked for */
    bool unwritten;             /* no rank may have written events */
    const char *absent;         /* a file of the job's folder that must not be there, or NULL */
} ls_ending;

void ls_endings_judge(const ls_ending *want, const ls_record *job, ls_verdict *out);
/* Whether a rank's log holds the text. */
bool ls_endings_says(const ls_record *job, int rank, const char *text);

#endif

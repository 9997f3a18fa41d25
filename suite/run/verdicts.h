/* verdicts.jsonl, and a verdict's lines on the terminal. */
#ifndef LS_VERDICTS_H
#define LS_VERDICTS_H

#include <stdio.h>

#include "run.h"

/* Appends case `index` to verdicts.jsonl: an interrupted run loses nothing that was judged. */
ls_status ls_verdicts_append(const ls_run *run, int index);
/* Writes the whole file anew, in the order of the cases. */
ls_status ls_verdicts_write(const ls_run *run);
/* Takes over the verdicts of an interrupted run that passed. */
ls_status ls_verdicts_read_back(ls_run *run);
/* "not ok ..." at once; cause and repeat follow at the end. Nothing for a case that passed. */
void ls_verdicts_print(const ls_run *run, int index, FILE *to);
/* The line that repeats one case. */
void ls_verdicts_repeat(const ls_run *run, int index, char *text, size_t bytes);

#endif

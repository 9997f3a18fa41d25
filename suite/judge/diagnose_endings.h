/* Finds the cause of a job's ending from the last messages of its ranks. */
#ifndef LS_DIAGNOSE_ENDINGS_H
#define LS_DIAGNOSE_ENDINGS_H

#include "harness/run/record.h"

/* Ranks that waited for each other until the deadline: two whose engines report different
 * operations under the same number. One line, "" if there are none. */
void ls_diagnose_endings_waits(const ls_record *job, char *text, int text_bytes);
/* A rank whose end event has another code than its process. One line, "" if there is none. */
void ls_diagnose_endings_codes(const ls_record *job, char *text, int text_bytes);

#endif

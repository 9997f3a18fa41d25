/* Why a job ended as it did, where its ranks' own last words tell. */
#ifndef LS_DIAGNOSE_ENDINGS_H
#define LS_DIAGNOSE_ENDINGS_H

#include "harness/run/record.h"

/* Ranks that waited for each other for ever: two whose engines say, by operations of one number,
 * that they were in unlike ones. One line, "" where no two do. */
void ls_diagnose_endings_waits(const ls_record *job, char *text, int text_bytes);
/* A rank whose end event has another code than its process. One line, "" where none has. */
void ls_diagnose_endings_codes(const ls_record *job, char *text, int text_bytes);

#endif

/* What a person sees while jobs run: one line that is rewritten on a terminal, plain lines
 * elsewhere. */
#ifndef LS_PROGRESS_H
#define LS_PROGRESS_H

#include "runner.h"

void ls_progress_job(const ls_run *run, int index);  /* is running */
void ls_progress_done(const ls_run *run, int index); /* has ended */
void ls_progress_note(const ls_run *run, const char *format, ...)
    __attribute__((format(printf, 2, 3))); /* terminal only */
void ls_progress_clear(void);              /* before other output */

#endif

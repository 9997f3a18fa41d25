/* The backward half of a run. */
#ifndef LS_ORACLE_BACKWARD_H
#define LS_ORACLE_BACKWARD_H

#include "run.h"

/* Fills result->grad from the logits' gradient; frees values when their last reader is done. */
ls_status ls_backward_run(ls_run *r);

#endif

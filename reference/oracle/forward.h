/* The forward half of a run. */
#ifndef LS_ORACLE_FORWARD_H
#define LS_ORACLE_FORWARD_H

#include "run.h"

/* Fills value, statistics and own branches of every node. */
ls_status ls_forward_run(ls_run *r);
/* Fills the loss, the logits, and the gradient of the last node. */
ls_status ls_forward_loss(ls_run *r);

#endif

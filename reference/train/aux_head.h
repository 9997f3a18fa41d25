/* --aux-head STEP[:RANK],...: an auxiliary classifier aux.fc [classes, classes] on the logits, cut
 * off from the network below it, with a cross entropy of its own; used in the steps and on the
 * ranks named, elsewhere its parameters are unused. The trunk's gradients do not know of it. */
#ifndef LS_AUX_HEAD_H
#define LS_AUX_HEAD_H

#include "trainer.h"

/* Appends aux.fc.weight and aux.fc.bias to the network's parameters; no layer has them. */
ls_status ls_aux_head_extend(ls_network *network);
/* Whether this rank uses the head in `step`. */
bool ls_aux_head_is_used(const ls_trainer *trainer, int64_t step);
/* After a forward: the gradients of loss * S * factor of the head into memory->grad, each given to
 * `ready`, bias first. */
ls_status ls_aux_head_backward(ls_trainer *trainer, const int64_t *target, float factor,
                               ls_grad_ready *ready, void *context);

#endif

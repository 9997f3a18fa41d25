/* That all ranks are about to do the same thing: asked before the first step, through the store. */
#ifndef LS_AGREE_H
#define LS_AGREE_H

#include "trainer.h"

/* Options, network, bucket rule and versions: LS_ERR_USAGE on every rank where one differs, with
 * one line that names it and both values. */
ls_status ls_agree_on_run(ls_trainer *trainer);
/* Unlike libraries may round unlike: a warning, said once, by rank 0. */
ls_status ls_agree_on_libraries(ls_trainer *trainer);
/* Every rank's `value` must equal rank 0's; LS_ERR_USAGE naming `what` and the ranks where not.
 * Does nothing without a store. */
ls_status ls_agree_on(ls_trainer *trainer, const char *what, uint64_t value);
/* Rank 0's choice of engines for products becomes everybody's (kernels.h, engines_export). Does
 * nothing without a store. */
ls_status ls_agree_on_choices(ls_trainer *trainer);
/* Fingerprint of layers, parameters and buffers. */
uint64_t ls_agree_network_digest(const ls_network *network);

#endif

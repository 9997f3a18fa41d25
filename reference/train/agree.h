/* Checks before the first step, through the store, that all ranks run the same job. */
#ifndef LS_AGREE_H
#define LS_AGREE_H

#include "trainer.h"

/* Options, network, bucket rule and versions: LS_ERR_USAGE on every rank where one differs, with
 * one line that names it and both values. */
ls_status ls_agree_on_run(ls_trainer *trainer);
/* Library versions may round differently; rank 0 warns once. */
ls_status ls_agree_on_libraries(ls_trainer *trainer);
/* Every rank's `value` must equal rank 0's; LS_ERR_USAGE naming `what` and the ranks where not.
 * Does nothing without a store. */
ls_status ls_agree_on(ls_trainer *trainer, const char *what, uint64_t value);
/* All ranks take rank 0's choice of engines for products (kernels.h, engines_export). Does nothing
 * without a store. */
ls_status ls_agree_on_choices(ls_trainer *trainer);
/* Fingerprint of layers, parameters and buffers. */
uint64_t ls_agree_network_digest(const ls_network *network);

#endif

/* Values to start from (--init): a plain file of weights with torchvision's names, or a dump or
 * checkpoint of a run; any float type. */
#ifndef LS_WEIGHTS_H
#define LS_WEIGHTS_H

#include "trainer.h"

/* Fills the parameters, and the buffers where the file has any. A missing or misshapen tensor is
 * LS_ERR_USAGE naming it, before anything has changed; so is an unknown one of a plain file. Of a
 * dump or checkpoint masters go before the half parameters that were rounded from them, and rank 0
 * says in one line what is not used. */
ls_status ls_weights_load(ls_trainer *trainer, const char *path);

#endif

/* Plain files of weights (--init): torchvision's names, any float type. */
#ifndef LS_WEIGHTS_H
#define LS_WEIGHTS_H

#include "trainer.h"

/* Fills the parameters, and the buffers where the file has any. Strict: a missing, unknown or
 * misshapen tensor is LS_ERR_USAGE naming it, before anything has changed. */
ls_status ls_weights_load(ls_trainer *trainer, const char *path);

#endif

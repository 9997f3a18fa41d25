/* Plain files of weights (--init): torchvision's names, any float type; or a dump, of which param/
 * is taken. */
#ifndef LS_WEIGHTS_H
#define LS_WEIGHTS_H

#include "trainer.h"

/* Fills the parameters, and the buffers where a plain file has any. Strict with plain files: a
 * missing, unknown or misshapen tensor is LS_ERR_USAGE naming it, before anything has changed. */
ls_status ls_weights_load(ls_trainer *trainer, const char *path);

#endif

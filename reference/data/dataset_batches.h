/* Batches from files. */
#ifndef LS_DATASET_BATCHES_H
#define LS_DATASET_BATCHES_H

#include "dataset.h"

/* DIR/step%06d.rank%d.safetensors: `input` F32 [N,3,H,W] or [A,N,3,H,W], `target` I64 [N] or [A,N].
 */
ls_status ls_dataset_batches_open(const ls_loader_options *options, const char *dir,
                                  ls_dataset **out);

#endif

/* --resume of what a script of PyTorch or Apex saved: parameters, running statistics, moments, loss
 * scale, epoch, best score. Such a file lacks what makes a resumed run equal to an uninterrupted
 * one bit for bit (masters of half parameters, other ranks' statistics, the layout of buckets, a
 * place inside of an epoch); a line says what is missing, another what is not used. */
#ifndef LS_FROM_TORCH_H
#define LS_FROM_TORCH_H

#include "reference/files/strict_reader.h"
#include "trainer.h"

/* The file's format is LS_PTH_STATE_FORMAT. Checks everything, then fills parameters, masters,
 * moments, buffers, trainer->best, trainer->resumed_epochs and *state. LS_ERR_USAGE, with what
 * differs, before anything has changed. */
ls_status ls_from_torch_load(ls_strict_reader *reader, ls_trainer *trainer, ls_step_state *state);

#endif

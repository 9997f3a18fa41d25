/* --engines FILE: the engines of convolutions, kept from run to run, so that they are timed once
 * for a machine. The file is text, a section for each network, size, type, GPU and version of
 * cuDNN:
 *
 *     [resnet50 at 224, batch 256, fp16; NVIDIA H200; cuDNN 9.19.0]
 *     conv1: eng37_k2=5_k27=1 ...
 *
 * With --fuse the section is another one ("fp16, fused"), and a line ends with the engine of the
 * fused product, if it has been admitted: "sums=eng41_k2=1". */
#ifndef LS_ENGINES_H
#define LS_ENGINES_H

#include "trainer.h"

/* The section for this run, rank 0's for all ranks: to be freed; NULL: no --engines, no file or no
 * such section. LS_ERR_USAGE if it is no such file. */
ls_status ls_engines_recall(ls_trainer *trainer, char **section);
/* After the plan: the engines of `section`, or with NULL those of rank 0 where they have been
 * timed or may be fused, which rank 0 adds to the file. */
ls_status ls_engines_settle(ls_trainer *trainer, const char *section);

#endif

/* The start of PyTorch's ImageNet script (examples/imagenet/main.py): --dist-url, --world-size,
 * --rank and --multiprocessing-distributed, turned into torchrun's variables, which world.h reads.
 */
#ifndef LS_DIST_H
#define LS_DIST_H

#include "options.h"

/* Before ls_world_read. With --multiprocessing-distributed the process becomes lockstep-launch,
 * which starts this program once for each device; returns in those, with their share of the batch,
 * and where that fails. LS_ERR_USAGE where a variable says something else, LS_ERR_RENDEZVOUS where
 * no file appears in --timeout seconds. */
ls_status ls_dist_apply(ls_options *options, char **argv);

#endif

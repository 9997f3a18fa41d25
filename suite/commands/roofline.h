/* What this machine does at best, measured in the run that it is held against (design.md section
 * 8): the network's convolutions alone, copies, f32 matrix products. */
#ifndef LS_ROOFLINE_H
#define LS_ROOFLINE_H

#include "harness/run/matrix_bench.h"
#include "kernels/core/json.h"

/* Appends to `roofline` one object per number of threads that the bench's worlds have together:
 * {"when", "arch", "image_size", "batch_size", "threads", "images_per_s"} (forward and both
 * backwards, f32, one process), and to `rates` {"when", "threads", "copy_bytes_per_s",
 * "matrix_flop_per_s"}. Other load lowers them, so they are taken before the jobs and after them:
 * `when` says which. LS_ERR_INFRA without a CPU backend. */
ls_status ls_roofline_measure(const ls_matrix_bench *bench, const char *when, cJSON *roofline,
                              cJSON *rates);

#endif

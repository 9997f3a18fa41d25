/* The best rates of this machine, measured in the run that is compared with them (design.md section
 * 8): the convolutions of the network alone, copies, f32 matrix products. */
#ifndef LS_ROOFLINE_H
#define LS_ROOFLINE_H

#include "harness/run/matrix_bench.h"
#include "kernels/core/json.h"
#include "harness/machine/findings.h"

/* Appends to `roofline` one object per total number of threads of a world of the bench:
 * {"when", "arch", "image_size", "batch_size", "threads", "images_per_s"} (forward and both
 * backwards, f32, one process), and to `rates` {"when", "threads", "copy_bytes_per_s",
 * "matrix_flop_per_s"}. Other load lowers them, so they are measured before and after the jobs, as
 * `when` says. LS_ERR_INFRA without a CPU backend. */
ls_status ls_roofline_measure(const ls_matrix_bench *bench, const char *when, cJSON *roofline,
                              cJSON *rates);

enum { LS_ROOFLINE_LIMIT_S = 300 }; /* for all GPUs, including the search for engines */

/* Measures all GPUs at once, each in a process of its own, so that nothing stays on a GPU while
 * jobs run. Appends to `roofline` per GPU {"when", "arch", "image_size", "batch_size", "level",
 * "gpu", "images_per_s"} (its convolutions alone, f32 for O0 and half for the others), and to
 * `rates`
 * {"when", "gpu", "device", "address", "copy_bytes_per_s", "memory_bytes_per_s",
 * "f32_flop_per_s", "tf32_...", "f16_...", "bf16_...", "f32_device_flop_per_s", ...}. A GPU
 * that is slower than the others or than its own data is a finding. `emulated`: small sizes, for a
 * GPU emulated on the CPU. A GPU that cannot be measured is a warning on stderr and has no row. */
void ls_roofline_gpu_measure(const ls_matrix_bench *bench, const char *when, int gpus,
                             bool emulated, cJSON *roofline, cJSON *rates, ls_findings *findings);
/* Only the findings, from such rates; for tests. */
void ls_roofline_gpu_compare(const cJSON *rates, ls_findings *findings);

#endif

/* What the GPUs of this machine do at best, measured in the run that it is held against, on all of
 * them at once, each in a process of its own: nothing of it stays on a GPU while jobs run. */
#ifndef LS_ROOFLINE_GPU_H
#define LS_ROOFLINE_GPU_H

#include "harness/machine/findings.h"
#include "harness/run/matrix_bench.h"
#include "kernels/core/json.h"

enum { LS_ROOFLINE_LIMIT_S = 300 }; /* for all GPUs; engines are looked for first */

/* Appends to `roofline` per GPU {"when", "arch", "image_size", "batch_size", "level", "gpu",
 * "images_per_s"} (its convolutions alone, f32 for O0 and half for the others), and to `rates`
 * {"when", "gpu", "device", "address", "copy_bytes_per_s", "memory_bytes_per_s",
 * "f32_flop_per_s", "tf32_...", "f16_...", "bf16_...", "f32_device_flop_per_s", ...}. A GPU that
 * is slower than its neighbours or than it says of itself is a finding. `emulated`: sizes that a
 * CPU playing a GPU can do. A GPU that cannot be measured is a warning on stderr and no row. */
void ls_roofline_gpu_measure(const ls_matrix_bench *bench, const char *when, int gpus,
                             bool emulated, cJSON *roofline, cJSON *rates, ls_findings *findings);
/* The findings alone, from rates as above; for the tests. */
void ls_roofline_gpu_compare(const cJSON *rates, ls_findings *findings);

#endif

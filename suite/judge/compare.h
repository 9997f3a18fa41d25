/* Compares the gradients of one step with the FP64 oracle's on the subject's own branches
 * (numerics.md section 4). Needs only dump files, from any trainer. */
#ifndef LS_COMPARE_H
#define LS_COMPARE_H

#include "kernels/core/status.h"
#include "compare_types.h"

/* path[file_count]: dump/step%06d.rank%d.safetensors of one step, all ranks, in order of rank (the
 * oracle needs every rank's input, target and branches). json_path: path of compare.json
 * (harness/report/report.h), NULL: none. LS_ERR_USAGE for dumps that cannot be judged
 * (a missing rank, an unknown network, a broken file). */
ls_status ls_compare_step(const ls_compare_facts *facts, int file_count, const char *const *path,
                          const char *json_path, ls_compare_verdict *out);

#endif

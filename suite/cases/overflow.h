/* Overflows by data, for subjects that know no --overflow-at: a network that is certain of class 0,
 * and batches that are right about it except on the chosen ranks and steps. There every logit's
 * gradient is (p-y)*S/N = S/N, beyond fp16's 65504 for S/N of 65536 and more; everywhere else it is
 * zero. */
#ifndef LS_OVERFLOW_H
#define LS_OVERFLOW_H

#include "../suite.h"

enum { LS_OVERFLOW_BATCH = 4, LS_OVERFLOW_IMAGE = 16, LS_OVERFLOW_SCALE = 1 << 19 };

/* True for jobs that read what ls_overflow_write writes. */
bool ls_overflow_wants(const ls_spec *spec);
/* The job: resnet8, starting at S = 2^19 (S/N = 2^17; 2^16 after one overflow). `script` is what a
 * trace is judged by: "STEP:RANK,...". */
void ls_overflow_spec(ls_spec *spec, const char *script);
/* {run}/overflow/init.safetensors and the batches of every step and rank of that job. */
ls_status ls_overflow_write(const ls_spec *spec, const char *run_directory);

#endif

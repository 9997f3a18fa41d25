/* Ranges of the host's work on a profiler's timeline. NVTX is a header-only library that looks for
 * a profiler at its first call and does nothing without one. */
#ifndef LS_CUDA_NVTX_H
#define LS_CUDA_NVTX_H

#include "kernels/kernels.h"

void ls_nvtx_push(ls_backend *backend, const char *name);
void ls_nvtx_pop(ls_backend *backend);

#endif

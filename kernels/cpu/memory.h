/* Large zeroed blocks of host memory, on 2 MiB pages if the system has them: a training step walks
 * through hundreds of megabytes, and with 4 KiB pages part of its time is spent on address
 * translation. */
#ifndef LS_CPU_MEMORY_H
#define LS_CPU_MEMORY_H

#include <stdint.h>

#include "kernels/core/status.h"

/* 64-byte aligned and zeroed; bytes may be 0. Logs and returns LS_ERR_INFRA. */
ls_status ls_memory_take(int64_t bytes, const char *purpose, void **out);
void ls_memory_give(void *memory);

#endif

/* Queries CUDA's driver in a process of its own: the driver may hang on a broken device, and a
 * process that has initialised it holds memory on every GPU. NVML may work where CUDA does not (no
 * fabric manager, CUDA_VISIBLE_DEVICES). */
#ifndef LS_DRIVER_H
#define LS_DRIVER_H

#include "kernels/core/status.h"

enum { LS_DRIVER_DEVICES_MAX = 64, LS_DRIVER_LIMIT_S = 60 };

typedef struct ls_driver {
    int version;                             /* 12090: CUDA 12.9 */
    int count;                               /* devices in CUDA's order, the one of LOCAL_RANK */
    char address[LS_DRIVER_DEVICES_MAX][32]; /* "0000:17:00.0"; "" unknown */
    char failure[200];                       /* "" or why there are none, with the driver's text */
} ls_driver;

/* Loads libcuda.so.1 or the file in the variable LS_LIBCUDA. */
void ls_driver_ask(ls_driver *out);

#endif

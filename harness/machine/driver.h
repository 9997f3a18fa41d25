/* What CUDA's driver answers, asked in a process of its own: it may hang on a broken device, and a
 * process that has spoken to it holds memory on every GPU. NVML may be content where CUDA is not
 * (a fabric manager that does not run, CUDA_VISIBLE_DEVICES). */
#ifndef LS_DRIVER_H
#define LS_DRIVER_H

#include "kernels/core/status.h"

enum { LS_DRIVER_DEVICES_MAX = 64, LS_DRIVER_LIMIT_S = 60 };

typedef struct ls_driver {
    int version; /* 12090: CUDA 12.9 */
    int count;   /* devices in CUDA's order, as a rank's LOCAL_RANK counts them */
    char address[LS_DRIVER_DEVICES_MAX][32]; /* "0000:17:00.0"; "" unknown */
    char failure[200];                       /* "" or why there are none, in the driver's words */
} ls_driver;

/* libcuda.so.1, or what the environment's LS_LIBCUDA names. */
void ls_driver_ask(ls_driver *out);

#endif

/* The parts of `lockstep layers`. */
#ifndef LS_LAYERS_PARTS_H
#define LS_LAYERS_PARTS_H

#include <stdbool.h>

#include "kernels/core/status.h"

enum { LS_LAYERS_CLASSES = 1000 };

/* What the command line asks for. */
typedef struct ls_layers_request {
    const char *arch, *type, *out; /* type: f16, bf16, f32 or tf32; out: a file, or NULL */
    const char *predict;           /* the name of a device to predict for, or NULL: measure */
    int image_size, batch, device, repeats, copy_mb, side;
    bool benchmark, all;
} ls_layers_request;

/* layers_predict.c: prints what a step is predicted to take on the device, without one, and writes
 * every pass to `out`. LS_ERR_USAGE for an unknown device or network. */
ls_status ls_layers_predict(const ls_layers_request *request);

#endif

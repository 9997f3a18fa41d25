/* The parts of `lockstep layers`. */
#ifndef LS_LAYERS_INTERNAL_H
#define LS_LAYERS_INTERNAL_H

#include <stdbool.h>

#include "kernels/core/json.h"
#include "kernels/passes.h"

enum { LS_LAYERS_CLASSES = 1000 };

/* What the command line asks for. */
typedef struct ls_layers_request {
    const char *arch, *type, *out; /* type: f16, bf16, f32 or tf32; out: a file, or NULL */
    bool cpu;                      /* else a GPU */
    const char *predict;           /* the name of a device to predict for, or NULL: measure */
    int image_size, batch, device, threads, repeats, copy_mb, side;
    bool benchmark, fuse, emulated, native, all;
} ls_layers_request;

/* A measured step by kind of pass, and as JSON. */
typedef enum ls_layers_kind {
    LS_LAYERS_FORWARD, /* of products */
    LS_LAYERS_WEIGHTS,
    LS_LAYERS_INPUTS,
    LS_LAYERS_NORM_FORWARD,
    LS_LAYERS_NORM_BACKWARD,
    LS_LAYERS_OTHER,
    LS_LAYERS_UPDATE, /* CPU: optimizer and packing of weights */
    LS_LAYERS_KINDS,
} ls_layers_kind;

typedef struct ls_layers_sum {
    int passes;
    double ms, floor_ms, bytes;
} ls_layers_sum;

/* Rates that floors are computed with; NaN: unknown, and so are the floors. */
typedef struct ls_layers_rates {
    double copy_bytes_per_s, flop_per_s;
} ls_layers_rates;

/* Adds "forward_ms", "backward_ms", "convolutions_ms", on a CPU "update_ms", "kinds": [{"kind",
 * "passes", "ms", "floor_ms", "bytes"}] and "longest": the passes with the most time to gain,
 * [{"pass", "layer", "engine", "ms", "floor_ms", "bytes", "flops"}]. Sorts the passes. */
void ls_layers_record(ls_step_passes *step, const ls_layers_rates *rates, cJSON *to);

/* The rates that floors of a step on a CPU follow from; emulated: half types in f32. */
ls_layers_rates ls_layers_cpu_floors(const ls_cpu_rates_measured *rates, ls_dtype type,
                                     bool emulated);

/* A measured step with its device. */
typedef struct ls_layers_step {
    char device[128];   /* "AMD EPYC, AVX2, 2 threads" */
    char rates[256];    /* the measured rates in a line */
    char products[128]; /* CPU, of half types: what computes products; "" */
    ls_step_passes passes;
    ls_layers_rates floors; /* of products of the requested type */
} ls_layers_step;

/* layers_predict.c: prints what a step is predicted to take on the device, without one, and writes
 * every pass to `out`. LS_ERR_USAGE for an unknown device or network. */
ls_status ls_layers_predict(const ls_layers_request *request);

#endif

/* The lower bound of a training step's time on this machine: its convolutions alone. An extra
 * symbol of ls_cpu.so, found with ls_load_symbol("cpu", LS_CPU_BOUND_ENTRY, ...). */
#ifndef LS_CPU_BOUND_H
#define LS_CPU_BOUND_H

#include "kernels/kernels.h"

#define LS_CPU_BOUND_ENTRY "ls_cpu_convolutions_ms"

/* The convolutions of `network` at options->batch x height x width, forward, backward data (except
 * for the image) and backward weights, the primitives that a plan uses, back to back in their
 * blocked layouts with nothing between them: no packing, no batch norm, no linear layer. In f32, or
 * in options->activation where all of them run on the processor's units for it; else
 * LS_ERR_UNSUPPORTED.
 * threads: as in ls_backend_options; repeats: at least 1, after one that is not counted. Writes the
 * median of the repeats in milliseconds. LS_ERR_USAGE for bad counts, or plan_create's status. */
typedef ls_status ls_cpu_bound_fn(const ls_network *network, const ls_plan_options *options,
                                  int threads, int repeats, double *ms_median);
ls_cpu_bound_fn ls_cpu_convolutions_ms;

/* The machine's best rates with `threads`, independent of the network: bytes read plus bytes
 * written per second by copies far larger than any cache, and f32 operations per second of a
 * product of two 1024 x 1024 matrices (2 n^3 each); medians of five. */
#define LS_CPU_RATES_ENTRY "ls_cpu_rates"

typedef struct ls_cpu_rates_measured {
    double copy_bytes_per_s, matrix_flop_per_s;
} ls_cpu_rates_measured;

/* threads: 1 or more. LS_ERR_INFRA without memory. */
typedef ls_status ls_cpu_rates_fn(int threads, ls_cpu_rates_measured *out);
ls_cpu_rates_fn ls_cpu_rates;

#endif

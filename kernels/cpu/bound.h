/* The lower bound of a training step's time on this machine: its convolutions alone. An extra
 * symbol of ls_cpu.so, found with ls_load_symbol("cpu", LS_CPU_BOUND_ENTRY, ...). */
#ifndef LS_CPU_BOUND_H
#define LS_CPU_BOUND_H

#include "kernels/passes.h"

#define LS_CPU_BOUND_ENTRY "ls_cpu_convolutions_ms"

/* The convolutions of `network` at options->batch x height x width, forward, backward data (except
 * for the image) and backward weights, the primitives that a plan uses, back to back in their
 * blocked layouts with nothing between them: no packing, no batch norm, no linear layer. In
 * options->activation where they run on the processor's units for it, in f32 where none does;
 * LS_ERR_UNSUPPORTED where only some do.
 * threads: as in ls_backend_options; repeats: at least 1, after one that is not counted. Writes the
 * median of the repeats in milliseconds. LS_ERR_USAGE for bad counts, or plan_create's status. */
typedef ls_status ls_cpu_bound_fn(const ls_network *network, const ls_plan_options *options,
                                  int threads, int repeats, double *ms_median);
ls_cpu_bound_fn ls_cpu_convolutions_ms;

/* The same of an existing plan, whose values it overwrites; NaN where the plan converts operands.
 */
ls_status ls_cpu_plan_convolutions_ms(ls_plan *plan, int repeats, double *ms_median);

/* The machine's best rates with `threads`, independent of the network: bytes read plus bytes
 * written per second by copies far larger than any cache, and operations per second of a product of
 * two 1024 x 1024 matrices (2 n^3 each); medians of five. Half types: on the processor's units for
 * them, NaN where it has none. */
#define LS_CPU_RATES_ENTRY "ls_cpu_rates"

typedef struct ls_cpu_rates_measured {
    double copy_bytes_per_s, matrix_flop_per_s, bf16_flop_per_s, f16_flop_per_s;
} ls_cpu_rates_measured;

/* threads: 1 or more. LS_ERR_INFRA without memory. */
typedef ls_status ls_cpu_rates_fn(int threads, ls_cpu_rates_measured *out);
ls_cpu_rates_fn ls_cpu_rates;

/* ---- the network, pass by pass --------------------------------------------------------------- */

#define LS_CPU_PASSES_ENTRY "ls_cpu_passes"

typedef struct ls_cpu_passes_options {
    int threads, repeats; /* as above; repeats at most 64 */
    bool emulate_half;    /* as in ls_backend_options */
    bool native_half;     /* the same */
    bool passes;          /* also each pass by itself */
} ls_cpu_passes_options;

/* A step of the network at options->batch x height x width with activations of that type and plain
 * SGD with momentum; with a half type parameters and gradients are half, masters f32, as at O2.
 * LS_ERR_USAGE for bad counts, or plan_create's status. */
typedef ls_status ls_cpu_passes_fn(const ls_network *network, const ls_plan_options *plan,
                                   const ls_cpu_passes_options *options, ls_step_passes *out);
ls_cpu_passes_fn ls_cpu_passes;

#endif

/* The parts of `lockstep bench` and `lockstep jobs`. */
#ifndef LS_BENCH_INTERNAL_H
#define LS_BENCH_INTERNAL_H

#include <stdbool.h>

#include "harness/hosts/hosts.h"
#include "harness/hosts/probe.h"
#include "harness/hosts/simnet.h"
#include "harness/machine/findings.h"
#include "harness/run/matrix.h"
#include "kernels/core/json.h"
#include "kernels/core/status.h"
#include "suite/run/run.h"

/* The variables of `make bench`, from variables.def: NAME=value arguments with their checks. */
typedef struct ls_variables {
    cJSON *value; /* {"NGPUS":"8", ...}: text as given */
} ls_variables;

/* Checks and keeps each "NAME=value". LS_ERR_USAGE, with the nearest name or the allowed values,
 * for an unknown name or a wrong value. */
ls_status ls_variables_parse(int count, char *const *argument, ls_variables *out);
void ls_variables_free(ls_variables *variables);
/* The given text, or the fallback. */
const char *ls_variables_text(const ls_variables *variables, const char *name,
                              const char *fallback);
int ls_variables_integer(const ls_variables *variables, const char *name, int fallback);
/* Parses "1,5,25" into the first `most` numbers; returns how many were given, 0 without the
 * variable. */
int ls_variables_numbers(const ls_variables *variables, const char *name, double *number, int most);
/* Prints "NAME: description (values)" lines for --help. */
void ls_variables_help(void);

/* A bench's settings, given as NAME=value, and the plan that follows from them: matrix, jobs,
 * cases, folder. */
typedef struct ls_bench_nodes {
    ls_hosts hosts;  /* count 0: this machine */
    ls_probe *probe; /* [hosts.count] */
    ls_simnet net;   /* nodes 0: none */
} ls_bench_nodes;

typedef struct ls_bench {
    ls_variables given;
    ls_matrix_bench matrix;
    ls_run run;
    bool dry_run;
    char drawn[512]; /* folder of images that this run draws, perhaps in {run}; "": none */
    ls_bench_nodes nodes;
} ls_bench;

/* Prints `usage` and the variables where --help is among the words. */
bool ls_bench_plan_helped(const char *usage, int count, char **argument);
/* Everything up to the plan; nothing is written. To be freed after a failure, too. */
ls_status ls_bench_plan_make(ls_bench *b, int count, char **argument);
/* The version of PROFILE=rated, NULL under other profiles. */
const char *ls_bench_plan_rated(const ls_bench *b);
/* SIM_NET=1: makes the network of the simulated nodes and adds it to the run. */
ls_status ls_bench_nodes_connect(ls_bench_nodes *nodes, const ls_variables *given, ls_run *run);
void ls_bench_plan_free(ls_bench *b);

/* Members of run.json, each an array. */
typedef struct ls_roofline_lists {
    cJSON *roofline, *rates, *layers;
} ls_roofline_lists;

/* The best rates of this machine, measured in the run that is compared with them (run_files.md):
 * the convolutions of the network alone, copies, f32 matrix products.
 *
 * Appends to `roofline` one object per total number of threads of a world of the bench:
 * {"when", "arch", "image_size", "batch_size", "threads", "images_per_s"} (forward and both
 * backwards, f32, one process), and to `rates` {"when", "threads", "copy_bytes_per_s",
 * "matrix_flop_per_s"}. Other load lowers them, so they are measured before and after the jobs, as
 * `when` says. Before the jobs appends to `layers` a step of one rank alone by kind of pass in f32
 * and in the half type, {"when", "threads", "type", "arch", "image_size", "batch_size", ...}
 * (layers_internal.h, ls_layers_record). LS_ERR_INFRA without a CPU backend. */
ls_status ls_roofline_measure(const ls_matrix_bench *bench, const char *when,
                              const ls_roofline_lists *to);

enum { LS_ROOFLINE_LIMIT_S = 300 }; /* for all GPUs, including the search for engines */

/* Measures all GPUs at once, each in a process of its own, so that nothing stays on a GPU while
 * jobs run. Appends to `roofline` per GPU {"when", "arch", "image_size", "batch_size", "level",
 * "gpu", "images_per_s"} (its convolutions alone, f32 for O0 and half for the others), and to
 * `rates`
 * {"when", "gpu", "device", "address", "copy_bytes_per_s", "memory_bytes_per_s",
 * "f32_flop_per_s", "tf32_...", "f16_...", "bf16_...", "f32_device_flop_per_s", ...}, and to
 * `layers` a step of GPU 0 by kind of pass for each type of the levels, {"when", "gpu", "type",
 * "arch", "image_size", "batch_size", ...} (layers_internal.h, ls_layers_record). A GPU
 * that is slower than the others or than its own data is a finding. `emulated`: small sizes, for a
 * GPU emulated on the CPU. A GPU that cannot be measured is a warning on stderr and has no row. */
void ls_roofline_gpu_measure(const ls_matrix_bench *bench, const char *when, int gpus,
                             bool emulated, const ls_roofline_lists *to, ls_findings *findings);
/* Only the findings, from such rates; for tests. */
void ls_roofline_gpu_compare(const cJSON *rates, ls_findings *findings);

#endif

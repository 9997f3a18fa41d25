/* What the files of the CPU backend know of each other. One `ls_backend` is a set of cores: a
 * number of OpenMP threads, the vector code chosen for this machine, and the oneDNN engine. */
#ifndef LS_CPU_BACKEND_H
#define LS_CPU_BACKEND_H

#include "kernels/kernels.h"

typedef enum ls_isa {
    LS_ISA_PLAIN, /* what the compiler makes of C alone */
    LS_ISA_AVX2,  /* with FMA and F16C */
    LS_ISA_AVX512,
} ls_isa;

struct ls_dnn;
struct ls_loops;

struct ls_backend {
    int threads; /* of every parallel loop; at least 1 */
    ls_isa isa;
    struct ls_dnn *dnn;
    const struct ls_loops *loops;
};

/* Executes at once, so there is nothing to hold. */
struct ls_stream {
    ls_backend *backend;
};

struct ls_event {
    ls_backend *backend;
};

/* The entry point, cpu.c. */
ls_backend_entry_fn ls_backend_entry;

#endif

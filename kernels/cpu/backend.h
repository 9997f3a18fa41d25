/* Types shared by the CPU backend. One `ls_backend` is a set of cores: a number of OpenMP threads,
 * the vector code chosen for this machine, and the oneDNN engine. */
#ifndef LS_CPU_BACKEND_H
#define LS_CPU_BACKEND_H

#include "kernels/kernels.h"

typedef enum ls_isa {
    LS_ISA_PLAIN, /* plain C, compiled for any processor */
    LS_ISA_AVX2,  /* with FMA and F16C */
    LS_ISA_AVX512,
} ls_isa;

struct ls_dnn;
struct ls_loops;
struct ls_multi_variant;

struct ls_backend {
    int threads;                  /* of every parallel loop; at least 1 */
    bool native_f16, native_bf16; /* products of the type run on the processor's units for it */
    bool last_f32, last_f16, last_bf16; /* activations of the type lie in channels last */
    const char *units_f16, *units_bf16; /* of a typical product there, as oneDNN's implementation
                                           names them; NULL: products of the type run in f32 */
    const char *weights_way;            /* LS_CPU_WEIGHTS, or "" */
    bool emulate_half;                  /* not so because the caller asked for it */
    ls_isa isa;
    struct ls_dnn *dnn;
    const struct ls_loops *loops;
    const struct ls_multi_variant *multi;
    float *spare; /* multi_unfused.c: between two of its passes; NULL until used */
    int64_t spare_count;
};

/* Work is executed at once, so a stream holds nothing. */
struct ls_stream {
    ls_backend *backend;
};

struct ls_event {
    ls_backend *backend;
};

static inline bool ls_backend_is_native(const ls_backend *backend, ls_dtype type)
{
    return type == LS_F16 ? backend->native_f16 : type == LS_BF16 && backend->native_bf16;
}

static inline bool ls_backend_is_last(const ls_backend *backend, ls_dtype type)
{
    return type == LS_F16    ? backend->last_f16
           : type == LS_BF16 ? backend->last_bf16
                             : backend->last_f32;
}

/* The entry point, cpu.c. */
ls_backend_entry_fn ls_backend_entry;

/* memory.c: large blocks of host memory, 64-byte aligned and zeroed; bytes may be 0. Logs and
 * returns LS_ERR_INFRA. */
ls_status ls_memory_take(int64_t bytes, const char *purpose, void **out);
void ls_memory_give(void *memory);

#endif

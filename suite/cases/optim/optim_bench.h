/* A device and a row of tensors on it that stand one element off alignment with guards between
 * them, for single optimizer steps of a backend. */
#ifndef LS_OPTIM_BENCH_H
#define LS_OPTIM_BENCH_H

#include "reference/state/device.h"

enum { LS_OPTIM_BENCH_TENSORS = 7, LS_OPTIM_BENCH_GUARD = 3 };

/* The lists; first and second are the moments. */
enum {
    LS_OPTIM_BENCH_VALUE,
    LS_OPTIM_BENCH_GRAD,
    LS_OPTIM_BENCH_FIRST,
    LS_OPTIM_BENCH_SECOND,
    LS_OPTIM_BENCH_COPY,
    LS_OPTIM_BENCH_LISTS
};

typedef struct ls_optim_bench {
    ls_device device;
    ls_step_state *state;
    void *block[LS_OPTIM_BENCH_LISTS]; /* NULL: no such list */
    ls_tensor list[LS_OPTIM_BENCH_LISTS][LS_OPTIM_BENCH_TENSORS];
    int tensors;
} ls_optim_bench;

/* Close it also where this fails. */
ls_status ls_optim_bench_open(ls_optim_bench *b);
void ls_optim_bench_close(ls_optim_bench *b);
/* A list's memory: guard, tensor, guard, ...: seldom aligned. count[tensors]. */
ls_status ls_optim_bench_make_list(ls_optim_bench *b, int k, int tensors, const int64_t *count,
                                   ls_dtype dtype);
ls_status ls_optim_bench_write_state(ls_optim_bench *b, const ls_step_state *state);
/* One call of the backend's optimizer_step on the lists that were made. */
ls_status ls_optim_bench_step(ls_optim_bench *b, const ls_optimizer_config *config, bool dynamic);

#endif

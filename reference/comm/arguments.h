/* The command line of lockstep-collectives. */
#ifndef LS_ARGUMENTS_H
#define LS_ARGUMENTS_H

#include "comm.h"
#include "pattern.h"

enum {
    LS_ARGUMENTS_KINDS = 9,
    LS_ARGUMENTS_REDOPS = 4,
    LS_ARGUMENTS_DTYPES = 7,
    LS_ARGUMENTS_COUNTS = 32,
    LS_ARGUMENTS_TIMEOUT_MOST_S = 1000000,
};

typedef struct ls_arguments {
    int kind_count, redop_count, dtype_count, count_count;
    ls_comm_kind kind[LS_ARGUMENTS_KINDS];
    ls_comm_redop redop[LS_ARGUMENTS_REDOPS];
    ls_dtype dtype[LS_ARGUMENTS_DTYPES];
    const char *counts; /* parsed once the world is known */
    int64_t count[LS_ARGUMENTS_COUNTS];
    ls_pattern_kind data;
    bool in_place[2]; /* out of place, in place */
    int offset_max, iterations, barriers, absent, group_size;
    const char *groups, *redops; /* as given; NULL: not */
    bool headline;
    double timeout_s;
    const char *comm, *device;
} ls_arguments;

/* Fills in defaults and the given options; an unusable one, or two that contradict each other, ends
 * the program with LS_ERR_USAGE or returns it, logged. */
ls_status ls_arguments_read(int argc, char **argv, ls_arguments *out);
/* Parses `counts` into count[]. LS_ERR_USAGE, logged. */
ls_status ls_arguments_read_counts(ls_arguments *given, int world);

#endif

/* The command line of lockstep-collectives. */
#ifndef LS_COLLECTIVES_ARGUMENTS_H
#define LS_COLLECTIVES_ARGUMENTS_H

#include "exercise.h"

enum {
    LS_COLLECTIVES_KINDS = 8,
    LS_COLLECTIVES_DTYPES = 7,
    LS_COLLECTIVES_COUNTS = 32,
};

typedef struct ls_collectives_arguments {
    int kind_count, dtype_count, count_count;
    ls_comm_kind kind[LS_COLLECTIVES_KINDS];
    ls_dtype dtype[LS_COLLECTIVES_DTYPES];
    const char *counts; /* parsed once the world is known */
    int64_t count[LS_COLLECTIVES_COUNTS];
    ls_pattern_kind data;
    bool in_place[2]; /* out of place, in place */
    int offset_max, iterations, barriers, absent;
    bool headline;
    double timeout_s;
    const char *comm, *device;
} ls_collectives_arguments;

/* Fills in defaults and the given options; ends the program with LS_ERR_USAGE if one is wrong. */
ls_status ls_collectives_arguments_read(int argc, char **argv, ls_collectives_arguments *out);
/* Parses `counts` into count[]. LS_ERR_USAGE, logged. */
ls_status ls_collectives_arguments_read_counts(ls_collectives_arguments *given, int world);

#endif

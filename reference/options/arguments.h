/* The table of `lockstep-train`'s arguments and what a single value may be. options.h is the face
 * of it. */
#ifndef LS_ARGUMENTS_H
#define LS_ARGUMENTS_H

#include "options.h"

/* Which of the options whose absence matters were given. */
typedef struct ls_arguments_given {
    bool batch_size, average, schedule, epsilon;
} ls_arguments_given;

/* Reads argv over the values in `options`. Each error is one line that names option, value and what
 * is allowed (LS_ERR_USAGE). --help and --version print and end the program with 0. */
ls_status ls_arguments_read(int argc, char **argv, ls_options *options, ls_arguments_given *given);

#endif

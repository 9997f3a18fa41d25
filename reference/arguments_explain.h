/* Why getopt would not take a command line: an unknown option and the nearest one, several
 * meanings, a value too many or none. */
#ifndef LS_ARGUMENTS_EXPLAIN_H
#define LS_ARGUMENTS_EXPLAIN_H

#include <argp.h>

/* One line to the log for the first argument that does not fit `table`, which ends with {0}. */
void ls_arguments_explain_refusal(const struct argp_option *table, int argc, char **argv);

#endif

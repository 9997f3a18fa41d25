/* Why getopt would not take a command line: an unknown option and the nearest one, several
 * meanings, a value too many or none. */
#ifndef LS_USAGE_ERROR_H
#define LS_USAGE_ERROR_H

#include <argp.h>
#include <stdbool.h>

/* One line to the log for the first argument that does not fit `table`, which ends with {0}; false
 * where all fit. Options end at "--" and, with `in_order`, at the first operand. */
bool ls_usage_error_explain(const struct argp_option *table, bool in_order, int argc, char **argv);

#endif

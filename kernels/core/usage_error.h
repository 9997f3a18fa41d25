/* Explains why getopt rejected a command line: an unknown option with the nearest known one, an
 * ambiguous abbreviation, an unexpected value or a missing one. */
#ifndef LS_USAGE_ERROR_H
#define LS_USAGE_ERROR_H

#include <argp.h>
#include <stdbool.h>

/* Logs one line for the first argument that does not fit `table`, which ends with {0}; false if all
 * fit. Options end at "--" and, with `in_order`, at the first operand. */
bool ls_usage_error_explain(const struct argp_option *table, bool in_order, int argc, char **argv);

#endif

/* The variables of `make bench`, from bench.def: NAME=value arguments with their checks. */
#ifndef LS_VARIABLES_H
#define LS_VARIABLES_H

#include <stdbool.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

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

#endif

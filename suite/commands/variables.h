/* The variables of `make bench`, from bench.def: NAME=value arguments with their checks. */
#ifndef LS_VARIABLES_H
#define LS_VARIABLES_H

#include <stdbool.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

typedef struct ls_variables {
    cJSON *value; /* {"NGPUS":"8", ...}: text as given */
} ls_variables;

/* Checks and keeps each "NAME=value". An unknown name or a wrong value is one line that names the
 * nearest known name or the allowed values: LS_ERR_USAGE. */
ls_status ls_variables_parse(int count, char *const *argument, ls_variables *out);
void ls_variables_free(ls_variables *variables);
/* The text given, or fallback. */
const char *ls_variables_text(const ls_variables *variables, const char *name,
                              const char *fallback);
int ls_variables_integer(const ls_variables *variables, const char *name, int fallback);
/* "1,5,25" into numbers, the first `most` of them; returns how many were given, 0 without the
 * variable. */
int ls_variables_numbers(const ls_variables *variables, const char *name, double *number, int most);
/* "NAME: what it is (values)" lines, for --help. */
void ls_variables_help(void);

#endif

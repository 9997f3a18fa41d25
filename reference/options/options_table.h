/* The rows of options.def as data, for what reads, checks and records options. options.h is the
 * public header. */
#ifndef LS_OPTIONS_TABLE_H
#define LS_OPTIONS_TABLE_H

#include <stddef.h>

#include "options.h"
#include "values.h"

typedef enum ls_options_kind {
    LS_OPTIONS_INT,
    LS_OPTIONS_COUNT,
    LS_OPTIONS_REAL,
    LS_OPTIONS_FLOAT,
    LS_OPTIONS_FLAG,
    LS_OPTIONS_TRISTATE,
    LS_OPTIONS_OPTIONAL,
    LS_OPTIONS_WORD,
    LS_OPTIONS_TEXT,
    LS_OPTIONS_CHOICE,
    LS_OPTIONS_OWN,
} ls_options_kind;

/* One row; what its kind does not have is 0. */
typedef struct ls_options_row {
    int group;
    const char *name;
    char letter;
    const char *argument, *help;
    ls_options_kind kind;
    size_t offset, bytes; /* of the field in ls_options */
    int64_t least, most;
    ls_values_range allowed;
    const char *words; /* separated by '|' */
    int (*read)(const char *option, const char *text, ls_options *options);
} ls_options_row;

enum {
    LS_OPTIONS_ROWS = 0
#define LS_OPTION(...) +1
#include "options.def"
#undef LS_OPTION
};
extern const ls_options_row ls_options_table[LS_OPTIONS_ROWS];

/* Values against each other (options_check.c). LS_ERR_USAGE after one line. */
ls_status ls_options_check(const ls_options *options, bool batch_size_given);
/* Understood, but not offered: the first such option, or NULL. */
const char *ls_options_find_unsupported(const ls_options *options, const char **why);
/* Whether the data has an end, and so epochs: synthetic data and given batches have none. */
bool ls_options_has_epochs(const ls_options *options);

#endif

/* The rows of options.def as data, for what reads and records options. options.h is the public
 * header. */
#ifndef LS_OPTIONS_TABLE_H
#define LS_OPTIONS_TABLE_H

#include <stddef.h>

#include "options.h"

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

typedef enum ls_options_group {
    LS_OPTIONS_NETWORK = 1,
    LS_OPTIONS_PRECISION,
    LS_OPTIONS_OPTIMIZER,
    LS_OPTIONS_PARALLEL,
    LS_OPTIONS_DATA,
    LS_OPTIONS_RUNNING,
    LS_OPTIONS_GROUPS = LS_OPTIONS_RUNNING,
} ls_options_group;

typedef enum ls_options_range { LS_OPTIONS_POSITIVE, LS_OPTIONS_NOT_NEGATIVE } ls_options_range;

/* Where its value may be another (options.def). */
typedef enum ls_options_differs {
    LS_OPTIONS_EQUAL,
    LS_OPTIONS_RESUME,
    LS_OPTIONS_RANK,
} ls_options_differs;

/* One row; what its kind does not have is 0. */
typedef struct ls_options_row {
    ls_options_group group;
    const char *name;
    char letter;
    const char *argument, *help;
    ls_options_kind kind;
    ls_options_differs differs;
    size_t offset, bytes; /* of the field in ls_options */
    int64_t least, most;
    ls_options_range allowed;
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

/* Reads a value (NULL: none was given) into its field. EINVAL, argp's way, after one line that
 * names option, value and what is allowed. */
int ls_options_read(const ls_options_row *row, const char *text, ls_options *options);

#endif

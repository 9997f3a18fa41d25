/* The command line of a subcommand of `lockstep`: its options, and values that several of them
 * take. */
#ifndef LS_COMMAND_LINE_H
#define LS_COMMAND_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "kernels/core/text.h"
#include "select.h"

/* A subcommand of `lockstep`: `main` takes the arguments after its name and returns the exit code.
 */
typedef struct ls_command_row {
    const char *name;
    int (*main)(int count, char **argument);
    const char *text; /* for --help */
    bool starts_jobs;
} ls_command_row;

/* `lockstep` itself: runs the subcommand that argv[1] names, or prints the help, or the version.
 * `more`: what the help says at its end of commands that are not in `row`; "" if all are. */
int ls_command_run(const ls_command_row *row, int rows, const char *more, int argc, char **argv);

/* One option of a subcommand: "--name VALUE" or "--name=VALUE", or a flag. */
typedef struct ls_command_option {
    const char *name;     /* "--case" */
    const char **value;   /* set to the given text */
    bool *flag;           /* not NULL: the option takes no value and sets this */
    ls_select_list *list; /* not NULL: the option may be repeated; collects the values */
    const char *text;     /* for --help */
} ls_command_option;

/* Parses the options of `command`: its name, and its operands if it takes any ("report DIR"). The
 * operands remain, in order, in argument[0..*count-1]. LS_ERR_USAGE for an unknown option (with the
 * nearest one), a missing value or another number of operands. --help prints the options and exits
 * with 0. The operands of a `command` such as "observe -- CMD ARG..." are another command, which
 * begins after "--" or with the first word that is no option; there may be none. */
ls_status ls_command_parse(const char *command, const ls_command_option *option, int options,
                           int *count, char **argument);

/* LS_ERR_USAGE for operands of a command that takes none. `hint` may be "". */
ls_status ls_command_no_operands(const char *command, int count, char **argument, const char *hint);

/* Parses a whole number from `least` to `most`, without blanks. LS_ERR_USAGE names the option, its
 * value and the range. */
ls_status ls_command_whole(const char *name, const char *text, int64_t least, int64_t most,
                           int64_t *out);
/* A seed: 0 to 2^63 - 1. */
ls_status ls_command_seed(const char *name, const char *text, uint64_t *out);
/* i/n with 1 <= i <= n: share i - 1 of n; NULL: 0 of 1. */
ls_status ls_command_shard(const char *name, const char *text, int *share, int *shares);
/* cpu, cuda or auto, else LS_ERR_USAGE. */
ls_status ls_command_device(const char *text);
/* One of the allowed words, or NULL; LS_ERR_USAGE names them, or the nearest. */
ls_status ls_command_choice(const char *name, const char *text, const char *const *allowed,
                            int count);

/* Where the folder of the results cannot be made. */
#define LS_COMMAND_OUT_HINT "; OUT= (--out) names another folder"
/* The absolute path <folder>/<UTC time>-<label>, with a number appended if that folder exists. */
ls_status ls_command_run_folder(const char *folder, const char *label, char *path, size_t bytes);
/* This program with a command, "build/lockstep COMMAND ARGUMENT...", as a shell reads it back in
 * this folder; malloc'ed. */
char *ls_command_line(const char *command, const ls_words *arguments);
/* The same for any folder, with this environment's LS_ variables, to go on with a stopped run:
 * "cd HERE && [env LS_NAME=VALUE...] build/lockstep ..."; malloc'ed. */
char *ls_command_go_on(const char *command, const ls_words *arguments);
/* Makes `path` absolute, without slashes at the end. */
void ls_command_absolute(const char *path, char *out, size_t bytes);
/* Describes where ranks run: "CPU: 8 ranks on 2 cores, no GPU was tested". text[96]. */
void ls_command_where(const char *device, int ranks, char *text);

#endif

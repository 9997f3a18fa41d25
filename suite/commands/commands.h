/* The subcommands of `lockstep`. Each takes the arguments behind its name and returns the exit
 * code: 0 good, 1 CORRECT is not yes, 2 usage, 3 infrastructure, 4 not supported. */
#ifndef LS_COMMANDS_H
#define LS_COMMANDS_H

#include "suite/run/runner.h"

int ls_bench_main(int count, char **argument);
int ls_jobs_main(int count, char **argument);
int ls_conform_main(int count, char **argument);
int ls_detect_main(int count, char **argument);
int ls_judge_main(int count, char **argument);
int ls_bounds_main(int count, char **argument);

/* One option of a subcommand: "--name VALUE" or "--name=VALUE"; without value where `value` is
 * NULL. */
typedef struct ls_command_option {
    const char *name;   /* "--case" */
    const char **value; /* set to the text given; NULL: a flag */
    bool *flag;
    ls_select_list *list; /* not NULL: may be given many times, values are collected here */
    const char *text;     /* for --help */
} ls_command_option;

/* Takes known options out; what remains are operands, kept in order in argument[0..*count-1]. An
 * unknown option or a missing value is LS_ERR_USAGE, naming the nearest option. --help prints and
 * exits 0. */
ls_status ls_commands_parse(const char *command, const ls_command_option *option, int options,
                            int *count, char **argument);

/* A whole number from `least` to `most`, nothing around it. LS_ERR_USAGE names the option, its
 * value and the range. */
ls_status ls_commands_whole(const char *name, const char *text, int64_t least, int64_t most,
                            int64_t *out);
/* A seed: 0 to 2^63 - 1. */
ls_status ls_commands_seed(const char *name, const char *text, uint64_t *out);
/* cpu, cuda or auto, else LS_ERR_USAGE. */
ls_status ls_commands_device(const char *text);
/* results/runs/<UTC time>-<label> under `folder`, absolute, not there yet. */
ls_status ls_commands_run_folder(const char *folder, const char *label, char *path, size_t bytes);
/* `path` from the working directory. */
void ls_commands_absolute(const char *path, char *out, size_t bytes);
/* "CPU: 8 ranks on 2 cores, no GPU was tested". text[96]. */
void ls_commands_where(const char *device, int ranks, int cores, char *text);

#endif

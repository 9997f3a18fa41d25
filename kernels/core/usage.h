/* Command lines of programs: what --help prints, and a line for the first argument that does not
 * fit. argp's own help breaks entries, and its messages take two lines. */
#ifndef LS_USAGE_H
#define LS_USAGE_H

#include <argp.h>
#include <stdbool.h>
#include <stdio.h>

#include "status.h"

enum {
    LS_USAGE_WIDTH = 80,
    LS_USAGE_COLUMN = 26 /* of the texts */
};

/* A paragraph in lines of at most LS_USAGE_WIDTH columns, all but the first indented; text goes on
 * at `column`. */
void ls_usage_text(FILE *to, int column, const char *text);
/* An entry: `name` with what stands before it ("  --out X"), and its text at LS_USAGE_COLUMN. */
void ls_usage_entry(FILE *to, const char *name, const char *text);

/* Checks a command line before argp reads it, and answers --help, --usage and --version by printing
 * and exit(0). False after one line for the first argument that fits none of the options: names are
 * whole, and a value in the next word does not begin with "--". Options end at "--" and,
 * with `in_order`, at the first operand. */
bool ls_usage_check(const struct argp *argp, bool in_order, int argc, char **argv);

/* LS_ERR_USAGE, logged, where the value of an option `name` ("--out") is absent (NULL), or begins
 * with "--" as an option does; `wanted` says what the value is. */
ls_status ls_usage_check_value(const char *name, const char *wanted, const char *value);

/* A program's main. What libraries do where they find no memory or no thread is theirs: libgomp
 * calls exit(1), cJSON leaves members out, oneDNN writes to where it has nothing. None of that may
 * look like an answer about what the program runs. */

#define LS_VERSION "0.2.0" /* of all programs, and in their reports */

/* Calls run(argc, argv) and exits with its code. Meanwhile the program ends with LS_ERR_INFRA, with
 * a line, where a library ends it by exit(1), where cJSON finds no memory, and where it crashes
 * (SEGV, BUS, ABRT, FPE) while not even a thread's stack of memory is left. */
_Noreturn void ls_program_main(int (*run)(int argc, char **argv), int argc, char **argv);

#endif

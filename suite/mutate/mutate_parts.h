/* The parts of `lockstep mutate`: single changes of the code, the tests that reach a line, and
 * what becomes of each change. */
#ifndef LS_MUTATE_PARTS_H
#define LS_MUTATE_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

/* `lockstep mutate`: draws lines of the code, changes each in one way, and runs the tests that
 * reach it; the share of changes that are caught is the mutation score. 0 every mutant was tried, 2
 * usage, 3 infrastructure. */
int ls_mutate_main(int count, char **argument);

/* ---- mutants.c: the changes that a source offers --------------------------------------------- */

/* One change: text[begin..end) of a source becomes `with`. Line breaks inside are kept, so that
 * lines keep their numbers. */
typedef struct ls_mutant {
    int line;           /* of the change, from 1 */
    int64_t begin, end; /* in bytes */
    const char *kind;   /* "relation", "arithmetic", "logic", "constant", "condition", "left out" */
    char with[24];      /* for "condition": the text before the condition; its end gets a ')' */
    bool wraps;         /* a condition: `with` is inserted at begin, ')' at end */
} ls_mutant;

typedef struct ls_mutant_list {
    int count, capacity;
    ls_mutant *mutant; /* by line */
} ls_mutant_list;

/* All changes of a C or C++ source text: relations, arithmetic and logic operators, constants,
 * conditions negated, statements left out. Comments, strings, the preprocessor, messages (ls_log_,
 * LS_ASSERT) and planted faults (LS_PLANT) are passed over: no test has to see a change there. */
void ls_mutants_of(const char *text, ls_mutant_list *out);
/* The source with that change, malloc'ed. */
char *ls_mutants_apply(const char *text, const ls_mutant *mutant);
/* The changed piece, before and after, each on one line. */
void ls_mutants_show(const char *text, const ls_mutant *mutant, char *before, char *after,
                     int bytes);

/* ---- reach.c: which tests execute a line ----------------------------------------------------- */

/* A unit test program or a set of conformance cases, written by reach.sh. */
typedef struct ls_reach_test {
    char name[96];  /* "unit/test_x", "check/CASE", "conform/FAMILY.KIND" */
    double seconds; /* that it took when it was mapped */
    uint8_t *bits;  /* one for each line of all sources */
} ls_reach_test;

typedef struct ls_reach {
    int sources, tests, source_capacity, test_capacity;
    struct ls_reach_source {
        char path[128];
        int first, lines; /* of its bits in each test */
    } * source;
    ls_reach_test *test; /* the shortest first */
    int bits;
} ls_reach;

/* Adds a source before the map is read. */
void ls_reach_add_source(ls_reach *reach, const char *path, int lines);
/* Reads DIRECTORY/tests.tsv (name, seconds) and DIRECTORY/NAME.lines (path and ranges of lines). */
ls_status ls_reach_read(const char *directory, ls_reach *reach);
bool ls_reach_reaches(const ls_reach *reach, int test, int source, int line);
void ls_reach_free(ls_reach *reach);

#endif

/* The printed and written results of a detection run. */
#ifndef LS_DETECT_TABLE_H
#define LS_DETECT_TABLE_H

#include <stdio.h>

#include "detect_run.h"

/* The summary of the foreign trainers, and the line of one fault. */
void ls_detect_print_foreign(const ls_detect_summary *summary, FILE *to);
void ls_detect_print_result(const ls_detect_plant *plant, const ls_detect_result *result, FILE *to);
/* Writes detect.tsv and detect.md. */
ls_status ls_detect_write_tables(const char *directory, const ls_detect_list *list,
                                 const ls_detect_result *result, const ls_detect_summary *summary);
/* Writes matrix.tsv of a full run, a row per fault and a column per case, from faults/<name>.jsonl.
 */
ls_status ls_detect_write_matrix(const char *directory, const ls_detect_list *list);

#endif

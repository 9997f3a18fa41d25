/* Which cases run and which of them a claim needs: globs, list files, claims, waivers, shares. */
#ifndef LS_SELECT_H
#define LS_SELECT_H

#include "suite/suite.h"

/* Globs, one a line; '#' starts a comment. A glob may be followed by a reason. */
typedef struct ls_select_list {
    int count, capacity;
    struct ls_select_line {
        char glob[LS_CASE_ID_BYTES];
        char *reason; /* rest of the line, "" when there is none; owned */
    } * line;
} ls_select_list;

/* Appends the file's lines. LS_ERR_USAGE when it cannot be read (named). */
ls_status ls_select_load(const char *path, ls_select_list *list);
void ls_select_add(ls_select_list *list, const char *glob, const char *reason);
void ls_select_free(ls_select_list *list);
/* The first line that matches, or NULL. */
const struct ls_select_line *ls_select_find(const ls_select_list *list, const char *id);

/* suite/claims/<claim>.txt; "all": every claim's. LS_ERR_USAGE for an unknown claim, naming the
 * nearest. */
ls_status ls_select_claim(const char *claim, ls_select_list *list);
/* suite/lists/waivers.txt: LS_ERR_USAGE for a waiver without a reason. */
ls_status ls_select_waivers(ls_select_list *list);
/* Keeps the rows that match (an empty list keeps all), then share `share` of `shares` (0 of 1:
 * all; suite/run/shard.h). Every line must match some row: a list that names no case is
 * LS_ERR_USAGE, with the nearest id. */
ls_status ls_select_keep(ls_case_list *cases, const ls_select_list *wanted, int share, int shares);

/* requirements.txt against the rows: every case names one that exists, every one has a case, no id
 * twice. Logs the mistake; LS_ERR_CHECK. */
ls_status ls_select_check_requirements(const char *path, const ls_case_list *cases);

#endif

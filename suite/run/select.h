/* Selects the cases of a run, and those that a claim needs: globs, list files, claims, waivers,
 * shares. */
#ifndef LS_SELECT_H
#define LS_SELECT_H

#include "kernels/core/text.h"
#include "suite/suite.h"

/* A list of globs, one per line; '#' starts a comment. A glob may be followed by a reason. */
typedef struct ls_select_list {
    int count, capacity;
    struct ls_select_line {
        char glob[LS_CASE_ID_BYTES];
        char *reason; /* rest of the line, "" when there is none; owned */
    } * line;
} ls_select_list;

/* Appends the lines of a file. LS_ERR_USAGE, with its name, when it cannot be read. */
ls_status ls_select_load(const char *path, ls_select_list *list);
void ls_select_add(ls_select_list *list, const char *glob, const char *reason);
void ls_select_free(ls_select_list *list);
/* The first line that matches, or NULL. */
const struct ls_select_line *ls_select_find(const ls_select_list *list, const char *id);
/* The rows that match. */
int ls_select_count(const ls_case_list *cases, const ls_select_list *list);

/* Appends the names of all claims. */
ls_status ls_select_claims(ls_words *names);
/* Whether a line of a claim says "where offered": a trainer that refuses such a case's options, or
 * reports nothing of the kind, makes the claim without it. */
bool ls_select_is_optional(const ls_select_list *claim, const char *id);
/* suite/claims/<claim>.txt; "all": every claim's. LS_ERR_USAGE for an unknown claim, naming the
 * nearest. */
ls_status ls_select_claim(const char *claim, ls_select_list *list);
/* Reads suite/lists/waivers.txt. LS_ERR_USAGE for a waiver without a reason. */
ls_status ls_select_waivers(ls_select_list *list);
/* The requirements that requirements.txt marks (manners). */
ls_status ls_select_manners(ls_select_list *list);
/* Keeps the rows that match. */
void ls_select_matching(ls_case_list *cases, const ls_select_list *wanted);
/* Keeps the rows that match (an empty list keeps all), then share `share` of `shares` (0 of 1: all;
 * ls_select_share). LS_ERR_USAGE, with the nearest id, for a line that matches no row. */
ls_status ls_select_keep(ls_case_list *cases, const ls_select_list *wanted, int share, int shares);

/* Keeps share `share` (from 0) of `shares`. Cases that need the same job stay together, so that no
 * job runs twice; shares are balanced by the estimate of their jobs on 2 cores. The shares of a
 * list are disjoint and complete, and the same on every machine. */
void ls_select_share(ls_case_list *cases, int share, int shares);

#endif

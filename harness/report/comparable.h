/* Whether the speeds of two runs can be compared: what they ran on must be the same. */
#ifndef LS_COMPARABLE_H
#define LS_COMPARABLE_H

#include "kernels/core/json.h"

typedef struct ls_comparable {
    bool same;         /* nothing that decides differs, and what must be known is */
    char decides[400]; /* "1 core against 2 cores; CPU a against b", the later run first; or "" */
    char remarks[400]; /* differences that decide nothing; or "" */
} ls_comparable;

/* Of two run.json or summary.json. The table of facts is in comparable.c. */
ls_comparable ls_comparable_runs(const cJSON *before, const cJSON *after);

#endif

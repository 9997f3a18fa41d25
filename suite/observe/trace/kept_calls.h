/* Calls of steps in memory. Most members of most calls of a long job are alike (the place, the
 * types, the indices): they are kept once, and a call has only its measured numbers and digests to
 * itself. */
#ifndef LS_OBSERVE_KEPT_CALLS_H
#define LS_OBSERVE_KEPT_CALLS_H

#include <cjson/cJSON.h>

typedef struct ls_kept_calls ls_kept_calls;

/* An empty store. Running out of memory ends the program, here and below. */
ls_kept_calls *ls_kept_calls_make(void);
/* Frees it with all calls; NULL does nothing. */
void ls_kept_calls_free(ls_kept_calls *kept);
/* A copy of a call, with its members in an order of the store's own. `before`, a call of the store
 * or NULL: what it has is the call's, too, where the call does not have a member of that name. The
 * copy is the store's: calls share members, so cJSON may read and copy it, never change or delete
 * it. */
const cJSON *ls_kept_calls_add(ls_kept_calls *kept, const cJSON *before, const cJSON *call);

#endif

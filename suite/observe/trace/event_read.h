/* Lines of events as ../events.def has them, kept in a store. Members that the table lacks are left
 * out; of a long job's calls what they share is kept once. Running out of memory ends the program.
 */
#ifndef LS_OBSERVE_EVENT_READ_H
#define LS_OBSERVE_EVENT_READ_H

#include <cjson/cJSON.h>

#include "event.h"

typedef enum ls_event_file {
    LS_EVENT_FILE_RANK,
    LS_EVENT_FILE_CALL, /* an entry of a step's calls */
    LS_EVENT_FILE_NCCL,
    LS_EVENT_FILE_SUMS,
    LS_EVENT_FILE_PART, /* an object in an event: none of a file's own */
} ls_event_file;

typedef struct ls_event_store ls_event_store;

ls_event_store *ls_event_store_make(void);
void ls_event_store_free(ls_event_store *store); /* with all events; NULL does nothing */
/* The event of that word, "model"; LS_EVENT_none: the table has none. */
ls_event_shape ls_event_shape_of(ls_event_file file, const char *word);
/* The event that an object is, kept until the store is freed. */
const ls_event *ls_event_read(ls_event_store *store, ls_event_shape shape, const cJSON *object);
/* The same until the next one is read so. */
const ls_event *ls_event_read_once(ls_event_store *store, ls_event_shape shape,
                                   const cJSON *object);
/* A copy of a value that was read once, kept until the store is freed; NULL of NULL. */
const ls_event *ls_event_keep(ls_event_store *store, const ls_event *value);
/* A call of a step. `before`, a call of the store or NULL: what it has is the call's, too, where
 * the call does not have that member. Calls share memory. */
const ls_event *ls_event_read_call(ls_event_store *store, const ls_event *before,
                                   const cJSON *call);
/* The first value of another kind than its member's in what was read since: "has \"training\" of
 * forward that is not true or false"; "": none. Such a member is left out. */
const char *ls_event_wrong(const ls_event_store *store);

#endif

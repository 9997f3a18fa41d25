/* Events, by the table of them (../events.def): a member is read by its name there, and a
 * name or a kind that the table lacks does not compile:
 *
 *     ls_event_text(call->json, at, "")       ls_event_number(group, lr, NAN)
 *
 * What an event leaves out, or gives as null, is the fallback. Accessors of names rather than a
 * struct for each event: of a backward's 20 members a call has 6, and a rule about calls asks calls
 * of all kinds for their place. */
#ifndef LS_OBSERVE_EVENT_H
#define LS_OBSERVE_EVENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

/* ---- names of the table ---------------------------------------------------------------------- */

typedef enum ls_event_shape {
#define LS_EVENT(event, file, word, sentence) LS_EVENT_##event,
#define LS_MEMBER(event, member, kind, of, unit, since, sentence)
#define LS_AGAIN(event, member, kind, of, unit, since, sentence)
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
    LS_EVENT_none,
} ls_event_shape;

typedef enum ls_event_member {
    LS_MEMBER_NONE,
#define LS_EVENT(event, file, word, sentence)
#define LS_MEMBER(event, member, kind, of, unit, since, sentence) LS_MEMBER_##member,
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
#undef LS_AGAIN
} ls_event_member;

/* A type of one byte for each name and kind: LS_TEXT(at) is a member that some event has as text.
 */
#define LS_TAG_INTEGER(member)        \
    typedef char ls_INTEGER_##member; \
    typedef char ls_NUMBER_##member;
#define LS_TAG_NUMBER(member) typedef char ls_NUMBER_##member;
#define LS_TAG_TEXT(member) typedef char ls_TEXT_##member;
#define LS_TAG_BOOL(member) typedef char ls_BOOL_##member;
#define LS_TAG_LIST(member) typedef char ls_LIST_##member;
#define LS_TAG_CALLS(member)
#define LS_TAG_OBJECT(member) typedef char ls_OBJECT_##member;
#define LS_TAG_MAP(member) typedef char ls_OBJECT_##member;
#define LS_TAG_ANY(member) LS_TAG_INTEGER(member) LS_TAG_TEXT(member) LS_TAG_BOOL(member)
#define LS_EVENT(event, file, word, sentence)
#define LS_MEMBER(event, member, kind, of, unit, since, sentence) LS_TAG_##kind(member)
#define LS_AGAIN LS_MEMBER
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
#undef LS_AGAIN

#define LS_TAGGED(kind, name) ((ls_event_member)(LS_MEMBER_##name * sizeof(ls_##kind##_##name)))
#define LS_INTEGER(name) LS_TAGGED(INTEGER, name)
#define LS_NUMBER(name) LS_TAGGED(NUMBER, name)
#define LS_BOOL(name) LS_TAGGED(BOOL, name)
#define LS_LIST(name) LS_TAGGED(LIST, name)
#define LS_TEXT_MEMBER(name) LS_TAGGED(TEXT, name)

/* ---- values ---------------------------------------------------------------------------------- */

typedef enum ls_event_type {
    LS_TYPE_END,  /* behind the last item of a list or object */
    LS_TYPE_MORE, /* the same; the members go on at `item`, which several calls share */
    LS_TYPE_KEY,  /* text; of the value behind it, in a map */
    LS_TYPE_NULL,
    LS_TYPE_FALSE,
    LS_TYPE_TRUE,
    LS_TYPE_NUMBER,
    LS_TYPE_TEXT,
    LS_TYPE_LIST,
    LS_TYPE_OBJECT, /* an event, too */
    LS_TYPE_MAP,
} ls_event_type;

/* An event, or a value in one. */
typedef struct ls_event {
    uint16_t type;
    uint16_t member; /* of an object; else LS_MEMBER_NONE */
    uint32_t count;  /* items of a list or object */
    union {
        double number;
        const char *text;
        const struct ls_event *item; /* [count] and LS_TYPE_END, or up to LS_TYPE_MORE */
    };
} ls_event;

/* All of them take NULL for what is absent. */
const ls_event *ls_event_first(const ls_event *list); /* of a list, object or map, or NULL */
const ls_event *ls_event_after(const ls_event *item);
const ls_event *ls_event_at(const ls_event *list, int index);
const ls_event *ls_event_last(const ls_event *list);
int ls_event_count(const ls_event *list);
/* The name of an object's or a map's item; "" of a list's. */
const char *ls_event_key(const ls_event *item);
/* Of an object, or of a map that has a key of that name. */
const ls_event *ls_event_get(const ls_event *object, ls_event_member member);
const ls_event *ls_event_find(const ls_event *map, const char *key);
/* Maps and objects whatever the order of their members. */
bool ls_event_equal(const ls_event *a, const ls_event *b);
bool ls_event_is(const ls_event *value, ls_event_type type);
double ls_event_to_number(const ls_event *value, double fallback);
/* Whole numbers up to 2^53, or INT_MAX; another is the fallback. */
int64_t ls_event_to_integer(const ls_event *value, int64_t fallback);
int ls_event_to_int(const ls_event *value, int fallback);
bool ls_event_to_bool(const ls_event *value, bool fallback);
const char *ls_event_to_text(const ls_event *value, const char *fallback);
double ls_event_number_at(const ls_event *list, int index); /* NaN: no number */
bool ls_event_holds(const ls_event *list, const char *text);
/* Whether a member that is text is the same in both, "" where it is absent. */
bool ls_event_same_of(const ls_event *a, const ls_event *b, ls_event_member member);

#define ls_event_each(entry, list) \
    for ((entry) = ls_event_first(list); (entry) != NULL; (entry) = ls_event_after(entry))
#define ls_event_is_number(value) ls_event_is((value), LS_TYPE_NUMBER)
#define ls_event_is_text(value) ls_event_is((value), LS_TYPE_TEXT)
#define ls_event_is_list(value) ls_event_is((value), LS_TYPE_LIST)

/* ---- members --------------------------------------------------------------------------------- */

#define ls_event_member(object, name) ls_event_get((object), LS_MEMBER_##name)
#define ls_event_has(object, name) (ls_event_member(object, name) != NULL)
#define ls_event_list(object, name) ls_event_get((object), LS_LIST(name))
#define ls_event_object(object, name) ls_event_get((object), LS_TAGGED(OBJECT, name))
#define ls_event_number(object, name, fallback) \
    ls_event_to_number(ls_event_get((object), LS_NUMBER(name)), (fallback))
#define ls_event_integer(object, name, fallback) \
    ls_event_to_integer(ls_event_get((object), LS_INTEGER(name)), (fallback))
#define ls_event_int(object, name, fallback) \
    ls_event_to_int(ls_event_get((object), LS_INTEGER(name)), (fallback))
#define ls_event_bool(object, name, fallback) \
    ls_event_to_bool(ls_event_get((object), LS_BOOL(name)), (fallback))
#define ls_event_same(a, b, name) ls_event_same_of((a), (b), LS_TEXT_MEMBER(name))
#define ls_event_text(object, name, fallback) \
    ls_event_to_text(ls_event_get((object), LS_TEXT_MEMBER(name)), (fallback))

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum ls_event_file {
    LS_EVENT_FILE_RANK,
    LS_EVENT_FILE_CALL, /* an entry of a step's calls */
    LS_EVENT_FILE_NCCL,
    LS_EVENT_FILE_SUMS,
    LS_EVENT_FILE_PART, /* an object in an event: none of a file's own */
} ls_event_file;

typedef enum ls_event_kind {
    LS_KIND_INTEGER,
    LS_KIND_NUMBER,
    LS_KIND_TEXT,
    LS_KIND_BOOL,
    LS_KIND_LIST,
    LS_KIND_OBJECT,
    LS_KIND_MAP,
    LS_KIND_CALLS,
    LS_KIND_ANY
} ls_event_kind;

typedef struct ls_event_row {
    ls_event_shape event;
    const char *name;
    ls_event_member member;
    ls_event_kind kind;
    ls_event_shape of;
} ls_event_row;

typedef struct ls_event_entry {
    ls_event_file file;
    const char *word;
} ls_event_entry;

extern const ls_event_entry ls_event_entries[LS_EVENT_none];
extern const ls_event_row ls_event_rows[];
extern const int ls_event_row_count;

/* ---- reading --------------------------------------------------------------------------------- */

/* Lines of events, kept in a store. Members that the table lacks are left out. Running out of
 * memory ends the program. */
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
/* A member of an object alone, kept until the store is freed; NULL: it has none of that kind. */
const ls_event *ls_event_read_member(ls_event_store *store, ls_event_shape shape,
                                     const cJSON *object, ls_event_member member);
/* A call of a step. `before`, a call of the store or NULL: what it has is the call's, too, where
 * the call does not have that member, and is shared with other calls like it. */
const ls_event *ls_event_read_call(ls_event_store *store, const ls_event *before,
                                   const cJSON *call);
/* The first value of another kind than its member's in what was read since: "has \"training\" of
 * forward that is not true or false"; "": none. Such a member is left out. */
const char *ls_event_wrong(const ls_event_store *store);

#endif

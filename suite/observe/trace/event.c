#include "event.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"

static const char *const member_name[] = {
    "",
#define LS_EVENT(event, file, word, sentence)
#define LS_MEMBER(event, member, kind, of, unit, since, sentence) #member,
#define LS_AGAIN(event, member, kind, of, unit, since, sentence)
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
#undef LS_AGAIN
};

const ls_event_entry ls_event_entries[] = {
#define LS_EVENT(event, file, word, sentence) {LS_EVENT_FILE_##file, word},
#define LS_MEMBER(event, member, kind, of, unit, since, sentence)
#define LS_AGAIN LS_MEMBER
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
};

const ls_event_row ls_event_rows[] = {
#define LS_EVENT(event, file, word, sentence)
#define LS_MEMBER(event, member, kind, of, unit, since, sentence) \
    {LS_EVENT_##event, #member, LS_MEMBER_##member, LS_KIND_##kind, LS_EVENT_##of},
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
#undef LS_AGAIN
};

const int ls_event_row_count = sizeof ls_event_rows / sizeof *ls_event_rows;

enum { MEMBERS_MOST = 64, BLOCK_BYTES = 1 << 16 };

/* ---- values ---------------------------------------------------------------------------------- */

bool ls_event_is(const ls_event *value, ls_event_type type)
{
    return value != NULL && value->type == type;
}

static bool has_items(const ls_event *value)
{
    return value != NULL && value->type >= LS_TYPE_LIST;
}

/* The value here, or where the members go on; NULL at the end. */
static const ls_event *value_at(const ls_event *item)
{
    item = item->type == LS_TYPE_MORE ? item->item : item;
    item += item->type == LS_TYPE_KEY;
    return item->type == LS_TYPE_END ? NULL : item;
}

const ls_event *ls_event_first(const ls_event *list)
{
    return has_items(list) ? value_at(list->item) : NULL;
}

const ls_event *ls_event_after(const ls_event *item)
{
    return value_at(item + 1);
}

const ls_event *ls_event_at(const ls_event *list, int index)
{
    bool has = ls_event_is_list(list) && index >= 0 && (uint32_t)index < list->count;
    return has ? &list->item[index] : NULL;
}

const ls_event *ls_event_last(const ls_event *list)
{
    return ls_event_at(list, ls_event_count(list) - 1);
}

int ls_event_count(const ls_event *list)
{
    return has_items(list) ? (int)list->count : 0;
}

const char *ls_event_key(const ls_event *item)
{
    if (item->member == LS_MEMBER_NONE) {
        return item[-1].type == LS_TYPE_KEY ? item[-1].text : "";
    }
    return member_name[item->member];
}

const ls_event *ls_event_get(const ls_event *object, ls_event_member member)
{
    if (!ls_event_is(object, LS_TYPE_OBJECT)) {
        return ls_event_is(object, LS_TYPE_MAP) ? ls_event_find(object, member_name[member]) : NULL;
    }
    const ls_event *item = object->item;
    while (item->member != member) {
        if (item->type == LS_TYPE_END) {
            return NULL;
        }
        item = item->type == LS_TYPE_MORE ? item->item : item + 1;
    }
    return item;
}

const ls_event *ls_event_find(const ls_event *map, const char *key)
{
    const ls_event *item = ls_event_first(map);
    while (item != NULL && strcmp(ls_event_key(item), key) != 0) {
        item = ls_event_after(item);
    }
    return item;
}

static bool has_equal(const ls_event *a, const ls_event *b)
{
    bool list = a->type == LS_TYPE_LIST;
    const ls_event *x = ls_event_first(a), *y = ls_event_first(b);
    bool equal = ls_event_count(a) == ls_event_count(b);
    for (; equal && x != NULL; x = ls_event_after(x)) {
        equal = ls_event_equal(x, list ? y : ls_event_find(b, ls_event_key(x)));
        y = list ? ls_event_after(y) : y;
    }
    return equal;
}

bool ls_event_equal(const ls_event *a, const ls_event *b)
{
    if (a == NULL || b == NULL || a->type != b->type) {
        return false;
    }
    return has_items(a)                ? has_equal(a, b)
           : a->type == LS_TYPE_NUMBER ? a->number == b->number
           : a->type == LS_TYPE_TEXT   ? strcmp(a->text, b->text) == 0
                                       : true;
}

double ls_event_to_number(const ls_event *value, double fallback)
{
    return ls_event_is_number(value) ? value->number : fallback;
}

int64_t ls_event_to_integer(const ls_event *value, int64_t fallback)
{
    int64_t whole = fallback, most = INT64_C(1) << 53;
    if (ls_event_is_number(value)) {
        (void)ls_json_whole(value->number, -most, most, &whole);
    }
    return whole;
}

int ls_event_to_int(const ls_event *value, int fallback)
{
    int64_t whole = ls_event_to_integer(value, fallback);
    return whole >= -INT_MAX && whole <= INT_MAX ? (int)whole : fallback;
}

bool ls_event_to_bool(const ls_event *value, bool fallback)
{
    return ls_event_is(value, LS_TYPE_TRUE) || (fallback && !ls_event_is(value, LS_TYPE_FALSE));
}

const char *ls_event_to_text(const ls_event *value, const char *fallback)
{
    return ls_event_is_text(value) ? value->text : fallback;
}

double ls_event_number_at(const ls_event *list, int index)
{
    return ls_event_to_number(ls_event_at(list, index), NAN);
}

bool ls_event_holds(const ls_event *list, const char *text)
{
    const ls_event *item;
    ls_event_each(item, list) {
        if (ls_event_is_text(item) && strcmp(item->text, text) == 0) {
            return true;
        }
    }
    return false;
}

bool ls_event_same_of(const ls_event *a, const ls_event *b, ls_event_member member)
{
    return strcmp(ls_event_to_text(ls_event_get(a, member), ""),
                  ls_event_to_text(ls_event_get(b, member), "")) == 0;
}

/* ---- rows ------------------------------------------------------------------------------------ */

ls_event_shape ls_event_shape_of(ls_event_file file, const char *word)
{
    int i = 0;
    while (i < LS_EVENT_none &&
           (ls_event_entries[i].file != file || strcmp(ls_event_entries[i].word, word) != 0)) {
        i++;
    }
    return (ls_event_shape)i;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory that is freed as a whole. */
typedef struct block {
    struct block *before;
    char bytes[];
} block;

typedef struct arena {
    block *last;
    size_t left; /* bytes of it */
    char *next;  /* the first of them */
} arena;

/* What the last call that is like `before` has of it. */
typedef struct shared {
    const ls_event *before, *rest;
} shared;

enum { SHARED = 64 };

struct ls_event_store {
    arena kept, once;
    shared shared[SHARED];           /* by the address of `before` */
    uint16_t row[LS_EVENT_none + 1]; /* the first of each event, in ls_event_rows */
    char wrong[120];
};

static void *take(arena *a, size_t bytes)
{
    bytes = (bytes + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
    if (bytes > a->left) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block *made = malloc(sizeof *made + room);
        LS_MEMORY(made != NULL);
        made->before = a->last;
        *a = (arena){made, room, made->bytes};
    }
    void *taken = a->next;
    a->next += bytes;
    a->left -= bytes;
    return taken;
}

static void release(arena *a)
{
    while (a->last != NULL) {
        block *before = a->last->before;
        free(a->last);
        a->last = before;
    }
    *a = (arena){0};
}

static const char *copy_text(arena *a, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(take(a, bytes), text, bytes);
}

ls_event_store *ls_event_store_make(void)
{
    ls_event_store *store = ls_list_make(1, sizeof *store);
    for (int i = ls_event_row_count; i-- > 0;) {
        store->row[ls_event_rows[i].event] = (uint16_t)i;
    }
    return store;
}

void ls_event_store_free(ls_event_store *store)
{
    if (store != NULL) {
        release(&store->kept);
        release(&store->once);
        free(store);
    }
}

const char *ls_event_wrong(const ls_event_store *store)
{
    return store->wrong;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The row of a member, by its name or, where that is NULL, its number; each call has those of any
 * call. NULL: the table lacks it. */
static const ls_event_row *row_of(const ls_event_store *store, ls_event_shape shape,
                                  const char *name, ls_event_member member)
{
    for (int i = store->row[shape]; i < ls_event_row_count && ls_event_rows[i].event == shape;
         i++) {
        const ls_event_row *r = &ls_event_rows[i];
        if (name != NULL ? strcmp(r->name, name) == 0 : r->member == member) {
            return r;
        }
    }
    bool call = shape == LS_EVENT_none || ls_event_entries[shape].file == LS_EVENT_FILE_CALL;
    return call && shape != LS_EVENT_any_call ? row_of(store, LS_EVENT_any_call, name, member)
                                              : NULL;
}

/* A value of no shape: objects in it are maps. */
static ls_event read_value(arena *a, const cJSON *value)
{
    ls_event made = {.type = LS_TYPE_NULL};
    if (cJSON_IsBool(value)) {
        made.type = cJSON_IsTrue(value) ? LS_TYPE_TRUE : LS_TYPE_FALSE;
    } else if (cJSON_IsNumber(value)) {
        made.type = LS_TYPE_NUMBER;
        made.number = value->valuedouble;
    } else if (cJSON_IsString(value)) {
        made.type = LS_TYPE_TEXT;
        made.text = copy_text(a, value->valuestring);
    } else if (cJSON_IsArray(value) || cJSON_IsObject(value)) {
        bool map = cJSON_IsObject(value);
        made.type = map ? LS_TYPE_MAP : LS_TYPE_LIST;
        made.count = (uint32_t)cJSON_GetArraySize(value);
        ls_event *item = take(a, ((map ? 2 : 1) * (size_t)made.count + 1) * sizeof *item);
        made.item = item;
        for (const cJSON *child = value->child; child != NULL; child = child->next) {
            if (map) {
                *item++ = (ls_event){.type = LS_TYPE_KEY, .text = copy_text(a, child->string)};
            }
            *item++ = read_value(a, child);
        }
        *item = (ls_event){.type = LS_TYPE_END};
    }
    return made;
}

static cJSON_bool is_whole(const cJSON *value)
{
    int64_t most = INT64_C(1) << 53, whole;
    return cJSON_IsNumber(value) && ls_json_whole(value->valuedouble, -most, most, &whole);
}

static const struct {
    cJSON_bool (*is)(const cJSON *value); /* NULL: any is */
    const char *word;
} kinds[] = {[LS_KIND_INTEGER] = {is_whole, "a whole number"},
             [LS_KIND_NUMBER] = {cJSON_IsNumber, "a number"},
             [LS_KIND_TEXT] = {cJSON_IsString, "a text"},
             [LS_KIND_BOOL] = {cJSON_IsBool, "true or false"},
             [LS_KIND_LIST] = {cJSON_IsArray, "a list"},
             [LS_KIND_OBJECT] = {cJSON_IsObject, "an object"},
             [LS_KIND_MAP] = {cJSON_IsObject, "an object"},
             [LS_KIND_CALLS] = {cJSON_IsArray, "a list"},
             [LS_KIND_ANY] = {NULL, ""}};

static bool fits(const ls_event_row *r, const cJSON *value)
{
    return cJSON_IsNull(value) || kinds[r->kind].is == NULL || kinds[r->kind].is(value);
}

static void note_wrong(ls_event_store *store, const ls_event_row *r)
{
    if (store->wrong[0] == '\0') {
        ls_text_put(store->wrong, sizeof store->wrong, "has \"%s\" of %s that is not %s", r->name,
                    ls_event_entries[r->event].word, kinds[r->kind].word);
    }
}

static ls_event read_object(ls_event_store *store, arena *a, ls_event_shape shape,
                            const cJSON *object);

/* A list of parts, or of calls; an item that is no object is null. */
static ls_event read_parts(ls_event_store *store, arena *a, ls_event_shape of, const cJSON *list)
{
    ls_event made = {.type = LS_TYPE_LIST, .count = (uint32_t)cJSON_GetArraySize(list)};
    ls_event *item = take(a, ((size_t)made.count + 1) * sizeof *item);
    made.item = item;
    for (const cJSON *child = list->child; child != NULL; child = child->next) {
        ls_event_shape shape = of;
        if (of == LS_EVENT_any_call) {
            shape = ls_event_shape_of(LS_EVENT_FILE_CALL, ls_json_string(child, "call", ""));
        }
        *item++ = cJSON_IsObject(child) ? read_object(store, a, shape, child)
                                        : (ls_event){.type = LS_TYPE_NULL};
    }
    *item = (ls_event){.type = LS_TYPE_END};
    return made;
}

static ls_event read_member(ls_event_store *store, arena *a, const ls_event_row *r,
                            const cJSON *value)
{
    ls_event made;
    if (cJSON_IsNull(value)) {
        made = (ls_event){.type = LS_TYPE_NULL};
    } else if (r->kind == LS_KIND_OBJECT) {
        made = read_object(store, a, r->of, value);
    } else if (r->kind == LS_KIND_LIST && r->of != LS_EVENT_none) {
        made = read_parts(store, a, r->of, value);
    } else {
        made = read_value(a, value);
    }
    made.member = r->member;
    return made;
}

static bool is_repeated(const ls_event *list, int count, ls_event_member member)
{
    for (int i = 0; i < count; i++) {
        if (list[i].member == member) {
            return true;
        }
    }
    return false;
}

/* The members of an object that the table has, in list[MEMBERS_MOST]; of several of one name the
 * first. */
static int read_members(ls_event_store *store, arena *a, ls_event_shape shape, const cJSON *object,
                        ls_event *list)
{
    int count = 0;
    for (const cJSON *child = object->child; child != NULL && count < MEMBERS_MOST;
         child = child->next) {
        const ls_event_row *r = row_of(store, shape, child->string, LS_MEMBER_NONE);
        if (r == NULL || is_repeated(list, count, r->member)) {
            continue;
        }
        if (!fits(r, child)) {
            note_wrong(store, r);
        } else if (r->kind != LS_KIND_CALLS) {
            list[count++] = read_member(store, a, r, child);
        }
    }
    return count;
}

static const ls_event *put_items(arena *a, const ls_event *list, int count, ls_event end)
{
    ls_event *item = take(a, ((size_t)count + 1) * sizeof *item);
    if (count > 0) {
        memcpy(item, list, (size_t)count * sizeof *item);
    }
    item[count] = end;
    return item;
}

static ls_event put_object(arena *a, const ls_event *list, int count)
{
    return (ls_event){.type = LS_TYPE_OBJECT,
                      .count = (uint32_t)count,
                      .item = put_items(a, list, count, (ls_event){.type = LS_TYPE_END})};
}

static ls_event read_object(ls_event_store *store, arena *a, ls_event_shape shape,
                            const cJSON *object)
{
    ls_event list[MEMBERS_MOST];
    return put_object(a, list, read_members(store, a, shape, object, list));
}

static const ls_event *put(arena *a, ls_event value)
{
    ls_event *made = take(a, sizeof *made);
    *made = value;
    return made;
}

const ls_event *ls_event_read(ls_event_store *store, ls_event_shape shape, const cJSON *object)
{
    return put(&store->kept, read_object(store, &store->kept, shape, object));
}

const ls_event *ls_event_read_once(ls_event_store *store, ls_event_shape shape, const cJSON *object)
{
    release(&store->once);
    return put(&store->once, read_object(store, &store->once, shape, object));
}

const ls_event *ls_event_read_member(ls_event_store *store, ls_event_shape shape,
                                     const cJSON *object, ls_event_member member)
{
    const ls_event_row *r = row_of(store, shape, NULL, member);
    const cJSON *value = r == NULL ? NULL : cJSON_GetObjectItemCaseSensitive(object, r->name);
    bool has = value != NULL && fits(r, value);
    return has ? put(&store->kept, read_member(store, &store->kept, r, value)) : NULL;
}

static bool are_same(const ls_event *a, const ls_event *b, int count)
{
    int i = 0;
    while (i < count && a[i].type != LS_TYPE_END && memcmp(&a[i], &b[i], sizeof *a) == 0) {
        i++;
    }
    return i == count && a[i].type == LS_TYPE_END;
}

const ls_event *ls_event_read_call(ls_event_store *store, const ls_event *before, const cJSON *call)
{
    ls_event own[MEMBERS_MOST], rest[MEMBERS_MOST];
    if (before != NULL && call->child == NULL) {
        return before;
    }
    arena *a = &store->kept;
    const char *word = ls_json_string(call, "call", ls_event_text(before, call, ""));
    ls_event_shape shape = ls_event_shape_of(LS_EVENT_FILE_CALL, word);
    int count = cJSON_IsObject(call) ? read_members(store, a, shape, call, own) : 0, others = 0;
    for (const ls_event *item = ls_event_first(before); item != NULL; item = ls_event_after(item)) {
        if (count + others < MEMBERS_MOST && !is_repeated(own, count, item->member)) {
            rest[others++] = *item;
        }
    }
    shared *last = &store->shared[(uintptr_t)before / sizeof *before % SHARED];
    if (last->rest == NULL || last->before != before || !are_same(last->rest, rest, others)) {
        *last = (shared){before, put_items(a, rest, others, (ls_event){.type = LS_TYPE_END})};
    }
    ls_event more = {.type = LS_TYPE_MORE, .item = last->rest};
    return put(a, (ls_event){.type = LS_TYPE_OBJECT,
                             .count = (uint32_t)(count + others),
                             .item = put_items(a, own, count, more)});
}

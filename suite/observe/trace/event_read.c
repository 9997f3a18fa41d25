#include "event_read.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"

/* ---- the table ------------------------------------------------------------------------------- */

typedef enum kind { INTEGER, NUMBER, TEXT, BOOL, LIST, OBJECT, MAP, CALLS, ANY } kind;

static const struct event {
    ls_event_file file;
    const char *word;
} events[] = {
#define LS_EVENT(event, file, word, sentence) {LS_EVENT_FILE_##file, word},
#define LS_MEMBER(event, member, kind, of, unit, since, sentence)
#define LS_AGAIN(event, member, kind, of, unit, since, sentence)
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
};

typedef struct row {
    ls_event_shape event;
    const char *name;
    ls_event_member member;
    kind kind;
    ls_event_shape of;
} row;

static const row rows[] = {
#define LS_EVENT(event, file, word, sentence)
#define LS_MEMBER(event, member, kind, of, unit, since, sentence) \
    {LS_EVENT_##event, #member, LS_MEMBER_##member, kind, LS_EVENT_##of},
#undef LS_AGAIN
#define LS_AGAIN LS_MEMBER
#include "suite/observe/events.def"
#undef LS_EVENT
#undef LS_MEMBER
#undef LS_AGAIN
};

enum { ROWS = sizeof rows / sizeof *rows, PLACES = 2048, MEMBERS_MOST = 64, BLOCK_BYTES = 1 << 16 };

ls_event_shape ls_event_shape_of(ls_event_file file, const char *word)
{
    for (int i = 0; i < LS_EVENT_none; i++) {
        if (events[i].file == file && strcmp(events[i].word, word) == 0) {
            return (ls_event_shape)i;
        }
    }
    return LS_EVENT_none;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Memory that is freed as a whole. */
typedef struct block {
    struct block *before;
    size_t room;
    char bytes[];
} block;

typedef struct arena {
    block *last;
    size_t left; /* bytes of it */
    char *next;  /* the first of them */
} arena;

struct ls_event_store {
    arena kept, once;
    uint16_t place[PLACES]; /* of rows, by their hash: index + 1; 0: free */
    /* Objects whose members calls share, found by their hash: open addressing, NULL where free. */
    ls_event **table;
    size_t capacity, count; /* the capacity is a power of two */
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
        made->room = room;
        a->last = made;
        a->left = room;
        a->next = made->bytes;
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

/* Empties it, and keeps a block of the usual size. */
static void reset(arena *a)
{
    if (a->last != NULL && (a->last->before != NULL || a->last->room > BLOCK_BYTES)) {
        release(a);
    } else if (a->last != NULL) {
        a->left = a->last->room;
        a->next = a->last->bytes;
    }
}

static const char *copy_text(arena *a, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(take(a, bytes), text, bytes);
}

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ byte[i]) * UINT64_C(1099511628211);
    }
    return hash;
}

static const uint64_t hash_start = UINT64_C(14695981039346656037);

static uint16_t *find_row(ls_event_store *store, ls_event_shape event, const char *name)
{
    size_t place = (size_t)hash_bytes(hash_start + event, name, strlen(name)) % PLACES;
    for (uint16_t at; (at = store->place[place]) != 0; place = (place + 1) % PLACES) {
        if (rows[at - 1].event == event && strcmp(rows[at - 1].name, name) == 0) {
            break;
        }
    }
    return &store->place[place];
}

ls_event_store *ls_event_store_make(void)
{
    _Static_assert(ROWS < PLACES / 2, "half of the places are free");
    ls_event_store *store = ls_list_make(1, sizeof *store);
    for (int i = 0; i < ROWS; i++) {
        *find_row(store, rows[i].event, rows[i].name) = (uint16_t)(i + 1);
    }
    return store;
}

void ls_event_store_free(ls_event_store *store)
{
    if (store != NULL) {
        release(&store->kept);
        release(&store->once);
        free(store->table);
        free(store);
    }
}

const char *ls_event_wrong(const ls_event_store *store)
{
    return store->wrong;
}

/* ---- values ---------------------------------------------------------------------------------- */

static int count_of(const cJSON *value)
{
    int count = 0;
    for (const cJSON *item = value->child; item != NULL; item = item->next) {
        count++;
    }
    return count;
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
        made.count = (uint32_t)count_of(value);
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

static bool fits(const row *r, const cJSON *value)
{
    int64_t most = INT64_C(1) << 53, whole;
    switch (r->kind) {
    case INTEGER:
        return cJSON_IsNumber(value) && ls_json_whole(value->valuedouble, -most, most, &whole);
    case NUMBER:
        return cJSON_IsNumber(value);
    case TEXT:
        return cJSON_IsString(value);
    case BOOL:
        return cJSON_IsBool(value);
    case LIST:
    case CALLS:
        return cJSON_IsArray(value);
    case OBJECT:
    case MAP:
        return cJSON_IsObject(value);
    case ANY:
        break;
    }
    return true;
}

static void note_wrong(ls_event_store *store, const row *r)
{
    static const char *const word[] = {"a whole number", "a number", "a text",
                                       "true or false",  "a list",   "an object",
                                       "an object",      "a list",   ""};
    if (store->wrong[0] == '\0') {
        ls_text_put(store->wrong, sizeof store->wrong, "has \"%s\" of %s that is not %s", r->name,
                    events[r->event].word, word[r->kind]);
    }
}

static ls_event read_object(ls_event_store *store, arena *a, ls_event_shape shape,
                            const cJSON *object);

/* A list of parts, or of calls; an item that is no object is null. */
static ls_event read_parts(ls_event_store *store, arena *a, ls_event_shape of, const cJSON *list)
{
    ls_event made = {.type = LS_TYPE_LIST, .count = (uint32_t)count_of(list)};
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

static ls_event read_member(ls_event_store *store, arena *a, const row *r, const cJSON *value)
{
    ls_event made;
    if (cJSON_IsNull(value)) {
        made = (ls_event){.type = LS_TYPE_NULL};
    } else if (r->kind == OBJECT) {
        made = read_object(store, a, r->of, value);
    } else if (r->kind == LIST && r->of != LS_EVENT_none) {
        made = read_parts(store, a, r->of, value);
    } else {
        made = read_value(a, value);
    }
    made.member = r->member;
    return made;
}

/* The row of a member; each call has those of any call. NULL: the table lacks it. */
static const row *row_of(ls_event_store *store, ls_event_shape shape, const char *name)
{
    uint16_t at = *find_row(store, shape, name);
    bool call = shape == LS_EVENT_none || events[shape].file == LS_EVENT_FILE_CALL;
    at = at == 0 && call ? *find_row(store, LS_EVENT_any_call, name) : at;
    return at == 0 ? NULL : &rows[at - 1];
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
        const row *r = row_of(store, shape, child->string);
        if (r == NULL || is_repeated(list, count, r->member)) {
            continue;
        }
        if (!cJSON_IsNull(child) && !fits(r, child)) {
            note_wrong(store, r);
        } else if (r->kind != CALLS) {
            list[count++] = read_member(store, a, r, child);
        }
    }
    return count;
}

static ls_event put_object(arena *a, const ls_event *list, int count, const ls_event *more)
{
    ls_event *item = take(a, ((size_t)count + 1) * sizeof *item);
    if (count > 0) {
        memcpy(item, list, (size_t)count * sizeof *item);
    }
    item[count] = more == NULL ? (ls_event){.type = LS_TYPE_END}
                               : (ls_event){.type = LS_TYPE_MORE, .item = more};
    return (ls_event){.type = LS_TYPE_OBJECT, .count = (uint32_t)count, .item = item};
}

static ls_event read_object(ls_event_store *store, arena *a, ls_event_shape shape,
                            const cJSON *object)
{
    ls_event list[MEMBERS_MOST];
    return put_object(a, list, read_members(store, a, shape, object, list), NULL);
}

const ls_event *ls_event_read(ls_event_store *store, ls_event_shape shape, const cJSON *object)
{
    ls_event *made = take(&store->kept, sizeof *made);
    *made = read_object(store, &store->kept, shape, object);
    return made;
}

const ls_event *ls_event_read_once(ls_event_store *store, ls_event_shape shape, const cJSON *object)
{
    reset(&store->once);
    ls_event *made = take(&store->once, sizeof *made);
    *made = read_object(store, &store->once, shape, object);
    return made;
}

/* ---- what calls share ------------------------------------------------------------------------ */

static ls_event copy_value(arena *a, const ls_event *value)
{
    ls_event made = *value;
    if (value->type == LS_TYPE_TEXT || value->type == LS_TYPE_KEY) {
        made.text = copy_text(a, value->text);
    } else if (value->type >= LS_TYPE_LIST) {
        size_t cells = (value->type == LS_TYPE_MAP ? 2 : 1) * (size_t)value->count + 1;
        ls_event *item = take(a, cells * sizeof *item);
        for (size_t i = 0; i < cells; i++) {
            item[i] = copy_value(a, &value->item[i]);
        }
        made.item = item;
    }
    return made;
}

const ls_event *ls_event_keep(ls_event_store *store, const ls_event *value)
{
    if (value == NULL) {
        return NULL;
    }
    ls_event *made = take(&store->kept, sizeof *made);
    *made = copy_value(&store->kept, value);
    return made;
}

static bool is_digest(const char *text)
{
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

/* Whether calls that are otherwise the same differ in it from step to step: what is measured,
 * counted or a digest. (Where that is wrong, memory is lost and nothing else.) */
static bool is_own(const ls_event *member)
{
    if (member->type == LS_TYPE_NUMBER) {
        return !(fabs(member->number) < 64 && member->number == floor(member->number));
    }
    if (member->type == LS_TYPE_TEXT) {
        return is_digest(member->text);
    }
    const ls_event *item = ls_event_is_list(member) ? ls_event_first(member) : NULL;
    while (item != NULL && !is_own(item)) {
        item = ls_event_after(item);
    }
    return item != NULL;
}

static uint64_t hash_value(uint64_t hash, const ls_event *value)
{
    hash = hash_bytes(hash, value, offsetof(ls_event, number));
    if (value->type == LS_TYPE_NUMBER) {
        return hash_bytes(hash, &value->number, sizeof value->number);
    }
    if (value->type == LS_TYPE_TEXT) {
        return hash_bytes(hash, value->text, strlen(value->text));
    }
    for (const ls_event *item = ls_event_first(value); item != NULL; item = ls_event_after(item)) {
        hash = hash_value(hash, item);
    }
    return hash;
}

static bool is_same(const ls_event *a, const ls_event *b)
{
    return a->member == b->member && ls_event_equal(a, b);
}

/* Whether the object has just these members, in their order. */
static bool shares(const ls_event *object, const ls_event *list, int count)
{
    bool same = (int)object->count == count;
    for (int i = 0; same && i < count; i++) {
        same = is_same(&object->item[i], &list[i]);
    }
    return same;
}

/* The place of the object that has these members, or the free one where it belongs. */
static ls_event **find_place(const ls_event_store *store, const ls_event *list, int count)
{
    uint64_t hash = hash_start;
    for (int i = 0; i < count; i++) {
        hash = hash_value(hash, &list[i]);
    }
    size_t place = (size_t)(hash ^ hash >> 32) & (store->capacity - 1);
    while (store->table[place] != NULL && !shares(store->table[place], list, count)) {
        place = (place + 1) & (store->capacity - 1);
    }
    return &store->table[place];
}

/* At most half of the places are taken. */
static void grow(ls_event_store *store)
{
    size_t before = store->capacity;
    ls_event **old = store->table;
    store->capacity = before == 0 ? 64 : 2 * before;
    store->table = ls_list_make(store->capacity, sizeof *store->table);
    for (size_t i = 0; i < before; i++) {
        if (old[i] != NULL) {
            *find_place(store, old[i]->item, (int)old[i]->count) = old[i];
        }
    }
    free(old);
}

static ls_event *put_copy(ls_event_store *store, ls_event *list, int count, const ls_event *more)
{
    arena *a = &store->kept;
    for (int i = 0; i < count; i++) {
        list[i] = copy_value(a, &list[i]);
    }
    ls_event *made = take(a, sizeof *made);
    *made = put_object(a, list, count, more);
    return made;
}

static const ls_event *find_shared(ls_event_store *store, ls_event *list, int count)
{
    if (2 * (store->count + 1) > store->capacity) {
        grow(store);
    }
    ls_event **place = find_place(store, list, count);
    if (*place == NULL) {
        *place = put_copy(store, list, count, NULL);
        store->count++;
    }
    return *place;
}

/* What the call has, and of `before` what it has not; returns how many. */
static int merge(const ls_event *before, ls_event *list, int count)
{
    for (const ls_event *item = ls_event_first(before); item != NULL; item = ls_event_after(item)) {
        if (count < MEMBERS_MOST && !is_repeated(list, count, item->member)) {
            list[count++] = *item;
        }
    }
    return count;
}

static int by_member(const void *a, const void *b)
{
    const ls_event *x = a, *y = b;
    return x->member - y->member;
}

const ls_event *ls_event_read_call(ls_event_store *store, const ls_event *before, const cJSON *call)
{
    ls_event list[MEMBERS_MOST], own[MEMBERS_MOST];
    if (before != NULL && call->child == NULL) {
        return before;
    }
    const char *word = ls_json_string(call, "call", ls_event_text(before, call, ""));
    ls_event_shape shape = ls_event_shape_of(LS_EVENT_FILE_CALL, word);
    reset(&store->once);
    int count = cJSON_IsObject(call) ? read_members(store, &store->once, shape, call, list) : 0;
    count = merge(before, list, count);
    qsort(list, (size_t)count, sizeof *list, by_member);
    int shared = 0, owned = 0;
    for (int i = 0; i < count; i++) {
        if (is_own(&list[i])) {
            own[owned++] = list[i];
        } else {
            list[shared++] = list[i];
        }
    }
    const ls_event *object = find_shared(store, list, shared);
    return owned == 0 ? object : put_copy(store, own, owned, object->item);
}

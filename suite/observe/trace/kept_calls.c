#include "kept_calls.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/core/list.h"

enum { BLOCK_BYTES = 1 << 16, NAMES = 256 };

/* Memory that is freed as a whole. */
typedef struct block {
    struct block *before;
    char bytes[];
} block;

struct ls_kept_calls {
    block *last;
    size_t left; /* bytes of it */
    char *next;  /* the first of them */
    const char *name[NAMES];
    int name_count;
    /* Objects whose members calls share, found by their hash: open addressing, NULL where free. */
    cJSON **table;
    size_t capacity, count; /* the capacity is a power of two */
};

/* ---- memory ---------------------------------------------------------------------------------- */

static void *take(ls_kept_calls *kept, size_t bytes)
{
    bytes = (bytes + sizeof(void *) - 1) / sizeof(void *) * sizeof(void *);
    if (bytes > kept->left) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block *made = malloc(sizeof *made + room);
        LS_MEMORY(made != NULL);
        made->before = kept->last;
        kept->last = made;
        kept->left = room;
        kept->next = made->bytes;
    }
    void *taken = kept->next;
    kept->next += bytes;
    kept->left -= bytes;
    return taken;
}

static char *copy_text(ls_kept_calls *kept, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(take(kept, bytes), text, bytes);
}

/* Names of members are few. */
static const char *keep_name(ls_kept_calls *kept, const char *name)
{
    for (int i = 0; i < kept->name_count; i++) {
        if (strcmp(kept->name[i], name) == 0) {
            return kept->name[i];
        }
    }
    const char *copy = copy_text(kept, name);
    if (kept->name_count < NAMES) {
        kept->name[kept->name_count++] = copy;
    }
    return copy;
}

/* A value with all that is in it, and its name. */
static cJSON *copy(ls_kept_calls *kept, const cJSON *item)
{
    cJSON *made = take(kept, sizeof *made);
    *made = (cJSON){
        .type = (item->type & 0xff) | cJSON_IsReference | cJSON_StringIsConst,
        .valueint = item->valueint,
        .valuedouble = item->valuedouble,
    };
    if (item->string != NULL) {
        made->string = (char *)(uintptr_t)keep_name(kept, item->string);
    }
    if (item->valuestring != NULL) {
        made->valuestring = copy_text(kept, item->valuestring);
    }
    cJSON **end = &made->child;
    const cJSON *child;
    cJSON_ArrayForEach(child, item)
    {
        *end = copy(kept, child);
        end = &(*end)->next;
    }
    return made;
}

/* ---- what calls share ------------------------------------------------------------------------ */

static bool is_digest(const char *text)
{
    return strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16;
}

/* Whether calls that are otherwise alike differ in it from step to step: what is measured, counted
 * or a digest. (Where that is wrong, memory is lost and nothing else.) */
static bool is_own(const cJSON *member)
{
    if (cJSON_IsNumber(member)) {
        double value = member->valuedouble;
        return !(fabs(value) < 64 && value == floor(value));
    }
    if (cJSON_IsString(member)) {
        return is_digest(member->valuestring);
    }
    const cJSON *child = cJSON_IsArray(member) ? member->child : NULL;
    while (child != NULL && !is_own(child)) {
        child = child->next;
    }
    return child != NULL;
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

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return text == NULL ? hash_bytes(hash, "", 1) : hash_bytes(hash, text, strlen(text) + 1);
}

static uint64_t hash_item(uint64_t hash, const cJSON *item)
{
    int type = item->type & 0xff;
    hash = hash_text(hash_bytes(hash, &type, sizeof type), item->string);
    hash = hash_text(hash_bytes(hash, &item->valuedouble, sizeof item->valuedouble),
                     item->valuestring);
    const cJSON *child;
    cJSON_ArrayForEach(child, item)
    {
        hash = hash_item(hash, child);
    }
    return hash;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bool same_item(const cJSON *a, const cJSON *b)
{
    if ((a->type & 0xff) != (b->type & 0xff) || a->valuedouble != b->valuedouble ||
        !same_text(a->string, b->string) || !same_text(a->valuestring, b->valuestring)) {
        return false;
    }
    const cJSON *x = a->child, *y = b->child;
    for (; x != NULL && y != NULL; x = x->next, y = y->next) {
        if (!same_item(x, y)) {
            return false;
        }
    }
    return x == y; /* both NULL */
}

/* Whether the object has just the call's members that are not its own. */
static bool shares(const cJSON *object, const cJSON *call)
{
    const cJSON *member, *there = object->child;
    cJSON_ArrayForEach(member, call)
    {
        if (is_own(member)) {
            continue;
        }
        if (there == NULL || !same_item(there, member)) {
            return false;
        }
        there = there->next;
    }
    return there == NULL;
}

/* Of the members that are not the call's own. */
static uint64_t hash_shared(const cJSON *call)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    const cJSON *member;
    cJSON_ArrayForEach(member, call)
    {
        hash = is_own(member) ? hash : hash_item(hash, member);
    }
    return hash;
}

/* The place of the object that the call shares, or the free one where it belongs. */
static cJSON **find_place(const ls_kept_calls *kept, const cJSON *call)
{
    size_t place = (size_t)hash_shared(call) & (kept->capacity - 1);
    while (kept->table[place] != NULL && !shares(kept->table[place], call)) {
        place = (place + 1) & (kept->capacity - 1);
    }
    return &kept->table[place];
}

/* At most half of the places are taken. */
static void grow(ls_kept_calls *kept)
{
    size_t before = kept->capacity;
    cJSON **old = kept->table;
    kept->capacity = before == 0 ? 64 : 2 * before;
    kept->table = ls_list_make(kept->capacity, sizeof *kept->table);
    for (size_t i = 0; i < before; i++) {
        if (old[i] != NULL) {
            *find_place(kept, old[i]) = old[i];
        }
    }
    free(old);
}

static const cJSON *find_shared(ls_kept_calls *kept, const cJSON *call)
{
    if (2 * (kept->count + 1) > kept->capacity) {
        grow(kept);
    }
    cJSON **place = find_place(kept, call);
    if (*place == NULL) {
        cJSON *object = take(kept, sizeof *object);
        *object = (cJSON){.type = cJSON_Object | cJSON_IsReference};
        cJSON **end = &object->child;
        const cJSON *member;
        cJSON_ArrayForEach(member, call)
        {
            if (!is_own(member)) {
                *end = copy(kept, member);
                end = &(*end)->next;
            }
        }
        *place = object;
        kept->count++;
    }
    return *place;
}

/* ---- the store ------------------------------------------------------------------------------- */

ls_kept_calls *ls_kept_calls_make(void)
{
    return ls_list_make(1, sizeof(ls_kept_calls));
}

void ls_kept_calls_free(ls_kept_calls *kept)
{
    if (kept == NULL) {
        return;
    }
    while (kept->last != NULL) {
        block *before = kept->last->before;
        free(kept->last);
        kept->last = before;
    }
    free(kept->table);
    free(kept);
}

static const cJSON *add(ls_kept_calls *kept, const cJSON *call)
{
    const cJSON *object = find_shared(kept, call), *member;
    cJSON *own = NULL, **end = &own;
    cJSON_ArrayForEach(member, call)
    {
        if (is_own(member)) {
            *end = copy(kept, member);
            end = &(*end)->next;
        }
    }
    if (own == NULL) {
        return object;
    }
    *end = object->child; /* the list goes on in the shared one */
    cJSON *made = take(kept, sizeof *made);
    *made = (cJSON){.type = cJSON_Object | cJSON_IsReference, .child = own};
    return made;
}

/* Whether a member of that name stands before this one: of several the first counts. */
static bool is_repeated(const cJSON *object, const cJSON *member)
{
    return cJSON_GetObjectItemCaseSensitive(object, member->string) != member;
}

const cJSON *ls_kept_calls_add(ls_kept_calls *kept, const cJSON *before, const cJSON *call)
{
    if (!cJSON_IsObject(call)) {
        return copy(kept, call);
    }
    int count = 0, most = cJSON_GetArraySize(before) + cJSON_GetArraySize(call);
    cJSON *list = ls_list_make((size_t)most, sizeof *list);
    const cJSON *member;
    cJSON_ArrayForEach(member, before)
    {
        const cJSON *changed = cJSON_GetObjectItemCaseSensitive(call, member->string);
        list[count++] = changed != NULL ? *changed : *member;
    }
    cJSON_ArrayForEach(member, call)
    {
        if (cJSON_GetObjectItemCaseSensitive(before, member->string) == NULL &&
            !is_repeated(call, member)) {
            list[count++] = *member;
        }
    }
    for (int i = 0; i < count; i++) {
        list[i].next = i + 1 < count ? &list[i + 1] : NULL;
    }
    cJSON whole = {.type = cJSON_Object, .child = count > 0 ? list : NULL};
    const cJSON *made = add(kept, &whole);
    free(list);
    return made;
}

#include "event.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernels/core/json.h"

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

bool ls_event_is(const ls_event *value, ls_event_type type)
{
    return value != NULL && value->type == type;
}

static bool has_items(const ls_event *value)
{
    return value != NULL && value->type >= LS_TYPE_LIST;
}

/* The value here, or where the list goes on; NULL at its end. */
static const ls_event *value_at(const ls_event *item)
{
    while (item->type == LS_TYPE_MORE) {
        item = item->item;
    }
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
    int count = 0;
    if (ls_event_is_list(list)) {
        return (int)list->count;
    }
    for (const ls_event *item = ls_event_first(list); item != NULL; item = ls_event_after(item)) {
        count++;
    }
    return count;
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

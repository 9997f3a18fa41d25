#include "contents.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/list.h"

static int by_key(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Sorts, keeps each key once and of the keys those that are 0 modulo the modulus. */
static void settle(ls_contents *c)
{
    int kept = 0;
    if (c->count > 0) {
        qsort(c->key, (size_t)c->count, sizeof *c->key, by_key);
    }
    for (int i = 0; i < c->count; i++) {
        bool again = kept > 0 && c->key[kept - 1] == c->key[i];
        c->repeated += again;
        if (!again && c->key[i] % c->modulus == 0) {
            c->key[kept++] = c->key[i];
        }
    }
    c->count = kept;
}

void ls_contents_add(ls_contents *c, const ls_event *data)
{
    int64_t modulus = ls_event_integer(data, key_modulus, 1), key;
    const ls_event *entry;
    c->modulus = c->modulus < 1 ? 1 : c->modulus;
    c->modulus = modulus > c->modulus ? modulus : c->modulus;
    ls_event_each(entry, ls_event_list(data, keys)) {
        if (ls_event_is_number(entry) && ls_json_whole(entry->number, 0, INT64_C(1) << 53, &key)) {
            c->key = ls_list_grow(c->key, c->count, &c->capacity, sizeof *c->key);
            c->key[c->count++] = key;
        }
    }
    settle(c);
}

int ls_contents_common(const ls_contents *a, const ls_contents *b, int *of)
{
    int common = 0;
    *of = 0;
    for (int i = 0, j = 0; i < a->count; i++) {
        if (b->modulus > 1 && a->key[i] % b->modulus != 0) {
            continue;
        }
        ++*of;
        while (j < b->count && b->key[j] < a->key[i]) {
            j++;
        }
        common += j < b->count && b->key[j] == a->key[i];
    }
    return common;
}

void ls_contents_free(ls_contents *c)
{
    free(c->key);
    *c = (ls_contents){0};
}

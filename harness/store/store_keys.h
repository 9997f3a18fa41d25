/* The store's keys and values: a hash table that holds copies. Used by the server only. */
#ifndef LS_STORE_KEYS_H
#define LS_STORE_KEYS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ls_store_entry {
    struct ls_store_entry *next;
    char *key;
    void *value; /* followed by a 0 that `bytes` does not count */
    size_t bytes;
} ls_store_entry;

enum { LS_STORE_KEYS_BUCKETS = 1024 };

typedef struct ls_store_keys {
    ls_store_entry *bucket[LS_STORE_KEYS_BUCKETS];
} ls_store_keys;

/* NULL for an absent key; valid until the next put. */
const ls_store_entry *ls_store_keys_find(ls_store_keys *keys, const char *key);
/* Sets or overwrites; false when memory runs out. */
bool ls_store_keys_put(ls_store_keys *keys, const char *key, const void *value, size_t bytes);
void ls_store_keys_free(ls_store_keys *keys);

#endif

#include "store_keys.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/digest.h"

static ls_store_entry **slot_of(ls_store_keys *keys, const char *key)
{
    uint64_t digest = ls_digest_update(LS_DIGEST_START, key, strlen(key));
    ls_store_entry **at = &keys->bucket[digest % LS_STORE_KEYS_BUCKETS];
    while (*at != NULL && strcmp((*at)->key, key) != 0) {
        at = &(*at)->next;
    }
    return at;
}

const ls_store_entry *ls_store_keys_find(ls_store_keys *keys, const char *key)
{
    return *slot_of(keys, key);
}

bool ls_store_keys_put(ls_store_keys *keys, const char *key, const void *value, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    if (copy == NULL) {
        return false;
    }
    if (bytes > 0) {
        memcpy(copy, value, bytes);
    }
    copy[bytes] = '\0';
    ls_store_entry **at = slot_of(keys, key);
    if (*at == NULL) {
        ls_store_entry *fresh = calloc(1, sizeof *fresh);
        char *name = strdup(key);
        if (fresh == NULL || name == NULL) {
            free(fresh);
            free(name);
            free(copy);
            return false;
        }
        fresh->key = name;
        *at = fresh;
    }
    free((*at)->value);
    (*at)->value = copy;
    (*at)->bytes = bytes;
    return true;
}

void ls_store_keys_free(ls_store_keys *keys)
{
    for (int i = 0; i < LS_STORE_KEYS_BUCKETS; i++) {
        for (ls_store_entry *at = keys->bucket[i], *next; at != NULL; at = next) {
            next = at->next;
            free(at->key);
            free(at->value);
            free(at);
        }
        keys->bucket[i] = NULL;
    }
}

/* Lists in malloc'ed memory. */
#ifndef LS_LIST_H
#define LS_LIST_H

#include <stddef.h>
#include <stdlib.h>

#include "status.h"

/* Makes room for one item beyond `count`: returns the malloc'ed `list` as it is or, when `capacity`
 * items are in it, a larger copy. Running out of memory ends the program (LS_MEMORY). */
static inline void *ls_list_grow(void *list, int count, int *capacity, size_t item_bytes)
{
    if (count >= *capacity) {
        *capacity = *capacity == 0 ? 16 : 2 * *capacity;
        list = realloc(list, (size_t)*capacity * item_bytes);
        LS_MEMORY(list != NULL);
    }
    return list;
}

/* A list of `count` zeroed items, to be freed. Running out of memory ends the program. */
static inline void *ls_list_make(size_t count, size_t item_bytes)
{
    void *list = calloc(count, item_bytes);
    LS_MEMORY(list != NULL || count == 0);
    return list;
}

#endif

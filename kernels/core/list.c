#include "list.h"

#include <stdlib.h>

#include "status.h"

void *ls_list_grow(void *list, int count, int *capacity, size_t item_bytes)
{
    if (count < *capacity) {
        return list;
    }
    *capacity = *capacity == 0 ? 16 : 2 * *capacity;
    list = realloc(list, (size_t)*capacity * item_bytes);
    LS_ASSERT(list != NULL);
    return list;
}

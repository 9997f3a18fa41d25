/* Lists that grow by doubling. */
#ifndef LS_LIST_H
#define LS_LIST_H

#include <stddef.h>

/* Makes room for one item beyond `count`: returns the malloc'ed `list` as it is or, when `capacity`
 * items are in it, a larger copy. Running out of memory ends the program. */
void *ls_list_grow(void *list, int count, int *capacity, size_t item_bytes);

#endif

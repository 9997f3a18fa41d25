/* What a pass over a loader gave, by content: the keys of its samples, whatever their indices. */
#ifndef LS_OBSERVE_CONTENTS_H
#define LS_OBSERVE_CONTENTS_H

#include <stdint.h>

#include "event.h"

typedef struct ls_contents {
    int count, capacity;
    int64_t *key;    /* [count], ascending, each once */
    int repeated;    /* further times that a key came */
    int64_t modulus; /* all keys are 0 modulo it: a power of two */
} ls_contents;

/* Adds the keys of a data event; one without keys adds none. */
void ls_contents_add(ls_contents *contents, const ls_event *data);
/* Those of `a` that `b` has, too; `of`: those of `a` that it could have. */
int ls_contents_common(const ls_contents *a, const ls_contents *b, int *of);
void ls_contents_free(ls_contents *contents);

#endif

#include "values.h"

#include <math.h>
#include <stdlib.h>

void ls_values_free(ls_values *values)
{
    free(values->v);
    values->v = NULL;
}

bool ls_values_equal(const ls_values *a, const ls_values *b)
{
    if (a->v == NULL || b->v == NULL || a->count != b->count) {
        return false;
    }
    for (int64_t i = 0; i < a->count; i++) {
        if (a->v[i] != b->v[i] && !(isnan(a->v[i]) && isnan(b->v[i]))) {
            return false;
        }
    }
    return true;
}

bool ls_values_overflow(const ls_values *values)
{
    for (int64_t i = 0; values->v != NULL && i < values->count; i++) {
        if (!isfinite(values->v[i])) {
            return true;
        }
    }
    return false;
}

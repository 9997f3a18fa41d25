/* Doubles in rising order. */
#ifndef LS_SORT_H
#define LS_SORT_H

#include <stdint.h>
#include <stdlib.h>

static inline int ls_sort_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void ls_sort_doubles(double *value, int64_t count)
{
    qsort(value, (size_t)count, sizeof *value, ls_sort_order);
}

/* Sorts them; the mean of the two in the middle where their number is even. */
static inline double ls_sort_median(double *value, int count)
{
    ls_sort_doubles(value, count);
    return (value[(count - 1) / 2] + value[count / 2]) / 2;
}

#endif

/* Elements of a tensor in FP64, and how their type rounds. */
#ifndef LS_OBSERVE_VALUES_H
#define LS_OBSERVE_VALUES_H

#include <stdbool.h>
#include <stdint.h>

/* Rounding in a type of storage or arithmetic. */
typedef struct ls_unit {
    double u;   /* half the distance of 1 to the next number: the relative error of one rounding */
    double eta; /* the absolute error of one operation near zero, where digits or the number go */
    double most;
} ls_unit;

/* A tensor's samples. */
typedef struct ls_values {
    int64_t count;
    double *v; /* [count], or NULL: absent */
    ls_unit unit;
} ls_values;

void ls_values_free(ls_values *values);
/* Whether both are there, of one length and equal in every value (a NaN equals a NaN). */
bool ls_values_equal(const ls_values *a, const ls_values *b);
/* Whether any is infinite or no number. */
bool ls_values_overflow(const ls_values *values);

#endif

/* Values as they are stored: whole arrays rounded to a storage type. */
#ifndef LS_ORACLE_ROUND_STORED_H
#define LS_ORACLE_ROUND_STORED_H

#include "bits.h"

/* Which random errors go before the rounding: none with seed 0. Each array of a step has its own
 * number. */
typedef struct ls_round_stored_noise {
    uint64_t seed, array;
} ls_round_stored_noise;

/* value = round(type, value), in place. With noise, value + 2^-24 * (|value| + rms of the array) *
 * u first, u uniform in -1..1 and a pure function of (seed, array, index): about what f32 summation
 * in another order leaves. F64 leaves the array alone. */
void ls_round_stored_values(ls_bits_type type, ls_round_stored_noise noise, int64_t count,
                            double *value);
/* Sum of squares over 256 parts, then over the parts: the same whatever the number of
 * threads. */
double ls_round_stored_square_sum(int64_t count, const double *value);

#endif

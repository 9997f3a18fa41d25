/* Rounds whole arrays to a storage type, as a level stores them. */
#ifndef LS_ORACLE_ROUND_STORED_H
#define LS_ORACLE_ROUND_STORED_H

#include "bits.h"

/* Random errors added before the rounding; none with seed 0. Each array of a step has its own
 * number. */
typedef struct ls_round_stored_noise {
    uint64_t seed, array;
} ls_round_stored_noise;

/* value = round(type, value), in place. With noise, adds 2^-24 * (|value| + rms of the array) * u
 * first, u uniform in -1..1 and a pure function of (seed, array, index): about the difference that
 * another order of f32 summation makes. F64 leaves the array as it is. */
void ls_round_stored_values(ls_bits_type type, ls_round_stored_noise noise, int64_t count,
                            double *value);
/* Sum of squares over 256 parts, then over the parts: independent of the number of threads. */
double ls_round_stored_square_sum(int64_t count, const double *value);

#endif

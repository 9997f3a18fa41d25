/* Storage types of the oracle, and the one rounding of a store, done on the bits of the double: to
 * nearest, ties to even, subnormals kept, overflow to inf. A double goes to fp16 or bf16 in one
 * step, never through f32 (two roundings are not one). Shares nothing with kernels/core/half.h,
 * which it helps to judge. */
#ifndef LS_ORACLE_BITS_H
#define LS_ORACLE_BITS_H

#include <stdint.h>

typedef enum ls_bits_type {
    LS_BITS_F64, /* no rounding */
    LS_BITS_F32,
    LS_BITS_F16,
    LS_BITS_BF16,
} ls_bits_type;

/* The value of `type` nearest to `value`, as a double. */
double ls_bits_round(ls_bits_type type, double value);
/* Half the distance from 1 to the next value: 2^-24, 2^-11, 2^-8; 2^-53 for F64. */
double ls_bits_unit(ls_bits_type type);
/* The smallest value above zero: 2^-149, 2^-24, 2^-133; 0 for F64 (never reached). */
double ls_bits_tiny(ls_bits_type type);
/* The value of 16 stored bits. */
double ls_bits_of_fp16(uint16_t bits);
double ls_bits_of_bf16(uint16_t bits);

#endif

/* Data for tests of collectives: a pure function of (rank, index), so that every rank, and the
 * judge, knows the data of all others.
 *
 * Exact: integers so small that their sum over up to 16 ranks is exact in the type in any order (u8
 * wraps, and its sum modulo 256 is exact too). With
 *   h = 2654435761 * index + 40503 * rank + 12345;  h ^= h >> 29;
 *   h *= 0xbf58476d1ce4e5b9;  h ^= h >> 32          (64 bits, the multiplier is splitmix64's)
 * the value is h mod (2 * limit + 1) - limit; limit: bf16 15, fp16 127, f32 2^19, i64, i32 and f64
 * 2^26; u8: h mod 256.
 *
 * Rough (floating types): values whose sums round at every addition, including infinities, NaN,
 * overflow, signed zeros and subnormals. */
#ifndef LS_PATTERN_H
#define LS_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/dtype.h"

enum { LS_PATTERN_WORLD_MAX = 16, LS_PATTERN_BYTES_MAX = 8 };

typedef enum ls_pattern_kind { LS_PATTERN_EXACT, LS_PATTERN_ROUGH } ls_pattern_kind;

/* Writes elements first .. first+count-1 of `rank` to data. */
void ls_pattern_fill(ls_pattern_kind kind, ls_dtype dtype, int rank, int64_t first, int64_t count,
                     void *data);
/* The number of elements in data[count] that differ from `rank`'s from `first` on in any bit. */
int64_t ls_pattern_count_wrong(ls_pattern_kind kind, ls_dtype dtype, int rank, int64_t first,
                               int64_t count, const void *data);
/* The same for sums over ranks 0 .. world-1. Exact: equal to the last bit. Rough: equal to the sum
 * in rank order from any starting rank, one rounding in the type per addition (any NaN matches
 * NaN). *telling: elements whose sum would differ if it were rounded only once at the end. */
int64_t ls_pattern_count_wrong_sums(ls_pattern_kind kind, ls_dtype dtype, int world, int64_t first,
                                    int64_t count, const void *data, int64_t *telling);
bool ls_pattern_has(ls_pattern_kind kind, ls_dtype dtype);

#endif

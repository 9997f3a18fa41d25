/* Data for tests of collectives: a pure function of (rank, index), so that every rank, and the
 * judge, knows the data of all others.
 *
 * Exact: integers so small that their sum over up to 16 ranks is exact in the type in any order (u8
 * wraps, and its sum modulo 256 is exact too). With
 *   h = 2654435761 * index + 40503 * rank + 12345;  h ^= h >> 29;
 *   h *= 0xbf58476d1ce4e5b9;  h ^= h >> 32          (64 bits, the multiplier is splitmix64's)
 * the value is h mod (2 * limit + 1) - limit; limit: bf16 15, fp16 127, f32 2^19, i64, i32 and f64
 * 2^26; u8: h mod 256. Maxima and minima are exact, too; with three elements and more for each rank
 * every rank's value is one of them somewhere.
 *
 * Factors, for products: none is 1, and each has an inverse, so that a factor which is missing or
 * taken twice changes every element. Products over up to 16 ranks are exact in any order. With g
 * the h of (0, index) and h that of (rank, index), both shifted right by 32:
 *   integers: 3 + 2 * (h mod 120), i64 and i32 negative where bit 20 of h is set; they wrap;
 *   floats: 2 or 1/2, three times that on ranks 0 to 4 where bit (8 + rank) of g is set, negative
 *   where bit 20 of h is set. Ranks 2k and 2k+1 have 2 and 1/2 where bit k of g is set, else 1/2
 *   and 2: no partial product is beyond 243 * 2^8 or below 2^-8.
 *
 * Rough (floating types): values whose sums and products round at every operation, including
 * infinities, NaN, overflow, signed zeros and subnormals. */
#ifndef LS_PATTERN_H
#define LS_PATTERN_H

#include "comm.h"

enum { LS_PATTERN_WORLD_MAX = 16, LS_PATTERN_BYTES_MAX = 8 };

typedef enum ls_pattern_kind {
    LS_PATTERN_EXACT,
    LS_PATTERN_ROUGH,
    LS_PATTERN_FACTORS,
} ls_pattern_kind;

/* Who takes part: members in order of their rank in the communicator, by their rank in the world,
 * which decides their data. */
typedef struct ls_pattern_members {
    int count;
    int rank[LS_PATTERN_WORLD_MAX];
} ls_pattern_members;
/* Ranks 0 to world-1. */
ls_pattern_members ls_pattern_all(int world);

/* Writes elements first .. first+count-1 of `rank` to data. */
void ls_pattern_fill(ls_pattern_kind kind, ls_dtype dtype, int rank, int64_t first, int64_t count,
                     void *data);
/* The number of elements in data[count] that differ from `rank`'s from `first` on in any bit. */
int64_t ls_pattern_count_wrong(ls_pattern_kind kind, ls_dtype dtype, int rank, int64_t first,
                               int64_t count, const void *data);
/* The same for what `redop` makes of the members' elements. Exact, factors: equal to the last bit.
 * Rough: equal to the result in rank order from any starting member, one rounding in the type per
 * operation (any NaN matches NaN); nan_lost: a maximum or minimum may also be that of the numbers
 * alone, as NCCL's is. *telling: elements whose sum or product would differ if it were rounded only
 * once at the end; of maxima and minima those with a NaN among the values. */
int64_t ls_pattern_count_wrong_results(ls_pattern_kind kind, ls_dtype dtype, ls_comm_redop redop,
                                       const ls_pattern_members *members, bool nan_lost,
                                       int64_t first, int64_t count, const void *data,
                                       int64_t *telling);
bool ls_pattern_has(ls_pattern_kind kind, ls_dtype dtype);

#endif

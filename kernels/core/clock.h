/* Monotonic time. All ranks of a machine share this clock, so their traces can be overlaid. */
#ifndef LS_CORE_CLOCK_H
#define LS_CORE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nanoseconds of CLOCK_MONOTONIC. */
int64_t ls_clock_ns(void);

static inline double ls_clock_ms_between(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) * 1e-6;
}

#ifdef __cplusplus
}
#endif
#endif

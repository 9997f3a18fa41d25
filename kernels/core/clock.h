/* Monotonic time. All ranks of a machine share this clock, so their traces can be overlaid. */
#ifndef LS_CORE_CLOCK_H
#define LS_CORE_CLOCK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nanoseconds of CLOCK_MONOTONIC. */
int64_t ls_clock_ns(void);

/* The time `seconds` from now. */
static inline int64_t ls_clock_after(double seconds)
{
    return ls_clock_ns() + (int64_t)(seconds * 1e9);
}

/* Waits until poll(2) reports `events` for the descriptor (-1: none) or `deadline_ns` has passed;
 * signals do not end the wait. 1: ready, 0: deadline, -1: error (errno). */
int ls_clock_poll(int descriptor, short events, int64_t deadline_ns);

static inline double ls_clock_ms_between(int64_t from_ns, int64_t to_ns)
{
    return (double)(to_ns - from_ns) * 1e-6;
}

#ifdef __cplusplus
}
#endif
#endif

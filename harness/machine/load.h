/* Processor time that other programs take while a run measures: what no statistics of one job can
 * show, since a machine that is busy throughout has halves that agree. */
#ifndef LS_LOAD_H
#define LS_LOAD_H

#include <stdint.h>

typedef struct ls_load {
    double others_s; /* processor seconds since boot of everything but this process and its ended
                        children, time that a hypervisor took included; NaN: /proc does not say */
    int processors;  /* that these seconds are summed over; may be more than we may run on */
    int64_t at_ns;
} ls_load;

/* Reads /proc/stat and the process's own times. */
void ls_load_read(ls_load *out);
/* How many of the `cores` that we may run on others took on average between the two readings, 0 to
 * cores: what the processors that we may not run on could have done is not held against them. NaN
 * where it cannot be said. */
double ls_load_taken(const ls_load *from, const ls_load *to, int cores);

#endif

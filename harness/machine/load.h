/* Processor time that other programs use while a run measures. The statistics of a job cannot show
 * it: on a machine that is always busy, both halves of a job agree. */
#ifndef LS_LOAD_H
#define LS_LOAD_H

#include <stdint.h>

typedef struct ls_load {
    double others_s; /* processor seconds since boot of all but this process and its ended children,
                         including time that a hypervisor took; NaN: unknown */
    int processors;  /* of the machine; may be more than this process may use */
    int64_t at_ns;
} ls_load;

/* Reads /proc/stat and the times of this process. */
void ls_load_read(ls_load *out);
/* The average number of the `cores` of this process that others used between two readings, 0 to
 * cores: their use of other processors does not count. NaN: unknown. */
double ls_load_taken(const ls_load *from, const ls_load *to, int cores);

#endif

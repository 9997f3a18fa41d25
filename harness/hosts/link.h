/* A link between machines in words, "25Gbit,10us": of simulated nodes, and of a plan. */
#ifndef LS_LINK_H
#define LS_LINK_H

#include <stdbool.h>

typedef struct ls_link {
    double bytes_per_s, delay_s;
    bool in_bits; /* the rate is a wire's (Gbit, Mbit), headers included; else GB/s or MB/s */
} ls_link;

/* False where the text is no rate above 0 and delay of 0 or more (us, ms). */
bool ls_link_read(const char *text, ls_link *out);

#endif

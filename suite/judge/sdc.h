/* Silent data corruption: ranks that train the same steps from the same seed, each alone on its
 * device, in deterministic mode, must have the same bits after every step, and the same again in a
 * second run. A rank whose bits differ from most others computes wrongly; if not even most ranks
 * repeat theirs, the engines do not repeat and no rank can be blamed. */
#ifndef LS_SDC_H
#define LS_SDC_H

#include "harness/run/record.h"

enum { LS_SDC_RANKS_MAX = 64 };

typedef struct ls_sdc_rank {
    char device[96]; /* "NVIDIA H200 (GPU-uuid)" */
    bool left_out;   /* another model than rank 0's: its bits may differ */
    int64_t
        odd_at; /* first step whose bits differ from the majority's, in the first run; 0: none */
    int64_t odd_again_at; /* the same in the second run, against the first run's majority */
    bool repeats;         /* both runs of this rank have the same bits */
} ls_sdc_rank;

typedef enum ls_sdc_result {
    LS_SDC_EQUAL,      /* all ranks, both runs */
    LS_SDC_ODD,        /* most agree and repeat; some rank differs */
    LS_SDC_UNREPEATED, /* most agree, but have other bits in the second run */
    LS_SDC_UNDECIDED,  /* no majority: two that differ, or all differ */
    LS_SDC_WITHOUT,    /* no digests, or steps are missing */
} ls_sdc_result;

typedef struct ls_sdc {
    ls_sdc_result result;
    int ranks, compared, agree; /* agree: of `compared`, in the first run */
    int64_t steps;
    ls_sdc_rank rank[LS_SDC_RANKS_MAX];
} ls_sdc;

/* `again` NULL: there is only one run (repeats is then true for all). */
void ls_sdc_compare(const ls_record *first, const ls_record *again, ls_sdc *out);
/* "rank 2 (NVIDIA H200 (GPU-...)) has other bits than 7 others from step 13 on, and again from step
 * 4 on" */
void ls_sdc_text(const ls_sdc *sdc, char *text, size_t bytes);

#endif

/* Two dumped gradients of one network, part by part, where no oracle can go along: the whole, every
 * tensor, every 64 elements, the ends of every tensor. */
#ifndef LS_TIMED_PARTS_H
#define LS_TIMED_PARTS_H

#include "suite/judge/compare.h"
#include "suite/cases/rows.h"

/* The worst part of one kind. */
typedef struct ls_timed_part {
    /* |g - reference| / D; D of a tensor as numerics.md section 4, of a block or an edge
     * max(|reference|, what its tensor has in as many elements). 0: there is no such part */
    double error;
    char tensor[64];
    int64_t from, count; /* elements of the tensor */
    double factor;       /* <g, reference> / |reference|^2 of its tensor */
    double residual;     /* |g - factor * reference| / |g| of its tensor */
} ls_timed_part;

typedef struct ls_timed_parts {
    ls_timed_part worst[LS_COMPARE_PARTS];
    bool finite; /* of the subject's gradient */
    int64_t elements;
} ls_timed_parts;

/* Step 1 of `subject` against the mean over steps first_step .. first_step+count-1 of `reference`,
 * rank 0's dumps. False with a verdict where the dumps are missing or do not fit together. */
bool ls_timed_parts_measure(const ls_record *subject, const ls_record *reference, int first_step,
                            int count, ls_timed_parts *parts, ls_verdict *out);
/* Whether step 1 of two jobs took the same branches on every rank from the same parameters, to the
 * last bit; else what differs, in text[bytes]. */
bool ls_timed_parts_same_forward(const ls_record *a, const ls_record *b, char *text, size_t bytes);
/* Rank 0's gradients before the reduction (`local/` of the dump) in two jobs. */
typedef struct ls_timed_local {
    char tensor[64];  /* the first that differs in a bit; "": none, also where no dump has any */
    double distance;  /* |a - b| over all of them */
    double size;      /* |b| */
    double mean_size; /* of b's gradients after the reduction */
} ls_timed_local;
/* Step 1 of both; false with a verdict where the dumps are missing or do not fit together. */
bool ls_timed_parts_local(const ls_record *a, const ls_record *b, ls_timed_local *out,
                          ls_verdict *verdict);

#endif

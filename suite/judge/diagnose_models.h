/* Mistakes that make another step of it: recomputed in FP64 and compared as a whole. */
#ifndef LS_DIAGNOSE_MODELS_H
#define LS_DIAGNOSE_MODELS_H

#include "diagnose.h"

/* What is known of the steps before, each [net.elements]; NULL: not known. */
typedef struct ls_diagnose_past {
    double *moment;       /* state/<name>/momentum_buffer, zero where absent */
    double *param, *grad; /* of the step before, from its dump beside this one; finite */
} ls_diagnose_past;

void ls_diagnose_past_read(const ls_evidence *evidence, ls_diagnose_past *out);
void ls_diagnose_past_free(ls_diagnose_past *past);

/* Writes one line where the gradient is that of another step: batch-norm statistics of the wrong
 * ranks, weights of the step before (all, or those that are cast), the last micro-step alone, batch
 * norm with another epsilon, moments in half, or SyncBN's parts left out, shortcuts from the odd
 * pixels. */
ls_status ls_diagnose_models(const ls_diagnose_wrong *wrong, const ls_diagnose_past *past,
                             char *text, int bytes);

#endif

/* Mistakes that amount to another training step: recomputed in FP64 and compared as a whole. */
#ifndef LS_DIAGNOSE_MODELS_H
#define LS_DIAGNOSE_MODELS_H

#include "diagnose_wrong.h"

/* Data of the previous steps, each [net.elements]; NULL: unknown. */
typedef struct ls_diagnose_past {
    double *moment;       /* state/<name>/momentum_buffer; missing ones are zero */
    double *param, *grad; /* of the previous step, from its dump in the same folder; finite */
} ls_diagnose_past;

void ls_diagnose_past_read(const ls_evidence *evidence, ls_diagnose_past *out);
void ls_diagnose_past_free(ls_diagnose_past *past);

/* Writes one line if the gradient is that of another step: batch-norm statistics of the wrong
 * ranks, previous weights (all, or those that are cast), the last micro-step alone, batch norm with
 * another epsilon or moments in half, SyncBN with parts left out, shortcuts from the odd pixels. */
ls_status ls_diagnose_models(const ls_diagnose_wrong *wrong, const ls_diagnose_past *past,
                             char *text, int bytes);

#endif

/* The memory of a rank by kind, from its events. */
#ifndef LS_REPORT_MEMORY_H
#define LS_REPORT_MEMORY_H

#include "harness/run/record.h"

typedef enum ls_report_kind {
    LS_REPORT_PARAMETERS,
    LS_REPORT_MASTERS,
    LS_REPORT_MOMENTS,
    LS_REPORT_GRADIENTS,
    LS_REPORT_ACTIVATIONS,
    LS_REPORT_WORKSPACE, /* packed weights, scratch, running statistics, accumulators */
    LS_REPORT_KINDS,
} ls_report_kind;

/* Bytes of each kind, NaN where not reported: the trainer's own table where its start event has
 * one, else as far as they follow from its sizes and options. Returns their sum. */
double ls_report_memory(const ls_record_rank *rank, double kind[LS_REPORT_KINDS]);

#endif

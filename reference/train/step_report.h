/* The report of a step that has ended: its events, its scalars for TensorBoard, a line for the
 * terminal, and whether the run goes on. */
#ifndef LS_STEP_REPORT_H
#define LS_STEP_REPORT_H

#include "audit.h"
#include "step_record.h"

typedef struct ls_step_reporter {
    ls_trainer *trainer;
    ls_step_history *history;
    ls_audit *audit;
    int64_t last;         /* step that was reported */
    int64_t skipped;      /* how many of the reported steps changed nothing */
    float loss_scale;     /* of the step that is reported next */
    int64_t printed_ns;   /* the end of the step that was printed last, */
    int64_t printed_step; /* and its number */
    ls_events_span *span; /* [spans of a step], for --trace */
    char (*name)[24];     /* [param_count] of buckets */
} ls_step_reporter;

/* Everything is borrowed. Before the first step. */
ls_status ls_step_report_open(ls_trainer *trainer, ls_step_history *history, ls_audit *audit,
                              ls_step_reporter *out);
void ls_step_report_close(ls_step_reporter *reporter);
/* Waits until the step has ended, reports it, and judges its state: errors as ls_amp_scale_judge
 * and ls_audit_judge. Nothing where it is reported already. */
ls_status ls_step_report(ls_step_reporter *reporter, ls_step_record *record);

#endif

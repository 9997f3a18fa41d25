/* summary.json: the run's figures for programs. `schema` 1; later versions only add members. */
#ifndef LS_REPORT_SUMMARY_H
#define LS_REPORT_SUMMARY_H

#include "job.h"

/* Counts of verdicts: {"total","in_claim","in_claim_passed","counts":{"PASS":..},"families":[...]}.
 */
cJSON *ls_report_summary_conformance(const ls_report_run *run);
/* Writes it without the headline, whose makers read it. */
ls_status ls_report_summary_write(const ls_report_run *run);
/* Adds run.json's headline. */
ls_status ls_report_summary_add_headline(const ls_report_run *run);

#endif

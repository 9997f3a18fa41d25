/* summary.json: the run's figures for programs. `schema` 2; later versions only add members.
 * Against schema 1, roles have other names (spec.h), "judged_on" names the check instead of its
 * number, and "compare" and "exposed_vs_no_comm_ms" replace "beside" and "exposed_by_twin_ms",
 * which are written until schema 3. */
#ifndef LS_REPORT_SUMMARY_H
#define LS_REPORT_SUMMARY_H

#include "job.h"

/* Counts of verdicts: {"total","in_claim","in_claim_passed","counts":{"PASS":..},"families":[...]}.
 */
cJSON *ls_report_summary_conformance(const ls_report_run *run);
/* Writes it without the headline, which is decided from it. */
ls_status ls_report_summary_write(const ls_report_run *run);
/* Adds run.json's headline. */
ls_status ls_report_summary_add_headline(const ls_report_run *run);

#endif

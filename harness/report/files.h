/* The files of a report next to its pages and tables. */
#ifndef LS_REPORT_FILES_H
#define LS_REPORT_FILES_H

#include "job.h"

/* summary.json: the run's figures for programs. `schema` 2; later versions only add members.
 * Against schema 1, roles have other names (spec.h), "judged_on" names the check instead of its
 * number, and "compare" and "exposed_vs_no_comm_ms" replace "beside" and "exposed_by_twin_ms",
 * which are written until schema 3. Written without the headline, which is decided from it. */
ls_status ls_report_summary_write(const ls_report_run *run);
/* Adds run.json's headline. */
ls_status ls_report_summary_add_headline(const ls_report_run *run);
/* Counts of verdicts: {"total","in_claim","in_claim_passed","counts":{"PASS":..},"families":[...]}.
 */
cJSON *ls_report_summary_conformance(const ls_report_run *run);

/* junit.xml: a testsuite per family, a testcase per verdict, for a CI that shows tests, and of a
 * bench a testcase per row of SPEED. Inside the claim INFRA and TIMEOUT are errors, SKIP and WAIVED
 * are skipped, all others but PASS are failures; outside it all but PASS are skipped, so that a CI
 * is as green as the run. A case's time is that of judging it and of its jobs; a job that several
 * cases read counts with the first of them, so that all times are the run's. */
ls_status ls_junit_write(const ls_report_run *run);

/* Draws every table that has rows into plots/, by plots_folder/<name>.gp as SVG and PNG, by gnuplot
 * as child processes. Without gnuplot, or where a script fails or is late, a note and LS_OK: a
 * report without figures is better than none. */
ls_status ls_report_plots_draw(const ls_report_run *run, const char *plots_folder);
/* The same of one table below a folder, by its name. */
ls_status ls_report_plots_draw_one(const char *directory, const char *plots_folder,
                                   const char *name);
/* Whether plots/<name>.svg is there. */
bool ls_report_plots_drawn(const ls_report_run *run, const char *name);

#endif

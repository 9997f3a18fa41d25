/* The figures: each table drawn by plots/<name>.gp as SVG and PNG, by gnuplot as child processes.
 */
#ifndef LS_REPORT_PLOTS_H
#define LS_REPORT_PLOTS_H

#include "job.h"

/* Draws every table that has rows into <run>/plots/. Without gnuplot, or where a script fails or is
 * late, a note and LS_OK: a report without figures is better than none. */
ls_status ls_report_plots_draw(const ls_report_run *run, const char *plots_folder);
/* Whether plots/<name>.svg is there. */
bool ls_report_plots_drawn(const ls_report_run *run, const char *name);

#endif

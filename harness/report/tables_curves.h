/* Tables over time: loss, loss scale with skipped steps, and the spans of one step. */
#ifndef LS_TABLES_CURVES_H
#define LS_TABLES_CURVES_H

#include "tables.h"

ls_status ls_tables_curves_write_loss(const ls_report_run *run);
ls_status ls_tables_curves_write_scale(const ls_report_run *run);
ls_status ls_tables_curves_write_timeline(const ls_report_run *run);

/* Mean loss over all ranks at step index `index`; NaN when a rank lacks it. */
double ls_tables_curves_loss_at(const ls_report_job *job, int index);
/* Mean of the last tenth of the curve, at least 5 steps (or all): "where it ended". NaN without
 * steps. */
double ls_tables_curves_final_loss(const ls_report_job *job);
/* Jobs that are repeats of the O0 reference of the level sweep (same network, batch, world, steps):
 * their final losses make the band. Returns how many. */
int ls_tables_curves_band(const ls_report_run *run, double *low, double *high);

#endif

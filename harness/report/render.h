/* What a report says, in order; how it is written down is the form's. */
#ifndef LS_REPORT_RENDER_H
#define LS_REPORT_RENDER_H

#include "job.h"
#include "page.h"

ls_status ls_report_render(const ls_report_run *run, const ls_report_page_form *form, FILE *to);

#endif

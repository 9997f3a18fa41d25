/* The content of a report, in order, written through a form of page. */
#ifndef LS_REPORT_RENDER_H
#define LS_REPORT_RENDER_H

#include "job.h"
#include "page.h"

ls_status ls_report_render(const ls_report_run *run, const ls_report_page_form *form, FILE *to);

#endif

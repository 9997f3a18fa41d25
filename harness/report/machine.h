/* The GPUs on a page: the findings, and a line per GPU. */
#ifndef LS_REPORT_MACHINE_H
#define LS_REPORT_MACHINE_H

#include "page.h"

/* Nothing for runs on the CPU. */
void ls_report_machine_write(const ls_report_run *run, const ls_report_page_form *form, FILE *to);
/* On the terminal: warnings, failures and the slowest GPU. */
void ls_report_machine_print(const ls_report_run *run, FILE *to);

#endif

/* All tables of a run. */
#ifndef LS_TABLES_H
#define LS_TABLES_H

#include "table.h"

/* Writes all of them. A table without rows is written too: its title says why there are none. */
ls_status ls_tables_write(const ls_report_run *run);

/* The name of table `index`, in the order of a report; NULL after the last. */
const char *ls_tables_name(int index);
/* Reads back the head of a written table. Whether it holds the rows that a figure needs: a sweep of
 * one point shows nothing. */
bool ls_tables_is_drawn(const ls_report_run *run, int index, ls_table_head *head);

#endif

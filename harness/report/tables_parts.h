/* Tables of parts: gradient error by layer, where a step's time goes, where memory goes. */
#ifndef LS_TABLES_PARTS_H
#define LS_TABLES_PARTS_H

#include "tables.h"

ls_status ls_tables_parts_write_gradients(const ls_report_run *run);
ls_status ls_tables_parts_write_phases(const ls_report_run *run);
ls_status ls_tables_parts_write_memory(const ls_report_run *run);

#endif

/* All cases there are. */
#ifndef LS_CASES_H
#define LS_CASES_H

#include "suite/suite.h"

/* Adds the cases of every family; free with ls_rows_free. */
void ls_cases_all(const ls_case_settings *settings, ls_case_list *list);

#endif

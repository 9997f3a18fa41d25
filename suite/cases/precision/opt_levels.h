/* The parts of the family opt_levels. */
#ifndef LS_OPT_LEVELS_H
#define LS_OPT_LEVELS_H

#include "suite/cases/rows.h"

void ls_opt_levels_matrix_cases(const ls_case_settings *settings, ls_case_list *list);

#endif

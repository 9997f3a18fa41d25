/* Rows optim.golden.*: part of family `optim`. */
#ifndef LS_OPTIM_GOLDENS_H
#define LS_OPTIM_GOLDENS_H

#include "suite/cases/rows.h"

void ls_optim_goldens_cases(const ls_case_settings *settings, ls_case_list *list);

#endif

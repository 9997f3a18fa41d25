/* Rows optim.golden.*: part of family `optim`. */
#ifndef LS_OPTIM_GOLDENS_H
#define LS_OPTIM_GOLDENS_H

#include "suite/cases/rows.h"

void ls_optim_goldens_cases(ls_case_list *list);

#endif

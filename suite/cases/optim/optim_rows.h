/* The parts of the family optim. */
#ifndef LS_OPTIM_ROWS_H
#define LS_OPTIM_ROWS_H

#include "suite/cases/rows.h"

ls_family_cases ls_optim_ends_cases, ls_optim_goldens_cases, ls_optim_inside_cases;

#endif

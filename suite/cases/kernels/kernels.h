/* The parts of the family kernels. */
#ifndef LS_KERNELS_CASES_H
#define LS_KERNELS_CASES_H

#include "suite/cases/rows.h"

ls_family_cases ls_kernels_exact_cases, ls_kernels_multi_cases;

#endif

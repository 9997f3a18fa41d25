/* The parts of the family scaler. */
#ifndef LS_SCALER_ROWS_H
#define LS_SCALER_ROWS_H

#include "../suite.h"

void ls_scaler_machine_cases(ls_case_list *list);
void ls_scaler_place_cases(const ls_case_settings *settings, ls_case_list *list);

#endif

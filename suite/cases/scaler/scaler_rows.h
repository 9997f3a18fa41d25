/* The parts of the family scaler. */
#ifndef LS_SCALER_ROWS_H
#define LS_SCALER_ROWS_H

#include "suite/cases/rows.h"

/* The backend's state machine, called from inside. */
ls_family_cases ls_scaler_machine_cases;

#endif

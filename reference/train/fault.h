/* Faults that an option asks for, so that what the others do can be shown: a rank that dies, stops
 * or leaves (--fault-at STEP:RANK:PHASE:HOW), a gradient with one element that is not finite
 * (--overflow-at, --overflow-as). In other runs nothing. */
#ifndef LS_FAULT_H
#define LS_FAULT_H

#include "trainer.h"

/* Ends or stops this process where the option names this step, rank and phase. */
void ls_fault_point(const ls_trainer *trainer, int64_t step, ls_fault_phase phase);
/* Whether --overflow-at names this step and rank. */
bool ls_fault_overflows(const ls_trainer *trainer, int64_t step);
/* Writes the value of --overflow-as at its place of this gradient. */
ls_status ls_fault_overflow(const ls_trainer *trainer, const ls_tensor *grad);

#endif

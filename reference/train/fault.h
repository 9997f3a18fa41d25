/* --fault-at STEP:RANK:PHASE:HOW: a rank that dies, stops or leaves in the middle of things, so
 * that what the others do can be shown. In other runs nothing. */
#ifndef LS_FAULT_H
#define LS_FAULT_H

#include "trainer.h"

/* Ends or stops this process where the option names this step, rank and phase. */
void ls_fault_point(const ls_trainer *trainer, int64_t step, ls_fault_phase phase);

#endif

/* Injected faults: a rank that dies, stops or leaves (--fault-at STEP:RANK:PHASE:HOW), a gradient
 * with one element that is not finite (--overflow-at, --overflow-as), and the planted faults that
 * change memory between two stages of a step. Other runs do nothing here. */
#ifndef LS_FAULT_H
#define LS_FAULT_H

#include "reference/state/step_observer.h"
#include "trainer.h"

typedef struct ls_fault {
    const ls_trainer *trainer;
    int64_t step;
    bool overflows; /* --overflow-at names this step and rank, and it has not happened yet */
    ls_step_observer observer;
} ls_fault;

/* Subscribes to the step where a fault may act in it. `fault` stays until the step is enqueued. */
void ls_fault_begin(ls_fault *fault, const ls_trainer *trainer, int64_t step,
                    ls_step_observers *observers);

/* Ends or stops this process where the option names this step, rank and phase; not in ranks that a
 * launcher has started again. */
void ls_fault_point(const ls_trainer *trainer, int64_t step, ls_fault_phase phase);

#endif

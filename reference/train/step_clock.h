/* The clock of the steps, stopped for work that is not part of them: digests and dumps. */
#ifndef LS_STEP_CLOCK_H
#define LS_STEP_CLOCK_H

#include "reference/data/loader.h"
#include "reference/state/device.h"

typedef struct ls_step_clock {
    const ls_device *device;
    ls_loader *loader;
    int64_t stopped_ns; /* in all, since the last step ended */
} ls_step_clock;

/* Waits for the device, whose work so far belongs to the step, and pauses the loader's threads.
 * Returns when the clock was stopped, for ls_step_clock_resume. */
int64_t ls_step_clock_stop(ls_step_clock *clock);
void ls_step_clock_resume(ls_step_clock *clock, int64_t since_ns);

#endif

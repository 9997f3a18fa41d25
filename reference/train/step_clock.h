/* The clock of the steps, stopped for work that is not part of them: digests and dumps. */
#ifndef LS_STEP_CLOCK_H
#define LS_STEP_CLOCK_H

#include "kernels/core/clock.h"
#include "reference/data/loader.h"
#include "reference/state/device.h"

typedef struct ls_step_clock {
    const ls_device *device;
    ls_loader *loader;
    int64_t stopped_ns; /* in all, since the last step ended */
} ls_step_clock;

/* Waits for the device, whose work so far belongs to the step (the work that follows waits, too,
 * and reports its error), and pauses the loader's threads. Returns when the clock was stopped, for
 * ls_step_clock_resume. */
static inline int64_t ls_step_clock_stop(ls_step_clock *clock)
{
    (void)clock->device->api->stream_wait(clock->device->stream);
    ls_loader_pause(clock->loader, true);
    return ls_clock_ns();
}

static inline void ls_step_clock_resume(ls_step_clock *clock, int64_t since_ns)
{
    ls_loader_pause(clock->loader, false);
    clock->stopped_ns += ls_clock_ns() - since_ns;
}

#endif

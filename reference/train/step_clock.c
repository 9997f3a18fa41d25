#include "step_clock.h"

#include "kernels/core/clock.h"

int64_t ls_step_clock_stop(ls_step_clock *clock)
{
    /* an error surfaces, too, in the work that is to follow, which waits for the device itself */
    (void)clock->device->api->stream_wait(clock->device->stream);
    ls_loader_pause(clock->loader, true);
    return ls_clock_ns();
}

void ls_step_clock_resume(ls_step_clock *clock, int64_t since_ns)
{
    ls_loader_pause(clock->loader, false);
    clock->stopped_ns += ls_clock_ns() - since_ns;
}

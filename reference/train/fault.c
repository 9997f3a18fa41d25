#include "fault.h"

#include <signal.h>
#include <unistd.h>

void ls_fault_point(const ls_trainer *trainer, int64_t step, ls_fault_phase phase)
{
    const ls_fault_at *at = &trainer->options.fault;
    if (at->step == 0 || at->rank != trainer->world.rank || at->phase != phase ||
        (phase != LS_FAULT_JOIN && at->step != step)) {
        return;
    }
    if (at->how == LS_FAULT_EXIT) {
        _exit(0);
    }
    (void)raise(at->how == LS_FAULT_KILL ? SIGKILL : SIGSTOP);
}

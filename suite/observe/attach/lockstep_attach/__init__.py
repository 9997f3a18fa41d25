"""Looks at a training job from inside its processes and writes what it sees
(suite/observe/events.md).
"""

import os
import time


def install(wait_for):
    """Called once, right after torch was imported, before user code can take a name from it.

    wait_for(name, then): calls then() when the job has imported the module.
    """
    begin = time.perf_counter_ns()
    from .hub import Hub

    hub = Hub(os.environ, wait_for)
    hub.install()
    hub.own_ns = time.perf_counter_ns() - begin

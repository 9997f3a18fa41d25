"""Looks at a training job from inside its processes and writes what it sees
(suite/observe/events.md).
"""

import os


def install(wait_for):
    """Called once, right after torch was imported, before user code can take a name from it.

    wait_for(name, then): calls then() when the job has imported the module.
    """
    from .hub import Hub

    Hub(os.environ, wait_for).install()

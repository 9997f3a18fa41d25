"""Looks at a training job from inside its processes and writes what it sees
(suite/observe/README.md).
"""

import os


def install():
    """Called once, right after torch was imported, before user code can take a name from it."""
    from .hub import Hub

    Hub(os.environ).install()

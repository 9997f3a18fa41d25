"""Becomes the program `lockstep` of this package: the same process, which Python has left."""

import os
import signal
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libexec", "lockstep")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # ignored by Python, and the job would inherit that
    try:
        os.execv(program, ["lockstep"] + sys.argv[1:])
    except OSError as error:
        print("lockstep: error: cannot run %s: %s" % (program, error.strerror), file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())

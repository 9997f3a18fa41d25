"""The calls of the open step, in memory that the system keeps where the process is killed."""

import mmap
import os

from .events import Late, text

SLOTS = 8192  # calls of a step, five bytes each; later ones are left out
KINDS = 4096  # unlike calls of a job; later ones are 0
NAMED = "at op elements type reduce ranks root model grad sync mode of optimizer".split()


class Trail:
    """`open.rank<k>`: the number of the open step, and a number for each of its calls; what a
    number means is an event of its own. It costs a store in memory, no call of the system.
    """

    def __init__(self, hub):
        self.hub = hub
        self.memory = None
        self.known = {}
        self.late = []  # events of numbers that the file of the rank does not have yet
        self.count = 0

    def open(self, step):
        """The rank has its file now; `step` is what it was doing until then."""
        path = os.path.join(self.hub.writer.directory, "open.rank%d" % self.hub.rank())
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0)
        size = 11 + 5 * (SLOTS + 1)
        try:
            with os.fdopen(os.open(path, flags, 0o644), "r+b") as file:
                os.ftruncate(file.fileno(), size)
                self.memory = mmap.mmap(file.fileno(), size)
        except (OSError, ValueError):  # not every file system maps files
            return
        for event in self.late:
            self.hub.writer.now(event)
        self.late = []
        self.begin(step)

    def begin(self, step):
        if self.memory is not None:
            self.count = 0
            self.memory[0:12] = b"%10d\n\0" % step.number
            for entry in step.calls:
                self.add(entry)

    def add(self, entry):
        key = (entry["call"], *map(entry.get, NAMED))
        if key[-1].__class__ is Late:  # an optimizer that has no number yet
            key = (*key[:-1], None)
        number = self.known.get(key)
        if number is None:
            number = self._learn(key)
        if self.memory is not None and self.count < SLOTS:
            begin = 11 + 5 * self.count
            self.memory[begin : begin + 6] = b"%04x \0" % number
            self.count += 1

    def _learn(self, key):
        if len(self.known) >= KINDS:
            return 0
        number = self.known[key] = len(self.known) + 1
        event = {"event": "call", "number": number, "call": key[0]}
        for name, value in zip(NAMED, key[1:]):
            if value is not None:
                event[name] = text(value) if value.__class__ is str else value
        if self.memory is not None:
            self.hub.writer.now(event)
        else:
            self.late.append(event)
        return number

    def close(self):
        """Also in a forked child, whose parent goes on with the file."""
        if self.memory is not None:
            self.memory.close()
            self.memory = None

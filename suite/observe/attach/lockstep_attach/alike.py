"""Steps whose calls are those of an earlier step but for some members: most steps of a long job."""

SHAPES = 8  # of steps that are remembered: scripts that train networks in turn have several
SPAN = 256  # steps, after which one is whole again: rates and scales move away


class Alike:
    def __init__(self):
        self.whole = {}  # words and members of the calls: (number of the step, its calls)

    def shorten(self, event):
        """Leaves of the calls of a step what differs from the step that it then names as `like`."""
        calls, number = event["calls"], event["step"]
        shape = tuple((call["call"], *call) for call in calls)
        before, known = self.whole.get(shape, (None, None))
        if before is None or number - before >= SPAN:
            if before is None and len(self.whole) >= SHAPES:
                self.whole.clear()
            self.whole[shape] = number, calls
            return
        event["like"] = before
        event["calls"] = [
            {name: value for name, value in call.items() if not _is_same(value, old[name])}
            for call, old in zip(calls, known)
        ]


def _is_same(one, other):
    return one == other and one.__class__ is other.__class__

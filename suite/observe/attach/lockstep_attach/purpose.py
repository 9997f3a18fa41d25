"""What the script's own collectives are for, as the functions that call them show: what a framework
does with the result of its own call is known by the name of the function, what a script does by its
instructions.
"""

import dis
import sys

DEPTH = 40  # frames that are looked at
GATHERS = ("all_gather", "all_gather_into_tensor", "_all_gather_base", "gather")
# functions that cut off what fills up the last batches, or gather no samples
USES = {
    "gather_for_metrics": "metrics",
    "gather_all_tensors": "state",
    "reduce_boolean_decision": "decision",
}
CUTS = {
    "narrow",
    "unique",
    "split",
    "chunk",
    "islice",
    "set",
    "dict",
    "drop_duplicates",
    "index_select",
    "take",
}
SLICES = {"BUILD_SLICE", "BINARY_SLICE"}


class Purposes:
    def __init__(self, places):
        self.places = places
        self.calls = {}  # (code, place) of a call: whether the function cuts anything off behind it

    def of(self, name):
        """{"use": "metrics" | "state" | "decision", "monitor": what a decision is taken by,
        "value": that of this rank, "cut": whether the script cuts anything off behind a gather}.
        """
        frames = self._frames()
        for place, frame in enumerate(frames):
            use = USES.get(frame.f_code.co_name)
            if use == "decision":
                return {"use": use, **_decision(frames[place:])}
            if use is not None:
                return {"use": use}
        return self._cut(frames) if name in GATHERS else {}

    def _frames(self):
        """Frames outside torch, the standard library and this module, innermost first."""
        frame, found = sys._getframe(1), []
        while frame is not None and len(found) < DEPTH:
            if self.places.name_of(frame.f_code.co_filename)[0]:
                found.append(frame)
            frame = frame.f_back
        return found

    def _cut(self, frames):
        """Of a call by the script, or by Accelerate for it; of other libraries nothing is known."""
        own = [frame for frame in frames if not self.places.name_of(frame.f_code.co_filename)[1]]
        own = [frame for frame in own if frame.f_code.co_filename[:1] != "<"]
        for frame in frames[: frames.index(own[0])] if own else []:
            if not self.places.name_of(frame.f_code.co_filename)[0].startswith("accelerate/"):
                return {}
        return {"cut": any(self._cuts(frame.f_code, frame.f_lasti) for frame in own)} if own else {}

    def _cuts(self, code, place):
        found = self.calls.get((code, place))
        if found is None:
            found = self.calls[(code, place)] = _cuts(code, place)
        return found


# ---- a script that gathers -----------------------------------------------------------------------


def _cuts(code, place):
    """Whether something behind that instruction, or in the innermost loop that it is in, may leave
    out a part of a sequence.
    """
    instructions = list(dis.get_instructions(code))
    jumps = (i for i in instructions if i.offset > place and "JUMP" in i.opname)
    back = [i.argval for i in jumps if isinstance(i.argval, int)]
    begin = max((target for target in back if target < place), default=place)
    for instruction in instructions:
        if instruction.offset < begin:
            continue
        if instruction.opname in SLICES or isinstance(instruction.argval, slice):
            return True
        if isinstance(instruction.argval, str) and instruction.argval in CUTS:
            return True
    return False


# ---- a callback that decides ---------------------------------------------------------------------


def _decision(frames):
    """By which value a callback of Lightning decides: its name, and what it is on this rank."""
    for frame in frames:
        monitor = getattr(frame.f_locals.get("self"), "monitor", None)
        value = frame.f_locals.get("current")
        if isinstance(monitor, str):
            out = {"monitor": monitor}
            if hasattr(value, "item") and value.numel() == 1:
                out["value"] = float(value.item())
            return out
    return {}

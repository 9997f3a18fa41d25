"""The file of a rank: whole lines, each written at once; and the place of the user's own call."""

import contextlib
import fcntl
import functools
import inspect
import json
import math
import numbers
import operator
import os
import sys
import sysconfig
import time

from .wrapping import FILE

TEXT = 300
AVERAGERS = os.path.join("torch", "distributed", "algorithms", "model_averaging", "")
LARGEST = 2**53  # whole numbers that every reader of JSON keeps are below it
SCALARS = {str, int, bool, float, type(None)}
EXACT = {bool, type(None)}  # that JSON has as they are
ENCODE = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
COUNTED = (
    '{"event":"step","step":%d,"loss":%s,"loss_scale":%s,"loss_scale_next":%s,"skipped":false,'
    '"lr":%s,"images":%d,"ms":{"total":%.3f,"data":%.3f,"forward":%.3f,"backward":%.3f,'
    '"optimizer":%.3f,"instrument":%.3f},"at_ns":%d,"detail":false,"counted":true,"like":%d,'
    '"calls":[%s]}'
)
SHAPES = 8  # of steps that are remembered: scripts that train networks in turn have several
JOBS = 9  # of one command, one after the other
SPAN = 256  # steps, after which one is whole again: rates and scales move away


class Lazy:
    """A value that is on a device yet: tensors of one element, and what makes it from them."""

    __slots__ = ("tensors", "make")

    def __init__(self, tensors, make=None):
        self.tensors = tensors if isinstance(tensors, list) else [tensors]
        self.make = make


def value_of(tensor):
    """The number that a tensor of one element has now; Lazy where a device has it."""
    if tensor.is_cpu and not hasattr(type(tensor), "full_tensor"):
        return _real(tensor.item())
    return Lazy(tensor.detach().clone())


def summed(lazies):
    """The sum of some, Lazy on the device that has the numbers; None of none."""
    lazies, tensors, parts = list(lazies), [], []
    if len(lazies) > 1 and not any(isinstance(lazy, Lazy) for lazy in lazies):
        return sum(lazies)
    for lazy in lazies if len(lazies) > 1 else ():
        if not isinstance(lazy, Lazy):
            lazy = Lazy([], functools.partial(float, lazy))
        parts.append((len(tensors), len(lazy.tensors), lazy.make))
        tensors.extend(lazy.tensors)

    def total(*numbers):
        values = ((make, numbers[at : at + count]) for at, count, make in parts)
        return sum(make(*part) if make else part[0] for make, part in values)

    return Lazy(tensors, total) if parts else next(iter(lazies), None)


class Late:
    """A value of an event that is known when its line is written: a function without arguments."""

    __slots__ = ("make",)

    def __init__(self, make):
        self.make = make


def text(value):
    value = str(value)
    return value if len(value) <= TEXT else value[: TEXT - 3] + "..."


def number(value):
    """A JSON number, or None where it is none."""
    try:
        value = float(value)
    except (TypeError, ValueError):
        return None
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < LARGEST else value


def _leaves(tree, out):
    for value in tree.values() if isinstance(tree, dict) else tree:
        kind = value.__class__
        if kind is Lazy:
            out.append(value)
        elif kind not in SCALARS and isinstance(value, (dict, list, tuple)):
            _leaves(value, out)


def _real(value):
    """A tensor's element as a number that JSON has."""
    if value.__class__ is bool:
        return int(value)
    return value.real if value.__class__ is complex else value


def _number(tensor):
    """None of one without a value, or of parts on several ranks, where it takes a collective."""
    absent = tensor.is_meta or hasattr(type(tensor), "full_tensor")
    return None if absent else _real(tensor.item())


class Transfer:
    """The numbers of Lazy members on their way to the host: from CUDA without waiting for it."""

    def __init__(self, torch, tree):
        self.values, self.waiting = {}, []
        if torch.cuda.is_initialized():
            self._begin(torch, tree)

    def _begin(self, torch, tree):
        groups, leaves = {}, []
        _leaves((tree,), leaves)
        for tensor in (tensor for leaf in leaves for tensor in leaf.tensors):
            if tensor.is_cuda and not hasattr(type(tensor), "full_tensor"):
                groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
            else:  # it may be another value once it is written
                self.values[id(tensor)] = _number(tensor)
        for (device, kind), tensors in groups.items():
            packed = torch.stack([t.detach().reshape(()) for t in tensors])
            host = torch.empty(packed.shape, dtype=kind, device="cpu", pin_memory=True)
            with torch.cuda.device(device):
                host.copy_(packed, non_blocking=True)
                done = torch.cuda.Event()
                done.record()
            self.waiting.append((done, host, packed, tensors))

    def _keep(self, tensors, packed):
        for tensor, value in zip(tensors, packed.tolist()):
            self.values[id(tensor)] = _real(value)

    def ready(self):
        return all(done.query() for done, _, _, _ in self.waiting)

    def finish(self):
        for done, host, _, tensors in self.waiting:
            done.synchronize()
            self._keep(tensors, host)
        self.waiting = []

    def value(self, lazy):
        values = self.values  # of a process without CUDA there are none: it waits for no number
        found = [values[id(t)] if values else _number(t) for t in lazy.tensors]
        if None in found:
            return None
        return lazy.make(*found) if lazy.make is not None else found[0]


def _members(tree, transfer):
    out = {}
    for key, value in tree.items():
        kind = value.__class__
        if kind is int and -LARGEST < value < LARGEST or kind is str and len(value) <= TEXT:
            pass
        elif kind is float:
            value = value if math.isfinite(value) else None
        elif kind not in EXACT:
            value = settle(value, transfer)
        out[key if key.__class__ is str and len(key) <= TEXT else str(key)[:TEXT]] = value
    return out


def settle(tree, transfer):
    """The tree as JSON has it: no Lazy, no number that is not finite, no long text."""
    if isinstance(tree, float):
        return tree if math.isfinite(tree) else None
    if isinstance(tree, bool) or tree is None:
        return tree
    if isinstance(tree, int):
        return tree if abs(tree) < LARGEST else float(tree)
    if isinstance(tree, Lazy):
        return settle(transfer.value(tree), transfer)
    if isinstance(tree, Late):
        return settle(tree.make(), transfer)
    if isinstance(tree, dict):
        return _members(tree, transfer)
    if isinstance(tree, (list, tuple)):
        if set(map(type, tree)) == {int} and -LARGEST < min(tree) <= max(tree) < LARGEST:
            return list(tree)
        return [value if value.__class__ in EXACT else settle(value, transfer) for value in tree]
    if isinstance(tree, numbers.Real):  # NumPy's
        return settle(int(tree) if isinstance(tree, numbers.Integral) else float(tree), transfer)
    return text(tree)


def merge_calls(calls):
    """Equal calls in a row become one with `times`."""
    merged, last = [], None
    for call in calls:
        if last is not None and last["call"] == call["call"] and _is_again(call, last):
            last["times"] = last.get("times", 1) + 1
        else:
            last = dict(call)
            merged.append(last)
    return merged


def _is_again(call, last):
    if all(last.get(key) == value for key, value in call.items()):
        return set(last) - {"times"} == set(call)
    return False


class Alike:
    """Steps whose calls are those of an earlier one but for some members: most of a long job's."""

    def __init__(self):
        self.whole = {}  # words and members of the calls: (number of the step, its calls)

    def shorten(self, event, transfer):
        """A step's event as JSON has it, of its calls only what differs from the step that it then
        names as `like`.
        """
        calls, number, base = event.pop("calls"), event["step"], event.pop("base", None)
        event, found = _members(event, transfer), None
        if base is not None and base.writer is self and number - base.number < SPAN:
            found = base.unlike(calls, transfer)
        if found is not None:
            event["like"], event["calls"] = base.number, found
            return event
        words = [call["call"] for call in calls]
        if any(map(operator.eq, words, words[1:])):
            calls = merge_calls(settle(calls, transfer))
            words = [call["call"] for call in calls]
        shape = tuple((word, *call) for word, call in zip(words, calls))
        before, known = self.whole.get(shape, (None, None))
        if before is None or number - before >= SPAN:
            if before is None and len(self.whole) >= SHAPES:
                self.whole.clear()
            calls = settle(calls, transfer)
            self.whole[shape] = before, known = number, calls
        else:
            event["like"] = before
            calls = [unlike(call, old, transfer) for call, old in zip(calls, known)]
        event["calls"] = calls
        if base is not None:
            base.wrote(self, before, known)
        return event


def _plain(value):
    """A number or nothing, as JSON has it; of others None."""
    kind = value.__class__
    if kind is float:
        return repr(value) if math.isfinite(value) else "null"
    if kind is int:
        return str(value)
    return "null" if value is None else None


def _object(members):
    written = [(key, _plain(value)) for key, value in members.items()]
    if any(value is None for _, value in written):
        return ENCODE(members)
    return "{%s}" % ",".join(['"%s":%s' % one for one in written])


def unlike(call, old, transfer):
    out = {}
    for name, value in call.items():
        before = old[name]
        if value is before:
            continue
        if value.__class__ not in SCALARS:
            value = settle(value, transfer)
        if value != before or value.__class__ is not before.__class__:
            out[name] = value
    return _members(out, transfer)


def _lock(file):
    """Until the process has ended, and those that it forked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:  # another process has it, or the file system knows no locks
        return False


def _ended(path):
    file = os.open(path, os.O_RDONLY)
    free = _lock(file)
    os.close(file)
    return free


class Writer:
    """Keeps events until the process has shown that it trains, then writes them in order."""

    KEPT = 4096  # events before that: a process that never trains does not collect more

    def __init__(self, torch, directory):
        self.torch = torch
        self.directory = directory
        self.file = None
        self.closed = False
        self.early = []
        self.queue = []
        self.alike = Alike()

    def put(self, event, transfer=None):
        if self.closed:
            return
        if self.file is None:
            if len(self.early) < self.KEPT:
                self.early.append(event)
            return
        transfer = transfer or Transfer(self.torch, event)
        if not self.queue and not transfer.waiting:
            self._write(event, transfer)
            return
        self.queue.append((event, transfer))
        # One step may be on its way; what an older one waits for is long done.
        steps = sum(1 for queued, _ in self.queue if queued.get("event") == "step")
        while self.queue and (steps > 1 or self.queue[0][1].ready()):
            steps -= self.queue[0][0].get("event") == "step"
            self._write(*self.queue.pop(0))

    def put_counted(self, base, calls, step):
        """The event of a step that was counted off whole, without what other events need; false:
        it needs that. step: number, loss, loss scale, rate, images, nanoseconds of COUNTED's ms.
        """
        number, loss, scale, rate, images, spent = step
        alike = base.writer is self.alike and number - base.number < SPAN
        if not alike or self.queue or self.file is None or self.closed:
            return False
        plain = [_plain(value) for value in (loss, scale, scale, rate)]
        if None in plain or self.torch.cuda.is_initialized():
            return False
        found = base.unlike(calls, None)
        if found is None:
            return False
        at_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        ms = [ns / 1e6 for ns in spent]
        written = ",".join([_object(one) if one else "{}" for one in found])
        self._line(COUNTED % (number, *plain, images, *ms, at_ns, base.number, written))
        return True

    def now(self, event):
        """An event that does not wait for those before it: the process may be killed any moment."""
        if self.file is not None and not self.closed:
            self._line(ENCODE(event))

    def say_by_hand(self):
        """The process made backward passes, and nothing that is judged: it has no events."""
        with contextlib.suppress(OSError), open(os.path.join(self.directory, "by_hand"), "w"):
            pass

    def flush(self):
        while self.queue:
            self._write(*self.queue.pop(0))

    def open(self, rank, start):
        """Creates the file of this rank; where another process wrote one and has ended, in the
        folder of the command's next job. False: that process lives, or there are too many.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for directory in self._folders():
            os.makedirs(os.path.join(directory, "samples"), exist_ok=True)
            path = os.path.join(directory, "rank%d.jsonl" % rank)
            try:
                self.file = os.open(path, flags | os.O_EXCL, 0o644)
            except FileExistsError:
                if _ended(path):
                    continue
                break
            _lock(self.file)
            self.directory = directory
            break
        if self.file is None:
            self.closed = True
            later = os.path.join(self.directory, "later.rank%d" % rank)
            os.close(os.open(later, os.O_WRONLY | os.O_CREAT, 0o644))
            return False
        self.alike = Alike()
        early, self.early = self.early, []
        self.put(start)
        for event in early:
            self.put(event)
        return True

    def _folders(self):
        yield self.directory
        later = os.environ.get("LS_OBSERVE_LATER")
        for number in range(2, JOBS + 1) if later else ():
            yield os.path.join(later, str(number), "jobs", "observed")

    def _write(self, event, transfer):
        transfer.finish()
        if event["event"] == "step":
            event = self.alike.shorten(event, transfer)
        else:
            event = settle(event, transfer)
            if "calls" in event:
                event["calls"] = merge_calls(event["calls"])
        self._line(ENCODE(event))

    def _line(self, line):
        data = (line + "\n").encode("ascii")
        while data:  # one write; the rest only where the disk took a part
            data = data[os.write(self.file, data) :]

    def close(self):
        if self.file is not None and not self.closed:
            self.flush()
            os.close(self.file)
        self.closed = True

    def abandon(self):
        """In a forked child: the parent's file is not ours."""
        self.closed = self.closed or self.file is not None
        if self.file is not None:
            try:
                os.close(self.file)
            except OSError:
                pass
        self.file, self.early, self.queue = None, [], []


PACKAGES = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)


def _constructs(frame, thing):
    code = frame.f_code
    own = code.co_varnames[:1] if code.co_name == "__init__" and code.co_argcount else ()
    return bool(own) and frame.f_locals.get(own[0]) is thing


class Places:
    """Where the user's code made a call: the innermost frame outside torch, the standard library
    and this module. Where that is in an installed package, the script's own frame is named, too.
    """

    NEAR = 6  # frames: a script's line so close says more than the package's own
    STARTS = ("fit", "train", "validate", "evaluate", "test")  # functions whose call says less

    def __init__(self, torch):
        self.work = os.path.realpath(os.getcwd()) + os.sep
        paths = sysconfig.get_paths()
        names = [name for name in ("stdlib", "platstdlib", "scripts") if name in paths]
        self.library = tuple({os.path.realpath(paths[name]) + os.sep for name in names})
        self.inside = (
            os.path.dirname(os.path.realpath(torch.__file__)) + os.sep,
            os.path.dirname(os.path.realpath(__file__)) + os.sep,
        )
        self.known = {}

    def _name(self, file):
        if file.startswith("<frozen") or file.startswith("<eval_with_key") or file == FILE:
            return "", False
        if file.startswith("<"):
            return file, False
        path = os.path.realpath(file)
        if path.startswith(self.inside):
            return "", False
        for folder in PACKAGES:
            if folder in path:
                return path.rpartition(folder)[2], True
        if path.startswith(self.library):
            return "", False
        return path[len(self.work) :] if path.startswith(self.work) else path, False

    def name_of(self, file):
        """(the file as events name it, "" for one of torch, of the standard library or of this
        module; whether it is a package's).
        """
        found = self.known.get(file)
        if found is None:
            found = self.known[file] = self._name(file)
        return found

    def is_script(self, file):
        name, packaged = self.name_of(file)
        return bool(name) and not packaged

    def here(self, built=None):
        """ "train.py:41"; "train.py:41 (accelerate/accelerator.py:2400)" where the script called a
        package that made the call; "lightning/pytorch/loops/loop.py:12 (from train.py:41)" where
        that is far away. `built`: an object whose constructors, the user's own, are passed over.
        """
        frame, first, between, called = sys._getframe(1), "", 0, ""
        known = self.known
        while frame is not None:
            file = frame.f_code.co_filename
            name, packaged = known.get(file) or self.name_of(file)
            passed = (first and packaged) or (built is not None and _constructs(frame, built))
            if name and not passed:
                place = "%s:%d" % (name[-(TEXT // 2 - 20) :], frame.f_lineno)
                if not first and not packaged:
                    return place
                if first:
                    near = between <= self.NEAR and called not in self.STARTS
                    return "%s (%s)" % (place, first) if near else "%s (from %s)" % (first, place)
                first = place
            if first:
                between, called = between + 1, frame.f_code.co_name
            frame = frame.f_back
        return first

    def of_module(self):
        """Where the script called the outermost module of those that run now."""
        frame, place, inside = sys._getframe(1), "", False
        while frame is not None:
            file = frame.f_code.co_filename
            name, packaged = self.name_of(file)
            if inside and name and not packaged:
                place = "%s:%d" % (name[-TEXT:], frame.f_lineno)
            inside = not name and file.endswith("module.py")
            frame = frame.f_back
        return place

    def of(self, function):
        """Where a function of the user's is defined, "" where that is not known."""
        code = getattr(function, "__code__", None)
        name = self.name_of(code.co_filename)[0] if code is not None else ""
        if not name:
            return ""
        try:
            lines, first = inspect.getsourcelines(code)
        except (OSError, TypeError):
            lines, first = [], code.co_firstlineno
        defs = (k for k, line in enumerate(lines) if line.lstrip().startswith("def "))
        decorators = next(defs, 0)
        return "%s:%d" % (name[-(TEXT - 12) :], first + decorators)

    def _is_ours(self, file, folder):
        return file == FILE or os.path.realpath(file).startswith(folder)

    def script_called(self):
        """Whether the function that stands in for torch's was called by the user's code itself, or
        by an averager of torch's for it.
        """
        frame = sys._getframe(1)
        ours = self.inside[1]
        while frame is not None:
            file = frame.f_code.co_filename
            if not self._is_ours(file, ours) and AVERAGERS not in file:
                break
            frame = frame.f_back
        return frame is not None and bool(self.name_of(frame.f_code.co_filename)[0])

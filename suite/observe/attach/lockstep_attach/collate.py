"""Whether each sample of a batch has a part in what the loader makes of them: the first batches of
a collate function of the script's own are made again, of copies of the samples, with one of them
in the place of another one.
"""

import collections.abc
import copy
import hashlib
import math
import time
import weakref

from .again import silent
from .collectives import refusing
from .digests import words
from .effects import OfCallables
from .records import PLAIN, mapped, tensors_in

BATCHES = 2  # of each loader in each process
SPENT_NS = 60_000_000  # for one of them
BYTES = 1 << 26  # of the samples of one
FEWEST, FEW_BYTES = 4, 1 << 22  # of large samples so many, or so large, are enough
WORDS = 1 << 14  # of a tensor that are looked at one by one; of more their sum, too
SCALARS = {int, float, bool, str, type(None)}


def is_own(torch, function):
    """Whether it is none of torch's, which give each sample a row."""
    data = torch.utils.data
    return all(function is not one for one in (data.default_collate, data.default_convert))


def _called(function):
    """The function with the code, also of a partial one, a method or an object's."""
    function = getattr(function, "func", function)
    return function if hasattr(function, "__code__") else type(function).__call__


def code_of(function):
    return getattr(_called(function), "__code__", None)


def place_of(hub, function):
    """Where a collate function is defined: of a package's that holds one of the script's, that."""
    held = [function, *vars(function).values()] if hasattr(function, "__dict__") else [function]
    for one in filter(callable, held):
        code = code_of(one)
        if code is not None and hub.places.is_script(code.co_filename):
            return hub.places.of(_called(one))
    return hub.places.of(_called(function))


class Unknown(Exception):
    """A value that cannot be copied or named."""


class Name:
    """A digest of values, which are the same where their digests are."""

    def __init__(self, torch, value):
        self.torch, self.hash, self.bytes = torch, hashlib.blake2b(digest_size=16), 0
        self.depth = 0
        self.add(value)

    def _bytes(self, kind, data):
        self.bytes += len(data)
        self.hash.update(b"%s:%d:" % (repr(kind).encode(), len(data)))
        self.hash.update(data)

    def _tensor(self, value):
        if value.device.type != "cpu" or value.layout != self.torch.strided:
            raise Unknown
        (flat, rest), kind = words(self.torch, value.detach()), (str(value.dtype), value.shape)
        if flat.numel() > WORDS:
            kind = (*kind, int(flat.sum()), int(flat[-1]))
            self.bytes += 8 * flat.numel()
            flat = flat[:: flat.numel() // WORDS]
        self._bytes((*kind, None if rest is None else int(rest)), flat.contiguous().numpy().data)

    def add(self, value):
        plain = type(value) in (list, tuple) and set(map(type, value)) <= SCALARS
        if isinstance(value, self.torch.Tensor):
            self._tensor(value)
        elif plain or isinstance(value, PLAIN):
            self._bytes(type(value).__name__, repr(value).encode())
        elif hasattr(value, "tobytes"):  # an array, or a picture
            if str(getattr(value, "dtype", "")) == "object":
                raise Unknown
            kind = [str(getattr(value, k, "")) for k in ("dtype", "shape", "size", "mode")]
            self._bytes(kind, value.tobytes())
        elif self.depth > 8 or self.bytes > BYTES:
            raise Unknown
        else:
            self.depth += 1
            self._parts(value)
            self.depth -= 1

    def _parts(self, value):
        if isinstance(value, collections.abc.Mapping):
            parts = [part for item in value.items() for part in item]
        elif isinstance(value, (list, tuple)):
            parts = value
        elif hasattr(value, "__dict__") and not callable(value):
            parts = [part for item in vars(value).items() for part in item]
        else:
            raise Unknown
        self._bytes(type(value).__name__, b"%d" % len(parts))
        for part in parts:
            if not isinstance(part, weakref.ref):
                self.add(part)


class Again:
    """A loader's collate function, in the place of which it is called until enough was seen."""

    def __init__(self, hub, fetcher, say):
        self.hub, self.say = hub, say
        self.fetcher, self.function = weakref.ref(fetcher), fetcher.collate_fn
        self.found = []  # events.def, collated
        self.end, self.was = 0, b""
        self.left = BATCHES

    def __call__(self, samples):
        copies = self._careful(self._copies, samples)
        result = self.function(samples)
        if copies is not None:
            found = self._careful(self._look, copies, result)
            for part in found or ():
                self.found.append(part)
                self.say(part)
        self.left -= 1
        fetcher = self.fetcher()
        if self.left == 0 and fetcher is not None:
            fetcher.collate_fn = self.function
        return result

    def _careful(self, function, *arguments):
        """What is not foreseen ends this alone."""
        own, torch = self.hub.own, self.hub.torch
        begin, own.depth = time.perf_counter_ns(), own.depth + 1
        try:
            with torch.no_grad():
                return function(*arguments)
        except Exception:
            self.left = 1
            return None
        finally:
            own.depth -= 1
            if own.depth == 0:
                self.hub.own_ns += time.perf_counter_ns() - begin

    def _copies(self, samples):
        if type(samples) is not list or len(samples) < 2 or OfCallables(self.hub).of(self.function):
            raise Unknown
        size = max(1, Name(self.hub.torch, samples[0]).bytes)
        if size * len(samples) > BYTES:
            raise Unknown
        few = max(FEWEST, 1 << (FEW_BYTES // size).bit_length() - 1)
        copies = mapped(self.hub.torch, samples, lambda tensor: tensor.clone(), _copy)
        return self.hub.again.random(), copies, min(few, len(samples))

    def _name(self, value):
        return Name(self.hub.torch, value).hash.digest()

    def _look(self, copies, result):
        before, samples, few = copies
        after = self.hub.again.random()
        if self._name(before) != self._name(after):
            return None  # it may choose samples at random
        try:
            with refusing(self.hub.torch), silent():
                made = self.function(list(samples))  # what a buffer of its own holds already
                if _addresses(self.hub.torch, made) & _addresses(self.hub.torch, result):
                    return None
                same = self._name(made) == self._name(result)
                return self._compare(samples[:few]) if same else None
        finally:
            self.hub.again.set_random(after)

    def _compare(self, samples):
        """Of whole samples, and of their fields, what events.def says of collated; or None."""
        self.end = time.thread_time_ns() + SPENT_NS
        names = [self._name(sample) for sample in samples]
        self.was = self._made(samples)
        if self._made(samples) != self.was or [self._name(sample) for sample in samples] != names:
            return None
        used, lost = self._parts(samples, names, None)
        if not used:
            return None
        found = [[len(samples), used, lost, self._in_rows(samples, used[0])]]
        rows = {len(t) for t in self._tensors(samples) if len(t.shape)}
        if lost or len(rows) != 1 or 2 * max(rows) > len(samples):
            return found
        for field in filter(lambda key: _is_content(samples[0][key]), _fields(samples[0])):
            used, lost = self._parts(samples, [self._name(s[field]) for s in samples], field)
            changed = _with(samples, used[0], used[0] - 1, field) if used else samples
            if self._name(self._tensors(changed)) != self._name(self._tensors(samples)):
                lost = lost if len(used) <= max(rows) else []  # else it says something of the batch
                found.append([len(samples), used, lost, True, str(field)])
        return found

    def _parts(self, samples, names, field):
        """Places of samples, or of a field of theirs, that have a part in the batch, and places of
        those that have none; of samples that are like no other one.
        """
        places = [place for place, name in enumerate(names) if names.count(name) == 1]
        places = places[-1:] + places[:-1]  # the last one is the likeliest to be left out
        parts = {}
        for place, other in zip(places, places[1:] + places[:1]):
            if time.thread_time_ns() > self.end:
                break
            parts[place] = self._changes(samples, place, other, field)
        used = [place for place, part in parts.items() if part]
        ends = {used[0], used[-1]} if used else ()
        for place in [place for place, part in parts.items() if not part]:
            # its content may have been of no importance next to that one, or be the best of them
            # wherever it stands
            if time.thread_time_ns() > self.end:
                del parts[place]
            elif ends:
                others = any(self._changes(samples, place, one, field) for one in ends)
                swapped = self._changes(samples, place, used[0], field, swap=True)
                parts[place] = others or not swapped
        places = (
            [place for place in sorted(parts) if parts[place] is part] for part in (True, False)
        )
        return tuple(places)

    def _tensors(self, samples):
        made = tensors_in(self.hub.torch, self.function(list(samples)), [])
        return [tensor.clone() for tensor in made]

    def _in_rows(self, samples, place):
        """Whether each sample has a row in the batch: another one changes that one alone."""
        made = [self._tensors(s) for s in (samples, _with(samples, place, place - 1, None))]
        pairs = [(a, b) for a, b in zip(*made) if len(a.shape) and a.shape == b.shape]
        rows = [int((a != b).reshape(len(a), -1).any(1).sum()) for a, b in pairs if a.numel()]
        return len(rows) == len(made[0]) > 0 and max(rows) == 1

    def _changes(self, samples, place, other, field, swap=False):
        """With another sample in the place of one, or with both in that of the other."""
        changed = _with(samples, place, other, field)
        if swap:
            changed[other] = _with(samples, other, place, field)[other]
        return self._made(changed) != self.was

    def _made(self, samples):
        try:
            return self._name(self.function(list(samples)))
        except Unknown:
            raise
        except Exception:  # it refuses these samples, so that they have a part in it
            return None


def _fields(sample):
    """Keys of its parts, where it is a dict or a tuple."""
    if type(sample) is dict:
        return list(sample)
    return range(len(sample)) if type(sample) in (list, tuple) else ()


def _is_content(value):
    """More than a number."""
    if hasattr(value, "shape"):
        return math.prod(value.shape) > 1
    return isinstance(value, (str, bytes, list, tuple, dict)) and len(value) > 1


def _with(samples, place, other, field):
    """With another sample, or its field, in the place of one."""
    out, new = list(samples), samples[other]
    if field is not None:
        parts = samples[place].copy() if type(new) is dict else list(samples[place])
        parts[field] = new[field]
        new = type(samples[place])(parts)
    out[place] = new
    return out


def _copy(value):
    if isinstance(value, PLAIN):
        return value
    if hasattr(value, "tobytes") and hasattr(value, "copy"):
        return value.copy()
    return copy.deepcopy(value)


def _addresses(torch, value):
    """Of what tensors and arrays of a batch are kept in."""
    found = {tensor.data_ptr() for tensor in tensors_in(torch, value, []) if tensor.numel()}
    parts = value.values() if isinstance(value, dict) else value
    for part in parts if isinstance(value, (dict, list, tuple)) else ():
        if hasattr(part, "__array_interface__"):
            found.add(part.__array_interface__["data"][0])
        elif isinstance(part, (dict, list, tuple)):
            found |= _addresses(torch, part)
    return found

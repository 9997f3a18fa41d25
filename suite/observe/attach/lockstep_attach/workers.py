"""Which random numbers the workers of a loader draw: a digest of each generator's state where a
worker begins, and whether its first batch has changed it. A worker writes one line for its process
into a file of the process that reads it. Of a loader without workers the same of its data set, at
the first batch of a pass.
"""

import contextlib
import functools
import hashlib
import json
import os
import random
import sys

from . import collate

PERIOD = 624  # numbers that a Mersenne Twister makes at once
MOST = 8  # generators of a data set's own
DEPTH = 3  # data sets within data sets, and what they are made of
PASSES = 64  # without workers, that are looked at


def _digest(value):
    return hashlib.blake2b(repr(value).encode(), digest_size=6).hexdigest()


def _own_state(torch, value):
    """The state of a generator object; None for anything else."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return value.bit_generator.state
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        state = value.get_state()
        return [p if isinstance(p, (str, int, float)) else p.tolist() for p in state]
    return None


def _is_part(torch, value):
    """A data set, or what changes samples."""
    if isinstance(value, (type, torch.Tensor, torch.nn.Module)) or not hasattr(value, "__dict__"):
        return False
    return hasattr(value, "__getitem__") or callable(value)


def _own(torch, holder, prefix, depth, out):
    """Generators among the members of a data set, and of what it holds."""
    for key, value in list(getattr(holder, "__dict__", {}).items()):
        if len(out) >= MOST:
            return
        state = _own_state(torch, value)
        if state is not None:
            out[prefix + key] = _digest(state)
        elif depth < DEPTH:
            parts = value if type(value) in (list, tuple) and len(value) <= 16 else [value]
            for place, part in enumerate(parts):
                if _is_part(torch, part):
                    _own(torch, part, "%s%s.%d." % (prefix, key, place), depth + 1, out)


def states_of(torch, dataset):
    """{name of a generator: digest of its state}"""
    out = {"random": _digest(random.getstate()), "torch": _digest(torch.get_rng_state().tolist())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state()
        out["numpy.random"] = _digest([state[1].tolist(), state[2:]])
    own = {}
    _own(torch, dataset, "dataset.", 0, own)
    return {**out, **own}


def _positions(torch):
    """How far torch's, Python's and NumPy's generators are in their period, which they go through
    one number after the other.
    """
    out = [-int(torch.get_rng_state()[8:12].view(torch.int32)), random.getstate()[1][-1]]
    numpy = sys.modules.get("numpy")
    return out + [numpy.random.get_state()[2]] if numpy is not None else out


def _said(torch, info, before, dataset, many):
    """Of generators that were drawn from. Torch's has another seed if it was seeded meanwhile; of
    others the state that they are in tells that of two ranks.
    """
    after = states_of(torch, dataset)
    used = {k: state for k, state in sorted(before.items()) if after.get(k) != state}
    left = {**after, "torch": _digest(torch.initial_seed())}
    number = info.id if info is not None else -1
    return [number, used, many, {k: left[k] for k in used if k in left}]


class Workers:
    """In the process of the loop, and in that of each worker."""

    def __init__(self, hub):
        self.hub = hub
        self.offset = 0
        self.lines = []
        self.seen = set()  # code of collate functions that a pass was looked at of
        self.passes = 0  # without workers

    def install(self):
        """By hand: the other stand-ins are silent in a worker."""
        kinds = self.hub.torch.utils.data.dataloader._DatasetKind
        original, workers = kinds.create_fetcher, self

        @functools.wraps(original)
        def create_fetcher(kind, dataset, *args, **kwargs):
            fetcher = original(kind, dataset, *args, **kwargs)
            try:
                workers.watch(fetcher, dataset, kind == kinds.Map)
                workers.watch_collate(fetcher)
            except Exception:  # a generator of a kind that is not foreseen
                pass
            return fetcher

        kinds.create_fetcher = staticmethod(create_fetcher)

    def path(self, process):
        return os.path.join(self.hub.settings.directory, "workers.%d" % process)

    # ---- in either -------------------------------------------------------------------------------

    def watch_collate(self, fetcher):
        """Of the script's own, which is given samples one by one."""
        info, function = self.hub.torch.utils.data.get_worker_info(), fetcher.collate_fn
        own = fetcher.auto_collation and collate.is_own(self.hub.torch, function)
        seen = collate.code_of(function) in self.seen
        if not own or seen or info is None and self.hub.quiet:
            return
        seed = None if info is None else info.seed - info.id

        def say(found):
            if seed is not None:
                self.write({"seed": seed, "collated": found})

        fetcher.collate_fn = fetcher.again = collate.Again(self.hub, fetcher, say)

    def watch(self, fetcher, dataset, is_map):
        """The first batch. In the process of the loop what the data set draws for it: not what the
        collate function does, such as a mask.
        """
        torch = self.hub.torch
        info = torch.utils.data.get_worker_info()
        if info is None and (self.hub.quiet or not is_map or self.passes == PASSES):
            return
        fetch, fetcher.drew = fetcher.fetch, []
        self.passes += 1

        def first(index):
            del fetcher.fetch  # the class's own from here on
            collate_fn, look = fetcher.collate_fn, self._begin(info, dataset, index, fetcher.drew)

            def collated(data):
                fetcher.collate_fn = collate_fn
                look()
                return collate_fn(data)

            if info is None:
                fetcher.collate_fn = collated
            try:
                data = fetch(index)
            finally:
                if fetcher.collate_fn is collated:
                    fetcher.collate_fn = collate_fn
            if info is not None:
                look()
            return data

        fetcher.fetch = first

    def _begin(self, info, dataset, index, drew):
        """What is to be called when the batch has been fetched; it adds to `drew`."""
        torch = self.hub.torch
        begun = []

        def look():
            with contextlib.suppress(Exception):  # a generator that is not foreseen, a full disk
                before, positions = begun
                drawn = [(b - a) % PERIOD for a, b in zip(positions, _positions(torch))]
                samples = len(index) if hasattr(index, "__len__") else 1
                drew.append(_said(torch, info, before, dataset, max(drawn) >= samples))
                if info is not None:
                    self.write({"seed": info.seed - info.id, "random": drew[0]})

        with contextlib.suppress(Exception):
            begun += states_of(torch, dataset), _positions(torch)
        return look

    # ---- in a worker -----------------------------------------------------------------------------

    def write(self, line):
        parent = sys.modules["multiprocessing.process"].parent_process()
        file = os.open(self.path(parent.pid), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, (json.dumps(line) + "\n").encode())
        finally:
            os.close(file)

    # ---- in the process of the loop --------------------------------------------------------------

    def of(self, seed):
        """What workers of the pass with that seed said: {"random": [[worker, {generator: digest of
        its state}, whether it drew a number for each sample]] of generators that were used,
        "collated": [of each batch what collate.py found]}.
        """
        try:
            with open(self.path(os.getpid()), "rb") as file:
                file.seek(self.offset)
                text = file.read()
        except OSError:
            return {}
        whole = text[: text.rfind(b"\n") + 1]
        self.offset += len(whole)
        self.lines += [json.loads(line) for line in whole.splitlines()]
        found = [line for line in self.lines if line["seed"] == seed]
        self.lines = [line for line in self.lines if line["seed"] != seed][-1024:]
        kinds = ("random", "collated")
        return {kind: [line[kind] for line in found if kind in line] for kind in kinds}

    def finish(self):
        try:
            os.unlink(self.path(os.getpid()))
        except OSError:
            pass

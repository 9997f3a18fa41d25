"""How far the process's generators of random numbers go from a batch to its forward (noise, masks),
in detailed steps and behind the first batches of passes. Of ranks that begin in the same state what
they draw is equal.
"""

import hashlib
import random
import sys

from .wrapping import given

SEEDS = 16  # calls that are written
PERIOD = 624  # numbers that the generator of a CPU makes at once
SEEDED = slice(0, 8)  # of its state: the seed
LEFT = slice(8, 12)  # a 32-bit count of those that are left
MADE = slice(24, 24 + 8 * PERIOD)  # the numbers that were made last
WORDS = ("random", "numpy.random")  # generators whose state ends with the place in it
PASSES, BATCHES = 16, 3  # the first ones are looked at; one may be fetched ahead


def _digest(data):
    return hashlib.blake2b(data, digest_size=6).hexdigest()


class Draws:
    def __init__(self, hub):
        self.hub = hub
        self.state = None  # {generator: its state}; None: nothing is looked at
        self.begun = 0  # the step whose first forward's states are written
        self.seeds = 0

    def install(self):
        self.hub.wrap(self.hub.torch, "manual_seed", self._seeded, None)

    def _seeded(self, args, kwargs):
        """Of all generators of the process."""
        seed = given(args, kwargs, "seed", 0)
        self.seeds += 1
        if self.seeds <= SEEDS and isinstance(seed, int):
            self.hub.put("seed", at=self.hub.places.here(), seed=seed)

    def batch(self, of):
        """The loop gets a batch of that pass."""
        early = of is not None and of.number < PASSES and of.given <= BATCHES
        self.state = self.states() if early or self.hub.steps.comes_in_detail() else None

    def forward(self, entry, samples):
        """The first of the batch, or of a detailed step."""
        before, self.state, step = self.state, None, self.hub.steps.now
        if before is None and (not step.detail or self.begun == step.number):
            return
        self.begun, now = step.number, self.states()
        drawn = self.between(before, now) if before is not None else []
        if drawn:
            entry.update(drawn=drawn, samples=samples)
        words = [str(_plain(now[name])) for name in now if name not in WORDS]
        entry["begins"] = _digest(" ".join(words).encode())

    def since(self):
        """What was drawn between the batch and its first forward in eval mode."""
        before, self.state = self.state, None
        return self.between(before, self.states()) if before is not None else []

    def between(self, before, now):
        """Of generators that were drawn from: [name, name of the state before, how many numbers]"""
        pairs = ((name, before[name], now[name]) for name in before if name in now)
        found = ((name, self._moved(name, *states)) for name, *states in pairs)
        return [[name, *moved] for name, moved in found if moved is not None]

    def states(self):
        torch, numpy = self.hub.torch, sys.modules.get("numpy")
        out = {"torch": torch.default_generator.get_state(), "random": random.getstate()[1]}
        if numpy is not None:
            _, keys, place, *_ = numpy.random.get_state()
            out["numpy.random"] = (keys.tobytes(), place)
        if torch.cuda.is_initialized() and hasattr(torch.Generator, "get_offset"):
            for place, one in enumerate(torch.cuda.default_generators):
                out["cuda:%d" % place] = (one.initial_seed(), one.get_offset())
        return out

    def _moved(self, name, before, after):
        """Where numbers were drawn: a name of the state before, and how many, or less by a multiple
        of PERIOD; None: not known.
        """
        if name in WORDS:
            words = (after[-1] - before[-1]) % PERIOD  # two of them make a number
            return (_digest(repr(before).encode()), (words + 1) // 2) if before != after else None
        if isinstance(before, tuple):
            return ("%x:%x" % before, None) if before != after else None
        if self.hub.torch.equal(before, after):
            return None
        kind, same = self.hub.torch.int32, before[SEEDED].equal(after[SEEDED])
        drawn = int(before[LEFT].view(kind)) - int(after[LEFT].view(kind))
        if not before[MADE].equal(after[MADE]):
            drawn += PERIOD
        return _digest(bytes(before.tolist())), drawn if same else None


def _plain(state):
    return state if isinstance(state, tuple) else state.tolist()

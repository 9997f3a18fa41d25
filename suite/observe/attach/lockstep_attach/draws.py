"""How far torch's generators of random numbers go in a detailed step from the batch to the forward
(noise, masks). Of ranks that begin in the same state what they draw is equal.
"""

import hashlib

from .wrapping import given

SEEDS = 16  # calls that are written
PERIOD = 624  # numbers that the generator of a CPU makes at once
LEFT = slice(8, 12)  # of its state: a 32-bit count of those that are left


def _digest(data):
    return hashlib.blake2b(data, digest_size=6).hexdigest()


class Draws:
    def __init__(self, hub):
        self.hub = hub
        self.state = None  # {generator: its state}; None: nothing is looked at
        self.seeds = 0

    def install(self):
        self.hub.wrap(self.hub.torch, "manual_seed", self._seeded, None)

    def _seeded(self, args, kwargs):
        """Of all generators of the process."""
        seed = given(args, kwargs, "seed", 0)
        self.seeds += 1
        if self.seeds <= SEEDS and isinstance(seed, int):
            self.hub.put("seed", at=self.hub.places.here(), seed=seed)

    def batch(self):
        """The loop gets a batch."""
        self.state = self._states() if self.hub.steps.comes_in_detail() else None

    def forward(self, entry, samples):
        """The first of the batch."""
        if self.state is None:
            return
        before, self.state, drawn = self.state, None, []
        now = self._states()
        for name, state in before.items():
            after = now.get(name)
            if isinstance(state, tuple):
                if after is not None and state != after:
                    drawn.append([name, "%x:%x" % state, None])
            elif not self.hub.torch.equal(state, after):
                digest = _digest(bytes(state.tolist()))
                drawn.append([name, digest, self._count(state, after)])
        if drawn:
            entry.update(drawn=drawn, samples=samples)
        if self.hub.steps.now.detail:
            words = [str(one if isinstance(one, tuple) else one.tolist()) for one in now.values()]
            entry["begins"] = _digest(" ".join(words).encode())

    def _states(self):
        torch = self.hub.torch
        out = {"torch": torch.default_generator.get_state()}
        if torch.cuda.is_initialized() and hasattr(torch.Generator, "get_offset"):
            for place, one in enumerate(torch.cuda.default_generators):
                out["cuda:%d" % place] = (one.initial_seed(), one.get_offset())
        return out

    def _count(self, before, after):
        """Numbers, or so many less by a multiple of PERIOD."""
        kind = self.hub.torch.int32
        return (int(before[LEFT].view(kind)) - int(after[LEFT].view(kind))) % PERIOD

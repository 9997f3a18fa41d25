"""How far the process's generators of random numbers go from a batch to its forward (noise, masks),
in detailed steps and behind the first batches of passes; and those that the script's objects hold,
to the end of the forward, in detailed steps. Of ranks that begin in the same state what they draw
is equal.
"""

import gc
import hashlib
import itertools
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
HELD = 16  # generators of objects: more are one for each sample, or for each worker
PCG64 = 0x2360ED051FC65DA44385DF649FCCF645  # multiplier of NumPy's default generator (O'Neill 2014)


def _digest(data):
    return hashlib.blake2b(data, digest_size=6).hexdigest()


class Draws:
    def __init__(self, hub):
        self.hub = hub
        self.state = None  # {generator: its state}; None: nothing is looked at
        self.begun = 0  # the step whose first forward's states are written
        self.seeds = 0
        self.held = None  # [[generator, its holder's name or None]]; None: not looked for
        self.held_states = None  # behind a batch
        self.open = None  # the forward whose end is awaited, its samples, the states before

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
        detail = self.hub.steps.comes_in_detail()
        self.state = self.states() if early or detail else None
        self.held_states = self._states_held() if detail else None

    def forward(self, entry, samples):
        """The first of the batch, or of a detailed step."""
        held, self.held_states = self.held_states, None
        if self.hub.steps.now.detail:
            self.open = entry, samples, held or self._states_held()
        before, self.state, step = self.state, None, self.hub.steps.now
        if before is None and (not step.detail or self.begun == step.number):
            return
        self.begun, now = step.number, self.states()
        drawn = self.between(before, now) if before is not None else []
        if drawn:
            entry.update(drawn=drawn, samples=samples)
        words = [str(_plain(now[name])) for name in now if name not in WORDS]
        entry["begins"] = _digest(" ".join(words).encode())

    def after(self, entry):
        """The forward is at its end."""
        if self.open is None or self.open[0] is not entry:
            return
        (_, samples, before), self.open = self.open, None
        drawn = []
        for one, old, new in zip(self.held or (), before, self._states_held()):
            moved = self._moved(old[0], old[1], new[1]) if old and new else None
            if moved is not None:
                one[1] = one[1] or _holder(one[0])
                drawn.append([old[0], *moved, one[1]])
        if drawn:
            entry.update(drawn_held=drawn, samples=samples)

    def _states_held(self):
        """[(kind, state)] of the generators that objects hold, from the second step on: a script
        may make them in its first one.
        """
        if self.held is None and self.hub.steps.done_now() > 0:
            found = _found(self.hub.torch, self.hub.places)
            self.held = [[one, None] for one in found] if len(found) <= HELD else []
        return [_state(self.hub.torch, one) for one, _ in self.held or ()]

    def since(self):
        """What was drawn between the batch and its first forward in eval mode."""
        before, self.state, self.held_states = self.state, None, None
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
        if name == "PCG64":
            count = _apart(*before, after[0])
            return (_digest(repr(before).encode()), count) if count else None
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


def _found(torch, places):
    """Generators of the process but its own. gc does not know torch's: those that objects of the
    script's classes hold, and modules whose functions run. Not locals: a frame that is asked for
    them keeps what they hold.
    """
    numpy, objects = sys.modules.get("numpy"), gc.get_objects()
    own = [torch.default_generator, *torch.cuda.default_generators, random.seed.__self__]
    # by ids of types: their hash may be a metaclass's
    kinds, classes = {id(random.Random)}, list(map(type, objects))
    if hasattr(numpy, "random") and hasattr(numpy.random, "Generator"):
        own.append(getattr(numpy.random.get_state, "__self__", None))
        kinds |= {id(numpy.random.Generator), id(numpy.random.RandomState)}
    ids = list(map(id, classes))
    found = list(itertools.compress(objects, map(kinds.__contains__, ids)))
    theirs = {key for key, kind in dict(zip(ids, classes)).items() if _is_of(places, kind)}
    mine = itertools.compress(objects, map(theirs.__contains__, ids))
    held = [members for members in map(_members, mine) if members]
    frame = sys._getframe(1)
    while frame is not None:
        if places.is_script(frame.f_code.co_filename):
            held.append(frame.f_globals)
        frame = frame.f_back
    values = [value for members in held for value in list(members.values())]
    values += [one for value in values if type(value) in (list, tuple) for one in value[:HELD]]
    found += [value for value in values if type(value) is torch.Generator]
    known = set(map(id, own))
    return list({id(one): one for one in found if id(one) not in known}.values())


def _members(one):
    try:
        return vars(one)
    except Exception:  # an object that stands for another, say
        return None


def _is_of(places, kind):
    """Whether the script defines the class, and objects of it have members."""
    module = sys.modules.get(getattr(kind, "__module__", None))
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and places.is_script(file) and "__dict__" in dir(kind)


def _state(torch, one):
    """(kind, state), or None."""
    if isinstance(one, torch.Generator):
        return ("torch", one.get_state()) if one.device.type == "cpu" else None
    if isinstance(one, random.Random):
        return "random", one.getstate()[1]
    state = getattr(one, "bit_generator", getattr(one, "_bit_generator", None)).state
    kind, inner = state["bit_generator"], state["state"]
    if kind == "MT19937":
        return "numpy.random", (inner["key"].tobytes(), inner["pos"])
    return (kind, (inner["state"], inner["inc"])) if kind == "PCG64" else None


def _apart(state, step, end):
    """How many numbers are between two states of PCG64 (Brown, Random number generation with
    arbitrary strides, 1994): a bit of that after the other.
    """
    whole, times, bit, count = 2**128 - 1, PCG64, 1, 0
    while state != end and bit <= whole:
        if (state ^ end) & bit:
            state, count = state * times + step & whole, count | bit
        step, times, bit = (times + 1) * step & whole, times * times & whole, bit << 1
    return count


def _holder(one):
    """Class and attribute of an object that holds it, or the name of a module's variable, or ""."""
    for holder in gc.get_referrers(one):
        members = getattr(holder, "__dict__", holder)
        if type(members) is not dict:
            continue
        names = [k for k, value in members.items() if value is one and isinstance(k, str)]
        if names and "__name__" in members:
            return names[0]
        owners = [holder] if holder is not members else gc.get_referrers(members)
        owners = [o for o in owners if getattr(o, "__dict__", None) is members]
        if names and owners:
            return "%s.%s" % (type(owners[0]).__name__, names[0])
    return ""

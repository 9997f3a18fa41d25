"""Steps that are counted off: while a job does in each step what it did in an earlier one, its
forwards, backwards, optimizer steps and zero_grads are compared with that one's by their order,
model, mode and optimizer alone. What differs is looked at as ever, and so is the rest of its step.
"""

import time

from .events import Late, Lazy, unlike, value_of
from .losses import multiplied
from .steps import NONE
from .wrapping import Counted, given

FROM = 48  # steps that are all looked at first
BASES = 32  # unlike steps that are remembered
# Members of calls that are of one step alone: a call that was counted off has none of them.
VALUES = {"input", "loss", "drawn", "samples", "begins", "finite"}


class Base:
    """A step that was looked at: its calls without values, and the trail's numbers of them."""

    def __init__(self, calls, numbers):
        self.entries = [_structure(call) for call in calls]
        self.numbers = numbers
        self.count = len(self.entries)
        # the Alike that wrote such calls whole, as those of which step, and whether each is the
        # entry itself: later steps name that one
        self.writer = self.number = None
        self.written, self.same = (), ()

    def wrote(self, writer, number, written):
        if len(written) == self.count:
            self.writer, self.number, self.written = writer, number, written
            self.same = [entry == call for entry, call in zip(self.entries, written)]

    def unlike(self, calls, transfer):
        """Of each call what the written one has not; None: it cannot be said so. transfer: None
        where nothing is to come from a device.
        """
        out = []
        for call, entry, old, same in zip(calls, self.entries, self.written, self.same):
            if call is entry and same:
                out.append({})
            elif transfer is None and Lazy in map(type, call.values()):
                return None
            elif call.keys() == old.keys():
                out.append(unlike(call, old, transfer))
            else:
                return None
        return out


def _structure(call):
    made = ((k, v.make() if v.__class__ is Late else v) for k, v in call.items())
    return {k: v for k, v in made if k not in VALUES and v.__class__ is not Lazy}


INNER = Counted()  # of a call within one that was, or that has nothing to be undone


class Thin:
    def __init__(self, hub):
        self.hub = hub
        self.base = None  # of the open step while it is counted off
        self.bases = {}  # by their numbers
        self.follows = {}  # numbers of a step: the Base of the one that came behind it
        self.last = None  # numbers of the last step

    # ---- steps -----------------------------------------------------------------------------------

    def begin(self, step, changed):
        """A step is opened; changed: what came since the last one's optimizer is new."""
        hub, number, inject = self.hub, step.number, self.hub.settings.inject
        self.base = None
        if number > FROM and not changed and not step.detail and not hub.models.compiles:
            steps = hub.steps
            looked = steps.schedule.wants(number + 1) or steps.thinned.take(number)
            if not looked and (inject is None or inject[0] != number):
                self.base = self.follows.get(self.last)

    def closed(self, step):
        """The Base that all of the step was compared with, or None. What the step did is expected
        again behind what it followed.
        """
        base, self.base = self.base, None
        before = self.last
        if step.number < FROM - BASES:
            return None
        numbers = tuple(self.hub.steps.trail.numbers)
        if base is not None and base.numbers == numbers:
            self.last = numbers
            return base
        if NONE in numbers or len(numbers) != len(step.calls):
            self.last = None
            return None
        known = self.bases.get(numbers)
        if known is None and not step.counted and not step.detail:
            if len(self.bases) >= BASES:
                self.bases, self.follows = {}, {}
            known = self.bases[numbers] = Base(step.calls, numbers)
        if known is not None and before is not None:
            self.follows[before] = known
        self.last = numbers
        return None

    # ---- calls -----------------------------------------------------------------------------------

    def counting(self, function):
        """enter(args, kwargs) of a call that may be counted off: a Counted, else None."""
        hub = self.hub

        def enter(args, kwargs):
            if self.base is None or hub.is_capturing():
                return None
            begin, own = time.perf_counter_ns(), hub.own_ns
            try:
                return function(args, kwargs)
            except Exception as error:
                hub.fail(error)
                return None
            finally:  # what hub.call() has added in between is part of it
                hub.own_ns = own + time.perf_counter_ns() - begin

        return enter

    def _expected(self, word, **members):
        """The base's call in this place, if it is of that word and has these members; None: from
        here on the step is looked at.
        """
        place, base = len(self.hub.steps.now.calls), self.base
        if base is not None and place < base.count:
            entry = base.entries[place]
            if entry["call"] == word and all([entry.get(k) == v for k, v in members.items()]):
                return entry
        self.base = None
        return None

    def _count(self, entry):
        """As the expected one, or one with values besides."""
        step = self.hub.steps.now
        self.hub.steps.trail.put(self.base.numbers[len(step.calls)])
        step.calls.append(entry)
        step.counted = True

    def _is_inner(self):
        hub = self.hub
        return hub.models.depth or hub.autograd.depth or hub.optimizers.active is not None

    def forward(self, args, kwargs):
        hub, step = self.hub, self.hub.steps.now
        if self._is_inner():
            return INNER if hub.optimizers.active is None else None
        model = hub.models.of(args[0])
        if model is None or model.kind == "replaced" or not hub.torch.is_grad_enabled():
            return None
        drawn = hub.draws.state is not None or hub.data.rows.open
        if drawn or not model.inner(args[0]).training:
            return None
        if step.asked:
            hub.call(hub.steps.close)
            step = hub.steps.now
        param = next((p for p in map(_trained, model.entries) if p is not None), None)
        kind = param.device.type if param is not None else "cpu"
        members = {"model": model.index, "training": True, "grad": True}
        if model.kind == "ddp":
            members["sync"] = args[0].require_backward_grad_sync
        expected = self._expected("forward", autocast=hub.autograd.autocast(kind), **members)
        if expected is None:
            return None
        if param is not None and (param.grad is None) != (expected.get("left") == 0):
            self.base = None  # the script clears gradients in another way
            return None
        self._count(expected)
        step.forward = True
        hub.models.forwards += 1
        hub.models.depth = 1
        first = hub.models.first_tensor((args[1:], kwargs))
        if first is not None and first.dim() > 0:
            step.images += int(first.shape[0])
        return Counted(self._leave_forward, time.perf_counter_ns())

    def _leave_forward(self, note):
        self.hub.models.depth = 0
        self.hub.steps.spend("forward", note.begin_ns)

    def backward(self, args, kwargs):
        hub, step = self.hub, self.hub.steps.now
        if hub.autograd.depth:
            return INNER
        root = args[0] if args else None
        plain = isinstance(root, hub.torch.Tensor) and root.numel() == 1
        if not plain or step.asked or hub.scalers.scaling or hub.models.bypassed is not None:
            return None
        expected = self._expected("backward", sync=hub.models.synced())
        if expected is None:
            return None
        loss = value_of(root)
        step.losses.append(loss)
        entry = dict(expected, loss=loss)
        if "multiplied" in expected:
            by = multiplied(hub.torch, root, given(args, kwargs, "grad_tensors", 1))
            entry["multiplied"] = 1 if by is None else by
            if isinstance(by, float):
                hub.steps.schedule.multiplied(step.number, by)
        self._count(entry)
        step.unused += 1
        hub.autograd.passes += 1
        hub.autograd.depth = 1
        return Counted(self._leave_backward, time.perf_counter_ns())

    def _leave_backward(self, note):
        self.hub.autograd.depth = 0
        self.hub.steps.spend("backward", note.begin_ns)

    def step(self, args, kwargs):
        hub, step, optimizer = self.hub, self.hub.steps.now, args[0]
        if hub.optimizers.active is not None:
            return INNER
        known = hub.optimizers.known(optimizer)
        if len(args) > 1 or kwargs or known is None or hub.scalers.stepper is not None:
            return None
        expected = self._expected("optimizer_step", optimizer=known.index)
        if expected is None:
            return None
        entry, rates = expected, expected["lr"]
        if not _has_rates(optimizer, rates):
            rates = hub.optimizers.rates(optimizer)
            entry = dict(expected, lr=rates)
        if "set" in expected:
            entry = dict(entry, set=hub.optimizers.changed(optimizer))
        if known.index == 0 and rates:
            step.lr = rates[0]
        self._count(entry)
        step.asked = True
        step.pending = step.unused = 0
        step.did.append(True)
        known.left = None
        hub.models.hold_modules()
        hub.optimizers.hold()
        hub.optimizers.active = optimizer
        return Counted(self._leave_step, time.perf_counter_ns())

    def _leave_step(self, note):
        hub, optimizer = self.hub, self.hub.optimizers.active
        hub.optimizers.active = None
        if hub.still.keeps():
            hub.call(hub.still.stepped, optimizer)
        hub.steps.spend("optimizer", note.begin_ns)

    def zero(self, args, kwargs):
        hub, step = self.hub, self.hub.steps.now
        if hub.optimizers.active is not None:
            return INNER
        known = hub.optimizers.known(args[0])
        if len(args) > 1 or kwargs or known is None or (step.unused and not step.asked):
            return None
        expected = self._expected("zero_grad", of="optimizer", optimizer=known.index)
        if expected is None:
            return None
        self._count(expected)
        step.pending = step.unused = 0
        return INNER


def _has_rates(optimizer, rates):
    """Whether its groups have these, as plain numbers."""
    groups = optimizer.param_groups
    if len(groups) != len(rates):
        return False
    for group, rate in zip(groups, rates):
        now = group.get("lr")
        if now.__class__ is not float or now != rate:
            return False
    return True


def _trained(entry):
    param = entry.ref()
    return param if param is not None and param.requires_grad else None

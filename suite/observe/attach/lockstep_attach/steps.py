"""What a step is: gathers its calls, and closes it into one event."""

import mmap
import os
import time

from . import detail
from .events import Late, summed, text

CALLS = 10000  # entries of a step: one that never ends does not grow without bound
SLOTS = 8192  # calls of a step, five bytes each; later ones are left out
KINDS = 4096  # unlike calls of a job; later ones are 0
FIRST, MORE = 11, 8  # detailed steps
CHANGES = 16  # steps that are looked at in detail because something has changed
NONE = b"0000 \0"  # of calls that have no number of their own
SHAPE = "call at model sync grad training autocast".split()  # of a call: what it does
NAMED = "call at op elements type reduce ranks root model grad sync mode of optimizer".split()


class Schedule:
    """Which steps are looked at in detail: 1, 2, 3, and one of every N, each 0 to 3 steps further
    on: scripts that train two networks in turn step each of them at even or odd steps alone. N
    doubles after FIRST of them, and after every MORE. And those behind a change, CHANGES at most.
    """

    SHIFTS, TRIES = 4, 3

    def __init__(self, every):
        self.every, self.count, self.limit = every, 0, FIRST
        self.unseen = {}  # optimizer: its last step, and how many were foretold
        self.extra = set()
        self.shapes, self.left = set(), CHANGES
        self.by, self.rises = None, []  # what a loss was multiplied by last; steps that it rose in

    def wants(self, step):
        block, place = divmod(step, self.every)
        return step <= 3 or place == block % min(self.SHIFTS, self.every) or step in self.extra

    def stepped(self, optimizer, step, is_detail):
        """An optimizer that steps rarely, and in no detailed step yet, is looked at when it steps
        again, as far from now as it last did.
        """
        last, tries = self.unseen.get(optimizer, (0, 0))
        if is_detail:
            tries = self.TRIES
        elif last < step and tries < self.TRIES:
            tries += 1
            self.extra.add(2 * step - last)
        self.unseen[optimizer] = (step, tries)

    def multiplied(self, step, by):
        """Of a scale of the script's own, which has risen twice: the step that it rises behind is
        looked at when it is to do so again, as far from now.
        """
        if self.by is not None and by > self.by and len(self.rises) < self.TRIES:
            self.rises.append(step)
            if len(self.rises) > 1:
                self.extra.add(2 * step - self.rises[-2] - 1)
        self.by = by

    def closed(self, step, shape):
        """Behind a step that is like none before the next one is looked at: what it does, on what
        it does it, or what came since is new.
        """
        if self.left > 0 and shape not in self.shapes:
            self.shapes.add(shape)
            if not self.wants(step + 1):
                self.left -= 1
                self.extra.add(step + 1)

    def take(self, step):
        """Asked for each step in order."""
        if not self.wants(step):
            return False
        self.count += 1
        if self.count >= self.limit:
            self.every *= 2
            self.limit += MORE
        return True


class Thinned:
    """Which of the numbers 1, 2, ... get digests, by the number alone, so that all ranks take the
    same steps: all up to 32, then one of each block of 2, of 4 from 64 on, up to 64. Its place in
    the block goes through all of them, so that what a script does in every fourth step, say, is
    met. Of models that a CPU takes long to read: all up to 8, one of each block of 2, of 4 from
    16 on.
    """

    ALL, BLOCK = 32, 64
    ALL_HEAVY, HEAVY = 8, 1 << 22  # 64-bit words: 32 MB, read in about 3 ms

    def __init__(self):
        self.all = self.ALL

    def weigh(self, tensors):
        """What the first digest is of."""
        words = sum(t.numel() * t.element_size() // 8 for t in tensors if t.is_cpu)
        if words > self.HEAVY:
            self.all = self.ALL_HEAVY

    def take(self, number):
        block = min(self.BLOCK, 1 << ((number - 1) // self.all).bit_length())
        index, place = divmod(number, block)
        return place == index * 5 % block


class Step:
    def __init__(self, number, is_detail):
        self.number = number
        self.detail = is_detail
        self.calls = []
        self.asked = False  # an optimizer was asked to step
        self.changed = set()  # what no call shows: a pass has ended, a group was added
        self.pending = 0  # scaled backward calls whose gradients no scaler or zero_grad has seen
        self.unused = 0  # backward calls that no step or zero_grad has followed
        self.forward = False  # a training forward of a known model was seen
        self.tail = None  # place in calls of the first forward in eval mode after that
        self.losses = []
        self.scale = self.scale_next = None
        self.did = []  # of each optimizer that was asked: True, False, or a Lazy of that
        self.lr = None
        self.images = 0
        self.counted = False  # a call was only counted off (thin.py)
        self.digest = None  # taken before the step was closed
        self.saved = None  # taken at the last save since the step
        self.moved = False  # something else than its optimizers changed parameters before that
        self.spent = {"data": 0, "forward": 0, "backward": 0, "optimizer": 0}


class Trail:
    """The calls of the open step, in memory that the system keeps where the process is killed.

    `open.rank<k>`: the number of the open step, and a number for each of its calls; what a
    number means is an event of its own. It costs a store in memory, no call of the system.
    """

    def __init__(self, hub):
        self.hub = hub
        self.memory = None
        self.known = {}  # by members: the number as it is written
        self.late = []  # events of numbers that the file of the rank does not have yet
        self.count = 0
        self.numbers = []  # of the open step

    def open(self, step):
        """The rank has its file now; `step` is what it was doing until then."""
        path = os.path.join(self.hub.writer.directory, "open.rank%d" % self.hub.rank())
        size = 11 + 5 * (SLOTS + 1)
        try:
            with open(path, "w+b") as file:
                os.ftruncate(file.fileno(), size)
                self.memory = mmap.mmap(file.fileno(), size)
        except (OSError, ValueError):  # not every file system maps files
            return
        for event in self.late:
            self.hub.writer.now(event)
        self.late = []
        self.begin(step)

    def begin(self, step):
        self.count, self.numbers = 0, []
        if self.memory is not None:
            self.memory[0:12] = b"%10d\n\0" % step.number
        for entry in step.calls:
            self.add(entry)

    def add(self, entry):
        key = tuple(map(entry.get, NAMED))
        if key[-1].__class__ is Late:  # an optimizer that has no number yet
            key = (*key[:-1], None)
        number = self.known.get(key)
        self.put(self._learn(key) if number is None else number)

    def put(self, number):
        self.numbers.append(number)
        if self.memory is not None and self.count < SLOTS:
            begin = 11 + 5 * self.count
            self.memory[begin : begin + 6] = number
            self.count += 1

    def _learn(self, key):
        number = len(self.known) + 1
        if number > KINDS:
            return NONE
        written = self.known[key] = b"%04x \0" % number
        event = {"event": "call", "number": number}
        for name, value in zip(NAMED, key):
            if value is not None:
                event[name] = text(value) if value.__class__ is str else value
        if self.memory is not None:
            self.hub.writer.now(event)
        else:
            self.late.append(event)
        return written

    def close(self):
        """Also in a forked child, whose parent goes on with the file."""
        if self.memory is not None:
            self.memory.close()
            self.memory = None


class Steps:
    def __init__(self, hub):
        self.hub = hub
        self.schedule = Schedule(hub.settings.every)
        self.done = 0
        self.thinned = Thinned()
        self.weighed = False
        self.turns = 0  # from training to something else
        self.turned = False  # in the step before: this one has digests, too
        self.begun_ns = time.perf_counter_ns()
        self.own_before = 0
        self.detail = detail.Detail(hub)
        self.trail = Trail(hub)
        self.now = None
        self._begin(True)

    def _begin(self, changed):
        self.now = Step(self.done + 1, self.schedule.take(self.done + 1))
        if self.now.detail:
            self.hub.models.refresh()
        self.detail.begin(self.now)
        self.trail.begin(self.now)
        self.hub.thin.begin(self.now, changed)

    def abandon(self):
        self.detail.drop()

    # ---- what the other parts report -------------------------------------------------------------

    def note(self, call, **members):
        """Appends a call to the step; its entry, to be completed."""
        entry = {"call": call, "at": self.hub.places.here(), **members}
        if len(self.now.calls) < CALLS:
            self.now.calls.append(entry)
            self.trail.add(entry)
        return entry

    def spend(self, phase, begin_ns):
        self.now.spent[phase] += time.perf_counter_ns() - begin_ns

    def turn(self):
        """The script turns from training to something else (a pass over data has ended, a
        validation or a restore begins): the open step's digests are those of now, and the next step
        has some, too.
        """
        self.hub.shadows.leave()
        self.now.changed.add("turn")
        if not self.now.asked or self.now.digest is not None:
            return
        self.turns += 1
        if self.thinned.take(self.turns):
            self.now.moved = self.hub.still.is_other()
            self.now.digest = self._digest()

    def saving(self):
        """One rank may save, and weights may change behind it, on all: no turn. Behind the last
        step they may change on that rank alone: the digests of now are kept for it.
        """
        self.hub.shadows.leave()
        if self.now.asked:
            self.now.saved = self._digest(), self.hub.still.is_other()

    def before_forward(self, training, grad):
        """A forward of a known model comes: the first one of the next step closes this one."""
        self.hub.shadows.leave()
        if not grad:
            self.turn()
            return
        if not self.hub.first_forward_ns:
            self.hub.first_forward_ns = time.perf_counter_ns()
            self.begun_ns, self.own_before = self.hub.first_forward_ns, self.hub.own_ns
        if self.hub.optimizers.active is not None:
            return  # a closure's
        if training:
            if self.now.asked:
                self.close()
            if self.now.detail:
                self.hub.averages.opened(first=not self.now.forward)
            self.now.forward = True
        elif self.now.asked and self.now.tail is None:
            self.now.tail = len(self.now.calls)

    def before_scale(self):
        """scale() belongs to the step of the backward that follows it."""
        self._close_at_backward()

    def before_backward(self):
        """A backward comes: it closes the step where no training forward has done so."""
        self._close_at_backward()
        if not self.hub.first_forward_ns:
            self.hub.first_forward_ns = time.perf_counter_ns()

    def _close_at_backward(self):
        if self.now.asked and self.hub.optimizers.active is None:
            # Forwards in eval mode with gradients, just before, were this backward's.
            moved = []
            if self.now.tail is not None:
                moved = self.now.calls[self.now.tail :]
                del self.now.calls[self.now.tail :]
            self.close()
            self.now.calls.extend(moved)
            self.trail.begin(self.now)

    def ask(self, optimizer, did):
        """An optimizer was asked to step; `did` says whether it did."""
        index = self.hub.optimizers.index_of(optimizer)
        self.schedule.stepped(index, self.now.number, self.now.detail)
        self.now.asked = True
        self.now.pending = self.now.unused = 0
        self.now.did.append(did)
        self.hub.models.hold()
        self.hub.optimizers.hold()
        if self.comes_in_detail():
            self.hub.outside.begin()
        self.hub.activate()

    def comes_in_detail(self):
        """Whether the next training forward is looked at."""
        now = self.now
        return self.schedule.wants(now.number + 1) if now.asked else now.detail

    def done_now(self):
        """Steps that the script has done: the open one counts where an optimizer was asked."""
        return self.done + (1 if self.now.asked else 0)

    # ---- closing ---------------------------------------------------------------------------------

    def close_last(self):
        if self.now.asked:
            self.close(last=True)
        self.detail.drop()

    def unfinished(self):
        """The calls of the job's end, where a backward was followed by no step."""
        calls = self.now.calls
        if not self.now.asked and any(call["call"] == "backward" for call in calls):
            self.hub.put("unfinished", calls=calls)

    def close(self, last=False):
        step, hub = self.now, self.hub
        hub.shadows.leave()
        base = hub.thin.closed(step)
        if base is not None and not last and self._close_counted(step, base):
            return
        if self.schedule.left > 0 and base is None:
            self.schedule.closed(step.number, self._shape(step))
        now = time.perf_counter_ns()
        total = now - self.begun_ns
        self.done = step.number
        hub.averages.closed(step.number)
        samples = self.detail.close(step)
        event = self._event(step, samples)
        early = step.digest is not None
        if last and not early:
            step.digest, step.moved = step.saved or (None, hub.still.is_other())
        last = last or step.number == hub.settings.steps
        if early or last or step.detail or self.turned or self.thinned.take(step.number):
            event["digest"], models = step.digest or self._digest()
            if models != 1:
                event["digested"] = models
            if step.moved:
                event["moved"] = True
        self.turned = early
        spent = dict(total=total, **step.spent, instrument=hub.own_ns - self.own_before)
        event["ms"] = {key: round(ns / 1e6, 3) for key, ns in spent.items()}
        event["at_ns"] = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        event["detail"] = samples
        if step.counted:
            event["counted"] = True
        if step.detail:
            event["statistics"] = hub.models.statistics()
        event["calls"] = step.calls
        if base is not None:
            event["base"] = base
        hub.writer.put(event)
        hub.models.release()
        hub.optimizers.release()
        self.begun_ns, self.own_before = now, hub.own_ns
        self._begin(bool(step.changed))
        if hub.settings.steps and self.done >= hub.settings.steps:
            hub.end("steps")

    def _close_counted(self, step, base):
        """A step that was counted off whole, on the host: its line as it is; False: the usual way
        is needed.
        """
        hub, number, now = self.hub, step.number, time.perf_counter_ns()
        if step.digest is not None or step.changed or hub.averages.twins or hub.settings.steps:
            return False
        own = (now - self.begun_ns, *step.spent.values(), hub.own_ns - self.own_before)
        loss = summed(step.losses)
        facts = number, loss, hub.scalers.scale_now(), step.lr, step.images, own
        if not hub.writer.put_counted(base, step.calls, facts):
            return False
        self.done, self.turned = number, False
        hub.models.release()
        hub.optimizers.release()
        self.begun_ns, self.own_before = now, hub.own_ns
        self._begin(False)
        return True

    def _shape(self, step):
        calls = {(*map(call.get, SHAPE), _cuts(call)) for call in step.calls}
        return hash((frozenset(calls), frozenset(step.changed), self.hub.models.shape()))

    def _event(self, step, samples):
        scale = step.scale if step.scale is not None else self.hub.scalers.scale_now()
        after = step.scale_next if step.scale_next is not None else scale
        return {
            "event": "step",
            "step": step.number,
            "loss": summed(loss for loss in step.losses if loss is not None),
            "loss_scale": scale,
            "loss_scale_next": after,
            "skipped": self._skipped(step),
            "lr": step.lr,
            "images": step.images,
        }

    def _skipped(self, step):
        if any(did is True for did in step.did):
            return False
        lazies = [did for did in step.did if isinstance(did, self.hub.Lazy)]
        if not lazies:
            return True
        # each Lazy of an optimizer that unscales by itself is its found_inf: it did step where that
        # is 0
        return self.hub.Lazy(
            [did.tensors[0] for did in lazies], lambda *found: all(value != 0 for value in found)
        )

    def _digest(self):
        """(digests of all models and optimizers, how many models there are)."""
        digests, models = self.hub.digests, self.hub.models
        params, state = models.all_params(), self.hub.optimizers.all_state()
        if not self.weighed and not self.hub.scalers.scaling:
            self.thinned.weigh(params + state)  # a skip is told by the digests around it
        self.weighed = True
        buffers, count = models.all_buffers(), len(models.live())
        found = {"param": params, "state": state, "buffer": buffers}
        return {word: digests.digest(tensors) for word, tensors in found.items()}, count


def _cuts(call):
    """Whether a clip changes gradients, where the host knows their norm."""
    norm, limit = call.get("norm"), call.get("limit")
    return isinstance(norm, float) and limit is not None and norm > limit

"""Which rows of the first batches of a loader training forwards get, as they are, whether their
gradient is asked for, and whether their loss gets the labels that came with them. What a script
changes before (types, noise, a mean over rows) is not found again, and says nothing.
"""

import collections
import itertools
import types

from .losses import DEEP, nodes_from, saved
from .records import Reason, tensors_in, tensors_of
from .wrapping import stand_in

LOADERS, BATCHES, FORWARDS = 4, 32, 512  # of the job; of each of them; of the job
LATER = 4  # batches that a script may ask for before it uses one
MANY = 8  # labels of a batch: fewer are alike by chance
ROWS, TENSORS, LEAST = 256, 8, 4  # of a batch; of it, and of a forward; numbers of a row


class Batch:
    def __init__(self, order, entry, drawn, keys, passes):
        self.order, self.pass_number, self.drawn = order, entry.number, drawn
        self.keys, self.passes = keys, passes  # passes: backward passes before it
        self.rows, self.labels = 0, []  # labels: of each row one number


class Forward:
    def __init__(self, order, model, trains, at):
        self.order, self.model, self.trains, self.at = order, model, trains, at
        self.keys, self.rows, self.reached = [], 0, False
        self.targets = None  # of the losses of the first backward pass that came to it


class Rows:
    def __init__(self, hub, keys):
        self.hub, self.key = hub, keys.of
        self.order = 0
        self.batches, self.forwards = {}, []  # number of a loader: its batches
        self.targets = []  # of the last backward pass
        self.inner = {}  # owner of the forward, by class; owners share one that stands in
        self.stands = {}  # (forward, what stands in for it), by owner
        self.open = False

    # ---- while the job runs ----------------------------------------------------------------------

    def _keys(self, tensors):
        """Of those with rows that name a sample."""
        plain = (t.detach() for t in tensors if self._is_plain(t) and t.dim() > 1 and len(t))
        wide = [t for t in plain if t.numel() // len(t) >= LEAST]
        return [keys for keys in map(self.key, wide[:TENSORS]) if len(keys)]

    def _is_plain(self, tensor):
        torch = self.hub.torch
        odd = tensor.is_nested or tensor.is_meta or tensor.is_complex()
        return type(tensor) is torch.Tensor and tensor.layout == torch.strided and not odd

    def batch(self, entry, drawn, tensors):
        """A loop gets it; `drawn`: indices, or None."""
        number = entry.facts.get("loader", LOADERS)
        if len(self.forwards) >= FORWARDS and self.open:
            self._close()
        if number >= LOADERS or len(self.forwards) >= FORWARDS:
            return
        mine = self.batches.setdefault(number, [])
        if len(mine) > BATCHES + LATER and not self.open:
            return
        if len(mine) <= BATCHES + LATER:
            self.order += 1
            step = max(1, -(-len(tensors[0]) // ROWS)) if tensors else 1
            keys = self._keys([tensor[::step] for tensor in tensors])
            mine.append(Batch(self.order, entry, drawn, keys, self.hub.autograd.passes))
            mine[-1].rows = len(tensors[0]) if tensors else 0
            classes = (t for t in tensors if self._is_plain(t) and not t.is_floating_point())
            mine[-1].labels = [_flat(t) for t in classes if t.numel() == len(t) <= ROWS]
        self.open = any(len(found) <= BATCHES + LATER for found in self.batches.values())
        if not self.open:
            self._close()

    def forward(self, entry, args, kwargs):
        """Of a known model; the Forward, or None."""
        if not self.open or len(self.forwards) >= FORWARDS:
            return None
        self.order += 1
        trains = entry["grad"] and entry["training"]
        made = Forward(self.order, entry["model"], trains, entry["at"])
        made.keys = self._keys(tensors_in(self.hub.torch, (args, kwargs), []))
        made.rows = len(made.keys[0]) if made.keys else 0
        self.forwards.append(made)
        return made if entry["grad"] else None

    def inside(self, module):
        """The module in a wrapper: meanwhile forwards are seen that the script calls by itself."""
        kind = type(module)
        if not self.open or kind in self.inner:
            return
        owner = next((one for one in kind.__mro__ if "forward" in vars(one)), kind)
        function = vars(owner).get("forward")
        ours = getattr(function, "_ls_self", None) is function
        self.inner[kind] = owner
        if isinstance(function, types.FunctionType) and not ours:
            made = owner.forward = stand_in(self.hub, function, self._enter_inner)
            self.stands[owner] = (function, made)

    def hand_over(self, kind):
        """Another one stands in for the forward of that class, and calls `inner_forward`."""
        self._stand_back(self.inner.get(kind))

    def _stand_back(self, owner):
        function, made = self.stands.pop(owner, (None, None))
        if made is not None and vars(owner).get("forward") is made:
            owner.forward = function

    def inner_forward(self, args, kwargs):
        if type(args[0]) in self.inner:
            self._enter_inner(args, kwargs)

    def _enter_inner(self, args, kwargs):
        if self.open and not self.hub.models.depth and not self.hub.autograd.depth:
            entry = {"grad": self.hub.own.grad, "training": False, "model": -1, "at": ""}
            made = self.forward(entry, args[1:], kwargs)
            if made is not None:
                made.reached = True  # not known

    def _close(self):
        self.open = False
        for owner in list(self.stands):
            self._stand_back(owner)
        self.inner = {}

    def returns(self, made, result):
        try:
            nodes = [tensor.grad_fn for tensor in tensors_of(self.hub.torch, result, [])]
        except Reason:
            nodes = []
        nodes = [node for node in nodes if node is not None]
        made.reached = not 0 < len(nodes) <= TENSORS  # not known
        for node in nodes[:TENSORS]:
            node.register_hook(lambda *_: self._reach(made))

    def _reach(self, made):
        """A backward pass comes to an output of it; or autograd.grad: its targets are not known."""
        made.reached = True
        if made.targets is None and self.hub.autograd.depth:
            made.targets = self.targets

    def backward(self, roots):
        self.targets = []
        if self.open:
            nodes = itertools.islice(nodes_from([root.grad_fn for root in roots]), DEEP)
            found = [saved(node, "_saved_target") for node in nodes if node is not None]
            tensor = self.hub.torch.Tensor
            found = [t for t in found if isinstance(t, tensor) and self._is_plain(t)]
            self.targets = [_flat(t) for t in found if MANY <= t.numel() <= ROWS]

    # ---- at its end ------------------------------------------------------------------------------

    def finish(self):
        try:
            self._finish()
        except RuntimeError:  # of a device that failed
            pass

    def _finish(self):
        sets = [{k for keys in made.keys for k in keys.tolist()} for made in self.forwards]
        for number, batches in self.batches.items():
            found = self._look(batches, sets)
            if any(max(runs[::2]) > 2 for *_, runs in found):
                used = [made for made in self.forwards if made.reached]
                labels = self._labels(batches[:BATCHES])
                self.hub.put("rows", loader=number, at=used[0].at, batches=found, labels=labels)

    def _look(self, batches, sets):
        """Of each batch: its pass, indices, rows, backward passes until the next one, rows of
        forwards until then whose gradient was asked for, and what became of its rows, as [what,
        how many in a row, ...]: 0: no forward got them, 1: others did, 2: training forwards without
        a backward, 2 + n: n of one model's with one, -1: not known.
        """
        out = []
        for place, batch in enumerate(batches[:BATCHES]):
            after = batches[place + 1 :]
            later = [one for one in after if one.pass_number != batch.pass_number]
            until = sorted([*later, *after[LATER:]], key=lambda one: one.order)
            following = after[0] if after else None
            near, count, end = [], 0, until[0].order if until else self.order + 1
            for made, keys in zip(self.forwards, sets):
                if batch.order < made.order < end:
                    near.append((made, keys))
                if batch.order < made.order < (following.order if following else end):
                    count += made.rows if made.reached else 0
            passes = (following.passes if following else self.hub.autograd.passes) - batch.passes
            facts = [batch.pass_number, batch.drawn, batch.rows, passes, count]
            out.append([*facts, _runs(self._states(batch, batches, near))])
        while out and max(out[-1][-1][::2]) < 2:  # the job may have ended before
            out.pop()
        return out

    def _labels(self, batches):
        """Forwards of rows of one batch whose loss got targets; those of them whose targets are the
        labels of the same rows, of these rows of another batch, and of the rows beside them.
        """
        counts = [0, 0, 0, 0]
        for made in self.forwards:
            before = [batch for batch in batches if batch.order < made.order]
            targets = [target.tolist() for target in made.targets or ()]
            rows = next(filter(None, (_rows_of(k.tolist(), before) for k in made.keys)), None)
            if not rows or not any(len(set(target)) > 1 for target in targets):
                continue
            counts[0] += 1
            place, places = rows
            own, size = batches[place].labels, batches[place].rows
            near = batches[max(0, place - LATER) : place] + batches[place + 1 : place + 1 + LATER]
            tries = ([(one, 0) for one in own],)
            tries += ([(one, 0) for batch in near for one in batch.labels],)
            # of two classes in turn, the labels beside are the other ones; steps of a sequence,
            # of which one is left out, may be given the label of the next
            several = [one for one in own if len(one.unique()) > 2 and len(places) == size]
            tries += ([(one, shift) for one in several for shift in (1, -1)],)
            for kind, labels in enumerate(tries, 1):
                shifted = (one.roll(-shift) for one, shift in labels if len(one) == size)
                if any(one[places].tolist() in targets for one in shifted):
                    counts[kind] += 1
                    break
        return counts

    def _states(self, batch, batches, near):
        same = [one for one in batches if one.pass_number == batch.pass_number]
        seen = collections.Counter(k for one in same for keys in one.keys for k in keys.tolist())
        states = [-1] * max(map(len, batch.keys), default=0)
        for keys in batch.keys:
            for row, key in enumerate(keys.tolist()):
                if seen[key] == 1:  # in two rows, it names none of them
                    states[row] = max(states[row], _state(key, near))
        return states


def _state(key, near):
    held = [made for made, keys in near if key in keys]
    models = collections.Counter(made.model for made in held if made.reached)
    if models:
        return 2 + max(models.values())
    return 2 if any(made.trains for made in held) else min(1, len(held))


def _runs(states):
    out = []
    for state in states or [-1]:
        if out and out[-2] == state:
            out[-1] += 1
        else:
            out += [state, 1]
    return out


def _flat(tensor):
    return tensor.detach().reshape(-1).clone()


def _rows_of(keys, batches):
    """(place of the last batch that has all rows with these keys, their places in it), or None."""
    for place in range(len(batches) - 1, max(-1, len(batches) - 2 - LATER), -1):
        for known in batches[place].keys:
            where = {key: row for row, key in enumerate(known.tolist())}
            if len(where) == batches[place].rows and all(key in where for key in keys):
                return place, [where[key] for key in keys]
    return None

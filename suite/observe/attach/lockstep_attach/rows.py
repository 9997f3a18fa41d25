"""Which rows of the first batches of a loader training forwards get, as they are, and whether their
gradient is asked for. What a script changes before (types, noise, a mean over rows) is not found
again, and says nothing.
"""

import collections

from .records import Reason, tensors_in, tensors_of

LOADERS, BATCHES, FORWARDS = 4, 32, 512  # of the job; of each of them; of the job
LATER = 4  # batches that a script may ask for before it uses one
ROWS, TENSORS, LEAST = 256, 8, 4  # of a batch; of it, and of a forward; numbers of a row


class Batch:
    def __init__(self, order, entry, drawn, keys, passes):
        self.order, self.pass_number, self.drawn = order, entry.number, drawn
        self.keys, self.passes = keys, passes  # passes: backward passes before it
        self.rows = 0


class Forward:
    def __init__(self, order, model, trains, at):
        self.order, self.model, self.trains, self.at = order, model, trains, at
        self.keys, self.rows, self.reached = [], 0, False

    def reach(self, *_):
        """A backward pass comes to an output of it."""
        self.reached = True


class Rows:
    def __init__(self, hub, keys):
        self.hub, self.key = hub, keys.of
        self.order = 0
        self.batches, self.forwards = {}, []  # number of a loader: its batches
        self.open = False

    # ---- while the job runs ----------------------------------------------------------------------

    def _keys(self, tensors):
        """Of those with rows that name a sample."""
        wide = (t for t in tensors if t.dim() > 1 and t.shape[0] and t[0].numel() >= LEAST)
        strided = self.hub.torch.strided
        plain = [t.detach() for t in wide if t.layout == strided and not t.is_complex()]
        return [keys for keys in map(self.key, plain[:TENSORS]) if len(keys)]

    def batch(self, entry, drawn, tensors):
        """A loop gets it; `drawn`: indices, or None."""
        number = entry.facts.get("loader", LOADERS)
        if number >= LOADERS or len(self.forwards) >= FORWARDS:
            return
        mine = self.batches.setdefault(number, [])
        if len(mine) <= BATCHES + LATER:
            self.order += 1
            step = max(1, -(-len(tensors[0]) // ROWS)) if tensors else 1
            keys = self._keys([tensor[::step] for tensor in tensors])
            mine.append(Batch(self.order, entry, drawn, keys, self.hub.autograd.passes))
            mine[-1].rows = len(tensors[0]) if tensors else 0
        self.open = any(len(found) <= BATCHES + LATER for found in self.batches.values())

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

    def returns(self, made, result):
        try:
            nodes = [tensor.grad_fn for tensor in tensors_of(self.hub.torch, result, [])]
        except Reason:
            nodes = []
        nodes = [node for node in nodes if node is not None]
        made.reached = not 0 < len(nodes) <= TENSORS  # not known
        for node in nodes[:TENSORS]:
            node.register_hook(made.reach)

    # ---- at its end ------------------------------------------------------------------------------

    def finish(self):
        sets = [{k for keys in made.keys for k in keys.tolist()} for made in self.forwards]
        for number, batches in self.batches.items():
            found = self._look(batches, sets)
            if any(max(runs[::2]) > 2 for *_, runs in found):
                used = [made for made in self.forwards if made.reached]
                self.hub.put("rows", loader=number, at=used[0].at, batches=found)

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

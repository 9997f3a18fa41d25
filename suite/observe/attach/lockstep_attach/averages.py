"""Averages of weights: torch.optim.swa_utils.AveragedModel, and classes made from it, where they
are updated and run; copies of a trained model that a script averages by itself, where it puts them
in eval mode.
"""

from .wrapping import ByObject, given

ELEMENTS = 1024  # of a parameter, in detailed steps
NORMS = 4  # of a copy, that are looked at


class Averages:
    def __init__(self, hub):
        self.hub = hub
        self.numbers = ByObject()
        self.updated = set()  # numbers of those that have been updated
        self.copies = ByObject()  # Snapshots of the last time they were put in eval mode

    def install(self):
        kind = self.hub.torch.optim.swa_utils.AveragedModel
        self.hub.wrap(kind, "update_parameters", self._enter_update, self._leave_update)
        self.hub.wrap(kind, "forward", self._enter_forward)

    def _note(self, what, average, **members):
        number = self.numbers.number(average)
        return self.hub.steps.note("average", what=what, average=number, **members)

    def _enter_update(self, args, kwargs):
        average = args[0]
        entry = self._note("update", average)
        number, first = entry["average"], entry["average"] not in self.updated
        self.updated.add(number)
        model = given(args, kwargs, "model", 1)
        if first or not self.hub.steps.now.detail or model is None:
            return None  # the first one is a copy
        pair = self._pair(average, model)
        return None if pair is None else (entry, pair, self._sample(pair[0]), self._sample(pair[1]))

    def _pair(self, average, model):
        """The average's and the model's largest parameter."""
        kept = [p for p in average.module.parameters() if p.is_floating_point()]
        own = [p for p in model.parameters() if p.is_floating_point()]
        if not own or len(kept) != len(own):
            return None
        place = max(range(len(own)), key=lambda i: own[i].numel())
        return (kept[place], own[place]) if kept[place].shape == own[place].shape else None

    def _sample(self, param):
        """Elements, in FP64 where they are."""
        flat = param.detach().reshape(-1)
        return flat[:: max(1, flat.numel() // ELEMENTS)].to("cpu", self.hub.torch.float64)

    def _leave_update(self, note, args, kwargs, result, error):
        if note is None or error is not None:
            return
        entry, (kept, _), before, own = note
        way, moved = own - before, self._sample(kept) - before
        square = float((way * way).sum())
        if square > 0:
            entry["share"] = float((way * moved).sum()) / square

    def _enter_forward(self, args, kwargs):
        self._note("forward", args[0])

    # ---- copies that the script averages ---------------------------------------------------------

    def look_at(self, root):
        """At root.eval(), which is no known model: whether the parameters of a copy of one have
        moved since the last time, and the statistics of its norms have not, while those of the
        model have.
        """
        models = {type(inner): inner for inner in self.hub.models.roots()}
        for part in root.modules() if models else ():
            model = models.get(type(part))
            if model is None or model is part:
                continue
            norms = _norms(part)
            own = _norms(model)[: len(norms)]
            param = max(part.parameters(), key=lambda p: p.numel(), default=None)
            trained = param is None or param.requires_grad and param.grad is not None
            if not norms or len(own) != len(norms) or trained:
                continue
            now = Snapshot(self._sample(param), _statistics(norms), _statistics(own))
            before = self.copies.get(part)
            self.copies.put(part, now)
            if before is not None and now.stale(before):
                self._note("stale", part, norms=len(norms))


class Snapshot:
    def __init__(self, weights, statistics, of_model):
        self.weights, self.statistics, self.of_model = weights, statistics, of_model

    def stale(self, before):
        return (
            not bool((self.weights == before.weights).all())
            and self.statistics == before.statistics
            and self.of_model != before.of_model
        )


def _norms(module):
    """Norms with running statistics."""
    found = [m for m in module.modules() if getattr(m, "running_mean", None) is not None]
    return found[:NORMS]


def _statistics(norms):
    return [float(m.running_mean.detach().double().sum()) for m in norms]

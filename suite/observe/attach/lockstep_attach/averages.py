"""Averages of weights (torch.optim.swa_utils.AveragedModel, and classes made from it): where they are updated and run."""

import sys
import weakref


class Averages:
    def __init__(self, hub):
        self.hub = hub
        self.by_id = {}  # id of an average: (weak reference, number)

    def install(self):
        module = sys.modules.get("torch.optim.swa_utils")
        kind = getattr(module, "AveragedModel", None)
        if kind is None:
            return
        self.hub.wrap(kind, "update_parameters", self._enter_update, None)
        self.hub.wrap(kind, "forward", self._enter_forward, None)

    def _number(self, average):
        ref, number = self.by_id.get(id(average), (None, None))
        if ref is None or ref() is not average:
            number = len(self.by_id)
            self.by_id[id(average)] = (weakref.ref(average), number)
        return number

    def _note(self, what, average):
        at = self.hub.places.here()
        self.hub.steps.note("average", average=self._number(average), what=what, at=at)

    def _enter_update(self, args, kwargs):
        self._note("update", args[0])

    def _enter_forward(self, args, kwargs):
        self._note("forward", args[0])

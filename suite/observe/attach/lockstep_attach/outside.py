"""Modules that take part in training steps and belong to no known model (a frozen teacher, a
projection that makes targets): nobody makes them equal on all ranks.
"""

import gc
import weakref

from .models import modules_now

MODULES, TENSORS = 16, 64  # that are looked at; of each


def _is_drawn(tensor):
    """What may be drawn at random: floating point, and not one number."""
    return tensor.is_floating_point() and tensor.numel() > 1 and not tensor.is_meta


class Outside:
    def __init__(self, hub):
        self.hub = hub
        self.found = None  # weak references; None: not looked for yet
        self.hooks = []
        self.ran = []  # (module, place of its first forward) of this step

    def begin(self):
        """The next step is looked at in detail: forwards are seen until its backward, no longer, as
        torch.save and deepcopy take hooks along.
        """
        self.ran = []
        if self.found is None or self.hub.models.compiles or self.hooks:
            return
        for ref in self.found:
            module = ref()
            if module is not None:
                self.hooks.append(module.register_forward_pre_hook(self._hook))
        if self.hooks:
            self.hub.temporary.append(self._remove)

    def _hook(self, module, inputs):
        if not self.hub.idle():
            self.hub.call(self._note, module)

    def _note(self, module):
        if not any(one is module for one, _ in self.ran):
            self.ran.append((module, self.hub.places.here()))

    def _remove(self):
        for handle in self.hooks:
            handle.remove()
        self.hooks = []

    def before_backward(self):
        """Of a detailed step."""
        self.hub.undo(self._remove)
        ran, self.ran = self.ran, []
        for module, at in ran:
            if not module.training:
                self.hub.averages.look_at(module, at=at)
            self.hub.put(
                "outside",
                step=self.hub.steps.now.number,
                name=type(module).__name__,
                at=at,
                digests=self.hub.digests.each(self._tensors(module)),
                params=sum(1 for p in module.parameters() if _is_drawn(p)),
            )
        if self.found is None:
            objects = gc.get_objects()
            modules, inner = modules_now(self.hub.torch, objects)
            self.found = self._look(modules, inner)
            self.hub.averages.find(modules, objects)

    def _tensors(self, module):
        found = [*module.parameters(), *module.buffers()]
        return [t.detach() for t in found if _is_drawn(t)][:TENSORS]

    def _look(self, modules, inner):
        models = self.hub.models
        known = {id(part) for model in models.live() for part in model.ref().modules()}
        ddp = self.hub.torch.nn.parallel.DistributedDataParallel
        roots = [m for m in modules if id(m) not in inner and id(m) not in known]
        roots = [m for m in roots if not isinstance(m, ddp) and self._tensors(m)]
        return [weakref.ref(module) for module in roots[:MODULES]]

"""What shows later whether that which is trained moves: the weights that are validated, and
parameters whose modules run with autograd off.
"""

import weakref

from .params import is_freed

VALIDATIONS, NAMES = 16, 256  # that are written
ELEMENTS = 64  # of a parameter, that are kept behind each step
QUIET = 4  # steps without a validation behind which nothing may have moved them
TURNED = 16  # parameters whose values are tried with the other sign


def _moves(tensor):
    """Whether it holds anything but 0; most do in their first elements."""
    flat = tensor.detach().reshape(-1)
    return bool(flat[:ELEMENTS].any()) or bool(flat.any())


class Still:
    def __init__(self, hub):
        self.hub = hub
        self.remove = None  # of the hook that waits for a validation's first forward
        self.validations = self.validated = 0  # validated: steps done at the last one
        self.pending = None  # (model, members of the last one's event): until training goes on
        self.param = None  # weak reference of the first optimizer's smallest parameter
        self.stepped_to = None  # its elements behind the open step's optimizer
        self.quiet = 0
        self.empty = None  # ids of parameters that the last detailed step gave no gradient
        self.calls = []  # (module, autograd is on, place) of this forward
        self.ran = {}  # id of a parameter: where its module last ran with autograd on
        self.hooks = []
        self.noted = None  # (parameters, members of the event, steps done)

    # ---- the weights of a validation -------------------------------------------------------------

    def evaluates(self, model):
        """eval() of a known model. The hook is of all modules and stays until the next forward: one
        of the instance would go along where it is saved.
        """
        done = self.hub.steps.done_now()
        if self.hub.models.compiles or self.validations >= VALIDATIONS or done == self.validated:
            return
        self.leave()
        parts = {id(part) for part in model.ref().modules()}

        def look(module, inputs):
            if not self.hub.idle() and id(module) in parts and self.remove is not None:
                self.hub.call(self._validates, model, module)

        register = self.hub.torch.nn.modules.module.register_module_forward_pre_hook
        self.remove = register(look).remove
        self.hub.temporary.append(self.leave)

    def leave(self):
        if self.remove is not None:
            remove, self.remove = self.remove, None
            if self.leave in self.hub.temporary:
                self.hub.temporary.remove(self.leave)
            remove()

    def _validates(self, model, module):
        self.leave()
        if self.hub.own.grad or module.training:
            return
        self._put_validated()
        self.validations += 1
        self.validated = self.hub.steps.done_now()
        members = {"step": self.validated, "model": model.index, "at": self.hub.places.here()}
        if self._is_moved(model):
            members["moved"] = True
        self.pending = model, dict(members, param=self._weights(model))

    def _weights(self, model):
        return self.hub.digests.digest([p.detach() for _, p in model.params()])

    def _put_validated(self, **members):
        if self.pending is not None:
            (_, known), self.pending = self.pending, None
            self.hub.put("validated", **known, **members)

    def trains(self, model):
        """Its first training forward behind a validation."""
        if self.pending is not None:
            if self.pending[0] is model:
                self._put_validated(param_next=self._weights(model))
        elif self.validations > 0 and self.stepped_to is not None and self.quiet < QUIET:
            self.quiet = self.quiet + 1 if self._is_as_stepped() else VALIDATIONS * QUIET
        self.stepped_to = None

    # ---- what the script puts into the model before eval() ---------------------------------------

    def keeps(self):
        """Whether elements are kept behind steps: from the first validation on, and where ranks'
        parameters are compared.
        """
        validates = 0 < self.validations < VALIDATIONS and self.quiet <= QUIET
        return validates or (self.hub.world or 1) > 1

    def stepped(self, optimizer):
        known = self.hub.optimizers.known(optimizer)
        if known is None or known.index != 0:
            return
        if self.param is None:
            params = filter(self._is_plain, self.hub.optimizers.params(optimizer))
            smallest = min(params, key=lambda p: p.numel(), default=None)
            self.param = (lambda: None) if smallest is None else weakref.ref(smallest)
        self.stepped_to = self._elements()

    def _is_plain(self, param):
        dense = param.layout is self.hub.torch.strided and not hasattr(param, "_local_tensor")
        dense = dense and not is_freed(param)
        return dense and param.is_contiguous() and param.requires_grad and param.numel() > 0

    def _elements(self):
        param = self.param()
        return None if param is None else param.detach().view(-1)[:ELEMENTS].clone()

    def _is_as_stepped(self):
        now, own = self._elements(), self.stepped_to
        like = now is not None and now.dtype is own.dtype and now.device == own.device
        return like and self.hub.torch.equal(now, own)

    def is_other(self):
        """The parameters are no longer those that the step's optimizer left: averaged weights are
        put in to be validated or saved, say.
        """
        return self.stepped_to is not None and not self._is_as_stepped()

    def _is_moved(self, model):
        """Something moved the model's parameter behind the optimizer, and no collective has come:
        ranks may have averaged their weights.
        """
        if self.validations < 2 or self.stepped_to is None or self.quiet > QUIET:
            return False
        entry = self.hub.models.entry_of(self.param())
        if entry is None or entry.model != model.index:
            return False
        words = [call["call"] for call in self.hub.steps.now.calls]
        behind = words[::-1].index("optimizer_step") if "optimizer_step" in words else 0
        return "collective" not in words[len(words) - behind :] and not self._is_as_stepped()

    # ---- parameters whose modules run with autograd off ------------------------------------------

    def after_backward(self):
        """Of a detailed step: what has no gradient, though an optimizer is to move it."""
        hub = self.hub
        moving = hub.optimizers.moving()
        pairs = [(e, p) for e, p in hub.models.trainable() if p.grad is None and id(p) in moving]
        if self.noted is None and self.calls:
            self._note(pairs)
        for module, on, at in self.calls:
            self.ran.update((id(p), at) for p in module._parameters.values() if on)
        self.calls = []
        self.empty = {id(p) for _, p in pairs}

    def before_forward(self, module):
        """Of a detailed step, in training: what undoes the hooks, or None."""
        if self.noted is not None or not self.empty or self.hub.models.compiles:
            return None
        parts = [m for m in module.modules() if any(id(p) in self.empty for p in m.parameters())]
        self.hooks += [part.register_forward_pre_hook(self._hook) for part in parts]
        self.hub.temporary.append(self.after_forward)
        return self.after_forward

    def _hook(self, module, inputs):
        if not self.hub.idle():
            self.hub.call(self._called, module)

    def _called(self, module):
        self.calls.append((module, self.hub.own.grad, self.hub.places.here()))

    def after_forward(self):
        for handle in self.hooks:
            handle.remove()
        self.hooks = []

    def _note(self, pairs):
        ran = {}  # whether it ever ran with autograd on
        for module, on, _ in self.calls:
            ran[id(module)] = ran.get(id(module), False) or on
        off = {id(p) for m, _, _ in self.calls if not ran[id(m)] for p in m._parameters.values()}
        on = {id(p) for m, _, _ in self.calls if ran[id(m)] for p in m._parameters.values()}
        entries = [(e, p) for e, p in pairs if id(p) in off - on and id(p) in self.empty][:NAMES]
        if entries:
            wanted = {id(p) for _, p in entries}
            places = (
                at
                for module, on, at in self.calls  # the outermost come first
                if not on and any(id(p) in wanted for p in module.parameters())
            )
            self._keep(entries, next(places, ""), read=False)

    def _keep(self, entries, at, **how):
        params = [p for _, p in entries]
        names = [entry.name for entry, _ in entries]
        digests = self.hub.digests.each([p.detach() for p in params])
        members = {"at": at, "names": names, "digests": digests, **how}
        self.noted = (params, members, self.hub.steps.done)

    # ---- parameters that outputs depend on, and that no gradient comes to ------------------------

    def silent(self, model):
        """[(entry, parameter)] of a model whose modules ran with autograd on, and that two detailed
        steps gave no gradient.
        """
        if self.noted is not None or not self.empty:
            return []
        found = [(e, p) for e, p in model.params() if id(p) in self.empty and p.grad is None]
        return [one for one in found if id(one[1]) in self.ran][:TURNED]

    def depends(self, entries):
        """The outputs that the loss is made of are others where these have other values."""
        if entries and self.noted is None:
            self._keep(entries, self.ran[id(entries[0][1])], read=True)

    # ---- factors of a product that are both 0 ----------------------------------------------------

    def zeros(self, model):
        """[(entry, parameter)] of a model's matrices that an optimizer is to move, that hold 0 and
        have a gradient of 0.
        """
        if self.noted is not None:
            return []
        moving = self.hub.optimizers.moving()
        found = [(e, p) for e, p in model.params() if id(p) in moving and p.dim() > 1]
        found = [(e, p) for e, p in found if self._is_plain(p) and p.grad is not None]
        return [(e, p) for e, p in found if not _moves(p) and not _moves(p.grad)][:TURNED]

    def multiply(self, model, entries):
        """The outputs that the loss is made of are others where all of these are, and not where one
        is.
        """
        if len(entries) > 1 and self.noted is None:
            self._keep(entries, model.at, read=False, product=True)

    def finish(self):
        """At the job's end."""
        self.leave()
        self._put_validated()
        if self.noted is not None:
            params, members, done = self.noted
            self.noted = None
            now = self.hub.digests.each([p.detach() for p in params])
            steps = self.hub.steps.done - done
            self.hub.put("detached", steps=steps, digests_now=now, **members)

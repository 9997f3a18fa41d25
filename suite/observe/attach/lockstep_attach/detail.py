"""The samples of a detailed step: taken as it goes, written when it closes."""

import os
import time

from .samples import local, norm, write_safetensors

NORMS = ("", "", "", "reduced", "grad", "")  # the members of norm/NAME, in order


def _is_spread(param):
    """Whether its gradient is divided otherwise than itself."""
    placed = getattr(param, "placements", None)
    return placed != getattr(param.grad, "placements", None)


class Detail:
    def __init__(self, hub):
        self.hub = hub
        self.on = False
        self.hooks = []
        self.drop()

    def drop(self):
        """Forgets what was taken."""
        self.on = False
        self.taken = {}  # "reduced/fc.weight": samples
        self.norms = {}  # name: {"reduced": its norm}, where the job clips
        self.cut = set()  # names whose gradients a zero_grad cleared after a backward pass
        self.unread = False  # backward passes ran whose reduced gradients were not read
        self.stepping = set()  # names of what an optimizer that steps now has
        self.found = []  # (names, found_inf, call) of optimizers that unscale by themselves
        self.closure = False
        self.again_note = "not a step that is run again"
        self.again_told = {}  # what else the samples' metadata says of it

    def begin(self, step):
        if self.on or self.closure or self.taken or step.detail:
            self.drop()
            self.hub.again.clear()
        self.on = step.detail

    def _timed(self, function, *arguments):
        begin = time.perf_counter_ns()
        try:
            if not self.hub.autograd.is_in_region():
                return function(*arguments)
            with self.hub.plainly():
                return function(*arguments)
        finally:
            self.hub.detail_ns += time.perf_counter_ns() - begin

    # ---- local gradients -------------------------------------------------------------------------

    def hook_local(self):
        """Before a backward pass: sees this rank's gradient of each parameter as it is made."""
        hub = self.hub
        injected = hub.autograd.inject_now()
        if not (self.on or injected):
            return
        for entry, param in hub.models.trainable():
            if param.is_leaf:
                self.hooks.append(param.register_hook(self._hook(entry)))
        hub.temporary.append(self._remove_hooks)

    def unhook(self):
        self.hub.undo(self._remove_hooks)

    def _remove_hooks(self):
        for handle in self.hooks:
            handle.remove()
        self.hooks = []

    def _hook(self, entry):
        hub = self.hub

        def hook(grad):
            if hub.quiet or hub.autograd.returns > 0:
                return None
            return hub.call(self._local, entry, grad)

        return hook

    def _local(self, entry, grad):
        changed = None
        if self.hub.autograd.inject_now():
            self.hub.autograd.injected = True
            changed = grad.clone()
            changed[(0,) * changed.dim()] = float("inf")
            grad = changed
        if self.on:
            self._timed(self._add_local, entry, grad)
        return changed

    def _add_local(self, entry, grad):
        taken = entry.sampler.take(grad).double()
        sizes = taken.abs()
        for kind in ("local", "since") if entry.name in self.cut else ("local",):
            for name, value in ((kind, taken), (kind + "_abs", sizes)):
                name = "%s/%s" % (name, entry.name)
                self.taken[name] = self.taken[name] + value if name in self.taken else value
        self.hub.again.local(entry, taken)

    def cleared(self, params):
        """A zero_grad of these parameters; what later passes of the step give is kept apart."""
        if not self.on or self.hub.steps.now.asked:
            return
        for entry in filter(None, map(self.hub.models.entry_of, params)):
            if "local/" + entry.name in self.taken:
                self.cut.add(entry.name)
                for kind in ("since/", "since_abs/"):
                    self.taken.pop(kind + entry.name, None)

    # ---- gradients between backward and step -----------------------------------------------------

    def after_backward(self, reduced_now):
        """Reads the reduced gradients, now or (`touch`) before anything changes them."""
        if not self.on:
            return
        self.unread = not reduced_now
        if reduced_now:
            self._timed(self._grads, "reduced", None)

    def touch(self):
        """Before the first call that changes gradients: reads what the script reduced itself."""
        if self.on and self.unread:
            self.unread = False
            self._timed(self._grads, "reduced", None)

    def grads(self, kind, params=None):
        if self.on:
            self._timed(self._grads, kind, params)

    def _grads(self, kind, params):
        models = self.hub.models
        if params is None:
            pairs = models.trainable()
        else:
            pairs = [(e, p) for p in params for e in [models.stepped_as(p)] if e is not None]
        for entry, param in pairs:
            if param.requires_grad and param.grad is not None and not _is_spread(param):
                self.taken["%s/%s" % (kind, entry.name)] = entry.sampler.take(param.grad)
                if kind in NORMS and (self.hub.autograd.clips or self.hub.steps.now.number == 1):
                    norms = self.norms.setdefault(entry.name, {})
                    norms[kind] = norm(self.hub.torch, local(param.grad))

    # ---- an optimizer's step ---------------------------------------------------------------------

    def before_step(self, optimizer, params, with_used):
        if self.on:
            self._timed(self._before_step, optimizer, params, with_used)

    def _before_step(self, optimizer, params, with_used):
        own = []
        for param in params:
            entry = self.hub.models.stepped_as(param)
            if entry is None or "param/" + entry.name in self.taken:
                continue  # of another optimizer's step before
            own.append(param)
            self.stepping.add(entry.name)
            self.taken["param/" + entry.name] = entry.sampler.take(param)
            self._state("state", optimizer, param, entry)
        if with_used:
            self._grads("used", own)

    def _state(self, kind, optimizer, param, entry):
        for moment, value in self.hub.optimizers.moments(optimizer, param):
            name = "%s/%s/%s" % (kind, entry.name, moment)
            if moment == "step":
                self.taken[name] = value
            elif local(value).numel() == entry.sampler.count:
                self.taken[name] = entry.sampler.take(value)

    def after_step(self, optimizer, params, found_inf):
        """found_inf: of an optimizer that unscales by itself, else None."""
        if self.on:
            self._timed(self._after_step, optimizer, params, found_inf)

    def _after_step(self, optimizer, params, found_inf):
        names = []
        for param in params:
            entry = self.hub.models.stepped_as(param)
            if entry is None or entry.name not in self.stepping:
                continue
            self.stepping.discard(entry.name)
            names.append(entry.name)
            self.taken["next/" + entry.name] = entry.sampler.take(param)
            self._state("next_state", optimizer, param, entry)
        if found_inf is not None:
            # such an optimizer leaves the unscaled gradients in .grad
            self._grads("grad", params)
            self._grads("used", params)
            self.found.append((names, found_inf, self.hub.steps.now.calls[-1]))

    # ---- the end ---------------------------------------------------------------------------------

    def close(self, step):
        """Writes the samples; whether there are some."""
        if not self.on or self.closure or not self.taken:
            return False
        self._timed(self._close, step)
        return True

    def _close(self, step):
        hub, torch = self.hub, self.hub.torch
        self.touch()
        for entry, param in hub.models.trainable():
            if "param/" + entry.name not in self.taken:
                self.taken["param/" + entry.name] = entry.sampler.take(param)
        self._clear_skipped()
        hub.again.add(self.taken)
        named = dict(self.taken)
        named.update(self._squares())
        for entry, _ in hub.models.trainable():
            named["index/" + entry.name] = entry.sampler.index_tensor()
        rank = hub.rank()
        file = "step%06d.rank%d.safetensors" % (step.number, rank)
        metadata = {"step": step.number, "rank": rank, "samples": hub.settings.samples}
        metadata.update({"again": self.again_note}, **self.again_told)
        write_safetensors(
            torch, os.path.join(hub.settings.directory, "samples", file), named, metadata
        )

    def _clear_skipped(self):
        for names, found_inf, call in self.found:
            if float(found_inf) == 0:
                continue
            pairs = [(self.taken["param/" + name], self.taken["next/" + name]) for name in names]
            if not all(self.hub.torch.equal(param, after) for param, after in pairs):
                call["overrode"] = True
            for name in names:
                for kind in ("next/", "used/", "grad/"):
                    self.taken.pop(kind + name, None)
                for taken in [key for key in self.taken if key.startswith("next_state/%s/" % name)]:
                    del self.taken[taken]
                self.norms.get(name, {}).pop("grad", None)

    def _squares(self):
        """{"norm/NAME": squares of the norms in order, NaN where there is none}, with one transfer
        for each device.
        """
        torch, devices = self.hub.torch, {}
        for row, norms in enumerate(self.norms.values()):
            for column, kind in enumerate(NORMS):
                if kind in norms:
                    place = row * len(NORMS) + column
                    devices.setdefault(norms[kind].device, []).append((place, norms[kind]))
        count = len(self.norms) * len(NORMS)
        table = torch.full((count,), float("nan"), dtype=torch.float64, device="cpu")
        for members in devices.values():
            places = torch.tensor([place for place, _ in members], dtype=torch.int64, device="cpu")
            table[places] = torch.stack([value for _, value in members]).cpu() ** 2
        rows = table.split(len(NORMS))
        return {"norm/" + name: row for name, row in zip(self.norms, rows)}

"""GradScaler: scale, unscale_, step and update of torch.amp and torch.cuda.amp."""

import itertools
import time
import weakref

from . import script_text
from .events import value_of
from .losses import behind, is_plain, nodes_from
from .samples import type_name
from .wrapping import ByObject, given

SCALED, LOSS = "lockstep_scaled", "lockstep_loss"  # in the metadata of nodes of a graph
NODES = 128  # of a graph that are searched for what scale() returned: losses are near its end
ADDING = (
    "Add Sub Neg Div Mul Sum Mean Stack Cat View Reshape Unsqueeze Squeeze ToCopy Clone".split()
)


class Scalers:
    def __init__(self, hub):
        self.hub = hub
        self.scalers = []  # weak references
        self.numbers = ByObject()  # their places there
        # (weak reference of a scaled tensor, its loss, index, scale), not yet gone backward
        self.scaled = []
        self.checks = 32  # of gradients that the script throws away
        self.scaling = False  # an enabled scaler has scaled a loss
        self.asked = False  # get_scale() was called since the last update()
        self.read = None  # whether the script ever read a scale; None: not by get_scale()
        self.penalty = False  # gradients of a scaled loss were taken with a graph, since then
        self.stepper = None  # (scaler, optimizer, entry) of the step that runs
        self.stepped = False
        self.watched = set()  # (subclass, method) that are wrapped
        self.inside = set()  # names of those that run

    def install(self):
        kind, wrap = self.kind(), self.hub.wrap
        wrap(kind, "__init__", None, self._built)
        wrap(kind, "scale", None, self._scale)
        wrap(kind, "unscale_", self._enter_unscale, self._leave_unscale)
        wrap(kind, "step", self._enter_step, self._leave_step)
        wrap(kind, "update", self._enter_update, self._leave_update)
        wrap(kind, "get_scale", self._enter_get)
        self.methods = {
            "scale": (None, self._scale),
            "unscale_": (self._enter_unscale, self._leave_unscale),
            "update": (self._enter_update, self._leave_update),
        }

    def kind(self):
        """The class that defines the methods: since 2.3 one whose subclasses the others are."""
        torch = self.hub.torch
        return getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler

    def _watch_subclass(self, kind):
        """Methods that stand in place of GradScaler's, as those of torch's ShardedGradScaler."""
        for owner in kind.__mro__[: kind.__mro__.index(self.kind())]:
            for name in self.methods.keys() & vars(owner).keys():
                if (owner, name) not in self.watched:
                    self.watched.add((owner, name))
                    self.hub.wrap(owner, name, *self._as_whole(name))

    def _as_whole(self, name):
        """enter and leave of a method that may call the one that it stands for, by super()."""
        enter, leave = self.methods[name]

        def entered(args, kwargs):
            note = enter(args, kwargs) if enter is not None else None
            self.inside.add(name)
            return note

        def left(note, args, kwargs, result, error):
            self.inside.discard(name)
            leave(note, args, kwargs, result, error)

        return entered, left

    # ---- what is known ---------------------------------------------------------------------------

    def _built(self, note, args, kwargs, result, error):
        if error is None:
            self._watch_subclass(type(args[0]))
            self._learn(args[0])

    def _learn(self, scaler):
        number = self.numbers.put(scaler, len(self.scalers))
        self.scalers.append(weakref.ref(scaler))
        enabled = scaler.is_enabled()
        event = {"event": "scaler", "scaler": number, "enabled": enabled}
        if enabled:
            event["init_scale"] = scaler._init_scale
            event["growth_factor"] = scaler.get_growth_factor()
            event["backoff_factor"] = scaler.get_backoff_factor()
            event["growth_interval"] = scaler.get_growth_interval()
        event["at"] = self.hub.places.here()
        self.hub.writer.put(event)
        return number

    def _index(self, scaler):
        """The number of an enabled scaler, None of one that does nothing."""
        if not scaler.is_enabled():
            return None
        number = self.numbers.get(scaler)
        return self._learn(scaler) if number is None else number

    def _lazy_scale(self, scaler):
        if scaler._scale is None:
            return float(scaler._init_scale)
        return self.hub.Lazy(scaler._scale.detach().clone())

    def scale_now(self):
        """Of scaler 0, 1 without one."""
        scaler = self.scalers[0]() if self.scalers else None
        return self._lazy_scale(scaler) if scaler is not None and scaler.is_enabled() else 1

    def scale_of(self, index):
        """The tensor that a scaler of that number multiplies losses by, or None."""
        scaler = self.scalers[index]() if index is not None else None
        return scaler._scale if scaler is not None else None

    # ---- scale -----------------------------------------------------------------------------------

    def _scale(self, note, args, kwargs, result, error):
        scaler, index = args[0], self._index(args[0])
        if index is None or error is not None or "scale" in self.inside:
            return
        self.scaling = True
        losses = given(args, kwargs, "outputs", 1)
        pairs = list(self._pairs(losses, result))
        kind = type_name(pairs[0][0].dtype) if pairs else None
        self.hub.steps.before_scale()
        entry = self.hub.steps.note("scale", scaler=index, type=kind)
        if any(self._mark_of(loss.grad_fn, SCALED) is not None for loss, _ in pairs):
            entry["again"] = True
        if kind == "f16" and all(is_plain(self.hub.torch, loss) for loss, _ in pairs):
            entry["plain"] = True
        scale = scaler._scale.detach().clone() if scaler._scale is not None else None
        if index == 0 and self.hub.steps.now.scale is None and scale is not None:
            self.hub.steps.now.scale = self.hub.Lazy(scale)
        for loss, scaled in pairs:
            if loss.numel() == 1:
                kept = loss.detach().clone()
                self.scaled.append((weakref.ref(scaled), kept, index, scale))
                self._mark(scaled.grad_fn, SCALED, (kept, index, scale))
                self._mark(loss.grad_fn, LOSS, True)
        del self.scaled[:-64]

    def _mark(self, node, word, value):
        metadata = getattr(node, "metadata", None)
        if metadata is not None:
            metadata[word] = value

    def _mark_of(self, node, word):
        metadata = getattr(node, "metadata", None)
        return metadata.get(word) if metadata else None

    def _origin(self, node):
        """What scale() returned in the graph that ends with the node: its mark; False: surely
        none; None: the graph is too large to say.
        """
        bare = False  # whether a loss that was scaled is reached by a way around its scaling

        def onward(one):
            return () if self._mark_of(one, LOSS) else behind(one)

        for count, one in enumerate(nodes_from([node], onward)):
            if count == NODES:
                return False if bare else None
            mark = self._mark_of(one, SCALED)
            if mark is not None:
                return mark
            bare = bare or bool(self._mark_of(one, LOSS))
        return False

    def added_unscaled(self, tensor):
        """Whether what goes backward is a sum of what scale() returned and of terms that it did
        not, while the script has not asked for the scale to multiply them by itself.
        """
        if not self.scaling or self.asked:
            return False
        scaled = plain = False
        for node in itertools.islice(nodes_from([tensor.grad_fn], self._terms), NODES):
            if self._mark_of(node, SCALED) is not None:
                scaled = True
            elif not self._terms(node):
                plain = plain or not self._origin(node)
            if scaled and plain:
                return True
        return False

    def _terms(self, node):
        """What a sum is made of, but for one that scale() returned."""
        following = [one for one in behind(node) if one is not None]
        product = len(following) > 1 and node.name().startswith(("Mul", "Div"))
        adds = any(node.name().startswith(word + "Backward") for word in ADDING)
        return following if adds and not product and self._mark_of(node, SCALED) is None else []

    # ---- penalties -------------------------------------------------------------------------------

    def _enter_get(self, args, kwargs):
        self.asked = self.read = True

    def never_read(self):
        """Whether nothing that the script computes can be times the scale: it scaled a loss, and
        never read the scale.
        """
        if self.read is None and self.scaling:
            places = self.hub.places
            self.read = script_text.scale_read(places.here(), places.work) is not None
        return self.scaling and not self.read

    def before_grad(self, args, kwargs):
        """torch.autograd.grad with a graph, of a scaled loss: to be divided by the scale before a
        loss is made of it.
        """
        outputs = given(args, kwargs, "outputs", 0)
        if not given(args, kwargs, "create_graph", 4, False) or not self.scaling:
            return
        tensors = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        nodes = [getattr(one, "grad_fn", None) for one in tensors]
        if any(node is not None and self._mark_of(node, SCALED) is not None for node in nodes):
            self.penalty = True

    def scaled_penalty(self):
        """Whether the script has such gradients and has not asked for the scale."""
        return self.penalty and not self.asked

    def _pairs(self, losses, results):
        tensor = self.hub.torch.Tensor
        if isinstance(losses, tensor) and isinstance(results, tensor):
            yield losses, results
        elif isinstance(losses, (list, tuple)) and isinstance(results, (list, tuple)):
            for loss, result in zip(losses, results):
                yield from self._pairs(loss, result)

    def unscaled(self, tensor):
        """(Lazy loss, scaler index, dropped) of what goes backward: the loss before scale(), found
        by the tensor, by its graph or by its order; dropped: scale() was called and what goes
        backward is not computed from its result.
        """
        for ref, loss, index, _ in self.scaled:
            if ref() is tensor:
                return value_of(loss), index, False
        origin = self._origin(tensor.grad_fn) if self.scaling else False
        scales = [(index, scale) for _, _, index, scale in self.scaled if scale is not None]
        if origin is False or (origin is None and not scales):
            return value_of(tensor), None, origin is False and bool(self.scaled)
        # scaled and then changed: divided by the number of micro-steps, summed with others
        index, scale = scales[-1] if origin is None else origin[1:]
        value = tensor.detach().clone()
        if scale is None:
            return value_of(value), index, False
        both = self.hub.Lazy([value, scale], lambda value, by: value / by if by else None)
        return both, index, False

    def gone_backward(self):
        self.scaled = []

    def discard(self, entry, params):
        """zero_grad() comes: gradients that no step was asked for are lost. Whether they are finite
        says whether the script skips an overflow, and hides it from a scaler.
        """
        step = self.hub.steps.now
        pending, unused = step.pending, step.unused
        step.pending = step.unused = 0
        if step.asked or not unused:
            return
        if pending:
            entry["discards"] = pending
        if self.checks == 0:
            return
        self.checks -= 1
        grads = [p.grad.detach() for p in params if p.grad is not None and not p.grad.is_sparse]
        if grads:
            finite = [grad.isfinite().all() for grad in grads]
            entry["finite"] = self.hub.Lazy(finite, lambda *values: all(values))

    # ---- unscale_ --------------------------------------------------------------------------------

    def _optimizer(self, args, kwargs):
        return given(args, kwargs, "optimizer", 1)

    def _found(self, scaler, optimizer):
        """Lazy: whether the scaler found an infinity or NaN among the optimizer's gradients."""
        state = scaler._per_optimizer_states.get(id(optimizer)) or {}
        found = [t.detach().clone() for t in state.get("found_inf_per_device", {}).values()]
        return self.hub.Lazy(found, lambda *values: any(v != 0 for v in values)) if found else None

    def _enter_unscale(self, args, kwargs):
        index = self._index(args[0])
        if index is None or "unscale_" in self.inside:
            return None
        optimizer = self._optimizer(args, kwargs)
        self.hub.autograd.before_change()
        number = self.hub.optimizers.index_of(optimizer)
        inside = self.stepper is not None
        return self.hub.steps.note(
            "unscale", scaler=index, optimizer=number, found_inf=None, inside=inside
        )

    def _leave_unscale(self, entry, args, kwargs, result, error):
        if entry is None or error is not None:
            return
        optimizer = self._optimizer(args, kwargs)
        self.hub.steps.now.pending = 0
        entry["found_inf"] = self._found(args[0], optimizer)
        self.hub.steps.detail.grads("grad", self.hub.optimizers.params(optimizer))

    # ---- step ------------------------------------------------------------------------------------

    def _enter_step(self, args, kwargs):
        scaler, optimizer = args[0], self._optimizer(args, kwargs)
        index = self._index(scaler)
        if index is None or self.stepper is not None:
            return None
        self.hub.autograd.before_change()
        steps = self.hub.steps
        number = self.hub.optimizers.index_of(optimizer)
        members = {"optimizer": number, "found_inf": None, "stepped": None}
        entry = steps.note("scaler_step", scaler=index, **members)
        if number == 0:
            rates = self.hub.optimizers.rates(optimizer)
            steps.now.lr = rates[0] if rates else None
        self.stepper, self.stepped = (scaler, optimizer, index), False
        return entry, time.perf_counter_ns()

    def stepping(self, optimizer):
        """(index of the scaler that calls the optimizer, found_inf if it unscales by itself)."""
        if self.stepper is None or self.stepper[1] is not optimizer:
            return None, None
        self.stepped = True
        found = getattr(optimizer, "found_inf", None)
        itself = getattr(optimizer, "_step_supports_amp_scaling", False) and found is not None
        return self.stepper[2], found.detach().clone() if itself else None

    def _leave_step(self, note, args, kwargs, result, error):
        if note is None:
            return
        entry, begin_ns = note
        optimizer = self._optimizer(args, kwargs)
        self.stepper = None
        self.hub.steps.spend("optimizer", begin_ns)
        if error is not None:
            return
        found = self._found(args[0], optimizer)
        entry["found_inf"] = found
        entry["stepped"] = did = self.stepped
        itself = getattr(optimizer, "_step_supports_amp_scaling", False) and found is not None
        if self.stepped and itself:
            entry["stepped"] = self.hub.Lazy(found.tensors, lambda *v: all(one == 0 for one in v))
            did = found
        self.hub.steps.ask(optimizer, did)

    # ---- update ----------------------------------------------------------------------------------

    def _enter_update(self, args, kwargs):
        index = self._index(args[0])
        if index is None or "update" in self.inside:
            return None
        self.asked = self.penalty = False
        forced = given(args, kwargs, "new_scale", 1) is not None
        members = {"scale": self._lazy_scale(args[0]), "next": None, "growth": None}
        return self.hub.steps.note("update", scaler=index, forced=forced, **members)

    def _leave_update(self, entry, args, kwargs, result, error):
        if entry is None or error is not None:
            return
        scaler = args[0]
        entry["next"] = self._lazy_scale(scaler)
        if scaler._growth_tracker is not None:
            entry["growth"] = self.hub.Lazy(scaler._growth_tracker.detach().clone())
        if entry["scaler"] == 0:
            self.hub.steps.now.scale_next = entry["next"]

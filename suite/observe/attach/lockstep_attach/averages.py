"""Averages of weights: torch.optim.swa_utils.AveragedModel, and classes made from it, where they
are updated and run; copies of a trained model that a script averages by itself, where it puts them
in eval mode.
"""

import gc
import itertools
import weakref

from .models import modules_now
from .records import tensors_in
from .wrapping import ByObject, given

ELEMENTS = 1024  # of a parameter, in detailed steps
TWINS = 4  # copies that are looked at
NEAR = 0.5  # of a parameter's norm: further off a list is none of weights
NORMS = 4  # of a copy, that are looked at


class Averages:
    def __init__(self, hub):
        self.hub = hub
        self.numbers = ByObject()
        self.updated = set()  # numbers of those that have been updated
        self.twins = None  # copies of models; None: not looked for
        self.copies = ByObject()  # Snapshots of the last time they were put in eval mode
        self.running = False  # within the forward of an AveragedModel
        self.teachers, self.told = ByObject(), ByObject()  # see modes(); told: by train()

    def install(self):
        kind = self.hub.torch.optim.swa_utils.AveragedModel
        self.hub.wrap(kind, "update_parameters", self._enter_update, self._leave_update)
        self.hub.wrap(kind, "forward", self._enter_forward, self._leave_forward)

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
        self.running = True
        self._note("forward", args[0], **(self._mode(args[0], args[0].module) or {}))

    def _leave_forward(self, note, args, kwargs, result, error):
        self.running = False

    # ---- in which mode copies are validated ------------------------------------------------------

    def runs(self, module):
        """Without autograd, a module of a known model's class outside of all known ones."""
        roots = self.hub.models.roots() if not self.running else ()
        if any(type(root) is type(module) and _is_copy(module, root) for root in roots):
            mode = self._mode(module, module)
            if mode is not None:
                self._note("copy", module, **mode)

    def _mode(self, average, module):
        """Where all known models are in eval mode. A copy that runs at other times, too, teaches
        them, and may be meant to do that in training mode.
        """
        if self.hub.own.grad:
            return None
        if not self.hub.models.in_eval():
            self.teachers.put(average, True)
            return None
        if not module.training:
            return {"training": False}
        parts = [part for part in module.modules() if part.training]
        kinds = self.hub.torch.nn.modules.dropout._DropoutNd
        members = {
            "training": True,
            "dropout": sum(isinstance(part, kinds) and part.p > 0 for part in parts),
            "norms": sum(getattr(part, "running_mean", None) is not None for part in parts),
        }
        told = self.told.get(average) or self.told.get(module) or self.teachers.get(average)
        return {**members, "meant": True} if told else members

    # ---- how copies of a model move --------------------------------------------------------------

    def opened(self, first):
        """At a training forward of a detailed step."""
        for twin in self.twins or ():
            twin.open(self.hub.torch, self._sample, first)

    def stepped(self):
        """Behind an optimizer, in a detailed step: a script averages its weights from here on."""
        if self.hub.steps.now.detail:
            if self.twins is None and self.hub.models.roots():
                objects = gc.get_objects()
                self.find(modules_now(self.hub.torch, objects)[0], objects)
            for twin in self.twins or ():
                twin.begin(self.hub, self._sample)

    def find(self, modules, objects):
        """Of all modules of the process, and all objects of gc; later, where no model is known."""
        roots = self.hub.models.roots()
        if self.twins is None and roots:
            self.twins = self._twins(roots, modules) or self._lists(roots, objects)

    def _twins(self, roots, modules):
        known, found = {id(part) for root in roots for part in root.modules()}, []
        for module in modules:
            like = [r for r in roots if type(r) is type(module) and id(module) not in known]
            twins = [Twin(module, r) for r in like if _is_copy(module, r)]
            if twins and len(found) < TWINS:  # of several models like it, the nearest
                near = [twin.way(self._sample) for twin in twins] if len(twins) > 1 else [0.0]
                found.append(twins[near.index(min(near))])
        return found

    def _lists(self, roots, objects):
        """Lists and dicts of tensors like a model's parameters, or like those that are trained."""
        groups = []
        for root in roots:
            params = list(root.parameters())
            groups += [params, [p for p in params if p.requires_grad]]
        sizes = {len(group) for group in groups} - {0}
        is_list = map({list, dict}.__contains__, map(type, objects))
        lists = [one for one in itertools.compress(objects, is_list) if len(one) in sizes]
        found, kinds = {}, (self.hub.torch.Tensor, self.hub.torch.nn.Parameter)
        for group, one in itertools.product(groups, lists):
            kept = _values(one)
            if id(one) in found or len(found) == TWINS or not all(type(t) in kinds for t in kept):
                continue
            if _is_like(kept, group):
                twin = Twin(Held(kept), Held(group))
                size = float(self._sample(twin.tensor(twin.root)).norm())
                if twin.way(self._sample) < NEAR * size:
                    twin.ref().source = _source(one)
                    found[id(one)] = twin
        return list(found.values())

    def closed(self, step):
        for number, twin in enumerate(self.twins or ()):
            share = twin.end(self.hub.torch, self._sample)
            if share is not None:
                bits, twin.bits = twin.bits, None
                first = {"bits": bits} if bits is not None else {}
                self.hub.put("averaged", step=step, average=number, **share, **first)

    def bits(self, saved):
        """[number, digest, whether what is saved holds its tensors] of those that are known."""
        held = ((number, twin.ref()) for number, twin in enumerate(self.twins or ()))
        held = [(n, list(m.parameters())) for n, m in held if m is not None]
        torch, digest = self.hub.torch, self.hub.digests.digest
        # others than plain tensors, as those in parts, may have no memory to ask for
        plain = (
            t for t in tensors_in(torch, saved, []) if type(t) in (torch.Tensor, torch.nn.Parameter)
        )
        places = {t.data_ptr() for t in plain if t.layout == torch.strided} if held else ()
        return [
            [n, digest([p.detach() for p in params]), all(p.data_ptr() in places for p in params)]
            for n, params in held
            if params
        ]

    # ---- copies that the script averages ---------------------------------------------------------

    def look_at(self, root, **place):
        """At root.eval(), which is no known model, or where it runs in eval mode in a detailed
        step: whether the parameters of a copy of one have moved since the last time, and the
        statistics of its norms have not, while those of the model have.
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
                unmoved = all(_is_new(norm) for norm in norms)
                self._note("stale", part, norms=len(norms), unmoved=unmoved, **place)


def _values(kept):
    return list(kept.values()) if type(kept) is dict else kept


def _source(kept):
    """What gives the list or dict that is in its place now, where it is a member of an object."""
    holders = gc.get_referrers(kept)
    dicts = [one for one in holders if type(one) is dict]
    for owner in holders + gc.get_referrers(*dicts):
        members = getattr(owner, "__dict__", None)
        names = [name for name, value in members.items() if value is kept] if members else []
        if names and hasattr(owner, "__weakref__"):
            ref = weakref.ref(owner)
            return lambda: getattr(ref(), names[0], None)
    return None


class Held:
    """Tensors in a list or dict, as a module has them. Those that a script puts in their place are
    seen where the list is a member of an object."""

    def __init__(self, tensors):
        self.refs = [weakref.ref(tensor) for tensor in tensors]
        self.source = None

    def parameters(self):
        tensors = [ref() for ref in self.refs]
        now = self.source() if self.source is not None else None
        if type(now) in (list, dict) and len(now) == len(self.refs):
            tensors = _values(now)
        return [] if any(not hasattr(tensor, "detach") for tensor in tensors) else tensors


class Twin:
    """A copy of a model, and where it was behind the optimizer of the open step."""

    def __init__(self, module, root):
        self.ref, self.root = map(_weakly, (module, root))
        self.place = max(enumerate(module.parameters()), key=lambda one: one[1].numel())[0]
        self.seen = self.before = self.own = self.bits = None
        self.begun, self.early = False, 0

    def tensor(self, ref):
        module = ref()
        tensors = list(module.parameters()) if module is not None else []
        return tensors[self.place] if tensors else None

    def way(self, sample):
        return float((sample(self.tensor(self.root)) - sample(self.tensor(self.ref))).norm())

    def open(self, torch, sample, first):
        kept, seen = self.tensor(self.ref), self.seen
        self.seen = None if kept is None else sample(kept)
        if first or self.seen is None:
            self.early = 0
        elif seen is not None:
            self.early += not torch.equal(seen, self.seen)

    def begin(self, hub, sample):
        kept, own = self.tensor(self.ref), self.tensor(self.root)
        if kept is None or own is None:
            return
        if not self.begun:
            self.begun = True
            self.bits = hub.digests.digest([p.detach() for p in self.ref().parameters()])
        self.before = sample(kept) if self.before is None else self.before
        if self.seen is not None:
            self.early += not hub.torch.equal(self.seen, self.before)
            self.seen = None
        self.own = sample(own)

    def end(self, torch, sample):
        """How far it moved; None where it was not looked at, or had no way to go."""
        before, self.before, kept = self.before, None, self.tensor(self.ref)
        if before is None or kept is None:
            return None
        way, moved = self.own - before, sample(kept) - before
        square = float((way * way).sum())
        if not square > 0:
            return None
        largest = max(float(before.norm()), float(self.own.norm()))
        bound = 2 * torch.finfo(kept.dtype).eps * (largest / square**0.5 + 1)
        early = {"early": True, "early_times": self.early} if self.early else {}
        return {"share": float((way * moved).sum()) / square, "bound": bound, **early}


def _weakly(holder):
    return (lambda: holder) if isinstance(holder, Held) else weakref.ref(holder)


def _is_copy(module, root):
    """Whether it has parameters like the root's, of its own, and none is trained."""
    return _is_like(list(module.parameters()), list(root.parameters()))


def _is_like(kept, own):
    if not kept or len(kept) != len(own):
        return False
    for one, other in zip(kept, own):
        plain = one.is_floating_point() and not one.is_meta and not hasattr(one, "_local_tensor")
        apart = one is not other and one is not other.grad and one.shape == other.shape
        if not plain or not apart or one.is_leaf and one.grad is not None:
            return False
    return True


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


def _is_new(norm):
    """Whether its statistics are those that it was built with."""
    counted = getattr(norm, "num_batches_tracked", None)
    return counted is not None and int(counted) == 0 and not bool(norm.running_mean.any())


def _statistics(norms):
    return [float(m.running_mean.detach().double().sum()) for m in norms]

"""What becomes of parameters behind the back of those who know them: a wrapped model that is
converted, and a frozen parameter in whose place another one is trained.
"""

import weakref

from .samples import type_name
from .wrapping import ByObject, given

MOST = 8  # conversions that are written


def part_of(param):
    """Which part of its tensor a rank holds, the same text on ranks that hold the same one: its
    place along the dimensions of the mesh that divide it; "whole" where none does.
    """
    mesh = getattr(param, "device_mesh", None)
    places = zip(mesh.get_coordinate() or (), param.placements) if mesh is not None else ()
    divided = ["%s of %s" % (at, by) for at, by in places if not by.is_replicate()]
    return "; ".join(divided) or "whole"


def is_freed(param):
    """Whether it has elements and no memory for them: FSDP2 took back what it had gathered. One of
    a class of its own may keep its values elsewhere.
    """
    plain = type(param).__name__ in ("Parameter", "Tensor") and not param.is_meta
    if not plain or str(param.layout) != "torch.strided" or param.numel() == 0:
        return False
    return hasattr(param, "untyped_storage") and param.untyped_storage().nbytes() == 0


class Params:
    def __init__(self, hub):
        self.hub = hub
        self.depth = 0
        self.moved = 0
        self.replaced = {}  # place: how many parameters it put in the place of others
        self.tied = []  # of a module that is converted from meta: names of one parameter
        self.buffers = []  # of a module that is converted: what that may round
        self.torn = []  # ([(module, name)] of one that became several, place, whether on meta)
        self.homes = ByObject()  # of parameters: [(module, name)] that have got them
        self.leaving = ByObject()  # of one with several: [(module, name, place)] that got another
        self.thawed = ByObject()  # where parameters took the place of frozen ones
        self.paths = ByObject()  # of parameters when an optimizer was built: (root, name)
        self.made = ByObject()  # since then: where modules got these parameters

    def install(self):
        module = self.hub.torch.nn.Module
        self.hub.wrap(module, "_apply", self._enter_apply, self._leave_apply)
        self.hub.wrap(module, "register_parameter", self._enter_register, None)

    # ---- conversions -----------------------------------------------------------------------------

    def _wrapped(self):
        models = (m for m in self.hub.models.live() if m.kind == "ddp" and m.called)
        return [model for model in models if model.ref() is not None]

    def _enter_apply(self, args, kwargs):
        """It calls itself for each child."""
        self.depth += 1
        if self.depth == 1:
            first = next(args[0].parameters(), None)
            self.tied = self.ties(args[0]) if first is not None and first.is_meta else []
            self.buffers = self.hub.casts.angles.buffers(args[0])
        if self.depth > 1 or self.moved >= MOST:
            return None
        held = {id(p): m for m in self._wrapped() for p in m.ref().parameters()}
        if not held:
            return None
        found = ((held.get(id(p)), p, p.dtype, p.device) for p in args[0].parameters())
        return [one for one in found if one[0] is not None]

    def _leave_apply(self, note, args, kwargs, result, error):
        self.depth -= 1
        if self.depth == 0 and self.tied:
            self.parted(args[0], self.tied, True)
        if self.depth == 0 and self.buffers:
            self.hub.casts.angles.converted(self.buffers)
            self.buffers = []
        if not note:
            return
        own = {id(p) for p in args[0].parameters()}
        for model, param, dtype, device in note:
            same = param.dtype == dtype and param.device == device and id(param) in own
            if not same:
                self.moved += 1
                self.hub.steps.now.changed.add("moved")
                self.hub.put(
                    "moved",
                    model=model.index,
                    at=self.hub.places.here(),
                    step=self.hub.steps.done_now(),
                    type=type_name(dtype),
                )
                return

    # ---- one parameter under several names -------------------------------------------------------

    def _all(self, module):
        """Its parameters by all names that they have."""
        parts = module.named_modules()
        found = ((path, part._parameters.items()) for path, part in parts)
        return {"%s.%s" % (path, k) if path else k: p for path, own in found for k, p in own}

    def ties(self, module):
        """[the names] of parameters that have several."""
        found = {}
        for name, param in self._all(module).items():
            found.setdefault(id(param), []).append(name)
        return [n for n in found.values() if len(n) > 1 and self._all(module)[n[0]] is not None]

    def _at(self, holders):
        """The parameters that stand there, each once."""
        pairs = ((ref(), name) for ref, name in holders)
        held = [module._parameters.get(name) for module, name in pairs if module is not None]
        return list({id(p): p for p in held if p is not None}.values())

    def parted(self, module, ties, on_meta=False):
        """They may be tied again before they are trained. On meta they have no values yet, and each
        may get its own.
        """
        parts = dict(module.named_modules())
        for names in ties:
            pairs = (name.rpartition(".") for name in names)
            holders = [(weakref.ref(parts[path]), leaf) for path, _, leaf in pairs]
            if len(self._at(holders)) > 1:
                self.torn.append((holders, self.hub.places.here(), on_meta))

    def _leave(self, module, name, old, at):
        """One of several modules that have a parameter gets another one: where the same line gives
        others of them others, too, it goes through all names, and a tie may be lost.
        """
        homes = self.homes.get(old) or []
        kept = [(ref, leaf) for ref, leaf in homes if ref() is not None]
        if len({(id(ref()), leaf) for ref, leaf in kept}) > 1:
            self.leaving.put(old, (self.leaving.get(old) or []) + [(weakref.ref(module), name, at)])
            left = [(ref, leaf) for ref, leaf, place in self.leaving.get(old) if place == at]
            if len(left) > 1:
                self.torn.append((left, at, False))

    def trains(self, params):
        """An optimizer steps these, the first time since some were parted."""
        torn, self.torn, own, said = self.torn, [], {id(p) for p in params}, set()
        for holders, at, on_meta in torn:
            held = self._at(holders)
            several = [p for p in held if id(p) in own]
            if held and not several:
                self.torn.append((holders, at, on_meta))
            elif len(several) > 1 and said.isdisjoint(map(id, several)):
                equal = self._are_copies(*several[:2])
                if equal or on_meta:
                    said.update(map(id, several))
                    entries = filter(None, map(self.hub.models.entry_of, several))
                    names = [entry.name for entry in entries]
                    self.hub.put("untied", at=at, names=names, equal=equal)

    def _are_copies(self, one, other):
        plain = not hasattr(one, "_local_tensor") and one.device == other.device
        equal = plain and one.shape == other.shape and self.hub.torch.equal(one, other)
        return equal and one.data_ptr() != other.data_ptr()

    # ---- parameters in the place of others -------------------------------------------------------

    def _enter_register(self, args, kwargs):
        """A module gets a parameter under a name, also by an assignment."""
        name, new = given(args, kwargs, "name", 1), given(args, kwargs, "param", 2)
        old = args[0]._parameters.get(name)
        if new is not None:
            home = weakref.ref(args[0]), name
            self.homes.put(new, (self.homes.get(new) or []) + [home])
        if new is not None and len(self.paths) > 0:
            self.made.put(new, self.hub.places.here())
        if old is None or new is None or old is new:
            return
        self.hub.steps.now.changed.add("parameter")
        at = self.hub.places.here()
        self.replaced[at] = self.replaced.get(at, 0) + 1
        self._leave(args[0], name, old, at)
        freed = not old.requires_grad and new.requires_grad
        if hasattr(old, "_local_tensor") or hasattr(new, "_local_tensor"):
            return  # comparing them may communicate
        if freed and old.shape == new.shape and old.device == new.device and new.numel() > 1:
            varied = (new != new.flatten()[0]).any()  # no bias of zeros, which is like any other
            if varied and self.hub.torch.equal(old.to(new.dtype), new):
                self.thawed.put(new, at)

    def remember(self, root):
        """Where a module has its parameters while an optimizer is built."""
        if root is not None:
            ref = weakref.ref(root)
            for name, param in root.named_parameters():
                self.paths.put(param, (ref, name))

    def _in_place(self, root, name):
        """What stands in a module where it had a parameter: another one, or those that the old one
        is computed from since (weight_norm, a parametrization of several).
        """
        own = dict(root.named_parameters())
        if name in own:
            return [own[name]]
        part, _, leaf = name.rpartition(".")
        path = part + "." if part else ""
        begins = path + leaf + "_", "%sparametrizations.%s." % (path, leaf)
        return [p for key, p in own.items() if key.startswith(begins) and self.made.get(p)]

    def successors(self, params):
        """[name, place] of parameters of known models, in no optimizer and with a gradient, that
        stand where modules had these of an optimizer, which are of no model now.
        """
        models, optimizers = self.hub.models, self.hub.optimizers
        lost = [p for p in params if models.entry_of(p) is None and self.paths.get(p)]
        held = {id(p) for _, o in optimizers.found() for p in optimizers.params(o)} if lost else ()
        out = []
        for param in lost:
            ref, name = self.paths.get(param)
            root = ref()
            for now in self._in_place(root, name) if root is not None else ():
                entry = models.entry_of(now)
                if entry is not None and now.grad is not None and id(now) not in held:
                    out.append([entry.name, self.made.get(now, "")])
        return out

    def unfrozen(self, params):
        """[name, place] of those that are trained, where a frozen one of the same values was, and a
        line that replaces several put them: one alone may be meant.
        """
        found = ((entry.name, self.thawed.get(p)) for entry, p in params if p.requires_grad)
        return [[name, at] for name, at in found if at and self.replaced[at] > 1]

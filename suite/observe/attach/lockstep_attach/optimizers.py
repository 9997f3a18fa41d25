"""Optimizers: every subclass of torch.optim.Optimizer, by its class's step, also where it is called
through a scaler.
"""

import functools
import inspect
import numbers
import time
import weakref

from . import script_text
from .params import is_freed, part_of
from .samples import local, norm
from .wrapping import ByObject, Swap, given

# Classes whose rule is known, by the package that defines them. A class of the same name elsewhere
# may compute otherwise.
TORCH_RULES = {"SGD": "sgd", "Adam": "adam", "AdamW": "adamw"}
APEX_RULES = {
    "FusedSGD": "sgd",
    "FusedAdam": "adam",
    "FusedLAMB": "lamb",
    "FusedMixedPrecisionLamb": "lamb",
}
SETTINGS = (
    "lr", "momentum", "dampening", "nesterov", "weight_decay", "betas", "eps", "amsgrad",
    "maximize", "fused",
    "trust_coefficient", "bias_correction", "max_grad_norm", "grad_averaging", "use_nvlamb",
)  # fmt: skip
PLAIN = SETTINGS[1:]  # all but the rate
FLAGS = {
    "nesterov", "amsgrad", "maximize", "fused", "bias_correction", "grad_averaging", "use_nvlamb",
}  # fmt: skip

IDLE = 8  # steps of others after which an optimizer that has never stepped is named

# What schedules of torch and torch itself put into a group next to the optimizer's own settings.
OTHERS = {
    "params", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr", "base_momentum",
    "max_momentum", "step",
}  # fmt: skip


SAME = 1e-4  # of a factor, where it was applied in f32
MARKS, MARKED = 4, 8  # parameters of an optimizer, and optimizers


def _mark(param):
    grad = param.grad
    return (id(grad), 0 if grad.is_inference() else grad._version) if grad is not None else None


def _owner(kind):
    """The class that defines its step."""
    return next((c for c in kind.__mro__ if "step" in c.__dict__), kind)


class Known:
    """What is remembered of an optimizer."""

    def __init__(self, hub, optimizer, at):
        self.ref = weakref.ref(optimizer, hub.dying)
        self.at = at
        # [rate of each group as the constructor or add_param_group() left it], where that was seen
        self.built = None
        self.default = (None, None)  # as _unread gives it
        self.groups = []  # settings of each group, as its event has them
        self.restored = None  # what the last state that was loaded gave, as the event has it
        self.left = None  # marks of its gradients after its last step
        self.held = None  # (parameter groups, state) while a step is open
        self.index = None  # given when it is first asked to step
        self.said_replaced = self.said_freed = False  # such an event was written
        # steps behind a backward that none of its parameters had a gradient in; whether one had
        self.bare, self.graded, self.versions = 0, False, None
        self.part_norms = []  # of its parts of gradients, behind the open step's last backward
        self.squares = None  # (place, norms, digests) of gradients whose squares ranks summed
        # names of the groups' parameters, and how many models there were, at its last event
        self.names, self.models = [], 0


class Optimizers:
    def __init__(self, hub):
        self.hub = hub
        self.by_object = ByObject()  # what is known of each
        self.order = []
        self.said_idle = False  # which ones have not stepped, after some steps of others
        self.active = None  # the optimizer whose step runs
        self.repeating = set()  # classes whose step calls its closure more than once
        self.searches = 0

    def install(self):
        optimizer = self.hub.torch.optim.Optimizer
        self.hub.wrap(optimizer, "__init__", None, self._built)
        self.hub.wrap(optimizer, "add_param_group", None, self._grown)
        self.hub.wrap(optimizer, "__setstate__", None, self._restored)
        self.hub.wrap(optimizer, "zero_grad", self._enter_zero, count=self._counting("zero_grad"))

    # ---- what is known ---------------------------------------------------------------------------

    def found(self):
        """[(what is known, the optimizer)] of those that are alive."""
        return [(entry, optimizer) for optimizer, entry in self.by_object.alive()]

    def known(self, optimizer):
        return self.by_object.get(optimizer)

    def _behind(self, optimizer):
        """Of an object that stands for a known one and has its groups, as Lightning's."""
        groups = getattr(optimizer, "param_groups", None)
        for entry, known in self.found() if groups is not None else ():
            if known.param_groups is groups:
                return entry
        return None

    def _built(self, note, args, kwargs, result, error):
        if error is None:
            entry = self._learn(args[0], self.hub.places.here())
            entry.built = [self._number(group.get("lr")) for group in args[0].param_groups]

    def _grown(self, note, args, kwargs, result, error):
        """A group was added, by the constructor (which is not known yet) or by the script."""
        entry = self.known(args[0])
        groups = args[0].param_groups
        if error is None and entry is not None and entry.built is not None:
            self.hub.steps.now.changed.add("group")
            if len(groups) == len(entry.built) + 1:
                entry.built.append(self._number(groups[-1].get("lr")))

    def _restored(self, note, args, kwargs, result, error):
        self._watch_class(type(args[0]))

    def _learn(self, optimizer, at):
        self._watch_class(type(optimizer))
        entry = self.by_object.put(optimizer, Known(self.hub, optimizer, at))
        if self.searches < 16:  # scripts that build them without end are not searched each time
            self.searches += 1
            self.hub.models.look_for(self.params(optimizer), at)
        return entry

    def loaded(self, optimizer):
        """After load_state_dict the rates are the state's until the script sets them."""
        entry = self.known(optimizer)
        if entry is not None and entry.index is None and optimizer.state:
            entry.restored = {
                "lr": self.rates(optimizer),
                "schedules": self.hub.schedules.numbers.count,
                "at": self.hub.places.here(),
            }

    def _counting(self, name):
        thin = self.hub.thin
        return thin.counting(thin.step if name == "step" else thin.zero)

    def _watch_class(self, kind):
        own = {"step": (self._enter_step, self._leave_step), "zero_grad": (self._enter_zero, None)}
        for name, (enter, leave) in own.items():
            owner = next((c for c in kind.__mro__ if name in c.__dict__), None)
            if owner is not None:
                self.hub.wrap(owner, name, enter, leave, count=self._counting(name))

    def params(self, optimizer):
        return [p for group in optimizer.param_groups for p in group["params"]]

    def index_of(self, optimizer):
        """Its number; the event is written when it is first asked."""
        entry = self.known(optimizer) or self._learn(optimizer, "")
        if entry.index is None:
            self.hub.models.settle()
            if any(self.hub.models.entry_of(p) is None for p in self.params(optimizer)):
                self.hub.models.refresh()  # a layer of a known model was replaced
            entry.index = len(self.order)
            entry.groups = [self._plain(group) for group in optimizer.param_groups]
            entry.default = self._unread(optimizer)
            self.order.append(entry)
            self.hub.writer.put(self._event(optimizer, entry))
            entry.names = self._names(optimizer)
            entry.models = len(self.hub.models.models)
        return entry.index

    def _names(self, optimizer):
        """Of each group's parameters; "?" of one that no model has."""
        found = self.hub.models.entry_of
        groups = ([found(p) for p in group["params"]] for group in optimizer.param_groups)
        return [[one.name if one is not None else "?" for one in group] for group in groups]

    def _report_held(self, optimizer):
        """Where a model was wrapped again, or a group was added, since its event."""
        entry, count = self.known(optimizer), len(self.hub.models.models)
        if entry.models == count and len(entry.names) == len(optimizer.param_groups):
            return
        entry.models, names = count, self._names(optimizer)
        if names != entry.names:
            entry.names = names
            groups = [{"params": group} for group in names]
            self.hub.put("held", optimizer=entry.index, groups=groups)

    def _event(self, optimizer, entry):
        kind = type(optimizer)
        groups = [self._group(optimizer, group) for group in optimizer.param_groups]
        for group, rate in zip(groups, entry.built or ()):
            group["built_lr"] = rate
        where = spared = None
        if len(groups) > 1:
            where = script_text.rate(entry.at, self.hub.places.work)
            if len({bool(group.get("weight_decay")) for group in groups}) > 1:
                spared = script_text.spared(entry.at, self.hub.places.work)
        return {
            "event": "optimizer",
            "optimizer": entry.index,
            "class": "%s.%s" % (kind.__module__, kind.__qualname__),
            "rule": self.rule(optimizer),
            "at": entry.at,
            "step_at": self._step_place(type(optimizer)),
            "state": sum(1 for p in self.params(optimizer) if optimizer.state.get(p)),
            "rate_at": where,
            "spared": spared,
            "set_at": script_text.rate_set(entry.at, self.hub.places.work),
            "scaled_at": script_text.rate_scaled(entry.at, self.hub.places.work),
            "copies_at": script_text.gradients_copied(entry.at, self.hub.places.work),
            "restored": entry.restored,
            "groups": groups,
        }

    def _step_place(self, kind):
        """Where the user's code defines its step; None where a package does."""
        step = inspect.unwrap(_owner(kind).__dict__.get("step"))
        code = getattr(step, "__code__", None)
        name, packaged = self.hub.places.name_of(code.co_filename) if code else ("", True)
        return self.hub.places.of(step) if name and not packaged else None

    def rule(self, optimizer):
        """The update rule by the class that defines its step; "" where it is not known."""
        owner = _owner(type(optimizer))
        package = owner.__module__.split(".")[0]
        if package == "torch" and owner.__module__.startswith("torch.optim."):
            rule = TORCH_RULES.get(owner.__name__, "")
        else:
            rule = APEX_RULES.get(owner.__name__, "") if package == "apex" else ""
        if rule == "adam" and self._decoupled(optimizer, optimizer.param_groups[0]):
            return "adamw"
        return rule

    def _decoupled(self, optimizer, group):
        """Whether the decay is taken from the parameter; None where the class has none."""
        if "decoupled_weight_decay" in group:
            return bool(group["decoupled_weight_decay"])
        mode = getattr(optimizer, "adam_w_mode", None)
        if mode is not None:
            return bool(mode)
        return True if type(optimizer).__name__ == "AdamW" else None

    def _group(self, optimizer, group):
        names = [self.hub.models.entry_of(p) for p in group["params"]]
        out = {"params": [entry.name if entry is not None else "?" for entry in names]}
        others = (self.hub.models.stepped_as(p) for p, n in zip(group["params"], names) if not n)
        shards = [entry.name for entry in others if entry is not None]
        if shards:
            out["shards"] = shards
        for key in SETTINGS:
            if key in group:
                out[key] = self._setting(key, group[key])
        decoupled = self._decoupled(optimizer, group)
        if decoupled is not None:
            out["decoupled"] = decoupled
        known = getattr(optimizer, "defaults", None) or {}
        own = {
            str(key)[:40]: value[:40] if isinstance(value, str) else self._number(value)
            for key, value in group.items()
            if key not in known and key not in OTHERS and key not in SETTINGS
        }
        if own:
            out["own"] = own
        return out

    def _number(self, value):
        """A setting that is a number in the host's memory, else None."""
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def _setting(self, key, value):
        """Of the kind that its event has; None where a class keeps another one under the name, as
        Adafactor's pair of "eps".
        """
        made = self.value(value)
        if made is None or isinstance(made, list) != (key == "betas"):
            return None
        if key in FLAGS:
            return bool(made) if isinstance(made, (int, float)) else None
        return int(made) if isinstance(made, bool) else made

    def _unread(self, optimizer):
        """Rates that a step does not read once there are groups: of the defaults, and of an
        attribute that no class of the optimizer's knows.
        """
        defaults = getattr(optimizer, "defaults", None) or {}
        return self._number(defaults.get("lr")), self._number(vars(optimizer).get("lr"))

    def _plain(self, group):
        """A group's settings that need not be read from a device, but for the rate."""
        tensor = self.hub.torch.Tensor
        return {k: group[k] for k in PLAIN if k in group and not isinstance(group[k], tensor)}

    def changed(self, optimizer):
        """[of each group: settings that are no longer the event's], or None without any."""
        entry, out, tensor = self.known(optimizer), [], self.hub.torch.Tensor
        for place, group in enumerate(optimizer.param_groups):
            before = entry.groups[place] if place < len(entry.groups) else {}
            for key in PLAIN:
                now = group.get(key, entry)
                if now is before.get(key, entry) or now is entry or isinstance(now, tensor):
                    continue
                if key not in before or before[key] != now:
                    out = out or [{} for _ in optimizer.param_groups]
                    out[place][key] = self._setting(key, now)
        return out or None

    def value(self, value):
        """A number, true, false, or a list of them, as JSON has it, else None; a tensor is read
        later.
        """
        if isinstance(value, self.hub.torch.Tensor):
            one = value.numel() == 1
            return self.hub.Lazy(value.detach().reshape(-1)[0].clone()) if one else None
        if isinstance(value, (list, tuple)):
            return [self.value(one) for one in value]
        if isinstance(value, (bool, int, float)):
            return value
        return float(value) if isinstance(value, numbers.Real) else None  # NumPy's

    def holder(self, param):
        """Late: the number of the only optimizer that has the parameter; None where several do."""
        found = [e for e, one in self.found() if any(p is param for p in self.params(one))]
        return lambda: found[0].index if len(found) == 1 else None

    def group_of(self, params):
        """The number of the group, of several of an optimizer, whose parameters these are."""
        for _, optimizer in self.found() if params else ():
            for place, group in enumerate(optimizer.param_groups):
                own = group["params"]
                whole = len(own) == len(params) and own[0] is params[0] and own[-1] is params[-1]
                if len(optimizer.param_groups) > 1 and whole:
                    return place
        return None

    def alive(self):
        found = (entry.ref() for entry in self.order)
        return [optimizer for optimizer in found if optimizer is not None]

    def moving(self):
        """The ids of parameters that an optimizer has, at a rate above 0."""
        groups = [group for _, optimizer in self.found() for group in optimizer.param_groups]
        moving = [g for g in groups if g.get("lr") is None or float(g["lr"]) != 0]
        return {id(p) for group in moving for p in group["params"]}

    def marks(self):
        """What shows later which optimizers' parameters a backward gave gradients: of each a few,
        with theirs now. Nothing where there is one optimizer.
        """
        alive, out = self.found(), []
        for entry, optimizer in alive[:MARKED] if len(alive) > 1 else ():
            params = self.params(optimizer)
            for param in params[:: max(1, len(params) // MARKS)]:
                out.append((entry, param, _mark(param)))
        return out

    def reached(self, marks):
        """Late: a bit for each optimizer whose marks have changed, by its number."""
        changed = {id(entry): entry for entry, param, mark in marks if _mark(param) != mark}
        found = changed.values()
        return self.hub.Late(lambda: sum(1 << e.index for e in found if e.index is not None))

    def rates(self, optimizer):
        return [self._setting("lr", group.get("lr")) for group in optimizer.param_groups]

    # ---- state -----------------------------------------------------------------------------------

    def moments(self, optimizer, param):
        """[(word, tensor)] of a parameter, sorted; the count of steps as F64 of one element."""
        torch = self.hub.torch
        state = optimizer.state.get(param) or {}
        out = []
        for word in sorted(key for key in state if isinstance(key, str)):
            value = state[word]
            if word == "step":
                out.append((word, self._count(value)))
            elif isinstance(value, torch.Tensor):
                out.append((word, value))
        if state and "step" not in state:
            for group in optimizer.param_groups:  # Apex counts once for a group
                if "step" in group and any(p is param for p in group["params"]):
                    out.append(("step", self._count(group["step"])))
        return out

    def _count(self, value):
        torch = self.hub.torch
        if isinstance(value, torch.Tensor):
            return value.detach().reshape(-1)[:1].double().clone()
        return torch.tensor([float(value)], dtype=torch.float64, device="cpu")

    def _contents(self, entry):
        optimizer = entry.ref()
        return entry.held if optimizer is None else (optimizer.param_groups, optimizer.state)

    def hold(self):
        for entry in self.order:
            entry.held = self._contents(entry)

    def release(self):
        for entry in self.order:
            entry.held = None

    def all_state(self):
        torch, out = self.hub.torch, []
        for groups, states in filter(None, (self._contents(entry) for entry in self.order)):
            for param in (p for group in groups for p in group["params"]):
                state = states.get(param)
                for word in sorted(key for key in state if isinstance(key, str)) if state else ():
                    value = state[word]
                    whole = isinstance(value, torch.Tensor) and not hasattr(value, "_local_tensor")
                    if word != "step" and whole:
                        out.append(value)
        return out

    # ---- step ------------------------------------------------------------------------------------

    def _enter_step(self, args, kwargs):
        optimizer = args[0]
        if self.active is not None:
            # a step within a step: of a base class, or of the optimizer that a wrapper holds
            return None
        closure = given(args, kwargs, "closure", 1)
        if not callable(closure) or not self._takes_closure(optimizer):
            return self._entered(optimizer)
        if self._calls_first(optimizer):
            return self._behind_closure(closure, args, kwargs)
        self._remark_closure(optimizer)
        return self._entered(optimizer)

    def _takes_closure(self, optimizer):
        """Not an optimizer of the user's that is given something else, a model say."""
        owner = _owner(type(optimizer))
        if owner.__module__.startswith("torch."):
            return True
        step = owner.__dict__.get("step")
        code = getattr(inspect.unwrap(step), "__code__", None) if step is not None else None
        return code is None or code.co_argcount < 2 or "closure" in code.co_varnames[1]

    def _calls_first(self, optimizer):
        """Whether its step begins with the closure, called once. Optimizers of other packages do
        so, too, as far as is known: until one calls it again, and not where gradients are there
        already.
        """
        owner = _owner(type(optimizer))
        if owner.__module__.startswith("torch.optim."):
            return owner.__name__ != "LBFGS"
        step = self.hub.steps.now
        ready = not step.asked and any(call["call"] == "backward" for call in step.calls)
        return owner not in self.repeating and not ready

    def _behind_closure(self, closure, args, kwargs):
        """The step begins when the closure has ended: until then there are no gradients."""
        note, hub = [], self.hub

        @functools.wraps(closure, updated=())
        def followed(*own_args, **own_kwargs):
            if note:
                hub.call(self._repeats, args[0])
            result = closure(*own_args, **own_kwargs)
            if not note:
                note.append(hub.call(self._entered, args[0]))
            return result

        if "closure" in kwargs:
            return Swap(args, dict(kwargs, closure=followed), note)
        return Swap((args[0], followed) + tuple(args[2:]), kwargs, note)

    def _repeats(self, optimizer):
        """Its step calls the closure again: what was seen of it is its first half."""
        self.repeating.add(_owner(type(optimizer)))
        self.hub.steps.detail.closure = True
        self._report_closure(optimizer)

    def _entered(self, optimizer):
        hub, steps = self.hub, self.hub.steps
        begin_ns = time.perf_counter_ns()
        index = self.index_of(optimizer)
        self._report_held(optimizer)
        if steps.now.asked and self._has_new_gradients(optimizer):
            steps.close()
        self.active = optimizer
        rates = self.rates(optimizer)
        if index == 0 and rates:
            steps.now.lr = rates[0]
        scaled, found_inf = hub.scalers.stepping(optimizer)
        entry = steps.note("optimizer_step", optimizer=index, scaled=scaled, lr=rates)
        changed = self.changed(optimizer)
        if changed is not None:
            entry["set"] = changed
        if hub.params.torn:
            hub.params.trains(self.params(optimizer))
        if steps.now.detail and steps.done < 8:
            self._report_hidden()
        if steps.now.detail:
            self._report_replaced(optimizer)
            bare = self._bare_foreign(optimizer)
            if bare is not None:
                entry["bare_foreign"] = bare
        if steps.done >= IDLE and not self.said_idle:
            self._report_idle()
        if not self.known(optimizer).graded:
            self._look_for_gradients(optimizer)
        self._report_parts(optimizer)
        self._report_squares(optimizer)
        unread, default = self._unread(optimizer), self.known(optimizer).default
        if unread != default:
            entry["unread"] = "defaults" if unread[0] != default[0] else "lr"
        if scaled is None:
            steps.ask(optimizer, True)
        params = self.params(optimizer)
        stale = hub.autograd.stale_casts(params[0].device) if params else None
        if stale is not None:
            entry["stale_casts"] = stale
        hub.autograd.before_change()
        copies = self._copies(params) if steps.now.detail else None
        if copies is not None:
            entry["copies"] = copies
        steps.detail.before_step(optimizer, params, found_inf is None)
        return optimizer, params, found_inf, scaled, begin_ns

    def _copies(self, params):
        """[how many, how many are equal, the first other one's name] of parameters of no model that
        have the shapes of the models' trainable ones, in their order, next to those; None: they do
        not.
        """
        models, torch = self.hub.models, self.hub.torch
        if not params or any(models.entry_of(param) is not None for param in params):
            return None
        trained = models.trainable()
        if [tuple(p.shape) for _, p in trained] != [tuple(p.shape) for p in params]:
            return None
        if any(hasattr(type(p), "to_local") for p in params):
            return None
        pairs = zip(trained, params)
        others = [e.name for (e, p), own in pairs if not torch.equal(p, own.detach().to(p))]
        return [len(params), len(params) - len(others), others[0] if others else ""]

    def _bare_foreign(self, optimizer):
        """How many parameters that no model has are without a gradient; None: it has none."""
        known = self.known(optimizer).names
        pairs = zip(known, (group["params"] for group in optimizer.param_groups))
        foreign = [p for names, params in pairs for n, p in zip(names, params) if n == "?"]
        return sum(1 for p in foreign if p.grad is None) if foreign else None

    def _has_new_gradients(self, optimizer):
        """Whether the script put other gradients into place since its last step, in a step without
        any backward: those of torch.func.grad, say.
        """
        left = self.known(optimizer).left
        if left is None or any(call["call"] == "backward" for call in self.hub.steps.now.calls):
            return False
        return [_mark(param) for param in self.params(optimizer)[:MARKS]] != left

    def _report_idle(self):
        """Optimizers that were built and never asked to step, while others were for some time."""
        self.said_idle = True
        for entry, optimizer in self.found():
            known = [self.hub.models.entry_of(p) for p in self.params(optimizer)]
            names = [one.name for one in known if one is not None]
            if names and entry.index is None:
                self.hub.put("idle", at=entry.at, params=names[:256], steps=IDLE)

    def _report_hidden(self):
        held = {id(p) for _, optimizer in self.found() for p in self.params(optimizer)}
        for model, at, names in self.hub.models.hidden(held):
            self.hub.put("hidden", model=model, at=at, names=names[:32], count=len(names))

    def _report_replaced(self, optimizer):
        entry = self.known(optimizer)
        replaced = [] if entry.said_replaced else self.hub.params.successors(self.params(optimizer))
        if replaced:
            entry.said_replaced = True
            self.hub.put("replaced", optimizer=entry.index, params=replaced)
        if not entry.said_freed:
            params = list(self.params(optimizer))
            freed = sum(1 for p in params if p.grad is None and is_freed(p))
            if freed:
                entry.said_freed = True
                self.hub.put("freed", optimizer=entry.index, count=freed, among=len(params))

    def _in_parts(self, optimizer):
        """Its parameters, before steps 1, 2, 4, ... of a model in parts; else none."""
        number = self.hub.steps.now.number
        if number & (number - 1):
            return []
        params = self.params(optimizer)
        of_parts = self.hub.models.in_parts() or any(hasattr(p, "_local_tensor") for p in params)
        return params if of_parts else []

    def after_backward(self):
        for entry, optimizer in self.found():
            entry.part_norms = self._part_norms(self._in_parts(optimizer))

    def _part_norms(self, params):
        """Norms of what this rank holds of their gradients, in FP64."""
        grads = [local(p.grad) for p in params if p.grad is not None]
        if not grads or any(grad.layout != self.hub.torch.strided for grad in grads):
            return []
        return self.hub.torch.stack([norm(self.hub.torch, grad) for grad in grads]).tolist()

    def _factor(self, before, params):
        """What the gradients of those norms were multiplied by since; None: by no one number."""
        after = self._part_norms(params)
        factors = [now / then for then, now in zip(before, after) if then > 0]
        if len(before) != len(after) or not factors or not max(factors) > 0:
            return None
        return max(factors) if min(factors) > (1 - SAME) * max(factors) else None

    def summed(self, given):
        """A sum of that number over all ranks: where it is of the squares of what this rank holds
        of an optimizer's gradients, they are kept until that steps.
        """
        if not isinstance(given, self.hub.torch.Tensor) or not given.is_floating_point():
            return
        at, value = self.hub.places.here(), float(local(given))
        for entry, optimizer in self.found():
            norms = self._part_norms(self.params(optimizer))
            square = sum(one * one for one in norms)
            if norms and abs(square - value) <= SAME * square:
                self.hub.steps.detail.touch()
                grads = [local(p.grad) for p in self.params(optimizer) if p.grad is not None]
                bits = [self.hub.digests.digest([grad]) for grad in grads]
                entry.squares = at, norms, bits

    def _report_squares(self, optimizer):
        entry = self.known(optimizer)
        if entry.squares is None:
            return
        (at, norms, bits), entry.squares = entry.squares, None
        factor = self._factor(norms, self.params(optimizer))
        if factor is not None:
            members = {"step": self.hub.steps.now.number, "at": at, "factor": factor}
            members["grad_squares"] = [one * one for one in norms]
            self.hub.put("squares", optimizer=entry.index, grad_hashes=bits, **members)

    def _report_parts(self, optimizer):
        """Digests of what this rank holds, and what its gradients were multiplied by."""
        entry, number, parts = self.known(optimizer), self.hub.steps.now.number, {}
        params = self._in_parts(optimizer)
        before, entry.part_norms = entry.part_norms, []
        factor = self._factor(before, params) if params else None
        for param in params:
            if param.requires_grad and not param.is_meta and not is_freed(param):
                parts.setdefault(part_of(param), []).append(param.detach())
        for part, tensors in parts.items():
            members = {"part": part, "count": len(tensors)}
            if factor is not None:
                members["factor"] = factor
            bits = self.hub.digests.digest(tensors)
            self.hub.put("parts", optimizer=entry.index, step=number, bits=bits, **members)

    def _look_for_gradients(self, optimizer):
        """Whether a backward ever gives its parameters one, or something else moves them."""
        entry, params = self.known(optimizer), self.params(optimizer)
        versions = [p._version for p in params[:MARKS] if not p.is_inference()]
        moved = entry.versions not in (None, versions)
        entry.versions = versions
        # state: fused optimizers of other packages may read gradients elsewhere than in .grad
        if moved or getattr(optimizer, "state", None) or any(p.grad is not None for p in params):
            entry.graded = True
        elif any(call["call"] == "backward" for call in self.hub.steps.now.calls):
            entry.bare += any(p.requires_grad for p in params)
        if entry.bare == IDLE or entry.graded and entry.bare > IDLE:
            entry.bare += 1
            members = {"count": len(params), "steps": IDLE, "later": entry.graded}
            self.hub.put("bare", optimizer=entry.index, **members)

    def _leave_step(self, note, args, kwargs, result, error):
        if isinstance(note, list):
            # a step that has not called its closure is a step all the same
            note = note[0] if note else self._entered(args[0]) if error is None else None
        if note is None:
            return
        optimizer, params, found_inf, scaled, begin_ns = note
        self.active = None
        self.known(optimizer).left = [_mark(param) for param in params[:MARKS]]
        if error is None:
            self.hub.steps.detail.after_step(optimizer, params, found_inf)
            self.hub.shadows.stepped()
            self.hub.averages.stepped()
            if self.hub.still.keeps():
                self.hub.still.stepped(optimizer)
        if scaled is None:
            self.hub.steps.spend("optimizer", begin_ns)

    def _remark_closure(self, optimizer):
        """Gradients that a closure makes in the midst of a step are seen as calls only."""
        self.hub.steps.before_backward()  # it has its forward and backward to itself
        self.hub.steps.detail.closure = True
        self._report_closure(optimizer)

    def _report_closure(self, optimizer):
        self.hub.remark(
            "a %s computes gradients inside its step, by its closure: they are not sampled, and "
            "only the order of calls, replicas, rates and data are judged"
            % type(optimizer).__name__
        )

    # ---- zero_grad -------------------------------------------------------------------------------

    def _enter_zero(self, args, kwargs):
        if self.active is not None:
            return
        known = self.known(args[0]) or self._behind(args[0])
        # given at its first step
        index = self.hub.Late(lambda: known.index if known is not None else None)
        params = self.params(args[0])
        self.hub.models.note_zero(args, kwargs, params, of="optimizer", optimizer=index)

"""What is saved and loaded: torch.save, torch.load, and the load_state_dict of all that has one."""

import collections
import functools
import os
import re
import sys
import time
import weakref

from .models import plain_name
from .samples import local
from .wrapping import ByObject, given

COPIES = "ema avg average swa teacher best".split()  # keys of weights that are no model's own
DEPTH = 4
ENTRIES = 64  # of a list that is searched
PART = re.compile(r"-\d{5}-of-\d{5}\.")  # of a file that is one of several
MADE = 256  # state_dict() of models that are remembered
FIRST = 4096  # elements of a parameter's moments that its mark is made of
RESTORED = 64  # models that get digests where load_state_dict is called
RANDOM = 4  # random states that are set before the first step
HEAD = 256  # elements of a restored parameter that are compared when training begins
OVERWRITTEN = 64  # parameters that are reported to hold others
CALLS = 4096  # of modules, in which one that was not restored whole is looked for


def _count_wrong(fit):
    return len(fit[2])


def _is_of_another(row, fits):
    """Of a model no parameter of which is in the file: another one with equal names is, whole."""
    places = [place for place, fit in enumerate(row) if fit is not None]
    rest = [other[place] for other in fits if other is not row for place in places]
    return any(fit is not None and not fit[1] and not fit[2] for fit in rest)


class Contents:
    """What a file holds: `what` of its event, and the parts that are compared with the job."""

    def __init__(self):
        self.what = {}  # {kind: [keys]}
        self.weights = []  # (key, {name: tensor}) of models
        self.copies = []  # the same of weights that a key calls an average or the best
        self.states = []  # (kind, state) of optimizers and schedules
        self.objects = []  # modules and optimizers that were saved whole
        self.numbers = {}  # {key: number} of epochs and steps

    def add(self, kind, path):
        names = self.what.setdefault(kind, [])
        if len(names) < 64:
            names.append(path)


class Checkpoints:
    def __init__(self, hub):
        self.hub = hub
        self.depth = 0
        self.made = ByObject()  # (steps done, place) of the first tensor of each state_dict()
        self.random = 0
        self.left = ByObject()  # {parameter that was not restored: its name, place} by module
        self.calls, self.hook = 0, None
        self.restored = 0  # models
        self.held = ByObject()  # {parameter that was restored: its name, place, values} by module
        self.overwritten = 0  # of them
        self.ties = []  # of a model whose parameters load_state_dict replaces

    def install(self):
        torch, wrap = self.hub.torch, self.hub.wrap
        wrap(torch, "save", self._enter_save, self._leave_save)
        wrap(torch, "load", self._enter_load, self._leave_load)
        wrap(torch.nn.Module, "load_state_dict", self._enter_model, self._restored("model"))
        self._watch_state_dict(torch.nn.Module)
        wrap(torch, "set_rng_state", None, self._leave_random)
        wrap(torch.optim.Optimizer, "load_state_dict", self._enter, self._restored("optimizer"))
        wrap(self.hub.scalers.kind(), "load_state_dict", self._enter, self._restored("scaler"))
        for kind in list(vars(torch.optim.lr_scheduler).values()):
            if isinstance(kind, type) and "load_state_dict" in kind.__dict__:
                wrap(kind, "load_state_dict", self._enter, self._restored("schedule"))
        self.hub.wait_for("safetensors.torch", lambda: self.hub.call(self._install_safetensors))

    def _install_safetensors(self):
        """Before anything but safetensors itself can have taken a name from it."""
        module = sys.modules["safetensors.torch"]
        self.hub.wrap(module, "save_file", self._enter_save_file, self._leave_save)
        self.hub.wrap(module, "load_file", self._enter_load, self._leave_load)

    # ---- what a file holds -----------------------------------------------------------------------

    def _contents(self, saved):
        out = Contents()
        torch = self.hub.torch
        if isinstance(saved, (dict, list, tuple, torch.nn.Module, torch.optim.Optimizer)):
            self._put("", "", saved, out, 0)
        if not out.what:
            out.add("other", type(saved).__name__)
        return out

    def _put(self, key, path, value, out, depth):
        """Enters one value of a file, or what lies in it."""
        kind = self._kind(key, value)
        if kind == "other" and self._is_weights(value):
            out.copies.append((path, dict(value)))
        elif kind == "other" and isinstance(value, (dict, list, tuple)) and depth <= DEPTH:
            inner = self._inner(value)
            for name, one in inner:
                below = "%s.%s" % (path, name) if path else str(name)
                self._put(str(name), below, one, out, depth + 1)
            if inner:
                return
        elif kind == "model":
            if isinstance(value, self.hub.torch.nn.Module):
                out.objects.append(value)
                value = value.state_dict()
            out.weights.append((path, dict(value)))
        elif isinstance(value, self.hub.torch.optim.Optimizer):
            out.objects.append(value)
        elif kind in ("optimizer", "schedule"):
            out.states.append((kind, value))
        elif kind == "epoch" and not isinstance(value, bool) and len(out.numbers) < 16:
            out.numbers[path] = value
        out.add(kind, path)

    def _inner(self, value):
        """The entries of a dict, or of a list that holds dicts (states of several optimizers)."""
        if isinstance(value, dict):
            return list(value.items())
        kinds = (dict, self.hub.torch.nn.Module, self.hub.torch.optim.Optimizer)
        if len(value) > ENTRIES or not any(isinstance(one, kinds) for one in value):
            return []
        return list(enumerate(value))

    def _is_weights(self, value):
        if not isinstance(value, dict) or not value:
            return False
        tensor = self.hub.torch.Tensor
        found = sum(1 for v in value.values() if isinstance(v, tensor))
        if found == 0 or found * 2 < len(value):
            return False
        known = self._names()
        return not known or bool(known & {plain_name(str(name)) for name in value})

    def _names(self):
        """Names of all models' parameters and buffers, without the model's number."""
        names = set()
        for model in self.hub.models.live():
            cut = len(model.full_name(""))
            names.update(entry.name[cut:] for entry in model.entries)
            names.update(name for name, _ in model.buffers)
            names.update(other for _, other in model.other_names)
        return names

    def _kind(self, key, value):
        torch, low = self.hub.torch, key.lower()
        if isinstance(value, torch.nn.Module):
            return "model"
        if isinstance(value, torch.optim.Optimizer):
            return "optimizer"
        if isinstance(value, dict):
            if "param_groups" in value and "state" in value:
                return "optimizer"
            if "growth_factor" in value and "scale" in value:
                return "scaler"
            if self.hub.schedules.is_state(value):
                return "schedule"
            if not value and "scaler" in low:
                return "scaler"  # of one that is not enabled
            if self._is_weights(value):
                return "other" if any(word in low for word in COPIES) else "model"
        if "rng" in low or "random" in low or "seed" in low or self._is_rng(value):
            return "rng"
        if "sampler" in low:
            return "sampler"
        counts = any(word in low for word in ("epoch", "step", "iter"))
        return "epoch" if counts and isinstance(value, (int, float)) else "other"

    def _is_rng(self, value):
        torch = self.hub.torch
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            value = value[0]
        words = isinstance(value, torch.Tensor) and value.dtype == torch.uint8
        return words and value.numel() in (16, 816, 5056)

    # ---- save ------------------------------------------------------------------------------------

    def _path(self, args, kwargs, place):
        target = kwargs.get("f", given(args, kwargs, "filename", place))
        target = getattr(target, "name", target)
        return os.fspath(target) if isinstance(target, (str, os.PathLike)) else ""

    def _enter(self, args, kwargs):
        self.depth += 1
        if self.depth != 1:
            return False
        self.hub.steps.turn()
        return self.hub.steps.done_now()

    def _enter_model(self, args, kwargs):
        note = self._enter(args, kwargs)
        if note is not False:
            assigns = given(args, kwargs, "assign", 3)
            self.ties = self.hub.params.ties(args[0]) if assigns else []
        return note

    def _enter_load(self, args, kwargs):
        self.depth += 1
        if self.depth != 1:
            return False
        return self.hub.steps.done_now(), self._begun()

    def _enter_save(self, args, kwargs):
        """Looked at before it is written: torch.save does not change it."""
        self.depth += 1
        if self.depth != 1:
            return False
        return self._save(given(args, kwargs, "obj", 0), args, kwargs)

    def _enter_save_file(self, args, kwargs):
        """Of safetensors: of a model in several files none holds it."""
        self.depth += 1
        if self.depth != 1 or PART.search(self._path(args, kwargs, 1)):
            return False
        return self._save(given(args, kwargs, "tensors", 0), args, kwargs)

    def _save(self, saved, args, kwargs):
        self.hub.steps.saving()
        whole = isinstance(saved, (dict, self.hub.torch.nn.Module))
        if not whole and not self._path(args, kwargs, 1):
            return False  # a piece of a distributed checkpoint, each tensor by itself
        contents = self._contents(saved)
        event = {
            "event": "save",
            "at": self.hub.places.here(),
            "path": self._path(args, kwargs, 1),
            "step": self.hub.steps.done_now(),
            "what": contents.what,
            "numbers": contents.numbers,
            **self._begun(),
            **self._against_models(contents.weights),
        }
        event["fresh"], event["stale"] = self._against_states(contents.states)
        if "optimizer" in event["fresh"]:
            event.update(self._marks(self.hub.optimizers.alive()))
        event["averages"] = self.hub.averages.bits(saved)
        made = self._references(contents.weights + contents.copies)
        if made is not None:
            event["made"], event["made_at"] = made
        return event

    def _begun(self):
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return {"begun_ns": now, "shared": self.hub.collectives.count}

    def _leave_save(self, event, args, kwargs, result, error):
        if event is not None:
            self.depth -= 1
        if event and error is None:
            self.hub.writer.put(event)

    def _against_models(self, weights):
        """The saved weights against what the models hold now."""
        floating = [t for _, state in weights for t in state.values() if self._is_floating(t)]
        out = {"params": 0, "params_missing": [], "wrong": [], "digests": [], "lacks": []}
        out["half"] = bool(floating) and all(t.element_size() == 2 for t in floating)
        models = list(self.hub.models.live())
        fits = [[self._fit(model, state) for _, state in weights] for model in models]
        for model, row in zip(models, fits):
            known = [fit for fit in row if fit is not None]
            best = min(known, key=_count_wrong) if known else None
            if best is not None and len(best[2]) >= best[0] and _is_of_another(row, fits):
                continue
            # a file may hold weights of one of two models with equal names
            column = [other[row.index(best)] for other in fits] if best is not None else []
            if best is not None and best is min(filter(None, column), key=_count_wrong):
                for key, value in zip(("params", "params_missing", "wrong"), best):
                    out[key] = out[key] + value
                out["lacks"] += self._lacks(model, set(best[1]))
                digest = self._digest(model, weights[row.index(best)][1])
                if digest is not None:
                    out["digests"].append([model.index, digest])
        return out

    def _lacks(self, model, missing):
        """[name in the model, digest, type] of parameters that the file lacks."""
        cut = len(model.full_name(""))
        found = [(entry.name[cut:], p) for entry, p in model.params() if entry.name in missing]
        return self._digests(found)

    def _digests(self, found):
        digests = self.hub.digests.each([p.detach() for _, p in found])
        return [[name, digest, str(p.dtype)] for (name, p), digest in zip(found, digests)]

    def _bits(self, module):
        """Digest of its parameters, as of a file; None where some have no values here."""
        self.restored += 1
        params = list(module.parameters())
        parts = any(p.is_meta or hasattr(p, "_local_tensor") for p in params)
        if parts or self.restored > RESTORED:
            return None
        return self.hub.digests.digest([p.detach() for p in params])

    def _marks(self, optimizers):
        """Parameters that have moments, by name, and a digest of the first elements of these."""
        plain, params, moments = self.hub.torch.Tensor, [], []
        for optimizer in optimizers:
            for param in self.hub.optimizers.params(optimizer):
                state = optimizer.state.get(param) or {}
                for word in sorted(key for key in state if isinstance(key, str)):
                    value = state[word]
                    if type(value) is plain and value.numel() > 1 and value.is_contiguous():
                        params.append(weakref.ref(param))
                        moments.append(value.detach().reshape(-1)[:FIRST])
                        break

        def names():
            entries = [self.hub.models.entry_of(ref()) for ref in params]
            return [entry.name if entry is not None else "?" for entry in entries]

        return {"moments": self.hub.Late(names), "marks": self.hub.digests.each(moments)}

    def _digest(self, model, state):
        """Of the saved parameters, as in the model's event; None where they are not all there."""
        saved, cut = self._saved(model, state), len(model.full_name(""))
        tensors = [(saved.get(entry.name[cut:]), p) for entry, p in model.params()]
        for t, p in tensors:
            like = isinstance(t, self.hub.torch.Tensor) and t.dtype == p.dtype
            if not like or t.shape != p.shape or hasattr(t, "_local_tensor"):
                return None
        if not tensors:
            return None
        return self.hub.digests.digest([t.detach() for t, _ in tensors])

    def _saved(self, model, state):
        """Tensors by the model's own names: safetensors keeps one of several names of a tensor."""
        saved = {plain_name(str(name)): tensor for name, tensor in state.items()}
        for name, other in model.other_names:
            if name not in saved and other in saved:
                saved[name] = saved[other]
        return saved

    def _against_states(self, states):
        """Kinds of which the file has what the job has now, and of which it has something older."""
        fresh, stale = [], []
        for kind, state in states:
            if kind == "optimizer":
                current = self._is_current(state)
            else:
                # the script may step a schedule between state_dict() and the file
                behind = [n - state["last_epoch"] for n in self.hub.schedules.counts()]
                current = None if not behind else any(n <= 1 for n in behind)
            if current is not None:
                (fresh if current else stale).append(kind)
        return fresh, stale

    def _is_current(self, state):
        """Whether a live optimizer has this state; None where none is like it or has any."""
        ids = [p for group in state["param_groups"] for p in group.get("params", ())]
        results = []
        for optimizer in self.hub.optimizers.alive():
            params = self.hub.optimizers.params(optimizer)
            place = next((i for i, p in enumerate(params) if optimizer.state.get(p)), None)
            if len(params) == len(ids) and place is not None:
                saved = state["state"].get(ids[place])
                results.append(self._same_state(saved, optimizer.state[params[place]]))
        return any(results) if results else None

    def _same_state(self, saved, held):
        if not isinstance(saved, dict) or not saved:
            return False
        tensor = self.hub.torch.Tensor
        for word, value in saved.items():
            other = held.get(word)
            if isinstance(value, tensor) and isinstance(other, tensor):
                if self._same(value, other) is False:
                    return False
            elif isinstance(value, (int, float)) and value != other:
                return False
        return True

    # ---- state_dict ------------------------------------------------------------------------------

    def _watch_state_dict(self, kind):
        """The user's own calls only: it calls itself for every child, with a `destination`."""
        original, hub, made = kind.state_dict, self.hub, self._remember

        @functools.wraps(original)
        def state_dict(self, *args, **kwargs):
            result = original(self, *args, **kwargs)
            if not args and "destination" not in kwargs and not hub.idle():
                hub.call(made, result)
            return result

        state_dict._ls_original, state_dict._ls_self = original, state_dict
        kind.state_dict = state_dict

    def _remember(self, state):
        tensor = next((t for t in state.values() if isinstance(t, self.hub.torch.Tensor)), None)
        if tensor is None:
            return
        if len(self.made) >= MADE:
            alive, self.made = self.made.alive(), ByObject()
            for kept, made in alive:
                self.made.put(kept, made)
        if len(self.made) < MADE:
            self.made.put(tensor, (self.hub.steps.done_now(), self.hub.places.here()))

    def _references(self, weights):
        """(steps done, place) where state_dict() gave these weights, which it does not copy; None
        where it is not known, or where they are no longer the model's own.
        """
        tensors = [tensor for _, state in weights for tensor in state.values()]
        found = [(self.made.get(t), t) for t in tensors if self.made.get(t) is not None]
        if not found:
            return None
        models = self.hub.models.live()
        own = {self._address(p) for model in models for _, p in model.params()}
        found = [kept for kept, tensor in found if self._address(tensor) in own - {0}]
        return min(found) if found else None

    def _address(self, tensor):
        try:
            return tensor.data_ptr()
        except (RuntimeError, NotImplementedError):  # of one without memory of its own
            return 0

    def _is_floating(self, value):
        return isinstance(value, self.hub.torch.Tensor) and value.is_floating_point()

    def _fit(self, model, state):
        """(count, missing, wrong) of a model's parameters and buffers in saved weights; None
        without half of them.
        """
        saved, cut = self._saved(model, state), len(model.full_name(""))
        params = [(entry.name, saved.get(entry.name[cut:]), p) for entry, p in model.params()]
        found = [(name, t, p) for name, t, p in params if isinstance(t, self.hub.torch.Tensor)]
        if len(found) * 2 < len(params):
            return None
        missing = [name for name, t, p in params if not isinstance(t, self.hub.torch.Tensor)]
        buffers = [(model.full_name(name), saved.get(name), b) for name, b in model.live_buffers()]
        found += [entry for entry in buffers if isinstance(entry[1], self.hub.torch.Tensor)]
        wrong = [name for name, t, p in found if self._same(t, p) is False]
        return len(params) - len(missing), missing[:256], wrong[:256]

    def _same(self, saved, held):
        """None where a tensor that ranks hold in parts meets a whole one, or other parts: to
        compare them all ranks would have to communicate.
        """
        if getattr(saved, "placements", None) != getattr(held, "placements", None):
            return None
        saved, held = (local(t).detach() for t in (saved, held))
        if saved.shape != held.shape:
            return False
        if held.element_size() < saved.element_size():
            saved = saved.to(held.dtype)  # of a master copy the model has the rounded values
        elif saved.dtype != held.dtype:
            held = held.to(saved.dtype)
        digest = self.hub.digests.digest
        dense = saved.layout == held.layout == self.hub.torch.strided
        if dense and saved.device == held.device and self.hub.torch.equal(saved, held):
            return True
        # on two devices, or with NaN
        return self._value(digest([saved])) == self._value(digest([held]))

    def _value(self, digest):
        return digest if isinstance(digest, str) else digest.make(*[int(t) for t in digest.tensors])

    # ---- load ------------------------------------------------------------------------------------

    def _leave_load(self, note, args, kwargs, result, error):
        if note is None:
            return
        self.depth -= 1
        if note is False:
            return
        note, begun = note
        path, at = self._path(args, kwargs, 0), self.hub.places.here()
        if error is not None:
            self.hub.put("load", at=at, path=path, step=note, what={}, failed=True, **begun)
            return
        contents = self._contents(result)
        optimizers = [state for kind, state in contents.states if kind == "optimizer"]
        groups = [group for state in optimizers for group in state["param_groups"][:1]]
        self.hub.put(
            "load",
            at=at,
            path=path,
            step=note,
            what=contents.what,
            settings=[sorted({"betas", "momentum"}.intersection(group)) for group in groups],
            numbers=contents.numbers,
            schedules=[s["last_epoch"] for kind, s in contents.states if kind == "schedule"],
            entries=[len(state["state"]) for state in optimizers],
            **begun,
        )
        for restored in contents.objects:
            kind = "model" if isinstance(restored, self.hub.torch.nn.Module) else "optimizer"
            which = self.hub.Late(self._which(kind, restored))
            self.hub.put("restore", what=kind, which=which, at=at, step=note)

    def _restored(self, what):
        def leave(note, args, kwargs, result, error):
            if note is None:
                return
            self.depth -= 1
            if note is False or error is not None:
                return
            which = self.hub.Late(self._which(what, args[0]))
            event = {"event": "restore", "what": what, "which": which}
            if what == "model":
                self.hub.params.parted(args[0], self.ties)
                event["bits"] = self._bits(args[0])
                event.update(self._taken(args, kwargs, result))
                event["like"] = self.hub.Late(self._like(args[0]))
                missing = set(getattr(result, "missing_keys", ()))
                self._watch_left(args[0], missing)
                if note == 0 and event["bits"] is not None:
                    self._hold(args[0], missing)
            elif what == "optimizer":
                event["entries"] = len(args[0].state)
                event.update(self._marks([args[0]]))
                self.hub.optimizers.loaded(args[0])
            event["at"], event["step"] = self.hub.places.here(), note
            self.hub.writer.put(event)

        return leave

    def _leave_random(self, note, args, kwargs, result, error):
        step = self.hub.steps.done_now()
        if error is None and step == 0 and self.random < RANDOM:
            self.random += 1
            self.hub.put("restore", what="rng", which=None, at=self.hub.places.here(), step=step)

    def _watch_left(self, module, missing):
        """What load_state_dict gave no value is looked at when its module first runs."""
        at = self.hub.places.here() if missing else ""
        for path, part in module.named_modules():
            names = {k: "%s.%s" % (path, k) if path else k for k in part._parameters}
            left = {k: (plain_name(n), at) for k, n in names.items() if n in missing}
            if left:
                self.left.put(part, left)
            else:
                self.left.drop(part)
        if len(self.left) and self.hook is None and self.calls < CALLS:
            hooks, look = self.hub.torch.nn.modules.module, self._look_left
            self.hook = hooks.register_module_forward_pre_hook(
                lambda part, inputs: None if self.hub.idle() else self.hub.call(look, part)
            )

    def _look_left(self, part):
        self.calls += 1
        left = self.left.get(part)
        if left:
            self.left.drop(part)
            known = [(key, part._parameters.get(key)) for key in left]
            known = [(key, p) for key, p in known if p is not None]
            for (key, p), (_, digest, kind) in zip(known, self._digests(known)):
                name, at = left[key]
                full = self._full(p)
                self.hub.put("left", name=name, at=at, bits=digest, type=kind, full=full)
        if self.hook is not None and (not len(self.left) or self.calls >= CALLS):
            self.hook.remove()
            self.hook = None

    def _hold(self, module, missing):
        """The first values of what load_state_dict gave, until training begins."""
        at = self.hub.places.here()
        for path, part in module.named_modules():
            own = self.held.get(part) or self.held.put(part, {})
            for key, p in part._parameters.items():
                name = "%s.%s" % (path, key) if path else key
                if p is not None and p.is_floating_point() and name not in missing:
                    own[key] = plain_name(name), at, self._head(p)

    def _head(self, param):
        return param.detach().reshape(-1)[:HEAD].to("cpu", self.hub.torch.float64)

    def begins(self, module):
        """A training forward: reports parameters with others than the values they were given."""
        found = []
        for part in module.modules():
            held = self.held.get(part, {})
            self.held.drop(part)
            for key, (name, at, was) in held.items():
                p = part._parameters.get(key)
                if p is None or p.is_meta or not p.is_floating_point():
                    continue
                if hasattr(p, "_local_tensor"):
                    continue
                now = self._head(p)
                if now.shape == was.shape and not self.hub.torch.equal(now, was):
                    found.append((p, name, at, was, now))
        found = found[: OVERWRITTEN - self.overwritten]
        self.overwritten += len(found)
        digests = self.hub.digests.each([p.detach() for p, *_ in found])
        for (p, name, at, was, now), bits in zip(found, digests):
            norms = float(was.norm() * now.norm())
            self.hub.put(
                "overwritten",
                name=name,
                at=at,
                bits=bits,
                full=self._full(p),
                count=was.numel(),
                cosine=float(was @ now) / norms if norms > 0 else 0,
            )

    def _full(self, param):
        """Late: its name among those of the known models, or "" where none has it."""
        ref, models = weakref.ref(param), self.hub.models

        def full():
            entry = models.entry_of(ref())
            return entry.name if entry is not None else ""

        return self.hub.Late(full)

    def _taken(self, args, kwargs, result):
        """How many of the model's parameters load_state_dict has given a value, how many of those
        were given their own tensors, and of how many the file has the name with another prefix.
        """
        missing = set(getattr(result, "missing_keys", ()))
        unexpected = list(getattr(result, "unexpected_keys", ()))
        state = given(args, kwargs, "state_dict", 1, {})
        names = [(name, p) for name, p in args[0].named_parameters() if p.numel()]
        own = 0
        for name, param in names:
            value = state.get(name) if not kwargs.get("assign") else None
            own += isinstance(value, self.hub.torch.Tensor) and self._is_own(value, param)
        made = self._references([(None, state)]) if own else None
        return {
            "missing": len(missing),
            "unexpected": len(unexpected),
            "params": len(names),
            "taken": sum(1 for name, _ in names if name not in missing),
            "own": own,
            "made": None if made is None else made[0],
            "renamed": self._renamed([name for name, _ in names if name in missing], unexpected),
        }

    def _is_own(self, value, param):
        address = self._address(param)
        return value.device == param.device and address != 0 and self._address(value) == address

    def _renamed(self, missing, unexpected):
        """Names that differ by one and the same prefix, which the file or the model has."""
        count, have, lack = collections.Counter(), set(unexpected), set(missing)
        for names, others in ((missing, have), (unexpected, lack)):
            for name in names:
                cut = name.find(".")
                while cut >= 0:
                    if name[cut + 1 :] in others:
                        count[names is missing, name[: cut + 1]] += 1
                    cut = name.find(".", cut + 1)
        return max(count.values()) if count else 0

    def _which(self, what, restored):
        """Known when it is written: a model may be loaded before it is wrapped and numbered."""
        ref, hub = weakref.ref(restored), self.hub

        def which():
            found = ref()
            if found is None or what == "schedule":
                return None
            if what == "scaler":
                return hub.scalers.numbers.get(found)
            if what == "model":
                entry = hub.models.known(found) or hub.models._of_inner(found)
                entry = entry or self._holder(found)
            else:
                entry = hub.optimizers.known(found)
            return entry.index if entry is not None else None

        return which

    def _holder(self, module):
        """The model that has this module's parameters: in another wrapper, or as a part."""
        held = {id(p) for p in module.parameters()}
        for model in self.hub.models.live():
            if any(id(p) in held for _, p in model.params()):
                return model
        return None

    def _like(self, module):
        """Late: the model with the same parameters by name and shape that is not this one."""
        shapes = {plain_name(name): tuple(p.shape) for name, p in module.named_parameters()}

        def like():
            for model in self.hub.models.live():
                cut = len(model.full_name(""))
                own = {entry.name[cut:]: tuple(p.shape) for entry, p in model.params()}
                if own and own == shapes:
                    return model.index
            return None

        return like

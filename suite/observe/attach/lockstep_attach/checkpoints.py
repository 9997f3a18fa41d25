"""What is saved and loaded: torch.save, torch.load, and the load_state_dict of all that has one."""

import os
import weakref

from .models import plain_name

KINDS = ("model", "optimizer", "scaler", "schedule", "epoch", "rng", "sampler", "other")
COPIES = (
    "ema",
    "avg",
    "average",
    "swa",
    "teacher",
    "best",
)  # keys of weights that are not the model's as it is
DEPTH = 4


class Checkpoints:
    def __init__(self, hub):
        self.hub = hub
        self.depth = 0

    def install(self):
        torch, wrap = self.hub.torch, self.hub.wrap
        wrap(torch, "save", self._enter_save, self._leave_save)
        wrap(torch, "load", self._enter, self._leave_load)
        wrap(torch.nn.Module, "load_state_dict", self._enter, self._restored("model"))
        wrap(torch.optim.Optimizer, "load_state_dict", self._enter, self._restored("optimizer"))
        for kind in self.hub.scalers._classes():
            wrap(kind, "load_state_dict", self._enter, self._restored("scaler"))
        for kind in list(vars(torch.optim.lr_scheduler).values()):
            if isinstance(kind, type) and "load_state_dict" in kind.__dict__:
                wrap(kind, "load_state_dict", self._enter, self._restored("schedule"))

    # ---- what a file holds -----------------------------------------------------------------------

    def _contents(self, saved):
        """(what, [(key, {name: tensor})]) of the object of a file."""
        torch = self.hub.torch
        what, weights = {}, []
        if isinstance(saved, torch.nn.Module):
            saved = {"": saved}
        if not isinstance(saved, dict):
            return {"other": [type(saved).__name__]}, weights
        if self._is_weights(saved):
            return {"model": [""]}, [("", dict(saved))]
        self._walk(saved, "", what, weights, 0)
        return what, weights

    def _walk(self, saved, prefix, what, weights, depth):
        for key, value in saved.items():
            path = prefix + str(key)
            kind = self._kind(str(key), value)
            if kind == "other" and isinstance(value, dict) and value and depth < DEPTH:
                self._walk(value, path + ".", what, weights, depth + 1)
                continue
            if kind == "model":
                state = value.state_dict() if isinstance(value, self.hub.torch.nn.Module) else value
                weights.append((path, dict(state)))
            names = what.setdefault(kind, [])
            if len(names) < 64:
                names.append(path)

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
            names |= {entry.name[cut:] for entry in model.entries} | {
                name for name, _ in model.buffers
            }
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
        if isinstance(value, (int, float)) and any(
            word in low for word in ("epoch", "step", "iter")
        ):
            return "epoch"
        return "other"

    def _is_rng(self, value):
        torch = self.hub.torch
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            value = value[0]
        return (
            isinstance(value, torch.Tensor)
            and value.dtype == torch.uint8
            and value.numel() in (16, 816, 5056)
        )

    # ---- save ------------------------------------------------------------------------------------

    def _path(self, args, kwargs, place):
        target = kwargs.get("f", args[place] if len(args) > place else None)
        target = getattr(target, "name", target)
        return os.fspath(target) if isinstance(target, (str, os.PathLike)) else ""

    def _enter(self, args, kwargs):
        self.depth += 1
        return self.hub.steps.done_now() if self.depth == 1 else False

    def _enter_save(self, args, kwargs):
        """Looked at before it is written: torch.save does not change it."""
        self.depth += 1
        if self.depth != 1:
            return False
        saved = kwargs.get("obj", args[0] if args else None)
        what, weights = self._contents(saved)
        event = {
            "event": "save",
            "at": self.hub.places.here(),
            "path": self._path(args, kwargs, 1),
            "step": self.hub.steps.done_now(),
            "what": what,
        }
        event.update(self._against_models(weights))
        return event

    def _leave_save(self, event, args, kwargs, result, error):
        if event is not None:
            self.depth -= 1
        if event and error is None:
            self.hub.writer.put(event)

    def _against_models(self, weights):
        """The saved weights against what the models hold now."""
        floating = [t for _, state in weights for t in state.values() if self._is_floating(t)]
        out = {"params": 0, "params_missing": [], "wrong": []}
        out["half"] = bool(floating) and all(t.element_size() == 2 for t in floating)
        if not weights:
            return out
        for model in self.hub.models.live():
            best = self._best(model, weights)
            if best is not None:
                for key, value in zip(("params", "params_missing", "wrong"), best):
                    out[key] = out[key] + value
        return out

    def _is_floating(self, value):
        return isinstance(value, self.hub.torch.Tensor) and value.is_floating_point()

    def _best(self, model, weights):
        """(count, missing, wrong) of the saved weights that fit best; None without half of them."""
        results = []
        for _, state in weights:
            saved = {plain_name(str(name)): tensor for name, tensor in state.items()}
            cut = len(model.full_name(""))
            params = [(entry.name, saved.get(entry.name[cut:]), p) for entry, p in model.params()]
            found = [(name, t, p) for name, t, p in params if isinstance(t, self.hub.torch.Tensor)]
            if len(found) * 2 < len(params):
                continue
            missing = [name for name, t, p in params if not isinstance(t, self.hub.torch.Tensor)]
            buffers = [
                (model.full_name(name), saved.get(name), b) for name, b in model.live_buffers()
            ]
            found_buffers = [
                entry for entry in buffers if isinstance(entry[1], self.hub.torch.Tensor)
            ]
            wrong = [name for name, t, p in found + found_buffers if not self._same(t, p)]
            results.append((len(wrong), (len(found), missing[:256], wrong[:256])))
        return min(results, key=lambda entry: entry[0])[1] if results else None

    def _same(self, saved, held):
        saved, held = saved.detach(), held.detach()
        if saved.shape != held.shape:
            return False
        if saved.dtype != held.dtype:
            held = held.to(saved.dtype)
        digest = self.hub.digests.digest
        if saved.device == held.device and self.hub.torch.equal(saved, held):
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
        if note is False or error is not None:
            return
        what, _ = self._contents(result)
        path, at = self._path(args, kwargs, 0), self.hub.places.here()
        self.hub.writer.put({"event": "load", "at": at, "path": path, "step": note, "what": what})

    def _restored(self, what):
        def leave(note, args, kwargs, result, error):
            if note is None:
                return
            self.depth -= 1
            if note is False or error is not None:
                return
            event = {
                "event": "restore",
                "what": what,
                "which": self.hub.Late(self._which(what, args[0])),
            }
            if what == "model":
                event["missing"] = len(getattr(result, "missing_keys", ()))
                event["unexpected"] = len(getattr(result, "unexpected_keys", ()))
            event["at"], event["step"] = self.hub.places.here(), note
            self.hub.writer.put(event)

        return leave

    def _which(self, what, restored):
        """Known when it is written: a model may be loaded before it is wrapped and numbered."""
        ref, hub = weakref.ref(restored), self.hub

        def which():
            found = ref()
            if found is None or what == "schedule":
                return None
            if what == "model":
                entry = hub.models.known(found) or hub.models._of_inner(found)
            else:
                entry = (hub.optimizers if what == "optimizer" else hub.scalers).known(found)
            return entry.index if entry is not None else None

        return which

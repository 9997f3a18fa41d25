"""Settings and arguments that nothing refuses and that mean something else than they say: each is one event, with its
kind, place and numbers. rules/misuse.c says what is wrong with it.
"""

import re
import weakref

from . import script_text
from .wrapping import is_stand_in

LEAST = 16  # tokens, labels or elements that must agree
RANDOM = re.compile(r"random|jitter|augment|cutout|mix", re.IGNORECASE)  # classes of transforms that draw
RESTORES = re.compile(r"auto_?enc|vae|recon|denois|copy", re.IGNORECASE)
MODULES = 4096  # of a model, that are looked at
# names that no module or parameter has, for requires_grad
UNREAD = ("require_grad", "require_grads", "requires_gradient", "require_gradient", "required_grad")


class Misuse:
    def __init__(self, hub):
        self.hub = hub
        self.said = set()  # (kind, place)
        self.tokens = None  # of the last forward: weak reference of whole numbers [batch, length]
        self.transforms = {}  # id of a data set: (weak reference, whether it is trained on, what its transforms are)
        self.parts = {}  # id of a Subset: (weak reference, whether the transform was random when it was made)
        self.schedules = weakref.WeakSet()  # that follow a score

    def install(self):
        functional = self.hub.torch.nn.functional
        self.hub.wrap(functional, "cross_entropy", self._enter_cross_entropy, None)
        self.hub.wrap(functional, "kl_div", self._enter_kl_div, None)

    def put(self, kind, at, **members):
        if (kind, at) not in self.said and len(self.said) < 64:
            self.said.add((kind, at))
            self.hub.writer.put({"event": "misuse", "kind": kind, "at": at, **members})

    # ---- tokens and labels -----------------------------------------------------------------------

    def forward(self, args, kwargs, training):
        """At a model's forward in a detailed step."""
        tokens = kwargs.get("input_ids", args[0] if args else None)
        self.tokens = weakref.ref(tokens) if self._is_tokens(tokens) else None
        mask, labels = kwargs.get("attention_mask"), kwargs.get("labels")
        if training and self.tokens is not None and self._is_tokens(labels) and isinstance(mask, self.hub.torch.Tensor):
            self._look_at_padding(mask, labels, tokens)

    def _is_tokens(self, value):
        torch = self.hub.torch
        plain = isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32) and value.dim() == 2
        return plain and value.shape[1] >= 4 and value.numel() >= LEAST

    def _look_at_padding(self, mask, labels, tokens):
        """Labels that are a copy of the input, padding included."""
        if mask.shape != labels.shape or tokens.shape != labels.shape:
            return
        padded = labels[mask == 0]
        if padded.numel() >= LEAST and bool((labels == tokens).all()):
            self.put("labels_of_padding", self.hub.places.here(), count=int(padded.numel()))

    def _enter_cross_entropy(self, args, kwargs):
        hub = self.hub
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if not hub.steps.now.detail or not hub.own.grad or not isinstance(target, hub.torch.Tensor):
            return
        if target.is_floating_point() or target.numel() < LEAST:
            return
        tokens = self.tokens() if self.tokens is not None else None
        ahead = self._shifts(tokens, target) if tokens is not None else set()
        if ahead and 1 not in ahead and not self._restores():
            self.put("target_%d_ahead" % min(ahead), hub.places.here())

    def _restores(self):
        """Whether a model's name says that it is to give back what it gets."""
        names = [type(root).__name__ for root in self.hub.models.roots()]
        return any(RESTORES.search(name) for name in names)

    def _shifts(self, tokens, target):
        """Those of 0, 1 and 2 by which the target is ahead of the tokens, at every place that counts."""
        torch, (batch, length) = self.hub.torch, tokens.shape
        out, width = set(), target.numel() // batch
        if width * batch != target.numel() or not length - 2 <= width <= length:
            return out
        target, tokens = target.detach().reshape(batch, width), tokens.detach()
        for shift in (0, 1, 2):
            count = min(width, length - shift)
            a, b = target[:, :count], tokens[:, shift : shift + count]
            counts = a >= 0
            if int(counts.sum()) >= LEAST and bool((a == b)[counts].all()) and len(torch.unique(a[counts])) >= 4:
                out.add(shift)
        return out

    def _enter_kl_div(self, args, kwargs):
        """The first argument holds logarithms, the second probabilities (logarithms with log_target)."""
        hub, torch = self.hub, self.hub.torch
        given = kwargs.get("input", args[0] if args else None)
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        tensors = isinstance(given, torch.Tensor) and isinstance(target, torch.Tensor)
        if not hub.steps.now.detail or not tensors or given.dim() < 2 or given.numel() < LEAST:
            return
        at = hub.places.here()
        if self._are_probabilities(given):
            self.put("kl_of_probabilities", at)
        elif not self._are_probabilities(given.exp()) and bool((given > 0).any()):
            self.put("kl_of_scores", at)
        elif not kwargs.get("log_target", False) and bool((target < 0).any()):
            self.put("kl_to_logarithms", at)

    def _are_probabilities(self, tensor):
        rows = tensor.detach().double()
        return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 0.02).all())

    # ---- modes -----------------------------------------------------------------------------------

    def evaluates(self, on):
        """A known model is put in eval mode, or out of it: only meanwhile each dropout is looked at."""
        functional = self.hub.torch.nn.functional
        if on:
            self.hub.wrap(functional, "dropout", self._enter_dropout, None)
        elif is_stand_in(functional.dropout):
            functional.dropout = functional.dropout._ls_original

    def _enter_dropout(self, args, kwargs):
        """F.dropout that is on by default, without autograd, while the model is in eval mode."""
        hub = self.hub
        share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        told = "training" in kwargs or len(args) > 2  # also True: Monte Carlo dropout
        if told or not share or hub.own.grad or not hub.models.in_eval():
            return
        self.put("dropout_in_eval", hub.places.here(), share=float(share))

    # ---- frozen by a name that nothing reads -----------------------------------------------------

    def look_at_models(self):
        """Once, at the first backward."""
        for root in self.hub.models.roots():
            for count, (path, module) in enumerate(root.named_modules()):
                if count == MODULES:
                    break
                own = vars(module)
                frozen = own.get("requires_grad") is False and any(p.requires_grad for p in module.parameters())
                name = "requires_grad" if frozen else next((n for n in UNREAD if n in own), None)
                if name is None:
                    params = module._parameters.values()
                    name = next((n for p in params if p is not None and p.requires_grad for n in UNREAD if n in vars(p)), None)
                if name is not None:
                    at = script_text.frozen(name, self.hub.places.here(), self.hub.places.work)
                    self.put("frozen_by_name", at or "", name=name, part=path or type(module).__name__, module=name in own)
                    return

    # ---- scores ----------------------------------------------------------------------------------

    def follows(self, schedule):
        """A schedule that is stepped by a score, as the script's line names it."""
        mode = getattr(schedule, "mode", None)
        if schedule in self.schedules or mode not in ("min", "max") or not hasattr(schedule, "patience"):
            return
        self.schedules.add(schedule)
        at = self.hub.places.here()
        by = script_text.stepped_by(at, self.hub.places.work)
        if by is not None:
            self.put("score", at, what=type(schedule).__name__, by=by, mode=mode)

    def look_at_trainer(self):
        """Callbacks and schedules of Lightning, in the first steps."""
        for root in self.hub.models.roots():
            trainer = vars(root).get("_trainer")
            for callback in getattr(trainer, "callbacks", None) or ():
                self._monitored(type(callback).__name__, callback, getattr(callback, "monitor", None))
            for config in getattr(trainer, "lr_scheduler_configs", None) or ():
                if hasattr(config.scheduler, "patience"):
                    self._monitored(type(config.scheduler).__name__, config.scheduler, getattr(config, "monitor", None))

    def _monitored(self, what, thing, monitor):
        mode = getattr(thing, "mode", None)
        if isinstance(monitor, str) and mode in ("min", "max"):
            self.put("score", what, what=what, by=monitor, mode=mode)

    def look_at_arguments(self, trainer):
        """Those of a Trainer of transformers."""
        given = getattr(trainer, "args", None)
        by, greater = getattr(given, "metric_for_best_model", None), getattr(given, "greater_is_better", None)
        used = getattr(given, "load_best_model_at_end", False) or any(
            "EarlyStopping" in type(c).__name__ for c in getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
        )
        if used and isinstance(by, str) and isinstance(greater, bool):
            self.put("score", "TrainingArguments", what="load_best_model_at_end", by=by, mode="max" if greater else "min")

    # ---- data ------------------------------------------------------------------------------------

    def parted(self, subset):
        """Of what a Subset is a part: whether its transform draws random numbers now."""
        try:
            steps = _steps_of(getattr(subset.dataset, "transform", None))
            self.parts[id(subset)] = weakref.ref(subset), any(RANDOM.search(type(step).__name__) for step in steps)
        except Exception:  # a data set of a kind that is not foreseen says nothing
            pass

    def _look_at_part(self, subset, number):
        """Whether the transform of what it is a part of was replaced, for another part of the same."""
        ref, random = self.parts.get(id(subset), (None, False))
        base = getattr(subset, "dataset", None)
        steps = _steps_of(getattr(base, "transform", None))
        if ref is None or ref() is not subset or not steps:
            return
        others = [other() for other, _ in self.parts.values()]
        shared = any(other is not None and other is not subset and other.dataset is base for other in others)
        lines = script_text.replaced(self.hub.places.here(), self.hub.places.work)
        drawn = any(RANDOM.search(type(step).__name__) for step in steps)
        if shared and not drawn and (random or len(lines) > 1):
            self.put("transform_replaced", lines[-1] if lines else self.hub.places.here(), loaders=[number])

    def loader(self, loader, number, again):
        """At the begin of a pass, the `again`-th over this loader."""
        dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
        try:
            self._look_at_weights(dataset, sampler)
            self._keep_transforms(dataset, number)
            if again == 0:
                self._look_at_part(dataset, number)
        except Exception:  # a data set of a kind that is not foreseen says nothing
            pass

    def _look_at_weights(self, dataset, sampler):
        weights = getattr(sampler, "weights", None)
        if type(sampler).__name__ == "WeightedRandomSampler" and len(weights) < len(dataset):
            at = self.hub.data.built.at(sampler) or self.hub.places.here()
            self.put("weights_of_classes", at, weights=len(weights), samples=len(dataset))

    def _keep_transforms(self, dataset, number):
        base = dataset
        while type(base).__name__ == "Subset":
            base = base.dataset
        if id(base) in self.transforms:
            return
        steps = _steps_of(getattr(base, "transform", None))
        members = {
            "base": weakref.ref(base),
            "normal": next((_normal(step) for step in steps if type(step).__name__ == "Normalize"), None),
            "steps": len(steps),
            "classes": getattr(base, "class_to_idx", None),
            "kind": type(base).__name__,
            "loader": number,
            "at": self.hub.places.here(),
        }
        self.transforms[id(base)] = members
        for other in self.transforms.values():
            if other is not members and other["kind"] == members["kind"] and other["base"]() is not None:
                self._compare(other, members)

    def _compare(self, a, b):
        """Of two data sets of one class. Whether one of their loaders (`loaders`) is trained on is seen later."""
        loaders = [a["loader"], b["loader"]]
        if a["steps"] and b["steps"] and a["normal"] != b["normal"]:
            one, other = _words(a["normal"]), _words(b["normal"])
            self.put("normalized_apart", b["at"], one=one, other=other, other_at=a["at"], loaders=loaders)
        one, other = a["classes"], b["classes"]
        if isinstance(one, dict) and isinstance(other, dict):
            both = [name for name in one if name in other]
            apart = [name for name in both if one[name] != other[name]]
            if apart:
                name = apart[0]
                self.put("classes_apart", b["at"], name=str(name)[:60], one=one[name], other=other[name], loaders=loaders)


def _steps_of(transform):
    """The parts of torchvision's Compose, or the transform itself."""
    parts = getattr(transform, "transforms", None)
    if parts is None:  # a preset of torchvision's references
        inner = vars(transform).get("transforms") if hasattr(transform, "__dict__") else None
        parts = inner if inner is not None else [transform] if transform is not None else []
    if hasattr(parts, "transforms"):
        parts = parts.transforms
    return list(parts) if isinstance(parts, (list, tuple)) else []


def _normal(step):
    return tuple(round(float(v), 4) for values in (step.mean, step.std) for v in values)


def _words(normal):
    return "none" if normal is None else " ".join("%g" % value for value in normal)

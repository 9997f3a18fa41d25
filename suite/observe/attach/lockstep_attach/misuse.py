"""Arguments and settings that nothing refuses and that mean something else than they say: each is
one event, with its kind, place and numbers; rules/misuse.c says what is wrong with it. Here:
dropouts that eval() does not reach, parameters that are frozen by a name which nothing reads, and
what is chosen by a score.
"""

import re
import sys
import weakref

from . import script_text
from .wrapping import ByObject, given, stand_in

ATTENTION = "scaled_dot_product_attention"
KINDS = 64  # of these events, with their places
MODULES = 4096  # of a model, that are looked at
LOOKED = 64  # forwards in eval mode, of which it is known what they draw
FIRST = 3  # steps in which models and trainers are looked at
# names that no module or parameter has, for requires_grad
UNREAD = ("require_grad", "require_grads", "requires_gradient", "require_gradient", "required_grad")


class Misuse:
    def __init__(self, hub):
        self.hub = hub
        self.said = set()  # (kind, place)
        self.dropout = self.attention = None  # what stands in for them in eval mode
        self.drew = {}  # place: (forward, batch) in which it drew; None: it may be meant
        self.batches = self.rows = self.given = 0  # of a loader's last one, and of a forward
        self.noisy = {}  # place: (steps done at the last validation, states that it drew from)
        self.begun = None  # states of generators at a forward of a validation, batches, place
        self.moved = {}  # place: (generators that one drew from, batches), of LOOKED forwards
        self.looked = 0
        self.targets = Targets(hub)
        self.transforms = Transforms(hub)
        self.schedules = weakref.WeakSet()  # that follow a score

    def install(self):
        self.targets.install()

    def put(self, kind, at, **members):
        if (kind, at) not in self.said and len(self.said) < KINDS:
            self.said.add((kind, at))
            self.hub.put("misuse", kind=kind, at=at, **members)

    def before_backward(self):
        """In a detailed step."""
        self._look_at_transformers()
        self.targets.features = []
        if self.hub.steps.now.number <= FIRST:
            self._look_at_models()
            self._look_at_trained()
            self._look_at_lightning()

    # ---- modes -----------------------------------------------------------------------------------

    def evaluates(self, on):
        """A known model is put in eval mode, or out of it: meanwhile each dropout is looked at."""
        functional, switch = self.hub.torch.nn.functional, self.hub.dropout
        if self.dropout is None:
            self.dropout = stand_in(self.hub, switch.original, self._enter_dropout)
        if switch.use in (None, self.dropout):
            switch.use = self.dropout if on else None
        current = getattr(functional, ATTENTION, None)  # since torch 2.0
        if on and self.attention is None and current is not None:
            self.attention = stand_in(self.hub, current, self._enter_attention)
            functional.scaled_dot_product_attention = self.attention
        elif not on and self.attention is not None and current is self.attention:
            functional.scaled_dot_product_attention = current._ls_original
            self.attention = None

    def batch(self, batch):
        """A loop gets it."""
        self.batches += 1
        if self.attention is not None:
            found = self.hub.data.tensors(batch)
            self.rows = len(found[0]) if found and found[0].dim() else 0

    def forward(self, first, drawn):
        """Of a known model, without autograd; `drawn`: since the batch, of generators."""
        self.given = len(first) if first is not None and first.dim() else 0
        if drawn and self.given > 0 and self.hub.models.in_eval():
            self._scores_noise(drawn)
        if self.looked < LOOKED and self.hub.models.in_eval():
            self.begun = self.hub.draws.states(), self.batches, self.hub.places.here()
            self.looked += 1

    def _scores_noise(self, drawn):
        """A number for each sample and more, in two validations from other states: of a generator
        that is seeded for each of them they would be the same.
        """
        states = {state for _, state, count in drawn if count is None or count >= self.given}
        at, done = self.hub.places.here(), self.hub.steps.done_now()
        last, own = self.noisy.get(at, (done, set()))
        if done != last and states and own and not states & own:
            self.put("noise_in_eval", at, name=drawn[0][0])
        self.noisy[at] = done, states if done != last else own | states

    def after_forward(self):
        """Of a known model: whether it has drawn what no sample of the batch has one of, twice."""
        if self.begun is None:
            return
        (before, batch, at), self.begun = self.begun, None
        drawn = self.hub.draws.between(before, self.hub.draws.states())
        names = {n for n, _, count in drawn if count is not None and 0 < count < self.given}
        last, known = self.moved.get(at), next(iter(sorted(names)), None)
        if known is not None and last is not None and known in last[0] and batch > last[1]:
            self.put("choice_in_eval", at, name=known)
        self.moved[at] = (names, batch)

    def _enter_dropout(self, args, kwargs):
        """F.dropout that is on by default."""
        told = "training" in kwargs or len(args) > 2  # also True: Monte Carlo dropout
        if not told:
            self._draws("dropout_in_eval", given(args, kwargs, "p", 1, 0.5))

    def _enter_attention(self, args, kwargs):
        self._draws("attention_in_eval", given(args, kwargs, "dropout_p", 4, 0))

    def _draws(self, kind, share):
        """Without autograd, while the models are in eval mode, in one forward of each batch as it
        is: an estimate of what dropout does takes several forwards, or rows, of a sample.
        """
        hub = self.hub
        if not share or hub.own.grad or not hub.models.depth or not hub.models.in_eval():
            return
        at, now = hub.places.here(), (hub.models.forwards, self.batches)
        last = self.drew.setdefault(at, now)
        if last is None or last[0] == now[0]:
            return
        apart = now[1] != last[1] and self.given == self.rows
        self.drew[at] = now if apart else None
        if apart and not self._is_in_training():
            self.put(kind, at, share=float(share))

    def _is_in_training(self):
        """Whether the innermost module that runs is, as those are that are to draw."""
        frame, left = sys._getframe(2), 25
        while frame is not None and left > 0:
            if frame.f_code.co_argcount:
                owner = frame.f_locals.get(frame.f_code.co_varnames[0])
                if isinstance(owner, self.hub.torch.nn.Module):
                    return owner.training
            frame, left = frame.f_back, left - 1
        return True  # not known

    # ---- frozen by a name that nothing reads -----------------------------------------------------

    def _held(self):
        """Ids of what the optimizers that are known hold."""
        optimizers = self.hub.optimizers
        return {id(p) for _, one in optimizers.found() for p in optimizers.params(one)}

    def _look_at_models(self):
        held = self._held()
        for root in self.hub.models.roots():
            for count, (path, module) in enumerate(root.named_modules()):
                if count == MODULES:
                    break
                own, params = vars(module), module._parameters.values()
                trained = any(p.requires_grad and id(p) in held for p in module.parameters())
                names = [n for n in ("requires_grad", *UNREAD) if own.get(n) is False and trained]
                moving = [p for p in params if p is not None and p.requires_grad and id(p) in held]
                names += [n for p in moving for n in UNREAD if n in vars(p)]
                at = None  # also of a flag of the user's own
                if names:
                    place, work = self.hub.places.here(), self.hub.places.work
                    at = script_text.frozen(names[0], place, work)
                if at is not None:
                    members = {"part": path or type(module).__name__, "module": names[0] in own}
                    self.put("frozen_by_name", at, name=names[0], **members)
                    return

    def _look_at_trained(self):
        """Models of which norms and biases alone are trained, though an optimizer has matrices."""
        places, held = self.hub.places, self._held()
        for root in self.hub.models.roots():
            params = list(root.parameters())
            moving = [p for p in params if p.requires_grad]
            still = [p for p in params if not p.requires_grad and p.dim() > 1 and id(p) in held]
            if moving and still and all(p.dim() <= 1 for p in moving):
                at = script_text.freezes(places.here(), places.work) or places.here()
                self.put("vectors_alone", at, count=len(still))

    # ---- scores ----------------------------------------------------------------------------------

    def follows(self, schedule):
        """A schedule that is stepped by a score, as the script's line names it."""
        mode = getattr(schedule, "mode", None)
        known = schedule in self.schedules or not hasattr(schedule, "patience")
        if known or mode not in ("min", "max"):
            return
        self.schedules.add(schedule)
        at = self.hub.places.here()
        by = script_text.stepped_by(at, self.hub.places.work)
        if by is not None:
            self._put_score(at, type(schedule).__name__, by, mode == "max")

    def _put_score(self, at, what, by, greater):
        self.put("score", at, what=what, by=by, mode="max" if greater else "min")

    def _look_at_lightning(self):
        """Callbacks and schedules."""
        for root in self.hub.models.roots():
            trainer = vars(root).get("_trainer")
            for callback in getattr(trainer, "callbacks", None) or ():
                self._monitored(callback, callback)
            for config in getattr(trainer, "lr_scheduler_configs", None) or ():
                if hasattr(config.scheduler, "patience"):
                    self._monitored(config.scheduler, config)

    def _monitored(self, thing, config):
        mode, by, what = getattr(thing, "mode", None), getattr(config, "monitor", None), type(thing)
        if isinstance(by, str) and mode in ("min", "max"):
            self._put_score(what.__name__, what.__name__, by, mode == "max")

    def _look_at_transformers(self):
        """The arguments of its Trainer, where that calls backward."""
        frame, left = sys._getframe(1), 25
        while frame is not None and left > 0:
            if frame.f_globals.get("__name__") == "transformers.trainer":
                self._look_at_arguments(frame.f_locals.get("self"))
                return
            frame, left = frame.f_back, left - 1

    def _look_at_arguments(self, trainer):
        chosen = getattr(trainer, "args", None)
        by = getattr(chosen, "metric_for_best_model", None)
        greater = getattr(chosen, "greater_is_better", None)
        callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
        stops = any("EarlyStopping" in type(one).__name__ for one in callbacks)
        used = getattr(chosen, "load_best_model_at_end", False) or stops
        if used and isinstance(by, str) and isinstance(greater, bool):
            self._put_score("TrainingArguments", "load_best_model_at_end", by, greater)


# ---- what losses are given -----------------------------------------------------------------------

# tokens, labels or elements that must agree: of 16 tokens from 50 or more none does by chance, and
# whole rows of labels are longer
LEAST = 16
RESTORES = re.compile(r"auto_?enc|vae|recon|denois|copy", re.IGNORECASE)


IGNORED = -100  # the label that torch's losses leave out
ENDS = 4  # of a batch, that are no targets
FEATURES = 4  # outputs of forwards that are kept for the next loss
# of what is left of scores behind products of features times a number: half types round them by
# 0.004, and of other rows' features nearly all is left
LEFT = 0.05
BLOCKS = 16  # of such scores
TENTH = 0.1  # of what is left of other rows', where all features are nearly the same


class Targets:
    def __init__(self, hub):
        self.hub = hub
        self.tokens = None  # of the last forward: weak reference of whole numbers [batch, length]
        self.classifies = False  # a loss of one class for each sample was seen
        # (kind, place) of a loss since then, unless another one is of the next token
        self.ahead = None
        self.padding = None  # (labels of padding, how many) of that forward
        self.features = []  # until the next backward

    def install(self):
        functional = self.hub.torch.nn.functional
        compiling, idle, steps = self.hub.compiling, self.hub.idle, self.hub.steps

        def unseen():
            return compiling() or not steps.now.detail or idle()

        self.hub.wrap(functional, "cross_entropy", self._enter_cross_entropy, None, unseen)
        self.hub.wrap(functional, "kl_div", self._enter_kl_div, None, unseen)

    # ---- tokens and labels -----------------------------------------------------------------------

    def forward(self, args, kwargs, training):
        """At a model's forward in a detailed step."""
        if self.ahead:
            self.hub.misuse.put(*self.ahead)
        self.ahead = self.padding = None
        tokens = given(args, kwargs, "input_ids", 0)
        self.tokens = weakref.ref(tokens) if self._is_tokens(tokens) else None
        mask, labels = kwargs.get("attention_mask"), kwargs.get("labels")
        masked = self.tokens is not None and isinstance(mask, self.hub.torch.Tensor)
        if training and masked and self._is_tokens(labels):
            self._look_at_padding(mask, labels, tokens)

    def returned(self, result):
        """What a forward gave in a detailed step."""
        torch, parts = self.hub.torch, result if isinstance(result, (tuple, list)) else [result]
        found = [p for p in parts[:FEATURES] if isinstance(p, torch.Tensor) and p.dim() == 2]
        kept = [p.detach() for p in found if p.is_floating_point()]
        self.features = (self.features + kept)[-FEATURES:]

    def _look_at_ranks(self, scores, target):
        """Scores of a rank's rows by those of all ranks, and targets that another rank gave."""
        hub, torch, count = self.hub, self.hub.torch, target.numel()
        rank, world = hub.rank(), hub.world
        plain = isinstance(scores, torch.Tensor) and not hasattr(scores, "_local_tensor")
        if rank == 0 or count < 4 or not plain or target.dim() != 1 or scores.dim() != 2:
            return
        of, wide = divmod(scores.shape[1], count)
        at, rest = divmod(int(target[0]), count)
        if len(scores) != count or wide or of < world or of % world or of > BLOCKS or rest:
            return
        if not 0 <= at < of or not bool(
            (target - target[0] == torch.arange(count).to(target)).all()
        ):
            return
        left = [self._left_of(block) for block in scores.detach().double().split(count, 1)]
        kinds = of // world
        # this rank's, where ranks are gathered one after the other, or kinds of rows are
        groups = range(rank * kinds, rank * kinds + kinds), range(rank, of, world)
        own = (all(left[i] <= LEFT and left[i] < TENTH * left[at] for i in g) for g in groups)
        kind = "targets_of_others" if any(own) else None
        if at == 0 and of == world and min(left[0], left[rank]) > LEFT:
            kind = "targets_first"
        if kind is not None:
            hub.misuse.put(kind, hub.places.here(), count=count)

    def _left_of(self, block):
        """The share of it that is no product of the rank's own features, by each other or by
        themselves, times a number.
        """
        count, left = len(block), 1.0
        normalize = self.hub.torch.nn.functional.normalize
        # two views of each sample may go through a network together
        found = [part for f in self.features for part in (f, f[:count], f[count:])]
        found = [part.double() for part in found if len(part) == count]
        for a, b in ((a, b) for a in found for b in found if a.shape == b.shape):
            for product in (a @ b.t(), normalize(a) @ normalize(b).t()):
                scale = (product * block).sum() / product.square().sum()
                left = min(left, float((scale * product - block).norm() / block.norm()))
        return left

    def _is_tokens(self, value):
        torch = self.hub.torch
        plain = isinstance(value, torch.Tensor) and value.dtype in (torch.int64, torch.int32)
        return plain and value.dim() == 2 and value.shape[1] >= 4 and value.numel() >= LEAST

    def _look_at_padding(self, mask, labels, tokens):
        """Labels that are a copy of the input, padding included."""
        if mask.shape != labels.shape or tokens.shape != labels.shape:
            return
        padded = labels[mask == 0]
        if padded.numel() >= LEAST and bool((labels == tokens).all()):
            # shifted by one: what is left out before the loss is no padding
            least = labels.numel() - labels.shape[0]
            self.padding = padded.unique()[:LEAST].tolist(), int(padded.numel()), least
        self._look_at_ends(mask, labels, tokens, padded)

    def _look_at_ends(self, mask, labels, tokens, padded):
        """Labels that are the input but for one token, which is the padding's, too: where it stands
        for itself it is no target either. Nothing predicts the first place.
        """
        seen = (mask != 0)[:, 1:]
        left_out = seen & (labels[:, 1:] == IGNORED)
        ids = tokens[:, 1:][left_out].unique()
        if ids.numel() != 1 or int(left_out.sum()) < ENDS or not bool((padded == IGNORED).all()):
            return
        padding = tokens[mask == 0]
        others = seen & ~left_out
        copied = bool((labels[:, 1:][others] == tokens[:, 1:][others]).all()) and bool(others.any())
        if copied and padding.numel() and bool((padding == ids).all()):
            if not bool((labels == ids).any()):
                at, count = self.hub.places.here(), int(left_out.sum())
                self.hub.misuse.put("end_as_padding", at, count=count, one=int(ids))

    def _enter_cross_entropy(self, args, kwargs):
        hub = self.hub
        target = given(args, kwargs, "target", 1)
        if not hub.own.grad or not isinstance(target, hub.torch.Tensor):
            return
        if target.is_floating_point():
            return
        self._look_at_ranks(given(args, kwargs, "input", 0), target)
        self.classifies = self.classifies or target.dim() == 1
        if target.numel() < LEAST:
            return
        ignored = given(args, kwargs, "ignore_index", 4, -100)
        whole = given(args, kwargs, "reduction", 6, "mean") != "none"
        labels, count, least = self.padding or ((), 0, 0)
        if count and whole and ignored not in labels and target.numel() >= least:
            hub.misuse.put("labels_of_padding", hub.places.here(), count=count)
        tokens = self.tokens() if self.tokens is not None else None
        ahead = self._shifts(tokens, target) if tokens is not None else set()
        if ahead & {1, 3}:
            self.ahead = False  # several losses, of tokens beyond the next
        elif ahead and self.ahead is None and not self._restores():
            self.ahead = ("target_%d_ahead" % min(ahead), hub.places.here())

    def _restores(self):
        """Whether a model's name says that it is to give back what it gets."""
        names = [type(root).__name__ for root in self.hub.models.roots()]
        return any(RESTORES.search(name) for name in names)

    def _shifts(self, tokens, target):
        """Those of 0 to 3 by which the target is ahead of the tokens wherever it counts."""
        torch, (batch, length) = self.hub.torch, tokens.shape
        out, width = set(), target.numel() // batch
        if width * batch != target.numel() or not length - 3 <= width <= length:
            return out
        target, tokens = target.detach().reshape(batch, width), tokens.detach()
        for shift in range(4):
            count = min(width, length - shift)
            a, b = target[:, :count], tokens[:, shift : shift + count]
            counts = a >= 0
            enough = int(counts.sum()) >= LEAST and len(torch.unique(a[counts])) >= 4
            if enough and bool((a == b)[counts].all()):
                out.add(shift)
        return out

    def _enter_kl_div(self, args, kwargs):
        """Of logarithms and probabilities (logarithms with log_target)."""
        hub, torch = self.hub, self.hub.torch
        logs, target = given(args, kwargs, "input", 0), given(args, kwargs, "target", 1)
        tensors = isinstance(logs, torch.Tensor) and isinstance(target, torch.Tensor)
        if not tensors or logs.dim() < 2 or logs.numel() < LEAST:
            return
        at = hub.places.here()
        if self._are_probabilities(logs):
            self.hub.misuse.put("kl_of_probabilities", at)
        elif not self._are_probabilities(logs.exp()) and bool((logs > 0).any()):
            self.hub.misuse.put("kl_of_scores", at)
        elif not given(args, kwargs, "log_target", 5, False) and bool((target < 0).any()):
            self.hub.misuse.put("kl_to_logarithms", at)

    def _are_probabilities(self, tensor):
        rows = tensor.detach().double()
        return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 0.02).all())


# ---- data sets and their transforms --------------------------------------------------------------

HELD_OUT = re.compile(r"val|test|dev", re.IGNORECASE)  # names of parts that are not trained on
# classes of transforms that draw
RANDOM = re.compile(r"random|jitter|augment|cutout|mix", re.IGNORECASE)


class Transforms:
    def __init__(self, hub):
        self.hub = hub
        self.known = {}  # id of a data set: what its transform does, as it was in its first pass
        self.passes = {}  # id of a data set: [(loader of a part, transform in its first pass)]
        self.parts = ByObject()  # of Subsets: whether the transform was random when it was made

    def parted(self, subset):
        """Of what a Subset is a part: whether its transform draws random numbers now."""
        try:
            self.parts.put(subset, _draws(_steps_of(getattr(subset.dataset, "transform", None))))
        except Exception:  # a data set of a kind that is not foreseen says nothing
            pass

    def _look_at_part(self, subset, number):
        """Whether the transform of what it is a part of was replaced for another part."""
        random, base = self.parts.get(subset), getattr(subset, "dataset", None)
        steps = _steps_of(getattr(base, "transform", None))
        if random is None or not steps:
            return
        lines = script_text.replaced(self.hub.places.here(), self.hub.places.work)
        at = next((place for name, place in lines.items() if HELD_OUT.search(name)), None)
        replaced = at is not None and not _draws(steps) and (random or len(lines) > 1)
        # a script that sets it before each pass has another one in the other part's
        seen = self.passes.setdefault(id(base), [])
        for other, transform in seen:
            if replaced and transform is base.transform:
                self.hub.misuse.put("transform_replaced", at, loaders=[other, number])
        seen.append((number, base.transform))

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
        if type(sampler).__name__ != "WeightedRandomSampler" or len(weights) >= len(dataset):
            return
        if len(weights) == _classes_of(dataset):
            at = self.hub.data.built.get(sampler) or self.hub.places.here()
            counts = {"weights": len(weights), "samples": len(dataset)}
            self.hub.misuse.put("weights_of_classes", at, **counts)

    def _keep_transforms(self, dataset, number):
        base = dataset
        while type(base).__name__ == "Subset":
            base = base.dataset
        if id(base) in self.known:
            return
        steps = _steps_of(getattr(base, "transform", None))
        normal = next((_normal(step) for step in steps if type(step).__name__ == "Normalize"), None)
        plain = all(type(step).__module__.startswith("torchvision.") for step in steps)
        members = {
            "base": weakref.ref(base),
            "normal": normal,
            # no step of the user's own may normalize, too
            "clear": bool(steps) and (normal is not None or plain),
            "classes": getattr(base, "class_to_idx", None),
            "kind": type(base).__name__,
            "loader": number,
            "at": self.hub.places.here(),
        }
        self.known[id(base)] = members
        for other in self.known.values():
            alike = other is not members and other["kind"] == members["kind"]
            if alike and other["base"]() is not None:
                self._compare(other, members)

    def _compare(self, a, b):
        """Of two data sets of one class; whether one of `loaders` is trained on is seen later."""
        loaders = [a["loader"], b["loader"]]
        if a["clear"] and b["clear"] and a["normal"] != b["normal"]:
            words = {"one": _words(a["normal"]), "other": _words(b["normal"])}
            words["other_at"] = a["at"]
            self.hub.misuse.put("normalized_apart", b["at"], loaders=loaders, **words)
        one, other = a["classes"], b["classes"]
        if isinstance(one, dict) and isinstance(other, dict):
            both = [name for name in one if name in other]
            apart = [name for name in both if one[name] != other[name]]
            if apart:
                name = apart[0]
                members = {"name": str(name)[:60], "one": one[name], "other": other[name]}
                self.hub.misuse.put("classes_apart", b["at"], loaders=loaders, **members)


def _classes_of(dataset):
    """How many classes a data set has, as its members say; None: they do not."""
    named = getattr(dataset, "classes", None)
    if isinstance(named, (list, tuple)):
        return len(named)
    targets = getattr(dataset, "targets", None)
    tensors = getattr(dataset, "tensors", None)  # of a TensorDataset
    last = tensors[-1] if targets is None and tensors else None
    if last is not None and not last.is_floating_point() and last.dim() == 1:
        targets = last.tolist()
    return len({int(target) for target in targets}) if targets is not None else None


def _steps_of(transform):
    """The parts of a Compose, also of torchvision's presets, or the transform itself."""
    parts = getattr(transform, "transforms", None)
    parts = getattr(parts, "transforms", parts)
    if isinstance(parts, (list, tuple)):
        return list(parts)
    return [transform] if transform is not None else []


def _draws(steps):
    return any(RANDOM.search(type(step).__name__) for step in steps)


def _normal(step):
    return tuple(round(float(v), 4) for values in (step.mean, step.std) for v in values)


def _words(normal):
    return "none" if normal is None else " ".join("%g" % value for value in normal)

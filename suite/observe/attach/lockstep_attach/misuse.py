"""Arguments and settings that nothing refuses and that mean something else than they say: each is
one event, with its kind, place and numbers; rules/misuse.c says what is wrong with it. Here:
dropouts that eval() does not reach, parameters that are frozen by a name which nothing reads, and
what is chosen by a score.
"""

import weakref

from . import script_text
from .targets import Targets
from .transforms import Transforms
from .wrapping import stand_in

KINDS = 64  # of these events, with their places
MODULES = 4096  # of a model, that are looked at
FIRST = 3  # steps in which models and trainers are looked at
# names that no module or parameter has, for requires_grad
UNREAD = ("require_grad", "require_grads", "requires_gradient", "require_gradient", "required_grad")


class Misuse:
    def __init__(self, hub):
        self.hub = hub
        self.said = set()  # (kind, place)
        self.dropout = None  # what stands in for it in eval mode
        self.targets = Targets(hub)
        self.transforms = Transforms(hub)
        self.schedules = weakref.WeakSet()  # that follow a score

    def install(self):
        self.targets.install()

    def put(self, kind, at, **members):
        if (kind, at) not in self.said and len(self.said) < KINDS:
            self.said.add((kind, at))
            self.hub.writer.put({"event": "misuse", "kind": kind, "at": at, **members})

    def before_backward(self):
        """In a detailed step."""
        if self.hub.steps.now.number <= FIRST:
            self._look_at_models()
            self._look_at_trainer()

    # ---- modes -----------------------------------------------------------------------------------

    def evaluates(self, on):
        """A known model is put in eval mode, or out of it: only meanwhile each dropout is looked
        at.
        """
        switch = self.hub.dropout
        if self.dropout is None:
            self.dropout = stand_in(self.hub, switch.original, self._enter_dropout)
        if switch.use in (None, self.dropout):
            switch.use = self.dropout if on else None

    def _enter_dropout(self, args, kwargs):
        """F.dropout that is on by default, without autograd, while the model is in eval mode."""
        hub = self.hub
        share = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
        told = "training" in kwargs or len(args) > 2  # also True: Monte Carlo dropout
        if told or not share or hub.own.grad or not hub.models.depth or not hub.models.in_eval():
            return
        self.put("dropout_in_eval", hub.places.here(), share=float(share))

    # ---- frozen by a name that nothing reads -----------------------------------------------------

    def _look_at_models(self):
        for root in self.hub.models.roots():
            for count, (path, module) in enumerate(root.named_modules()):
                if count == MODULES:
                    break
                own = vars(module)
                frozen = own.get("requires_grad") is False and any(
                    p.requires_grad for p in module.parameters()
                )
                name = "requires_grad" if frozen else next((n for n in UNREAD if n in own), None)
                if name is None:
                    params = module._parameters.values()
                    name = next(
                        (
                            n
                            for p in params
                            if p is not None and p.requires_grad
                            for n in UNREAD
                            if n in vars(p)
                        ),
                        None,
                    )
                if name is not None:
                    at = script_text.frozen(name, self.hub.places.here(), self.hub.places.work)
                    if at is None:
                        continue  # a flag of the user's own
                    self.put(
                        "frozen_by_name",
                        at,
                        name=name,
                        part=path or type(module).__name__,
                        module=name in own,
                    )
                    return

    # ---- scores ----------------------------------------------------------------------------------

    def follows(self, schedule):
        """A schedule that is stepped by a score, as the script's line names it."""
        mode = getattr(schedule, "mode", None)
        if (
            schedule in self.schedules
            or mode not in ("min", "max")
            or not hasattr(schedule, "patience")
        ):
            return
        self.schedules.add(schedule)
        at = self.hub.places.here()
        by = script_text.stepped_by(at, self.hub.places.work)
        if by is not None:
            self.put("score", at, what=type(schedule).__name__, by=by, mode=mode)

    def _look_at_trainer(self):
        """Callbacks and schedules of Lightning."""
        for root in self.hub.models.roots():
            trainer = vars(root).get("_trainer")
            for callback in getattr(trainer, "callbacks", None) or ():
                self._monitored(
                    type(callback).__name__, callback, getattr(callback, "monitor", None)
                )
            for config in getattr(trainer, "lr_scheduler_configs", None) or ():
                if hasattr(config.scheduler, "patience"):
                    self._monitored(
                        type(config.scheduler).__name__,
                        config.scheduler,
                        getattr(config, "monitor", None),
                    )

    def _monitored(self, what, thing, monitor):
        mode = getattr(thing, "mode", None)
        if isinstance(monitor, str) and mode in ("min", "max"):
            self.put("score", what, what=what, by=monitor, mode=mode)

    def look_at_arguments(self, trainer):
        """Those of a Trainer of transformers."""
        given = getattr(trainer, "args", None)
        by, greater = (
            getattr(given, "metric_for_best_model", None),
            getattr(given, "greater_is_better", None),
        )
        used = getattr(given, "load_best_model_at_end", False) or any(
            "EarlyStopping" in type(c).__name__
            for c in getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
        )
        if used and isinstance(by, str) and isinstance(greater, bool):
            self.put(
                "score",
                "TrainingArguments",
                what="load_best_model_at_end",
                by=by,
                mode="max" if greater else "min",
            )

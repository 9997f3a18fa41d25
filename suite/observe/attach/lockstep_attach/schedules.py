"""Learning-rate schedules: each step that the script itself takes, with the rates after it."""

from . import script_text
from .wrapping import ByObject, given

BUILT = 64  # schedules whose construction is written
READ = 4  # of them, those for which the script's text is read

# Of schedules that end, what says after how many calls: OneCycleLR, CosineAnnealingLR, and that
# with restarts
SPANS = ("total_steps", "T_max", "T_0")


def _is_length(name, value):
    """Whether a variable of a LambdaLR's function is the number of its calls, by its name."""
    words = name.lower().split("_")
    counts = {"step", "steps", "iter", "iters", "iterations", "total"} & set(words)
    part = {"warmup", "warm", "up", "per", "size", "start", "first", "last", "current", "cycles"}
    plain = isinstance(value, int) and not isinstance(value, bool)
    return plain and value > 1 and bool(counts) and not part & set(words)


def _length_in(function):
    """Of a LambdaLR's function: the one number that it was given as its length, or None."""
    found = dict(getattr(function, "keywords", None) or {})  # functools.partial
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for name, cell in zip(code.co_freevars if code is not None else (), cells or ()):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not yet filled
            pass
    lengths = {value for name, value in found.items() if _is_length(name, value)}
    return lengths.pop() if len(lengths) == 1 else None


def _falls(schedule):
    """LinearLR to less than it begins with, PolynomialLR: not a warm-up."""
    end = getattr(schedule, "end_factor", 0 if hasattr(schedule, "power") else None)
    return end is not None and end < getattr(schedule, "start_factor", 1)


def _length_of(schedule):
    """Calls for which it is made, or None; of schedules in sequence: until the last one ends."""
    names = (*SPANS, "total_iters") if _falls(schedule) else SPANS
    span = next((getattr(schedule, name) for name in names if hasattr(schedule, name)), None)
    functions = [one for one in getattr(schedule, "lr_lambdas", None) or () if one is not None]
    parts, ends = getattr(schedule, "_schedulers", None), getattr(schedule, "_milestones", None)
    if span is None and functions:
        return _length_in(functions[0])
    if span is None and parts and ends:
        last = _length_of(parts[-1])
        return last + ends[-1] if last is not None and isinstance(ends[-1], int) else None
    return span if isinstance(span, int) else None


class Schedules:
    def __init__(self, hub):
        self.hub = hub
        self.numbers = ByObject()
        self.building = 0  # constructors take a first step of their own
        self.depth = 0  # schedules that hold others step them
        self.stepped = ByObject()  # by the script: True
        self.counts_built = ByObject()  # last_epoch as the constructor left it; None: it moved

    def install(self):
        module = self.hub.torch.optim.lr_scheduler
        names = ("_LRScheduler", "LRScheduler", "ReduceLROnPlateau", "ChainedScheduler")
        found = [getattr(module, name, None) for name in names]
        self.kinds = tuple({kind for kind in found if isinstance(kind, type)})
        for kind in {v for v in vars(module).values() if isinstance(v, type)}:
            if issubclass(kind, self.kinds):
                self._watch(kind, True)

    def _watch(self, kind, constructor):
        if constructor and "__init__" in kind.__dict__:
            self.hub.wrap(kind, "__init__", self._enter_init, self._leave_init)
        if "step" in kind.__dict__:
            self.hub.wrap(kind, "step", self._enter_step, self._leave_step)
        if "get_lr" in kind.__dict__:
            self.hub.wrap(kind, "get_lr", None, self._asked)

    def _enter_init(self, args, kwargs):
        # a user's class that overrides step is met here first
        for kind in type(args[0]).__mro__:
            self._watch(kind, False)
        self.building += 1
        return True

    def _leave_init(self, note, args, kwargs, result, error):
        if note:
            self.building -= 1
            if self.building == 0 and error is None:
                self._built(args[0])

    def _built(self, schedule):
        number = self.numbers.number(schedule)
        if number >= BUILT:
            return
        self.counts_built.put(schedule, getattr(schedule, "last_epoch", None))
        held = []
        for value in vars(schedule).values():
            held += value if isinstance(value, (list, tuple)) else [value]
        span = _length_of(schedule)
        groups = getattr(getattr(schedule, "optimizer", None), "param_groups", None) or [{}]
        base, kind = groups[0].get("initial_lr"), type(schedule).__name__
        at, work = self.hub.places.here(), self.hub.places.work
        self.hub.put(
            "schedule",
            schedule=number,
            **{"class": kind},
            at=at,
            step=self.hub.steps.done_now(),
            span=span,
            base=base if isinstance(base, (int, float)) else None,
            holds=[self.numbers.number(one) for one in held if isinstance(one, self.kinds)],
            stops_early=number < READ and script_text.stops_early(at, work),
            stepped_if=number < READ and script_text.stepped_if(at, work),
        )

    def _enter_step(self, args, kwargs):
        self.depth += 1
        return self.depth == 1 and not self.building

    def _leave_step(self, note, args, kwargs, result, error):
        if note is None:
            return
        self.depth -= 1
        schedule = args[0]
        optimizer = getattr(schedule, "optimizer", None)
        if not note or error is not None or optimizer is None:
            return
        hub, known = self.hub, self.hub.optimizers.known(optimizer)
        self.stepped.put(schedule, True)
        hub.misuse.follows(schedule)
        entry = hub.steps.note(
            "schedule",
            **{"class": type(schedule).__name__},
            schedule=self.numbers.number(schedule),
            optimizer=hub.Late(lambda: known.index if known is not None else None),
            lr=hub.optimizers.rates(optimizer),
        )
        count = getattr(schedule, "last_epoch", None)
        if isinstance(count, (int, float)):
            entry["epoch"] = count
        metric, better = given(args, kwargs, "metrics", 1), getattr(schedule, "mode", None)
        if better in ("min", "max") and metric is not None:
            plain = metric.detach() if isinstance(metric, self.hub.torch.Tensor) else metric
            entry.update(metric=float(plain), better=better)

    def _asked(self, note, args, kwargs, result, error):
        """A library counts on by itself, and asks for the values."""
        if self.depth or self.building or error is not None:
            return
        schedule = args[0]
        count, built = getattr(schedule, "last_epoch", None), self.counts_built.get(schedule)
        if built is not None and isinstance(count, (int, float)) and count != built:
            self.counts_built.put(schedule, None)
            number = self.numbers.number(schedule)
            self.hub.put("schedule_moved", schedule=number, at=self.hub.places.here())

    def counts(self):
        """Where the schedules of the job stand."""
        counts = [getattr(schedule, "last_epoch", None) for schedule, _ in self.stepped.alive()]
        return [count for count in counts if isinstance(count, (int, float))]

    def is_state(self, value):
        """Whether a dict is what a schedule's state_dict returns."""
        return "last_epoch" in value and any(
            name in value for name in ("_step_count", "base_lrs", "_last_lr", "best")
        )

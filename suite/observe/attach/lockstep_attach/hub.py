"""What the parts of the module share: settings, the guard around its own code, the life of a
process.
"""

import atexit
import contextlib
import os
import sys
import threading
import time

from . import (
    again,
    autograd,
    averages,
    casts,
    checkpoints,
    collectives,
    data,
    digests,
    draws,
    misuse,
    models,
    optimizers,
    outside,
    params,
    scalers,
    schedules,
    shadows,
    steps,
    still,
    thin,
)
from .events import Late, Lazy, Places, Writer, text
from .wrapping import Switch, wrap


def _is_compiling(torch):
    for owner in (getattr(torch, "compiler", None), getattr(torch, "_utils", None)):
        found = getattr(owner, "is_compiling", None)
        if found is not None:
            return found
    return lambda: False


def _without_values(torch):
    """Functions that say whether calls are of tensors without values: within a transform of
    torch.func (vmap, grad), and in symbolic tracing.
    """
    tracing = getattr(torch.fx, "_symbolic_trace", None)
    names = ("_get_is_fx_tracing", "is_fx_symbolic_tracing", "is_fx_tracing")
    traces = [getattr(tracing, name, None) for name in names]
    transforms = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    jit = getattr(torch._C, "_get_tracing_state", None)
    count = getattr(torch._C, "_len_torch_dispatch_stack", None)

    def fake():
        modes = [torch._C._get_dispatch_stack_at(place) for place in range(count())]
        return any(type(mode).__name__ == "FakeTensorMode" for mode in modes)

    trace = next((one for one in traces if one), None)
    modes = (lambda: count() and fake()) if count else None
    return [found for found in (trace, transforms, jit, modes) if found is not None]


def _whole(environment, name, default, least):
    try:
        return max(least, int(environment.get(name, "") or default))
    except ValueError:
        return default


def _lived_ns():
    """Since the process began; None where the system does not say."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        return int((now - ticks / os.sysconf("SC_CLK_TCK")) * 1e9)
    except (AttributeError, IndexError, OSError, ValueError):
        return None


def _injection(value):
    """(step, rank) of "overflow@STEP:RANK", or None."""
    if not value.startswith("overflow@"):
        return None
    step, _, rank = value[len("overflow@") :].partition(":")
    return (int(step), int(rank)) if step.isdigit() and rank.isdigit() else None


class Settings:
    def __init__(self, environment):
        self.directory = environment["LS_OBSERVE_DIR"]
        self.every = _whole(environment, "LS_OBSERVE_EVERY", 50, 1)
        self.steps = _whole(environment, "LS_OBSERVE_STEPS", 0, 0)
        self.samples = _whole(environment, "LS_OBSERVE_SAMPLES", 1024, 1)
        self.inject_text = environment.get("LS_OBSERVE_INJECT", "")
        self.inject = _injection(self.inject_text)
        self.gradient = environment.get("LS_OBSERVE_GRADIENT", "1") != "0"


class Own(threading.local):
    """How deep a thread is in this module's own code; each begins with the class's."""

    depth = 0
    grad = True  # whether autograd was on where the user's code called


class Dynamo:
    """torch.compile runs a function that breaks its graph piece by piece, and looks at every Python
    function that is called in between: at this module's, too, which it must not compile, nor count
    among those of the user's.
    """

    def __init__(self, torch):
        frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
        self.set = getattr(frames, "set_eval_frame", None)
        self.skip_code = getattr(frames, "skip_code", None)

    def skip(self, function):
        """Its frames are run as they are; what it calls is not affected."""
        if self.skip_code is not None:
            self.skip_code(function.__code__)

    def leave(self):
        """No function is looked at until enter() is given what this returns."""
        return self.set(None) if self.set is not None and "torch._dynamo" in sys.modules else self

    def enter(self, prior):
        if prior is not self:
            self.set(prior)


PARTS = (  # that have functions to stand in for, in this order
    "models params optimizers scalers autograd data draws schedules averages checkpoints"
    " collectives misuse shadows"
).split()


class Hub:
    Lazy, Late = Lazy, Late

    def __init__(self, environment, wait_for):
        import torch

        self.torch = torch
        self.wait_for = wait_for
        self.settings = Settings(environment)
        self.quiet = False
        self.said = set()
        self.own = Own()
        self.own_ns = self.detail_ns = self.gradient_ns = 0
        self.first_forward_ns = 0
        self.begun_ns = time.perf_counter_ns()
        self.ended = False
        self.joined = False  # a process group of more than one rank
        self.rank_number = self.world = None
        self.compiling = _is_compiling(torch)
        self.without_values = _without_values(torch)
        self.plain_calls = torch._C.DisableTorchFunction
        self.set_grad = torch._C._set_grad_enabled  # what no_grad() calls
        self.dynamo = Dynamo(torch)
        self.dynamo.skip(Hub.call)
        self.temporary = []  # what undoes a hook or a function that stays only for one call
        self.idle = self._idle()
        self.places = Places(torch)
        self.writer = Writer(torch, self.settings.directory)
        self._make_parts()

    def _make_parts(self):
        self.dropout = Switch(self, self.torch.nn.functional, "dropout")
        self.digests = digests.Digests(self)
        self.models = models.Models(self)
        self.optimizers = optimizers.Optimizers(self)
        self.outside = outside.Outside(self)
        self.still = still.Still(self)
        self.shadows = shadows.Shadows(self)
        self.params = params.Params(self)
        self.scalers = scalers.Scalers(self)
        self.again = again.Again(self)
        self.thin = thin.Thin(self)
        self.steps = steps.Steps(self)
        self.draws = draws.Draws(self)
        self.autograd = autograd.Autograd(self)
        self.data = data.Data(self)
        self.schedules = schedules.Schedules(self)
        self.averages = averages.Averages(self)
        self.checkpoints = checkpoints.Checkpoints(self)
        self.collectives = collectives.Collectives(self)
        self.misuse = misuse.Misuse(self)
        self.casts = casts.Casts(self)

    def _idle(self):
        """Whether a stand-in only runs the original: a closure that torch.compile can trace."""
        compiling = self.compiling

        def idle():
            return compiling() or self.quiet or self.own.depth > 0

        return idle

    def install(self):
        self.call(self._install)

    def _install(self):
        for name in PARTS:
            getattr(self, name).install()
        atexit.register(self.at_exit)
        os.register_at_fork(after_in_child=self._forked)

    def wrap(self, owner, name, enter=None, leave=None, idle=None, count=None):
        return wrap(self, owner, name, enter, leave, idle, count)

    def put(self, event, **members):
        """An event, to be written in its turn."""
        self.writer.put({"event": event, **members})

    # ---- the guard -------------------------------------------------------------------------------

    def call(self, function, *arguments):
        """Runs a part's code: timed, without autograd, and no error of it reaches the user."""
        if self.quiet:
            return None
        begin = time.perf_counter_ns()
        own, grad, set_grad = self.own, self.torch.is_grad_enabled(), self.set_grad
        if own.depth == 0:
            own.grad = grad
        own.depth += 1
        prior = self.dynamo.leave()
        try:
            if self.is_capturing():
                return None
            for found in self.without_values:
                if found():
                    return None
            with self.plain_calls():
                set_grad(False)
                try:
                    return function(*arguments)
                finally:
                    set_grad(grad)
        except Exception as error:
            self.fail(error)
            return None
        finally:
            self.dynamo.enter(prior)
            own.depth -= 1
            if own.depth == 0:
                self.own_ns += time.perf_counter_ns() - begin

    def is_capturing(self):
        """A stream records a CUDA graph: nothing may be read from it."""
        cuda = self.torch.cuda
        return cuda.is_initialized() and cuda.is_current_stream_capturing()

    @contextlib.contextmanager
    def plainly(self):
        """Arithmetic as it is written, whatever autocast region the user's code is in."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.torch.autocast("cpu", enabled=False))
            if self.torch.cuda.is_initialized():
                stack.enter_context(self.torch.autocast("cuda", enabled=False))
            yield

    def fail(self, error):
        """Writes the error and goes quiet: from here on every stand-in only runs the original."""
        self.quiet = True
        try:
            frame = error.__traceback__
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            file = os.path.basename(frame.tb_frame.f_code.co_filename) if frame else ""
            where = "%s:%d" % (file, frame.tb_lineno) if frame else ""
            what = "%s: %s (%s)" % (type(error).__name__, error, where)
            if self.writer.file is None and "RANK" in os.environ:
                # a rank, and not one of its helpers: its file says why there is nothing in it
                self.activate()
            self.put("attach", error=text(what), at=self.places.here(), quiet=True)
            self.steps.abandon()
            self.writer.flush()
        except Exception:
            pass

    def undo(self, function):
        """Runs what was kept in `temporary`."""
        if function in self.temporary:
            self.temporary.remove(function)
            function()

    def sweep(self):
        """After an error: what a call that was under way has left is undone when it returns."""
        while self.temporary:
            try:
                self.temporary.pop()()
            except Exception:
                pass

    def remark(self, what, at=None):
        """Says once that something cannot be seen."""
        if what in self.said:
            return
        self.said.add(what)
        at = self.places.here() if at is None else at
        self.put("attach", error=text(what), at=at, quiet=False)

    # ---- the life of a process -------------------------------------------------------------------

    def rank(self):
        if self.rank_number is None:
            distributed = self.torch.distributed
            if distributed.is_available() and distributed.is_initialized():
                self.rank_number, self.world = distributed.get_rank(), distributed.get_world_size()
            else:
                self.rank_number = _whole(os.environ, "RANK", 0, 0)
                self.world = _whole(os.environ, "WORLD_SIZE", 1, 1)
        return self.rank_number

    def activate_joined(self):
        """A rank that waits for others writes from its first call of that kind on: it may be killed
        there. Before there is a model its device is not known.
        """
        models = self.models
        if self.joined and (models.models or models.candidates):
            self.activate()

    def activate(self):
        """This process trains: from here on it writes."""
        if self.writer.file is not None or self.writer.closed:
            return
        if self.torch.utils.data.get_worker_info() is not None:
            self.writer.closed = self.quiet = True
            return
        # a forked rank may have been given a folder of its own
        self.settings.directory = self.writer.directory = (
            os.environ.get("LS_OBSERVE_DIR") or self.settings.directory
        )
        if not self.writer.open(self.rank(), self._start()):
            self.quiet = True
            return
        if self.writer.directory != self.settings.directory:  # also of this job's own processes
            os.environ["LS_OBSERVE_DIR"] = self.settings.directory = self.writer.directory
        self.steps.trail.open(self.steps.now)
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        child = process is not None and process.current_process().name != "MainProcess"
        if util is not None and child:  # it ends without atexit
            util.Finalize(None, self.at_exit, exitpriority=100)

    def _start(self):
        torch, settings = self.torch, self.settings
        distributed = torch.distributed
        joined = distributed.is_available() and distributed.is_initialized()
        return {
            "event": "start",
            "schema": 2,
            "observed": 1,
            "digest_bits": 64,
            "rank": self.rank(),
            "world": self.world,
            "local_rank": _whole(os.environ, "LOCAL_RANK", 0, 0),
            "pid": os.getpid(),
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
            "device": self.models.device_name(),
            "backend": str(distributed.get_backend()) if joined else "",
            "program": [text(word) for word in sys.argv],
            "work": text(self.places.work),
            "options": {},
            "observe": {
                "every": settings.every,
                "steps": settings.steps,
                "samples": settings.samples,
                "inject": settings.inject_text,
                "gradient": settings.gradient,
                "set": True,
            },
        }

    def _forked(self):
        """A child of a process that writes has nothing to say; one of a launcher begins anew."""
        writes = self.writer.file is not None or self.writer.closed or self.joined
        self.writer.abandon()
        self.steps.trail.close()
        self.own = Own()
        if writes or self.quiet:
            self.quiet = self.writer.closed = True
        self.rank_number = self.world = None
        self.own_ns = self.detail_ns = self.gradient_ns = 0

    def dying(self, reference):
        """A model or an optimizer is freed: what its step holds of it is looked at now."""
        if self.own.depth == 0:
            self.call(self.steps.close_last)

    def end(self, why):
        """The last events of the process; nothing is written after them."""
        if self.ended or self.writer.closed:
            return
        self.ended = True
        if self.joined:
            self.activate()
        if self.writer.file is not None:
            self.autograd.remark_unseen(1)
            self.steps.close_last()
            self.steps.unfinished()
            self.still.finish()
            self.data.finish()
            self._cost()
            self.put("end", steps=self.steps.done, why=why)
        elif self.autograd.passes > 0:
            self.writer.say_by_hand()
        self.writer.close()
        self.steps.trail.close()
        self.quiet = True

    def at_exit(self):
        if self.quiet and not self.ended and self.writer.file is not None:
            self.writer.flush()
            return
        self.call(self.end, "exit")

    def _cost(self):
        """Next to what the process would have taken without this module."""
        run_ns = _lived_ns() or time.perf_counter_ns() - self.begun_ns
        self.put(
            "cost",
            own_ms=round(self.own_ns / 1e6, 3),
            run_ms=round(run_ns / 1e6, 3),
            share=round(self.own_ns / max(1, run_ns - self.own_ns), 5),
            detail_ms=round(self.detail_ns / 1e6, 3),
            gradient_ms=round(self.gradient_ns / 1e6, 3),
        )

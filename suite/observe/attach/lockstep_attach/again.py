"""The module of a step run again in FP64 and f32.

A copy of it gets the same inputs, and the gradients that the job gave its outputs.
"""

import contextlib
import copy
import os
import random
import sys
import time

from .collectives import Refused, refusing
from .models import plain_name
from .samples import Sampler
from .slope import own_functions, slope_ratio

COMPUTED_OTHERWISE = 1e-3  # of the norm of outputs: in f32 the same forward stays far below it
DRAWN_OTHERWISE = (
    0.25  # of the norm of outputs: half types stay far below it, other dropout masks do not
)
OUTPUTS = 8  # whose gradients are told apart
# Less of an output's gradient is rounding, not a gradient from outside: as times what rounding moved the outputs by
ROUNDED, ROUNDED_LEAST = 4, 1e-5
SLOW_S = 30.0  # an f32 run longer than this on the host is not followed by one in FP64
MEMORY = (
    3  # a process may grow by this many times its size before the machine's memory would be short
)


class Reason(Exception):
    """Why a step is not run again."""


class Record:
    """A forward: what it read, and the gradients that came back to its outputs."""

    def __init__(self, model, args, kwargs):
        self.model, self.args, self.kwargs = model, args, kwargs
        self.random = self.buffers = self.handle = None
        self.shapes, self.grads = [], {}
        self.masks = (
            []
        )  # what functional.dropout kept, in order: in another type it would draw otherwise
        self.dropout = None  # what puts back functional.dropout after the forward
        self.outputs = []  # samples of them
        self.exact = False  # f32 throughout, as far as is known
        self.attention = False  # dropped elements that no other type drops


def tensors_of(torch, tree, out, depth=0):
    """The tensors of a module's output in order."""
    if isinstance(tree, torch.Tensor):
        out.append(tree)
    elif depth > 8:
        raise Reason("outputs are nested too deeply")
    elif isinstance(tree, dict) or hasattr(tree, "items") and hasattr(tree, "keys"):
        for value in tree.values():
            tensors_of(torch, value, out, depth + 1)
    elif isinstance(tree, (list, tuple)):
        for value in tree:
            tensors_of(torch, value, out, depth + 1)
    elif hasattr(tree, "__dict__") and not isinstance(tree, type):
        for value in vars(tree).values():
            if isinstance(value, (torch.Tensor, list, tuple, dict)):
                tensors_of(torch, value, out, depth + 1)
    return out


def mapped(torch, tree, turn, depth=0):
    """The same structure with every tensor turned; objects of other kinds as they are."""
    if isinstance(tree, torch.Tensor):
        return turn(tree)
    if depth > 8:
        return tree
    if type(tree) in (list, tuple):
        return type(tree)(mapped(torch, value, turn, depth + 1) for value in tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(torch, value, turn, depth + 1) for value in tree))
    if isinstance(tree, dict):
        out = copy.copy(tree)
        for key, value in tree.items():
            out[key] = mapped(torch, value, turn, depth + 1)
        return out
    return tree


def reached(tensor):
    """The nodes of the graph that a backward from this tensor visits, its own left out."""
    seen, waiting = set(), [tensor.grad_fn]
    while waiting:
        for parent, _ in waiting.pop().next_functions:
            if parent is not None and parent not in seen:
                seen.add(parent)
                waiting.append(parent)
    return seen


def from_outside(torch, pairs, rounded):
    """Gradients that outputs are given from outside the module, of [(output, its whole gradient)].

    A model that returns its loss and its logits has the loss's gradient in that of the logits, too: what comes to an
    output from other outputs is taken off, the last ones first.
    """
    if len(pairs) < 2:
        return pairs
    if len(pairs) > OUTPUTS:
        raise Reason("%d outputs have gradients" % len(pairs))
    waiting, done = [(t, grad, reached(t)) for t, grad in pairs], []
    while waiting:
        last = next(
            (entry for entry in waiting if not any(entry[0].grad_fn in other[2] for other in waiting)), None
        )
        if last is None:
            raise Reason("outputs depend on each other")
        waiting = [entry for entry in waiting if entry is not last]
        tensor, grad, _ = last
        inside = None
        if done:
            inside = torch.autograd.grad(
                [t for t, _ in done], tensor, [g for _, g in done], retain_graph=True, allow_unused=True
            )[0]
        if inside is not None:
            outside = grad - inside
            grad = outside if float(outside.norm()) > rounded * float(grad.norm()) else None
        if grad is not None:
            done.append((tensor, grad))
    return done


class Again:
    def __init__(self, hub):
        self.hub = hub
        self.records = []
        self.last_local = {}
        self.tensors = {}
        self.finished = not hub.settings.gradient

    # ---- what the other parts report -------------------------------------------------------------

    def _careful(self, function, *arguments):
        """An error of this part ends this part alone."""
        try:
            return function(*arguments)
        except Exception as error:
            self._refuse("%s: %s" % (type(error).__name__, error))
            return None

    def _wanted(self):
        steps = self.hub.steps
        return not self.finished and steps.now.detail and steps.now.number >= 2

    def before(self, model, args, kwargs):
        """A training forward begins."""
        return self._careful(self._before, model, args, kwargs)

    def _before(self, model, args, kwargs):
        if not self._wanted() or model.kind == "replaced":
            return None
        torch = self.hub.torch
        args, kwargs = mapped(torch, (args, kwargs), lambda t: t.detach().clone())
        record = Record(model, args, kwargs)
        self._state(record)
        inner = model.inner(model.ref())
        params = [p for _, p in model.params()]
        kind = params[0].device.type if params else "cpu"
        record.exact = self.hub.autograd.autocast(kind) is None and all(
            p.dtype is torch.float32 for p in params
        )
        if model.kind == "ddp" and not model.compiled:
            # DistributedDataParallel may broadcast buffers before the module runs
            hub = self.hub
            record.handle = inner.register_forward_pre_hook(
                lambda *_: hub.call(self._careful, self._state, record)
            ).remove
            hub.temporary.append(record.handle)
        if not model.compiled:
            self._watch_dropout(record)
        return record

    def _state(self, record):
        record.random = self._random()
        record.buffers = [(name, b.detach().clone()) for name, b in record.model.live_buffers()]

    def after(self, record, result):
        """It has ended: its outputs' gradients are kept as backward gives them."""
        self._careful(self._after, record, result)

    def _after(self, record, result):
        torch = self.hub.torch
        for undo in (record.handle, record.dropout):
            if undo is not None:
                self.hub.undo(undo)
        record.handle = record.dropout = None
        if result is None:
            return None
        try:
            outputs = tensors_of(torch, result, [])
        except Reason as reason:
            return self._refuse(str(reason))
        record.shapes = [t.shape for t in outputs]
        for place, tensor in enumerate(outputs):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(self._keep(record, place))
        record.outputs = [self._sample(tensor) for tensor in outputs]
        self.records.append(record)
        return None

    def _sample(self, tensor):
        return Sampler(self.hub.torch, "output", tensor.numel(), 1024).take(tensor).double()

    def _watch_dropout(self, record):
        """While the forward runs, notes what dropout keeps; its result is the user's as it is."""
        functional, hub = self.hub.torch.nn.functional, self.hub
        dropout = functional.dropout
        attention = getattr(functional, "scaled_dot_product_attention", None)

        def noting(*args, **kwargs):
            result = dropout(*args, **kwargs)
            hub.call(lambda: record.masks.append((result.detach() != 0, result.dtype)))
            return result

        def attending(*args, **kwargs):
            if kwargs.get("dropout_p", args[4] if len(args) > 4 else 0):
                record.attention = True
            return attention(*args, **kwargs)

        def put_back():
            functional.dropout = dropout
            if attention is not None:
                functional.scaled_dot_product_attention = attention

        functional.dropout = noting
        if attention is not None:
            functional.scaled_dot_product_attention = attending
        record.dropout = put_back
        hub.temporary.append(record.dropout)

    def _keep(self, record, place):
        hub = self.hub

        def hook(grad):
            if not hub.quiet and self._wanted():
                hub.call(self._careful, self._kept, record, place, grad)

        return hook

    def _kept(self, record, place, grad):
        if grad is None:
            return
        kept = record.grads.get(place)
        record.grads[place] = grad.detach().clone() if kept is None else kept + grad

    def before_backward(self):
        self.last_local = {}
        self.records = [record for record in self.records if not record.grads]

    def local(self, entry, taken):
        if self.records and self._wanted():
            kept = self.last_local.get(entry.name)
            self.last_local[entry.name] = taken if kept is None else kept + taken

    def add(self, taken):
        """The results among a step's samples."""
        taken.update(self.tensors)
        self.tensors = {}
        self.records = []

    def _refuse(self, why):
        self.finished = True
        self.records = []
        self.hub.steps.detail.again_note = why[:300]

    # ---- random numbers --------------------------------------------------------------------------

    def _cuda(self):
        return self.hub.torch.cuda if self.hub.torch.cuda.is_initialized() else None

    def _random(self):
        """States of all generators that a module may draw from."""
        torch, cuda, numpy = self.hub.torch, self._cuda(), sys.modules.get("numpy")
        devices = {}
        if cuda is not None:
            devices = {index: cuda.get_rng_state(index) for index in {cuda.current_device()}}
        arrays = (
            numpy.random.get_state() if numpy is not None and hasattr(numpy, "random") else None
        )
        return torch.get_rng_state(), devices, random.getstate(), arrays

    def _set_random(self, state):
        torch, cuda = self.hub.torch, self._cuda()
        torch.set_rng_state(state[0])
        for index, value in state[1].items():
            cuda.set_rng_state(value, index)
        random.setstate(state[2])
        if state[3] is not None:
            sys.modules["numpy"].random.set_state(state[3])

    # ---- the run ---------------------------------------------------------------------------------

    def run(self):
        """After the step's last backward, before anything is changed."""
        if not self._wanted() or not self.records:
            return
        begin = time.perf_counter_ns()
        detail = self.hub.steps.detail
        state = self._random()
        try:
            detail.again_note = self._run()
        except (Reason, Refused) as reason:
            detail.again_note = str(reason)[:300]
        except (
            Exception
        ) as error:  # the user's module in another type: whatever it raises is a reason
            detail.again_note = ("%s: %s" % (type(error).__name__, error))[:300]
        finally:
            self._set_random(state)
            self.records = []
            if self._cuda() is not None:
                self._cuda().empty_cache()
        if detail.again_note != "done":
            self.tensors = {}
        self.hub.gradient_ns += time.perf_counter_ns() - begin

    def _run(self):
        records = [record for record in self.records if record.grads]
        if not records:
            raise Reason("no output of a known model went backward")
        if not self._finite(records):
            # also the reason to try again in the next detailed step
            raise Reason("the step's gradients overflowed")
        self.finished = True
        self._check(records)
        begin = time.perf_counter()
        torch = self.hub.torch
        self._in_type(records, torch.float32, "f32")
        if time.perf_counter() - begin > SLOW_S:
            raise Reason("the run in f32 took more than %.0f s" % SLOW_S)
        self._in_type(records, torch.float64, "f64")
        for name, value in self.last_local.items():
            self.tensors["again/local/" + name] = value
        return "done"

    def _finite(self, records):
        torch = self.hub.torch
        grads = [grad for record in records for grad in record.grads.values()]
        return all(bool(torch.isfinite(t).all()) for t in grads + list(self.last_local.values()))

    def _check(self, records):
        hub, torch = self.hub, self.hub.torch
        for model in {record.model for record in records}:
            module = model.inner(model.ref())
            for part in module.modules():
                if hasattr(part, "_orig_mod"):
                    raise Reason("a part of the model is compiled")
                if (
                    "SyncBatchNorm" in type(part).__name__
                    and part.training
                    and (hub.world or 1) > 1
                ):
                    raise Reason("SyncBatchNorm needs all ranks")
                if isinstance(part, torch.jit.ScriptModule):
                    raise Reason("a part of the model is a ScriptModule")
                self._check_hooks(part)
            for param in module.parameters():
                if param.is_complex() or param.layout != torch.strided:
                    raise Reason("a parameter is sparse or complex")
                if type(param) is not torch.nn.Parameter:
                    raise Reason("a parameter is a %s" % type(param).__name__)
            if any(
                p.grad is not None and p.grad.layout != torch.strided for p in module.parameters()
            ):
                raise Reason("a gradient is sparse")
        self._check_memory(records)

    def _check_hooks(self, part):
        """Hooks of the user's may keep what they see: running them twice would be no secret."""
        for kept in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        ):
            for hook in (getattr(part, kept, None) or {}).values():
                if not str(getattr(type(hook), "__module__", "")).startswith("torch."):
                    raise Reason("a %s has hooks" % type(part).__name__)

    def _check_memory(self, records):
        device = self.hub.models.device()
        if device is not None and device.type == "cuda":
            size = sum(p.numel() for r in records for _, p in r.model.params()) * 8 * 3
            if size > self.hub.torch.cuda.mem_get_info(device)[0]:
                raise Reason("too little memory on the device")
            return
        try:
            with open("/proc/self/statm") as file:
                resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            with open("/proc/meminfo") as file:
                line = next(line for line in file if line.startswith("MemAvailable"))
        except (OSError, StopIteration, ValueError):
            return
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "") or 1)
        if MEMORY * resident * ranks > int(line.split()[1]) * 1024:
            raise Reason("too little memory on the host")

    def _in_type(self, records, dtype, word):
        """Runs copies in one type; their parameters' gradients become samples."""
        hub, torch = self.hub, self.hub.torch
        copies = {}
        for record in records:
            if record.model not in copies:
                copies[record.model] = copy.deepcopy(record.model.inner(record.model.ref())).to(
                    dtype
                )
                copies[record.model].zero_grad(set_to_none=True)
        functions = set()
        with refusing(torch), self._autograd():
            for record in records:
                functions |= self._one(record, copies[record.model], dtype)
            if functions and dtype is torch.float64:
                self._look_at_slope(records, copies, functions)
        for model, module in copies.items():
            grads = {
                model.full_name(plain_name(name)): p.grad for name, p in module.named_parameters()
            }
            for entry, _ in model.params():
                grad = grads.get(entry.name)
                if grad is not None:
                    self.tensors["again/%s/%s" % (word, entry.name)] = entry.sampler.take(grad)

    @contextlib.contextmanager
    def _autograd(self):
        with self.hub.torch.enable_grad(), self.hub.plainly():
            yield

    def _look_at_slope(self, records, copies, functions):
        """In FP64 the copy's backward is that of its forward, but for functions of the user's own."""
        torch = self.hub.torch

        def product():
            total = 0.0
            for record in records:
                turn = self._prepare(record, copies[record.model], torch.float64)
                with torch.no_grad():
                    outputs = self._forward(record, copies[record.model], turn)
                    for place, grad in record.grads.items():
                        total += float((outputs[place] * grad.double()).sum())
            return total

        ratio = slope_ratio(torch, list(copies.values()), product)
        if ratio is not None:
            self.hub.steps.detail.again_slope = (", ".join(sorted(functions))[:200], ratio)

    def _prepare(self, record, module, dtype):
        """Puts the buffers back; returns what turns a tensor of the inputs into one of this type."""
        torch = self.hub.torch
        device = next(iter(record.model.params()))[1].device
        named = {plain_name(name): buffer for name, buffer in module.named_buffers()}
        with torch.no_grad():
            for name, value in record.buffers:
                if name in named:
                    named[name].copy_(value)

        def turn(tensor):
            # a copy of its own: the module may write into its input
            tensor = tensor.detach().clone().to(device)
            return tensor.to(dtype) if tensor.is_floating_point() else tensor

        return turn

    def _one(self, record, module, dtype):
        """Forward and backward of a copy; returns the names of the user's own functions in it."""
        torch = self.hub.torch
        turn = self._prepare(record, module, dtype)
        if record.attention and not record.exact:
            raise Reason("attention drops other elements in another type")
        outputs = self._forward(record, module, turn)
        if [t.shape for t in outputs] != record.shapes:
            raise Reason("the copy's outputs have other shapes")
        moved = self._compare(record, outputs)
        pairs = [(outputs[place], grad.to(dtype)) for place, grad in sorted(record.grads.items())]
        if any(not t.requires_grad for t, _ in pairs):
            raise Reason("an output of the copy has no gradient")
        functions = own_functions(torch, outputs)
        pairs = from_outside(torch, pairs, max(ROUNDED * moved, ROUNDED_LEAST))
        torch.autograd.backward([t for t, _ in pairs], [grad for _, grad in pairs])
        return functions

    def _forward(self, record, module, turn):
        self._set_random(record.random)
        args, kwargs = mapped(self.hub.torch, (record.args, record.kwargs), turn)
        with _same_dropout(self.hub.torch, record.masks):
            return tensors_of(self.hub.torch, module(*args, **kwargs), [])

    def _compare(self, record, outputs):
        """How far the outputs are from the job's own, relative to them.

        Other random numbers, other weights or a count that the module keeps would show.
        """
        moved = 0.0
        for before, tensor in zip(record.outputs, outputs):
            difference = float((self._sample(tensor.detach()) - before).norm())
            size = float(before.norm())
            if difference > (COMPUTED_OTHERWISE if record.exact else DRAWN_OTHERWISE) * size:
                raise Reason("the copy computes otherwise: random numbers, weights or counts differ")
            moved = max(moved, difference / size if size > 0 else 0.0)
        return moved


@contextlib.contextmanager
def _same_dropout(torch, masks):
    """Dropout keeps what it kept in the job's own forward."""
    functional, place = torch.nn.functional, iter(masks)
    dropout = functional.dropout

    def repeated(input, p=0.5, training=True, inplace=False):
        mask, drawn_in = next(place, (None, None))
        if mask is None or mask.shape != input.shape:
            raise Reason("dropout was called otherwise in the copy")
        if not training or p == 0:
            return input
        # draws as the job did, for whatever draws next, and for what was 0 before
        drawn = dropout(torch.ones(input.shape, dtype=drawn_in, device=input.device), p, True) != 0
        mask = torch.where(input == 0, drawn, mask)
        return input * mask.to(input.dtype) * (1 / (1 - p) if p < 1 else 0)

    if not masks:
        yield
        return
    try:
        functional.dropout = repeated
        yield
    finally:
        functional.dropout = dropout

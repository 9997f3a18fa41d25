"""The module of a step run again in FP64 and f32.

A copy of it gets the same inputs, and the gradients that the job gave its outputs.
"""

import contextlib
import copy
import io
import logging
import os
import random
import sys
import threading
import time

from . import effects, functions, losses, masks, noise
from .collectives import refusing
from .models import plain_name
from .records import (
    MARK,
    Begins,
    Reason,
    Record,
    from_outside,
    mapped,
    own,
    tensors_in,
    tensors_of,
    used_outside,
)
from .samples import Sampler

COMPUTED_OTHERWISE = 1e-3  # of the norm of outputs: in f32 the same forward stays far below it
# of the norm of outputs: half types stay far below it, other dropout masks do not
DRAWN_OTHERWISE = 0.25
# times: two draws are as far apart as any two; rounding is a small part of that, or all there is
DRAWN_APART = 2
# Less of an output's gradient is rounding, not a gradient from outside: as times what rounding
# moved the outputs by
ROUNDED, ROUNDED_LEAST = 4, 1e-5
SLOW_S = 30.0  # an f32 run longer than this on the host is not followed by one in FP64
# A process may grow by this many times its size before the machine's memory would be short
MEMORY = 3
# Attributes of a module that no forward needs, and that are too much to copy
LEFT_OUT = ("Dataset", "DataLoader", "Trainer")


class Again:
    def __init__(self, hub):
        self.hub = hub
        self.records = []
        self.last_local = {}
        self.tensors = {}
        self.outside = set()  # ids of parameters that the last backward also reaches by other ways
        self.hooked = set()  # modules and outputs with hooks of the user's, which the copy has not
        self.functions = functions.Functions(self)
        self.effects = effects.Effects(hub)
        self.finished = not hub.settings.gradient

    # ---- what the other parts report -------------------------------------------------------------

    def _careful(self, function, *arguments):
        """An error of this part ends this part alone."""
        try:
            return function(*arguments)
        except Exception as error:
            self._refuse(_why(error))
            return None

    def _wanted(self):
        steps = self.hub.steps
        return not self.finished and steps.now.detail and steps.now.number >= 2

    def before(self, model, module, args, kwargs):
        """A training forward begins: a Record, Parts, or None. module: what is called."""
        return self._careful(self._before, model, module, args, kwargs)

    def _before(self, model, module, args, kwargs):
        if not self._wanted() or model.kind == "replaced":
            return None
        if not model.compiled:
            self.functions.begin()
        if model.part is not None and model.part[0]() is module:
            return self._open(model, model.part[1], module, args, kwargs)
        inner = model.inner(model.ref())
        if is_redirected(inner) and not model.compiled:
            parts = Parts(self, model, inner)
            parts.begin()
            return parts
        record = self._open(model, "", inner, args, kwargs)
        if model.kind == "ddp" and not model.compiled:
            # DistributedDataParallel may broadcast buffers before the module runs
            hub = self.hub
            record.handle = inner.register_forward_pre_hook(
                lambda *_: hub.call(self._careful, self._state, record, inner)
            ).remove
            hub.temporary.append(record.handle)
        return record

    def open(self, model, path, module, args, kwargs):
        """A part of a model is called: a Record, or None."""
        return self._careful(self._open, model, path, module, args, kwargs)

    def _open(self, model, path, module, args, kwargs):
        if not self._wanted():
            return None
        torch = self.hub.torch
        copies = self._mapped((args, kwargs), lambda t: t.detach().clone())
        record = Record(model, path, module, *copies)
        record.late = self.hub.steps.now.asked
        record.begins = Begins(torch, args, kwargs)
        self._state(record, module)
        params = [p for _, p in model.params()]
        kind = params[0].device.type if params else "cpu"
        record.on_cpu = kind == "cpu"
        single = all(p.dtype is torch.float32 for p in params)
        record.exact = single and self.hub.autograd.autocast(kind) is None
        record.dropped = masks.Dropped()
        if not model.compiled:
            masks.watch(self, record.dropped, lambda: self._autocast_dtype(kind))
        return record

    def _autocast_dtype(self, kind):
        word = self.hub.autograd.autocast(kind)
        return {"f16": self.hub.torch.float16, "bf16": self.hub.torch.bfloat16}.get(word)

    def _mapped(self, tree, turn):
        torch = self.hub.torch
        return mapped(torch, tree, turn, lambda value: own(torch, value))

    def _state(self, record, module):
        """Random numbers and buffers as the forward finds them."""
        record.random = self.random()
        prefix = record.path + "." if record.path else ""
        record.buffers = [
            (plain_name(prefix + name), buffer.detach().clone())
            for name, buffer in module.named_buffers()
        ]

    def after(self, record, result):
        """It has ended: its outputs' gradients are kept as backward gives them."""
        if isinstance(record, Parts):
            record.end()
            return
        self._careful(self._after, record, result)

    def _after(self, record, result):
        torch = self.hub.torch
        for undo in (record.handle, record.dropped.put_back):
            if undo is not None:
                self.hub.undo(undo)
        record.handle = record.dropped.put_back = None
        if result is None:
            return
        outputs = tensors_of(torch, result, [])
        record.shapes = [t.shape for t in outputs]
        begins, record.begins = record.begins, None
        for place, tensor in enumerate(outputs):
            node = tensor.grad_fn
            # what is handed on as it came is no result of the module
            if node is not None and (node, tensor.output_nr) not in begins.nodes:
                node.metadata.setdefault(MARK, (record, begins))
                self._keep(record, place, tensor)
        record.outputs = [self._sample(tensor) for tensor in outputs]
        # a forward may open an autocast region itself, or be in one that a trainer has put around
        # it
        record.exact = record.exact and record.model.autocast_inside is None
        self.records.append(record)

    def _sample(self, tensor):
        return Sampler(self.hub.torch, "output", tensor.numel(), 1024).take(tensor).double()

    def _keep(self, record, place, tensor):
        """The gradient of an output, before and after what the user's own hooks on it do."""
        hub, node, number = self.hub, tensor.grad_fn, tensor.output_nr

        def given(grad):
            if not hub.quiet and self._wanted():
                hub.call(self._careful, self._add, record.given, place, grad)

        def left(grads):
            if not hub.quiet and self._wanted():
                hub.call(self._careful, self._add, record.grads, place, grads[number])

        # torch.save of the output leaves it out without a warning
        given.__torch_unserializable__ = True
        if hasattr(node, "register_prehook"):  # 2.0
            tensor.register_hook(given)
            node.register_prehook(left)
        else:
            tensor.register_hook(lambda grad: left({number: grad}))

    def _add(self, kept, place, grad):
        if grad is not None:
            kept[place] = kept[place] + grad if place in kept else grad.detach().clone()

    def before_backward(self, roots):
        self.last_local = {}
        self.records = [record for record in self.records if not record.grads]
        if self.records and self._wanted():
            self._careful(self._look_outside, roots)
            self.hooked |= {
                "the parameter " + entry.name
                for entry, param in self.hub.models.trainable()
                if getattr(param, "_backward_hooks", None)
            }

    def _look_outside(self, roots):
        self.outside = used_outside(self.hub.torch, roots, self.records)

    def local(self, entry, taken):
        if self.records and self._wanted():
            kept = self.last_local.get(entry.name)
            self.last_local[entry.name] = taken if kept is None else kept + taken

    def add(self, taken):
        """The results among a step's samples."""
        taken.update(self.tensors)
        self.clear()

    def clear(self):
        """Nothing of a step is kept for the next one but forwards that have not gone backward."""
        self.tensors = {}
        self.records = [r for r in self.records if r.late and not r.grads and self._wanted()]
        self.hooked = set()
        self.functions.end()

    def _refuse(self, why):
        self.finished = True
        self.records = []
        self.functions.end()
        self.hub.steps.detail.again_note = why[:300]

    # ---- random numbers --------------------------------------------------------------------------

    def _cuda(self):
        return self.hub.torch.cuda if self.hub.torch.cuda.is_initialized() else None

    def random(self):
        """States of all generators that a module may draw from."""
        torch, cuda, numpy = self.hub.torch, self._cuda(), sys.modules.get("numpy")
        devices = {}
        if cuda is not None:
            devices = {index: cuda.get_rng_state(index) for index in {cuda.current_device()}}
        arrays = numpy.random.get_state() if hasattr(numpy, "random") else None
        return torch.get_rng_state(), devices, random.getstate(), arrays

    def set_random(self, state):
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
        if not self._wanted():
            return
        begin = time.perf_counter_ns()
        detail = self.hub.steps.detail
        state = self.random()
        try:
            self._check_alone()
            self.functions.run()
            if self.records:
                detail.again_note = self._run()
        except Exception as error:  # the user's module in another type: any error is a reason
            detail.again_note = _why(error)[:300]
        finally:
            self.set_random(state)
            if self.records and self._cuda() is not None:
                self._cuda().empty_cache()
            self.records = []
        if detail.again_note != "done":
            self.tensors = {}
        self.hub.gradient_ns += time.perf_counter_ns() - begin

    def _run(self):
        records = [record for record in self.records if record.grads]
        if not records:
            raise Reason("no output of a known model went backward")
        if not self._finite(records):
            self._report_hidden(records)
            # also the reason to try again in the next detailed step
            raise Reason("the step's gradients overflowed")
        self.finished = True
        self._check(records)
        begin = time.perf_counter()
        torch = self.hub.torch
        self._in_type(records, torch.float32, "f32")
        for record in records:
            inputs = [t for t in tensors_in(torch, (record.args, record.kwargs), []) if t.dim() > 0]
            noise.tell(self.hub, record, int(inputs[0].shape[0]) if inputs else None)
            self._look_at_silent(record)
        if not self._has_same_bits(records):
            if time.perf_counter() - begin > SLOW_S:
                raise Reason("the run in f32 took more than %.0f s" % SLOW_S)
            self._in_type(records, torch.float64, "f64")
            if not any(name.startswith("again/f64/") for name in self.tensors):
                raise Reason("each parameter is also used outside the modules that are run again")
        for name, value in self.last_local.items():
            self.tensors["again/local/" + name] = value
        self._report_hooked(records)
        rows = [record.rows(torch) for record in records]
        if all(rows):
            self.hub.steps.detail.again_told["again_rows"] = min(rows)
        return "done"

    def _has_same_bits(self, records):
        """Whether the job's gradients are those of the run in f32, by torch's own functions alone:
        what FP64 would show is how those round, of both the same.
        """
        if self.hub.scalers.scaling or not all(r.exact and r.plain for r in records):
            return False
        run = {name: value for name, value in self.tensors.items() if name.startswith("again/f32/")}
        own = {"again/f32/" + name: value for name, value in self.last_local.items()}
        return run.keys() == own.keys() and all(
            self.hub.torch.equal(value.double(), own[name]) for name, value in run.items()
        )

    def _report_hidden(self, records):
        """An infinity goes into the module's backward, and no gradient of a parameter holds one:
        hooks, of parameters or of the reduction, may take it away before a scaler looks for it.
        """
        hub, torch = self.hub, self.hub.torch
        given = [grad for record in records for grad in record.grads.values()]
        params = [p for _, p in hub.models.trainable() if p.grad is not None]
        if not params or all(bool(torch.isfinite(grad).all()) for grad in given):
            return
        if all(bool(torch.isfinite(p.grad).all()) for p in params if not p.grad.is_sparse):
            hooks = (hook for p in params for hook in (p._backward_hooks or {}).values())
            entry = next(c for c in reversed(hub.steps.now.calls) if c["call"] == "backward")
            entry["hidden"] = next(filter(None, map(hub.places.of, hooks)), "")

    def _report_hooked(self, records):
        """The user's hooks that the copy has not, and those on outputs that change a gradient."""
        told, changed = self.hub.steps.detail.again_told, set()
        for record in records:
            for place, grad in record.grads.items():
                given = record.given.get(place)
                if given is not None and not self.hub.torch.equal(given, grad):
                    changed.add("an output of %s" % (record.path or record.kind))
        if changed:
            told["again_changed"] = _listed(sorted(changed))
        if self.hooked:
            told["again_hooks"] = _listed(sorted(self.hooked))

    def _finite(self, records):
        torch = self.hub.torch
        grads = [grad for record in records for grad in record.grads.values()]
        return all(bool(torch.isfinite(t).all()) for t in grads + list(self.last_local.values()))

    def _check_alone(self):
        """Before anything of the user's runs a second time."""
        module = self.hub.torch.nn.modules.module
        call = getattr(module.Module.__call__, "_ls_original", module.Module.__call__)
        if losses.unpacks:
            raise Reason("hooks of the script's keep what graphs need")
        hooks = [
            name
            for name, value in vars(module).items()
            if name.startswith("_global_") and "hooks" in name and value
        ]
        if hooks:
            raise Reason("hooks of all modules are registered, which would see the copy")
        if not str(getattr(call, "__module__", "torch.")).startswith(
            ("torch.", __name__.rpartition(".")[0])
        ):
            raise Reason("the script replaces Module.__call__")
        own = functions.own_classes(self.hub.torch)
        found = self.effects.of_functions(one for kind in own for one in vars(kind).values())
        found = found or self.effects.of_threads()
        if found is not None:
            raise Reason(found)

    def _check(self, records):
        hub, torch = self.hub, self.hub.torch
        for model in {record.model for record in records}:
            module = model.inner(model.ref())
            for part in module.modules():
                if hasattr(part, "_orig_mod"):
                    raise Reason("a part of the model is compiled")
                synced = "SyncBatchNorm" in type(part).__name__ and part.training
                if synced and (hub.world or 1) > 1:
                    raise Reason("SyncBatchNorm needs all ranks")
                if isinstance(part, torch.jit.ScriptModule):
                    raise Reason("a part of the model is a ScriptModule")
            for param in module.parameters():
                if param.is_complex() or param.layout != torch.strided:
                    raise Reason("a parameter is sparse or complex")
                if type(param) is not torch.nn.Parameter:
                    raise Reason("a parameter is a %s" % type(param).__name__)
                if param.grad is not None and param.grad.layout != torch.strided:
                    raise Reason("a gradient is sparse")
            found = self.effects.of_modules(module.modules())
            if found is not None:
                raise Reason(found)
        self._check_memory(records)

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

    def _copy(self, model, dtype):
        """The module in this type, without its hooks, logs and training data."""
        inner, memo = model.inner(model.ref()), {}
        for value in list(vars(inner).values()):
            if any(kind.__name__ in LEFT_OUT for kind in type(value).__mro__):
                memo[id(value)] = None
        for part in inner.modules():
            # set by a trainer; the class's own computes the same, or the outputs show it
            if "forward" in vars(part):
                memo[id(vars(part)["forward"])] = None
            # a kept result, as torch.nn.utils.weight_norm's: its hook makes it in each forward
            for value in vars(part).values():
                if isinstance(value, self.hub.torch.Tensor) and not value.is_leaf:
                    memo[id(value)] = value.detach().clone()
        module = copy.deepcopy(inner, memo).to(dtype)
        for part in module.modules():
            vars(part).pop("forward", None)
            self._drop_hooks(part)
            for name in ("log", "log_dict", "print"):
                method = getattr(type(part), name, None)
                if "lightning" in str(getattr(method, "__module__", "")):
                    vars(part)[name] = lambda *args, **kwargs: None
        module.zero_grad(set_to_none=True)
        return module

    def _drop_hooks(self, part):
        """Hooks of the user's may keep what they see: they run for the job alone."""
        for kept in ("forward", "forward_pre", "backward", "backward_pre"):
            hooks = vars(part).get("_%s_hooks" % kept) or {}
            for key, hook in list(hooks.items()):
                where = str(getattr(hook, "__module__", ""))
                if not where.startswith("torch.") and not _is_torchs(hook):
                    del hooks[key]
                    if not where.startswith(__name__.rpartition(".")[0]):
                        self.hooked.add(type(part).__name__)

    def _in_type(self, records, dtype, word):
        """Runs copies in one type; their parameters' gradients become samples."""
        torch = self.hub.torch
        copies = {}
        for record in records:
            if record.model not in copies:
                copies[record.model] = self._copy(record.model, dtype)
        called = {}
        with self.apart():
            for record in records:
                called.update(self._one(record, copies[record.model], dtype))
            if called and dtype is torch.float64:
                self._look_at_slope(records, copies, called)
        left_out = []
        for model, module in copies.items():
            grads = {
                model.full_name(plain_name(name)): p.grad for name, p in module.named_parameters()
            }
            for entry, param in model.params():
                grad = grads.get(entry.name)
                if id(param) in self.outside:
                    left_out.append(entry.name)
                elif grad is not None:
                    self.tensors["again/%s/%s" % (word, entry.name)] = entry.sampler.take(grad)
        if left_out:
            self.hub.steps.detail.again_told["again_excluded"] = _listed(left_out)

    def _look_at_silent(self, record):
        """Whether outputs that went backward are others where a parameter without a gradient has
        the other sign; or where matrices that hold 0 and get 0 are all others, and not one alone.
        """
        torch, full_name, still = self.hub.torch, record.model.full_name, self.hub.still
        silent_ones, zeros = still.silent(record.model), still.zeros(record.model)
        if not silent_ones and len(zeros) < 2:
            return
        module = self._copy(record.model, torch.float32)
        own = {full_name(plain_name(name)): p for name, p in module.named_parameters()}

        def outputs():
            turn = self._prepare(record, module, torch.float32)
            made = self._forward(record, module, turn, record.random)
            return [made[place].clone() for place in sorted(record.grads)]

        def changes(entries, value):
            """Whether the outputs are others with the other sign, or with this value; None: with
            other values a forward may go another way, which the masks of the job's do not fit.
            """
            held = [(own[entry.name], own[entry.name].clone()) for entry, _ in entries]
            try:
                for param, _ in held:
                    param.neg_() if value is None else param.fill_(value)
                return not all(map(torch.equal, before, outputs()))
            except Exception:
                return None
            finally:
                for param, was in held:
                    param.copy_(was)

        with self.apart(), torch.no_grad(), contextlib.suppress(Exception):
            before = outputs()
            still.depends([one for one in silent_ones if changes([one], None)])
            zeros = [one for one in zeros if changes([one], 1) is False]
            if zeros and changes(zeros, 1):
                still.multiply(record.model, zeros)

    @contextlib.contextmanager
    def apart(self):
        """Without other ranks, the script's autocast and those that a forward opens itself."""
        torch = self.hub.torch
        kind = torch.autocast
        enter, leave, mine = kind.__enter__, kind.__exit__, threading.get_ident()

        def entering(region):
            return region if threading.get_ident() == mine else enter(region)

        def leaving(region, *error):
            return None if threading.get_ident() == mine else leave(region, *error)

        with refusing(torch), torch.enable_grad(), self.hub.plainly(), silent():
            try:
                kind.__enter__, kind.__exit__ = entering, leaving
                yield
            finally:
                kind.__enter__, kind.__exit__ = enter, leave

    def report_slope(self, functions, ratio):
        """Of several, {name: class}, it is not known whose backward it is."""
        told = self.hub.steps.detail.again_told
        told["again_functions"] = ", ".join(sorted(functions))[:200]
        told["again_slope"] = ratio
        kinds = list(functions.values())
        at = self.hub.places.of(getattr(kinds[0], "backward", None)) if len(kinds) == 1 else ""
        if at:
            told["again_at"] = at

    def _look_at_slope(self, records, copies, called):
        """In FP64 the copy's backward is that of its forward, but for the user's functions."""
        torch = self.hub.torch

        def product():
            total = 0.0
            for record in records:
                turn = self._prepare(record, copies[record.model], torch.float64)
                outputs = self._forward(record, copies[record.model], turn, record.random)
                for place, grad in record.grads.items():
                    total += float((outputs[place] * grad.double()).sum())
            return total

        params = [param for module in copies.values() for param in module.parameters()]
        moves, expected = functions.along((param, param.grad) for param in params)
        if expected > 0 and "again_slope" not in self.hub.steps.detail.again_told:
            self.report_slope(called, functions.measured(torch, moves, product) / expected)

    def _prepare(self, record, module, dtype):
        """Puts the buffers back; returns what turns a tensor of the inputs into this type."""
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
        """Forward and backward of a copy; returns the user's own functions in it by name."""
        torch = self.hub.torch
        turn = self._prepare(record, module, dtype)
        outputs = self._forward(record, module, turn, record.random)
        left = self.random()
        if [t.shape for t in outputs] != record.shapes:
            raise Reason("the copy's outputs have other shapes")
        moved = self._compare(record, outputs)
        pairs = [(outputs[place], grad.to(dtype)) for place, grad in sorted(record.grads.items())]
        if any(not t.requires_grad for t, _ in pairs):
            raise Reason("an output of the copy has no gradient")
        called = functions.own_functions(torch, outputs)
        record.plain = functions.is_plain_graph(torch, outputs)
        pairs = from_outside(torch, pairs, max(ROUNDED * moved, ROUNDED_LEAST))
        with masks.drawn_once(self, record), noise.never(self, record, dtype):
            torch.autograd.backward([t for t, _ in pairs], [grad for _, grad in pairs])
        if not record.exact and not self._is_same_state(left, record.random):
            self._draw_again(record, module, dtype, outputs, left)
        return called

    def _is_same_state(self, a, b):
        return self.hub.torch.equal(a[0], b[0]) and all(
            self.hub.torch.equal(a[1][index], value) for index, value in b[1].items()
        )

    def _draw_again(self, record, module, dtype, outputs, random):
        """Where rounding is large, other random numbers than the job's do not show by themselves:
        the copy is as far from the job then as from itself with others again.
        """
        with self.hub.torch.no_grad():
            turn = self._prepare(record, module, dtype)
            others = self._forward(record, module, turn, random)
        for before, tensor, other in zip(record.outputs, outputs, others):
            kept, drawn = (self._sample(t.detach()) for t in (tensor, other))
            off, moves = float((kept - before).norm()), float((kept - drawn).norm())
            if moves / DRAWN_APART < off < moves * DRAWN_APART:
                raise Reason("the copy draws other random numbers than the job did")

    def _forward(self, record, module, turn, random):
        torch = self.hub.torch
        self.set_random(random)
        args, kwargs = self._mapped((record.args, record.kwargs), turn)
        dtype = next(module.parameters()).dtype
        if record.path:
            module = dict(module.named_modules())[record.path]
        drawn = contextlib.nullcontext()
        if random is record.random:
            drawn = noise.repeated(self, record, dtype)
        with masks.repeated(self, record.dropped), drawn:
            return tensors_of(torch, module(*args, **kwargs), [])

    def _compare(self, record, outputs):
        """How far the outputs are from the job's own, relative to them.

        Other random numbers, other weights or a count that the module keeps would show.
        """
        moved = 0.0
        for before, tensor in zip(record.outputs, outputs):
            difference = float((self._sample(tensor.detach()) - before).norm())
            size = float(before.norm())
            if difference > (COMPUTED_OTHERWISE if record.exact else DRAWN_OTHERWISE) * size:
                raise Reason(
                    "the copy computes otherwise: random numbers, weights or counts differ"
                )
            moved = max(moved, difference / size if size > 0 else 0.0)
        return moved


def _why(error):
    plain = str(error) if isinstance(error, Reason) else ""
    return plain or "%s: %s" % (type(error).__name__, error)


class _Nowhere(io.StringIO):
    def write(self, text):
        return len(text)


@contextlib.contextmanager
def silent():
    """What a forward prints, warns of and logs, it has printed."""
    kept, disabled = (sys.stdout, sys.stderr), logging.root.manager.disable
    try:
        sys.stdout = sys.stderr = _Nowhere()
        logging.disable(logging.CRITICAL)
        yield
    finally:
        sys.stdout, sys.stderr = kept
        logging.disable(disabled)


def _is_torchs(hook):
    """Weight norm and its like are objects of torch's own classes."""
    return str(getattr(type(hook), "__module__", "")).startswith("torch.")


def _listed(names):
    most = 6
    shown = ", ".join(names[:most])
    return (shown if len(names) <= most else "%s and %d more" % (shown, len(names) - most))[:300]


# ---- a forward that stands for another method ----------------------------------------------------
# Lightning replaces the forward of a module by a function that calls training_step. That method
# logs, counts and may step optimizers: it is not run again. What it calls, self(x) or self.net(x),
# is a forward like any other.

MOST = 256  # calls of parts in a forward


def is_redirected(inner):
    """Whether the module's forward is a function that was set, and no method of its own."""
    found = vars(inner).get("forward")
    return found is not None and getattr(found, "__self__", None) is not inner


class Parts:
    """From the begin of the redirected forward to its end, Module.__call__ is seen from outside."""

    def __init__(self, again, model, inner):
        self.again, self.hub, self.model = again, again.hub, model
        self.inner = inner
        self.paths = {id(part): path for path, part in inner.named_modules()}
        self.thread = threading.get_ident()
        self.entered = self.inside = False
        self.count = 0

    def begin(self):
        kind, parts = self.hub.torch.nn.Module, self
        original = kind.__call__

        def __call__(module, *args, **kwargs):
            return parts.called(original, module, args, kwargs)

        def put_back():
            kind.__call__ = original

        kind.__call__ = __call__
        self.put_back = put_back
        self.hub.temporary.append(put_back)

    def end(self):
        self.hub.undo(self.put_back)

    def called(self, original, module, args, kwargs):
        path = self.paths.get(id(module))
        if path is None or self.inside or threading.get_ident() != self.thread or self.hub.idle():
            return original(module, *args, **kwargs)
        if module is self.inner and not self.entered:
            self.entered = True  # the redirected call itself
            return original(module, *args, **kwargs)
        if not self.hub.torch.is_grad_enabled():
            return original(module, *args, **kwargs)
        self.inside, result = True, None
        record = self.hub.call(self._open, path, module, args, kwargs)
        try:
            result = original(module, *args, **kwargs)
            return result
        finally:
            self.inside = False
            if record is not None:
                self.hub.call(self.again.after, record, result)

    def _open(self, path, module, args, kwargs):
        self.count += 1
        if self.count > MOST:
            if self.count == MOST + 1:
                self.again._refuse("a step calls parts of the model more than %d times" % MOST)
            return None
        return self.again.open(self.model, path, module, args, kwargs)

"""Models: those in DistributedDataParallel, and plain ones that an optimizer of the job trains."""

import gc
import itertools
import operator
import re
import sys
import time
import weakref

from .losses import mark_outputs
from .samples import Sampler, local, type_name
from .wrapping import ByObject, given

WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_checkpoint_wrapped_module)(?=\.)")
STATISTICS = re.compile(r"(^|\.)running_(mean|var)$")
SHAPE = operator.attrgetter("requires_grad", "dtype")
NUMBERS = 64  # members of a model's modules that are written
INSIDE = "inside"  # a forward that is no call of a model
GATHERING = {"FullyShardedDataParallel", "FSDPModule"}  # parameters for a forward alone
IN_PARTS = (
    "of parameters that ranks hold parts of, gradients and files are not looked at: judged are the"
    " order of calls, data, rates, the scaler, steps of each rank's parts, and what a rank holds"
    " whole"
)


def plain_name(name):
    """A parameter's name without what wrappers add to it."""
    name = WRAPPERS.sub("", name).lstrip(".")
    return name[len("module.") :] if name.startswith("module.") else name


def is_norm(torch, module):
    nn = torch.nn
    known = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    if isinstance(module, known):
        return True
    weight = module._parameters.get("weight")
    return "norm" in type(module).__name__.lower() and weight is not None and weight.dim() <= 1


def is_frozen(module):
    params = list(module.parameters())
    return bool(params) and not any(p.requires_grad for p in params)


def _is_built(module):
    """Not where Module's constructor did not run, or its methods were replaced by values."""
    own = getattr(module, "__dict__", {})
    methods = {"modules", "parameters", "named_parameters", "named_modules"}
    return "_modules" in own and not methods & set(own)


def modules_now(torch, objects=None):
    """(all modules of the process, ids of those that are in another one); objects: of gc."""
    kinds = [torch.nn.Module]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
    # by ids of types, and without a line of Python for each object: there are many
    kinds, objects = set(map(id, kinds)), objects or gc.get_objects()
    found = itertools.compress(objects, map(kinds.__contains__, map(id, map(type, objects))))
    modules = list(filter(_is_built, found))
    return modules, {id(child) for m in modules for child in m._modules.values()}


def _in_parts(module):
    """The ids of parameters that FSDP gathers for a forward alone."""
    kinds = ((m, {kind.__name__ for kind in type(m).__mro__}) for m in module.modules())
    return {id(param) for m, names in kinds if names & GATHERING for param in m.parameters()}


class Entry:
    """A parameter: its name in events and samples, and its sampler."""

    __slots__ = ("model", "name", "ref", "sampler")

    def __init__(self, model, name, param, sampler):
        self.model, self.name = model, name
        self.ref, self.sampler = weakref.ref(param), sampler


def _described(entry, param):
    return [entry.name, entry.sampler.count, type_name(param.dtype), param.requires_grad]


class Model:
    def __init__(self, hub, index, kind, module, at):
        self.hub, self.index, self.kind, self.at = hub, index, kind, at
        self.ref = weakref.ref(module, hub.dying)
        self.said_hidden = False  # a hidden event was written
        # parameters and buffers while a step is open: its digests are of the model as it was
        self.held = None
        self.label = type(self.inner(module)).__name__
        self.compiled = self._is_compiled(module)
        # what the first linear or convolution of the last detailed forward ran under
        self.autocast_inside = None
        self.reported = False
        self.called = False  # a forward of it was seen
        self.sought = False  # it was looked for a part that is called in its place
        self.part = None  # (weak reference, path) of that
        self.trained = False  # one with gradients: a wrapper learns of a backward by it
        self.begun = False  # one with gradients in training mode
        self.looked = None  # that of a detailed step with norms in eval mode, until its backward
        self.put_in_train = self.said_froze = False  # by a first train()
        self.entries, self.buffers, self.norms, self.leaf = [], [], [], None
        self.parts = 0  # parameters that ranks hold parts of
        self.shards = []  # of them, what steps can be seen of: DTensors
        self.refs = []  # of parameters and buffers
        self.other_names = []
        self.refresh()

    def inner(self, module):
        """The user's module below DistributedDataParallel and torch.compile."""
        if self.kind == "ddp":
            found = module._modules.get("module")  # as an attribute it takes ten times as long
            module = module.module if found is None else found
        return module._modules.get("_orig_mod", module)

    def _is_compiled(self, module):
        if self.kind == "ddp":
            module = module.module
        return any(
            hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None)
            for m in module.modules()
        )

    def full_name(self, name):
        return name if self.index == 0 else "m%d.%s" % (self.index, name)

    def refresh(self):
        """Parameters and buffers as they are now: scripts exchange heads and freeze layers."""
        module = self.ref()
        if module is None:
            self.entries, self.buffers, self.refs, self.norms = [], [], [], []
            self.shards = []
            return
        torch, self.parts = self.hub.torch, 0
        old = {entry.name: entry for entry in self.entries + self.shards}
        self.entries, self.shards = [], []
        parts = _in_parts(module)
        for name, param in module.named_parameters():
            if hasattr(param, "_local_tensor") or hasattr(param, "ds_id") or id(param) in parts:
                self.hub.remark(IN_PARTS)
                self.parts += 1
                if hasattr(param, "_local_tensor") and not local(param).is_meta:
                    self.shards.append(self._entry(old, name, param))
                continue
            if torch.nn.parameter.is_lazy(param):
                continue  # it has no shape before the first forward
            if param.is_meta or param.is_complex() or type(param).__name__ == "FakeTensor":
                self.hub.remark("a parameter without values, or a complex one, is not looked at")
                continue
            self.entries.append(self._entry(old, name, param))
        self.buffers = [
            (plain_name(name), weakref.ref(buffer))
            for name, buffer in module.named_buffers()
            if not hasattr(buffer, "_local_tensor")
        ]
        self.refs = [entry.ref for entry in self.entries] + [ref for _, ref in self.buffers]
        self.other_names = self._other_names(module)
        self.norms = [weakref.ref(m) for m in module.modules() if is_norm(torch, m)]
        leaves = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
        self.leaf = next((weakref.ref(m) for m in module.modules() if isinstance(m, leaves)), None)

    def _entry(self, old, name, param):
        """Of a tensor in parts: of this rank's."""
        name, count = self.full_name(plain_name(name)), local(param).numel()
        known = old.get(name)
        if known is None or known.sampler.count != count:
            sampler = Sampler(self.hub.torch, name, count, self.hub.settings.samples)
            known = Entry(self.index, name, param, sampler)
        known.ref = weakref.ref(param)
        return known

    def params(self, shards=False):
        pairs = ((entry, entry.ref()) for entry in (self.shards if shards else self.entries))
        return [(entry, param) for entry, param in pairs if param is not None]

    def tensors(self):
        """Its parameters that are alive."""
        found = [entry.ref() for entry in self.entries]
        return [param for param in found if param is not None]

    def device(self):
        """Of its first parameter, or None."""
        for entry in self.entries:
            param = entry.ref()
            if param is not None:
                return param.device
        return None

    def _other_names(self, module):
        """(name, other name) of parameters and buffers that the module has under several names."""
        first, out = {}, []
        for path, part in module.named_modules():
            for kept in (part._parameters, part._buffers):
                for name, tensor in kept.items():
                    name = plain_name("%s.%s" % (path, name))
                    if tensor is not None and first.setdefault(id(tensor), name) != name:
                        out.append((first[id(tensor)], name))
        return out

    def live_buffers(self):
        pairs = ((name, ref()) for name, ref in self.buffers)
        return [(name, buffer) for name, buffer in pairs if buffer is not None]

    def eval_norms(self):
        return sum(1 for ref in self.norms for m in [ref()] if m is not None and not m.training)

    def thawed(self):
        """(count, place): norms that keep statistics, are in training mode, have frozen parameters,
        and lie in a part that the script has put in eval mode by itself.
        """
        frozen, module = self.hub.models.frozen, self.ref()
        count, place = 0, ""
        for path, part in self.inner(module).named_modules() if module is not None else ():
            at, _ = frozen.get(part, (None, False))
            if not path or at is None:
                continue
            norms = [m for m in part.modules() if getattr(m, "running_mean", None) is not None]
            on = [m for m in norms if m.training and is_norm(self.hub.torch, m) and is_frozen(m)]
            count += len(on)
            place = place or (at if on else "")
        return count, place

    def unmeasured(self):
        """After a backward, (count, place, own): norms in eval mode that are trained and whose
        statistics are those they were built with, where the script put a part that holds them in
        eval mode by itself, and whether the model's own train() does so.
        """
        torch, module = self.hub.torch, self.ref()
        count, place, own = 0, "", False
        if module is None:
            return count, place, own
        held, moving = {}, self.hub.optimizers.moving()
        for part in self.inner(module).modules():
            found = self.hub.models.frozen.get(part)
            held.update((id(inner), found) for inner in part.modules() if found is not None)
        for norm in self.inner(module).modules():
            known = isinstance(norm, torch.nn.modules.batchnorm._BatchNorm)
            if not known or norm.training or not norm.track_running_stats:
                continue
            batches = norm.num_batches_tracked
            if is_frozen(norm) or batches is None or norm.weight is None or int(batches) > 0:
                continue
            if id(norm.weight) not in moving or norm.weight.grad is None:
                continue
            if not norm.running_mean.any() and bool((norm.running_var == 1).all()):
                at, by_model = held.get(id(norm), ("", False))
                count, place, own = count + 1, place or at, own or by_model
        return count, place, own

    def _norm_names(self, module):
        names = []
        for path, part in module.named_modules():
            if is_norm(self.hub.torch, part):
                names += [plain_name("%s.%s" % (path, name)) for name in part._parameters]
        known = {entry.name for entry in self.entries}
        return [self.full_name(name) for name in names if self.full_name(name) in known]

    def event(self):
        hub, torch, module = self.hub, self.hub.torch, self.ref()
        parts = list(module.modules())
        synced = [m for m in parts if "SyncBatchNorm" in type(m).__name__]
        norms = [m for m in parts if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
        params, buffers = self.params(), self.live_buffers()
        tensors, buffer_tensors = [p.detach() for _, p in params], [b for _, b in buffers]
        event = {
            "event": "model",
            "model": self.index,
            "kind": self.kind,
            "at": self.at,
            "name": self.label,
            "params": [_described(e, p) for e, p in params],
            "buffers": [[self.full_name(n), b.numel(), type_name(b.dtype)] for n, b in buffers],
            "norm_params": self._norm_names(module),
            "bn": len([m for m in norms if m not in synced]),
            "sync_bn": len(synced),
            "dropout": sum(
                isinstance(m, torch.nn.modules.dropout._DropoutNd) and m.p > 0 for m in parts
            ),
            "compiled": self.compiled,
        }
        if self.parts:
            event["parts"] = self.parts
            event["shards"] = [_described(e, p) for e, p in self.params(shards=True)]
        if self.kind == "ddp":
            event.update(self._wrapper(module))
        cast = next((at for part, at in hub.models.casts.items() if part in parts), None)
        if cast is not None:
            event["cast_at"] = cast
        unfrozen = hub.params.unfrozen(params)
        if unfrozen:
            event["unfrozen"] = unfrozen
        numbers = self._numbers(module)
        if numbers:
            event["fractions"] = numbers
        event["digest"] = {
            "param": hub.digests.digest(tensors),
            "buffer": hub.digests.digest(buffer_tensors),
        }
        event["param_digests"] = hub.digests.each(tensors)
        event["buffer_digests"] = hub.digests.each(buffer_tensors)
        return event

    def _numbers(self, module):
        """[name, value] of fractions that modules of other packages than torch have as members."""
        found = []
        for path, part in module.named_modules():
            if not type(part).__module__.startswith("torch."):
                own = ((k, v) for k, v in vars(part).items() if type(v) is float)
                found += [["%s.%s" % (path, k), v] for k, v in own if v % 1 > 0]
        return [[self.full_name(plain_name(k)), v] for k, v in found[:NUMBERS]]

    def _wrapper(self, ddp):
        bucket = getattr(ddp, "bucket_bytes_cap", None)
        return {
            "broadcast_buffers": bool(ddp.broadcast_buffers),
            "find_unused": bool(ddp.find_unused_parameters),
            "static_graph": bool(getattr(ddp, "static_graph", False)),
            "bucket_mb": bucket / 2**20 if bucket is not None else None,
            "buckets_as_views": bool(ddp.gradient_as_bucket_view),
            "world": self.hub.torch.distributed.get_world_size(ddp.process_group),
        }


class Models:
    def __init__(self, hub):
        self.hub = hub
        self.models = []
        self.by_object = ByObject()  # models of modules: of the wrapper, or the plain root
        self.parts = ByObject()  # models of modules that are called in their place
        self.decide = []  # functions that say which, at the next backward
        self.candidates = ByObject()  # places of roots that hold parameters of an optimizer
        self.entry_by_id, self.shard_by_id = {}, {}
        self.inputs = {}  # samplers of inputs by their size
        self.forwards = 0  # of known models
        self.depth = 0  # 1 within a forward of a known model
        self.converting = 0
        self.patched = set()
        self.no_sync_at = None  # where the script last asked for it
        self.inside = ByObject()  # modules in wrappers that were never called: True
        self.bypassed = None  # where the script called such a module
        self.unlook = None
        self.compiles = False  # torch.compile was called: forwards in what it made are not seen
        # of parts that the script put in eval mode: where, and whether another train() does so
        self.frozen = ByObject()
        self.casts = weakref.WeakKeyDictionary()  # module that was cast to a half type: where
        # what zero_grad() does unless it is told
        self.to_none = int(str(hub.torch.__version__).split(".")[0]) >= 2
        self.switching = False  # within Module.train, which calls itself for each child

    def install(self):
        torch, wrap = self.hub.torch, self.hub.wrap
        module = torch.nn.Module
        compiling, idle = self.hub.compiling, self.hub.idle

        def switching():
            return compiling() or self.switching or idle()

        wrap(module, "train", self._enter_train, self._leave_train, switching)
        wrap(module, "zero_grad", self._enter_zero)
        for name in ("to", "half", "bfloat16"):
            wrap(module, name, None, self._cast)
        if hasattr(torch, "compile"):
            wrap(torch, "compile", None, self._compiled)
        if not torch.distributed.is_available():
            return
        ddp = torch.nn.parallel.DistributedDataParallel
        wrap(ddp, "__init__", None, self._built)
        self._wrap_forward(ddp, "forward")
        wrap(ddp, "no_sync", self._enter_no_sync)
        join = getattr(torch.distributed.algorithms, "Join", None)
        if join is not None:
            wrap(join, "__enter__", self._enter_join)
        wrap(ddp, "register_comm_hook", None, self._hooked)
        wrap(ddp, "_register_builtin_comm_hook", None, self._hooked)
        convert = "convert_sync_batchnorm"
        wrap(torch.nn.SyncBatchNorm, convert, self._enter_convert, self._leave_convert)

    def _wrap_forward(self, owner, name):
        count = self.hub.thin.counting(self.hub.thin.forward)
        return self.hub.wrap(owner, name, self._enter_forward, self._leave_forward, count=count)

    # ---- what is known ---------------------------------------------------------------------------

    def _cast(self, note, args, kwargs, result, error):
        first = next((p for p in args[0].parameters() if p.is_floating_point()), None)
        if error is None and first is not None and first.element_size() == 2:
            self.casts.setdefault(args[0], self.hub.places.here())

    def known(self, module):
        return self.by_object.get(module)

    def of(self, module):
        """The model that a forward of this module is one of: itself, or one that it stands for."""
        model = self.by_object.get(module)
        return model if model is not None else self.parts.get(module)

    def live(self):
        kept = [m for m in self.models if m.kind != "replaced"]
        return [m for m in kept if m.held is not None or m.ref() is not None]

    def roots(self):
        """The user's modules of the models."""
        outer = ((model, model.ref()) for model in self.live())
        return [model.inner(module) for model, module in outer if module is not None]

    def in_parts(self):
        return any(model.parts for model in self.models)

    def in_eval(self):
        """Whether a model is known and all are in eval mode."""
        known = False
        for model in self.models:
            module = model.ref() if model.kind != "replaced" else None
            if module is not None:
                if model.inner(module).training:
                    return False
                known = True
        return known

    def after_backward(self):
        for model in self.live():
            if model.looked is not None:
                count, place, own = model.unmeasured()
                if count:
                    model.looked.update(unmeasured=count, unmeasured_at=place)
                    model.looked["unmeasured_by_model"] = own
                model.looked = None

    def hold(self):
        """Until the step is closed, also where the script's function returns: see Hub.dying."""
        for model in self.live():
            if model.held is None:
                model.held = [ref() for ref in model.refs]

    def hold_modules(self):
        """The same where no digest of the step is taken but at the job's end."""
        for model in self.models:
            if model.held is None and model.kind != "replaced":
                model.held = model.ref()

    def release(self):
        for model in self.models:
            model.held = None

    def synced(self):
        """Whether the next backward reduces gradients: no model is within no_sync."""
        for model in self.models:
            module = model.ref() if model.kind == "ddp" else None
            if module is not None and not module.require_backward_grad_sync:
                return False
        return True

    def trainable(self):
        return [(e, p) for model in self.live() for e, p in model.params() if p.requires_grad]

    def all_params(self):
        return [p.detach() for model in self.live() for _, p in model.params()]

    def all_buffers(self):
        return [b for model in self.live() for _, b in model.live_buffers()]

    def entry_of(self, param):
        entry = self.entry_by_id.get(id(param))
        return entry if entry is not None and entry.ref() is param else None

    def stepped_as(self, param):
        """The entry of a parameter, or of the rank's part of one."""
        entry = self.shard_by_id.get(id(param))
        return entry if entry is not None and entry.ref() is param else self.entry_of(param)

    def hidden(self, held):
        """[(model, at, names)] of parameters that get gradients and lie in plain lists or dicts of
        a model's modules, where the model does not know them; held: ids of those that an optimizer
        has.
        """
        out = []
        for model in self.live():
            module = model.ref()
            if module is None or model.said_hidden:
                continue
            own = {id(p) for p in module.parameters()} | held
            names = [
                name
                for name, param in self._in_containers(module)
                if id(param) not in own and param.requires_grad and param.grad is not None
            ]
            if names:
                model.said_hidden = True
                out.append((model.index, model.at, list(dict.fromkeys(names))))
        return out

    def _in_containers(self, module):
        nn = self.hub.torch.nn
        for prefix, part in module.named_modules():
            for key, value in vars(part).items():
                if key.startswith("_") or not isinstance(value, (list, tuple, dict)):
                    continue
                items = value.items() if isinstance(value, dict) else enumerate(value[:256])
                for place, one in items:
                    name = "%s%s%s.%s" % (prefix, "." if prefix else "", key, place)
                    if isinstance(one, nn.Parameter):
                        yield name, one
                    elif isinstance(one, nn.Module):
                        for inner, param in one.named_parameters():
                            yield "%s.%s" % (name, inner), param

    def first_tensor(self, tree):
        return _first_tensor(self.hub.torch, tree)

    def indices_of(self, params):
        """The models that have these parameters; -1: none has one of them."""
        known = self.entry_by_id.get
        pairs = [(known(id(param)), param) for param in params]
        return sorted({e.model if e is not None and e.ref() is p else -1 for e, p in pairs})

    def statistics(self):
        """{index: digest of the running statistics of its norms} of models that have some."""
        out = {}
        for model in self.live():
            kept = [b for name, b in model.live_buffers() if STATISTICS.search(name)]
            if kept:
                out[str(model.index)] = self.hub.digests.digest(kept)
        return out

    def device(self):
        """The device of the first parameter of the first model, or None."""
        return next(filter(None, (model.device() for model in self.live())), None)

    def device_name(self):
        device = self.device()
        if device is None or device.type != "cuda":
            return device.type if device is not None else "cpu"
        return self.hub.torch.cuda.get_device_name(device)

    def shape(self):
        """What freezing, casting, or dropping parameters changes."""
        return hash(tuple(SHAPE(p) for model in self.live() for p in model.tensors()))

    def refresh(self):
        for model in self.live():
            model.refresh()
        self._index()

    def _index(self):
        self.entry_by_id = {id(p): entry for model in self.live() for entry, p in model.params()}
        shards = (pair for model in self.live() for pair in model.params(shards=True))
        self.shard_by_id = {id(p): entry for entry, p in shards}

    # ---- DistributedDataParallel -----------------------------------------------------------------

    def _add(self, kind, module, at):
        model = Model(self.hub, len(self.models), kind, module, at)
        self.models.append(model)
        self.by_object.put(module, model)
        self._index()
        self.hub.writer.put(model.event())
        if model.compiled:
            self._report_compiled(model, at)
        return model

    def _built(self, note, args, kwargs, result, error):
        if error is not None:
            return
        self.hub.collectives.count += 1  # it sends the parameters of rank 0
        ddp, at = args[0], self.hub.places.here()
        inside = {id(m) for m in ddp.module.modules()}
        for model in self.live():
            if model.kind == "plain" and id(model.ref()) in inside:
                model.kind = "replaced"
                model.held = None
        for module in ddp.module.modules():
            self.candidates.drop(module)
        self.hub.rank_number = None  # the group is there now, whatever was known before
        self._add("ddp", ddp, at)
        self.hub.activate()

    def look_inside(self):
        """At a backward: a wrapper that no forward has gone through is trained behind its back, or
        not yet. From here on the module in it is seen, too; not where something is compiled, which
        would be compiled again.
        """
        self.hub.undo(self.unlook)
        decide, self.decide = self.decide, []
        for function in decide:
            function()
        parts = set()
        for model in () if self.compiles else self.live():
            module = model.ref()
            if model.kind == "ddp" and not model.called and module is not None:
                if not self.inside.get(module.module):
                    self.inside.put(module.module, True)
                    self._watch_class(module.module)
                    parts.update(map(id, module.module.modules()))
            elif model.kind == "plain" and not model.called and not model.sought:
                model.sought = True
                self._look_for_part(model)
        if parts:
            self._look_for_parts(parts)

    def _look_for_part(self, model):
        """Until the next backward: the script may never call a plain model, but methods of it that
        call one module in it, which holds all that is trained (a LightningModule's network).
        """
        root, hub, register = model.ref(), self.hub, self.hub.torch.nn.modules.module
        paths = {id(part): path for path, part in root.named_modules() if part is not root}
        called, inside = {}, []

        def enter(module, inputs):
            if not inside and id(module) in paths:
                inside.append(module)
                if hub.own.grad:
                    called[id(module)] = module

        def leave(module, inputs, outputs):
            if inside and inside[0] is module:
                inside.clear()

        handles = [
            register.register_module_forward_pre_hook(lambda *args: hub.call(enter, *args)),
            register.register_module_forward_hook(lambda *args: hub.call(leave, *args)),
        ]

        def end():
            for handle in handles:
                handle.remove()

        def decide():
            hub.undo(end)
            part = next(iter(called.values())) if len(called) == 1 else None
            own = {id(p) for p in part.parameters()} if part is not None else ()
            params = [p for _, p in model.params() if p.requires_grad]
            if params and all(id(p) in own for p in params):
                model.part = weakref.ref(part), paths[id(part)]
                self.parts.put(part, model)
                self._watch_class(part)

        hub.temporary.append(end)
        self.decide.append(decide)

    def _look_for_parts(self, parts):
        """Until the next backward: the module may never be called as a whole, but parts of it by
        another module.
        """

        def look(module, inputs):
            if self.bypassed is None and id(module) in parts and self.hub.own.grad:
                self.bypassed = self.hub.places.of_module()

        register = self.hub.torch.nn.modules.module.register_module_forward_pre_hook
        self.unlook = register(lambda *args: self.hub.call(look, *args)).remove
        self.hub.temporary.append(self.unlook)

    def _note_bypass(self, module):
        if self.inside.get(module) and self.hub.own.grad:
            self.bypassed = self.hub.places.here()

    def _enter_no_sync(self, args, kwargs):
        self.no_sync_at = self.hub.places.here()

    def _enter_join(self, args, kwargs):
        self.hub.put("join", at=self.hub.places.here())

    def _compiled(self, note, args, kwargs, result, error):
        """A wrapper that is compiled as a whole is called through what torch.compile returns."""
        self.hub.casts.end()
        self.hub.shadows.leave()
        self.compiles = True
        inner = getattr(result, "_orig_mod", None)
        model = self.known(inner) if isinstance(inner, self.hub.torch.nn.Module) else None
        if error is None and model is not None:
            self.by_object.put(result, model)
            self._report_compiled(model, self.hub.places.here())
            self._watch_class(result)

    def _report_compiled(self, model, at):
        model.compiled = True
        self.hub.remark("a model compiled by torch.compile is seen from outside only", at)

    def _hooked(self, note, args, kwargs, result, error):
        model = self.known(args[0])
        if error is not None or model is None:
            return
        hook = given(args, kwargs, "hook", 2, kwargs.get("comm_hook_type", args[-1]))
        name = getattr(hook, "__qualname__", None) or getattr(hook, "name", None)
        name = name or type(hook).__name__
        self.hub.put("hook", model=model.index, name=name, at=self.hub.places.here())

    def _synced(self, module):
        return sum(1 for m in module.modules() if isinstance(m, self.hub.torch.nn.SyncBatchNorm))

    def _enter_convert(self, args, kwargs):
        # it calls itself for each child: only the user's own call counts
        self.converting += 1
        module = given(args, kwargs, "module", 1)
        return self._synced(module) if self.converting == 1 else None

    def _leave_convert(self, note, args, kwargs, result, error):
        self.converting -= 1
        if self.converting == 0 and error is None and note is not None:
            converted = self._synced(result) - note
            self.hub.put("convert", converted=converted, at=self.hub.places.here())

    # ---- plain models ----------------------------------------------------------------------------

    def look_for(self, params, at):
        """Finds the outermost modules that hold an optimizer's parameters of no known model."""
        for model in self.live():
            self.hub.params.remember(model.ref())
        missing = {id(p): place for place, p in enumerate(params) if self.stepped_as(p) is None}
        if not missing:
            return
        module_class = self.hub.torch.nn.Module
        modules, inner = modules_now(self.hub.torch)
        ddp = self.hub.torch.nn.parallel.DistributedDataParallel
        roots = []
        for module in modules:
            if id(module) in inner or isinstance(module, ddp) or self.known(module) is not None:
                continue
            held = {id(p) for p in module_class.parameters(module)} & set(missing)
            if held:
                roots.append((-len(held), min(missing[key] for key in held), module, held))
        covered = set()
        for _, _, module, held in sorted(roots, key=lambda root: root[:2]):
            if held - covered:
                covered |= held
                self.hub.params.remember(module)
                self._candidate(module, at)
        if set(missing) - covered:
            self.hub.remark("an optimizer has parameters that belong to no module", at)

    def _candidate(self, module, at):
        kinds = {type(m).__name__ for m in module.modules()}
        if "DeepSpeedEngine" in kinds:
            self.hub.remark("a model of DeepSpeed, in parts on several ranks, is not looked at", at)
            return
        self._watch_class(module)
        if any(hasattr(p, "_local_tensor") for p in module.parameters()):
            self._add("plain", module, at)  # a forward may have gathered them
        else:
            self.candidates.put(module, at)

    def _watch_class(self, module):
        """Sees forwards of this class; not by hooks of the instance, which torch.save and deepcopy
        would take along.
        """
        kind = type(module)
        own = next(c for c in kind.__mro__ if "train" in vars(c))
        code = getattr(vars(own)["train"], "__code__", None)
        if own is not self.hub.torch.nn.Module and code and code.co_varnames[1:2] == ("mode",):
            self.hub.wrap(own, "train", self._enter_own_train, self._leave_own_train)
        if kind.__name__ == "OptimizedModule" and "_dynamo" in kind.__module__:
            name = "__call__"
            if name not in kind.__dict__:
                kind.__call__ = _call_through(kind.__call__)
        else:
            name = "forward"
        owner = next((c for c in kind.__mro__ if name in c.__dict__), None)
        if owner in self.patched:
            return
        self.patched.add(owner)
        if owner is None or not self._wrap_forward(owner, name):
            self.hub.remark("forwards of a %s are not seen" % kind.__name__)

    def settle(self):
        """Candidates that no DistributedDataParallel has taken are the job's plain models."""
        if not self.candidates:
            return
        candidates, self.candidates = self.candidates, ByObject()
        for module, at in candidates.alive():
            if self.known(module) is None and self._holds_more(module):
                self._add("plain", module, at)

    def _holds_more(self, module):
        """Whether it has parameters of an optimizer and of no known model: where
        DistributedDataParallel has taken all that is stepped, as of a loss that holds the network,
        that is the model.
        """
        optimizers = self.hub.optimizers
        held = {id(p) for _, one in optimizers.found() for p in optimizers.params(one)}
        return any(id(p) in held and self.stepped_as(p) is None for p in module.parameters())

    # ---- forward ---------------------------------------------------------------------------------

    def _of_forward(self, module):
        model = self.of(module)
        at = self.candidates.get(module)
        if model is None and at is not None and self.hub.own.grad:
            self.candidates.drop(module)
            if self._holds_more(module):
                model = self._add("plain", module, at)
        return model if model is not None and model.kind != "replaced" else None

    def _enter_forward(self, args, kwargs):
        if self.depth or self.hub.autograd.depth:
            return None  # a part of a forward, or recomputed by a checkpoint in backward
        module = args[0]
        model = self._of_forward(module)
        if model is None:
            self._note_bypass(module)
            self.hub.data.rows.inner_forward(args, kwargs)
            return self._validates_inside(module, args[1:], kwargs)
        self.depth = 1
        self.forwards += 1
        return self._note_forward(model, module, args[1:], kwargs)

    def _validates_inside(self, module, args, kwargs):
        """The module in a wrapper is called by itself, in a validation."""
        if self.hub.own.grad:
            return None
        if self._of_inner(module) is None:
            return self.hub.averages.runs(module)
        if module.training:
            return None
        self.depth = 1
        self.forwards += 1
        drawn = self.hub.draws.since()
        self.hub.data.leave("forward")
        self.hub.misuse.forward(_first_tensor(self.hub.torch, (args, kwargs)), drawn)
        return INSIDE

    def _note_forward(self, model, module, args, kwargs):
        hub, torch, steps = self.hub, self.hub.torch, self.hub.steps
        # the wrapper has a flag of its own, which nothing reads
        grad, training = self.hub.own.grad, model.inner(module).training
        if not model.called:
            model.called = True
            if model.kind == "ddp":
                self.inside.drop(module.module)
        model.trained = model.trained or grad
        steps.before_forward(training, grad)
        drawn = hub.draws.since() if not training else []  # with grad: the start of an attack
        if not training and not grad:
            hub.data.leave("forward")
        entry = steps.note("forward", model=model.index, training=training, grad=grad)
        if model.kind == "ddp":
            entry["sync"] = bool(module.require_backward_grad_sync)
        entry["autocast"] = hub.autograd.autocast(self._device_type(model))
        watched = self._watch_autocast(model) if grad else None
        first = _first_tensor(torch, (args, kwargs)) if grad or training else None
        if training and first is not None and first.dim() > 0:
            hub.draws.forward(entry, int(first.shape[0]))  # also of a look without autograd
        if grad:
            if first is not None:
                entry["input"] = hub.digests.placed([self._input(first)])
                if first.requires_grad:
                    entry["input_grad"] = True
                if training and first.dim() > 0:
                    steps.now.images += int(first.shape[0])
            entry["left"] = self._left(model, steps.now.detail)
        elif not training:
            hub.misuse.forward(_first_tensor(torch, (args, kwargs)), drawn)
        if training:
            entry["eval_norms"] = model.eval_norms()
            model.looked = entry if grad and entry["eval_norms"] and steps.now.detail else None
            if self.frozen and steps.now.detail:
                count, place = model.thawed()
                if count:
                    entry.update(thawed=count, thawed_at=place)
        if steps.now.detail:
            hub.misuse.targets.forward(args, kwargs, training and grad)
        record = hub.again.before(model, module, args, kwargs) if grad else None
        if grad and training:
            hub.still.trains(model)
            if not model.begun:
                model.begun = True
                hub.checkpoints.begins(module)
        detached = grad and training and steps.now.detail and hub.still.before_forward(module)
        first_step = grad and training and steps.now.number == 1
        looks = watched, detached or None, hub.casts.begin(model, module) if first_step else None
        if model.kind == "ddp" and not self.compiles:
            hub.data.rows.inside(module.module)
        record = record, hub.data.rows.forward(entry, args, kwargs)
        return entry, looks, record, time.perf_counter_ns()

    def _input(self, tensor):
        count = tensor.numel()
        if count not in self.inputs:
            if len(self.inputs) >= 64:  # batches of changing length
                self.inputs.clear()
            self.inputs[count] = Sampler(self.hub.torch, "input", count, self.hub.settings.samples)
        return self.inputs[count].take(tensor)

    def _left(self, model, in_detail):
        grads = [p.grad for p in model.tensors() if p.grad is not None]
        if not in_detail or not grads:
            return len(grads)
        kept = [(g.coalesce().values() if g.is_sparse else g).ne(0).any() for g in grads]
        return self.hub.Lazy(kept, lambda *found: sum(1 for value in found if value))

    def _device_type(self, model):
        device = model.device()
        return device.type if device is not None else "cpu"

    def _watch_autocast(self, model):
        """In detailed steps: under which autocast the first linear or convolution runs, where a
        forward opens it itself.
        """
        leaf = model.leaf() if model.leaf is not None else None
        if leaf is None or model.compiled or not self.hub.steps.now.detail:
            return None
        kind = self._device_type(model)
        hub = self.hub

        def look(module, inputs):
            if not hub.idle():
                model.autocast_inside = hub.call(hub.autograd.autocast, kind)

        model.autocast_inside = None
        remove = leaf.register_forward_pre_hook(look).remove
        hub.temporary.append(remove)
        return remove

    def _leave_forward(self, note, args, kwargs, result, error):
        if note is None:
            return
        self.depth = 0
        self.hub.misuse.after_forward()
        if note is INSIDE:
            return
        entry, watched, (record, rows), begin_ns = note
        model = self.of(args[0])
        self.hub.draws.after(entry)
        self.hub.steps.spend("forward", begin_ns)
        for remove in filter(None, watched):
            self.hub.undo(remove)
        if entry["autocast"] is None and entry["grad"]:
            entry["autocast"] = model.autocast_inside
        first = _first_tensor(self.hub.torch, result)
        entry["type"] = type_name(first.dtype) if first is not None else None
        if first is not None and self.hub.steps.now.detail:
            mark_outputs([first])
            self.hub.misuse.targets.returned(result)
        if rows is not None and error is None:
            self.hub.data.rows.returns(rows, result)
        if record is not None:
            self.hub.again.after(record, result if error is None else None)

    # ---- train, eval, zero_grad ------------------------------------------------------------------

    def _enter_train(self, args, kwargs):
        self.switching = True
        model, mode = self.known(args[0]), given(args, kwargs, "mode", 1, True)
        if mode:
            self.frozen.drop(args[0])
            self.hub.averages.told.put(args[0], True)
        elif model is None:
            at = self.hub.places.here()
            self.frozen.put(args[0], (at, self._is_in_train(args[0])))
            self.hub.averages.look_at(args[0])
        evaluated = model if model is not None else self._of_inner(args[0])
        for known in self._known_in(args[0], evaluated):
            if not mode:
                self.hub.steps.turn()
                self._watch_inside(known)
            self.hub.misuse.evaluates(not mode)
            word = "train" if mode else "eval"
            self.hub.steps.note("sync_module", mode=word, model=known.index)
        if not mode and evaluated is not None and evaluated.kind != "replaced":
            self.hub.still.evaluates(evaluated)
        flags = self._flags(evaluated, mode)
        if flags is not None:
            evaluated.put_in_train = True
        return flags

    def _known_in(self, module, model):
        """`model` of the module or of the wrapper around it, if any, and others that are parts of
        it.
        """
        if model is not None and len(self.models) == 1:
            return [model] if model.kind != "replaced" else []
        found = (self.known(part) for part in self.hub.torch.nn.Module.modules(module))
        found = [model, *(one for one in found if one is not model)]
        return [one for one in found if one is not None and one.kind != "replaced"]

    def _watch_inside(self, model):
        """A validation may call the module in a wrapper."""
        wrapper = model.ref()
        if model.kind == "ddp" and wrapper is not None and not self.compiles and not model.compiled:
            self.hub.data.rows.hand_over(type(wrapper.module))
            self._watch_class(wrapper.module)

    def _is_in_train(self, part):
        """Whether the train() of another module puts it in eval mode."""
        frame, left = sys._getframe(2), 12
        while frame is not None and left > 0:
            # f_locals keeps what it has read alive
            if frame.f_code.co_name == "train" and frame.f_code.co_argcount:
                owner = frame.f_locals.get(frame.f_code.co_varnames[0])
                if isinstance(owner, self.hub.torch.nn.Module) and owner is not part:
                    return True
            frame, left = frame.f_back, left - 1
        return False

    def _leave_train(self, note, args, kwargs, result, error):
        self.switching = False
        self._leave_own_train(note, args, kwargs, result, error)

    def _enter_own_train(self, args, kwargs):
        model = self.known(args[0]) or self._of_inner(args[0])
        return self._flags(model, given(args, kwargs, "mode", 1, True))

    def _flags(self, model, mode):
        """(model, what is trainable), before its first train()."""
        if mode is not True or model is None or model.put_in_train:
            return None
        return model, [(e, p) for e, p in model.params() if p.requires_grad]

    def _leave_own_train(self, note, args, kwargs, result, error):
        """What the first train() of a model froze: one of its modules does that by its own."""
        if note is None:
            return
        model, params = note
        names = [e.name for e, p in params if not p.requires_grad]
        step, at = self.hub.steps.now.number, self.hub.places.here()
        if names and step > 1 and not model.said_froze:
            model.said_froze = True
            self.hub.put("froze", model=model.index, at=at, step=step, names=names)

    def _enter_zero(self, args, kwargs):
        model = self.known(args[0]) or self._of_inner(args[0])
        if model is not None:
            params = [p for _, p in model.params()]
            self.note_zero(args, kwargs, params, of="model", model=model.index)

    def _of_inner(self, module):
        for model in self.live():
            outer = model.ref()
            if outer is not None and model.inner(outer) is module:
                return model
        return None

    def note_zero(self, args, kwargs, params, **members):
        """zero_grad() of these parameters."""
        members["to_none"] = bool(given(args, kwargs, "set_to_none", 1, self.to_none))
        entry = self.hub.steps.note("zero_grad", **members)
        self.hub.scalers.discard(entry, params)
        self.hub.steps.detail.cleared(params)


def _call_through(call):
    def __call__(self, *args, **kwargs):
        return call(self, *args, **kwargs)

    return __call__


def _first_tensor(torch, tree, depth=0):
    if isinstance(tree, torch.Tensor):
        return None if tree.is_nested or tree.is_meta else tree
    if depth > 6:
        return None
    if isinstance(tree, dict) or hasattr(tree, "keys") and hasattr(tree, "values"):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return None
    for value in tree:
        found = _first_tensor(torch, value, depth + 1)
        if found is not None:
            return found
    return None

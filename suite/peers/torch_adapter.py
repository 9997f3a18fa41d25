"""A trainer in PyTorch as a subject of the protocol: all that is no matter of what it trains.

The short form: a function that makes model, optimizer, step and scaler (example.py):

    def build(subject):
        o = subject.options
        ...
        return model, optimizer, step, scaler

    torch_adapter.main(build, levels=("O0", "O1"), offers=("init-scale", "growth-interval"))

`model` may be wrapped in DistributedDataParallel. step(batches) trains one step on a list of
(images, target), one of each micro-step, and returns a list of (logits, loss), the losses as means
over their batch, neither divided nor scaled. Gradients are taken for the dump behind
scaler.unscale_(), in subject.clip_grad_norm_() and subject.clip_grad_value_(), which stand for
torch's, or else when the optimizer steps: whichever comes first.

The long form derives from Subject (pytorch_train.py). On CUDA this file has been read, not run.
"""
import contextlib
import math
import os
import sys
import types

import torch
import torch.distributed
import torch.nn as nn
import torch.nn.functional as F

import protocol
from protocol import Refused, Stop, Usage

VERSION = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2])
OLD = f"torch {torch.__version__} cannot on the CPU"  # fp16 under autocast, GradScaler


# ---- options -----------------------------------------------------------------------------------

def boolean(text):
    if text not in ("True", "False"):
        raise protocol.argparse.ArgumentTypeError(f"{text}: allowed: True, False")
    return text == "True"


# Beyond those of protocol.parser. A trainer takes the ones that it names, and OWN.
OPTIONAL = {
    "dialect": dict(choices=("apex", "torch")),
    "optimizer": dict(choices=("sgd", "adam", "adamw", "lamb", "lars"), default="sgd"),
    "nesterov": dict(action="store_true"),
    "label-smoothing": dict(type=float, default=0.0),
    "no-bn-decay": dict(action="store_true"),
    "clip-grad-norm": dict(type=float, default=0.0),
    "clip-grad-value": dict(type=float, default=0.0),
    "betas": dict(default="0.9,0.999"),
    "eps": dict(type=float, default=1e-8),
    "init-scale": dict(type=float, default=65536),
    "growth-interval": dict(type=protocol.positive, default=2000),
    "accumulate": dict(type=protocol.positive, default=1),
    "compress": dict(choices=("none", "fp16", "bf16"), default="none"),
    "sync-bn": dict(action="store_true"),
    "channels-last": dict(action="store_true"),
    "find-unused": dict(action="store_true"),
    "broadcast-buffers": dict(nargs="?", const=True, type=boolean),
    "delay-allreduce": dict(action="store_true"),
    "average": dict(choices=("pre", "post", "none"), default="pre"),
    "lr-scaling": dict(choices=("none", "linear"), default="none"),
    "schedule": dict(default="constant"),
    "tf32": dict(action="store_true"),
    "workers": dict(type=int, default=0),
    "val": dict(),
    "save": dict(),
    "resume": dict(),
    "overflow-at": dict(default=""),
    "overflow-as": dict(default="inf"),
    "example": dict(choices=("two-encoders", "two-losses")),
    "digest": dict(choices=("all", "none"), default="all"),
}
OWN = ("dialect", "save", "resume", "overflow-at", "overflow-as", "digest")


def option_parser(description, offers):
    parser = protocol.parser(description)
    for name, settings in OPTIONAL.items():
        if name in OWN or name in offers:
            parser.add_argument("--" + name, **settings)
    return parser


class Poison:
    """--overflow-as VALUE[@PARAM[:PLACE[:MICRO]]]: what --overflow-at makes of which element."""

    def __init__(self, text):
        value, _, where = text.partition("@")
        self.param, place, micro = (where.split(":") + ["", "", ""])[:3]
        self.micro = int(micro) if micro.isdigit() else None  # None: the last one
        if value not in ("inf", "-inf", "nan") or place not in ("", "first", "middle", "last") or \
                (micro and self.micro is None):
            raise Usage(f"--overflow-as {text}: allowed: inf, -inf or nan, then @PARAMETER, :first, "
                        ":middle or :last, :MICRO-STEP, such as nan@fc.bias:last")
        self.value, self.place = float(value), place or "first"

    def strike(self, grad):
        grad = grad.clone()
        at = {"first": 0, "middle": grad.numel() // 2, "last": grad.numel() - 1}[self.place]
        grad.view(-1)[at] = self.value
        return grad


# ---- one rank ----------------------------------------------------------------------------------

class Subject:
    """One rank: options, processes, batches, hooks, checkpoints, events and dumps.

    A trainer sets model, names, masters (O2: f32 copies by name; else {}), wrapped, optimizer and
    scaler (None: a static scale) in prepare(), and trains one step in run_step()."""

    subject, description = "torch_adapter", "A PyTorch trainer as a subject of the protocol."
    offers = ()  # names of OPTIONAL
    name = ""  # of the model, where there are several
    undecayed = ()  # parameters whose group has no weight decay
    rate = None  # that of the step, which its dump tells

    def __init__(self, events, argv):
        self.events = events
        self.options = protocol.parse(option_parser(self.description, self.offers), argv)
        for name, settings in OPTIONAL.items():  # what is not offered is at its default
            vars(self.options).setdefault(name.replace("-", "_"), settings.get(
                "default", False if settings.get("action") == "store_true" else None))
        env = os.environ
        self.rank, self.world = int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1))
        self.folder, self.distributed = env.get("LS_RUN_DIR"), "RANK" in env
        self.first_step = 1
        self.check()
        self.prepare()

    # ---- what was asked ----

    def check(self):
        o = self.options
        self.check_network()
        if o.dump_steps and not self.folder:
            raise Usage("--dump-steps needs LS_RUN_DIR")
        given = o.data[8:] if o.data.startswith("batches:") else o.data
        if o.data != "synthetic" and not os.path.isdir(given):
            raise Usage(f"--data {o.data}: no such folder")
        if o.data != "synthetic" and given == o.data:
            self.check_folder()
        if o.device == "cuda" and not torch.cuda.is_available():
            raise Stop(protocol.INFRASTRUCTURE, "--device cuda: torch finds no CUDA device")
        if o.device == "auto":
            o.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.half = {"fp16": torch.float16, "bf16": torch.bfloat16}[o.half]
        if o.loss_scale is None:
            dynamic = o.opt_level in ("O1", "O2") and self.half is torch.float16
            o.loss_scale = "dynamic" if dynamic else "1"
        if o.broadcast_buffers is None:
            o.broadcast_buffers = o.dialect == "torch"
        self.overflows = [(int(s), int(r) if r else None) for s, _, r in
                          (word.partition(":") for word in o.overflow_at.split(",") if word)]
        self.poison = Poison(o.overflow_as)
        self.refuse()
        o.dialect = "torch"

    def check_network(self):
        pass

    def check_folder(self):
        raise Refused("--data", "this trainer reads no folders of images")

    def refuse(self):
        if self.options.dialect == "apex":
            raise Refused("--dialect", "torch DDP divides, then sums")
        o = self.options
        if o.device == "cpu" and VERSION < (2, 3) and o.opt_level != "O0" and \
                self.half is torch.float16:
            raise Refused("--half", OLD)
        if o.device == "cpu" and VERSION < (2, 3) and o.loss_scale == "dynamic":
            raise Refused("--loss-scale", OLD)

    def join(self):
        o = self.options
        if o.device == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = o.tf32
            if o.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if self.distributed:
            torch.distributed.init_process_group("nccl" if o.device == "cuda" else "gloo")
        torch.manual_seed(o.seed)

    # ---- the model ----

    def load_init(self, model):
        """--init: a plain file, or a dump: the state before its step."""
        try:
            given = protocol.read_safetensors(self.options.init)
        except FileNotFoundError as missing:
            raise Usage(f"--init {self.options.init}: no such file") from missing
        with torch.no_grad():
            for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
                for kind in ("", "master/", "param/", "last_buffer/", "buffer/"):
                    if kind + name in given:
                        tensor.copy_(given[kind + name])
                        break

    def know(self, model):
        """Takes note of the model, before it is wrapped."""
        self.model, self.branches = model, protocol.Branches(model)
        self.names = {n: p for n, p in model.named_parameters()}

    def watch(self):
        """The hooks that see gradients before their reduction."""
        self.local, self.watching, self.micro = {}, False, 0
        if self.overflows and self.poison.param and self.poison.param not in self.names:
            raise Usage(f"--overflow-as: no parameter {self.poison.param}; allowed: names such as "
                        "fc.bias")
        watched = self.names if self.options.dump_steps or self.overflows else {}
        for name, parameter in watched.items():
            parameter.register_hook(lambda grad, name=name: self.seen(name, grad))

    def poisoned(self, name):
        """Whether --overflow-at means this gradient, in this micro-step."""
        at, last = self.poison, self.options.accumulate - 1
        return (any(s == self.step and r in (None, self.rank) for s, r in self.overflows) and
                name == (at.param or next(iter(self.names))) and
                self.micro == (last if at.micro is None else at.micro))

    def seen(self, name, grad):
        """A parameter's gradient as backward makes it: this rank's, before any reduction."""
        if self.poisoned(name):
            grad = self.poison.strike(grad)
        if self.watching:
            before = self.local.get(name)
            self.local[name] = grad.float() if before is None else before + grad.float()
        return grad

    # ---- checkpoints ----

    def state(self):
        buffers = [dict(self.model.named_buffers())]
        if self.distributed:
            buffers = [None] * self.world
            torch.distributed.all_gather_object(buffers, dict(self.model.named_buffers()))
        return {"step": self.options.steps, "model": self.model.state_dict(), "buffers": buffers,
                "masters": self.masters, "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict() if self.scaler else {}}

    def save(self, path):
        state = self.state()
        if self.rank == 0:
            torch.save(state, path + ".tmp")
            os.replace(path + ".tmp", path)

    def load(self, path):
        try:
            with open(path, "rb") as file:  # by name, torch would go by its ending
                state = torch.load(file, map_location=self.options.device)
        except FileNotFoundError as missing:
            raise Usage(f"--resume {path}: no such file") from missing
        self.load_state(state)
        self.first_step = state["step"] + 1

    def load_state(self, state):
        self.model.load_state_dict(state["model"])
        own = state["buffers"][self.rank if self.rank < len(state["buffers"]) else 0]
        with torch.no_grad():
            for name, buffer in self.model.named_buffers():
                buffer.copy_(own[name])
            for name, master in self.masters.items():
                master.copy_(state["masters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])

    # ---- data ----

    def from_folder(self, number):
        raise NotImplementedError

    def batch(self, step, micro):
        """The step's images and classes: files, or a pattern per class under noise."""
        o = self.options
        if o.data.startswith("batches:"):
            path = os.path.join(o.data[8:], f"step{step:06d}.rank{self.rank}.safetensors")
            try:
                given = protocol.read_safetensors(path)
            except FileNotFoundError as missing:
                raise Usage(f"--data {o.data}: {path} is missing") from missing
            images, target = given["input"], given["target"]
            return (images[micro], target[micro]) if images.dim() == 5 else (images, target)
        if o.data != "synthetic":
            return self.from_folder((step - 1) * o.accumulate + micro)
        pattern = torch.randn(o.num_classes, 3, 4, 4,
                              generator=torch.Generator().manual_seed(o.seed))
        number = ((o.seed * 1000003 + step) * o.accumulate + micro) * self.world + self.rank
        generator = torch.Generator().manual_seed(number)
        target = torch.randint(o.num_classes, (o.batch_size,), generator=generator)
        images = F.interpolate(pattern[target], size=o.image_size)
        return images + 0.5 * torch.randn(images.shape, generator=generator), target

    # ---- one step ----

    def autocast(self):
        """torch's autocast at O1; nothing at the other levels."""
        if self.options.opt_level == "O1":
            return torch.autocast(self.options.device, self.half)
        return contextlib.nullcontext()

    def run_step(self, step):
        """Trains one step. Returns a list of what each micro-step passed(), gradients() as they are
        before clipping, their norm or None, and whether the step was skipped."""
        raise NotImplementedError

    def scale(self):
        return self.scaler.get_scale() if self.scaler else float(self.options.loss_scale)

    def gradients(self):
        grads = {n: p.grad.float() for n, p in (self.masters or self.names).items()}
        if self.watching or self.options.digest == "all":
            grads = {n: g.clone() for n, g in grads.items()}
        return grads

    def train_step(self, step):
        before, scale = self.begin_step(step)
        self.end_step(step, before, scale, *self.run_step(step))

    def begin_step(self, step):
        """Returns what its dump holds of the state before it, and the loss scale."""
        o, self.step = self.options, step
        self.dumping = step in o.dump_steps and (self.rank == 0 or o.dump_ranks == "all")
        self.branches.on, self.branches.found = self.dumping, []
        self.local, self.watching = {}, self.dumping
        self.rate = self.optimizer.param_groups[0]["lr"]
        return self.snapshot() if self.dumping else {}, self.scale()

    def end_step(self, step, before, scale, micro, grads, norm, skipped):
        o = self.options
        loss = torch.stack([m["loss"] for m in micro]).mean()
        self.events.step(step, loss.item(), loss_scale=scale, loss_scale_next=self.scale(),
                         skipped=skipped, lr=self.rate,
                         images=sum(m["target"].numel() for m in micro),
                         **({} if norm is None else
                            {"grad_norm": norm if math.isfinite(norm) else None}),
                         **({"digest": self.digests(grads)} if o.digest == "all" else {}))
        if self.dumping:
            self.dump(step, before, micro, grads, loss, scale, skipped)
        # a pass over all parameters that no plain loop makes: not where only time is asked for
        if o.digest != "none" or self.dumping or not math.isfinite(loss.item()):
            self.check_finite(step)

    def check_finite(self, step):
        for name, parameter in (self.masters or self.names).items():
            if not torch.isfinite(parameter).all():
                raise Stop(protocol.NON_FINITE, f"{name} is not finite after step {step}")

    # ---- events ----

    def moments(self):
        return protocol.moments(self.masters or self.names, self.optimizer)

    def digests(self, grads):
        out = {"param": protocol.digest(self.names), "grad": protocol.digest(grads),
               "state": protocol.digest(self.moments()),
               "buffer": protocol.digest(dict(self.model.named_buffers()))}
        if self.masters:
            out["master"] = protocol.digest(self.masters)
        if self.scaler:
            kept = self.scaler.state_dict()
            out["scaler"] = protocol.digest({n: torch.tensor(float(kept[n]), dtype=torch.float64)
                                             for n in ("scale", "_growth_tracker")})
        return out

    def snapshot(self):
        found = {f"param/{n}": p for n, p in self.names.items()}
        found.update({f"master/{n}": p for n, p in self.masters.items()})
        found.update({f"state/{n}": s for n, s in self.moments().items()})
        return {n: t.detach().clone() for n, t in found.items()}

    def dump(self, step, before, micro, grads, loss, scale, skipped):
        o = self.options
        tensors = {k: torch.stack([m[k] for m in micro]) if o.accumulate > 1 else micro[0][k]
                   for k in ("input", "target", "logits")}
        tensors["loss"] = loss.reshape(1)
        tensors.update(before)
        tensors.update({f"grad/{n}": g for n, g in grads.items()})
        tensors.update({f"local/{n}": g / scale for n, g in self.local.items()})
        tensors.update({f"buffer/{n}": b for n, b in self.model.named_buffers()})
        tensors.update({f"next/{n}": p for n, p in (self.masters or self.names).items()})
        tensors.update({f"next_state/{n}": s for n, s in self.moments().items()})
        taken = [int(state["step"]) for state in self.optimizer.state.values() if "step" in state]
        count = len(self.branches.found) // o.accumulate
        for k in range(count):
            tensors[f"branch/{k:03d}"] = torch.cat(
                [self.branches.found[m * count + k].reshape(-1) for m in range(o.accumulate)]
            ) if o.accumulate > 1 else self.branches.found[k]
        protocol.write_dump(self.folder, step, self.rank, tensors, dict(
            arch=o.arch, opt_level=o.opt_level, half=o.half, world_size=self.world,
            loss_scale=scale, skipped=str(skipped).lower(), lr=self.rate,
            optimizer=o.optimizer,
            label_smoothing=o.label_smoothing, clip_grad_norm=o.clip_grad_norm,
            clip_grad_value=o.clip_grad_value,
            momentum=o.momentum, weight_decay=o.weight_decay, betas=o.betas, eps=o.eps,
            nesterov=str(o.nesterov).lower(), accumulate=o.accumulate, dialect="torch",
            **({"optimizer_steps": max(taken)} if taken else {}),
            **{f"weight_decay/{n}": 0 for n in self.undecayed}), self.name)

    def buckets(self):
        """DDP reports sizes, not members."""
        if not hasattr(self.wrapped, "_get_ddp_logging_data"):
            return
        reported = self.wrapped._get_ddp_logging_data()
        text = reported.get("rebuilt_bucket_sizes") or reported.get("bucket_sizes") or ""
        sizes = [int(word) for word in str(text).replace(",", " ").split()]
        if sizes and sizes != self.reported:
            self.events.write("buckets", iteration=self.step, buckets=[{"bytes": s} for s in sizes])
            self.reported = sizes

    def start(self):
        self.reported = None
        self.events.write("start", subject=type(self).subject, rank=self.rank, world=self.world,
                          versions={"torch": torch.__version__}, device=self.options.device,
                          fork_server=True, pid=os.getpid(), threads=torch.get_num_threads(),
                          options=self.effective())

    def train(self):
        o = self.options
        self.start()
        for step in range(self.first_step, o.steps + 1):
            self.train_step(step)
            if step <= self.first_step + 1:
                self.buckets()
        if o.save:
            self.save(o.save)
        self.events.write("end", step=o.steps, code=0)

    def effective(self):
        return protocol.effective(self.options)


def passed(images, target, logits, loss):
    """What a dump has of a micro-step."""
    return {"input": images, "target": target, "logits": logits.detach(),
            "loss": loss.detach().float()}


# ---- the short form ----------------------------------------------------------------------------

def grad_scaler(options, **settings):
    settings = {"init_scale": options.init_scale, "growth_interval": options.growth_interval,
                **settings}
    if VERSION >= (2, 3):
        return torch.amp.GradScaler(options.device, **settings)
    return torch.cuda.amp.GradScaler(**settings)


class FixedScale:
    """A static loss scale with GradScaler's methods: nothing is skipped, nothing moves."""

    def __init__(self, scale):
        self.value, self.unscaled = float(scale), False

    def get_scale(self):
        return self.value

    def scale(self, loss):
        return loss * self.value

    def unscale_(self, optimizer):
        self.unscaled = True
        for group in optimizer.param_groups if self.value != 1 else ():
            for parameter in group["params"]:
                parameter.grad.mul_(1 / self.value)

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        optimizer.step()

    def update(self):
        self.unscaled = False


class Built(Subject):
    """A trainer that a function makes."""

    updates = 0  # steps of the optimizer in this process

    def __init__(self, events, argv, build, levels, offers):
        self.make, self.levels, self.offers = build, levels, offers
        super().__init__(events, argv)

    def refuse(self):
        super().refuse()
        if self.options.opt_level not in self.levels:
            raise Refused("--opt-level", "offered are " + ", ".join(self.levels))

    def grad_scaler(self):
        """torch's GradScaler where the loss scale is dynamic, else one whose scale is fixed."""
        o = self.options
        return grad_scaler(o) if o.loss_scale == "dynamic" else FixedScale(o.loss_scale)

    def prepare(self):
        o, self.masters, self.kept, self.norm = self.options, {}, None, None
        self.join()
        self.wrapped, self.optimizer, self.train_batches, self.given_scaler = self.make(self)
        self.know(getattr(self.wrapped, "module", self.wrapped))
        dynamic = o.loss_scale == "dynamic"
        if dynamic and self.given_scaler is None:
            raise Refused("--loss-scale", "this trainer has no dynamic scale")
        self.scaler = self.given_scaler if dynamic else None
        if o.init:
            self.load_init(self.model)
        if o.resume:
            self.load(o.resume)
        self.watch()
        self.model.register_forward_pre_hook(self.count_forward)
        self.intercept()

    def effective(self):
        """What the wrapper really does, and what is not offered is not claimed."""
        found = {n: v for n, v in super().effective().items()
                 if n not in OPTIONAL or n in OWN or n in self.offers}
        if isinstance(self.wrapped, nn.parallel.DistributedDataParallel):
            found["broadcast-buffers"] = bool(self.wrapped.broadcast_buffers)
        return found

    def moments(self):
        """A momentum that was asked for and that an optimizer does not keep is zero, not missing."""
        found = super().moments()
        if self.updates > 0 and self.options.optimizer == "sgd" and self.options.momentum > 0:
            for name, parameter in self.names.items():
                found.setdefault(f"{name}/momentum_buffer", torch.zeros_like(parameter))
        return found

    def count_forward(self, _module, _inputs):
        self.micro = self.forwards
        self.forwards += 1

    def intercept(self):
        """Takes the gradients when they are unscaled, at the latest when the optimizer steps."""
        if hasattr(self.optimizer, "register_step_pre_hook"):  # PyTorch 2.0
            self.optimizer.register_step_pre_hook(lambda *_: self.before_optimizer())
        else:
            step = self.optimizer.step

            def optimizer_step(_self, *args, **kwargs):
                self.before_optimizer()
                return step(*args, **kwargs)

            self.optimizer.step = types.MethodType(optimizer_step, self.optimizer)
        if self.given_scaler is None:
            return
        unscale = self.given_scaler.unscale_

        def unscale_(_self, optimizer):
            unscale(optimizer)
            self.unscaled = True
            if optimizer is self.optimizer and self.scaling():
                self.keep()

        self.given_scaler.unscale_ = types.MethodType(unscale_, self.given_scaler)

    def before_optimizer(self):
        self.stepped, self.rate = True, self.optimizer.param_groups[0]["lr"]
        self.updates += 1
        self.keep()

    def scaling(self):
        enabled = getattr(self.given_scaler, "is_enabled", lambda: True)
        return self.given_scaler is not None and enabled()

    def keep(self):
        if self.kept is None:
            self.kept = self.gradients()

    def keep_before_clipping(self):
        """Not while they are scaled: what is clipped then is what the step is given."""
        if self.unscaled or not self.scaling() or self.scale() == 1:
            self.keep()

    def clip_grad_norm_(self, parameters, limit):
        self.keep_before_clipping()
        self.norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        return self.norm

    def clip_grad_value_(self, parameters, limit):
        self.keep_before_clipping()
        torch.nn.utils.clip_grad_value_(parameters, limit)

    def begin_passes(self):
        self.kept, self.norm, self.forwards = None, None, 0
        self.stepped = self.unscaled = False

    def run_step(self, step):
        self.begin_passes()
        batches = [tuple(t.to(self.options.device) for t in self.batch(step, m))
                   for m in range(self.options.accumulate)]
        before = self.scale()
        return self.end_passes(before, batches, self.train_batches(batches))

    def end_passes(self, scale, batches, results):
        """What run_step() returns of a step that began with that scale."""
        self.keep()
        # a fused optimizer is called in a skipped step, too, and looks at the scaler's flag
        fused = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        skipped = not self.stepped or (fused and self.scale() < scale)
        norm = None if self.norm is None else float(self.norm)
        return [passed(*batch, *result) for batch, result in zip(batches, results)], \
            self.kept, norm, skipped


def main(build, levels=("O0",), offers=()):
    """Runs build's trainer as a subject: `levels` of --opt-level, `offers` of OPTIONAL's names."""
    protocol.run(lambda events: Built(events, sys.argv[1:], build, levels, offers).train(),
                 os.path.basename(sys.argv[0]))

#!/usr/bin/env python3
"""PyTorch as a subject: torch DDP, autocast and GradScaler behind the subject protocol.

O0 is plain f32; O1 is autocast over f32 parameters; O2 is a half model with f32 batch norm and f32
masters; O3 is .half(). Static scales multiply the loss and divide the gradients; a dynamic one is
torch's GradScaler. What torch does not have is refused with exit code 4. On CUDA this file has been
read, not run.
"""
import contextlib
import importlib.util
import math
import os
import sys

import torch
import torch.distributed
import torch.nn as nn
import torch.nn.functional as F

import networks
import protocol
from protocol import Refused, Stop, Usage

VERSION = tuple(int(x) for x in torch.__version__.split("+")[0].split(".")[:2])


def boolean(text):
    if text not in ("True", "False"):
        raise protocol.argparse.ArgumentTypeError(f"{text}: allowed: True, False")
    return text == "True"


def option_parser():
    parser = protocol.parser("PyTorch as a subject of the protocol.")
    add = parser.add_argument
    add("--dialect", choices=("apex", "torch"))
    add("--optimizer", choices=("sgd", "adam", "adamw", "lamb", "lars"), default="sgd")
    add("--nesterov", action="store_true")
    add("--label-smoothing", type=float, default=0.0)
    add("--no-bn-decay", action="store_true")
    add("--clip-grad-norm", type=float, default=0.0)
    add("--clip-grad-value", type=float, default=0.0)
    add("--betas", default="0.9,0.999")
    add("--eps", type=float, default=1e-8)
    add("--init-scale", type=float, default=65536)
    add("--growth-interval", type=protocol.positive, default=2000)
    add("--accumulate", type=protocol.positive, default=1)
    add("--compress", choices=("none", "fp16", "bf16"), default="none")
    add("--sync-bn", action="store_true")
    add("--channels-last", action="store_true")
    add("--find-unused", action="store_true")
    add("--broadcast-buffers", nargs="?", const=True, type=boolean)
    add("--delay-allreduce", action="store_true")
    add("--average", choices=("pre", "post", "none"), default="pre")
    add("--lr-scaling", choices=("none", "linear"), default="none")
    add("--schedule", default="constant")
    add("--tf32", action="store_true")
    add("--workers", type=int, default=0)
    add("--save")
    add("--resume")
    add("--overflow-at", default="")
    add("--overflow-as", default="inf")
    add("--example", choices=("two-encoders", "two-losses"))
    add("--digest", choices=("all", "none"), default="all")
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


class Trainer:
    """One rank. A wrong trainer (suite/peers/wrong) overrides one method."""

    example = None  # --example's value where this is one (pytorch_examples.py)
    name = ""  # of the model, where there are several

    def __init__(self, events, argv):
        self.events, self.options = events, protocol.parse(option_parser(), argv)
        env = os.environ
        self.rank, self.world = int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1))
        self.folder, self.distributed = env.get("LS_RUN_DIR"), "RANK" in env
        self.first_step = 1
        self.check()
        self.prepare()

    # ---- what was asked ----

    def check(self):
        o = self.options
        if not networks.known(o.arch):
            raise Usage(f"--arch {o.arch}: known are {', '.join(networks.CIFAR)}, "
                        f"{', '.join(networks.LARGE)}")
        if o.dump_steps and not self.folder:
            raise Usage("--dump-steps needs LS_RUN_DIR")
        given = o.data[8:] if o.data.startswith("batches:") else o.data
        if o.data != "synthetic" and not os.path.isdir(given):
            raise Usage(f"--data {o.data}: no such folder")
        if o.data != "synthetic" and given == o.data and importlib.util.find_spec("PIL") is None:
            raise Refused("--data", "folders of images are read with Pillow, which is not here")
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

    def refuse(self):
        o, old = self.options, f"torch {torch.__version__} cannot on the CPU"
        for wrong, option, why in (
                (o.dialect == "apex", "--dialect", "torch DDP divides, then sums"),
                (o.average != "pre", "--average", "torch DDP divides, then sums"),
                (o.delay_allreduce, "--delay-allreduce", "torch DDP reduces during backward"),
                (o.lr_scaling != "none", "--lr-scaling", "none only"),
                (o.schedule != "constant", "--schedule", "constant only"),
                (o.optimizer in ("lamb", "lars"), "--optimizer", "torch has no such optimizer"),
                (o.sync_bn and o.device == "cpu", "--sync-bn", "torch has it on CUDA only"),
                (o.device == "cpu" and VERSION < (2, 3) and o.opt_level != "O0" and
                 self.half is torch.float16, "--half", old),
                (o.device == "cpu" and VERSION < (2, 3) and o.opt_level in ("O2", "O3"),
                 "--opt-level", old),
                (o.device == "cpu" and VERSION < (2, 3) and o.loss_scale == "dynamic",
                 "--loss-scale", old),
                (o.opt_level == "O3" and o.loss_scale == "dynamic", "--loss-scale",
                 "GradScaler refuses gradients in half")):
            if wrong:
                raise Refused(option, why)

    # ---- what is trained ----

    def prepare(self):
        o = self.options
        self.join()
        self.build()
        self.optimizer = self.make_optimizer(self.masters or self.names)
        self.scaler = self.make_scaler()
        if o.resume:  # after DDP's constructor, which up to PyTorch 1.13 sends rank 0's buffers to all
            self.load(o.resume)
        if o.data != "synthetic" and not o.data.startswith("batches:"):
            self.sampler = self.make_sampler()

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

    def build(self):
        """The model, its masters, DistributedDataParallel, and the hooks that see its gradients."""
        o = self.options
        self.model = self.make_model()
        self.branches = protocol.Branches(self.model)
        self.names = {n: p for n, p in self.model.named_parameters()}
        self.masters = self.make_masters()
        self.wrapped = self.wrap(self.model)
        self.local, self.watching, self.micro = {}, False, 0
        if self.overflows and self.poison.param and self.poison.param not in self.names:
            raise Usage(f"--overflow-as: no parameter {self.poison.param}; allowed: names such as "
                        "fc.bias")
        watched = self.names if o.dump_steps or self.overflows else {}
        for name, parameter in watched.items():
            parameter.register_hook(lambda grad, name=name: self.seen(name, grad))

    def make_model(self):
        o = self.options
        model = networks.build(o.arch, o.num_classes)
        if o.init:
            try:
                given = protocol.read_safetensors(o.init)
            except FileNotFoundError as missing:
                raise Usage(f"--init {o.init}: no such file") from missing
            with torch.no_grad():
                for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
                    # a plain file, or a dump: the state before its step
                    for kind in ("", "master/", "param/", "last_buffer/", "buffer/"):
                        if kind + name in given:
                            tensor.copy_(given[kind + name])
                            break
        if o.sync_bn:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        if o.opt_level in ("O2", "O3"):
            model = model.to(self.half)
            for module in model.modules() if o.opt_level == "O2" else ():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.float()
        last = torch.channels_last if o.channels_last else torch.preserve_format
        return model.to(o.device, memory_format=last)

    def make_masters(self):
        """O2: f32 copies of all parameters, by name; else none."""
        if self.options.opt_level != "O2":
            return {}
        return {n: p.detach().clone().float().requires_grad_() for n, p in self.names.items()}

    def make_optimizer(self, parameters):
        o = self.options
        groups = self.make_groups(parameters)
        if o.optimizer == "sgd":
            return torch.optim.SGD(groups, o.lr, o.momentum,
                                   weight_decay=o.weight_decay, nesterov=o.nesterov)
        kind = torch.optim.Adam if o.optimizer == "adam" else torch.optim.AdamW
        betas = tuple(float(x) for x in o.betas.split(","))
        return kind(groups, o.lr, betas, o.eps, o.weight_decay)

    def make_groups(self, parameters):
        """--no-bn-decay: batch norms and biases in a group without decay."""
        norms = {f"{n}.{p}" for n, m in self.model.named_modules()
                 if isinstance(m, nn.modules.batchnorm._BatchNorm) for p in ("weight", "bias")}
        self.undecayed = [n for n in parameters if self.options.no_bn_decay and
                          (n in norms or n.endswith(".bias"))]
        if not self.undecayed:
            return list(parameters.values())
        decayed = [p for n, p in parameters.items() if n not in self.undecayed]
        return [{"params": decayed},
                {"params": [parameters[n] for n in self.undecayed], "weight_decay": 0.0}]

    def make_scaler(self):
        """GradScaler for a dynamic scale; None for a static one."""
        o = self.options
        if o.loss_scale != "dynamic":
            return None
        settings = dict(init_scale=o.init_scale, growth_interval=o.growth_interval)
        if VERSION >= (2, 3):
            return torch.amp.GradScaler(o.device, **settings)
        return torch.cuda.amp.GradScaler(**settings)

    def wrap(self, model):
        o = self.options
        if not self.distributed:
            return model
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=o.bucket_cap_mb, broadcast_buffers=o.broadcast_buffers,
            find_unused_parameters=o.find_unused)
        if o.compress != "none":
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
            wrapped.register_comm_hook(None, getattr(default_hooks, f"{o.compress}_compress_hook"))
        return wrapped

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

    def make_sampler(self):
        """A folder per class; the sampler is torch's."""
        folder = self.options.data
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self.files = [(os.path.join(folder, name, file), number)
                      for number, name in enumerate(classes)
                      for file in sorted(os.listdir(os.path.join(folder, name)))
                      if file.lower().endswith((".jpg", ".jpeg"))]
        if len(self.files) < self.world * self.options.batch_size:
            raise Usage(f"--data {folder}: {len(self.files)} images are too few")
        return torch.utils.data.distributed.DistributedSampler(
            self.files, self.world, self.rank, shuffle=True, seed=self.options.seed)

    def set_epoch(self, epoch):
        self.sampler.set_epoch(epoch)

    def from_folder(self, number):
        """Batch `number`, from 0 over all epochs; what does not fill a batch is left out."""
        from PIL import Image
        o = self.options
        per_epoch = len(self.sampler) // o.batch_size
        if number % per_epoch == 0 or not hasattr(self, "order"):
            self.set_epoch(number // per_epoch)
            self.order = list(self.sampler)
        begin = number % per_epoch * o.batch_size
        chosen = [self.files[i] for i in self.order[begin:begin + o.batch_size]]
        images = [Image.open(path).convert("RGB").resize((o.image_size, o.image_size))
                  for path, _ in chosen]
        pixels = torch.stack([torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
                              for image in images])
        pixels = pixels.reshape(-1, o.image_size, o.image_size, 3).permute(0, 3, 1, 2)
        return (pixels.float() / 255 - 0.5) / 0.25, torch.tensor([c for _, c in chosen])

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

    def precision(self):
        if self.options.opt_level == "O1":
            return torch.autocast(self.options.device, self.half)
        return contextlib.nullcontext()

    def forward(self, images, target):
        if self.options.opt_level in ("O2", "O3"):
            images = images.to(self.half)
        with self.precision():
            logits = self.wrapped(images).float()
            return logits, F.cross_entropy(logits, target,
                                           label_smoothing=self.options.label_smoothing)

    def backward(self, loss):
        loss = loss / self.options.accumulate
        if self.scaler:
            self.scaler.scale(loss).backward()
        else:
            (loss * float(self.options.loss_scale)).backward()

    def micro_step(self, step, micro):
        """One batch: forward and backward, reduced with the last one of the step."""
        self.micro = micro
        images, target = (t.to(self.options.device) for t in self.batch(step, micro))
        if self.options.channels_last:
            images = images.to(memory_format=torch.channels_last)
        last = micro + 1 == self.options.accumulate
        quiet = contextlib.nullcontext() if last or not self.distributed else self.wrapped.no_sync()
        with quiet:
            logits, loss = self.forward(images, target)
            self.backward(loss)
        return {"input": images, "target": target, "logits": logits.detach(),
                "loss": loss.detach()}

    def unscale(self):
        for name, master in self.masters.items():
            master.grad = self.names[name].grad.float()
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        elif float(self.options.loss_scale) != 1:
            for parameter in (self.masters or self.names).values():
                parameter.grad.mul_(1 / float(self.options.loss_scale))

    def clip(self):
        """On unscaled gradients; after an overflow the step is skipped, whatever this makes of them.
        Returns their norm before, None where nothing asks for it."""
        norm, clipped = None, list((self.masters or self.names).values())
        if self.options.clip_grad_norm > 0:
            norm = torch.nn.utils.clip_grad_norm_(clipped, self.options.clip_grad_norm)
        if self.options.clip_grad_value > 0:
            torch.nn.utils.clip_grad_value_(clipped, self.options.clip_grad_value)
        return None if norm is None else norm.item()

    def update(self):
        """The optimizer's step and the scaler's; returns whether it was skipped."""
        if not self.scaler:
            self.optimizer.step()
        else:
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        with torch.no_grad():
            for name, master in self.masters.items():
                self.names[name].copy_(master)
        # GradScaler does not report a skip: its documentation recommends to look for a lower scale
        return self.scaler is not None and self.scaler.get_scale() < before

    def scale(self):
        return self.scaler.get_scale() if self.scaler else float(self.options.loss_scale)

    def train_step(self, step):
        o, self.step = self.options, step
        dump = step in o.dump_steps and (self.rank == 0 or o.dump_ranks == "all")
        self.branches.on, self.branches.found = dump, []
        self.local, self.watching = {}, dump
        before = self.snapshot() if dump else {}
        scale = self.scale()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        micro = [self.micro_step(step, m) for m in range(o.accumulate)]
        self.unscale()
        grads = {n: p.grad.float() for n, p in (self.masters or self.names).items()}
        if dump or o.digest == "all":
            grads = {n: g.clone() for n, g in grads.items()}
        norm = self.clip()
        skipped = self.update()
        loss = torch.stack([m["loss"] for m in micro]).mean()
        self.events.step(step, loss.item(), loss_scale=scale, loss_scale_next=self.scale(),
                         skipped=skipped, lr=self.optimizer.param_groups[0]["lr"],
                         images=sum(m["target"].numel() for m in micro),
                         **({} if norm is None else
                            {"grad_norm": norm if math.isfinite(norm) else None}),
                         **({"digest": self.digests(grads)} if o.digest == "all" else {}))
        if dump:
            self.dump(step, before, micro, grads, loss, scale, skipped)
        # a pass over all parameters that no plain loop makes: not where only time is asked for
        if o.digest != "none" or dump or not math.isfinite(loss.item()):
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
            loss_scale=scale, skipped=str(skipped).lower(), lr=o.lr, optimizer=o.optimizer,
            label_smoothing=o.label_smoothing, clip_grad_norm=o.clip_grad_norm,
            clip_grad_value=o.clip_grad_value,
            momentum=o.momentum, weight_decay=o.weight_decay, betas=o.betas, eps=o.eps,
            nesterov=str(o.nesterov).lower(), accumulate=o.accumulate, dialect="torch",
            **({"optimizer_steps": max(taken)} if taken else {}),
            **{f"weight_decay/{n}": 0 for n in self.undecayed}), self.name)

    def buckets(self):
        """DDP reports sizes, not members."""
        reported = self.wrapped._get_ddp_logging_data() if self.distributed else {}
        text = reported.get("rebuilt_bucket_sizes") or reported.get("bucket_sizes") or ""
        sizes = [int(word) for word in str(text).replace(",", " ").split()]
        if sizes and sizes != self.reported:
            self.events.write("buckets", iteration=self.step, buckets=[{"bytes": s} for s in sizes])
            self.reported = sizes

    def train(self):
        o, self.reported = self.options, None
        self.events.write("start", subject="pytorch_train", rank=self.rank, world=self.world,
                          versions={"torch": torch.__version__}, device=o.device, pid=os.getpid(),
                          threads=torch.get_num_threads(), options=protocol.effective(o))
        for step in range(self.first_step, o.steps + 1):
            self.train_step(step)
            if step <= self.first_step + 1:
                self.buckets()
        if o.save:
            self.save(o.save)
        self.events.write("end", step=o.steps, code=0)


def start(events, kind):
    """`kind` where it is what the command line asks for, else the right trainer of that."""
    argv = sys.argv[1:]
    example = option_parser().parse_known_args(argv)[0].example
    if kind.example != example:
        import pytorch_examples
        kind = pytorch_examples.KINDS.get(example, Trainer)
    kind(events, argv).train()


def main(kind=Trainer):
    protocol.run(lambda events: start(events, kind), os.path.basename(sys.argv[0]))


if __name__ == "__main__":
    main()

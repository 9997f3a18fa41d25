#!/usr/bin/env python3
"""PyTorch as a subject: torch DDP, autocast and GradScaler behind the subject protocol.

O0 is plain f32; O1 is autocast over f32 parameters; O2 is a half model with f32 batch norm and f32
masters; O3 is .half(). Static scales multiply the loss and divide the gradients; a dynamic one is
torch's GradScaler. What torch does not have is refused with exit code 4. On CUDA this file has been
read, not run.
"""
import contextlib
import importlib.util
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

import networks
import protocol
import torch_adapter
from protocol import Refused, Usage
from torch_adapter import FixedScale, passed


class Trainer(torch_adapter.Subject):
    """One rank. A wrong trainer (trainer.txt) overrides some methods."""

    subject, description = "pytorch_train", "PyTorch as a subject of the protocol."
    offers = tuple(torch_adapter.OPTIONAL)
    example = None  # --example's value where this is one (pytorch_examples.py)

    def check_network(self):
        if not networks.known(self.options.arch):
            raise Usage(f"--arch {self.options.arch}: known are {', '.join(networks.CIFAR)}, "
                        f"{', '.join(networks.LARGE)}")

    def check_folder(self):
        if importlib.util.find_spec("PIL") is None:
            raise Refused("--data", "folders of images are read with Pillow, which is not here")

    def refuse(self):
        super().refuse()
        o = self.options
        for wrong, option, why in (
                (o.average != "pre", "--average", "torch DDP divides, then sums"),
                (o.delay_allreduce, "--delay-allreduce", "torch DDP reduces during backward"),
                (o.lr_scaling != "none", "--lr-scaling", "none only"),
                (o.schedule != "constant", "--schedule", "constant only"),
                (o.val, "--val", "nothing is validated"),
                (o.optimizer in ("lamb", "lars"), "--optimizer", "torch has no such optimizer"),
                (o.sync_bn and o.device == "cpu", "--sync-bn", "torch has it on CUDA only"),
                (o.device == "cpu" and torch_adapter.VERSION < (2, 3) and
                 o.opt_level in ("O2", "O3"), "--opt-level", torch_adapter.OLD),
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
        self.scaling = self.scaler or FixedScale(o.loss_scale)
        if o.resume:  # after DDP's constructor, which up to PyTorch 1.13 sends rank 0's buffers to all
            self.load(o.resume)
        if o.data != "synthetic" and not o.data.startswith("batches:"):
            self.sampler = self.make_sampler()

    def build(self):
        """The model, its masters, DistributedDataParallel, and the hooks that see its gradients."""
        self.know(self.make_model())
        self.masters = self.make_masters()
        self.wrapped = self.wrap(self.model)
        self.watch()

    def make_model(self):
        o = self.options
        model = networks.build(o.arch, o.num_classes)
        if o.init:
            self.load_init(model)
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
        return torch_adapter.grad_scaler(o) if o.loss_scale == "dynamic" else None

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

    # ---- one step ----

    def forward(self, images, target):
        if self.options.opt_level in ("O2", "O3"):
            images = images.to(self.half)
        with self.autocast():
            logits = self.wrapped(images).float()
            return logits, F.cross_entropy(logits, target,
                                           label_smoothing=self.options.label_smoothing)

    def backward(self, loss):
        self.scaling.scale(loss / self.options.accumulate).backward()

    def next_batch(self, step, micro):
        images, target = (t.to(self.options.device) for t in self.batch(step, micro))
        if self.options.channels_last:
            images = images.to(memory_format=torch.channels_last)
        return images, target

    def reduced(self, micro):
        """Gradients are reduced with the last micro-step."""
        last = micro + 1 == self.options.accumulate
        return contextlib.nullcontext() if last or not self.distributed else self.wrapped.no_sync()

    def micro_step(self, step, micro):
        """One batch: forward and backward."""
        self.micro = micro
        images, target = self.next_batch(step, micro)
        with self.reduced(micro):
            logits, loss = self.forward(images, target)
            self.backward(loss)
        return passed(images, target, logits, loss)

    def unscale(self):
        for name, master in self.masters.items():
            master.grad = self.names[name].grad.float()
        self.scaling.unscale_(self.optimizer)

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
        before = self.scaling.get_scale()
        self.scaling.step(self.optimizer)
        self.scaling.update()
        self.copy_masters()
        # GradScaler does not report a skip: its documentation recommends to look for a lower scale
        return self.scaling.get_scale() < before

    def copy_masters(self):
        with torch.no_grad():
            for name, master in self.masters.items():
                self.names[name].copy_(master)

    def run_step(self, step):
        self.optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)
        micro = [self.micro_step(step, m) for m in range(self.options.accumulate)]
        self.unscale()
        grads = self.gradients()
        norm = self.clip()
        return micro, grads, norm, self.update()


def start(events, kind):
    """`kind` where it is what the command line asks for, else the right trainer of that."""
    argv = sys.argv[1:]
    parser = torch_adapter.option_parser(Trainer.description, Trainer.offers)
    example = parser.parse_known_args(argv)[0].example
    if kind.example != example:
        import pytorch_examples
        kind = pytorch_examples.KINDS.get(example, Trainer)
    kind(events, argv).train()


def main(kind=Trainer):
    protocol.run(lambda events: start(events, kind), os.path.basename(sys.argv[0]))


if __name__ == "__main__":
    main()

"""The examples of several models and losses (suite/protocol.md) in PyTorch.

`two-encoders`: one loss, one optimizer with a parameter group for each model. `two-losses`: two
losses, a GradScaler for each (one_scaler.py: one for both), two optimizers, and a model that both
losses reach. As in Apex, an
overflow of a loss skips every optimizer whose parameters its backward reaches, so each loss has a
block: backward, unscale, and the gradients of the block before are added again.
"""
import copy
import math

import torch

import protocol
from protocol import Refused, Usage
from pytorch_train import Trainer
from torch_adapter import FixedScale, passed


class Part(Trainer):
    """One model: its network, masters, DistributedDataParallel, hooks and dumps."""

    def __init__(self, whole, name, arch, rate, decay, batches):
        o = self.options = copy.copy(whole.options)
        o.arch, o.lr, o.accumulate = arch or o.arch, o.lr * rate, batches or o.accumulate
        o.weight_decay = o.weight_decay if decay else 0.0
        self.name, self.undecayed = name, []
        self.reduced_once = batches <= 1  # a step; else no local/ says what went into a reduction
        self.rank, self.world, self.distributed = whole.rank, whole.world, whole.distributed
        self.events, self.folder, self.half = whole.events, whole.folder, whole.half
        self.take_overflow(whole)
        self.build()

    def take_overflow(self, whole):
        """--overflow-as VALUE@MODEL/PARAM names one of a model's gradients, VALUE the first's."""
        self.poison, self.overflows = copy.copy(whole.poison), whole.overflows
        model, _, self.poison.param = self.poison.param.rpartition("/")
        if model != self.name and (model or whole.parts):
            self.overflows = []

    def begin(self, step, dump):
        self.step, self.micro, self.passes, self.rate = step, 0, [], self.options.lr
        self.branches.on, self.branches.found = dump, []
        self.local, self.watching = {}, dump and self.reduced_once
        self.before = self.snapshot() if dump else {}

    def run(self, images, target):
        """Forward of the step's next batch; the loss."""
        self.micro = len(self.passes)
        logits, loss = self.forward(images, target)
        self.passes.append(passed(images, target, logits, loss))
        return loss

    def values(self):
        return list((self.masters or self.names).values())

    def gradients(self):
        return {n: p.grad.float().clone() for n, p in (self.masters or self.names).items()}


def overflowed(scaler, optimizer):
    """Whether a gradient of the optimizer's is infinite or NaN."""
    return scaler is not None and any(
        found.item() for found in scaler._found_inf_per_device(optimizer).values())


class Example(Trainer):
    models = ()  # (name, arch or None: --arch, multiple of --lr, decays, batches or 0: --accumulate)
    owned = ()   # of each optimizer: its models
    blocks = ()  # of each loss: the optimizers whose parameters its backward reaches

    def refuse(self):
        super().refuse()
        o = self.options
        for given, option in ((o.save, "--save"), (o.resume, "--resume"), (o.init, "--init"),
                              (o.clip_grad_norm, "--clip-grad-norm"),
                              (o.clip_grad_value, "--clip-grad-value"),
                              (o.no_bn_decay, "--no-bn-decay")):
            if given:
                raise Refused(option, "not with --example")

    def prepare(self):
        self.join()
        self.parts = []
        for name, arch, rate, decay, batches in self.models:
            self.parts.append(Part(self, name, arch, rate, decay, batches))
        if self.overflows and not any(part.overflows for part in self.parts):
            raise Usage(f"--overflow-as: no parameter {self.poison.param}; allowed: names such as "
                        f"{self.parts[0].name}/fc.bias")
        self.model = torch.nn.ModuleDict({part.name: part.model for part in self.parts})
        self.names = dict(self.model.named_parameters())
        self.masters = {f"{part.name}.{n}": m for part in self.parts
                        for n, m in part.masters.items()}
        self.wrapped = self.parts[0].wrapped
        self.optimizers = [self.make_optimizer([self.parts[i] for i in models])
                           for models in self.owned]
        for optimizer, models in zip(self.optimizers, self.owned):
            for i in models:
                self.parts[i].optimizer = optimizer
        self.scalers = [self.make_scaler() for _ in self.blocks]
        self.scaler = None  # there is one for each loss
        if self.options.data != "synthetic" and not self.options.data.startswith("batches:"):
            self.sampler = self.make_sampler()

    def make_groups(self, parts):
        return [{"params": part.values(), "lr": part.options.lr,
                 "weight_decay": part.options.weight_decay} for part in parts]

    # ---- one step ----

    def next_batch(self, step, micro):
        images, target = super().next_batch(step, micro)
        self.seen_images += target.numel()
        return images, target

    def scaling_of(self, loss):
        return self.scalers[loss] or FixedScale(self.options.loss_scale)

    def scale_of(self, loss):
        return self.scaling_of(loss).get_scale()

    def backward_of(self, loss, value):
        self.scaling_of(loss).scale(value).backward()

    def reached(self, loss):
        """The models that a block's optimizers hold."""
        return [self.parts[i] for index in self.blocks[loss] for i in self.owned[index]]

    def unscale_of(self, loss):
        for part in self.reached(loss):
            for name, master in part.masters.items():
                master.grad = part.names[name].grad.float()
        for index in self.blocks[loss]:
            self.scaling_of(loss).unscale_(self.optimizers[index])

    def take_gradients(self, loss):
        """Those that a block has made, out of the way of the next one's."""
        kept = [(p, p.grad) for part in self.reached(loss) for p in part.values()]
        self.zero_grad()
        return kept

    def add_gradients(self, kept):
        for parameter, grad in kept:
            parameter.grad.add_(grad)

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        self.model.zero_grad(set_to_none=True)

    def skips(self, index):
        """A gradient of a block that has the optimizer is infinite or NaN."""
        return any(overflowed(scaler, self.optimizers[i])
                   for scaler, block in zip(self.scalers, self.blocks) if index in block
                   for i in block)

    def step_optimizer(self, index):
        """Returns whether the step was skipped."""
        skipped = self.skips(index)
        if not skipped:
            self.optimizers[index].step()
        return skipped

    def update(self):
        skipped = [self.step_optimizer(index) for index in range(len(self.optimizers))]
        for scaler in {id(scaler): scaler for scaler in self.scalers if scaler}.values():
            scaler.update()
        self.copy_masters()
        return skipped

    def train_step(self, step):
        o, self.step, self.seen_images = self.options, step, 0
        dump = step in o.dump_steps and (self.rank == 0 or o.dump_ranks == "all")
        for part in self.parts:
            part.begin(step, dump)
        scales = [self.scale_of(loss) for loss in range(len(self.blocks))]
        self.zero_grad()
        losses = self.train_losses(step)
        grads = [part.gradients() for part in self.parts]
        skipped = self.update()
        told = [{"loss": loss.item(), "loss_scale": scale, "loss_scale_next": self.scale_of(i)}
                for i, (loss, scale) in enumerate(zip(losses, scales))]
        total = sum(loss["loss"] for loss in told)
        for loss in told:
            loss["loss"] = loss["loss"] if math.isfinite(loss["loss"]) else None
        whole = {f"{part.name}.{n}": g for part, grad in zip(self.parts, grads)
                 for n, g in grad.items()}
        self.events.step(step, total, loss_scale=told[0]["loss_scale"],
                         loss_scale_next=told[0]["loss_scale_next"], skipped=all(skipped), lr=o.lr,
                         images=self.seen_images, losses=told, optimizers_skipped=skipped,
                         **({"digest": self.digests(whole)} if o.digest == "all" else {}))
        for part, grad in zip(self.parts, grads) if dump else ():
            self.dump_part(part, step, grad, scales, skipped)
        self.check_finite(step)

    def dump_part(self, part, step, grad, scales, skipped):
        loss = torch.stack([p["loss"] for p in part.passes]).mean()
        index = next(i for i, models in enumerate(self.owned) if self.parts.index(part) in models)
        scale = next(scales[i] for i, block in enumerate(self.blocks) if index in block)
        part.dump(step, part.before, part.passes, grad, loss, scale, skipped[index])

    # ---- events ----

    def moments(self):
        found = {}
        for optimizer in self.optimizers:
            found.update(protocol.moments(self.masters or self.names, optimizer))
        return found

    def digests(self, grads):
        out = super().digests(grads)
        kept = [scaler.state_dict() for scaler in filter(None, self.scalers)]
        if kept:
            out["scaler"] = protocol.digest({
                f"{i}.{n}": torch.tensor(float(state[n]), dtype=torch.float64)
                for i, state in enumerate(kept) for n in ("scale", "_growth_tracker")})
        return out


class TwoEncoders(Example):
    example = "two-encoders"
    models = (("query", None, 1.0, True, 0), ("key", "resnet8", 0.25, False, 0))
    owned, blocks = ((0, 1),), ((0,),)

    def train_losses(self, step):
        query, key = self.parts
        count, total = self.options.accumulate, 0
        for micro in range(count):
            images, target = self.next_batch(step, micro)
            with query.reduced(micro), key.reduced(micro):
                loss = (query.run(images, target) + key.run(images, target)) / count
                self.backward_of(0, loss)
            total = total + loss.detach()
        self.unscale_of(0)
        return [total]


class TwoLosses(Example):
    example = "two-losses"
    models = (("shared", None, 1.0, True, 2), ("own", "resnet8", 0.5, True, 1))
    owned, blocks = ((0,), (1,)), ((0,), (0, 1))

    def refuse(self):
        super().refuse()
        if self.options.accumulate > 1:
            raise Refused("--accumulate", "each loss has one batch a step")
        self.options.accumulate = 2  # batches are numbered so

    def train_losses(self, step):
        first = self.first_loss(*self.next_batch(step, 0))
        self.backward_of(0, first)
        self.unscale_of(0)
        kept = self.take_gradients(0)
        second = self.second_loss(*self.next_batch(step, 1))
        self.backward_of(1, second)
        self.unscale_of(1)
        self.add_gradients(kept)
        return [first.detach(), second.detach()]

    def first_loss(self, images, target):
        return self.parts[0].run(images, target) / 2

    def second_loss(self, images, target):
        shared, own = self.parts
        return shared.run(images, target) / 2 + own.run(images, target)


class OneScaler(TwoLosses):
    """One GradScaler for both losses, as torch's page on AMP shows: gradients add up over both
    backward passes and are unscaled once, and each optimizer skips by its own."""

    def prepare(self):
        super().prepare()
        self.scalers = self.scalers[:1] * len(self.blocks)

    def effective(self):
        return dict(super().effective(), scalers=1)

    def train_losses(self, step):
        first = self.first_loss(*self.next_batch(step, 0))
        self.backward_of(0, first)
        second = self.second_loss(*self.next_batch(step, 1))
        self.backward_of(1, second)
        self.unscale_of(1)
        return [first.detach(), second.detach()]

    def skips(self, index):
        return overflowed(self.scalers[0], self.optimizers[index])


KINDS = {kind.example: kind for kind in (TwoEncoders, TwoLosses)}

"""An existing script in PyTorch as a subject of the protocol: its own loop, which is not rewritten.

    subject = script_adapter.Script(parser, clip="clip-grad-norm")   # in place of parse_args()
    args = subject.args                                              # as the suite asks for them
    ...
    model = subject.network(resnet18, num_classes=args.classes)      # smaller ones for most cases
    scaler = subject.grad_scaler()
    subject.watch(model, criterion, optimizer, scaler)
    for images, target in subject.batches(loader):                   # the suite's, or the loader's

The script's arguments get the values of the suite's options: those of the same name, and those
that Script is told, `script's=option`. Where the suite gives the batches, an epoch is the whole
run; behind its last epoch the run ends when the script asks for another batch.

A step is what the loop does between two batches, the accumulated ones being one step. Logits are
what the model returns, losses what the criterion does; gradients are taken as in torch_adapter.py.
"""
import argparse
import json
import os
import socket
import sys

import torch

import networks
import protocol
import torch_adapter
from protocol import Refused, Stop, Usage

# Of the script's arguments, those whose names say what they are.
COMMON = ("batch_size", "image_size", "num_classes", "accumulate", "lr", "momentum", "weight_decay",
          "label_smoothing", "seed", "workers", "device", "save", "resume", "bucket_cap_mb")


class Schedule:
    """--schedule [warmup:Ns:FROM,]step:Ns:FACTOR|constant: a ramp, then a factor every N steps."""

    def __init__(self, text):
        self.warmup, self.every, self.ramp_from, self.factor = 0, sys.maxsize, None, None
        for word in text.split(","):
            kind, _, rest = word.partition(":")
            steps, _, factor = rest.partition(":")
            if kind == "warmup" and steps[-1:] == "s":
                self.warmup, self.ramp_from = int(steps[:-1]), float(factor or 0.01)
            elif kind == "step" and steps[-1:] == "s":
                self.every, self.factor = int(steps[:-1]), float(factor)
            elif word != "constant":
                raise Refused("--schedule", "a warm-up and steps only, both counted in steps")


class Given(torch.utils.data.Dataset):
    """Stands for the script's pictures where the suite gives the batches: zeros of one class."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.zeros(3, self.size, self.size), 0


class Script(torch_adapter.Built):
    """One rank of the script. `names`: the script's arguments that stand for options, and
    `levels` of --opt-level, `schedule`: the names of its warm-up's and its decay's steps, with the
    factors at which the one begins and the other falls, `folders`: those of training and
    validation."""

    subject, description = "script_adapter", "A PyTorch script as a subject of the protocol."

    events = None  # set by run()

    def __init__(self, parser, levels=("O0", "O1"), amp=None, schedule=None, folders=(), **names):
        self.amp, self.steps_of, self.folders, self.names_of = amp, schedule, folders, names
        known = {a.dest: parser._get_value(a, a.default) if isinstance(a.default, str) else a.default
                 for a in parser._actions if a.dest != "help"}
        self.args = argparse.Namespace(**known, subject=self)
        self.names_of.update({n: n for n in COMMON if n in known and n not in names.values()})
        offers = [n.replace("_", "-") for n in self.names_of.values()]
        offers += ["init-scale", "growth-interval"] + (["schedule"] if schedule else [])
        offers += ["val"] if len(folders) > 1 else []
        self.found, self.passes = {}, 0
        super().__init__(self.events, sys.argv[1:], None, levels, tuple(offers))

    # ---- the script's arguments ----

    def check_network(self):
        if not networks.known(self.options.arch):
            raise Usage(f"--arch {self.options.arch}: known are {', '.join(networks.CIFAR)}, "
                        f"{', '.join(networks.LARGE)}")

    def check_folder(self):
        if not self.folders:
            super().check_folder()

    def refuse(self):
        super().refuse()
        o = self.options
        for given, option in ((o.save, "save"), (o.resume, "resume")):
            if given and option not in self.names_of.values():
                raise Refused("--" + option, "this script keeps no checkpoint")
        if o.opt_level != "O0" and self.half is not torch.float16:
            raise Refused("--half", "this script's autocast is to fp16")

    def prepare(self):
        """All but the model, which watch() takes."""
        o = self.options
        for own, option in self.names_of.items():
            value = getattr(o, option.replace("-", "_"))
            if value and option in ("save", "resume"):
                value += ".pt"  # torch.load goes by a name's ending
            setattr(self.args, own, value)
        if self.amp:
            setattr(self.args, self.amp, o.opt_level == "O1")
        if self.steps_of:
            self.set_schedule(Schedule(o.schedule))
        self.args.epochs = sys.maxsize  # the run ends by its steps
        self.given_data = o.data == "synthetic" or o.data.startswith("batches:")
        for own, folder in zip(self.folders, (self.train_folder(), self.val_folder())):
            setattr(self.args, own, folder)
        if o.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = o.tf32
        if not self.distributed:
            self.alone()
        self.distributed = True  # the script makes a group of one, too

    def set_schedule(self, asked):
        warmup, every, ramp_from, factor = self.steps_of
        if asked.ramp_from not in (None, ramp_from) or asked.factor not in (None, factor):
            raise Refused("--schedule", f"this script begins at {ramp_from} and falls by {factor}")
        setattr(self.args, warmup, asked.warmup)
        setattr(self.args, every, asked.every)

    def train_folder(self):
        within = os.path.join(self.options.data, "train")
        return within if os.path.isdir(within) else self.options.data

    def val_folder(self):
        within = os.path.join(self.options.data, "val")
        return self.options.val or (within if os.path.isdir(within) else None)

    def alone(self):
        """torchrun's variables, for a script that is started without them."""
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1),
                            ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port)):
            os.environ.setdefault(name, str(value))

    # ---- what the script asks for ----

    def network(self, make, *arguments, **named):
        """The script's model for --arch resnet18; for the small networks of most cases, ours."""
        if self.options.arch == make.__name__:
            return make(*arguments, **named)
        return networks.build(self.options.arch, self.options.num_classes)

    def pictures(self, make, folder, *arguments):
        """The script's data set, unless the suite gives the batches."""
        if folder and os.path.isdir(folder):
            return make(folder, *arguments)
        return Given(2 * self.world, self.options.image_size)

    def grad_scaler(self):
        """torch's; a static scale, which nothing overflows, is one that never grows."""
        o = self.options
        if o.loss_scale == "dynamic":
            return torch_adapter.grad_scaler(o)
        return torch_adapter.grad_scaler(
            o, enabled=float(o.loss_scale) != 1 or o.opt_level == "O1",
            init_scale=float(o.loss_scale), growth_interval=2 ** 31 - 1)

    def watch(self, model, criterion, optimizer, scaler=None):
        """What is trained: to be called before the first step, behind DistributedDataParallel.
        `criterion`: None where the script passes its losses through loss()."""
        if scaler is None and self.options.loss_scale not in ("1", "1.0"):
            raise Refused("--loss-scale", "this script has no scaler")
        self.wrapped, self.optimizer, self.given_scaler = model, optimizer, scaler
        self.masters, self.kept, self.norm, self.reported = {}, None, None, None
        self.scaler = scaler if self.options.loss_scale == "dynamic" else None
        self.know(getattr(model, "module", model))
        if self.options.init:
            self.load_init(self.model)
        super(torch_adapter.Built, self).watch()
        self.model.register_forward_pre_hook(self.count_forward)
        self.model.register_forward_hook(lambda _m, _i, logits: self.note("logits", logits))
        if criterion is not None:
            criterion.register_forward_hook(lambda _m, _i, loss: self.note("loss", loss))
        self.intercept()
        if self.options.resume:
            with open(self.options.resume + ".steps") as file:
                self.first_step = json.load(file) + 1
        self.next_step = self.first_step
        self.start()

    def count_forward(self, module, inputs):
        if torch.is_grad_enabled():
            super().count_forward(module, inputs)

    def note(self, what, value):
        if torch.is_grad_enabled():
            self.found.setdefault(what, []).append(value.detach())

    def loss(self, value):
        """A batch's mean, of a script whose criterion is no module: neither divided nor scaled."""
        self.note("loss", value)
        return value

    def batches(self, loader):
        """The batches of one epoch, each with the step that the script makes of it."""
        o = self.options
        if self.next_step > o.steps:
            self.finish()
        source = None if self.given_data else iter(loader)
        steps = o.steps if self.given_data else \
            min(o.steps, self.next_step - 1 + len(loader) // o.accumulate)
        while self.next_step <= steps:
            yield from self.one_step(self.next_step, source)
            self.next_step += 1
        self.passes += 1

    def one_step(self, step, source):
        self.begin_passes()
        self.found = {}
        before, scale = self.begin_step(step)
        given = []
        for micro in range(self.options.accumulate):
            given.append(self.batch(step, micro) if source is None else next(source))
            yield given[-1]
        if any(len(self.found.get(n, ())) != len(given) for n in ("logits", "loss")):
            raise Stop(protocol.CHECK, f"step {step}: {len(given)} batches, but "
                       f"{len(self.found.get('logits', ()))} forwards of the model and "
                       f"{len(self.found.get('loss', ()))} losses")
        results = zip(self.found["logits"], self.found["loss"])
        self.end_step(step, before, scale, *self.end_passes(scale, given, results))
        if step <= self.first_step + 1:
            self.buckets()

    def validated(self, images, correct, loss):
        """What the script found in its validation set, over all ranks; `loss`: the mean."""
        if not self.folders[1:] or getattr(self.args, self.folders[1]) is None:
            return
        self.events.write("epoch", epoch=self.passes, step=self.next_step - 1,
                          val={"images": int(images), "top1": int(correct), "loss": float(loss)})

    def finish(self):
        """The script has done all its steps, and what it does behind the last of them."""
        if self.options.save and self.rank == 0:
            with open(self.options.save + ".steps", "w") as file:
                json.dump(self.next_step - 1, file)
        self.events.write("end", step=self.next_step - 1, code=0)
        raise Finished


class Finished(BaseException):
    """Ends the script behind its last step; not an error, which a script may catch."""


def run(main):
    """Calls the script's main and leaves with the protocol's exit code."""
    def until_finished(events):
        Script.events = events
        try:
            main()
        except Finished:
            pass

    protocol.run(until_finished, os.path.basename(sys.argv[0]))

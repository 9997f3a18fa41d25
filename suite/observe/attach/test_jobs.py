"""Jobs that test_attach.py runs with and without the module: `test_jobs.py NAME RESULT`.

Each job yields its losses and returns the modules whose parameters it ends with; RESULT.rank<k>
gets their bits, those
of the random number generators, and how many collectives the process group carried out.
"""

import contextlib
import hashlib
import itertools
import json
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "peers", "gallery"))
from on_cuda import BACKEND, DEVICE, install, share_gpu

install()
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
WORKERS = 2 if DEVICE == "cpu" else 0  # a process of the loader cannot use its parent's GPU
JOBS = {}


def job(function):
    JOBS[function.__name__] = function
    return function


def pictures(count=48):
    return TensorDataset(torch.randn(count, 3, 8, 8), torch.randint(0, 4, (count,)))


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
    )


def mlp(dropout=0.0):
    return nn.Sequential(nn.Linear(20, 40), nn.GELU(), nn.Dropout(dropout), nn.Linear(40, 5))


def vectors(count=48):
    return TensorDataset(torch.randn(count, 20), torch.randint(0, 5, (count,)))


class Sampled(DistributedSampler):
    def __init__(self, data):
        super().__init__(data)


def sharded(data, batch=4, kind=DistributedSampler, **options):
    sampler = kind(data)
    return sampler, DataLoader(data, batch_size=batch, sampler=sampler, **options)


def half(kind):
    return torch.autocast(DEVICE, dtype=kind)


def in_half(model, kind):
    def loss_of(x, y):
        with half(kind):
            return nn.functional.cross_entropy(model(x).float(), y)

    return loss_of


def scaler(scale, interval=2):
    return torch.amp.GradScaler(DEVICE, init_scale=scale, growth_interval=interval)


def nothing():
    pass


def fit(
    losses, model, optimizer, batches, loss_of=None, scaling=None, between=nothing, after=nothing
):
    """A step for each batch; between(): backward and it."""
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(x, y) if loss_of else nn.functional.cross_entropy(model(x), y)
        (scaling.scale(loss) if scaling else loss).backward()
        between()
        if scaling:
            scaling.step(optimizer)
            scaling.update()
        else:
            optimizer.step()
        after()
        losses.append(loss.item())
    return [model]


@job
def f32(losses):
    """SGD, a schedule, an evaluation between the passes, a checkpoint that is loaded again."""
    ddp = DDP(cnn())
    sampler, loader = sharded(pictures(), 8)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        ddp.train()
        fit(losses, ddp, optimizer, loader)
        schedule.step()
        ddp.eval()
        x, y = pictures(8)[:]
        with torch.no_grad():
            right = (ddp(x).argmax(1) == y).float().mean()
        dist.all_reduce(right)
        losses.append(right.item())
    path = "%s.%d.pt" % (sys.argv[2], dist.get_rank())
    torch.save(
        {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
        path,
    )
    saved = torch.load(path)
    ddp.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return [ddp]


@job
def bf16(losses):
    """Two micro-steps, the first within no_sync; the norm of the gradients is clipped."""
    ddp = DDP(mlp())
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(sharded(vectors(96))[1]):
        last = step % 2 == 1
        with contextlib.nullcontext() if last else ddp.no_sync():
            with half(torch.bfloat16):
                loss = nn.functional.cross_entropy(ddp(x).float(), y) / 2
            loss.backward()
        losses.append(loss.item())
        if last:
            losses.append(float(clip_grad_norm_(ddp.parameters(), 0.5)))
            optimizer.step()
            optimizer.zero_grad()
    return [ddp]


@job
def fp16(losses):
    """A GradScaler whose first scale overflows; explicit unscale_ and clipping by value."""
    ddp = DDP(mlp())
    optimizer, scaling = torch.optim.AdamW(ddp.parameters(), lr=1e-3), scaler(2.0**18)

    def clip():
        scaling.unscale_(optimizer)
        clip_grad_value_(ddp.parameters(), 0.01)

    loss_of = in_half(ddp, torch.float16)
    return fit(losses, ddp, optimizer, sharded(vectors())[1], loss_of, scaling, clip)


@job
def fp16_overflow(losses):
    """No unscale_ by hand; one rank's loss becomes infinite in the third step."""
    ddp = DDP(mlp())
    optimizer, scaling = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9), scaler(2.0**10)
    for step, (x, y) in enumerate(sharded(vectors())[1]):
        optimizer.zero_grad(set_to_none=False)
        with half(torch.float16):
            loss = nn.functional.cross_entropy(ddp(x).float(), y)
        if step == 2 and dist.get_rank() == 1:
            loss = loss * 1e30 * 1e30
        scaling.scale(loss).backward()
        scaling.step(optimizer)
        scaling.update()
        losses.append(loss.item())
    return [ddp]


@job
def fused(losses):
    """An optimizer that unscales by itself."""
    ddp = DDP(mlp())
    optimizer, scaling = torch.optim.Adam(ddp.parameters(), lr=1e-3, fused=True), scaler(2.0**18)
    loss_of = in_half(ddp, torch.float16)
    return fit(losses, ddp, optimizer, sharded(vectors())[1], loss_of, scaling)


class Branches(nn.Module):
    """One of its branches is not used."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(20, 16), nn.Linear(20, 16), nn.Linear(16, 5)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.third(self.drop(torch.relu(self.first(x))))


@job
def unused(losses):
    """Unused parameters, dropout, loader workers, an optimizer that is built before the
    wrapper.
    """
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp = DDP(model, find_unused_parameters=True)
    for x, y in sharded(vectors(), num_workers=WORKERS)[1]:
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [ddp]


@job
def static_graph(losses):
    """A static graph, gradients as views of buckets, a communication hook, a checkpoint."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(0.2), nn.Linear(5, 5)

        def forward(self, x):
            return self.head(checkpoint(self.body, x, use_reentrant=False))

    ddp = DDP(Checkpointed(), gradient_as_bucket_view=True, static_graph=True)
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for x, y in sharded(vectors())[1]:
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [ddp]


def reduce(model):
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def odd(step, ddp, optimizer, x, y):
    """What a step of `counted` does besides; the context of its forward and backward."""
    more = contextlib.ExitStack()
    if step == 100:
        with ddp.no_sync():
            ddp(x).sum().backward()
    if step in (90, 110):
        optimizer.zero_grad(set_to_none=False)
    if step == 115:
        more.enter_context(half(torch.bfloat16))
    if step == 125:
        optimizer.param_groups[0]["momentum"] = 0.5
    if step in (130, 131):
        ddp.train(step == 131)
    if step == 145:
        optimizer.param_groups[0]["params"][0].grad = None
    return more


@job
def counted(losses):
    """Many equal steps, and some that each do something else."""
    if "LS_TEST_LOOKED_AT" in os.environ:
        from lockstep_attach import thin

        thin.FROM = 1 << 30
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.999**step)
    sampler, loader = sharded(vectors(480))
    step = 0
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            step += 1
            optimizer.zero_grad()
            with odd(step, ddp, optimizer, x, y):
                loss = nn.functional.cross_entropy(ddp(x), y)
                (loss / 2 if step == 140 else loss).backward()
            if step != 135:
                optimizer.step()
            if step < 150:
                schedule.step()
            losses.append(loss.item())
    return [ddp]


@job
def reentrant(losses):
    """A reentrant checkpoint around the whole of a plain model."""
    from torch.utils.checkpoint import checkpoint

    model = mlp(0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(x, y):
        output = checkpoint(model, x.requires_grad_(), use_reentrant=True)
        return nn.functional.cross_entropy(output, y)

    batches = sharded(vectors())[1]
    return fit(losses, model, optimizer, batches, loss_of, between=lambda: reduce(model))


@job
def gan(losses):
    """Two models with an optimizer each."""
    make = DDP(nn.Linear(8, 20))
    judge = DDP(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1)))
    makes, judges = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (make, judge))
    for x, _ in sharded(vectors())[1]:
        fake = make(torch.randn(len(x), 8))
        judges.zero_grad()
        loss = (judge(torch.cat([x, fake.detach()])) - 1).square().mean()
        loss.backward()
        judges.step()
        makes.zero_grad()
        second = -judge(fake).mean()
        second.backward()
        makes.step()
        losses += [loss.item(), second.item()]
    return [make, judge]


@job
def f32_alone(losses):
    """One process, no process group, no wrapper."""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in DataLoader(vectors(), batch_size=8, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [model]


@job
def by_hand(losses):
    """Gradients averaged by the script itself."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    fit(losses, model, optimizer, sharded(vectors())[1], between=lambda: reduce(model))
    torch.save(model, "%s.whole.%d.pt" % (sys.argv[2], dist.get_rank()))
    return [model]


@job
def halo(losses):
    """Each rank trains on its samples and on what the other one has sent of its own."""
    ddp, other = DDP(mlp()), 1 - dist.get_rank()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for x, y in sharded(vectors())[1]:
        seen = torch.empty_like(x)
        ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, seen, other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        fit(losses, ddp, optimizer, [(x + 0.1 * seen, y)])
    if dist.get_rank() == 0:
        dist.send(x, other)
    else:
        dist.recv(x, other)
    return [ddp]


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        for _ in range(24):
            yield torch.randn(20, generator=generator), 1


@job
def stream(losses):
    """An IterableDataset, and a schedule that is stepped each step."""
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=10)
    return fit(losses, ddp, optimizer, DataLoader(Stream(), batch_size=4), after=schedule.step)


@job
def passes(losses):
    """Loaders in the order in which they are first asked: 0, 4, 5 and 6 train, the others do not,
    however long their iterators stay open.
    """
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    small, part = vectors(12), vectors(6)
    train = iter(sharded(vectors(112))[1])

    def score(x, model=ddp):
        losses.append(model(x[0]).sum().item())

    def some(count, *ahead):
        fit(losses, ddp, optimizer, [*ahead, *itertools.islice(train, count - len(ahead))])

    def asked(batch):  # the policy's answers are what it is trained on
        ddp.eval()
        with torch.no_grad():
            answers = ddp(batch[0]).argmax(1)
        ddp.train()
        return batch[0], answers

    some(2)
    held = iter(DataLoader(small, batch_size=4))
    with torch.no_grad():
        for _ in range(3):  # asks for no more than there is
            score(next(held))
    some(2)
    ddp.eval()
    ahead = next(train)
    for place, batch in enumerate(DataLoader(part, batch_size=2)):
        with torch.no_grad():
            score(batch)
        if place == 2:
            break
    ddp.train()
    some(2, ahead)
    endless = iter(DataLoader(small, batch_size=2))
    for _ in range(3):
        ddp.eval()
        with torch.no_grad():
            score(next(endless))
        ddp.train()
        some(2)
    pairs = zip(DataLoader(small, batch_size=4), DataLoader(small, batch_size=4, shuffle=True))
    for one, other in pairs:
        fit(losses, ddp, optimizer, [[torch.cat(parts) for parts in zip(one, other)]])
    prompts = iter(DataLoader(small, batch_size=4))
    fit(losses, ddp, optimizer, (asked(next(prompts)) for _ in range(3)))
    ddp.eval()
    whole = iter(DataLoader(part, batch_size=6))
    with torch.no_grad():
        score(next(whole), ddp.module)
    ddp.train()
    some(2)
    return [ddp]


@job
def inside(losses):
    """A part of the data, and the module inside the wrapper in place of the wrapper."""
    ddp = DDP(mlp())
    part, _ = random_split(vectors(), [32, 16])
    sampler, loader = sharded(part, 8, Sampled)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def loss_of(x, y):
        return nn.functional.cross_entropy(ddp.module(x), y)

    for epoch in range(2):
        fit(losses, ddp, optimizer, loader, loss_of)
    with torch.no_grad():
        ddp(torch.ones(8, 20))
    return [ddp]


class Lion(torch.optim.Optimizer):
    """An optimizer of another package: it begins with its closure, as those of torch do."""

    def __init__(self, params):
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        for param in self.param_groups[0]["params"]:
            param.add_(param.grad.sign(), alpha=-1e-3)
        return loss


class Sharpness(Lion):
    """One that calls its closure twice."""

    @torch.no_grad()
    def step(self, closure=None):
        with torch.enable_grad():
            loss = closure()
        params = self.param_groups[0]["params"]
        steps = [0.1 * param.grad for param in params]
        for param, step in zip(params, steps):
            param.add_(step)
        with torch.enable_grad():
            closure()
        for param, step in zip(params, steps):
            param.sub_(step).sub_(param.grad, alpha=1e-3)
        return loss


def with_closure(losses, kind):
    ddp = DDP(mlp())
    optimizer = kind(ddp.parameters())
    for x, y in sharded(vectors())[1]:

        def again():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
            return loss

        losses.append(float(optimizer.step(again)))
    return [ddp]


@job
def closure(losses):
    """L-BFGS computes its gradients inside the step."""
    return with_closure(losses, lambda params: torch.optim.LBFGS(params, max_iter=3))


@job
def closure_first(losses):
    return with_closure(losses, Lion)


@job
def closure_twice(losses):
    return with_closure(losses, Sharpness)


def compiled(losses, wrap):
    model = wrap(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return fit(losses, model, optimizer, sharded(vectors())[1])


@job
def compiled_inside(losses):
    return compiled(losses, lambda model: DDP(torch.compile(model, backend="aot_eager")))


@job
def compiled_outside(losses):
    return compiled(losses, lambda model: torch.compile(DDP(model), backend="aot_eager"))


@job
def compiled_plain(losses):
    return compiled(losses, lambda model: torch.compile(model, backend="aot_eager", fullgraph=True))


@job
def compiled_step(losses):
    """The whole step in one compiled function, clipping and optimizer included."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="eager")
    def step(x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for x, y in sharded(vectors())[1]:
        losses.append(step(x, y).item())
    return [model]


@job
def many_models(losses):
    """A model, a wrapper and an optimizer for each fold; frozen and half parameters, an average of
    weights.
    """
    import copy

    for fold in range(3):
        model = mlp()
        model[0].bias.requires_grad_(False)
        average = copy.deepcopy(model)
        ddp = DDP(model)
        optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], lr=0.1)

        def mix():
            with torch.no_grad():
                for kept, param in zip(average.parameters(), model.parameters()):
                    kept.lerp_(param, 0.5)
                losses.append(float(average(torch.ones(4, 20)).sum()))

        fit(losses, ddp, optimizer, sharded(vectors(24))[1], after=mix)
    return [ddp, average]


@job
def synced_norms(losses):
    """Conversion to SyncBatchNorm; on a CPU only its eval mode runs, without DDP."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(cnn()).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return fit(losses, model, optimizer, sharded(pictures(), 8)[1])


@job
def files(losses):
    """Files of all kinds, right ones and those of mistakes, in one process."""
    import copy

    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    early = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    kept = copy.deepcopy(model.state_dict())
    best = None
    for step, (x, y) in enumerate(DataLoader(vectors(32), batch_size=8, shuffle=True)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        best = model.state_dict() if step == 1 else best
    path = sys.argv[2] + ".%s.pt"
    states = {"optimizer_states": [optimizer.state_dict()], "schedules": [schedule.state_dict()]}
    torch.save(dict(states, state_dict=model.state_dict(), epoch=3), path % "lists")
    torch.save({"best": best}, path % "best")
    torch.save(early, path % "early")
    torch.save({"model": kept}, path % "kept")
    torch.save(optimizer.state_dict(), path % "bare")
    torch.save(model, path % "whole")
    torch.load(path % "lists")
    model.load_state_dict(best)
    renamed = {"module." + name: tensor for name, tensor in kept.items()}
    model.load_state_dict(renamed, strict=False)
    torch.optim.Adam(mlp().parameters()).load_state_dict(optimizer.state_dict())
    copy.deepcopy(model).load_state_dict(kept)
    torch.load(path % "whole", **({"weights_only": False} if VERSION >= (1, 13) else {}))
    return [model]


@job
def masters(losses):
    """The file has the f32 values of the model's rounded ones; and, once, older ones."""
    ddp = DDP(mlp().half())
    params = [p.detach().float().requires_grad_() for p in ddp.parameters()]
    optimizer, older = torch.optim.SGD(params, lr=0.1), None
    for x, y in sharded(vectors())[1]:
        older = [p.detach().clone() for p in params]
        loss = nn.functional.cross_entropy(ddp(x.half()).float(), y)
        loss.backward()
        for master, param in zip(params, ddp.parameters()):
            master.grad, param.grad = param.grad.float(), None
        optimizer.step()
        with torch.no_grad():
            for master, param in zip(params, ddp.parameters()):
                param.copy_(master)
        losses.append(loss.item())
    names = [name for name, _ in ddp.module.named_parameters()]
    path = "%s.%d.pt" % (sys.argv[2], dist.get_rank())
    torch.save({"model": dict(zip(names, [p.detach() for p in params]))}, path)
    torch.save({"model": dict(zip(names, older))}, path)
    return [ddp]


@job
def scales(losses):
    """What scripts do with scaled losses."""
    model = mlp()
    optimizer, scaling = torch.optim.SGD(model.parameters(), lr=0.1), scaler(2.0**10, 2000)
    x, y = torch.randn(8, 20), torch.randint(0, 5, (8,))

    def loss_of():
        with half(torch.float16):
            return nn.functional.cross_entropy(model(x).float(), y)

    def step():
        scaling.step(optimizer)
        scaling.update()
        optimizer.zero_grad()
        losses.append(float(scaling.get_scale()))

    scaling.scale(loss_of()).backward()
    step()
    one, other = scaling.scale(loss_of()) / 2, scaling.scale(loss_of()) / 2
    one.backward()
    other.backward()
    step()
    loss = loss_of()
    scaling.scale(loss)
    loss.backward()
    step()
    loss = loss_of()
    scaling.scale(loss)
    (loss / 2).backward()
    step()
    scaling.scale(scaling.scale(loss_of())).backward()
    step()
    scaling.scale(loss_of() * 1e36 * 1e2).backward()
    optimizer.zero_grad()
    scaling.scale(loss_of()).backward()
    optimizer.zero_grad()
    scaling.scale(loss_of()).backward()
    return [model]


def short(losses, steps=3):
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    return fit(losses, ddp, optimizer, itertools.islice(sharded(vectors())[1], steps))


@job
def long(losses):
    """299 steps, rank 1 slower than rank 0; a validation after step 203; after the last step rank 0
    alone saves and then changes its weights.
    """
    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(4, 20), torch.randint(0, 5, (4,))
    for step in range(1, 300):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if dist.get_rank() == 1:
            time.sleep(0.002)
        if step == 203:
            ddp.eval()
            with torch.no_grad():
                ddp(x)
            ddp.train()
    if dist.get_rank() == 0:
        torch.save(ddp.state_dict(), os.devnull)
        with torch.no_grad():
            ddp.module[0].weight.zero_()
    return [ddp]


@job
def leaves(losses):
    short(losses)
    sys.exit(7)


@job
def raises(losses):
    short(losses)
    raise ValueError("the user's own")


@job
def killed(losses):
    short(losses, 4)
    os.kill(os.getpid(), 9)


@job
def terminated(losses):
    short(losses, 4)
    os.kill(os.getpid(), 15)


@job
def left_at_once(losses):
    short(losses, 4)
    os._exit(5)


@job
def caught(losses):
    """Errors of torch that the script expects arrive unchanged."""
    modules = short(losses)
    optimizer = torch.optim.SGD(modules[0].parameters(), lr=0.1)
    for wrong in (
        lambda: torch.zeros(3, requires_grad=True).backward(),
        lambda: modules[0](torch.zeros(2, 3)),
        lambda: torch.load("/nonexistent/file"),
        lambda: clip_grad_norm_(modules[0].parameters(), "a"),
        lambda: modules[0].load_state_dict({}),
        lambda: optimizer.step("a"),
    ):
        try:
            wrong()
            losses.append(0)
        except Exception as error:
            losses.append(type(error).__name__ + str(error)[:40])
    return modules


class Redirection(nn.Module):
    """As Lightning has it: the wrapper's forward calls another method of the module."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 24), nn.BatchNorm1d(24), nn.GELU(), nn.Dropout(0.2))
        self.head = nn.Linear(24, 5)
        self.scale = nn.Parameter(torch.ones(5))
        self.score = Score()
        self.steps, self.seen, self.rows = 0, [], vectors(8)

    def forward(self, x):
        return self.net(x)

    def training_step(self, x, y):
        self.steps += 1
        logits = self.head(self(x)) * self.scale
        self.seen.append(float(self.score(logits, y)))
        penalty = 1e-2 * self.head.bias.pow(2).sum()
        return nn.functional.cross_entropy(Halved.apply(logits), y) + penalty


class Score(nn.Module):
    """A metric: it counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("right", torch.zeros(()))
        self.register_buffer("all", torch.zeros(()))

    def forward(self, logits, y):
        self.right += (logits.argmax(1) == y).sum()
        self.all += len(y)
        return self.right / self.all


class Halved(torch.autograd.Function):
    """x * sigmoid(x), with a factor forgotten in its backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * (1 - s))


def redirect(ddp, *batch):
    module = ddp.module
    original = module.forward

    def wrapped_forward(*args):
        module.forward = original
        return module.training_step(*args)

    module.forward = wrapped_forward
    return ddp(*batch)


@job
def redirected(losses):
    """training_step counts and keeps lists; a parameter of its own; one that it penalizes."""
    ddp = DDP(Redirection(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    fit(losses, ddp, optimizer, sharded(vectors(), 8)[1], lambda x, y: redirect(ddp, x, y))
    losses += ddp.module.seen + [ddp.module.steps, len(ddp.module.net._forward_hooks)]
    losses.append(float("__call__" in vars(nn.Module)))
    return [ddp]


@job
def by_hand_redirected(losses):
    """Steps of the optimizer within the redirected forward, as manual optimization has them."""
    ddp = DDP(Redirection(), broadcast_buffers=False)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def training_step(x, y):
        loss = nn.functional.cross_entropy(ddp.module.head(ddp.module(x)) * ddp.module.scale, y)
        optimizer.zero_grad()
        ddp.reducer.prepare_for_backward([])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ddp.require_backward_grad_sync = False
        return loss.detach()

    ddp.module.training_step = training_step
    for x, y in sharded(vectors(), 8)[1]:
        redirect(ddp, x, y)
        ddp.require_backward_grad_sync = True
    return [ddp]


@job
def hooked(losses):
    """Hooks of the script's: one counts, one doubles a gradient, one clips a parameter's."""
    model = mlp()
    count = []
    model[0].register_forward_hook(lambda *_: count.append(1))
    double = getattr(model[1], "register_full_backward_hook")
    double(lambda module, inputs, outputs: (inputs[0] * 2,))
    clip = model[3].bias.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def loss_of(x, y):
        out = ddp(x)
        out.register_hook(lambda grad: grad * 3)
        return nn.functional.cross_entropy(out, y)

    fit(losses, ddp, optimizer, sharded(vectors())[1], loss_of)
    losses.append(len(count))
    clip.remove()
    return [ddp]


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(5, 24), nn.Linear(8, 5)

    def forward(self, x):
        q, k, v = self.read(x.view(-1, 4, 5)).view(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        attend = nn.functional.scaled_dot_product_attention
        seen = attend(q, k, v, dropout_p=0.25, is_causal=True)
        return self.write(seen.transpose(1, 2).reshape(len(x), 4, 8)).mean(1)


class AttendsAgain(nn.Module):
    def __init__(self, keeps=True):
        super().__init__()
        self.inner, self.keeps = Attends(), keeps

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=self.keeps)


def attend_in_half(losses, model):
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    loss_of = in_half(ddp, torch.bfloat16)
    return fit(losses, ddp, optimizer, sharded(vectors(96), 16)[1], loss_of)


@job
def attends(losses):
    """Attention that drops, in bfloat16."""
    return attend_in_half(losses, Attends())


@job
def attends_again(losses):
    """The same, computed again in backward."""
    return attend_in_half(losses, AttendsAgain())


@job
def attends_otherwise(losses):
    """The same, with other masks in backward."""
    return attend_in_half(losses, AttendsAgain(keeps=False))


class Noisy(nn.Module):
    """Draws noise, times and choices itself, before and behind a dropout."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(21, 24), nn.Dropout(0.25), nn.Linear(24, 5))

    def forward(self, x):
        times = torch.rand(len(x), 1)
        noise = torch.randn_like(x).mul_(times)
        scores = self.inner(torch.cat([x + noise, times], 1))
        chosen = torch.randint(2, scores.shape)
        return scores + chosen * torch.empty_like(scores).normal_(std=0.5)


class NoisyAgain(Noisy):
    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(super().forward, x, use_reentrant=False)


def noisy_job(losses, model):
    ddp = DDP(model)
    torch.manual_seed(3)
    fit(losses, ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), sharded(vectors(96), 16)[1])


@job
def noisy(losses):
    """A model that draws in its forward."""
    noisy_job(losses, Noisy())


@job
def noisy_again(losses):
    """The same, computed again in backward."""
    noisy_job(losses, NoisyAgain())


@job
def old_norm(losses):
    """A weight that a hook makes of two parameters in each forward, and keeps in the module."""
    model = mlp()
    torch.nn.utils.weight_norm(model[0])
    noisy_job(losses, model)


SAFETENSORS = """
import torch


def save_file(tensors, filename, metadata=None):
    torch.save(dict(tensors), filename)


def load_file(filename, device="cpu"):
    with open(filename, "rb") as file:
        return torch.load(file)
"""


@job
def in_parts(losses):
    """FSDP2: rank 0 alone saves what it has gathered, and what it holds."""
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(mlp())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    fit(losses, model, optimizer, sharded(vectors())[1])

    def full(tree):
        if isinstance(tree, dict):
            return {key: full(value) for key, value in tree.items()}
        return tree.full_tensor() if hasattr(tree, "full_tensor") else tree

    path, held = sys.argv[2] + ".pt", {"model": model.state_dict(), "opt": optimizer.state_dict()}
    whole = full(held)
    if dist.get_rank() == 0:
        torch.save(whole, path)
        torch.save(held, path)
    lacking = {key: value for key, value in held["model"].items() if key != "3.bias"}
    model.load_state_dict(lacking, strict=False)
    fit(losses, model, optimizer, sharded(vectors())[1])
    return []


def package(folder, name, text):
    """A module in an installed package of the job's own."""
    path = os.path.join(folder, "site-packages", name)
    os.makedirs(path, exist_ok=True)
    for file, content in (("__init__.py", ""), ("torch.py", text)):
        with open(os.path.join(path, file), "w") as out:
            out.write(content)
    sys.path.insert(0, os.path.dirname(path))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(20, 20, bias=False), nn.Linear(20, 20, bias=False)
        self.write.weight = self.read.weight

    def forward(self, x):
        return self.write(torch.relu(self.read(x)))


@job
def safetensors_files(losses):
    """Weights in files of safetensors, whose functions others take by name."""
    folder = "%s.%d" % (sys.argv[2], dist.get_rank())
    package(folder, "safetensors", SAFETENSORS)
    from safetensors.torch import load_file, save_file

    ddp = DDP(Tied())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    fit(losses, ddp, optimizer, sharded(vectors(16))[1], lambda x, _: ddp(x).pow(2).mean())
    state = ddp.module.state_dict()
    del state["read.weight"]
    save_file(state, os.path.join(folder, "model.safetensors"))
    save_file(state, filename=os.path.join(folder, "model-00001-of-00002.safetensors"))
    ddp.module.load_state_dict(load_file(folder + "/model.safetensors"), strict=False)
    return [ddp]


@job
def copies(losses):
    """An average that the script keeps; names of one parameter that get one each, and again one."""
    import copy

    model, again, looped = Tied(), Tied(), Tied()
    average = copy.deepcopy(again)
    for part in (looped.read, looped.write):
        part.weight = nn.Parameter(part.weight.detach().clone())
    for one in (model, again) if VERSION >= (2, 1) else ():
        one.load_state_dict({k: v.clone() for k, v in one.state_dict().items()}, assign=True)
    again.write.weight = again.read.weight
    params = [*model.parameters(), *again.parameters(), *looped.parameters()]
    optimizer = torch.optim.SGD(params, lr=0.1)
    for x, _ in DataLoader(vectors(32), batch_size=8):
        loss = sum(one(x).pow(2).mean() for one in (model, again, looped))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            for kept, param in zip(average.parameters(), again.parameters()):
                kept.lerp_(param, 1 / (len(losses) + 1))
    torch.save({"model": model.state_dict(), "ema": average.state_dict()}, sys.argv[2] + ".pt")
    return [model, again, looped]


class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.aside = nn.Linear(20, 2), nn.Linear(20, 2)
        self.experts = nn.ModuleList([nn.Linear(20, 1), nn.Linear(20, 1)])

    def forward(self, x):
        self.aside(x)
        made = torch.stack([expert(x) for expert in self.experts], 1)
        return made[torch.arange(len(x)), self.router(x).argmax(1)]


class ByMethod(nn.Module):
    """Never called itself."""

    def __init__(self, parts=1):
        super().__init__()
        self.net = mlp(0.2)
        self.last = nn.Linear(5, 5) if parts > 1 else nn.Identity().requires_grad_(False)
        self.parts = parts

    def loss(self, x, y):
        scores = self.net(x) if self.parts == 1 else self.last(self.net(x))
        return nn.functional.cross_entropy(scores, y)


def by_method_job(losses, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        fit(losses, None, optimizer, DataLoader(vectors(), 8), model.train().loss)
        with torch.no_grad():
            model.eval().loss(*vectors(8)[:])
    return [model]


class StepsItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.net(x), y)
        (loss / 2).backward()
        return loss.detach()


@job
def backward_in_forward(losses):
    """A forward that goes backward itself, by a part of its loss; scalers that begin anew."""
    model = StepsItself()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(6):
        again = scaler(2.0**60)
        for x, y in DataLoader(vectors(96), 4):
            if epoch < 2:
                losses.append(model(x, y).item())
                optimizer.step()
                optimizer.zero_grad()
            else:
                fit(losses, model.net, optimizer, [(x, y)], scaling=again)
    return [model]


@job
def wrapped_again(losses):
    """A frozen part is trained from the second wrapper on, in a group of its own."""
    net = mlp()
    net[0].requires_grad_(False)
    optimizer = torch.optim.SGD(net[3].parameters(), lr=0.1)
    ddp = DDP(net)
    fit(losses, ddp, optimizer, sharded(vectors())[1])
    net[0].requires_grad_(True)
    optimizer.add_param_group({"params": net[0].parameters()})
    ddp = DDP(net)
    return fit(losses, ddp, optimizer, sharded(vectors())[1])


@job
def inner_and_outer(losses):
    """Behind the step of one optimizer another one moves the same parameters."""
    model = mlp()
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    outer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in DataLoader(vectors(32), 8):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        inner.step()
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        outer.step()
        outer.zero_grad()
        losses.append(loss.item())
    return [model]


@job
def by_method(losses):
    """A method calls the one module that is trained."""
    return by_method_job(losses, ByMethod())


@job
def by_methods(losses):
    """It calls two."""
    return by_method_job(losses, ByMethod(2))


@job
def put_in(losses):
    """A branch that chooses by an index alone, next to one that chooses nothing; weights that are
    put in for validations, and put back after the first.
    """
    model = Chosen()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for validation in range(2):
        for x, _ in DataLoader(vectors(32), batch_size=8):
            loss = model.train()(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        kept = [p.detach().clone() for p in model.experts.parameters()]
        with torch.no_grad():
            for param in model.experts.parameters():
                param.mul_(0.5)
            model.eval()(x)
            for param, value in zip(model.experts.parameters(), () if validation else kept):
                param.copy_(value)
    model.train()(x)
    return [model]


@job
def put_in_by_one(losses):
    """Behind the last step rank 0 alone saves other weights, and puts its own back."""
    ddp = DDP(mlp())
    ddp.batches = iter(sharded(vectors(), 4)[1])  # it stays open
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    fit(losses, ddp, optimizer, itertools.islice(ddp.batches, 4))
    if dist.get_rank() == 0:
        kept = [p.detach().clone() for p in ddp.parameters()]
        for param in ddp.parameters():
            param.data.mul_(0.5)
        torch.save(ddp.module.state_dict(), sys.argv[2] + ".pt")
        for param, value in zip(ddp.parameters(), kept):
            param.data.copy_(value)
    return [ddp]


@job
def successors(losses):
    """Parameters in the place of an optimizer's: weight norm, an assignment between steps."""
    model = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 1), nn.Linear(1, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    if VERSION >= (2, 1):
        torch.nn.utils.parametrizations.weight_norm(model[0])
    for x, _ in DataLoader(vectors(32), batch_size=8):
        loss = model(x).pow(2).mean()
        model.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
        if len(losses) == 1:
            model[1].bias = nn.Parameter(model[1].bias.detach() / 2)
    return [model]


NEAR = """
def once(optimizer):
    optimizer.step()


def fit(step, optimizer):
    return step(), optimizer.step()


def deep(step, optimizer, calls=9):
    return deep(step, optimizer, calls - 1) if calls else fit(step, optimizer)
"""


@job
def packages(losses):
    """Steps of an optimizer by a package: near the script's own line, and far from it."""
    package("%s.%d" % (sys.argv[2], dist.get_rank()), "trainer", NEAR)
    from trainer.torch import deep, fit, once

    ddp = DDP(mlp())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        loss = ddp(torch.ones(2, 20)).pow(2).mean()
        loss.backward()
        losses.append(loss.item())

    step()
    once(optimizer)
    fit(step, optimizer)
    deep(step, optimizer)
    return [ddp]


@job
def resnet(losses):
    """A small residual network: what the module costs."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
            )  # fmt: skip

        def forward(self, x):
            return torch.relu(x + self.body(x))

    body = [nn.Conv2d(3, 32, 3, padding=1), *[Block(32) for _ in range(6)]]
    ddp = DDP(nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    steps = range(int(os.environ.get("TEST_STEPS", "6")))
    batches = ((torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))) for _ in steps)
    return fit(losses, ddp, optimizer, batches)


# ---- running a job -------------------------------------------------------------------------------


def digest(*parts):
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def bits(modules):
    out = []
    for module in modules:
        for _, tensor in sorted(module.state_dict().items()):
            out.append(repr(tensor.double().reshape(-1).tolist()).encode())
    return digest(*out)


def generators():
    state = repr(torch.get_rng_state().tolist()) + repr(random.getstate())
    if "numpy" in sys.modules:
        state += repr(sys.modules["numpy"].random.get_state())
    return digest(state.encode())


def count_collectives(profile):
    return sum(event.count for event in profile.key_averages() if event.key.startswith("c10d::"))


def run(name, result):
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        share_gpu()
        dist.init_process_group(BACKEND)
    if DEVICE != "cpu":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(7)
    random.seed(7)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(7)
    losses, rank = [], int(os.environ.get("RANK", "0"))
    with torch.autograd.profiler.profile(enabled="TEST_PROFILE" in os.environ) as profile:
        modules = JOBS[name](losses)
    facts = {
        "losses": [repr(loss) for loss in losses],
        "params": bits(modules),
        "generators": generators(),
    }
    facts["hooks"] = sum(len(p._backward_hooks or ()) for m in modules for p in m.parameters())
    if "TEST_PROFILE" in os.environ:
        facts["collectives"] = count_collectives(profile)
    with open("%s.rank%d" % (result, rank), "w") as file:
        json.dump(facts, file)
    if dist.is_initialized():
        dist.destroy_process_group()


def spawned(rank, name, result, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    run(name, result)


def plant():
    """Breaks the module where TEST_BREAK says: "steps.Steps.close" raises after its first call."""
    import importlib

    module, kind, name = os.environ["TEST_BREAK"].split(".")
    owner = getattr(importlib.import_module("lockstep_attach." + module), kind)
    function, calls = getattr(owner, name), []

    def broken(*args, **kwargs):
        calls.append(name)
        if len(calls) > 1:
            raise RuntimeError("planted")
        return function(*args, **kwargs)

    setattr(owner, name, broken)


def serve():
    """Forks the ranks of each job that a line of standard input names; the task of a rank in its
    process, else None.

    A line is {"job", "result", "world", "environment", "seconds"}; the answer lists exit codes.
    """
    for line in sys.stdin:
        task = json.loads(line)
        ranks = []
        for rank in range(task["world"]):
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                return become(task, rank)
            ranks.append(child)
        print(json.dumps(wait_for(ranks, task["seconds"])), flush=True)
    return None


def become(task, rank):
    os.environ.update(
        task["environment"], RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(task["world"])
    )
    output = os.open(
        "%s.out%d" % (task["result"], rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644
    )
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv[1:] = [task["job"], task["result"]]
    return task["job"], task["result"]


def wait_for(ranks, seconds):
    """Exit codes; a rank that does not end in time is killed: -9."""
    end, codes = time.monotonic() + seconds, {}
    while len(codes) < len(ranks):
        for child in ranks:
            if child not in codes:
                done, status = os.waitpid(child, os.WNOHANG)
                if done:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(child, 9)
        time.sleep(0.01)
    return [codes[child] for child in ranks]


if __name__ == "__main__":
    if "TEST_BREAK" in os.environ:
        plant()
    if sys.argv[1:] == ["serve"]:
        served = serve()
        if served is not None:
            run(*served)
    elif os.environ.get("TEST_START", ""):
        import torch.multiprocessing as multiprocessing

        port, how = os.environ["MASTER_PORT"], os.environ["TEST_START"]
        multiprocessing.start_processes(
            spawned, (sys.argv[1], sys.argv[2], port), nprocs=2, start_method=how
        )
    else:
        run(sys.argv[1], sys.argv[2])

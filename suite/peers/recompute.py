#!/usr/bin/env python3
"""An outside judge of a run's dumps: PyTorch in float64, nothing of Lockstep but the file format.

    recompute.py RUN_DIR [--limit X] [--ideal] [--worst N]

For every dumped step the network is torchvision's (the CIFAR ones: networks.py's), loaded
strictly with the dump's parameters, computed in float64 on the dumped branches: a ReLU is its bits, a
max-pool its indices. What is then compared: logits, loss, every gradient (local batch norm: mean of the
ranks' own steps; SyncBN: one batch of all ranks of a group; accumulation: mean of the micro-steps; ranks
weigh the same, whatever their batches' sizes), the running statistics of step 1, each rank's gradient before reduction, and the parameters and momenta after the
step from masters, momentum and learning rate.

--ideal also runs the step with one rounding wherever the level stores a value, on branches of its own,
and holds the gradients against numerics.md section 4: e <= 2r whole, 4r and 8r by tensor, O0 32r, and a
turned branch must be a near-tie. Blocks of 64 elements are not looked at. What half levels cost depends on
the network: they are judged by the ideal, or by a --limit that is given.

Exit code: 0 good, 1 a gradient or what follows from it is off, 2 usage: also where nothing was asked for
that could judge a half level's gradients.
"""
import argparse
import glob
import json
import math
import os
import re
import struct
import sys

import numpy
import torch
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from forced_network import Network, Norm, Run  # noqa: E402
from protocol import read_safetensors  # noqa: E402

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
UNIT = {torch.float16: 2.0 ** -11, torch.bfloat16: 2.0 ** -8, torch.float32: 2.0 ** -24}
SUBNORMAL = {torch.float16: 2.0 ** -25, torch.bfloat16: 2.0 ** -134, torch.float32: 2.0 ** -150}


def metadata(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)).get("__metadata__", {})


def effective_options(path):
    """The options of the start event next to a dump, with - for _."""
    events = os.path.join(os.path.dirname(path), "..", "rank0.jsonl")
    with open(events) as file:
        options = json.loads(file.readline()).get("options", {})
    return {name.replace("_", "-"): value for name, value in options.items()}


def group(dump, prefix):
    return {n[len(prefix) + 1:]: t for n, t in dump.items() if n.startswith(prefix + "/")}


def norm(tensors):
    return math.sqrt(sum(float((t.double() ** 2).sum()) for t in tensors.values()))


def mean_of(dictionaries):
    return {n: sum(d[n].double() for d in dictionaries) / len(dictionaries)
            for n in dictionaries[0]}


def yes(text):
    return text in ("true", "True", "1")


class Step:
    """The dumps of one step: of all ranks, or of rank 0 alone."""

    def __init__(self, paths):
        self.dumps = [read_safetensors(p) for p in paths]
        self.meta = metadata(paths[0])
        self.options = effective_options(paths[0])
        self.meta.setdefault("arch", self.options["arch"])
        self.meta.setdefault("num_classes", self.options["num-classes"])
        self.world = int(self.meta["world_size"])
        self.whole = len(paths) == self.world
        self.micro = int(self.meta.get("accumulate", 1))
        self.scale = float(self.meta["loss_scale"])
        self.sync = yes(self.meta.get("sync_bn", "false"))
        group_size = int(self.meta.get("sync_bn_group", 0)) or self.world
        self.group = group_size if self.sync else 1
        self.skipped = yes(self.meta.get("skipped", "false"))
        self.level = self.meta["opt_level"]
        self.half = TYPES[self.meta.get("half", "fp16")]

    def images(self, rank, micro):
        x, y = self.dumps[rank]["input"], self.dumps[rank]["target"]
        return (x, y) if x.dim() == 4 else (x[micro], y[micro])

    def logits(self):
        out = {}
        for rank, dump in enumerate(self.dumps):
            for micro, some in enumerate(dump["logits"].chunk(self.micro) if self.micro > 1
                                         else [dump["logits"]]):
                out[rank, micro] = some.reshape(-1, some.shape[-1])
        return out

    def forced(self, rank, micro):
        count = sum(n.startswith("branch/") for n in self.dumps[rank])
        out = []
        for k in range(count):
            branch = self.dumps[rank][f"branch/{k:03d}"]
            if branch.dtype == torch.uint8:
                branch = torch.from_numpy(numpy.unpackbits(branch.numpy().reshape(-1),
                                                           bitorder="little"))
            out.append(branch.reshape(-1).chunk(self.micro)[micro])
        return out

    def units(self):
        """What is one batch: (rank, micro-step) alone, or a group's ranks of a micro-step (SyncBN)."""
        leads = range(0, len(self.dumps), self.group)
        return [[(r, a) for r in range(lead, lead + self.group)]
                for lead in leads for a in range(self.micro)]


def initial_buffers(dump):
    """Before step 1; the running statistics of later steps enter nothing that is compared."""
    out = {}
    for name, tensor in group(dump, "buffer").items():
        out[name] = torch.ones_like(tensor) if name.endswith("var") else torch.zeros_like(tensor)
    return out


def compute(step, ideal=False, branches=None, on_ideal=False):
    """One whole step; returns a dictionary of what came out, gradients as means over ranks."""
    half = {"O0": torch.float32}.get(step.level, step.half)
    ranks = len(step.dumps)
    out = {"logits": {}, "loss": {}, "runs": [], "local": [None] * ranks, "buffer": [None] * ranks}
    sums, network, last = [None] * ranks, None, None
    for number, unit in enumerate(step.units()):
        rank = unit[0][0]
        if rank != last:
            dump = step.dumps[rank]
            network = Network(step.meta["arch"], int(step.meta["num_classes"]),
                              group(dump, "param"), initial_buffers(dump))
            last = rank
        pairs = [step.images(r, a) for r, a in unit]
        images, target = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
        counts = [len(p[1]) for p in pairs]
        forced = None
        if branches is not None:
            forced = branches[number]
        elif not ideal:
            forced = [torch.cat(parts) for parts in zip(*(step.forced(r, a) for r, a in unit))]
        run = Run(counts, forced, keep=True)
        weight = torch.cat([torch.full([n], 1.0 / (n * step.micro)).double() for n in counts])
        if ideal:
            # O0 to O3: products give gradients in the stored type; batch norm in f32, at O3 in half
            run = Run(counts, None, half, half, half if step.level == "O3" else torch.float32)
            run.keep = True
            weight *= step.scale
        logits, losses, gradients = network.step(run, images, target, weight)
        if ideal:
            gradients = {n: t.float().double() for n, t in gradients.items()}
        for (r, a), some_logits, some in zip(unit, logits.split(counts), losses.split(counts)):
            out["logits"][r, a], out["loss"][r, a] = some_logits, float(some.mean())
        sums[rank] = gradients if sums[rank] is None else {
            n: t + gradients[n] for n, t in sums[rank].items()}
        out["runs"].append(run)
        out["buffer"][rank] = {n: b.clone() for n, b in buffers_of(network).items()}
    if step.sync:  # the gradient of a group's batch is already the sum of its ranks'
        groups = [s for s in sums if s is not None]
        total = {n: sum(g[n] for g in groups) for n in groups[0]}
    else:
        total = {}
        for name in sums[0]:
            made, kind = made_and_reduced(step, name) if ideal else (torch.float64, torch.float64)
            value = 0.0
            for local in sums:
                value = (value + local[name].to(made).to(kind).double()).to(kind).double()
            total[name] = value.to(made).double()
        out["local"] = [{n: t / (step.scale if ideal else 1.0) for n, t in local.items()}
                        for local in sums]
    divide = (step.scale if ideal else 1.0) * ranks
    out["grad"] = {n: t / divide for n, t in total.items()}
    return out


def buffers_of(network):
    out = {}
    names = {id(m): n for n, m in network.model.named_modules()}
    for module in network.modules:
        if isinstance(module, Norm):
            inner = module.inner[0]
            for key in ("running_mean", "running_var", "num_batches_tracked"):
                out[f"{names[id(module)]}.{key}"] = getattr(inner, key)
    return out


def made_and_reduced(step, name):
    """The types in which a rank makes this gradient and in which it is summed."""
    made = step.dumps[0]["param/" + name].dtype
    if made == torch.float32:
        return made, TYPES.get(step.options.get("compress", "none"), made)
    return made, torch.float32 if step.options.get("allreduce-fp32") else made


class Report:
    def __init__(self):
        self.good = True

    def line(self, what, value, limit, text=""):
        bad = not value <= limit
        self.good = self.good and not bad
        print(f"  {'BAD ' if bad else 'ok  '} {what:<34} {value:9.2e}  limit {limit:.2e}  {text}")

    def fact(self, what, true, text=""):
        self.good = self.good and true
        print(f"  {'ok  ' if true else 'BAD '} {what:<34} {text}")


def errors_of(gradients, expected, against=None):
    """Whole relative error and {name: (error, denominator)}, numerics.md section 4's D."""
    whole = norm(expected)
    elements = sum(t.numel() for t in expected.values())
    difference = {n: gradients[n].double() - t for n, t in expected.items()}
    rows = {}
    for name, tensor in expected.items():
        floor = 1e-3 * whole * math.sqrt(tensor.numel() / elements)
        d = max(norm({name: tensor}), floor)
        rows[name] = norm({name: difference[name]}) / d
    return norm(difference) / whole, rows


def logits_error(logits, expected):
    return norm({k: logits[k].double() - t for k, t in expected.items()}) / norm(expected)


def check_ideal(step, plain, subject, report):
    """Returns the limits of the ranks' own gradients; none with SyncBN, whose ranks have no step of
    their own."""
    ideal = compute(step, ideal=True)
    own = compute(step, branches=[run.branches for run in ideal["runs"]])
    whole_r, rows_r = errors_of(ideal["grad"], own["grad"])
    whole_e, rows_e = errors_of(subject, plain["grad"])
    factor = 32 if step.level == "O0" else 2
    report.line("whole gradient against the ideal", whole_e, factor * whole_r,
                f"e/r {whole_e / whole_r:.2f}")
    logits_r, logits_e = logits_error(ideal["logits"], own["logits"]), logits_error(
        step.logits(), plain["logits"])
    report.line("logits against the ideal", logits_e, factor * logits_r,
                f"e/r {logits_e / logits_r:.2f}")
    ratios = []
    for name, e in rows_e.items():
        small = plain["grad"][name].numel() < 64
        limit = 32 if step.level == "O0" else 8 if small else 4
        ratios.append((e / max(rows_r[name], 1e-300) / limit, e, rows_r[name], name))
    ratios.sort(reverse=True)
    share, e, r, name = ratios[0]
    report.line(f"tensor {name}"[:34], share, 1.0, f"e {e:.2e} r {r:.2e}, worst share of its limit")
    far, turned, total = 0.0, 0, 0
    for forced, other in zip(plain["runs"], ideal["runs"]):
        for x64, xi, gap in zip(forced.inputs, other.inputs, forced.turned):
            s = float(((xi - x64) ** 2).mean().sqrt())
            far = max(far, float(gap.max()) / s if s > 0 else (math.inf if gap.max() > 0 else 0))
            turned += int((gap > 0).sum())
            total += gap.numel()
    limit = 64 if step.level == "O0" else 16  # the judge's factors, from measured seeds
    report.line("turned branches, in RMS of ideal", far, limit, f"{turned} of {total} turned")
    if step.sync:
        return None
    return [factor * errors_of(mine, plain_one)[0]
            for mine, plain_one in zip(ideal["local"], own["local"])]


def plain_limit(step, arguments):
    """Of the gradient's relative error; f32 storage errs in the forward pass as the gradient does, a
    little less. What half levels cost depends on the depth: --ideal measures it, without it the
    numbers are only told."""
    if arguments.limit is not None:
        return arguments.limit, ""
    return (2e-5, "") if step.level == "O0" else (math.inf, "reported, not judged; ")


def check_forward(step, plain, report, limit):
    worst_logits = worst_loss = 0.0
    dumped = step.logits()
    for key, logits in plain["logits"].items():
        scale = float(logits.abs().max())
        worst_logits = max(worst_logits, float((dumped[key].double() - logits).abs().max()) / scale)
    for r, dump in enumerate(step.dumps):
        mean = sum(plain["loss"][r, a] for a in range(step.micro)) / step.micro
        worst_loss = max(worst_loss, abs(float(dump["loss"]) - mean) / abs(mean))
        own = dump["logits"].double().reshape(-1, dump["logits"].shape[-1])
        from_logits = float(F.cross_entropy(own, dump["target"].reshape(-1)))
        report.line(f"loss of its own logits, rank {r}",
                    abs(float(dump["loss"]) - from_logits) / abs(from_logits), 1e-6)
    report.line("logits", worst_logits, limit)
    report.line("loss", worst_loss, limit)


def check_buffers(step, plain, report, limit):
    worst, counted = (0.0, ""), True
    for r, dump in enumerate(step.dumps):
        expected = plain["buffer"][r // step.group * step.group]
        for name, tensor in group(dump, "buffer").items():
            want = expected[name].double()
            if name.endswith("tracked"):
                counted = counted and int(tensor) == int(want)
                continue
            bound = max(float(want.norm()), 1e-3)
            worst = max(worst, (float((tensor.double() - want).norm()) / bound, name))
    report.line("running statistics of step 1", worst[0], limit, worst[1])
    report.fact("num_batches_tracked", counted)


def check_local(step, plain, report, limits):
    dumped = [group(d, "local") for d in step.dumps]
    if not all(dumped):
        return
    if step.whole:
        worst = (0.0, "")
        for name, gradient in group(step.dumps[0], "grad").items():
            made, kind = made_and_reduced(step, name)
            unit = UNIT[kind]
            terms = [d[name].double() for d in dumped]
            mean = sum(terms) / step.world
            if step.meta.get("average") == "none":
                mean = mean * step.world
            # W conversions and divisions and W-1 additions, each one rounding, and one back to the
            # type the gradient was made in; half the smallest subnormal, unscaled, is the floor.
            tiny = max(SUBNORMAL[made], SUBNORMAL[kind]) / step.scale
            bound = (step.world + 1) * unit * sum(t.abs() for t in terms) / step.world
            bound = bound + max(unit, UNIT[made]) * gradient.double().abs()
            bound = bound + tiny * (step.world + 2)
            share = ((gradient.double() - mean).abs() / bound).max()
            worst = max(worst, (float(share), name))
        report.line("grad is the mean of local, of bound", worst[0], 1.0, worst[1])
    if not step.sync and plain is not None:
        for r, mine in enumerate(dumped):
            whole, _ = errors_of(mine, plain["local"][r])
            report.line(f"local gradient, rank {r}", whole, limits[r])


def check_update(step, report):
    """p, v -> next, next_state: torch.optim.SGD's rule in float64 on the dump's own gradients."""
    meta, dump = step.meta, step.dumps[0]
    before, gradients = group(dump, "param"), group(dump, "grad")
    masters, after = group(dump, "master"), group(dump, "next")
    moments = {n.rpartition("/")[0]: t for n, t in group(dump, "state").items()}
    next_moments = {n.rpartition("/")[0]: t for n, t in group(dump, "next_state").items()}
    if masters:
        same = all(torch.equal(masters[n].to(before[n].dtype), before[n]) for n in masters)
        report.fact("param is half(master)", same)
    if meta["optimizer"] != "sgd":
        return
    lr, momentum = float(meta["lr"]), float(meta["momentum"])
    decay, nesterov = float(meta["weight_decay"]), yes(meta.get("nesterov", "false"))
    lr, momentum, decay = (float(numpy.float32(x)) for x in (lr, momentum, decay))
    worst, worst_moment, equal = (0.0, ""), (0.0, ""), True
    for name, p in before.items():
        p = masters.get(name, p)
        if step.skipped:
            equal = equal and torch.equal(after[name], p)
            if name in next_moments:
                equal = equal and torch.equal(next_moments[name], moments[name])
            continue
        start = p.double()
        g = gradients[name].double() + decay * start
        v = g if name not in moments else momentum * moments[name].double() + g
        way = g + momentum * v if nesterov else v
        want = start - lr * (way if momentum else g)
        # in f32 a handful of roundings of terms of these sizes; where the model holds half
        # without masters, one more to half
        size = start.abs() + lr * (v.abs() + g.abs() + decay * start.abs())
        bound = 8 * UNIT[torch.float32] * size + 1e-38
        if after[name].dtype != torch.float32:
            bound = bound + UNIT[after[name].dtype] * want.abs() * 1.001 + 2.0 ** -25
        worst = max(worst, (float(((after[name].double() - want).abs() / bound).max()), name))
        if name in next_moments:
            bound = 8 * UNIT[torch.float32] * (v.abs() + g.abs() + start.abs() * decay) + 1e-38
            share = ((next_moments[name].double() - v).abs() / bound).max()
            worst_moment = max(worst_moment, (float(share), name))
    if step.skipped:
        report.fact("skipped: nothing has changed", equal)
        return
    report.line("next, share of 8 roundings", worst[0], 1.0, worst[1])
    report.line("next_state, share of 8 roundings", worst_moment[0], 1.0, worst_moment[1])


def check_ranks(step, report):
    for what in ("param", "grad", "next", "next_state", "master", "state"):
        first = group(step.dumps[0], what)
        same = all(group(d, what).keys() == first.keys() and
                   all(torch.equal(t.nan_to_num(), first[n].nan_to_num())
                       for n, t in group(d, what).items()) for d in step.dumps[1:])
        report.fact(f"{what}/ equal on all ranks", same)


def check_step(paths, arguments):
    step, report = Step(paths), Report()
    meta = step.meta
    print(f"step {meta['step']}: {meta['arch']} {step.level} {meta.get('half')} scale {step.scale:g}"
          f" world {step.world} accumulate {step.micro} {meta.get('dialect')}"
          f" {'sync ' if step.sync else ''}reduced in {meta.get('reduced_type')}"
          f"{'' if step.whole else ' (rank 0 alone)'}{' SKIPPED' if step.skipped else ''}")
    if len(step.dumps) > 1:
        check_ranks(step, report)
    gradients = group(step.dumps[0], "grad")
    if meta.get("average") == "none":
        gradients = {n: t / step.world for n, t in gradients.items()}
    plain, (limit, how) = None, plain_limit(step, arguments)
    limits = [limit] * len(step.dumps)
    if not step.skipped and (step.whole or not step.sync):
        plain = compute(step)
        check_forward(step, plain, report, limit)
        if int(meta["step"]) == 1:
            check_buffers(step, plain, report, limit)
    if plain is not None and step.whole:
        whole, rows = errors_of(gradients, plain["grad"])
        report.line("whole gradient", whole, limit,
                    how + "worst " + ", ".join(f"{n} {e:.1e}" for e, n in sorted(
                        ((e, n) for n, e in rows.items()), reverse=True)[:arguments.worst]))
        if arguments.ideal:
            own = check_ideal(step, plain, gradients, report)
            limits = own if own and step.level != "O0" else limits
    if not step.skipped:
        check_local(step, plain, report, limits)
    check_update(step, report)
    shown = limit < math.inf or arguments.ideal
    if not shown:
        print(f"  --   {step.level} needs --ideal or --limit: its gradients are reported, not judged")
    return step, report.good, shown


def check_chain(steps):
    """Where two neighbouring steps are dumped, the second begins with what the first left."""
    good = True
    for number in sorted(steps):
        if number + 1 not in steps:
            continue
        left, right = group(steps[number], "next"), group(steps[number + 1], "param")
        same = all(torch.equal(left[n].to(t.dtype), t) for n, t in right.items())
        moments = group(steps[number], "next_state")
        following = group(steps[number + 1], "state")
        same = same and all(torch.equal(t, following[n]) for n, t in moments.items())
        print(f"  {'ok  ' if same else 'BAD '} step {number + 1} begins where {number} ended")
        good = good and same
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--limit", type=float,
                        help="of the whole gradient's relative error [2e-5 at O0 (ResNet-18), none at "
                             "half levels]")
    parser.add_argument("--ideal", action="store_true",
                        help="judge by what the level costs at best; half levels need it or --limit")
    parser.add_argument("--worst", type=int, default=3)
    arguments = parser.parse_args()
    found = {}
    for path in sorted(glob.glob(os.path.join(arguments.folder, "dump", "step*.safetensors"))):
        step, rank = map(int, re.search(r"step(\d+)\.rank(\d+)\.", path).groups())
        found.setdefault(step, {})[rank] = path
    if not found:
        parser.error(f"{arguments.folder}: no dump/step*.rank*.safetensors")
    good, judged, kept = True, True, {}
    for number in sorted(found):
        ranks = found[number]
        step, fine, shown = check_step([ranks[r] for r in sorted(ranks)], arguments)
        good, judged = good and fine, judged and shown
        kept[number] = {n: t for n, t in step.dumps[0].items()
                        if n.split("/")[0] in ("param", "next", "state", "next_state")}
    good = check_chain(kept) and good
    if good and not judged:
        print("NOT SHOWN: half levels need --ideal or --limit")
        return 2
    print("good" if good else "NOT GOOD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

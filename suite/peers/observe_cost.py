#!/usr/bin/env python3
"""What `lockstep observe` costs a PyTorch job: runs in turn without and with it, DDP in float32.

usage: observe_cost.py LOCKSTEP [--pairs 4] [--steps 80] [--ranks 2] [--networks resnet18,transformer,resnet50] [--every N]

Run it with the interpreter that has torch. resnet18: 64 x 64 pixels, 32 images a rank; transformer: 9.6 M parameters, 8
sequences of 64 tokens a rank; resnet50: 224 x 224 pixels, 64 images a rank, whose steps keep a GPU busy where those of the
others wait for Python. Times are those of all steps but the first five, the looked-at ones among them. LS_DEVICE=cuda:
on a GPU that the ranks share (gallery/on_cuda.py), where steps are short: give more of them. Each line says what a
step took without and with observe, by how much that is more, what share observe measured of itself, and the files'
size by the hour; the last line of a network has the medians and their range. Exit code 1: a run failed.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WARM = 5
IMAGES = {"resnet18": (64, 32), "resnet50": (224, 64)}  # pixels of a side, images a rank


def train(network, steps):
    """A rank: prints seconds per step, and those of all."""
    sys.path.insert(0, os.path.join(HERE, "gallery"))
    from on_cuda import BACKEND, install

    install()

    import torch
    import torch.distributed as dist
    from torch import nn

    import networks

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(1000, 384)
            layer = nn.TransformerEncoderLayer(384, 6, 1536, 0.0, batch_first=True)
            self.body = nn.TransformerEncoder(layer, 5)
            self.head = nn.Linear(384, 1000)

        def forward(self, tokens):
            return self.head(self.body(self.embed(tokens))).flatten(0, 1)

    torch.set_num_threads(1)
    dist.init_process_group(BACKEND)
    torch.manual_seed(0)
    if network in IMAGES:
        side, batch = IMAGES[network]
        model = networks.build(network, 10)
        inputs, targets = torch.randn(batch, 3, side, side), torch.randint(10, (batch,))
    else:
        model, inputs, targets = Transformer(), torch.randint(1000, (8, 64)), torch.randint(1000, (512,))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    begin = time.perf_counter()
    for step in range(steps):
        if step == WARM:
            loss.item()  # of the step before: what was asked for is done
            warm = time.perf_counter()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    loss.item()
    dist.barrier()
    end = time.perf_counter()
    if dist.get_rank() == 0:
        print(json.dumps({"step": (end - warm) / (steps - WARM), "run": end - begin}))
    dist.destroy_process_group()


def run(o, network, folder):
    """Runs the job, under observe where there is a folder; what rank 0 printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(o.ranks),
               os.path.abspath(__file__), o.lockstep, "--worker", network, "--steps", str(o.steps)]
    if folder is not None:
        every = ["--every", o.every] if o.every else []
        command = [o.lockstep, "observe", "--out", folder, *every, "--", *command]
    done = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL, check=False,
                          capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines or done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])


def size_of(folder):
    return sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(folder) for name in names)


def own_share(folder):
    share = None
    for root, _, names in os.walk(folder):
        if "rank0.jsonl" in names:
            with open(os.path.join(root, "rank0.jsonl"), encoding="utf-8") as file:
                for event in map(json.loads, file):
                    share = event["share"] if event["event"] == "cost" else share
    return share


def pair(o, network, number):
    """(step without, step with, share, MB an hour); which goes first changes from pair to pair."""
    folder = os.path.join(tempfile.mkdtemp(), "observed")
    try:
        results = {}
        for seen in (False, True) if number % 2 == 0 else (True, False):
            results[seen] = run(o, network, folder if seen else None)
        per_hour = size_of(folder) / 1e6 * 3600 / results[True]["run"]
        return results[False]["step"], results[True]["step"], own_share(folder), per_hour
    finally:
        shutil.rmtree(os.path.dirname(folder))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("lockstep", type=os.path.abspath)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--networks", default="resnet18,transformer")
    parser.add_argument("--every", default="")
    parser.add_argument("--worker", default="")
    o = parser.parse_args()
    if o.worker:
        train(o.worker, o.steps)
        return
    for network in o.networks.split(","):
        more = []
        for number in range(o.pairs):
            bare, seen, share, per_hour = pair(o, network, number)
            more.append(seen / bare - 1)
            print(f"{network} {number + 1}: {bare * 1e3:.2f} ms, {seen * 1e3:.2f} ms observed: {more[-1]:+.1%}; own "
                  f"share of the run {share:.1%}; {per_hour:.0f} MB an hour", flush=True)
        print(f"{network}: {statistics.median(more):+.1%} [{min(more):+.1%}, {max(more):+.1%}] (pairs: {o.pairs})", flush=True)


if __name__ == "__main__":
    main()

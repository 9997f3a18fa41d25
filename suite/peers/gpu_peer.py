#!/usr/bin/env python3
"""Speed compared with the installed PyTorch, on one GPU: same network, batch and image size, data on the device.

Every way of PyTorch is a process that prepares and compiles, several at once, and then waits: eager with channels last
under autocast, a half model with f32 masters, the whole step as a CUDA graph, torch.compile, and what of these goes
together. When no other process works, each is timed by itself. Then the fastest takes turns with lockstep-train, so that
whatever the machine does meanwhile falls on both. Both time the engines of their libraries first. Written into --out:
peer.rows (rows of gpu-check), peer.md, peer.json, a log of each way.

--trial runs on the CPU, with whatever sizes were given: it tries this script, its figures say nothing.
"""
import argparse
import json
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time

WARMUP, RESIDENT, CLASSES = 10, 4, 1000


# What PyTorch is tried with, and its seconds at most; words of a way: graph (the whole step in one CUDA graph), masters (a
# half model with f32 masters), compile, overhead and autotune (modes of it), contiguous (not channels last).
WAYS = [("eager", 60), ("graph", 60), ("compile.graph", 150), ("compile.graph.masters", 150), ("graph.masters", 60),
        ("compile", 60), ("compile.overhead", 90), ("masters", 60), ("compile.graph.autotune", 240)]
BF16_WAYS = [("eager.bf16", 60), ("graph.bf16", 60), ("compile.graph.bf16", 150)]
F32_WAYS = [("eager.f32", 90), ("eager.f32.contiguous", 90)]  # without TF32; contiguous: NCHW
MODES = {"overhead": "reduce-overhead", "autotune": "max-autotune-no-cudagraphs"}


# ---- one run of PyTorch, in a process of its own -----------------------------------------------------------------

def worker(way, o):
    import torch
    import torch.nn as nn
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import networks
    cuda = not o.trial
    device = "cuda" if cuda else "cpu"
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in way
    half = torch.bfloat16 if "bf16" in way or not cuda else torch.float16
    layout = torch.contiguous_format if "contiguous" in way else torch.channels_last
    model = networks.build(o.arch, CLASSES).to(device, memory_format=layout)
    masters = "masters" in way
    if masters:
        model = model.to(half)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.float()
    params = [p for p in model.parameters()]
    held = [p.detach().clone().float() for p in params] if masters else params
    for p in held:
        p.requires_grad_()
    kind = {"fused": True} if cuda else {}
    try:
        optimizer = torch.optim.SGD(held, 0.01, 0.9, weight_decay=1e-4, **kind)
    except (TypeError, RuntimeError):  # older ones have no fused SGD
        optimizer = torch.optim.SGD(held, 0.01, 0.9, weight_decay=1e-4)
    loss_of = nn.CrossEntropyLoss()
    scaled = half is torch.float16 and "f32" not in way and "tf32" not in way
    # a graph cannot ask whether a step is to be skipped
    scaler = torch.cuda.amp.GradScaler(init_scale=1024) if scaled and "graph" not in way and not masters else None
    mode = next((MODES[word] for word in way.split(".") if word in MODES), None)
    run = torch.compile(model, mode=mode) if "compile" in way else model
    shape = (o.batch, 3, o.image_size, o.image_size)
    batches = [(torch.randn(shape, device=device).to(memory_format=layout),
                torch.randint(0, CLASSES, (o.batch,), device=device)) for _ in range(RESIDENT)]
    if masters:
        batches = [(x.to(half), y) for x, y in batches]
    autocast = not masters and "f32" not in way and "tf32" not in way
    if autocast or masters:
        torch.backends.cudnn.allow_tf32 = True
    factor = 1024.0 if scaled else 1.0

    def forward_backward(x, y):
        if autocast:
            with torch.autocast(device, dtype=half):
                loss = loss_of(run(x), y)
        else:
            loss = loss_of(run(x).float(), y)
        (scaler.scale(loss) if scaler else loss * factor).backward()
        return loss

    def update():
        if masters:
            for p, m in zip(params, held):
                m.grad = p.grad.float() / factor
            optimizer.step()
            with torch.no_grad():
                torch._foreach_copy_(params, held)
        elif scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            if factor != 1:
                torch._foreach_div_([p.grad for p in params], factor)
            optimizer.step()

    def step(x, y):
        for p in params:
            p.grad = None
        loss = forward_backward(x, y)
        update()
        return loss

    def settle():
        """Prepares the steps that are timed; returns one of them, by its number. cuDNN's engines are kept by, among
        others, this switch, which means nothing to half operands: those that were chosen before, while other processes
        worked, are chosen again."""
        if autocast or masters:
            torch.backends.cudnn.allow_tf32 = False
        if "graph" not in way:
            return lambda i: step(*batches[i % RESIDENT])
        x, y = (t.clone(memory_format=torch.preserve_format) for t in batches[0])
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(x, y)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step(x, y)

        def replay(i):
            x.copy_(batches[i % RESIDENT][0])
            y.copy_(batches[i % RESIDENT][1])
            graph.replay()
        return replay

    def timed(one):
        if cuda:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(o.steps + 1)]
            for i in range(2):  # a GPU that was idle clocks up
                one(i)
            marks[0].record()
            for i in range(o.steps):
                one(i)
                marks[i + 1].record()
            torch.cuda.synchronize()
            ms = [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
        else:
            ms = []
            for i in range(o.steps):
                begun = time.perf_counter()
                one(i)
                ms.append((time.perf_counter() - begun) * 1e3)
        return {"ms": ms, "torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version()),
                "memory": torch.cuda.max_memory_allocated() if cuda else 0}

    step(*batches[0])  # compiles
    if cuda:
        torch.cuda.synchronize()
    print("READY", flush=True)
    one = None
    for _ in sys.stdin:  # a line asks for a run
        if one is None:
            one = settle()
            for i in range(WARMUP if cuda else 1):
                one(i)
        print("RESULT " + json.dumps(timed(one)), flush=True)


# ---- turns ---------------------------------------------------------------------------------------------------------

class Failed(Exception):
    pass


def command(words, limit, environment=None):
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=max(limit, 1), text=True,
                              env=environment, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"not done in {limit:.0f} s") from late
    if done.returncode != 0:
        lines = [line for line in done.stdout.strip().splitlines() if "rror" in line] or \
            done.stdout.strip().splitlines() or ["no output"]
        raise Failed(f"exit code {done.returncode}: {lines[-1][:150]}")
    return done.stdout


class Way:
    """One way of PyTorch in a process of its own, which prepares itself and then runs when it is asked to."""

    def __init__(self, way, batch, limit, o):
        self.way, self.limit, self.begun, self.lines, self.failed = way, limit, time.time(), queue.Queue(), None
        self.log = os.path.join(o.out, f"torch.{way}.b{batch}.log")
        words = [sys.executable, os.path.abspath(__file__), "--worker", way, "--arch", o.arch, "--batch", str(batch),
                 "--image-size", str(o.image_size), "--steps", str(o.steps)] + (["--trial"] if o.trial else [])
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def wait(self, word, seconds):
        """The rest of the next line that begins with the word."""
        until = time.time() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(until - time.time(), 0.01))
            except queue.Empty:
                raise Failed(f"not done in {seconds:.0f} s") from None
            if line.startswith(word):
                return line[len(word):].strip()
            if line == "":
                with open(self.log, encoding="utf-8", errors="replace") as log:
                    said = [text for text in log.read().splitlines() if "rror" in text] or ["no result"]
                raise Failed(f"exit code {self.process.wait()}: {said[-1][:150]}")

    def prepare(self, seconds):
        try:
            self.wait("READY", min(seconds, max(self.begun + self.limit - time.time(), 1)))
        except Failed as failed:
            self.failed = failed

    def run(self, seconds):
        try:
            self.process.stdin.write("run\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # wait() tells why
        return json.loads(self.wait("RESULT ", seconds))

    def close(self):
        self.process.kill()
        self.process.wait()


OURS = {"o2": "--opt-level=O2 --loss-scale=dynamic --init-scale=1024",
        "o2.fuse": "--opt-level=O2 --loss-scale=dynamic --init-scale=1024 --fuse", "o2.bf16": "--opt-level=O2 --half=bf16",
        "o1": "--opt-level=O1 --loss-scale=dynamic --init-scale=1024", "o0.tf32": "--opt-level=O0 --tf32", "o0": "--opt-level=O0"}


def our_run(what, o, limit, batch):
    folder = os.path.join(o.out, f"ours.{what}.b{batch}")
    os.makedirs(folder, exist_ok=True)
    events = os.path.join(folder, "rank0.jsonl")
    if os.path.exists(events):
        os.unlink(events)
    engines = os.path.join(o.out, "engines.txt")
    words = [o.train, "--device=cuda", "--cudnn-benchmark", f"--engines={engines}", f"-a{o.arch}",
             f"--image-size={o.image_size}", f"-b{batch}",
             f"--num-classes={CLASSES}", f"--steps={WARMUP + o.steps}", "--data=synthetic", f"--resident={RESIDENT}",
             "--digest=none", "--lr=0.01", "--print-freq=0"] + OURS[what].split()
    command(words, limit, dict(os.environ, LS_RUN_DIR=folder))
    with open(events, encoding="utf-8") as lines:
        steps = [json.loads(line) for line in lines if '"event":"step"' in line]
    return {"ms": [step["ms"]["total"] for step in steps[WARMUP:-1]]}  # the last is seen with the one before


def rate(result, batch):
    return batch * 1e3 / statistics.median(result["ms"])


def interval(values):
    """The median with its 95 % bootstrap interval."""
    draw = random.Random(7)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[-51]


class Peer:
    def __init__(self, o):
        self.o, self.begun, self.rows, self.lines, self.found = o, time.time(), [], [], {}

    def left(self):
        return self.o.limit - (time.time() - self.begun)

    def row(self, status, name, seconds, text):
        self.rows.append(f"{status}\t{name}\t{seconds:.0f}\t{text}")
        print(self.rows[-1], flush=True)

    def timed(self, way, batch):
        """Images per second of a way that has been prepared, or None."""
        name = f"torch.{way.way}.b{batch}"
        try:
            if way.failed is not None:
                raise way.failed
            result = way.run(self.left())
        except Failed as failed:
            self.row("skip", name, time.time() - way.begun, str(failed))
            return None
        images = rate(result, batch)
        self.found[name] = images
        self.versions = f"PyTorch {result['torch']}, cuDNN {result['cudnn']}"
        self.row("ok", name, time.time() - way.begun, f"{images:.0f} images/s, {result['memory'] / 1e9:.1f} GB")
        return images

    def start(self, ways, batch):
        return [Way(way, batch, limit, self.o) for way, limit in ways]

    def prepare(self, started):
        """All of them, before the first is timed; returns them."""
        for way in started:
            way.prepare(self.left())
        return started

    def best(self, started, batch):
        """The fastest of the ways that have been prepared, ready to run; the others are ended. None: none ran."""
        first, images = None, 0.0
        for way in started:
            found = self.timed(way, batch)
            if found is not None and found > images:
                if first is not None:
                    first.close()
                first, images = way, found
            else:
                way.close()
        return first

    def best_in_groups(self, ways, batch, at_once=4):
        """The same of ways that are started a few at a time: a GPU's memory holds no more, and max-autotune times kernels
        while it prepares itself."""
        best = None
        for begin in range(0, len(ways), at_once):
            best_here = self.best(self.prepare(self.start(ways[begin:begin + at_once], batch)), batch)
            rates = [self.found[f"torch.{way.way}.b{batch}"] if way else 0.0 for way in (best, best_here)]
            loser, best = (best, best_here) if rates[1] > rates[0] else (best_here, best)
            if loser is not None:
                loser.close()
        return best

    def turns(self, title, ours, way, batch, goal, pairs):
        """ours and PyTorch's `way` in turn; a row with the ratio, and whether it reaches the goal."""
        ratios, own, begun = [], [], time.time()
        if way is None:
            self.row("skip", title, 0, "PyTorch has no figure")
            return
        for pair in range(pairs):
            if self.left() < 20 or (pair > 0 and self.left() < 2 * (time.time() - begun) / pair):
                break
            order = (0, 1) if pair % 2 == 0 else (1, 0)
            try:
                pair_rates = [0.0, 0.0]
                for who in order:
                    run = our_run(ours, self.o, self.left(), batch) if who == 0 else \
                        way.run(self.left())
                    pair_rates[who] = rate(run, batch)
            except Failed as failed:
                self.row("FAIL", title, time.time() - begun, str(failed))
                return
            ratios.append(pair_rates[0] / pair_rates[1])
            own.append(pair_rates[0])
        if len(ratios) < 2:
            self.row("skip", title, time.time() - begun, f"{len(ratios)} pairs in the time left")
            return
        middle, low, high = interval(ratios)
        reached = "reaches" if low >= goal else "misses" if high < goal else "cannot be distinguished from"
        text = (f"{middle:.3f} x torch {way.way} [{low:.3f}, {high:.3f}], {len(ratios)} pairs, "
                f"{statistics.median(own):.0f} images/s; {reached} {goal}")
        self.row("ok", title, time.time() - begun, text)
        self.lines.append(f"| {title} | {batch} | {statistics.median(own):.0f} | {way.way} | "
                          f"{middle:.3f} [{low:.3f}, {high:.3f}] | {goal} |")
        self.found[title] = {"ratio": middle, "low": low, "high": high, "pairs": len(ratios), "goal": goal,
                             "images_per_s": statistics.median(own), "peer": way.way}

    def run(self):
        """Claims share the ways they are compared with: of f16, of bf16, and eager at a batch of 32."""
        o, few = self.o, max(2, self.o.pairs - 2)
        self.versions = ""
        ways = [(way, limit) for way, limit in WAYS if o.ways is None or way in o.ways.split(",")]
        bf16 = BF16_WAYS if o.ways is None else BF16_WAYS[-1:]
        groups = [(ways, o.batch, [("o2.fuse", 1.25, o.pairs), ("o2", 1.25, few), ("o1", 1.1, few)]),
                  ([("eager", 60)], 32, [("o2", 1.5, few)]),
                  (bf16, o.batch, [("o2.bf16", 1.1, few)])]
        if o.claims is not None:  # steps of f32 take ten times as long: only where they are asked for
            groups.append((F32_WAYS, o.batch, [("o0", 1.0, 2)]))
        if o.trial:
            for way in [way for way, _ in WAYS + BF16_WAYS if "graph" in way]:
                self.row("skip", f"torch.{way}.b{o.batch}", 0, "a CUDA graph, which needs a GPU")
            # a CPU compiles for longer
            groups = [([(way, 3 * limit) for way, limit in ways if "graph" not in way], o.batch, groups[0][2])]
        groups = [(ways, batch, [claim for claim in claims if o.claims is None or
                                 f"{claim[0]}.b{batch}" in o.claims.split(",")]) for ways, batch, claims in groups]
        groups = [group for group in groups if group[2]]
        started = [self.start(ways, batch) if o.together else None for ways, batch, _ in groups]
        self.prepare([way for processes in started for way in processes or []])
        for (ways, batch, claims), processes in zip(groups, started):
            best = self.best(processes, batch) if o.together else self.best_in_groups(ways, batch)
            for ours, goal, pairs in claims:
                self.turns(f"ours.{ours}.b{batch}", ours, best, batch, goal, pairs)
            if best is not None:
                best.close()
        self.write()

    def write(self):
        folder = self.o.out
        with open(os.path.join(folder, "peer.rows"), "w", encoding="utf-8") as file:
            file.write("".join(row + "\n" for row in self.rows))
        with open(os.path.join(folder, "peer.json"), "w", encoding="utf-8") as file:
            json.dump({"schema": 1, "versions": self.versions, "arch": self.o.arch, "image_size": self.o.image_size,
                       "found": self.found}, file, indent=1)
        with open(os.path.join(folder, "peer.md"), "w", encoding="utf-8") as file:
            file.write(f"Compared with {self.versions}: {self.o.arch}, {self.o.image_size} pixels, data on the device, in turn."
                       "\n\n| ours | batch | images/s | PyTorch's way | ratio [95 %] | goal |\n"
                       "|---|---:|---:|---|---|---:|\n" + "".join(line + "\n" for line in self.lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--worker")
    add("--train", default="build/lockstep-train")
    add("--out", default=".")
    add("--arch", default="resnet50")
    add("--image-size", type=int, default=224)
    add("--batch", type=int, default=256)
    add("--steps", type=int, default=40)
    add("--ways", help="of PyTorch, separated by commas (all)")
    add("--claims", help="such as o2.fuse.b256, separated by commas (all)")
    add("--pairs", type=int, default=5, help="of runs in turn for the first claim, two fewer for the others")
    add("--together", action="store_true", help="start all processes at once: a GPU of 128 GB and more holds them")
    add("--limit", type=float, default=440, help="seconds of all together")
    add("--trial", action="store_true")
    o = parser.parse_args()
    if o.worker:
        worker(o.worker, o)
    else:
        Peer(o).run()


if __name__ == "__main__":
    main()

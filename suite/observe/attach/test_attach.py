"""Tests of the attach module: `python test_attach.py [NAME...]`, with the PyTorch of that python.

Every job of test_jobs.py runs on two ranks with and without the module: losses, parameters and
random numbers are the same to the bit, and the events keep to events.md.
"""

import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[1:1] = [HERE, os.path.dirname(HERE)]
JOBS_FILE = os.path.join(HERE, "test_jobs.py")
SECONDS = 300  # a rank that has not ended by then is killed: machines that run tests are busy ones

import events_table  # noqa: E402
import torch  # noqa: E402

TABLE = events_table.read()
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


# ---- running jobs --------------------------------------------------------------------------------


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def environment(on, **more):
    env = {key: value for key, value in os.environ.items() if not key.startswith("LS_OBSERVE")}
    env.update(OMP_NUM_THREADS="1", LOCAL_WORLD_SIZE="2", PYTHONDONTWRITEBYTECODE="1")
    if on:
        env.update(LS_OBSERVE_DIR=tempfile.gettempdir(), PYTHONPATH=HERE)
        env.update(LS_OBSERVE_SAMPLES="64", LS_OBSERVE_EVERY="3")
    env.update(more)
    return env


class Result:
    """What a job left: exit codes, the facts of each rank, and where its events and output are."""

    def __init__(self, folder, codes, world=2):
        self.folder, self.codes = folder, codes
        self.facts = [self._facts("result.rank%d" % rank) for rank in range(world)]

    def _facts(self, name):
        path = os.path.join(self.folder, name)
        if not os.path.exists(path):
            return None
        with open(path) as file:
            return json.load(file)

    def output(self, rank=0):
        with open(os.path.join(self.folder, "result.out%d" % rank), errors="replace") as file:
            return file.read()

    def events(self, rank=0, kind=None):
        path = os.path.join(self.folder, "events", "rank%d.jsonl" % rank)
        if not os.path.exists(path):
            return []
        with open(path, "rb") as file:
            data = file.read()
        assert data.endswith(b"\n"), "a line is not whole"
        events = [json.loads(line, parse_constant=no_constant) for line in data.splitlines()]
        make_whole([event for event in events if event["event"] == "step"])
        breaches = [line for event in events for line in events_table.breaches(TABLE, event)]
        assert not breaches, breaches[:5]
        return [event for event in events if kind is None or event["event"] == kind]

    def samples(self, step, rank=0):
        name = "step%06d.rank%d.safetensors" % (step, rank)
        return read_safetensors(os.path.join(self.folder, "events", "samples", name))


def make_whole(steps):
    """Gives each step all members of its calls."""
    calls = {}
    for event in steps:
        if "like" in event:
            before = calls[event["like"]]
            assert len(before) == len(event["calls"]) and event["like"] < event["step"], event
            event["calls"] = [dict(one, **other) for one, other in zip(before, event["calls"])]
        calls[event["step"]] = event["calls"]


def no_constant(word):
    raise AssertionError("%s is no JSON" % word)


class Server:
    """A process that has imported torch, with the module or not, and forks the ranks of jobs."""

    def __init__(self, root, on, **more):
        self.root, self.on = root, on
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "universal_newlines": True}
        command, env = [sys.executable, JOBS_FILE, "serve"], environment(on, **more)
        self.process = subprocess.Popen(command, env=env, **pipes)

    def run(self, job, world=2, name=None, **more):
        folder = os.path.join(self.root, "%s.%s" % (name or job, "on" if self.on else "off"))
        os.makedirs(os.path.join(folder, "events"))
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        if self.on:
            env["LS_OBSERVE_DIR"] = os.path.join(folder, "events")
        env.update(more, LOCAL_WORLD_SIZE=str(world))
        task = {"job": job, "result": os.path.join(folder, "result"), "world": world}
        task.update(environment=env, seconds=SECONDS)
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return Result(folder, json.loads(self.process.stdout.readline()), world)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start(root, name, command, on=True, **more):
    """Runs a command that starts its own ranks."""
    folder = os.path.join(root, name)
    os.makedirs(os.path.join(folder, "events"))
    env = environment(on, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), **more)
    if on:
        env["LS_OBSERVE_DIR"] = os.path.join(folder, "events")
    result = os.path.join(folder, "result")
    with open(result + ".out0", "w") as output:
        command = [word.replace("RESULT", result) for word in command]
        code = subprocess.call(
            command, env=env, stdout=output, stderr=output, timeout=SECONDS, cwd=folder
        )
    return Result(folder, [code])


def with_and_without(root, name, script):
    """What a script leaves, not observed and observed, and its events."""
    folder = os.path.join(root, name)
    path, events = os.path.join(folder, name + ".py"), os.path.join(folder, "events")
    os.makedirs(events)
    with open(path, "w") as file:
        file.write(script)
    envs = (environment(False), environment(True, LS_OBSERVE_DIR=events))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = [subprocess.run([sys.executable, path], env=env, **pipes) for env in envs]
    with open(os.path.join(events, "rank0.jsonl")) as file:
        return done, [json.loads(line) for line in file]


def read_safetensors(path):
    """(metadata, {name: tensor})."""
    from lockstep_attach.samples import TYPES

    kinds = {word: kind for kind, word in TYPES.items()}
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header, named = json.loads(data[8 : 8 + length]), {}
    metadata = header.pop("__metadata__")
    assert (8 + length) % 8 == 0
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind = getattr(torch, kinds[entry["dtype"]])
        content = bytearray(data[8 + length + begin : 8 + length + end])
        named[name] = (
            torch.frombuffer(content, dtype=kind) if content else torch.empty(0, dtype=kind)
        )
        assert list(named[name].shape) == entry["shape"]
        assert begin % named[name].element_size() == 0
    return metadata, named


# ---- what events look like -----------------------------------------------------------------------

MEMBERS = {
    "start": "schema observed digest_bits rank world local_rank pid python torch device backend "
    "program options observe",
    "model": "model kind at name params buffers norm_params bn sync_bn dropout compiled digest "
    "param_digests buffer_digests",
    "autocast": "device at",
    "idle": "at params steps",
    "hidden": "model names count at",
    "hook": "model name at",
    "convert": "converted at",
    "optimizer": "optimizer class rule at state groups",
    "scaler": "scaler enabled at",
    "data": "loader pass at sampler shuffle drop_last length batch workers base_seed count whole "
    "trained steps",
    "save": "at path step what params params_missing wrong half digests numbers fresh stale",
    "load": "at path step what numbers schedules entries settings",
    "restore": "what which at step",
    "call": "number call",
    "seed": "at seed",
    "noise": "at function numbers samples",
    "rows": "loader at batches",
    "held": "optimizer groups",
    "moved": "model at step type",
    "join": "at",
    "left": "name at bits type full",
    "overwritten": "name at bits full count cosine",
    "outside": "step name at params digests",
    "detached": "steps at read names digests digests_now",
    "shadow": "step model at name match touched names digests digests_now",
    "validated": "step model at param",
    "parts": "optimizer step part count bits",
    "squares": "optimizer step at grad_squares grad_hashes factor",
    "bare": "optimizer steps count later",
    "froze": "model at step names",
    "untied": "at names",
    "replaced": "optimizer params",
    "freed": "optimizer count among",
    "averaged": "step average share bound",
    "schedule": "schedule class at step holds",
    "schedule_moved": "schedule at",
    "unfinished": "calls",
    "step": "step loss loss_scale loss_scale_next skipped lr images ms at_ns detail calls",
    "attach": "error at quiet",
    "cost": "own_ms run_ms share detail_ms gradient_ms",
    "end": "steps why",
}
CALLS = {
    "forward": "model at training grad autocast type",
    "scale": "scaler type at",
    "backward": "at type scaled autocast sync",
    "unscale": "scaler optimizer at found_inf inside",
    "clip": "how limit norm norm_type params at",
    "scaler_step": "scaler optimizer at found_inf stepped",
    "optimizer_step": "optimizer at scaled lr",
    "update": "scaler at scale next growth forced",
    "zero_grad": "at to_none of",
    "schedule": "class schedule optimizer at lr",
    "collective": "op elements type reduce at",
    "sync_module": "mode model at",
}


def check_schema(result, ranks=2, whole=True):
    for rank in range(ranks):
        events = result.events(rank)
        assert events and events[0]["event"] == "start" and events[0]["schema"] == 2
        assert events[0]["rank"] == rank
        if whole:
            assert events[-1]["event"] == "end", events[-1]
        for event in events:
            lacking = set(MEMBERS[event["event"]].split()) - set(event)
            if event.get("failed"):  # a load that raised: nothing is known of the file
                lacking -= set("numbers schedules entries settings".split())
            assert not lacking, (event["event"], lacking)
        steps = [event for event in events if event["event"] == "step"]
        check_steps(result, rank, steps)


def check_steps(result, rank, steps):
    assert [event["step"] for event in steps] == list(range(1, len(steps) + 1))
    for event in steps:
        for call in event["calls"]:
            lacking = set(CALLS[call["call"]].split()) - set(call)
            assert not lacking, (call, lacking)
            assert ":" in call["at"], call
        if event["detail"]:
            metadata, named = result.samples(event["step"], rank)
            assert metadata["step"] == str(event["step"]) and metadata["rank"] == str(rank)
            assert any(name.startswith("param/") for name in named)


def words(event):
    return [call["call"] for call in event["calls"]]


# ---- tests ---------------------------------------------------------------------------------------

TESTS = []


def test(function):
    TESTS.append(function)
    return function


class Context:
    def __init__(self, root):
        self.root = root
        self.off, self.on = Server(root, False), Server(root, True)

    def alone(self, job, name, **more):
        """With settings of the process that forks, which is started with them."""
        server = Server(self.root, True, **more)
        try:
            return server.run(job, name=name)
        finally:
            server.close()

    def both(self, job, world=2, **more):
        """Runs a job with and without the module: it must not see a difference."""
        control = self.off.run(job, world, **more)
        result = self.on.run(job, world, **more)
        assert result.codes == control.codes, (result.codes, control.codes, result.output()[-800:])
        for with_module, without in zip(result.facts, control.facts):
            assert with_module == without, (with_module, without)
            assert with_module is None or with_module["hooks"] == 0
        return result


def same_on_both_ranks(result):
    def of(rank):
        steps = result.events(rank, "step")
        return {e["step"]: e["digest"]["param"] for e in steps if "digest" in e}

    one, other = of(0), of(1)
    assert set(one) & set(other) and all(one[step] == other[step] for step in set(one) & set(other))


def reduced_is_mean(result, step, tolerance):
    (_, one), (_, other) = result.samples(step, 0), result.samples(step, 1)
    names = [name[len("reduced/") :] for name in one if name.startswith("reduced/")]
    assert names
    for name in names:
        nothing = torch.zeros(len(one["reduced/" + name]), dtype=torch.float64)
        mean = (one.get("local/" + name, nothing) + other.get("local/" + name, nothing)) / 2
        size = (one.get("local_abs/" + name, nothing) + other.get("local_abs/" + name, nothing)) / 2
        difference = (one["reduced/" + name].double() - mean).abs()
        # each of two ranks' gradients and their sum is rounded to the parameter's type once or
        # twice
        assert bool((difference <= tolerance * size + 1e-30).all()), (name, float(difference.max()))


def has_local_of_all(result, step):
    _, named = result.samples(step)
    params = {name[len("param/") :] for name in named if name.startswith("param/")}
    assert params == {name[len("local/") :] for name in named if name.startswith("local/")}
    assert params == {name[len("index/") :] for name in named if name.startswith("index/")}


UNIT = 2.0**-24  # of f32: the relative error of one rounding
ROUNDINGS = 4 * UNIT  # of an f32 sum of two
# What f32 may cost a gradient, of its norm: the longest way through these networks has fewer than
# 2048 roundings (216 products of a linear layer, 288 positions of a convolution, the norms of 8
# samples, there and back), and each is one UNIT at most.
F32_COST = 2048 * UNIT
# Of a gradient whose terms cancel (a bias before a batch norm has 0): 8 UNIT of terms that are 1
# at most.
F32_REST = 8 * UNIT


def again(result, *names, done="done"):
    """(metadata, samples) of step 2, in which the gradients of these parameters are FP64's."""
    check_schema(result)
    metadata, named = result.samples(2)
    assert metadata["again"] == done, metadata
    for name in names:
        if "again/f64/" + name in named:
            exact = named["again/f64/" + name]
            assert off(named, name) <= F32_COST * float(exact.norm()) + F32_REST, name
        else:
            assert off(named, name, whose="again/f32/") == 0, name
    return metadata, named


def off(named, name, times=1, which="again/local/", whose="again/f64/"):
    """How far a gradient of the job is from a multiple of that in FP64."""
    return float((named[which + name].double() - times * named[whose + name].double()).norm())


def sgd_room(param, grad, momentum, following):
    """By how much SGD in f32 (rate 0.05, momentum 0.9, decay 1e-4) may miss `following`, computed
    in FP64 from the same numbers: a UNIT for each of its constants, products and sums.
    """
    decayed = 2 * 1e-4 * param.abs() + (grad + 1e-4 * param).abs()
    kept = 2 * 0.9 * momentum.abs() + (0.9 * momentum + grad + 1e-4 * param).abs()
    moved = 2 * 0.05 * (0.9 * momentum + grad + 1e-4 * param).abs()
    return (0.05 * (decayed + kept) + moved + following.abs()) * UNIT * 1.001  # errors of errors


def samples_are_named(result):
    sources = {p["source"] for rank in (0, 1) for p in result.events(rank, "data")}
    assert len(sources) == 1, sources
    drawn = [set(result.events(rank, "data")[0]["kept"]) for rank in (0, 1)]
    assert not drawn[0] & drawn[1] and len(drawn[0] | drawn[1]) == 48
    first, second = [[set(p["keys"]) for p in result.events(rank, "data")] for rank in (0, 1)]
    assert len(first[0] | second[0]) == 48 and not first[0] & second[0]
    assert first[0] | second[0] == first[1] | second[1]  # the next epoch has the same samples


def sources(*globs):
    """The text of the files of the tree that write events."""
    root, whole = os.path.join(HERE, "..", "..", ".."), []
    for pattern in globs:
        for path in sorted(glob.glob(os.path.join(root, pattern), recursive=True)):
            with open(path, encoding="utf-8") as file:
                whole.append(file.read())
    return "\n".join(whole)


@test
def every_row_of_events_is_written(context):
    rank = sources("suite/observe/attach/lockstep_attach/*.py", "reference/**/*.c")
    below = sources("suite/observe/collectives/*.c", "reference/**/*.c")
    files = {"RANK": rank, "CALL": rank, "PART": rank, "NCCL": below, "SUMS": below}
    assert not events_table.unwritten(TABLE, files), events_table.unwritten(TABLE, files)
    for wrong in (
        {"event": "hook", "model": "0"},
        {"event": "hook", "modell": 0},
        {"event": "hoook"},
        {"event": "optimizer", "groups": [{"lr": "0.1"}]},
        {"event": "step", "calls": [{"call": "scale", "at": 3}]},
    ):
        assert len(events_table.breaches(TABLE, wrong)) == 1, wrong


@test
def alike_steps_are_shortened(context):
    import copy

    from lockstep_attach.events import SHAPES, SPAN, Alike, Transfer

    def step(number, *calls):
        return {"event": "step", "step": number, "calls": [dict(call) for call in calls]}

    forward = {"call": "forward", "at": "train.py:3", "input": "00", "left": 0, "grad": True}
    update = {"call": "update", "scale": 1024.0, "growth": None}
    given = [
        step(1, forward, update),
        step(2, dict(forward, input="01"), update),
        # 1 and 0.0: of other types
        step(3, dict(forward, grad=1, left=0.0), dict(update, growth=2)),
        step(4, update, forward),
        step(5, dict(forward, type="f16"), update),
        step(6),
        step(7, update, dict(forward, at="train.py:4")),
        step(8, forward, update),
    ]
    given += [step(9 + k, {"call": "zero_grad", "%d" % k: 0}) for k in range(SHAPES)]
    given += [step(9 + SHAPES + k, dict(forward, left=k), update) for k in range(SPAN + 2)]
    alike, transfer = Alike(), Transfer(torch, {})
    written = [alike.shorten(event, transfer) for event in copy.deepcopy(given)]
    likes = [event.get("like") for event in written]
    assert likes[:8] == [None, 1, 1, None, None, None, 4, 1], likes
    # after so many other shapes it begins anew, and again after SPAN steps
    last = likes[8 + SHAPES :]
    assert last == [None] + (SPAN - 1) * [9 + SHAPES] + [None, 9 + SHAPES + SPAN], last
    assert written[1]["calls"] == [{"input": "01"}, {}] and written[6]["calls"] == [
        {},
        {"at": "train.py:4"},
    ]
    make_whole(written)
    for one, other in zip(written, given):
        assert repr(one["calls"]) == repr(other["calls"]), (one, other)


@test
def steps_behind_changes_are_detailed(context):
    from lockstep_attach.steps import CHANGES, Schedule, _cuts

    clips = [{}, {"norm": 1.0, "limit": 1.0}, {"norm": 2.0, "limit": 1.0}, {"norm": None}]
    assert [_cuts(call) for call in clips] == [False, False, True, False]
    schedule, taken = Schedule(1000), []
    for number in range(1, 700):
        if schedule.take(number):
            taken.append(number)
        shape = "other" if 20 <= number < 30 else number if number > 120 else "usual"
        schedule.closed(number, shape)
    extra = [number for number in taken if number > 3]
    assert extra == [21, *range(122, 122 + CHANGES - 1)], extra
    scaled = Schedule(1000)
    for number in range(1, 30):
        scaled.multiplied(number, 2.0 ** (number // 5))
    assert scaled.extra == {14, 19}, scaled.extra


@test
def counted_steps_say_what_was_done(context):
    """Their events are those of the same job with every step looked at, but for what they lack."""
    result, whole = (
        context.both("counted"),
        context.on.run("counted", name="looked_at", LS_TEST_LOOKED_AT="1"),
    )
    # what begins in a step that is counted off is seen in the next one that is looked at
    lacking = {"input", "drawn", "samples", "begins", "multiplied", "set"}
    for rank in (0, 1):
        steps, others = result.events(rank, "step"), whole.events(rank, "step")
        assert len(steps) == len(others) == 179
        off = [step["step"] for step in steps if "counted" in step]
        assert len(off) > 70 and min(off) > 48, off
        assert not any("counted" in step for step in others)
        for one, other in zip(steps, others):
            assert one["lr"] == other["lr"] and one["loss"] == other["loss"], (one, other)
            assert one["images"] == other["images"] and "digest" in one or "digest" not in other
            calls = [{k: v for k, v in call.items() if k not in lacking} for call in one["calls"]]
            full = [{k: v for k, v in call.items() if k not in lacking} for call in other["calls"]]
            assert calls == full, (one["step"], calls, full)
        assert {"momentum": 0.5} in [
            s for one in steps for c in one["calls"] for s in c.get("set", ())
        ]


@test
def plain_ddp(context):
    result = context.both("f32")
    check_schema(result)
    same_on_both_ranks(result)
    has_local_of_all(result, 2)
    for step in (1, 2, 3, 4):
        reduced_is_mean(result, step, ROUNDINGS)
    steps = result.events(0, "step")
    assert words(steps[1]) == ["forward", "backward", "optimizer_step", "zero_grad"], words(
        steps[1]
    )
    assert "collective" in words(steps[2]) and "schedule" in words(steps[2])
    assert not any("bypassed" in call for step in steps for call in step["calls"])
    passes = result.events(0, "data")
    assert [p["sampler_epoch"] for p in passes] == [0, 1] and all(
        p["whole"] and p["trained"] for p in passes
    )
    if os.environ.get("LS_DEVICE", "cpu") == "cpu":  # data on a GPU is not read
        samples_are_named(result)
    (save,), (load,) = result.events(0, "save"), result.events(0, "load")
    assert save["what"] == {name: [name] for name in ("model", "optimizer", "epoch")}, save
    assert save["params"] == 6 and save["params_missing"] == save["wrong"] == []
    assert not save["half"]
    assert load["what"] == save["what"] and save["step"] == 6
    assert [e["what"] for e in result.events(0, "restore")] == ["model", "optimizer"]
    optimizer = result.events(0, "optimizer")[0]
    assert optimizer["rule"] == "sgd" and optimizer["groups"][0]["momentum"] == 0.9
    assert steps[4]["lr"] == 0.025 and steps[0]["images"] == 8


@test
def step_can_be_recomputed(context):
    result = context.on.run("f32", name="recomputed")
    _, named = result.samples(2)
    for name in [key[len("next/") :] for key in named if key.startswith("next/")]:
        param, grad = named["param/" + name].double(), named["used/" + name].double()
        momentum = named["state/%s/momentum_buffer" % name].double()
        expected = param - 0.05 * (0.9 * momentum + grad + 1e-4 * param)
        missed = (named["next/" + name].double() - expected).abs()
        assert bool((missed <= sgd_room(param, grad, momentum, expected)).all()), name


@test
def again_in_f32(context):
    """Where the bits are equal nothing is run in FP64."""
    names = "0.weight 0.bias 1.weight 1.bias 4.weight 4.bias".split()
    _, named = again(context.on.run("f32", name="again"), *names)
    assert sorted(key[10:] for key in named if key.startswith("again/f32/")) == sorted(names)
    assert not any(key.startswith("again/f64/") for key in named)
    for name in names:
        assert torch.equal(named["again/local/" + name], named["local/" + name])
    not_again = context.on.run("f32", name="not_again", LS_OBSERVE_GRADIENT="0")
    assert not_again.codes == [0, 0]


@test
def again_with_dropout(context):
    _, named = again(context.both("unused"), "first.weight", "third.bias")
    assert "local/second.weight" not in named and "reduced/first.weight" in named


@test
def again_under_a_redirection(context):
    # head.bias is penalized outside, too; scale belongs to the step itself
    names = {"net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias", "head.weight"}
    metadata, named = again(context.both("redirected"), *names)
    assert names == {key[len("again/f64/") :] for key in named if key.startswith("again/f64/")}
    assert metadata["again_excluded"] == "scale, head.bias", metadata
    if VERSION >= (2, 0):
        assert metadata["again_functions"] == "Halved"
        assert abs(float(metadata["again_slope"]) - 1) > 0.02, metadata


@test
def again_where_the_forward_steps(context):
    metadata, _ = again(context.both("by_hand_redirected"), "head.weight")
    assert metadata["again_excluded"] == "scale" and "again_hooks" not in metadata, metadata


@test
def again_with_hooks(context):
    changed = VERSION >= (2, 0)
    metadata, named = again(context.both("hooked"), *(["3.weight"] if changed else []))
    assert metadata["again_hooks"] == "GELU, Linear, the parameter 3.bias", metadata
    for name in ("0.weight", "3.weight"):
        cost = F32_COST * float(named["again/f64/" + name].norm()) + F32_REST
        assert off(named, name, which="again/f32/") <= cost, name
    twice = 2 * float(named["again/f64/0.weight"].norm())
    assert off(named, "0.weight", 2) <= F32_COST * twice + F32_REST
    assert not changed or metadata["again_changed"] == "an output of Sequential"


@test
def again_with_attention(context):
    if VERSION < (2, 3):
        return
    for job, prefix in (("attends", ""), ("attends_again", "inner.")):
        metadata, named = again(context.both(job))
        assert "again_dropped" not in metadata, metadata
        for name in (prefix + "read.weight", prefix + "write.weight"):
            # bf16 keeps 8 bits, and no product here has more than 16 terms: other masks miss by far
            assert off(named, name) <= 2.0**-4 * float(named["again/f64/" + name].norm()), name


@test
def again_with_other_masks_in_backward(context):
    if VERSION < (2, 3):
        return
    why = "attention that drops is computed again in backward"
    metadata, named = again(context.both("attends_otherwise"), done=why)
    assert "test_jobs.py:" in metadata["again_dropped"], metadata
    assert not any(name.startswith("again/") for name in named)


@test
def again_with_noise(context):
    if VERSION < (2, 1):
        return
    result = context.both("noisy")
    again(result, "inner.0.weight", "inner.0.bias", "inner.2.weight", "inner.2.bias")
    told = [(e["function"], e["numbers"], e["samples"]) for e in result.events(0, "noise")]
    others = [("rand", 16, 16), ("randint", 80, 16)]
    assert told == [("randn_like", 320, 16), ("normal_", 80, 16), *others], told
    begins = [
        [c["begins"] for s in result.events(rank, "step") for c in s["calls"] if "begins" in c]
        for rank in (0, 1)
    ]
    assert begins[0] and begins[0] == begins[1], begins


@test
def again_with_noise_computed_again(context):
    if VERSION < (2, 1):
        return
    again(context.both("noisy_again"), "inner.0.weight", "inner.0.bias", "inner.2.bias")


@test
def again_with_a_weight_that_a_hook_makes(context):
    again(context.both("old_norm"), "0.weight_g", "0.weight_v", "0.bias")


@test
def accumulation(context):
    if VERSION < (2, 0):
        return
    result = context.both("bf16")
    check_schema(result)
    reduced_is_mean(result, 3, ROUNDINGS)
    step = result.events(0, "step")[2]
    order = "forward backward forward backward clip optimizer_step zero_grad"
    assert " ".join(words(step)) == order
    calls = step["calls"]
    assert [c["sync"] for c in calls if c["call"] == "backward"] == [False, True]
    assert calls[0]["autocast"] == "bf16" and calls[1]["autocast"] is None
    assert calls[4]["params"] == 4 and calls[4]["norm"] > 0.5 and calls[4]["limit"] == 0.5
    _, named = result.samples(3)
    for name in ("0.weight", "3.bias"):
        assert torch.equal(named["clipped/" + name], named["used/" + name])


@test
def loss_scaling(context):
    if VERSION < (2, 3):
        return
    result = context.both("fp16")
    check_schema(result)
    steps = result.events(0, "step")
    assert steps[0]["skipped"] or steps[0]["loss_scale"] == 2.0**18
    for event, following in zip(steps, steps[1:]):
        assert event["loss_scale_next"] == following["loss_scale"]
        order = [word for word in words(event) if word not in ("zero_grad", "optimizer_step")]
        assert order == "forward scale backward unscale clip scaler_step update".split(), order
    taken = next(event for event in steps if event["detail"] and not event["skipped"])
    _, named = result.samples(taken["step"])
    for name in ("0.weight", "3.weight"):
        expected = named["reduced/" + name].double() / taken["loss_scale"]
        # the scale is a power of two: dividing by it is exact
        assert torch.equal(named["grad/" + name].double(), expected), name
        assert float(named["clipped/" + name].abs().max()) <= 0.0101


@test
def overflow(context):
    if VERSION < (2, 3):
        return
    result = context.both("fp16_overflow")
    check_schema(result)
    step = result.events(1, "step")[2]
    assert step["skipped"] and step["loss_scale_next"] == step["loss_scale"] / 2
    assert step["loss"] is None
    assert result.events(0, "step")[2]["skipped"]
    _, named = result.samples(3)
    assert not any(name.startswith(("next/", "used/")) for name in named)
    calls = [c for c in step["calls"] if c["call"] in ("scaler_step", "unscale")]
    assert (
        [c["found_inf"] for c in calls] == [True, True]
        and calls[0]["stepped"] is False
        and calls[1]["inside"]
    )
    same_on_both_ranks(result)


@test
def fused_optimizer(context):
    if VERSION < (2, 6):
        return
    result = context.both("fused")
    check_schema(result)
    steps = result.events(0, "step")
    skipped = next(event for event in steps if event["skipped"])
    taken = next(event for event in steps if event["detail"] and not event["skipped"])
    assert skipped["loss_scale_next"] == skipped["loss_scale"] / 2
    assert not [key for key in result.samples(skipped["step"])[1] if key.startswith("next")]
    _, named = result.samples(taken["step"])
    expected = named["reduced/0.weight"].double() / taken["loss_scale"]
    # the scale is a power of two: dividing by it is exact
    assert torch.equal(named["used/0.weight"].double(), expected)
    assert torch.equal(named["used/0.weight"], named["grad/0.weight"])


@test
def injected_overflow(context):
    if VERSION < (2, 3):
        return
    result = context.alone("fp16_overflow", "inject4", LS_OBSERVE_INJECT="overflow@4:1")
    assert [event["skipped"] for event in result.events(0, "step")][2:5] == [True, True, False]


@test
def other_graphs(context):
    for name in ("static_graph", "gan", "by_hand", "stream", "many_models", "reentrant"):
        result = context.both(name)
        check_schema(result)
        attach = result.events(0, "attach")
        if name == "reentrant":  # its forwards run without autograd, before the model is known
            assert [event["quiet"] for event in attach] in ([], [False]), attach
        else:
            assert not attach, (name, attach)
    result = Result(os.path.join(context.root, "gan.on"), [0, 0])
    assert [m["model"] for m in result.events(0, "model")] == [0, 1] and len(
        result.events(0, "step")
    ) == 12
    assert any(name.startswith("param/m1.") for name in result.samples(1)[1])
    result = Result(os.path.join(context.root, "by_hand.on"), [0, 0])
    assert (
        result.events(0, "model")[0]["kind"] == "plain"
        and result.events(0, "start")[0]["world"] == 2
    )
    reduced_is_mean(result, 1, ROUNDINGS)
    has_local_of_all(result, 1)
    result = Result(os.path.join(context.root, "stream.on"), [0, 0])
    (data,) = result.events(0, "data")
    assert data["indices"] is False and (data["given"], data["count"]) == (6, 0), data
    result = Result(os.path.join(context.root, "static_graph.on"), [0, 0])
    assert result.events(0, "hook")[0]["name"] == "allreduce_hook"
    reduced_is_mean(result, 3, ROUNDINGS)


@test
def passes_that_are_trained(context):
    """An iterator that is left open is not asked for the end of its pass."""
    result = context.both("passes")
    check_schema(result)
    found = {data["loader"]: data for data in result.events(0, "data")}
    assert [n for n in sorted(found) if found[n]["trained"]] == [0, 4, 5, 6], found
    assert [n for n in sorted(found) if found[n]["used"]] == [0, 4, 5, 6], found
    steps = {n: found[n]["steps"] for n in (1, 2, 3, 7)}
    assert steps == {1: [2, 2], 2: [4, 4], 3: [6, 10], 7: [18, 18]}, steps


@test
def exchanges_of_two(context):
    """batch_isend_irecv knows isend and irecv."""
    result = context.both("halo")
    assert result.codes == [0, 0], result.output()[-800:]
    check_schema(result)
    for rank, last in ((0, "send"), (1, "recv")):
        steps = result.events(rank, "step")
        calls = [c for e in steps for c in e["calls"] if c["call"] == "collective"]
        found = [(c["op"], c["elements"]) for c in calls]
        assert found == 6 * [("batch_isend_irecv", 160)] + [(last, 80)], found


@test
def whole_module_loads_without_us(context):
    """torch.save of a model takes nothing of this module along."""
    path = os.path.join(context.root, "by_hand.on", "result.whole.0.pt")
    if not os.path.exists(path):
        context.on.run("by_hand")
    with open(path, "rb") as file:
        assert b"lockstep" not in file.read()


@test
def closures(context):
    result = context.both("closure")
    check_schema(result)
    assert len(result.events(0, "step")) == 6
    (attach,) = result.events(0, "attach")
    assert attach["quiet"] is False and "closure" in attach["error"]


@test
def closures_of_other_optimizers(context):
    result = context.both("closure_first")
    check_schema(result)
    assert not result.events(0, "attach")
    order = words(result.events(0, "step")[1])
    assert order == ["forward", "backward", "optimizer_step", "zero_grad"], order
    reduced_is_mean(result, 2, ROUNDINGS)
    has_local_of_all(result, 2)
    result = context.both("closure_twice")
    check_schema(result)
    (attach,) = result.events(0, "attach")
    assert attach["quiet"] is False and "by its closure" in attach["error"]
    assert len(result.events(0, "step")) == 6
    assert not any(event["detail"] for event in result.events(0, "step"))


@test
def synced_norms(context):
    result = context.both("synced_norms")
    check_schema(result)
    assert result.events(0, "convert")[0]["converted"] == 1
    assert result.events(0, "model")[0]["sync_bn"] == 1 and result.events(0, "model")[0]["bn"] == 0
    # 1.13 refuses them on a CPU in eval mode, too
    assert len(result.events(0, "step")) == (3 if VERSION >= (2, 0) else 0)


@test
def compiled_models(context):
    if VERSION < (2, 1):
        return
    for name in ("compiled_inside", "compiled_outside", "compiled_plain", "compiled_step"):
        result = context.both(name)
        if name != "compiled_step":
            check_schema(result)
            assert len(result.events(0, "step")) == 6, name
            assert result.events(0, "attach")[0]["quiet"] is False
            assert "forward" in words(result.events(0, "step")[1])


@test
def what_files_hold(context):
    result = context.both("files", world=1)
    check_schema(result, ranks=1)
    assert [e["quiet"] for e in result.events(0, "attach")] in ([], [False])
    lists, best, early, kept, bare, whole = result.events(0, "save")
    assert lists["what"] == {
        "optimizer": ["optimizer_states.0"],
        "schedule": ["schedules.0"],
        "model": ["state_dict"],
        "epoch": ["epoch"],
    }, lists
    assert lists["numbers"] == {"epoch": 3} and lists["made"] == 4
    assert lists["fresh"] == ["optimizer", "schedule"] and lists["stale"] == []
    assert best["what"] == {"other": ["best"]} and best["made"] == 2 and best["step"] == 4
    assert early["stale"] == ["optimizer"] and early["wrong"] == [] and early["made"] == 0
    (model,) = result.events(0, "model")
    # read before the first forward, and the same weights in a copy
    assert kept["digests"] == [[0, model["digest"]["param"]]] and len(kept["wrong"]) == 4
    assert "made" not in kept and bare["what"] == {"optimizer": [""]}
    assert whole["what"] == {"model": [""]} and whole["wrong"] == []
    load = result.events(0, "load")[0]
    assert load["schedules"] == [4] and load["entries"] == [4] and load["numbers"] == {"epoch": 3}
    own, renamed, state, copied, loaded = result.events(0, "restore")
    assert own["own"] == own["taken"] == own["params"] == 4 and own["which"] == 0
    assert renamed["taken"] == renamed["own"] == 0 and renamed["renamed"] == 4
    assert state["which"] is None and state["entries"] == 4
    assert copied["which"] is None and copied["like"] == 0 and copied["own"] == 0
    assert loaded["what"] == "model" and loaded["which"] is None
    assert result.events(0, "optimizer")[0]["state"] == 0


@test
def files_of_master_copies(context):
    if VERSION < (2, 6):
        return
    result = context.both("masters")
    check_schema(result)
    fine, stale = result.events(0, "save")
    assert fine["params"] == stale["params"] == 4 and not fine["wrong"], fine
    assert len(stale["wrong"]) == 4, stale


@test
def files_of_parts(context):
    """A rank that saves by itself is not made to wait for the others."""
    if VERSION < (2, 6):
        return
    result = context.both("in_parts")
    assert result.codes == [0, 0], result.output()[-800:]
    check_schema(result)
    for rank, count in ((0, 2), (1, 0)):
        (model,), (optimizer,) = result.events(rank, "model"), result.events(rank, "optimizer")
        shards, (group,) = model["shards"], optimizer["groups"]
        assert not model["params"] and [s[0] for s in shards] == group["shards"], (model, group)
        held = {name.partition("/") for name in result.samples(1, rank)[1]}
        stepped = {(kind, "/", s[0]) for s in shards for kind in ("param", "used", "next")}
        assert stepped <= held, stepped - held
        assert not any(event["quiet"] for event in result.events(rank, "attach")), rank
        saves = result.events(rank, "save")
        assert len(saves) == count and all(s["fresh"] == ["optimizer"] for s in saves), saves
        assert not any(save["wrong"] or save["stale"] for save in saves), saves


@test
def files_of_safetensors(context):
    result = context.both("safetensors_files")
    check_schema(result)
    (save,), (load,) = result.events(0, "save"), result.events(0, "load")
    assert save["path"].endswith("model.safetensors") and load["path"] == save["path"], (save, load)
    assert save["what"] == {"model": [""]} and save["params"] == 1 and not save["wrong"], save
    assert not save["params_missing"], save  # it has the weight by its other name
    assert save["digests"][0][1] == result.events(0, "step")[-1]["digest"]["param"]


ZEROS = """
model = Net()
for linear in (model.a, model.b):
    nn.init.zeros_(linear.weight)
if {drawn}:
    nn.init.ones_(model.a.weight)
train(model, sgd(model))
"""


@test
def factors_that_are_both_zero(context):
    for drawn in (False, True):
        script = ODD_START.replace("torch.relu(self.a(x))", "self.a(x)") + ZEROS
        script = script.replace("{drawn}", str(drawn)).replace(
            "nn.Linear(8, 16)", "nn.Linear(8, 16, bias=False)"
        )
        done, said = with_and_without(context.root, "zeros%d" % drawn, script)
        assert done[0].stdout == done[1].stdout and not done[1].stderr, done
        found = [event for event in said if event["event"] == "detached"]
        assert len(found) == (not drawn), said
        assert drawn or (found[0]["product"] and found[0]["names"] == ["a.weight", "b.weight"])
        assert drawn or found[0]["digests"] == found[0]["digests_now"], found


@test
def masks_of_batches_are_named(context):
    """By their places alone: of whole numbers below 0 and of truth values, with different rows."""
    code = """
from torch.utils.data import DataLoader
class Masks:
    def __init__(self, seed):
        self.rng = random.Random(seed)
    def __call__(self, rows):
        x, labels = torch.stack(rows), torch.full((len(rows), 8), -100)
        drawn = torch.zeros(len(rows), 8, dtype=torch.bool)
        for k in range(len(rows)):
            place = self.rng.randrange(8)
            labels[k, place] = int(100 * x[k, 0].abs())
            drawn[k, place] = True
        return x, labels, drawn, torch.ones(len(rows), 8, dtype=torch.long)
model = Net()
optimizer = sgd(model)
for seed in (1, 1, 2):
    for x, *_ in DataLoader(inputs + seed, batch_size=16, shuffle=True, collate_fn=Masks(seed)):
        model(x).sum().backward()
        optimizer.step()
"""
    done, said = with_and_without(context.root, "masks_of_batches", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    passes = [event for event in said if event["event"] == "data"]
    masks = [event["masks"] for event in passes]
    assert masks[0] == masks[1] and len(masks[0]) == 6 and masks[2][0][3] != masks[0][0][3], masks
    assert [one[:2] for one in masks[0]] == [[n, k] for n in (1, 2, 3) for k in (1, 2)], masks
    assert all(2 <= one[2] <= 8 for one in masks[0]), masks


@test
def samplers_below_others_are_counted(context):
    """What a sampler gives in each pass, where another one takes a part of it."""
    code = """
from torch.utils.data import DataLoader, Sampler
class Own(Sampler):
    def __init__(self, first):
        self.first = first
    def __iter__(self):
        return iter(range(self.first, 64))
class Part:
    batch_size, drop_last = 4, False
    def __init__(self, sampler):
        self.sampler = sampler
        self.batch_sampler = torch.utils.data.BatchSampler(sampler, 4, False)
    def __iter__(self):
        return (batch for n, batch in enumerate(self.batch_sampler) if n % 2 == 0)
class Shard(Part):
    def __init__(self, sampler):
        super().__init__(sampler)
        del self.sampler
model = Net()
optimizer = sgd(model)
for sampler in (Shard(Own(0)), Shard(Own(16)), Part(Own(0)), None):
    loader = DataLoader(inputs, batch_sampler=sampler) if sampler else DataLoader(inputs)
    for _ in range(2):
        for x in loader:
            model(x).sum().backward()
            optimizer.step()
"""
    done, said = with_and_without(context.root, "samplers_below", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    passes = [event for event in said if event["event"] == "data"]
    given = [(e.get("inner"), e.get("inner_count"), e["count"]) for e in passes]
    own = [("Own", 64, 32)] * 2 + [("Own", 48, 24)] * 2
    assert given == own + [(None, 64, 32)] * 2 + [(None, None, 64)] * 2, given
    assert [e["inner_kept"][0] for e in passes[:4]] == [0, 0, 16, 16], passes


@test
def noise_of_validations_is_seen(context):
    """Of the process's generator, in the second validation; not where each one seeds it alike."""
    code = """
from torch.utils.data import DataLoader
model = Net()
optimizer = sgd(model)
for epoch in range(3):
    model.train()
    for x in DataLoader(inputs, batch_size=16):
        model(x + torch.randn_like(x)).sum().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad(), torch.random.fork_rng():
        if SEEDED:
            torch.manual_seed(7)
        for x in DataLoader(inputs[:32], batch_size=16):
            model(x + torch.randn_like(x))
"""
    for seeded in (False, True):
        script = ODD_START + code.replace("SEEDED", str(seeded))
        done, said = with_and_without(context.root, "noise_of%d" % seeded, script)
        assert done[0].returncode == done[1].returncode == 0, done
        found = [e["at"] for e in said if e.get("kind") == "noise_in_eval"]
        line = script[: script.rindex("model(x +")].count("\n") + 1
        assert len(found) == (not seeded), found
        assert seeded or found[0].endswith("noise_of0.py:%d" % line), found


@test
def copies_say_in_which_mode_they_are_validated(context):
    """Only while the model is in eval mode: in training mode, in eval mode, or as a teacher."""
    code = """
import copy
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
average, teacher = (torch.optim.swa_utils.AveragedModel(model) for _ in range(2))
mine, like = copy.deepcopy(model), nn.Sequential(nn.Dropout(0.5))
optimizer = sgd(model)
for epoch in range(2):
    model.train()
    for x in inputs[:16].split(8):
        with torch.no_grad():
            teacher(x)
        model(x).sum().backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for name in "average", "teacher", "mine", "like":
            globals()[name](x)
        mine.eval()(x), average.eval()(x), average.train()(x)
"""
    done, said = with_and_without(context.root, "modes_of_copies", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    found = [e for e in said if e["event"] == "step" for e in e["calls"]]
    found = [e for e in found if e["call"] == "average" and "training" in e]
    modes = [(e["what"], e["training"], e.get("meant", False)) for e in found]
    mine, like = ("copy", False, False), [("forward", False, False), ("forward", True, True)]
    first = [("forward", True, False), ("forward", True, True), ("copy", True, False)]
    assert modes == [*first, mine, *like, *like[1:] * 2, mine, mine, *like], modes
    assert (found[0]["dropout"], found[0]["norms"]) == (1, 1), found


@test
def parameters_without_memory_are_counted(context):
    """As FSDP2 leaves those that were gathered when the optimizer was built."""
    if not hasattr(torch.Tensor, "untyped_storage"):
        return
    code = """
model, gathered = Net(), nn.Parameter(torch.ones(8))
optimizer = torch.optim.SGD([*model.parameters(), gathered], lr=0.1)
gathered.untyped_storage().resize_(0)
train(model, optimizer)
"""
    done, said = with_and_without(context.root, "freed", ODD_START + code)
    assert done[0].stdout == done[1].stdout and not done[1].stderr, done
    (freed,) = [event for event in said if event["event"] == "freed"]
    assert (freed["optimizer"], freed["count"], freed["among"]) == (0, 1, 5), freed
    assert not [event for event in said if event.get("quiet")], said


@test
def large_models_have_fewer_digests(context):
    """But for those of a loss scale: a skip is told by the digests around it."""
    code = """
model = Net()
model.large = nn.Parameter(torch.ones(WORDS, dtype=torch.float64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled=SCALED)
for _ in range(14):
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
    scaler.step(optimizer)
    scaler.update()
print(model.b.bias.sum().item())
"""
    if not hasattr(torch.amp, "GradScaler"):
        return
    fewer = [*range(1, 9), 9, 11, 12, 13, 14]  # 9 and 13 in detail, 14 the last one
    for words, scaled, steps in ((1 << 22, False, fewer), (9, False, None), (1 << 22, True, None)):
        text = code.replace("WORDS", str(words)).replace("SCALED", str(scaled))
        name = "large%d_%d" % (words, scaled)
        done, said = with_and_without(context.root, name, ODD_START + text)
        assert done[0].stdout == done[1].stdout and not done[1].stderr, done
        found = [e["step"] for e in said if e["event"] == "step" and "digest" in e]
        assert found == (steps or list(range(1, 15))), (words, scaled, found)


@test
def schedules_that_a_library_counts_on(context):
    """As ignite's LRScheduler, which calls no step()."""
    code = """
import warnings
warnings.simplefilter("ignore")  # get_lr() out of step()
model = Net()
optimizer = sgd(model)
moved, read, stepped = (torch.optim.lr_scheduler.StepLR(optimizer, 9) for _ in range(3))
optimizer.step()
stepped.step()
read.get_lr()
for _ in range(2):
    moved.last_epoch += 1
    moved.get_lr()
train(model, optimizer)
"""
    done, said = with_and_without(context.root, "counted_on", ODD_START + code)
    assert done[0].stdout == done[1].stdout and not done[1].stderr, done
    found = [event["schedule"] for event in said if event["event"] == "schedule_moved"]
    assert found == [0], said


@test
def copies_that_are_stepped_are_compared(context):
    code = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(Net().bfloat16())
copies = [nn.Parameter(p.detach().float()) for p in model.parameters()]
optimizer = torch.optim.SGD(copies, lr=0.1)
model.module.b.bias.data.fill_(0.5)
for _ in range(3):
    model.zero_grad()
    loss = F.cross_entropy(model(inputs.bfloat16()).float(), targets)
    loss.backward()
    for own, p in zip(copies, model.parameters()):
        own.grad = p.grad.float()
    optimizer.step()
    for own, p in zip(copies, model.parameters()):
        p.data.copy_(own.detach())
print(loss.item())
dist.destroy_process_group()
"""
    done, said = with_and_without(context.root, "copies", ODD_START + code)
    assert done[0].stdout == done[1].stdout and not done[1].stderr, done
    calls = [call for event in said if event["event"] == "step" for call in event["calls"]]
    found = [call["copies"] for call in calls if call["call"] == "optimizer_step"]
    assert found == [[4, 3, "b.bias"], [4, 4, ""], [4, 4, ""]], found


@test
def parameters_that_train_freezes_late(context):
    """By a train() of the model itself, or of a part of it, that nothing has called before."""
    code = """
class Late(Net):
    def train(self, mode=True):
        super().train(mode)
        for param in self.a.parameters() if mode else ():
            param.requires_grad = False
        return self
class Within(nn.Module):
    def __init__(self):
        super().__init__()
        self.late = Late()
    def forward(self, x):
        return self.late(x)
for model in (Late(), Within(), Net()):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer)
    model.train()
    train(model, optimizer)
    model.train()
"""
    done, said = with_and_without(context.root, "froze", ODD_START + code)
    assert done[0].stdout == done[1].stdout and not done[1].stderr, done
    found = [(e["model"], e["names"]) for e in said if e["event"] == "froze"]
    first = ["a.weight", "a.bias"]
    assert found == [(0, first), (1, ["m1.late." + name for name in first])], found
    assert not [event for event in said if event.get("quiet")], said


@test
def parts_are_named_by_their_place(context):
    """Ranks that hold the same part have one name for it: those of a dimension that replicates."""
    from lockstep_attach.params import part_of

    class Placed(torch.Tensor):
        pass

    def placed(coordinate, divides):
        tensor = torch.ones(2).as_subclass(Placed)
        kinds = [type("S", (), {"__str__": lambda self: "S(0)"}), type("R", (), {})]
        for kind, replicates in zip(kinds, (False, True)):
            kind.is_replicate = lambda self, replicates=replicates: replicates
        tensor.device_mesh = types.SimpleNamespace(get_coordinate=lambda: coordinate)
        tensor.placements = [kinds[0 if one else 1]() for one in divides]
        return part_of(tensor)

    assert part_of(torch.nn.Parameter(torch.ones(2))) == "whole"
    assert placed([0, 1], [False, True]) == placed([1, 1], [False, True]) == "1 of S(0)"
    assert placed([0, 1], [False, True]) != placed([0, 0], [False, True])
    assert placed([1], [False]) == "whole" and placed([0], [True]) == "0 of S(0)"


@test
def optimizers_without_gradients_are_named(context):
    """Built of parameters that the model has copies of; in the second job only until step 10."""
    code = """
model, other = Net(), Net()
optimizer = sgd(other)
train(model, optimizer)
if %s:
    optimizer.param_groups[0]["params"] = list(model.parameters())
    train(model, optimizer)
"""
    for later in (False, True):
        done, said = with_and_without(context.root, "bare%d" % later, ODD_START + code % later)
        assert done[0].stdout == done[1].stdout and not done[1].stderr, done
        found = [(e["optimizer"], e["count"], e["later"]) for e in said if e["event"] == "bare"]
        assert found == [(0, 4, False), (0, 4, True)][: 1 + later], found
        assert not [event for event in said if event.get("quiet")], said


@test
def copies_and_names(context):
    """How far an average moves, its bits in a file, and a parameter that became two."""
    result = context.both("copies", world=1)
    check_schema(result, ranks=1)
    moved = [e for e in result.events(0, "averaged") if e["average"] == 0]
    assert [e["step"] for e in moved] == [1, 2, 3], moved
    for event in moved:
        assert abs(event["share"] - 1 / (event["step"] + 1)) <= event["bound"] < 1e-3, event
    assert ["bits" in event for event in moved] == [True, False, False]
    assert len(result.events(0, "save")[0]["averages"]) == 1
    untied = result.events(0, "untied")
    assert all("test_jobs" in one["at"] and len(one["names"]) == 2 for one in untied), untied
    assert len(untied) == (2 if VERSION >= (2, 1) else 1), untied
    if VERSION >= (2, 1):
        assert ["read.weight", "write.weight"] in [one["names"] for one in untied], untied
        own = result.events(0, "restore")[0]
        assert own["bits"] == result.events(0, "model")[0]["digest"]["param"], own


@test
def parameters_in_the_place_of_others(context):
    """Of each optimizer once, in the first detailed step in which they have gradients."""
    result = context.both("successors", world=1)
    check_schema(result, ranks=1)
    held = {e["optimizer"]: [p[0] for p in e["params"]] for e in result.events(0, "replaced")}
    norm = "0.parametrizations.weight.original"
    norms = {0: [norm + "0", norm + "1"]} if VERSION >= (2, 1) else {}
    assert held == {**norms, 1: ["1.bias"]}, held
    assert all("test_jobs" in p[1] for e in result.events(0, "replaced") for p in e["params"])


@test
def weights_put_in_and_branches_that_choose(context):
    result = context.both("put_in", world=1)
    check_schema(result, ranks=1)
    (branch,) = result.events(0, "detached")
    assert branch["names"] == ["router.weight", "router.bias"] and branch["read"], branch
    assert branch["digests"] == branch["digests_now"] and "test_jobs" in branch["at"], branch
    first, last = result.events(0, "validated")
    left = result.events(0, "step")[first["step"] - 1]["digest"]["param"]
    assert first["param"] != first["param_next"] == left, (first, left)
    assert last["param"] == last["param_next"], last


@test
def backward_in_a_forward(context):
    if VERSION < (2, 3):
        return
    result = context.both("backward_in_forward", world=1)
    check_schema(result, ranks=1)
    errors = [event["error"] for event in result.events(0, "attach")]
    assert not any("Error" in error for error in errors), errors
    assert len(result.events(0, "step")) > 100, len(result.events(0, "step"))


@test
def parameters_of_a_second_wrapper(context):
    result = context.both("wrapped_again")
    check_schema(result)
    (held,) = result.events(0, "held")
    groups = [["m1.3.weight", "m1.3.bias"], ["m1.0.weight", "m1.0.bias"]]
    assert [group["params"] for group in held["groups"]] == groups, held


@test
def two_optimizers_of_one_parameter(context):
    result = context.both("inner_and_outer", world=1)
    check_schema(result, ranks=1)
    _, named = result.samples(2)
    assert torch.equal(named["used/0.weight"], named["reduced/0.weight"]), named["used/0.weight"]


@test
def models_that_methods_call(context):
    """Where one module in them is called in their place it is seen, from the third step on."""
    result = context.both("by_method", world=1)
    check_schema(result, ranks=1)
    assert not result.events(0, "attach"), result.events(0, "attach")
    steps = result.events(0, "step")
    forwards = [
        [c for c in step["calls"] if c["call"] == "forward" and c["grad"]] for step in steps
    ]
    assert [len(found) for found in forwards] == [0, 0] + [1] * 10, forwards
    assert all(call["training"] and call["model"] == 0 for found in forwards for call in found)
    metadata, named = result.samples(3)
    assert metadata["again"] == "done", metadata
    assert off(named, "net.0.weight", whose="again/f32/") == 0
    (attach,) = context.both("by_methods", world=1).events(0, "attach")
    assert "before any forward" in attach["error"], attach


@test
def weights_put_in_by_one_rank(context):
    result = context.both("put_in_by_one")
    check_schema(result)
    for rank in (0, 1):
        steps = result.events(rank, "step")
        moved = [step.get("moved", False) for step in steps]
        assert moved == [False] * 3 + [rank == 0], (rank, moved)
    digests = [result.events(rank, "step")[-1]["digest"]["param"] for rank in (0, 1)]
    assert digests[0] != digests[1]


CHOOSES = """
import torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    def forward(self, x):
        waves = torch.sin, torch.cos
        return self.b(torch.cond(x.sum() > 0, *waves, (self.a(x),)))
net = Net()
o = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(3):
    o.zero_grad(), net(torch.randn(4, 8)).mean().backward(), o.step()
print(float(net.a.weight.sum()))
"""


@test
def operators_of_operators(context):
    """torch.cond compiles, and does not run under a mode of ours."""
    if VERSION >= (2, 6):
        done, events = with_and_without(context.root, "operators_of_operators", CHOOSES)
        assert [one.returncode for one in done] == [0, 0], done[1].stderr
        assert done[0].stdout == done[1].stdout
        assert sum(1 for event in events if event["event"] == "step") == 3


TRAINS = """
import os, sys, torch
m = torch.nn.Linear(2, 2)
o = torch.optim.SGD(m.parameters(), 0.1)
for _ in range(int(sys.argv[1])):
    o.zero_grad(), m(torch.ones(1, 2)).sum().backward(), o.step()
if sys.argv[2:]:
    os.system(" ".join([sys.executable, *sys.argv[2:]]))
"""


@test
def jobs_of_one_command(context):
    """One after the other each has a folder; one within another has none."""
    root = os.path.join(context.root, "jobs_of_one_command")
    os.makedirs(root)
    with open(os.path.join(root, "job.py"), "w") as file:
        file.write(TRAINS)
    events, later = os.path.join(root, "events"), os.path.join(root, "later")
    env = environment(True, LS_OBSERVE_DIR=events, LS_OBSERVE_LATER=later)
    for words in ("1", "2 job.py 4", "3"):
        subprocess.run([sys.executable, "job.py", *words.split()], env=env, cwd=root, check=True)
    folders = [events, *(os.path.join(later, n, "jobs", "observed") for n in "23")]
    for steps, folder in enumerate(folders, 1):
        with open(os.path.join(folder, "rank0.jsonl")) as file:
            found = [json.loads(line)["event"] for line in file]
        assert found.count("step") == steps and found[-1] == "end", (folder, found)
        assert os.path.exists(os.path.join(folder, "later.rank0")) == (steps == 2), folder
    assert sorted(os.listdir(later)) == ["2", "3"]


@test
def places_in_packages(context):
    result = context.both("packages")
    check_schema(result)
    near, far, further = (
        next(c["at"] for c in event["calls"] if c["call"] == "optimizer_step")
        for event in result.events(0, "step")
    )
    script = r"[^ ]*test_jobs\.py:\d+"
    assert re.fullmatch(script + r" \(trainer/torch\.py:3\)", near), near
    for place in (far, further):
        assert re.fullmatch(r"trainer/torch\.py:7 \(from %s\)" % script, place), place
    backward = [c["at"] for c in result.events(0, "step")[1]["calls"] if c["call"] == "backward"]
    assert re.fullmatch(script, backward[0]), backward


@test
def scaled_losses(context):
    if VERSION < (2, 3):
        return
    result = context.both("scales", world=1)
    check_schema(result, ranks=1)
    steps = result.events(0, "step")
    backward = [[c for c in s["calls"] if c["call"] == "backward"] for s in steps]
    assert [b["scaled"] for b in backward[1]] == [0, 0], backward[1]
    for step in backward[2:4]:
        assert step[0]["scaled"] is None and step[0]["dropped"], step
    assert all("dropped" not in b for step in backward[:2] for b in step)
    assert [c.get("again") for c in steps[4]["calls"] if c["call"] == "scale"] == [None, True]
    (tail,) = result.events(0, "unfinished")
    zeros = [c for c in tail["calls"] if c["call"] == "zero_grad"]
    assert [(z["discards"], z["finite"]) for z in zeros] == [(1, False), (1, True)], zeros


@test
def single_process(context):
    result = context.both("f32_alone", world=1)
    check_schema(result, ranks=1)
    start_event = result.events(0, "start")[0]
    assert start_event["world"] == 1 and start_event["backend"] == ""


@test
def errors_arrive(context):
    result = context.both("caught")
    check_schema(result)
    for job, code in (("leaves", 7), ("raises", 1)):
        result = context.both(job)
        assert result.codes == [code, code], result.codes
        check_schema(result)
    assert "the user's own" in result.output()


@test
def killed_jobs(context):
    for job, code in (("killed", -9), ("terminated", -15), ("left_at_once", 5)):
        result = context.both(job)
        assert result.codes == [code, code], result.codes
        check_schema(result, whole=False)
        assert len(result.events(0, "step")) >= 3, job
        for rank in (0, 1):
            with open(os.path.join(result.folder, "events", "open.rank%d" % rank), "rb") as file:
                data = file.read().partition(b"\0")[0].decode()
            number, calls = data.split("\n")
            assert int(number) > len(result.events(rank, "step")) >= 3
            known = {event["number"]: event for event in result.events(rank, "call")}
            assert all(int(call, 16) in known for call in calls.split()), calls
            assert {"forward", "backward"} <= {event["call"] for event in known.values()}


@test
def no_collective_is_added(context):
    result = context.both("f32", name="profiled", TEST_PROFILE="1")
    assert result.facts[0]["collectives"] > 6


@test
def broken_module(context):
    """An error in the middle of this module's own code leaves the job as it is."""
    control = context.off.run("f32", name="unbroken")
    for point in (
        "models.Models._note_forward",
        "detail.Detail._local",
        "steps.Steps.close",
        "optimizers.Optimizers.rates",
    ):
        result = context.alone("f32", "broken." + point.split(".")[-1], TEST_BREAK=point)
        same = result.codes == [0, 0] and result.facts == control.facts
        assert same, (point, result.output()[-800:])
        last = result.events(0)[-1]
        said = last["event"] == "attach" and last["quiet"] and "planted" in last["error"]
        assert said, (point, last)


@test
def limited_steps(context):
    result = context.alone("f32", "limited", LS_OBSERVE_STEPS="3")
    end = result.events(0)[-1]
    assert end["why"] == "steps" and end["steps"] == 3 and len(result.events(0, "step")) == 3
    control = context.off.run("f32", name="unlimited")
    assert result.facts == control.facts


@test
def digests_depend_on_the_step_alone(context):
    result = context.on.run("long")
    assert result.codes == [0, 0], result.output()
    taken = [
        {e["step"]: e["digest"] for e in result.events(rank, "step") if "digest" in e}
        for rank in (0, 1)
    ]
    assert taken[0] == taken[1]
    steps = list(taken[0])
    assert len(steps) < 150, len(steps)
    assert steps[:32] == list(range(1, 33)) and {203, 204, 299} < set(steps), steps
    assert all(later - earlier <= 13 for earlier, later in zip(steps, steps[1:])), steps


@test
def launchers(context):
    jobs = [sys.executable, JOBS_FILE, "f32", "RESULT"]
    control = context.off.run("f32", name="launched").facts
    for how in ("spawn", "fork"):
        result = start(context.root, how, jobs, TEST_START=how)
        assert result.codes == [0] and result.facts == control, (how, result.output()[-800:])
        check_schema(result)
    if VERSION < (2, 0) and sys.version_info >= (3, 11):
        return  # its torchrun does not start there
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
    run += ["--master_port=" + free_port()]
    result = start(context.root, "torchrun", run + jobs[1:])
    assert result.codes == [0] and result.facts == control, result.output()[-800:]
    check_schema(result)
    files = os.listdir(os.path.join(result.folder, "events"))
    of_ranks = ["open.rank0", "open.rank1", "rank0.jsonl", "rank1.jsonl"]
    assert sorted(files) == of_ranks + ["samples"], files


JOINS = """
import datetime, os, sys
import torch
import torch.distributed as dist

folder, seen = os.environ["LS_OBSERVE_DIR"], []

def look(event, args):  # 1.13 holds the interpreter's lock while it waits
    if event == "os.remove" and str(args[0]).startswith(folder):
        with open(args[0]) as file:
            seen.append((os.path.basename(args[0]), file.read()))

sys.addaudithook(look)
try:
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1), **eval(sys.argv[1]))
except Exception:
    pass
text = sys.argv[2].replace("PORT", os.environ["MASTER_PORT"])
assert seen == [("joining.%d" % os.getpid(), text + "\\n")], seen
assert os.listdir(folder) == [], os.listdir(folder)
"""


@test
def a_rank_that_joins_says_so(context):
    """joining.<pid>, as long as init_process_group waits for other ranks."""
    rows = (
        ("{}", "1 2 127.0.0.1 PORT"),
        ('{"init_method": "tcp://127.0.0.1:9", "rank": 1, "world_size": 3}', "1 3 127.0.0.1 9"),
        (
            '{"init_method": "file:///tmp/" + str(os.getpid()), "rank": 1, "world_size": 3}',
            "1 3 - -",
        ),
    )
    for number, (given, expected) in enumerate(rows):
        command = [sys.executable, "-c", JOINS, given, expected]
        result = start(context.root, "joins%d" % number, command, RANK="1", WORLD_SIZE="2")
        assert result.codes == [0], (given, result.output()[-800:])


@test
def warnings_name_the_users_line(context):
    """torch warns about its caller, by the number of frames between."""
    script = (
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)\n"
        "model(torch.ones(4, 2)).sum().backward()\n"
        "schedule.step()\n"
        "optimizer.step()\n"
        "torch.nn.functional.mse_loss(model(torch.ones(4, 2))[:, :1], torch.ones(4))\n"
    )
    done, _ = with_and_without(context.root, "warned", script)
    said = [one.stderr for one in done]
    assert said[0] == said[1] and said[0].count(b"UserWarning") == 2, said
    # of the schedule's, 1.13 and 2.6 name a line of their own
    assert b"warned.py:8" in said[0], said


PICKLES = """
import pickle, types
import torch
import torch.distributed
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).sum().backward()
optimizer.step()
owners = torch, torch.distributed, torch.nn.functional
found = [one for owner in owners for one in vars(owner).values()]
functions = [one for one in found if type(one) is types.FunctionType and "_ls_self" in vars(one)]
functions += [torch.load, torch.save, torch.distributed.isend]
lost = [one for one in functions if pickle.loads(pickle.dumps(one)) is not one]
print(lost)
"""


@test
def functions_can_be_pickled(context):
    """A data set's loader, or what seeds its workers, goes to processes that are spawned."""
    done, _ = with_and_without(context.root, "pickles", PICKLES)
    assert [one.stdout for one in done] == 2 * [b"[]\n"], [one.stderr[-800:] for one in done]


ODD_START = """
import pickle, random, threading
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
inputs, targets = torch.randn(64, 8), torch.randint(3, (64,))
class Net(nn.Module):
    def __init__(self, between=lambda x: x):
        super().__init__()
        self.a, self.b, self.drop = nn.Linear(8, 16), nn.Linear(16, 3), F.dropout
        self.between = between
    def forward(self, x):
        return self.b(self.between(torch.relu(self.a(x))))
def train(model, optimizer, steps=12, then=lambda output: F.cross_entropy(output, targets)):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = then(model(inputs))
        loss.backward()
        optimizer.step()
    print(sum(p.double().sum().item() for p in model.parameters()), loss.item())
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)
"""
ODD = {
    "a counter outside the module": """
count = 0
class Counts(Net):
    def forward(self, x):
        global count
        count += 1
        return super().forward(x) / count
model = Counts()
train(model, sgd(model))
print(count)
""",
    "a generator outside the module": """
drawn = random.Random(0)
class Draws(Net):
    def forward(self, x):
        return super().forward(x) * drawn.random()
model = Draws()
train(model, sgd(model))
""",
    "a function that counts": """
class Rounds(torch.autograd.Function):
    calls = [0, 0]
    @staticmethod
    def forward(ctx, x):
        Rounds.calls[0] += 1
        return torch.round(x * 8) / 8
    @staticmethod
    def backward(ctx, grad):
        Rounds.calls[1] += 1
        return grad
model = Net(Rounds.apply)
train(model, sgd(model))
print(Rounds.calls)
""",
    "hooks for what graphs keep": """
kept = {}
def pack(tensor):
    kept[len(kept)] = tensor.detach().clone()
    return len(kept) - 1
def unpack(place):
    return kept.pop(place) if place in kept else 1 / 0
model = Net()
optimizer = sgd(model)
for _ in range(6):
    kept.clear()
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), torch.ones(64, 3)) / 2
        loss.backward()
        optimizer.step()
    print(loss.item(), len(kept))
""",
    "a step that takes a model": """
class Own(torch.optim.SGD):
    def step(self, model, inputs):
        F.cross_entropy(model(inputs), targets).backward()
        super().step()
model = Net()
optimizer = Own(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    optimizer.step(model, inputs)
print(sum(p.double().sum().item() for p in model.parameters()))
""",
    "a model that keeps a function": """
model = Net(nn.ReLU())
train(model, sgd(model))
model.eval()
print(len(pickle.dumps(model)))
""",
    "a thread that draws": """
ready, wanted, drawn = threading.Semaphore(0), threading.Semaphore(1), []
def draw():
    for _ in range(12):
        wanted.acquire()
        drawn.append(torch.randn(64, 3))
        ready.release()
def noisy(output):
    ready.acquire()
    wanted.release()
    return F.cross_entropy(output + drawn.pop(0), targets)
model = Net()  # its weights are drawn first
threading.Thread(target=draw, daemon=True).start()
train(model, sgd(model), 11, noisy)
""",
    "a forward that prints": """
class Says(Net):
    def forward(self, x):
        print("forward")
        return super().forward(x)
model = Says()
train(model, sgd(model))
""",
}


@test
def odd_jobs_stay_as_they_are(context):
    """What a job does outside its modules happens as often as without this module, and none of it
    makes that go quiet.
    """
    for number, (name, code) in enumerate(ODD.items()):
        done, said = with_and_without(context.root, "odd%d" % number, ODD_START + code)
        assert done[0].returncode == done[1].returncode == 0, (name, done)
        assert (done[0].stdout, done[0].stderr) == (done[1].stdout, done[1].stderr), (name, done)
        assert not [event for event in said if event.get("quiet")], (name, said)


@test
def validations_call_the_module_inside(context):
    code = """
from torch.utils.data import DataLoader, TensorDataset
class Draws(Net):
    def forward(self, x):
        y = F.dropout(super().forward(x), 0.1)
        return y if random.random() < 0.5 else 2 * y
class Heir(Draws):
    pass
torch.distributed.init_process_group(
    "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
random.seed(0)
model = nn.parallel.DistributedDataParallel(Draws())
optimizer = sgd(model)
loader = DataLoader(TensorDataset(inputs, targets), 16)
train(model, optimizer, 3)
model(next(iter(loader))[0])  # rows are looked at from here on
model.module.eval()
with torch.no_grad():
    print([model.module(x).sum().item() for x, _ in loader])
train(model, optimizer, 3)
heir = Heir()  # of a class without a forward
optimizer = sgd(heir)
train(nn.parallel.DistributedDataParallel(heir), optimizer, 3)
"""
    done, said = with_and_without(context.root, "inside", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    assert done[0].stdout == done[1].stdout, done
    kinds = {event["kind"]: event.get("name") for event in said if event["event"] == "misuse"}
    assert kinds == {"dropout_in_eval": None, "choice_in_eval": "random"}, kinds
    calls = [call for event in said if event["event"] == "step" for call in event["calls"]]
    assert [call["mode"] for call in calls if "mode" in call] == ["eval"], calls
    assert not [event for event in said if event["event"] == "attach"], said


@test
def averages_of_micro_steps_are_seen(context):
    """Those that move with every batch, behind the step as well or before it, and one that moves
    with every step.
    """
    code = """
import copy
model = Net()
optimizer = sgd(model)
kept = [copy.deepcopy(model).requires_grad_(False) for _ in range(3)]
def follow(average):
    for one, own in zip(average.parameters(), model.parameters()):
        one.data.lerp_(own.data, 0.1)
for number in range(8):
    F.cross_entropy(model(inputs), targets).backward()
    follow(kept[2])
    if number % 2:
        optimizer.step()
        optimizer.zero_grad()
        follow(kept[0])
    follow(kept[1])
"""
    done, said = with_and_without(context.root, "hasty", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    moved = [event for event in said if event["event"] == "averaged"]
    early = [(e["step"], e["early_times"], e["share"] != 0) for e in moved if e.get("early")]
    assert len(moved) > 4 and len({e["average"] for e in moved if e.get("early")}) == 2, moved
    assert sorted(early) == [(n, *e) for n in (2, 3, 4) for e in ((1, True), (2, False))], moved


@test
def averages_in_dicts_are_seen(context):
    """One whose tensors are moved, and one that a member of an object has others of each time."""
    code = """
import io
class Kept:
    def __init__(self, model):
        self.moved = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.made = dict(self.moved)
    def follow(self, model):
        for name, p in model.named_parameters():
            self.made[name] = 0.9 * self.made[name] + 0.1 * p.detach()
            self.moved[name].lerp_(p.detach(), 0.2)
model = Net()
optimizer, kept = sgd(model), Kept(model)
kept.made = {name: one.clone() for name, one in kept.moved.items()}
for number in range(6):
    F.cross_entropy(model(inputs + number), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.follow(model)
torch.save({"ema": kept.moved, "model": model.state_dict()}, io.BytesIO())
"""
    done, said = with_and_without(context.root, "dicts", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    shares = {e["average"]: round(e["share"], 3) for e in said if e["event"] == "averaged"}
    held = [(n, whole) for e in said if e["event"] == "save" for n, _, whole in e["averages"]]
    moved = next((n for n, share in shares.items() if share == 0.2), None)
    assert sorted(shares.values()) == [0.1, 0.2], shares
    assert sorted(held) == sorted((n, n == moved) for n in shares), held


@test
def averages_with_statistics_of_the_start_are_seen(context):
    """A teacher that runs in eval mode in each step, and follows in its parameters, or in all."""
    code = """
import copy
model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3))
optimizer = sgd(model)
teacher = copy.deepcopy(model).eval().requires_grad_(False)
for number in range(6):
    with torch.no_grad():
        aim = teacher(inputs).softmax(1)
    F.cross_entropy(model(inputs + number), aim).backward()
    optimizer.step()
    optimizer.zero_grad()
    for one, own in zip(teacher.parameters(), model.parameters()):
        one.data.lerp_(own.data, 0.1)
    if FOLLOWS:
        teacher[0].running_mean.copy_(model[0].running_mean)
"""
    for follows in (False, True):
        script = ODD_START + code.replace("FOLLOWS", str(follows))
        done, said = with_and_without(context.root, "teacher%d" % follows, script)
        assert done[0].returncode == done[1].returncode == 0, done
        calls = [call for event in said if event["event"] == "step" for call in event["calls"]]
        stale = [call["at"] for call in calls if call.get("what") == "stale" and call["unmoved"]]
        assert bool(stale) != follows, calls
        assert all(
            at.endswith(":%d" % (script[: script.index("aim =")].count("\n") + 1)) for at in stale
        )


@test
def methods_of_subclasses_of_a_scaler_are_seen(context):
    """Once in each step, whether they call GradScaler's or stand in its place."""
    code = """
Base = torch.amp.GradScaler
class Calls(Base):
    def scale(self, outputs):
        return super().scale(outputs)
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
    def update(self, new_scale=None):
        super().update(new_scale)
class Replaces(Base):
    def scale(self, outputs):
        if self._scale is None:
            self._lazy_init_scale_growth_tracker(outputs.device)
        return outputs * self._scale
    def update(self, new_scale=None):
        self._scale.fill_(1024.0)
        self._per_optimizer_states.clear()
model = Net()
optimizer, scaler = sgd(model), KIND("cpu", init_scale=1024.0)
for number in range(4):
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
"""
    for kind in ("Calls", "Replaces") if VERSION >= (2, 3) else ():
        script = ODD_START + code.replace("KIND", kind)
        done, said = with_and_without(context.root, "scaler_" + kind, script)
        assert done[0].returncode == done[1].returncode == 0, done
        steps = [event for event in said if event["event"] == "step"]
        make_whole(steps)
        for word in ("scale", "unscale", "scaler_step", "update"):
            counts = [[call["call"] for call in step["calls"]].count(word) for step in steps]
            assert counts == [1] * 4, (kind, word, counts)


@test
def values_that_replace_loaded_ones_are_reported(context):
    """When training begins, of those that load_state_dict gave; none where they are kept."""
    code = """
torch.manual_seed(1)
other, model = Net(), Net()
model.load_state_dict(other.state_dict())
if DRAWN:
    model.a.reset_parameters()
train(model, sgd(model))
"""
    for drawn in (False, True):
        script = ODD_START + code.replace("DRAWN", str(drawn))
        done, said = with_and_without(context.root, "drawn%d" % drawn, script)
        assert done[0].returncode == done[1].returncode == 0, done
        found = [event for event in said if event["event"] == "overwritten"]
        assert [event["full"] for event in found] == ["a.weight", "a.bias"] * drawn, found
        line = script[: script.index("model.load_state_dict")].count("\n") + 1
        assert all(event["at"].endswith(":%d" % line) for event in found), found
        assert all(event["count"] in (128, 16) and abs(event["cosine"]) < 0.9 for event in found)


@test
def ties_that_a_conversion_from_meta_breaks_are_seen(context):
    """Each name gets values of its own, unless they are tied again before they are trained."""
    code = """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.write.weight = self.read.weight
    def forward(self, x):
        return self.write(torch.relu(self.read(x)))
with torch.device("meta"):
    model = Tied()
model.to_empty(device="cpu")
if TIED:
    model.write.weight = model.read.weight
with torch.no_grad():
    for param in model.parameters():
        param.normal_()
train(model, sgd(model))
"""
    for tied in (False, True) if VERSION >= (2, 0) else ():
        script = ODD_START + code.replace("TIED", str(tied))
        done, said = with_and_without(context.root, "tied%d" % tied, script)
        assert done[0].returncode == done[1].returncode == 0, done
        untied = [(e["names"], e["equal"]) for e in said if e["event"] == "untied"]
        assert untied == ([] if tied else [(["read.weight", "write.weight"], False)]), untied


@test
def numbers_of_models_are_written(context):
    """Those with a fraction, of the script's own modules."""
    code = """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.scale, self.count, self.none = nn.Linear(8, 3), 0.25, 2.0, float("nan")
    def forward(self, x):
        return self.scale * self.net(x)
model = nn.Sequential(Scaled(), nn.Dropout(0.5))
train(model, sgd(model), 2)
"""
    done, said = with_and_without(context.root, "own_numbers", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    (model,) = [event for event in said if event["event"] == "model"]
    assert model["fractions"] == [["0.scale", 0.25]], model


@test
def measured_values_are_seen(context):
    """What ReduceLROnPlateau is given, a number or a tensor, and its mode; of others nothing."""
    code = """
model = Net()
optimizer = sgd(model)
made = torch.optim.lr_scheduler
by_value = made.ReduceLROnPlateau(optimizer, "max")
cycle = made.CyclicLR(optimizer, 0.1, 0.2, mode="triangular", cycle_momentum=False)
for value in (0.5, torch.tensor(0.25)):
    F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    by_value.step(value)
    cycle.step()
"""
    done, said = with_and_without(context.root, "measured", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    assert done[0].stderr == done[1].stderr, done
    calls = [call for event in said if event["event"] == "step" for call in event["calls"]]
    found = [(call["metric"], call.get("better")) for call in calls if "metric" in call]
    assert found[0] == (0.5, "max") and found[1][0] == 0.25, calls


@test
def settings_of_other_kinds(context):
    """Left out: what a class keeps under the name of a known setting, of another kind."""
    code = """
import fractions
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        known = {"lr": None, "eps": (1e-30, 1e-3), "betas": 0.9, "momentum": "auto", "nesterov": 1}
        super().__init__(params, {**known, "weight_decay": fractions.Fraction(1, 2), "fused": [1]})
    def step(self):
        for group in self.param_groups:
            group.update(eps=(1e-30, 1e-2), lr=fractions.Fraction(1, 4), betas=(0.5, 0.75))
            for p in group["params"]:
                p.data.sub_(p.grad, alpha=0.1)
model = Net()
train(model, Own(model.parameters()), 3)
"""
    done, said = with_and_without(context.root, "kinds", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    assert not [event for event in said if event.get("quiet")], said
    (event,) = [event for event in said if event["event"] == "optimizer"]
    (group,) = event["groups"]
    found = {word: group[word] for word in group if word not in ("params", "built_lr")}
    assert found == {
        "lr": None, "eps": None, "betas": None, "momentum": None, "nesterov": True,
        "weight_decay": 0.5, "fused": None,
    }, found  # fmt: skip
    steps = [c for e in said if e["event"] == "step" for c in e["calls"]]
    second = [call for call in steps if call["call"] == "optimizer_step"][1]
    assert second["lr"] == [0.25] and second["set"] == [{"eps": None, "betas": [0.5, 0.75]}], second


@test
def samplers_of_other_kinds(context):
    """The same of a sampler's members; a number of NumPy's is one."""
    code = """
import numpy
class Sampler(torch.utils.data.SequentialSampler):
    num_replicas, rank, epoch = 1, True, 0
    def shuffle(self):
        pass
model = Net()
optimizer = sgd(model)
sampler = Sampler(torch.utils.data.TensorDataset(inputs, targets))
class Batches(torch.utils.data.BatchSampler):
    def __iter__(self):
        numbers = list(self.sampler)
        return iter([numbers[at : at + 16] for at in range(0, 64, 16)])
    def __len__(self):
        return 4
batches = Batches(sampler, 16, False)
for size, epoch in ((numpy.int64(16), numpy.int64(7)), ((8, 16), 0.5)):
    batches.batch_size, sampler.epoch = size, epoch
    for x, y in torch.utils.data.DataLoader(sampler.data_source, batch_sampler=batches):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
    done, said = with_and_without(context.root, "samplers", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    assert not [event for event in said if event.get("quiet")], said
    passes = [event for event in said if event["event"] == "data" and event["count"]]
    assert [(e["batch"], e.get("sampler_epoch")) for e in passes] == [(16, 7), (None, None)], passes
    assert all(e["shuffle"] is None and "sampler_rank" not in e for e in passes), passes


@test
def a_loss_that_holds_the_network(context):
    """An optimizer of the loss's parameters is built before DistributedDataParallel takes the
    network inside it: that is the only model, not another one of the same parameters.
    """
    code = """
class Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x):
        return F.cross_entropy(self.net(x), targets)
loss = Loss(Net())
optimizer = sgd(loss)
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                     world_size=1)
loss.net = nn.parallel.DistributedDataParallel(loss.net)
train(loss, optimizer, 3, lambda output: output)
torch.distributed.destroy_process_group()
"""
    done, said = with_and_without(context.root, "loss", ODD_START + code)
    assert done[0].returncode == done[1].returncode == 0, done
    models = [event["name"] for event in said if event["event"] == "model"]
    (event,) = [event for event in said if event["event"] == "optimizer"]
    assert models == ["Net"], models
    assert event["groups"][0]["params"] == ["a.weight", "a.bias", "b.weight", "b.bias"], event


@test
def starting_python(context):
    """sitecustomize: nothing without LS_OBSERVE_DIR, the hidden one runs, errors of an import stay
    the user's.
    """
    folder = os.path.join(context.root, "site")
    os.makedirs(folder)
    with open(os.path.join(folder, "sitecustomize.py"), "w") as file:
        file.write("import builtins\nbuiltins.hidden = __name__\n")
    both = os.pathsep.join((HERE, folder))

    def output(code, on, path, flags=()):
        command = [sys.executable, *flags, "-c", code]
        done = subprocess.run(
            command,
            env=environment(on, PYTHONPATH=path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return done.stdout.decode().strip(), done.stderr.decode()

    code = "import sys; print(hidden, 'torch' in sys.modules, "
    code += "type(sys.meta_path[0]).__name__ == '_WaitFor')"
    assert output(code, True, both)[0] == "sitecustomize False True"
    assert output(code, False, both)[0] == "sitecustomize False False"
    alone = "import sys; print(any(type(f).__name__ == '_WaitFor' for f in sys.meta_path))"
    for flag in ("-S", "-I", "-E"):  # what these leave out is not there, and nothing else happens
        assert output(alone, True, both, (flag,)) == ("False", ""), flag
    os.makedirs(os.path.join(folder, "torch"))
    with open(os.path.join(folder, "torch", "__init__.py"), "w") as file:
        file.write("raise ImportError('of the user')\n")
    out, error = output("import torch", True, both)
    assert "ImportError: of the user" in error and out == "", error


@test
def cost(context):
    result = context.on.run("resnet", name="cost", TEST_STEPS="24")
    assert result.codes == [0, 0], result.output()[-500:]
    (event,) = result.events(0, "cost")
    print("   cost of a small residual network, 24 steps: %s" % event)
    assert event["own_ms"] > 0 and event["run_ms"] > event["own_ms"] >= event["detail_ms"]


@test
def convolutions_in_fp64_are_torchs(context):
    """In every way that they are computed: as one product, in another layout, as they come."""
    from lockstep_attach.noise import _conv2d

    plain, products = torch.nn.functional.conv2d, 0
    for channels, size, more in (
        (64, 4, ()),
        (64, 5, (None, 2, (1, 0), (1, 2))),
        (64, 4, (torch.ones(64).double(), [2], [1])),
        (64, 3, (None, 1, "same")),
        (64, 3, (None, 1, 1, 1, 2)),
        (4, 9, (torch.ones(4).double(), (2, 1), 1)),
    ):
        groups = more[4] if len(more) > 4 else 1
        image = torch.randn(3, 4, size, size).double().requires_grad_()
        weight = torch.randn(channels, 4 // groups, 3, 3).double().requires_grad_()
        made, own = plain(image, weight, *more), _conv2d(torch, plain, image, weight, *more)
        products += made.grad_fn.name() != own.grad_fn.name() and channels == 64 and groups == 1
        given = torch.randn_like(made)
        exact = torch.autograd.grad(made, (image, weight), given)
        for a, b in zip((made, *exact), (own, *torch.autograd.grad(own, (image, weight), given))):
            assert a.shape == b.shape and (a - b).detach().abs().max() < 1e-12, (channels, more)
    assert products == 3, products


@test
def digests_name_bits(context):
    import lockstep_attach.digests as digests

    hub = types.SimpleNamespace(torch=torch, Lazy=lambda tensors, make: (tensors, make))
    made = digests.Digests(hub)
    generator = torch.Generator().manual_seed(1)
    tensors = [
        torch.randn(n, generator=generator).to(kind)
        for n, kind in ((5, torch.float32), (7, torch.bfloat16))
    ]
    pictures = torch.randn(3, 4, 2, 2, generator=generator)
    tensors += [pictures.contiguous(memory_format=torch.channels_last), torch.tensor(9)]
    tensors += [torch.randn(3, generator=generator).double(), torch.ones(5, dtype=torch.uint8)]
    tensors += [torch.randn(4, 6, generator=generator).half().t()]
    tensors += [torch.randn(70000, generator=generator), torch.randn(9, generator=generator)[1:]]

    total = 0
    for place, tensor in enumerate(tensors):
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.view(torch.int16)
        content = bytearray(tensor.contiguous().numpy().tobytes())
        content += bytes(-len(content) % 8)
        summed = sum(struct.unpack("<%dq" % (len(content) // 8), content))
        total += (2 * place + 1) * 0x9E3779B97F4A7C15 * summed
    assert made.digest(tensors) == "%016x" % (total % 2**64)
    assert made.each(tensors[:1]) == [made.digest(tensors[:1])]
    parts = digests.sums(torch, tensors)  # as a device sums them
    total = sum(digests.weight(i) * int(v) for at, found in parts for i, v in zip(at, found))
    assert made.digest(tensors) == digests.hexadecimal(total)

    # words whose places count: tokens with one sum, and a long tensor's tail
    tokens, long = torch.tensor([[1, 2, 3], [2, 2, 2], [3, 2, 1]]), torch.arange(5001)
    assert len({made.digest([row]) for row in tokens}) == 1
    assert len({made.placed([row]) for row in tokens}) == 3
    assert made.placed([long]) == made.placed([long.clone()]) != made.placed([long[:-1]])


class Listed(torch.utils.data.Dataset):
    """A data set over a list, with a generator of its own and one of a part of it."""

    def __init__(self, entries):
        self.entries = entries
        self.random = torch.Generator().manual_seed(1)
        self.change = types.SimpleNamespace(random=1)

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, index):
        return self.entries[index] + torch.rand(1, generator=self.random)


@test
def data_sets_are_named(context):
    from lockstep_attach.data import Sources

    def name(dataset):
        return Sources(torch).members(dataset).get("source")

    tensors = torch.arange(40.0).view(20, 2)
    assert name(Listed(list(range(20)))) == name(Listed(list(range(20)))) is not None
    assert name(Listed(list(range(20)))) != name(Listed(list(range(1, 21))))
    folders = [["/%s/%d.png" % (folder, i) for i in range(20)] for folder in "ab"]
    assert name(Listed(folders[0])) == name(Listed(folders[1]))  # a copy of each rank
    assert name(Listed([None] * 20)) is None and name(Listed([object()] * 20)) is None
    sets = [torch.utils.data.TensorDataset(tensors + add, tensors[:, 0]) for add in (0, 0, 1)]
    assert name(sets[0]) == name(sets[1]) != name(sets[2])
    parts = [torch.utils.data.Subset(sets[0], range(first, 20, 2)) for first in (0, 1)]
    assert name(parts[0]) != name(parts[1])
    part = {"length": 20, "modulus": 1, "kept": list(range(1, 20, 2))}
    assert Sources(torch).members(parts[1])["part"] == part


class Called(Listed):
    def __getitem__(self, index):
        return self.entries[index]()


@test
def loops_say_what_they_draw(context):
    from lockstep_attach.draws import Draws

    now = types.SimpleNamespace(detail=False, number=1)
    steps = types.SimpleNamespace(comes_in_detail=lambda: now.detail, now=now)
    steps.done_now = lambda: now.number - 1
    places = types.SimpleNamespace(is_script=lambda file: False)
    hub = types.SimpleNamespace(torch=torch, steps=steps, places=places)
    draws, entries = Draws(hub), []
    for given, seed in ((1, None), (3, 3), (4, None)):
        draws.batch(types.SimpleNamespace(number=0, given=given))
        if seed is not None:
            torch.manual_seed(seed)
        torch.rand(5), random.random()
        entries.append({})
        draws.forward(entries[-1], 4)
    first, second, third = entries
    assert [(name, count) for name, _, count in first["drawn"]] == [("torch", 5), ("random", 1)]
    assert [(name, count) for name, _, count in second["drawn"]] == [("torch", None), ("random", 1)]
    assert first["samples"] == 4 and first["begins"] != second["begins"] and not third
    now.detail = True  # without a batch: the first forward of each step
    for number, begins in ((2, True), (2, False), (3, True)):
        now.number, entry = number, {}
        draws.forward(entry, 4)
        assert list(entry) == ["begins"] * begins, (number, entry)
    torch.manual_seed(3)
    for count in (24, 624, 626):  # as many as the generator makes at once, and more
        before = draws.states()
        torch.rand(count)
        assert draws.between(before, draws.states())[0][2] == count


@test
def squares_that_ranks_sum_are_seen(context):
    """Of a sum of the gradients' squares, not of another number; a look without autograd takes what
    its own dropout draws away from the training forward.
    """
    script = (
        ODD_START
        + """
import os, tempfile, torch.distributed as dist
store = dist.FileStore(tempfile.mktemp(), 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
from torch.utils.data import DataLoader
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5))
optimizer = sgd(model)
for x in DataLoader(torch.randn(64, 4), batch_size=16):
    optimizer.zero_grad()
    with torch.no_grad():
        model(x)
    model(x).square().sum().backward()
    square = sum(p.grad.pow(2).sum() for p in model.parameters())
    other = square * 2
    dist.all_reduce(other)
    dist.all_reduce(square)
    for p in model.parameters():
        p.grad.mul_(0.25)
    optimizer.step()
"""
    )
    done, said = with_and_without(context.root, "squares", script)
    assert done[0].returncode == done[1].returncode == 0, done
    found = [e for e in said if e["event"] == "squares"]
    line = script[: script.rindex("dist.all_reduce(square)")].count("\n") + 1
    assert [e["step"] for e in found] == [1, 2, 3, 4], found
    for e in found:
        assert e["at"].endswith(":%d" % line) and abs(e["factor"] - 0.25) < 1e-6, (e, line)
        assert len(e["grad_squares"]) == len(set(e["grad_hashes"])) == 2, e
    later = [e["calls"] for e in said if e["event"] == "step"][1:]  # the model is known by then
    assert len(later) == 3 and not any("drawn" in call for calls in later for call in calls), later


@test
def generators_of_objects_are_found(context):
    import numpy
    from lockstep_attach.draws import Draws

    class Noise:
        def __init__(self):
            self.own, self.still = torch.Generator().manual_seed(1), torch.Generator()
            self.other, self.python = [torch.Generator()], random.Random(1)
            self.numpy, self.old = numpy.random.default_rng(1), numpy.random.RandomState(1)

    noise, now = Noise(), types.SimpleNamespace(detail=True, number=2)
    steps = types.SimpleNamespace(comes_in_detail=lambda: True, done_now=lambda: 1, now=now)
    places = types.SimpleNamespace(is_script=lambda file: file == __file__)
    draws = Draws(types.SimpleNamespace(torch=torch, steps=steps, places=places))
    for behind_batch in (True, False):
        if behind_batch:
            draws.batch(None)
            noise.numpy.random(700)
        entry = {}
        draws.forward(entry, 4)
        torch.rand(5, generator=noise.own), torch.rand(3, generator=noise.other[0])
        noise.numpy.random(40), noise.old.random_sample(7), noise.python.random()
        torch.rand(5), random.random(), numpy.random.random(5)
        draws.after(entry)
        drawn = sorted((kind, count, holder) for kind, _, count, holder in entry["drawn_held"])
        assert drawn == [
            ("PCG64", 740 if behind_batch else 40, "Noise.numpy"),
            ("numpy.random", 7, "Noise.old"),
            ("random", 1, "Noise.python"),
            ("torch", 3, ""),
            ("torch", 5, "Noise.own"),
        ], drawn


@test
def workers_say_what_they_draw(context):
    from lockstep_attach import collate
    from lockstep_attach.workers import Workers, states_of

    def noisy(samples):
        return torch.rand(9)

    settings = types.SimpleNamespace(directory=context.root)
    hub = types.SimpleNamespace(torch=torch, settings=settings, quiet=False)
    workers, kinds = Workers(hub), torch.utils.data.dataloader._DatasetKind
    dataset, original = Listed(list(range(20))), kinds.create_fetcher
    assert {"torch", "random"} < set(states_of(torch, dataset))
    try:
        workers.install()
        loader = torch.utils.data.DataLoader(dataset, batch_size=5, num_workers=2)
        iterator = iter(loader)
        assert len(list(iterator)) == 4
        workers.seen.add(collate.code_of(noisy))
        for entries, expected in ((Called([random.random] * 2), ["random"]), ([1, 2], [])):
            alone = iter(torch.utils.data.DataLoader(entries, 2, collate_fn=noisy))
            assert len(next(alone)) == 9
            number, used, many, left = alone._dataset_fetcher.drew[0]
            assert (number, many) == (-1, bool(expected)), (number, many)
            assert list(used) == list(left) == expected, used
    finally:
        kinds.create_fetcher = staticmethod(original)
    drawn = workers.of(iterator._base_seed)["random"]
    assert sorted(worker for worker, *_ in drawn) == [0, 1]
    assert all("dataset.random" in states for _, states, *_ in drawn), drawn
    assert not any(many for _, _, many, _ in drawn), drawn  # by the process's generators
    workers.finish()
    assert not os.path.exists(workers.path(os.getpid()))


@test
def collate_functions_are_run_again(context):
    from lockstep_attach import again, collate, events
    from lockstep_attach import hub as hubs

    hub = types.SimpleNamespace(torch=torch, own=hubs.Own(), own_ns=0, places=events.Places(torch))
    hub.again = object.__new__(again.Again)
    hub.again.hub = hub
    buffer, calls, collate.SPENT_NS = torch.empty(8, 3), [], 10**10
    samples = [(torch.full((3,), float(i)), "x" * (i % 5)) for i in range(8)]

    def tensors(items):
        return torch.stack([x for x, _ in items])

    def first(items):
        for x, text in items:
            return {"x": x, "length": len(text)}

    def kept(items):
        calls.append(len(items))
        return tensors(items)

    class Counts:
        count = 0

        def __call__(self, items):
            self.count += 1
            return tensors(items)

    class Fetcher:
        pass

    def found(function, items):
        fetcher = Fetcher()
        fetcher.collate_fn = function
        one = collate.Again(hub, fetcher, calls.append)
        torch.manual_seed(1)
        expected, state = repr(function(list(items))), torch.get_rng_state()
        torch.manual_seed(1)
        assert repr(one(items)) == expected and torch.equal(torch.get_rng_state(), state)
        return one.found

    every, others = list(range(8)), list(range(1, 8))
    whole, sequence = [8, every, [], True], [8, every, [], False]
    assert found(first, samples) == [[8, [0], others, False]]
    assert found(tensors, samples) == found(lambda i: tensors(i).roll(1, 0), samples) == [whole]
    assert found(lambda i: tensors(i[:6]), samples) == [[8, every[:6], [6, 7], True]]
    assert found(lambda i: tensors(i).t(), samples)[0] == sequence  # time first
    # one row of all: with the first one's text, or with its number
    rows = [{"x": x, "text": torch.arange(i, i + 3), "id": i} for i, (x, _) in enumerate(samples)]

    def one_row(items, key):
        first = torch.as_tensor(items[0][key]).float().reshape(1, -1)
        return tensors([(s["x"], 0) for s in items])[None], first

    given = [8, every, [], True, "x"], [8, [0], others, True, "text"]
    assert found(lambda i: one_row(i, "text"), rows) == [whole, *given]
    assert found(lambda i: one_row(i, "id"), rows) == [whole, given[0]]
    # by content: the largest, those that are not broken; samples that are alike; a buffer
    assert found(lambda i: max(x for x, _ in i for x in x), samples) == [sequence]
    assert found(lambda i: [x for x, text in i if text], samples)[0][2] == []
    assert found(first, samples[:1] * 4 + samples[1:3]) == []
    # large samples
    pictures = [(torch.full((1 << 18,), float(i)), "") for i in range(8)]
    assert found(tensors, pictures) == [[4, every[:4], [], True]]
    assert found(lambda i: tensors(i[:3]), pictures) == [[4, every[:3], [3], True]]
    # not again: what has a buffer, counts, keeps or draws
    assert found(lambda i: torch.stack([x for x, _ in i], out=buffer), samples) == []
    assert found(kept, samples) == found(Counts(), samples) == []
    assert found(lambda i: tensors(i)[torch.randperm(4)], samples) == []


@test
def rows_are_followed(context):
    from lockstep_attach.data import Keys
    from lockstep_attach.rows import Rows

    put, model = [], torch.nn.Linear(6, 2)
    hub = types.SimpleNamespace(torch=torch, autograd=types.SimpleNamespace(passes=0, depth=1))
    hub.put = lambda event, **members: put.append(members)
    rows = Rows(hub, Keys(torch, 0))

    def forward(x, backward, grad=True):
        entry = {"grad": grad, "training": grad, "model": 0, "at": "train.py:1"}
        made = rows.forward(entry, (x,), {})
        if grad:
            loss = model(x)
            rows.returns(made, [loss])
            hub.autograd.passes += backward
            loss.sum().backward() if backward else None

    entry = types.SimpleNamespace(facts={"loader": 0}, number=0)
    batches = list(torch.randn(3, 8, 6))
    batches[2][5] = batches[2][4]
    for x in batches:
        rows.batch(entry, 8, [x, torch.arange(8)])
        forward(x[:2], True)
        forward(x[2:4], False)
        forward(x[4:6], True, grad=False)
    forward(batches[0][:1].clone(), True)
    rows.finish()
    runs = [3, 2, 2, 2, 1, 2, 0, 2]
    assert put[0]["loader"] == 0 and put[0]["at"] == "train.py:1"
    first, second, third = put[0]["batches"]
    assert first == [0, 8, 8, 1, 2, [4, 1, 3, 1, *runs[2:]]] and second == [0, 8, 8, 1, 2, runs]
    assert third[-1] == [3, 2, 2, 2, -1, 2, 0, 2] and put[0]["labels"] == [0, 0, 0, 0]


@test
def labels_are_followed(context):
    from lockstep_attach.data import Keys
    from lockstep_attach.rows import Rows

    cross_entropy, model = torch.nn.functional.cross_entropy, torch.nn.Linear(6, 4)

    def counted(choose):
        """Of batches (rows, labels, labels of the batch before) what a loss is given."""
        put = []
        hub = types.SimpleNamespace(torch=torch, autograd=types.SimpleNamespace(passes=0, depth=1))
        hub.put = lambda event, **members: put.append(members)
        rows, before = Rows(hub, Keys(torch, 0)), torch.randint(4, (8,))
        entry = types.SimpleNamespace(facts={"loader": 0}, number=0)
        for x in torch.randn(5, 8, 6):
            y = torch.randint(4, (8,))
            rows.batch(entry, 8, [x, y])
            x, target = choose(x, y, before)
            members = {"grad": True, "training": True, "model": 0, "at": "train.py:1"}
            made, out = rows.forward(members, (x,), {}), model(x)
            rows.returns(made, out)
            loss = cross_entropy(out, target)
            rows.backward([loss])
            loss.backward()
            before = y
        rows.finish()
        return put[0]["labels"]

    torch.manual_seed(1)
    order = torch.randperm(8)
    assert counted(lambda x, y, before: (x, y)) == [5, 5, 0, 0]
    assert counted(lambda x, y, before: (x[order], y[order])) == [5, 5, 0, 0]
    assert counted(lambda x, y, before: (x, before)) == [5, 0, 4, 0]
    assert counted(lambda x, y, before: (x, y.roll(1))) == [5, 0, 0, 5]
    assert counted(lambda x, y, before: (x, 3 - y)) == [5, 0, 0, 0]


@test
def losses_say_how_they_were_made(context):
    """losses.py reads the graph above a scalar: constants, and the reduction below them."""
    from lockstep_attach.events import Transfer, settle
    from lockstep_attach.losses import made

    def settled(members):
        return settle(members, Transfer(torch, members))

    functional, scale = torch.nn.functional, torch.full((), 1024.0)
    x = torch.randn(8, 5, requires_grad=True)
    y = torch.arange(8) % 5
    loss = functional.cross_entropy(x, y)
    square = functional.mse_loss(x, torch.zeros(8, 5))
    total = functional.cross_entropy(x, y, reduction="sum")
    scalar = {"loss_times": 1.0, "loss_divided": False}
    mean = dict(scalar, loss_of="mean")
    ignored = functional.cross_entropy(x, torch.tensor([1, 2, -100, 3, 4, -100, 0, 0]))
    classes = functional.cross_entropy(x, y, weight=torch.rand(5))
    quarter = dict(mean, loss_times=0.25, loss_divided=True, loss_by=4.0)
    cases = (
        (loss, None, dict(mean, loss_terms=8)),
        (ignored, None, dict(mean, loss_terms=6)),
        (classes, None, mean),  # a total of weights is no number
        (square, None, dict(mean, loss_terms=40)),
        (x.mean(), None, dict(mean, loss_terms=40)),
        (loss / 4, None, dict(quarter, loss_terms=8)),
        (0.25 * loss.float().reshape(()), None, dict(mean, loss_times=0.25, loss_terms=8)),
        (loss * scale / 4, scale, dict(quarter, loss_terms=8)),
        ((loss / 4) * scale, scale, dict(quarter, loss_terms=8)),
        # constants besides, as in a value that is put back
        (2 * loss - loss.detach(), None, dict(mean, loss_times=2.0, loss_terms=8)),
        (torch.sub(torch.ones(()), loss, alpha=3), None, dict(mean, loss_times=3.0, loss_terms=8)),
        ((loss + 0.5 * square) / 4, None, dict(quarter, loss_weight=0.375)),
        # of two losses
        ((loss + square) / 2, None, dict(mean, loss_times=0.5, loss_by=2.0, loss_weight=1.0)),
        (0.5 * (loss + square) * 2, None, dict(mean, loss_weight=2.0)),
        (total, None, dict(mean, loss_of="sum", loss_terms=8)),
        ((x * x).sum() / 8, None, {"loss_times": 0.125, "loss_divided": True, "loss_of": "sum",
                                   "loss_by": 8.0, "loss_count": 40, "loss_first": 8}),
        (loss * x.std(), None, scalar),
        # sums with one factor; with several
        ((x * x).sum() / 8 + (2 * x[:3]).sum() / 8, None, dict(
            scalar, loss_times=0.125, loss_of="sum", loss_count=55, loss_first=55,
            loss_parts=[[0.125, 8.0, 55]])),
        (((x * x).sum() + x.sum()) / 8, None, {
            "loss_times": 0.125, "loss_divided": True, "loss_of": "sum", "loss_by": 8.0,
            "loss_count": 80, "loss_first": 8, "loss_parts": [[0.125, 8.0, 80]]}),
        (total / 5 + x[:2].sum() / 5, None, dict(
            scalar, loss_times=0.2, loss_of="sum", loss_count=18, loss_first=18,
            loss_parts=[[0.2, 5.0, 18]])),
        ((x * x).sum() / 8 + x.sum() / 4, None, dict(
            scalar, loss_of="sum", loss_parts=[[0.25, 4.0, 40], [0.125, 8.0, 40]])),
    )  # fmt: skip
    for place, (tensor, by, expected) in enumerate(cases):
        members = settled(made(torch, tensor, by).members())
        assert members == expected, (place, members)


def line_of(text):
    """The line of test_jobs.py that holds a text alone."""
    with open(JOBS_FILE, encoding="utf-8") as file:
        (line,) = [k for k, one in enumerate(file, 1) if text in one]
    return "test_jobs.py:%d" % line


@test
def places_of_what_is_built_and_called(context):
    result = context.both("inside")
    check_schema(result)
    steps = result.events(0, "step")
    backward = [call for step in steps for call in step["calls"] if call["call"] == "backward"]
    assert "bypassed" not in backward[0]
    wanted = line_of("cross_entropy(ddp.module(x), y)")
    assert all(call["bypassed"].endswith(wanted) for call in backward[1:]), backward
    assert not any(call["call"] == "forward" for step in steps for call in step["calls"][:-1])
    for data in result.events(0, "data"):
        assert data["cut_at"].endswith(line_of("= random_split(vectors()")), data
        assert data["built"].endswith(line_of("return sampler, DataLoader(")), data
        assert data["sampler_at"].endswith(line_of("    sampler = kind(data)")), data
        assert data["given"] == 2 and data["count"] == 16


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


@test
def places_of_functions(context):
    """A function of the user's is named where its def stands, not its decorator."""
    from lockstep_attach.events import Places
    from lockstep_attach.functions import own_functions

    x = torch.ones(2, requires_grad=True)
    found = own_functions(torch, [Wrong.apply(x).exp()])
    assert found == {"Wrong": Wrong}, found
    places = Places(torch)
    places.inside = places.inside[:1]
    first = Wrong.backward.__code__.co_firstlineno
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    place = places.of(Wrong.backward)
    assert "def backward" in lines[int(place.rsplit(":", 1)[1]) - 1] and first > 0, place
    assert places.of(torch.relu) == places.of(torch.nn.functional.relu) == places.of(None) == ""


@test
def losses_say_what_they_were_given(context):
    """losses.py reads what a loss was given: what it takes itself, or what it is not made for."""
    from lockstep_attach.losses import misuse

    functional = torch.nn.functional
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    scores, y = x @ w, torch.arange(4)
    cases = (
        (functional.cross_entropy(scores, y), None),
        (functional.cross_entropy(scores.softmax(1).view(4, 5), y) / 2, "softmax"),
        (scores.softmax(1).log_softmax(1).sum(), "probabilities"),
        (functional.nll_loss(scores.log_softmax(1), y), None),
        (functional.nll_loss(scores, y), "scores"),
        (functional.binary_cross_entropy_with_logits(scores, torch.rand(4, 5)), None),
        (
            functional.binary_cross_entropy_with_logits(scores.sigmoid(), torch.rand(4, 5)),
            "sigmoid",
        ),
        (functional.mse_loss(scores[:, :1], torch.rand(4, 1)), None),
        (functional.mse_loss(scores[:, :1], torch.rand(4)), "crossed"),
    )
    for place, (tensor, expected) in enumerate(cases):
        assert misuse(tensor) == expected, (place, misuse(tensor))


def write_script(context, name, text):
    path = os.path.join(context.root, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def ask_of(path, ask):
    """What a function of script_text.py says where that file is the main script."""
    main = sys.modules["__main__"]
    own, main.__file__ = main.__file__, path
    try:
        return ask(path + ":1", os.path.dirname(path) + os.sep)
    finally:
        main.__file__ = own


@test
def the_text_says_where(context):
    """script_text.py finds the line that divides what goes backward, or sets one group's rate."""
    from lockstep_attach import script_text

    text = """
shown = loss.clone(); shown /= world_size
loss = loss / args.accumulate
loss /= dist.get_world_size()  # for the log
scaler.scale(loss).backward()
optimizer.param_groups[0]['lr'] = rate
"""
    other = (
        "for group in o.param_groups:\n    group['lr'] = r\n"
        "loss.backward()\ny = loss / world_size\n"
    )
    scaled = (
        "g['lr'] = base * world_size\nif ckpt['world'] == 1:\n    g['lr'] *= world_size\n\n\n\n"
    )
    scaled += "g['lr'] *= world_size / old\ng['lr'] *= dist.get_world_size()\n"
    third = "loss = out.loss / gradient_accumulation_steps\naccelerator.backward(loss)\n"
    jobs = (
        ("a.py", text, (4, 3, 6)),
        ("b.py", other, (None,) * 3),
        ("c.py", third, (None, 1, None)),
        ("e.py", third.splitlines()[0] + "\nreturn out\n", (None, None, None)),
        (
            "f.py",
            third.splitlines()[0] + "\nreturn (loss, out) if both else loss\n",
            (None, 1, None),
        ),
        ("d.py", scaled, (None, None, None, 8)),
    )
    for name, lines, expected in jobs:
        path = write_script(context, name, lines)
        asked = (script_text.division, script_text.by_steps, script_text.rate)
        asked += (script_text.rate_scaled,) * (len(expected) - len(asked))
        found = [ask_of(path, ask) for ask in asked]
        wanted = [None if line is None else "%s:%d" % (name, line) for line in expected]
        assert found == wanted, (found, wanted)


@test
def lazy_modules_stay_as_they_are(context):
    """script_text reads the files of modules that are there, and imports none."""
    from lockstep_attach import script_text

    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            raise ImportError("asked for " + name)

    path = write_script(context, "eager.py", "loss.backward()\n")
    lazy, slots, plain = Lazy("lazy"), object(), types.ModuleType("plain")
    del lazy.__spec__, lazy.__loader__
    plain.__file__ = path
    sys.modules.update(lazy_one=lazy, slots_one=slots, plain_one=plain)
    try:
        assert path in script_text._files("", context.root)
    finally:
        for name in ("lazy_one", "slots_one", "plain_one"):
            del sys.modules[name]


@test
def early_ends_are_read(context):
    """script_text.stops_early: what leaves the outermost loop around a backward."""
    from lockstep_attach import script_text

    inner = "for epoch in range(4):\n  for x in data:\n    loss.backward()\n"
    part = "def one(n):\n  for x in data:\n    loss.backward()\n    if short: return\n    break\n"
    texts = (
        (inner + "  if lost > best: break\n", True),
        (inner + "  with no_grad():\n    for y in held: break\n", False),
        (inner + "    if enough: break\n", False),
        ("for a in b: break\n" + inner, False),
        ("def train():\n  while True:\n    loss.backward()\n    if step > last: break\n", True),
        (inner + "    if enough: sys.exit(helper(lambda: None))\n", False),
        ("def main():\n  " + inner.replace("\n", "\n  ") + "    if enough: return\n", True),
        # the loop over epochs calls that over batches
        (part + "def main():\n  for epoch in range(4):\n    one(epoch)\n    if bad: break\n", True),
        (part + "for epoch in range(4):\n  model.train()\n  one(epoch)\n", False),
        ("not Python:\n  backward break\n", False),
    )
    for place, (text, expected) in enumerate(texts):
        path = write_script(context, "early%d.py" % place, text)
        assert ask_of(path, script_text.stops_early) is expected, text


@test
def whole_numbers_in_half_are_seen(context):
    """Runs of consecutive ones of which a half type makes some equal; no other numbers."""
    import types

    from lockstep_attach.casts import Casts

    bf16, f16, found = torch.bfloat16, torch.float16, []
    misuse = types.SimpleNamespace(put=lambda kind, at, **members: found.append(members))
    places = types.SimpleNamespace(here=lambda: "train.py:3")
    casts = Casts(types.SimpleNamespace(torch=torch, misuse=misuse, places=places))
    run = torch.arange(400)
    for source, kind, count in (
        (run, bf16, 71),
        (run.float()[None, :, None].expand(2, 400, 3), bf16, 71),
        (run + 100, bf16, 121),
        (torch.arange(3000.0), f16, 475),
        (run[:256], bf16, 0),
        (run, f16, 0),
        (run / 2, bf16, 0),
        (run.flip(0), bf16, 0),
        (torch.zeros(400), bf16, 0),
        (torch.randint(1000, (400,)), bf16, 0),
        (torch.randn(400), bf16, 0),
    ):
        found.clear()
        casts.saw(source.to(kind), (source,))
        assert sum(one["count"] for one in found) == count, (source, kind, found)
    found.clear()
    casts.saw(torch.arange(400, dtype=bf16), (400,))
    casts.saw(torch.ones(2, 2, dtype=bf16), (torch.ones(2, dtype=bf16),))
    (one,) = found
    assert one == {"name": "bf16", "count": 71, "one": 257, "other": 256}, one


@test
def sums_in_place_are_seen(context):
    """Of what has a graph, where all that uses it comes after the sum: what used it before has read
    the own part.
    """
    from lockstep_attach.collectives import Gathered
    from lockstep_attach.losses import nodes_from

    for early in (False, True):
        gathered = Gathered(torch)
        own = torch.ones(4, requires_grad=True) * 2
        loss = own.square().sum() if early else 0
        gathered.keep_sum(1, "a.py:3", own)
        loss = loss + own.square().sum()
        nodes = list(nodes_from([loss.grad_fn]))
        found = {type(node).__name__: gathered.uses_sum(node, nodes) for node in nodes}
        at = found.pop("MulBackward0")
        assert at == (None if early else "a.py:3") and not any(found.values()), (early, found)


@test
def targets_are_among_all_ranks_rows(context):
    """On rank 1, whose own rows are the second half of what is gathered, or the first."""
    from lockstep_attach.misuse import Targets

    class Hub:
        torch, world = torch, 2
        places = types.SimpleNamespace(here=lambda: "a.py:3")
        misuse = types.SimpleNamespace(put=lambda kind, at, **more: said.append(kind))
        rank = staticmethod(lambda: 1)

    mine, other, third = torch.randn(3, 8, 4)
    features = torch.nn.functional.normalize(mine)
    for rows, kept, offset, kind in (
        ((other, mine), [mine], 0, ["targets_of_others"]),
        ((mine, other), [mine], 0, []),
        ((other, mine), [mine], 8, []),
        ((other, mine), [torch.cat([third, mine])], 0, ["targets_of_others"]),
        ((other, mine), [], 0, ["targets_first"]),
        ((other, features), [mine], 0, ["targets_of_others"]),
        # two kinds of rows of each rank, gathered together, and each by itself
        ((other, third, mine, mine), [mine], 8, ["targets_of_others"]),
        ((other, third, mine, mine), [mine], 16, []),
        ((other, mine, third, mine), [mine], 8, []),
        ((other, mine, third, mine), [mine], 16, ["targets_of_others"]),
        ((other, mine, third, other), [mine], 16, []),  # that are not all known
    ):
        said, targets = [], Targets(Hub)
        targets.returned(tuple(kept))
        left = features if rows[1] is features else mine
        scores = 7 * left @ torch.cat(rows).t()
        targets._look_at_ranks(scores.to(torch.bfloat16), torch.arange(8) + offset)
        assert said == kind, (said, kind)


@test
def gathered_constants_are_seen(context):
    """A gather is named whose results the loss uses as constants."""
    from lockstep_attach.collectives import Gathered

    cases = ((0, 1, 1, 0), (0, 1, 1, 1), (1, 1, 1, 0), (0, 0, 1, 0), (0, 1, 0, 0))
    for own, transposed, used, elsewhere in cases:
        weight = torch.nn.Parameter(torch.randn(6, 5))
        first, second = (torch.randn(8, 6) @ weight).chunk(2)
        keys = [second.detach().clone(), torch.randn(4, 5)]
        gathered = Gathered(torch)
        gathered.keep(1, "a.py:3", second, list(keys))
        keys[0] = second if own else keys[0]
        joined = torch.cat(keys)
        scores = first @ joined.t() if transposed else first[:, None] * torch.stack(keys)[:1]
        scores = scores if used else first.square()
        scores = scores + second.sum() if elsewhere else scores
        found = gathered.lost([scores.sum()])
        known = hasattr(scores.grad_fn, "_sequence_nr")
        assert found == ("a.py:3" if known and used and transposed and not own else None), found


@test
def own_gathers_name_one_gradient(context):
    """The loss's gradient by what all ranks gave has one name on all of them, also where a function
    of the script's own gives a tensor for each rank.
    """
    from lockstep_attach.collectives import Gathered, Joined

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone(), x.clone()

        @staticmethod
        def backward(ctx, *grads):
            return grads[Gather.rank]

    world = types.SimpleNamespace(get_world_size=lambda: 2, get_rank=lambda: Gather.rank)
    hub = types.SimpleNamespace(
        torch=types.SimpleNamespace(Tensor=torch.Tensor, equal=torch.equal, distributed=world),
        digests=types.SimpleNamespace(digest=lambda tensors: [t.tolist() for t in tensors]),
        quiet=False,
        call=lambda function, *args: function(*args),
    )
    names = []
    for rank in (0, 1):
        Gather.rank = rank
        x, part = torch.ones(2, requires_grad=True), {}
        first, second = Gather.apply(x)
        hook = Joined(hub, Gathered(torch))._hook(part, True)
        first.grad_fn.register_hook(hook)
        (first + 3 * second).sum().backward()
        names.append(part)
    assert names == [{"own": True, "grad": [[1, 1], [3, 3]]}] * 2, names
    loss = {}
    Joined(hub, Gathered(torch))._hook(loss, True)((torch.tensor(1.0),), (torch.tensor(2.0),))
    assert loss == {}, loss


@test
def reductions_that_nobody_reads(context):
    """A reduced tensor that nothing but the call holds is told from one that is, by any way."""
    from lockstep_attach.collectives import Unread
    from lockstep_attach.wrapping import stand_in

    said = []
    names = types.SimpleNamespace
    place = names(here=lambda: "a.py:3", script_called=lambda: True)
    hub = names(
        call=lambda function, *arguments: function(*arguments),
        torch=names(
            _C=torch._C,
            Tensor=torch.Tensor,
            zeros=torch.zeros,
            distributed=names(get_world_size=lambda: 2),
        ),
        steps=names(now=names(number=2)),
        places=place,
        misuse=names(put=lambda kind, at, count: said.append((kind, at, count))),
        idle=lambda: False,
        quiet=False,
        dynamo=names(skip=lambda function: None),
    )
    unread = Unread(hub)

    def leave(note, args, *rest):
        unread.reduced(args)

    reduce = stand_in(hub, lambda tensor: None, None, leave)
    x = torch.arange(20.0).view(4, 5)
    kept = [x * 2]
    reduce(x)
    reduce(x.contiguous())
    reduce(x.view(-1))
    reduce(x.detach())
    reduce(x[0])
    reduce(kept[0])
    reduce(torch.ones(3))  # a barrier
    reduce(torch.ones(1))
    assert not said, said
    if hasattr(torch._C, "_storage_Use_Count"):
        reduce(x.t().contiguous())
        reduce(x + 1)
        reduce(torch.tensor([3.5]))
        assert said == [("reduced_unread", "a.py:3", n) for n in (20, 20, 1)], said


@test
def lengths_are_read(context):
    """schedules.py reads the length of a schedule where its constructor or its function was given
    it.
    """
    from lockstep_attach.schedules import _length_of

    total, warmup_steps = 24, 4
    made = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    rising = made.LinearLR(optimizer, total_iters=4) if hasattr(made, "LinearLR") else None
    falling = made.CosineAnnealingLR(optimizer, T_max=20)
    cases = [
        (falling, 20),
        (made.OneCycleLR(optimizer, 0.1, total_steps=30), 30),
        (made.LambdaLR(optimizer, lambda n: min(n / warmup_steps, 1 - n / total)), 24),
        (made.LambdaLR(optimizer, lambda n: n / warmup_steps), None),
        (made.StepLR(optimizer, 5), None),
    ]
    if rising is not None:
        cases.append((made.SequentialLR(optimizer, [rising, falling], milestones=[4]), 24))
    for place, (schedule, expected) in enumerate(cases):
        assert _length_of(schedule) == expected, (place, _length_of(schedule))


def main(names):
    root = tempfile.mkdtemp(prefix="test_attach.")
    context = Context(root)
    passed = failed = 0
    try:
        for function in TESTS:
            if names and function.__name__ not in names:
                continue
            try:
                function(context)
                passed += 1
                print("ok   %s" % function.__name__, flush=True)
            except Exception as error:
                failed += 1
                said = (function.__name__, type(error).__name__, str(error)[:1500])
                print("FAIL %s: %s: %s" % said, flush=True)
    finally:
        context.off.close()
        context.on.close()
        shutil.rmtree(root, ignore_errors=True)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))

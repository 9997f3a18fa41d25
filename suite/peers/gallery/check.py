#!/usr/bin/env python3
"""Runs the gallery's scripts under `lockstep observe`: no rule may fail for a right script, and for each
wrong one the rule must that expected.txt names, with the cause and the line of the mistake.

usage: check.py LOCKSTEP [PYTHON] [GLOB...]    PYTHON: an interpreter with torch; GLOB: of names, 'clip*'
LS_GALLERY_SEED=5: the scripts' --seed; LS_GALLERY_KEEP=DIR: keeps the folders of those that are not as expected;
LS_GALLERY_JOBS=4: as many scripts at once; LS_DEVICE=cuda: the scripts as on_cuda.py puts them on a GPU

At the end it counts the wrong scripts whose rule failed (or is WEAK, where that is meant), and those whose verdict
names the cause and the line. Of a pattern in expected.txt that begins with `?` it is known that the verdict does not
have it: it counts as missing, and one that is right by now is reported, so that the mark is removed. The exit code is
1 where another row is not as expected, or where all were run and the share of causes or of lines is too small.
"""
import collections
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import on_cuda

HERE = os.path.dirname(os.path.abspath(__file__))
# 24 steps at most: detail in each fourth of them. A run takes seconds; hangs end after 20 s by the
# scripts' own timeout.
OPTIONS = ["--every", "4"]
LIMIT_S = 240
CAUSES, LINES = 0.80, 0.70  # least shares of the wrong scripts whose verdict names them


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_table():
    """The rows of expected.txt: patch, script, rule, place, cause, first PyTorch, sentence."""
    lines = read(os.path.join(HERE, "expected.txt")).splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    for row in rows:
        if len(row) != 7:
            sys.exit(f"expected.txt: seven columns, separated by tabs: {row}")
        if row[0] != "-" and read(os.path.join(HERE, row[0])).split("\n")[0] != row[6]:
            sys.exit(f"{row[0]} does not begin with its sentence in expected.txt")
    return rows


def label_of(row):
    return row[1][:-3] if row[0] == "-" else os.path.basename(row[0])[:-6]


def parse_version(text):
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])


def make_script(patch, script, folder):
    """Writes the script, changed by the patch if there is one, for the device; returns its name and text."""
    name = script if patch == "-" else os.path.basename(patch).replace(".patch", ".py")
    path = os.path.join(folder, name)
    shutil.copy(os.path.join(HERE, script), path)
    if patch != "-":
        subprocess.run(["patch", "-s", path, os.path.join(HERE, patch)], check=True)
    text = read(path)
    if "LS_DEVICE" in os.environ:
        text = on_cuda.translate(text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    return name, text


def observe(lockstep, python, folder, name, text):
    """Runs a script, one that resumes twice; returns the verdicts of all rules of each run."""
    verdicts = []
    for number, arguments in enumerate([[], ["--resume"]] if '"--resume"' in text else [[]]):
        if os.environ.get("LS_GALLERY_SEED") and '"--seed"' in text:
            arguments = arguments + ["--seed", os.environ["LS_GALLERY_SEED"]]
        command = [python, name]
        if "init_process_group" in text:
            command = [python, "-m", "torch.distributed.run", "--standalone",
                       "--nproc_per_node", "2", name]
        out = os.path.join(folder, f"observed{number}")
        with open(os.path.join(folder, "log"), "a", encoding="utf-8") as log:
            try:
                code = subprocess.run(
                    [lockstep, "observe", "--out", out, *OPTIONS, "--", *command, *arguments], cwd=folder,
                    env=dict(os.environ, OMP_NUM_THREADS="1"), stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT, timeout=LIMIT_S).returncode
            except subprocess.TimeoutExpired:
                code = None
        path = os.path.join(out, "verdicts.jsonl")
        verdicts += [json.loads(line) for line in read(path).splitlines()] if os.path.exists(path) else []
        if code != 0:
            return verdicts, code
    return verdicts, code


def rule_of(verdict):
    return verdict["case"].split(".", 1)[1]


def describe(verdict):
    told = [verdict["verdict"], verdict.get("where", ""), verdict.get("evidence", ""), verdict.get("cause", "")]
    return "; ".join(text for text in told if text)


def judge_right(verdicts, code):
    failed = [v for v in verdicts if v["verdict"] not in ("PASS", "WEAK", "UNSUPPORTED", "SKIP")]
    if failed:
        return False, " | ".join(f"{rule_of(v)} {describe(v)}" for v in failed)
    if code != 0 or not verdicts:
        return False, f"exit code {code}, {len(verdicts)} verdicts"
    count = {word: sum(v["verdict"] == word for v in verdicts) for word in ("PASS", "WEAK", "UNSUPPORTED")}
    return True, ", ".join(f"{number} {word}" for word, number in count.items())


def is_at(where, place, name, text):
    """Whether a verdict's place is a line with that text; "TEXT#2": the second one. Alternatives by " | "."""
    for one in place.split(" | "):
        part, _, count = one.partition("#")
        lines = [f"{name}:{k}" for k, line in enumerate(text.splitlines(), 1) if part in line]
        if where in (lines[int(count) - 1:int(count)] if count else lines):
            return True
    return False


def is_cause(cause, patterns):
    return any(fnmatch.fnmatchcase(cause, one) for one in patterns.split(" | "))


def compare(column, right):
    """(as expected, what to say) of a column of expected.txt: `?` before it says that it is a known miss."""
    if column.startswith("?"):
        return True, f"; right by now, remove the `?`: {column}" if right else f"; known miss: {column[1:]}"
    return right, "" if right else f"; expected: {column}"


def judge_wrong(verdicts, code, text, name, expected, place, cause, tally):
    """expected: "rule", which must fail, or "rule WEAK", where a good script may do the same."""
    rule, word = (expected.split() + ["FAIL"])[:2]
    mine = [v for v in verdicts if rule_of(v) == rule]
    failed = [v for v in mine if v["verdict"] == word]
    others = sorted({rule_of(v) for v in verdicts if v["verdict"] == "FAIL"} - {rule})
    also = f" (also {', '.join(others)})" if others else ""
    tally["wrong"] += 1
    if not failed:
        found = " | ".join(describe(v) for v in mine) or f"no such verdict, exit code {code}"
        return False, f"{rule} {found}{also}"
    tally[word] += 1
    found = [(is_cause(v.get("cause", ""), cause.lstrip("?")),
              is_at(v.get("where", ""), place.lstrip("?"), name, text), v) for v in failed]
    named, at, verdict = max(found, key=lambda one: one[0] + one[1])
    tally["cause"] += named
    tally["line"] += at
    good_cause, told_cause = compare(cause, named)
    good_place, told_place = compare(place, at)
    return good_cause and good_place, f"{rule} {describe(verdict)}{also}{told_cause}{told_place}"


def report_wrong(tally, whole):
    """The four figures; false where all wrong scripts were run and too few verdicts name cause or line."""
    wrong = tally["wrong"]
    if not wrong:
        return True
    print(f"{wrong} wrong: {tally['FAIL']} fail as meant, {tally['WEAK']} weak as meant; "
          f"cause right {tally['cause']} ({tally['cause'] / wrong:.0%}), "
          f"line right {tally['line']} ({tally['line'] / wrong:.0%})")
    return not whole or (tally["cause"] >= CAUSES * wrong and tally["line"] >= LINES * wrong)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    lockstep = os.path.abspath(sys.argv[1])
    python = shutil.which(sys.argv[2] if len(sys.argv) > 2 else "python3")
    globs = sys.argv[3:] or ["*"]
    jobs = max(1, int(os.environ.get("LS_GALLERY_JOBS", "1")))
    version = subprocess.run([python or "", "-c", "import torch; print(torch.__version__)"], check=False,
                             capture_output=True, text=True).stdout if python else ""
    if not version:
        print("gallery: not run: no interpreter with torch")
        sys.exit(3)
    passed = failed = left_out = 0
    tally, judging = collections.Counter(), threading.Lock()

    def run(row):
        """(whether it is as expected, or None: it was not run, the line to print)."""
        patch, script, rule, place, cause, first, _ = row
        label = label_of(row)
        if parse_version(version) < parse_version(first):
            return None, f"{label}: needs PyTorch {first}"
        with tempfile.TemporaryDirectory() as folder:
            name, text = make_script(patch, script, folder)
            reason = on_cuda.why_not(text)
            if reason:
                return None, f"{label}: {reason}"
            verdicts, code = observe(lockstep, python, folder, name, text)
            with judging:
                if rule == "-":
                    good, told = judge_right(verdicts, code)
                else:
                    good, told = judge_wrong(verdicts, code, text, name, rule, place, cause, tally)
            if not good and os.environ.get("LS_GALLERY_KEEP"):
                shutil.copytree(folder, os.path.join(os.environ["LS_GALLERY_KEEP"], label))
        return good, f"{'right' if rule == '-' else 'wrong'} {label}: {told}"

    rows = [row for row in read_table() if any(fnmatch.fnmatch(label_of(row), glob) for glob in globs)]
    with ThreadPoolExecutor(jobs) as pool:
        for good, told in pool.map(run, rows):
            print(f"{'not run' if good is None else 'ok' if good else 'not ok'} - {told}", flush=True)
            left_out += good is None
            passed += good is True
            failed += good is False
    print(f"{passed} passed, {failed} failed" + (f", {left_out} not run" if left_out else ""))
    enough = report_wrong(tally, not sys.argv[3:])
    sys.exit(failed > 0 or passed == 0 or not enough)


if __name__ == "__main__":
    main()

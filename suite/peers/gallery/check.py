#!/usr/bin/env python3
"""Runs the gallery's scripts under `lockstep observe`: no rule may fail for a right script, and for each
wrong one the rule must that expected.txt names, at the line that it names.

usage: check.py LOCKSTEP [PYTHON] [GLOB...]    PYTHON: an interpreter with torch; GLOB: of names, 'clip*'
LS_GALLERY_SEED=5: the scripts' --seed; LS_GALLERY_KEEP=DIR: keeps the folders of those that are not as expected
"""
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
# 24 steps at most: detail in each fourth of them. A run takes seconds; hangs end after 20 s by the
# scripts' own timeout.
OPTIONS = ["--every", "4"]
LIMIT_S = 240


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


def parse_version(text):
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])


def make_script(patch, script, folder):
    """Writes the script, changed by the patch if there is one; returns its name."""
    if patch == "-":
        shutil.copy(os.path.join(HERE, script), folder)
        return script
    name = os.path.basename(patch).replace(".patch", ".py")
    subprocess.run(["patch", "-s", "-o", os.path.join(folder, name), os.path.join(HERE, script),
                    os.path.join(HERE, patch)], check=True)
    return name


def observe(lockstep, python, folder, name):
    """Runs a script, one that resumes twice; returns the verdicts of all rules of each run."""
    text = read(os.path.join(folder, name))
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


def judge_wrong(verdicts, code, text, name, expected, place, cause):
    """expected: "rule", which must fail, or "rule WEAK", where a good script may do the same."""
    rule, word = (expected.split() + ["FAIL"])[:2]
    mine = [v for v in verdicts if rule_of(v) == rule]
    failed = [v for v in mine if v["verdict"] == word]
    others = sorted({rule_of(v) for v in verdicts if v["verdict"] == "FAIL"} - {rule})
    also = f" (also {', '.join(others)})" if others else ""
    if not failed:
        found = " | ".join(describe(v) for v in mine) or f"no such verdict, exit code {code}"
        return False, f"{rule} {found}{also}"
    lines = [f"{name}:{k}" for k, line in enumerate(text.splitlines(), 1) if place in line]
    for verdict in failed:
        where = place == "-" or verdict.get("where") in lines
        if where and (cause == "-" or fnmatch.fnmatch(verdict.get("cause", ""), cause)):
            return True, f"{rule} {describe(verdict)}{also}"
    wanted = f"expected place {lines if place != '-' else 'any'}, cause {cause}"
    return False, f"{rule} {describe(failed[0])}: {wanted}{also}"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    lockstep = os.path.abspath(sys.argv[1])
    python = shutil.which(sys.argv[2] if len(sys.argv) > 2 else "python3")
    globs = sys.argv[3:] or ["*"]
    version = subprocess.run([python or "", "-c", "import torch; print(torch.__version__)"], check=False,
                             capture_output=True, text=True).stdout if python else ""
    if not version:
        print("gallery: not run: no interpreter with torch")
        sys.exit(3)
    passed = failed = left_out = 0
    for patch, script, rule, place, cause, first, _ in read_table():
        label = script[:-3] if patch == "-" else os.path.basename(patch)[:-6]
        if not any(fnmatch.fnmatch(label, glob) for glob in globs):
            continue
        if parse_version(version) < parse_version(first):
            left_out += 1
            print(f"not run - {label}: needs PyTorch {first}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            name = make_script(patch, script, folder)
            verdicts, code = observe(lockstep, python, folder, name)
            if rule == "-":
                good, told = judge_right(verdicts, code)
            else:
                good, told = judge_wrong(
                    verdicts, code, read(os.path.join(folder, name)), name, rule, place, cause)
            if not good and os.environ.get("LS_GALLERY_KEEP"):
                shutil.copytree(folder, os.path.join(os.environ["LS_GALLERY_KEEP"], label))
        passed += good
        failed += not good
        kind = "right" if rule == "-" else "wrong"
        print(f"{'ok' if good else 'not ok'} - {kind} {label}: {told}", flush=True)
    print(f"{passed} passed, {failed} failed" + (f", {left_out} not run" if left_out else ""))
    sys.exit(failed > 0 or passed == 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Runs the gallery's scripts under `lockstep observe`: no law may fail and no rule give a hint for a right
script, and for each wrong one the rule must that its row names (../mistakes.py), with the cause and the line of the
mistake; a hint also says what would make it wrong.

usage: check.py LOCKSTEP [PYTHON] [GLOB...]    PYTHON: an interpreter with torch; GLOB: of names, 'clip*'
LS_GALLERY_SEED=5: the scripts' --seed; LS_GALLERY_KEEP=DIR: keeps the folders of those that are not as expected;
LS_GALLERY_JOBS=4: as many scripts at once; LS_DEVICE=cuda: the scripts as on_cuda.py puts them on a GPU

A script that crashed, hung or was refused is `not run` (../caught.py); one that its row or on_cuda.py excludes here is
left out. At the end it counts the wrong scripts that a law fails, those that are hinted at (or whose rule is WEAK, where
that is meant), and those whose verdict names the cause and the line. Of a pattern in a row that begins with `?` it is known that the verdict does not
have it: it counts as missing, and one that is right by now is reported, so that the mark is removed. The exit code is
1 where another row is not as expected, or where all were run and the share of causes or of lines is too small, else
3 where a script was not run.
"""
import collections
import fnmatch
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import on_cuda

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))
import caught  # noqa: E402
import mistakes  # noqa: E402

# 24 steps at most: detail in each fourth of them. A run takes seconds; hangs end after 20 s by the
# scripts' own timeout.
OPTIONS = ["--every", "4"]
LIMIT_S = 240
CAUSES, LINES = 0.80, 0.70  # least shares of the wrong scripts whose verdict names them


def parse_version(text):
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])


def make_script(row, folder):
    """Writes the script for the device; returns its name and text."""
    name, text = row.name + ".py", row.text()
    if "LS_DEVICE" in os.environ:
        text = on_cuda.translate(text)
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
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
        verdicts += caught.read(out)
        if code != 0:
            return verdicts, code
    return verdicts, code


def rule_of(verdict):
    return caught.case_of(verdict).split(".", 1)[1]


def is_at(where, place, name, text):
    """Whether a verdict's place is a line with that text; "TEXT#2": the second one. Alternatives by " | "."""
    for one in place.split(" | "):
        part, _, count = one.partition("#")
        lines = [f"{name}:{k}" for k, line in enumerate(text.splitlines(), 1) if part in line]
        if where in (lines[int(count) - 1:int(count)] if count else lines):
            return True
    return False


def compare(pattern, right):
    """(as expected, what to say) of a row's cause or line: `?` before it says that it is a known miss."""
    if pattern.startswith("?"):
        return True, f"; right by now, remove the `?`: {pattern}" if right else f"; known miss: {pattern[1:]}"
    return right, "" if right else f"; expected: {pattern}"


def judge_wrong(verdicts, code, text, row, name, tally):
    """(state, words) for a row whose rule is "rule", which must fail, "rule HINT", which cannot be sure, or "rule WEAK",
    where a good script may do the same."""
    rule, word = caught.expected(row.rule)
    place, cause = row.line, row.cause
    found, rest, judged = caught.find(verdicts, code, "observe." + rule, word)
    alarms = sorted({rule_of(v) for v in verdicts if v["verdict"] == "FAIL"} - {rule})
    also = f" (also {', '.join(alarms)})" if alarms else ""
    if not found:
        judged = judged and (code == 0 or bool(alarms))  # 1 is the job's own code where no rule fails
        tally["wrong"] += judged
        words = " | ".join(caught.describe(v) for v in rest) or f"no such verdict, exit code {code}"
        return ("not ok" if judged else "not run"), f"{rule} {words}{also}; exit code {code}"
    tally["wrong"] += 1
    tally[word] += 1
    if word == "HINT" and not all(v.get("wrong_if") for v in found):
        return "not ok", f"{rule} a hint does not say what would make it wrong"
    scored = [(caught.is_cause(v, cause.lstrip("?")), is_at(v.get("where", ""), place.lstrip("?"), name, text), v)
              for v in found]
    named, at, verdict = max(scored, key=lambda one: one[0] + one[1])
    tally["cause"] += named
    tally["line"] += at
    good_cause, words_cause = compare(cause, named)
    good_place, words_place = compare(place, at)
    return ("ok" if good_cause and good_place else "not ok"), \
        f"{rule} {caught.describe(verdict)}{also}{words_cause}{words_place}"


def report_wrong(tally, whole):
    """The four figures; false where all wrong scripts were run and too few verdicts name cause or line."""
    wrong = tally["wrong"]
    if not wrong:
        return True
    print(f"{wrong} wrong: {tally['FAIL']} fail as meant, {tally['HINT']} are hints as meant, {tally['WEAK']} "
        f"weak as meant; "
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
    tally, judging = collections.Counter(), threading.Lock()

    def run(row):
        """(state, the line to print)"""
        if parse_version(version) < parse_version(row.pytorch):
            return "left out", f"{row.name}: needs PyTorch {row.pytorch}"
        with tempfile.TemporaryDirectory() as folder:
            name, text = make_script(row, folder)
            reason = on_cuda.why_not(text)
            if reason:
                return "left out", f"{row.name}: {reason}"
            verdicts, code = observe(lockstep, python, folder, name, text)
            with judging:
                if row.rule == "-":
                    state, words = caught.judge_right(verdicts, code, ("PASS", "WEAK", "UNSUPPORTED", "SKIP"))
                else:
                    state, words = judge_wrong(verdicts, code, text, row, name, tally)
            if state != "ok" and os.environ.get("LS_GALLERY_KEEP"):
                shutil.copytree(folder, os.path.join(os.environ["LS_GALLERY_KEEP"], row.name))
        return state, f"{'right' if row.rule == '-' else 'wrong'} {row.name}: {words}"

    rows = [row for row in mistakes.all_rows() if row.rule and any(fnmatch.fnmatch(row.name, glob) for glob in globs)]
    states = collections.Counter()
    with ThreadPoolExecutor(jobs) as pool:
        for state, words in pool.map(run, rows):
            print(f"{state} - {words}", flush=True)
            states[state] += 1
    print(f"{states['ok']} passed, {states['not ok']} failed, {states['not run']} not run, {states['left out']} left out")
    enough = report_wrong(tally, not sys.argv[3:])
    if states["not ok"] or not enough:
        sys.exit(1)
    sys.exit(3 if states["not run"] or not states["ok"] else 0)


if __name__ == "__main__":
    main()

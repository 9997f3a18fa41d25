#!/usr/bin/env python3
"""Whether a run caught a mistake, or was silent on what is right: the rule of ls_detect_judge
(suite/detect/detect_internal.h), for check.sh and gallery/check.py.

usage: caught.py RUN CODE [CASE[ VERDICT] CAUSE]    RUN: the folder of a run of `lockstep conform` that ended
with CODE; CASE: the one that must catch a mistake; without it all must pass. Prints `ok`, `not ok` or `not run`,
and why.

A mistake is caught where its case has the expected verdict, FAIL where none is named, with the expected cause (in
the evidence where no cause is printed). What crashed, hung, was refused or did not run has shown nothing; nor has a
FAIL that only says how a job ended: an exception of Python's ends with 1, as a check that failed does.
"""
import fnmatch
import json
import os
import sys

JUDGED = ("PASS", "FAIL", "WEAK", "WAIVED")
MORE_THAN_FAILED = 3  # exit codes from here on, and signals, are of runs that did not judge


def read(folder):
    path = os.path.join(folder, "verdicts.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def word_of(verdict):
    """The verdict; HINT of one that fails and is guessed."""
    return "HINT" if verdict["verdict"] == "FAIL" and verdict.get("tier") == "hint" else verdict["verdict"]


def case_of(verdict):
    """The case; of the hint of a rule that also has proof that of the rule."""
    return verdict["case"].removesuffix(".hint")


def expected(text):
    """(case, verdict) of "CASE" or "CASE VERDICT"."""
    return (text.split() + ["FAIL"])[:2]


def describe(verdict):
    parts = [word_of(verdict), verdict.get("where", ""), verdict.get("evidence", ""), verdict.get("cause", "")]
    return "; ".join(text for text in parts if text)


def is_cause(verdict, patterns):
    """Whether a verdict says what the patterns ask, alternatives by " | "; "-" asks nothing."""
    text = verdict.get("cause") or verdict.get("evidence", "")
    return patterns == "-" or any(fnmatch.fnmatchcase(text, one) for one in patterns.split(" | "))


def is_judged(verdict):
    ended = fnmatch.fnmatchcase(verdict.get("evidence", ""), "rank=* exit code *")
    return verdict["verdict"] in JUDGED and not ended


def find(verdicts, code, case, word):
    """(the verdicts of the case that are the expected one, others of it, whether the run judged it)."""
    mine = [v for v in verdicts if case_of(v) == case]
    found = [v for v in mine if word_of(v) == word]
    judged = code is not None and 0 <= code < MORE_THAN_FAILED and any(map(is_judged, mine))
    shown = any(v["verdict"] not in JUDGED or is_judged(v) for v in found)
    return found, [v for v in mine if v not in found], shown or judged


def judge_wrong(verdicts, code, case, word, cause):
    found, others, judged = find(verdicts, code, case, word)
    if any(is_cause(v, cause) for v in found):
        return "ok", describe(next(v for v in found if is_cause(v, cause)))
    said = " | ".join(describe(v) for v in found + others) or f"no verdict of {case}, exit code {code}"
    return ("not ok" if judged else "not run"), f"{said}; expected: {word}, {cause}"


def judge_right(verdicts, code, silent=("PASS", "WAIVED")):
    bad = [v for v in verdicts if v["verdict"] not in silent]
    alarms = [v for v in bad if is_judged(v)]
    if alarms or bad:
        return ("not ok" if alarms else "not run"), " | ".join(f"{v['case']} {describe(v)}" for v in alarms or bad)
    if code != 0 or not verdicts:
        return "not run", f"exit code {code}, {len(verdicts)} verdicts"
    count = {word: sum(v["verdict"] == word for v in verdicts) for word in silent}
    return "ok", ", ".join(f"{number} {word}" for word, number in count.items() if number)


def main():
    run, code = read(sys.argv[1]), int(sys.argv[2])
    state, said = judge_wrong(run, code, *expected(sys.argv[3]), sys.argv[4]) if sys.argv[3:] else judge_right(run, code)
    print(f"{state}\t{said}")


if __name__ == "__main__":
    main()

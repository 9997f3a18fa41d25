#!/usr/bin/env python3
"""Scripts with a mistake, and right ones that do it another way: BASE.txt has those made from
BASE.py, a row for each.

    [NAME]
    What is wrong, in a sentence.
    rule: the rule of `lockstep observe` that must fail, as a law; RULE HINT: that must give a
        hint, as it cannot be sure (`lockstep observe --rules` says what would make it wrong);
        RULE WEAK: that must be weak; -: the script is right: no law fails, no rule gives a hint
    cause: a pattern of the verdict's cause
    line: a text of the line that the verdict must name; TEXT#2: the second line with it
    source: where it was reported
    pytorch: the first version that runs it on a CPU, where that is not the base's
    -lines of BASE.py
    +and what stands there instead,
     among lines that stay. A line @@ parts one place from the next.

Alternatives of a cause and of a line are separated by " | "; `?` before them: the verdict is known
not to have it. A trainer has, in place of `rule:` and `line:`, the `case:` of `lockstep conform`,
and a cause where one is printed. What stands in a place must be in BASE.py exactly once. The row
with the base's name changes nothing. A line that begins with # is a comment.

usage: mistakes.py BASE NAME [ARGUMENT...]   runs a script; BASE: gallery/clip, trainer, ...
       mistakes.py --print BASE NAME         prints it
       mistakes.py --list [BASE...]          makes all scripts; prints base, name, rule or case,
                                             cause and sentence of each, separated by tabs
"""
import dataclasses
import glob
import os
import re
import sys

PEERS = os.path.dirname(os.path.abspath(__file__))
FIELDS = ("rule", "case", "cause", "line", "source", "pytorch")
MARKS = ("-", "+", " ", "@")


class Malformed(ValueError):
    """The text names the row and what is wrong with it."""


def read(path):
    with open(os.path.join(PEERS, path), encoding="utf-8") as file:
        return file.read()


@dataclasses.dataclass
class Row:
    base: str  # "gallery/clip"
    name: str
    where: str  # "gallery/clip.txt:7"
    sentence: str = ""
    rule: str = ""
    case: str = ""
    cause: str = ""
    line: str = ""
    source: str = ""
    pytorch: str = ""
    change: list = dataclasses.field(default_factory=list)  # lines, with their marks

    def error(self, why):
        return Malformed(f"{self.where}: {self.name}: {why}")

    def add(self, text):
        """A line below the row's name."""
        field, _, value = text.partition(": ")
        if self.change or text.startswith(MARKS):
            self.change.append(text or " ")
            if not self.change[-1].startswith(MARKS):
                raise self.error(f"each line of a change begins with a mark, not as {text!r}")
        elif text and not self.sentence:
            self.sentence = text
        elif text:
            if field not in FIELDS or getattr(self, field) or not value:
                fields = ", ".join(FIELDS)
                raise self.error(f"expected one of {fields}, once, or a change, not {text!r}")
            setattr(self, field, value)

    def check(self):
        while self.change and self.change[-1] == " ":
            self.change.pop()
        if not self.sentence or bool(self.rule) == bool(self.case):
            raise self.error("a row has a sentence, and a rule or a case")
        if self.rule not in ("", "-") and not (self.cause and self.line):
            raise self.error("a script whose rule must fail has a cause and a line")
        if bool(self.change) == (self.name == os.path.basename(self.base)):
            raise self.error("the base's row changes nothing, another row something")

    def places(self, base):
        """(first, behind, what stands there instead) of each changed part of the base's text."""
        change = "".join(line + "\n" for line in self.change)
        for part in re.split("^@@\n", change, flags=re.MULTILINE):
            lines = part.splitlines(keepends=True)
            old, new = ("".join(line[1:] for line in lines if line[0] != other) for other in "+-")
            found = re.finditer(f"^(?={re.escape(old)})", base, re.MULTILINE) if old else ()
            at = [place.start() for place in found]
            if len(at) != 1:
                raise self.error(f"{old!r} is in {self.base}.py {len(at)} times, not once")
            yield at[0], at[0] + len(old), new

    def text(self):
        """The script."""
        text = read(self.base + ".py")
        end = len(text)
        places = self.places(text) if self.change else ()
        for first, behind, new in sorted(places, reverse=True):
            if behind > end:
                raise self.error("two places overlap")
            text, end = text[:first] + new + text[behind:], first
        return text


def bases():
    """Those that have rows."""
    found = [path[:-3] for path in glob.glob(os.path.join(PEERS, "**", "*.py"), recursive=True)]
    return sorted(os.path.relpath(path, PEERS) for path in found if os.path.exists(path + ".txt"))


def rows_of(base):
    if base not in bases():
        raise Malformed(f"{base} is no base of mistakes: {', '.join(bases())} are")
    rows = []
    for number, line in enumerate(read(base + ".txt").splitlines(), 1):
        if line.startswith("["):
            rows.append(Row(base, line[1:-1], f"{base}.txt:{number}"))
        elif rows and not line.startswith("#"):
            rows[-1].add(line)
    for row in rows:
        row.check()
        row.pytorch = row.pytorch or rows[0].pytorch
    return rows


def all_rows(of=()):
    """The rows of some bases, or of all; names differ within the gallery, and within the others."""
    rows, seen = [row for base in of or bases() for row in rows_of(base)], {}
    for row in rows:
        other = seen.setdefault((bool(row.case), row.name), row)
        if other is not row:
            raise row.error(f"stands at {other.where}, too")
    return rows


def find(base, name):
    rows = {row.name: row for row in rows_of(base)}
    if name not in rows:
        raise Malformed(f"{name} is no row of {base}.txt: {', '.join(rows)} are")
    return rows[name]


def run(row, arguments):
    path = os.path.join(PEERS, row.base + ".py")
    sys.path[0] = os.path.dirname(path)
    sys.argv = [row.name + ".py", *arguments]
    exec(compile(row.text(), path, "exec"), {"__name__": "__main__", "__file__": path})


def main(words):
    if words[:1] == ["--list"]:
        for row in all_rows(words[1:]):
            row.text()
            rule, cause = row.rule or row.case, row.cause or "-"
            print(row.base, row.name, rule, cause, row.sentence, sep="\t")
    elif words[:1] == ["--print"] and len(words) == 3:
        print(find(*words[1:]).text(), end="")
    elif len(words) >= 2 and not words[0].startswith("-"):
        run(find(*words[:2]), words[2:])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Malformed as wrong:
        sys.exit(f"mistakes.py: {wrong}")

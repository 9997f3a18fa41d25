"""The table of events (events.def) for tests in Python: checks events against it."""

import collections
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
Event = collections.namedtuple("Event", "file word sentence members")
Member = collections.namedtuple("Member", "kind of unit since sentence")
ROW = re.compile(r'^LS_(EVENT|MEMBER|AGAIN)\(((?:[^()"]|"(?:[^"\\]|\\.)*")*)\)', re.M)
FIELD = re.compile(r'((?:"(?:[^"\\]|\\.)*"\s*)+|[^",]+)(?:,\s*|$)')
KINDS = {
    "INTEGER": lambda v: (
        isinstance(v, (int, float)) and v is not True and v is not False and v == int(v)
    ),
    "NUMBER": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "TEXT": lambda v: isinstance(v, str),
    "BOOL": lambda v: isinstance(v, bool),
    "LIST": lambda v: isinstance(v, list),
    "CALLS": lambda v: isinstance(v, list),
    "OBJECT": lambda v: isinstance(v, dict),
    "MAP": lambda v: isinstance(v, dict),
    "ANY": lambda v: True,
}


def text(field):
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"', field)
    return "".join(parts).replace('\\"', '"') if parts else field.strip()


def read():
    """{name: Event}, in the order of the file."""
    with open(os.path.join(HERE, "events.def"), encoding="utf-8") as file:
        rows = [
            (kind, [text(f) for f in FIELD.findall(rest)])
            for kind, rest in ROW.findall(file.read())
        ]
    events = {}
    for kind, row in rows:
        if kind == "EVENT":
            events[row[0]] = Event(row[1], row[2], row[3], {})
        else:
            events[row[0]].members[row[1]] = Member(*row[2:])
    return events


def name_of(events, file, word):
    return next(
        (name for name, event in events.items() if (event.file, event.word) == (file, word)), None
    )


def breaches(events, value, file="RANK", word=None, skip=("event",)):
    """What an event, a call or an object in one has that the table has not, or of another kind."""
    word = word if word is not None else value.get("event")
    name = name_of(events, file, word)
    if name is None:
        return ["%s is in no row" % word]
    found, members = [], dict(events[name].members)
    if file == "CALL":
        members.update(events["any_call"].members)
    for key, own in value.items():
        row = members.get(key)
        if key in skip or own is None and row is not None:
            continue
        if row is None or not KINDS[row.kind](own):
            found.append("%s of %s is no %s: %r" % (key, word, row.kind if row else "row's", own))
        elif row.kind == "CALLS" or row.of == "any_call":
            for call in own:
                found += breaches(events, call, "CALL", call.get("call"), ())
        elif row.of != "none":
            for part in own if isinstance(own, list) else [own]:
                found += breaches(events, part, "PART", row.of, ())
    return found


def unwritten(events, sources):
    """Rows whose member no source of its writers names: sources, {RANK: text, NCCL: text, ...}."""
    return [
        "%s of %s" % (member, name)
        for name, event in events.items()
        for member in event.members
        if not re.search(r'"%s\\?"|\b%s=' % (member, member), sources[event.file])
    ]

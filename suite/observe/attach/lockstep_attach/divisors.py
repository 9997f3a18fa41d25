"""Where the script divides its loss by the number of ranks, as its text says: the graph has the number
alone, which may be a weight.
"""

import linecache
import re
import sys

FILES, LINES = 16, 20000  # of the script's own that are read
RANKS = (
    r"(?:\w+\.)*(?:\w*world_?size|get_world_size\([^)]*\)|num_processes|num_replicas|nprocs|n_?gpus?"
    r"|num_gpus|ngpus_per_node|device_count\(\))"
)
BY = re.compile(r"(?:/=?\s*\(?\s*(?:float|int)?\(?\s*)" + RANKS + r"\b", re.IGNORECASE)
GOES = re.compile(r"([A-Za-z_][\w.\[\]'\"]*)\s*\)?\.backward\(|backward\(\s*([A-Za-z_][\w.]*)")
TARGET = re.compile(r"^\s*([A-Za-z_][\w.\[\]'\"]*)\s*(?:/=|=[^=])")
MADE = re.compile(r"^\s*return\b.*\bloss|\.backward\(|backward\(", re.IGNORECASE)


def _files(place, work):
    """The file of that place, and those of the script's own modules."""
    names = [place.rpartition(":")[0]]
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and file.startswith(work):
            if "-packages" not in file:
                names.append(file)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return [name for name in ([main] if isinstance(main, str) else []) + names if name][:FILES]


def _lines(file):
    return [line.split("#")[0] for line in linecache.getlines(file)[:LINES]]


def find(place, work):
    """The place of a line that divides what goes backward by the number of ranks, or None."""
    for file in dict.fromkeys(_files(place, work)):
        lines = _lines(file)
        gone = set()
        for line in lines:
            for match in GOES.finditer(line):
                gone.update(name for name in match.groups() if name)
        for number, line in enumerate(lines):
            if BY.search(line) is None:
                continue
            target = TARGET.match(line)
            if MADE.search(line) or (target is not None and target.group(1) in gone):
                name = file[len(work) :] if file.startswith(work) else file
                return "%s:%d" % (name, number + 1)
    return None

"""What the script's text says where calls do not: where it divides its loss by the number of ranks
(the graph has the number alone, which may be a weight), where it sets a rate, that of one group or
any, and by which words it chooses the parameters that do not decay.
"""

import ast
import functools
import linecache
import re
import sys

PLACES = re.compile(r"([^\s()]+):\d+")  # of "train.py:41 (accelerate/accelerator.py:2400)"
FILES, LINES = 16, 20000  # of the script's own that are read
RANKS = (
    r"(?:\w+\.)*(?:\w*world_?size|get_world_size\([^)]*\)|num_processes|num_replicas|nprocs|n_?gpus?"
    r"|num_gpus|ngpus_per_node|device_count\(\))"
)
BY = re.compile(r"(?:/=?\s*\(?\s*(?:float|int)?\(?\s*)" + RANKS + r"\b", re.IGNORECASE)
STEPS = re.compile(r"/=?\s*\(?\s*(?:\w+\.)*\w*accum\w*\b", re.IGNORECASE)
GOES = (
    re.compile(r"([A-Za-z_][\w.\[\]'\"]*)\s*\)?\.backward\("),
    re.compile(r"backward\(\s*([A-Za-z_][\w.]*)"),  # accelerator.backward(loss)
    re.compile(r"^\s*return\b.*\b(\w*loss)\b"),  # to what calls backward
)
TARGET = re.compile(r"^\s*([A-Za-z_][\w.\[\]'\"]*)\s*(?:/=|=[^=])")
RATE = re.compile(
    r"param_groups\s*\[[^\]]*\]\s*\[\s*['\"]lr['\"]\s*\]\s*[*/+-]?=[^=]|\bin\s+[\w.]*param_groups\s*\["
)
SETS = re.compile(r"\[\s*['\"]lr['\"]\s*\]\s*[*/+-]?=[^=]|\boptim\w*\.lr\s*[*/+-]?=[^=]")
# nothing but the number of ranks: `*= world / checkpoint["world"]` takes the file's own into
# account
_FACTOR = r"(?:float|int)?\(?\s*" + RANKS + r"\s*\)?\s*$"
SCALES = re.compile(
    r"\[\s*['\"]lr['\"]\s*\]\s*(?:[*/]=|=\s*[\w.\[\]]+\[\s*['\"]lr['\"]\s*\]\s*[*/])\s*" + _FACTOR,
    re.IGNORECASE,
)
OF_FILE = re.compile(
    r"\bif\b.*(?:ckpt|check_?point|saved|old|prev|state|resum|load|snapshot)", re.IGNORECASE
)
# no_decay = ["bias", "LayerNorm.weight"], on one line or several
SPARED = re.compile(
    r"^\s*\w*(?:no_?(?:weight_?)?decay|without_decay|skip_decay|undecayed)\w*\s*=\s*[\[({]([^\])}]*)",
    re.IGNORECASE,
)
WORD = re.compile(r"['\"]([^'\"]+)['\"]")
LONGEST = 8  # lines of such a list
# by a name alone: no 1 - acc
STEPPED = re.compile(r"\.step\(\s*([A-Za-z_][\w.\[\]'\"]*)(?:\(\))?\s*\)")
FREEZES = re.compile(r"\.requires_grad(_\(\s*|\s*=\s*)False\b")
REPLACED = re.compile(r"([\w.\[\]'\"]+)\.dataset\.transforms?\s*=[^=]")
COPIES = re.compile(r"\.grad\b(?:\.data)?\.(?:clone|flatten|view|reshape|ravel)\(")
SCALE = re.compile(r"\._scale\b|\._get_scale_async\b")
ABOVE = 3  # lines above, where a condition may say for which files
MADE = re.compile(r"^\s*return\b.*\bloss|\.backward\(|backward\(", re.IGNORECASE)


def _file_of(module):
    """Not as an attribute: a lazy module would be imported."""
    try:
        return object.__getattribute__(module, "__dict__").get("__file__")
    except Exception:  # what stands for a module may be anything
        return None


def _files(place, work):
    """The file of that place, and those of the script's own modules."""
    names = PLACES.findall(place)
    for module in list(sys.modules.values()):
        file = _file_of(module)
        if isinstance(file, str) and file.endswith(".py") and file.startswith(work):
            if "-packages" not in file:
                names.append(file)
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    return [name for name in ([main] if isinstance(main, str) else []) + names if name][:FILES]


def _lines(file):
    return [line.split("#")[0] for line in linecache.getlines(file)[:LINES]]


def _place(file, number, work):
    return "%s:%d" % (file[len(work) :] if file.startswith(work) else file, number + 1)


def _all_lines(place, work):
    """(the lines of a file, number of one, its place) of all files."""
    for file in dict.fromkeys(_files(place, work)):
        lines = _lines(file)
        for number in range(len(lines)):
            yield lines, number, _place(file, number, work)


def _first(pattern, place, work):
    """The place of the first line that has the pattern, or None."""
    found = (at for lines, n, at in _all_lines(place, work) if pattern.search(lines[n]))
    return next(found, None)


rate = functools.partial(_first, RATE)  # sets the rate of some groups of an optimizer
rate_set = functools.partial(_first, SETS)  # sets a rate at all
gradients_copied = functools.partial(_first, COPIES)  # copies a gradient, or flattens it
freezes = functools.partial(_first, FREEZES)  # sets a parameter's requires_grad to False
scale_read = functools.partial(_first, SCALE)  # reads a scaler's tensor around get_scale()


def rate_scaled(place, work):
    """The place of a line that multiplies a rate by the number of ranks, or divides it, whatever it
    was and whatever file was loaded; or None.
    """
    for lines, number, at in _all_lines(place, work):
        above = lines[max(0, number - ABOVE) : number]
        if SCALES.search(lines[number]) and not any(OF_FILE.search(one) for one in above):
            return at
    return None


def spared(place, work):
    """{words, at} of a list of words whose name says that what they occur in has no decay,
    or None.
    """
    for lines, number, at in _all_lines(place, work):
        if "decay" in lines[number].lower():
            found = SPARED.match("".join(lines[number : number + LONGEST]))
            words = WORD.findall(found.group(1)) if found is not None else []
            if words:
                return {"words": words[:LONGEST], "at": at}
    return None


def replaced(place, work):
    """{part: place} of the lines that set the transform of what a part is taken from."""
    found = ((REPLACED.search(lines[n]), at) for lines, n, at in _all_lines(place, work))
    return {one.group(1): at for one, at in found if one is not None}


def _trees(place, work):
    for file in dict.fromkeys(_files(place, work)):
        try:
            yield ast.parse("".join(linecache.getlines(file)[:LINES]))
        except (SyntaxError, ValueError, RecursionError):
            pass


def stepped_if(place, work):
    """Whether what is built there is given a name whose step() is called under a condition."""
    found = PLACES.match(place)
    line = int(found.group(0).rsplit(":", 1)[1]) if found is not None else 0
    trees = list(_trees(place, work))
    names = {name for tree in trees for name in _assigned(tree, line)}
    tests = (test for tree in trees for test in _conditions(tree))
    return any(_steps(node, names) for test in tests for node in ast.walk(test))


def _assigned(tree, line):
    """The names of what a statement over that line assigns: of `scheduler = StepLR(...)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and node.lineno <= line <= node.end_lineno:
            for target in node.targets:
                yield getattr(target, "attr", None) or getattr(target, "id", None)


def _conditions(tree):
    for node in ast.walk(tree):
        if isinstance(node, (ast.If, ast.IfExp)):
            if not any(getattr(part, "id", "") == "__name__" for part in ast.walk(node.test)):
                yield node


def _steps(node, names):
    call = node.func if isinstance(node, ast.Call) else None
    if not isinstance(call, ast.Attribute) or call.attr != "step":
        return False
    return (getattr(call.value, "attr", None) or getattr(call.value, "id", "")) in names


def stops_early(place, work):
    """Whether a break or a return may leave the outermost loop around a backward."""
    trees = list(_trees(place, work))
    trains = {"backward"}  # and functions that call it, or one that does
    found = {node.name: _used(node) for tree in trees for node in ast.walk(tree) if _is_def(node)}
    for _ in found:
        trains.update(name for name, used in found.items() if used & trains)
    loops = [one for tree in trees for one in _outermost(tree) if _used(one[1]) & trains]
    inner = {name for within, loop in loops for name in _used(loop) & trains - {within}}
    return any(_is_left(loop.body) for within, loop in loops if within not in inner)


def _is_def(node):
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _used(node):
    """The names of what is called in it."""
    calls = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
    return {getattr(call, "attr", None) or getattr(call, "id", None) for call in calls}


def _outermost(node, within=None):
    """(the name of the function around it, a loop) of those that no other one holds."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.For, ast.While)):
            yield within, child
        else:
            yield from _outermost(child, child.name if _is_def(child) else within)


def _is_left(statements, inside=False):
    """Whether one of them, not of a function among them, is a return, or, of no loop among them, a
    break.
    """
    for node in statements:
        if isinstance(node, ast.Return) or isinstance(node, ast.Break) and not inside:
            return True
        deeper = inside or isinstance(node, (ast.For, ast.While))
        if not (_is_def(node) or isinstance(node, (ast.ClassDef, ast.Lambda))):
            if _is_left(ast.iter_child_nodes(node), deeper):
                return True
    return False


def frozen(name, place, work):
    """The place of a line that sets an attribute of that name to False, of something else than the
    object itself or a parameter that goes through a loop; or None.
    """
    loops = r"(?<!\bp)(?<!\bparam)(?<!\bparameter)" if name == "requires_grad" else ""
    own = r"(?<!\bself)" + loops + r"\."
    return _first(re.compile(own + name + r"\s*=\s*False\b"), place, work)


def stepped_by(place, work):
    """The name by which the line of that place steps a schedule: of
    scheduler.step(metrics["val_acc"]); or None.
    """
    found = re.match(r"([^\s()]+):(\d+)", place)
    if found is None:
        return None
    file = found.group(1) if found.group(1).startswith("/") else work + found.group(1)
    named = STEPPED.search(linecache.getline(file, int(found.group(2))).split("#")[0])
    return named.group(1) if named is not None else None


def _divided(by, place, work):
    """The place of a line that divides what goes backward by that, or None."""
    for lines, number, at in _all_lines(place, work):
        line = lines[number]
        if by.search(line) is None:
            continue
        target = TARGET.match(line)
        gone = {name for one in lines for goes in GOES for name in goes.findall(one)}
        if MADE.search(line) or (target is not None and target.group(1) in gone):
            return at
    return None


division = functools.partial(_divided, BY)  # by the number of ranks
by_steps = functools.partial(_divided, STEPS)  # by what its name says are micro-steps

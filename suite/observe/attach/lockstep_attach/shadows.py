"""Weights that the script keeps beside a model by the names of its parameters (an average in a
dict), where a loop looks for the model's names in them after a step: whether they are there,
whether tensors are read or written, and what they hold.
"""

import dis
import inspect
import re
import sys

from .models import plain_name

NAMES, NEAR = 256, 10  # that are written; tokens from a call to its loop
SILENT = "CACHE RESUME EXTENDED_ARG PRECALL PUSH_NULL NOP TO_BOOL NOT_TAKEN".split()


def _tokens(frame):
    """[(what, name, offset, target)] of the instructions behind the frame's present call."""
    out = []
    for one in dis.get_instructions(frame.f_code):
        kind, value = one.opname, one.argval
        if one.offset <= frame.f_lasti or kind in SILENT:
            continue
        if kind in ("LOAD_ATTR", "LOAD_METHOD"):
            out.append(("attr", value, one.offset))
        elif re.match("(LOAD|STORE)_(FAST|NAME|GLOBAL|DEREF)", kind):  # of two in newer versions
            names = value if isinstance(value, tuple) else (value,)
            words = re.findall("LOAD|STORE", kind)
            out += [(word.lower(), name, one.offset) for word, name in zip(words, names)]
        elif kind in ("FOR_ITER", "CONTAINS_OP"):
            out.append((kind, value, one.offset))
        else:
            out.append((kind[:4], None, one.offset))
    return out


def _path(tokens, end, step=1):
    """(The names of a variable and of attributes of it, ending before or beginning at that token,
    the token behind them in that direction.)
    """
    names = []
    if step < 0:
        while end >= 0 and tokens[end][0] == "attr":
            names.insert(0, tokens[end][1])
            end -= 1
        if end >= 0 and tokens[end][0] == "load":
            return [tokens[end][1], *names], end - 1
    elif end < len(tokens) and tokens[end][0] == "load":
        names, end = [tokens[end][1]], end + 1
        while end < len(tokens) and tokens[end][0] == "attr":
            names.append(tokens[end][1])
            end += 1
        return names, end
    return [], end


def _looked_in(frame):
    """[path] of what the loop that begins with the frame's present call looks for names in, which
    are the loop's own; and of what a loop goes through that looks for its names in the result.
    """
    tokens = _tokens(frame)
    begin = next((i for i, one in enumerate(tokens[:NEAR]) if one[0] == "FOR_ITER"), None)
    if begin is None:
        return []
    kept = next((one[1] for one in tokens[:begin] if one[0] == "store"), None)
    over, end = _path(tokens, begin - 1, -1), tokens[begin][1]
    while over[0] == [] and over[1] >= 0 and tokens[over[1]][0] in ("GET_", "CALL"):
        over = _path(tokens, over[1] - 1, -1)
    through = over[0][:-1] if over[0][-1:] in (["items"], ["keys"]) else over[0]
    body = [one for one in tokens[begin + 1 :] if one[2] < end]
    first = next((i for i, one in enumerate(body) if one[0] not in ("UNPA", "store")), 0)
    targets = {one[1] for one in body[:first]}
    out = []
    for i, (what, name, _) in enumerate(body):
        if what != "load" or name not in targets:
            continue
        path, behind = _path(body, i + 1)
        called = [one[0] for one in body[i + 1 : i + 3]]
        if not path or behind >= len(body) or body[behind][0] != "CONTAINS_OP":
            path = _path(body, i - 1, -1)[0]
            if path[-1:] != ["get"] or "CALL" not in called:
                continue
            path = path[:-1]
        if kept is None or path == [kept]:
            out.append(path if kept is None else through)
    return [path for path in out if path]


class Shadows:
    def __init__(self, hub):
        self.hub = hub
        self.after = False  # the optimizer of a detailed step has stepped, and nothing came yet
        self.found = {}  # (model, place, name): (whether names match, its tensors by plain name)
        self.mode = None

    def install(self):
        compiling, idle = self.hub.compiling, self.hub.idle

        def unseen():
            return compiling() or not self.after or idle()

        self.hub.wrap(self.hub.torch.nn.Module, "named_parameters", self._enter, None, unseen)

    def stepped(self):
        if self.hub.steps.now.detail and not self.hub.models.compiles:
            self.after = True

    def _enter(self, args, kwargs):
        named = self.hub.torch.nn.Module.named_parameters
        self.look(args[0], lambda: [name for name, _ in named(*args, **kwargs)])

    def look(self, module, names):
        """The script asks for the names of a module's parameters, which names() gives."""
        hub = self.hub
        if not self.after or hub.optimizers.active is not None:
            return
        entry = hub.models.entry_of(next(hub.torch.nn.Module.parameters(module), None))
        frame = sys._getframe(1)
        while frame is not None and not hub.places.name_of(frame.f_code.co_filename)[0]:
            frame = frame.f_back
        if entry is None or frame is None:
            return
        model = hub.models.models[entry.model]
        for name, value in self._read(frame):
            key = (model.index, hub.places.here(), name)
            tensors = None if key in self.found else self._shadow(model, value)
            if tensors is not None:
                self.found[key] = not set(value).isdisjoint(names()), tensors
        if self.found and self.mode is None:
            self._watch()

    def _read(self, frame):
        """[(name, dict)] of what model's names are looked for in there."""
        paths = _looked_in(frame)
        if not paths:
            return []
        held, out = frame.f_locals, []
        for first, *inner in paths:
            value = held[first] if first in held else frame.f_globals.get(first)
            for name in inner:
                value = (getattr(value, "__dict__", None) or {}).get(name)
            if type(value) is dict:
                out.append((".".join([first, *inner]), value))
        optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if type(held) is dict and optimized and not sys.gettrace():
            held.clear()  # a copy, which would keep alive what the function drops
        return out

    def _shadow(self, model, value):
        """Its tensors by plain name, where each is like the parameter of that name, and none is the
        parameter itself; else None.
        """
        tensor, cut = self.hub.torch.Tensor, len(model.full_name(""))
        if not value or not all(isinstance(t, tensor) for t in value.values()):
            return None
        params = {entry.name[cut:]: p for entry, p in model.params()}
        out = {plain_name(str(name)): t for name, t in value.items()}
        for name, t in out.items():
            p = params.get(name)
            if p is None or p.shape != t.shape or _address(t) == _address(p):
                return None
            if t.layout != p.layout or t.device.type == "meta" or hasattr(t, "_local_tensor"):
                return None
        return out

    def _watch(self):
        """From here on, until the next forward, operations are seen."""
        count = getattr(self.hub.torch._C, "_len_torch_dispatch_stack", None)
        if count is None or count() > 0:  # one of the script's may end before this one
            self.found = {}
            return
        self.mode = _mode(self.hub.torch)
        self.mode.__enter__()
        self.hub.temporary.append(self._unwatch)

    def _unwatch(self):
        self.mode.__exit__(None, None, None)

    def leave(self):
        """Something else than what belongs to the step begins."""
        self.after = False
        if self.mode is not None:
            self.hub.undo(self._unwatch)
            touched, self.mode = self.mode.touched, None
            for key, (match, tensors) in self.found.items():
                self._put(key, match, dict(list(tensors.items())[:NAMES]), touched)
        self.found = {}

    def _put(self, key, match, tensors, touched):
        model, at, name = key
        own = {entry.name: p for entry, p in self.hub.models.models[model].params()}
        names = [self.hub.models.models[model].full_name(name) for name in tensors]
        digests = self.hub.digests
        self.hub.put(
            "shadow",
            step=self.hub.steps.now.number,
            model=model,
            at=at,
            name=name,
            match=match,
            touched=sum(1 for t in tensors.values() if _address(t) in touched),
            names=names,
            digests=digests.each([t.detach() for t in tensors.values()]),
            digests_now=digests.each([own[name].detach() for name in names]),
        )


def _address(tensor):
    """Of its storage; None: it has none."""
    storage = getattr(tensor, "untyped_storage", tensor.storage)
    try:
        return storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None


def _mode(torch):
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        touched = None
        supports_higher_order_operators = True

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            for one in args:
                many = one if isinstance(one, (list, tuple)) else (one,)
                tensors = (t for t in many if isinstance(t, torch.Tensor))
                self.touched.update(map(_address, tensors))
            return function(*args, **(kwargs or {}))

    mode = Mode()
    mode.touched = set()
    return mode

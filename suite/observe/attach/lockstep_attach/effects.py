"""What a forward of the user's changes outside its module, which a copy of the module shares: global counters, generators
of random numbers, other threads. Such a forward is not run again.
"""

import collections
import dis
import itertools
import random
import threading
import types

DEPTH = 3  # functions within functions
CHANGES = {
    "append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "clear", "remove",
}  # fmt: skip
CONTAINERS = (list, dict, set, collections.deque, bytearray)


class _Code:
    """Of one function: the objects outside that it names, and what it stores."""

    def __init__(self, code, names, cells):
        self.held, self.attributes, self.stored, self.writes, self.says = {}, set(), set(), False, None
        for one in dis.get_instructions(code):
            name, value = one.opname, one.argval
            if name in ("STORE_GLOBAL", "DELETE_GLOBAL") or (name == "STORE_DEREF" and value in code.co_freevars):
                self.says = "sets %s, which is outside the module" % value
            elif name.startswith("LOAD_GLOBAL") or name == "LOAD_NAME":
                self._hold(value, names)
            elif name in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
                self._hold(value, cells)
            elif name == "STORE_ATTR":
                self.stored.add(value)
            elif name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
                self.writes = True
            elif isinstance(value, str):
                self.attributes.add(value)

    def _hold(self, name, where):
        if name in where:
            self.held[name] = where[name]


def _cells(function):
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not yet filled
            pass
    return cells


class Effects:
    def __init__(self, hub):
        self.hub = hub

    def of_modules(self, modules):
        """What forwards of the user's own classes change outside, as text, or None."""
        for kind in {type(module) for module in modules}:
            found = self._of_method(kind, "forward", set())
            if found is not None:
                return "the forward of %s %s" % (kind.__name__, found)
        return None

    def of_functions(self, functions):
        for function in functions:
            found = self._of(function, None, set(), 0)
            if found is not None:
                return "%s %s" % (getattr(function, "__qualname__", "a function"), found)
        return None

    def of_threads(self):
        """Whether a thread of the user's own runs: it may draw random numbers, or enter autocast, meanwhile."""
        own = threading.current_thread()
        for thread in threading.enumerate():
            target = getattr(thread, "_target", None)
            run = target if target is not None else type(thread).run
            module = str(getattr(run, "__module__", ""))
            if thread is not own and (self._is_users(run) or module.startswith("concurrent.")):
                return "another thread runs, which may draw random numbers, too"
        return None

    def _is_users(self, function):
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None:
            return False
        name, packaged = self.hub.places.name_of(code.co_filename)
        return bool(name) and not packaged

    def _of_method(self, kind, name, seen):
        function = next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None)
        function = getattr(function, "_ls_original", function)
        return self._of(function, kind, seen, 0) if isinstance(function, types.FunctionType) else None

    def _of(self, function, kind, seen, depth):
        function = getattr(function, "_ls_original", function)
        function = getattr(function, "__func__", function)
        if id(function) in seen or depth > DEPTH or not isinstance(function, types.FunctionType):
            return None
        seen.add(id(function))
        if not self._is_users(function):
            return None
        inner = [one for one in function.__code__.co_consts if isinstance(one, types.CodeType)]
        for code in [function.__code__, *inner]:
            seen_code = _Code(code, function.__globals__, _cells(function))
            found = seen_code.says or self._of_held(seen_code)
            for value in seen_code.held.values():
                found = found or self._of(value, None, seen, depth + 1)
            for name in seen_code.attributes if kind is not None and found is None else ():
                found = found or self._of_method(kind, name, seen)
            if found is not None:
                return found
        return None

    def _of_held(self, code):
        for name, value in code.held.items():
            module = str(getattr(type(value), "__module__", ""))
            draws = isinstance(value, (self.hub.torch.Generator, random.Random, itertools.count, types.GeneratorType))
            if draws or (module.startswith("numpy.random") and not isinstance(value, type)):
                return "goes on with %s, which is outside the module" % name
            if isinstance(value, CONTAINERS) and (code.writes or code.attributes & CHANGES):
                return "changes %s, which is outside the module" % name
            own = {} if isinstance(value, types.ModuleType) else getattr(value, "__dict__", None) or {}
            kept = [own[name] for name in code.attributes if name in own]
            changes = code.writes or code.attributes & CHANGES
            if any(stored in own for stored in code.stored) or (changes and any(isinstance(k, CONTAINERS) for k in kept)):
                return "changes %s, which is outside the module" % name
        return None

"""What a forward of the user's changes outside its module, which a copy of the module shares:
global counters, generators of random numbers, other threads. Such a forward is not run again.
"""

import collections
import dis
import functools
import itertools
import random
import threading
import types

DEPTH = 3  # functions within functions
CHANGES = "append appendleft extend insert add update setdefault pop popleft clear remove".split()
CONTAINERS = (list, dict, set, collections.deque, bytearray)


class _Line:
    """Of one line of a function: the objects outside that it names, and what it stores."""

    def __init__(self):
        self.held, self.attributes, self.stored, self.writes = {}, set(), set(), False

    def changes(self, value):
        """Whether it calls a method that changes the container, or stores in it."""
        return isinstance(value, CONTAINERS) and (
            self.writes
            or any(hasattr(value, name) for name in self.attributes.intersection(CHANGES))
        )


def _lines(code, names, cells, own):
    """(its lines, what it says of itself or None). `own`: variables of its that are known."""
    lines, says = [_Line()], None
    for one in dis.get_instructions(code):
        name, value, line = one.opname, one.argval, lines[-1]
        if one.starts_line:
            line = _Line()
            lines.append(line)
        if name in ("STORE_GLOBAL", "DELETE_GLOBAL") or (
            name == "STORE_DEREF" and value in code.co_freevars
        ):
            says = "sets %s, which is outside the module" % value
        elif name.startswith("LOAD_GLOBAL") or name == "LOAD_NAME":
            if value in names:
                line.held[value] = names[value]
        elif name in ("LOAD_DEREF", "LOAD_CLASSDEREF"):
            if value in cells:
                line.held[value] = cells[value]
        elif name.startswith("LOAD_FAST"):
            for variable in value if isinstance(value, tuple) else (value,):
                if variable in own:
                    line.held[variable] = own[variable]
        elif name == "STORE_ATTR":
            line.stored.add(value)
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            line.writes = True
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            line.attributes.add(value)
    return lines, says


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
        """Whether a thread of the user's runs: it may draw random numbers or enter autocast."""
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

    def _of_method(self, kind, name, seen, owner=None):
        function = next((vars(c)[name] for c in kind.__mro__ if name in vars(c)), None)
        function = getattr(function, "_ls_original", function)
        plain = isinstance(function, types.FunctionType)
        return self._of(function, kind, seen, 0, owner) if plain else None

    def _of(self, function, kind, seen, depth, owner=None):
        """`owner`: the object whose method it is, where that is outside, too."""
        function = getattr(function, "_ls_original", function)
        function = getattr(function, "__func__", function)
        if id(function) in seen or depth > DEPTH or not isinstance(function, types.FunctionType):
            return None
        seen.add(id(function))
        if not self._is_users(function):
            return None
        inner = [one for one in function.__code__.co_consts if isinstance(one, types.CodeType)]
        own = {function.__code__.co_varnames[0]: owner} if owner is not None else {}
        for code in [function.__code__, *inner]:
            lines, found = _lines(code, function.__globals__, _cells(function), own)
            for line in lines:
                found = found or self._of_line(line)
                for value in line.held.values():
                    found = found or self._of_held(value, line, seen, depth + 1)
                for name in line.attributes if kind is not None else ():
                    found = found or self._of_method(kind, name, seen, owner)
            if found is not None:
                return found
        return None

    def _of_held(self, value, line, seen, depth):
        return self._of(value, None, seen, depth)

    def _of_line(self, line):
        for name, value in line.held.items():
            module = str(getattr(type(value), "__module__", ""))
            drawing = (random.Random, itertools.count, types.GeneratorType)
            draws = isinstance(value, (self.hub.torch.Generator, *drawing))
            if draws or (module.startswith("numpy.random") and not isinstance(value, type)):
                return "goes on with %s, which is outside the module" % name
            own = getattr(value, "__dict__", None) or {}
            own = {} if isinstance(value, types.ModuleType) else own
            kept = [own[attribute] for attribute in line.attributes if attribute in own]
            stores = any(stored in own for stored in line.stored)
            if stores or any(line.changes(one) for one in [value, *kept]):
                return "changes %s, which is outside the module" % name
        return None


class OfCallables(Effects):
    """Of a function that is called again as it is, with all that it holds: objects that it calls,
    or whose methods it calls, are not copied either.
    """

    def of(self, function):
        """What it changes, as text, or None; a function that is not the user's is not known."""
        while isinstance(function, functools.partial):
            function = function.func
        called = function if isinstance(function, CALLED) else type(function).__call__
        if not self._is_users(called):
            return "is not the script's own"
        if "open" in called.__code__.co_names:
            return "may open files"
        return self.of_threads() or self._of_held(function, None, set(), 0)

    def _of_held(self, value, line, seen, depth):
        value = getattr(value, "__wrapped__", value)
        if isinstance(value, types.MethodType):
            return self._of(value, type(value.__self__), seen, depth, value.__self__)
        if isinstance(value, (types.FunctionType, type, types.ModuleType)):
            return self._of(value, None, seen, depth)
        names = ["__call__", *(line.attributes if line is not None else ())]
        found = (self._of_method(type(value), name, seen, value) for name in names)
        return next((one for one in found if one is not None), None)

    def _of_line(self, line):
        writes = line.stored or line.attributes.intersection(WRITES)
        stores = next((n for n, v in line.held.items() if writes and _is_object(v)), None)
        if stores is not None:
            return "changes %s, or writes to it" % stores
        kept = [vars(v)[name] for v in line.held.values() if _is_object(v)
                for name in line.attributes if name in vars(v)]  # fmt: skip
        draws = (random.Random, itertools.count, types.GeneratorType, self.hub.torch.Generator)
        if any(isinstance(v, draws) or "numpy.random" in type(v).__module__ for v in kept):
            return "goes on with a generator of its own"
        return super()._of_line(line)


WRITES = "write writelines put put_nowait send sendall log add_scalar".split()
CALLED = (types.FunctionType, types.MethodType)


def _is_object(value):
    return hasattr(value, "__dict__") and not isinstance(value, (*CALLED, type, types.ModuleType))

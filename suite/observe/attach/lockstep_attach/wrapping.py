"""Functions that stand in for torch's own: they run the user's call exactly once, whatever this
module does.
"""

import functools
import types
import weakref

# The file that a stand-in names as its own. warnings.warn passes over frames of such files, which
# it takes for import's: a warning that torch gives about its caller names the user's line, as
# without this module.
FILE = "<lockstep importlib._bootstrap>"


def given(args, kwargs, name, place, default=None):
    """An argument of a call, by its name or its place."""
    return kwargs.get(name, args[place] if len(args) > place else default)


class ByObject:
    """A value for each of some objects, which are not kept alive: an id may be another's later."""

    def __init__(self):
        self.by_id, self.count = {}, 0

    def __len__(self):
        return len(self.by_id)

    def put(self, thing, value):
        self.by_id[id(thing)] = (weakref.ref(thing), value)
        return value

    def get(self, thing, default=None):
        ref, value = self.by_id.get(id(thing), (None, None))
        return value if ref is not None and ref() is thing else default

    def drop(self, thing):
        self.by_id.pop(id(thing), None)

    def alive(self):
        """[(object, value)]"""
        found = [(ref(), value) for ref, value in list(self.by_id.values())]
        return [(thing, value) for thing, value in found if thing is not None]

    def number(self, thing):
        """Its number, in the order in which they are met."""
        found = self.get(thing)
        if found is None:
            found, self.count = self.put(thing, self.count), self.count + 1
        return found


class Swap:
    """Returned by an `enter` that replaces the arguments by equal ones (a generator that must be
    counted).
    """

    __slots__ = ("args", "kwargs", "note")

    def __init__(self, args, kwargs, note):
        self.args, self.kwargs, self.note = args, kwargs, note


class Counted:
    """The note of a call that was only counted off (thin.py); leave(note) when it has ended."""

    __slots__ = ("leave", "begin_ns")

    def __init__(self, leave=None, begin_ns=0):
        self.leave, self.begin_ns = leave, begin_ns


def _stand_in(original, idle, enter, leave, swap):
    # No globals: the function below gets those of the original, which torch.jit reads to resolve
    # names. Where
    # torch.compile traces it, idle() is constant and only the first return is left.
    def wrapper(*args, **kwargs):
        if idle():
            return original(*args, **kwargs)
        note = enter(args, kwargs)
        if note.__class__ is swap:
            args, kwargs, note = note.args, note.kwargs, note.note
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            leave(note, args, kwargs, None, error)
            raise
        leave(note, args, kwargs, result, None)
        return result

    return wrapper


def stand_in(hub, original, enter=None, leave=None, idle=None, count=None):
    """A function that calls enter(args, kwargs) -> note, the original, and
    leave(note, args, kwargs, result, error); the original alone where idle(). count: of thin.py.
    """
    idle = idle or hub.idle

    def guarded_enter(args, kwargs):
        note = count(args, kwargs) if count is not None else None
        if note is not None:
            return note
        return hub.call(enter, args, kwargs) if enter is not None else None

    def guarded_leave(note, args, kwargs, result, error):
        if note.__class__ is Counted:
            if note.leave is not None:
                note.leave(note)
        elif leave is not None:
            hub.call(leave, note, args, kwargs, result, error)
        if hub.quiet and hub.temporary:
            hub.sweep()

    made = _stand_in(original, idle, guarded_enter, guarded_leave, Swap)
    made = _in_file(hub, made, original)
    for function in (guarded_enter, guarded_leave, idle):
        hub.dynamo.skip(function)
    made._ls_original = original
    made._ls_self = made
    return made


def _in_file(hub, made, original):
    """The function as one of FILE, with the globals and the name of the original."""
    names = getattr(original, "__globals__", made.__globals__)
    code = made.__code__.replace(co_filename=FILE)
    made = types.FunctionType(code, names, made.__name__, None, made.__closure__)
    hub.dynamo.skip(made)
    return functools.update_wrapper(made, original)


class Switch:
    """A function of a module that others stand in for now and then: it is the same object all the
    time, which a model may hold, and torch.compile guards.
    """

    def __init__(self, hub, owner, name):
        original = self.original = getattr(owner, name)
        self.use = None
        compiling = hub.compiling

        def made(*args, **kwargs):
            if compiling() or self.use is None:
                return original(*args, **kwargs)
            return self.use(*args, **kwargs)

        setattr(owner, name, _in_file(hub, made, original))


def wrap(hub, owner, name, enter=None, leave=None, idle=None, count=None):
    """Replaces a function of a module or a method of a class, once. False: there is none."""
    original = vars(owner).get(name, getattr(owner, name, None))
    kind = type(original)
    function = original.__func__ if kind in (classmethod, staticmethod) else original
    # update_wrapper copies attributes outward: a wrapper of the user's around ours is none of ours
    ours = getattr(function, "_ls_self", None) is function
    if ours or not isinstance(function, types.FunctionType):
        return False
    made = stand_in(hub, function, enter, leave, idle, count)
    if isinstance(owner, types.ModuleType):
        made.__module__, made.__qualname__ = owner.__name__, name  # where pickle finds it
    setattr(owner, name, kind(made) if kind in (classmethod, staticmethod) else made)
    return True

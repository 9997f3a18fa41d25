"""A forward that stands for another method of its module: the calls of the module's parts in it.

Lightning replaces the forward of a module by a function that calls training_step. That method logs,
counts and may step optimizers: it is not run again. What it calls, self(x) or self.net(x), is a
forward like any other.
"""

import threading

MOST = 256  # calls of parts in a forward


def is_redirected(inner):
    """Whether the module's forward is a function that somebody has set, and no method of
    its own.
    """
    found = vars(inner).get("forward")
    return found is not None and getattr(found, "__self__", None) is not inner


class Parts:
    """From the begin of the redirected forward to its end, Module.__call__ is seen from outside."""

    def __init__(self, again, model, inner):
        self.again, self.hub, self.model = again, again.hub, model
        self.inner = inner
        self.paths = {id(part): path for path, part in inner.named_modules()}
        self.thread = threading.get_ident()
        self.entered = self.inside = False
        self.count = 0

    def begin(self):
        kind, parts = self.hub.torch.nn.Module, self
        original = kind.__call__

        def __call__(module, *args, **kwargs):
            return parts.called(original, module, args, kwargs)

        def put_back():
            kind.__call__ = original

        kind.__call__ = __call__
        self.put_back = put_back
        self.hub.temporary.append(put_back)

    def end(self):
        self.hub.undo(self.put_back)

    def called(self, original, module, args, kwargs):
        path = self.paths.get(id(module))
        if path is None or self.inside or threading.get_ident() != self.thread or self.hub.idle():
            return original(module, *args, **kwargs)
        if module is self.inner and not self.entered:
            self.entered = True  # the redirected call itself
            return original(module, *args, **kwargs)
        if not self.hub.torch.is_grad_enabled():
            return original(module, *args, **kwargs)
        self.inside, result = True, None
        record = self.hub.call(self._open, path, module, args, kwargs)
        try:
            result = original(module, *args, **kwargs)
            return result
        finally:
            self.inside = False
            if record is not None:
                self.hub.call(self.again.after, record, result)

    def _open(self, path, module, args, kwargs):
        self.count += 1
        if self.count > MOST:
            if self.count == MOST + 1:
                self.again._refuse("a step calls parts of the model more than %d times" % MOST)
            return None
        return self.again.open(self.model, path, module, args, kwargs)

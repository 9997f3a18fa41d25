"""Put first on PYTHONPATH by `lockstep observe`: runs the sitecustomize that it hides, and waits
for torch.

Without LS_OBSERVE_DIR nothing happens. torch is not imported here, and an error of its import stays
the user's.
"""

import os
import sys


def _hidden_sitecustomize():
    """The next sitecustomize on sys.path behind this folder, or None."""
    import importlib.machinery

    here = os.path.dirname(os.path.abspath(__file__))
    behind = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    return importlib.machinery.PathFinder.find_spec("sitecustomize", behind)


def _run_hidden():
    spec = _hidden_sitecustomize()
    if spec is None or spec.loader is None or spec.origin == os.path.abspath(__file__):
        return
    import importlib.util

    module = importlib.util.module_from_spec(spec)
    ours = sys.modules.get("sitecustomize")
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        raise


class _WaitFor:
    """A finder that finds nothing: where the module is imported, it has the real loader call `then`
    afterwards.
    """

    def __init__(self, name, then):
        self.name, self.then = name, then
        self.searching = False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.searching:
            return None
        import importlib.util

        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            self.call_after(spec.loader)
        return spec

    def call_after(self, loader):
        load = loader.exec_module

        def exec_module(module):
            load(module)
            self.leave(loader)
            self.then()

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without attributes of its own: the module is left alone
            pass

    def leave(self, loader):
        try:
            del loader.exec_module
            sys.meta_path.remove(self)
        except (AttributeError, ValueError):
            pass


def _wait_for(name, then):
    """Calls then() once the job has imported the module."""
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _WaitFor(name, then))


def _install():
    """What pip installed has its bytecode; a checkout's is kept in the folder of the build, as the
    sources' may be shared, or the user's no business.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    compiled = os.path.isdir(os.path.join(here, "lockstep_attach", "__pycache__"))
    cache = None if compiled else os.environ.get("LS_OBSERVE_BYTECODE")
    written, prefix = sys.dont_write_bytecode, getattr(sys, "pycache_prefix", None)  # since 3.8
    sys.dont_write_bytecode = not (cache and hasattr(sys, "pycache_prefix"))
    if not sys.dont_write_bytecode:
        sys.pycache_prefix = cache
    try:
        import lockstep_attach

        lockstep_attach.install(_wait_for)
    except Exception:  # the job goes on as if it were not observed
        pass
    finally:
        sys.dont_write_bytecode, sys.pycache_prefix = written, prefix


if os.environ.get("LS_OBSERVE_DIR"):
    _wait_for("torch", _install)
_run_hidden()

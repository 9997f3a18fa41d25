"""Collectives that the script itself calls; those of DistributedDataParallel and of torch are not
written.
"""

import contextlib
import inspect
import os
from urllib.parse import urlsplit

from .gathered import NAMES, Gathered
from .purpose import Purposes
from .samples import type_name

# name: (place of the tensor or list among the arguments, place of the operator or None)
WATCHED = {
    "all_reduce": (0, 1), "broadcast": (0, None), "reduce": (0, 2), "all_gather": (1, None),
    "gather": (0, None),
    "scatter": (0, None), "reduce_scatter": (0, 2), "all_to_all": (0, None),
    "all_to_all_single": (0, None),
    "all_gather_into_tensor": (1, None), "reduce_scatter_tensor": (0, 2),
    "_all_gather_base": (1, None),
    "_reduce_scatter_base": (0, 2), "all_reduce_coalesced": (0, 1),
    "all_gather_coalesced": (1, None),
    "barrier": (None, None), "monitored_barrier": (None, None), "all_gather_object": (None, None),
    "broadcast_object_list": (None, None), "gather_object": (None, None),
    "scatter_object_list": (None, None),
    "send": (0, None), "recv": (0, None), "isend": (0, None), "irecv": (0, None),
}  # fmt: skip
TENSORS = (
    "tensor",
    "input",
    "input_tensor",
    "output",
    "tensors",
    "input_tensor_list",
    "output_tensor_list",
)


class Refused(Exception):
    """The module that is run again wants to talk to other ranks."""


@contextlib.contextmanager
def refusing(torch):
    """Any collective of torch.distributed raises: a copy that is run again must not wait for other
    ranks.
    """

    def refuse(*args, **kwargs):
        raise Refused("the module's forward communicates with other ranks")

    owners = [torch.distributed] if torch.distributed.is_available() else []
    kept = [
        (owner, name, getattr(owner, name))
        for owner in owners
        for name in WATCHED
        if hasattr(owner, name)
    ]
    try:
        for owner, name, _ in kept:
            setattr(owner, name, refuse)
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


class Collectives:
    def __init__(self, hub):
        self.hub = hub
        self.purposes = Purposes(hub.places)
        self.gathered = Gathered(hub.torch)
        self.count = 0  # calls that wait for other ranks, and models that were wrapped

    def install(self):
        distributed = self.hub.torch.distributed
        if not distributed.is_available():
            return
        self.hub.wrap(distributed, "init_process_group", self._joining, self._joined)
        for name, (tensor, operator) in WATCHED.items():
            self.hub.wrap(distributed, name, self._watch(name, tensor, operator), None)

    def _joining(self, args, kwargs):
        """`joining.<pid>`, while the call waits for other ranks: its rank, their number, where they
        meet ("-": not known). `lockstep observe` says what is waited for.
        """
        folder = os.environ.get("LS_OBSERVE_DIR") or self.hub.settings.directory
        path = os.path.join(folder, "joining.%d" % os.getpid())
        with contextlib.suppress(OSError, TypeError, ValueError):
            place = urlsplit(
                kwargs.get("init_method") or (args[1] if len(args) > 1 else None) or "env://"
            )
            variables = os.environ if place.scheme == "env" else {}
            rank, world = kwargs.get("rank", -1), kwargs.get("world_size", -1)
            words = (
                rank if rank >= 0 else os.environ.get("RANK", 0),
                world if world > 0 else os.environ.get("WORLD_SIZE", 1),
                place.hostname or variables.get("MASTER_ADDR") or "-",
                place.port or variables.get("MASTER_PORT") or "-",
            )
            with open(path, "w") as file:
                file.write("%s %s %s %s\n" % words)
        return path

    def _joined(self, path, args, kwargs, result, error):
        """A group of more than one rank: the process trains, also where it never steps an
        optimizer.
        """
        with contextlib.suppress(OSError, TypeError):
            os.unlink(path)
        if error is None and self.hub.torch.distributed.get_world_size() > 1:
            self.hub.rank_number = None
            self.hub.rank()
            self.hub.joined = True

    def _watch(self, name, tensor, operator):
        original = getattr(self.hub.torch.distributed, name, None)
        purposes = self.purposes

        def enter(args, kwargs):
            self.count += 1
            if not self.hub.places.script_called():
                return
            self.hub.activate_joined()
            given = args[tensor] if tensor is not None and len(args) > tensor else None
            for key in TENSORS:
                given = kwargs.get(key, given) if given is None else given
            count, kind = self._size(given)
            reduce = kwargs.get(
                "op", args[operator] if operator is not None and len(args) > operator else None
            )
            word = ("sum" if reduce is None else _word(reduce)) if operator is not None else ""
            at = self.hub.places.here()
            part = self._part(original, args, kwargs)
            if getattr(given, "grad_fn", None) is not None:
                part["graph"] = True
                step = self.hub.steps.now
                if name in NAMES and step.detail and args:
                    self.gathered.keep(step.number, at, given, args[0])
            part.update(purposes.of(name))
            self.hub.steps.note(
                "collective", op=name, elements=count, type=kind, reduce=word, at=at, **part
            )

        return enter

    def _part(self, function, args, kwargs):
        """How many ranks the call's group has, where it is not all of them, and its root, where it
        has one.
        """
        distributed = self.hub.torch.distributed
        try:
            given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
        except TypeError:  # the call will say so itself
            return {}
        out = {}
        root = given.get("src", given.get("dst"))
        if isinstance(root, int):
            out["root"] = root
        group = given.get("group")
        if group is None or group is distributed.group.WORLD:
            return out
        count = distributed.get_world_size(group)
        if count != distributed.get_world_size():
            out["ranks"] = count
        return out

    def _size(self, given):
        if isinstance(given, self.hub.torch.Tensor):
            return given.numel(), type_name(given.dtype)
        if (
            isinstance(given, (list, tuple))
            and given
            and isinstance(given[0], self.hub.torch.Tensor)
        ):
            return sum(t.numel() for t in given), type_name(given[0].dtype)
        return 0, ""


def _word(operator):
    return str(operator).rsplit(".", 1)[-1].lower().strip("<>")

"""Collectives that the script itself calls; those of DistributedDataParallel and of torch are not
written.
"""

import contextlib
import dis
import functools
import inspect
import itertools
import os
import sys
from urllib.parse import urlsplit

from .events import value_of
from .losses import factor_to, nodes_from, parent_kept
from .records import Reason
from .samples import type_name
from .wrapping import given as argument
from .wrapping import stand_in

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
    "batch_isend_irecv": (0, None),
}  # fmt: skip
OF_TWO = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
signature = functools.lru_cache(maxsize=None)(inspect.signature)
VALUES = 4  # numbers of an all_reduce that are written, behind a validation's forwards
TENSORS = "tensor input input_tensor output tensors input_tensor_list output_tensor_list".split()


@contextlib.contextmanager
def refusing(torch):
    """Any collective of torch.distributed raises: a copy that is run again must not wait for other
    ranks.
    """

    def refuse(*args, **kwargs):
        raise Reason("the module's forward communicates with other ranks")

    owner = torch.distributed if torch.distributed.is_available() else None
    kept = [(name, getattr(owner, name)) for name in WATCHED if hasattr(owner, name)]
    try:
        for name, _ in kept:
            setattr(owner, name, refuse)
        yield
    finally:
        for name, function in kept:
            setattr(owner, name, function)


class Collectives:
    def __init__(self, hub):
        self.hub = hub
        self.purposes = Purposes(hub.places)
        self.gathered = Gathered(hub.torch)
        self.joined = Joined(hub, self.gathered)
        self.unread = Unread(hub)
        self.totals = Totals(hub)
        self.count = 0  # calls that wait for all ranks, and models that were wrapped

    def install(self):
        distributed = self.hub.torch.distributed
        if not distributed.is_available():
            return
        self.hub.wrap(distributed, "init_process_group", self._joining, self._joined)
        for name, (tensor, operator) in WATCHED.items():
            leave = self._leave_all_reduce if name == "all_reduce" else None
            self.hub.wrap(distributed, name, self._watch(name, tensor, operator), leave)
        for name in ("isend", "irecv"):  # P2POp looks for the very functions that it is given
            setattr(distributed.distributed_c10d, name, getattr(distributed, name))

    def _joining(self, args, kwargs):
        """`joining.<pid>`, while the call waits for other ranks: its rank, their number, where they
        meet ("-": not known). `lockstep observe` says what is waited for.
        """
        folder = os.environ.get("LS_OBSERVE_DIR") or self.hub.settings.directory
        path = os.path.join(folder, "joining.%d" % os.getpid())
        with contextlib.suppress(OSError, TypeError, ValueError):
            place = urlsplit(argument(args, kwargs, "init_method", 1) or "env://")
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
        """With more than one rank the process trains, also where no optimizer ever steps."""
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
            self.count += name not in OF_TWO
            step = self.hub.steps.now
            gathers = name in NAMES and step.detail and bool(args)
            by_script = self.hub.places.script_called()
            if not by_script and not gathers:
                return
            given = args[tensor] if tensor is not None and len(args) > tensor else None
            if given is None:
                given = next((kwargs[k] for k in TENSORS if kwargs.get(k) is not None), None)
            count, kind = self._size(given)
            if not by_script:  # by a function of torch's, such as torch.distributed.nn's
                if count > 1 and getattr(given, "grad_fn", None) is not None:
                    self.gathered.keep(step.number, self.hub.places.here(), given, args[0], False)
                return
            self.hub.activate_joined()
            word = ""
            if operator is not None:
                reduce = argument(args, kwargs, "op", operator)
                word = "sum" if reduce is None else _word(reduce)
            part = {"type": kind, "reduce": word, **self._part(original, args, kwargs)}
            graph = getattr(given, "grad_fn", None) is not None
            if graph:
                part["graph"] = True
            part.update(purposes.of(name))
            if name == "all_reduce" and 0 < count <= VALUES and self._validates(step, given):
                flat = given.detach().reshape(-1).clone()
                part["values"] = [self.hub.Lazy(flat[k]) for k in range(count)]
            if (
                word == "sum"
                and count == 1
                and step.detail
                and not self._part(original, args, kwargs)
            ):
                self.hub.optimizers.summed(given)
            entry = self.hub.steps.note("collective", op=name, elements=count, **part)
            if gathers and count > 1:
                self.gathered.keep(step.number, entry["at"], given, args[0])
                if isinstance(given, self.hub.torch.Tensor) and given.is_floating_point():
                    entry["gave"] = self.hub.digests.digest([given.detach()])
            elif graph and step.detail and name == "all_reduce" and count > 1 and word == "sum":
                self.gathered.keep_sum(step.number, entry["at"], given)

        return enter

    def _leave_all_reduce(self, note, args, kwargs, result, error):
        if error is None and result is None:  # it has the sum now
            self.totals.keep(args, kwargs)
            self.unread.reduced(args)

    def _validates(self, step, given):
        """Whether the last forward of a known model was without autograd, or the last batch was one
        to evaluate on: forwards of the module inside a wrapper are not seen.
        """
        calls = (call for call in reversed(step.calls) if call["call"] == "forward")
        plain = isinstance(given, self.hub.torch.Tensor) and not hasattr(given, "full_tensor")
        last = next(calls, {"grad": True})
        return plain and (self.hub.data.evaluates or not last.get("grad", True))

    def _part(self, function, args, kwargs):
        """The ranks of the call's group, where it is not all of them, and its root, if any."""
        distributed = self.hub.torch.distributed
        try:
            given = signature(function).bind_partial(*args, **kwargs).arguments
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
        listed = isinstance(given, (list, tuple))
        tensors = [getattr(one, "tensor", one) for one in (given if listed else [given])]
        if not tensors or not isinstance(tensors[0], self.hub.torch.Tensor):
            return 0, ""
        return sum(t.numel() for t in tensors), type_name(tensors[0].dtype)


class Unread:
    """Reductions in place of a tensor that nothing but the call itself holds: nobody can read what
    was reduced, as with all_reduce(x.contiguous()).
    """

    def __init__(self, hub):
        self.hub = hub
        self.bare = None  # references that reduced() sees of such a tensor

    def reduced(self, args):
        hub, torch = self.hub, self.hub.torch
        count = getattr(torch._C, "_storage_Use_Count", None)
        plain = len(args) > 0 and type(args[0]) is torch.Tensor and count is not None
        if not plain or hub.steps.now.number < 2:
            return  # what precedes the training may warm up the network
        if self.bare is None:
            self.bare = self._measure()
        # a storage that is asked for has one reference more
        if (
            sys.getrefcount(args[0]) <= self.bare
            and args[0]._use_count() == 1
            and count(args[0].untyped_storage()._cdata) <= 2
            and not self._is_signal(args[0])
            and hub.places.script_called()
        ):
            elements = args[0].numel()
            hub.misuse.put("reduced_unread", hub.places.here(), count=elements)

    def _measure(self):
        seen = []

        def leave(note, args, kwargs, result, error):
            seen.append(sys.getrefcount(args[0]))

        stand_in(self.hub, abs, None, leave, lambda: False)(self.hub.torch.zeros(1))
        return seen[0] if seen else 0

    def _is_signal(self, tensor):
        """Whether it stands for a barrier: equal numbers, or one that says only that all came."""
        if tensor.numel() == 0 or tensor.is_complex():
            return True
        low, high = tensor.min().item(), tensor.max().item()
        ranks = self.hub.torch.distributed.get_world_size()
        return low == high and (tensor.numel() > 1 or low in (0, 1, ranks))


def _word(operator):
    return str(operator).rsplit(".", 1)[-1].lower().strip("<>")


class Totals:
    """Numbers that the script has summed over ranks, in or before a detailed step."""

    def __init__(self, hub):
        self.hub = hub
        self.step, self.kept = None, []

    def keep(self, args, kwargs):
        steps, given = self.hub.steps, argument(args, kwargs, "tensor", 0)
        few = type(given) is self.hub.torch.Tensor and 0 < given.numel() <= VALUES
        summed = argument(args, kwargs, "op", 1) in (None, self.hub.torch.distributed.ReduceOp.SUM)
        if not (few and summed and steps.comes_in_detail() and self.hub.places.script_called()):
            return
        step = steps.done_now() + 1  # behind an optimizer the next one
        if self.step != step:
            self.step, self.kept = step, []
        if len(self.kept) < KEPT:
            self.kept += given.detach().clone().reshape(-1).unbind()

    def values(self):
        """Those of the open step."""
        kept = self.kept if self.step == self.hub.steps.now.number else []
        return [value_of(one) for one in kept]


# ---- gathered for the loss -----------------------------------------------------------------------

KEPT = 16  # gathers of a detailed step
NODES = 20000  # of a graph that is walked
NAMES = ("all_gather", "all_gather_into_tensor", "_all_gather_base", "all_gather_coalesced")
# nodes that keep an operand as it was, by the names of their operands
OPERANDS = {
    "MmBackward0": ("self", "mat2"),
    "BmmBackward0": ("self", "mat2"),
    "MulBackward0": ("self", "other"),
    "DivBackward0": ("self", "other"),
}


class Gathered:
    """The gathers of a detailed step whose tensor has a graph, until its next backward."""

    def __init__(self, torch):
        self.torch = torch
        self.step = None
        # (place, node of what was gathered, [what was received])
        self.kept = []
        self.calls = []  # (place, node or None, code of the functions that called it) of the step
        self.sums = []  # (place, node, number of the nodes that came after the call)

    def begin(self, step):
        if self.step != step:
            self.step, self.kept, self.calls, self.sums = step, [], [], []

    def keep_sum(self, step, at, given):
        """A sum over ranks in place of a tensor with a graph, which is that of the own part."""
        self.begin(step)
        node = given.grad_fn
        if len(self.sums) < KEPT and hasattr(node, "_sequence_nr"):
            with self.torch.enable_grad():
                now = given.detach().flatten()[:1].requires_grad_().neg().grad_fn
            self.sums.append((at, node, now._sequence_nr()))

    def uses_sum(self, node, nodes):
        """The place of the sum of what the node made, where all that uses it is of the sum."""
        for at, given, number in self.sums:
            if given is node:
                users = [n for n in nodes if any(f is node for f, _ in n.next_functions)]
                later = all(user._sequence_nr() > number for user in users)
                return at if users and later else None
        return None

    def keep(self, step, at, given, received, by_script=True):
        self.begin(step)
        node = getattr(given, "grad_fn", None)
        if by_script and len(self.calls) < KEPT:
            self.calls.append((at, node, _codes()))
        if node is None:
            return
        tensors = list(received) if isinstance(received, (list, tuple)) else [received]
        if len(self.kept) < KEPT and all(isinstance(t, self.torch.Tensor) for t in tensors):
            self.kept.append((at, node, tensors))

    def lost(self, roots):
        """The place of a gather whose values are a constant in the graph of what goes backward;
        None: there is none (the script may have put its own part back), or it is not known.
        """
        kept, self.kept = self.kept, []
        if not kept or not hasattr(kept[0][1], "_sequence_nr"):
            return None
        nodes = list(itertools.islice(nodes_from([root.grad_fn for root in roots]), NODES))
        for at, node, tensors in kept if len(nodes) < NODES else ():
            # what was made before the gather does not use it; parts of it may be computed again
            after = [one for one in nodes if one._sequence_nr() > node._sequence_nr()]
            if any(self._holds(one, tensors) for one in after):
                return at
        return None

    def _holds(self, node, tensors):
        """Whether an operand without a gradient is what was received, in one piece or joined."""
        names = OPERANDS.get(type(node).__name__, ())
        for name, (following, _) in zip(names, node.next_functions):
            # an operand's value is kept for the gradient of the other one
            saved = getattr(node, "_saved_" + name, None) if following is None else None
            if isinstance(saved, self.torch.Tensor) and self._is_joined(saved, tensors):
                return True
        return False

    def _is_joined(self, saved, tensors):
        count = sum(t.numel() for t in tensors)
        if saved.numel() != count or saved.device != tensors[0].device or count == 0:
            return False
        if saved.dtype != tensors[0].dtype:
            return False
        flat = self.torch.cat([t.detach().reshape(-1) for t in tensors])
        # in the order of its memory: a transposed view of what was joined is the same
        order = sorted(range(saved.dim()), key=lambda d: (-saved.stride(d), d))
        return bool(self.torch.equal(saved.detach().permute(order).reshape(-1), flat))


def _codes():
    """The code of the functions that run, innermost first."""
    frame, codes = sys._getframe(1), []
    while frame is not None and len(codes) < DEPTH:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


SUMS = ("Add", "Sub")  # of a value and of what cancels it, which scales a gradient alone


class Joined:
    """The gradient, during a detailed step's backward, of what holds all ranks' values or their
    sum, where only this rank's own part of it has a graph, or is given a gradient by a function of
    the script's.
    """

    def __init__(self, hub, gathered):
        self.hub = hub
        self.gathered = gathered
        self.hooks, self.found = [], []

    def before_backward(self, root, scale, entry):
        calls, torch = self.gathered.calls, self.hub.torch
        kept = calls or self.gathered.sums
        if not kept or self.gathered.step != self.hub.steps.now.number:
            return
        nodes = list(itertools.islice(nodes_from([root.grad_fn]), NODES))
        for node in nodes if len(nodes) < NODES else ():
            at, own = self.gathered.uses_sum(node, nodes), False
            if at is None:
                at, own = self._place(node, calls)
            if at is not None and len(self.hooks) < KEPT:
                part = {"at": at, "times": factor_to(torch, root, scale, node)}
                self.found.append(part)
                self.hooks.append(node.register_hook(self._hook(part, own)))
        if self.hooks:
            self.hub.temporary.append(self._remove)
            entry["loss_joined"] = self.found

    def after_backward(self):
        if self.hooks:
            self.found[:] = [part for part in self.found if "grad" in part]
            self.hub.undo(self._remove)

    def _remove(self):
        for handle in self.hooks:
            handle.remove()
        self.hooks, self.found = [], []

    def _place(self, node, calls):
        """(place of the gather whose values the node joins, or None; whether it is a function of
        the script's own).
        """
        forward = getattr(getattr(type(node), "_forward_cls", None), "forward", None)
        code = getattr(forward, "__code__", None)
        if code is not None:
            return next((at for at, _, codes in calls if code in codes), None), True
        word = type(node).__name__.split("Backward")[0]
        behind = [following for following, _ in node.next_functions]
        parts = [place for place, following in enumerate(behind) if following is not None]
        ranks = self.hub.torch.distributed.get_world_size()
        whole = word in ("Cat", "Stack") and len(behind) == ranks > 1
        if len(parts) != 1 or not (whole or (word == "CopySlices" and behind[0] is None)):
            return None, False
        mine = parent_kept(behind[parts[0]])
        for at, given, _ in calls:
            if given is not None and parent_kept(given) is mine:
                return at, False
        # what was gathered was detached before
        plain = type(mine).__name__.split("Backward")[0] not in SUMS
        if whole and plain and parts[0] == self.hub.torch.distributed.get_rank():
            return next((at for at, given, _ in calls if given is None), None), False
        return None, False

    def _hook(self, part, own):
        def hook(inputs, outputs):
            if not self.hub.quiet:
                self.hub.call(self._see, part, own, inputs, outputs)

        return hook

    def _see(self, part, own, inputs, outputs):
        torch, ranks = self.hub.torch, self.hub.torch.distributed.get_world_size()
        grads = [grad.detach() for grad in outputs if isinstance(grad, torch.Tensor)]
        if len(grads) != len(outputs) or not grads:
            return
        if own:
            # what the function makes of it: this rank's own part as it is, and nothing of others
            given = [grad for grad in inputs if isinstance(grad, torch.Tensor)]
            whole = grads[0] if grads[0].dim() else grads[0][None]
            parts = list(grads if len(grads) == ranks else whole.chunk(ranks))
            rank = self.hub.torch.distributed.get_rank()
            if len(given) != 1 or len(parts) != ranks:
                return
            mine = parts.pop(rank)
            same = given[0].numel() == mine.numel() and given[0].device == mine.device
            if not same or not torch.equal(given[0].detach().reshape(-1), mine.reshape(-1)):
                return
            if not any(bool(other.any()) for other in parts):
                return
            part["own"] = True
        part["grad"] = self.hub.digests.digest(grads)


# ---- what they are for ---------------------------------------------------------------------------

DEPTH = 40  # frames that are looked at
GATHERS = ("all_gather", "all_gather_into_tensor", "_all_gather_base", "gather")
# functions that cut off what fills up the last batches, or gather no samples
USES = {
    "gather_for_metrics": "metrics",
    "gather_all_tensors": "state",
    "reduce_boolean_decision": "decision",
}
CUTS = set("narrow unique split chunk islice set dict drop_duplicates index_select take".split())
SLICES = {"BUILD_SLICE", "BINARY_SLICE"}


class Purposes:
    def __init__(self, places):
        self.places = places
        self.calls = {}  # (code, place) of a call: whether the function cuts anything off behind it

    def of(self, name):
        """{"use": "metrics" | "state" | "decision", "monitor": what a decision is taken by,
        "value": that of this rank, "cut": whether the script cuts anything off behind a gather}.
        """
        frames = self._frames()
        for place, frame in enumerate(frames):
            use = USES.get(frame.f_code.co_name)
            if use == "decision":
                return {"use": use, **_decision(frames[place:])}
            if use is not None:
                return {"use": use}
        return self._cut(frames) if name in GATHERS else {}

    def _frames(self):
        """Frames outside torch, the standard library and this module, innermost first."""
        frame, found = sys._getframe(1), []
        while frame is not None and len(found) < DEPTH:
            if self.places.name_of(frame.f_code.co_filename)[0]:
                found.append(frame)
            frame = frame.f_back
        return found

    def _cut(self, frames):
        """Of a call by the script, or by Accelerate for it; of other libraries nothing is known."""
        own = [frame for frame in frames if not self.places.name_of(frame.f_code.co_filename)[1]]
        own = [frame for frame in own if frame.f_code.co_filename[:1] != "<"]
        for frame in frames[: frames.index(own[0])] if own else []:
            if not self.places.name_of(frame.f_code.co_filename)[0].startswith("accelerate/"):
                return {}
        return {"cut": any(self._cuts(frame.f_code, frame.f_lasti) for frame in own)} if own else {}

    def _cuts(self, code, place):
        found = self.calls.get((code, place))
        if found is None:
            found = self.calls[(code, place)] = _cuts(code, place)
        return found


# ---- a script that gathers -----------------------------------------------------------------------


def _cuts(code, place):
    """Whether something behind that instruction, or in the innermost loop that it is in, may leave
    out a part of a sequence.
    """
    instructions = list(dis.get_instructions(code))
    jumps = (i for i in instructions if i.offset > place and "JUMP" in i.opname)
    back = [i.argval for i in jumps if isinstance(i.argval, int)]
    begin = max((target for target in back if target < place), default=place)
    for instruction in instructions:
        if instruction.offset < begin:
            continue
        if instruction.opname in SLICES or isinstance(instruction.argval, slice):
            return True
        if isinstance(instruction.argval, str) and instruction.argval in CUTS:
            return True
    return False


# ---- a callback that decides ---------------------------------------------------------------------


def _decision(frames):
    """By which value a callback of Lightning decides: its name, and what it is on this rank."""
    for frame in frames:
        monitor = getattr(frame.f_locals.get("self"), "monitor", None)
        value = frame.f_locals.get("current")
        if isinstance(monitor, str):
            out = {"monitor": monitor}
            if hasattr(value, "item") and value.numel() == 1:
                out["value"] = float(value.item())
            return out
    return {}

"""What a module's forward read and gave, kept so that a copy of the module can do it again."""

import copy
import enum
import types

from .losses import behind, nodes_from

# of nodes of the graph that gave a record's outputs: nothing but the graph itself keeps it alive
MARK = "lockstep"
OUTPUTS = 8  # whose gradients are told apart
PLAIN = (
    type(None), bool, int, float, complex, str, bytes, slice, range, type, enum.Enum,
    types.BuiltinFunctionType,
)  # fmt: skip


class Reason(Exception):
    """Why a step is not run again."""


class Record:
    """A forward: what it read, and the gradients that came back to its outputs."""

    def __init__(self, model, path, module, args, kwargs):
        self.model, self.path = model, path  # path: of the module in the model's own; "": itself
        self.kind = type(module).__name__
        self.args, self.kwargs = args, kwargs
        self.random = self.buffers = self.handle = None
        self.shapes, self.grads = [], {}
        self.given = {}  # gradients of outputs before hooks of the user's on them
        self.dropped = None  # Dropped, while the forward runs and after it
        self.noise = None  # what the first copy's forward drew, in order
        self.outputs = []  # samples of them
        self.late = False  # after the step's optimizer was asked: of the next step
        self.exact = False  # f32 throughout, as far as is known
        self.plain = False  # the graph of the f32 copy has torch's own functions alone
        self.on_cpu = False

    def rows(self, torch):
        """Words of a batch of texts of which each has an output of its own; 0 of other batches."""
        for words in tensors_in(torch, (self.args, self.kwargs), []):
            if words.dim() == 2 and not words.is_floating_point() and words.dtype is not torch.bool:
                each = any(tuple(shape[:2]) == tuple(words.shape) for shape in self.shapes)
                return words.numel() if each else 0
        return 0


class Begins:
    """Where the inputs of a record came from: not of its copies, which have no graph."""

    def __init__(self, torch, args, kwargs):
        self.nodes, self.leaves = [], []
        for tensor in tensors_in(torch, (args, kwargs), []):
            if tensor.grad_fn is not None:
                self.nodes.append((tensor.grad_fn, tensor.output_nr))
            elif tensor.requires_grad:
                self.leaves.append(tensor)


def tensors_of(torch, tree, out, depth=0):
    """The tensors of a module's output in order."""
    if isinstance(tree, torch.Tensor):
        out.append(tree)
    elif depth > 8:
        raise Reason("outputs are nested too deeply")
    elif isinstance(tree, (dict, list, tuple)) or hasattr(tree, "items") and hasattr(tree, "keys"):
        for value in tree if isinstance(tree, (list, tuple)) else tree.values():
            tensors_of(torch, value, out, depth + 1)
    elif hasattr(tree, "__dict__") and not isinstance(tree, type):
        for value in vars(tree).values():
            if isinstance(value, (torch.Tensor, list, tuple, dict)):
                tensors_of(torch, value, out, depth + 1)
    return out


def tensors_in(torch, tree, out, depth=0):
    """The tensors of inputs, as far as `mapped` turns them."""
    if isinstance(tree, torch.Tensor):
        out.append(tree)
    elif depth <= 8 and isinstance(tree, (list, tuple, dict)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            tensors_in(torch, value, out, depth + 1)
    return out


def mapped(torch, tree, turn, other=None, depth=0):
    """The same structure with every tensor turned, and objects of other kinds given to `other`."""
    if isinstance(tree, torch.Tensor):
        return turn(tree)
    if depth > 8:
        return tree
    if type(tree) in (list, tuple):
        return type(tree)(mapped(torch, value, turn, other, depth + 1) for value in tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(torch, value, turn, other, depth + 1) for value in tree))
    if isinstance(tree, dict):
        out = copy.copy(tree)
        for key, value in tree.items():
            out[key] = mapped(torch, value, turn, other, depth + 1)
        return out
    return other(tree) if other is not None else tree


def is_plain(torch, value):
    """Whether nothing that reads the value can change it, or anything else by it."""
    kinds = PLAIN + (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)
    if isinstance(value, types.FunctionType):
        return value.__closure__ is None
    return isinstance(value, kinds)


def own(torch, value):
    """A copy of an input that is no tensor: the module may write into it."""
    if is_plain(torch, value):
        return value
    if callable(value) and not isinstance(value, torch.nn.Module):
        raise Reason("an input is a function: what it changes is not known")
    try:
        return copy.deepcopy(value)
    except Exception:
        raise Reason("an input is a %s, which cannot be copied" % type(value).__name__)


# ---- the graph of the step -----------------------------------------------------------------------


def reached(tensor):
    """The nodes of the graph that a backward from this tensor visits, its own left out."""
    return set(nodes_from([tensor.grad_fn])) - {tensor.grad_fn}


def from_outside(torch, pairs, rounded):
    """Gradients that outputs are given from outside the module, of [(output, its whole gradient)].

    A model that returns its loss and its logits has the loss's gradient in that of the logits, too:
    what comes to an output from other outputs is taken off, the last ones first.
    """
    if len(pairs) < 2:
        return pairs
    if len(pairs) > OUTPUTS:
        raise Reason("%d outputs have gradients" % len(pairs))
    waiting, done = [(t, grad, reached(t)) for t, grad in pairs], []
    while waiting:
        inner = set().union(*(nodes for _, _, nodes in waiting))
        last = [entry for entry in waiting if entry[0].grad_fn not in inner][:1]
        if not last:
            raise Reason("outputs depend on each other")
        waiting = [entry for entry in waiting if entry is not last[0]]
        tensor, grad, _ = last[0]
        inside = None
        if done:
            outputs, grads = zip(*done)
            kept = {"retain_graph": True, "allow_unused": True}
            inside = torch.autograd.grad(outputs, tensor, grads, **kept)[0]
        if inside is not None:
            outside = grad - inside
            grad = outside if float(outside.norm()) > rounded * float(grad.norm()) else None
        if grad is not None:
            done.append((tensor, grad))
    return done


def used_outside(torch, roots, records):
    """Ids of the leaves whose gradients from these roots do not come through the records alone.

    Raises Reason where a part of the graph outside them has a graph of its own.
    """
    leaves = {id(root) for root in roots if root.grad_fn is None}

    def begins(node):
        record, found = node.metadata.get(MARK, (None, None))
        return found if record in records else None

    def onward(node):
        found = begins(node)
        return behind(node) if found is None else [begin for begin, _ in found.nodes]

    for node in nodes_from((root.grad_fn for root in roots), onward):
        found = begins(node)
        if found is not None:
            leaves.update(id(leaf) for leaf in found.leaves)
            continue
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            leaves.add(id(variable))
        module, name = type(node).__module__, type(node).__name__
        if module.startswith("torch.utils.checkpoint") or "CheckpointFunction" in name:
            raise Reason(
                "a checkpoint outside the modules that are run again has parameters of its own"
            )
    return leaves

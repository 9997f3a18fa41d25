"""How the scalar that goes backward was made: a mean or a sum, and what it was multiplied by."""

import itertools
import math

from .events import Lazy

# Nodes of the graph that hand on what they get, and losses of torch that keep their reduction.
SAME = (
    "Clone", "View", "UnsafeView", "Reshape", "ReshapeAlias", "ToCopy", "Squeeze", "Unsqueeze",
    "Expand", "Alias", "_DDPSink",
)  # fmt: skip
REDUCTIONS = {1: "mean", 2: "sum"}
DEEP = 64  # nodes that are looked at
PARTS = 4  # of a sum, that are themselves sums


def behind(node):
    """The nodes that it hands its gradient on to."""
    return [following for following, _ in node.next_functions]


def nodes_from(starts, onward=behind):
    """The nodes of a graph from these on, each once, those near its end first."""
    nodes, seen = list(starts), set()
    for node in nodes:
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            nodes.extend(onward(node))


def _word(node):
    return type(node).__name__.split("Backward")[0]


unpacks = False  # hooks of the user's unpack what graphs keep: they are not to be called
checkpoints = False  # what a graph keeps may be that of a checkpoint, which is unpacked once


def saved(node, name):
    """What a node keeps under that name; None of a freed graph, or where hooks would run."""
    if unpacks:
        return None
    try:
        return getattr(node, name, None)
    except RuntimeError:
        return None


def _parent(node):
    """The only operand with a gradient, or None."""
    parents = [parent for parent in behind(node) if parent is not None]
    return parents[0] if len(parents) == 1 else None


def _constant(torch, node):
    """What a product or quotient multiplies or divides its other operand by; None where it is not
    in the host's memory or no single number.
    """
    for name in ("_saved_other", "_saved_self"):
        value = saved(node, name)
        if isinstance(value, torch.Tensor):
            plain = value.numel() == 1 and value.device.type == "cpu" and not value.requires_grad
            return float(value) if plain else None
        if isinstance(value, (int, float)):
            return float(value)
    return None


def multiplied(torch, tensor, grad):
    """What the script multiplied a scalar by before it goes backward, `grad` included: a number, or
    a Lazy of what is on a device; None: nothing is known, or nothing.
    """
    node, left, by, factors = tensor.grad_fn, 8, 1.0, []
    if isinstance(grad, (list, tuple)) and len(grad) == 1:
        grad = grad[0]
    if isinstance(grad, torch.Tensor) and grad.numel() == 1:
        factors.append((grad, 1))
    while node is not None and left > 0 and not checkpoints:
        left -= 1
        word = _word(node)
        if word in ("Mul", "Div"):
            sign = 1 if word == "Mul" else -1
            found = (saved(node, name) for name in ("_saved_other", "_saved_self"))
            factor = next((one for one in found if one is not None), None)
            if isinstance(factor, torch.Tensor) and factor.numel() == 1:
                factors.append((factor.detach(), sign))
            elif isinstance(factor, (int, float)) and factor:
                by *= float(factor) ** sign
            else:
                break
        elif word not in SAME:
            break
        node = _parent(node)
    for factor, sign in factors:
        if factor.is_cpu and float(factor):
            by *= float(factor) ** sign
    device = [(f.reshape(()).clone(), sign) for f, sign in factors if not f.is_cpu]
    if not device:
        return by if by != 1 else None

    def product(*values):
        out = by
        for value, (_, sign) in zip(values, device):
            out *= float(value) ** sign if value else 1
        return out

    return Lazy([factor for factor, _ in device], product)


def _reduction(node):
    """(word, elements, first dimension) of a node that makes one number of many, or None."""
    word = _word(node)
    sizes = saved(node, "_saved_self_sym_sizes") or saved(node, "_saved_self_sizes")
    if word in ("Mean", "Sum"):
        sizes = [int(size) for size in sizes or ()]
        count = 1
        for size in sizes:
            count *= size
        return word.lower(), count, sizes[0] if sizes else 1
    return REDUCTIONS.get(saved(node, "_saved_reduction")), None, None


def _terms_of(torch, node):
    """How many terms a loss function of torch reduced to one number; None where that is not known,
    or they have weights of classes.
    """
    if saved(node, "_saved_weight") is not None:
        return None
    total = saved(node, "_saved_total_weight")  # without those that are ignored
    if isinstance(total, torch.Tensor):
        return Lazy(total.detach().reshape(()).clone())
    operand = saved(node, "_saved_self")
    return operand.numel() if isinstance(operand, torch.Tensor) else None


def _count(torch, node):
    """How many terms a node makes one number of; None where that is not in the host's memory."""
    count = _reduction(node)[1]
    count = _terms_of(torch, node) if count is None else count
    if isinstance(count, Lazy):
        total = saved(node, "_saved_total_weight")
        count = float(total) if total.is_cpu else None
    return count


class Made:
    """times: product of the constants; by: of those that it was divided by; of: "mean", "sum" or
    None; count, first: of a sum; terms: of another reduction, or of a mean; parts: {(factor,
    product of what it was divided by): terms} of the sums that it is a sum of.
    """

    def __init__(self):
        self.times, self.divided, self.of, self.count, self.first = 1.0, False, None, None, None
        self.by, self.terms, self.weight, self.parts = 1.0, None, None, {}
        self.of_ranks = False  # multiplied by their number

    def add_terms(self, torch, node):
        """Of a sum of losses: "mean" where one is a mean, to which others are added."""
        terms, whole = _terms(torch, node)
        made_by = [_reduction(term) for term, _, _ in terms]
        self._add_parts(torch, terms, made_by)
        words = {word for word, _, _ in made_by}
        # divided by their number: the mean of several losses
        self.divided = self.divided and abs(self.times * len(terms) - 1) > 1e-6
        if "mean" in words:
            self.of = "mean"
        elif len(words) == 1 and whole:
            self.of = words.pop()
        times = {abs(factor) if factor else None for _, factor, _ in terms}
        if words == {"mean"} and None not in times:
            self.weight = self.times * sum(abs(factor) for _, factor, _ in terms)
        counts = [_count(torch, term) for term, _, _ in terms]
        if self.of == "sum" and len(times) == 1 and None not in (*times, *counts):
            firsts = {first for _, _, first in made_by}
            self.times *= times.pop()
            self.count = sum(counts)
            self.first = firsts.pop() if len(firsts) == 1 else self.count

    def _add_parts(self, torch, terms, made_by):
        """Of the terms that are sums: what these are multiplied and divided by."""
        if self.of_ranks or any(math.isnan(by) for _, _, by in terms):
            return
        for (term, factor, by), (word, _, _) in zip(terms, made_by):
            count = _count(torch, term) if word == "sum" and factor and by * self.by != 1 else None
            if count is not None:
                key = abs(factor * self.times), by * self.by
                self.parts[key] = self.parts.get(key, 0) + count

    def members(self):
        out = {"loss_times": self.times, "loss_divided": self.divided}
        if abs(self.by - 1) > 1e-6:
            out["loss_by"] = self.by
        if self.of is not None:
            out["loss_of"] = self.of
        if self.weight is not None:
            out["loss_weight"] = self.weight
        if 0 < len(self.parts) <= PARTS:
            out["loss_parts"] = [[*key, count] for key, count in self.parts.items()]
        if self.count is not None and self.of == "sum":
            out["loss_count"], out["loss_first"] = self.count, self.first
        elif self.terms is not None:
            out["loss_terms"] = self.terms
        return out


def made(torch, tensor, scale):
    """Made, of a scalar; scale: the tensor by which a GradScaler has multiplied it, or None."""
    out, node, left = Made(), tensor.grad_fn, DEEP
    while node is not None and left > 0:
        left -= 1
        word = _word(node)
        if word in ("Mul", "Div"):
            constant = _constant(torch, node)
            if scale is not None and word == "Mul" and _is_scale(torch, node, constant, scale):
                scale, constant = None, 1.0
            if constant is None or constant == 0 or _parent(node) is None:
                break
            out.times = out.times * constant if word == "Mul" else out.times / constant
            out.divided = out.divided or word == "Div"
            out.by *= constant if word == "Div" else 1
            out.of_ranks = out.of_ranks or _is_of_ranks(torch, word, constant)
        elif word in ("Add", "Sub") and _parent(node) is not None:  # a constant besides
            if node.next_functions[0][0] is None:
                out.times *= abs(saved(node, "_saved_alpha") or 1)
        elif word in ("Add", "Sub"):
            out.add_terms(torch, node)
            break
        elif word != "Neg" and word not in SAME:
            out.of, out.count, out.first = _reduction(node)
            if out.of is not None:
                out.terms = _terms_of(torch, node) if out.count is None else out.count
            break
        node = _parent(node)
    return out


def _is_of_ranks(torch, word, constant):
    """Whether that is a product with the number of ranks."""
    distributed = torch.distributed
    joined = distributed.is_available() and distributed.is_initialized()
    ranks = distributed.get_world_size() if joined else 1
    return ranks > 1 and (constant if word == "Mul" else 1 / constant) == ranks


def _terms(torch, node):
    """([(node, what it is multiplied by, or None, and divided by: NaN where it is multiplied by the
    number of ranks)] that a sum of multiples is made of, whether these are all).
    """
    terms, waiting, left = [], [(node, 1.0, 1.0)], DEEP
    while waiting and left > 0:
        left -= 1
        node, times, by = waiting.pop()
        word = _word(node)
        if word in ("Mul", "Div"):
            constant = _constant(torch, node) if _parent(node) is not None else None
            known = constant and times is not None
            by = math.nan if known and _is_of_ranks(torch, word, constant) else by
            times = (times * constant if word == "Mul" else times / constant) if known else None
            by *= constant if known and word == "Div" else 1
        if word in ("Add", "Sub", "Mul", "Div", "Neg") or word in SAME:
            waiting += [(parent, times, by) for parent in behind(node) if parent is not None]
        else:
            terms.append((node, times, by))
    return terms, not waiting


def is_plain(torch, tensor):
    """Whether a scalar is made of means, sums and constants: no loss function reduced it."""
    terms, whole = _terms(torch, tensor.grad_fn)
    return whole and all(_word(term) in ("Mean", "Sum") for term, _, _ in terms)


def _is_scale(torch, node, constant, scale):
    if constant is None:  # on a device: not read
        other = saved(node, "_saved_other")
        return isinstance(other, torch.Tensor) and other.numel() == 1
    return scale.device.type == "cpu" and constant == float(scale)


def parent_kept(node):
    """The node that made what this one hands on as it is."""
    left = 8
    while left > 0 and _word(node) in SAME and _parent(node) is not None:
        node, left = _parent(node), left - 1
    return node


TERMS = 8  # of a sum, that are followed to what they depend on


def factor_to(torch, tensor, scale, target):
    """What a scalar's terms that depend on the node are multiplied by; None where that is not
    known, they differ, or a divided sum may be a mean of another number.
    """
    waiting, factors, terms = [(tensor.grad_fn, 1.0, scale)], set(), 0
    while waiting:
        node, times, left = waiting.pop()
        word = _word(node)
        if word in ("Mul", "Div") and _parent(node) is not None:
            constant = _constant(torch, node)
            if left is not None and word == "Mul" and _is_scale(torch, node, constant, left):
                left, constant = None, 1.0
            if not constant:
                return None
            times = times * constant if word == "Mul" else times / constant
        elif word not in ("Add", "Sub", "Neg") and word not in SAME:
            terms += 1
            if terms > TERMS:
                return None
            if any(one is target for one in itertools.islice(nodes_from([node]), NODES)):
                summed = _reduction(node)[0] != "mean" and times != 1
                factors.add(None if summed else abs(times))
            continue
        waiting += [(parent, times, left) for parent in behind(node) if parent is not None]
    return factors.pop() if len(factors) == 1 else None


# ---- what a loss depends on ----------------------------------------------------------------------

FORWARD = "ls_forward"  # in the metadata of the nodes that made a known model's outputs
NODES = 20000  # of a graph that is walked
PLAIN = ("torch.nn.", "torch.utils.checkpoint")  # functions there hand on no other rank's gradient


def mark_outputs(tensors):
    for tensor in tensors:
        metadata = getattr(tensor.grad_fn, "metadata", None)
        if metadata is not None:
            metadata[FORWARD] = True


def is_of_this_rank(torch, tensor):
    """Whether a scalar depends on a model's output, and its graph holds nothing that could hand its
    gradient to other ranks: no collective, no function of the user's own.
    """
    reached = False
    for count, node in enumerate(nodes_from([tensor.grad_fn])):
        reached = reached or FORWARD in (getattr(node, "metadata", None) or ())
        made_by = getattr(type(node), "_forward_cls", type(node))
        own = isinstance(node, torch.autograd.function.BackwardCFunction)
        foreign = own and not made_by.__module__.startswith(PLAIN)
        if foreign or "c10d" in _word(node).lower() or count == NODES:
            return False
    return reached


# ---- what a loss is given ------------------------------------------------------------------------

PRODUCTS = ("Mm", "Addmm", "Bmm", "Baddbmm", "Linear", "MkldnnLinear", "Convolution")
SQUARES = ("MseLoss", "SmoothL1Loss", "HuberLoss", "L1Loss")


def _producer(node):
    """The node that made its operand, but for those that hand on what they get."""
    node, left = _parent(node), 8
    while node is not None and left > 0 and (_word(node) in SAME or _word(node) == "_DDPSink"):
        node, left = _parent(node), left - 1
    return node


def _is_crossed(node, producer):
    """Whether N x 1 was broadcast against N to N x N."""
    kept = saved(node, "_saved_self")
    shape = tuple(kept.shape) if kept is not None else ()
    sizes = tuple(int(size) for size in saved(producer, "_saved_self_sym_sizes") or ())
    return len(shape) == 2 and shape[0] == shape[1] > 1 and sizes == (shape[0], 1)


def misuse(tensor):
    """What a loss of torch in the graph was given that it is not made for: "softmax" of a cross
    entropy, "probabilities" and "scores" of classes, "sigmoid", "crossed"; None where nothing is
    found near its end.
    """
    for node in itertools.islice(nodes_from([tensor.grad_fn]), DEEP):
        word, producer = _word(node), None
        if word in SQUARES:
            producer = _parent(node)
        elif word in ("LogSoftmax", "BinaryCrossEntropyWithLogits") or word.startswith("NllLoss"):
            producer = _producer(node)
        made_by = _word(producer) if producer is not None else ""
        if word.startswith("NllLoss") and made_by == "LogSoftmax":
            inner = _producer(producer)
            if inner is not None and _word(inner) == "Softmax":
                return "softmax"
        if word == "LogSoftmax" and made_by == "Softmax":
            return "probabilities"
        if word == "BinaryCrossEntropyWithLogits" and made_by in ("Sigmoid", "Softmax"):
            return "sigmoid"
        if word.startswith("NllLoss") and (made_by in PRODUCTS or made_by == "Softmax"):
            return "scores"
        if word in SQUARES and made_by == "Expand" and _is_crossed(node, producer):
            return "crossed"
    return None

"""Tensors that the script gathers from all ranks and uses in its loss: torch.distributed's own
functions hand on no gradient.
"""

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
        # (place, node of what was gathered, which of its outputs, [what was received])
        self.kept = []

    def keep(self, step, at, given, received):
        if self.step != step:
            self.step, self.kept = step, []
        tensors = list(received) if isinstance(received, (list, tuple)) else [received]
        if len(self.kept) < KEPT and all(isinstance(t, self.torch.Tensor) for t in tensors):
            self.kept.append((at, given.grad_fn, given.output_nr, tensors))

    def lost(self, roots):
        """The place of a gather whose values are a constant in the graph of what goes backward,
        which has no other way to what was gathered; None: there is none, or it is not known.
        """
        kept, self.kept = self.kept, []
        if not kept or not hasattr(kept[0][1], "_sequence_nr"):
            return None
        edges, nodes = self._walk(roots)
        if edges is None:
            return None
        for at, node, output, tensors in kept:
            if (node, output) in edges:
                continue  # the script put its own part back, or uses it elsewhere, too
            # what was made before the gather does not use it; parts of it may be computed again
            after = [one for one in nodes if one._sequence_nr() > node._sequence_nr()]
            if any(self._holds(one, tensors) for one in after):
                return at
        return None

    def _walk(self, roots):
        edges = {(tensor.grad_fn, tensor.output_nr) for tensor in roots}
        nodes = set()
        waiting = [tensor.grad_fn for tensor in roots if tensor.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node in nodes:
                continue
            nodes.add(node)
            if len(nodes) > NODES:
                return None, None
            for following, output in node.next_functions:
                if following is not None:
                    edges.add((following, output))
                    waiting.append(following)
        return edges, nodes

    def _holds(self, node, tensors):
        """Whether an operand of the node without a gradient is what was received, in one piece or
        joined.
        """
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

"""Functions of the user's own (torch.autograd.Function): whether their backward is the slope of
their forward.
"""

# of a tensor's own size: in FP64 the difference of two forwards keeps nine digits, and few branches
# flip
STEP = 1e-5


def own_functions(torch, outputs):
    """{name: class} of those outside torch whose backward the outputs' graph calls."""
    found, seen = {}, set()
    waiting = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            made_by = getattr(type(node), "_forward_cls", type(node))
            if not made_by.__module__.startswith("torch."):
                found[made_by.__name__] = made_by
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
    return found


def slope_ratio(torch, modules, product):
    """How the product of outputs and their gradients moves with the parameters, as a multiple of
    what backward says.

    modules: copies in FP64 with their gradients; product(): a float, of one more forward. Each
    parameter moves along its gradient, so that no tensor's share hides another's. None where
    backward says that nothing moves.
    """
    moves, expected = [], 0.0
    for module in modules:
        for param in module.parameters():
            norm = float(param.grad.norm()) if param.grad is not None else 0.0
            if norm > 0:
                size = STEP * (float(param.detach().norm()) or 1.0)
                moves.append((param, param.grad * (size / norm)))
                expected += size * norm
    if expected == 0:
        return None
    products = []
    for factor in (1, -2):  # one step up, then two down
        with torch.no_grad():
            for param, move in moves:
                param.add_(move, alpha=factor)
        products.append(product())
    return (products[0] - products[1]) / (2 * expected)

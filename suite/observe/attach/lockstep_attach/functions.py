"""Functions of the user's own (torch.autograd.Function), wherever the step calls them: each alone,
in FP64.

Whether a backward is the slope of its forward shows without the module around it, also in a loss
function or in a training_step that is not run again.
"""

from .losses import nodes_from
from .records import Reason, is_plain, mapped

# of a tensor's own size: in FP64 the difference of two forwards keeps nine digits, and few branches
# flip
STEP = 1e-5
MOST = 32  # calls of a step that are looked at
# A second step, ten times as long: a slope is the same at both, what f32 inside a function rounds,
# or a branch that flips, is not
LONGER, SAME = 10, 0.01


def own_functions(torch, outputs):
    """{name: class} of those outside torch whose backward the outputs' graph calls."""
    found = {}
    for node in nodes_from(tensor.grad_fn for tensor in outputs):
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            made_by = getattr(type(node), "_forward_cls", type(node))
            if not made_by.__module__.startswith("torch."):
                found[made_by.__name__] = made_by
    return found


def is_plain_graph(torch, outputs):
    """Whether the outputs' graph has no node but torch's generated ones, and none that casts."""
    kinds = {type(node) for node in nodes_from(tensor.grad_fn for tensor in outputs)}
    own = torch._C._functions
    return all(
        getattr(own, kind.__name__, None) is kind and not kind.__name__.startswith("ToCopy")
        for kind in kinds
    )


def along(pairs):
    """([(tensor, its step)], by how much a product should change) of [(tensor, gradient)]: each
    moves along its gradient, so that no tensor's share hides another's.
    """
    moves, expected = [], 0.0
    for tensor, grad in pairs:
        norm = float(grad.norm()) if grad is not None else 0.0
        if norm > 0:
            size = STEP * (float(tensor.detach().norm()) or 1.0)
            moves.append((tensor, grad * (size / norm)))
            expected += size * norm
    return moves, expected


def measured(torch, moves, product, by=1):
    """Half of what product() changes by from so many steps down to as many up."""
    products = []
    with torch.no_grad():
        for factor in (by, -2 * by, by):  # up, down, back
            for tensor, move in moves:
                tensor.add_(move, alpha=factor)
            if len(products) < 2:
                products.append(product())
    return (products[0] - products[1]) / 2


class Call:
    """One call: what it read, and the gradients that its results got."""

    def __init__(self, kind, random, args, needed):
        self.kind, self.random, self.args, self.needed = kind, random, args, needed
        self.grads = None


def own_classes(torch):
    """Classes outside torch that have a forward of their own."""
    out, waiting = [], [torch.autograd.Function]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if not kind.__module__.startswith("torch."):
                out.append(kind)
    return out


class Functions:
    def __init__(self, again):
        self.again, self.hub = again, again.hub
        self.calls = []
        self.on = False
        self.kept = []  # (class, name, what it had) while they are looked at

    # ---- in the job ------------------------------------------------------------------------------

    def begin(self):
        """Of the first forward of the step on, calls are seen."""
        function = self.hub.torch.autograd.Function
        if self.on or not hasattr(function, "setup_context"):  # before 2.0
            return
        self.on = True
        self.hub.temporary.append(self._put_back)
        for kind in own_classes(self.hub.torch):
            apart = kind.setup_context is not function.setup_context
            name = "setup_context" if apart else "forward"
            found = kind.__dict__.get(name)
            if isinstance(found, staticmethod):
                self.kept.append((kind, name, found))
                setattr(kind, name, staticmethod(self._noting(found.__func__, apart)))

    def _noting(self, original, apart):
        hub, note = self.hub, self._note

        def forward(ctx, *args, **kwargs):
            if not hub.idle():
                hub.call(hub.again._careful, note, ctx, args)
            return original(ctx, *args, **kwargs)

        def setup_context(ctx, inputs, output):
            if not hub.idle():
                hub.call(hub.again._careful, note, ctx, inputs)
            return original(ctx, inputs, output)

        return setup_context if apart else forward

    def _note(self, ctx, args):
        torch = self.hub.torch
        kind = getattr(type(ctx), "_forward_cls", None)
        if kind is None or len(self.calls) >= MOST or not any(ctx.needs_input_grad):
            return
        try:
            copies = mapped(torch, args, lambda t: t.detach().clone(), self._plain_only)
        except Reason:
            return
        call = Call(kind, self.again.random(), copies, tuple(ctx.needs_input_grad))
        ctx.register_prehook(self._hook(call))
        self.calls.append(call)

    def _hook(self, call):
        hub = self.hub

        def hook(grads):
            if not hub.quiet:
                hub.call(keep, grads)

        def keep(grads):
            # of a graph that goes backward twice the first pass alone
            if call.grads is None:
                call.grads = [g.detach().clone() if g is not None else None for g in grads]

        return hook

    def _put_back(self):
        for kind, name, found in self.kept:
            setattr(kind, name, found)
        self.kept, self.on = [], False

    def end(self):
        self.hub.undo(self._put_back)
        self.calls = []

    # ---- again -----------------------------------------------------------------------------------

    def run(self):
        """Reports the call whose slope is furthest from what its backward says."""
        calls = [call for call in self.calls if call.grads is not None]
        self.end()
        worst = None
        for call in calls:
            try:
                with self.again.apart():
                    ratio = self._ratio(call)
            except Exception:  # it cannot run in FP64, or alone: nothing is known of it
                continue
            if ratio is not None and (worst is None or abs(ratio - 1) > abs(worst[1] - 1)):
                worst = call.kind, ratio
        if worst is not None:
            self.again.report_slope({worst[0].__name__: worst[0]}, worst[1])

    def _ratio(self, call):
        torch = self.hub.torch
        inputs = []

        def turn(tensor):
            if not tensor.is_floating_point():
                return tensor.clone()
            inputs.append(tensor.double())
            return inputs[-1]

        args = mapped(torch, call.args, turn)
        needed = [
            value for value, wanted in zip(args, call.needed)
            if wanted and isinstance(value, torch.Tensor) and value.is_floating_point()
        ]  # fmt: skip
        for value in needed:
            value.requires_grad_(True)
        outputs = self._apply(call, args)
        pairs = [
            (out, grad.double()) for out, grad in zip(outputs, call.grads)
            if grad is not None and isinstance(out, torch.Tensor) and out.requires_grad
        ]  # fmt: skip
        if not pairs or not all(bool(torch.isfinite(grad).all()) for _, grad in pairs):
            return None
        grads = torch.autograd.grad(
            [out for out, _ in pairs], needed, [grad for _, grad in pairs], allow_unused=True
        )
        moves, expected = along(zip(needed, grads))
        if expected == 0:
            return None

        def product():
            found = zip(self._apply(call, args), call.grads)
            return sum(float((out * g.double()).sum()) for out, g in found if g is not None)

        ratios = [measured(torch, moves, product, by) / (by * expected) for by in (1, LONGER)]
        return ratios[0] if abs(ratios[0] - ratios[1]) <= SAME else None

    def _apply(self, call, args):
        self.again.set_random(call.random)
        # a copy of each: a function may write into what it reads
        result = call.kind.apply(*mapped(self.hub.torch, args, lambda t: t.clone()))
        return result if isinstance(result, tuple) else (result,)

    def _plain_only(self, value):
        if not is_plain(self.hub.torch, value):
            raise Reason("a function reads a %s" % type(value).__name__)
        return value

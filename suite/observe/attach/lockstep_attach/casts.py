"""Whole numbers that become half in a training forward (positions, counts): of a run of consecutive
ones above 2^8 (bfloat16) or 2^11 (float16) some become equal. Angles that do: angles.py.
"""

from .angles import Angles

LOOKED = 4096  # numbers of a tensor
RUN = 3  # numbers that show a run
LOST = 16  # equal neighbours: as many as a run of 290 has in bfloat16


class Casts:
    def __init__(self, hub):
        self.hub = hub
        self.mode = self.handle = None
        torch = hub.torch
        self.halves = {torch.bfloat16: "bf16", torch.float16: "f16"}
        self.angles = Angles(self)

    def begin(self, model, module):
        """A training forward of the job's first step begins: what undoes it, or None."""
        depth = getattr(self.hub.torch._C, "_len_torch_dispatch_stack", None)
        alone = depth is not None and depth() == 0 and self.handle is self.mode is None
        if not alone or model.compiled or model.parts or self.hub.models.compiles:
            return None
        if model.kind == "ddp":  # behind what the wrapper sends
            self.handle = model.inner(module).register_forward_pre_hook(self._enter)
        else:
            self._enter()
        self.hub.temporary.append(self.end)
        return self.end

    def _enter(self, *_):
        if self.mode is None:
            self.hub.call(self.angles.begin)
            self.mode = _mode(self)
            self.mode.__enter__()

    def end(self):
        """Also where something is compiled: no compiled code runs under a mode."""
        mode, handle, self.mode, self.handle = self.mode, self.handle, None, None
        if handle is not None:
            handle.remove()
        if mode is not None:
            mode.__exit__(None, None, None)
            self.angles.end()

    def saw(self, out, args):
        """An operation gave a half tensor."""
        source = args[0] if args else None
        if not isinstance(source, self.hub.torch.Tensor):  # arange in half
            source = None
        elif type(source) not in (self.hub.torch.Tensor, self.hub.torch.nn.Parameter):
            return
        elif source.dtype in self.halves or source.shape != out.shape:
            return
        place = max(range(out.dim()), key=lambda dim: out.shape[dim])
        row = tuple(slice(LOOKED) if dim == place else 0 for dim in range(out.dim()))
        now = out[row].double()
        was = now if source is None else source[row].double()
        if len(was) <= LOST or (was[1:RUN] - was[: RUN - 1] != 1).any():
            return
        steps = (was[1:] - was[:-1]) if source is not None else self.hub.torch.ones_like(was[1:])
        lost = (steps == 1) & (now[1:] == now[:-1])
        if int(lost.sum()) >= LOST:
            first = int(lost.nonzero()[0]) + 1
            start = int(was[0])
            self.hub.misuse.put(
                "integers_in_half",
                self.hub.places.here(),
                name=self.halves[out.dtype],
                count=int(lost.sum()),
                one=start + first,
                other=start + first - 1,
            )


def _mode(casts):
    torch, hub, angles = casts.hub.torch, casts.hub, casts.angles
    names = (torch.ops.aten._to_copy, torch.ops.aten.arange)
    plain = (torch.Tensor, torch.nn.Parameter)

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        supports_higher_order_operators = True  # torch.cond: they pass

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            packet = getattr(function, "overloadpacket", None)
            if packet is None or type(out) not in plain:  # a subclass's own
                return out
            if packet in names and out.dtype in casts.halves and out.dim():
                hub.call(casts.saw, out, args)
            if angles.kept or packet is angles.casting:
                hub.call(angles.saw, function, args, kwargs or {}, out)
            return out

    return Mode()

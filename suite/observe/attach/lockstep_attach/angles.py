"""Angles of which the first training forward takes sine or cosine, where what they are computed
from (rotary frequencies, positions, times) was rounded to half: the forward's own operations on it
are done a second time in FP64, from the values before the rounding.
"""

import weakref

SOURCE, ELEMENTS = 1 << 16, 1 << 20  # of what is rounded; of what is computed from it
TENSORS = 64  # that are followed
# What angles are computed by, products of vectors among it: of few terms
FOLLOWED = set(
    "mul div add sub neg mm bmm cat stack clone repeat index index_select sin cos".split()
)
PRODUCTS, TERMS = ("mm", "bmm"), 4
# Of a sine: half stores it within 2^-9 (bfloat16), and angles up to pi within 2^-7
OFF = 2**-5


class Angles:
    def __init__(self, casts):
        self.casts, self.hub = casts, casts.hub
        self.rounded = []  # (weak reference of a module, name, values before, half type, place)
        self.ended = False
        self.kept = {}  # address of a storage: (a tensor of it, FP64 of all of it, type, place)
        self.casting = self.hub.torch.ops.aten._to_copy

    # ---- conversions of modules ------------------------------------------------------------------

    def buffers(self, module):
        """What a conversion of the module may round: [(module, name, tensor)]."""
        found = ((m, name, t) for m in module.modules() for name, t in m._buffers.items())
        return [one for one in found if one[2] is not None and self._is_wide(one[2])][:TENSORS]

    def converted(self, before):
        """They were converted."""
        for module, name, old in before:
            now = module._buffers.get(name)
            if now is not None and now.dtype in self.casts.halves and now.shape == old.shape:
                at = self.hub.places.here()
                self.rounded.append((weakref.ref(module), name, old, now.dtype, at))
        del self.rounded[:-TENSORS]

    def _is_wide(self, tensor):
        torch = self.hub.torch
        own = type(tensor) in (torch.Tensor, torch.nn.Parameter)
        wide = own and tensor.dtype in (torch.float32, torch.float64)
        wide = wide and tensor.layout is torch.strided
        size = 0 < tensor.numel() <= SOURCE
        return wide and size and not tensor.is_meta

    # ---- the forward -----------------------------------------------------------------------------

    def begin(self):
        """Buffers that hold what the conversion made of them."""
        for ref, name, old, half, at in self.rounded:
            now = ref()._buffers.get(name) if ref() is not None else None
            if now is None or now.shape != old.shape or now.is_meta or now.layout is not old.layout:
                continue
            old = old.detach().to(now.device)
            if self.hub.torch.equal(now, old.to(half).to(now.dtype)):
                self._keep(now, old.double(), half, at)
        self.rounded = []

    def end(self):
        self.kept = {}

    def _keep(self, tensor, values, half, at):
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        if self.ended or len(self.kept) >= TENSORS or count > ELEMENTS:
            return
        flat = values.new_zeros(count)
        places = tensor.size(), tensor.stride(), tensor.storage_offset()
        flat.as_strided(*places).copy_(values)
        self.kept[storage.data_ptr()] = tensor, flat, half, at

    def _known(self, tensor):
        if tensor.layout is not self.hub.torch.strided or not self.kept:
            return None
        found = self.kept.get(tensor.untyped_storage().data_ptr())
        return found if found is not None and found[0].dtype is tensor.dtype else None

    def saw(self, function, args, kwargs, out):
        """An operation of the forward, once it is done. An error of this part ends this part."""
        try:
            self._saw(function, args, kwargs, out)
        except Exception:
            self.kept, self.ended = {}, True

    def _saw(self, function, args, kwargs, out):
        torch, packet = self.hub.torch, function.overloadpacket
        if packet is self.casting:
            self._cast(args[0], out)
            return
        leaves = torch.utils._pytree.tree_flatten((args, kwargs))[0]
        tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
        known = next(filter(None, map(self._known, tensors)), None)
        kinds = (torch.Tensor, torch.nn.Parameter)
        if known is None or not all(type(t) in kinds for t in (*tensors, out)):
            return
        address, name = out.untyped_storage().data_ptr(), packet.__name__
        if function._schema.is_mutable:
            self.kept.pop(address, None)
        elif address not in self.kept and name in FOLLOWED and out.is_floating_point():
            few = name not in PRODUCTS or tensors[0].shape[-1] <= TERMS
            if few and 0 < out.numel() <= ELEMENTS and not any(t.requires_grad for t in tensors):
                self._again(function, args, kwargs, out, known)

    def _cast(self, source, out):
        torch, known = self.hub.torch, self._known(source)
        if known is not None and out.is_floating_point():
            self._keep(out, self._exact(source), *known[2:])
        elif out.dtype in self.casts.halves and self._is_wide(source) and not source.requires_grad:
            if not torch.equal(source.double(), out.double()):
                self._keep(out, source.double(), out.dtype, self.hub.places.here())

    def _exact(self, value):
        if not isinstance(value, self.hub.torch.Tensor):
            return value
        known = self._known(value)
        if known is None:
            return value.double() if value.is_floating_point() else value
        return known[1].as_strided(value.size(), value.stride(), value.storage_offset())

    def _again(self, function, args, kwargs, out, known):
        torch, (half, at) = self.hub.torch, known[2:]
        args, kwargs = torch.utils._pytree.tree_map(self._exact, (args, kwargs))
        values = function(*args, **kwargs)
        if values.shape != out.shape or values.dtype is not torch.float64:
            return
        if function.overloadpacket.__name__ in ("sin", "cos"):
            off = float((values - out.double()).abs().max())
            if off > OFF:
                name = self.casts.halves[half]
                self.hub.misuse.put("angles_in_half", at, name=name, by="%.2g" % off)
        self._keep(out, values, half, at)

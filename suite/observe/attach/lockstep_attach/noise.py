"""What a forward draws by itself on a CPU (noise, times, masks). A copy in FP64 would draw other
numbers, or in f32: it gets those that the copy in f32 drew, as the job did.
"""

import contextlib

from .records import Reason
from .wrapping import FILE

NORMAL = "randn randn_like normal normal_".split()
OTHERS = (
    "rand rand_like randint randint_like randperm bernoulli bernoulli_ multinomial uniform_ random_"
    " exponential_ cauchy_ log_normal_ geometric_ poisson"
)
DRAWING = {*NORMAL, *OTHERS.split()}
MOST = 64  # draws of a forward
TOLD = 4  # that are written
FEW = 4  # an output of so many times fewer places than channels is small: _conv2d


class Drawn:
    def __init__(self, name, values, own, at, left):
        self.name, self.values, self.own, self.at, self.left = name, values, own, at, left


def _inmost(function):
    """Not one that stands in for it: a function of torch names itself by its module."""
    while getattr(getattr(function, "__code__", None), "co_filename", None) == FILE:
        function = function.__wrapped__
    return function


def _pair(value):
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * (2 // len(value))


def _conv2d(torch, function, image, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
    """PyTorch's convolution in FP64 takes 0.6 of the time in another layout (ResNet-18). It reads
    the weights anew for each image: where the outputs are small, one product for all images takes
    0.3 to 0.7 of that.
    """
    if isinstance(padding, str) or image.numel() == 0:
        return function(image, weight, bias, stride, padding, dilation, groups)
    geometry = [_pair(value) for value in (dilation, padding, stride)]
    kernel, sizes = weight.shape[2:], []
    for size, k, d, p, s in zip(image.shape[2:], kernel, *geometry):
        sizes.append((size + 2 * p - d * (k - 1) - 1) // s + 1)
    if groups != 1 or FEW * sizes[0] * sizes[1] > len(weight) or min(sizes) < 1:
        last = {"memory_format": torch.channels_last}
        image, weight = (t.contiguous(**last) for t in (image, weight))
        return function(image, weight, bias, stride, padding, dilation, groups).contiguous()
    columns = torch.nn.functional.unfold(image, kernel, *geometry)
    columns = columns.transpose(0, 1).reshape(weight[0].numel(), -1)
    out = weight.reshape(len(weight), -1) @ columns
    out = out.view(-1, len(image), *sizes).transpose(0, 1).contiguous()
    return out if bias is None else out + bias.view(-1, 1, 1)


@contextlib.contextmanager
def _watched(torch, called):
    """called(name, function, args, kwargs) stands for functions that draw."""

    wide = 4, torch.float64

    class Drawing(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            name, kwargs = getattr(function, "__name__", ""), kwargs or {}
            if name in DRAWING and "out" not in kwargs:
                return called(name, function, args, kwargs)
            if name == "conv2d" and len(args) > 1 and (args[0].dim(), args[0].dtype) == wide:
                return _conv2d(torch, function, *args, **kwargs)
            return _inmost(function)(*args, **kwargs)

    with torch._C._EnableTorchFunction(), Drawing():  # the hub's own calls are without
        yield


@contextlib.contextmanager
def repeated(again, record, dtype):
    """Around a forward of the copy: the first one's draws are kept, a later one's are the same."""
    torch, noted = again.hub.torch, record.noise
    first, places = noted is None, iter(noted or ())
    known = hasattr(torch._C, "_EnableTorchFunction")  # since 2.1
    if not known or not record.on_cpu or dtype not in (torch.float32, torch.float64):
        yield
        return

    def note(name, function, args, kwargs):
        result = function(*args, **kwargs)
        if len(kept) == MOST:
            raise Reason("a forward draws random numbers more than %d times" % MOST)
        own = kwargs.get("generator") is not None
        at = again.hub.places.here()
        kept.append(Drawn(name, result.detach().clone(), own, at, again.random()))
        return result

    def repeat(name, function, args, kwargs):
        drawn = next(places, None)
        if drawn is None or drawn.name != name:
            raise Reason("the copy draws random numbers in another order")
        again.set_random(drawn.left)
        values = drawn.values.to(dtype) if drawn.values.is_floating_point() else drawn.values
        if name.endswith("_"):
            with torch.no_grad():
                return args[0].copy_(values)
        return values.clone().requires_grad_(bool(kwargs.get("requires_grad")))

    kept = []
    with _watched(torch, note if first else repeat):
        yield
    if first:
        record.noise = kept


@contextlib.contextmanager
def never(again, record, dtype):
    """Around a copy's backward: activations that are computed again there would draw otherwise.
    Autograd calls them without modes.
    """
    torch = again.hub.torch

    def refuse(*args, **kwargs):
        raise Reason("random numbers are drawn again in backward")

    kept = []
    try:
        for owner in (torch, torch.Tensor) if record.noise and dtype is torch.float64 else ():
            for name in DRAWING.intersection(dir(owner)):
                kept.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, refuse)
        yield
    finally:
        for owner, name, own in kept:
            delattr(owner, name) if own is None else setattr(owner, name, own)


def tell(hub, record, samples):
    """By a generator that all draw from: of ranks whose states are equal it is equal."""
    shared = [one for one in record.noise or () if not one.own]
    for one in sorted(shared, key=lambda one: one.name not in NORMAL)[:TOLD]:
        hub.put("noise", at=one.at, function=one.name, numbers=one.values.numel(), samples=samples)

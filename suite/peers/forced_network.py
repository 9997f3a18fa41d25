"""torchvision's ResNets (and networks.py's) in float64 with operations that follow a Run: on given ReLU
and max-pool branches, with one rounding wherever a level stores a value. For recompute.py."""
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import networks  # noqa: E402


class Round(torch.autograd.Function):
    """Rounds the value to `out` on the way forward and its gradient to `back` on the way back."""

    @staticmethod
    def forward(ctx, x, out, back):
        ctx.back = back
        return x if out is None else x.to(out).double()

    @staticmethod
    def backward(ctx, gradient):
        return (gradient if ctx.back is None else gradient.to(ctx.back).double()), None, None


class Run:
    """One forward and backward: which branches, which roundings, each rank's images in the batch."""

    def __init__(self, parts, forced=None, store=None, product=None, norm=None, keep=False):
        self.forced, self.store, self.product, self.norm = forced, store, product, norm
        self.parts, self.keep = parts, keep
        self.branches, self.inputs, self.turned = [], [], []

    def stored(self, x):
        return x if self.store is None else Round.apply(x, self.store, self.store)

    def read(self, x):
        return x if self.store is None else Round.apply(x, None, self.store)


class Relu(nn.Module):
    def forward(self, x):
        run, k = self.run, len(self.run.branches)
        own = x.detach() > 0
        taken = own if run.forced is None else run.forced[k].reshape(x.shape).bool()
        run.branches.append(taken)
        if run.keep:
            run.inputs.append(x.detach())
            run.turned.append(torch.where(own != taken, x.detach().abs(), torch.zeros(())).flatten())
        return run.read(x) * taken


class Pool(nn.Module):
    def forward(self, x):
        run, k = self.run, len(self.run.branches)
        top, own = F.max_pool2d(x.detach(), 3, 2, 1, return_indices=True)
        index = own if run.forced is None else run.forced[k].reshape(own.shape).long()
        run.branches.append(index)
        out = run.read(x).flatten(2).gather(2, index.flatten(2)).reshape(own.shape)
        # An index outside its 3x3 window would be no max-pool at all.
        row, column = index // x.shape[3], index % x.shape[3]
        high = torch.arange(own.shape[2]).reshape(-1, 1) * 2
        wide = torch.arange(own.shape[3]).reshape(1, -1) * 2
        if ((row - high).abs() > 1).any() or ((column - wide).abs() > 1).any():
            raise ValueError(f"branch {k}: a max-pool index outside its window")
        if run.keep:
            run.inputs.append(x.detach())
            run.turned.append((top - out.detach()).flatten())
        return out


class Product(nn.Module):
    """A convolution or the linear layer; each rank has a weight gradient (and rounding) of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = [inner]

    def forward(self, x):
        run, inner, out = self.run, self.inner[0], []
        for part in run.read(x).split(run.parts):
            weight, bias = inner.weight, inner.bias
            if run.product is not None:
                weight = Round.apply(weight, run.product, run.product)
                bias = None if bias is None else Round.apply(bias, run.product, run.product)
            if isinstance(inner, nn.Conv2d):
                out.append(F.conv2d(part, weight, None, inner.stride, inner.padding))
            else:
                out.append(F.linear(part, weight, bias))
        return run.stored(torch.cat(out))


class Norm(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = [inner]

    def forward(self, x):
        run, inner = self.run, self.inner[0]
        weight, bias = inner.weight, inner.bias
        if run.norm is not None:
            weight, bias = Round.apply(weight, None, run.norm), Round.apply(bias, None, run.norm)
        if not run.keep:  # the ideal's statistics are no one's
            mean, var = None, None
        else:
            mean, var = inner.running_mean, inner.running_var
            inner.num_batches_tracked += 1
        y = F.batch_norm(run.read(x), mean, var, weight, bias, True, inner.momentum, inner.eps)
        return run.stored(y)


class Network:
    """torchvision's model with its operations replaced by ones that follow a Run."""

    def __init__(self, arch, classes, parameters, buffers):
        self.model = build_model(arch, classes).double()
        given = {n: t.double() if t.is_floating_point() else t
                 for n, t in list(parameters.items()) + list(buffers.items())}
        self.model.load_state_dict(given, strict=True)
        self.parameters = dict(self.model.named_parameters())
        self.modules = []
        for name, module in list(self.model.named_modules()):
            kinds = {nn.ReLU: lambda m: Relu(), nn.MaxPool2d: lambda m: Pool(), nn.Linear: Product,
                     nn.Conv2d: Product, nn.BatchNorm2d: Norm}
            if type(module) in kinds:
                new = kinds[type(module)](module)
                owner, _, last = name.rpartition(".")
                setattr(self.model.get_submodule(owner), last, new)
                self.modules.append(new)
        add = self.add
        for module in self.model.modules():
            if type(module).__name__ in ("BasicBlock", "Bottleneck", "CifarBlock"):
                module.forward = block_forward(module, add)

    def add(self, x, y):
        run = self.run
        return run.stored(run.read(x) + run.read(y))

    def step(self, run, images, target, weights):
        """Sum over samples of weights * cross entropy; returns logits, losses, gradients."""
        self.run = run
        for module in self.modules:
            module.run = run
        for parameter in self.parameters.values():
            parameter.grad = None
        logits = self.model(run.stored(images.double()))
        logits = logits if run.store is None else Round.apply(logits, None, torch.float32)
        losses = F.cross_entropy(logits, target, reduction="none")
        (losses * weights).sum().backward()
        return logits.detach(), losses.detach(), {n: p.grad for n, p in self.parameters.items()}


def block_forward(block, add):
    """The residual block of torchvision (v1.5) and of the CIFAR networks, with `add` to round in."""
    kind = type(block).__name__

    def forward(x):
        if kind == "CifarBlock":
            y = block.bn2(block.conv2(block.relu1(block.bn1(block.conv1(x)))))
            if block.grow or block.stride != 1:
                x = F.pad(x[:, :, ::block.stride, ::block.stride], (0, 0, 0, 0, 0, block.grow))
            return block.relu2(add(y, x))
        y = block.relu(block.bn1(block.conv1(x)))
        y = block.bn2(block.conv2(y))
        if kind == "Bottleneck":
            y = block.bn3(block.conv3(block.relu(y)))
        return block.relu(add(y, x if block.downsample is None else block.downsample(x)))
    return forward


def build_model(arch, classes):
    if arch in networks.CIFAR:
        return networks.build(arch, classes)
    import torchvision
    return getattr(torchvision.models, arch)(num_classes=classes)

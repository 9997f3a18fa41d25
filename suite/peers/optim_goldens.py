#!/usr/bin/env python3
"""Prints suite/unit/reference/optim_goldens.inc: five steps of every optimizer in float64, for the FP64 oracle.

    python3 suite/peers/optim_goldens.py | clang-format --assume-filename=x.c > suite/unit/reference/optim_goldens.inc

SGD, Adam and AdamW are torch.optim's own. LAMB and LARS are written here from their papers (You et al.
2019, 2017) with Apex's choices (FusedLAMB: gradients clipped by their common norm, averaged, bias
corrected; LARC around SGD), over whole vectors, and share nothing with C.
"""
import numpy
import torch

STEPS = 5
SIZES = (3, 4)  # two tensors: trust ratios are of one tensor, LAMB's clipping is of all


def start():
    return [numpy.array([0.5, -1.25, 2.0]), numpy.array([0.01, 0.3, -0.7, 1.5])]


def gradients(step):
    return [numpy.array([numpy.sin(1.0 + step * (i + 1 + 3 * k)) * (1.0 + k) for i in range(n)])
            for k, n in enumerate(SIZES)]


def by_torch(kind, options):
    params = [torch.nn.Parameter(torch.tensor(p, dtype=torch.float64)) for p in start()]
    classes = {"SGD": torch.optim.SGD, "ADAM": torch.optim.Adam, "ADAMW": torch.optim.AdamW}
    clip_norm, clip_value = options.get("clip_norm"), options.get("clip_value")
    optimizer = classes[kind](params, **{n: v for n, v in options.items() if n[:4] != "clip"})
    for step in range(STEPS):
        for param, grad in zip(params, gradients(step)):
            param.grad = torch.tensor(grad, dtype=torch.float64)
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(params, clip_norm)
        if clip_value:
            torch.nn.utils.clip_grad_value_(params, clip_value)
        optimizer.step()
    return [p.detach().numpy() for p in params]


def lamb(lr, betas, eps, weight_decay, max_grad_norm, l2=False, nvlamb=False, uncorrected=False):
    params = start()
    first = [numpy.zeros(n) for n in SIZES]
    second = [numpy.zeros(n) for n in SIZES]
    for step in range(STEPS):
        grads = gradients(step)
        norm = numpy.linalg.norm(numpy.concatenate(grads))
        for k, (param, grad) in enumerate(zip(params, grads)):
            if max_grad_norm > 0:
                grad = grad * min(1.0, max_grad_norm / norm)
            if l2:
                grad = grad + weight_decay * param
            first[k] = first[k] + (1 - betas[0]) * (grad - first[k])
            second[k] = second[k] + (1 - betas[1]) * (grad ** 2 - second[k])
            corrected = [1.0, 1.0] if uncorrected else [1 - b ** (step + 1) for b in betas]
            update = first[k] / corrected[0] / (numpy.sqrt(second[k] / corrected[1]) + eps)
            if not l2:
                update = update + weight_decay * param
            trust = 1.0
            if nvlamb or weight_decay != 0:
                trust = numpy.linalg.norm(param) / numpy.linalg.norm(update)
            params[k] = param - lr * trust * update
    return params


def lars(lr, momentum, nesterov, weight_decay, trust, eps, clip=False):
    params = start()
    buffers = [None, None]
    for step in range(STEPS):
        for k, (param, grad) in enumerate(zip(params, gradients(step))):
            size, slope = numpy.linalg.norm(param), numpy.linalg.norm(grad)
            rate = trust * size / (slope + weight_decay * size + eps)
            if clip:
                rate = min(rate / lr, 1.0)
            grad = rate * (grad + weight_decay * param)
            buffers[k] = grad if buffers[k] is None else momentum * buffers[k] + grad
            params[k] = param - lr * (grad + momentum * buffers[k] if nesterov else buffers[k])
    return params


def rows():
    for momentum, dampening, decay, nesterov in ((0, 0, 0, False), (0, 0, .1, False), (.9, 0, 0, False),
                                                 (.9, .5, 0, False), (.9, 0, .1, False),
                                                 (.9, 0, 0, True), (.9, 0, .1, True),
                                                 (.9, .25, .1, False)):
        options = {"lr": .1, "momentum": momentum, "dampening": dampening, "weight_decay": decay,
                   "nesterov": nesterov}
        yield "SGD", options, by_torch("SGD", options)
    for kind in ("ADAM", "ADAMW"):
        for betas, eps, decay in (((.9, .999), 1e-8, 0), ((.9, .999), 1e-8, .1), ((.5, .75), .0625, .5),
                                  ((.8, .99), 1e-3, .01)):
            options = {"lr": .01, "betas": betas, "eps": eps, "weight_decay": decay}
            yield kind, options, by_torch(kind, options)
    for kind, clip in (("SGD", {"clip_norm": .5}), ("SGD", {"clip_norm": 2.5}), ("SGD", {"clip_value": .75}),
                       ("ADAMW", {"clip_norm": .5}), ("ADAMW", {"clip_value": .75})):
        options = {"lr": .1, "weight_decay": .1, **clip}
        if kind == "ADAMW":
            options.update(lr=.01, betas=(.9, .999), eps=1e-8)
        else:
            options["momentum"] = .9
        yield kind, options, by_torch(kind, options)
    for decay, extra in ((0, {}), (.1, {}), (.1, {"l2": True}), (0, {"nvlamb": True}),
                         (.1, {"uncorrected": True}), (.1, {"max_grad_norm": 0}),
                         (.1, {"max_grad_norm": 100})):
        options = {"lr": .02, "betas": (.9, .999), "eps": 1e-6, "weight_decay": decay,
                   "max_grad_norm": 1}
        options.update(extra)
        yield "LAMB", options, lamb(**options)
    for momentum, nesterov, decay, trust, clip in ((.9, False, .1, .02, False), (.9, True, .1, .02, False),
                                                   (0, False, 0, .02, False), (.9, False, .1, .5, True),
                                                   (.9, False, .1, .02, True)):
        options = {"lr": .5, "momentum": momentum, "nesterov": nesterov, "weight_decay": decay,
                   "trust": trust, "eps": 1e-8, "clip": clip}
        yield "LARS", options, lars(**options)


def main():
    names = {"eps": "epsilon"}
    print("/* Made by suite/peers/optim_goldens.py with torch %s; not edited. Five steps in float64. */"
          % torch.__version__.split("+")[0])
    for kind, options, params in rows():
        fields = [".kind = LS_UPDATE_" + kind]
        for name, value in options.items():
            if name == "betas":
                fields.append("BETAS(%r, %r, %r)" % (*value, options["eps"]))
            elif value and not (name == "eps" and "betas" in options):
                fields.append(".%s = %s" % (names.get(name, name),
                                            "true" if value is True else repr(value)))
        values = ["%.17g" % v for p in params for v in p]
        print("{{%s},\n {%s}}," % (", ".join(fields), ", ".join(values)))


main()

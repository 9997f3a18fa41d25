#!/usr/bin/env python3
"""Rates of torch.optim.lr_scheduler and of Apex's ImageNet script (examples/imagenet/main_amp.py@
adjust_learning_rate), for the table of suite/unit/reference/test_schedule.c: text, base, steps of an
epoch, steps and the FNV-1a digest of their rates in f32. With a text it prints that schedule's rates.
"""

import struct
import sys

import torch
from torch.optim import lr_scheduler as torch_schedule


def walk(base, make, steps):
    """The rates of `steps` steps: the scheduler ticks after each, as scripts let it."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], base)
    scheduler = make(optimizer)
    for _ in range(steps):
        yield scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()


def apex(base, epoch_steps, steps):
    for n in range(steps):
        epoch, step = n // epoch_steps, n % epoch_steps + 1
        factor = epoch // 30
        if epoch >= 80:
            factor = factor + 1
        lr = base * (0.1 ** factor)
        if epoch < 5:
            lr = lr * float(1 + step + epoch * epoch_steps) / (5. * epoch_steps)
        yield lr


def warm(length, start, make):
    """Warm-up, then the scheduler, as torchvision's references/classification/train.py joins them."""
    return lambda o: torch_schedule.SequentialLR(
        o, [torch_schedule.LinearLR(o, start, total_iters=length), make(o)], milestones=[length])


def rows():
    """(text, base, steps of an epoch, steps, what makes the scheduler; None: Apex's)"""
    of = torch_schedule
    for base, length, gamma in ((0.1, 30, 0.1), (0.4, 7, 0.97), (1.6, 100, 0.5)):
        yield "step:%ds:%r" % (length, gamma), base, 0, 400, lambda o: of.StepLR(o, length, gamma)
    for base, at, gamma in ((0.1, [100, 150], 0.1), (0.5, [3, 7, 9, 300], 0.25)):
        text = "multistep:%s:%r" % (",".join("%ds" % a for a in at), gamma)
        yield text, base, 0, 400, lambda o: of.MultiStepLR(o, at, gamma)
    for base, length in ((0.1, 400), (0.5, 90), (3.2, 333)):
        yield "cosine:%ds" % length, base, 0, length + 1, lambda o: of.CosineAnnealingLR(o, length)
    for base, length, power in ((0.1, 400, 1.0), (0.5, 90, 2.0), (3.2, 333, 0.9), (10.0, 200, 2.5)):
        text = "polynomial:%ds:%r" % (length, power)
        yield text, base, 0, 450, lambda o: of.PolynomialLR(o, length, power)
    yield "polynomial:120s", 0.3, 0, 200, lambda o: of.PolynomialLR(o, 120)
    for base, length, start in ((0.1, 50, 0.01), (0.5, 7, 0.3), (2.0, 333, 0.001)):
        text = "warmup:%ds:%r,constant" % (length, start)
        yield text, base, 0, 400, lambda o: of.LinearLR(o, start, total_iters=length)
    yield ("warmup:25s,cosine:300s", 0.5, 0, 326,
           warm(25, 0.01, lambda o: of.CosineAnnealingLR(o, 300)))
    yield ("warmup:5s:0.1,step:30s:0.1", 0.1, 0, 200, warm(5, 0.1, lambda o: of.StepLR(o, 30, 0.1)))
    yield ("warmup:12s,polynomial:200s:2.0", 9.0, 0, 300,
           warm(12, 0.01, lambda o: of.PolynomialLR(o, 200, 2.0)))
    # lengths in epochs of so many steps
    yield "step:3:0.1", 0.1, 40, 700, lambda o: of.StepLR(o, 120, 0.1)
    yield "cosine:9", 0.1, 37, 334, lambda o: of.CosineAnnealingLR(o, 333)
    yield ("warmup:2,polynomial:10:1.5", 1.0, 20, 300,
           warm(40, 0.01, lambda o: of.PolynomialLR(o, 200, 1.5)))
    for base, epoch_steps in ((0.1, 100), (0.8, 37), (0.3, 5005)):
        yield "imagenet", base, epoch_steps, 90 * epoch_steps, None


def digest(rates):
    value = 0xcbf29ce484222325
    for byte in b"".join(struct.pack("<f", rate) for rate in rates):
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return value


def main():
    for text, base, epoch_steps, steps, make in rows():
        rates = list(walk(base, make, steps) if make else apex(base, epoch_steps, steps))
        if text in sys.argv[1:]:
            print("\n".join("%d %.9g" % (i + 1, torch.tensor(rate)) for i, rate in enumerate(rates)))
        if len(sys.argv) == 1:
            print('{"%s", %r, %d, %d, 0x%016x},' % (text, base, epoch_steps, len(rates), digest(rates)))


main()

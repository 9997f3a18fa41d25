#!/usr/bin/env python3
"""Two batches a step, in float16, with clipped gradients."""
import argparse
import contextlib
import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def make_dataset(samples, classes=10):
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(classes, (samples,), generator=generator)
    patterns = torch.randn(classes, 3, 12, 12, generator=generator)
    images = patterns[targets] + torch.randn(samples, 3, 12, 12, generator=generator)
    return TensorDataset(images, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--max-norm", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    dataset = make_dataset(256)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = DistributedDataParallel(make_model(classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    # The scale doubles every third step, so that a short run meets overflows.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for i, (images, targets) in enumerate(loader):
            last = (i + 1) % args.accumulate == 0
            with contextlib.nullcontext() if last else model.no_sync():
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(model(images), targets) / args.accumulate
                scaler.scale(loss).backward()
            if last:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Clipped gradients in float16, of a network with an auxiliary loss."""
import argparse
import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.body = nn.Sequential(
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.ReLU())
        self.head = nn.Linear(32, classes)
        self.aux_head = nn.Linear(16, classes)

    def forward(self, x):
        early = self.stem(x)
        late = self.body(early)
        return self.head(late.mean((2, 3))), self.aux_head(early.mean((2, 3)))


def make_dataset(samples, classes=10):
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(classes, (samples,), generator=generator)
    patterns = torch.randn(classes, 3, 12, 12, generator=generator)
    images = patterns[targets] + torch.randn(samples, 3, 12, 12, generator=generator)
    return TensorDataset(images, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
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

    model = DistributedDataParallel(Net(classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    # The scale doubles every third step, so that a short run meets overflows.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output, aux_output = model(images)
                loss = F.cross_entropy(output, targets)
                aux_loss = F.cross_entropy(aux_output, targets)
            loss = loss + 0.4 * aux_loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
            scaler.step(optimizer)
            scaler.update()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A checkpoint after each epoch, and --resume to go on from it."""
import argparse
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
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def make_dataset(samples, classes=10):
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(classes, (samples,), generator=generator)
    patterns = torch.randn(classes, 3, 12, 12, generator=generator)
    images = patterns[targets] + torch.randn(samples, 3, 12, 12, generator=generator)
    return TensorDataset(images, targets)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    dataset = make_dataset(256)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = DistributedDataParallel(make_model(classes=10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[1, 3], gamma=0.3)
    # The scale doubles every third step, so that a short run meets overflows.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)

    start = 0
    if args.resume:
        checkpoint = torch.load(args.checkpoint, map_location="cpu")
        model.module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        schedule.load_state_dict(checkpoint["schedule"])
        scaler.load_state_dict(checkpoint["scaler"])
        start = checkpoint["epoch"]

    for epoch in range(start, start + args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for images, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(images), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        schedule.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")
            torch.save({
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "scaler": scaler.state_dict(),
                "epoch": epoch + 1,
            }, args.checkpoint)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

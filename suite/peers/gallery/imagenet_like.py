#!/usr/bin/env python3
"""Training and validation in turn, with a schedule and the best checkpoint."""
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
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, classes))


def make_dataset(samples, seed, classes=10):
    patterns = torch.randn(classes, 3, 12, 12, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (samples,), generator=generator)
    images = patterns[targets] + torch.randn(samples, 3, 12, 12, generator=generator)
    return TensorDataset(images, targets)


def train(model, loader, optimizer):
    model.train()
    for images, targets in loader:
        loss = F.cross_entropy(model(images), targets, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def validate(model, loader):
    model.eval()
    count = torch.zeros(2)
    with torch.no_grad():
        for images, targets in loader:
            hits = model(images).argmax(1) == targets
            count += torch.tensor([hits.sum(), len(hits)])
    dist.all_reduce(count)
    return (count[0] / count[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)  # another dropout on each rank; the weights are rank 0's

    train_set, val_set = make_dataset(250, seed=2), make_dataset(64, seed=3)
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, batch_size=args.batch_size, sampler=val_sampler)

    model = DistributedDataParallel(make_model(classes=10))
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    best = 0.0
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        loss = train(model, train_loader, optimizer)
        accuracy = validate(model, val_loader)
        schedule.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}")
            if accuracy > best:
                torch.save({
                    "epoch": epoch + 1,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "schedule": schedule.state_dict(),
                }, "best.pt")
        best = max(best, accuracy)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""One process in float16, without torch.distributed."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    loader = DataLoader(make_dataset(256), batch_size=args.batch_size, shuffle=True)
    model = make_model(classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    # The scale doubles every third step, so that a short run meets overflows.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)

    for epoch in range(args.epochs):
        model.train()
        for images, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                output = model(images)
                loss = F.cross_entropy(output, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()

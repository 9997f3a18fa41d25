#!/usr/bin/env python3
"""Gradients in float16 that the script averages itself, without DistributedDataParallel."""
import argparse
import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def make_model(classes):
    return nn.Sequential(
        nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, classes))


def broadcast_parameters(model):
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, 0)


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()


def draw_batch(patterns, size, generator):
    targets = torch.randint(len(patterns), (size,), generator=generator)
    return patterns[targets] + torch.randn(size, 48, generator=generator), targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)
    data = torch.Generator().manual_seed(1000 + rank)
    patterns = torch.randn(10, 48, generator=torch.Generator().manual_seed(1))

    model = make_model(classes=10)
    broadcast_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    # The scale doubles every third step, so that a short run meets overflows.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=3)

    model.train()
    for step in range(args.steps):
        inputs, targets = draw_batch(patterns, args.batch_size, data)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        average_gradients(model)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
        scaler.step(optimizer)
        scaler.update()
        if rank == 0 and step % 8 == 0:
            print(f"step {step}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

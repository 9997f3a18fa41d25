#!/usr/bin/env python3
"""A small language model in bfloat16, with a warm-up and two groups of parameters."""
import argparse
import datetime
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class LanguageModel(nn.Module):
    def __init__(self, words, width, length):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
            for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, words, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return self.output(self.norm(x))


def make_dataset(samples, words, length):
    generator = torch.Generator().manual_seed(1)
    start = torch.randint(words, (samples, 1), generator=generator)
    stride = torch.randint(1, 4, (samples, 1), generator=generator)
    return TensorDataset((start + stride * torch.arange(length + 1)) % words)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(args.seed)

    dataset = make_dataset(256, words=32, length=16)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = LanguageModel(words=32, width=32, length=16)
    torch.manual_seed(args.seed + 1 + rank)  # another dropout on each rank
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95))
    steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: min((n + 1) / args.warmup, 0.5 + 0.5 * math.cos(math.pi * n / steps)))
    model = DistributedDataParallel(model)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for (tokens,) in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, lr {schedule.get_last_lr()[0]:.2g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

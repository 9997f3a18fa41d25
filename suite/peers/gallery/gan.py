#!/usr/bin/env python3
"""Two networks that train against each other, in float16."""
import argparse
import datetime

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Generator(nn.Module):
    def __init__(self, latent, width=32):
        super().__init__()
        self.fc = nn.Linear(latent, width * 9)
        self.conv = nn.Conv2d(width, 3, 3, padding=1)
        self.width = width

    def forward(self, z):
        x = F.relu(self.fc(z)).view(-1, self.width, 3, 3)
        x = F.interpolate(x, scale_factor=4.0, mode="nearest")
        return torch.tanh(self.conv(x))


class Discriminator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.fc = nn.Linear(2 * width, 1)

    def forward(self, x):
        x = F.leaky_relu(self.conv1(x), 0.2)
        x = F.leaky_relu(self.conv2(x), 0.2)
        return self.fc(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--latent", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    noise = torch.Generator().manual_seed(args.seed * 1000 + rank)

    images = torch.tanh(torch.randn(256, 3, 12, 12, generator=torch.Generator().manual_seed(1)))
    dataset = TensorDataset(images)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    generator = DistributedDataParallel(Generator(args.latent))
    discriminator = DistributedDataParallel(Discriminator())
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=args.lr, betas=(0.5, 0.999))
    # The scale doubles every third step, so that a short run meets overflows.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (real,) in loader:
            z = torch.randn(len(real), args.latent, generator=noise)

            optimizer_d.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                fake = generator(z)
                verdict = discriminator(torch.cat([real, fake.detach()]))
                truth = torch.cat([torch.ones(len(real), 1), torch.zeros(len(real), 1)])
                loss_d = F.binary_cross_entropy_with_logits(verdict, truth)
            scaler.scale(loss_d).backward()
            scaler.step(optimizer_d)

            optimizer_g.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                verdict = discriminator(fake)
                loss_g = F.binary_cross_entropy_with_logits(verdict, torch.ones(len(real), 1))
            scaler.scale(loss_g).backward()
            scaler.step(optimizer_g)
            scaler.update()
        if rank == 0:
            print(f"epoch {epoch}: losses {loss_d.item():.4f} {loss_g.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

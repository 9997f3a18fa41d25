#!/usr/bin/env python3
"""Trains a ResNet-18 on folders of pictures, on one process per device:

    torchrun --nproc-per-node 2 train.py --train data/train --val data/val --epochs 30
"""
import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

from resnet import resnet18  # torchvision's


class Pictures(Dataset):
    """A folder of pictures for each class."""

    def __init__(self, folder, size):
        classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        self.size = size
        self.files = [(os.path.join(folder, name, file), number)
                      for number, name in enumerate(classes)
                      for file in sorted(os.listdir(os.path.join(folder, name)))]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, target = self.files[index]
        picture = Image.open(path).convert("RGB").resize((self.size, self.size))
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        return pixels.reshape(self.size, self.size, 3).permute(2, 0, 1) / 127.5 - 1, target


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default="data/train")
    parser.add_argument("--val", default="data/val")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm; 0: any")
    parser.add_argument("--warmup", type=int, default=500, help="steps")
    parser.add_argument("--decay-every", type=int, default=3000, help="steps")
    parser.add_argument("--no-amp", dest="amp", action="store_false")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", help="checkpoint to write after each epoch")
    parser.add_argument("--resume", help="checkpoint to go on from")
    return parser.parse_args()


def train_epoch(model, loader, criterion, optimizer, scaler, schedule, args):
    model.train()
    optimizer.zero_grad()
    for i, (images, target) in enumerate(loader):
        images, target = images.to(args.device), target.to(args.device)
        last = (i + 1) % args.accumulate == 0
        with contextlib.nullcontext() if last else model.no_sync():
            with torch.autocast(args.device, torch.float16, enabled=args.amp):
                loss = criterion(model(images), target)
            scaler.scale(loss / args.accumulate).backward()
        if last:
            scaler.unscale_(optimizer)
            if args.clip > 0:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            schedule.step()


@torch.no_grad()
def validate(model, loader, criterion, args):
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=args.device)
    for images, target in loader:
        images, target = images.to(args.device), target.to(args.device)
        with torch.autocast(args.device, torch.float16, enabled=args.amp):
            logits = model(images)
            loss = criterion(logits, target)
        sums += torch.stack([torch.tensor(len(target)), (logits.argmax(1) == target).sum(),
                             loss * len(target)])
    dist.all_reduce(sums)  # each picture counts once: the sampler pads nothing
    return sums.tolist()


def main():
    args = parse()
    dist.init_process_group("nccl" if args.device == "cuda" else "gloo")
    if args.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(args.seed)

    train_set, val_set = Pictures(args.train, args.size), Pictures(args.val, args.size)
    sampler = DistributedSampler(train_set, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, drop_last=True)
    own = range(dist.get_rank(), len(val_set), dist.get_world_size())
    val_loader = DataLoader(Subset(val_set, own), args.batch_size)

    model = resnet18(num_classes=args.classes).to(args.device)
    model = DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, args.momentum,
                                weight_decay=args.weight_decay)
    scaler = torch.amp.GradScaler(args.device, enabled=args.amp)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (
        0.1 + 0.9 * step / args.warmup if step < args.warmup
        else 0.5 ** ((step - args.warmup) // args.decay_every)))

    first = 0
    if args.resume:
        state = torch.load(args.resume, map_location=args.device)
        first = state["epoch"] + 1
        model.module.load_state_dict(state["model"])
        for name, part in (("optimizer", optimizer), ("scaler", scaler), ("schedule", schedule)):
            part.load_state_dict(state[name])
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        train_epoch(model, train_loader, criterion, optimizer, scaler, schedule, args)
        images, correct, loss = validate(model.module, val_loader, criterion, args)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: top-1 {100 * correct / images:.2f}, loss {loss / images:.4f}")
            if args.save:
                torch.save({"epoch": epoch, "model": model.module.state_dict(),
                            "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict(),
                            "schedule": schedule.state_dict()}, args.save)


if __name__ == "__main__":
    main()

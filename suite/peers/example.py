#!/usr/bin/env python3
import torch, torch.nn.functional as F
import networks, torch_adapter

def build(subject):
    o = subject.options
    model = networks.build(o.arch, o.num_classes)
    if subject.distributed:
        model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=o.bucket_cap_mb)
    optimizer = torch.optim.SGD(model.parameters(), o.lr, o.momentum, weight_decay=o.weight_decay)
    scaler = subject.grad_scaler()

    def step(batches):
        [(images, target)] = batches
        optimizer.zero_grad()
        with subject.autocast():
            logits = model(images)
            loss = F.cross_entropy(logits, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return [(logits, loss)]

    return model, optimizer, step, scaler

torch_adapter.main(build, levels=("O0", "O1"), offers=("init-scale", "growth-interval"))

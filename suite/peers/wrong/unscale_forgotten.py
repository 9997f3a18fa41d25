"""The example with clipping, and without scaler.unscale_() in front of it."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import networks  # noqa: E402
import torch  # noqa: E402
import torch_adapter  # noqa: E402


def build(subject):
    o = subject.options
    model = torch.nn.parallel.DistributedDataParallel(networks.build(o.arch, o.num_classes))
    optimizer = torch.optim.SGD(model.parameters(), o.lr, o.momentum, weight_decay=o.weight_decay)
    scaler = subject.grad_scaler()

    def step(batches):
        [(images, target)] = batches
        optimizer.zero_grad()
        with subject.autocast():
            logits = model(images)
            loss = torch.nn.functional.cross_entropy(logits, target)
        scaler.scale(loss).backward()
        subject.clip_grad_norm_(model.parameters(), o.clip_grad_norm)
        scaler.step(optimizer)
        scaler.update()
        return [(logits, loss)]

    return model, optimizer, step, scaler


torch_adapter.main(build, ("O0", "O1"), ("clip-grad-norm", "init-scale", "growth-interval"))

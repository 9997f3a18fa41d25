#!/usr/bin/env python3
import os, sys
import torch, torch.distributed, torch.nn.functional as F
import networks, protocol

def main(events):
    o = protocol.parse(protocol.parser("An f32 trainer."), sys.argv[1:])
    if o.opt_level != "O0" or o.data != "synthetic" or o.init or o.loss_scale not in (None, "1"):
        raise protocol.Refused("--opt-level, --data, --init or --loss-scale", "a short example")
    folder, rank = os.environ.get("LS_RUN_DIR"), int(os.environ.get("RANK", 0))
    world = int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(o.seed)
    model = networks.build(o.arch, o.num_classes)
    names, branches, wrapped = dict(model.named_parameters()), protocol.Branches(model), model
    if world > 1:
        torch.distributed.init_process_group("gloo")
        wrapped = torch.nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=o.bucket_cap_mb, broadcast_buffers=False)
    optimizer = torch.optim.SGD(names.values(), o.lr, o.momentum, weight_decay=o.weight_decay)
    events.write("start", rank=rank, world=world, options=protocol.effective(o))
    for step in range(1, o.steps + 1):
        dump = step in o.dump_steps and (rank == 0 or o.dump_ranks == "all")
        generator = torch.Generator().manual_seed((o.seed * 1000003 + step) * world + rank)
        target = torch.randint(o.num_classes, (o.batch_size,), generator=generator)
        images = torch.randn(o.batch_size, 3, o.image_size, o.image_size, generator=generator)
        tensors = protocol.snapshot(names, optimizer) if dump else {} # param/ and state/
        branches.on, branches.found = dump, []
        optimizer.zero_grad()
        logits = wrapped(images)
        loss = F.cross_entropy(logits, target)
        loss.backward()
        optimizer.step()
        events.step(step, loss.item(), loss_scale=1, loss_scale_next=1, skipped=False, lr=o.lr,
                    images=len(target), digest={"param": protocol.digest(names)})
        if dump:
            tensors.update({"input": images, "target": target, "logits": logits, "loss": loss})
            tensors.update({f"grad/{n}": p.grad for n, p in names.items()})
            tensors.update({f"next/{n}": p for n, p in names.items()})
            tensors.update({f"buffer/{n}": b for n, b in model.named_buffers()})
            tensors.update({f"branch/{k:03d}": b for k, b in enumerate(branches.found)})
            protocol.write_dump(folder, step, rank, tensors, {
                "opt_level": "O0", "world_size": world, "dialect": "torch", "lr": o.lr,
                "momentum": o.momentum, "weight_decay": o.weight_decay})
    events.write("end")

protocol.run(main, "example")

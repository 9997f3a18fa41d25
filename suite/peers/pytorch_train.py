#!/usr/bin/env python3
"""PyTorch as a subject: torch DDP, autocast and GradScaler behind the subject protocol.

The command line, the events, the dumps and the exit codes are those of Lockstep's design, section 4;
what this trainer does not offer it refuses with exit code 4 and an `unsupported` event. It needs torch
and torchvision and nothing else. Opt levels: O0 plain, O1 autocast with f32 parameters.
"""
import argparse
import json
import math
import os
import struct
import sys
import time
from contextlib import nullcontext

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

USAGE, INFRASTRUCTURE, UNSUPPORTED, PEER_LOST, NON_FINITE = 2, 3, 4, 10, 12
NUMPY_OF = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "F16": "<f2"}
NAME_OF = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.int32: "I32",
           torch.uint8: "U8", torch.float16: "F16", torch.bfloat16: "BF16"}


class CifarBlock(nn.Module):
    """Two 3x3 convolutions; option A shortcut (He et al. 2015, section 4.2)."""

    def __init__(self, planes_in, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.stride, self.grow = stride, planes - planes_in
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()

    def forward(self, x):
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        if self.grow or self.stride != 1:
            x = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, 0, self.grow))
        return self.relu2(x + y)


class CifarResNet(nn.Module):
    def __init__(self, depth, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        planes_in = 16
        for stage, planes in enumerate((16, 32, 64)):
            blocks = []
            for i in range((depth - 2) // 6):
                blocks.append(CifarBlock(planes_in, planes, 2 if stage and not i else 1))
                planes_in = planes
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, num_classes)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def build_model(arch, num_classes):
    if arch in ("resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110"):
        return CifarResNet(int(arch[6:]), num_classes)
    if arch in ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"):
        import torchvision
        return getattr(torchvision.models, arch)(num_classes=num_classes)
    sys.exit(usage(f"--arch {arch}: known are resnet8, 20, 32, 44, 56, 110, 18, 34, 50, 101, 152"))


def usage(text):
    print(f"pytorch_train: error: {text}", file=sys.stderr)
    return USAGE


class Events:
    """rank<k>.jsonl in LS_RUN_DIR, a whole line at a time; silent without that folder."""

    def __init__(self, folder, rank):
        self.file = open(os.path.join(folder, f"rank{rank}.jsonl"), "a") if folder else None
        self.first = True

    def write(self, event, **members):
        if self.file is None:
            return
        line = {"event": event}
        if self.first:
            line["schema"] = 1
            self.first = False
        line.update(members)
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def read_safetensors(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            raw = torch.from_numpy(numpy.frombuffer(data[begin:end], "<i2").copy())
            out[name] = raw.view(torch.bfloat16).reshape(entry["shape"])
        else:
            raw = numpy.frombuffer(data[begin:end], NUMPY_OF[entry["dtype"]]).copy()
            out[name] = torch.from_numpy(raw).reshape(entry["shape"])
    return out


def write_safetensors(path, tensors, metadata):
    header, chunks, offset = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        kind = NAME_OF[tensor.dtype]
        chunk = (tensor.view(torch.int16) if kind == "BF16" else tensor).numpy().tobytes()
        header[name] = {"dtype": kind, "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(chunk)]}
        offset += len(chunk)
        chunks.append(chunk)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".tmp", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for chunk in chunks:
            file.write(chunk)
    os.replace(path + ".tmp", path)


FNV_PRIME, FNV_START, MASK = 1099511628211, 14695981039346656037, (1 << 64) - 1


def digest(tensors):
    """FNV-1a 64 over the bytes in order of name. Python is slow at this: small models only."""
    value = FNV_START
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        raw = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
        for byte in raw.numpy().tobytes():
            value = ((value ^ byte) * FNV_PRIME) & MASK
    return f"{value:016x}"


class Branches:
    """Hooks that record which way every ReLU and max-pool went, in order of execution."""

    def __init__(self, model):
        self.on, self.found = False, []
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(self.relu)
            elif isinstance(module, nn.MaxPool2d):
                module.register_forward_hook(self.pool)

    def relu(self, _module, _inputs, output):
        if self.on:
            bits = numpy.packbits((output > 0).cpu().contiguous().numpy().reshape(-1),
                                  bitorder="little")
            self.found.append(torch.from_numpy(bits))

    def pool(self, module, inputs, _output):
        if self.on:
            _, index = F.max_pool2d(inputs[0], module.kernel_size, module.stride, module.padding,
                                    return_indices=True)
            self.found.append(index.to(torch.int32))


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    add = parser.add_argument
    add("-a", "--arch", default="resnet50")
    add("-b", "--batch-size", type=int, default=32)
    add("--image-size", type=int, default=224)
    add("--num-classes", type=int, default=10)
    add("--steps", type=int, required=True)
    add("--opt-level", choices=("O0", "O1", "O2", "O3"), default="O1")
    add("--half", choices=("fp16", "bf16"), default="fp16")
    add("--loss-scale")
    add("--bucket-cap-mb", type=float, default=25)
    add("--lr", type=float, default=0.1)
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=1e-4)
    add("--data", default="synthetic")
    add("--seed", type=int, default=0)
    add("--init")
    add("--dump-steps", default="")
    add("--dump-ranks", choices=("0", "all"), default="0")
    add("--device", choices=("cpu", "cuda", "auto"), default="auto")
    add("--dialect", choices=("apex", "torch"), default="torch")
    add("--nesterov", action="store_true")
    add("--optimizer", default="sgd")
    add("--threads", type=int, default=0)
    add("--digest", choices=("all", "none"), default="none")
    add("--broadcast-buffers", action="store_true")
    add("--deterministic", action="store_true")
    argv = ["--" + a[2:].split("=")[0].replace("_", "-") + a[len(a.split("=")[0]):]
            if a.startswith("--") else a for a in argv]
    options, unknown = parser.parse_known_args(argv)
    return options, unknown


def batch_of(options, step, rank, world, cache):
    """The step's images and classes: given files, or noise around a class-dependent brightness."""
    if options.data.startswith("batches:"):
        path = os.path.join(options.data[8:], f"step{step:06d}.rank{rank}.safetensors")
        given = read_safetensors(path)
        return given["input"], given["target"]
    if options.data != "synthetic":
        raise NotImplementedError(options.data)
    generator = torch.Generator().manual_seed(options.seed * 1000003 + step * world + rank)
    target = torch.randint(options.num_classes, (options.batch_size,), generator=generator)
    images = torch.randn(options.batch_size, 3, options.image_size, options.image_size,
                         generator=generator)
    return images + target.reshape(-1, 1, 1, 1) / options.num_classes, target


def main():
    options, unknown = parse(sys.argv[1:])
    env = os.environ
    rank, world = int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1))
    folder = env.get("LS_RUN_DIR")
    events = Events(folder, rank)

    def refuse(option, why):
        events.write("unsupported", option=option, why=why)
        print(f"pytorch_train: {option}: not supported: {why}", file=sys.stderr)
        return UNSUPPORTED

    if unknown:
        return refuse(unknown[0], "this adapter does not offer it")
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        print("pytorch_train: error: --device cuda: torch finds no CUDA device", file=sys.stderr)
        return INFRASTRUCTURE
    half = {"fp16": torch.float16, "bf16": torch.bfloat16}[options.half]
    if options.optimizer != "sgd":
        return refuse("--optimizer", "sgd only")
    if options.opt_level in ("O2", "O3"):
        return refuse("--opt-level", "O0 and O1 (autocast) only")
    recent = tuple(int(x) for x in torch.__version__.split(".")[:2]) >= (2, 3)
    if options.opt_level == "O1" and device == "cpu" and half is torch.float16 and not recent:
        return refuse("--half", f"torch {torch.__version__} has no fp16 autocast on the CPU")
    if options.dump_steps and not folder:
        return usage("--dump-steps needs LS_RUN_DIR")
    dump_steps = {int(s) for s in options.dump_steps.split(",") if s}
    if options.threads:
        torch.set_num_threads(options.threads)
    if device == "cuda":
        torch.cuda.set_device(int(env.get("LOCAL_RANK", 0)))

    torch.use_deterministic_algorithms(options.deterministic)
    torch.manual_seed(options.seed)
    model = build_model(options.arch, options.num_classes)
    if options.init:
        given = read_safetensors(options.init)
        with torch.no_grad():
            for name, tensor in list(model.named_parameters()) + list(model.named_buffers()):
                if name in given:
                    tensor.copy_(given[name])
    model = model.to(device)
    branches = Branches(model)
    wrapped = model
    if world > 1:
        import torch.distributed as distributed
        distributed.init_process_group("nccl" if device == "cuda" else "gloo")
        wrapped = nn.parallel.DistributedDataParallel(
            model, bucket_cap_mb=options.bucket_cap_mb, broadcast_buffers=options.broadcast_buffers)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, options.momentum,
                                weight_decay=options.weight_decay, nesterov=options.nesterov)
    scale, dynamic, growth = 1.0, False, 0
    if options.opt_level == "O1" and options.loss_scale is None and half is torch.float16:
        scale, dynamic = 65536.0, True
    elif options.loss_scale == "dynamic":
        scale, dynamic = 65536.0, True
    elif options.loss_scale is not None:
        scale = float(options.loss_scale)

    events.write("start", versions={"torch": torch.__version__}, device=device, world=world,
                 options=vars(options))
    cache, parameters = {}, dict(model.named_parameters())
    for step in range(1, options.steps + 1):
        begin = time.monotonic()
        images, target = batch_of(options, step, rank, world, cache)
        images, target = images.to(device), target.to(device)
        loaded = time.monotonic()
        dump = step in dump_steps and (rank == 0 or options.dump_ranks == "all")
        before = {n: p.detach().clone() for n, p in parameters.items()} if dump else {}
        moments = {n: optimizer.state[p]["momentum_buffer"].clone() for n, p in parameters.items()
                   if dump and "momentum_buffer" in optimizer.state.get(p, {})}
        branches.on, branches.found = dump, []
        with (torch.autocast(device, half) if options.opt_level == "O1" else nullcontext()):
            logits = wrapped(images)
            loss = F.cross_entropy(logits.float(), target)
        after_forward = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        (loss * scale).backward()
        after_backward = time.monotonic()
        finite = True
        if scale != 1.0 or dynamic:
            inverse = 1.0 / scale
            for parameter in parameters.values():
                finite = finite and bool(torch.isfinite(parameter.grad).all())
                parameter.grad.mul_(inverse)
        skipped = dynamic and not finite
        gradients = {n: p.grad.detach().float().clone() for n, p in parameters.items()} if dump else {}
        if not skipped:
            optimizer.step()
        scale_next = scale
        if dynamic:
            growth = 0 if skipped else growth + 1
            if skipped:
                scale_next = scale / 2
            elif growth >= 2000:
                scale_next, growth = scale * 2, 0
        if device == "cuda":
            torch.cuda.synchronize()
        end = time.monotonic()
        value = float(loss.detach())
        ms = {"total": (end - begin) * 1e3, "data": (loaded - begin) * 1e3,
              "forward": (after_forward - loaded) * 1e3,
              "backward": (after_backward - after_forward) * 1e3,
              "optimizer": (end - after_backward) * 1e3}
        members = dict(step=step, loss=value if math.isfinite(value) else None,
                       loss_bits="0x%08x" % struct.unpack("<I", struct.pack("<f", value))[0],
                       loss_scale=scale, loss_scale_next=scale_next, skipped=skipped, lr=options.lr,
                       images=int(target.numel()), ms=ms)
        if options.digest == "all":
            members["digest"] = {"param": digest(parameters)}
        events.write("step", **members)
        if dump:
            tensors = {"input": images, "target": target, "logits": logits.float(),
                       "loss": loss.detach().reshape(1).float()}
            tensors.update({f"param/{n}": t for n, t in before.items()})
            tensors.update({f"grad/{n}": t for n, t in gradients.items()})
            tensors.update({f"buffer/{n}": t for n, t in model.named_buffers()})
            tensors.update({f"next/{n}": t for n, t in parameters.items()})
            tensors.update({f"branch/{i:03d}": t for i, t in enumerate(branches.found)})
            tensors.update({f"state/{n}/momentum_buffer": t for n, t in moments.items()})
            os.makedirs(os.path.join(folder, "dump"), exist_ok=True)
            write_safetensors(os.path.join(folder, "dump", f"step{step:06d}.rank{rank}.safetensors"),
                              tensors, dict(step=step, opt_level=options.opt_level, half=options.half,
                                            world_size=world, loss_scale=scale, skipped=int(skipped),
                                            lr=options.lr, optimizer="sgd",
                                            momentum=options.momentum,
                                            weight_decay=options.weight_decay, accumulate=1,
                                            dialect="torch"))
        scale = scale_next
        if not all(torch.isfinite(p).all() for p in parameters.values()):
            print("pytorch_train: error: a parameter is not finite", file=sys.stderr)
            return NON_FINITE
    events.write("end", code=0)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as error:
        print(f"pytorch_train: error: {error}", file=sys.stderr)
        lost = any(word in str(error) for word in ("closed by peer", "Connection", "imed out"))
        sys.exit(PEER_LOST if lost else INFRASTRUCTURE)

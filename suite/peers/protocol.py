"""The subject protocol for trainers in Python: options, events, safetensors, digests, branches.

What is written here is described in suite/protocol.md. Needs torch and numpy; knows no
network, no data parallelism and no precision: those are the trainer's.
"""
import argparse
import ctypes
import json
import math
import os
import struct
import sys
import time
import traceback

import numpy
import torch
import torch.nn as nn
import torch.nn.functional as F

import fork_server

DONE, CHECK, USAGE, INFRASTRUCTURE, UNSUPPORTED, PEER_LOST, NON_FINITE = 0, 1, 2, 3, 4, 10, 12
DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "I32": torch.int32,
          "U8": torch.uint8, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Refused(Exception):
    """An option this trainer does not offer: exit code 4 and an `unsupported` event."""

    def __init__(self, option, why):
        super().__init__(f"{option}: not supported: {why}")
        self.option, self.why = option, why


class Usage(Exception):
    """A value that means nothing: one line and exit code 2, nothing written."""


class Stop(Exception):
    """The run ends here with this code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


# ---- options -----------------------------------------------------------------------------------

def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: allowed: whole numbers from 1")
    return value


def loss_scale(text):
    if text == "dynamic":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text}: allowed: dynamic or a positive finite number")
    return text


def steps(text):
    return sorted({positive(word) for word in text.split(",") if word})


def parser(description):
    """The options that a subject must accept, with the protocol's defaults, and three more."""
    out = argparse.ArgumentParser(description=description, allow_abbrev=False)
    add = out.add_argument
    add("-a", "--arch", default="resnet50")
    add("-b", "--batch-size", type=positive, default=32)
    add("--image-size", type=positive, default=224)
    add("--num-classes", type=positive, default=10)
    add("--steps", type=positive, default=10)
    add("--opt-level", choices=("O0", "O1", "O2", "O3"), default="O1")
    add("--half", choices=("fp16", "bf16"), default="fp16")
    add("--loss-scale", type=loss_scale)
    add("--bucket-cap-mb", type=float, default=25)
    add("--lr", type=float, default=0.1)
    add("--momentum", type=float, default=0.9)
    add("--weight-decay", type=float, default=1e-4)
    add("--data", default="synthetic")
    add("--seed", type=int, default=0)
    add("--init")
    add("--dump-steps", type=steps, default=[])
    add("--device", choices=("cpu", "cuda", "auto"), default="auto")
    # optional, but nearly every job of the suite gives them
    add("--threads", type=int, default=0)
    add("--deterministic", action="store_true")
    add("--dump-ranks", choices=("0", "all"), default="0")
    return out


def parse(options, argv):
    """Long options also with underscores. An unknown option is refused, which is not an error."""
    argv = [word if not word.startswith("--") else
            word.partition("=")[0].replace("_", "-") + "".join(word.partition("=")[1:])
            for word in argv]
    found, unknown = options.parse_known_args(argv)
    if unknown:
        raise Refused(unknown[0].partition("=")[0], "this trainer does not offer it")
    if found.threads:
        torch.set_num_threads(found.threads)
    torch.use_deterministic_algorithms(found.deterministic)
    return found


def effective(found):
    """For the start event: long names."""
    return {name.replace("_", "-"): value for name, value in vars(found).items()}


# ---- events ------------------------------------------------------------------------------------

class Events:
    """rank<k>.jsonl in LS_RUN_DIR, a whole line at a time; silent without that folder."""

    def __init__(self, folder, rank):
        self.path = os.path.join(folder, f"rank{rank}.jsonl") if folder else None
        self.file, self.ended = None, time.monotonic()

    def write(self, event, **members):
        if self.path is None:
            return
        line = {"event": event}
        if self.file is None:
            self.file = open(self.path, "a", buffering=1)
            line["schema"] = 1
        line.update(members)
        # JSON has neither NaN nor infinity: such a loss is null, and loss_bits gives its value
        self.file.write(json.dumps(line, allow_nan=False) + "\n")

    def step(self, number, loss, **members):
        """`loss`: this rank's mean, an f32 value. ms.total: time since the last step ended."""
        now = time.monotonic()
        ms = dict(members.pop("ms", {}), total=(now - self.ended) * 1e3)
        bits, = struct.unpack("<I", struct.pack("<f", loss))
        self.write("step", step=number, loss=loss if math.isfinite(loss) else None,
                   loss_bits=f"0x{bits:08x}", **members, ms=ms)
        self.ended = time.monotonic()


# ---- safetensors -------------------------------------------------------------------------------

def read_safetensors(path):
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        dtype = DTYPES[entry["dtype"]]
        flat = torch.empty(0, dtype=torch.uint8)
        if end > begin:
            flat = torch.frombuffer(data, dtype=torch.uint8, offset=begin, count=end - begin)
        out[name] = flat.clone().view(dtype).reshape(entry["shape"])  # clone: aligned
    return out


def raw_bytes(tensor):
    """A tensor's bytes as a numpy array, in torchvision's order of dimensions."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()


def write_safetensors(path, tensors, metadata):
    header, chunks, offset = {"__metadata__": {k: str(v) for k, v in metadata.items()}}, [], 0
    # wide elements first: each tensor then lies aligned to its own
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        chunk = raw_bytes(tensor)
        header[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + chunk.size]}
        offset += chunk.size
        chunks.append(chunk)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".tmp", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for chunk in chunks:
            file.write(chunk.data)
    os.replace(path + ".tmp", path)


def moments(names, optimizer):
    """{name/moment: tensor} of what the optimizer has; nothing before its first step."""
    found = {}
    for name, parameter in names.items():
        for moment, value in optimizer.state.get(parameter, {}).items():
            if torch.is_tensor(value) and value.dim() > 0:
                found[f"{name}/{moment}"] = value
    return found


def write_dump(folder, step, rank, tensors, metadata, model=""):
    """`model`: where a run trains several, each has a folder of dumps."""
    where = os.path.join(folder, "dump", model)
    os.makedirs(where, exist_ok=True)
    write_safetensors(os.path.join(where, f"step{step:06d}.rank{rank}.safetensors"), tensors,
                      dict(metadata, step=step, rank=rank))


# ---- digests -----------------------------------------------------------------------------------

FNV_START, FNV_PRIME, FNV_BLOCK = 0xCBF29CE484222325, 0x100000001B3, 1 << 16
_powers = numpy.ones(FNV_BLOCK + 1, numpy.uint64)
_powers[1:] = FNV_PRIME
with numpy.errstate(over="ignore"):
    _powers = numpy.multiply.accumulate(_powers)[::-1].copy()  # P^65536 ... P^0


def prefix_xor(flips):
    """The running exclusive-or of bytes that are 0 or 1, whose number is a multiple of 64."""
    words = numpy.packbits(flips, bitorder="little").view(numpy.uint64)
    for shift in (1, 2, 4, 8, 16, 32):
        words ^= words << numpy.uint64(shift)
    odd = numpy.bitwise_xor.accumulate(words >> numpy.uint64(63))
    words[1:] ^= numpy.uint64(0) - odd[:-1]  # all bits of a word with an odd number before it
    return numpy.unpackbits(words.view(numpy.uint8), bitorder="little")


def fnv1a(state, data):
    """FNV-1a 64 of `data` (u8 array) from `state`, without a loop over the bytes.

    h' = (h ^ b) * P. With l the low byte of h, h ^ b = h + ((l ^ b) - l), so the state is a sum
    of powers of P once all low bytes are known. They are: P is odd, so bit k of (l ^ b) * P is bit
    k of l ^ b, exclusive-or something that depends on the bits below k: eight prefix sums mod 2.
    """
    for begin in range(0, data.size, FNV_BLOCK):
        block = data[begin:begin + FNV_BLOCK]
        size = block.size
        whole = numpy.concatenate([block, numpy.zeros(-size % 64, numpy.uint8)])
        low = numpy.zeros(whole.size + 1, numpy.uint8)
        low[0] = state & 0xFF
        for bit in range(8):
            flips = low[:-1] ^ whole
            flips &= numpy.uint8((1 << bit) - 1)
            flips *= numpy.uint8(FNV_PRIME & 0xFF)
            flips ^= whole
            flips >>= numpy.uint8(bit)
            flips &= numpy.uint8(1)
            flips[0] ^= state >> bit & 1
            low[1:] |= prefix_xor(flips) << numpy.uint8(bit)
        before = low[:size]
        change = (before ^ block).astype(numpy.int64) - before
        powers = _powers[-1 - size:]
        total = int(numpy.dot(change.view(numpy.uint64), powers[:-1]))
        state = (state * int(powers[0]) + total) & 0xFFFFFFFFFFFFFFFF
    return state


def digest(tensors):
    """Of the tensors' bytes, in order of name."""
    state = FNV_START
    for name in sorted(tensors):
        state = fnv1a(state, raw_bytes(tensors[name]))
    return f"{state:016x}"


# ---- branches ----------------------------------------------------------------------------------

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
            bits = (output > 0).cpu().contiguous().numpy().reshape(-1)
            self.found.append(torch.from_numpy(numpy.packbits(bits, bitorder="little")))

    def pool(self, module, inputs, _output):
        if self.on:
            _, index = F.max_pool2d(inputs[0].detach(), module.kernel_size, module.stride,
                                    module.padding, return_indices=True)
            self.found.append(index.to(torch.int32))


# ---- the process -------------------------------------------------------------------------------

def keep_memory():
    """glibc hands large tensors back to the kernel after each step and takes fresh pages for the
    next: on ResNet-50 half of a forward. A step is timed without that, whichever way the heap lies.
    M_MMAP_MAX 0, M_TRIM_THRESHOLD as high as it goes; elsewhere than with glibc nothing happens."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)
        mallopt(-1, 2 ** 31 - 1)
    except (OSError, AttributeError):
        pass


def load():
    """What every rank of torch's DistributedDataParallel imports later: torch's compiler, whose
    import takes as long as torch's own, and which this setting brings."""
    torch.use_deterministic_algorithms(False)


def run(main, name):
    """Calls main(events) and leaves with the protocol's exit code, whatever happened."""
    fork_server.serve(load)
    rank = int(os.environ.get("RANK", 0))
    events = Events(os.environ.get("LS_RUN_DIR"), rank)
    keep_memory()
    try:
        main(events)
        code, text = DONE, None
    except Refused as refused:
        events.write("unsupported", option=refused.option, why=refused.why)
        code, text = UNSUPPORTED, refused
    except Usage as mistake:
        code, text = USAGE, mistake
    except Stop as stop:
        code, text = stop.code, stop
    except Exception as error:  # whatever it is, it ends this rank with a line and a code
        lost = ("closed by peer", "Connection re", "imed out", "Broken pipe", "Socket")
        code = PEER_LOST if any(word in str(error) for word in lost) else CHECK
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if code == CHECK:
            traceback.print_exc()
    if text is not None:
        print(f"{name}: error: {text}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: with a peer gone, the process group's threads would wait for it.
    os._exit(code)

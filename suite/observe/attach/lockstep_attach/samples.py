"""Elements of tensors at seeded positions, and the safetensors file of a detailed step."""

import ctypes
import json
import os
import random
import struct
import zlib

TYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64",
    "int32": "I32",
    "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
SHORT = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int64": "i64",
    "int32": "i32",
    "int16": "i16", "int8": "i8", "uint8": "u8", "bool": "bool", "complex64": "c64",
    "complex128": "c128",
}  # fmt: skip
CHUNK = 1 << 22  # elements of a tensor that are turned to FP64 at a time


def type_name(dtype):
    name = str(dtype).rsplit(".", 1)[-1]
    return SHORT.get(name, name)


def positions(name, count, samples):
    """The places that are sampled of a tensor of `count` elements, ascending, or None for all of
    them.
    """
    if count <= samples:
        return None
    return sorted(random.Random(zlib.crc32(name.encode("utf-8"))).sample(range(count), samples))


class Sampler:
    """Takes the samples of one named tensor from whatever has its shape, on any device."""

    __slots__ = ("torch", "name", "count", "places", "index")

    def __init__(self, torch, name, count, samples):
        self.torch, self.name, self.count = torch, name, count
        self.places = positions(name, count, samples)
        self.index = {}

    def take(self, tensor):
        torch = self.torch
        tensor = tensor.detach()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        if self.places is None:
            return tensor.reshape(-1).clone()
        index = self.index.get(tensor.device)
        if index is None:
            index = self.index[tensor.device] = torch.tensor(
                self.places, dtype=torch.int64, device=tensor.device
            )
        if tensor.is_contiguous():
            return tensor.view(-1).index_select(0, index)
        return torch.take(tensor, index)

    def index_tensor(self):
        places = range(self.count) if self.places is None else self.places
        return self.torch.tensor(list(places), dtype=self.torch.int64, device="cpu")


def sum_of_squares(torch, tensor, minus=None):
    """Of the whole tensor, less another, in FP64: a tensor of one element."""
    if tensor.layout != torch.strided:
        tensor = (
            tensor.coalesce().values() if tensor.layout == torch.sparse_coo else tensor.to_dense()
        )
    flat = tensor.detach().reshape(-1)
    if minus is None:
        return torch.linalg.vector_norm(flat, dtype=torch.float64) ** 2
    other = minus.detach().reshape(-1)
    total = torch.zeros((), dtype=torch.float64, device=flat.device)
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK].double() - other[start : start + CHUNK].double()
        total += (part * part).sum()
    return total


def to_host(torch, named):
    """{name: CPU tensor}, with one transfer for each type and device."""
    groups, out = {}, {}
    for name, tensor in named.items():
        if tensor.device.type == "cpu":
            out[name] = tensor.contiguous()
        else:
            groups.setdefault((tensor.device, tensor.dtype), []).append(name)
    for names in groups.values():
        packed = torch.cat([named[name].reshape(-1) for name in names]).cpu()
        at = 0
        for name in names:
            count = named[name].numel()
            out[name] = packed[at : at + count].clone()
            at += count
    return out


def content(tensor):
    """The bytes of a contiguous CPU tensor, without numpy."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError("a tensor that is not in the host's memory")
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def write_safetensors(path, named, metadata):
    """Writes CPU tensors, the largest elements first so that each is aligned, under a name that
    appears when it is whole.
    """
    order = sorted(named, key=lambda name: (-named[name].element_size(), name))
    header, at = {"__metadata__": {key: str(value) for key, value in metadata.items()}}, 0
    for name in order:
        tensor = named[name]
        size = tensor.numel() * tensor.element_size()
        kind = TYPES[str(tensor.dtype).rsplit(".", 1)[-1]]
        header[name] = {"dtype": kind, "shape": [tensor.numel()], "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header, separators=(",", ":")).encode("ascii")
    head += b" " * (-len(head) % 8)
    temporary = "%s.tmp%d" % (path, os.getpid())
    with open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name in order:
            file.write(content(named[name]))
    os.replace(temporary, path)

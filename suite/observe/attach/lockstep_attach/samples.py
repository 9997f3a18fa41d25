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
CACHED = 1 << 15  # elements that a CPU turns to FP64 at a time: more leave its caches


def type_name(dtype):
    name = str(dtype).rsplit(".", 1)[-1]
    return SHORT.get(name, name)


def local(tensor):
    """What this rank holds of it: an operation on one in parts may communicate."""
    return getattr(tensor, "_local_tensor", tensor)


def positions(name, count, samples):
    """The places that are sampled of `count` elements, ascending; None: all of them."""
    if count <= samples:
        return None
    return sorted(random.Random(zlib.crc32(name.encode("utf-8"))).sample(range(count), samples))


class Sampler:
    """Takes the samples of one named tensor from whatever has its shape, on any device."""

    __slots__ = ("torch", "name", "count", "places", "index", "listed")

    def __init__(self, torch, name, count, samples):
        self.torch, self.name, self.count = torch, name, count
        self.places = positions(name, count, samples)
        self.index = {}
        self.listed = None

    def take(self, tensor):
        torch = self.torch
        tensor = local(tensor).detach()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        if self.places is None:
            return tensor.reshape(-1).clone()
        index = self.index.get(tensor.device)
        if index is None:
            index = torch.tensor(self.places, dtype=torch.int64, device=tensor.device)
            self.index[tensor.device] = index
        if tensor.is_contiguous():
            return tensor.view(-1).index_select(0, index)
        return torch.take(tensor, index)

    def index_tensor(self):
        """The places, on the CPU: the same tensor each time."""
        if self.listed is None:
            places = range(self.count) if self.places is None else self.places
            self.listed = self.torch.tensor(list(places), dtype=self.torch.int64, device="cpu")
        return self.listed


def norm(torch, tensor):
    """Of the whole tensor, in FP64: a tensor of one element."""
    if tensor.layout != torch.strided:
        sparse = tensor.layout == torch.sparse_coo
        tensor = tensor.coalesce().values() if sparse else tensor.to_dense()
    flat = tensor.detach().reshape(-1)
    if not (flat.is_cpu and flat.numel() > CACHED):
        return torch.linalg.vector_norm(flat, dtype=torch.float64)
    wide, parts = torch.empty(CACHED, dtype=torch.float64, device=flat.device), []
    for at in range(0, flat.numel(), CACHED):
        one = flat[at : at + CACHED]
        parts.append(torch.linalg.vector_norm(wide[: one.numel()].copy_(one)))
    return torch.linalg.vector_norm(torch.stack(parts))


def content(tensor):
    """The bytes of a contiguous CPU tensor, without numpy."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError("a tensor that is not in the host's memory")
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def _groups(named):
    """[(name, flat tensor)] of each type and device, large elements first: all are aligned."""
    groups = {}
    for name, tensor in named.items():
        groups.setdefault((tensor.dtype, tensor.device), []).append((name, tensor.reshape(-1)))
    return sorted(groups.values(), key=lambda members: -members[0][1].element_size())


def write_safetensors(torch, path, named, metadata):
    """Writes tensors, each type with one transfer; the file appears when it is whole."""
    metadata = {key: str(value) for key, value in metadata.items()}
    entries = ['{"__metadata__":' + json.dumps(metadata, separators=(",", ":"))]
    contents, at = [], 0
    for members in _groups(named):
        first = members[0][1]
        size, kind = first.element_size(), TYPES[str(first.dtype).rsplit(".", 1)[-1]]
        for name, flat in members:
            count = flat.numel()
            place = (json.dumps(name), kind, count, at, at + count * size)
            entries.append('%s:{"dtype":"%s","shape":[%d],"data_offsets":[%d,%d]}' % place)
            at += count * size
        contents.append(content(torch.cat([flat for _, flat in members]).cpu()))
    head = (",".join(entries) + "}").encode("ascii")
    head += b" " * (-len(head) % 8)
    temporary = "%s.tmp%d" % (path, os.getpid())
    with open(temporary, "wb") as file:
        file.writelines([struct.pack("<Q", len(head)), head, *contents])
    os.replace(temporary, path)

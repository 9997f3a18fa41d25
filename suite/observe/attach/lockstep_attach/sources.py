"""What a data set is made of, as its own members show it: whether two ranks have the same one, and
whether a rank has a part of it. Nothing of the user's own code is called: lists, arrays and tensors
are read where they lie.
"""

import hashlib
import os
import sys
import weakref

PLACES = 64  # entries of a list that are looked at
NUMBERS = 16  # of an entry
FEW = 8  # entries that differ: fewer name no data set
DEPTH = 4  # data sets within data sets
PART = 256  # indices of a part that are kept


class Sources:
    def __init__(self, torch):
        self.torch = torch
        self.known = {}  # id of a data set: (weak reference, members)

    def members(self, dataset):
        """{"source": hex, "part": {...}}, as the data set was when it was first seen: one that
        keeps what it has loaded changes later.
        """
        ref, found = self.known.get(id(dataset), (None, None))
        if ref is None or ref() is not dataset:
            found = self._look(dataset)
            try:
                self.known[id(dataset)] = (weakref.ref(dataset), found)
            except TypeError:  # a list, which may change
                pass
        return found

    def _look(self, dataset):
        out = {}
        try:
            name = self._name(dataset, 0)
            if name is not None:
                out["source"] = name
            if type(dataset) is self.torch.utils.data.Subset:
                out["part"] = self._part(dataset)
        except Exception:  # a data set of a kind that is not foreseen says nothing
            return {}
        return out

    def _part(self, subset):
        length = len(subset.dataset)
        modulus = max(1, -(-length // PART))
        numbers = (int(index) for index in subset.indices)
        kept = [number for number in numbers if number % modulus == 0]
        return {"length": length, "modulus": modulus, "kept": kept[: 2 * PART]}

    def _name(self, dataset, depth):
        """A hex digest, or None where nothing names its samples."""
        if depth > DEPTH:
            return None
        parts = []
        if type(dataset) in (list, tuple):
            parts.append(self._entries(dataset))
        elif hasattr(dataset, "_fingerprint") and type(dataset._fingerprint) is str:
            parts.append(dataset._fingerprint.encode())
        elif hasattr(dataset, "__dict__"):
            length = len(dataset)
            for key, value in sorted(vars(dataset).items()):
                found = self._member(value, length, depth)
                if found is not None:
                    parts.append(key.encode() + b":" + found)
        if not parts or None in parts:
            return None
        return hashlib.blake2b(b"|".join(parts), digest_size=8).hexdigest()

    def _member(self, value, length, depth):
        kinds = self.torch.utils.data
        if isinstance(value, kinds.Dataset) and not isinstance(value, kinds.IterableDataset):
            name = self._name(value, depth + 1)
            return name.encode() if name is not None else None
        if self._is_list(value) and len(value) >= max(length, FEW):
            return self._entries(value)
        if type(value) in (list, tuple) and 0 < len(value) <= 16:  # of a TensorDataset
            found = [self._member(part, length, depth + 1) for part in value] if depth < 2 else []
            parts = [part for part in found if part is not None]  # classes alone name nothing
            return b",".join(parts) if parts else None
        return None

    def _is_list(self, value):
        if type(value) in (list, tuple, range):
            return True
        numpy = sys.modules.get("numpy")
        array = isinstance(value, self.torch.Tensor) and value.device.type == "cpu"
        array = array or numpy is not None and isinstance(value, numpy.ndarray)
        return array and len(value.shape) > 0

    def _entries(self, values):
        count = len(values)
        places = (
            sorted({place * (count - 1) // (PLACES - 1) for place in range(PLACES)})
            if count
            else []
        )
        found = [_entry(self.torch, values[place], 0) for place in places]
        if None in found or len(set(found)) < min(FEW, count):
            return None
        return b"%d:" % count + b";".join(found)


def _entry(torch, value, depth):
    """Bytes that name an entry; None for one of a kind that is not known. Of a path its last part:
    each rank may have a copy of the files in a folder of its own.
    """
    if type(value) is str:
        return os.path.basename(value).encode("utf-8", "replace") or b"/"
    if value is None or type(value) in (int, float, bool, bytes):
        return repr(value).encode()
    if isinstance(value, torch.Tensor):
        if value.device.type != "cpu" or value.layout != torch.strided or value.is_complex():
            return None
        flat = value.detach().reshape(-1)
        return repr(flat[:: max(1, len(flat) // NUMBERS)][:NUMBERS].tolist()).encode()
    if hasattr(value, "ravel") and hasattr(value, "dtype"):  # of numpy, also a single number
        flat = value.ravel()
        return repr(flat[:: max(1, len(flat) // NUMBERS)][:NUMBERS].tolist()).encode()
    if type(value) is dict:
        value = list(value.items())
    if type(value) in (list, tuple) and depth < 3:
        parts = [_entry(torch, part, depth + 1) for part in value[:NUMBERS]]
        return None if None in parts else b"(" + b",".join(parts) + b")"
    return None

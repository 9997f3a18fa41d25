"""Numbers that name the content of samples, whatever index they have and on whatever rank they are.

Of a sample: its integers in full, and 64 of its floating point numbers. What fills a short row of
integers up to the longest one of its batch changes nothing.
"""

from .digests import GOLDEN, MASK

PLACES = 64  # of the floating point numbers of a sample
COLUMNS = 4096  # of the integers of a sample
KEPT = 2048  # keys of a pass that are written, for the data set's length
BATCHES = 1024  # of a pass that are looked at
BITS = 48  # of a key: exact in JSON


def weight(place):
    """An odd factor for that place, as a signed number: splitmix64. Factors in arithmetic
    progression would give one key to all samples of the same numbers in another order, once
    differences are taken.
    """
    value = (place + 1) * GOLDEN & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    value = (value ^ value >> 31) | 1
    return value - (1 << 64) if value >> 63 else value


def modulus_of(length):
    """Keys that are 0 modulo this power of two are kept."""
    modulus = 1
    while length is not None and length > KEPT * modulus:
        modulus *= 2
    return modulus


class Keys:
    """Of one pass."""

    def __init__(self, torch, length):
        self.torch, self.modulus = torch, modulus_of(length)
        self.unknown = length is None
        self.kept, self.batches = [], 0
        self.weights = {}

    def _weights(self, count):
        if count not in self.weights:
            if len(self.weights) > 256:
                self.weights.clear()
            values = [weight(place) for place in range(count)]
            self.weights[count] = self.torch.tensor(values, dtype=self.torch.int64, device="cpu")
        return self.weights[count]

    def _words(self, tensor):
        """Some of each sample's numbers as integers, [samples, numbers]; None: not looked at."""
        torch = self.torch
        if tensor.is_floating_point():
            if tensor.dim() == 4 and not tensor.is_contiguous():
                tensor = tensor.permute(0, 2, 3, 1)
            if not tensor.is_contiguous():
                return None
            rows = tensor.view(len(tensor), -1)
            step = max(1, rows.shape[1] // PLACES)
            return rows[:, : PLACES * step : step].float().contiguous().view(torch.int32).long()
        rows = tensor.reshape(len(tensor), -1)[:, :COLUMNS].long()
        # a tail of equal numbers has no differences; the longest row's is as if a zero followed
        return torch.cat([rows[:, :1], rows[:, :-1] - rows[:, 1:], rows[:, -1:]], 1)

    def add(self, tensors):
        """A batch: tensors whose first dimension is that of its samples."""
        if self.batches >= BATCHES or len(self.kept) >= 2 * KEPT:
            return
        self.batches += 1
        total, wide = None, False
        for place, tensor in enumerate(tensors[:8]):
            if tensor.device.type != "cpu" or tensor.is_complex() or tensor.numel() == 0:
                return
            words = self._words(tensor.detach())
            if words is None:
                return
            wide = wide or tensor[0].numel() > 1
            part = (words * self._weights(words.shape[1])).sum(1) * weight(place + 1)
            total = part if total is None else total + part
        if total is None or not wide:
            return  # a label alone names no sample
        keys = (total * weight(3) >> 64 - BITS - 8) & (1 << BITS) - 1
        keys = keys[keys % self.modulus == 0] if self.modulus > 1 else keys
        self.kept.extend(keys.tolist())
        while self.unknown and len(self.kept) > KEPT:  # a stream: as many as there is room for
            self.modulus *= 2
            self.kept = [key for key in self.kept if key % self.modulus == 0]

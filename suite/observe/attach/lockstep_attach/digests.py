"""Digests of tensors: 16 hex digits that name their bits (events.md, "Digests")."""

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
STACKED = 1 << 16  # words: smaller tensors of one size are summed in one call


def hexadecimal(value):
    return "%016x" % (value & MASK)


def weight(index):
    """The factor of the tensor at that place, as a signed number."""
    value = (2 * index + 1) * GOLDEN & MASK
    return value - (1 << 64) if value >> 63 else value


def words(torch, tensor):
    """The tensor's elements in order as a flat view or copy of 32-bit words, the last one padded
    with zeros.
    """
    # of one in parts on several ranks: this rank's, since operations on the whole would communicate
    tensor = getattr(tensor, "_local_tensor", tensor).detach()
    if tensor.layout != torch.strided:  # the values that it keeps
        tensor = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    size = tensor.element_size()
    if not tensor.is_contiguous():
        # A sum does not see the order of whole words: what lies densely in another order needs no
        # copy.
        pictures = size >= 4 and tensor.dim() == 4
        if pictures and tensor.is_contiguous(memory_format=torch.channels_last):
            tensor = tensor.permute(0, 2, 3, 1)
        else:
            tensor = tensor.contiguous()
    flat = tensor.reshape(-1)
    if size < 4:
        flat = flat.view(torch.uint8 if size == 1 else torch.int16)
        left = flat.numel() * size % 4
        if left != 0:
            flat = torch.cat([flat, flat.new_zeros((4 - left) // size)])
        elif flat.storage_offset() * size % 4 != 0:
            flat = flat.clone()
    return flat.view(torch.int32)


def sums(torch, tensors):
    """[(places in the list, int64 tensor of their word sums)], one entry or more a device."""
    groups, out = {}, []
    for place, tensor in enumerate(tensors):
        flat = words(torch, tensor)
        if flat.numel() == 0:
            continue
        if flat.numel() > STACKED:
            out.append(([place], flat.sum(dtype=torch.int64).reshape(1)))
        else:
            groups.setdefault((flat.numel(), flat.device), []).append((place, flat))
    for members in groups.values():
        places, flats = zip(*members)
        stacked = torch.stack(flats) if len(flats) > 1 else flats[0].reshape(1, -1)
        out.append((list(places), stacked.sum(1, dtype=torch.int64)))
    return out


class Digests:
    def __init__(self, hub):
        self.hub = hub
        self.weights = {}

    def _weights(self, places, device):
        key = (tuple(places), device)
        if key not in self.weights:
            if len(self.weights) > 4096:
                self.weights.clear()
            values = [weight(place) for place in places]
            torch = self.hub.torch
            self.weights[key] = torch.tensor(values, dtype=torch.int64, device=device)
        return self.weights[key]

    def digest(self, tensors):
        """A Lazy hexadecimal digest of the tensors in order."""
        torch = self.hub.torch
        devices = {}
        for places, summed in sums(torch, tensors):
            entry = devices.setdefault(summed.device, ([], []))
            entry[0].extend(places)
            entry[1].append(summed)
        parts = []
        for device, (places, summed) in devices.items():
            summed = torch.cat(summed) if len(summed) > 1 else summed[0]
            parts.append((summed * self._weights(places, device)).sum())
        if not parts:
            return hexadecimal(0)
        return self.hub.Lazy(parts, lambda *numbers: hexadecimal(sum(numbers)))

    def each(self, tensors):
        """A Lazy digest of each tensor by itself."""
        out = [hexadecimal(0)] * len(tensors)
        first = weight(0)
        for places, summed in sums(self.hub.torch, tensors):
            for place, value in zip(places, summed.unbind()):
                out[place] = self.hub.Lazy(value, lambda number: hexadecimal(number * first))
        return out

"""Digests of tensors: 16 hex digits that name their bits (events.md, "Digests")."""

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1
STACKED = 1 << 15  # words: smaller tensors of one size are summed in one call
PLACES = 1 << 12  # words whose places count, of an input or a sample


def hexadecimal(value):
    return "%016x" % (value & MASK)


def weight(index):
    """The factor of the tensor at that place, as a signed number."""
    return _signed((2 * index + 1) * GOLDEN)


def key_weight(place):
    """An odd factor for that place, as a signed number: splitmix64. Factors in arithmetic
    progression would give one key to all samples of the same numbers in another order, once
    differences are taken.
    """
    value = (place + 1) * GOLDEN & MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return _signed((value ^ value >> 31) | 1)


def _signed(value):
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


def words(torch, tensor):
    """(the tensor's elements in order as a flat view or copy of 64-bit words; what is left of them,
    padded with zeros, as a tensor of one word, or None).
    """
    # of one in parts on several ranks: this rank's, since operations on the whole would communicate
    if hasattr(type(tensor), "to_local"):
        tensor = tensor._local_tensor
    if tensor.layout != torch.strided:  # the values that it keeps
        tensor = tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat, rest = tensor.reshape(-1), None
    size = flat.element_size()
    left = flat.numel() % (8 // size)
    if left != 0:
        last = flat[-left:].view(WORDS[size](torch))
        rest = torch.cat([last, last.new_zeros(8 // size - left)]).view(torch.int64)
        flat = flat[:-left]
    if flat.storage_offset() * size % 8 != 0:
        flat = flat.clone()
    return flat.view(torch.int64), rest


# of elements of 1, 2 and 4 bytes: a type without values that are no numbers
WORDS = {1: lambda t: t.uint8, 2: lambda t: t.int16, 4: lambda t: t.int32}


def total(torch, tensor):
    """The sum of a CPU tensor's words."""
    flat, rest = words(torch, tensor)
    return flat.sum().item() + (rest.item() if rest is not None else 0)


def sums(torch, tensors):
    """[(places in the list, int64 tensor of their word sums)], one entry or more a device."""
    groups, out = {}, []
    for place, tensor in enumerate(tensors):
        flat, rest = words(torch, tensor)
        if rest is not None:
            out.append(([place], rest))
        if flat.numel() > STACKED:
            out.append(([place], flat.sum().reshape(1)))
        elif flat.numel() > 0:
            groups.setdefault((flat.numel(), flat.device), []).append((place, flat))
    for members in groups.values():
        places, flats = zip(*members)
        stacked = torch.stack(flats) if len(flats) > 1 else flats[0].reshape(1, -1)
        out.append((list(places), stacked.sum(1)))
    return out


class Digests:
    def __init__(self, hub):
        self.hub = hub
        self.weights, self.places = {}, {}

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
        """A hexadecimal digest of the tensors in order, Lazy where a device has them."""
        torch = self.hub.torch
        if all(tensor.is_cpu for tensor in tensors):
            found = (total(torch, tensor) for tensor in tensors)
            return hexadecimal(sum((2 * i + 1) * GOLDEN * one for i, one in enumerate(found)))
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

    def placed(self, tensors):
        """A digest of a batch or a sample: also of the places of its first words, as sums of small
        numbers, of ones and zeros, are often equal.
        """
        torch, parts = self.hub.torch, []
        for tensor in tensors:
            flat, rest = words(torch, tensor)
            head = flat[:PLACES]
            parts += [head * self._places(head), flat[PLACES:]]
            parts += [rest] if rest is not None else []
        return self.digest(parts)

    def _places(self, head):
        factors, count = self.places.get(head.device), head.numel()
        if factors is None or factors.numel() < count:
            # inputs of changing lengths: seldom made anew
            made = [key_weight(place) for place in range(1 << count.bit_length())]
            factors = self.hub.torch.tensor(made, dtype=head.dtype, device=head.device)
            self.places[head.device] = factors
        return factors[:count]

    def each(self, tensors):
        """A digest of each tensor by itself, Lazy where a device has it."""
        if all(tensor.is_cpu for tensor in tensors):
            return [self.digest([tensor]) for tensor in tensors]
        found, first = {}, weight(0)
        for places, summed in sums(self.hub.torch, tensors):
            for place, value in zip(places, summed.unbind()):
                found.setdefault(place, []).append(value)

        def value(*numbers):
            return hexadecimal(sum(numbers) * first)

        parts = (found.get(place) for place in range(len(tensors)))
        return [self.hub.Lazy(part, value) if part else hexadecimal(0) for part in parts]

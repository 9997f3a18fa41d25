"""What dropout kept in the job's own forward is kept in the copy's, which would draw otherwise in
another type.
"""

import contextlib
import functools

from .records import Reason


class Dropped:
    """Of one forward: what functional.dropout kept, in order, and how attention drew."""

    def __init__(self):
        self.masks = []
        self.attention = []  # Attention, in order
        self.put_back = None


class Attention:
    """A call of scaled_dot_product_attention that drops: what its draws depend on."""

    def __init__(self, random, dtype, query, key):
        self.random, self.dtype = random, dtype
        self.query, self.key = tuple(query.shape), tuple(key.shape)
        self.device = query.device


def watch(again, dropped, autocast):
    """While the forward runs; its results are the user's as they are. autocast(): its type here, or
    None.
    """
    hub = again.hub
    functional, switch = hub.torch.nn.functional, hub.dropout
    prior, dropout = switch.use, switch.use or switch.original
    attention = getattr(functional, "scaled_dot_product_attention", None)

    @functools.wraps(dropout)
    def noting(*args, **kwargs):
        result = dropout(*args, **kwargs)
        hub.call(lambda: dropped.masks.append((result.detach() != 0, result.dtype)))
        return result

    def note(query, key):
        dtype = autocast() or query.dtype
        dropped.attention.append(Attention(again._random(), dtype, query, key))

    @functools.wraps(attention or dropout)
    def attending(*args, **kwargs):
        if kwargs.get("dropout_p", args[4] if len(args) > 4 else 0):
            query = kwargs.get("query", args[0] if args else None)
            hub.call(note, query, kwargs.get("key", args[1] if len(args) > 1 else None))
        return attention(*args, **kwargs)

    def put_back():
        switch.use = prior
        if attention is not None:
            functional.scaled_dot_product_attention = attention

    switch.use = noting
    if attention is not None:
        functional.scaled_dot_product_attention = attending
    dropped.put_back = put_back
    hub.temporary.append(put_back)


def _kept(again, attention, call, noted):
    """Which elements attention kept: with equal weights everywhere and columns of the identity as
    values it returns them. Shapes, type and device are the job's, so that the same kernel draws.
    """
    torch = again.hub.torch
    columns, width = noted.key[-2], noted.query[-1]
    options = {"dtype": noted.dtype, "device": noted.device}
    query, key = torch.zeros(noted.query, **options), torch.zeros(noted.key, **options)
    kept, now = [], again._random()
    for first in range(0, columns, width):
        count = min(width, columns - first)
        value = torch.zeros(columns, width, **options)
        value[first : first + count, :count] = torch.eye(count, **options)
        again._set_random(noted.random)
        with torch.no_grad():
            out = attention(query, key, value.expand(noted.key), None, call["p"], call["causal"])
        kept.append(out[..., :count] != 0)
    again._set_random(now)
    return torch.cat(kept, -1)


def _attend(again, attention, noted, args, kwargs):
    """The same attention in the copy's type."""
    torch = again.hub.torch
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, args))
    given.update(kwargs)
    query, key, value = given["query"], given["key"], given["value"]
    if (
        given.get("enable_gqa")
        or tuple(query.shape) != noted.query
        or tuple(key.shape) != noted.key
    ):
        raise Reason("attention with dropout was called otherwise in the copy")
    if value.shape[-1] != query.shape[-1] or key.dim() != query.dim():
        raise Reason("attention drops elements of values with another width")
    call = {"p": given["dropout_p"], "causal": bool(given.get("is_causal"))}
    scale = given.get("scale") or query.shape[-1] ** -0.5
    weight = torch.matmul(query, key.transpose(-2, -1)) * scale
    mask = given.get("attn_mask")
    if call["causal"]:
        seen = torch.ones(weight.shape[-2:], dtype=torch.bool, device=weight.device).tril()
        weight = weight.masked_fill(~seen, float("-inf"))
    if mask is not None:
        weight = (
            weight.masked_fill(~mask, float("-inf")) if mask.dtype is torch.bool else weight + mask
        )
    kept = _kept(again, attention, call, noted)
    weight = torch.softmax(weight, -1) * kept.to(weight.dtype) * (1 / (1 - call["p"]))
    return torch.matmul(weight, value)


@contextlib.contextmanager
def drawn_once(again, record):
    """Around the copy's backward: where it computes activations again, the order does not say what
    they dropped. From f32 on a CPU they draw alike in FP64.
    """
    functional, switch = again.hub.torch.nn.functional, again.hub.dropout
    prior, dropout = switch.use, switch.original
    attention = getattr(functional, "scaled_dot_product_attention", None)

    def no_dropout(input, p=0.5, training=True, inplace=False):
        if training and p > 0:
            raise Reason("activations with dropout are computed again in backward")
        return dropout(input, p, training, inplace)

    def no_attention(*args, **kwargs):
        if kwargs.get("dropout_p", args[4] if len(args) > 4 else 0):
            raise Reason("attention that drops is computed again in backward")
        return attention(*args, **kwargs)

    try:
        dropped = record.dropped
        if (dropped.masks or dropped.attention) and not (record.exact and record.on_cpu):
            switch.use = no_dropout
            if attention is not None:
                functional.scaled_dot_product_attention = no_attention
        yield
    finally:
        switch.use = prior
        if attention is not None:
            functional.scaled_dot_product_attention = attention


@contextlib.contextmanager
def repeated(again, dropped):
    """Around the copy's forward."""
    torch = again.hub.torch
    functional = torch.nn.functional
    places, calls = iter(dropped.masks), iter(dropped.attention)
    switch = again.hub.dropout
    prior, dropout = switch.use, switch.original
    attention = getattr(functional, "scaled_dot_product_attention", None)

    def same_dropout(input, p=0.5, training=True, inplace=False):
        mask, drawn_in = next(places, (None, None))
        if mask is None or mask.shape != input.shape:
            raise Reason("dropout was called otherwise in the copy")
        if not training or p == 0:
            return input
        # draws as the job did, for whatever draws next, and for what was 0 before
        drawn = dropout(torch.ones(input.shape, dtype=drawn_in, device=input.device), p, True) != 0
        mask = torch.where(input == 0, drawn, mask)
        return input * mask.to(input.dtype) * (1 / (1 - p) if p < 1 else 0)

    def same_attention(*args, **kwargs):
        if not kwargs.get("dropout_p", args[4] if len(args) > 4 else 0):
            return attention(*args, **kwargs)
        noted = next(calls, None)
        if noted is None:
            raise Reason("attention was called otherwise in the copy")
        return _attend(again, attention, noted, args, kwargs)

    try:
        if dropped.masks:
            switch.use = same_dropout
        if dropped.attention:
            functional.scaled_dot_product_attention = same_attention
        yield
    finally:
        switch.use = prior
        if attention is not None:
            functional.scaled_dot_product_attention = attention

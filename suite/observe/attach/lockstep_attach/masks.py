"""What dropout kept in the job's own forward is kept in the copy's, which would draw otherwise in
another type.
"""

import contextlib
import functools

from .records import Reason
from .wrapping import given

NAME = "scaled_dot_product_attention"  # of torch.nn.functional, since 2.0


class Dropped:
    """Of one forward: what functional.dropout kept, in order, and how attention drew."""

    def __init__(self):
        self.masks = []
        self.attention = []  # Attention, in order
        self.put_back = None
        # of the copy's forward: state of the generators before a call: (mask, type) or Attention
        self.at = {}
        self.places = {}  # of the copy's forward: shape: where the script last called for it


class Attention:
    """A call of scaled_dot_product_attention that drops: what its draws depend on."""

    def __init__(self, random, dtype, query, key):
        self.random, self.dtype = random, dtype
        self.query, self.key = tuple(query.shape), tuple(key.shape)
        self.device = query.device


@contextlib.contextmanager
def _in_place(hub, dropout, attention):
    """Other functions in place of torch's own; None: as it is."""
    functional, switch = hub.torch.nn.functional, hub.dropout
    prior, own = switch.use, getattr(functional, NAME, None)
    try:
        switch.use = prior if dropout is None else dropout
        if own is not None and attention is not None:
            setattr(functional, NAME, attention)
        yield
    finally:
        switch.use = prior
        if own is not None:
            setattr(functional, NAME, own)


def _state(again):
    """Of torch's generators. A backward that computes activations again begins with the forward's,
    and so meets the same states at the same calls.
    """
    cpu, devices = again.random()[:2]
    return tuple(bytes(state.tolist()) for state in (cpu, *devices.values()))


def _masked(input, mask, p):
    """In forward and backward the same operations: both keep the same tensors, in one order."""
    return input * mask.to(input.dtype) * (1 / (1 - p) if p < 1 else 0)


def _drops(args, kwargs):
    """Whether a call of attention does."""
    return bool(given(args, kwargs, "dropout_p", 4, 0))


def watch(again, dropped, autocast):
    """While the forward runs; its results are the user's as they are. autocast(): its type here, or
    None.
    """
    hub = again.hub
    dropout = hub.dropout.use or hub.dropout.original
    attention = getattr(hub.torch.nn.functional, NAME, None)

    @functools.wraps(dropout)
    def noting(*args, **kwargs):
        result = dropout(*args, **kwargs)
        hub.call(lambda: dropped.masks.append((result.detach() != 0, result.dtype)))
        return result

    def note(query, key):
        dtype = autocast() or query.dtype
        dropped.attention.append(Attention(again.random(), dtype, query, key))

    @functools.wraps(attention or dropout)
    def attending(*args, **kwargs):
        if _drops(args, kwargs):
            hub.call(note, given(args, kwargs, "query", 0), given(args, kwargs, "key", 1))
        return attention(*args, **kwargs)

    stack = contextlib.ExitStack()
    stack.enter_context(_in_place(hub, noting, attending))
    dropped.put_back = stack.close
    hub.temporary.append(dropped.put_back)


def _kept(again, attention, drops, noted):
    """Which elements attention kept: with equal weights everywhere and columns of the identity as
    values it returns them. Shapes, type and device are the job's, so that the same kernel draws.
    Its last call leaves the generators as the job's left them.
    """
    torch = again.hub.torch
    columns, width = noted.key[-2], noted.query[-1]
    options = {"dtype": noted.dtype, "device": noted.device}
    query, key = torch.zeros(noted.query, **options), torch.zeros(noted.key, **options)
    kept = []
    for first in range(0, columns, width):
        count = min(width, columns - first)
        value = torch.zeros(columns, width, **options)
        value[first : first + count, :count] = torch.eye(count, **options)
        again.set_random(noted.random)
        with torch.no_grad():
            out = attention(query, key, value.expand(noted.key), None, *drops)
        kept.append(out[..., :count] != 0)
    return torch.cat(kept, -1)


def _attend(again, attention, noted, args, kwargs):
    """The same attention in the copy's type."""
    torch = again.hub.torch
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    call = dict(zip(names, args))
    call.update(kwargs)
    query, key, value = call["query"], call["key"], call["value"]
    same = tuple(query.shape) == noted.query and tuple(key.shape) == noted.key
    if call.get("enable_gqa") or not same:
        raise Reason("attention with dropout was called otherwise in the copy")
    if value.shape[-1] != query.shape[-1] or key.dim() != query.dim():
        raise Reason("attention drops elements of values with another width")
    p, causal = call["dropout_p"], bool(call.get("is_causal"))
    scale = call.get("scale") or query.shape[-1] ** -0.5
    weight = torch.matmul(query, key.transpose(-2, -1)) * scale
    mask = call.get("attn_mask")
    if causal:
        seen = torch.ones(weight.shape[-2:], dtype=torch.bool, device=weight.device).tril()
        weight = weight.masked_fill(~seen, float("-inf"))
    if mask is not None and mask.dtype is torch.bool:
        weight = weight.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        weight = weight + mask
    kept = _kept(again, attention, (p, causal), noted)
    weight = torch.softmax(weight, -1) * kept.to(weight.dtype) * (1 / (1 - p))
    return torch.matmul(weight, value)


@contextlib.contextmanager
def drawn_once(again, record):
    """Around the copy's backward: where it computes activations again, they drop what they dropped
    in its forward. Where it does not begin with the forward's state of the generators, it draws as
    the job's did, which from f32 on a CPU is alike in FP64. Of a model that torch.compile calls the
    copy is not compiled: where the two give other gradients is said by the rule.
    """
    torch = again.hub.torch
    dropout = again.hub.dropout.original
    attention = getattr(torch.nn.functional, NAME, None)
    at, draws_alike = record.dropped.at, record.exact and record.on_cpu

    def tell_of_others(tensor):
        if not record.model.compiled and torch.is_grad_enabled() and tensor.requires_grad:
            place = record.dropped.places.get(tensor.shape) or again.hub.places.here()
            again.hub.steps.detail.again_told.setdefault("again_dropped", place)

    def same_dropout(input, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return input
        mask, drawn_in = at.get(_state(again), (None, torch.float32))
        if mask is None:
            tell_of_others(input)
        if mask is None and not draws_alike or mask is not None and mask.shape != input.shape:
            raise Reason("activations with dropout are computed again in backward")
        ones = torch.ones(input.shape, dtype=drawn_in, device=input.device)
        drawn = dropout(ones, p, True) != 0
        return _masked(input, drawn if mask is None else mask, p)

    def redrawn(input, p=0.5, training=True, inplace=False):
        if training and p > 0:
            again.hub.steps.detail.again_told["again_redrawn"] = "dropout"
        return dropout(input, p, training, inplace)

    def same_attention(*args, **kwargs):
        if not _drops(args, kwargs):
            return attention(*args, **kwargs)
        noted = at.get(_state(again))
        query, key = given(args, kwargs, "query", 0), given(args, kwargs, "key", 1)
        if noted is None:
            tell_of_others(query)
        if noted is None and not draws_alike:
            raise Reason("attention that drops is computed again in backward")
        if noted is None:
            noted = Attention(again.random(), torch.float32, query, key)
        return _attend(again, attention, noted, args, kwargs)

    dropped, others = record.dropped, redrawn if record.model.compiled else None
    kept = same_dropout if dropped.masks else others
    with _in_place(again.hub, kept, same_attention if dropped.attention else None):
        yield


@contextlib.contextmanager
def repeated(again, dropped):
    """Around the copy's forward."""
    torch = again.hub.torch
    places, calls = iter(dropped.masks), iter(dropped.attention)
    dropout = again.hub.dropout.original
    attention = getattr(torch.nn.functional, NAME, None)

    def same_dropout(input, p=0.5, training=True, inplace=False):
        mask, drawn_in = next(places, (None, None))
        if mask is None or mask.shape != input.shape:
            raise Reason("dropout was called otherwise in the copy")
        if not training or p == 0:
            return input
        # draws as the job did, for whatever draws next, and for what was 0 before
        state = _state(again)
        drawn = dropout(torch.ones(input.shape, dtype=drawn_in, device=input.device), p, True) != 0
        mask = torch.where(input == 0, drawn, mask)
        dropped.at[state] = mask, drawn_in
        dropped.places[input.shape] = again.hub.places.here()
        return _masked(input, mask, p)

    def same_attention(*args, **kwargs):
        if not _drops(args, kwargs):
            return attention(*args, **kwargs)
        noted = next(calls, None)
        if noted is None:
            raise Reason("attention was called otherwise in the copy")
        dropped.at[_state(again)] = noted
        dropped.places[torch.Size(noted.query)] = again.hub.places.here()
        return _attend(again, attention, noted, args, kwargs)

    kept = same_dropout if dropped.masks else None
    with _in_place(again.hub, kept, same_attention if dropped.attention else None):
        yield

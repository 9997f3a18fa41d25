"""What losses are given: targets that are the model's own input or two tokens ahead of it, labels
of padding, and scores or probabilities where kl_div takes logarithms.
"""

import re
import weakref

LEAST = 16  # tokens, labels or elements that must agree
RESTORES = re.compile(r"auto_?enc|vae|recon|denois|copy", re.IGNORECASE)


class Targets:
    def __init__(self, hub):
        self.hub = hub
        self.tokens = None  # of the last forward: weak reference of whole numbers [batch, length]
        self.classifies = False  # a loss of one class for each sample was seen
        # (kind, place) of a loss since then, unless another one is of the next token
        self.ahead = None
        self.padding = None  # (labels of padding, how many) of that forward

    def install(self):
        functional = self.hub.torch.nn.functional
        self.hub.wrap(functional, "cross_entropy", self._enter_cross_entropy, None)
        self.hub.wrap(functional, "kl_div", self._enter_kl_div, None)

    # ---- tokens and labels -----------------------------------------------------------------------

    def forward(self, args, kwargs, training):
        """At a model's forward in a detailed step."""
        if self.ahead:
            self.hub.misuse.put(*self.ahead)
        self.ahead = self.padding = None
        tokens = kwargs.get("input_ids", args[0] if args else None)
        self.tokens = weakref.ref(tokens) if self._is_tokens(tokens) else None
        mask, labels = kwargs.get("attention_mask"), kwargs.get("labels")
        if (
            training
            and self.tokens is not None
            and self._is_tokens(labels)
            and isinstance(mask, self.hub.torch.Tensor)
        ):
            self._look_at_padding(mask, labels, tokens)

    def _is_tokens(self, value):
        torch = self.hub.torch
        plain = (
            isinstance(value, torch.Tensor)
            and value.dtype in (torch.int64, torch.int32)
            and value.dim() == 2
        )
        return plain and value.shape[1] >= 4 and value.numel() >= LEAST

    def _look_at_padding(self, mask, labels, tokens):
        """Labels that are a copy of the input, padding included."""
        if mask.shape != labels.shape or tokens.shape != labels.shape:
            return
        padded = labels[mask == 0]
        if padded.numel() >= LEAST and bool((labels == tokens).all()):
            # shifted by one: what is left out before the loss is no padding
            least = labels.numel() - labels.shape[0]
            self.padding = padded.unique()[:LEAST].tolist(), int(padded.numel()), least

    def _enter_cross_entropy(self, args, kwargs):
        hub = self.hub
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if not hub.steps.now.detail or not hub.own.grad or not isinstance(target, hub.torch.Tensor):
            return
        if target.is_floating_point():
            return
        self.classifies = self.classifies or target.dim() == 1
        if target.numel() < LEAST:
            return
        ignored = kwargs.get("ignore_index", args[4] if len(args) > 4 else -100)
        whole = kwargs.get("reduction", args[6] if len(args) > 6 else "mean") != "none"
        if (
            self.padding is not None
            and whole
            and ignored not in self.padding[0]
            and target.numel() >= self.padding[2]
        ):
            hub.misuse.put("labels_of_padding", hub.places.here(), count=self.padding[1])
        tokens = self.tokens() if self.tokens is not None else None
        ahead = self._shifts(tokens, target) if tokens is not None else set()
        if ahead & {1, 3}:
            self.ahead = False  # several losses, of tokens beyond the next
        elif ahead and self.ahead is None and not self._restores():
            self.ahead = ("target_%d_ahead" % min(ahead), hub.places.here())

    def _restores(self):
        """Whether a model's name says that it is to give back what it gets."""
        names = [type(root).__name__ for root in self.hub.models.roots()]
        return any(RESTORES.search(name) for name in names)

    def _shifts(self, tokens, target):
        """Those of 0 to 3 by which the target is ahead of the tokens, at every place that
        counts.
        """
        torch, (batch, length) = self.hub.torch, tokens.shape
        out, width = set(), target.numel() // batch
        if width * batch != target.numel() or not length - 3 <= width <= length:
            return out
        target, tokens = target.detach().reshape(batch, width), tokens.detach()
        for shift in range(4):
            count = min(width, length - shift)
            a, b = target[:, :count], tokens[:, shift : shift + count]
            counts = a >= 0
            if (
                int(counts.sum()) >= LEAST
                and bool((a == b)[counts].all())
                and len(torch.unique(a[counts])) >= 4
            ):
                out.add(shift)
        return out

    def _enter_kl_div(self, args, kwargs):
        """The first argument holds logarithms, the second probabilities (logarithms with
        log_target).
        """
        hub, torch = self.hub, self.hub.torch
        given = kwargs.get("input", args[0] if args else None)
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        tensors = isinstance(given, torch.Tensor) and isinstance(target, torch.Tensor)
        if not hub.steps.now.detail or not tensors or given.dim() < 2 or given.numel() < LEAST:
            return
        at = hub.places.here()
        if self._are_probabilities(given):
            self.hub.misuse.put("kl_of_probabilities", at)
        elif not self._are_probabilities(given.exp()) and bool((given > 0).any()):
            self.hub.misuse.put("kl_of_scores", at)
        elif not kwargs.get("log_target", args[5] if len(args) > 5 else False) and bool(
            (target < 0).any()
        ):
            self.hub.misuse.put("kl_to_logarithms", at)

    def _are_probabilities(self, tensor):
        rows = tensor.detach().double()
        return bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 0.02).all())

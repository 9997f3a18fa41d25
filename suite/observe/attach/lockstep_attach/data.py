"""Passes over DataLoaders: which indices were drawn, in which order, how long the job waited."""

import array
import collections
import hashlib
import time
import weakref

from .keys import Keys
from .sources import Sources
from .workers import Workers

AHEAD = 4  # batches that a trainer may ask for before it uses the first
CONTENTS = 64  # samples of a pass whose content is looked at
KEPT = 65536  # indices of a pass that are written, for the dataset's length


class Pass:
    def __init__(self, iterator, gone):
        self.ref = weakref.ref(iterator, gone)
        self.loader = None  # known when DataLoader.__iter__ has returned
        self.number = 0
        self.at = ""
        self.facts = {}
        self.order = hashlib.blake2b(digest_size=8)
        self.count = 0
        self.modulus = 1
        self.kept = []
        self.indexed = True
        self.whole = False
        self.given = 0  # batches that the user's loop got
        self.length = None  # of the pass in batches
        self.trained = None  # whether a backward pass had run when the last batch was given
        self.keys = None
        self.passes = self.first = None
        self.drawn = collections.deque()  # indices of batches that have not come yet
        self.content = []
        self.apart = True  # batches can be taken apart


class Built:
    """Where objects of the script's were built."""

    def __init__(self):
        self.by_id = {}

    def put(self, thing, at):
        key = id(thing)
        self.by_id[key] = (weakref.ref(thing, lambda ref: self._gone(key, ref)), at)

    def _gone(self, key, ref):
        if self.by_id.get(key, (None,))[0] is ref:
            del self.by_id[key]

    def at(self, thing):
        ref, at = self.by_id.get(id(thing), (None, ""))
        return at if ref is not None and ref() is thing else ""


class Data:
    def __init__(self, hub):
        self.hub = hub
        self.built = Built()
        self.open = {}  # id of an iterator: its pass
        self.loaders = {}  # id of a loader: [weak reference, index, passes]
        self.count = 0
        self.sources = Sources(hub.torch)
        self.workers = Workers(hub)

    def install(self):
        loader = self.hub.torch.utils.data.dataloader
        wrap, base = self.hub.wrap, loader._BaseDataLoaderIter
        data = self.hub.torch.utils.data
        samplers = (data.WeightedRandomSampler, data.distributed.DistributedSampler)
        for kind in (loader.DataLoader, data.Subset, *samplers):
            wrap(kind, "__init__", None, self._built)
        self.workers.install()
        wrap(loader.DataLoader, "__iter__", self._enter_iter, self._leave_iter)
        wrap(base, "_reset", self._enter_reset, None)
        wrap(base, "_next_index", None, self._drawn)
        wrap(base, "__next__", self._enter_next, self._leave_next)

    def _built(self, note, args, kwargs, result, error):
        if error is None and type(args[0]) is self.hub.torch.utils.data.Subset:
            self.hub.misuse.transforms.parted(args[0])
        if error is None:
            self.built.put(args[0], self.hub.places.here(built=args[0]))

    # ---- a pass begins ---------------------------------------------------------------------------

    def _of(self, iterator):
        entry = self.open.get(id(iterator))
        if entry is None or entry.ref() is not iterator:
            if entry is not None:
                self._close(entry)
            entry = self.open[id(iterator)] = Pass(iterator, self._gone)
            dataset = getattr(iterator, "_dataset", None)
            entry.modulus, entry.facts = _modulus(dataset)
            entry.indexed = getattr(iterator, "_dataset_kind", 0) == 0
        return entry

    def _gone(self, ref):
        """A loop was left early."""
        if self.hub.own.depth == 0:
            self.hub.call(self.hub.steps.turn)

    def _enter_reset(self, args, kwargs):
        """Also called by the constructor of an iterator with workers, which then draws indices."""
        entry = self.open.pop(id(args[0]), None)
        if entry is not None:
            self._close(entry)

    def _enter_iter(self, args, kwargs):
        """The next pass of a loader ends the one before, which may have been left early."""
        loader = args[0]
        for key, entry in list(self.open.items()):
            if entry.loader is not None and entry.loader() is loader or entry.ref() is None:
                del self.open[key]
                self._close(entry)
        return time.perf_counter_ns()

    def _leave_iter(self, note, args, kwargs, result, error):
        if note is not None:
            self.hub.steps.spend("data", note)
        if error is not None or not hasattr(result, "_sampler_iter"):
            return
        loader, entry = args[0], self._of(result)
        known = self.loaders.get(id(loader))
        if known is None or known[0]() is not loader:
            known = self.loaders[id(loader)] = [weakref.ref(loader), self.count, 0]
            self.count += 1
        entry.loader, entry.number = weakref.ref(loader), known[2]
        known[2] += 1
        entry.at = self.hub.places.here()
        entry.passes, entry.first = self.hub.autograd.passes, self.hub.steps.now.number
        entry.facts.update(loader=known[1], **{"pass": entry.number, "at": entry.at})
        entry.facts.update(self._facts(loader, result))
        self.hub.misuse.transforms.loader(loader, known[1], entry.number)
        entry.length = _length(result)
        entry.keys = Keys(self.hub.torch, entry.facts.get("length"))

    def _facts(self, loader, iterator):
        batches = loader.batch_sampler
        sampler = getattr(batches, "sampler", None) if batches is not None else loader.sampler
        sampler = sampler if sampler is not None else batches
        kinds = self.hub.torch.utils.data.sampler
        shuffle = getattr(sampler, "shuffle", None)
        if shuffle is None:
            shuffle = {kinds.RandomSampler: True, kinds.SequentialSampler: False}.get(type(sampler))
        out = {"sampler": type(sampler).__name__, "shuffle": shuffle}
        for member, name in (
            ("replicas", "num_replicas"),
            ("sampler_rank", "rank"),
            ("sampler_epoch", "epoch"),
        ):
            value = getattr(sampler, name, None)
            if isinstance(value, int):
                out[member] = value
        drop = getattr(sampler, "drop_last", None)
        out["drop_last"] = bool(drop if drop is not None else loader.drop_last)
        out["batch"] = loader.batch_size or getattr(batches, "batch_size", None)
        out["workers"] = loader.num_workers
        out["base_seed"] = getattr(iterator, "_base_seed", None)
        dataset = getattr(loader, "dataset", None)
        for member, thing in (("built", loader), ("sampler_at", sampler), ("cut_at", dataset)):
            at = self.built.at(thing)
            if at:
                out[member] = at
        inner = _innermost(loader)
        if inner is not sampler:
            out["inner"] = type(inner).__name__
        if getattr(iterator, "_dataset_kind", 0) == 0:
            out.update(self.sources.members(loader.dataset))
        return out

    # ---- indices and time ------------------------------------------------------------------------

    def _drawn(self, note, args, kwargs, result, error):
        entry = self._of(args[0])
        if error is not None or not entry.indexed:
            return
        drawn = result if isinstance(result, (list, tuple)) else [result]
        try:
            numbers = array.array("q", [int(index) for index in drawn])
        except (TypeError, ValueError, OverflowError):
            entry.indexed = False  # a sampler of names or pairs
            return
        entry.count += len(numbers)
        entry.order.update(numbers.tobytes())
        if entry.apart:
            entry.drawn.append(numbers)
        modulus = entry.modulus
        if len(entry.kept) < 2 * KEPT:  # a sampler without end
            entry.kept.extend(number for number in numbers if number % modulus == 0)

    def _content(self, iterator, batch):
        """Digests of some samples as the loop gets them: whether ranks have the same data."""
        entry = self.open.get(id(iterator))
        if entry is None:
            return
        entry.given += 1
        if entry.given == entry.length and entry.given > AHEAD:
            entry.trained = self.hub.autograd.passes > entry.passes
        if entry.keys is not None and getattr(iterator, "_auto_collation", True):
            entry.keys.add(self._batch(batch))
        if not entry.drawn:
            return
        if getattr(iterator, "_in_order", True) is False:
            entry.apart, entry.content = False, []
            entry.drawn.clear()
            return
        numbers = entry.drawn.popleft()
        length = entry.facts.get("length") or len(numbers)
        places = [
            place for place, number in enumerate(numbers) if number % -(-length // CONTENTS) == 0
        ]
        if not places or len(entry.content) >= CONTENTS:
            return
        single = not getattr(iterator, "_auto_collation", True)
        tensors = self._tensors(batch, None if single else len(numbers), [])
        if not tensors:
            entry.apart, entry.content = False, []
            entry.drawn.clear()
            return
        labels = None if single else _labels(tensors)
        for place in places[: CONTENTS - len(entry.content)]:
            parts = tensors if single else [tensor[place] for tensor in tensors]
            found = [numbers[place], self.hub.digests.digest(parts)]
            if labels is not None:
                found.append(int(labels[place]))
            entry.content.append(found)

    def _batch(self, batch):
        """The tensors of a batch that have its samples in their first dimension: those of the first
        one.
        """
        found = self._tensors(batch, None, []) or []
        count = len(found[0]) if found and found[0].dim() else 0
        return [tensor for tensor in found if tensor.dim() and len(tensor) == count]

    def _tensors(self, tree, count, out, depth=0):
        """The tensors of a batch, each with `count` samples; None if it cannot be taken apart."""
        if isinstance(tree, self.hub.torch.Tensor):
            if (
                tree.layout != self.hub.torch.strided
                or count is not None
                and (not tree.dim() or len(tree) != count)
            ):
                return None
            out.append(tree)
            return out
        if isinstance(tree, dict):
            tree = list(tree.values())
        if not isinstance(tree, (list, tuple)) or depth > 4:
            return out  # texts and numbers are left out
        for value in tree:
            if self._tensors(value, count, out, depth + 1) is None:
                return None
        return out

    def _enter_next(self, args, kwargs):
        return time.perf_counter_ns()

    def _leave_next(self, note, args, kwargs, result, error):
        if note is not None:
            self.hub.steps.spend("data", note)
        if error is None:
            self._content(args[0], result)
        if isinstance(error, StopIteration):
            self.hub.steps.turn()
            entry = self.open.pop(id(args[0]), None)
            if entry is not None:
                entry.whole = True
                self._close(entry)

    # ---- a pass ends -----------------------------------------------------------------------------

    def _close(self, entry):
        if entry.loader is None:  # never came to the user
            return
        event = {"event": "data"}
        event.update(entry.facts)
        event["count"], event["given"] = entry.count, entry.given
        # a trainer that counts its batches leaves the loop at the last one, and asks for no more
        event["whole"] = entry.whole or entry.given == entry.length
        if entry.indexed:
            event["order"] = entry.order.hexdigest()
            event["modulus"] = entry.modulus
            event["kept"] = entry.kept
            if entry.apart and entry.content:
                event["content"] = entry.content
        else:
            event["indices"] = False
        if entry.facts.get("workers"):
            drawn = self.workers.of(entry.facts.get("base_seed"))
            if drawn:
                event["random"] = drawn
        if entry.keys is not None and entry.keys.kept:
            event["keys"], event["key_modulus"] = entry.keys.kept, entry.keys.modulus
        if entry.whole or entry.trained is None:
            event["trained"] = self.hub.autograd.passes > entry.passes
        else:
            event["trained"] = entry.trained  # others may have been trained since
        if self.hub.misuse.targets.classifies:
            event["classified"] = True
        event["steps"] = [entry.first, self.hub.steps.now.number]
        self.hub.writer.put(event)

    def finish(self):
        for entry in self.open.values():
            self._close(entry)
        self.open = {}
        self.workers.finish()


def _labels(tensors):
    """The one whole number that each sample has, next to floating point ones: its class."""
    whole = [t for t in tensors if not t.is_floating_point() and not t.is_complex()]
    if len(whole) != 1 or len(whole) == len(tensors):
        return None
    labels = whole[0]
    return labels if labels.dim() == 1 and labels.device.type == "cpu" else None


def _innermost(loader):
    """The sampler that draws the indices, below whatever divides or groups them."""
    found = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    for _ in range(4):
        inner = getattr(found, "batch_sampler", None) or getattr(found, "sampler", None)
        if inner is None:
            break
        found = inner
    return found


def _length(iterator):
    """Batches of a pass; None where that is not known."""
    try:
        return len(iterator)
    except Exception:  # the user's own sampler, or none
        return None


def _modulus(dataset):
    """(modulus, {"length"}) of a dataset; 1 where it has no length."""
    try:
        length = len(dataset)
    except Exception:  # the user's own __len__, or none
        return 1, {"length": None}
    modulus = 1
    while -(-length // modulus) > KEPT:
        modulus *= 2
    return modulus, {"length": length}

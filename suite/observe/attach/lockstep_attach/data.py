"""Passes over DataLoaders: which indices were drawn, in which order, how long the job waited."""

import array
import collections
import contextlib
import functools
import hashlib
import numbers
import os
import sys
import time
import types
import weakref

from . import collate
from .digests import key_weight
from .rows import Rows
from .workers import Workers
from .wrapping import ByObject

AHEAD = 4  # batches that a trainer may ask for before it uses the first
CONTENTS = 64  # samples of a pass whose content is looked at
RAISED = 120  # characters of an exception
MASKS = 3, 2, 1 << 18  # batches of passes that are looked at for masks, up to so many elements
GIVEN = 512  # indices that a sampler below another one gives, that are written
KEPT = 65536  # indices of a pass that are written, for the dataset's length


def _whole(value):
    """A whole number; None where a sampler keeps something else under the name."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return int(value) if whole else None


class Pass:
    def __init__(self, iterator, gone):
        self.ref = weakref.ref(iterator, gone)
        self.loader = None  # known when DataLoader.__iter__ has returned
        self.inner = None  # the sampler below the one that divides its indices
        self.number = 0
        self.at = ""
        self.facts = {}
        self.order = hashlib.blake2b(digest_size=8)
        self.count = 0
        self.modulus = 1
        self.kept = []
        self.indexed = True
        self.whole = False
        self.raised = None, ""
        self.given = 0  # batches that the user's loop got
        self.length = None  # of the pass in batches
        self.trained = None  # whether a backward pass had run when the last batch was given
        self.keys = None
        self.collated = []  # what collate.py found in this process
        self.random = []  # what the data set drew from in this process
        self.passes = self.first = None
        self.seen = 0  # backward passes when the last batch was given
        self.used = []  # the first and the last batch behind which one ran
        self.evaluates = False  # the last batch was given without autograd, or in eval mode
        self.left = set()  # what came behind it before any backward pass
        self.end = None  # the step that was open then
        self.drawn = collections.deque()  # indices of batches that have not come yet
        self.content = []
        self.masks = []
        self.apart = True  # batches can be taken apart

    def stay_whole(self):
        """They cannot."""
        self.apart, self.content = False, []
        self.drawn.clear()

    def leaves(self, passes, what, step):
        """Behind a batch to evaluate on came a forward without autograd in eval mode, or a batch of
        another loader: backward passes from here on may be of others' batches.
        """
        if self.evaluates and self.seen == passes:
            self.left.add(what)
            self.end = step

    def ran(self, passes, last=False):
        """Backward passes so far, before the next batch is given, or after the last one."""
        if passes > self.seen and self.given > 0 and not self._is_left(last):
            self.used = [self.used[0] if self.used else self.given - 1, self.given - 1]
        self.seen = passes

    def _is_left(self, last):
        """An iterator may stay open behind its last batch. One whose batches are both trained and
        evaluated on (a policy's) has backward passes behind each of them.
        """
        alone = last and not self.used and (self.given > 1 or "batch" in self.left)
        return len(self.left) == 2 or alone and bool(self.left)


class Inner:
    """What a sampler below another one gives in a pass."""

    def __init__(self):
        self.count, self.kept = 0, []

    def counted(self, iterator):
        for index in iterator:
            self.count += 1
            if len(self.kept) < GIVEN:
                self.kept.append(index)
            yield index

    def members(self):
        kept = [_whole(index) for index in self.kept]
        return {} if None in kept else {"inner_count": self.count, "inner_kept": kept}


class Data:
    def __init__(self, hub):
        self.hub = hub
        self.built = ByObject()  # where objects of the script's were built
        self.inner = ByObject()  # samplers below others: what they give in their newest pass
        self.watched = set()  # classes of those
        self.epochs = ByObject()  # where set_epoch was last called
        self.open = {}  # id of an iterator: its pass
        self.loaders = ByObject()  # their numbers
        self.passes = {}  # number of a loader: passes that have begun
        self.sources = Sources(hub.torch)
        self.workers = Workers(hub)
        self.rows = Rows(hub, Keys(hub.torch, 0))
        self.evaluates = False  # the last batch of any loader, as Pass has it

    def install(self):
        loader = self.hub.torch.utils.data.dataloader
        wrap, base = self.hub.wrap, loader._BaseDataLoaderIter
        data = self.hub.torch.utils.data
        samplers = (data.WeightedRandomSampler, data.distributed.DistributedSampler)
        for kind in (loader.DataLoader, data.Subset, *samplers):
            wrap(kind, "__init__", None, self._built)
        wrap(samplers[1], "set_epoch", None, self._epoch_set)
        self.workers.install()
        wrap(loader.DataLoader, "__iter__", self._enter_iter, self._leave_iter)
        wrap(base, "_reset", self._enter_reset)
        wrap(base, "_next_index", None, self._drawn)
        wrap(base, "__next__", self._enter_next, self._leave_next, count=self._begin_next)

    def _built(self, note, args, kwargs, result, error):
        if error is None and type(args[0]) is self.hub.torch.utils.data.Subset:
            self.hub.misuse.transforms.parted(args[0])
        if error is None:
            self.built.put(args[0], self.hub.places.here(built=args[0]))
        if error is None and isinstance(args[0], self.hub.torch.utils.data.DataLoader):
            inner = self._below(args[0])
            if inner is not None:
                self._watch(type(inner))

    def _below(self, loader):
        """The sampler below one that is none of torch's, which may take a part of its indices."""
        batches, inner = loader.batch_sampler, _innermost(loader)
        plain = type(batches) is self.hub.torch.utils.data.BatchSampler
        above = batches.sampler if plain else loader.sampler if batches is None else batches
        return None if above is inner else inner

    def _watch(self, kind):
        """Counts what samplers of a class give from now on: another sampler takes a part of it."""
        original = getattr(kind, "__iter__", None)
        known = kind in self.watched or not hasattr(kind, "__weakref__")
        if known or not isinstance(original, types.FunctionType):
            return
        self.watched.add(kind)

        @functools.wraps(original)
        def __iter__(sampler):
            iterator = original(sampler)
            if self.hub.idle():
                return iterator
            return self.inner.put(sampler, Inner()).counted(iterator)

        kind.__iter__ = __iter__

    def _epoch_set(self, note, args, kwargs, result, error):
        self.epochs.put(args[0], self.hub.places.here())

    # ---- a pass begins ---------------------------------------------------------------------------

    def _of(self, iterator):
        entry = self.open.get(id(iterator))
        if entry is None or entry.ref() is not iterator:
            if entry is not None:
                self._close(entry)
            entry = self.open[id(iterator)] = Pass(iterator, self._gone)
            entry.facts = {"length": _length(getattr(iterator, "_dataset", None))}
            entry.modulus = _modulus(entry.facts["length"])
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

    def _begin_next(self, args, kwargs):
        """Where there is nothing to be done but to take the time."""
        return None if self.hub.shadows.after else time.perf_counter_ns()

    def _enter_next(self, args, kwargs):
        self.hub.shadows.leave()
        return time.perf_counter_ns()

    def _enter_iter(self, args, kwargs):
        """The next pass of a loader ends the one before, which may have been left early."""
        self.hub.shadows.leave()
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
        number = self.loaders.number(loader)
        entry.loader, entry.number = weakref.ref(loader), self.passes.get(number, 0)
        inner = self._below(loader)
        entry.inner = weakref.ref(inner) if type(inner) in self.watched else None
        self.passes[number] = entry.number + 1
        entry.at = self.hub.places.here()
        entry.passes, entry.first = self.hub.autograd.passes, self.hub.steps.now.number
        entry.seen = entry.passes
        entry.facts.update(loader=number, **{"pass": entry.number, "at": entry.at})
        entry.facts.update(self._facts(loader, result))
        self.hub.misuse.transforms.loader(loader, number, entry.number)
        entry.length = _length(result)
        # the same loader gives the same samples again: of its later passes some are looked at
        if entry.number < WHOLE or entry.number & (entry.number - 1) == 0:
            if getattr(result, "_auto_collation", True):
                entry.keys = Keys(self.hub.torch, entry.facts.get("length"))
        self.workers.seen.add(collate.code_of(loader.collate_fn))
        fetcher = getattr(result, "_dataset_fetcher", None)  # of this process
        again = getattr(fetcher, "again", None)
        entry.collated = again.found if again is not None else []
        entry.random = getattr(fetcher, "drew", [])

    def _sampler(self, loader):
        batches = loader.batch_sampler
        sampler = getattr(batches, "sampler", None) if batches is not None else loader.sampler
        return sampler if sampler is not None else batches

    def _facts(self, loader, iterator):
        batches, sampler = loader.batch_sampler, self._sampler(loader)
        kinds = self.hub.torch.utils.data.sampler
        shuffle = getattr(sampler, "shuffle", None)
        if shuffle is None:
            shuffle = {kinds.RandomSampler: True, kinds.SequentialSampler: False}.get(type(sampler))
        shuffle = bool(shuffle) if isinstance(shuffle, int) else None
        out = {"sampler": type(sampler).__name__, "shuffle": shuffle}
        names = {"replicas": "num_replicas", "sampler_rank": "rank", "sampler_epoch": "epoch"}
        for member, name in names.items():
            value = _whole(getattr(sampler, name, None))
            if value is not None:
                out[member] = value
        drop = getattr(sampler, "drop_last", None)
        out["drop_last"] = bool(drop if drop is not None else loader.drop_last)
        out["batch"] = _whole(loader.batch_size or getattr(batches, "batch_size", None))
        out["workers"] = loader.num_workers
        out["base_seed"] = getattr(iterator, "_base_seed", None)
        if collate.is_own(self.hub.torch, loader.collate_fn):
            out["collate_at"] = collate.place_of(self.hub, loader.collate_fn)
        dataset = getattr(loader, "dataset", None)
        for member, thing in (("built", loader), ("sampler_at", sampler), ("cut_at", dataset)):
            at = self.built.get(thing)
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
        loader = entry.loader() if entry.count == 0 and entry.loader is not None else None
        if loader is not None and "sampler_epoch" in entry.facts:
            # set_epoch() may come after iter(): its sampler reads the epoch when it first draws
            sampler = self._sampler(loader)
            entry.facts["sampler_epoch"] = _whole(sampler.epoch)
            if self.epochs.get(sampler):
                entry.facts["epoch_at"] = self.epochs.get(sampler)
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
            kept = numbers if modulus == 1 else [one for one in numbers if one % modulus == 0]
            entry.kept.extend(kept)

    def _content(self, iterator, batch):
        """Digests of some samples as the loop gets them: whether ranks have the same data."""
        entry = self.open.get(id(iterator))
        if entry is None:
            return
        entry.ran(self.hub.autograd.passes)
        self.leave("batch")
        entry.left, entry.end = set(), None
        self.evaluates = not self.hub.own.grad or self.hub.models.in_eval()
        entry.evaluates = self.evaluates
        entry.given += 1
        if entry.given == entry.length and entry.given > AHEAD:
            entry.trained = self.hub.autograd.passes > entry.passes
        if entry.keys is not None and getattr(iterator, "_auto_collation", True):
            samples = self._batch(batch)
            entry.keys.add(samples)
            ordered = getattr(iterator, "_in_order", True) is not False
            drawn = len(entry.drawn[0]) if entry.drawn and ordered else None
            self.rows.batch(entry, drawn, samples)
            if entry.given <= MASKS[0] and entry.number < MASKS[1]:
                entry.masks += self._masks(entry.given, samples)
        if not entry.drawn:
            return
        if getattr(iterator, "_in_order", True) is False:
            entry.stay_whole()
            return
        numbers = entry.drawn.popleft()
        if len(entry.content) >= CONTENTS:
            return
        apart = -(-(entry.facts.get("length") or len(numbers)) // CONTENTS)
        places = [place for place, number in enumerate(numbers) if number % apart == 0]
        if not places:
            return
        single = not getattr(iterator, "_auto_collation", True)
        tensors = self._tensors(batch, None if single else len(numbers), [])
        if not tensors:
            entry.stay_whole()
            return
        labels = None if single else _labels(tensors)
        for place in places[: CONTENTS - len(entry.content)]:
            parts = tensors if single else [tensor[place] for tensor in tensors]
            found = [numbers[place], self.hub.digests.placed(parts)]
            if labels is not None:
                found.append(int(labels[place]))
            entry.content.append(found)

    def _masks(self, number, samples):
        """Of fields that hold truth values, or whole numbers below 0: which places of each row."""
        out, torch = [], self.hub.torch
        for place, tensor in enumerate(samples):
            small = tensor.dim() > 1 and 0 < tensor.numel() <= MASKS[2]
            whole = tensor.dtype in (torch.bool, torch.int8, torch.int16, torch.int32, torch.int64)
            if small and whole and tensor.device.type == "cpu":
                mask = tensor if tensor.dtype is torch.bool else tensor < 0
                rows = torch.unique(mask.flatten(1), dim=0)
                if len(rows) > 1:
                    digest = self.hub.digests.digest([mask.to(torch.uint8)])
                    out.append([number, place, len(rows), digest])
        return out

    def leave(self, what):
        passes, step = self.hub.autograd.passes, self.hub.steps.now.number
        for entry in self.open.values():
            entry.leaves(passes, what, step)

    def _batch(self, batch):
        """The tensors of a batch whose first dimension is that of the first one: its samples."""
        found = self._tensors(batch, None, []) or []
        count = len(found[0]) if found and found[0].dim() else 0
        return [tensor for tensor in found if tensor.dim() and len(tensor) == count]

    def tensors(self, batch):
        return self._tensors(batch, None, [])

    def _tensors(self, tree, count, out, depth=0):
        """The tensors of a batch, each with `count` samples; None if it cannot be taken apart."""
        if isinstance(tree, self.hub.torch.Tensor):
            apart = count is None or tree.dim() and len(tree) == count
            if tree.layout != self.hub.torch.strided or not apart:
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

    def _leave_next(self, note, args, kwargs, result, error):
        if note is not None:
            self.hub.steps.spend("data", note)
        if error is None:
            self._content(args[0], result)
            self.hub.misuse.batch(result)
            self.hub.draws.batch(self.open.get(id(args[0])))
        if error is not None and not isinstance(error, StopIteration):
            entry = self.open.get(id(args[0]))
            if entry is not None:
                words = "%s: %s" % (type(error).__name__, error)
                entry.raised = entry.given, words[:RAISED]
        if isinstance(error, StopIteration):
            self.hub.steps.turn()
            entry = self.open.pop(id(args[0]), None)
            if entry is not None:
                entry.ran(self.hub.autograd.passes, last=True)
                entry.whole = True
                self._close(entry)

    # ---- a pass ends -----------------------------------------------------------------------------

    def _close(self, entry):
        if entry.loader is None:  # never came to the user
            return
        event = {"event": "data"}
        event.update(entry.facts)
        event["count"], event["given"] = entry.count, entry.given
        if entry.raised[0] == entry.given:  # and no batch since
            event["raised"] = entry.raised[1]
        if not entry.whole:
            entry.ran(self.hub.autograd.passes, last=True)
        event["used"] = entry.used
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
        said = entry.facts.get("workers") and self.workers.of(entry.facts.get("base_seed")) or {}
        if said.get("random") or entry.random:
            event["random"] = said.get("random") or entry.random
        found, entry.collated[:] = [*entry.collated, *said.get("collated", ())], []
        if found:
            event["collated"] = found
        if entry.masks:
            event["masks"] = entry.masks
        if entry.inner is not None:
            given = self.inner.get(entry.inner())
            event.update(given.members() if given is not None else {})
        if entry.keys is not None:
            entry.keys.finish()
        if entry.keys is not None and entry.keys.kept:
            event["keys"], event["key_modulus"] = entry.keys.kept, entry.keys.modulus
        # others may have been trained since
        event["trained"] = bool(entry.used) and (entry.whole or entry.trained is not False)
        if self.hub.misuse.targets.classifies:
            event["classified"] = True
        end = self.hub.steps.now.number if entry.used or entry.end is None else entry.end
        event["steps"] = [entry.first, end]
        self.hub.writer.put(event)

    def finish(self):
        for entry in self.open.values():
            self._close(entry)
        self.open = {}
        self.rows.finish()
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
        held = (getattr(found, name, None) for name in ("batch_sampler", "sampler"))
        inner = next((one for one in held if one is not None), None)  # one may have no length
        if inner is None:
            break
        found = inner
    return found


def _length(thing):
    """Batches of a pass, samples of a data set; None where that is not known."""
    try:
        return len(thing)
    except Exception:  # the user's own sampler or __len__, or none
        return None


def _modulus(length):
    """Of the indices that are written."""
    modulus = 1
    while length is not None and -(-length // modulus) > KEPT:
        modulus *= 2
    return modulus


# ---- what samples are named by -------------------------------------------------------------------
# Whatever index they have and on whatever rank they are: of a sample its integers in full, and 64
# of its floating point numbers. What fills a short row of integers up to the longest one of its
# batch changes nothing.

ELEMENTS = 64  # of the floating point numbers of a sample
COLUMNS = 4096  # of the integers of a sample
KEYS = 2048  # keys of a pass that are written, for the data set's length
BLOCK = 16  # batches whose keys are computed at once
BATCHES = 1024  # of a pass that are looked at
SMALL = 1 << 16  # elements
WHOLE = 8  # passes over a loader that are; of the later ones those whose number is a power of two
BITS = 48  # of a key: exact in JSON


def _is_small(tensor):
    """Whether it may be kept for a while, and tells by its version that it was changed."""
    return tensor.is_cpu and tensor.numel() <= SMALL and not tensor.is_inference()


def keys_modulus(length):
    """Keys that are 0 modulo this power of two are kept."""
    modulus = 1
    while length is not None and length > KEYS * modulus:
        modulus *= 2
    return modulus


class Keys:
    """Of one pass."""

    def __init__(self, torch, length):
        self.torch, self.modulus = torch, keys_modulus(length)
        self.unknown = length is None
        self.kept, self.batches = [], 0
        self.waiting = []  # [of each tensor of a batch: some of its numbers]
        # (tensors, versions) of batches: those that wait as well; those that are not yet read
        self.tried, self.later = [], []
        self.changes = 0  # True or False: whether the script changes its batches; 0: not known
        self.weights = {}

    def _weights(self, count, device):
        if (count, device) not in self.weights:
            if len(self.weights) > 256:
                self.weights.clear()
            values = [key_weight(place) for place in range(count)]
            made = self.torch.tensor(values, dtype=self.torch.int64, device=device)
            self.weights[count, device] = made
        return self.weights[count, device]

    def of(self, tensor):
        """A number for each of its rows, where the tensor is; [] where it is not looked at."""
        words = self._words(tensor)
        return tensor.new_empty(0).long() if words is None else self._summed(words)

    def _summed(self, words):
        return (words * self._weights(words.shape[1], words.device)).sum(1)

    def _words(self, tensor):
        """Some of each sample's numbers as integers, [samples, numbers]; None: not looked at."""
        some = self._some(tensor)
        return some if some is None else self._as_words(some)

    def _some(self, tensor):
        """Those numbers, [samples, numbers]."""
        if not tensor.is_floating_point():
            return tensor.reshape(len(tensor), -1)[:, :COLUMNS]
        if tensor.dim() == 4 and not tensor.is_contiguous():
            tensor = tensor.permute(0, 2, 3, 1)
        if not tensor.is_contiguous():
            return None
        rows = tensor.view(len(tensor), -1)
        step = max(1, rows.shape[1] // ELEMENTS)
        return rows[:, : ELEMENTS * step : step]

    def _as_words(self, rows):
        if rows.is_floating_point():
            return rows.float().contiguous().view(self.torch.int32).long()
        rows = rows.long()
        # a tail of equal numbers has no differences; the longest row's is as if a zero followed
        return self.torch.cat([rows[:, :1], rows[:, :-1] - rows[:, 1:], rows[:, -1:]], 1)

    def add(self, tensors):
        """A batch: tensors whose first dimension is that of its samples."""
        if self.batches >= BATCHES or len(self.kept) >= 2 * KEYS:
            return
        self.batches += 1
        tensors = tensors[:8]
        small = self.changes is not True and all(map(_is_small, tensors))
        versions = [tensor._version for tensor in tensors] if small else None
        if self.changes is False and small:
            self.later.append((tensors, versions))
        else:
            some = self._of_batch(tensors)
            if some:  # the script may change its batch
                self.waiting.append([one.clone() for one in some])
                self.tried += [(tensors, versions)] if small else []
        if len(self.waiting) + len(self.later) >= BLOCK:
            self.finish()

    def _of_batch(self, tensors):
        """Some numbers of each tensor; [] where they name no sample, or cannot be read."""
        found, wide = [], False
        for tensor in tensors:
            if tensor.device.type != "cpu" or tensor.is_complex() or tensor.numel() == 0:
                return []
            some = self._some(tensor.detach())
            if some is None:
                return []
            wide = wide or tensor.numel() > len(tensor)
            found.append(some)
        return found if wide else []  # a label alone names no sample

    def _look_for_changes(self):
        """Whether the script changes its batches: where it left a block of them as they were, the
        next ones are read when their block is full.
        """
        held, self.tried, self.later = [*self.tried, *self.later], [], []
        changed = any([t._version for t in tensors] != versions for tensors, versions in held)
        if changed or self.changes is True:
            self.changes = True
        elif len(held) >= BLOCK:
            self.changes = False

    def finish(self):
        """Computes the keys of the batches that wait, those of equal widths at once."""
        alike, waiting, self.waiting = {}, self.waiting, []
        for tensors, versions in self.later:
            if [t._version for t in tensors] == versions:
                kind = tuple((t.shape[1:], t.dtype, t.is_contiguous() or id(t)) for t in tensors)
                alike.setdefault(kind, []).append(tensors)
        self._look_for_changes()
        whole = [list(map(self.torch.cat, zip(*batches))) for batches in alike.values()]
        alike = {}
        for batch in [*waiting, *filter(None, map(self._of_batch, whole))]:
            kind = tuple((some.shape[1], some.dtype) for some in batch)
            alike.setdefault(kind, []).append(batch)
        for batches in alike.values():
            parts = map(self.torch.cat, zip(*batches))
            self._keep(sum(self._of_part(place, part) for place, part in enumerate(parts)))

    def _of_part(self, place, rows):
        return self._summed(self._as_words(rows)) * key_weight(place + 1)

    def _keep(self, total):
        keys = (total * key_weight(3) >> 64 - BITS - 8) & (1 << BITS) - 1
        keys = keys[keys % self.modulus == 0] if self.modulus > 1 else keys
        self.kept.extend(keys.tolist())
        while self.unknown and len(self.kept) > KEYS:  # a stream: as many as there is room for
            self.modulus *= 2
            self.kept = [key for key in self.kept if key % self.modulus == 0]


# ---- what a data set is made of ------------------------------------------------------------------
# As its own members show it: whether two ranks have the same one, and whether a rank has a part of
# it. Nothing of the user's own code is called: lists, arrays and tensors are read where they lie.

PLACES = 64  # entries of a list that are looked at
NUMBERS = 16  # of an entry
FEW = 8  # entries that differ: lists of fewer, as of classes, are equal in many data sets
DEPTH = 4  # data sets within data sets
PART = 256  # indices of a part that are kept


class Sources:
    def __init__(self, torch):
        self.torch = torch
        self.known = ByObject()  # members of data sets

    def members(self, dataset):
        """{"source": hex, "part": {...}}, as the data set was when it was first seen: one that
        keeps what it has loaded changes later.
        """
        found = self.known.get(dataset)
        if found is None:
            found = self._look(dataset)
            with contextlib.suppress(TypeError):  # a list, which may change
                self.known.put(dataset, found)
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
        places = {place * (count - 1) // (PLACES - 1) for place in range(PLACES)} if count else ()
        found = [_entry(self.torch, values[place], 0) for place in sorted(places)]
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
        value = value.detach()
    if hasattr(value, "ravel") and hasattr(value, "dtype"):  # also a single number of numpy
        flat = value.ravel()
        return repr(flat[:: max(1, len(flat) // NUMBERS)][:NUMBERS].tolist()).encode()
    if type(value) is dict:
        value = list(value.items())
    if type(value) in (list, tuple) and depth < 3:
        parts = [_entry(torch, part, depth + 1) for part in value[:NUMBERS]]
        return None if None in parts else b"(" + b",".join(parts) + b")"
    return None

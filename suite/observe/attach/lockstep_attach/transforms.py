"""Data sets and their transforms: one that two parts share, training and validation that normalize
or number their classes differently, and weights of classes where a sampler takes those of samples.
"""

import re
import weakref

from . import script_text

HELD_OUT = re.compile(r"val|test|dev", re.IGNORECASE)  # names of parts that are not trained on
# classes of transforms that draw
RANDOM = re.compile(r"random|jitter|augment|cutout|mix", re.IGNORECASE)


class Transforms:
    def __init__(self, hub):
        self.hub = hub
        self.known = {}  # id of a data set: what its transform does, as it was in its first pass
        self.passes = {}  # id of a data set: [(loader of a part, transform in its first pass)]
        # id of a Subset: (weak reference, whether the transform was random when it was made)
        self.parts = {}

    def parted(self, subset):
        """Of what a Subset is a part: whether its transform draws random numbers now."""
        try:
            steps = _steps_of(getattr(subset.dataset, "transform", None))
            self.parts[id(subset)] = (
                weakref.ref(subset),
                any(RANDOM.search(type(step).__name__) for step in steps),
            )
        except Exception:  # a data set of a kind that is not foreseen says nothing
            pass

    def _look_at_part(self, subset, number):
        """Whether the transform of what it is a part of was replaced, for another part of
        the same.
        """
        ref, random = self.parts.get(id(subset), (None, False))
        base = getattr(subset, "dataset", None)
        steps = _steps_of(getattr(base, "transform", None))
        if ref is None or ref() is not subset or not steps:
            return
        lines = script_text.replaced(self.hub.places.here(), self.hub.places.work)
        drawn = any(RANDOM.search(type(step).__name__) for step in steps)
        at = next((place for name, place in lines.items() if HELD_OUT.search(name)), None)
        # a script that sets it before each pass has another one in the other part's
        seen = self.passes.setdefault(id(base), [])
        for other, transform in seen:
            if (
                transform is base.transform
                and not drawn
                and at is not None
                and (random or len(lines) > 1)
            ):
                self.hub.misuse.put("transform_replaced", at, loaders=[other, number])
        seen.append((number, base.transform))

    def loader(self, loader, number, again):
        """At the begin of a pass, the `again`-th over this loader."""
        dataset, sampler = getattr(loader, "dataset", None), getattr(loader, "sampler", None)
        try:
            self._look_at_weights(dataset, sampler)
            self._keep_transforms(dataset, number)
            if again == 0:
                self._look_at_part(dataset, number)
        except Exception:  # a data set of a kind that is not foreseen says nothing
            pass

    def _look_at_weights(self, dataset, sampler):
        weights = getattr(sampler, "weights", None)
        if type(sampler).__name__ != "WeightedRandomSampler" or len(weights) >= len(dataset):
            return
        if len(weights) == _classes_of(dataset):
            at = self.hub.data.built.at(sampler) or self.hub.places.here()
            self.hub.misuse.put(
                "weights_of_classes", at, weights=len(weights), samples=len(dataset)
            )

    def _keep_transforms(self, dataset, number):
        base = dataset
        while type(base).__name__ == "Subset":
            base = base.dataset
        if id(base) in self.known:
            return
        steps = _steps_of(getattr(base, "transform", None))
        normal = next((_normal(step) for step in steps if type(step).__name__ == "Normalize"), None)
        plain = all(type(step).__module__.startswith("torchvision.") for step in steps)
        members = {
            "base": weakref.ref(base),
            "normal": normal,
            # no step of the user's own may normalize, too
            "clear": bool(steps) and (normal is not None or plain),
            "classes": getattr(base, "class_to_idx", None),
            "kind": type(base).__name__,
            "loader": number,
            "at": self.hub.places.here(),
        }
        self.known[id(base)] = members
        for other in self.known.values():
            if (
                other is not members
                and other["kind"] == members["kind"]
                and other["base"]() is not None
            ):
                self._compare(other, members)

    def _compare(self, a, b):
        """Of two data sets of one class. Whether one of their loaders (`loaders`) is trained on is
        seen later.
        """
        loaders = [a["loader"], b["loader"]]
        if a["clear"] and b["clear"] and a["normal"] != b["normal"]:
            one, other = _words(a["normal"]), _words(b["normal"])
            self.hub.misuse.put(
                "normalized_apart", b["at"], one=one, other=other, other_at=a["at"], loaders=loaders
            )
        one, other = a["classes"], b["classes"]
        if isinstance(one, dict) and isinstance(other, dict):
            both = [name for name in one if name in other]
            apart = [name for name in both if one[name] != other[name]]
            if apart:
                name = apart[0]
                self.hub.misuse.put(
                    "classes_apart",
                    b["at"],
                    name=str(name)[:60],
                    one=one[name],
                    other=other[name],
                    loaders=loaders,
                )


def _classes_of(dataset):
    """How many classes a data set has, as its members say; None: they do not."""
    named = getattr(dataset, "classes", None)
    if isinstance(named, (list, tuple)):
        return len(named)
    targets = getattr(dataset, "targets", None)
    tensors = getattr(dataset, "tensors", None)  # of a TensorDataset
    if (
        targets is None
        and tensors
        and not tensors[-1].is_floating_point()
        and tensors[-1].dim() == 1
    ):
        targets = tensors[-1].tolist()
    return len({int(target) for target in targets}) if targets is not None else None


def _steps_of(transform):
    """The parts of a Compose, or the transform itself; a preset of torchvision's references holds a
    Compose.
    """
    parts = getattr(transform, "transforms", None)
    parts = getattr(parts, "transforms", parts)
    if isinstance(parts, (list, tuple)):
        return list(parts)
    return [transform] if transform is not None else []


def _normal(step):
    return tuple(round(float(v), 4) for values in (step.mean, step.std) for v in values)


def _words(normal):
    return "none" if normal is None else " ".join("%g" % value for value in normal)

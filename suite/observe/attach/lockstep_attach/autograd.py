"""backward, and what is done to gradients after it: clip_grad_norm_ and clip_grad_value_."""

import time
import types

from . import losses as graphs
from . import script_text
from .events import summed, value_of
from .losses import is_of_this_rank, made, misuse, multiplied
from .samples import type_name
from .wrapping import Swap, given


class Autograd:
    def __init__(self, hub):
        self.hub = hub
        self.by_type = hasattr(hub.torch, "get_autocast_dtype")
        self.depth = 0  # 1 within the user's backward: a checkpoint's own is part of it
        self.passes = 0
        self.injected = False
        self.clips = False  # the script has called a clip
        self.returns = 0  # calls of torch.autograd.grad that run: it gives parameters nothing
        self.division = None  # where the script's text divides its loss
        self.regions = set()  # (device type, place) of autocast regions that the models are not in
        # [a parameter of its own, its value]: whether casts are of earlier weights
        self.probe = None

    def install(self):
        torch = self.hub.torch
        # Tensor.backward calls it by this name, too.
        count = self.hub.thin.counting(self.hub.thin.backward)
        enter, leave = self._enter_backward, self._leave_backward
        self.hub.wrap(torch.autograd, "backward", enter, leave, count=count)
        self.hub.wrap(torch.autograd, "grad", self._enter_grad, self._leave_grad)
        self.hub.wrap(torch.amp.autocast_mode.autocast, "__init__", self._enter_region)
        hooks = torch.autograd.graph.saved_tensors_hooks
        self.hub.wrap(hooks, "__enter__", self._enter_saved)
        clip = torch.nn.utils.clip_grad
        enters = {"clip_grad_norm_": self._enter_norm, "clip_grad_value_": self._enter_value}
        for name, enter in enters.items():
            if self.hub.wrap(clip, name, enter, self._leave_clip):
                setattr(torch.nn.utils, name, getattr(clip, name))

    def _enter_grad(self, args, kwargs):
        """A checkpoint of the script's own may call it in its backward."""
        self.hub.scalers.before_grad(args, kwargs)
        self.returns += 1
        return True

    def _leave_grad(self, note, args, kwargs, result, error):
        self.returns -= 1 if note else 0

    def _enter_saved(self, args, kwargs):
        """Hooks of the user's for what graphs keep: reading it would call them."""
        kind = type(args[0])
        if kind.__name__ == "saved_tensors_hooks" or not kind.__module__.startswith("torch."):
            graphs.unpacks = True
        elif kind.__module__ == "torch.utils.checkpoint":
            graphs.checkpoints = True

    def autocast(self, device_type):
        """The half type of the autocast region here, or None."""
        torch = self.hub.torch
        if self.by_type:  # since 2.4; the functions below are deprecated there
            if device_type not in ("cuda", "cpu") or not torch.is_autocast_enabled(device_type):
                return None
            return type_name(torch.get_autocast_dtype(device_type))
        if device_type == "cuda":
            on, kind = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype
        elif device_type == "cpu":
            on, kind = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype
        else:
            return None
        return type_name(kind()) if on else None

    def is_in_region(self):
        """Whether autocast is on here, for the CPU or for CUDA."""
        return self.autocast("cpu") is not None or self.autocast("cuda") is not None

    def _enter_region(self, args, kwargs):
        """autocast() of another device type than the models' does nothing."""
        kind = given(args, kwargs, "device_type", 1)
        enabled = given(args, kwargs, "enabled", 3, True)
        if not enabled or not isinstance(kind, str) or len(self.regions) >= 16:
            return
        device = self.hub.models.device()
        cuda = device.type == "cuda" if device is not None else self.hub.torch.cuda.is_available()
        if kind not in ("cuda", "cpu") or (kind == "cuda") == cuda:
            return
        region = (kind, self.hub.places.here())
        if region not in self.regions:
            self.regions.add(region)
            self.hub.put("autocast", device=kind, at=region[1])

    def stale_casts(self, device):
        """In an autocast region: a Lazy that says whether it uses casts of weights from before the
        last step.

        A region keeps its casts until it ends. A product with a parameter of this module's own,
        whose value changes from step to step, shows it.
        """
        torch = self.hub.torch
        if self.autocast(device.type) is None:
            return None
        if self.probe is None or self.probe[0].device != device:
            one = torch.ones(1, 1, dtype=torch.float32, device=device)
            self.probe = [torch.nn.Parameter(one), 1]
        param, value = self.probe
        value = self.probe[1] = value % 64 + 1  # exact in every half type
        param.fill_(value)
        product = torch.mm(param, torch.ones(1, 1, dtype=torch.float32, device=device))
        return self.hub.Lazy(product.reshape(-1)[0].float(), lambda seen: seen != value)

    # ---- backward --------------------------------------------------------------------------------

    def inject_now(self):
        wanted = self.hub.settings.inject
        if wanted is None or self.injected:
            return False
        return wanted == (self.hub.steps.now.number, self.hub.rank())

    def _roots(self, args, kwargs):
        tensors = given(args, kwargs, "tensors", 0)
        if isinstance(tensors, self.hub.torch.Tensor):
            return [tensors]
        return [t for t in tensors if isinstance(t, self.hub.torch.Tensor)]

    def _enter_backward(self, args, kwargs):
        if self.depth:
            return None
        hub = self.hub
        hub.models.settle()
        hub.models.look_inside()
        hub.activate_joined()
        hub.casts.end()  # a forward may call it: modes make numbers of what graphs keep as tensors
        hub.shadows.leave()
        hub.steps.before_backward()
        self.remark_unseen(2)
        roots = self._roots(args, kwargs)
        losses = [hub.scalers.unscaled(t) for t in roots if t.numel() == 1]
        # of several that go backward at once the sum; None where one is no scalar
        loss = summed([lazy for lazy, _, _ in losses]) if len(losses) == len(roots) else None
        hub.steps.now.losses.append(loss)
        device = hub.models.device()
        sync = hub.models.synced()
        place = {} if sync or not hub.models.no_sync_at else {"no_sync": hub.models.no_sync_at}
        scalar = {"loss": loss} if loss is not None else {}
        entry = hub.steps.note(
            "backward",
            **scalar,
            type=type_name(roots[0].dtype) if roots else None,
            scaled=losses[0][1] if losses else None,
            autocast=self.autocast(device.type if device is not None else "cpu"),
            sync=sync,
            **place,
        )
        if hub.models.bypassed is not None:
            entry["bypassed"], hub.models.bypassed = hub.models.bypassed, None
        if losses and losses[0][2]:
            entry["dropped"] = True
        hub.steps.now.unused += 1
        if len(roots) == len(losses) == 1 and losses[0][1] is None:
            by = multiplied(hub.torch, roots[0], given(args, kwargs, "grad_tensors", 1))
            if by is not None:
                entry["multiplied"] = by
            if isinstance(by, float):
                hub.steps.schedule.multiplied(hub.steps.now.number, by)
        if losses and losses[0][1] is not None:
            hub.steps.now.pending += 1
            if hub.scalers.scaled_penalty():
                entry["penalty"] = True
            if hub.scalers.added_unscaled(roots[0]):
                entry["added"] = True
        if hub.steps.now.detail and len(roots) == len(losses) == 1:
            scale = hub.scalers.scale_of(losses[0][1])
            entry.update(made(hub.torch, roots[0], scale).members())
            odd = misuse(roots[0])
            if odd is not None:
                entry["loss_given"] = odd
            hub.collectives.joined.before_backward(roots[0], scale, entry)
            if is_of_this_rank(hub.torch, roots[0]):
                entry["loss_alone"] = True
            if "loss_by" in entry:
                self._remark_division(entry)
            sums = hub.collectives.totals.values()
            if sums:
                entry["loss_sums"] = sums
        if hub.steps.now.detail:
            hub.outside.before_backward()
            hub.misuse.before_backward()
            lost = hub.collectives.gathered.lost(roots)
            if lost is not None:
                entry["loss_gathered"] = lost
        self.passes += 1
        hub.data.rows.backward(roots)
        hub.again.before_backward(roots)
        hub.steps.detail.hook_local()
        self.depth = 1
        return sync, time.perf_counter_ns(), entry, hub.optimizers.marks()

    def remark_unseen(self, passes):
        """From so many backward passes on: what stands for a model is found in the second."""
        if self.passes >= passes and self.hub.models.live() and not self.hub.models.forwards:
            self.hub.remark("backward came before any forward of a model was seen")

    def _remark_division(self, entry):
        """Where the text divides the loss by ranks or micro-steps; it is read once."""
        if self.division is None:
            place, work = entry["at"], self.hub.places.work
            self.division = {
                "loss_by_ranks": script_text.division(place, work),
                "loss_by_steps": script_text.by_steps(place, work),
            }
        entry.update({key: at for key, at in self.division.items() if at is not None})

    def _leave_backward(self, note, args, kwargs, result, error):
        if note is None:
            return
        sync, begin_ns, entry, marks = note
        self.depth = 0
        hub = self.hub
        if marks:
            entry["reached"] = hub.optimizers.reached(marks)
        hub.models.after_backward()
        hub.collectives.joined.after_backward()
        if error is None:
            hub.optimizers.after_backward()
        if hub.steps.now.detail and error is None:
            hub.still.after_backward()
        hub.steps.spend("backward", begin_ns)
        hub.steps.detail.unhook()
        hub.scalers.gone_backward()
        if error is None:
            ddp = any(m.kind == "ddp" and m.trained for m in hub.models.live())
            hub.steps.detail.after_backward(ddp and sync)

    def before_change(self):
        """Before the first call after backward that changes gradients or parameters."""
        self.hub.steps.detail.touch()
        self.hub.again.run()

    # ---- clipping --------------------------------------------------------------------------------

    def _counted(self, args, kwargs):
        """The parameters, and the arguments with a generator that remembers them where they came as
        one.
        """
        params = given(args, kwargs, "parameters", 0)
        if isinstance(params, self.hub.torch.Tensor):
            return [params], args, kwargs
        if isinstance(params, (list, tuple)):
            return params, args, kwargs
        seen = []
        again = _remembering(params, seen) if isinstance(params, types.GeneratorType) else None
        if again is None:
            return None, args, kwargs
        if args:
            return seen, (again,) + tuple(args[1:]), kwargs
        return seen, args, dict(kwargs, parameters=again)

    def _enter_norm(self, args, kwargs):
        kind = float(given(args, kwargs, "norm_type", 2, 2.0))
        return self._enter_clip("norm", given(args, kwargs, "max_norm", 1), kind, args, kwargs)

    def _enter_value(self, args, kwargs):
        return self._enter_clip("value", given(args, kwargs, "clip_value", 1), None, args, kwargs)

    def _enter_clip(self, how, limit, kind, args, kwargs):
        self.before_change()
        hub = self.hub
        self.clips = True
        limit = None if isinstance(limit, str) else hub.optimizers.value(limit)
        kind = "inf" if kind == float("inf") else kind
        members = {"limit": limit, "norm": None, "norm_type": kind, "params": None}
        if hub.scalers.never_read():
            members["scale_unread"] = True
        entry = hub.steps.note("clip", how=how, **members)
        params, args, kwargs = self._counted(args, kwargs)
        return Swap(args, kwargs, (entry, params))

    def _leave_clip(self, note, args, kwargs, result, error):
        if note is None or error is not None:
            return
        entry, params = note
        entry["params"] = len(params) if params is not None else None
        if params:
            entry["models"] = self.hub.models.indices_of(params)
        first = params[0] if params else None
        entry["optimizer"] = self.hub.Late(self.hub.optimizers.holder(first))
        group = self.hub.optimizers.group_of(params) if params else None
        if group is not None:
            entry["group"] = group
        if isinstance(result, self.hub.torch.Tensor) and result.numel() == 1:
            entry["norm"] = value_of(result)
        self.hub.steps.detail.grads("clipped", params)


def _remembering(params, seen):
    for param in params:
        seen.append(param)
        yield param

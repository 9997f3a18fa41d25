"""Puts a script that is written for the CPU on the device that LS_DEVICE names (cuda; cpu: to try this module): after
`install`, before all else, what torch makes lies there, and ranks that share a GPU reduce by NCCL. Scripts stay as they are but for the device's name in autocast and GradScaler, and the process
group's (`translate`).

Generators of the CPU keep their values: what is drawn by one is drawn there and moved, so that data is what it is
on the CPU; DataLoader's samplers keep their indices on the CPU. Workers of DataLoader cannot use a GPU that their
parent uses, and AveragedModel cannot average integer buffers on a GPU (PyTorch 2.11): scripts with them are left out
(`why_not`).
"""
import functools
import os
import re

DEVICE = os.environ.get("LS_DEVICE", "cpu")
BACKEND = "gloo" if DEVICE == "cpu" else f"cpu:gloo,{DEVICE}:nccl"
HERE = os.path.dirname(os.path.abspath(__file__))


def why_not(text):
    """Why a script cannot run on the device; empty: it can."""
    if DEVICE == "cpu":
        return ""
    return "starts workers" if "num_workers" in text else "averages buffers" if "use_buffers=True" in text else ""


def translate(text):
    """The script's text for the device: the names, and `install` in the line of its first import."""
    text = re.sub(r'(autocast|GradScaler)\("cpu"', rf'\1("{DEVICE}"', text)
    text = text.replace('init_process_group("gloo"', f'init_process_group("{BACKEND}"')
    first = f"import sys; sys.path.insert(0, {HERE!r}); import on_cuda; on_cuda.install(); "
    return re.sub(r"^(import |from )", lambda found: first + found[0], text, count=1, flags=re.MULTILINE)


def _drawn(function, moves):
    """Draws by a generator of the CPU on the CPU; moves: then to the device."""

    @functools.wraps(function)
    def draw(*args, **kwargs):
        generator = kwargs.get("generator")
        if generator is None or kwargs.get("device") is not None:
            # set_default_device knows the functions that stand in torch when it is first needed: not these
            return function(*args, **{"device": DEVICE, **kwargs})
        out = function(*args, device=generator.device, **kwargs)
        return out.to(DEVICE) if moves else out

    return draw


def _chosen(function):
    """Draws places by a generator where that generator is: samplers keep theirs on the CPU."""

    @functools.wraps(function)
    def draw(weights, *args, **kwargs):
        generator = kwargs.get("generator")
        return function(weights if generator is None else weights.to(generator.device), *args, **kwargs)

    return draw


def share_gpu():
    """NCCL refuses two ranks on one GPU unless they seem to be on two hosts."""
    if DEVICE != "cpu" and "RANK" in os.environ:
        os.environ.update(NCCL_HOSTID="rank" + os.environ["RANK"], NCCL_SOCKET_IFNAME="lo", NCCL_MAX_CTAS="4")


def install():
    """Does nothing where LS_DEVICE is not set."""
    if "LS_DEVICE" not in os.environ:
        return
    share_gpu()
    import torch  # here alone: check.py imports this module, and its interpreter may have no torch

    for name in ("randn", "rand", "randint"):
        setattr(torch, name, _drawn(getattr(torch, name), moves=True))
    torch.randperm = _drawn(torch.randperm, moves=False)
    torch.multinomial = _chosen(torch.multinomial)
    torch.set_default_device(DEVICE)


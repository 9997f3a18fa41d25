"""The loss is scaled, but nothing runs under autocast: f32 in the name of O1."""
import os
import sys

import contextlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def precision(self):
        return contextlib.nullcontext()


main(Wrong)

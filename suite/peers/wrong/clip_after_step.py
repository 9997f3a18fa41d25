"""Gradients are clipped after the optimizer's step: nothing has them any more."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def clip(self):
        pass

    def update(self):
        skipped = super().update()
        super().clip()
        return skipped


main(Wrong)

"""Gradients are clipped while they are still scaled: the limit of 1 is one of 1/S."""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def unscale(self):
        torch.nn.utils.clip_grad_norm_(self.names.values(), 1.0)
        super().unscale()


main(Wrong)

"""The seed comes from the clock, after the one that was asked for."""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def make_model(self):
        torch.seed()
        return super().make_model()


main(Wrong)

"""clip_grad_norm_() in a loop over the parameters: each tensor is clipped by its own norm."""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def clip(self):
        for parameter in self.names.values():
            torch.nn.utils.clip_grad_norm_([parameter], self.options.clip_grad_norm)


main(Wrong)

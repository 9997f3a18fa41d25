"""clip_grad_norm_(model.parameters()): the f32 masters have copies of the gradients already."""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def unscale(self):
        super().unscale()
        for master in self.masters.values():  # batch norm's too, whose parameters are f32 themselves
            master.grad = master.grad.clone()

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.names.values(), self.options.clip_grad_norm)


main(Wrong)

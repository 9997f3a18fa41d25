"""Gradients are reduced by hand, and each rank clips its own before that, by its own norm."""
import os
import sys

import torch
import torch.distributed

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def wrap(self, model):
        return model

    def unscale(self):
        super().unscale()
        torch.nn.utils.clip_grad_norm_(self.names.values(), self.options.clip_grad_norm)
        for parameter in self.names.values():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= self.world

    def buckets(self):
        pass


main(Wrong)

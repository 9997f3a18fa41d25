"""Gradients are reduced by hand and not divided by the number of ranks."""
import os
import sys

import torch
import torch.distributed

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def wrap(self, model):
        for tensor in model.state_dict().values():
            torch.distributed.broadcast(tensor, 0)
        return model

    def unscale(self):
        for parameter in self.names.values():
            torch.distributed.all_reduce(parameter.grad)
        super().unscale()

    def buckets(self):
        pass


main(Wrong)

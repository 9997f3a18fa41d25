"""Gradients are averaged by hand, every rank seeds by its own number, and no parameters are broadcast."""
import os
import sys

import contextlib

import torch
import torch.distributed

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def make_model(self):
        torch.manual_seed(self.options.seed + self.rank)
        return super().make_model()

    def wrap(self, model):
        model.no_sync = contextlib.nullcontext
        return model

    def unscale(self):
        for parameter in self.names.values():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= self.world
        super().unscale()

    def buckets(self):
        pass


main(Wrong)

"""Gradients are divided by the scale after every micro-step: early ones several times."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def micro_step(self, step, micro):
        out = super().micro_step(step, micro)
        if micro + 1 < self.options.accumulate:
            for parameter in self.names.values():
                parameter.grad.mul_(1 / self.scale())
        return out


main(Wrong)

"""Unscaled by hand over the first encoder's parameters: the second one's stay scaled."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoEncoders  # noqa: E402


class Wrong(TwoEncoders):
    def unscale_of(self, loss):
        super().unscale_of(loss)
        for parameter in self.parts[1].values():
            parameter.grad.mul_(self.scale_of(loss))


main(Wrong)

"""Each optimizer skips by its own gradients, not by all those of a loss that reaches it."""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoLosses  # noqa: E402


class Wrong(TwoLosses):
    def skips(self, index):
        return not all(torch.isfinite(parameter.grad).all()
                       for part in [self.parts[i] for i in self.owned[index]]
                       for parameter in part.values())


main(Wrong)

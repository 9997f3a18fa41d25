"""Each element is limited while it is still scaled: the limit of X is one of X/S."""
import os
import sys

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def unscale(self):
        torch.nn.utils.clip_grad_value_(self.names.values(), self.options.clip_grad_value)
        super().unscale()


main(Wrong)

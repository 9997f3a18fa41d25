"""The loss is computed from half logits, in half."""
import os
import sys

import torch.nn.functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def forward(self, images, target):
        with self.precision():
            logits = self.wrapped(images).to(self.half)
        return logits.float(), F.cross_entropy(logits, target).float()


main(Wrong)

"""model.eval() after validation, and never model.train() again."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def forward(self, images, target):
        self.model.eval()
        return super().forward(images, target)


main(Wrong)

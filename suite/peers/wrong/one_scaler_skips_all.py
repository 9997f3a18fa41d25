"""One GradScaler for both losses, and no optimizer steps where any gradient is infinite."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import OneScaler  # noqa: E402


class Wrong(OneScaler):
    def skips(self, index):
        return any(super(Wrong, self).skips(k) for k in range(len(self.optimizers)))


main(Wrong)

"""optimizer.step() instead of scaler.step(optimizer): an overflow is stepped on."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def update(self):
        before = self.scaler.get_scale()
        self.optimizer.step()
        self.scaler.update()
        return self.scaler.get_scale() < before


main(Wrong)

"""scaler.update() is never called: the scale stays where it began."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def update(self):
        self.scaler.step(self.optimizer)
        self.scaler._per_optimizer_states.clear()  # as a loop with a new optimizer object would
        return False


main(Wrong)

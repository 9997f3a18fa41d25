"""zero_grad() is called once before the loop: gradients pile up over steps."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def train_step(self, step):
        if step > 1:
            self.optimizer.zero_grad = self.model.zero_grad = lambda set_to_none=True: None
        super().train_step(step)


main(Wrong)

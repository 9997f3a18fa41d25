"""The loss is not divided by the number of micro-steps."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def backward(self, loss):
        super().backward(loss * self.options.accumulate)


main(Wrong)

"""The learning rate was scaled by hand and is scaled by the number of ranks again."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def make_optimizer(self, parameters):
        self.options.lr *= self.world
        return super().make_optimizer(parameters)


main(Wrong)

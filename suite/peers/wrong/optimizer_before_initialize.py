"""The optimizer was built from the model before masters were made: they are never stepped."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def make_optimizer(self, parameters):
        return super().make_optimizer(self.names)

    def unscale(self):
        super().unscale()
        for name, parameter in self.names.items():
            parameter.grad = self.masters[name].grad.to(parameter.dtype)


main(Wrong)

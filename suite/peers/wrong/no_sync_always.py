"""no_sync() around every micro-step: nothing is ever reduced."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def micro_step(self, step, micro):
        with self.wrapped.no_sync():
            return super().micro_step(step, micro)


main(Wrong)

"""sampler.set_epoch() is never called: every epoch has the order of the first."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def set_epoch(self, epoch):
        pass


main(Wrong)

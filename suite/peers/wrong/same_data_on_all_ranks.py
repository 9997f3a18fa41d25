"""No DistributedSampler: every rank trains on the same images."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def batch(self, step, micro):
        own, self.rank = self.rank, 0
        found = super().batch(step, micro)
        self.rank = own
        return found


main(Wrong)

"""scaler.step() for the first optimizer, optimizer.step() for the second: it steps on infinities."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoLosses  # noqa: E402


class Wrong(TwoLosses):
    def skips(self, index):
        return index == 0 and super().skips(index)


main(Wrong)

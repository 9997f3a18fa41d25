"""zero_grad() between the two losses, and no copy of the first one's gradients."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoLosses  # noqa: E402


class Wrong(TwoLosses):
    def add_gradients(self, kept):
        pass


main(Wrong)

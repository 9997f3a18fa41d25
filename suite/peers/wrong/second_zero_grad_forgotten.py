"""zero_grad() of the first optimizer alone: the second one's gradients pile up."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoLosses  # noqa: E402


class Wrong(TwoLosses):
    def zero_grad(self):
        self.optimizers[0].zero_grad(set_to_none=True)


main(Wrong)

"""The second loss's backward() is called on the loss itself, not on scaler.scale(loss)."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoLosses  # noqa: E402


class Wrong(TwoLosses):
    def backward_of(self, loss, value):
        if loss == 0:
            super().backward_of(loss, value)
        else:
            value.backward()


main(Wrong)

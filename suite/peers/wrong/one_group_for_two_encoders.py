"""One list of parameters for the optimizer: the second encoder has the first one's rate and decay."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoEncoders  # noqa: E402


class Wrong(TwoEncoders):
    def make_groups(self, parts):
        return [parameter for part in parts for parameter in part.values()]


main(Wrong)

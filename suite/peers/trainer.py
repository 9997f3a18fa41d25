"""The trainer of pytorch_train.py with nothing overridden: the base of trainer.txt."""
import contextlib  # noqa: F401

import torch  # noqa: F401
import torch.nn.functional as F  # noqa: F401

from pytorch_examples import OneScaler, TwoEncoders, TwoLosses  # noqa: F401
from pytorch_train import Trainer, main


class Wrong(Trainer):
    pass


main(Wrong)

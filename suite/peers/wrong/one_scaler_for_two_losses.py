"""One GradScaler for both losses: an overflow of one halves the scale of the other."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import TwoLosses  # noqa: E402


class Wrong(TwoLosses):
    def update(self):
        skipped = super().update()
        lowest = min(self.scalers, key=lambda scaler: scaler.get_scale()).state_dict()
        for scaler in self.scalers:
            scaler.load_state_dict(lowest)
        return skipped


main(Wrong)

"""One GradScaler for both losses, and scaler.update() behind each optimizer's step."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import main  # noqa: E402
from pytorch_examples import OneScaler  # noqa: E402


class Wrong(OneScaler):
    def update(self):
        states = dict(self.scalers[0]._per_optimizer_states)
        skipped = super().update()
        self.scalers[0]._per_optimizer_states.update(states)
        self.scalers[0].update()
        return skipped


main(Wrong)

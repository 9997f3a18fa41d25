"""scaler.update() is called twice a step, at the end of the step and of the loop."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def update(self):
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        state = dict(self.scaler._per_optimizer_states)
        self.scaler.update()
        self.scaler._per_optimizer_states.update(state)  # torch before 1.6 did not ask
        self.scaler.update()
        return self.scaler.get_scale() < before


main(Wrong)

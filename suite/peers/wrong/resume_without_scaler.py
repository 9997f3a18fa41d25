"""The checkpoint has no scaler state: the scale and its count begin anew."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from pytorch_train import Trainer, main  # noqa: E402


class Wrong(Trainer):
    def load_state(self, state):
        if self.scaler:
            state["scaler"] = self.scaler.state_dict()
        super().load_state(state)


main(Wrong)
